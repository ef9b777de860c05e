//! Health, metrics, bounds, the contract and its page, previews of retries, the development clock.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use crate::api::Api;
use crate::api::call::Call;
use crate::api::convert::policy;
use crate::api::issues::{At, Issues};
use crate::api::metrics::Page;
use crate::api::problem::{Code, Error};
use crate::api::reads::backlog;
use crate::api::reply::Reply;
use crate::api::routes::{Route, handler};
use crate::leader::Figure;
use crate::model::policy::RetryPolicy;
use crate::raft::Role;
use crate::wire;
use crate::wire::limits;

/// Delays of a retry preview unless told otherwise.
const DELAYS_DEFAULT: u32 = 20;
/// How long the answer about the development clock waits for what became due.
const CATCH_UP: Duration = Duration::from_secs(10);
/// Queues whose depth is in the metrics.
const QUEUES_SHOWN: usize = 500;
const HTML: &str = "text/html; charset=utf-8";
const TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The rows.
#[must_use]
pub fn routes() -> Vec<Route> {
    let page = |pattern, id, handler, media, summary| {
        Route::new("GET", pattern, id, handler)
            .says("system", summary)
            .gives_bare(200, "The page.", media)
    };
    vec![
        Route::new("GET", "/healthz", "health", handler!(health))
            .says("system", "Whether the process works.")
            .gives::<wire::Health>(200, "It does.")
            .gives::<wire::Health>(503, "It does not."),
        Route::new("GET", "/readyz", "readiness", handler!(readiness))
            .says("system", "Whether the node can serve: it knows a leader, and one that leads fires and grants.")
            .gives::<wire::Health>(200, "It can.")
            .gives::<wire::Health>(503, "It cannot."),
        page("/metrics", "metrics", handler!(metrics), TEXT, "Figures in Prometheus text form."),
        page("/openapi.json", "openapi", handler!(openapi), "application/json", "This document."),
        page("/", "home", handler!(home), HTML, "Where to go from here."),
        page("/docs", "docs", handler!(docs), HTML, "This document, to be read and tried by people."),
        page("/docs/docs.css", "docsStyle", handler!(docs_style), "text/css; charset=utf-8", "Style of the docs page."),
        page(
            "/docs/docs.js",
            "docsScript",
            handler!(docs_script),
            "text/javascript; charset=utf-8",
            "Script of the docs page.",
        ),
        Route::new("GET", "/v1/limits", "getLimits", handler!(get_limits))
            .says("system", "Every bound of this contract.")
            .gives::<limits::Limits>(200, "The bounds."),
        Route::new("POST", "/v1/retries:preview", "previewRetries", handler!(retries))
            .says("executions", "Delays of a retry policy.")
            .takes::<wire::RetryPreview>()
            .gives::<wire::RetryPreviewResult>(200, "The delays."),
        Route::new("POST", "/v1/dev/clock:advance", "advanceClock", handler!(advance))
            .says(
                "system",
                "Moves the clock of `serve --dev --clock manual`, and answers when what became due has been decided (or after 10 s).",
            )
            .takes::<wire::AdvanceClock>()
            .gives::<wire::ClockNow>(200, "The clock after it.")
            .refuses(&[Code::ClockNotManual]),
    ]
}

fn health_reply(checks: Vec<wire::HealthCheck>) -> Result<Reply, Error> {
    let bad: Vec<&str> = checks
        .iter()
        .filter(|check| !check.ok)
        .map(|check| check.name.as_str())
        .collect();
    let (status, word) = match bad.is_empty() {
        true => (200, "ok".to_owned()),
        false => (503, format!("not ok: {}", bad.join(", "))),
    };
    let health = wire::Health {
        status: word,
        checks,
    };
    Ok(Reply::json(status, &health)?.with("cache-control", "no-store"))
}

fn check(name: &str, ok: bool, detail: impl Into<String>) -> wire::HealthCheck {
    wire::HealthCheck {
        name: name.to_owned(),
        ok,
        detail: detail.into(),
    }
}

async fn health(api: Arc<Api>, _: Call) -> Result<Reply, Error> {
    let status = api.consensus.status();
    let detail = match status.running {
        true => "Raft runs",
        false => "Raft has stopped by an error; see the log",
    };
    health_reply(vec![check("raft", status.running, detail)])
}

