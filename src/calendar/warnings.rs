//! What a person should know about a rule that is valid.
//!
//! Callers: `preview`; API answers to create and update.
//! Invariant: a warning never changes what fires. Codes are a closed set ([`WARNINGS`]).

use super::civil::Wall;
use super::compiled::{Compiled, CronRule, Kind};
use super::cron::field::{Field, Item};
use super::cron::{DayRule, Expr, echo};
use super::fires::FireReason;
use crate::model::rule::{Dialect, days_in_month};
use crate::time::{Millis, Timestamp};

/// How far ahead clock changes are looked at.
const LOOK_AHEAD: Millis = Millis(3 * 366 * 86_400_000);

/// Codes that a [`Warning`] can carry.
pub const WARNINGS: &[&str] = &[
    "clock_change",
    "day_rule_and",
    "day_rule_or",
    "depends_on_executions",
    "every_second",
    "no_time_zone",
    "short_months",
    "uneven_step",
    "weekday_numbers",
];

/// Something to know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Warning {
    /// One of [`WARNINGS`].
    pub code: &'static str,
    /// For people.
    pub detail: String,
}

impl Compiled {
    /// The warnings, with clock changes of the three years after `from`.
    #[must_use]
    pub fn warnings_from(&self, from: Timestamp) -> Vec<Warning> {
        let mut out = Vec::new();
        match &self.kind {
            Kind::Cron(rule) => {
                if !self.zone_is_named {
                    out.push(warning(
                        "no_time_zone",
                        "no time_zone is given: read as UTC",
                    ));
                }
                if let Some(expr) = rule.expr(self.seed) {
                    days(rule, &expr, &mut out);
                    numbers(&expr, &mut out);
                    steps(&expr, &mut out);
                }
                out.extend(self.clock_change(rule, from));
            }
            Kind::AfterEnd(_) => out.push(warning(
                "depends_on_executions",
                "times follow the end of each execution and cannot be listed ahead",
            )),
            Kind::At(_) | Kind::Every(_) | Kind::Repeat(_) | Kind::Rrule(_) => {}
        }
        out.sort_by_key(|w| w.code);
        out
    }

    /// The first clock change that moves, drops or doubles an occurrence of a fixed-time rule.
    fn clock_change(&self, rule: &CronRule, from: Timestamp) -> Option<Warning> {
        if rule.policy.wildcard {
            return None;
        }
        let until = from.plus(LOOK_AHEAD);
        let (low, high) = (from.millis() / 1_000, until.millis() / 1_000);
        let spans = self.zone.spans().iter();
        let mut changes = spans.filter(|s| (low..high).contains(&s.start));
        changes.find_map(|s| {
            let at = Timestamp::from_millis(s.start * 1_000);
            let hour = Millis::hours(1);
            let label = rule
                .labels
                .next(s.seen_until.min(s.first_label()), &self.excluded)?;
            if label >= s.seen_until.max(s.first_label()) {
                return None;
            }
            let day = Wall(label);
            if s.first_label() < s.seen_until {
                let detail = format!(
                    "{day} happens twice in {}: see dst_overlap",
                    self.zone.name()
                );
                return Some(warning("clock_change", detail));
            }
            let became = self
                .next(at.minus(Millis(1)))
                .filter(|f| f.nominal.since(at) < hour);
            let now = match became.map(|f| (f.reason, f.nominal)) {
                Some((FireReason::GapEnd | FireReason::Shifted, t)) => {
                    format!("it runs at {}", self.local(t))
                }
                _ => "it is skipped".to_owned(),
            };
            let zone = self.zone.name();
            let detail = format!("{day} does not exist in {zone}: {now} (dst_gap)");
            Some(warning("clock_change", detail))
        })
    }
}

fn warning(code: &'static str, detail: impl Into<String>) -> Warning {
    Warning {
        code,
        detail: detail.into(),
    }
}

fn days(rule: &CronRule, e: &Expr, out: &mut Vec<Warning>) {
    let (dom, dow) = (
        echo::field(&e.day_of_month, Field::DayOfMonth),
        echo::field(&e.day_of_week, Field::DayOfWeek),
    );
    if e.restricts_both_day_fields() && rule.day_match.is_none() {
        if e.day_rule(None) == DayRule::Either {
            let detail = format!(
                "both day fields are set, so a day that matches either fires (day of month {dom}, \
                 day of week {dow}); set day_match to and for days that match both"
            );
            out.push(warning("day_rule_or", detail));
        } else {
            let detail = format!(
                "a day field starts with *, so a day must match both (day of month {dom}, day of \
                 week {dow}); set day_match to or for days that match either"
            );
            out.push(warning("day_rule_and", detail));
        }
    }
    let bits = rule.labels.month_day_bits();
    let plain = e
        .day_of_month
        .items
        .iter()
        .any(|i| matches!(i, Item::Range { .. }));
    let last = 63 - bits.leading_zeros().min(63);
    let months = (1..=12u8).filter(|m| rule.labels.month_bits() >> m & 1 == 1);
    // A common year, so that 29 February counts as a day that is sometimes missing.
    let lacking = months
        .filter(|m| u32::from(days_in_month(2_027, *m)) < last)
        .count();
    if plain && !e.day_of_month.starts_with_star && last >= 29 && lacking > 0 {
        let detail = format!(
            "months without a day {last} are skipped, not cut short; write L for the last day"
        );
        out.push(warning("short_months", detail));
    }
}

fn numbers(e: &Expr, out: &mut Vec<Warning>) {
    if e.dialect != Dialect::Unix && !e.day_of_week.is_bare {
        let detail = format!(
            "weekdays are read as {} (in this dialect 1 is Sunday)",
            echo::field(&e.day_of_week, Field::DayOfWeek)
        );
        out.push(warning("weekday_numbers", detail));
    }
    let every_second = e.second.as_ref().is_some_and(|s| s.is_bare);
    if every_second && !e.minute.is_bare {
        out.push(warning(
            "every_second",
            "the first field is the second: * there fires sixty times in each matching minute; \
             write 0 for once",
        ));
    }
}

fn steps(e: &Expr, out: &mut Vec<Warning>) {
    let fields = [
        (e.second.as_ref(), Field::Second),
        (Some(&e.minute), Field::Minute),
        (Some(&e.hour), Field::Hour),
    ];
    for (field, kind) in fields {
        let Some(Item::Star { step }) = field.and_then(|f| f.items.first()) else {
            continue;
        };
        if kind.size() % step != 0 {
            let (name, size) = (kind.name(), kind.size());
            let detail = format!(
                "*/{step} starts again at {name} 0, so the last gap of each round is shorter \
                 ({size} is no multiple of {step}); use an interval (every) for an even distance"
            );
            out.push(warning("uneven_step", detail));
        }
    }
}
