//! The nouns as plain data.
//!
//! Purpose: what is stored and what commands carry, without behaviour beyond small derivations.
//! Callers: everything but `time` and `ids`. Every type here is bincode-safe (no skipped, flattened or untagged
//! fields) because stored values are bincode in a versioned envelope: a changed struct is a new version.

pub mod cluster;
pub mod execution;
pub mod history;
pub mod lease;
pub mod policy;
pub mod queue;
pub mod rule;
pub mod schedule;
pub mod tenant;
