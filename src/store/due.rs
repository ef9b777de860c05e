//! The due index: where the next event of each schedule and execution is stored, bucketed by time.
//!
//! Purpose: levels, buckets and keys of the four due families. Callers: `state::due` writes, `leader::wheel` reads.
//! Invariants:
//! 1. The level is chosen once, at insert, by distance; the owner stores [`DueKey`], from which (with its tenant, kind
//!    and id) the whole key follows. Entries never move between levels.
//! 2. `at` is max(true due time, log time of the insert), so an entry is never inserted below log time, and a level's
//!    watermark may be raised to any time not above the log time of a view that held no earlier entry.
//! 3. Shard = tenant number modulo [`SHARDS`], fixed in the format.

use serde::{Deserialize, Serialize};

use crate::ids::TenantNo;
use crate::store::Family;
use crate::time::{Millis, Timestamp};

/// Shards of every bucket.
pub const SHARDS: u8 = 64;

/// A level of the wheel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Level {
    /// Within the hour; buckets of a minute.
    Minute,
    /// Within two days; buckets of an hour.
    Hour,
    /// Within two months; buckets of a day.
    Day,
    /// Later; buckets of thirty days.
    Far,
}

impl Level {
    /// All levels, nearest first.
    pub const ALL: [Self; 4] = [Self::Minute, Self::Hour, Self::Day, Self::Far];

    /// The level for an entry due `at`, inserted at log time `now`.
    #[must_use]
    pub fn choose(now: Timestamp, at: Timestamp) -> Self {
        let distance = at.since(now);
        if distance <= Millis::hours(1) {
            Self::Minute
        } else if distance <= Millis::days(2) {
            Self::Hour
        } else if distance <= Millis::days(60) {
            Self::Day
        } else {
            Self::Far
        }
    }

    /// Its family.
    #[must_use]
    pub const fn family(self) -> Family {
        match self {
            Self::Minute => Family::DueMinute,
            Self::Hour => Family::DueHour,
            Self::Day => Family::DueDay,
            Self::Far => Family::DueFar,
        }
    }

    /// Width of its buckets.
    #[must_use]
    pub const fn width(self) -> Millis {
        match self {
            Self::Minute => Millis::minutes(1),
            Self::Hour => Millis::hours(1),
            Self::Day => Millis::days(1),
            Self::Far => Millis::days(30),
        }
    }

    /// Its place in arrays of one item a level.
    #[must_use]
    pub const fn index(self) -> usize {
        self as usize
    }

    /// The bucket that holds `at`.
    #[must_use]
    pub fn bucket(self, at: Timestamp) -> u32 {
        let from = at.since(Timestamp::MIN).0;
        u32::try_from(from / self.width().0).unwrap_or(u32::MAX)
    }
}

/// What the owner stores of its entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct DueKey {
    /// Level chosen at insert.
    pub level: Level,
    /// Time in the key.
    pub at: Timestamp,
}

impl DueKey {
    /// The key for something due `due_at`, inserted at log time `now`.
    #[must_use]
    pub fn new(now: Timestamp, due_at: Timestamp) -> Self {
        let at = due_at.max(now);
        Self {
            level: Level::choose(now, at),
            at,
        }
    }
}

/// What becomes due.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[repr(u8)]
pub enum DueKind {
    /// A schedule's next occurrence; id: schedule.
    Occurrence = 1,
    /// The next event of a waiting or backing-off execution: it becomes ready, or `timeouts.total` ends it; id: execution.
    Execution = 2,
    /// The deadline of a ready execution: `timeouts.start`, or after a first lease `timeouts.total`; id: execution.
    StartDeadline = 3,
    /// The removal of a completed schedule; id: schedule.
    Removal = 4,
    /// The end of a schedule's timed pause; id: schedule.
    PauseEnd = 5,
}

impl DueKind {
    /// From its byte in a key.
    #[must_use]
    pub const fn from_byte(byte: u8) -> Option<Self> {
        match byte {
            1 => Some(Self::Occurrence),
            2 => Some(Self::Execution),
            3 => Some(Self::StartDeadline),
            4 => Some(Self::Removal),
            5 => Some(Self::PauseEnd),
            _ => None,
        }
    }
}

