//! Queues, tenants, keys, workers, cluster, health, figures, the development clock.

use serde_json::{Value, json};

use crate::api::testing::Node;

#[tokio::test]
async fn a_queue_is_made_changed_paused_and_deleted() {
    let node = Node::leading();
    let path = "/v1/queues/email";
    let made = node.ask("PUT", path, r#"{"max_leased":5}"#).await.must(201);
    assert_eq!(made.body["max_leased"], 5);
    assert_eq!(made.body["order"], "fair_first");
    let same = node
        .ask("PUT", path, &made.body.to_string())
        .await
        .must(200);
    assert_eq!(same.header("x-outcome"), "unchanged");
    let stale = node
        .ask("PUT", path, r#"{"revision":"1.0"}"#)
        .await
        .must(412);
    assert_eq!(stale.code(), "revision_mismatch");
    node.ask_with("PUT", path, "{}", &[("if-none-match", "*")])
        .await
        .must(412);
    let paused = node
        .ask("POST", "/v1/queues/email:pause", r#"{"reason":"night"}"#)
        .await
        .must(200);
    assert_eq!(paused.body["status"]["paused"]["reason"], "night");
    let resumed = node
        .ask("POST", "/v1/queues/email:resume", "")
        .await
        .must(200);
    assert_eq!(resumed.body["status"]["paused"], Value::Null);
    let until = r#"{"until":"2020-01-01T00:00:00Z"}"#;
    let past = node
        .ask("POST", "/v1/queues/email:pause", until)
        .await
        .must(422);
    assert_eq!(past.pointer(), "/until");
    node.ask("DELETE", path, "").await.must(204);
    node.ask("GET", path, "").await.must(404);
    for call in ["/v1/queues/email:pause", "/v1/queues/email:resume"] {
        assert_eq!(
            node.ask("POST", call, "").await.must(404).code(),
            "queue_not_found"
        );
    }
    let protected = node.ask("DELETE", "/v1/queues/default", "").await.must(409);
    assert_eq!(protected.code(), "protected");
}

#[tokio::test]
async fn a_queue_in_use_stays() {
    let node = Node::leading();
    let body = r#"{"kind":"a","queue":"busy"}"#;
    node.ask("POST", "/v1/tenants/default/executions", body)
        .await
        .must(201);
    let answer = node.ask("DELETE", "/v1/queues/busy", "").await.must(409);
    assert_eq!(answer.code(), "queue_in_use");
    let dry = node
        .ask("DELETE", "/v1/queues/busy?dry_run=true", "")
        .await
        .must(409);
    assert_eq!(dry.code(), "queue_in_use");
}

#[tokio::test]
async fn statistics_name_the_oldest_due_time() {
    let node = Node::leading();
    for due in ["2026-03-01T07:00:00Z", "2026-03-01T06:00:00Z"] {
        let body =
            json!({"kind": "a", "due_at": due, "priority": if due.contains("06") { 1 } else { 9 }});
        node.ask("POST", "/v1/tenants/default/executions", &body.to_string())
            .await
            .must(201);
    }
    let stats = node
        .ask("GET", "/v1/queues/default/stats", "")
        .await
        .must(200);
    assert_eq!(stats.body["oldest_due_at"], "2026-03-01T06:00:00.000Z");
    assert_eq!(stats.body["oldest_wait_ms"], 7_200_000);
    assert_eq!(stats.body["tenants"][0]["tenant"], "default");
    assert_eq!(stats.body["tenants"][0]["backlog"]["ready"], 2);
}

#[tokio::test]
async fn quotas_are_refused_by_name_with_the_present_use() {
    let node = Node::leading();
    node.ask("PUT", "/v1/queues/small", r#"{"max_pending":1}"#)
        .await
        .must(201);
    let body = r#"{"kind":"a","queue":"small"}"#;
    node.ask("POST", "/v1/tenants/default/executions", body)
        .await
        .must(201);
    let full = node
        .ask("POST", "/v1/tenants/default/executions", body)
        .await
        .must(429);
    assert_eq!(full.code(), "quota_exceeded");
    let named = ["quota", "limit", "current", "scope"].map(|k| full.body[k].clone());
    assert_eq!(
        named,
        [json!("max_pending"), json!(1), json!(1), json!("queue")]
    );
    assert_eq!(full.header("retry-after"), "1");
    node.ask("PUT", "/v1/tenants/small", r#"{"schedules_max":0}"#)
        .await
        .must(201);
    let rule = r#"{"rule":{"every":"1h"}}"#;
    let full = node
        .ask("PUT", "/v1/tenants/small/schedules/a", rule)
        .await
        .must(403);
    assert_eq!(
        (full.code(), &full.body["quota"]),
        ("quota_reached", &json!("schedules_max"))
    );
    node.ask(
        "PUT",
        "/v1/queues/private",
        r#"{"allowed_tenants":["small"]}"#,
    )
    .await
    .must(201);
    let body = r#"{"kind":"a","queue":"private"}"#;
    let refused = node
        .ask("POST", "/v1/tenants/default/executions", body)
        .await
        .must(403);
    assert_eq!(refused.code(), "queue_not_allowed");
}

#[tokio::test]
async fn tenants_are_made_paused_listed_and_measured() {
    let node = Node::leading();
    let made = node
        .ask("PUT", "/v1/tenants/acme", r#"{"weight":3}"#)
        .await
        .must(201);
    assert_eq!(made.body["weight"], 3);
    let again = node
        .ask("PUT", "/v1/tenants/acme", r#"{"weight":3}"#)
        .await
        .must(200);
    assert_eq!(again.header("x-outcome"), "unchanged");
    let paused = node
        .ask("POST", "/v1/tenants/acme:pause", "")
        .await
        .must(200);
    assert!(paused.body["status"]["paused"].is_object());
    node.ask("POST", "/v1/tenants/acme:resume", "")
        .await
        .must(200);
    let list = node
        .ask("GET", "/v1/tenants?page_size=1", "")
        .await
        .must(200);
    assert_eq!(list.body["items"][0]["tenant"], "acme");
    let cursor = list.body["next_cursor"].as_str().unwrap();
    let rest = node
        .ask("GET", &format!("/v1/tenants?cursor={cursor}"), "")
        .await
        .must(200);
    assert_eq!(rest.body["items"][0]["tenant"], "default");
    let rule = r#"{"rule":{"every":"1h"}}"#;
    node.ask("PUT", "/v1/tenants/acme/schedules/a", rule)
        .await
        .must(201);
    let usage = node
        .ask("GET", "/v1/tenants/acme/usage", "")
        .await
        .must(200);
    assert_eq!(usage.body["schedules"], 1);
    node.ask("PUT", "/v1/tenants/No", "{}").await.must(400);
    node.ask("GET", "/v1/tenants/nobody", "").await.must(404);
    let dry = node
        .ask("PUT", "/v1/tenants/new?dry_run=true", "{}")
        .await
        .must(200);
    assert_eq!(dry.header("x-dry-run"), "true");
    node.ask("GET", "/v1/tenants/new", "").await.must(404);
}

#[tokio::test]
async fn keys_have_limits_and_usage() {
    let node = Node::leading();
    let path = "/v1/tenants/default/keys/customer%2F7:a";
    assert_eq!(
        node.ask("GET", path, "").await.must(404).code(),
        "key_not_found"
    );
    let put = node.ask("PUT", path, r#"{"max_leased":2}"#).await.must(200);
    assert_eq!(put.body["key"], "customer/7:a");
    let got = node.ask("GET", path, "").await.must(200);
    assert_eq!(
        (&got.body["max_leased"], &got.body["leased"]),
        (&json!(2), &json!(0))
    );
    let wrong = node.ask("PUT", path, r#"{"key":"other"}"#).await.must(422);
    assert_eq!(wrong.pointer(), "/key");
}

#[tokio::test]
async fn workers_are_listed_drained_and_signed_off() {
    let node = Node::leading();
    let list = node
        .ask("GET", "/v1/workers?page_size=2", "")
        .await
        .must(200);
    assert_eq!(list.body["items"][1]["worker_id"], "w2");
    assert!(list.body["next_cursor"].is_string());
    node.ask("POST", "/v1/workers/w1:drain", "").await.must(200);
    assert_eq!(
        node.ask("POST", "/v1/workers/w9:drain", "")
            .await
            .must(404)
            .code(),
        "worker_not_found"
    );
    let off = node.ask("DELETE", "/v1/workers/w1", "").await.must(200);
    assert_eq!(off.body["released"], 2);
}

#[tokio::test]
async fn worker_calls_answer_every_item_in_order() {
    let node = Node::leading();
    let item = |i: u64| json!({"execution_id": "e", "attempt": 1, "fencing_token": i});
    let leases: Vec<Value> = (1..=600).map(item).collect();
    let body = json!({"worker_id": "w", "leases": leases}).to_string();
    for call in ["renew", "complete", "fail", "release"] {
        let answer = node
            .ask("POST", &format!("/v1/leases:{call}"), &body)
            .await
            .must(200);
        let results = answer.body["results"].as_array().unwrap();
        assert_eq!(results.len(), 600, "{call}");
        assert_eq!(results[599]["fencing_token"], 600);
        assert_eq!(
            results[0],
            json!({
                "execution_id": "e", "attempt": 1, "fencing_token": 1, "status": "lease_lost", "reason": "lease_expired",
            })
        );
        assert_eq!(answer.body["server_time"], "2026-03-01T08:00:00.000Z");
    }
    let claim = r#"{"worker_id":"w","queues":["a","b"],"kinds":["x"],"wait_ms":0,"slots":3,
        "reports":[{"action":"complete","execution_id":"e","attempt":1,"fencing_token":4}]}"#;
    let answer = node.ask("POST", "/v1/leases:claim", claim).await.must(200);
    assert_eq!(answer.body["reports"][0]["reason"], "unknown");
    let seen = node.scheduler.claims.lock().pop().unwrap();
    assert_eq!(
        (seen.queues.len(), seen.slots, seen.lease.0),
        (2, Some(3), 30_000)
    );
}

#[tokio::test]
async fn a_revoked_lease_says_why_in_its_attempt_and_in_the_audit_log() {
    let node = Node::leading();
    let execution = "/v1/tenants/default/executions/e";
    let submit = r#"{"kind":"k","execution_id":"e"}"#;
    node.ask("POST", "/v1/tenants/default/executions", submit)
        .await
        .must(201);
    let token = node.lease("e");
    let body = |leases: Value| json!({"leases": leases, "reason": "it \"hangs\""}).to_string();
    let other =
        json!([{"execution_id": "e", "fencing_token": token + 1}, {"execution_id": "none"}]);
    let revoke = "/v1/leases:revoke";
    let none = node.ask("POST", revoke, &body(other)).await.must(200);
    assert_eq!(none.body["revoked"], 0);
    let named = json!([{"execution_id": "e"}, {"execution_id": "e", "fencing_token": token}]);
    let one = node.ask("POST", revoke, &body(named)).await.must(200);
    assert_eq!(one.body["revoked"], 1, "one lease ends once");
    let shown = node.ask("GET", execution, "").await.must(200);
    assert_eq!(shown.body["state"], "backing_off");
    assert_eq!(shown.body["lease_losses"], 1);
    let attempt = &shown.body["attempts"][0];
    assert_eq!(attempt["outcome"], "revoked");
    assert_eq!(attempt["error"], "it \"hangs\"");
    let audit = node
        .ask("GET", "/v1/audit?object=lease", "")
        .await
        .must(200);
    let records = audit.body["items"].as_array().unwrap();
    assert_eq!(records.len(), 1);
    assert_eq!(records[0]["action"], "lease.revoke");
    assert_eq!(records[0]["reason"], "it \"hangs\"");
    assert_eq!(records[0]["actor"], "anonymous");
    assert_eq!(records[0]["request_id"], "test");
}

#[tokio::test]
async fn the_cluster_shows_its_members_and_changes_them() {
    let node = Node::leading();
    let shown = node.ask("GET", "/v1/cluster", "").await.must(200);
    assert_eq!(
        (&shown.body["leader"], &shown.body["in_office"]),
        (&json!(1), &json!(true))
    );
    assert_eq!(shown.body["totals"]["tenants"], 1);
    assert_eq!(
        shown.body["figures"][0]["name"],
        "fired_total,queue=default"
    );
    let add = r#"{"node":2,"peer":"b:7071","api":"http://b:7070"}"#;
    node.ask("POST", "/v1/cluster/members", add).await.must(200);
    let bare = node
        .ask("POST", "/v1/cluster/members", "{}")
        .await
        .must(422);
    assert_eq!(bare.body["errors"].as_array().unwrap().len(), 3);
    node.ask("POST", "/v1/cluster/members/2:remove", "")
        .await
        .must(204);
    let last = node
        .ask("POST", "/v1/cluster/members/1:remove", "")
        .await
        .must(409);
    assert_eq!(last.code(), "membership_refused");
    node.ask("POST", "/v1/cluster/members/x:remove", "")
        .await
        .must(400);
    let moved = node
        .ask("POST", "/v1/cluster:transfer-leadership", "")
        .await
        .must(200);
    assert_eq!(moved.body["transferred"], true);
    let nobody = node
        .ask("POST", "/v1/cluster:transfer-leadership", r#"{"to":9}"#)
        .await
        .must(422);
    assert_eq!(nobody.pointer(), "/to");
    node.ask("POST", "/v1/cluster:snapshot", "").await.must(204);
    let paused = node
        .ask("POST", "/v1/cluster:pause", r#"{"reason":"move"}"#)
        .await
        .must(200);
    assert_eq!(paused.body["paused"]["reason"], "move");
    node.ask("POST", "/v1/cluster:resume", "").await.must(200);
}

#[tokio::test]
async fn health_readiness_and_figures_are_served() {
    let node = Node::leading();
    assert_eq!(
        node.ask("GET", "/healthz", "").await.must(200).body["status"],
        "ok"
    );
    node.ask("GET", "/readyz", "").await.must(200);
    let text = |answer: crate::api::testing::Answered| {
        String::from_utf8(answer.reply.body.to_vec()).unwrap()
    };
    let metrics = text(node.ask("GET", "/metrics", "").await.must(200));
    for line in [
        "punctual_fired_total{queue=\"default\"} 3",
        "punctual_executions{queue=\"default\",state=\"ready\"} 0",
        "# TYPE punctual_late_seconds histogram",
        "punctual_late_seconds_bucket{le=\"+Inf\"} 4",
        "punctual_raft_is_leader 1",
        "punctual_http_requests_total{route=\"readiness\",status=\"200\"} 1",
    ] {
        assert!(metrics.lines().any(|l| l == line), "{line} in\n{metrics}");
    }
    node.scheduler
        .in_office
        .store(false, std::sync::atomic::Ordering::SeqCst);
    let rebuilding = node.ask("GET", "/readyz", "").await.must(503);
    assert_eq!(rebuilding.body["status"], "not ok: office");
    node.api.begin_stop();
    let stopping = node.ask("GET", "/readyz", "").await.must(503);
    assert!(
        stopping.body["status"]
            .as_str()
            .unwrap()
            .contains("accepting")
    );
    node.consensus.status.lock().running = false;
    node.ask("GET", "/healthz", "").await.must(503);
}

#[tokio::test]
async fn retries_are_previewed_with_their_jitter() {
    let node = Node::leading();
    let body =
        r#"{"retry":{"max_attempts":4,"initial_backoff":"10s","jitter":0.1,"max_backoff":"30s"}}"#;
    let answer = node
        .ask("POST", "/v1/retries:preview", body)
        .await
        .must(200);
    let rows: Vec<_> = answer.body["delays"]
        .as_array()
        .unwrap()
        .iter()
        .map(|d| ["delay_ms", "min_ms", "max_ms", "total_ms"].map(|k| d[k].as_u64().unwrap()))
        .collect();
    assert_eq!(
        rows,
        [
            [10_000, 9_000, 11_000, 10_000],
            [20_000, 18_000, 22_000, 30_000],
            [30_000, 27_000, 30_000, 60_000],
        ]
    );
    let wrong = node
        .ask("POST", "/v1/retries:preview", r#"{"retry":{"jitter":2}}"#)
        .await
        .must(422);
    assert_eq!(wrong.pointer(), "/retry/jitter");
}

#[tokio::test]
async fn the_development_clock_moves_only_forward_and_bounded() {
    let node = Node::leading();
    let moved = node
        .ask("POST", "/v1/dev/clock:advance", r#"{"by":"3d"}"#)
        .await
        .must(200);
    assert_eq!(moved.body["now"], "2026-03-04T08:00:00.000Z");
    for body in [r#"{"by":"0s"}"#, r#"{"by":"500d"}"#, r#"{"by":3}"#] {
        let answer = node
            .ask("POST", "/v1/dev/clock:advance", body)
            .await
            .must(422);
        assert_eq!(answer.pointer(), "/by");
    }
}
