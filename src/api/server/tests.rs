//! Real connections over loopback.

use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;

use crate::api::server::{ServerConfig, serve};
use crate::api::testing::Node;

struct Running {
    address: std::net::SocketAddr,
    stop: oneshot::Sender<()>,
    ended: tokio::task::JoinHandle<()>,
}

#[allow(
    clippy::disallowed_methods,
    reason = "a test has no runtime of its own to spawn through"
)]
async fn running(node: &Node, config: ServerConfig) -> Running {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (stop, stopped) = oneshot::channel();
    let serving = serve(
        std::sync::Arc::clone(&node.api),
        listener,
        config,
        async move {
            let _ended = stopped.await;
        },
    );
    let ended = tokio::spawn(serving);
    Running {
        address,
        stop,
        ended,
    }
}

/// Sends raw bytes and reads until the other side closes.
async fn raw(running: &Running, request: &str) -> String {
    let mut stream = TcpStream::connect(running.address).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    let reading = stream.read_to_end(&mut answer);
    tokio::time::timeout(Duration::from_secs(20), reading)
        .await
        .unwrap_or_else(|_| panic!("no end of {request:?}"))
        .ok();
    String::from_utf8_lossy(&answer).into_owned()
}

fn get(path: &str, headers: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: localhost:7070\r\n{headers}Connection: close\r\n\r\n")
}

