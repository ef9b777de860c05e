//! What workers send, right and wrong.

use super::*;
use crate::api::problem::Error;

fn wrong(check: impl FnOnce(&mut Issues)) -> Error {
    let mut issues = Issues::default();
    check(&mut issues);
    issues.finish().expect_err("a wrong request")
}

#[test]
fn a_claim_with_only_a_worker_has_the_documented_defaults() {
    let mut issues = Issues::default();
    let given = serde_json::from_str(r#"{"worker_id":"w1","max":null}"#).unwrap();
    let queue = QueueId::default_queue();
    let claim = claim(&mut issues, given, Some(queue), &mut || 0).expect("a claim");
    assert_eq!((claim.max, claim.max_bytes), (1, 1_048_576));
    assert_eq!((claim.wait.0, claim.lease.0), (20_000, 30_000));
    assert!(claim.kinds.is_none() && claim.reports.is_empty());
}

#[test]
fn wrong_claims_name_their_places() {
    for (text, pointer) in [
        (r#"{}"#, "/worker_id"),
        (r#"{"worker_id":"a b"}"#, "/worker_id"),
        (r#"{"worker_id":"w","max":0}"#, "/max"),
        (r#"{"worker_id":"w","max":1001}"#, "/max"),
        (r#"{"worker_id":"w","wait_ms":60001}"#, "/wait_ms"),
        (r#"{"worker_id":"w","lease_ms":999}"#, "/lease_ms"),
        (r#"{"worker_id":"w","slots":0}"#, "/slots"),
        (r#"{"worker_id":"w","kinds":["ok","not ok"]}"#, "/kinds/1"),
        (r#"{"worker_id":"w","queues":["a"]}"#, "/queues"),
        (
            r#"{"worker_id":"w","start_confirmation_ms":1}"#,
            "/start_confirmation_ms",
        ),
        (r#"{"worker_id":"w","reports":[{}]}"#, "/reports/0/action"),
        (
            r#"{"worker_id":"w","reports":[{"action":"complete","execution_id":"e","attempt":1,"fencing_token":1,"delay_ms":5}]}"#,
            "/reports/0/delay_ms",
        ),
    ] {
        let given = serde_json::from_str(text).unwrap();
        let queue = Some(QueueId::default_queue());
        let error = wrong(|issues| drop(claim(issues, given, queue, &mut || 0)));
        assert_eq!(error.errors[0].pointer, pointer, "{text}: {error:?}");
    }
    let none = serde_json::from_str(r#"{"worker_id":"w"}"#).unwrap();
    let error = wrong(|issues| drop(claim(issues, none, None, &mut || 0)));
    assert_eq!(error.errors[0].pointer, "/queues");
}

#[test]
fn items_without_a_whole_reference_are_refused() {
    let items = serde_json::from_str(r#"[{"execution_id":"e","attempt":1,"fencing_token":5},{}]"#);
    let error = wrong(|issues| drop(completions(issues, items.unwrap())));
    let places: Vec<_> = error.errors.iter().map(|e| e.pointer.as_str()).collect();
    assert_eq!(
        places,
        [
            "/leases/1/execution_id",
            "/leases/1/attempt",
            "/leases/1/fencing_token"
        ]
    );
    let error = wrong(|issues| drop(completions(issues, Vec::new())));
    assert_eq!(error.errors[0].pointer, "/leases");
}

#[test]
fn an_oversized_error_is_cut_and_marked_and_an_oversized_result_is_refused() {
    let error = wire::WorkerError {
        kind: Some("Boom".into()),
        message: Some("\"é\n".repeat(1 << 19)),
        details: Json::from_text(format!("\"{}\"", "x".repeat(100))).unwrap(),
    };
    let (text, truncated) = stored_error(error);
    assert!(
        truncated && text.len() <= 16_384 && text.len() > 8_000,
        "{}",
        text.len()
    );
    let back: wire::WorkerError = serde_json::from_slice(&text).unwrap();
    assert_eq!(back.kind.as_deref(), Some("Boom"));

    let result = Json::from_text(format!("\"{}\"", "x".repeat(70_000))).unwrap();
    let item = wire::CompleteItem {
        execution_id: "e".into(),
        attempt: 1,
        fencing_token: 1,
        result,
    };
    let error = wrong(|issues| drop(completions(issues, vec![item])));
    assert_eq!(error.code.status(), 413);
    assert_eq!(error.errors[0].pointer, "/leases/0/result");
}