async fn readiness(api: Arc<Api>, _: Call) -> Result<Reply, Error> {
    let status = api.consensus.status();
    let leader = match status.leader {
        Some(id) => format!("node {id} leads term {}", status.term),
        None => format!("no leader is known in term {}", status.term),
    };
    let mut checks = vec![
        check("raft", status.running, "Raft runs"),
        check(
            "recovered",
            status.recovered,
            "what was served before the last stop is applied",
        ),
        check("leader", status.leader.is_some(), leader),
        check("accepting", !api.is_stopping(), "the node is not stopping"),
    ];
    if status.is_leader() {
        let detail = "the leader has rebuilt, fires and grants";
        checks.push(check("office", api.scheduler.in_office(), detail));
    }
    health_reply(checks)
}

async fn openapi(api: Arc<Api>, _: Call) -> Result<Reply, Error> {
    Ok(Reply::raw(200, "application/json", api.document.clone()))
}

/// Nothing from elsewhere is loaded or run.
fn page(media: &str, text: &'static str) -> Reply {
    Reply::raw(200, media, text.as_bytes()).with(
        "content-security-policy",
        "default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'self'",
    )
}

async fn home(_: Arc<Api>, _: Call) -> Result<Reply, Error> {
    Ok(Reply::raw(302, HTML, "").with("location", "/docs"))
}

async fn docs(_: Arc<Api>, _: Call) -> Result<Reply, Error> {
    Ok(page(HTML, include_str!("../assets/docs.html")))
}

async fn docs_style(_: Arc<Api>, _: Call) -> Result<Reply, Error> {
    Ok(page(
        "text/css; charset=utf-8",
        include_str!("../assets/docs.css"),
    ))
}

async fn docs_script(_: Arc<Api>, _: Call) -> Result<Reply, Error> {
    Ok(page(
        "text/javascript; charset=utf-8",
        include_str!("../assets/docs.js"),
    ))
}

async fn get_limits(_: Arc<Api>, _: Call) -> Result<Reply, Error> {
    Reply::json(200, &limits::served())
}

async fn retries(_: Arc<Api>, call: Call) -> Result<Reply, Error> {
    let body: wire::RetryPreview = call.body()?;
    let mut issues = Issues::default();
    let root = At::Root;
    let count = body.count.unwrap_or(DELAYS_DEFAULT);
    let count = issues.count(&root.key("count"), count, &limits::PREVIEW_COUNT);
    let retry = policy::retry(&mut issues, &root.key("retry"), Some(body.retry));
    issues.finish()?;
    let answer = wire::RetryPreviewResult {
        delays: delays(&retry, count),
        retry: policy::retry_out(&retry),
    };
    Reply::json(200, &answer)
}

fn delays(retry: &RetryPolicy, count: u32) -> Vec<wire::RetryDelay> {
    let mut total = 0_u64;
    let failures = retry.max_attempts.saturating_sub(1).min(count);
    (1..=failures)
        .map(|n| {
            let delay = retry.backoff(n).0;
            total = total.saturating_add(delay);
            wire::RetryDelay {
                attempt: n,
                delay_ms: delay,
                min_ms: retry.jittered_backoff(n, 0).0,
                max_ms: retry.jittered_backoff(n, u32::MAX).0,
                total_ms: total,
            }
        })
        .take_while(|d| retry.max_elapsed.is_none_or(|max| d.total_ms <= max.0))
        .collect()
}

async fn advance(api: Arc<Api>, call: Call) -> Result<Reply, Error> {
    let body: wire::AdvanceClock = call.body()?;
    let mut issues = Issues::default();
    let root = At::Root;
    let by = issues.span(&root.key("by"), body.by, &limits::CLOCK_ADVANCE_MS);
    issues.finish()?;
    let Some(clock) = &api.dev_clock else {
        return Err(Error::new(
            Code::ClockNotManual,
            "start the node with `serve --dev --clock manual` to move its clock",
        ));
    };
    let now = clock.advance(by);
    // What became due is there when the caller looks. Without a leader, or with more due than fits into the wait, the
    // clock has moved all the same.
    let _late = tokio::time::timeout(CATCH_UP, api.scheduler.caught_up(now)).await;
    Reply::json(200, &wire::ClockNow { now: now.into() })
}

async fn metrics(api: Arc<Api>, _: Call) -> Result<Reply, Error> {
    let mut page = Page::default();
    raft_figures(&api, &mut page);
    state_figures(&api, &mut page);
    clock_figures(&api, &mut page);
    if api.scheduler.in_office() {
        leader_figures(&api, &mut page);
    }
    api.metrics.write(&mut page);
    Ok(Reply::raw(200, TEXT, page.finish()).with("cache-control", "no-store"))
}

