//! Policies, in both directions.

use crate::api::issues::{At, Issues};
use crate::api::unsupported::Feature;
use crate::calendar::duration;
use crate::model::policy::{
    Misfire, MisfirePolicy, Overlap, OverlapPolicy, PastPolicy, RateLimit, RetryPolicy, Timeouts,
};
use crate::time::Millis;
use crate::wire::limits::{self, Bound};
use crate::wire::{self, Span};

/// Thousandths of a decimal inside `min..=max` (also thousandths).
fn milli(
    issues: &mut Issues,
    at: &At<'_>,
    value: Option<f64>,
    (min, default, max): (u32, u32, u32),
) -> u32 {
    let Some(value) = value else { return default };
    let scaled = (value * 1_000.0).round();
    if !(f64::from(min)..=f64::from(max)).contains(&scaled) {
        let (low, high) = (f64::from(min) / 1_000.0, f64::from(max) / 1_000.0);
        issues.add(
            at,
            "out_of_range",
            format!("{value} is out of range: {low} to {high}"),
        );
        return default;
    }
    // In range, so at most six digits: reading it back cannot fail.
    format!("{scaled:.0}").parse().unwrap_or(default)
}

/// Towards the model.
pub fn retry(issues: &mut Issues, at: &At<'_>, wire: Option<wire::RetryPolicy>) -> RetryPolicy {
    let wire = wire.unwrap_or_default();
    let base = RetryPolicy::default();
    let spans = |issues: &mut Issues, name: &str, value: Option<Span>, default: Millis| {
        value.map_or(default, |v| {
            issues.span(&at.key(name), v, &limits::BACKOFF_MS)
        })
    };
    let initial_backoff = spans(
        issues,
        "initial_backoff",
        wire.initial_backoff,
        base.initial_backoff,
    );
    // The default bound gives way to a longer first delay; one that was asked for does not.
    let max_default = base.max_backoff.max(initial_backoff);
    let max_backoff = spans(issues, "max_backoff", wire.max_backoff, max_default);
    if max_backoff < initial_backoff {
        let detail = "is shorter than initial_backoff";
        issues.add(&at.key("max_backoff"), "out_of_range", detail);
    }
    let non_retryable = wire.non_retryable.unwrap_or_default();
    let list = at.key("non_retryable");
    issues.length(&list, non_retryable.len(), &limits::NON_RETRYABLE);
    for (i, kind) in non_retryable.iter().enumerate() {
        issues.length(&list.index(i), kind.len(), &limits::ERROR_TYPE_BYTES);
    }
    let whole = |issues: &mut Issues, name: &str, value: Option<u32>, default, bound: &Bound| {
        value.map_or(default, |v| issues.count(&at.key(name), v, bound))
    };
    RetryPolicy {
        max_attempts: whole(
            issues,
            "max_attempts",
            wire.max_attempts,
            base.max_attempts,
            &limits::MAX_ATTEMPTS,
        ),
        initial_backoff,
        multiplier_milli: milli(
            issues,
            &at.key("multiplier"),
            wire.multiplier,
            (1_000, 2_000, 100_000),
        ),
        max_backoff,
        jitter_milli: milli(issues, &at.key("jitter"), wire.jitter, (0, 200, 1_000)),
        max_elapsed: wire
            .max_elapsed
            .map(|v| issues.span(&at.key("max_elapsed"), v, &limits::MAX_ELAPSED_MS)),
        max_lease_losses: whole(
            issues,
            "max_lease_losses",
            wire.max_lease_losses,
            base.max_lease_losses,
            &limits::LEASE_LOSSES,
        ),
        non_retryable,
    }
}

/// Towards answers.
#[must_use]
pub fn retry_out(model: &RetryPolicy) -> wire::RetryPolicy {
    wire::RetryPolicy {
        max_attempts: Some(model.max_attempts),
        initial_backoff: Some(model.initial_backoff.into()),
        multiplier: Some(f64::from(model.multiplier_milli) / 1_000.0),
        max_backoff: Some(model.max_backoff.into()),
        jitter: Some(f64::from(model.jitter_milli) / 1_000.0),
        max_elapsed: model.max_elapsed.map(Into::into),
        max_lease_losses: Some(model.max_lease_losses),
        non_retryable: Some(model.non_retryable.clone()),
    }
}

/// Towards the model.
pub fn timeouts(issues: &mut Issues, at: &At<'_>, wire: Option<wire::Timeouts>) -> Timeouts {
    let wire = wire.unwrap_or_default();
    let mut one = |name: &str, value: Option<Span>| {
        value.map(|v| issues.span(&at.key(name), v, &limits::TIMEOUT_MS))
    };
    Timeouts {
        start: one("start", wire.start),
        attempt: one("attempt", wire.attempt),
        total: one("total", wire.total),
    }
}

