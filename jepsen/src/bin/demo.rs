//! `scripts/demo`: three nodes, a real crontab, two workers that run its commands, and a leader killed at a random moment.
//!
//! It shows live what fires, checks that everything due ran exactly once, stops what it started, and exits non-zero
//! if anything due was not run, or run twice.

#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "its output is its purpose"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::path::PathBuf;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::Duration;

use clap::Parser;
use jepsen::bench::load::{rfc3339, wall_ms};
use jepsen::cluster::{Cluster, binary};
use jepsen::http::Api;
use jepsen::wait::WIDE;
use reqwest::Method;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

/// Shows a cluster running a crontab through the death of its leader.
#[derive(Debug, Parser)]
struct Options {
    /// The crontab.
    #[arg(long, default_value = "config/examples/crontab")]
    crontab: PathBuf,
    /// How long it runs, in seconds; at least two whole minutes, so that cron lines fire.
    #[arg(long, default_value_t = 150)]
    seconds: u64,
}

#[tokio::main]
async fn main() -> ExitCode {
    let options = Options::parse();
    match run(&options).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("\ndemo failed: {error}");
            ExitCode::FAILURE
        }
    }
}

fn title(text: &str) {
    println!("\n\x1b[1m== {text}\x1b[0m");
}

async fn run(options: &Options) -> Result<(), String> {
    title("Starting three nodes on loopback");
    let mut cluster = Cluster::start(3, "").await?;
    for i in 0..3 {
        println!(
            "node {}  {}  pid {}",
            i + 1,
            cluster.url(i),
            cluster.pid(i).unwrap_or(0)
        );
    }
    let api = cluster.api()?;
    let urls = (0..3).map(|i| cluster.url(i)).collect::<Vec<_>>().join(",");
    import(&urls, options)?;
    let imported_ms = wall_ms();
    let workers = Workers::start(&urls)?;
    let mut show = Show::default();
    live(&mut cluster, &api, options, &mut show).await?;
    title("Waiting for what is still open");
    let until_ms = wall_ms();
    let expected = expected(&api, imported_ms, until_ms).await?;
    settle(&api, &expected, &mut show).await?;
    drop(workers);
    table(&show);
    verdict(&expected, &show, (imported_ms, until_ms))?;
    title("Try it yourself");
    println!("  {} serve --dev", binary().display());
    println!("  then open http://127.0.0.1:7070/docs for the API page, or follow README.md");
    Ok(())
}

fn import(urls: &str, options: &Options) -> Result<(), String> {
    title("Importing a crontab: first a dry run, then for real");
    for apply in [false, true] {
        let mut command = Command::new(binary());
        command
            .args(["--server", urls, "import", "crontab"])
            .arg(&options.crontab);
        command.args(["--queue", "cron"]);
        if apply {
            command.arg("--apply");
        }
        let status = command.status().map_err(|e| format!("import: {e}"))?;
        if !status.success() {
            return Err(format!("the import ended with {status}"));
        }
    }
    Ok(())
}

/// Two `punctual worker` processes; killed when dropped.
struct Workers(Vec<Child>);

impl Workers {
    fn start(urls: &str) -> Result<Self, String> {
        title("Starting two workers that run the commands as processes");
        let mut children = Vec::new();
        for i in 1..=2 {
            let child = Command::new(binary())
                .args([
                    "--server", urls, "worker", "--queue", "cron", "--slots", "4",
                ])
                .args(["--lease", "10s", "--run-payload-commands"])
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .map_err(|e| format!("worker: {e}"))?;
            println!("worker {i}  pid {}", child.id());
            children.push(child);
        }
        Ok(Self(children))
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _gone_already = child.kill();
            let _status = child.wait();
        }
    }
}

/// Final executions seen so far, by id.
#[derive(Default)]
struct Show {
    done: BTreeMap<String, Value>,
}

