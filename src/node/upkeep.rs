//! Keeps the state durable and the disk small.
//!
//! Purpose: flush the state store by age and by work done, so that a restart replays little and the log can be purged;
//! drop whole files below flushed watermarks. Callers: `node` starts it on every node.
//! Bounds: at most [`FLUSH_AFTER`] or [`FLUSH_COMMANDS`] commands are replayed after a crash (the store itself flushes
//! when its memory budget is full).

use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use tokio::time::{Instant, sleep};

use crate::fault::Fault;
use crate::rt::{Runtime, blocking};
use crate::state::machine::Machine;
use crate::state::replica::Replica;
use crate::store::due::{Level, bucket_start};
use crate::store::keys::{RetentionClass, history_bucket, idempotency_bucket_start};
use crate::store::{Family, KeyRange};
use crate::time::Timestamp;

/// Age of unflushed work at which it is flushed.
pub(super) const FLUSH_AFTER: Duration = Duration::from_secs(10);
/// Unflushed commands at which they are flushed.
pub(super) const FLUSH_COMMANDS: u64 = 200_000;
/// How often files below watermarks are looked for.
const DISCARD_EVERY: Duration = Duration::from_secs(300);
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// What to do with a fault: production ends the process.
pub(super) type OnFault = Arc<dyn Fn(&Fault) + Send + Sync>;

/// Runs until dropped.
pub(super) fn keep(
    replica: Arc<Replica>,
    rt: Arc<dyn Runtime>,
    on_fault: OnFault,
) -> BoxFuture<'static, ()> {
    Box::pin(async move {
        let mut flushed_at = Instant::now();
        let mut discarded_at = Instant::now();
        loop {
            sleep(LOOK_EVERY).await;
            let waiting = replica.unflushed_commands();
            let due = flushed_at.elapsed() >= FLUSH_AFTER && waiting > 0;
            if due || waiting >= FLUSH_COMMANDS {
                let store = Arc::clone(&replica);
                let flushed = blocking(rt.as_ref(), move || store.flush().map(drop)).await;
                report(flushed, &on_fault);
                flushed_at = Instant::now();
            } else if waiting == 0 {
                flushed_at = Instant::now();
            }
            if discarded_at.elapsed() >= DISCARD_EVERY {
                let store = Arc::clone(&replica);
                let done = blocking(rt.as_ref(), move || discard(&store)).await;
                report(done, &on_fault);
                discarded_at = Instant::now();
            }
        }
    })
}

fn report(done: Option<Result<(), Fault>>, on_fault: &OnFault) {
    if let Some(Err(fault)) = done {
        on_fault(&fault);
    }
}

/// Drops whole files below the watermarks as they were before this call's own flush: a watermark that is not durable yet
/// could be lost, and with it the reason why the rows are absent.
fn discard(replica: &Replica) -> Result<(), Fault> {
    let cluster = replica.resident().cluster.clone();
    replica.flush()?;
    for level in Level::ALL {
        let from = cluster
            .due_from
            .get(level.index())
            .copied()
            .unwrap_or(Timestamp::MIN);
        let range = KeyRange::new(Vec::new(), bucket_start(level.bucket(from)));
        replica.store().discard_files(level.family(), &range)?;
    }
    for class in RetentionClass::all() {
        let from = cluster
            .history_from
            .get(usize::from(class.0))
            .copied()
            .unwrap_or(0);
        let range = KeyRange::new(history_bucket(class, 0), history_bucket(class, from));
        replica.store().discard_files(Family::History, &range)?;
    }
    let range = KeyRange::new(
        idempotency_bucket_start(0),
        idempotency_bucket_start(cluster.idempotency_from),
    );
    replica.store().discard_files(Family::Keys, &range)
}