/// Towards answers.
#[must_use]
pub fn timeouts_out(model: &Timeouts) -> wire::Timeouts {
    wire::Timeouts {
        start: model.start.map(Into::into),
        attempt: model.attempt.map(Into::into),
        total: model.total.map(Into::into),
    }
}

/// Towards the model.
pub fn misfire(
    issues: &mut Issues,
    at: &At<'_>,
    wire: Option<wire::MisfirePolicy>,
) -> MisfirePolicy {
    let wire = wire.unwrap_or_default();
    let base = MisfirePolicy::default();
    let policy = match wire.policy.unwrap_or_default() {
        wire::Misfire::Skip => Misfire::Skip,
        wire::Misfire::FireLatest => Misfire::FireLatest,
        wire::Misfire::FireAll => {
            Feature::FireAll.refuse(issues, &at.key("policy"));
            Misfire::FireLatest
        }
    };
    let (catch_up_rate, catch_up_rate_per) = match wire.catch_up_rate.as_deref() {
        None => (base.catch_up_rate, base.catch_up_rate_per),
        Some(text) => rate_text(issues, &at.key("catch_up_rate"), text),
    };
    let catch_up_max = wire.catch_up_max.map_or(base.catch_up_max, |v| {
        issues.count(&at.key("catch_up_max"), v, &limits::CATCH_UP_MAX)
    });
    // Both bound what "fire_all" creates. The default may stand there, because answers show it.
    if catch_up_max != base.catch_up_max {
        Feature::FireAll.refuse(issues, &at.key("catch_up_max"));
    }
    if (catch_up_rate, catch_up_rate_per) != (base.catch_up_rate, base.catch_up_rate_per) {
        Feature::FireAll.refuse(issues, &at.key("catch_up_rate"));
    }
    MisfirePolicy {
        policy,
        threshold: wire.threshold.map_or(base.threshold, |v| {
            issues.span(&at.key("threshold"), v, &limits::MISFIRE_THRESHOLD_MS)
        }),
        catch_up_window: wire
            .catch_up_window
            .map(|v| issues.span(&at.key("catch_up_window"), v, &limits::CATCH_UP_WINDOW_MS)),
        catch_up_max,
        catch_up_rate,
        catch_up_rate_per,
    }
}

/// Reads `10/s`.
fn rate_text(issues: &mut Issues, at: &At<'_>, text: &str) -> (u32, Millis) {
    let parts = text.split_once('/').and_then(|(count, unit)| {
        let per = match unit {
            "s" => Millis::secs(1),
            "m" => Millis::minutes(1),
            "h" => Millis::hours(1),
            _ => return None,
        };
        Some((count.parse::<u32>().ok()?, per))
    });
    let Some((count, per)) = parts else {
        let detail = format!("{text:?} is not a rate: write \"10/s\", \"600/m\" or \"1000/h\"");
        issues.add(at, "invalid", detail);
        return (1, Millis::secs(1));
    };
    (issues.count(at, count, &limits::CATCH_UP_RATE), per)
}

/// Towards answers.
#[must_use]
pub fn misfire_out(model: &MisfirePolicy) -> wire::MisfirePolicy {
    let unit = match model.catch_up_rate_per.0 {
        1_000 => "s".to_owned(),
        60_000 => "m".to_owned(),
        3_600_000 => "h".to_owned(),
        _ => duration::format(model.catch_up_rate_per),
    };
    wire::MisfirePolicy {
        policy: Some(match model.policy {
            Misfire::Skip => wire::Misfire::Skip,
            Misfire::FireLatest => wire::Misfire::FireLatest,
            Misfire::FireAll => wire::Misfire::FireAll,
        }),
        threshold: Some(model.threshold.into()),
        catch_up_window: model.catch_up_window.map(Into::into),
        catch_up_max: Some(model.catch_up_max),
        catch_up_rate: Some(format!("{}/{unit}", model.catch_up_rate)),
    }
}

/// Towards the model.
pub fn overlap(
    issues: &mut Issues,
    at: &At<'_>,
    wire: Option<wire::OverlapPolicy>,
) -> OverlapPolicy {
    let wire = wire.unwrap_or_default();
    if wire.buffer.is_some() {
        Feature::Buffer.refuse(issues, &at.key("buffer"));
    }
    OverlapPolicy {
        policy: overlap_kind(issues, &at.key("policy"), wire.policy.unwrap_or_default()),
        max_open: wire
            .max_open
            .map_or(OverlapPolicy::default().max_open, |v| {
                issues.count(&at.key("max_open"), v, &limits::MAX_OPEN)
            }),
    }
}

