//! What the engine says about itself, for metrics.
//!
//! Purpose: sizes, debts and stalls as plain numbers.
//! Callers: `node` (metrics), tests and measurements.
//! All figures are of one node and of this moment; estimates are named so.

use rocksdb::properties;

use super::instance::{Instance, fault};
use super::options::RocksMemory;
use crate::fault::Fault;
use crate::store::{Family, PerFamily};

/// Figures of one family.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FamilyStatistics {
    /// Live keys, estimated from entries and deletes.
    pub key_count_estimate: u64,
    /// Bytes of live table files.
    pub sst_bytes: u64,
    /// Bytes of memtables not yet written out.
    pub memtable_bytes: u64,
    /// Bytes that compaction should rewrite, estimated.
    pub compaction_debt_bytes: u64,
}

/// Figures of a store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RocksStatistics {
    /// Each family.
    pub families: PerFamily<FamilyStatistics>,
    /// Bytes of blocks in the cache (shared by the process).
    pub cache_bytes: u64,
    /// Bytes of those in use right now.
    pub cache_pinned_bytes: u64,
    /// Bytes of all memtables, those being written out included.
    pub memtable_bytes: u64,
    /// Compactions running.
    pub compaction_count: u64,
    /// Flushes running.
    pub flush_count: u64,
    /// Whether writes wait for flush or compaction.
    pub write_stopped: bool,
    /// Bytes a second that writes are slowed to; 0 when they are not.
    pub write_delay_rate: u64,
    /// Errors in the background since the start.
    pub background_error_count: u64,
    /// Open snapshots.
    pub snapshot_count: u64,
}

pub(super) fn collect(instance: &Instance, memory: &RocksMemory) -> Result<RocksStatistics, Fault> {
    let families = PerFamily::try_build(|family| of_family(instance, family))?;
    let whole = |name: &properties::PropName| {
        let value = instance.db().property_int_value(name);
        value
            .map(Option::unwrap_or_default)
            .map_err(|e| fault("read statistics", e))
    };
    let (cache, pinned) = memory.cache_usage();
    Ok(RocksStatistics {
        families,
        cache_bytes: cache as u64,
        cache_pinned_bytes: pinned as u64,
        memtable_bytes: memory.memtable_usage() as u64,
        compaction_count: whole(properties::NUM_RUNNING_COMPACTIONS)?,
        flush_count: whole(properties::NUM_RUNNING_FLUSHES)?,
        write_stopped: whole(properties::IS_WRITE_STOPPED)? != 0,
        write_delay_rate: whole(properties::ACTUAL_DELAYED_WRITE_RATE)?,
        background_error_count: whole(properties::BACKGROUND_ERRORS)?,
        snapshot_count: whole(properties::NUM_SNAPSHOTS)?,
    })
}

fn of_family(instance: &Instance, family: Family) -> Result<FamilyStatistics, Fault> {
    let handle = instance.family(family)?;
    let value = |name: &properties::PropName| {
        let value = instance.db().property_int_value_cf(handle, name);
        value
            .map(Option::unwrap_or_default)
            .map_err(|e| fault("read statistics", e))
    };
    Ok(FamilyStatistics {
        key_count_estimate: value(properties::ESTIMATE_NUM_KEYS)?,
        sst_bytes: value(properties::LIVE_SST_FILES_SIZE)?,
        memtable_bytes: value(properties::CUR_SIZE_ALL_MEM_TABLES)?,
        compaction_debt_bytes: value(properties::ESTIMATE_PENDING_COMPACTION_BYTES)?,
    })
}
