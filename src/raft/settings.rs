//! Settings of Raft on one node.
//!
//! Purpose: every time-out and bound in one place, with the reason for its default.
//! Callers: `raft`, `node` (from the configuration file), `raft-tests` (to force rare paths).
//! Invariants: [`RaftSettings::check`] holds before anything starts.

use std::time::Duration;

use crate::fault::Fault;

/// Time-outs and bounds. All durations are in milliseconds of the monotonic clock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RaftSettings {
    /// Pause between heartbeats of a leader.
    pub heartbeat_ms: u64,
    /// Shortest wait of a follower before it stands for election. Fail-over takes about twice `election_max_ms`.
    pub election_min_ms: u64,
    /// Longest such wait, and the time a vote protects a leader.
    pub election_max_ms: u64,
    /// Deadline of one append with entries; generous, because a deadline that a slow disk exceeds repeats the work.
    pub append_ms: u64,
    /// Longest silence inside a snapshot transfer.
    pub snapshot_idle_ms: u64,
    /// Deadline of the final step of a snapshot transfer (sync, install).
    pub snapshot_install_ms: u64,
    /// Bytes in one piece of a snapshot.
    pub snapshot_piece_bytes: usize,
    /// A snapshot is built after this many bytes of log since the last one.
    pub snapshot_log_bytes: u64,
    /// Or after this time, if anything was applied since.
    pub snapshot_interval_ms: u64,
    /// Log kept behind the applied index, so that a node that was away for a while needs no snapshot.
    pub log_tail_bytes: u64,
    /// How often snapshot and purge are considered.
    pub upkeep_ms: u64,
    /// Most entries in one append.
    pub append_entries_max: u64,
    /// Most proposals waiting for their answer.
    pub proposals_max: usize,
    /// Most bytes of them.
    pub proposal_bytes_max: usize,
    /// A follower that has this many committed entries yet to apply delays its answers to the leader.
    pub apply_lag_max: u64,
    /// Deadline of a read barrier.
    pub barrier_ms: u64,
    /// A member whose wall clock is further off than this is told of in the log.
    pub clock_skew_max_ms: u64,
    /// Whether a restarted leader resumes its term without a vote. Loses acknowledged writes when the disk loses
    /// unsynced bytes; only the simulation sets it, to prove that it would notice.
    pub leader_restore: bool,
}

/// Largest proposal.
pub const PROPOSAL_BYTES_MAX: usize = 1024 * 1024;

impl Default for RaftSettings {
    fn default() -> Self {
        Self {
            heartbeat_ms: 50,
            election_min_ms: 250,
            election_max_ms: 400,
            append_ms: 1_500,
            snapshot_idle_ms: 10_000,
            snapshot_install_ms: 120_000,
            snapshot_piece_bytes: 1024 * 1024,
            snapshot_log_bytes: 512 * 1024 * 1024,
            snapshot_interval_ms: 600_000,
            log_tail_bytes: 1024 * 1024 * 1024,
            upkeep_ms: 5_000,
            append_entries_max: 64,
            proposals_max: 256,
            proposal_bytes_max: 32 * 1024 * 1024,
            apply_lag_max: 4_096,
            barrier_ms: 2_000,
            clock_skew_max_ms: 500,
            leader_restore: false,
        }
    }
}

impl RaftSettings {
    /// Refuses combinations that cannot work.
    ///
    /// # Errors
    /// [`Fault::Invariant`], naming the settings.
    pub fn check(&self) -> Result<(), Fault> {
        if self.election_min_ms >= self.election_max_ms {
            return Err(Fault::invariant(
                "election_min_ms must be below election_max_ms",
            ));
        }
        if self.heartbeat_ms == 0 || self.heartbeat_ms.saturating_mul(2) >= self.election_min_ms {
            return Err(Fault::invariant(
                "heartbeat_ms must be above 0 and below half of election_min_ms",
            ));
        }
        if self.append_entries_max == 0 || self.snapshot_piece_bytes == 0 {
            return Err(Fault::invariant(
                "append_entries_max and snapshot_piece_bytes must be above 0",
            ));
        }
        Ok(())
    }

    pub(super) fn vote_deadline(&self) -> Duration {
        Duration::from_millis(self.election_min_ms)
    }

    pub(super) fn heartbeat_deadline(&self) -> Duration {
        Duration::from_millis(self.heartbeat_ms)
    }

    pub(super) fn append_deadline(&self) -> Duration {
        Duration::from_millis(self.append_ms)
    }

    pub(super) fn snapshot_idle(&self) -> Duration {
        Duration::from_millis(self.snapshot_idle_ms)
    }

    pub(super) fn snapshot_install(&self) -> Duration {
        Duration::from_millis(self.snapshot_install_ms)
    }

    pub(super) fn retry_pause(&self) -> Duration {
        Duration::from_millis(self.heartbeat_ms.saturating_mul(2))
    }

    pub(super) fn barrier_deadline(&self) -> Duration {
        Duration::from_millis(self.barrier_ms)
    }

    pub(super) fn upkeep_pause(&self) -> Duration {
        Duration::from_millis(self.upkeep_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_hold_and_contradictions_are_refused() {
        assert!(RaftSettings::default().check().is_ok());
        assert!(!RaftSettings::default().leader_restore);
        let swapped = RaftSettings {
            election_min_ms: 400,
            ..RaftSettings::default()
        };
        assert!(swapped.check().is_err());
        let frantic = RaftSettings {
            heartbeat_ms: 200,
            ..RaftSettings::default()
        };
        assert!(frantic.check().is_err());
    }
}
