//! Several nodes: who answers, and what is said when nobody can.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::api::dispatch::Origin;
use crate::api::forward::Forwarded;
use crate::api::testing::{Node, request};
use crate::raft::{NodeAddress, Role};

/// A follower of `leader`, which listens under `url`.
fn following(leader: &Node, url: &str) -> Node {
    let node = Node::leading();
    node.scheduler.in_office.store(false, Ordering::SeqCst);
    let mut status = node.consensus.status.lock();
    status.id = 2;
    status.role = Role::Follower;
    status.leader = Some(1);
    let address = NodeAddress {
        peer: String::new(),
        api: url.to_owned(),
    };
    status.members.voters.insert(1, address);
    drop(status);
    *node.wire.to.lock() = Some(Arc::new(Forwarded::new(Arc::clone(&leader.api))));
    node
}

#[tokio::test]
async fn a_follower_passes_the_whole_request_on_and_names_the_leader() {
    let leader = Node::leading();
    let follower = following(&leader, "http://one:7070");
    let path = "/v1/tenants/default/schedules/daily";
    let body = r#"{"rule":{"cron":"0 9 * * *"}}"#;
    let headers = [("if-none-match", "*")];
    let put = follower
        .ask_with("PUT", path, body, &headers)
        .await
        .must(201);
    assert_eq!(put.header("x-leader"), "http://one:7070");
    assert_eq!(put.header("x-outcome"), "created");
    assert_eq!(put.header("x-request-id"), "test");
    let again = follower
        .ask_with("PUT", path, body, &headers)
        .await
        .must(412);
    assert_eq!(again.code(), "revision_mismatch");
    leader.ask("GET", path, "").await.must(200);
    // The follower's own state has not seen it: a read is its own.
    follower.ask("GET", path, "").await.must(404);
}

#[tokio::test]
async fn a_forwarded_request_is_never_forwarded_again() {
    let leader = Node::leading();
    leader.scheduler.in_office.store(false, Ordering::SeqCst);
    let follower = following(&leader, "");
    let answer = follower.ask("PUT", "/v1/queues/q", "{}").await.must(503);
    assert_eq!(answer.code(), "no_leader");
    let direct = request("PUT", "/v1/queues/q", b"{}", &[]);
    assert_eq!(follower.api.answer(direct, Origin::Peer).await.status, 503);
}

#[tokio::test]
async fn without_a_leader_a_write_is_refused_and_may_be_repeated() {
    let node = Node::leading();
    node.scheduler.in_office.store(false, Ordering::SeqCst);
    node.consensus.status.lock().leader = None;
    let answer = node.ask("PUT", "/v1/queues/q", "{}").await.must(503);
    assert_eq!(answer.code(), "no_leader");
    assert_eq!(answer.body["retryable"], true);
    assert_eq!(answer.header("retry-after"), "1");
    let ready = node.ask("GET", "/readyz", "").await.must(503);
    assert!(
        ready.body["status"].as_str().unwrap().contains("leader"),
        "{}",
        ready.body
    );
}

#[tokio::test]
async fn an_unreachable_leader_is_no_leader_and_an_unknown_end_is_said() {
    let leader = Node::leading();
    let follower = following(&leader, "");
    *follower.wire.to.lock() = None;
    let answer = follower.ask("PUT", "/v1/queues/q", "{}").await.must(503);
    assert_eq!(answer.code(), "no_leader");
    let lost = crate::api::problem::Error::from(crate::raft::ForwardError::Unknown(1));
    assert_eq!(lost.code.as_str(), "outcome_unknown");
}

#[tokio::test]
async fn calls_that_only_the_leader_can_answer_are_passed_on() {
    let leader = Node::leading();
    let follower = following(&leader, "http://one");
    let claim = r#"{"worker_id":"w","wait_ms":0}"#;
    let target = "/v1/queues/q/leases:claim";
    follower.ask("POST", target, claim).await.must(200);
    assert_eq!(leader.scheduler.claims.lock().len(), 1);
    assert!(follower.scheduler.claims.lock().is_empty());
    let workers = follower.ask("GET", "/v1/workers", "").await.must(200);
    assert_eq!(workers.header("x-leader"), "http://one");
    // Previews and bounds need nobody.
    let preview = r#"{"rule":{"every":"1h"}}"#;
    let local = follower
        .ask("POST", "/v1/schedules:preview", preview)
        .await
        .must(200);
    assert_eq!(local.header("x-leader"), "");
}