impl Show {
    /// Prints what became final since the last look.
    async fn look(&mut self, api: &Api) -> Result<(), String> {
        let mut cursor = String::new();
        loop {
            let path = format!("/v1/tenants/default/executions?queue=cron&page_size=500{cursor}");
            let answer = api.retry(Method::GET, &path, None, WIDE).await?.success()?;
            for item in answer["items"].as_array().into_iter().flatten() {
                self.note(api, item).await?;
            }
            match answer["next_cursor"].as_str() {
                Some(next) => cursor = format!("&cursor={next}"),
                None => return Ok(()),
            }
        }
    }

    async fn note(&mut self, api: &Api, item: &Value) -> Result<(), String> {
        let id = item["execution_id"].as_str().unwrap_or_default();
        let open = matches!(
            item["state"].as_str(),
            Some("waiting" | "ready" | "leased" | "backing_off")
        );
        if open || self.done.contains_key(id) {
            return Ok(());
        }
        let path = format!("/v1/tenants/default/executions/{id}");
        let full = api.retry(Method::GET, &path, None, WIDE).await?.success()?;
        println!(
            "  {}  {:<52} {:<13} late {:>5} ms",
            full["nominal_at"].as_str().unwrap_or("by hand"),
            full["schedule_id"].as_str().unwrap_or_default(),
            full["state"].as_str().unwrap_or_default(),
            full["lateness_ms"].as_u64().unwrap_or(0),
        );
        self.done.insert(id.to_owned(), full);
        Ok(())
    }
}

/// Shows what fires; kills the leader at a random moment and brings it back.
async fn live(
    cluster: &mut Cluster,
    api: &Api,
    options: &Options,
    show: &mut Show,
) -> Result<(), String> {
    title("Live: what fires");
    let started = Instant::now();
    let end = Duration::from_secs(options.seconds.max(130));
    // Anywhere in the middle of the run.
    let kill_at = Duration::from_millis(20_000 + wall_ms() % 60_000);
    let mut killed: Option<(usize, Instant)> = None;
    let mut back = false;
    while started.elapsed() < end {
        show.look(api).await?;
        if killed.is_none() && started.elapsed() >= kill_at {
            let leader = cluster.leader(WIDE).await?;
            cluster.kill(leader);
            killed = Some((leader, Instant::now()));
            println!(
                "\x1b[31m  ** node {} led; it is dead now (SIGKILL)\x1b[0m",
                leader + 1
            );
            let next = cluster.leader(WIDE).await?;
            let took = killed.map(|(_, at)| at.elapsed()).unwrap_or_default();
            println!(
                "\x1b[32m  ** node {} leads after {} ms\x1b[0m",
                next + 1,
                took.as_millis()
            );
        }
        let rested = |at: &Instant| at.elapsed() > Duration::from_secs(20);
        if let Some((node, _)) = killed.filter(|(_, at)| !back && rested(at)) {
            cluster.spawn(node)?;
            let took = cluster.ready(WIDE).await?;
            println!(
                "  ** node {} is back and ready after {} ms",
                node + 1,
                took.as_millis()
            );
            back = true;
        }
        let _shown_at_once = std::io::stdout().flush();
        sleep(Duration::from_millis(500)).await;
    }
    Ok(())
}

/// The (schedule, nominal time) pairs that the imported rules name between the two instants, by the preview of each rule.
async fn expected(
    api: &Api,
    from_ms: u64,
    to_ms: u64,
) -> Result<BTreeSet<(String, String)>, String> {
    let mut found = BTreeSet::new();
    let path = "/v1/tenants/default/schedules?page_size=500&view=full";
    let schedules = api.retry(Method::GET, path, None, WIDE).await?.success()?;
    for schedule in schedules["items"].as_array().into_iter().flatten() {
        let id = schedule["schedule_id"].as_str().unwrap_or_default();
        let body = json!({"rule": schedule["rule"], "after": rfc3339(from_ms), "count": 20});
        let answer = api
            .retry(Method::POST, "/v1/schedules:preview", Some(&body), WIDE)
            .await?;
        for one in answer.success()?["occurrences"]
            .as_array()
            .into_iter()
            .flatten()
        {
            let nominal = one["nominal_at"].as_str().unwrap_or_default();
            if nominal <= rfc3339(to_ms).as_str() {
                found.insert((id.to_owned(), nominal.to_owned()));
            }
        }
    }
    Ok(found)
}

