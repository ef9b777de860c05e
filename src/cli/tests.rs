//! The command line from words to output, against an HTTP server in a few lines.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::Arc;

use parking_lot::Mutex;

use super::output::testing::captured;
use super::*;

/// A server that answers each request with the next of `answers` and keeps what it was sent.
struct Server {
    url: String,
    seen: Arc<Mutex<Vec<String>>>,
}

fn serve(answers: &[(u16, &str)]) -> Server {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let seen = Arc::new(Mutex::new(Vec::new()));
    let kept = Arc::clone(&seen);
    let answers: Vec<(u16, String)> = answers.iter().map(|(s, b)| (*s, (*b).to_owned())).collect();
    std::thread::spawn(move || {
        for (status, body) in answers {
            let (mut stream, _) = listener.accept().unwrap();
            kept.lock().push(read_request(&mut stream));
            let head = format!(
                "HTTP/1.1 {status} X\r\nX-Outcome: created\r\nConnection: close\r\nContent-Length: {}\r\n\r\n",
                body.len()
            );
            stream
                .write_all(format!("{head}{body}").as_bytes())
                .unwrap();
        }
    });
    Server { url, seen }
}

fn read_request(stream: &mut impl Read) -> String {
    let mut text = String::new();
    let mut buffer = [0; 16 << 10];
    loop {
        let n = stream.read(&mut buffer).unwrap();
        text.push_str(std::str::from_utf8(&buffer[..n]).unwrap());
        let Some((head, body)) = text.split_once("\r\n\r\n") else {
            continue;
        };
        let length = head.lines().find_map(|l| {
            l.to_ascii_lowercase()
                .strip_prefix("content-length: ")?
                .parse()
                .ok()
        });
        if body.len() >= length.unwrap_or(0) {
            return text;
        }
    }
}

impl Server {
    fn request(&self, at: usize) -> (String, serde_json::Value) {
        let text = self.seen.lock()[at].clone();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        let line = head
            .lines()
            .next()
            .unwrap()
            .trim_end_matches(" HTTP/1.1")
            .to_owned();
        (line, serde_json::from_str(body).unwrap_or_default())
    }
}

/// Runs words against a server: exit code, standard output, standard error.
fn punctual(server: &str, words: &[&str]) -> (u8, String, String) {
    let mut all = vec!["punctual"];
    all.extend(words);
    all.extend(["--server", server, "--timeout", "2s"]);
    // What follows `--` belongs to a command.
    let arguments = match Arguments::try_parse_from(&all) {
        Ok(arguments) => arguments,
        Err(error) => {
            return (
                if error.use_stderr() { 2 } else { 0 },
                String::new(),
                error.to_string(),
            );
        }
    };
    let (output, out, err) = captured(arguments.output, false);
    let code = match dispatch(arguments, &output) {
        Ok(code) => code,
        Err(failure) => {
            output.failure(&failure);
            failure.code()
        }
    };
    (code.number(), out.text(), err.text())
}

#[test]
fn the_definition_of_the_command_line_is_sound() {
    Arguments::command().debug_assert();
}

#[test]
fn words_that_do_not_fit_are_refused_before_anything_is_sent() {
    for words in [
        &["schedule"][..],
        &["schedule", "fly"],
        &["schedule", "put", "s", "--cron", "x", "--every", "1m"],
        &["worker", "--queue", "q"],
        &["worker", "--", "true"],
        &["worker", "-q", "q", "--run-payload-commands", "--", "true"],
        &["worker", "-q", "q", "--slots", "0", "--", "true"],
        &["worker", "-q", "q", "--lease", "soon", "--", "true"],
        &["execution", "submit"],
        &["preview"],
    ] {
        assert_eq!(punctual("http://127.0.0.1:1", words).0, 2, "{words:?}");
    }
    let (code, _, err) = punctual("http://127.0.0.1:1", &["schedule", "put", "s"]);
    assert_eq!(code, 2);
    assert!(err.contains("write --cron"), "{err}");
    let (code, _, err) = punctual("https://a", &["cluster", "status"]);
    assert_eq!(code, 2);
    assert!(err.contains("only http"), "{err}");
}