#[tokio::test]
async fn requests_are_answered_and_ids_are_kept() {
    let node = Node::leading();
    let running = running(&node, ServerConfig::default()).await;
    let answer = raw(&running, &get("/v1/limits", "X-Request-Id: mine-7\r\n")).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert!(answer.contains("x-request-id: mine-7"), "{answer}");
    let body = r#"{"rule":{"every":"1h"}}"#;
    let put = format!(
        "PUT /v1/tenants/default/schedules/a HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    );
    assert!(raw(&running, &put).await.starts_with("HTTP/1.1 201"));
    let odd = raw(&running, &get("/v1/nothing", "X-Request-Id: a b\r\n")).await;
    assert!(
        odd.starts_with("HTTP/1.1 404") && !odd.contains("a b"),
        "{odd}"
    );
}

#[tokio::test]
async fn strangers_are_refused_before_anything_is_read() {
    let node = Node::leading();
    let running = running(&node, ServerConfig::default()).await;
    for (request, status, code) in [
        (
            get("/v1/queues", "Authorization: Bearer x\r\n"),
            400,
            "auth_not_configured",
        ),
        (
            get("/v1/queues", "Origin: http://evil.example\r\n"),
            403,
            "origin_refused",
        ),
        (
            get("/v1/queues", "").replace("localhost:7070", "evil.example"),
            403,
            "origin_refused",
        ),
        (
            get("/v1/queues", "Content-Encoding: gzip\r\n"),
            415,
            "unsupported_media_type",
        ),
        (
            get("/v1/queues", "Content-Length: 8388609\r\n"),
            413,
            "body_too_large",
        ),
    ] {
        let answer = raw(&running, &request).await;
        assert!(
            answer.starts_with(&format!("HTTP/1.1 {status}")),
            "{request}\n{answer}"
        );
        assert!(answer.contains(code), "{request}\n{answer}");
    }
    let same = get("/v1/queues", "Origin: http://localhost:7070\r\n");
    assert!(raw(&running, &same).await.starts_with("HTTP/1.1 200"));
}

#[tokio::test]
async fn a_body_without_a_length_is_cut_off_at_the_bound() {
    let node = Node::leading();
    let running = running(&node, ServerConfig::default()).await;
    let mut stream = TcpStream::connect(running.address).await.unwrap();
    let head = "POST /v1/schedules:preview HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n";
    stream.write_all(head.as_bytes()).await.unwrap();
    let chunk = format!("100000\r\n{}\r\n", " ".repeat(0x10_0000));
    for _ in 0..9 {
        if stream.write_all(chunk.as_bytes()).await.is_err() {
            break;
        }
    }
    let mut answer = [0; 4096];
    let read = stream.read(&mut answer).await.unwrap_or(0);
    let answer = String::from_utf8_lossy(&answer[..read]).into_owned();
    assert!(answer.starts_with("HTTP/1.1 413"), "{answer}");
}

#[tokio::test]
async fn silent_and_slow_peers_are_given_up() {
    let node = Node::leading();
    let short = Duration::from_millis(150);
    let config = ServerConfig {
        first_byte: short,
        head: short,
        body: short,
        idle: short,
        ..ServerConfig::default()
    };
    let running = running(&node, config).await;
    assert_eq!(raw(&running, "").await, "");
    assert!(
        !raw(&running, "GET /v1/limits HTTP/1.1\r\nHost: lo")
            .await
            .contains(" 200 ")
    );
    let late = "POST /v1/schedules:preview HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nConnection: close\r\n\r\n{";
    assert!(raw(&running, late).await.starts_with("HTTP/1.1 408"));
    let kept = get("/v1/limits", "").replace("Connection: close\r\n", "");
    assert!(
        raw(&running, &kept).await.starts_with("HTTP/1.1 200"),
        "closed when idle"
    );
}

#[tokio::test]
async fn over_the_bound_of_requests_in_hand_callers_are_told_when_to_come_back() {
    let node = Node::leading();
    let running = running(&node, ServerConfig::default()).await;
    let body = r#"{"execution_id":"e","kind":"a"}"#;
    node.ask("POST", "/v1/tenants/default/executions", body)
        .await
        .must(201);
    let wait = get("/v1/tenants/default/executions/e?wait_ms=3000", "")
        .replace("Connection: close\r\n", "");
    let mut waiting = Vec::new();
    for _ in 0..64 {
        let mut stream = TcpStream::connect(running.address).await.unwrap();
        stream.write_all(wait.as_bytes()).await.unwrap();
        waiting.push(stream);
    }
    let refused = async {
        loop {
            let answer = raw(
                &running,
                &get("/v1/tenants/default/executions/e?wait_ms=1", ""),
            )
            .await;
            if answer.starts_with("HTTP/1.1 429") {
                break answer;
            }
        }
    };
    let answer = tokio::time::timeout(Duration::from_secs(2), refused)
        .await
        .expect("a refusal");
    assert!(
        answer.contains("retry-after: 1") && answer.contains("too_many_requests"),
        "{answer}"
    );
    // Calls that do not wait have slots of their own, and hanging up frees the others.
    assert!(
        raw(&running, &get("/healthz", ""))
            .await
            .starts_with("HTTP/1.1 200")
    );
    drop(waiting);
    let freed = async {
        loop {
            let answer = raw(
                &running,
                &get("/v1/tenants/default/executions/e?wait_ms=1", ""),
            )
            .await;
            if answer.starts_with("HTTP/1.1 200") {
                break;
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(2), freed)
        .await
        .expect("free slots");
}

#[tokio::test]
async fn a_stop_finishes_what_is_in_hand_and_sends_away_who_waits() {
    let node = Node::leading();
    let running = running(&node, ServerConfig::default()).await;
    let body = r#"{"execution_id":"e","kind":"a"}"#;
    node.ask("POST", "/v1/tenants/default/executions", body)
        .await
        .must(201);
    let mut waiting = TcpStream::connect(running.address).await.unwrap();
    let wait = get("/v1/tenants/default/executions/e?wait_ms=60000", "");
    waiting.write_all(wait.as_bytes()).await.unwrap();
    let mut working = TcpStream::connect(running.address).await.unwrap();
    let rule = r#"{"rule":{"every":"1h"}}"#;
    let head = format!(
        "POST /v1/schedules:preview HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        rule.len()
    );
    working.write_all(head.as_bytes()).await.unwrap();
    tokio::time::sleep(Duration::from_millis(100)).await;
    running.stop.send(()).unwrap();
    let mut answer = String::new();
    waiting.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 503"), "{answer}");
    assert!(
        answer.contains("stopping") && answer.contains("retry-after"),
        "{answer}"
    );
    working.write_all(rule.as_bytes()).await.unwrap();
    let mut answer = String::new();
    working.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    running.ended.await.unwrap();
    assert!(TcpStream::connect(running.address).await.is_err());
}
