//! Rules that count from the end of the previous execution.

use serde_json::{Value, json};

use crate::api::testing::Node;
use crate::ids::{ScheduleId, TenantNo};
use crate::leader::Scheduler as _;
use crate::time::Millis;

const POLL: &str = "/v1/tenants/default/schedules/poll";
const EXECUTIONS: &str = "/v1/tenants/default/executions";

async fn put(node: &Node, extra: Value) -> Value {
    let mut body = json!({"rule": {"after_end": "10m"}});
    let fields = extra.as_object().unwrap().clone();
    body.as_object_mut().unwrap().extend(fields);
    let answer = node.ask("PUT", POLL, &body.to_string()).await;
    assert!(matches!(answer.status, 200 | 201), "{:#}", answer.body);
    answer.body
}

/// Decides what is due, as the leader would.
async fn fire(node: &Node) {
    let id = ScheduleId::new("poll").unwrap();
    node.scheduler.settle(TenantNo::DEFAULT, id).await.unwrap();
}

async fn get(node: &Node) -> Value {
    node.ask("GET", POLL, "").await.must(200).body
}

/// The open execution of the schedule.
async fn open(node: &Node) -> String {
    let list = format!("{EXECUTIONS}?schedule=poll&state=ready");
    let answer = node.ask("GET", &list, "").await.must(200);
    let id = &answer.body["items"][0]["execution_id"];
    id.as_str().expect("one is open").to_owned()
}

async fn end(node: &Node, id: &str) {
    let cancel = format!("{EXECUTIONS}/{id}:cancel");
    node.ask("POST", &cancel, "").await.must(200);
}

#[tokio::test]
async fn each_occurrence_follows_the_end_of_the_one_before() {
    let node = Node::leading();
    let made = put(&node, json!({})).await;
    assert_eq!(made["rule"]["after_end"], "10m");
    assert_eq!(
        made["status"]["next"]["nominal_at"],
        "2026-03-01T08:10:00.000Z"
    );
    let code = &made["status"]["warnings"][0]["code"];
    assert_eq!(code, "depends_on_executions");
    node.wait(Millis::minutes(10));
    fire(&node).await;
    let running = get(&node).await;
    assert_eq!(running["status"]["created_count"], 1);
    assert_eq!(running["status"]["state"], "active");
    assert_eq!(running["status"]["next"], Value::Null);
    let next = format!("{POLL}/next");
    let none = node.ask("GET", &next, "").await.must(200);
    assert_eq!(none.body["occurrences"], json!([]));
    assert_eq!(none.body["exhausted"], false);
    assert_eq!(none.body["warnings"][0]["code"], "depends_on_executions");
    // An edit while it runs is no edit of a rule without a future.
    put(&node, json!({"priority": 7})).await;
    node.wait(Millis::minutes(3));
    end(&node, &open(&node).await).await;
    let after = get(&node).await;
    let planned = "2026-03-01T08:23:00.000Z";
    assert_eq!(after["status"]["next"]["nominal_at"], planned);
    // Nor does one put the next occurrence off.
    node.wait(Millis::minutes(5));
    let edited = put(&node, json!({"priority": 8})).await;
    assert_eq!(edited["status"]["next"]["nominal_at"], planned);
    let one = node.ask("GET", &next, "").await.must(200);
    assert_eq!(one.body["occurrences"].as_array().unwrap().len(), 1);
    assert_eq!(one.body["exhausted"], false);
}

#[tokio::test]
async fn a_preview_says_that_its_times_depend_on_executions() {
    let node = Node::leading();
    let body = r#"{"rule":{"after_end":"90s"}}"#;
    let preview = node.ask("POST", "/v1/schedules:preview", body).await;
    let preview = preview.must(200).body;
    assert_eq!(preview["occurrences"], json!([]));
    assert_eq!(preview["exhausted"], false);
    assert_eq!(preview["warnings"][0]["code"], "depends_on_executions");
    let words = preview["description"].as_str().unwrap();
    assert!(
        words.contains("after the previous execution ended"),
        "{words}"
    );
    let dry = format!("{POLL}?dry_run=true");
    let dry = node.ask("PUT", &dry, body).await.must(200);
    let shown = dry.body["status"]["upcoming"].as_array().unwrap();
    assert_eq!(shown.len(), 1);
    assert_eq!(shown[0]["nominal_at"], "2026-03-01T08:01:30.000Z");
    let over = r#"{"rule":{"after_end":"90s","end_at":"2026-03-01T08:01:00Z"}}"#;
    let refused = node.ask("PUT", POLL, over).await.must(422);
    assert_eq!(refused.body["errors"][0]["code"], "no_future_occurrence");
}

#[tokio::test]
async fn a_pause_skips_one_occurrence_at_most_and_goes_on_from_its_end() {
    let node = Node::leading();
    put(&node, json!({})).await;
    node.ask("POST", &format!("{POLL}:pause"), "")
        .await
        .must(200);
    node.wait(Millis::hours(5));
    let resumed = node.ask("POST", &format!("{POLL}:resume"), "").await;
    let resumed = resumed.must(200).body;
    assert_eq!(
        (&resumed["skipped"], &resumed["caught_up"]),
        (&json!(1), &json!(0))
    );
    let next = &resumed["schedule"]["status"]["next"]["nominal_at"];
    assert_eq!(next, "2026-03-01T13:10:00.000Z");

    node.ask("POST", &format!("{POLL}:pause"), "")
        .await
        .must(200);
    node.wait(Millis::hours(1));
    let latest = r#"{"catch_up":"latest"}"#;
    let resumed = node.ask("POST", &format!("{POLL}:resume"), latest).await;
    let resumed = resumed.must(200).body;
    assert_eq!(
        (&resumed["skipped"], &resumed["caught_up"]),
        (&json!(0), &json!(1))
    );
    assert_eq!(resumed["schedule"]["status"]["next"], Value::Null);
    end(&node, &open(&node).await).await;
    let next = &get(&node).await["status"]["next"]["nominal_at"];
    assert_eq!(next, "2026-03-01T14:10:00.000Z");
}

#[tokio::test]
async fn one_fired_by_hand_is_waited_for_and_meets_the_overlap_policy() {
    let node = Node::leading();
    put(&node, json!({"overlap": {"policy": "skip"}})).await;
    node.wait(Millis::minutes(9));
    let trigger = node.ask("POST", &format!("{POLL}:trigger"), "").await;
    let by_hand = trigger.must(201).body["execution_id"]
        .as_str()
        .unwrap()
        .to_owned();
    node.wait(Millis::minutes(1));
    fire(&node).await;
    let met = get(&node).await;
    assert_eq!(met["status"]["totals"]["skipped"]["overlap"], 1);
    assert_eq!(met["status"]["next"], Value::Null);
    node.wait(Millis::minutes(1));
    end(&node, &by_hand).await;
    let next = &get(&node).await["status"]["next"]["nominal_at"];
    assert_eq!(next, "2026-03-01T08:21:00.000Z");
}
