//! Waiting with a deadline.

use std::future::Future;
use std::time::Duration;

use tokio::time::{Instant, sleep};

/// How long a black-box condition may take before it counts as failed: wide, because the machine may be loaded.
pub const WIDE: Duration = Duration::from_secs(60);

/// Polls `condition` until it gives a value; answers it with how long that took.
///
/// # Errors
/// What was waited for, when `deadline` passes.
pub async fn until<T, F, Fut>(
    what: &str,
    deadline: Duration,
    mut condition: F,
) -> Result<(T, Duration), String>
where
    F: FnMut() -> Fut,
    Fut: Future<Output = Option<T>>,
{
    let started = Instant::now();
    loop {
        if let Some(value) = condition().await {
            return Ok((value, started.elapsed()));
        }
        if started.elapsed() > deadline {
            return Err(format!("not within {deadline:?}: {what}"));
        }
        sleep(Duration::from_millis(20)).await;
    }
}
