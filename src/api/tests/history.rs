//! What has been: earlier definitions, the audit log.

use serde_json::{Value, json};

use crate::api::testing::{Answered, Node, each};
use crate::ids::{ScheduleId, TenantNo};
use crate::leader::Scheduler as _;
use crate::time::Millis;

const DAILY: &str = "/v1/tenants/default/schedules/daily";

async fn put(node: &Node, priority: u8, payload: Value) -> Answered {
    let rule = json!({"cron": "0 9 * * *"});
    let body = json!({"rule": rule, "priority": priority, "payload": payload});
    node.ask("PUT", DAILY, &body.to_string()).await
}

fn numbers(items: &[Value]) -> Vec<u64> {
    let number = |item: &Value| item["generation"].as_u64().unwrap();
    items.iter().map(number).collect()
}

#[tokio::test]
async fn earlier_definitions_are_listed_and_can_be_brought_back() {
    let node = Node::leading();
    for priority in 1..=4 {
        put(&node, priority, json!({"n": priority})).await;
        node.wait(Millis::secs(1));
    }
    let list = format!("{DAILY}/generations");
    let items = node.pages(&list, 1_000).await;
    assert_eq!(numbers(&items), [4, 3, 2, 1]);
    for size in 1..=4 {
        assert_eq!(node.pages(&list, size).await, items, "pages of {size}");
    }
    assert_eq!(items[0]["current"], true);
    assert_eq!(items[1]["current"], false);
    assert_eq!(items[0]["since"], "2026-03-01T08:00:03.000Z");
    assert_eq!(items[3]["schedule"]["priority"], 1);
    assert_eq!(items[3]["schedule"]["payload"], Value::Null);
    let etag = node.ask("GET", DAILY, "").await.header("etag").to_owned();
    assert_eq!(items[0]["revision"].as_str(), Some(etag.trim_matches('"')));

    let full = node.pages(&format!("{list}?view=full"), 3).await;
    let second = full[2]["schedule"].to_string();
    let back = node.ask("PUT", DAILY, &second).await.must(200);
    assert_eq!(back.body["priority"], 2);
    assert_eq!(back.body["payload"], json!({"n": 2}));
    assert_eq!(back.body["generation"], 5);
    assert_eq!(numbers(&node.pages(&list, 2).await), [5, 4, 3, 2, 1]);
}

#[tokio::test]
async fn the_last_hundred_definitions_are_kept_as_long_as_the_schedule() {
    let node = Node::leading();
    for n in 0..105 {
        put(&node, 5, json!(n)).await;
    }
    let list = format!("{DAILY}/generations");
    let kept = numbers(&node.pages(&list, 33).await);
    assert_eq!(kept.len(), 100);
    assert_eq!((kept[0], kept[99]), (105, 6));
    let stale = format!("{list}?consistency=stale");
    let stale = node.ask("GET", &stale, "").await.must(200);
    assert_ne!(stale.header("x-applied-index"), "");
    node.ask("DELETE", DAILY, "").await.must(204);
    let gone = node.ask("GET", &list, "").await.must(404);
    assert_eq!(gone.code(), "schedule_not_found");
    put(&node, 5, json!("again")).await.must(201);
    assert_eq!(numbers(&node.pages(&list, 33).await), [1]);
}

const AUDIT: &str = "/v1/audit";

fn actions(items: &[Value]) -> Vec<String> {
    let action = |item: &Value| {
        let owner = item["tenant"].as_str().unwrap_or("-");
        let id = item["id"].as_str().unwrap();
        format!("{} {owner} {id}", item["action"].as_str().unwrap())
    };
    items.iter().map(action).collect()
}

/// Two tenants, several kinds of objects, several weeks.
async fn busy() -> Node {
    let node = Node::leading();
    node.ask("PUT", "/v1/tenants/other", "{}").await.must(201);
    let schedule = r#"{"rule":{"every":"1h"}}"#;
    let create = format!("{DAILY}?reason=asked+for");
    node.ask("PUT", &create, schedule).await.must(201);
    node.wait(Millis::days(10));
    let theirs = "/v1/tenants/other/schedules/daily";
    let create = format!("{theirs}?reason=theirs");
    node.ask("PUT", &create, schedule).await.must(201);
    node.ask("PUT", "/v1/queues/mail", "{}").await.must(201);
    node.wait(Millis::days(1));
    let pause = format!("{DAILY}:pause");
    let why = r#"{"reason":"broken"}"#;
    node.ask("POST", &pause, why).await.must(200);
    node.wait(Millis::days(30));
    node.ask("POST", "/v1/tenants/other:pause", "")
        .await
        .must(200);
    let submit = r#"{"kind":"k","execution_id":"e","queue":"mail"}"#;
    node.ask("POST", "/v1/tenants/other/executions", submit)
        .await
        .must(201);
    node.ask("POST", "/v1/tenants/other/executions/e:cancel", why)
        .await
        .must(200);
    node
}

