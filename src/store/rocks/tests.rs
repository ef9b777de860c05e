//! What only the store on disk can get wrong: directories, formats, damage; the rest is the
//! conformance suite.

mod crash;
mod measure;

use std::cell::Cell;
use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use tempfile::TempDir;

use super::*;
use crate::store::conformance::{Subject, conformance_suite, contents, copy, puts};

/// Little memory, so that small tests flush and evict too.
fn memory() -> RocksMemory {
    RocksMemory::new(4 << 20, 8 << 20)
}

/// Stores in one temporary directory; a restart closes and opens again (kills are in `crash`).
struct OnDisk {
    root: TempDir,
    created: Cell<u32>,
}

impl OnDisk {
    fn place(&self, number: u32) -> PathBuf {
        self.root.path().join(format!("node-{number}"))
    }
}

impl Subject for OnDisk {
    type Store = RocksStore;
    const HISTORIES: u32 = 16;

    fn new() -> Self {
        Self {
            root: TempDir::new().unwrap(),
            created: Cell::new(0),
        }
    }

    fn create(&self) -> Arc<RocksStore> {
        let number = self.created.get();
        self.created.set(number + 1);
        let place = self.place(number);
        fs::create_dir(&place).unwrap();
        Arc::new(RocksStore::open(&place, &memory()).unwrap())
    }

    fn restart(&self, store: Arc<RocksStore>) -> Arc<RocksStore> {
        let store = Arc::into_inner(store).expect("nobody else uses the store");
        let place = store.layout.checkpoint(0);
        let place = place.parent().and_then(Path::parent).unwrap().to_path_buf();
        drop(store);
        Arc::new(RocksStore::open(&place, &memory()).unwrap())
    }
}

conformance_suite!(OnDisk);

/// A data directory with an opened store.
fn opened() -> (TempDir, RocksStore) {
    let dir = TempDir::new().unwrap();
    let store = RocksStore::open(dir.path(), &memory()).unwrap();
    (dir, store)
}

fn reopen(dir: &TempDir) -> Result<RocksStore, Fault> {
    RocksStore::open(dir.path(), &memory())
}

/// The names in the state directory.
fn names(dir: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(dir.join("state")).unwrap();
    entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect()
}

