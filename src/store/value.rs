//! Stored values: a versioned envelope around bincode.
//!
//! Purpose: each value says what it is, so that a newer build's value stops an older node instead of being misread.
//! Layout: `format u8 | kind u16 le | version u8 | bincode 1.3 fixint body`. Callers: `state`, `leader`, `api` reads.
//! Invariant: a (kind, version) pair means one frozen struct for ever; a changed struct gets a new version and a
//! conversion at read.

use bincode::Options;
use serde::{Serialize, de::DeserializeOwned};

use crate::command::codec::bincode;
use crate::fault::Fault;
use crate::model;

/// First byte of every stored value.
pub const FORMAT: u8 = 1;
/// Largest stored value, in bytes (a final execution with attempts, errors and result).
pub const VALUE_MAX: u64 = 2 * 1024 * 1024;
const HEADER_LEN: usize = 4;

/// A type with a number in the format.
pub trait Stored: Serialize + DeserializeOwned {
    /// Its number. Never used for anything else again.
    const KIND: u16;
    /// Version of its layout.
    const VERSION: u8;
}

/// Encodes a value with its envelope.
///
/// # Errors
/// [`Fault::Invariant`] when it is over [`VALUE_MAX`]: bounds on requests keep values below it.
pub fn encode<T: Stored>(value: &T) -> Result<Vec<u8>, Fault> {
    let mut out = Vec::with_capacity(256);
    out.push(FORMAT);
    out.extend_from_slice(&T::KIND.to_le_bytes());
    out.push(T::VERSION);
    bincode(VALUE_MAX)
        .serialize_into(&mut out, value)
        .map_err(|e| Fault::invariant(format!("value of kind {}: {e}", T::KIND)))?;
    Ok(out)
}

/// Decodes a value.
///
/// # Errors
/// [`Fault::UnknownFormat`] for a newer format or version; [`Fault::Corrupt`] for anything else.
pub fn decode<T: Stored>(bytes: &[u8]) -> Result<T, Fault> {
    let short = || Fault::corrupt(format!("a value of {} bytes", bytes.len()));
    let (header, body) = bytes.split_at_checked(HEADER_LEN).ok_or_else(short)?;
    let [format, low, high, version] = *header else {
        return Err(short());
    };
    let kind = u16::from_le_bytes([low, high]);
    if format != FORMAT {
        return Err(Fault::UnknownFormat(format!("value format {format}")));
    }
    if kind != T::KIND {
        return Err(Fault::corrupt(format!(
            "value kind {kind} where {} belongs",
            T::KIND
        )));
    }
    if version != T::VERSION {
        return Err(Fault::UnknownFormat(format!(
            "value kind {kind} version {version}"
        )));
    }
    bincode(VALUE_MAX)
        .deserialize(body)
        .map_err(|e| Fault::corrupt(format!("value kind {kind}: {e}")))
}

/// The table of stored kinds: a line here is a line in the format, for ever.
macro_rules! stored {
    ($($kind:literal, $version:literal: $type:ty;)*) => {
        $(impl Stored for $type {
            const KIND: u16 = $kind;
            const VERSION: u8 = $version;
        })*

        /// Every stored (kind, version), for `STORAGE.md` and the golden tests.
        pub const KINDS: &[(u16, u8, &str)] = &[$(($kind, $version, stringify!($type))),*];
    };
}

stored! {
    1, 1: crate::state::resident::AppliedRow;
    2, 1: model::cluster::ClusterState;
    3, 1: model::tenant::Tenant;
    4, 1: model::tenant::TenantUsage;
    5, 1: model::queue::Queue;
    6, 1: model::queue::LineCounts;
    7, 1: model::queue::KeyState;
    10, 1: model::schedule::Schedule;
    11, 1: model::schedule::ScheduleStatus;
    12, 1: model::execution::Execution;
    13, 1: model::lease::Lease;
    14, 1: crate::command::outcome::LineValue;
    15, 1: model::execution::FinalExecution;
    16, 1: model::history::LedgerRow;
    17, 1: model::history::AuditRecord;
    18, 1: model::history::IdempotencyRecord;
    19, 1: model::history::ChosenId;
    20, 1: model::history::UniqueHolder;
    21, 1: model::queue::DeletedQueue;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::queue::LineCounts;

    #[test]
    fn kinds_are_unique() {
        let mut kinds: Vec<u16> = KINDS.iter().map(|k| k.0).collect();
        kinds.dedup();
        assert_eq!(kinds.len(), KINDS.len());
    }

    #[test]
    fn foreign_bytes_are_told_apart() {
        let counts = LineCounts {
            ready: 3,
            ..LineCounts::default()
        };
        let bytes = encode(&counts).expect("encodes");
        assert_eq!(decode::<LineCounts>(&bytes).expect("decodes"), counts);
        let newer = [&[1, 6, 0, 9], &bytes[4..]].concat();
        assert!(matches!(
            decode::<LineCounts>(&newer),
            Err(Fault::UnknownFormat(_))
        ));
        let longer = [&bytes[..], &[0]].concat();
        assert!(matches!(
            decode::<LineCounts>(&longer),
            Err(Fault::Corrupt(_))
        ));
        assert!(matches!(decode::<LineCounts>(&[1]), Err(Fault::Corrupt(_))));
    }
}