/// Towards the model.
pub fn overlap_kind(issues: &mut Issues, at: &At<'_>, wire: wire::Overlap) -> Overlap {
    let feature = match wire {
        wire::Overlap::Allow => return Overlap::Allow,
        wire::Overlap::Skip => return Overlap::Skip,
        wire::Overlap::BufferOne => Feature::BufferOne,
        wire::Overlap::Buffer => Feature::Buffer,
        wire::Overlap::CancelRunning => Feature::CancelRunning,
    };
    feature.refuse(issues, at);
    Overlap::Allow
}

/// Towards answers.
#[must_use]
pub fn overlap_out(model: &OverlapPolicy) -> wire::OverlapPolicy {
    wire::OverlapPolicy {
        policy: Some(match model.policy {
            Overlap::Allow => wire::Overlap::Allow,
            Overlap::Skip => wire::Overlap::Skip,
        }),
        max_open: Some(model.max_open),
        buffer: None,
    }
}

/// Towards the model.
#[must_use]
pub fn past(wire: Option<wire::PastPolicy>) -> PastPolicy {
    match wire.unwrap_or_default() {
        wire::PastPolicy::Run => PastPolicy::Run,
        wire::PastPolicy::Reject => PastPolicy::Reject,
    }
}

/// Towards answers.
#[must_use]
pub fn past_out(model: PastPolicy) -> wire::PastPolicy {
    match model {
        PastPolicy::Run => wire::PastPolicy::Run,
        PastPolicy::Reject => wire::PastPolicy::Reject,
    }
}

/// Towards the model.
pub fn rate(issues: &mut Issues, at: &At<'_>, wire: Option<&wire::Rate>) -> Option<RateLimit> {
    let wire = wire?;
    Some(RateLimit {
        count: issues.count(&at.key("count"), wire.count, &limits::RATE_COUNT),
        per: issues.span(&at.key("per"), wire.per, &limits::RATE_PER_MS),
        burst: issues.count(
            &at.key("burst"),
            wire.burst.unwrap_or(1),
            &limits::RATE_COUNT,
        ),
    })
}

/// Towards answers.
#[must_use]
pub fn rate_out(model: &RateLimit) -> wire::Rate {
    wire::Rate {
        count: model.count,
        per: model.per.into(),
        burst: Some(model.burst),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn null_and_nothing_are_the_default_and_zero_is_zero() {
        let mut issues = Issues::default();
        let root = At::Root;
        let text = r#"{"max_attempts":null,"initial_backoff":"PT0S","jitter":0}"#;
        let given = serde_json::from_str(text).unwrap();
        let policy = retry(&mut issues, &root, Some(given));
        assert_eq!(
            (
                policy.max_attempts,
                policy.initial_backoff.0,
                policy.jitter_milli
            ),
            (15, 0, 0)
        );
        assert_eq!(retry(&mut issues, &root, None), RetryPolicy::default());
        assert!(issues.is_empty());
    }

    #[test]
    fn zero_that_makes_no_sense_is_refused_and_not_replaced() {
        let mut issues = Issues::default();
        let root = At::Root;
        let given = serde_json::from_str(r#"{"threshold":"PT0S"}"#).unwrap();
        misfire(&mut issues, &root, Some(given));
        let error = issues.finish().unwrap_err();
        assert_eq!(error.errors[0].pointer, "/threshold");
    }

    #[test]
    fn policies_read_back_as_they_were_answered() {
        let mut issues = Issues::default();
        let root = At::Root;
        let model = RetryPolicy {
            multiplier_milli: 1_250,
            jitter_milli: 333,
            max_elapsed: Some(Millis::hours(5)),
            ..RetryPolicy::default()
        };
        assert_eq!(retry(&mut issues, &root, Some(retry_out(&model))), model);
        let model = MisfirePolicy {
            threshold: Millis::secs(90),
            catch_up_window: Some(Millis::ZERO),
            ..MisfirePolicy::default()
        };
        assert_eq!(
            misfire(&mut issues, &root, Some(misfire_out(&model))),
            model
        );
        assert!(issues.is_empty());
    }

    #[test]
    fn numbers_out_of_range_name_the_range() {
        for (text, pointer) in [
            (r#"{"multiplier":0.5}"#, "/multiplier"),
            (r#"{"multiplier":1e308}"#, "/multiplier"),
            (r#"{"jitter":1.5}"#, "/jitter"),
            (r#"{"max_attempts":0}"#, "/max_attempts"),
            (r#"{"max_backoff":"31d"}"#, "/max_backoff"),
            (r#"{"max_backoff":"1s"}"#, "/max_backoff"),
            (r#"{"non_retryable":[""]}"#, "/non_retryable/0"),
        ] {
            let mut issues = Issues::default();
            let root = At::Root;
            retry(
                &mut issues,
                &root,
                Some(serde_json::from_str(text).unwrap()),
            );
            assert_eq!(
                issues.finish().unwrap_err().errors[0].pointer,
                pointer,
                "{text}"
            );
        }
    }
}
