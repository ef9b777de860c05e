//! Benchmarks that print JSON lines.
//!
//! Purpose: measure real processes over HTTP: W1 create, W2 claim and complete, W3 a burst due at one instant, W4 steady
//! load, W5 resting schedules, W6 every-minute schedules. Callers: the `bench` binary (`scripts/bench`).
//! Invariants: a figure is what clients or `/proc` saw in this run; nothing is acknowledged before a majority has synced
//! it (the product's default); payloads have 100 bytes; client and servers share the machine, so server CPU per
//! execution is the steadier figure.

pub mod drain;
pub mod load;
pub mod report;
pub mod resting;
pub mod workloads;
