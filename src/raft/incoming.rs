//! An image that another node is sending.
//!
//! Purpose: put the pieces of a snapshot together, check them, and hand the image to Raft.
//! Callers: [`super::server`](super).
//! Invariants:
//! 1. One transfer at a time: a new one drops the last.
//! 2. Pieces arrive in order, each with a checksum; anything else ends the transfer.
//! 3. Memory is one piece; the rest is in the staging place. A transfer that is silent for too long is dropped.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use openraft::storage::Snapshot;
use parking_lot::Mutex;
use xxhash_rust::xxh3::xxh3_64;

use super::machine::Image;
use super::message::Reply;
use super::network::failed;
use super::node::Shared;
use super::runtime::NodeRuntime;
use super::types::{ImageMeta, StoredMembers, decode_members, from_position, from_vote, to_vote};
use crate::fault::Fault;
use crate::rt::TaskHandle;
use crate::store::Staging;
use crate::store::log::{LogPosition, LogVote};

/// How long apply may stand still before an installation goes ahead without it.
const STALL: Duration = Duration::from_secs(1);

struct Transfer {
    session: u64,
    vote: LogVote,
    meta: ImageMeta,
    files: Vec<(String, u64)>,
    /// File being received and how much of it is here.
    file: usize,
    received: u64,
    staging: Box<dyn Staging>,
    touched: tokio::time::Instant,
}

/// The transfer under way, if any.
pub(super) struct Incoming<R: NodeRuntime> {
    shared: Arc<Shared<R>>,
    current: Mutex<Option<Transfer>>,
}

fn meta_of(
    last: Option<LogPosition>,
    membership: Option<(LogPosition, Bytes)>,
) -> Result<ImageMeta, Fault> {
    let last_membership = match membership {
        None => StoredMembers::default(),
        Some((position, bytes)) => {
            StoredMembers::new(Some(from_position(&position)), decode_members(bytes)?)
        }
    };
    Ok(ImageMeta {
        last_log_id: last.map(|p| from_position(&p)),
        last_membership,
    })
}

/// Drops a transfer that has gone silent, so that its staging place does not fill the disk.
pub(super) fn sweep<R: NodeRuntime>(incoming: &Arc<Incoming<R>>) -> TaskHandle {
    let pause = incoming.shared.settings.snapshot_idle();
    let weak = Arc::downgrade(incoming);
    let task = async move {
        loop {
            tokio::time::sleep(pause).await;
            let Some(incoming) = weak.upgrade() else {
                return;
            };
            incoming.drop_if_silent(pause);
        }
    };
    incoming
        .shared
        .rt
        .spawn("raft-snapshot-sweep", Box::pin(task))
}

impl<R: NodeRuntime> Incoming<R> {
    pub(super) fn new(shared: Arc<Shared<R>>) -> Self {
        Self {
            shared,
            current: Mutex::new(None),
        }
    }

    pub(super) fn begin(
        &self,
        from: u64,
        vote: LogVote,
        last: Option<LogPosition>,
        membership: Option<(LogPosition, Bytes)>,
        files: Vec<(String, u64)>,
    ) -> Reply {
        let known = self.shared.vote();
        if vote < known {
            return Reply::Installed(known);
        }
        let busy = self.current.lock().as_ref().is_some_and(|t| {
            t.vote > vote || (t.vote == vote && t.touched.elapsed() < self.half_idle())
        });
        if busy {
            return Reply::Failed("another snapshot is being received".into());
        }
        // Dropped before the new staging place is made: there is only one.
        *self.current.lock() = None;
        let opened = meta_of(last, membership)
            .and_then(|meta| R::blocking(|| self.shared.machine.stage()).map(|s| (meta, s)));
        let (meta, staging) = match opened {
            Ok(opened) => opened,
            Err(fault) => return failed(&fault),
        };
        let session = self.shared.rt.random_u64();
        tracing::info!(from, ?last, files = files.len(), "receiving a snapshot");
        *self.current.lock() = Some(Transfer {
            session,
            vote,
            meta,
            files,
            file: 0,
            received: 0,
            staging,
            touched: tokio::time::Instant::now(),
        });
        Reply::Session(session)
    }

