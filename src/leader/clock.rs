//! The leader's stamps: what `proposed_at` and `received_at` say.
//!
//! Purpose: turn a wall clock that may jump into replicated time that never goes back and never leaps unseen. Callers:
//! the proposer (stamps), workers' calls (`received_at`), previews (`now`).
//! Invariants:
//! 1. Stamps never decrease, and never fall below replicated time ([`StampClock::raise`]).
//! 2. leap = wall − (last stamp + elapsed on the monotonic clock). Within the bound the wall clock is stamped. A wall
//!    clock that is behind makes stamps advance at half speed until it is met. A leap forward beyond the bound is
//!    stamped only when the peers' clocks agree, or when a node alone has seen it stable for two seconds; until then
//!    stamps follow the monotonic clock.
//!
//! ```text
//!            wall < last stamp                 wall met
//! steady ────────────────────────► behind ─────────────────► steady
//!    │ leap > bound             ▲     │ leap > bound
//!    └────────► leaping ◄───────┼─────┘
//!                  │ agreed, or stable and alone: Jumped     │ peers disagree, or no evidence: Refused
//!                  └────────► steady                         └────────► the leader steps down
//! ```

use std::sync::Arc;

use crate::time::{Clock, Millis, Timestamp};

/// How long a leap must be stable on a node that is alone.
const STABLE: Millis = Millis::secs(2);
/// How long to wait for evidence about a leap before stepping down.
const EVIDENCE_WAIT: Millis = Millis::secs(10);

/// What the other nodes' clocks say about ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerVerdict {
    /// There are no other voters.
    Alone,
    /// A majority of the cluster's clocks lies within the bound of ours.
    Agree,
    /// A majority lies outside it.
    Disagree,
    /// Too few have answered lately.
    Unknown,
}

/// Evidence from the cluster's clocks; `node` implements it over the peer network.
pub trait PeerClocks: Send + Sync + 'static {
    /// Judges this node's wall clock, from measurements of the last seconds. Must not block.
    fn judge(&self, wall: Timestamp) -> PeerVerdict;
}

/// The evidence of a node that measures nothing: it counts as alone.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoPeers;

impl PeerClocks for NoPeers {
    fn judge(&self, _: Timestamp) -> PeerVerdict {
        PeerVerdict::Alone
    }
}

/// Something about the clock that must be told, and sometimes acted on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClockEvent {
    /// The wall clock is behind the stamps by this much: they advance at half speed.
    Behind(Millis),
    /// The wall clock has been met again.
    Met,
    /// The wall clock leapt forward by this much and was accepted: the span counts as an outage.
    Jumped(Millis),
    /// The peers' clocks are against this node's: it must not lead.
    Refused,
}

#[derive(Clone, Copy, Debug)]
enum State {
    Steady,
    /// Stamps advance at half speed from `from`, since `since`.
    Behind {
        from: Timestamp,
        since: Millis,
    },
    /// Stamps follow the monotonic clock from `from`, since `since`; the leap was first seen at `seen`.
    Leaping {
        from: Timestamp,
        since: Millis,
        seen: Millis,
        leap: Millis,
        stable_from: Millis,
    },
}

/// See the module.
pub struct StampClock {
    clock: Arc<dyn Clock>,
    peers: Arc<dyn PeerClocks>,
    bound: Millis,
    last: Timestamp,
    last_monotonic: Millis,
    state: State,
    events: Vec<ClockEvent>,
}

impl StampClock {
    /// A clock that has stamped nothing yet. `bound`: `max_clock_skew`.
    #[must_use]
    pub fn new(clock: Arc<dyn Clock>, peers: Arc<dyn PeerClocks>, bound: Millis) -> Self {
        let mut new = Self {
            last: Timestamp::MIN,
            last_monotonic: clock.monotonic(),
            clock,
            peers,
            bound,
            state: State::Steady,
            events: Vec::new(),
        };
        new.start_from(Timestamp::MIN);
        new
    }

    /// Begins a term of office: stamps continue from replicated time `now`; how long ago that was is unknown, so the
    /// wall clock is believed if it is ahead.
    pub fn start_from(&mut self, now: Timestamp) {
        self.last_monotonic = self.clock.monotonic();
        self.events.clear();
        let wall = self.clock.wall();
        self.last = wall.max(now);
        self.state = State::Steady;
        if wall < now {
            self.fall_behind(wall);
        }
    }

    /// Makes sure that no later stamp is below `now`.
    pub fn raise(&mut self, now: Timestamp) {
        if now > self.last {
            self.last = now;
        }
    }

    /// What happened since the last call.
    pub fn take_events(&mut self) -> Vec<ClockEvent> {
        std::mem::take(&mut self.events)
    }