fn raft_figures(api: &Api, page: &mut Page) {
    let status = api.consensus.status();
    let known = |index: Option<u64>| index.unwrap_or(0);
    page.family("build_info", "gauge", "Version of the program.");
    page.whole(
        "build_info",
        &[("version", api.config.version.to_owned())],
        1,
    );
    page.single("raft_term", "gauge", "Current term.", status.term);
    page.single(
        "raft_is_leader",
        "gauge",
        "Whether this node leads.",
        status.is_leader().into(),
    );
    page.single(
        "raft_has_leader",
        "gauge",
        "Whether a leader is known.",
        status.leader.is_some().into(),
    );
    page.single(
        "raft_running",
        "gauge",
        "Whether Raft runs.",
        (status.role != Role::Stopped && status.running).into(),
    );
    page.single(
        "raft_last_log_index",
        "gauge",
        "Last index in the log.",
        known(status.last_log),
    );
    page.single(
        "raft_committed_index",
        "gauge",
        "Last index known to be committed.",
        known(status.committed),
    );
    page.single(
        "raft_applied_index",
        "counter",
        "Last index applied.",
        known(status.applied),
    );
    page.single(
        "raft_snapshot_index",
        "gauge",
        "Last index of the kept snapshot.",
        known(status.snapshot),
    );
    let ack = status.quorum_ack_age_ms.unwrap_or(0);
    page.single(
        "raft_quorum_ack_age_milliseconds",
        "gauge",
        "Since a majority last confirmed this leader.",
        ack,
    );
}

/// How far the members' clocks are from this node's.
fn clock_figures(api: &Api, page: &mut Page) {
    let clock = api.runtime.clock();
    let (wall, now) = (clock.wall(), clock.monotonic());
    page.family(
        "peer_clock_ahead_milliseconds",
        "gauge",
        "How far another member's wall clock is ahead of this node's, when measured last.",
    );
    for peer in api.consensus.peer_clocks() {
        let labels = [("node", peer.node.to_string())];
        let ahead = peer.ahead_ms(wall, now).to_string();
        page.line("peer_clock_ahead_milliseconds", &labels, &ahead);
    }
}

fn state_figures(api: &Api, page: &mut Page) {
    let resident = api.replica.resident();
    let count = |n: usize| u64::try_from(n).unwrap_or(u64::MAX);
    let schedules = resident.usage.values().map(|u| u.schedules);
    let schedules = schedules.fold(0, u64::saturating_add);
    page.single(
        "tenants",
        "gauge",
        "Tenants.",
        count(resident.tenants.len()),
    );
    page.single(
        "schedules",
        "gauge",
        "Schedules, completed ones too.",
        schedules,
    );
    page.single(
        "leases",
        "gauge",
        "Live leases.",
        count(resident.leases.len()),
    );
    let age = api.runtime.clock().wall().since(resident.applied.now);
    page.single(
        "log_time_age_milliseconds",
        "gauge",
        "Wall clock minus the time of the replicated state.",
        age.0,
    );
    page.family("executions", "gauge", "Open executions by queue and state.");
    for (no, row) in resident.queues.iter().take(QUEUES_SHOWN) {
        let depth = backlog(&resident, *no);
        for (state, n) in [
            ("waiting", depth.waiting),
            ("ready", depth.ready),
            ("parked", depth.parked),
            ("leased", depth.leased),
            ("backing_off", depth.backing_off),
        ] {
            let labels = [("queue", row.id.to_string()), ("state", state.to_owned())];
            page.whole("executions", &labels, n);
        }
    }
}

/// The parts of a histogram in the leader's figures.
const PARTS: [&str; 3] = ["_bucket", "_sum", "_count"];

fn leader_figures(api: &Api, page: &mut Page) {
    let figures = api.scheduler.figures();
    let histograms: BTreeSet<&str> = figures
        .iter()
        .filter_map(|figure| figure.name.strip_suffix("_bucket"))
        .collect();
    let family = |name: &'static str| {
        let base = PARTS.iter().find_map(|part| name.strip_suffix(part));
        match base.filter(|base| histograms.contains(base)) {
            Some(base) => (base, "histogram"),
            None if name.ends_with("_total") => (name, "counter"),
            None => (name, "gauge"),
        }
    };
    // Lines of one family must stand together; inside it the leader's own order stays.
    let mut families: BTreeMap<(&str, &str), Vec<&Figure>> = BTreeMap::new();
    for figure in &figures {
        families
            .entry(family(figure.name))
            .or_default()
            .push(figure);
    }
    for ((name, kind), figures) in families {
        page.family(name, kind, "Of the leader.");
        for figure in figures {
            page.line(figure.name, &figure.labels, &figure.value.to_string());
        }
    }
}