#[tokio::test]
async fn the_audit_log_lists_who_did_what_and_why_newest_first() {
    let node = busy().await;
    let items = node.pages(AUDIT, 1_000).await;
    let all = [
        "execution.cancel other e",
        "tenant.pause other other",
        "schedule.pause default daily",
        "queue.put - mail",
        "schedule.create other daily",
        "schedule.create default daily",
        "tenant.put other other",
    ];
    assert_eq!(actions(&items), all);
    assert_eq!(items[2]["reason"], "broken");
    assert_eq!(items[2]["actor"], "anonymous");
    assert_eq!(items[2]["request_id"], "test");
    assert_eq!(items[2]["object"], "schedule");
    assert_eq!(items[2]["at"], "2026-03-12T08:00:00.000Z");
    let index = |item: &Value| item["log_index"].as_u64().unwrap();
    assert!(items.windows(2).all(|two| index(&two[0]) > index(&two[1])));
    for size in 1..=7 {
        assert_eq!(node.pages(AUDIT, size).await, items, "pages of {size}");
    }
}

#[tokio::test]
async fn the_audit_log_is_filtered_by_owner_object_name_and_time() {
    async fn found(node: &Node, query: &str) -> Vec<String> {
        actions(&node.pages(&format!("{AUDIT}?{query}"), 1).await)
    }
    let node = &busy().await;
    let find = |query| found(node, query);
    let theirs = [
        "execution.cancel other e",
        "tenant.pause other other",
        "schedule.create other daily",
        "tenant.put other other",
    ];
    assert_eq!(find("tenant=other").await, theirs);
    let daily = [
        "schedule.pause default daily",
        "schedule.create other daily",
        "schedule.create default daily",
    ];
    assert_eq!(find("object=schedule&id=daily").await, daily);
    assert_eq!(find("object=queue,execution").await.len(), 2);
    let one = "tenant=default&object=schedule&since=2026-03-11T08:00:00Z";
    assert_eq!(find(one).await, daily[..1]);
    let span = "since=2026-03-11T08:00:00Z&until=2026-03-12T08:00:00Z";
    assert_eq!(find(span).await, ["queue.put - mail", daily[1]]);
    assert_eq!(find("until=2026-03-01T08:00:00Z").await.len(), 0);
    for (wrong, pointer) in [
        ("object=job", "query:object"),
        ("since=yesterday", "query:since"),
        ("tenant=A", "query:tenant"),
    ] {
        let target = format!("{AUDIT}?{wrong}");
        let refused = node.ask("GET", &target, "").await.must(400);
        assert_eq!(refused.pointer(), pointer);
    }
    let unknown = node.ask("GET", "/v1/audit?tenant=nobody", "").await;
    assert_eq!(unknown.must(404).code(), "tenant_not_found");
}

#[tokio::test]
async fn schedules_written_by_one_entry_have_revisions_of_their_own() {
    let node = Node::leading();
    let item = |n| json!({"schedule_id": format!("s{n}"), "rule": {"every": "1h"}});
    let body = json!({"items": [item(0), item(1), item(2)]}).to_string();
    let batch = node.ask("POST", "/v1/tenants/default/schedules:batch", &body);
    let answer = batch.await.must(200);
    let revisions: Vec<_> = answer.body["items"].as_array().unwrap().iter().collect();
    for (n, item) in revisions.into_iter().enumerate() {
        assert_eq!(item["revision"], format!("2.{n}"));
        let path = format!("/v1/tenants/default/schedules/s{n}");
        let get = node.ask("GET", &path, "").await.must(200);
        assert_eq!(get.header("etag"), format!("\"2.{n}\""));
    }
}

const EXECUTIONS: &str = "/v1/tenants/default/executions";

