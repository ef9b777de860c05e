//! Snapshots and purging, in the background.
//!
//! Purpose: keep the log short enough to replay and store, and long enough that a returning node needs no snapshot.
//! Callers: [`super::node`](super).
//! Invariants:
//! 1. The log is purged only below what is durable in the state store **and** held in the kept snapshot.
//! 2. At least [`RaftSettings::log_tail_bytes`](super::RaftSettings) of log stay.
//! 3. A change of members that its leader could not finish is finished by the next one.

use std::sync::Arc;
use std::time::Duration;

use openraft::async_runtime::watch::WatchReceiver;

use super::node::Shared;
use super::runtime::NodeRuntime;
use crate::fault::Fault;
use crate::rt::TaskHandle;

/// How long whoever asked for a snapshot waits for it.
const BUILD: Duration = Duration::from_secs(60);

/// Where the last snapshot stood.
#[derive(Default)]
struct Marks {
    /// Applied index at the last trigger.
    index: Option<u64>,
    at: Option<tokio::time::Instant>,
}

/// Starts the task.
pub(super) fn start<R: NodeRuntime>(shared: &Arc<Shared<R>>) -> TaskHandle {
    let weak = Arc::downgrade(shared);
    let pause = shared.settings.upkeep_pause();
    let task = async move {
        let mut marks = Marks::default();
        loop {
            tokio::time::sleep(pause).await;
            let Some(shared) = weak.upgrade() else {
                return;
            };
            if let Err(fault) = step(&shared, &mut marks).await {
                // Raft meets the same fault on its own path and stops the node there.
                tracing::error!(%fault, "log upkeep failed");
                return;
            }
        }
    };
    shared.rt.spawn("raft-upkeep", Box::pin(task))
}

async fn step<R: NodeRuntime>(shared: &Shared<R>, marks: &mut Marks) -> Result<(), Fault> {
    let status = shared.status();
    if status.is_leader() && status.members.joint {
        // Whoever began the change may be gone; only a leader can end it. A refusal now is tried again.
        let _later = shared.settle_members().await;
    }
    let Some(applied) = status.applied else {
        return Ok(());
    };
    let now = tokio::time::Instant::now();
    let since = marks.at.get_or_insert(now);
    let from = marks.index.or(status.snapshot);
    let interval = Duration::from_millis(shared.settings.snapshot_interval_ms);
    let grown = bytes_between(shared, from, applied)? >= shared.settings.snapshot_log_bytes;
    let late = since.elapsed() >= interval && from != Some(applied);
    if grown || late {
        marks.index = Some(applied);
        marks.at = Some(now);
        snapshot(shared).await?;
    }
    purge(shared, shared.settings.log_tail_bytes).await
}

/// Bytes of log in `(from, to]`; from the beginning of what is held when `from` is unknown or purged.
fn bytes_between<R: NodeRuntime>(
    shared: &Shared<R>,
    from: Option<u64>,
    to: u64,
) -> Result<u64, Fault> {
    let Some(end) = shared.log.offset(to)? else {
        return Ok(0);
    };
    let first = shared
        .log
        .status()?
        .purged
        .map_or(0, |p| p.index.saturating_add(1));
    let start = from.map_or(first, |f| f.max(first));
    let start = shared.log.offset(start)?.unwrap_or(end);
    Ok(end.saturating_sub(start))
}

/// Makes the state durable and builds an image of it.
pub(super) async fn snapshot<R: NodeRuntime>(shared: &Shared<R>) -> Result<(), Fault> {
    R::blocking(|| shared.machine.flush())?;
    // Refused only when Raft has stopped.
    let _stopped = shared.raft.trigger().snapshot().await;
    Ok(())
}

/// Builds an image of what is applied now, waits until it is built, and purges the log below it.
pub(super) async fn snapshot_now<R: NodeRuntime>(shared: &Shared<R>) -> Result<(), Fault> {
    let wanted = shared.status().applied;
    snapshot(shared).await?;
    let mut watching = shared.raft.metrics();
    let built = async {
        while shared.status().snapshot < wanted {
            if watching.changed().await.is_err() {
                return;
            }
        }
    };
    // Beyond that it goes on in the background, and so does the purge.
    if tokio::time::timeout(BUILD, built).await.is_ok() {
        purge(shared, shared.settings.log_tail_bytes).await?;
    }
    Ok(())
}

/// Purges all but the last `tail` bytes, as far as invariant 1 allows.
pub(super) async fn purge<R: NodeRuntime>(shared: &Shared<R>, tail: u64) -> Result<(), Fault> {
    let status = shared.status();
    let (Some(image), Some(last)) = (status.snapshot, status.last_log) else {
        return Ok(());
    };
    let bound = image.min(shared.machine.durable_index());
    let first = shared
        .log
        .status()?
        .purged
        .map_or(0, |p| p.index.saturating_add(1));
    let Some(end) = shared.log.offset(last)? else {
        return Ok(());
    };
    let keep_from = end.saturating_sub(tail);
    // The highest index whose entry ends at or below `keep_from`: offsets only grow, so halve.
    let (mut low, mut high) = (first, bound.saturating_add(1));
    while low < high {
        let middle = low + (high - low) / 2;
        match shared.log.offset(middle.saturating_add(1))? {
            Some(offset) if offset <= keep_from => low = middle.saturating_add(1),
            _ => high = middle,
        }
    }
    if low > first {
        let upto = low.saturating_sub(1);
        let _stopped = shared.raft.trigger().purge_log(upto).await;
    }
    Ok(())
}
