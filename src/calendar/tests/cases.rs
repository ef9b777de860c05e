//! Runs every case of `tests/fixtures/calendar`.
//!
//! A case is one rule, one question and the answer. Fields: `rule` in the notation `as`; `zone`,
//! `days`, `anchor`, `until`, `exclude` as in a schedule; `fires` are the first `take` times after
//! `after`; `also` are other right answers; `error` says that the rule must be refused (`syntax`),
//! has no occurrence (`never`) or is no time (`not-a-time`); `or_error` that refusing is as good;
//! `alt` holds the answers under other clock-change policies; `property` says in words what the
//! test of that case checks.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::super::unsupported::Feature;
use super::*;
use crate::model::rule::{DayMatch, Dialect, DstGap, DstOverlap};
use crate::time::Millis;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Case {
    id: String,
    rule: String,
    r#as: String,
    zone: Option<String>,
    after: String,
    take: usize,
    days: Option<String>,
    anchor: Option<String>,
    until: Option<String>,
    #[serde(default)]
    exclude: Vec<String>,
    fires: Option<Vec<String>>,
    error: Option<String>,
    #[serde(default)]
    or_error: bool,
    #[serde(default)]
    also: Vec<Vec<String>>,
    #[serde(default)]
    alt: BTreeMap<String, Vec<String>>,
    property: Option<String>,
    tzdata: Option<String>,
    #[serde(rename = "note")]
    _note: Option<String>,
}

/// What became of a case.
#[derive(Debug, PartialEq)]
enum Verdict {
    Passed,
    /// Refused as a notation of the list in `unsupported`, where an answer was expected.
    Unsupported,
    Failed(String),
}

fn load() -> Vec<Case> {
    let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/calendar");
    let mut cases = Vec::new();
    let mut paths: Vec<_> = std::fs::read_dir(dir)
        .unwrap()
        .map(|e| e.unwrap().path())
        .collect();
    paths.sort();
    for path in paths
        .iter()
        .filter(|p| p.extension().is_some_and(|e| e == "jsonl"))
    {
        for line in std::fs::read_to_string(path).unwrap().lines() {
            let case = serde_json::from_str(line);
            cases.push(case.unwrap_or_else(|e| panic!("{}: {e}: {line}", path.display())));
        }
    }
    cases
}

fn spec_of(case: &Case) -> Result<RuleSpec, RuleError> {
    let zones = ZoneData::bundled();
    let when = match case.r#as.as_str() {
        "at" => When::At(super::super::parse_at(
            &case.rule,
            case.zone.as_deref(),
            &zones,
        )?),
        "every" => When::Every {
            every: super::super::duration::parse(&case.rule).unwrap(),
            anchor: at(case.anchor.as_deref().unwrap()),
        },
        "iso8601" => When::Iso8601(case.rule.clone()),
        "rrule" => When::Rrule(case.rule.clone()),
        "unix" | "quartz" | "eventbridge" | "oncalendar" => When::Cron(case.rule.clone()),
        other => panic!("{}: unknown notation {other}", case.id),
    };
    let mut spec = RuleSpec::new(when);
    spec.time_zone.clone_from(&case.zone);
    spec.dialect = match case.r#as.as_str() {
        "quartz" => Dialect::Quartz,
        "eventbridge" => Dialect::EventBridge,
        _ => Dialect::Unix,
    };
    spec.day_match = case.days.as_ref().map(|_| DayMatch::And);
    spec.end_at = case.until.as_deref().map(at);
    spec.exclude_dates = case.exclude.iter().map(|d| d.parse().unwrap()).collect();
    Ok(spec)
}

fn run(case: &Case) -> Verdict {
    assert!(
        case.tzdata
            .as_deref()
            .is_none_or(|r| r <= ZoneData::bundled().release())
    );
    let built = spec_of(case).map_err(|e| vec![e]);
    let rule = built.and_then(|spec| compile(&spec));
    match (rule, case.error.as_deref()) {
        (Err(errors), Some(kind)) => {
            let code = errors[0].code;
            let right = match kind {
                "never" => code == "no_future_occurrence",
                "not-a-time" => code == "rule_unsupported",
                "syntax" => code != "no_future_occurrence",
                _ => false,
            };
            if right {
                Verdict::Passed
            } else {
                Verdict::Failed(format!("{errors:?}"))
            }
        }
        (Err(errors), None) if errors[0].code == "rule_unsupported" => Verdict::Unsupported,
        (Err(_), None) if case.or_error => Verdict::Passed,
        (Err(errors), None) => Verdict::Failed(format!("{errors:?}")),
        (Ok(rule), _) => compare(case, &rule),
    }
}

fn compare(case: &Case, rule: &Compiled) -> Verdict {
    let got = times(rule, at(&case.after), case.take);
    if let Some(property) = &case.property {
        return spread_over_half_an_hour(rule, property);
    }
    if case.fires.as_ref() == Some(&got) || case.also.contains(&got) {
        return Verdict::Passed;
    }
    Verdict::Failed(format!(
        "fires {got:?}, expected {:?}{:?}",
        case.error, case.fires
    ))
}

