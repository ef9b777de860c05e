//! What every call has in common: parameters, methods, ids, forwarding marks, conditions.

use crate::api::testing::Node;

#[tokio::test]
async fn unknown_paths_methods_parameters_and_later_calls_are_told_apart() {
    let node = Node::leading();
    let ask = |method: &'static str, target: &'static str| node.ask(method, target, "");
    assert_eq!(
        ask("GET", "/v1/nothing").await.must(404).code(),
        "route_not_found"
    );
    let post = "/v1/tenants/default/schedules/a:fly";
    assert_eq!(ask("POST", post).await.must(404).code(), "route_not_found");
    let wrong = ask("DELETE", "/v1/limits").await.must(405);
    assert_eq!(
        (wrong.code(), wrong.header("allow")),
        ("method_not_allowed", "GET")
    );
    let odd = ask("GET", "/v1/queues?pagesize=3").await.must(400);
    assert_eq!(odd.pointer(), "query:pagesize");
    assert!(odd.body["detail"].as_str().unwrap().contains("page_size"));
    let twice = ask("GET", "/v1/queues?page_size=3&page_size=4")
        .await
        .must(400);
    assert_eq!(twice.pointer(), "query:page_size");
    let broken = ask("GET", "/v1/queues?cursor=%zz").await.must(400);
    assert_eq!(broken.code(), "invalid_parameter");
    assert_eq!(
        ask("HEAD", "/v1/limits").await.must(200).reply.body.len(),
        0
    );
}

#[tokio::test]
async fn every_call_of_the_list_of_later_ones_says_so() {
    let node = Node::leading();
    for (method, pattern, what) in crate::api::unsupported::CALLS {
        let path = pattern
            .replace("{tenant}", "default")
            .replace("{schedule}", "a")
            .replace("{execution}", "a")
            .replace("{queue}", "a")
            .replace("{key}", "a")
            .replace("{calendar}", "a")
            .replace("{operation}", "a");
        let answer = node.ask(method, &path, "{}").await.must(501);
        assert_eq!(answer.code(), "not_implemented", "{method} {path}");
        assert!(
            answer.body["detail"].as_str().unwrap().contains(what),
            "{what}"
        );
    }
}

#[tokio::test]
async fn a_problem_carries_the_request_id_and_its_documented_shape() {
    let node = Node::leading();
    let answer = node.ask("GET", "/v1/queues/none", "").await.must(404);
    assert_eq!(answer.reply.content_type, "application/problem+json");
    assert_eq!(answer.body["request_id"], "test");
    assert_eq!(answer.header("x-request-id"), "test");
    assert_eq!(answer.body["type"], "/docs#problem-queue_not_found");
    assert_eq!(answer.body["status"], 404);
    assert_eq!(answer.body["retryable"], false);
    assert!(answer.body["errors"].as_array().unwrap().is_empty());
}

#[tokio::test]
async fn reads_pass_a_barrier_unless_stale_is_asked_for() {
    let node = Node::leading();
    let barriers = || {
        node.consensus
            .barriers
            .load(std::sync::atomic::Ordering::SeqCst)
    };
    node.ask("GET", "/v1/queues", "").await.must(200);
    assert_eq!(barriers(), 1);
    let stale = node
        .ask("GET", "/v1/queues?consistency=stale", "")
        .await
        .must(200);
    assert_eq!(barriers(), 1);
    assert_eq!(stale.header("x-applied-index"), "1");
    assert_eq!(stale.header("x-applied-age-ms"), "0");
    node.ask("GET", "/v1/queues?consistency=eventual", "")
        .await
        .must(400);
    node.ask("GET", "/v1/queues?min_index=5", "")
        .await
        .must(200);
    *node.consensus.barrier.lock() = Some(crate::raft::BarrierError::NoQuorum);
    let none = node.ask("GET", "/v1/queues", "").await.must(503);
    assert_eq!(
        (none.code(), none.header("retry-after")),
        ("no_quorum", "1")
    );
}

#[tokio::test(start_paused = true)]
async fn an_index_that_is_not_reached_is_said_after_a_bounded_time() {
    let node = Node::leading();
    let late = node
        .ask("GET", "/v1/queues?min_index=5000", "")
        .await
        .must(503);
    assert_eq!(late.code(), "index_not_reached");
}

#[tokio::test]
async fn a_condition_where_there_is_none_is_refused_instead_of_ignored() {
    let node = Node::leading();
    let target = "/v1/tenants/default/keys/k";
    let headers = [("if-match", "\"7.0\"")];
    let answer = node.ask_with("PUT", target, "{}", &headers).await.must(400);
    assert_eq!(answer.pointer(), "header:if-match");
    node.ask_with("GET", "/v1/queues/default", "", &headers)
        .await
        .must(200);
}

#[tokio::test]
async fn reasons_are_bounded() {
    let node = Node::leading();
    let target = format!("/v1/queues/q?reason={}", "x".repeat(1_025));
    let answer = node.ask("PUT", &target, "{}").await.must(422);
    assert_eq!(answer.pointer(), "/reason");
    for (target, body, status) in [
        (
            "/v1/queues/default:pause?reason=a",
            r#"{"reason":"b"}"#,
            400,
        ),
        (
            "/v1/queues/default:pause?reason=a",
            r#"{"reason":"a"}"#,
            200,
        ),
        (
            "/v1/cluster:pause?reason=a&dry_run=true",
            r#"{"reason":"b"}"#,
            400,
        ),
    ] {
        let answer = node.ask("POST", target, body).await.must(status);
        if status == 400 {
            assert_eq!(answer.pointer(), "query:reason", "{target}");
        }
    }
}
