//! Opening the log: options, what is on disk, and whether it can be trusted.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::{Condvar, Mutex};
use rocksdb::{
    ColumnFamilyDescriptor, DB, DBCompressionType, DBRecoveryMode, IteratorMode, Options,
};

use super::super::LogStatus;
use super::super::image::{Image, Placed};
use super::super::record::{Stored, Watermark, decode_entry, decode_vote, decode_watermark};
use super::super::witness::Witness;
use super::writer::{End, OnDisk};
use super::{
    ENTRIES, META, PURGED, RocksLog, Shared, State, TAIL_BYTES, VOTE, family, fault, writer,
};
use crate::fault::Fault;

/// Entries checked at every start, besides those that apply will read anyway.
const CHECKED_MAX: usize = 4_096;

fn database_options() -> Options {
    let mut options = Options::default();
    options.create_if_missing(true);
    options.create_missing_column_families(true);
    options.set_max_background_jobs(2);
    options.set_max_open_files(256);
    options.set_bytes_per_sync(1 << 20);
    options.set_max_total_wal_size(256 << 20);
    options.set_keep_log_file_num(4);
    // The default mode stops silently at the first damaged record; this one refuses damage anywhere but at a torn end.
    options.set_wal_recovery_mode(DBRecoveryMode::TolerateCorruptedTailRecords);
    options.set_track_and_verify_wals_in_manifest(true);
    options
}

fn entries_options() -> Options {
    let mut options = Options::default();
    options.set_write_buffer_size(64 << 20);
    options.set_max_write_buffer_number(3);
    options.set_compression_type(DBCompressionType::Lz4);
    // Entries are written once, read rarely and purged in whole files: compaction would be work for nothing.
    options.set_level_zero_file_num_compaction_trigger(16);
    options.set_level_zero_slowdown_writes_trigger(64);
    options.set_level_zero_stop_writes_trigger(128);
    options
}

fn meta_options() -> Options {
    let mut options = Options::default();
    options.set_write_buffer_size(1 << 20);
    options
}

pub(super) fn open(data_dir: &Path, accept_loss: bool) -> Result<RocksLog, Fault> {
    let made = fs::create_dir_all(data_dir);
    made.map_err(|e| Fault::storage(format!("create {}", data_dir.display()), e))?;
    let families = [
        ColumnFamilyDescriptor::new(ENTRIES, entries_options()),
        ColumnFamilyDescriptor::new(META, meta_options()),
    ];
    let db = DB::open_cf_descriptors(&database_options(), data_dir.join("log"), families)
        .map_err(|e| fault("open", e))?;
    let (state, disk) = load(&db)?;
    let status = state.status();
    if accept_loss {
        Witness::reset(data_dir, &status)?;
    }
    let witness = Witness::open(data_dir)?;
    witness
        .check(&status)
        .map_err(|loss| Fault::corrupt(loss.to_string()))?;
    witness.observe(status.vote, status.last.map(|p| p.index));
    let shared = Arc::new(Shared {
        db,
        state: Mutex::new(state),
        work: Condvar::new(),
        closing: Condvar::new(),
        witness,
    });
    let threads = writer::start(&shared, disk)?;
    Ok(RocksLog { shared, threads })
}

pub(super) fn survey(data_dir: &Path) -> Result<Option<LogStatus>, Fault> {
    let path = data_dir.join("log");
    if !path.is_dir() {
        return Ok(None);
    }
    let families = [
        ColumnFamilyDescriptor::new(ENTRIES, entries_options()),
        ColumnFamilyDescriptor::new(META, meta_options()),
    ];
    let mut options = database_options();
    options.create_if_missing(false);
    options.create_missing_column_families(false);
    let db = DB::open_cf_descriptors_read_only(&options, path, families, false)
        .map_err(|e| fault("open for reading", e))?;
    Ok(Some(load(&db)?.0.status()))
}

fn meta(db: &DB, name: &[u8]) -> Result<Option<Bytes>, Fault> {
    let meta = family(db, META)?;
    let value = db.get_cf(&meta, name).map_err(|e| fault("read meta", e))?;
    Ok(value.map(Bytes::from))
}

/// The newest entries, oldest first, each chained to the one before it.
fn newest(db: &DB) -> Result<Vec<Stored>, Fault> {
    let entries = family(db, ENTRIES)?;
    let mut taken: Vec<Stored> = Vec::new();
    let mut bytes = 0u64;
    for pair in db.iterator_cf(&entries, IteratorMode::End) {
        let (_, value) = pair.map_err(|e| fault("read the end", e))?;
        let stored = decode_entry(&Bytes::from(value.into_vec()))?;
        if let Some(after) = taken.last() {
            let index = after.record.position.index;
            if stored.record.position.index.saturating_add(1) != index
                || after.before != stored.chain
            {
                return Err(Fault::corrupt(format!(
                    "log: entry {index} does not follow the one before it"
                )));
            }
        }
        bytes = bytes.saturating_add(stored.record.weight());
        taken.push(stored);
        if bytes > TAIL_BYTES / 2 || taken.len() >= CHECKED_MAX {
            break;
        }
    }
    taken.reverse();
    Ok(taken)
}

fn first_on_disk(db: &DB) -> Result<Option<Stored>, Fault> {
    let entries = family(db, ENTRIES)?;
    let first = db.iterator_cf(&entries, IteratorMode::Start).next();
    let first = first.transpose().map_err(|e| fault("read the start", e))?;
    first
        .map(|(_, value)| decode_entry(&Bytes::from(value.into_vec())))
        .transpose()
}

/// What is on disk, for memory and for the writer.
fn load(db: &DB) -> Result<(State, OnDisk), Fault> {
    let vote = meta(db, VOTE)?.as_ref().map(decode_vote).transpose()?;
    let purged = meta(db, PURGED)?
        .as_ref()
        .map(decode_watermark)
        .transpose()?;
    let newest = newest(db)?;
    let first = first_on_disk(db)?;
    if let (Some(mark), Some(first)) = (&purged, &first)
        && (first.record.position.index != mark.position.index.saturating_add(1)
            || first.before != mark.chain)
    {
        return Err(Fault::corrupt(format!(
            "log: the first entry {} does not follow the purged {}",
            first.record.position.index, mark.position.index
        )));
    }
    let end = end_of(newest.last(), purged.as_ref());
    let last = newest
        .last()
        .map(|s| s.record.position)
        .or(purged.map(|m| m.position));
    let first = match (&first, &purged) {
        (Some(first), _) => first.record.position.index,
        (None, Some(mark)) => mark.position.index.saturating_add(1),
        (None, None) => 0,
    };
    let tail = Image {
        vote,
        purged: purged.map(|m| m.position),
        records: newest
            .into_iter()
            .map(|s| Placed {
                record: s.record,
                offset: s.offset,
            })
            .collect(),
        end_offset: end.offset,
    };
    let mut state = State {
        tail,
        tail_bytes: 0,
        first,
        last,
        synced: last.map(|p| p.index),
        queue: std::collections::VecDeque::new(),
        generation: 0,
        failed: None,
        closing: false,
    };
    state.recount();
    let disk = OnDisk {
        vote,
        mark: purged,
        last: last.map(|p| p.index),
        end,
    };
    Ok((state, disk))
}

fn end_of(last: Option<&Stored>, purged: Option<&Watermark>) -> End {
    match (last, purged) {
        (Some(last), _) => End {
            chain: last.chain,
            offset: last.offset.saturating_add(last.record.weight()),
        },
        (None, Some(mark)) => End {
            chain: mark.chain,
            offset: mark.offset,
        },
        (None, None) => End::default(),
    }
}
