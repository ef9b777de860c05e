//! What the simulated cluster is used for.
//!
//! Purpose: one file per workload, each an implementation of [`crate::sim::Workload`].
//! Callers: `main`.

pub mod chronicle;
pub mod scheduler;
