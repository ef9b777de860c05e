//! What a run looks like, drawn from its seed.
//!
//! Purpose: swarm testing: sizes, time-outs, rates and bounds differ from seed to seed; each can be fixed by hand.
//! Callers: `main`, [`super::run`].

use punctual::raft::RaftSettings;
use rand::RngExt;

use super::network::LinkQuality;
use super::seed::Seed;

/// Everything that shapes a run besides its seed.
#[derive(Clone, Debug)]
pub struct Options {
    /// Voters at the start: 1, 3 or 5.
    pub nodes: u64,
    /// Virtual milliseconds under faults.
    pub chaos_ms: u64,
    /// Virtual milliseconds that recovery may take after the last fault.
    pub recovery_ms: u64,
    /// Mean pause between faults.
    pub fault_pause_ms: u64,
    /// Settings of every node.
    pub raft: RaftSettings,
    /// Usual quality of every link.
    pub link: LinkQuality,
    /// Usual sync time, in microseconds.
    pub sync_us: (u64, u64),
    /// How many clients a workload should run.
    pub clients: u64,
    /// The log acknowledges before it syncs (a planted bug).
    pub acknowledge_early: bool,
    /// Only slow a leader's disk, crash it and bring it back at once (what the planted bugs need).
    pub only_fast_returns: bool,
    /// Keep the trace as text.
    pub verbose: bool,
}

/// What the caller of a batch fixes for all seeds.
#[derive(Clone, Debug, Default)]
pub struct Overrides {
    /// Number of voters.
    pub nodes: Option<u64>,
    /// Virtual milliseconds under faults.
    pub chaos_ms: Option<u64>,
    /// `RaftSettings::leader_restore`.
    pub leader_restore: bool,
    /// See [`Options::acknowledge_early`].
    pub acknowledge_early: bool,
    /// See [`Options::only_fast_returns`].
    pub only_fast_returns: bool,
    /// See [`Options::verbose`].
    pub verbose: bool,
}

impl Options {
    /// Draws the options of `seed`.
    #[must_use]
    pub fn draw(seed: Seed, over: &Overrides) -> Self {
        let rng = &mut seed.stream("options", 0);
        let nodes = match rng.random_range(0..10) {
            0 => 1,
            1..=7 => 3,
            _ => 5,
        };
        // The real heartbeat for a share of the seeds; the slow one makes more seeds fit into a minute.
        let slow = rng.random_range(0..4) > 0;
        let (heartbeat, min, max) = if slow {
            (200, 1_000, 1_600)
        } else {
            (50, 250, 400)
        };
        let small = rng.random_range(0..3) > 0;
        let raft = RaftSettings {
            heartbeat_ms: heartbeat,
            election_min_ms: min,
            election_max_ms: max,
            append_ms: if slow { 1_000 } else { 500 },
            snapshot_idle_ms: 2_000,
            snapshot_install_ms: 4_000,
            snapshot_piece_bytes: 1 << rng.random_range(9..14),
            snapshot_log_bytes: if small { 4_000 } else { 40_000 },
            snapshot_interval_ms: rng.random_range(3_000..20_000),
            log_tail_bytes: if small { 2_000 } else { 20_000 },
            upkeep_ms: rng.random_range(200..1_500),
            append_entries_max: if rng.random() { 64 } else { 4 },
            barrier_ms: 2_000,
            leader_restore: over.leader_restore,
            ..RaftSettings::default()
        };
        let loss = if rng.random() {
            0
        } else {
            rng.random_range(0..20)
        };
        Self {
            nodes: over.nodes.unwrap_or(nodes),
            chaos_ms: over.chaos_ms.unwrap_or(22_000),
            recovery_ms: 30_000,
            fault_pause_ms: rng.random_range(500..2_000),
            raft,
            link: LinkQuality {
                cut: false,
                delay_us: (100, rng.random_range(500..5_000)),
                loss_permille: loss,
            },
            sync_us: (200, rng.random_range(1_000..8_000)),
            clients: rng.random_range(2..6),
            acknowledge_early: over.acknowledge_early,
            only_fast_returns: over.only_fast_returns,
            verbose: over.verbose,
        }
    }
}
