//! An expression in plain English.
//!
//! Callers: `preview`. Invariant: says what fires, not how it was written; never wrong to be short.

use super::echo;
use super::field::{Field, FieldExpr, Item};
use super::{DayRule, Expr};
use crate::model::rule::DayMatch;

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const WEEKDAYS: [&str; 7] = [
    "Sunday",
    "Monday",
    "Tuesday",
    "Wednesday",
    "Thursday",
    "Friday",
    "Saturday",
];
/// Times of day that are listed one by one.
const TIMES_MAX: usize = 6;

/// `At 09:00 and 17:00, on Monday to Friday, in January.` without the zone.
pub(crate) fn expr(e: &Expr, day_match: Option<DayMatch>) -> String {
    let mut parts = vec![times(e)];
    parts.extend(days(e, day_match));
    if !e.month.is_bare {
        parts.push(format!("in {}", list(&e.month, Field::Month)));
    }
    if let Some(year) = e.year.as_ref().filter(|y| !y.is_bare) {
        parts.push(format!("in {}", list(year, Field::Year)));
    }
    parts.join(", ")
}

fn times(e: &Expr) -> String {
    if let Some(listed) = listed_times(e) {
        return format!("At {listed}");
    }
    let mut parts = Vec::new();
    if let Some(second) = &e.second
        && !is_zero(second)
    {
        parts.push(unit(second, Field::Second));
    }
    let every_minute = every_step(&e.minute).is_some();
    if !e.minute.is_bare || parts.is_empty() {
        parts.push(unit(&e.minute, Field::Minute));
    }
    let mut text = parts.join(", ");
    if let Some(first) = text.get(..1).map(str::to_uppercase) {
        text.replace_range(..1, &first);
    }
    if e.hour.is_bare {
        return if every_minute {
            text
        } else {
            format!("{text} of every hour")
        };
    }
    match (every_step(&e.hour), single_range(&e.hour)) {
        (Some(n), _) => format!("{text}, in every {} hour from 00:00", ordinal(n)),
        (_, Some((a, b))) => format!("{text}, from {a:02}:00 to {b:02}:59"),
        _ => format!("{text}, in the hours {}", list(&e.hour, Field::Hour)),
    }
}

/// `09:00, 09:30 and 17:00` when they are few.
fn listed_times(e: &Expr) -> Option<String> {
    let plain = |f: &FieldExpr, kind: Field| -> Option<Vec<u16>> {
        let mut v: Vec<u16> = f.items.iter().flat_map(|i| i.values(kind)).collect();
        v.sort_unstable();
        v.dedup();
        (v.len() <= TIMES_MAX && !f.starts_with_star).then_some(v)
    };
    let hours = plain(&e.hour, Field::Hour)?;
    let minutes = plain(&e.minute, Field::Minute)?;
    let seconds = match &e.second {
        Some(f) => plain(f, Field::Second)?,
        None => vec![0],
    };
    if hours.len() * minutes.len() * seconds.len() > TIMES_MAX {
        return None;
    }
    let mut out = Vec::new();
    for h in &hours {
        for m in &minutes {
            for s in &seconds {
                out.push(match s {
                    0 => format!("{h:02}:{m:02}"),
                    s => format!("{h:02}:{m:02}:{s:02}"),
                });
            }
        }
    }
    Some(and(&out))
}

fn is_zero(f: &FieldExpr) -> bool {
    f.items == [Item::value(0)]
}

/// `every minute`, `every 5 minutes`, `at minute 5 and 20`.
fn unit(f: &FieldExpr, kind: Field) -> String {
    let name = kind.name();
    match every_step(f) {
        Some(1) => format!("every {name}"),
        Some(n) if kind.size().is_multiple_of(n) => format!("every {n} {name}s"),
        Some(n) => format!("every {n} {name}s from {name} 0"),
        None => match f.items.as_slice() {
            [Item::Range { from, to, step }] if *step > 1 => {
                format!("every {step} {name}s from {name} {from} to {to}")
            }
            _ => format!("at {name} {}", list(f, kind)),
        },
    }
}

