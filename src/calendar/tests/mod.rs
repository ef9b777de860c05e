//! Tests of the calendar as a whole. Those of a single module stand beside it.

mod cases;
mod doc;
mod properties;
mod recurrences;
mod refusals;
mod rules;
mod speed;

use super::{CODES, Compiled, RuleError, Warning, ZoneData};
use crate::model::rule::{RuleSpec, When};
use crate::time::Timestamp;

/// Identity of every schedule here.
const WHO: &str = "default/daily";

fn at(text: &str) -> Timestamp {
    Timestamp::parse_rfc3339(text).unwrap()
}

fn cron(text: &str, zone: &str) -> RuleSpec {
    let mut spec = RuleSpec::new(When::Cron(text.into()));
    spec.time_zone = Some(zone.into());
    spec
}

fn compile(spec: &RuleSpec) -> Result<Compiled, Vec<RuleError>> {
    Compiled::new(spec, &ZoneData::bundled(), WHO)
}

fn compiled(text: &str, zone: &str) -> Compiled {
    compile(&cron(text, zone)).unwrap()
}

/// What warns of a rule at the beginning of 2026.
fn warnings(rule: &Compiled) -> Vec<Warning> {
    rule.warnings_from(at("2026-01-01T00:00:00Z"))
}

/// The first `n` nominal times after an instant, as `2026-05-01T12:00:00Z`.
fn times(rule: &Compiled, after: Timestamp, n: usize) -> Vec<String> {
    let fires = std::iter::successors(rule.next(after), |f| rule.next(f.nominal));
    fires.take(n).map(|f| short(f.nominal)).collect()
}

fn short(t: Timestamp) -> String {
    t.to_rfc3339().replace(".000Z", "Z")
}
