//! Crashes and faults of the memory store; the rest is the conformance suite.

use super::*;
use crate::store::conformance::{Subject, conformance_suite, contents, copy, puts};

/// The memory store; a restart keeps half of what was not flushed.
struct Memory;

impl Subject for Memory {
    type Store = MemStore;
    const HISTORIES: u32 = 256;

    fn new() -> Self {
        Self
    }

    fn create(&self) -> Arc<MemStore> {
        Arc::new(MemStore::new())
    }

    fn restart(&self, store: Arc<MemStore>) -> Arc<MemStore> {
        Arc::new(store.crash(store.unflushed() / 2))
    }
}

conformance_suite!(Memory);

fn put(store: &MemStore, key: &[u8]) -> Result<(), Fault> {
    store.write(puts(Family::Live, &[(key, b"v")]))
}

fn keys(store: &MemStore) -> Vec<Vec<u8>> {
    let rows = contents(store).into_keys();
    rows.map(|(_, key)| key).collect()
}

#[test]
fn a_crash_keeps_the_flushed_and_as_many_writes_as_it_is_told() {
    for keep in 0..5 {
        let store = MemStore::new();
        put(&store, b"a").unwrap();
        store.flush().unwrap();
        for key in [b"b", b"c", b"d"] {
            put(&store, key).unwrap();
        }
        assert_eq!(store.unflushed(), 3);
        let store = store.crash(keep);
        let all: [&[u8]; 4] = [b"a", b"b", b"c", b"d"];
        assert_eq!(keys(&store), all[..(keep + 1).min(4)]);
        assert_eq!(store.unflushed(), 0);
        assert_eq!(
            keys(&store.crash(0)),
            all[..(keep + 1).min(4)],
            "kept for good"
        );
    }
}

#[test]
fn a_handle_from_before_a_crash_refuses_everything() {
    let dead = MemStore::new();
    put(&dead, b"a").unwrap();
    let mut staging = dead.stage().unwrap();
    let snapshot = dead.snapshot();
    let alive = dead.crash(1);
    let crashed = |fault: Fault| match fault {
        Fault::Storage { source, .. } => source.downcast_ref::<Crashed>().is_some(),
        _ => false,
    };
    assert!(put(&dead, b"b").is_err_and(crashed));
    assert!(dead.flush().is_err_and(crashed));
    assert!(dead.get(Family::Live, b"a").is_err_and(crashed));
    assert!(dead.snapshot().get(Family::Live, b"a").is_err_and(crashed));
    assert!(dead.checkpoint().err().is_some_and(crashed));
    assert!(staging.append("x", b"x").is_err_and(crashed));
    assert!(alive.install(staging).is_err());
    assert_eq!(keys(&alive), [b"a"]);
    assert!(snapshot.get(Family::Live, b"a").unwrap().is_some());
}

#[test]
fn an_injected_fault_hits_the_chosen_step_once_and_changes_nothing() {
    let store = MemStore::new();
    store.fail(MemStep::Write, 1);
    store.fail(MemStep::Flush, 0);
    put(&store, b"a").unwrap();
    let failed = store.flush().unwrap_err();
    assert_eq!(failed.to_string(), "storage: Flush: injected at Flush");
    assert_eq!(store.unflushed(), 1);
    assert!(put(&store, b"b").is_err());
    put(&store, b"c").unwrap();
    store.flush().unwrap();
    assert_eq!(keys(&store.crash(0)), [b"a", b"c"]);
}

#[test]
fn an_install_torn_by_a_crash_leaves_the_old_or_the_new_content() {
    for (step, keep, new) in [
        (MemStep::Install, usize::MAX, false),
        (MemStep::InstallSync, 1, false),
        (MemStep::InstallSync, 2, true),
    ] {
        let source = MemStore::new();
        put(&source, b"new").unwrap();
        let store = MemStore::new();
        put(&store, b"old").unwrap();
        let mut staging = store.stage().unwrap();
        copy(&*source.checkpoint().unwrap(), &mut *staging, 7);
        staging.seal().unwrap();
        store.fail(step, 0);
        assert!(store.install(staging).is_err());
        let expected: &[u8] = if new { b"new" } else { b"old" };
        assert_eq!(
            keys(&store.crash(keep)),
            [expected],
            "{step:?}, {keep} kept"
        );
    }
}

#[test]
fn discarded_rows_are_gone_for_good_except_at_the_ends_and_where_written_since() {
    let store = MemStore::new();
    for key in [b"a", b"b", b"c", b"d", b"e", b"f"] {
        put(&store, key).unwrap();
    }
    store.flush().unwrap();
    store
        .write(puts(Family::Live, &[(b"c", b"newer")]))
        .unwrap();
    let below = KeyRange::new(b"a".to_vec(), b"f".to_vec());
    store.discard_files(Family::Live, &below).unwrap();
    assert_eq!(keys(&store), [b"a", b"c", b"e", b"f"]);
    assert_eq!(keys(&store.crash(0)), [b"a", b"e", b"f"]);
}

#[test]
fn equal_histories_give_equal_checkpoint_bytes() {
    let bytes = || {
        let store = MemStore::new();
        for key in [b"b", b"a", b"c"] {
            put(&store, key).unwrap();
        }
        let checkpoint = store.checkpoint().unwrap();
        let files = checkpoint.files().iter();
        files
            .map(|file| checkpoint.read(&file.name, 0, 1 << 20).unwrap())
            .collect::<Vec<_>>()
    };
    assert_eq!(bytes(), bytes());
}
