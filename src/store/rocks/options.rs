//! How RocksDB is set up: memory, instance, families.
//!
//! Purpose: the one place with engine options, and the reason for each that is not obvious.
//! Callers: `store::rocks`; whoever opens the Raft log may take its block cache from the same
//! [`RocksMemory`].
//! Invariants: no write-ahead log and atomic flush always go together (the Raft log replays what
//! was not flushed, and all families must come back at the same write); nothing is merged, expired
//! or filtered by compaction, so that replicas do not differ in time.

use rocksdb::{
    BlockBasedIndexType, BlockBasedOptions, Cache, ColumnFamilyDescriptor, DBCompressionType,
    FlushOptions, LogLevel, Options, ReadOptions, WriteBufferManager, WriteOptions,
};

use crate::store::{Family, KeyRange};

const MIB: usize = 1 << 20;

/// Memory shared by everything that one process opens in RocksDB.
///
/// Two caps, not one: blocks (data, indexes and filters) stay within the cache, memtables within
/// their own budget. Charging memtables to a small cache would let a burst of writes evict every
/// block.
#[derive(Clone)]
pub struct RocksMemory {
    cache: Cache,
    memtables: WriteBufferManager,
}

impl RocksMemory {
    /// Default for blocks: 64 MiB.
    pub const CACHE_BYTES: usize = 64 * MIB;
    /// Default for memtables: 128 MiB. The caller flushes at 64 MiB already; the rest is for the
    /// memtables that are being written out meanwhile.
    pub const MEMTABLE_BYTES: usize = 128 * MIB;

    /// `cache_bytes` for blocks (a hard cap but for blocks in use), `memtable_bytes` for memtables
    /// (a soft one: near it a flush starts, and writers are never stopped for it, since a scan that
    /// holds an old memtable while it waits for the writer would then wait for ever).
    #[must_use]
    pub fn new(cache_bytes: usize, memtable_bytes: usize) -> Self {
        Self {
            cache: Cache::new_lru_cache(cache_bytes),
            memtables: WriteBufferManager::new_write_buffer_manager(memtable_bytes, false),
        }
    }

    /// The block cache, to share.
    #[must_use]
    pub fn cache(&self) -> &Cache {
        &self.cache
    }

    /// Bytes of blocks held, and of those the bytes in use right now.
    #[must_use]
    pub fn cache_usage(&self) -> (usize, usize) {
        (self.cache.get_usage(), self.cache.get_pinned_usage())
    }

    /// Bytes held by memtables, those being written out included.
    #[must_use]
    pub fn memtable_usage(&self) -> usize {
        self.memtables.get_usage()
    }
}

impl Default for RocksMemory {
    fn default() -> Self {
        Self::new(Self::CACHE_BYTES, Self::MEMTABLE_BYTES)
    }
}

/// Options of a whole instance.
pub(super) fn instance(memory: &RocksMemory) -> Options {
    let mut options = Options::default();
    options.set_atomic_flush(true);
    options.set_paranoid_checks(true);
    options.set_write_buffer_manager(&memory.memtables);
    options.set_max_background_jobs(2);
    // One writer: the machinery for many costs more than it gives.
    options.set_allow_concurrent_memtable_write(false);
    options.set_max_open_files(1_000);
    options.set_bytes_per_sync(MIB as u64);
    // Files of a dropped scan are deleted by a background thread, not by the reader.
    options.set_avoid_unnecessary_blocking_io(true);
    options.set_max_manifest_file_size(16 * MIB);
    options.set_stats_dump_period_sec(0);
    options.set_stats_persist_period_sec(0);
    options.set_log_level(LogLevel::Warn);
    options.set_max_log_file_size(4 * MIB);
    options.set_keep_log_file_num(2);
    options
}

/// Every family of an instance with its options.
pub(super) fn families(memory: &RocksMemory) -> Vec<ColumnFamilyDescriptor> {
    let families = Family::ALL.into_iter();
    families
        .map(|family| ColumnFamilyDescriptor::new(family.name(), of_family(family, memory)))
        .collect()
}

