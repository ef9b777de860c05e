//! Workers against a real node: the protocol as docs/worker.md writes it in curl, and `punctual worker` itself.

#![allow(clippy::expect_used, clippy::panic, reason = "tests fail by panicking")]

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use jepsen::cluster::{Cluster, binary};
use jepsen::http::Api;
use jepsen::wait::{self, WIDE};
use serde_json::{Value, json};

const EXECUTIONS: &str = "/v1/tenants/default/executions";

/// The shell commands of a section, each in one line.
fn commands(page: &str, heading: &str) -> Vec<String> {
    let section = page.split_once(heading).expect("the section").1;
    let blocks = section.split("```sh\n").skip(1);
    blocks
        .filter_map(|block| block.split_once("```"))
        .flat_map(|(code, _)| {
            let code = code.replace("\\\n", " ");
            code.lines().map(str::to_owned).collect::<Vec<_>>()
        })
        .filter(|line| line.contains("curl"))
        .collect()
}

fn shell(url: &str, command: &str) -> Value {
    let command = format!("S={url}; {command}");
    let out = Command::new("sh")
        .args(["-c", &command])
        .output()
        .expect("a shell");
    let text = String::from_utf8(out.stdout).expect("text");
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{command}\n{text}\n{e}"))
}

/// What a reader of the page puts in for ID and TOKEN.
fn fill(command: &str, lease: &Value) -> String {
    let id = lease["execution_id"].as_str().expect("an id");
    command
        .replace("\"ID\"", &format!("\"{id}\""))
        .replace("TOKEN", &lease["fencing_token"].to_string())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_commands_of_the_documentation_do_what_it_says() {
    let cluster = Cluster::start(1, "").await.expect("a node that starts");
    let url = cluster.url(0);
    let page = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../docs/worker.md");
    let page = std::fs::read_to_string(page).expect("the page");
    let lines = commands(&page, "## The protocol in curl");
    let find = |what: &str| lines.iter().find(|l| l.contains(what)).expect(what).clone();
    let (submit, claim) = (find("/executions "), find("leases:claim"));
    let mut claims = 0;
    let mut leased = || {
        assert!(shell(&url, &submit)["execution_id"].is_string());
        claims += 1;
        // Every claim has a request id of its own.
        let own = claim.replace(
            "4ad54b4d3ee24c2ab3c5d9c5a4a0ed3c",
            &format!("{claims:032x}"),
        );
        shell(&url, &own)["leases"][0].clone()
    };
    let first = leased();
    assert_eq!(first["payload"], json!({"to": "ann@example.com"}));
    for (call, state) in [("leases:renew", "leased"), ("leases:complete", "succeeded")] {
        let answer = shell(&url, &fill(&find(call), &first));
        assert_eq!(answer["results"][0]["status"], "ok", "{answer}");
        assert_eq!(answer["results"][0]["state"], state, "{answer}");
    }
    for (call, state) in [("leases:fail", "backing_off"), ("leases:release", "ready")] {
        let answer = shell(&url, &fill(&find(call), &leased()));
        assert_eq!(answer["results"][0]["state"], state, "{answer}");
    }
    let answer = shell(&url, &find("DELETE"));
    assert_eq!(answer["worker_id"], "host-4711-9f3a", "{answer}");
}

/// A `punctual worker` process; killed when dropped.
struct Worker(Child);

impl Worker {
    fn start(url: &str, words: &[&str]) -> Self {
        let child = Command::new(binary())
            .args(["worker", "--server", url])
            .args(words)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::inherit())
            .spawn()
            .expect("a worker that starts");
        Self(child)
    }

    /// SIGTERM; the exit code.
    async fn drained(mut self) -> Option<i32> {
        let pid = self.0.id().to_string();
        Command::new("kill")
            .args(["-TERM", &pid])
            .status()
            .expect("a signal");
        wait::until("the worker to end", WIDE, || {
            let ended = self.0.try_wait().ok().flatten();
            async move { ended }
        })
        .await
        .expect("a worker that ends")
        .0
        .code()
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // It may have ended already.
        let _ended = self.0.kill();
        let _reaped = self.0.wait();
    }
}