    /// Whether a majority of the cluster's clocks is against this node's: it must not take office.
    #[must_use]
    pub fn is_refused(&self) -> bool {
        self.peers.judge(self.clock.wall()) == PeerVerdict::Disagree
    }

    /// How far the wall clock is behind the last stamp.
    #[must_use]
    pub fn behind(&self) -> Millis {
        self.last.since(self.clock.wall())
    }

    /// The next stamp.
    pub fn stamp(&mut self) -> Timestamp {
        let wall = self.clock.wall();
        let monotonic = self.clock.monotonic();
        let at = match self.state {
            State::Steady => self.steady(wall, monotonic),
            State::Behind { from, since } => {
                let half = from.plus(Millis(elapsed(monotonic, since).0 / 2));
                if wall < half {
                    if half.since(wall) > self.bound {
                        self.refuse_if_peers_disagree(wall);
                    }
                    half
                } else {
                    self.state = State::Steady;
                    self.events.push(ClockEvent::Met);
                    self.last = half;
                    self.last_monotonic = monotonic;
                    self.steady(wall, monotonic)
                }
            }
            State::Leaping { .. } => self.leaping(wall, monotonic),
        };
        self.last = self.last.max(at);
        if matches!(self.state, State::Steady) {
            self.last_monotonic = monotonic;
        }
        self.last
    }

    fn steady(&mut self, wall: Timestamp, monotonic: Millis) -> Timestamp {
        let since = self.last_monotonic;
        let expected = self.last.plus(elapsed(monotonic, since));
        if wall < self.last {
            self.fall_behind(wall);
            return self.last;
        }
        let leap = wall.since(expected);
        if leap <= self.bound {
            return wall;
        }
        self.state = State::Leaping {
            from: self.last,
            since,
            seen: monotonic,
            leap,
            stable_from: monotonic,
        };
        self.leaping(wall, monotonic)
    }

    fn leaping(&mut self, wall: Timestamp, monotonic: Millis) -> Timestamp {
        let State::Leaping {
            from,
            since,
            seen,
            leap,
            mut stable_from,
        } = self.state
        else {
            return self.last;
        };
        let expected = from.plus(elapsed(monotonic, since));
        let leap_now = wall.since(expected);
        if leap_now <= self.bound {
            // It went away by itself.
            self.state = State::Steady;
            if wall < self.last {
                self.fall_behind(wall);
            }
            return wall;
        }
        if leap_now.0.abs_diff(leap.0) > self.bound.0 {
            stable_from = monotonic;
        }
        let verdict = self.peers.judge(wall);
        let stable = elapsed(monotonic, stable_from) >= STABLE;
        if verdict == PeerVerdict::Agree || (verdict == PeerVerdict::Alone && stable) {
            self.state = State::Steady;
            self.events.push(ClockEvent::Jumped(leap_now));
            return wall;
        }
        let waited = elapsed(monotonic, seen) >= EVIDENCE_WAIT;
        if verdict == PeerVerdict::Disagree || (verdict == PeerVerdict::Unknown && waited) {
            self.refuse();
        }
        self.state = State::Leaping {
            from,
            since,
            seen,
            leap: leap_now,
            stable_from,
        };
        expected
    }

    fn fall_behind(&mut self, wall: Timestamp) {
        self.events.push(ClockEvent::Behind(self.last.since(wall)));
        self.state = State::Behind {
            from: self.last,
            since: self.clock.monotonic(),
        };
        if self.last.since(wall) > self.bound {
            self.refuse_if_peers_disagree(wall);
        }
    }

    fn refuse_if_peers_disagree(&mut self, wall: Timestamp) {
        if self.peers.judge(wall) == PeerVerdict::Disagree {
            self.refuse();
        }
    }

    fn refuse(&mut self) {
        if self.events.last() != Some(&ClockEvent::Refused) {
            self.events.push(ClockEvent::Refused);
        }
    }
}

fn elapsed(now: Millis, since: Millis) -> Millis {
    Millis(now.0.saturating_sub(since.0))
}

#[cfg(test)]
mod tests {
    use parking_lot::Mutex;

    use super::*;

    struct Hands(Mutex<(i64, u64)>);

    impl Clock for Hands {
        fn wall(&self) -> Timestamp {
            Timestamp::from_millis(self.0.lock().0)
        }

        fn monotonic(&self) -> Millis {
            Millis(self.0.lock().1)
        }
    }

    struct Says(PeerVerdict);

    impl PeerClocks for Says {
        fn judge(&self, _: Timestamp) -> PeerVerdict {
            self.0
        }
    }

    const T: i64 = 1_800_000_000_000;

    struct Bench {
        hands: Arc<Hands>,
        stamps: StampClock,
        last: Timestamp,
    }

