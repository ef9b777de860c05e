//! Rules as flags; instants and JSON for people.
//!
//! Callers: `schedule put`, `preview`, and every table that shows a time.

use clap::Args;

use super::body::Body;
use crate::wire::{Instant, Json};

/// The fields that name a rule; one of them excludes the others.
const KINDS: [&str; 6] = ["at", "cron", "every", "after_end", "rrule", "iso8601"];

/// How much of a payload is shown.
const BRIEF_CHARS: usize = 500;

/// A rule on the command line.
#[derive(Debug, Default, Args)]
pub(super) struct RuleArgs {
    /// A cron expression of five, six or seven fields, or an alias such as @daily.
    #[arg(long, value_name = "EXPR", group = "kind_of_rule")]
    cron: Option<String>,
    /// Every so often, such as 5m.
    #[arg(long, value_name = "DURATION", group = "kind_of_rule")]
    every: Option<String>,
    /// Once: an instant with an offset, or a local time with --time-zone.
    #[arg(long, value_name = "TIME", group = "kind_of_rule")]
    at: Option<String>,
    /// So long after the execution before it ended.
    #[arg(long, value_name = "DURATION", group = "kind_of_rule")]
    after_end: Option<String>,
    /// IANA zone in which the rule is read, such as Europe/Berlin.
    #[arg(long, value_name = "ZONE")]
    time_zone: Option<String>,
    /// No occurrence before this instant.
    #[arg(long, value_name = "TIME")]
    start_at: Option<String>,
    /// No occurrence after this instant.
    #[arg(long, value_name = "TIME")]
    end_at: Option<String>,
    /// Spread due times over so long after the nominal time.
    #[arg(long, value_name = "DURATION")]
    jitter: Option<String>,
}

impl RuleArgs {
    /// Lays the flags over `rule` in a body.
    pub(super) fn lay_over(&self, body: &mut Body) {
        let kinds = [
            ("cron", &self.cron),
            ("every", &self.every),
            ("at", &self.at),
            ("after_end", &self.after_end),
        ];
        if kinds.iter().any(|(_, value)| value.is_some()) {
            body.drop_in("rule", &KINDS);
        }
        let others = [
            ("time_zone", &self.time_zone),
            ("start_at", &self.start_at),
            ("end_at", &self.end_at),
            ("jitter", &self.jitter),
        ];
        for (name, value) in kinds.into_iter().chain(others) {
            body.set_in("rule", name, value.clone());
        }
    }
}

/// An instant without the milliseconds that nobody reads when they are zero; empty when there is none.
pub(super) fn shown(at: Option<Instant>) -> String {
    at.map(|at| at.to_string().replace(".000Z", "Z"))
        .unwrap_or_default()
}

/// The beginning of a payload, result or progress; empty when there is none.
pub(super) fn brief(json: &Json) -> String {
    match json.is_null() {
        true => String::new(),
        false => json.text().chars().take(BRIEF_CHARS).collect(),
    }
}

/// Milliseconds as people read them.
pub(super) fn millis(ms: u64) -> String {
    match ms {
        0..=999 => format!("{ms}ms"),
        1_000..=59_999 => format!("{}.{}s", ms / 1_000, ms % 1_000 / 100),
        _ => crate::calendar::duration::format(crate::time::Millis(ms / 1_000 * 1_000)),
    }
}