#[test]
fn flags_stand_over_the_file_and_unknown_fields_are_left_to_the_server() {
    let server = serve(&[(201, r#"{"schedule_id":"s"}"#)]);
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("s.json");
    std::fs::write(
        &file,
        r#"{"rule":{"every":"5m","jitter":"1s"},"retry":{"max_backoff":"1h"},"bogus":1}"#,
    )
    .unwrap();
    let file = file.to_str().unwrap();
    let (code, out, _) = punctual(
        &server.url,
        &[
            "schedule",
            "put",
            "s",
            "-f",
            file,
            "--cron",
            "0 9 * * *",
            "--max-attempts",
            "3",
            "--label",
            "team=a",
            "--payload",
            "{\"a\": 1}",
            "--dry-run",
        ],
    );
    assert_eq!(code, 0);
    assert!(out.starts_with("created s (dry run"), "{out}");
    let (line, body) = server.request(0);
    assert_eq!(line, "PUT /v1/tenants/default/schedules/s?dry_run=true");
    assert_eq!(
        body,
        serde_json::json!({
            "rule": {"cron": "0 9 * * *", "jitter": "1s"},
            "retry": {"max_backoff": "1h", "max_attempts": 3},
            "bogus": 1, "labels": {"team": "a"}, "payload": {"a": 1},
        })
    );
}

#[test]
fn json_output_is_what_the_server_sent() {
    let body = r#"{"schedule_id":"s","new_field":[1.10]}"#;
    let server = serve(&[(200, body)]);
    let (code, out, _) = punctual(&server.url, &["schedule", "get", "s", "-o", "json"]);
    assert_eq!((code, out.trim_end()), (0, body));
}

#[test]
fn refusals_have_their_exit_codes_and_name_the_place() {
    let problem = |status: u16| {
        format!(
            r#"{{"status":{status},"code":"c","detail":"no","errors":[{{"pointer":"/rule/cron","code":"x","detail":"61 is above 59"}}]}}"#
        )
    };
    for (status, expected) in [(404, 3), (409, 4), (412, 4), (422, 1), (400, 1)] {
        let server = serve(&[(status, &problem(status))]);
        let (code, out, err) = punctual(&server.url, &["schedule", "get", "s"]);
        assert_eq!(code, expected, "{status}");
        assert!(out.is_empty());
        assert!(err.contains("at /rule/cron: 61 is above 59"), "{err}");
    }
    let (code, _, err) = punctual("http://127.0.0.1:1", &["cluster", "status"]);
    assert_eq!(code, 5);
    assert!(err.contains("PUNCTUAL_SERVER"), "{err}");
}

#[test]
fn waiting_ends_with_the_state_of_the_execution() {
    for (state, expected) in [("succeeded", 0), ("dead_lettered", 6)] {
        let last = format!(r#"{{"execution_id":"e","state":"{state}"}}"#);
        let server = serve(&[
            (201, r#"{"execution_id":"e","state":"ready"}"#),
            (200, r#"{"execution_id":"e","state":"leased"}"#),
            (200, &last),
        ]);
        let (code, out, _) = punctual(
            &server.url,
            &["execution", "submit", "--kind", "k", "--wait=20s"],
        );
        assert_eq!(code, expected);
        assert!(out.contains(state), "{out}");
        assert!(
            server
                .request(1)
                .0
                .starts_with("GET /v1/tenants/default/executions/e?wait_ms=")
        );
    }
    let server = serve(&[(200, r#"{"execution_id":"e","state":"leased"}"#)]);
    assert_eq!(
        punctual(&server.url, &["execution", "get", "e", "--wait=0s"]).0,
        7
    );
}

#[test]
fn lists_follow_cursors_up_to_the_limit() {
    let page = |ids: &[&str], cursor: &str| {
        let items: Vec<_> = ids
            .iter()
            .map(|i| serde_json::json!({"execution_id": i, "x": 1}))
            .collect();
        serde_json::json!({"items": items, "next_cursor": cursor}).to_string()
    };
    let server = serve(&[(200, &page(&["a", "b"], "c1")), (200, &page(&["c"], "c2"))]);
    let (code, out, err) = punctual(&server.url, &["execution", "list", "--limit", "3"]);
    assert_eq!(code, 0);
    let ids: Vec<_> = out.lines().skip(1).map(|l| &l[..1]).collect();
    assert_eq!(ids, ["a", "b", "c"]);
    assert!(err.contains("--cursor c2"), "{err}");
    assert!(server.request(0).0.contains("page_size=3"));
    assert!(server.request(1).0.contains("page_size=1&cursor=c1"));

    let server = serve(&[(200, &page(&["a"], "more"))]);
    let (_, out, _) = punctual(
        &server.url,
        &["execution", "list", "--limit", "1", "-o", "json"],
    );
    let value: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!(
        value,
        serde_json::json!({"items": [{"execution_id": "a", "x": 1}], "next_cursor": "more"})
    );
}

fn crontab(text: &str) -> (tempfile::TempDir, String) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("crontab");
    std::fs::write(&path, text).unwrap();
    let path = path.to_str().unwrap().to_owned();
    (dir, path)
}

#[test]
fn a_crontab_is_shown_without_a_server_and_its_refusals_are_an_exit_code() {
    let (_dir, path) = crontab(
        "*/5 * * * * /usr/bin/poll\n61 * * * * bad\n@reboot x\nCRON_TZ=Mars/X\n0 1 * * * y\n",
    );
    let words = ["import", "crontab", &path, "--time-zone", "Europe/Berlin"];
    let (code, out, err) = punctual("http://127.0.0.1:1", &words);
    assert_eq!(code, 6, "{err}");
    let row = out.lines().nth(1).unwrap();
    assert!(
        row.contains("poll-") && row.contains("*/5 * * * *") && row.contains("Europe/Berlin"),
        "{row}"
    );
    for refused in [
        "line 2: refused",
        "line 3: refused: @reboot",
        "line 5: refused",
    ] {
        assert!(out.contains(refused), "{refused}: {out}");
    }
    assert!(out.contains("1 taken, 3 refused"), "{out}");
    assert!(
        err.contains("--apply writes") && err.contains("no server was reached"),
        "{err}"
    );
}

#[test]
fn applying_a_crontab_sends_a_batch_and_shows_what_the_server_did() {
    let (_dir, path) = crontab("0 1 * * * a\n0 2 * * * b\n");
    let answer = r#"{"items":[{"schedule_id":"x","outcome":"created","result":{"status":201}},
        {"schedule_id":"y","outcome":"unchanged","result":{"status":200}}]}"#;
    let server = serve(&[(200, answer)]);
    let words = [
        "import",
        "crontab",
        &path,
        "--time-zone",
        "UTC",
        "--queue",
        "cron",
        "--apply",
    ];
    let (code, out, err) = punctual(&server.url, &words);
    assert_eq!(code, 0, "{out}{err}");
    assert!(
        out.contains("created") && out.contains("unchanged"),
        "{out}"
    );
    let (line, body) = server.request(0);
    assert_eq!(line, "POST /v1/tenants/default/schedules:batch");
    assert_eq!(body["items"][0]["queue"], "cron");
    assert_eq!(body["items"][1]["payload"]["shell"], "b");
    assert_eq!(body["items"][1]["rule"]["time_zone"], "UTC");
}

#[test]
fn the_example_crontab_of_the_repository_is_taken_whole() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/config/examples/crontab");
    let words = [
        "import",
        "crontab",
        path,
        "--time-zone",
        "UTC",
        "-o",
        "json",
    ];
    let (code, out, err) = punctual("http://127.0.0.1:1", &words);
    assert_eq!(code, 0, "{out}{err}");
    let value: serde_json::Value = serde_json::from_str(&out).unwrap();
    let jobs = value["jobs"].as_array().unwrap();
    assert!(jobs.len() >= 12, "{}", jobs.len());
    let every_minute = jobs
        .iter()
        .filter(|j| j["schedule"]["rule"]["cron"] == "* * * * *")
        .count();
    assert!(every_minute >= 3, "several must fire within a minute");
    assert!(
        jobs.iter()
            .any(|j| j["schedule"]["rule"]["time_zone"] == "America/New_York")
    );
    assert!(
        jobs.iter()
            .any(|j| !j["schedule"]["payload"]["stdin"].is_null())
    );
}

#[test]
fn the_audit_log_and_earlier_definitions_are_tables() {
    let record = r#"{"items":[{"at":"2026-03-01T08:00:00.000Z","log_index":7,"actor":"me","action":"schedule.pause",
        "object":"schedule","tenant":"t","id":"daily","reason":"broken","request_id":null}],"next_cursor":null}"#;
    let server = serve(&[(200, record)]);
    let words = ["audit", "list", "--object", "schedule", "--id", "daily"];
    let (code, out, _) = punctual(&server.url, &words);
    assert_eq!(code, 0);
    let row = "2026-03-01T08:00:00Z  me   schedule.pause  t       daily  broken";
    assert!(out.contains(row), "{out}");
    let (line, _) = server.request(0);
    assert_eq!(line, "GET /v1/audit?page_size=100&object=schedule&id=daily");
    let earlier = r#"{"items":[{"generation":2,"current":true,"since":"2026-03-01T08:00:00.000Z","revision":"7",
        "schedule":{"rule":{"cron":"0 9 * * *"},"kind":"k","queue":"q"}}],"next_cursor":null}"#;
    let server = serve(&[(200, earlier)]);
    let (code, out, _) = punctual(&server.url, &["schedule", "generations", "daily"]);
    assert_eq!(code, 0);
    assert!(out.contains("0 9 * * *"), "{out}");
    let (line, _) = server.request(0);
    assert!(line.starts_with("GET /v1/tenants/default/schedules/daily/generations?"));
}

#[test]
fn a_rule_that_counts_from_ends_is_a_flag_and_its_times_are_said_to_depend() {
    let server = serve(&[(201, r#"{"schedule_id":"s"}"#)]);
    let words = ["schedule", "put", "s", "--after-end", "10m"];
    assert_eq!(punctual(&server.url, &words).0, 0);
    let (_, body) = server.request(0);
    assert_eq!(body["rule"], serde_json::json!({"after_end": "10m"}));
    let next = r#"{"occurrences":[],"exhausted":false,"tzdata":"x",
        "warnings":[{"code":"depends_on_executions","detail":"times follow executions"}]}"#;
    let server = serve(&[(200, next)]);
    let (code, _, err) = punctual(&server.url, &["schedule", "next", "s"]);
    assert_eq!(code, 0);
    assert!(err.contains("warning: times follow executions"), "{err}");
    let both = [
        "schedule",
        "put",
        "s",
        "--after-end",
        "10m",
        "--every",
        "1m",
    ];
    assert_eq!(punctual("http://127.0.0.1:1", &both).0, 2);
}
