//! The API over the real leader: what workers live through, on two nodes.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use crate::api::dispatch::Origin;
use crate::api::forward::Forwarded;
use crate::api::testing::{Answered, Wire, request};
use crate::api::{Api, ApiConfig, Parts};
use crate::calendar::ZoneData;
use crate::leader::Scheduler;
use crate::leader::testing::Cluster;
use crate::raft::Forward;

pub(super) const EXECUTIONS: &str = "/v1/tenants/default/executions";
pub(super) const CLAIM: &str = "/v1/queues/q/leases:claim";

pub(super) struct Nodes {
    pub(super) cluster: Cluster,
    apis: Vec<Arc<Api>>,
}

impl Nodes {
    /// Two nodes; the first leads.
    pub(super) async fn two(seed: u64) -> Self {
        let cluster = Cluster::new(seed, 2);
        let wires = [Arc::new(Wire::default()), Arc::new(Wire::default())];
        let mut apis = Vec::new();
        for (node, wire) in wires.iter().enumerate() {
            let (consensus, replica, runtime) = cluster.node_parts(node);
            apis.push(Api::new(Parts {
                scheduler: Arc::clone(&cluster.leaders[node]) as Arc<dyn Scheduler>,
                consensus,
                replica,
                forward: Arc::clone(wire) as Arc<dyn Forward>,
                runtime,
                zones: ZoneData::bundled(),
                dev_clock: None,
                config: ApiConfig {
                    node: node as u64,
                    version: "0.0.0",
                    loopback_only: true,
                    in_flight_max: 64,
                    waiting_max: 64,
                },
            }));
        }
        for (wire, other) in wires.iter().zip(apis.iter().rev()) {
            *wire.to.lock() = Some(Arc::new(Forwarded::new(Arc::clone(other))));
        }
        cluster.elect(0);
        cluster.leader().await;
        Self { cluster, apis }
    }

    pub(super) async fn ask(
        &self,
        node: usize,
        method: &str,
        target: &str,
        body: &Value,
    ) -> Answered {
        self.keyed(node, method, target, body, None).await
    }

    pub(super) async fn keyed(
        &self,
        node: usize,
        method: &str,
        target: &str,
        body: &Value,
        key: Option<&str>,
    ) -> Answered {
        let text = match body {
            Value::Null => String::new(),
            body => body.to_string(),
        };
        let headers: Vec<_> = key.into_iter().map(|k| ("idempotency-key", k)).collect();
        let request = request(method, target, text.as_bytes(), &headers);
        Answered::of(self.apis[node].answer(request, Origin::Client).await)
    }

    pub(super) async fn submit(&self, id: &str) {
        let body = json!({"execution_id": id, "kind": "a", "queue": "q", "retry": {"initial_backoff": "0s"}});
        self.ask(0, "POST", EXECUTIONS, &body).await.must(201);
    }

    /// A request as it is, to the first node.
    pub(super) async fn raw(&self, request: crate::api::call::Request) -> Answered {
        Answered::of(self.apis[0].answer(request, Origin::Client).await)
    }

    /// A call on the first node that must succeed.
    pub(super) async fn good(&self, call: &str, body: &Value) -> Value {
        let (method, target) = call.split_once(' ').expect("a method and a target");
        let answer = self.ask(0, method, target, body).await;
        assert!(answer.status < 300, "{call}: {:#}", answer.body);
        answer.body
    }

    /// An execution as it is now.
    pub(super) async fn execution(&self, id: &str) -> Value {
        let target = format!("GET {EXECUTIONS}/{id}");
        self.good(&target, &Value::Null).await
    }

    /// One item of a worker's report.
    pub(super) async fn say(&self, worker: &str, what: &str, items: &[Value]) -> Vec<Value> {
        let body = json!({"worker_id": worker, "leases": items});
        let answer = self.good(&format!("POST /v1/leases:{what}"), &body).await;
        answer["results"].as_array().expect("results").clone()
    }

    pub(super) async fn claim(
        &self,
        node: usize,
        worker: &str,
        max: u32,
        wait_ms: u64,
    ) -> Vec<Value> {
        let body = json!({"worker_id": worker, "max": max, "wait_ms": wait_ms, "lease_ms": 10_000});
        let answer = self.ask(node, "POST", CLAIM, &body).await.must(200);
        answer.body["leases"].as_array().unwrap().clone()
    }
}

