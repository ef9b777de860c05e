//! Rules, in both directions.

use crate::api::issues::{At, Issues};
use crate::calendar::{self, Compiled, RuleError, ZoneData};
use crate::model::rule::{CivilDate, DayMatch, Dialect, DstGap, DstOverlap, RuleSpec, When};
use crate::time::{Millis, Timestamp};
use crate::wire;
use crate::wire::limits;

/// What reading a rule needs beside its text.
#[derive(Clone, Copy)]
pub struct RuleContext<'a> {
    /// Zone data in use.
    pub zones: &'a ZoneData,
    /// Now, on the cluster's clock: the default anchor.
    pub now: Timestamp,
    /// The stored rule that this one replaces: its anchor is kept.
    pub previous: Option<&'a RuleSpec>,
    /// `tenant/schedule`: resolves `H` and jitter.
    pub identity: &'a str,
}

/// Towards the model, compiled and so checked. `None` when something was noted.
pub fn rule(
    issues: &mut Issues,
    at: &At<'_>,
    wire: wire::Rule,
    context: RuleContext<'_>,
) -> Option<(RuleSpec, Compiled)> {
    let before = issues.is_empty();
    if wire.cron.is_none() {
        only_of_cron(issues, at, &wire);
    }
    let mut spec = RuleSpec::new(when(issues, at, &wire, context)?);
    spec.dialect = match wire.dialect.unwrap_or_default() {
        wire::Dialect::Unix => Dialect::Unix,
        wire::Dialect::Quartz => Dialect::Quartz,
        wire::Dialect::EventBridge => Dialect::EventBridge,
    };
    spec.day_match = wire.day_match.map(|m| match m {
        wire::DayMatch::And => DayMatch::And,
        wire::DayMatch::Or => DayMatch::Or,
    });
    spec.dst_gap = match wire.dst_gap.unwrap_or_default() {
        wire::DstGap::RunAfter => DstGap::RunAfter,
        wire::DstGap::Shift => DstGap::Shift,
        wire::DstGap::Skip => DstGap::Skip,
    };
    spec.dst_overlap = match wire.dst_overlap.unwrap_or_default() {
        wire::DstOverlap::First => DstOverlap::First,
        wire::DstOverlap::Second => DstOverlap::Second,
        wire::DstOverlap::Both => DstOverlap::Both,
    };
    spec.time_zone = wire.time_zone;
    spec.start_at = wire.start_at.map(|i| i.0);
    spec.end_at = wire.end_at.map(|i| i.0);
    if let (Some(start), Some(end)) = (spec.start_at, spec.end_at)
        && end < start
    {
        issues.add(&at.key("end_at"), "out_of_range", "is before start_at");
    }
    spec.max_occurrences = wire
        .max_occurrences
        .map(|n| issues.number(&at.key("max_occurrences"), n, &limits::MAX_OCCURRENCES));
    spec.jitter = wire.jitter.map_or(Millis::ZERO, |v| {
        issues.span(&at.key("jitter"), v, &limits::JITTER_MS)
    });
    spec.calendars = wire.calendars.unwrap_or_default();
    spec.exclude_dates = dates(issues, at, &wire.exclude_dates.unwrap_or_default());
    if before && !issues.is_empty() {
        return None;
    }
    match Compiled::new(&spec, context.zones, context.identity) {
        Ok(compiled) => Some((spec, compiled)),
        Err(errors) => {
            for error in errors {
                note(issues, at, error);
            }
            None
        }
    }
}

/// Refuses what only a cron expression is read by. The defaults may stand there, because answers show them.
fn only_of_cron(issues: &mut Issues, at: &At<'_>, wire: &wire::Rule) {
    let given = [
        (
            "dialect",
            wire.dialect.unwrap_or_default() != wire::Dialect::default(),
        ),
        ("day_match", wire.day_match.is_some()),
        (
            "dst_gap",
            wire.dst_gap.unwrap_or_default() != wire::DstGap::default(),
        ),
        (
            "dst_overlap",
            wire.dst_overlap.unwrap_or_default() != wire::DstOverlap::default(),
        ),
    ];
    for (name, _) in given.iter().filter(|(_, given)| *given) {
        let detail =
            "belongs to cron: other rules have their own reading; leave it out, or set it to null";
        issues.add(&at.key(name), "invalid", detail);
    }
}

