//! Submitting work.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use reqwest::Method;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::http::Api;

/// A payload of 100 bytes of JSON that no other `i` has, so that compression finds little.
#[must_use]
pub fn payload_of(i: usize) -> Value {
    let mut state = u64::try_from(i).unwrap_or(u64::MAX);
    let mut text = String::new();
    while text.len() < 89 {
        // SplitMix64: cheap, and good enough to look like other people's data.
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        text.push_str(&format!("{:016x}", z ^ (z >> 31)));
    }
    text.truncate(89);
    json!({"text": text})
}

/// Now on this machine's wall clock, in milliseconds since the epoch.
#[must_use]
#[allow(clippy::disallowed_methods, reason = "the harness lives in real time")]
pub fn wall_ms() -> u64 {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// `ms` since the epoch as RFC 3339 in UTC.
#[must_use]
pub fn rfc3339(ms: u64) -> String {
    let (secs, millis) = (ms / 1_000, ms % 1_000);
    let (days, rest) = (secs / 86_400, secs % 86_400);
    // Days to civil date (Howard Hinnant's algorithm), for years after 1970.
    let z = days + 719_468;
    let (era, doe) = (z / 146_097, z % 146_097);
    let yoe = (doe - doe / 1_460 + doe / 36_524 - doe / 146_096) / 365;
    let doy = doe - (365 * yoe + yoe / 4 - yoe / 100);
    let mp = (5 * doy + 2) / 153;
    let day = doy - (153 * mp + 2) / 5 + 1;
    let month = if mp < 10 { mp + 3 } else { mp - 9 };
    let year = yoe + era * 400 + u64::from(month <= 2);
    let (h, m, s) = (rest / 3_600, rest / 60 % 60, rest % 60);
    format!("{year:04}-{month:02}-{day:02}T{h:02}:{m:02}:{s:02}.{millis:03}Z")
}

/// Runs `count` calls with `in_flight` at once; `call` gets the number of the call.
///
/// # Errors
/// The first failed call.
pub async fn spread<F, Fut>(count: usize, in_flight: usize, call: F) -> Result<(), String>
where
    F: Fn(usize) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<(), String>> + Send,
{
    let (next, call) = (Arc::new(AtomicUsize::new(0)), Arc::new(call));
    let mut tasks = JoinSet::new();
    for _ in 0..in_flight {
        let (next, call) = (Arc::clone(&next), Arc::clone(&call));
        tasks.spawn(async move {
            loop {
                let i = next.fetch_add(1, Ordering::Relaxed);
                if i >= count {
                    return Ok::<(), String>(());
                }
                call(i).await?;
            }
        });
    }
    while let Some(ended) = tasks.join_next().await {
        ended.map_err(|e| e.to_string())??;
    }
    Ok(())
}

/// A POST that is repeated on 429 and 503 (with an idempotent body, or where a repeat does no harm).
///
/// # Errors
/// Anything but a success.
pub async fn post(api: &Api, path: &str, body: &Value) -> Result<Value, String> {
    api.retry(Method::POST, path, Some(body), Duration::from_secs(60))
        .await?
        .success()
}

/// Submits `count` executions to `queue` in batches of 500, 8 in flight; `due_ms(i)` gives each one's due time (`None`:
/// now).
///
/// # Errors
/// The first failed call or item.
pub async fn submit_batches(
    api: &Api,
    queue: &str,
    count: usize,
    due_ms: impl Fn(usize) -> Option<u64> + Send + Sync + 'static,
) -> Result<(), String> {
    const BATCH: usize = 500;
    let (api, queue) = (api.clone(), queue.to_owned());
    let due_ms = Arc::new(due_ms);
    spread(count.div_ceil(BATCH), 8, move |batch| {
        let (api, queue, due_ms) = (api.clone(), queue.clone(), Arc::clone(&due_ms));
        async move {
            let range = batch * BATCH..((batch + 1) * BATCH).min(count);
            let items: Vec<Value> = range.map(|i| item(&queue, i, due_ms(i))).collect();
            let expected = items.len();
            let path = "/v1/tenants/default/executions:batch";
            let answer = post(&api, path, &json!({"items": items})).await?;
            check_batch(&answer, expected)
        }
    })
    .await
}

/// Execution number `i` to submit.
#[must_use]
pub fn item(queue: &str, i: usize, due_ms: Option<u64>) -> Value {
    let mut item = json!({"kind": "bench", "queue": queue, "payload": payload_of(i)});
    if let (Some(ms), Some(map)) = (due_ms, item.as_object_mut()) {
        map.insert("due_at".into(), json!(rfc3339(ms)));
    }
    item
}

/// Every item of a batch answer must be a success.
///
/// # Errors
/// The first item that is not.
pub fn check_batch(answer: &Value, expected: usize) -> Result<(), String> {
    let items = answer
        .get("items")
        .and_then(Value::as_array)
        .ok_or("a batch without items")?;
    if items.len() != expected {
        return Err(format!("{} answers to {expected} items", items.len()));
    }
    let failed = items.iter().find(|i| {
        i["result"]["status"]
            .as_u64()
            .is_none_or(|s| !(200..300).contains(&s))
    });
    failed.map_or(Ok(()), |item| Err(format!("a batch item failed: {item}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instants_are_written_as_rfc3339() {
        assert_eq!(rfc3339(0), "1970-01-01T00:00:00.000Z");
        assert_eq!(rfc3339(951_782_400_123), "2000-02-29T00:00:00.123Z");
        assert_eq!(rfc3339(1_798_761_599_999), "2026-12-31T23:59:59.999Z");
    }

    #[test]
    fn the_payload_has_100_bytes() {
        assert_eq!(payload_of(0).to_string().len(), 100);
        assert_ne!(payload_of(1), payload_of(2));
    }
}