fn set(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

/// Changes the raw instance of generation 1 behind the store's back.
fn tamper(dir: &TempDir, change: impl FnOnce(&mut instance::Db)) {
    let path = dir.path().join("state/1");
    let settings = options::instance(&memory());
    let mut db =
        instance::Db::open_cf_descriptors(&settings, path, options::families(&memory())).unwrap();
    change(&mut db);
}

fn fault_of(dir: &TempDir) -> Fault {
    let before = names(dir.path());
    let fault = reopen(dir).err().expect("is not opened");
    assert_eq!(names(dir.path()), before, "nothing is removed or added");
    fault
}

#[test]
fn an_unknown_marker_is_an_unknown_format() {
    let (dir, store) = opened();
    drop(store);
    tamper(&dir, |db| db.put(b"punctual", b"state 2").unwrap());
    assert!(matches!(fault_of(&dir), Fault::UnknownFormat(_)));
    tamper(&dir, |db| db.delete(b"punctual").unwrap());
    assert!(matches!(fault_of(&dir), Fault::Corrupt(_)));
}

#[test]
fn a_missing_family_is_damage_and_an_additional_one_is_an_unknown_format() {
    let (dir, store) = opened();
    drop(store);
    tamper(&dir, |db| {
        db.create_cf("newer", &rocksdb::Options::default()).unwrap();
    });
    let fault = fault_of(&dir);
    assert!(
        matches!(&fault, Fault::UnknownFormat(what) if what.contains("newer")),
        "{fault}"
    );
    let (dir, store) = opened();
    drop(store);
    tamper(&dir, |db| db.drop_cf("history").unwrap());
    let fault = fault_of(&dir);
    assert!(
        matches!(&fault, Fault::Corrupt(what) if what.contains("history")),
        "{fault}"
    );
}

#[test]
fn a_damaged_or_newer_current_file_is_not_guessed_around() {
    let (dir, store) = opened();
    drop(store);
    let path = dir.path().join("state/CURRENT");
    let good = fs::read_to_string(&path).unwrap();
    fs::write(&path, good.replace("generation 1", "generation 2")).unwrap();
    assert!(matches!(fault_of(&dir), Fault::Corrupt(_)));
    fs::write(&path, good.replace("format 1", "format 2")).unwrap();
    assert!(matches!(fault_of(&dir), Fault::UnknownFormat(_)));
    fs::write(&path, good).unwrap();
    reopen(&dir).unwrap();
}

#[test]
fn a_generation_that_current_names_must_exist() {
    let (dir, store) = opened();
    drop(store);
    fs::rename(dir.path().join("state/1"), dir.path().join("aside")).unwrap();
    fault_of(&dir);
}

#[test]
fn without_current_the_only_generation_is_adopted_and_several_are_refused() {
    let (dir, store) = opened();
    store.write(puts(Family::Live, &[(b"a", b"1")])).unwrap();
    store.flush().unwrap();
    drop(store);
    let state = dir.path().join("state");
    fs::remove_file(state.join("CURRENT")).unwrap();
    fs::create_dir(state.join("2")).unwrap();
    assert!(matches!(fault_of(&dir), Fault::Corrupt(_)));
    fs::remove_dir(state.join("2")).unwrap();
    let store = reopen(&dir).unwrap();
    assert_eq!(
        store.get(Family::Live, b"a").unwrap().as_deref(),
        Some(&b"1"[..])
    );
    assert_eq!(names(dir.path()), set(&["1", "CURRENT"]));
}

#[test]
fn a_cut_creation_starts_again() {
    let dir = TempDir::new().unwrap();
    let creating = dir.path().join("state/creating");
    fs::create_dir_all(&creating).unwrap();
    fs::write(creating.join("MANIFEST-000001"), b"half").unwrap();
    drop(reopen(&dir).unwrap());
    assert_eq!(names(dir.path()), set(&["1", "CURRENT"]));
}

#[test]
fn leftovers_go_at_the_next_start_and_foreign_names_stay() {
    let (dir, store) = opened();
    drop(store);
    let state = dir.path().join("state");
    for name in ["2", "17", "checkpoint-3", "creating"] {
        fs::create_dir(state.join(name)).unwrap();
        fs::write(state.join(name).join("file"), b"x").unwrap();
    }
    fs::write(state.join("CURRENT.tmp"), b"half").unwrap();
    fs::write(state.join("note.txt"), b"mine").unwrap();
    drop(reopen(&dir).unwrap());
    assert_eq!(names(dir.path()), set(&["1", "CURRENT", "note.txt"]));
}

#[test]
fn checkpoints_stagings_and_replaced_generations_go_with_their_last_user() {
    let (dir, store) = opened();
    store.write(puts(Family::Live, &[(b"a", b"1")])).unwrap();
    let checkpoint = store.checkpoint().unwrap();
    let mut staging = store.stage().unwrap();
    assert_eq!(
        names(dir.path()),
        set(&["1", "2", "CURRENT", "checkpoint-1"])
    );
    copy(&*checkpoint, &mut *staging, 1 << 20);
    let view = checkpoint.view().unwrap();
    drop(checkpoint);
    assert!(
        names(dir.path()).contains("checkpoint-1"),
        "the view needs it"
    );
    drop(view);
    drop(staging.seal().unwrap());
    let snapshot = store.snapshot();
    store.install(staging).unwrap();
    assert_eq!(names(dir.path()), set(&["1", "2", "CURRENT"]));
    drop(snapshot);
    assert_eq!(names(dir.path()), set(&["2", "CURRENT"]));
    drop(store.stage().unwrap());
    assert_eq!(names(dir.path()), set(&["2", "CURRENT"]));
}

#[test]
fn discarded_files_leave_the_disk() {
    let (_dir, store) = opened();
    let key = |n: u32| n.to_be_bytes().to_vec();
    for n in 0..4_000_u32 {
        let value: Vec<u8> = (0..1_000_u32)
            .map(|i| n.wrapping_mul(i + 77).to_be_bytes()[2])
            .collect();
        store
            .write(puts(Family::DueHour, &[(&key(n), &value)]))
            .unwrap();
        if n % 500 == 499 {
            store.flush().unwrap();
        }
    }
    // Files of level 0 are never discarded: push them down, still one file for each flush.
    let live = store.live();
    let family = live.family(Family::DueHour).unwrap();
    live.db()
        .compact_range_cf(family, None::<&[u8]>, None::<&[u8]>);
    let size = || {
        store
            .statistics()
            .unwrap()
            .families
            .get(Family::DueHour)
            .sst_bytes
    };
    let before = size();
    let range = KeyRange::new(key(0), key(3_999));
    store.discard_files(Family::DueHour, &range).unwrap();
    assert!(size() < before, "files inside the range go");
    let last = store.get(Family::DueHour, &key(3_999)).unwrap();
    assert!(
        last.is_some(),
        "the end of the range is excluded: its file stays"
    );
    let range = KeyRange::new(key(0), key(4_000));
    store.discard_files(Family::DueHour, &range).unwrap();
    assert_eq!(size(), 0);
    assert_eq!(store.get(Family::DueHour, &key(7)).unwrap(), None);
    let snapshot = store.snapshot();
    assert!(contents(&*snapshot).is_empty());
}

#[test]
fn the_end_of_a_discarded_range_is_excluded() {
    for to in [
        &b"a"[..],
        b"a\x00",
        b"a\x00\x00",
        b"\x00",
        b"\xff",
        b"b\xff",
    ] {
        let last = last_below(to).unwrap();
        assert!(last.as_slice() < to, "{to:?}");
    }
    assert_eq!(last_below(b"a\x00").as_deref(), Some(&b"a"[..]));
    assert_eq!(last_below(b""), None);
}

#[test]
fn a_flipped_byte_is_an_error_or_harmless_and_never_another_answer() {
    let (dir, store) = opened();
    for n in 0..600_u32 {
        let key = n.wrapping_mul(2_654_435_761).to_be_bytes();
        store
            .write(puts(Family::Live, &[(&key, &[n.to_be_bytes()[3]; 90])]))
            .unwrap();
    }
    store.flush().unwrap();
    let expected = contents(&store);
    drop(store);
    let instance = dir.path().join("state/1");
    let entries = fs::read_dir(&instance)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let is_table = |path: &PathBuf| path.extension().is_some_and(|kind| kind == "sst");
    let tables: Vec<_> = entries.filter(is_table).collect();
    let table = tables
        .iter()
        .max_by_key(|path| fs::metadata(path).unwrap().len())
        .unwrap();
    let good = fs::read(table).unwrap();
    let mut errors = 0;
    for step in 0..40 {
        let mut bad = good.clone();
        bad[step * good.len() / 40] ^= 0x10;
        fs::write(table, &bad).unwrap();
        let read = || {
            let memory = memory();
            let directory = Directory::new(instance.clone(), false);
            let opened = Instance::open_read_only(directory, &memory)?;
            let mut rows = crate::store::conformance::Model::new();
            let all = KeyRange::prefix(b"");
            opened.scan(Family::Live, &all, Direction::Forward, &mut |key, value| {
                rows.insert((Family::Live, key.to_vec()), value.to_vec());
                std::ops::ControlFlow::Continue(())
            })?;
            Ok::<_, Fault>(rows)
        };
        match read() {
            Ok(rows) => assert!(rows == expected, "a flip in step {step} changed an answer"),
            Err(_) => errors += 1,
        }
    }
    assert!(errors > 20, "only {errors} of 40 flips were seen");
}

#[test]
fn statistics_count_what_is_stored() {
    let (_dir, store) = opened();
    assert_eq!(
        store
            .statistics()
            .unwrap()
            .families
            .get(Family::Live)
            .sst_bytes,
        0
    );
    for n in 0..500_u32 {
        store
            .write(puts(Family::Live, &[(&n.to_be_bytes(), &[7; 300])]))
            .unwrap();
    }
    let snapshot = store.snapshot();
    let before = store.statistics().unwrap();
    assert!(before.families.get(Family::Live).memtable_bytes > 150_000);
    assert!(before.memtable_bytes >= 150_000);
    assert_eq!(before.snapshot_count, 1);
    drop(snapshot);
    store.flush().unwrap();
    let after = store.statistics().unwrap();
    let live = after.families.get(Family::Live);
    assert!(live.sst_bytes > 0);
    assert_eq!(live.key_count_estimate, 500);
    assert_eq!((after.snapshot_count, after.background_error_count), (0, 0));
    assert!(!after.write_stopped && after.write_delay_rate == 0);
}