/// The calendar's error, below the rule's place.
fn note(issues: &mut Issues, at: &At<'_>, error: RuleError) {
    let code = match error.code {
        "rule_unsupported" => "not_supported",
        other => other,
    };
    issues.add_at(
        format!("{}{}", at.pointer(), error.pointer),
        code,
        error.detail,
    );
}

fn when(
    issues: &mut Issues,
    at: &At<'_>,
    wire: &wire::Rule,
    context: RuleContext<'_>,
) -> Option<When> {
    let given: Vec<&str> = [
        ("at", wire.at.is_some()),
        ("cron", wire.cron.is_some()),
        ("every", wire.every.is_some()),
        ("after_end", wire.after_end.is_some()),
        ("rrule", wire.rrule.is_some()),
        ("iso8601", wire.iso8601.is_some()),
    ]
    .iter()
    .filter(|(_, given)| *given)
    .map(|(name, _)| *name)
    .collect();
    let [only] = given.as_slice() else {
        let detail = match given.is_empty() {
            true => "needs one of at, cron, every, after_end, rrule, iso8601".to_owned(),
            false => format!("has {}: give exactly one of them", given.join(" and ")),
        };
        issues.add(at, "one_rule", detail);
        return None;
    };
    if wire.anchor.is_some() && *only != "every" {
        let detail = format!("belongs to every; this rule has {only}");
        issues.add(&at.key("anchor"), "invalid", detail);
    }
    if let Some(text) = &wire.at {
        return match calendar::parse_at(text, wire.time_zone.as_deref(), context.zones) {
            Ok(instant) => Some(When::At(instant)),
            Err(error) => {
                note(issues, at, error);
                None
            }
        };
    }
    if let Some(text) = &wire.cron {
        return Some(When::Cron(text.clone()));
    }
    if let Some(every) = wire.every {
        let every = issues.span(&at.key("every"), every, &limits::EVERY_MS);
        let anchor = match wire.anchor {
            Some(anchor) => anchor.0,
            None => kept_anchor(every, context.previous).unwrap_or(whole_second(context.now)),
        };
        return Some(When::Every { every, anchor });
    }
    if let Some(delay) = wire.after_end {
        if wire.jitter.is_some_and(|jitter| jitter.0 > Millis::ZERO) {
            let detail =
                "belongs to rules with times of their own; those of after_end follow executions";
            issues.add(&at.key("jitter"), "invalid", detail);
        }
        let delay = issues.span(&at.key("after_end"), delay, &limits::EVERY_MS);
        return Some(When::AfterEnd(delay));
    }
    if let Some(text) = &wire.rrule {
        return Some(When::Rrule(text.clone()));
    }
    wire.iso8601.clone().map(When::Iso8601)
}

/// The anchor of the rule that is replaced, when its interval is the same.
fn kept_anchor(wanted: Millis, previous: Option<&RuleSpec>) -> Option<Timestamp> {
    match previous?.when {
        When::Every { every, anchor } if every == wanted => Some(anchor),
        _ => None,
    }
}

fn whole_second(at: Timestamp) -> Timestamp {
    Timestamp::from_millis(at.millis().div_euclid(1_000) * 1_000)
}

fn dates(issues: &mut Issues, at: &At<'_>, texts: &[String]) -> Vec<CivilDate> {
    let place = at.key("exclude_dates");
    issues.length(&place, texts.len(), &limits::EXCLUDE_DATES);
    let mut dates = Vec::with_capacity(texts.len());
    for (i, text) in texts.iter().enumerate() {
        match text.parse() {
            Ok(date) => dates.push(date),
            Err(why) => issues.add(&place.index(i), "invalid", format!("{why}")),
        }
    }
    dates.sort_unstable();
    dates.dedup();
    dates
}

