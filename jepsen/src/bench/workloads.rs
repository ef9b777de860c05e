//! W1 to W4 and W6.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;

use crate::bench::drain::{Shape, drain};
use crate::bench::load::{check_batch, item, payload_of, post, spread, submit_batches, wall_ms};
use crate::bench::report::{per_item, percentiles};
use crate::cluster::Cluster;
use crate::http::Api;

const BATCHED: Shape = Shape {
    workers: 16,
    max: 100,
    reports_inside: true,
};
const SINGLE: Shape = Shape {
    workers: 16,
    max: 1,
    reports_inside: false,
};
const SINGLE_INSIDE: Shape = Shape {
    reports_inside: true,
    ..SINGLE
};

struct Meter<'a> {
    cluster: &'a Cluster,
    cpu_ms: u64,
    started: Instant,
}

impl<'a> Meter<'a> {
    fn start(cluster: &'a Cluster) -> Self {
        Self {
            cluster,
            cpu_ms: cluster.usage().cpu_ms,
            started: Instant::now(),
        }
    }

    fn figures(&self, items: usize) -> Value {
        let items = u64::try_from(items).unwrap_or(u64::MAX);
        let ms = u64::try_from(self.started.elapsed().as_millis())
            .unwrap_or(u64::MAX)
            .max(1);
        let cpu_us = self.cluster.usage().cpu_ms.saturating_sub(self.cpu_ms) * 1_000;
        json!({
            "items": items, "wall_ms": ms, "per_second": items * 1_000 / ms,
            "server_cpu_us_per_item": per_item(cpu_us, items),
        })
    }
}

/// W1: creates executions due now, one a call with 64 in flight, then by batches of 500. W2: claims and completes them
/// with 16 workers: one at a time with two calls each, one at a time with the report inside the next claim, then a
/// hundred at a time with reports inside the next claim.
///
/// # Errors
/// The first failed call.
pub async fn create_and_drain(
    cluster: &Cluster,
    count: usize,
) -> Result<Vec<(String, Value)>, String> {
    let api = cluster.api()?;
    let mut lines = Vec::new();
    let meter = Meter::start(cluster);
    let caller = api.clone();
    spread(count, 64, move |i| {
        let api = caller.clone();
        async move {
            let body = item("w1-single", i, None);
            post(&api, "/v1/tenants/default/executions", &body)
                .await
                .map(drop)
        }
    })
    .await?;
    lines.push((
        "W1 create, single calls, 64 in flight".into(),
        meter.figures(count),
    ));
    let meter = Meter::start(cluster);
    submit_batches(&api, "w1-batch", count, |_| None).await?;
    lines.push(("W1 create, batches of 500".into(), meter.figures(count)));
    submit_batches(&api, "w1-more", count, |_| None).await?;
    for (queue, shape, name) in [
        (
            "w1-single",
            SINGLE,
            "one claim call and one report call each, 16 slots",
        ),
        (
            "w1-more",
            SINGLE_INSIDE,
            "one at a time, report inside the next claim, 16 slots",
        ),
        (
            "w1-batch",
            BATCHED,
            "100 a call, reports inside the next claim, 16 workers",
        ),
    ] {
        let meter = Meter::start(cluster);
        drain(&api, queue, count, shape, Duration::from_secs(600)).await?;
        lines.push((
            format!("W2 claim and complete, {name}"),
            meter.figures(count),
        ));
    }
    Ok(lines)
}

/// W3: `count` executions due at one instant.
///
/// # Errors
/// The first failed call.
pub async fn burst(cluster: &Cluster, count: usize) -> Result<(String, Value), String> {
    let api = cluster.api()?;
    let queue = format!("w3-{count}");
    // Far enough ahead that loading is over before the instant comes.
    let lead_ms = 5_000 + u64::try_from(count).unwrap_or(0) / 5;
    let due = wall_ms() + lead_ms;
    submit_batches(&api, &queue, count, move |_| Some(due)).await?;
    let slack = i128::from(due) - i128::from(wall_ms());
    if slack < 500 {
        return Err(format!(
            "loading took {} ms too long for this burst",
            500 - slack
        ));
    }
    let meter = Meter::start(cluster);
    let (seen, _) = drain(&api, &queue, count, BATCHED, Duration::from_secs(600)).await?;
    let drained_ms = wall_ms().saturating_sub(due);
    let mut figures = meter.figures(count);
    figures["lateness_ms"] = percentiles(seen.lateness_ms);
    figures["drain_ms"] = json!(drained_ms);
    figures["repeated"] = json!(seen.repeated);
    Ok((format!("W3 {count} due at one instant"), figures))
}

