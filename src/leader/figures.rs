//! Figures of the leader for metrics and status.
//!
//! Purpose: count what happens without touching the hot path much. Callers: the office writes,
//! [`crate::leader::Scheduler::figures`] reads. Invariant: the number of series is bounded ([`LABELS_MAX`]); what does
//! not fit is counted under `other`.

use std::collections::BTreeMap;

use crate::ids::{QueueId, TenantId};
use crate::leader::Figure;
use crate::time::Millis;

/// Pairs of queue and tenant with their own lateness series.
const LABELS_MAX: usize = 200;
/// Upper bounds of the lateness buckets, in milliseconds.
const BOUNDS: [u64; 12] = [
    10, 25, 50, 100, 250, 500, 1_000, 2_000, 5_000, 30_000, 300_000, 3_600_000,
];

#[derive(Clone, Debug, Default)]
struct Histogram {
    buckets: [u64; BOUNDS.len()],
    count: u64,
    sum_ms: u64,
}

impl Histogram {
    fn add(&mut self, value: Millis) {
        for (bucket, bound) in self.buckets.iter_mut().zip(BOUNDS) {
            *bucket += u64::from(value.0 <= bound);
        }
        self.count += 1;
        self.sum_ms = self.sum_ms.saturating_add(value.0);
    }
}

/// Counters that only grow (since this process took office first).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Counter {
    /// Entries committed.
    Entries,
    /// Commands in them.
    Commands,
    /// Leases granted.
    Granted,
    /// Grants that apply refused.
    GrantsRefused,
    /// Grants given back because nobody was there to take them.
    Undelivered,
    /// Worker calls that named a stale lease.
    LeaseLost,
    /// Leases expired.
    Expired,
    /// Executions moved because their time came.
    Processed,
    /// Executions created by schedules.
    Fired,
    /// Nominal times skipped.
    Skipped,
    /// Plans that came too late.
    Superseded,
    /// Terms of office begun.
    Offices,
    /// Renewals of office after a stall or a clock jump.
    Renewals,
    /// Leaps of the wall clock accepted.
    ClockJumps,
    /// Times that effects were lost and everything was read again.
    Rescans,
}

impl Counter {
    const fn name(self) -> &'static str {
        match self {
            Self::Entries => "leader_entries_total",
            Self::Commands => "leader_commands_total",
            Self::Granted => "leases_granted_total",
            Self::GrantsRefused => "leases_refused_total",
            Self::Undelivered => "leases_undelivered_total",
            Self::LeaseLost => "lease_lost_total",
            Self::Expired => "leases_expired_total",
            Self::Processed => "executions_due_total",
            Self::Fired => "occurrences_fired_total",
            Self::Skipped => "occurrences_skipped_total",
            Self::Superseded => "plans_superseded_total",
            Self::Offices => "leader_offices_total",
            Self::Renewals => "leader_office_renewals_total",
            Self::ClockJumps => "clock_jumps_total",
            Self::Rescans => "leader_rescans_total",
        }
    }
}

/// Values that go up and down.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Gauge {
    /// Commands in front of the log.
    Queued,
    /// Entries under way.
    InFlight,
    /// Entries of the due index in memory.
    DueHeld,
    /// Tenants and levels with more than is held.
    DueSpilled,
    /// Leases watched.
    LeasesWatched,
    /// Ready items in memory.
    LineItems,
    /// Lines open.
    Lines,
    /// Claims waiting for work.
    ClaimsWaiting,
    /// Due things that wait to be put into a command.
    DueBacklog,
    /// Milliseconds by which the wall clock is behind the stamps.
    ClockBehind,
}

impl Gauge {
    const fn name(self) -> &'static str {
        match self {
            Self::Queued => "leader_queued_commands",
            Self::InFlight => "leader_entries_in_flight",
            Self::DueHeld => "leader_due_entries",
            Self::DueSpilled => "leader_due_spills",
            Self::LeasesWatched => "leader_leases_watched",
            Self::LineItems => "leader_ready_items",
            Self::Lines => "leader_ready_lines",
            Self::ClaimsWaiting => "leader_claims_waiting",
            Self::DueBacklog => "leader_due_backlog",
            Self::ClockBehind => "leader_clock_behind_ms",
        }
    }
}

