//! Faults, drawn up front.
//!
//! Purpose: a list of events at virtual times that [`super::world`] carries out; a failing list can be cut down by hand.
//! Callers: [`super::run`].
//! Invariants: the list depends on the seed alone, never on what the cluster did. Targets such as "the leader" are
//! resolved when the event happens.

use rand::RngExt;
use rand::rngs::SmallRng;

use super::options::Options;
use super::seed::Seed;

/// Whom a fault hits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// Whoever leads at that moment (any node if nobody does).
    Leader,
    /// This node, counted among the living members.
    Nth(u64),
}

/// One fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// Power loss, and a restart after `down_ms`.
    Crash { target: Target, down_ms: u64 },
    /// The disk slows down, then a power loss and a return well before anybody stands for election.
    FastReturn { slow_ms: u64, down_ms: u64 },
    /// Every node loses power at once.
    CrashAll { down_ms: u64 },
    /// The node hears nobody and nobody hears it.
    Isolate { target: Target, for_ms: u64 },
    /// The node is not heard (`outward`) or hears nobody.
    OneWay {
        target: Target,
        outward: bool,
        for_ms: u64,
    },
    /// A random split into two sides.
    Split { mask: u64, for_ms: u64 },
    /// All of a node's links become slow.
    SlowLinks {
        target: Target,
        delay_ms: u64,
        for_ms: u64,
    },
    /// Syncs become slow.
    SlowDisk {
        target: Target,
        sync_ms: u64,
        for_ms: u64,
    },
    /// A sync fails; the node stops by itself and is restarted.
    DiskError { target: Target },
    /// The wall clock jumps.
    ClockJump { target: Target, by_ms: i64 },
    /// The wall clock runs wrong from now on.
    ClockDrift { target: Target, ppm: i64 },
    /// A snapshot is built and the log purged as far as allowed.
    Snapshot { target: Target },
    /// The node is away so long that it needs a snapshot.
    LongOutage { target: Target, down_ms: u64 },
    /// Leadership moves.
    Transfer,
    /// A follower loses its disk, is removed, and an empty node joins under a new id.
    Replace { target: Target },
    /// The node's process stands still: its messages wait, its timers are late.
    Pause { target: Target, for_ms: u64 },
}

impl Event {
    /// The name under which it is counted.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Crash { .. } => "crash",
            Self::FastReturn { .. } => "fast_return",
            Self::CrashAll { .. } => "crash_all",
            Self::Isolate { .. } => "isolate",
            Self::OneWay { .. } => "one_way",
            Self::Split { .. } => "split",
            Self::SlowLinks { .. } => "slow_links",
            Self::SlowDisk { .. } => "slow_disk",
            Self::DiskError { .. } => "disk_error",
            Self::ClockJump { .. } => "clock_jump",
            Self::ClockDrift { .. } => "clock_drift",
            Self::Snapshot { .. } => "snapshot",
            Self::LongOutage { .. } => "long_outage",
            Self::Transfer => "transfer",
            Self::Replace { .. } => "replace",
            Self::Pause { .. } => "pause",
        }
    }
}

/// An event and its virtual time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Planned {
    /// Milliseconds since the start.
    pub at_ms: u64,
    /// What happens.
    pub event: Event,
}

fn target(rng: &mut SmallRng) -> Target {
    if rng.random_range(0..3) == 0 {
        Target::Leader
    } else {
        Target::Nth(rng.random_range(0..8))
    }
}

fn event(rng: &mut SmallRng, options: &Options) -> Event {
    let lease = options.raft.election_max_ms;
    let short = options.raft.election_min_ms;
    let for_ms = rng.random_range(lease / 2..lease * 4);
    match rng.random_range(0..100) {
        0..=17 => Event::Crash {
            target: target(rng),
            down_ms: rng.random_range(1..lease * 4),
        },
        18..=32 => fast_return(rng, short),
        33..=35 => Event::CrashAll {
            down_ms: rng.random_range(1..lease * 2),
        },
        36..=44 => Event::Isolate {
            target: target(rng),
            for_ms,
        },
        45..=53 => Event::OneWay {
            target: target(rng),
            outward: rng.random(),
            for_ms,
        },
        54..=58 => Event::Split {
            mask: rng.random(),
            for_ms,
        },
        59..=64 => Event::SlowLinks {
            target: target(rng),
            delay_ms: rng.random_range(5..lease),
            for_ms,
        },
        65..=70 => Event::SlowDisk {
            target: target(rng),
            sync_ms: rng.random_range(5..lease),
            for_ms,
        },
        71..=73 => Event::DiskError {
            target: target(rng),
        },
        74..=79 => Event::ClockJump {
            target: target(rng),
            by_ms: rng.random_range(-3_600_000..3_600_000),
        },
        80..=82 => Event::ClockDrift {
            target: target(rng),
            ppm: rng.random_range(-100_000..100_000),
        },
        83..=87 => Event::Snapshot {
            target: target(rng),
        },
        88..=91 => Event::LongOutage {
            target: target(rng),
            down_ms: rng.random_range(4_000..9_000),
        },
        92..=94 => Event::Transfer,
        95..=96 => Event::Replace {
            target: target(rng),
        },
        _ => Event::Pause {
            target: target(rng),
            for_ms,
        },
    }
}

fn fast_return(rng: &mut SmallRng, short: u64) -> Event {
    Event::FastReturn {
        slow_ms: rng.random_range(20..short / 2),
        down_ms: rng.random_range(1..short / 3),
    }
}

/// The faults of `seed`.
#[must_use]
pub fn plan(seed: Seed, options: &Options) -> Vec<Planned> {
    let rng = &mut seed.stream("faults", 0);
    let mut planned = Vec::new();
    let mut at_ms = rng.random_range(500..2_000);
    while at_ms < options.chaos_ms {
        let event = if options.only_fast_returns {
            fast_return(rng, options.raft.election_min_ms)
        } else {
            event(rng, options)
        };
        planned.push(Planned { at_ms, event });
        let pause = options.fault_pause_ms;
        at_ms += rng.random_range(pause / 3..pause * 2);
    }
    planned
}

#[cfg(test)]
mod tests {
    use super::super::options::Overrides;
    use super::*;

    #[test]
    fn plan_follows_from_the_seed_and_has_at_least_five_faults() {
        for n in 0..200 {
            let options = Options::draw(Seed(n), &Overrides::default());
            let first = plan(Seed(n), &options);
            assert_eq!(first, plan(Seed(n), &options));
            assert!(first.len() >= 5, "seed {n} has {} faults", first.len());
        }
    }
}