    impl Bench {
        fn new(verdict: PeerVerdict) -> Self {
            let hands = Arc::new(Hands(Mutex::new((T, 5_000))));
            let clock = Arc::clone(&hands) as Arc<dyn Clock>;
            let stamps = StampClock::new(clock, Arc::new(Says(verdict)), Millis(500));
            Self {
                hands,
                stamps,
                last: Timestamp::MIN,
            }
        }

        /// Lets `real` milliseconds pass, moves the wall clock by `jump` on top, and stamps.
        fn pass(&mut self, real: u64, jump: i64) -> i64 {
            let mut hands = self.hands.0.lock();
            hands.0 += i64::try_from(real).expect("small") + jump;
            hands.1 += real;
            drop(hands);
            let at = self.stamps.stamp();
            assert!(at >= self.last, "stamps never go back");
            self.last = at;
            at.millis() - T
        }
    }

    #[test]
    fn within_the_bound_the_wall_clock_is_stamped() {
        let mut bench = Bench::new(PeerVerdict::Unknown);
        assert_eq!(bench.pass(100, 0), 100);
        assert_eq!(bench.pass(100, 400), 600);
        assert_eq!(bench.pass(1_000, -300), 1_300);
        assert!(bench.stamps.take_events().is_empty());
    }

    #[test]
    fn a_wall_clock_behind_makes_stamps_go_at_half_speed_until_it_is_met() {
        let mut bench = Bench::new(PeerVerdict::Agree);
        assert_eq!(bench.pass(1_000, 0), 1_000);
        assert_eq!(bench.pass(0, -600), 1_000);
        assert_eq!(
            bench.stamps.take_events(),
            [ClockEvent::Behind(Millis(600))]
        );
        for step in 1..=100 {
            // One millisecond at a time: halves must add up.
            assert_eq!(bench.pass(1, 0), 1_000 + step / 2);
        }
        assert_eq!(bench.pass(1_099, 0), 1_599);
        assert_eq!(bench.pass(1, 0), 1_600);
        assert_eq!(bench.stamps.take_events(), [ClockEvent::Met]);
        assert_eq!(bench.pass(100, 0), 1_700);
    }

    #[test]
    fn a_node_alone_accepts_a_leap_after_two_stable_seconds() {
        let mut bench = Bench::new(PeerVerdict::Alone);
        assert_eq!(bench.pass(10, 3_600_000), 10);
        assert_eq!(bench.pass(1_000, 0), 1_010);
        assert_eq!(bench.pass(990, 0), 2_000);
        assert!(bench.stamps.take_events().is_empty());
        assert_eq!(bench.pass(1_010, 0), 3_603_010);
        assert_eq!(
            bench.stamps.take_events(),
            [ClockEvent::Jumped(Millis(3_600_000))]
        );
    }

    #[test]
    fn a_leap_that_moves_again_must_be_stable_anew() {
        let mut bench = Bench::new(PeerVerdict::Alone);
        bench.pass(10, 60_000);
        bench.pass(1_500, 60_000);
        assert_eq!(bench.pass(1_500, 0), 3_010);
        assert_eq!(bench.pass(500, 0), 123_510);
    }

    #[test]
    fn a_leap_that_goes_away_leaves_no_trace() {
        let mut bench = Bench::new(PeerVerdict::Alone);
        bench.pass(10, 60_000);
        assert_eq!(bench.pass(1_000, -60_000), 1_010);
        assert!(bench.stamps.take_events().is_empty());
    }

    #[test]
    fn the_peers_decide_about_a_leap() {
        let mut agreed = Bench::new(PeerVerdict::Agree);
        assert_eq!(agreed.pass(10, 60_000), 60_010);
        let mut against = Bench::new(PeerVerdict::Disagree);
        assert_eq!(against.pass(10, 60_000), 10);
        assert_eq!(against.stamps.take_events(), [ClockEvent::Refused]);
        let mut silent = Bench::new(PeerVerdict::Unknown);
        assert_eq!(silent.pass(10, 60_000), 10);
        assert!(silent.stamps.take_events().is_empty());
        assert_eq!(silent.pass(10_000, 0), 10_010);
        assert_eq!(silent.stamps.take_events(), [ClockEvent::Refused]);
    }

    #[test]
    fn a_wall_clock_far_behind_is_refused_only_against_the_peers() {
        let mut alone = Bench::new(PeerVerdict::Alone);
        alone.pass(10, -60_000);
        assert_eq!(alone.stamps.take_events().len(), 1);
        let mut against = Bench::new(PeerVerdict::Disagree);
        against.pass(10, -60_000);
        assert!(against.stamps.take_events().contains(&ClockEvent::Refused));
    }

    #[test]
    fn office_starts_no_earlier_than_replicated_time() {
        let mut bench = Bench::new(PeerVerdict::Alone);
        bench.stamps.start_from(Timestamp::from_millis(T + 1_000));
        assert_eq!(bench.pass(100, 0), 1_050);
    }
}
