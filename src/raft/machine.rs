//! The state machine as the Raft library wants it.
//!
//! Purpose: feed committed entries to a [`Machine`] in bounded pieces, and build and install images.
//! Callers: the Raft library.
//! Invariants:
//! 1. A caller is answered only after the piece that holds its entry is applied.
//! 2. An image names the position read from the image itself, never one from memory.
//! 3. At most one image is kept for sending.

use std::io;
use std::marker::PhantomData;
use std::sync::Arc;

use futures::{Stream, TryStreamExt};
use openraft::storage::{
    ApplyResponder, EntryResponder, RaftSnapshotBuilder, RaftStateMachine, Snapshot,
};
use openraft::{EntryPayload, OptionalSend};
use parking_lot::Mutex;

use super::NodeAddress;
use super::runtime::NodeRuntime;
use super::types::{
    Answer, EntryId, ImageMeta, LeaderName, StoredMembers, Types, encode_members, from_machine,
    io_error, stored_members, to_machine,
};
use crate::fault::Fault;
use crate::state::machine::{Applied, CommittedEntry, Machine, Payload};
use crate::store::{Checkpoint, Staging};

/// Bytes of entries applied in one call of [`Machine::apply`].
const APPLY_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Entries applied in one call.
const APPLY_ENTRIES_MAX: usize = 1024;
/// Bytes of entries up to which apply is so short that moving other tasks off its thread would take longer.
const APPLY_IN_PLACE_MAX: usize = 16 * 1024;
/// Bytes copied at a time when an image of this node is installed on itself.
const COPY_BYTES: usize = 1024 * 1024;

/// What a snapshot is made of on this node.
pub(super) enum Image {
    /// A checkpoint of this node's state, to be sent.
    Local(Arc<dyn Checkpoint>),
    /// A received and sealed image, to be installed.
    Received(Box<dyn Staging>),
}

pub(super) type ImageSnapshot = Snapshot<LeaderName, u64, NodeAddress, Image>;

struct Kept {
    meta: ImageMeta,
    checkpoint: Arc<dyn Checkpoint>,
}

/// The adapter; clones share machine and image.
pub(super) struct MachineAdapter<R> {
    machine: Arc<dyn Machine>,
    kept: Arc<Mutex<Option<Kept>>>,
    runtime: PhantomData<fn() -> R>,
}

impl<R> Clone for MachineAdapter<R> {
    fn clone(&self) -> Self {
        Self {
            machine: Arc::clone(&self.machine),
            kept: Arc::clone(&self.kept),
            runtime: PhantomData,
        }
    }
}

fn meta_of(applied: &Applied) -> Result<ImageMeta, Fault> {
    Ok(ImageMeta {
        last_log_id: applied.position.as_ref().map(from_machine),
        last_membership: stored_members(applied.membership.as_ref())?,
    })
}

struct Chunk<R: NodeRuntime> {
    entries: Vec<CommittedEntry>,
    responders: Vec<Option<ApplyResponder<Types<R>>>>,
    bytes: usize,
}

impl<R: NodeRuntime> Chunk<R> {
    fn new() -> Self {
        Self {
            entries: Vec::new(),
            responders: Vec::new(),
            bytes: 0,
        }
    }

    fn push(&mut self, (entry, responder): EntryResponder<Types<R>>) {
        let payload = match entry.payload {
            EntryPayload::Blank => Payload::Blank,
            EntryPayload::Normal(batch) => {
                self.bytes = self.bytes.saturating_add(batch.0.len());
                Payload::Batch(batch.0)
            }
            EntryPayload::Membership(members) => Payload::Membership(encode_members(&members)),
        };
        self.entries.push(CommittedEntry {
            position: to_machine(&entry.log_id),
            payload,
        });
        self.responders.push(responder);
    }

    fn is_full(&self) -> bool {
        self.bytes >= APPLY_BYTES_MAX || self.entries.len() >= APPLY_ENTRIES_MAX
    }
}

impl<R: NodeRuntime> MachineAdapter<R> {
    pub(super) fn new(machine: Arc<dyn Machine>) -> Self {
        Self {
            machine,
            kept: Arc::new(Mutex::new(None)),
            runtime: PhantomData,
        }
    }