/// W4: `per_second` executions a second for `seconds`.
///
/// # Errors
/// The first failed call.
pub async fn steady(
    cluster: &Cluster,
    per_second: usize,
    seconds: usize,
) -> Result<(String, Value), String> {
    let api = cluster.api()?;
    let count = per_second * seconds;
    let first = wall_ms() + 5_000;
    let step = 1_000.0 / f64::from(u32::try_from(per_second).unwrap_or(1));
    submit_batches(&api, "w4", count, move |i| {
        let i = f64::from(u32::try_from(i).unwrap_or(u32::MAX));
        #[allow(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "small, positive"
        )]
        let offset = (i * step) as u64;
        Some(first + offset)
    })
    .await?;
    let meter = Meter::start(cluster);
    let deadline = Duration::from_secs(60 + u64::try_from(seconds).unwrap_or(0));
    let (seen, _) = drain(&api, "w4", count, SINGLE, deadline).await?;
    let mut figures = meter.figures(count);
    figures["lateness_ms"] = percentiles(seen.lateness_ms);
    figures["repeated"] = json!(seen.repeated);
    Ok((format!("W4 {per_second} a second for {seconds} s"), figures))
}

/// W6: `count` schedules that fire every minute, over `minutes` whole minutes.
///
/// # Errors
/// The first failed call.
pub async fn every_minute(
    cluster: &Cluster,
    count: usize,
    minutes: usize,
) -> Result<(String, Value), String> {
    let api = cluster.api()?;
    let rule = |_| json!({"cron": "* * * * *", "time_zone": "UTC"});
    put_schedules(&api, "w6", count, rule).await?;
    let meter = Meter::start(cluster);
    let want = count * minutes;
    let deadline = Duration::from_secs(120 + 60 * u64::try_from(minutes).unwrap_or(0));
    let (seen, _) = drain(&api, "w6", want, BATCHED, deadline).await?;
    let mut figures = meter.figures(want);
    let by_minute: serde_json::Map<String, Value> = seen
        .by_minute
        .into_iter()
        .map(|(minute, late)| (minute, percentiles(late)))
        .collect();
    figures["lateness_ms_by_minute"] = Value::Object(by_minute);
    figures["repeated"] = json!(seen.repeated);
    delete_schedules(&api, "w6", count).await?;
    Ok((
        format!("W6 {count} every-minute schedules, {minutes} minutes"),
        figures,
    ))
}

/// Creates schedules `<prefix>-<i>` with rule `rule(i)` and a payload of their own in batches of 500, 8 in flight.
///
/// # Errors
/// The first failed call or item.
pub async fn put_schedules(
    api: &Api,
    prefix: &str,
    count: usize,
    rule: impl Fn(usize) -> Value + Send + Sync + 'static,
) -> Result<(), String> {
    const BATCH: usize = 500;
    let (api, prefix, rule) = (api.clone(), prefix.to_owned(), Arc::new(rule));
    spread(count.div_ceil(BATCH), 8, move |batch| {
        let (api, prefix, rule) = (api.clone(), prefix.clone(), Arc::clone(&rule));
        async move {
            let range = batch * BATCH..((batch + 1) * BATCH).min(count);
            let items: Vec<Value> = range
                .map(|i| {
                    json!({
                        "schedule_id": format!("{prefix}-{i:08}"), "kind": "bench",
                        "queue": prefix, "payload": payload_of(i), "rule": rule(i),
                    })
                })
                .collect();
            let expected = items.len();
            let path = "/v1/tenants/default/schedules:batch";
            let answer = post(&api, path, &json!({"items": items})).await?;
            check_batch(&answer, expected)
        }
    })
    .await
}

async fn delete_schedules(api: &Api, prefix: &str, count: usize) -> Result<(), String> {
    let (api, prefix) = (api.clone(), prefix.to_owned());
    spread(count, 32, move |i| {
        let (api, path) = (
            api.clone(),
            format!("/v1/tenants/default/schedules/{prefix}-{i:08}"),
        );
        async move {
            let deadline = Duration::from_secs(60);
            api.retry(reqwest::Method::DELETE, &path, None, deadline)
                .await?
                .success()
                .map(drop)
        }
    })
    .await
}
