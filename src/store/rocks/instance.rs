//! One open RocksDB instance, and reading from it.
//!
//! Purpose: open with every check, and give [`View`]s of the current content, of a snapshot, or of
//! a checkpoint.
//! Callers: `store::rocks` only.
//! Invariants:
//! 1. An instance holds exactly the families of this build and the format marker of this build, or
//!    is not opened.
//! 2. Every scan has a lower bound, an upper one where the range has one, and ends with a check of
//!    its status, so that a read error is never a short answer.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use rocksdb::{
    ColumnFamily, DBWithThreadMode, ErrorKind, Options, ReadOptions, SingleThreaded,
    SnapshotWithThreadMode,
};
use self_cell::self_cell;

use super::directory::Directory;
use super::options::{self, RocksMemory};
use crate::fault::Fault;
use crate::store::{Direction, Family, KeyRange, View, Visit, WriteBatch};

/// The families never change, so the handles need no lock.
pub(super) type Db = DBWithThreadMode<SingleThreaded>;

/// RocksDB's own family, which holds nothing but the marker. It is no part of the replicated state,
/// and travels with checkpoints.
const MARKER_FAMILY: &str = "default";
const MARKER_KEY: &[u8] = b"punctual";
const MARKER_HEAD: &[u8] = b"state ";
const MARKER: &[u8] = b"state 1";

/// An open instance. Dropping it flushes and closes the engine, then removes its directory if that
/// is marked.
pub(super) struct Instance {
    // Fields drop in order: the engine closes before its directory may go.
    db: Db,
    read: ReadOptions,
    directory: Arc<Directory>,
}

impl Instance {
    /// Creates an empty instance at `path` and closes it again.
    pub(super) fn create(path: &Path, memory: &RocksMemory) -> Result<(), Fault> {
        let mut settings = options::instance(memory);
        settings.create_if_missing(true);
        settings.create_missing_column_families(true);
        settings.set_error_if_exists(true);
        let doing = || format!("create {}", path.display());
        let db = Db::open_cf_descriptors(&settings, path, options::families(memory))
            .map_err(|e| fault(doing(), e))?;
        db.put_opt(MARKER_KEY, MARKER, &options::write())
            .and_then(|()| db.flush_opt(&options::flush()))
            .map_err(|e| fault(doing(), e))
    }

    /// Opens the instance in `directory` for reading and writing.
    pub(super) fn open(directory: Arc<Directory>, memory: &RocksMemory) -> Result<Self, Fault> {
        let path = directory.path();
        check_families(path)?;
        let settings = options::instance(memory);
        let db = Db::open_cf_descriptors(&settings, path, options::families(memory))
            .map_err(|e| fault(format!("open {}", path.display()), e))?;
        Self::checked(db, directory)
    }

    /// Opens the instance in `directory` without changing a file of it.
    pub(super) fn open_read_only(
        directory: Arc<Directory>,
        memory: &RocksMemory,
    ) -> Result<Self, Fault> {
        let path = directory.path();
        check_families(path)?;
        let settings = options::instance(memory);
        let families = options::families(memory);
        let db = Db::open_cf_descriptors_read_only(&settings, path, families, false)
            .map_err(|e| fault(format!("open {}", path.display()), e))?;
        Self::checked(db, directory)
    }

    fn checked(db: Db, directory: Arc<Directory>) -> Result<Self, Fault> {
        check_marker(&db)?;
        let read = options::read();
        Ok(Self {
            db,
            read,
            directory,
        })
    }

    pub(super) fn db(&self) -> &Db {
        &self.db
    }

    pub(super) fn directory(&self) -> &Directory {
        &self.directory
    }

    /// The handle of `family`.
    pub(super) fn family(&self, family: Family) -> Result<&ColumnFamily, Fault> {
        self.db
            .cf_handle(family.name())
            .ok_or_else(|| Fault::invariant("every family is open"))
    }

    pub(super) fn write(&self, batch: &WriteBatch) -> Result<(), Fault> {
        let mut writes = rocksdb::WriteBatch::default();
        for (family, key, value) in &batch.ops {
            let handle = self.family(*family)?;
            match value {
                Some(value) => writes.put_cf(handle, key, value),
                None => writes.delete_cf(handle, key),
            }
        }
        self.db
            .write_opt(writes, &options::write())
            .map_err(|e| fault("write", e))
    }

    pub(super) fn flush(&self) -> Result<(), Fault> {
        let mut handles = Vec::with_capacity(Family::COUNT);
        for family in Family::ALL {
            handles.push(self.family(family)?);
        }
        let handles: Vec<&&ColumnFamily> = handles.iter().collect();
        self.db
            .flush_cfs_opt(&handles, &options::flush())
            .map_err(|e| fault("flush", e))
    }

    fn get_with(
        &self,
        read: &ReadOptions,
        family: Family,
        key: &[u8],
    ) -> Result<Option<Vec<u8>>, Fault> {
        self.db
            .get_cf_opt(self.family(family)?, key, read)
            .map_err(|e| fault(format!("read {}", family.name()), e))
    }