    fn half_idle(&self) -> Duration {
        self.shared.settings.snapshot_idle() / 2
    }

    pub(super) fn chunk(
        &self,
        session: u64,
        file: u32,
        offset: u64,
        checksum: u64,
        bytes: &Bytes,
    ) -> Reply {
        let mut current = self.current.lock();
        let Some(transfer) = current.as_mut().filter(|t| t.session == session) else {
            return Reply::Failed("no such snapshot transfer".into());
        };
        transfer.touched = tokio::time::Instant::now();
        if xxh3_64(bytes) != checksum {
            *current = None;
            return Reply::Failed("a piece of the snapshot is damaged".into());
        }
        match R::blocking(|| accept(transfer, file as usize, offset, bytes)) {
            Ok(()) => Reply::Session(session),
            Err(fault) => {
                *current = None;
                failed(&fault)
            }
        }
    }

    pub(super) async fn end(&self, session: u64) -> Reply {
        let taken = {
            let mut current = self.current.lock();
            match current.take() {
                Some(transfer) if transfer.session == session => transfer,
                other => {
                    *current = other;
                    return Reply::Failed("no such snapshot transfer".into());
                }
            }
        };
        let vote = taken.vote;
        let meta = taken.meta.clone();
        let sealed = R::blocking(|| seal(taken));
        let staging = match sealed {
            Ok(staging) => staging,
            Err(fault) => return failed(&fault),
        };
        self.drain().await;
        let snapshot = Snapshot {
            meta,
            snapshot: Image::Received(staging),
        };
        let installed = self
            .shared
            .raft
            .install_full_snapshot(from_vote(&vote), snapshot)
            .await;
        match installed {
            Ok(response) => {
                self.shared.count_install();
                Reply::Installed(to_vote(&response.vote))
            }
            Err(error) => Reply::Failed(error.to_string()),
        }
    }

    /// Waits for committed entries to be applied, as long as any are: the library panics when an image replaces the log
    /// under an apply that is about to start. Entries that conflict with a new leader's log cannot be applied before the
    /// image is in, so standing still ends the wait.
    async fn drain(&self) {
        let applied = || self.shared.machine.applied().position;
        let mut before = applied();
        while !self.shared.wait_for_apply(STALL).await {
            let now = applied();
            if now == before {
                return;
            }
            before = now;
        }
    }

    fn drop_if_silent(&self, idle: Duration) {
        let mut current = self.current.lock();
        if current
            .as_ref()
            .is_some_and(|t| t.touched.elapsed() > idle.saturating_mul(2))
        {
            *current = None;
        }
    }
}

fn accept(transfer: &mut Transfer, file: usize, offset: u64, bytes: &Bytes) -> Result<(), Fault> {
    skip_finished(transfer)?;
    let Some((name, len)) = transfer.files.get(transfer.file) else {
        return Err(Fault::corrupt("more pieces than the snapshot has files"));
    };
    let end = offset.saturating_add(bytes.len() as u64);
    if file != transfer.file || offset != transfer.received || end > *len || bytes.is_empty() {
        return Err(Fault::corrupt(format!(
            "piece of file {file} at {offset} where file {} at {} was due",
            transfer.file, transfer.received
        )));
    }
    transfer.staging.append(name, bytes)?;
    transfer.received = end;
    Ok(())
}

/// Moves on from files that are complete; an empty file is made on the way.
fn skip_finished(transfer: &mut Transfer) -> Result<(), Fault> {
    while let Some((name, len)) = transfer.files.get(transfer.file) {
        if transfer.received < *len {
            break;
        }
        if *len == 0 {
            transfer.staging.append(name, &[])?;
        }
        transfer.file += 1;
        transfer.received = 0;
    }
    Ok(())
}

fn seal(mut transfer: Transfer) -> Result<Box<dyn Staging>, Fault> {
    skip_finished(&mut transfer)?;
    if transfer.file != transfer.files.len() {
        return Err(Fault::corrupt("the snapshot ended before its last file"));
    }
    transfer.staging.seal()?;
    Ok(transfer.staging)
}