pub(super) fn reference(lease: &Value) -> Value {
    json!({
        "execution_id": lease["execution_id"], "attempt": lease["attempt"], "fencing_token": lease["fencing_token"],
    })
}

#[tokio::test(start_paused = true)]
async fn work_goes_from_submission_to_result_through_either_node() {
    let nodes = Nodes::two(1).await;
    let waiting = nodes.claim(1, "w", 1, 20_000);
    let submitting = async {
        nodes.cluster.pass(500).await;
        nodes.submit("e1").await;
    };
    let (leases, ()) = tokio::join!(waiting, submitting);
    let lease = &leases[0];
    assert_eq!(
        (&lease["execution_id"], &lease["attempt"]),
        (&json!("e1"), &json!(1))
    );
    assert!(lease["expires_in_ms"].as_u64().unwrap() > 9_000);
    let shown = nodes
        .ask(1, "GET", &format!("{EXECUTIONS}/e1"), &Value::Null)
        .await
        .must(200);
    assert_eq!(shown.body["state"], "leased");
    assert_eq!(shown.body["attempts"][0]["worker_id"], "w");
    let mut item = reference(lease);
    item["progress"] = json!({"done": 3});
    let renew = json!({"worker_id": "w", "leases": [item]});
    let renewed = nodes
        .ask(0, "POST", "/v1/leases:renew", &renew)
        .await
        .must(200);
    assert_eq!(renewed.body["results"][0]["status"], "ok");
    let waiter = format!("{EXECUTIONS}/e1?wait_ms=30000");
    let result = nodes.ask(1, "GET", &waiter, &Value::Null);
    let completing = async {
        nodes.cluster.pass(700).await;
        let mut item = reference(lease);
        item["result"] = json!({"answer": 42});
        let body = json!({"worker_id": "w", "leases": [item]});
        nodes
            .ask(1, "POST", "/v1/leases:complete", &body)
            .await
            .must(200)
    };
    let (result, completed) = tokio::join!(result, completing);
    assert_eq!(completed.body["results"][0]["state"], "succeeded");
    assert_eq!(result.must(200).body["result"], json!({"answer": 42}));
    let repeat = json!({"worker_id": "w", "leases": [reference(lease)]});
    let again = nodes
        .ask(0, "POST", "/v1/leases:fail", &repeat)
        .await
        .must(200);
    assert_eq!(again.body["results"][0]["status"], "lease_lost");
    assert_eq!(again.body["results"][0]["reason"], "succeeded");
    nodes.cluster.check();
}

/// One report: eight complete, one fails, one has a stale token.
#[tokio::test(start_paused = true)]
async fn batch_items_fail_alone() {
    let nodes = Nodes::two(2).await;
    for i in 0..10 {
        nodes.submit(&format!("e{i}")).await;
    }
    let leases = nodes.claim(0, "w", 10, 1_000).await;
    assert_eq!(leases.len(), 10);
    let items: Vec<Value> = leases
        .iter()
        .enumerate()
        .map(|(i, lease)| {
            let mut item = reference(lease);
            item["action"] = json!(if i == 8 { "fail" } else { "complete" });
            if i == 9 {
                item["fencing_token"] = json!(1);
            }
            item
        })
        .collect();
    let body = json!({"worker_id": "w", "leases": items});
    let answer = nodes
        .ask(1, "POST", "/v1/leases:report", &body)
        .await
        .must(200);
    let words: Vec<_> = answer.body["results"]
        .as_array()
        .unwrap()
        .iter()
        .map(|r| (r["status"].as_str().unwrap(), r["state"].as_str()))
        .collect();
    assert_eq!(words[..8], [("ok", Some("succeeded")); 8]);
    assert_eq!(words[8].0, "ok");
    assert_eq!(words[9], ("lease_lost", None));
    let back = nodes.claim(0, "w2", 10, 2_000).await;
    assert_eq!(back.len(), 1, "only the failed one comes back");
    assert_eq!(
        (&back[0]["execution_id"], &back[0]["attempt"]),
        (&leases[8]["execution_id"], &json!(2))
    );
}

