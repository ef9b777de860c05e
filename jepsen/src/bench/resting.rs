//! W5: schedules that rest.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::bench::load::wall_ms;
use crate::bench::report::per_item;
use crate::bench::workloads::put_schedules;
use crate::cluster::Cluster;
use crate::procfs;

/// How long idle CPU is watched.
const IDLE: Duration = Duration::from_secs(10);

/// Once a year, spread over the days, hours and minutes of a month that lies two to eight months ahead.
fn rule(i: usize) -> Value {
    let this_month = usize::try_from(wall_ms() / 2_629_746_000 % 12).unwrap_or(0);
    let (minute, hour, day) = (i % 60, i / 60 % 24, 1 + i / 1_440 % 28);
    let month = 1 + (this_month + 2 + i / 40_320 % 6) % 12;
    let cron = format!("{minute} {hour} {day} {month} *");
    json!({"cron": cron, "time_zone": "Europe/Paris"})
}

/// Creates `count` schedules that fire next in a month or later, then measures bytes, memory, idle CPU and the restart
/// of node 1, with its memory after that.
///
/// # Errors
/// The first failed call.
pub async fn resting(cluster: &mut Cluster, count: usize) -> Result<(String, Value), String> {
    let api = cluster.api()?;
    let before = cluster.usage();
    let started = Instant::now();
    put_schedules(&api, &format!("w5-{count}"), count, rule).await?;
    let load_ms = millis(started.elapsed());
    let loaded = cluster.usage();
    // Let flushes and compactions that loading caused come to rest before the idle CPU is read.
    sleep(IDLE).await;
    let (idle_from, bytes) = (
        cluster.usage(),
        procfs::bytes_below(&cluster.data_dir(0).join("state")),
    );
    sleep(IDLE).await;
    let idle = cluster.usage();
    let items = u64::try_from(count).unwrap_or(u64::MAX);
    let size = u64::try_from(cluster.size()).unwrap_or(1);
    cluster.kill(0);
    let restarted = Instant::now();
    cluster.spawn(0)?;
    cluster.ready(Duration::from_secs(120)).await?;
    let restart_ms = millis(restarted.elapsed());
    sleep(IDLE).await;
    let again = cluster.pid(0).map(procfs::usage).unwrap_or_default();
    let cpu_us = loaded.cpu_ms.saturating_sub(before.cpu_ms) * 1_000;
    let figures = json!({
        "items": items, "load_ms": load_ms, "per_second": items * 1_000 / load_ms.max(1),
        "server_cpu_us_per_item": per_item(cpu_us, items),
        "state_bytes_per_item": per_item(bytes, items),
        "rss_mib_per_node": idle.rss_bytes / size / 1_048_576,
        "idle_cpu_percent_per_node":
            per_item(idle.cpu_ms.saturating_sub(idle_from.cpu_ms) * 100, millis(IDLE) * size),
        "restart_to_ready_ms": restart_ms,
        "rss_mib_after_restart": again.rss_bytes / 1_048_576,
    });
    Ok((format!("W5 {count} resting schedules"), figures))
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