/// Towards answers.
#[must_use]
pub fn rule_out(model: &RuleSpec) -> wire::Rule {
    let mut out = wire::Rule {
        time_zone: model.time_zone.clone(),
        dialect: Some(match model.dialect {
            Dialect::Unix => wire::Dialect::Unix,
            Dialect::Quartz => wire::Dialect::Quartz,
            Dialect::EventBridge => wire::Dialect::EventBridge,
        }),
        day_match: model.day_match.map(|m| match m {
            DayMatch::And => wire::DayMatch::And,
            DayMatch::Or => wire::DayMatch::Or,
        }),
        dst_gap: Some(match model.dst_gap {
            DstGap::RunAfter => wire::DstGap::RunAfter,
            DstGap::Shift => wire::DstGap::Shift,
            DstGap::Skip => wire::DstGap::Skip,
        }),
        dst_overlap: Some(match model.dst_overlap {
            DstOverlap::First => wire::DstOverlap::First,
            DstOverlap::Second => wire::DstOverlap::Second,
            DstOverlap::Both => wire::DstOverlap::Both,
        }),
        start_at: model.start_at.map(Into::into),
        end_at: model.end_at.map(Into::into),
        max_occurrences: model.max_occurrences,
        jitter: Some(model.jitter.into()),
        calendars: Some(model.calendars.clone()),
        exclude_dates: Some(
            model
                .exclude_dates
                .iter()
                .map(ToString::to_string)
                .collect(),
        ),
        ..wire::Rule::default()
    };
    match &model.when {
        When::At(at) => out.at = Some(at.to_rfc3339()),
        When::Cron(text) => out.cron = Some(text.clone()),
        When::Every { every, anchor } => {
            out.every = Some((*every).into());
            out.anchor = Some((*anchor).into());
        }
        When::AfterEnd(delay) => out.after_end = Some((*delay).into()),
        When::Rrule(text) => out.rrule = Some(text.clone()),
        When::Iso8601(text) => out.iso8601 = Some(text.clone()),
    }
    out
}

/// Warnings about a rule.
#[must_use]
pub fn warnings(compiled: &Compiled, now: Timestamp) -> Vec<wire::Warning> {
    compiled
        .warnings_from(now)
        .into_iter()
        .map(|w| wire::Warning {
            code: w.code.to_owned(),
            detail: w.detail,
        })
        .collect()
}

