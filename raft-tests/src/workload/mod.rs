//! What the simulated cluster is used for.
//!
//! Purpose: one file per workload, each an implementation of [`crate::sim::Workload`], and the list of them.
//! Callers: `main`.
//! To add one: implement the trait (open a machine on a store that survives crashes, a task for each life of a node,
//! clients, a final check), add it to [`Kind`], and name in [`Kind::required`] what a batch must have seen.

use std::sync::Arc;

use crate::sim::seed::Seed;
use crate::sim::{Options, Workload};

pub mod chronicle;
pub mod scheduler;

/// The workloads by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Kind {
    /// Raft alone, with a state machine that is a chain of hashes.
    Chronicle,
    /// The whole scheduler: state machine, leader, schedules, workers.
    Scheduler,
}

impl Kind {
    /// The name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Chronicle => "chronicle",
            Self::Scheduler => "scheduler",
        }
    }

    /// A fresh workload for one run.
    #[must_use]
    pub fn make(self, _seed: Seed, _options: &Options) -> Arc<dyn Workload> {
        match self {
            Self::Chronicle => Arc::new(chronicle::ChronicleWorkload::default()),
            Self::Scheduler => Arc::new(scheduler::SchedulerWorkload::default()),
        }
    }

    /// Counts that must not be zero after a batch of at least a hundred seeds, or it proves nothing.
    #[must_use]
    pub fn required(self) -> &'static [&'static str] {
        match self {
            Self::Chronicle => &[
                "acked",
                "faults",
                "snapshot_installs",
                "fast_leader_returns",
                "fault_one_way",
                "nodes_replaced",
                "barriers",
            ],
            Self::Scheduler => &[
                "acked",
                "faults",
                "snapshot_installs",
                "fast_leader_returns",
                "fault_one_way",
                "fired",
                "granted",
                "lease_expiries",
                "stale_tokens",
                "renewals",
                "cancels",
                "hang_ups",
                "leases_given_back",
            ],
        }
    }
}
