//! When things happen: cron, intervals, zones, clock changes, jitter.
//!
//! Purpose: answer "which instants does this rule name" exactly, from 1970 to 2199, in every IANA
//! zone, from one zone data release. Pure: no clock, no randomness, no environment.
//! Callers: leader (planning), API and CLI (validation, preview). Uses `time` and `model::rule`
//! only.
//! Invariants: see each module; the promises to users are in `docs/cron.md`.
//!
//! Reading order: `civil` (labels), `zone` and `zone_data` (offsets), `cron` (expressions), `fires`
//! (clock changes), `interval`, `repeat`, `rrule`, `instant` (the other rules), `compiled` and
//! `query` (the whole), `warnings` and `preview` (for people).

mod civil;
mod compiled;
mod cron;
pub mod duration;
mod error;
mod fires;
mod instant;
mod interval;
mod label_set;
mod preview;
mod query;
mod repeat;
mod rrule;
mod stable_hash;
pub mod unsupported;
mod warnings;
mod zone;
mod zone_data;

#[cfg(test)]
mod tests;

pub use civil::Wall;
pub use compiled::{CalendarDates, Compiled, EVERY_MIN, EXCLUDED_MAX, JITTER_MAX};
pub use error::{CODES, RuleError};
pub use fires::FireReason;
pub use instant::parse_at;
pub use preview::{COUNT_MAX, Occurrence, Preview, ZoneChange, preview};
pub use query::{Count, Excluded, Fire, Lost};
pub use warnings::{WARNINGS, Warning};
pub use zone::Zone;
pub use zone_data::{ReleaseError, ZoneData};
