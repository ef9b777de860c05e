//! The replicated state machine.
//!
//! Purpose: turn committed log entries into state, outcomes and effects, the same on every node.
//! Callers: `raft` (apply, checkpoints), `leader` and `api` (reads).
//! Invariants: apply is a pure function of (state, entry): no clock, randomness, zone data, float or hash-map order.

pub mod apply;
pub mod context;
pub mod history;
pub mod machine;
pub mod reader;
pub mod replica;
pub mod resident;
pub mod verify;

mod admin;
mod cancel;
mod checks;
mod executions;
mod expiry;
mod finishing;
mod firing;
mod grants;
mod lease_end;
mod limits;
mod parking;
mod prefetch;
#[cfg(test)]
mod reference;
mod reports;
mod retrying;
mod schedules;
#[cfg(test)]
mod testkit;
#[cfg(test)]
mod write_budget;