#[tokio::test]
async fn an_execution_keeps_the_name_of_its_queue_when_that_is_deleted() {
    let node = Node::leading();
    let body = |id| json!({"kind": "k", "queue": "mail", "execution_id": id}).to_string();
    node.ask("POST", EXECUTIONS, &body("old")).await.must(201);
    node.ask("POST", &format!("{EXECUTIONS}/old:cancel"), "")
        .await
        .must(200);
    node.ask("DELETE", "/v1/queues/mail", "").await.must(204);
    let old = format!("{EXECUTIONS}/old");
    let shown = node.ask("GET", &old, "").await.must(200);
    assert_eq!(shown.body["queue"], "mail");
    let listed = format!("{EXECUTIONS}?queue=mail");
    assert_eq!(node.pages(&listed, 1).await.len(), 1);

    node.ask("POST", EXECUTIONS, &body("new")).await.must(201);
    let names: Vec<_> = node.pages(&listed, 1).await;
    assert_eq!(names.len(), 2);
    assert!(names.iter().all(|e| e["queue"] == "mail"));
    let stats = node.ask("GET", "/v1/queues/mail/stats", "").await.must(200);
    assert_eq!(stats.body["backlog"]["ready"], 1);
    let shown = node.ask("GET", &old, "").await.must(200);
    assert_eq!(shown.body["queue"], "mail");
    assert_eq!(
        node.pages(&format!("{EXECUTIONS}?queue=x"), 1).await.len(),
        0
    );
}

#[tokio::test]
async fn executions_fired_by_hand_are_shown_as_such_before_and_after_their_end() {
    let node = Node::leading();
    let rule = json!({"cron": "0 9 * * *", "max_occurrences": 1});
    let body = json!({"rule": rule}).to_string();
    node.ask("PUT", DAILY, &body).await.must(201);
    let trigger = format!("{DAILY}:trigger");
    let first = node.ask("POST", &trigger, "").await.must(201);
    let second = node.ask("POST", &trigger, "").await.must(201);
    let ids = [first, second].map(|made| made.body["execution_id"].clone());
    let ledger = format!("{DAILY}/occurrences");
    let open = node.pages(&ledger, 10).await;
    assert_eq!(open.len(), 2);
    assert!(open.iter().all(|o| o["state"] == "ready"));
    for id in &ids {
        let cancel = format!("{EXECUTIONS}/{}:cancel", id.as_str().unwrap());
        node.ask("POST", &cancel, "").await.must(200);
    }
    let ended = node.pages(&ledger, 10).await;
    assert_eq!(ended.len(), 2);
    for record in open.iter().chain(&ended) {
        assert_eq!(record["kind"], "execution");
        assert_eq!(record["cause"], "triggered");
        assert_eq!(record["nominal_at"], Value::Null);
        assert_eq!(record["triggered_at"], "2026-03-01T08:00:00.000Z");
    }
    assert!(ended.iter().all(|o| o["state"] == "cancelled"));
    let listed = node.pages(&format!("{EXECUTIONS}?schedule=daily"), 1).await;
    let newest_first: Vec<_> = ids.iter().rev().map(|id| id.as_str().unwrap()).collect();
    assert_eq!(each(&listed, "execution_id"), newest_first);
    let shown = node.ask("GET", DAILY, "").await.must(200);
    assert_eq!(shown.body["status"]["created_count"], 0);
    assert_eq!(shown.body["status"]["state"], "active");
}

#[tokio::test]
async fn the_ledger_names_the_wall_times_that_a_clock_change_removed() {
    let node = Node::leading();
    let rule = json!({"cron": "0,30 2 * * *", "time_zone": "Europe/Berlin", "dst_gap": "skip"});
    let body = json!({"rule": rule, "misfire": {"policy": "skip"}}).to_string();
    node.ask("PUT", DAILY, &body).await.must(201);
    node.wait(Millis::days(30));
    let id = ScheduleId::new("daily").unwrap();
    node.scheduler.settle(TenantNo::DEFAULT, id).await.unwrap();
    let ledger = node.pages(&format!("{DAILY}/occurrences"), 100).await;
    let lost: Vec<_> = ledger.iter().filter(|o| o["reason"] == "dst_gap").collect();
    assert_eq!(lost.len(), 1);
    assert_eq!(lost[0]["count"], 2);
    assert_eq!(lost[0]["local"], "2026-03-29T02:00:00");
    assert_eq!(lost[0]["local_last"], "2026-03-29T02:30:00");
}