#[tokio::test(start_paused = true)]
async fn a_key_survives_a_change_of_leader() {
    let nodes = Nodes::two(3).await;
    let body = json!({"kind": "a", "queue": "q"});
    let first = nodes
        .keyed(0, "POST", EXECUTIONS, &body, Some("K"))
        .await
        .must(201);
    nodes.cluster.elect(1);
    nodes.cluster.leader().await;
    let again = nodes
        .keyed(0, "POST", EXECUTIONS, &body, Some("K"))
        .await
        .must(201);
    assert_eq!(again.body["execution_id"], first.body["execution_id"]);
    assert_eq!(again.header("idempotency-replayed"), "true");
    assert_eq!(again.header("x-leader"), "1");
    assert_eq!(nodes.claim(1, "w", 5, 500).await.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_schedule_fires_and_a_running_execution_is_cancelled() {
    let nodes = Nodes::two(4).await;
    let rule = json!({"rule": {"every": "10s"}, "queue": "q"});
    nodes
        .ask(1, "PUT", "/v1/tenants/default/schedules/tick", &rule)
        .await
        .must(201);
    let leases = nodes.claim(0, "w", 1, 30_000).await;
    assert_eq!(
        (&leases[0]["schedule_id"], &leases[0]["cause"]),
        (&json!("tick"), &json!("due"))
    );
    assert!(leases[0]["lateness_ms"].as_u64().unwrap() < 1_000);
    let id = leases[0]["execution_id"].as_str().unwrap();
    let cancel = format!("{EXECUTIONS}/{id}:cancel");
    let asked = nodes
        .ask(1, "POST", &cancel, &json!({"reason": "enough"}))
        .await
        .must(200);
    assert_eq!(
        (&asked.body["outcome"], &asked.body["state"]),
        (&json!("requested"), &json!("leased"))
    );
    let renew = json!({"worker_id": "w", "leases": [reference(&leases[0])]});
    let told = nodes
        .ask(0, "POST", "/v1/leases:renew", &renew)
        .await
        .must(200);
    assert_eq!(told.body["results"][0]["cancel_requested"], true);
    let now = nodes
        .ask(0, "POST", &cancel, &json!({"mode": "now"}))
        .await
        .must(200);
    assert_eq!(now.body["state"], "cancelled");
    let late = nodes
        .ask(0, "POST", "/v1/leases:complete", &renew)
        .await
        .must(200);
    assert_eq!(late.body["results"][0]["reason"], "cancelled");
    let ledger = "/v1/tenants/default/schedules/tick/occurrences";
    let ledger = nodes.ask(0, "GET", ledger, &Value::Null).await.must(200);
    assert!(
        ledger.body["items"]
            .as_array()
            .unwrap()
            .iter()
            .any(|i| i["state"] == "cancelled")
    );
    nodes.cluster.check();
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_is_not_renewed_is_lost_and_revoking_ends_one() {
    let nodes = Nodes::two(5).await;
    nodes.submit("e").await;
    let first = nodes.claim(0, "slow", 1, 1_000).await;
    let second = nodes.claim(1, "quick", 1, 20_000).await;
    assert_eq!(second[0]["execution_id"], "e");
    assert!(second[0]["fencing_token"].as_u64() > first[0]["fencing_token"].as_u64());
    let body = json!({"worker_id": "slow", "leases": [reference(&first[0])]});
    let late = nodes
        .ask(0, "POST", "/v1/leases:complete", &body)
        .await
        .must(200);
    assert_eq!(late.body["results"][0]["reason"], "lease_expired");
    let revoke = json!({"leases": [{"execution_id": "e"}]});
    let revoked = nodes
        .ask(1, "POST", "/v1/leases:revoke", &revoke)
        .await
        .must(200);
    assert_eq!(revoked.body["revoked"], 1);
    let workers = nodes
        .ask(1, "GET", "/v1/workers", &Value::Null)
        .await
        .must(200);
    let ids: Vec<_> = workers.body["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|w| w["worker_id"].as_str().unwrap())
        .collect();
    assert_eq!(ids, ["quick", "slow"]);
    let off = nodes
        .ask(0, "DELETE", "/v1/workers/quick", &Value::Null)
        .await
        .must(200);
    assert_eq!(off.body["released"], 0);
}

#[tokio::test(start_paused = true)]
async fn a_poller_that_hangs_up_loses_nothing() {
    let nodes = Nodes::two(6).await;
    let poll = nodes.claim(1, "gone", 1, 60_000);
    assert!(
        tokio::time::timeout(Duration::from_secs(5), poll)
            .await
            .is_err()
    );
    nodes.submit("e").await;
    let leases = nodes.claim(1, "here", 1, 5_000).await;
    assert_eq!(
        (&leases[0]["execution_id"], &leases[0]["attempt"]),
        (&json!("e"), &json!(1))
    );
}
