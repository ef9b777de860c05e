//! The renewal task.
//!
//! Callers: `worker::run` starts it; it ends when dropped. Invariant: a call takes at most a sixth of the shortest
//! lease in it, so that there are several tries before a deadline.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::calls::LeaseCalls;
use super::held::{DueRenewals, Phase, Stop, Table};
use crate::client::Backoff;
use crate::wire::{RenewLeases, ReportStatus};

/// Most renewals in one call.
const BATCH_MAX: usize = 1_000;
/// Shortest time that a call gets.
const CALL_MIN: Duration = Duration::from_millis(150);

/// Renews for ever.
pub(super) async fn renew_all(table: Arc<Table>, calls: Arc<dyn LeaseCalls>, worker_id: String) {
    let mut backoff = Backoff::default();
    loop {
        match table.next_renewal() {
            None => table.changed().await,
            Some(at) => tokio::select! {
                biased;
                () = tokio::time::sleep_until(at) => {}
                () = table.changed() => continue,
            },
        }
        if let Some(due) = table.due_renewals(Instant::now(), BATCH_MAX) {
            send(due, calls.as_ref(), &worker_id, &mut backoff).await;
        }
    }
}

async fn send(due: DueRenewals, calls: &dyn LeaseCalls, worker_id: &str, backoff: &mut Backoff) {
    let body = RenewLeases {
        worker_id: worker_id.to_owned(),
        leases: due.items,
    };
    let progress: Vec<_> = body.leases.iter().map(|l| l.progress.clone()).collect();
    let sent = Instant::now();
    match calls.renew(body, (due.shortest / 6).max(CALL_MIN)).await {
        Ok(answer) => {
            backoff.reset();
            for (held, result) in due.leases.iter().zip(answer.results) {
                match result.status {
                    ReportStatus::Ok => {
                        let left = result.expires_in_ms.unwrap_or(held.lease().lease_ms);
                        held.renewed(sent, Duration::from_millis(left));
                        if result.cancel_requested == Some(true) {
                            held.stop(Stop::CancelRequested);
                        }
                    }
                    ReportStatus::LeaseLost => {
                        held.stop(Stop::LeaseLost(result.reason.unwrap_or_default()));
                    }
                }
            }
        }
        Err(error) => {
            let pause = backoff.next(error.retry_after());
            tracing::warn!(%error, leases = due.leases.len(), "leases could not be renewed");
            for (held, progress) in due.leases.iter().zip(progress) {
                held.renewal_failed(pause);
                if !progress.is_null() {
                    held.set_progress(progress);
                }
            }
        }
    }
}

/// What the renewal task must not touch while a report is under way.
pub(super) fn reporting(
    table: &Table,
    references: impl Iterator<Item = crate::wire::LeaseRef>,
    on: bool,
) {
    for reference in references {
        if let Some(held) = table.get(&reference) {
            held.set_phase(if on { Phase::Reporting } else { Phase::Ended });
        }
    }
    if !on {
        table.wake();
    }
}
