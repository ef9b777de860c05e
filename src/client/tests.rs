//! The client over a scripted transport on paused time, and over real HTTP once.
#![allow(
    clippy::disallowed_methods,
    reason = "tests own their runtime and clock"
)]

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::*;
use crate::wire::SubmitExecution;

type Step = Result<Response, TransportError>;

#[derive(Default)]
struct Script {
    steps: Mutex<VecDeque<Step>>,
    seen: Mutex<Vec<(Duration, Request)>>,
    began: Mutex<Option<Instant>>,
    /// Never answers once the steps are over.
    hangs: bool,
}

impl Transport for Script {
    fn send(&self, request: Request) -> BoxFuture<'_, Result<Response, TransportError>> {
        let began = *self.began.lock().get_or_insert_with(Instant::now);
        self.seen.lock().push((began.elapsed(), request));
        let step = self.steps.lock().pop_front();
        Box::pin(async move {
            match step {
                Some(step) => step,
                None if self.hangs => std::future::pending().await,
                None => broken(),
            }
        })
    }
}

fn broken() -> Step {
    Err(TransportError::Broken("cannot connect: refused".into()))
}

fn answer(status: u16, body: &str) -> Step {
    Ok(Response {
        status,
        headers: Vec::new(),
        body: body.into(),
    })
}

fn problem(status: u16, code: &str, retry_after: Option<&str>) -> Step {
    let body = serde_json::json!({"status": status, "code": code, "detail": "because"});
    Ok(Response {
        status,
        headers: retry_after
            .map(|s| ("retry-after".into(), s.into()))
            .into_iter()
            .collect(),
        body: body.to_string().into_bytes(),
    })
}

fn client(servers: &str, steps: impl IntoIterator<Item = Step>) -> (Client, Arc<Script>) {
    let script = Arc::new(Script {
        steps: Mutex::new(steps.into_iter().collect()),
        ..Script::default()
    });
    let transport: Arc<dyn Transport> = Arc::<Script>::clone(&script);
    let client = Client::with_transport(servers.parse().unwrap(), transport, Options::default());
    (client, script)
}

fn urls(script: &Script) -> Vec<String> {
    script
        .seen
        .lock()
        .iter()
        .map(|(_, r)| r.url.clone())
        .collect()
}

fn key(request: &Request) -> Option<&str> {
    let found = request
        .headers
        .iter()
        .find(|(n, _)| *n == "idempotency-key");
    found.map(|(_, v)| v.as_str())
}

