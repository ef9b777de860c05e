//! The simulated world: runtime, network, disk, clock, faults, and the checks that hold everywhere.
//!
//! Purpose: run the real Raft node, log adapter, state machine and leader of several nodes in one thread, in virtual time,
//! from one seed.
//! Callers: `workload` (what the cluster is used for), `main` (batches of seeds).
//! Invariants:
//! 1. Everything random comes from the seed, through one stream per component ([`seed::Seed`]); nothing here reads a
//!    clock, a thread's generator or a hash map's order. The same seed gives the same trace hash in any process and
//!    after any other seed.
//! 2. A crash drops every task of the node, then keeps what was synced and a random prefix of the rest.
//! 3. Every loss is silence: a cut or lost message is never answered, so that deadlines are what ends a call.

pub mod chaos;
pub mod clock;
pub mod disk;
pub mod faults;
pub mod ledger;
pub mod network;
pub mod observe;
pub mod options;
pub mod run;
pub mod runtime;
pub mod seed;
pub mod trace;
pub mod watch;
pub mod world;

pub use options::Options;
pub use run::{SeedReport, run_seed};
pub use world::{NodeContext, Workload, World};