/// Towards answers.
#[must_use]
pub fn preview_out(preview: calendar::Preview) -> wire::PreviewResult {
    wire::PreviewResult {
        occurrences: preview
            .occurrences
            .into_iter()
            .map(|o| wire::PreviewedOccurrence {
                nominal_at: o.nominal_at.into(),
                due_at: o.due_at.into(),
                local: o.local,
                reason: o.reason.as_str().to_owned(),
            })
            .collect(),
        exhausted: preview.exhausted,
        description: preview.description,
        expression: preview.expression,
        warnings: preview
            .warnings
            .into_iter()
            .map(|w| wire::Warning {
                code: w.code.to_owned(),
                detail: w.detail,
            })
            .collect(),
        zone_changes: preview
            .zone_changes
            .into_iter()
            .map(|c| wire::ZoneChange {
                at: c.at.into(),
                from: c.from,
                to: c.to,
            })
            .collect(),
        tzdata: preview.tzdata,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::from_millis(1_772_000_000_123);

    fn read(text: &str) -> Result<RuleSpec, crate::api::problem::Error> {
        let zones = ZoneData::bundled();
        let mut issues = Issues::default();
        let root = At::Root;
        let context = RuleContext {
            zones: &zones,
            now: NOW,
            previous: None,
            identity: "default/x",
        };
        let wire = serde_json::from_str(text).unwrap();
        let found = rule(&mut issues, &root.key("rule"), wire, context);
        issues.finish()?;
        Ok(found.expect("a rule without issues").0)
    }

    #[test]
    fn what_is_wrong_with_a_rule_is_named_with_its_place() {
        for (text, pointer, code) in [
            ("{}", "/rule", "one_rule"),
            (r#"{"cron":"* * * * *","every":"5s"}"#, "/rule", "one_rule"),
            (
                r#"{"cron":"61 * * * *"}"#,
                "/rule/cron",
                "cron_out_of_range",
            ),
            (
                r#"{"cron":"0 0 30 2 *"}"#,
                "/rule/cron",
                "no_future_occurrence",
            ),
            (
                r#"{"cron":"0 0 * * *","time_zone":"Mars/Base"}"#,
                "/rule/time_zone",
                "time_zone_unknown",
            ),
            (
                r#"{"every":"1h","dialect":"quartz"}"#,
                "/rule/dialect",
                "invalid",
            ),
            (
                r#"{"rrule":"DTSTART:20260101T000000Z\nRRULE:FREQ=DAILY","dst_gap":"skip"}"#,
                "/rule/dst_gap",
                "invalid",
            ),
            (
                r#"{"iso8601":"R/2026-01-31T09:00:00Z/P1M","dst_overlap":"both"}"#,
                "/rule/dst_overlap",
                "invalid",
            ),
            (
                r#"{"at":"2027-01-01T00:00:00Z","day_match":"and"}"#,
                "/rule/day_match",
                "invalid",
            ),
            (r#"{"every":"10ms"}"#, "/rule/every", "out_of_range"),
            (r#"{"after_end":"5ms"}"#, "/rule/after_end", "out_of_range"),
            (
                r#"{"after_end":"5s","jitter":"1s"}"#,
                "/rule/jitter",
                "invalid",
            ),
            (r#"{"at":"soon"}"#, "/rule/at", "instant_syntax"),
            (
                r#"{"cron":"0 0 * * *","anchor":"2026-01-01T00:00:00Z"}"#,
                "/rule/anchor",
                "invalid",
            ),
            (
                r#"{"every":"5s","calendars":["holidays"]}"#,
                "/rule/calendars",
                "not_supported",
            ),
            (
                r#"{"every":"1d","exclude_dates":["2026-02-30"]}"#,
                "/rule/exclude_dates/0",
                "invalid",
            ),
        ] {
            let error = read(text).expect_err(text);
            assert_eq!(error.errors[0].pointer, pointer, "{text}: {error:?}");
            assert_eq!(error.errors[0].code, code, "{text}: {error:?}");
        }
    }

    #[test]
    fn an_interval_is_anchored_at_the_whole_second_and_keeps_a_stored_anchor() {
        let first = read(r#"{"every":"10s"}"#).unwrap();
        let anchor = Timestamp::from_millis(1_772_000_000_000);
        let every = Millis::secs(10);
        assert_eq!(first.when, When::Every { every, anchor });
        assert_eq!(kept_anchor(every, Some(&first)), Some(anchor));
        assert_eq!(kept_anchor(Millis::secs(11), Some(&first)), None);
    }

    #[test]
    fn rules_read_back_as_they_were_answered() {
        for text in [
            r#"{"cron":"0 9 * * MON-FRI","time_zone":"Europe/Berlin","day_match":"and","dst_gap":"shift"}"#,
            r#"{"at":"2027-01-01T00:00:00Z"}"#,
            r#"{"after_end":"90s","exclude_dates":["2026-12-24"],"time_zone":"Europe/Berlin"}"#,
            r#"{"every":"90m","jitter":"1m","end_at":"2028-01-01T00:00:00Z","max_occurrences":5}"#,
        ] {
            let spec = read(text).unwrap();
            let again = serde_json::to_string(&rule_out(&spec)).unwrap();
            assert_eq!(read(&again).unwrap(), spec, "{again}");
        }
    }
}