#[tokio::test(start_paused = true)]
async fn a_repeated_post_carries_the_same_key_and_body() {
    let (client, script) = client(
        "a:1",
        [
            broken(),
            problem(503, "no_leader", None),
            answer(201, r#"{"execution_id":"e"}"#),
        ],
    );
    let work = SubmitExecution {
        kind: "k".into(),
        ..SubmitExecution::default()
    };
    let done = client.submit_execution(&work, false).await.unwrap();
    assert_eq!(done.value.execution_id, "e");
    let seen = script.seen.lock();
    assert_eq!(seen.len(), 3);
    let keys: Vec<_> = seen.iter().map(|(_, r)| key(r).unwrap()).collect();
    assert!(keys[0].len() == 32 && keys[0] == keys[1] && keys[1] == keys[2]);
    assert_eq!(seen[0].1.body, seen[2].1.body);
}

#[tokio::test(start_paused = true)]
async fn two_calls_have_two_keys_and_the_workers_calls_none() {
    let (client, script) = client(
        "a:1",
        [answer(201, "{}"), answer(201, "{}"), answer(200, "{}")],
    );
    let work = SubmitExecution::default();
    client.submit_execution(&work, false).await.unwrap();
    client.submit_execution(&work, false).await.unwrap();
    client.claim(&crate::wire::Claim::default()).await.unwrap();
    let seen = script.seen.lock();
    assert_ne!(key(&seen[0].1), key(&seen[1].1));
    assert_eq!(key(&seen[2].1), None);
}

#[tokio::test(start_paused = true)]
async fn the_next_server_is_tried_at_once_and_then_kept() {
    let (client, script) = client(
        "a:1,b:1,c:1",
        [
            broken(),
            problem(503, "no_leader", None),
            answer(200, "{}"),
            answer(200, "{}"),
        ],
    );
    client.cluster().await.unwrap();
    client.cluster().await.unwrap();
    let hosts: Vec<_> = urls(&script).iter().map(|u| u[7..8].to_owned()).collect();
    assert_eq!(hosts, ["a", "b", "c", "c"]);
    assert_eq!(script.seen.lock()[2].0, Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn when_all_servers_failed_there_is_a_pause_and_at_the_deadline_the_cause() {
    let (client, script) = client("a:1,b:1", []);
    let began = Instant::now();
    let error = client.cluster().await.unwrap_err();
    assert!(matches!(&error, Error::Unavailable { .. }), "{error}");
    assert!(error.to_string().contains("refused"), "{error}");
    assert!(error.is_transient());
    assert!(began.elapsed() <= Options::default().deadline);
    let seen = script.seen.lock();
    assert!(seen[1].0 == Duration::ZERO && seen[2].0 >= Duration::from_millis(50));
    assert!(seen.len() > 6 && seen.len() < 40, "{}", seen.len());
}

#[tokio::test(start_paused = true)]
async fn a_server_that_hangs_costs_one_try_and_the_deadline_holds() {
    let script = Arc::new(Script {
        hangs: true,
        ..Script::default()
    });
    let transport: Arc<dyn Transport> = Arc::<Script>::clone(&script);
    let client = Client::with_transport("a:1,b:1".parse().unwrap(), transport, Options::default());
    let began = Instant::now();
    let error = client.cluster().await.unwrap_err();
    assert!(error.to_string().contains("no answer within"), "{error}");
    assert_eq!(began.elapsed(), Options::default().deadline);
    assert!(urls(&script)[1].starts_with("http://b:1/v1/cluster"));
}

#[tokio::test(start_paused = true)]
async fn what_a_server_said_counts_more_than_a_try_cut_short_by_the_deadline() {
    let script = Arc::new(Script {
        steps: Mutex::new([problem(503, "no_quorum", None)].into()),
        hangs: true,
        ..Script::default()
    });
    let transport: Arc<dyn Transport> = Arc::<Script>::clone(&script);
    let options = Options {
        deadline: Duration::from_secs(3),
        ..Options::default()
    };
    let client = Client::with_transport("a:1".parse().unwrap(), transport, options);
    let error = client.get_schedule("s").await.unwrap_err();
    assert!(error.to_string().contains("no_quorum"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn too_many_requests_wait_as_asked_on_the_same_server() {
    let (client, script) = client(
        "a:1,b:1",
        [problem(429, "overloaded", Some("2")), answer(200, "{}")],
    );
    client.cluster().await.unwrap();
    let seen = script.seen.lock();
    let waited = seen[1].0.as_secs_f64();
    assert!((2.0..=2.3).contains(&waited), "{waited}");
    assert!(seen[1].1.url.starts_with("http://a:1/"));
}

#[tokio::test(start_paused = true)]
async fn refusals_are_not_repeated() {
    for status in [400, 404, 409, 412, 422] {
        let (client, script) = client("a:1", [problem(status, "invalid", None)]);
        let error = client.get_schedule("s").await.unwrap_err();
        assert_eq!(error.status(), Some(status));
        assert_eq!(script.seen.lock().len(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_post_whose_first_sending_is_still_at_work_is_waited_for() {
    let (client, script) = client(
        "a:1",
        [
            broken(),
            problem(409, "idempotency_in_progress", None),
            answer(201, "{}"),
        ],
    );
    client
        .submit_execution(&SubmitExecution::default(), false)
        .await
        .unwrap();
    assert_eq!(script.seen.lock().len(), 3);
}

#[tokio::test(start_paused = true)]
async fn names_cannot_leave_their_place_in_the_path() {
    let (client, script) = client("a:1", [answer(200, "{}"), answer(200, "{\"items\":[]}")]);
    client.get_schedule("a/../b?c#d é").await.unwrap();
    let filter = ListFilter {
        label: Some("a=b&c".into()),
        ..ListFilter::default()
    };
    client.list_schedules(&filter).await.unwrap();
    assert_eq!(
        urls(&script),
        [
            "http://a:1/v1/tenants/default/schedules/a%2F..%2Fb%3Fc%23d%20%C3%A9",
            "http://a:1/v1/tenants/default/schedules?label=a%3Db%26c",
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn conditions_become_headers_and_headers_become_the_answer() {
    let mut put = answer(200, "{\"schedule_id\":\"s\"}").unwrap();
    put.headers = [
        ("etag", "\"8123.0\""),
        ("x-outcome", "updated"),
        ("x-log-index", "9"),
    ]
    .map(|(n, v)| (n.to_owned(), v.to_owned()))
    .to_vec();
    let (client, script) = client("a:1", [Ok(put)]);
    let condition = PutCondition::Revision("8000.0".into());
    let body = serde_json::json!({"rule": {"cron": "@daily"}});
    let done = client
        .put_schedule("s", &body, &condition, true)
        .await
        .unwrap();
    assert_eq!(done.revision.as_deref(), Some("8123.0"));
    assert_eq!(done.outcome.as_deref(), Some("updated"));
    assert_eq!(done.log_index, Some(9));
    let seen = script.seen.lock();
    assert!(seen[0].1.url.ends_with("?dry_run=true"));
    assert!(
        seen[0]
            .1
            .headers
            .contains(&("if-match", "\"8000.0\"".into()))
    );
}

#[tokio::test(start_paused = true)]
async fn what_is_no_punctual_server_is_said_so() {
    let (client, _) = client("a:1", [answer(404, "<html>nginx</html>")]);
    let error = client.cluster().await.unwrap_err();
    assert!(
        error.to_string().contains("is this a Punctual server"),
        "{error}"
    );
    let (client, _) = super::tests::client("a:1", [answer(200, "<html>")]);
    let error = client.cluster().await.unwrap_err();
    assert!(
        matches!(error, Error::Unreadable { status: 200, .. }),
        "{error}"
    );
}

#[tokio::test]
async fn it_speaks_http() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    let server = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut request = Vec::new();
        while !request.ends_with(b"}") {
            let mut buffer = [0; 4096];
            let n = stream.read(&mut buffer).await.unwrap();
            assert!(n > 0, "the request ended early");
            request.extend_from_slice(&buffer[..n]);
        }
        let body = "{\"execution_id\":\"e9\"}";
        let head = format!(
            "HTTP/1.1 201 Created\r\nContent-Type: application/json\r\nETag: \"1.0\"\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        stream
            .write_all(format!("{head}{body}").as_bytes())
            .await
            .unwrap();
        String::from_utf8(request).unwrap()
    });
    // The first server is not there at all.
    let servers = format!("http://127.0.0.1:1,http://{addr}");
    let client = Client::connect(&servers, Options::default()).unwrap();
    let work = SubmitExecution {
        kind: "mail".into(),
        ..SubmitExecution::default()
    };
    let done = client.submit_execution(&work, false).await.unwrap();
    assert_eq!((done.value.execution_id.as_str(), done.status), ("e9", 201));
    assert_eq!(done.revision.as_deref(), Some("1.0"));
    let request = server.await.unwrap().to_ascii_lowercase();
    assert!(
        request.starts_with("post /v1/tenants/default/executions http/1.1\r\n"),
        "{request}"
    );
    assert!(request.contains("idempotency-key: ") && request.contains("application/json"));
}
