//! The bytes of batches.
//!
//! Purpose: frozen encodings. A batch is a header and a sequence of frames; each frame names its kind and version
//! with numbers of ours and carries its length, so that a frame is bounded before it is decoded and an unknown one
//! stops the node instead of being skipped. Callers: the proposer encodes, `state` decodes.
//! Layout (little-endian, bincode 1.3 fixint): `format u8 | proposed_at i64 | term u64 | count u32 |` then per command
//! `kind u16 | version u8 | len u32 | body`. A body is (origin, command struct).

use std::borrow::Borrow;

use bincode::Options;
use bytes::Bytes;
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::command::admin::AdminCommand;
use crate::command::executions::ExecutionCommand;
use crate::command::leases::LeaseCommand;
use crate::command::schedules::ScheduleCommand;
use crate::command::{Actor, Batch, Command, Envelope, Idempotency};
use crate::fault::Fault;
use crate::ids::Revision;
use crate::time::Timestamp;

/// First byte of every encoded batch.
pub const FORMAT: u8 = 1;
/// Largest encoded command, in bytes.
pub const COMMAND_MAX: usize = 320 * 1024;
/// Largest encoded batch, in bytes.
pub const ENTRY_MAX: usize = 1024 * 1024;
/// Most commands in a batch: each needs a revision of its own. A leader closes its entries far below this.
pub const COMMANDS_MAX: usize = Revision::PLACES as usize;
/// Bytes of a batch's header.
pub const HEADER_LEN: usize = 1 + 8 + 8 + 4;
const FRAME_HEADER_LEN: usize = 2 + 1 + 4;

/// Bincode as we use it everywhere: fixed-width integers, a byte limit, no trailing bytes.
#[must_use]
pub fn bincode(limit: u64) -> impl Options + Copy {
    bincode::DefaultOptions::new()
        .with_fixint_encoding()
        .with_limit(limit)
        .reject_trailing_bytes()
}

/// Why a command cannot be sent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EncodeError {
    /// Over [`COMMAND_MAX`].
    #[error("the command takes {len} bytes; the maximum is {COMMAND_MAX}")]
    TooLarge {
        /// Its size.
        len: usize,
    },
    /// The serializer refused it.
    #[error("the command cannot be encoded: {0}")]
    Invalid(String),
}

#[derive(Serialize, Deserialize)]
struct Origin {
    actor: Actor,
    reason: Option<String>,
    request_id: Option<String>,
    received_at: Option<Timestamp>,
    idempotency: Option<Idempotency>,
}

/// One encoded command: a frame, ready to be put into a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame(Vec<u8>);

impl Frame {
    /// Encodes `envelope`.
    ///
    /// # Errors
    /// [`EncodeError::TooLarge`] over [`COMMAND_MAX`] bytes.
    pub fn encode(envelope: &Envelope) -> Result<Self, EncodeError> {
        let origin = Origin {
            actor: envelope.actor.clone(),
            reason: envelope.reason.clone(),
            request_id: envelope.request_id.clone(),
            received_at: envelope.received_at,
            idempotency: envelope.idempotency,
        };
        encode_command(&origin, &envelope.command).map(Self)
    }

    /// Its size in a batch, in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Never true.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Joins frames to a batch.
#[must_use]
pub fn join<F: Borrow<Frame>>(proposed_at: Timestamp, term: u64, frames: &[F]) -> Bytes {
    let size: usize = frames.iter().map(|frame| frame.borrow().len()).sum();
    let mut out = Vec::with_capacity(HEADER_LEN + size);
    out.push(FORMAT);
    out.extend_from_slice(&proposed_at.millis().to_le_bytes());
    out.extend_from_slice(&term.to_le_bytes());
    out.extend_from_slice(
        &u32::try_from(frames.len())
            .unwrap_or(u32::MAX)
            .to_le_bytes(),
    );
    for frame in frames {
        out.extend_from_slice(&frame.borrow().0);
    }
    Bytes::from(out)
}

/// Encodes a whole batch.
///
/// # Errors
/// As [`Frame::encode`].
pub fn encode(batch: &Batch) -> Result<Bytes, EncodeError> {
    let frames: Result<Vec<_>, _> = batch.commands.iter().map(Frame::encode).collect();
    Ok(join(batch.proposed_at, batch.term, &frames?))
}

/// Decodes a batch.
///
/// # Errors
/// [`Fault::UnknownFormat`] for a format, kind or version of a newer build; [`Fault::Corrupt`] for anything else.
pub fn decode(bytes: &[u8]) -> Result<Batch, Fault> {
    let mut reader = Reader(bytes);
    let format = reader.array::<1>()?[0];
    if format != FORMAT {
        return Err(Fault::UnknownFormat(format!("batch format {format}")));
    }
    let proposed_at = Timestamp::from_millis(i64::from_le_bytes(reader.array()?));
    let term = u64::from_le_bytes(reader.array()?);
    let count = u32::from_le_bytes(reader.array()?) as usize;
    if count > COMMANDS_MAX.min(bytes.len() / FRAME_HEADER_LEN) {
        return Err(Fault::corrupt(format!(
            "a batch of {} bytes claims {count} commands",
            bytes.len()
        )));
    }
    let mut commands = Vec::with_capacity(count);
    for _ in 0..count {
        let kind = u16::from_le_bytes(reader.array()?);
        let version = reader.array::<1>()?[0];
        let len = u32::from_le_bytes(reader.array()?) as usize;
        commands.push(decode_command(kind, version, reader.take(len)?)?);
    }
    if !reader.0.is_empty() {
        return Err(Fault::corrupt(format!(
            "{} bytes after a batch",
            reader.0.len()
        )));
    }
    Ok(Batch {
        proposed_at,
        term,
        commands,
    })
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, len: usize) -> Result<&'a [u8], Fault> {
        let (head, rest) = self
            .0
            .split_at_checked(len)
            .ok_or_else(|| Fault::corrupt("a batch ends early"))?;
        self.0 = rest;
        Ok(head)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Fault> {
        self.take(N)?
            .try_into()
            .map_err(|_| Fault::corrupt("a batch ends early"))
    }
}