/// One entry of the due index.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct DueEntry {
    /// Where it is.
    pub key: DueKey,
    /// Owner's tenant.
    pub tenant: TenantNo,
    /// What becomes due.
    pub kind: DueKind,
    /// Schedule or execution name.
    pub id: String,
}

impl DueEntry {
    /// The stored key: bucket u32, shard u8, time u64, tenant u32, kind u8, id; big-endian.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut key = seek(self.key.level, shard(self.tenant), self.key.at);
        key.reserve(5 + self.id.len());
        key.extend_from_slice(&self.tenant.0.to_be_bytes());
        key.push(self.kind as u8);
        key.extend_from_slice(self.id.as_bytes());
        key
    }

    /// Reads a stored key of `level`; `None` when it is not one.
    #[must_use]
    pub fn decode(level: Level, key: &[u8]) -> Option<Self> {
        let (_bucket, rest) = key.split_at_checked(4)?;
        let (_shard, rest) = rest.split_first()?;
        let (at, rest) = rest.split_at_checked(8)?;
        let (tenant, rest) = rest.split_at_checked(4)?;
        let (kind, id) = rest.split_first()?;
        let offset = u64::from_be_bytes(at.try_into().ok()?);
        Some(Self {
            key: DueKey {
                level,
                at: Timestamp::MIN.plus(Millis(offset)),
            },
            tenant: TenantNo(u32::from_be_bytes(tenant.try_into().ok()?)),
            kind: DueKind::from_byte(*kind)?,
            id: std::str::from_utf8(id).ok()?.to_owned(),
        })
    }
}

/// The shard of a tenant.
#[must_use]
pub fn shard(tenant: TenantNo) -> u8 {
    u8::try_from(tenant.0 % u32::from(SHARDS)).unwrap_or(0)
}

/// The smallest possible key in `shard` of the bucket of `at` with time `at` or later.
#[must_use]
pub fn seek(level: Level, shard: u8, at: Timestamp) -> Vec<u8> {
    let mut key = Vec::with_capacity(48);
    key.extend_from_slice(&level.bucket(at).to_be_bytes());
    key.push(shard);
    key.extend_from_slice(&at.since(Timestamp::MIN).0.to_be_bytes());
    key
}

/// The smallest possible key of a bucket.
#[must_use]
pub fn bucket_start(bucket: u32) -> Vec<u8> {
    bucket.to_be_bytes().to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_round_trip_and_sort_by_bucket_shard_and_time() {
        let now = Timestamp::from_millis(1_800_000_000_000);
        let entry = |ms: u64, tenant: u32| DueEntry {
            key: DueKey::new(now, now.plus(Millis(ms))),
            tenant: TenantNo(tenant),
            kind: DueKind::Occurrence,
            id: "daily".into(),
        };
        let a = entry(5_000, 1);
        assert_eq!(DueEntry::decode(a.key.level, &a.encode()), Some(a.clone()));
        assert!(a.encode() < entry(6_000, 1).encode());
        assert!(
            entry(6_000, 1).encode() < entry(5_000, 2).encode(),
            "shard before time"
        );
        assert!(
            entry(5_000, 2).encode() < entry(90_000, 1).encode(),
            "bucket before shard"
        );
        assert_eq!(DueEntry::decode(Level::Minute, b"short"), None);
    }

    #[test]
    fn level_follows_distance_and_late_inserts_take_log_time() {
        let now = Timestamp::from_millis(1_800_000_000_000);
        let level = |d: Millis| DueKey::new(now, now.plus(d)).level;
        assert_eq!(level(Millis::hours(1)), Level::Minute);
        assert_eq!(level(Millis(3_600_001)), Level::Hour);
        assert_eq!(level(Millis::days(3)), Level::Day);
        assert_eq!(level(Millis::days(61)), Level::Far);
        assert_eq!(DueKey::new(now, now.minus(Millis::days(1))).at, now);
    }
}