async fn submit(api: &Api, id: &str, queue: &str) {
    let body =
        json!({"execution_id": id, "kind": "test", "queue": queue, "retry": {"max_attempts": 2}});
    api.post(EXECUTIONS, &body)
        .await
        .and_then(|a| a.success())
        .expect("a submission");
}

/// Waits until the execution is in `state`.
async fn reaches(api: &Api, id: &str, state: &str) -> Value {
    wait::until(&format!("{id} to be {state}"), WIDE, || async {
        let answer = api.get(&format!("{EXECUTIONS}/{id}")).await.ok()?;
        (answer.body["state"] == state).then(|| answer.body.clone())
    })
    .await
    .expect("the state")
    .0
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn exit_codes_of_commands_become_outcomes_and_a_drain_finishes_what_is_held() {
    let cluster = Cluster::start(1, "").await.expect("a node that starts");
    let (url, api) = (cluster.url(0), cluster.api().expect("a client"));
    let script = "echo out of $PUNCTUAL_EXECUTION_ID; exit ${PUNCTUAL_EXECUTION_ID#x}";
    let worker = Worker::start(
        &url,
        &[
            "-q",
            "codes",
            "--retry-later",
            "1h",
            "--shell",
            "--",
            script,
        ],
    );
    for (id, state) in [
        ("x0", "succeeded"),
        ("x65", "dead_lettered"),
        ("x3", "backing_off"),
        ("x75", "waiting"),
    ] {
        submit(&api, id, "codes").await;
        let execution = reaches(&api, id, state).await;
        let kept = execution.to_string();
        assert!(
            id == "x75" || kept.contains(&format!("out of {id}\\n")),
            "{kept}"
        );
    }
    assert_eq!(worker.drained().await, Some(0));

    let slow = Worker::start(&url, &["-q", "slow", "--", "sleep", "2"]);
    submit(&api, "held", "slow").await;
    reaches(&api, "held", "leased").await;
    assert_eq!(slow.drained().await, Some(0));
    reaches(&api, "held", "succeeded").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_shorter_than_the_poll_that_brought_it_is_worked_on() {
    let cluster = Cluster::start(1, "").await.expect("a node that starts");
    let (url, api) = (cluster.url(0), cluster.api().expect("a client"));
    let worker = Worker::start(&url, &["-q", "late", "--lease", "1s", "--", "sleep", "2"]);
    // It polls for longer than its lease before there is work.
    tokio::time::sleep(std::time::Duration::from_secs(3)).await;
    submit(&api, "late", "late").await;
    let execution = reaches(&api, "late", "succeeded").await;
    assert_eq!(execution["attempts_started"], 1, "{execution}");
    assert_eq!(worker.drained().await, Some(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn importing_a_crontab_twice_changes_nothing() {
    let cluster = Cluster::start(1, "").await.expect("a node that starts");
    let file = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../config/examples/crontab");
    let import = || {
        let out = Command::new(binary())
            .args([
                "import",
                "crontab",
                "--apply",
                "--time-zone",
                "UTC",
                "-o",
                "json",
                "--server",
            ])
            .arg(cluster.url(0))
            .arg(&file)
            .output()
            .expect("an import");
        assert!(
            out.status.success(),
            "{}",
            String::from_utf8_lossy(&out.stderr)
        );
        let value: Value = serde_json::from_slice(&out.stdout).expect("JSON");
        let jobs = value["jobs"].as_array().expect("jobs").clone();
        jobs.iter()
            .map(|j| j["outcome"].as_str().expect("an outcome").to_owned())
            .collect::<Vec<_>>()
    };
    let (first, second) = (import(), import());
    assert!(
        first.len() >= 12 && first.iter().all(|o| o == "created"),
        "{first:?}"
    );
    assert!(second.iter().all(|o| o == "unchanged"), "{second:?}");
}