fn write_frame<T: Serialize>(
    kind: u16,
    version: u8,
    origin: &Origin,
    body: &T,
) -> Result<Vec<u8>, EncodeError> {
    let mut out = Vec::with_capacity(256);
    out.extend_from_slice(&kind.to_le_bytes());
    out.push(version);
    out.extend_from_slice(&[0; 4]);
    bincode(COMMAND_MAX as u64 * 2)
        .serialize_into(&mut out, &(origin, body))
        .map_err(|e| EncodeError::Invalid(e.to_string()))?;
    if out.len() > COMMAND_MAX {
        return Err(EncodeError::TooLarge { len: out.len() });
    }
    let len = u32::try_from(out.len() - FRAME_HEADER_LEN).unwrap_or(u32::MAX);
    out[3..FRAME_HEADER_LEN].copy_from_slice(&len.to_le_bytes());
    Ok(out)
}

fn read_body<T: DeserializeOwned>(body: &[u8], kind: u16) -> Result<(Origin, T), Fault> {
    bincode(COMMAND_MAX as u64)
        .deserialize(body)
        .map_err(|e| Fault::corrupt(format!("command kind {kind}: {e}")))
}

/// The one table of kinds: a line here is a line in the format, for ever.
macro_rules! kinds {
    ($($kind:literal, $version:literal: $area:ident($enum:ident::$variant:ident);)*) => {
        fn encode_command(origin: &Origin, command: &Command) -> Result<Vec<u8>, EncodeError> {
            match command {
                $(Command::$area($enum::$variant(body)) => write_frame($kind, $version, origin, body),)*
            }
        }

        fn decode_command(kind: u16, version: u8, body: &[u8]) -> Result<Envelope, Fault> {
            match (kind, version) {
                $(($kind, $version) => {
                    let (origin, body) = read_body(body, kind)?;
                    Ok(envelope(origin, Command::$area($enum::$variant(body))))
                })*
                _ => Err(Fault::UnknownFormat(format!("command kind {kind} version {version}"))),
            }
        }
    };
}

kinds! {
    1, 1: Admin(AdminCommand::TakeOffice);
    2, 1: Admin(AdminCommand::AdvanceWatermarks);
    3, 1: Admin(AdminCommand::AdvanceRetention);
    4, 1: Admin(AdminCommand::PutTenant);
    5, 1: Admin(AdminCommand::PutQueue);
    6, 1: Admin(AdminCommand::DeleteQueue);
    7, 1: Admin(AdminCommand::PutKey);
    8, 1: Admin(AdminCommand::SetPause);
    9, 1: Admin(AdminCommand::PutSettings);
    20, 1: Schedule(ScheduleCommand::Put);
    21, 1: Schedule(ScheduleCommand::Delete);
    22, 1: Schedule(ScheduleCommand::Pause);
    23, 1: Schedule(ScheduleCommand::Resume);
    24, 1: Schedule(ScheduleCommand::Trigger);
    25, 1: Schedule(ScheduleCommand::Fire);
    26, 1: Schedule(ScheduleCommand::Remove);
    40, 1: Execution(ExecutionCommand::Submit);
    41, 1: Execution(ExecutionCommand::Cancel);
    42, 1: Execution(ExecutionCommand::Delete);
    43, 1: Execution(ExecutionCommand::ProcessDue);
    60, 1: Lease(LeaseCommand::Grant);
    61, 1: Lease(LeaseCommand::Report);
    62, 1: Lease(LeaseCommand::Expire);
    63, 1: Lease(LeaseCommand::Revoke);
}

fn envelope(origin: Origin, command: Command) -> Envelope {
    Envelope {
        actor: origin.actor,
        reason: origin.reason,
        request_id: origin.request_id,
        received_at: origin.received_at,
        idempotency: origin.idempotency,
        command,
    }
}