    fn apply_chunk(&self, chunk: Chunk<R>) -> io::Result<()> {
        let count = chunk.entries.len();
        let apply = || self.machine.apply(chunk.entries);
        let answers = if chunk.bytes <= APPLY_IN_PLACE_MAX {
            apply()
        } else {
            R::blocking(apply)
        };
        let answers = answers.map_err(|f| io_error(&f))?;
        if answers.len() != count {
            let fault = Fault::invariant("apply answered another number of entries than it got");
            return Err(io_error(&fault));
        }
        for (responder, answer) in chunk.responders.into_iter().zip(answers) {
            if let Some(responder) = responder {
                responder.send(Answer(answer));
            }
        }
        Ok(())
    }

    fn build(&self) -> Result<ImageSnapshot, Fault> {
        let (applied, checkpoint) = R::blocking(|| self.machine.checkpoint())?;
        let meta = meta_of(&applied)?;
        *self.kept.lock() = Some(Kept {
            meta: meta.clone(),
            checkpoint: Arc::clone(&checkpoint),
        });
        Ok(Snapshot {
            meta,
            snapshot: Image::Local(checkpoint),
        })
    }

    /// Copies a local image into a staging place, for an installation on this same node.
    fn stage_copy(&self, checkpoint: &dyn Checkpoint) -> Result<Box<dyn Staging>, Fault> {
        let mut staging = self.machine.stage()?;
        for file in checkpoint.files() {
            staging.append(&file.name, &[])?;
            let mut offset = 0u64;
            while offset < file.len {
                let bytes = checkpoint.read(&file.name, offset, COPY_BYTES)?;
                if bytes.is_empty() {
                    return Err(Fault::corrupt(format!("{} is short", file.name)));
                }
                offset = offset.saturating_add(bytes.len() as u64);
                staging.append(&file.name, &bytes)?;
            }
        }
        staging.seal()?;
        Ok(staging)
    }

    fn install(&self, meta: &ImageMeta, image: Image) -> Result<(), Fault> {
        let staging = match image {
            Image::Received(staging) => staging,
            Image::Local(checkpoint) => self.stage_copy(checkpoint.as_ref())?,
        };
        let applied = self.machine.install(staging)?;
        if applied.position.as_ref().map(from_machine) != meta.last_log_id {
            return Err(Fault::invariant(format!(
                "the installed image ends at {:?}, its sender said {:?}",
                applied.position, meta.last_log_id
            )));
        }
        // What was installed is what this node would send next; an older image must not be sent again.
        let (applied, checkpoint) = self.machine.checkpoint()?;
        *self.kept.lock() = Some(Kept {
            meta: meta_of(&applied)?,
            checkpoint,
        });
        Ok(())
    }
}

impl<R: NodeRuntime> RaftSnapshotBuilder<Types<R>> for MachineAdapter<R> {
    type SnapshotData = Image;

    async fn build_snapshot(&mut self) -> io::Result<ImageSnapshot> {
        self.build().map_err(|f| io_error(&f))
    }
}

impl<R: NodeRuntime> RaftStateMachine<Types<R>> for MachineAdapter<R> {
    type SnapshotData = Image;
    type SnapshotBuilder = Self;

    async fn applied_state(&mut self) -> io::Result<(Option<EntryId>, StoredMembers)> {
        let applied = self.machine.applied();
        let members = stored_members(applied.membership.as_ref()).map_err(|f| io_error(&f))?;
        Ok((applied.position.as_ref().map(from_machine), members))
    }

    async fn apply<S>(&mut self, mut entries: S) -> io::Result<()>
    where
        S: Stream<Item = io::Result<EntryResponder<Types<R>>>> + Unpin + OptionalSend,
    {
        let mut chunk = Chunk::new();
        while let Some(entry) = entries.try_next().await? {
            chunk.push(entry);
            if chunk.is_full() {
                self.apply_chunk(std::mem::replace(&mut chunk, Chunk::new()))?;
            }
        }
        if chunk.entries.is_empty() {
            return Ok(());
        }
        self.apply_chunk(chunk)
    }

    async fn get_snapshot_builder(&mut self) -> Self {
        self.clone()
    }

    async fn install_snapshot(&mut self, meta: &ImageMeta, image: Image) -> io::Result<()> {
        R::blocking(|| self.install(meta, image)).map_err(|f| io_error(&f))
    }

    async fn get_current_snapshot(&mut self) -> io::Result<Option<ImageSnapshot>> {
        Ok(self.kept.lock().as_ref().map(|kept| Snapshot {
            meta: kept.meta.clone(),
            snapshot: Image::Local(Arc::clone(&kept.checkpoint)),
        }))
    }
}
