//! Which async runtime Raft runs on.
//!
//! Purpose: one small trait over openraft's, so that production and the simulation share every line of this module.
//! Callers: `raft`; `raft-tests` implements it for its seeded runtime.

use openraft::AsyncRuntime;

/// An openraft runtime that also knows how to run work that may block on the disk.
pub trait NodeRuntime: AsyncRuntime {
    /// Runs `work` on this thread in a way that does not hold up other tasks.
    fn blocking<T>(work: impl FnOnce() -> T) -> T;
}

impl NodeRuntime for openraft_rt_tokio::TokioRuntime {
    fn blocking<T>(work: impl FnOnce() -> T) -> T {
        tokio::task::block_in_place(work)
    }
}