/// How a family is used, which decides its filters, compression and compaction.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Use {
    /// Singletons and counters: small, always in memory.
    Tiny,
    /// Read by whole key, often one that is absent.
    Lookup,
    /// Read by whole key that nearly always exists, or by range; mostly cold.
    Archive,
    /// Inserted, scanned from a watermark, deleted; never looked up by key.
    Queue,
}

const fn use_of(family: Family) -> Use {
    match family {
        Family::Meta => Use::Tiny,
        Family::Live | Family::Keys => Use::Lookup,
        Family::Body | Family::History => Use::Archive,
        Family::Lines | Family::DueMinute | Family::DueHour | Family::DueDay | Family::DueFar => {
            Use::Queue
        }
    }
}

fn of_family(family: Family, memory: &RocksMemory) -> Options {
    let kind = use_of(family);
    let mut options = Options::default();
    options.set_write_buffer_size(64 * MIB);
    options.set_max_write_buffer_number(3);
    // Ten families hold a block each as soon as they are written to.
    options.set_arena_block_size(256 * 1024);
    options.set_level_compaction_dynamic_level_bytes(true);
    options.set_target_file_size_base(64 * MIB as u64);
    options.set_compression_type(DBCompressionType::Lz4);
    match kind {
        Use::Tiny => {}
        Use::Lookup => options.set_bottommost_compression_type(DBCompressionType::Zstd),
        Use::Archive => {
            options.set_bottommost_compression_type(DBCompressionType::Zstd);
            // Its keys are found nearly always: a filter of the last level would be pure cost.
            options.set_optimize_filters_for_hits(true);
        }
        // A file in which half of the entries are deletes is compacted soon: scans that start at a
        // watermark do not walk them, but they hold space and the keys that they delete.
        Use::Queue => options.add_compact_on_deletion_collector_factory(4_096, 2_048, 0.5),
    }
    options.set_block_based_table_factory(&table(kind, memory));
    options
}

/// Blocks, index and filters. Everything goes through the cache, so that memory does not grow with
/// the data; indexes and filters are cut into partitions, so that a lookup loads a few KiB of them.
fn table(kind: Use, memory: &RocksMemory) -> BlockBasedOptions {
    let mut table = BlockBasedOptions::default();
    table.set_block_cache(&memory.cache);
    table.set_block_size(16 * 1024);
    table.set_format_version(6);
    table.set_cache_index_and_filter_blocks(true);
    table.set_cache_index_and_filter_blocks_with_high_priority(true);
    table.set_pin_l0_filter_and_index_blocks_in_cache(true);
    table.set_pin_top_level_index_and_filter(true);
    table.set_index_type(BlockBasedIndexType::TwoLevelIndexSearch);
    if matches!(kind, Use::Lookup | Use::Archive) {
        table.set_bloom_filter(10.0, false);
        table.set_whole_key_filtering(true);
        table.set_partition_filters(true);
        table.set_optimize_filters_for_memory(true);
    }
    table
}

/// Writes bypass the write-ahead log: the Raft log is it.
pub(super) fn write() -> WriteOptions {
    let mut options = WriteOptions::default();
    options.disable_wal(true);
    options
}

/// Flushes wait for the disk.
pub(super) fn flush() -> FlushOptions {
    let mut options = FlushOptions::default();
    options.set_wait(true);
    options
}

/// Reads check every block's checksum.
pub(super) fn read() -> ReadOptions {
    let mut options = ReadOptions::default();
    options.set_verify_checksums(true);
    options
}

/// A scan of `range`: bounded on both sides where the range is, so that it never walks deletes
/// beyond.
pub(super) fn scan(range: &KeyRange) -> ReadOptions {
    let mut options = read();
    options.set_total_order_seek(true);
    options.set_iterate_lower_bound(range.from.as_slice());
    if let Some(to) = &range.to {
        options.set_iterate_upper_bound(to.as_slice());
    }
    options
}
