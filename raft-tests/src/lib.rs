//! Seeded simulation of a Punctual cluster.
//!
//! Purpose: run real nodes on simulated time, network and disk, thousands of times faster than the clock, and replay any
//! failure from its seed.
//! Parts: [`sim`] is the world, [`workload`] what it is used for. `cargo run -p raft-tests --release -- --help`.

pub mod sim;
pub mod workload;