/// The one case that says what must hold instead of when: `H(0-29)/10`.
fn spread_over_half_an_hour(rule: &Compiled, property: &str) -> Verdict {
    assert!(
        property.starts_with("three per hour, ten minutes apart"),
        "{property}"
    );
    let midnight = at("2026-01-01T00:00:00Z");
    let hour: Vec<u64> = std::iter::successors(rule.next(midnight.minus(Millis(1))), |f| {
        rule.next(f.nominal)
    })
    .map(|f| f.nominal.since(midnight).0 / 60_000)
    .take(3)
    .collect();
    assert!(
        hour[0] < 10 && hour[1] == hour[0] + 10 && hour[2] == hour[0] + 20,
        "{hour:?}"
    );
    Verdict::Passed
}

#[test]
fn every_case_has_the_expected_answer() {
    let cases = load();
    assert_eq!(cases.len(), 1_838);
    let mut unsupported = BTreeMap::new();
    let mut failed = Vec::new();
    for case in &cases {
        match run(case) {
            Verdict::Passed => {}
            Verdict::Unsupported => *unsupported.entry(case.r#as.as_str()).or_insert(0) += 1,
            Verdict::Failed(why) => failed.push(format!("{} {:?}: {why}", case.id, case.rule)),
        }
    }
    assert!(
        failed.is_empty(),
        "{} failed:\n{}",
        failed.len(),
        failed.join("\n")
    );
    // Of the notations that are refused: four of systemd and one random range.
    assert_eq!(
        unsupported,
        BTreeMap::from([("oncalendar", 4), ("unix", 1)])
    );
}

#[test]
fn other_clock_change_policies_have_the_expected_answers() {
    let mut seen = 0;
    let mut failed = Vec::new();
    for case in load() {
        for (name, expected) in &case.alt {
            let mut spec = spec_of(&case).unwrap();
            (spec.dst_gap, spec.dst_overlap) = match name.as_str() {
                "skip+both" => (DstGap::Skip, DstOverlap::Both),
                "shift+first" => (DstGap::Shift, DstOverlap::First),
                other => panic!("{}: unknown policy {other}", case.id),
            };
            let got = times(&compile(&spec).unwrap(), at(&case.after), expected.len());
            if got != *expected {
                failed.push(format!(
                    "{} {name}: fires {got:?}, expected {expected:?}",
                    case.id
                ));
            }
            seen += 1;
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
    assert_eq!(seen, 60);
}

#[test]
fn walking_back_gives_the_same_times_as_walking_on() {
    for case in load() {
        let Ok(rule) = spec_of(&case)
            .map_err(|e| vec![e])
            .and_then(|s| compile(&s))
        else {
            continue;
        };
        let after = at(&case.after);
        let forward: Vec<Timestamp> =
            std::iter::successors(rule.next(after), |f| rule.next(f.nominal))
                .map(|f| f.nominal)
                .take(case.take)
                .collect();
        let Some(last) = forward.last() else {
            continue;
        };
        let end = last.plus(Millis(1));
        let mut back: Vec<Timestamp> =
            std::iter::successors(rule.prev(end), |f| rule.prev(f.nominal))
                .map(|f| f.nominal)
                .take_while(|t| *t > after)
                .collect();
        back.reverse();
        assert_eq!(back, forward, "{}", case.id);
        let n = rule.count(after.plus(Millis(1)), end, u64::MAX);
        assert_eq!(
            (n.n, n.at_least),
            (forward.len() as u64, false),
            "{}",
            case.id
        );
    }
}

#[test]
fn each_refused_notation_is_recognised_and_told_what_to_write() {
    let mut seen = Vec::new();
    for (text, feature) in [
        ("@reboot", Feature::Reboot),
        ("@every 10m", Feature::EveryAlias),
        ("rate(5 minutes)", Feature::Rate),
        ("0~30 * * * *", Feature::RandomRange),
        ("Mon *-*-* 09:00", Feature::OnCalendar),
        ("hourly", Feature::OnCalendar),
        ("Sat *-*-1..7", Feature::OnCalendar),
        ("0 0 L-3W * *", Feature::NearestToLast),
    ] {
        let errors = compile(&cron(text, "UTC")).unwrap_err();
        let expected = format!("{}: {}", feature.what(), feature.instead());
        assert_eq!(
            (
                errors[0].pointer.as_str(),
                errors[0].code,
                &errors[0].detail
            ),
            ("/cron", "rule_unsupported", &expected),
            "{text}"
        );
        seen.push(feature);
    }
    let mut named = cron("0 9 * * *", "UTC");
    named.calendars = vec!["holidays".into()];
    assert_eq!(compile(&named).unwrap_err()[0].code, "rule_unsupported");
    seen.push(Feature::NamedCalendars);
    for (text, feature) in [
        (
            "DTSTART:20260101T000000Z\nEXRULE:FREQ=DAILY\nRRULE:FREQ=DAILY",
            Feature::ExRule,
        ),
        (
            "DTSTART:20260101T000000Z\nRRULE:FREQ=YEARLY;BYEASTER=1",
            Feature::RruleExtension,
        ),
        (
            "DTSTART:20260101T000000Z\nRRULE:FREQ=HOURLY;BYMINUTE=1,2;BYSETPOS=1",
            Feature::ShortSetPos,
        ),
    ] {
        let errors = compile(&RuleSpec::new(When::Rrule(text.into()))).unwrap_err();
        assert_eq!(
            (errors[0].pointer.as_str(), errors[0].code),
            ("/rrule", "rule_unsupported")
        );
        assert!(errors[0].detail.starts_with(feature.what()), "{text}");
        seen.push(feature);
    }
    for feature in Feature::ALL {
        assert!(
            seen.contains(feature),
            "{feature:?} is in the list but never refused here"
        );
    }
}
