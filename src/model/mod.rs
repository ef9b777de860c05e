//! Plain data: what is stored, logged and compared. No behaviour beyond construction and conversion.
//!
//! Callers: everything above `time`. Invariant: every type here round-trips through bincode.

pub mod rule;
