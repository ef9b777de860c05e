//! Real children: exit codes, signals, stops, input, environment, leftovers.
#![allow(
    clippy::disallowed_methods,
    reason = "tests own their runtime and clock"
)]

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::command::for_lease;
use super::*;
use crate::time::Timestamp;
use crate::wire::Lease;
use crate::worker::held::Held;

fn lease(payload: &str) -> Lease {
    Lease {
        execution_id: "e1".into(),
        attempt: 2,
        fencing_token: 4711,
        tenant: "default".into(),
        queue: "q".into(),
        kind: "k".into(),
        schedule_id: Some("s".into()),
        nominal_at: Some(Timestamp::EPOCH.into()),
        payload: Json::from_text(payload.into()).unwrap(),
        lease_ms: 30_000,
        expires_in_ms: 30_000,
        max_attempts: 3,
        ..Lease::default()
    }
}

fn work(payload: &str) -> Work {
    let now = tokio::time::Instant::now();
    Work {
        held: Arc::new(Held::new(lease(payload), now, None, Duration::from_secs(5))),
    }
}

async fn run(text: &str) -> Outcome {
    handler(text).run(work("{\"a\":1}")).await
}

fn handler(text: &str) -> ProcessHandler {
    ProcessHandler::new(Source::Shell(text.into()))
}

fn error(outcome: Outcome) -> (WorkerError, bool) {
    match outcome {
        Outcome::Failure {
            error, retryable, ..
        } => (error, retryable),
        other => panic!("not a failure: {other:?}"),
    }
}

fn details(outcome: &Outcome) -> serde_json::Value {
    match outcome {
        Outcome::Success { result } => result.parse().unwrap(),
        Outcome::Failure { error, .. } => error.details.parse().unwrap(),
        Outcome::Release { .. } => panic!("a release has no details"),
    }
}

#[tokio::test]
async fn exit_codes_map_to_outcomes() {
    let done = run("echo out; echo err >&2").await;
    assert!(matches!(done, Outcome::Success { .. }), "{done:?}");
    let kept = details(&done)["output"].as_str().unwrap().to_owned();
    assert!(kept.contains("out\n") && kept.contains("err\n"), "{kept:?}");

    let (failed, retryable) = error(run("echo why; exit 3").await);
    assert_eq!(failed.message.as_deref(), Some("exit status 3"));
    assert!(retryable && failed.details.text().contains("why"));

    assert!(!error(run("exit 65").await).1);

    let later = run("echo busy; exit 75").await;
    let Outcome::Release { delay, reason } = later else {
        panic!("{later:?}")
    };
    assert_eq!(delay, Duration::from_secs(30));
    assert_eq!(reason, "exit status 75: busy");
}

#[tokio::test]
async fn a_signal_is_named() {
    let (failed, retryable) = error(run("kill -SEGV $$").await);
    assert_eq!(failed.message.as_deref(), Some("ended by SIGSEGV"));
    assert_eq!(failed.kind.as_deref(), Some("Signal"));
    assert!(retryable);
}

#[tokio::test]
async fn a_program_that_is_not_there_is_a_failed_attempt() {
    let handler = ProcessHandler::new(Source::Argv(vec!["/no/such/program".into()]));
    let (failed, retryable) = error(handler.run(work("null")).await);
    assert_eq!(failed.kind.as_deref(), Some("NotStarted"));
    assert!(failed.message.unwrap().contains("/no/such/program"));
    assert!(retryable);
}

#[tokio::test]
async fn the_payload_is_standard_input_and_the_lease_is_in_the_environment() {
    let done = run("read line; echo \"$line|$PUNCTUAL_EXECUTION_ID|$PUNCTUAL_ATTEMPT\
         |$PUNCTUAL_FENCING_TOKEN|$PUNCTUAL_NOMINAL_AT|$PUNCTUAL_QUEUE|$PUNCTUAL_SCHEDULE_ID|${PUNCTUAL_DUE_AT-none}\"")
    .await;
    assert_eq!(
        details(&done)["output"],
        "{\"a\":1}|e1|2|4711|1970-01-01T00:00:00.000Z|q|s|none\n"
    );
}

#[tokio::test]
async fn arguments_are_not_read_by_a_shell() {
    let argv = ["printf", "%s", "$HOME;`id`"].map(String::from).to_vec();
    let done = ProcessHandler::new(Source::Argv(argv))
        .run(work("null"))
        .await;
    assert_eq!(details(&done)["output"], "$HOME;`id`");
}

#[tokio::test]
async fn input_that_nobody_reads_and_large_output_block_nothing() {
    let big = format!("\"{}\"", "x".repeat(200_000));
    let done = handler("head -c 300000 /dev/zero | tr '\\0' y; echo; echo end")
        .run(work(&big))
        .await;
    let kept = details(&done);
    assert_eq!(kept["output_truncated"], true);
    assert!(kept["output"].as_str().unwrap().ends_with("y\nend\n"));
}

#[tokio::test]
async fn a_cancel_stops_the_whole_group_politely_first() {
    let work = work("null");
    let held = Arc::clone(&work.held);
    let began = Instant::now();
    tokio::spawn(async move {
        tokio::time::sleep(Duration::from_millis(300)).await;
        held.stop(Stop::CancelRequested);
    });
    // Shell and child both have to go; the shell says goodbye.
    let (failed, _) = error(
        handler("trap 'echo bye; exit 9' TERM; sleep 60 & wait")
            .run(work)
            .await,
    );
    assert!(began.elapsed() < Duration::from_secs(10));
    assert_eq!(failed.kind.as_deref(), Some("Cancelled"));
    assert!(failed.message.unwrap().starts_with("exit status 9 after"));
    assert!(failed.details.text().contains("bye"));
}