async fn settle(
    api: &Api,
    expected: &BTreeSet<(String, String)>,
    show: &mut Show,
) -> Result<(), String> {
    let started = Instant::now();
    while started.elapsed() < Duration::from_secs(60) {
        show.look(api).await?;
        let ran = ran(show);
        if expected.iter().all(|pair| ran.contains_key(pair)) {
            return Ok(());
        }
        sleep(Duration::from_millis(500)).await;
    }
    Ok(())
}

/// Final executions by occurrence.
fn ran(show: &Show) -> BTreeMap<(String, String), Vec<&Value>> {
    let mut found: BTreeMap<_, Vec<&Value>> = BTreeMap::new();
    for one in show.done.values() {
        let (Some(schedule), Some(nominal)) =
            (one["schedule_id"].as_str(), one["nominal_at"].as_str())
        else {
            continue;
        };
        found
            .entry((schedule.to_owned(), nominal.to_owned()))
            .or_default()
            .push(one);
    }
    found
}

fn table(show: &Show) {
    title("Executions");
    println!(
        "{:<25} {:<52} {:>8} {:>7} {:>6} {:>14}  state",
        "nominal time", "schedule", "late ms", "attempt", "exit", "fencing token"
    );
    let mut rows: Vec<&Value> = show.done.values().collect();
    rows.sort_by_key(|r| (r["nominal_at"].to_string(), r["schedule_id"].to_string()));
    for row in rows {
        let attempts = row["attempts"].as_array().cloned().unwrap_or_default();
        let last = attempts.last().cloned().unwrap_or_default();
        let exit = row["result"]["exit_code"]
            .as_i64()
            .or(last["error"]["details"]["exit_code"].as_i64());
        println!(
            "{:<25} {:<52} {:>8} {:>7} {:>6} {:>14}  {}",
            row["nominal_at"].as_str().unwrap_or("by hand"),
            row["schedule_id"].as_str().unwrap_or_default(),
            row["lateness_ms"].as_u64().unwrap_or(0),
            last["attempt"].as_u64().unwrap_or(0),
            exit.map_or("-".into(), |code| code.to_string()),
            last["fencing_token"].as_u64().unwrap_or(0),
            row["state"].as_str().unwrap_or_default(),
        );
    }
}

fn verdict(
    expected: &BTreeSet<(String, String)>,
    show: &Show,
    (from_ms, to_ms): (u64, u64),
) -> Result<(), String> {
    let ran = ran(show);
    let missing: Vec<_> = expected
        .iter()
        .filter(|pair| !ran.contains_key(*pair))
        .collect();
    let doubled: Vec<_> = ran
        .iter()
        .filter(|(_, all)| all.len() > 1)
        .map(|(pair, _)| pair)
        .collect();
    let unfinished: Vec<_> = ran
        .iter()
        .filter(|(_, all)| all.iter().all(|e| e["state"] != "succeeded"))
        .map(|(pair, all)| (pair, all.first().map(|e| e["attempts"].to_string())))
        .collect();
    let retried = show
        .done
        .values()
        .filter(|e| e["attempts_started"].as_u64() > Some(1))
        .count();
    title("Verdict");
    println!(
        "{} occurrences were due between {} and {}; {} ran, {} missing, {} created twice, {} did not succeed, {} run again after a lost lease",
        expected.len(),
        rfc3339(from_ms),
        rfc3339(to_ms),
        expected.len() - missing.len(),
        missing.len(),
        doubled.len(),
        unfinished.len(),
        retried,
    );
    if expected.is_empty() {
        return Err("nothing was due: that proves nothing".into());
    }
    if missing.is_empty() && doubled.is_empty() && unfinished.is_empty() {
        return Ok(());
    }
    Err(format!(
        "missing {missing:?}, created twice {doubled:?}, not succeeded {unfinished:?}"
    ))
}