/// See the module.
#[derive(Debug, Default)]
pub struct Board {
    counters: BTreeMap<Counter, u64>,
    gauges: BTreeMap<Gauge, f64>,
    lateness: BTreeMap<(String, String), Histogram>,
}

impl Board {
    /// Adds to a counter.
    pub fn add(&mut self, counter: Counter, by: u64) {
        let value = self.counters.entry(counter).or_default();
        *value = value.saturating_add(by);
    }

    /// Sets a gauge.
    pub fn set(&mut self, gauge: Gauge, value: usize) {
        let value = u32::try_from(value).unwrap_or(u32::MAX);
        self.gauges.insert(gauge, f64::from(value));
    }

    /// Counts the lateness of a first lease.
    pub fn late(&mut self, queue: &QueueId, tenant: &TenantId, by: Millis) {
        let name = (queue.as_str().to_owned(), tenant.as_str().to_owned());
        let known = self.lateness.contains_key(&name) || self.lateness.len() < LABELS_MAX;
        let name = if known {
            name
        } else {
            ("other".into(), "other".into())
        };
        self.lateness.entry(name).or_default().add(by);
    }

    /// Everything, in a fixed order.
    #[must_use]
    pub fn list(&self) -> Vec<Figure> {
        let plain = |name, value| Figure {
            name,
            labels: Vec::new(),
            value,
        };
        let mut all: Vec<Figure> = self
            .counters
            .iter()
            .map(|(c, v)| plain(c.name(), as_f64(*v)))
            .collect();
        all.extend(self.gauges.iter().map(|(g, v)| plain(g.name(), *v)));
        for ((queue, tenant), histogram) in &self.lateness {
            let labels = || vec![("queue", queue.clone()), ("tenant", tenant.clone())];
            for (count, bound) in histogram.buckets.iter().zip(BOUNDS) {
                let mut labels = labels();
                labels.push(("le", (as_f64(bound) / 1_000.0).to_string()));
                all.push(Figure {
                    name: "lateness_seconds_bucket",
                    labels,
                    value: as_f64(*count),
                });
            }
            let mut top = labels();
            top.push(("le", "+Inf".into()));
            let rows = [
                ("lateness_seconds_bucket", top, as_f64(histogram.count)),
                ("lateness_seconds_count", labels(), as_f64(histogram.count)),
                (
                    "lateness_seconds_sum",
                    labels(),
                    as_f64(histogram.sum_ms) / 1_000.0,
                ),
            ];
            all.extend(rows.map(|(name, labels, value)| Figure {
                name,
                labels,
                value,
            }));
        }
        all
    }
}

/// Figures lose nothing that matters above 2^53.
#[allow(
    clippy::cast_precision_loss,
    reason = "a metric is a float by its format"
)]
fn as_f64(value: u64) -> f64 {
    value as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lateness_is_counted_in_growing_buckets_and_series_are_bounded() {
        let mut board = Board::default();
        let queue = QueueId::default_queue();
        board.late(&queue, &TenantId::default_tenant(), Millis(60));
        board.late(&queue, &TenantId::default_tenant(), Millis(10));
        let at = |board: &Board, le: &str| {
            let list = board.list();
            let one = list
                .iter()
                .find(|f| f.labels.iter().any(|(n, v)| *n == "le" && v == le));
            one.map(|f| f.value)
        };
        assert_eq!(at(&board, "0.01"), Some(1.0));
        assert_eq!(at(&board, "0.1"), Some(2.0));
        assert_eq!(at(&board, "+Inf"), Some(2.0));
        for n in 0..LABELS_MAX * 2 {
            let tenant = TenantId::new(&format!("t{n}")).expect("a good name");
            board.late(&queue, &tenant, Millis(1));
        }
        assert_eq!(board.lateness.len(), LABELS_MAX + 1);
    }
}