/// The step of a field that is one `*` or `*/n`.
fn every_step(f: &FieldExpr) -> Option<u16> {
    match f.items.as_slice() {
        [Item::Star { step }] => Some(*step),
        _ => None,
    }
}

fn single_range(f: &FieldExpr) -> Option<(u16, u16)> {
    match f.items.as_slice() {
        [Item::Range { from, to, step: 1 }] if to > from => Some((*from, *to)),
        _ => None,
    }
}

fn days(e: &Expr, day_match: Option<DayMatch>) -> Option<String> {
    let month_days = (!e.day_of_month.is_bare).then(|| month_days(&e.day_of_month));
    let weekdays = (!e.day_of_week.is_bare).then(|| list(&e.day_of_week, Field::DayOfWeek));
    match (month_days, weekdays) {
        (None, None) => None,
        (Some(m), None) => Some(format!("on {m}")),
        (None, Some(w)) => Some(format!("on {w}")),
        (Some(m), Some(w)) if e.day_rule(day_match) == DayRule::Either => {
            Some(format!("on {m} or on {w}"))
        }
        (Some(m), Some(w)) => Some(format!("on {m} that is also {w}")),
    }
}

fn month_days(f: &FieldExpr) -> String {
    let plain = |i: &Item| matches!(i, Item::Range { .. });
    if f.items.iter().all(plain) {
        let days = list(f, Field::DayOfMonth);
        return format!("day {days} of the month");
    }
    let words: Vec<String> = f
        .items
        .iter()
        .map(|i| item(*i, Field::DayOfMonth))
        .collect();
    and(&words)
}

fn list(f: &FieldExpr, kind: Field) -> String {
    let words: Vec<String> = f.items.iter().map(|i| item(*i, kind)).collect();
    and(&words)
}

fn item(item: Item, kind: Field) -> String {
    match item {
        Item::Star { step: 1 } | Item::Question => format!("every {}", kind.name()),
        Item::Star { step } if kind == Field::DayOfMonth => {
            format!("every {} day from the 1st", ordinal(step))
        }
        Item::Star { step } => format!(
            "every {} {} from {}",
            ordinal(step),
            kind.name(),
            value(kind.min(), kind)
        ),
        Item::Range { from, to, .. } if from == to => value(from, kind),
        Item::Range { from, to, step: 1 } => {
            format!("{} to {}", value(from, kind), value(to, kind))
        }
        Item::Range { from, to, step } => {
            format!(
                "every {} from {} to {}",
                ordinal(step),
                value(from, kind),
                value(to, kind)
            )
        }
        Item::LastDay { before: 0 } => "the last day of the month".to_owned(),
        Item::LastDay { before: 1 } => "the day before the last day of the month".to_owned(),
        Item::LastDay { before } => format!("{before} days before the last day of the month"),
        Item::LastWorkday => "the last Monday-to-Friday day of the month".to_owned(),
        Item::NearestWorkday(day) => {
            format!("the Monday-to-Friday day nearest to day {day} of the month")
        }
        Item::Nth { weekday, n } => {
            format!(
                "the {} {} of the month",
                ordinal(n.into()),
                value(weekday.into(), kind)
            )
        }
        Item::LastOf { weekday } => {
            format!("the last {} of the month", value(weekday.into(), kind))
        }
    }
}

fn value(v: u16, kind: Field) -> String {
    let at = usize::from((v - kind.min()) % kind.size());
    let name = match kind {
        Field::Month => MONTHS.get(at),
        Field::DayOfWeek => WEEKDAYS.get(at),
        _ => None,
    };
    name.map_or_else(|| echo::value(v, kind), |n| (*n).to_owned())
}

fn ordinal(n: u16) -> String {
    let suffix = match (n % 10, n % 100) {
        (_, 11..=13) => "th",
        (1, _) => "st",
        (2, _) => "nd",
        (3, _) => "rd",
        _ => "th",
    };
    format!("{n}{suffix}")
}

fn and(words: &[String]) -> String {
    match words {
        [rest @ .., last] if !rest.is_empty() => format!("{} and {last}", rest.join(", ")),
        _ => words.join(""),
    }
}
