//! Commands: wanted changes, as they travel in the Raft log.
//!
//! Purpose: the envelope and one enum a area. Callers: only `api::actions` and `leader` make commands; `state` applies
//! them; [`codec`] gives them their frozen bytes.
//! Invariants:
//! 1. A command carries everything apply needs: instants, zone results, random draws, and what its maker read
//!    (revision, cursor), so that apply can compare and swap.
//! 2. A command touches at most 1,000 rows and encodes to at most [`codec::COMMAND_MAX`] bytes.
//! 3. Kinds and versions are numbers of ours ([`codec`]), never the order of a Rust enum.

pub mod admin;
pub mod codec;
pub mod executions;
pub mod leases;
pub mod outcome;
pub mod schedules;

use serde::{Deserialize, Serialize};

use crate::ids::Revision;
use crate::time::Timestamp;

/// Commands of one log entry, applied in order, atomically together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    /// The leader's stamp. Replicated time becomes max(itself, this).
    pub proposed_at: Timestamp,
    /// The Raft term that decided. Unless it is the term in office, every command but [`admin::TakeOffice`] answers
    /// `NotInOffice` and changes nothing.
    pub term: u64,
    /// The commands.
    pub commands: Vec<Envelope>,
}

/// Who wants a change.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Actor {
    /// The leader itself: firing, expiry, retention.
    #[default]
    Leader,
    /// A caller without a name (no auth configured).
    Anonymous,
    /// A named caller.
    Named(String),
}

impl Actor {
    /// The word in answers and records.
    #[must_use]
    pub fn as_str(&self) -> &str {
        match self {
            Self::Leader => "leader",
            Self::Anonymous => "anonymous",
            Self::Named(name) => name,
        }
    }
}

/// An idempotency key, scoped and hashed by the action (tenant + method + path + key), with the request's content.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Idempotency {
    /// First 16 bytes of SHA-256 over scope and key.
    pub hash: [u8; 16],
    /// First 8 bytes of SHA-256 over the canonical JSON of the body: another one under the same key is a conflict.
    pub fingerprint: u64,
}

/// One command with who, why and for which request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Envelope {
    /// Who.
    pub actor: Actor,
    /// Why, in their words; at most 1 KiB.
    pub reason: Option<String>,
    /// Id of the request, for support.
    pub request_id: Option<String>,
    /// Leader's stamp on arrival (≤ `proposed_at`). Workers' calls are judged by it; `None`: by `proposed_at`.
    pub received_at: Option<Timestamp>,
    /// Makes a repeat answer the first outcome.
    pub idempotency: Option<Idempotency>,
    /// What.
    pub command: Command,
}

impl Envelope {
    /// A command of the leader's own.
    #[must_use]
    pub const fn leader(command: Command) -> Self {
        Self {
            actor: Actor::Leader,
            reason: None,
            request_id: None,
            received_at: None,
            idempotency: None,
            command,
        }
    }
}

/// Everything that can be wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// See [`admin`].
    Admin(admin::AdminCommand),
    /// See [`schedules`].
    Schedule(schedules::ScheduleCommand),
    /// See [`executions`].
    Execution(executions::ExecutionCommand),
    /// See [`leases`].
    Lease(leases::LeaseCommand),
}

/// What a write demands of the object's present state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Expect {
    /// Nothing.
    #[default]
    Any,
    /// It must not exist (`If-None-Match: *`).
    Absent,
    /// It must exist.
    Present,
    /// It must exist with this revision (`If-Match`).
    Revision(Revision),
}
