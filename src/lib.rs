//! Punctual: a distributed job scheduler in one binary.
//!
//! Data goes one way: HTTP or CLI → command → Raft log → deterministic apply → store; effects after commit,
//! by the leader, as hints. `ARCHITECTURE.md` is the map; `STORAGE.md` lists every stored key.

#![cfg_attr(
    test,
    allow(
        clippy::cast_possible_truncation,
        clippy::cast_possible_wrap,
        clippy::cast_sign_loss,
        clippy::needless_pass_by_value,
        reason = "test data is small, and test doubles take what their traits give"
    )
)]

pub mod api;
pub mod calendar;
pub mod cli;
pub mod client;
pub mod command;
pub mod config;
pub mod crontab;
pub mod fault;
pub mod ids;
pub mod leader;
pub mod model;
#[cfg(feature = "rocks")]
pub mod node;
pub mod raft;
pub mod rt;
pub mod state;
pub mod store;
pub mod time;
pub mod wire;
pub mod worker;
