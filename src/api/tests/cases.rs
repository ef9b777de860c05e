//! Faults of other schedulers, told as they were reported there.

use serde_json::{Value, json};

use crate::api::testing::Node;

const SCHEDULE: &str = "/v1/tenants/default/schedules/x";

/// A client's zero must not be taken for "nothing said", nor the other way round.
#[tokio::test]
async fn zero_and_missing_are_different() {
    let node = Node::leading();
    for given in [json!({}), json!({"threshold": null})] {
        let body = json!({"rule": {"every": "1h"}, "misfire": given});
        let put = node.ask("PUT", SCHEDULE, &body.to_string()).await;
        assert_eq!(put.body["misfire"]["threshold"], "1m");
    }
    for zero in [json!(0), json!("PT0S"), json!("0s")] {
        let body = json!({"rule": {"every": "1h"}, "misfire": {"threshold": zero}});
        let put = node.ask("PUT", SCHEDULE, &body.to_string()).await.must(422);
        assert_eq!(put.pointer(), "/misfire/threshold");
    }
    let zero = json!({"rule": {"every": "1h"}, "misfire": {"catch_up_window": "PT0S"}});
    let put = node.ask("PUT", SCHEDULE, &zero.to_string()).await.must(200);
    assert_eq!(put.body["misfire"]["catch_up_window"], "0s");
    let none = json!({"rule": {"every": "1h"}, "misfire": {"catch_up_window": null}});
    let put = node.ask("PUT", SCHEDULE, &none.to_string()).await.must(200);
    assert_eq!(put.body["misfire"]["catch_up_window"], Value::Null);
}

/// Clients in a crash loop put the same definition for ever.
#[tokio::test]
async fn an_identical_upsert_moves_neither_generation_nor_next_time_nor_phase() {
    let node = Node::leading();
    let body = r#"{"rule":{"every":"10s"}}"#;
    let first = node.ask("PUT", SCHEDULE, body).await.must(201);
    for _ in 0..20 {
        node.wait(crate::time::Millis(300));
        let again = node.ask("PUT", SCHEDULE, body).await.must(200);
        assert_eq!(again.header("x-outcome"), "unchanged");
        for place in [
            "/generation",
            "/revision",
            "/incarnation",
            "/status/next",
            "/rule/anchor",
        ] {
            assert_eq!(
                again.body.pointer(place),
                first.body.pointer(place),
                "{place}"
            );
        }
    }
}

/// Many clients write one name at once: none of them sees a server error, and every accepted change counts.
#[tokio::test]
async fn concurrent_upserts_of_one_schedule_all_end_well() {
    let node = Node::leading();
    let bodies: Vec<String> = (0..20)
        .map(|i| json!({"rule": {"every": "1s"}, "payload": i / 2}).to_string())
        .collect();
    let puts = bodies.iter().map(|body| node.ask("PUT", SCHEDULE, body));
    let answers = futures::future::join_all(puts).await;
    let mut accepted = 0;
    let mut revisions = std::collections::BTreeSet::new();
    for answer in &answers {
        assert!(matches!(answer.status, 200 | 201), "{:#}", answer.body);
        assert_eq!(answer.body["incarnation"], answers[0].body["incarnation"]);
        if answer.header("x-outcome") != "unchanged" {
            accepted += 1;
            assert!(
                revisions.insert(answer.header("etag").to_owned()),
                "one revision for two changes"
            );
        }
    }
    let now = node.ask("GET", SCHEDULE, "").await.must(200);
    assert_eq!(now.body["generation"], accepted);
}

/// A tick between read and write must not fail a conditional edit.
#[tokio::test]
async fn firing_does_not_fail_a_conditional_edit() {
    let node = Node::leading();
    let etag = node
        .ask("PUT", SCHEDULE, r#"{"rule":{"every":"10s"}}"#)
        .await
        .header("etag")
        .to_owned();
    node.wait(crate::time::Millis::secs(15));
    let edit = r#"{"rule":{"every":"10s"},"priority":2}"#;
    let put = node
        .ask_with("PUT", SCHEDULE, edit, &[("if-match", &etag)])
        .await
        .must(200);
    assert_eq!(put.body["status"]["created_count"], 1);
}

/// Bulk calls above their limit do nothing; the limit is told.
#[tokio::test]
async fn oversized_worker_calls_are_refused_whole() {
    let node = Node::leading();
    let item = json!({"execution_id": "e", "attempt": 1, "fencing_token": 1});
    for (count, status) in [(1_000, 200), (1_001, 422), (0, 422)] {
        let body = json!({"worker_id": "w", "leases": vec![item.clone(); count]}).to_string();
        let answer = node
            .ask("POST", "/v1/leases:complete", &body)
            .await
            .must(status);
        if count > 1_000 {
            assert!(answer.body["detail"].as_str().unwrap().contains("1000"));
        }
    }
}