#[tokio::test]
async fn a_child_that_a_stopping_worker_ended_is_given_back() {
    let work = work("null");
    work.held.stop(Stop::Shutdown);
    let Outcome::Release { delay, reason } = handler("sleep 60").run(work).await else {
        panic!("not given back")
    };
    assert_eq!(delay, Duration::ZERO);
    assert!(
        reason.contains("SIGTERM") && reason.contains("worker was stopped"),
        "{reason}"
    );
}

#[tokio::test]
async fn who_ignores_term_is_killed_with_all_that_it_started() {
    let work = work("null");
    let held = Arc::clone(&work.held);
    let pid = Arc::new(Mutex::new(None));
    let mut stubborn = handler("trap '' TERM; sleep 61 & while :; do sleep 1; done");
    stubborn.kill_after = Duration::from_millis(400);
    stubborn.observer = Arc::new(Pid(Arc::clone(&pid)));
    tokio::spawn(async move {
        tokio::time::sleep(Duration::from_millis(200)).await;
        held.stop(Stop::CancelRequested);
    });
    let (failed, _) = error(stubborn.run(work).await);
    assert!(
        failed
            .message
            .unwrap()
            .starts_with("ended by SIGKILL after")
    );
    let group = pid.lock().unwrap();
    assert_gone(group).await;
}

#[tokio::test]
async fn a_dropped_handler_leaves_no_process() {
    let pid = Arc::new(Mutex::new(None));
    let mut endless = handler("sleep 62 & sleep 62");
    endless.observer = Arc::new(Pid(Arc::clone(&pid)));
    let run = endless.run(work("null"));
    assert!(
        tokio::time::timeout(Duration::from_millis(300), run)
            .await
            .is_err()
    );
    let group = pid.lock().unwrap();
    assert_gone(group).await;
}

#[tokio::test]
async fn what_a_child_leaves_behind_does_not_hold_up_its_outcome() {
    let began = Instant::now();
    let pid = Arc::new(Mutex::new(None));
    let mut daemon = handler("sleep 63 & echo started");
    daemon.observer = Arc::new(Pid(Arc::clone(&pid)));
    let done = daemon.run(work("null")).await;
    assert!(began.elapsed() < Duration::from_secs(5));
    assert_eq!(details(&done)["output"], "started\n");
    let group = nix::unistd::Pid::from_raw(i32::try_from(pid.lock().unwrap()).unwrap());
    nix::sys::signal::killpg(group, nix::sys::signal::Signal::SIGKILL).unwrap();
}

#[tokio::test]
async fn many_children_leave_neither_zombies_nor_open_files() {
    let open = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    run("true").await;
    let before = open();
    for _ in 0..30 {
        run("echo x; exit 1").await;
    }
    // Other tests of this process open and close files meanwhile.
    assert!(open() < before + 30, "{before} before, {} after", open());
}

struct Pid(Arc<Mutex<Option<u32>>>);

impl Observer for Pid {
    fn started(&self, _: &Work, pid: u32) {
        *self.0.lock() = Some(pid);
    }
}

/// No process of the group is left, zombies included.
async fn assert_gone(group: u32) {
    let group = nix::unistd::Pid::from_raw(i32::try_from(group).unwrap());
    for _ in 0..100 {
        if nix::sys::signal::killpg(group, None) == Err(nix::errno::Errno::ESRCH) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("group {group} still exists");
}

fn payload(text: &str, ignore_user: bool) -> Result<Command, String> {
    for_lease(&Source::Payload { ignore_user }, &lease(text))
}

#[test]
fn a_payload_command_brings_its_shell_environment_and_input() {
    let command = payload(
        r#"{"shell":"a | b","env":{"SHELL":"/bin/bash","X":"1"},"stdin":"in\n"}"#,
        false,
    )
    .unwrap();
    assert_eq!(command.argv, ["/bin/bash", "-c", "a | b"]);
    assert_eq!(command.env["X"], "1");
    assert_eq!(command.env["PUNCTUAL_FENCING_TOKEN"], "4711");
    assert_eq!(command.stdin, b"in\n");
    let command = payload(r#"{"argv":["ls","-l"]}"#, false).unwrap();
    assert_eq!(command.argv, ["ls", "-l"]);
    assert!(command.stdin.is_empty());
}

#[test]
fn a_payload_that_is_no_command_is_refused_with_the_form() {
    for (text, why) in [
        ("null", "is no command"),
        ("{}", "exactly one"),
        (r#"{"shell":"a","argv":["b"]}"#, "exactly one"),
        (r#"{"shell":"a","cwd":"/"}"#, "unknown field `cwd`"),
        (r#"{"argv":[]}"#, "no program"),
        (r#"{"argv":["a\u0000"]}"#, "NUL"),
        (r#"{"shell":"a","env":{"A=B":"c"}}"#, "no name"),
    ] {
        let error = payload(text, false).unwrap_err();
        assert!(error.contains(why), "{text}: {error}");
    }
}

#[test]
fn a_command_for_another_user_runs_only_when_told_so() {
    let text = r#"{"shell":"a","user":"no-such-user"}"#;
    let error = payload(text, false).unwrap_err();
    assert!(error.contains("--ignore-payload-user"), "{error}");
    assert!(payload(text, true).is_ok());
}

#[test]
fn the_lease_wins_over_the_payloads_environment() {
    let text = r#"{"shell":"a","env":{"PUNCTUAL_FENCING_TOKEN":"1"}}"#;
    assert_eq!(
        payload(text, true).unwrap().env["PUNCTUAL_FENCING_TOKEN"],
        "4711"
    );
}