    fn multi_get_with(
        &self,
        read: &ReadOptions,
        family: Family,
        keys: &[&[u8]],
    ) -> Result<Vec<Option<Vec<u8>>>, Fault> {
        if keys.is_empty() {
            return Ok(Vec::new());
        }
        let handle = self.family(family)?;
        let found = self
            .db
            .batched_multi_get_cf_opt(handle, keys.iter().copied(), true, read);
        let values = found.into_iter().map(|value| match value {
            Ok(value) => Ok(value.map(|bytes| bytes.to_vec())),
            Err(e) => Err(fault(format!("read {}", family.name()), e)),
        });
        values.collect()
    }

    fn scan_with(
        &self,
        read: ReadOptions,
        (family, range): (Family, &KeyRange),
        direction: Direction,
        visit: &mut Visit<'_>,
    ) -> Result<(), Fault> {
        let mut rows = self.db.raw_iterator_cf_opt(self.family(family)?, read);
        match direction {
            Direction::Forward => rows.seek(&range.from),
            Direction::Backward => rows.seek_to_last(),
        }
        while let Some((key, value)) = rows.item() {
            if visit(key, value).is_break() {
                return Ok(());
            }
            match direction {
                Direction::Forward => rows.next(),
                Direction::Backward => rows.prev(),
            }
        }
        rows.status()
            .map_err(|e| fault(format!("scan {}", family.name()), e))
    }
}

impl View for Instance {
    fn get(&self, family: Family, key: &[u8]) -> Result<Option<Vec<u8>>, Fault> {
        self.get_with(&self.read, family, key)
    }

    fn multi_get(&self, family: Family, keys: &[&[u8]]) -> Result<Vec<Option<Vec<u8>>>, Fault> {
        self.multi_get_with(&self.read, family, keys)
    }

    fn scan(
        &self,
        family: Family,
        range: &KeyRange,
        direction: Direction,
        visit: &mut Visit<'_>,
    ) -> Result<(), Fault> {
        if range.is_empty() {
            return Ok(());
        }
        self.scan_with(options::scan(range), (family, range), direction, visit)
    }
}

type Pinned<'a> = SnapshotWithThreadMode<'a, Db>;

// RocksDB's snapshot borrows its instance, and a view must own both. This is the one self-reference
// of the crate; the macro's unsafe code is `self_cell`'s, reviewed there.
self_cell!(
    struct Owned {
        owner: Arc<Instance>,
        #[covariant]
        dependent: Pinned,
    }
);

/// A [`View`] of one moment. It keeps its instance open, and the deletes since then from being
/// compacted away.
pub(super) struct Snapshot {
    read: ReadOptions,
    owned: Owned,
}

impl Snapshot {
    pub(super) fn new(instance: Arc<Instance>) -> Self {
        let owned = Owned::new(instance, |instance| Pinned::new(&instance.db));
        let mut read = options::read();
        read.set_snapshot(owned.borrow_dependent());
        Self { read, owned }
    }
}

impl View for Snapshot {
    fn get(&self, family: Family, key: &[u8]) -> Result<Option<Vec<u8>>, Fault> {
        self.owned.borrow_owner().get_with(&self.read, family, key)
    }

    fn multi_get(&self, family: Family, keys: &[&[u8]]) -> Result<Vec<Option<Vec<u8>>>, Fault> {
        let instance = self.owned.borrow_owner();
        instance.multi_get_with(&self.read, family, keys)
    }

    fn scan(
        &self,
        family: Family,
        range: &KeyRange,
        direction: Direction,
        visit: &mut Visit<'_>,
    ) -> Result<(), Fault> {
        if range.is_empty() {
            return Ok(());
        }
        let mut read = options::scan(range);
        read.set_snapshot(self.owned.borrow_dependent());
        let instance = self.owned.borrow_owner();
        instance.scan_with(read, (family, range), direction, visit)
    }
}

/// An engine error: damage is told from refusal.
pub(super) fn fault(doing: impl Into<String>, error: rocksdb::Error) -> Fault {
    match error.kind() {
        ErrorKind::Corruption => Fault::corrupt(format!("{}: {error}", doing.into())),
        _ => Fault::storage(doing, error),
    }
}

/// Families of this build, no more and no fewer, before anything is opened for writing.
fn check_families(path: &Path) -> Result<(), Fault> {
    let doing = || format!("list families of {}", path.display());
    let found = Db::list_cf(&Options::default(), path).map_err(|e| fault(doing(), e))?;
    let found: BTreeSet<&str> = found.iter().map(String::as_str).collect();
    let mut known: BTreeSet<&str> = Family::ALL.map(Family::name).into();
    known.insert(MARKER_FAMILY);
    let missing: Vec<&str> = known.difference(&found).copied().collect();
    if !missing.is_empty() {
        let what = format!("{} lacks families {missing:?}", path.display());
        return Err(Fault::corrupt(what));
    }
    let unknown: Vec<&str> = found.difference(&known).copied().collect();
    if !unknown.is_empty() {
        let what = format!("{} has families {unknown:?}", path.display());
        return Err(Fault::UnknownFormat(what));
    }
    Ok(())
}

fn check_marker(db: &Db) -> Result<(), Fault> {
    let path = db.path().display();
    match db.get(MARKER_KEY).map_err(|e| fault("read marker", e))? {
        Some(marker) if marker == MARKER => Ok(()),
        Some(marker) if marker.starts_with(MARKER_HEAD) => Err(Fault::UnknownFormat(format!(
            "{path} is marked {:?}",
            String::from_utf8_lossy(&marker)
        ))),
        _ => Err(Fault::corrupt(format!("{path} has no format marker"))),
    }
}
