//! Judging what workers saw of schedules that fire every second.

use std::collections::BTreeMap;

use serde_json::json;

use crate::http::Api;
use crate::observe::put_schedule;
use crate::watcher::{Seen, by_occurrence};

/// Puts `count` schedules that fire every second into queue `ticks`.
///
/// # Errors
/// When one is refused.
pub async fn put_ticks(api: &Api, count: usize) -> Result<(), String> {
    for i in 0..count {
        let body = json!({"rule": {"every": "1s"}, "queue": "ticks", "kind": "tick"});
        put_schedule(api, &format!("tick-{i}"), &body).await?;
    }
    Ok(())
}

/// Seconds of an instant as the API writes it. Days count from the month's first: tests last minutes.
fn seconds(nominal: &str) -> i64 {
    let part = |from: usize| {
        nominal
            .get(from..from + 2)
            .and_then(|p| p.parse::<i64>().ok())
            .unwrap_or(0)
    };
    part(8) * 86_400 + part(11) * 3_600 + part(14) * 60 + part(17)
}

/// Whether the nominal times of all `schedules` are consecutive seconds, each with one execution that was completed once,
/// and tokens grow with every lease of an execution.
///
/// # Errors
/// The first thing that is wrong.
pub fn each_second_once(seen: &[Seen], schedules: usize) -> Result<(), String> {
    for ((schedule, nominal), executions) in by_occurrence(seen) {
        if executions.len() != 1 {
            return Err(format!(
                "{schedule} {nominal} was created twice: {executions:?}"
            ));
        }
    }
    let mut times: BTreeMap<&str, Vec<i64>> = BTreeMap::new();
    for one in seen {
        if let (Some(schedule), Some(nominal)) = (&one.schedule, &one.nominal_at) {
            times.entry(schedule).or_default().push(seconds(nominal));
        }
    }
    if times.len() != schedules {
        return Err(format!("{} of {schedules} schedules fired", times.len()));
    }
    for (schedule, mut at) in times {
        at.sort_unstable();
        at.dedup();
        for pair in at.windows(2) {
            if let [a, b] = pair
                && b - a != 1
            {
                return Err(format!("{schedule}: nothing between {a} and {b}"));
            }
        }
    }
    leased_to_one(seen)
}

/// Whether tokens grow with every lease of an execution, and no execution was completed twice.
///
/// # Errors
/// The first that is wrong.
pub fn leased_to_one(seen: &[Seen]) -> Result<(), String> {
    let mut last: BTreeMap<&str, (u64, &str)> = BTreeMap::new();
    let mut completed: BTreeMap<&str, u64> = BTreeMap::new();
    for one in seen {
        let name = one.execution.as_str();
        if let Some((token, worker)) = last.insert(name, (one.token, &one.worker)) {
            // The same lease is seen twice by its worker when the first answer was lost.
            let is_repeat = one.token == token && one.worker == worker;
            if one.token < token || (one.token == token && !is_repeat) {
                let (new, who) = (one.token, &one.worker);
                return Err(format!(
                    "{name}: token {new} for {who} after {token} for {worker}"
                ));
            }
        }
        if one.completion == "ok"
            && let Some(other) = completed.insert(name, one.token)
            && other != one.token
        {
            return Err(format!("{name}: completed under {other} and {}", one.token));
        }
    }
    Ok(())
}
