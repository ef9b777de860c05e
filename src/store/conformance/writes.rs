//! Atomicity, isolation, durability, whole-file deletion.

use std::sync::atomic::{AtomicBool, Ordering};

use super::*;
use crate::store::successor;

/// Families that a command touches together.
const TOGETHER: [Family; 4] = [Family::Meta, Family::Live, Family::DueHour, Family::Keys];

/// The `n`th write of a sequence: the same number in every family, one new row, and a row that
/// comes and goes.
fn nth_write(n: u64) -> WriteBatch {
    let number = n.to_be_bytes();
    let mut batch = WriteBatch::default();
    for family in TOGETHER {
        batch.put(family, b"number".to_vec(), number.to_vec());
        batch.put(family, [b"row/", &number[..]].concat(), number.repeat(25));
        let gone = n.saturating_sub(3).to_be_bytes();
        batch.delete(family, [b"row/", &gone[..]].concat());
    }
    batch
}

pub(in crate::store) fn the_last_operation_on_a_key_of_a_batch_wins<S: Subject>(subject: &S) {
    let store = subject.create();
    let mut batch = WriteBatch::default();
    batch.put(Family::Live, b"a".to_vec(), b"1".to_vec());
    batch.delete(Family::Live, b"a".to_vec());
    batch.delete(Family::Live, b"b".to_vec());
    batch.put(Family::Live, b"b".to_vec(), b"1".to_vec());
    batch.put(Family::Live, b"b".to_vec(), b"2".to_vec());
    store.write(batch).unwrap();
    let expected = vec![(b"b".to_vec(), b"2".to_vec())];
    let all = KeyRange::prefix(b"");
    assert_eq!(
        scan(&*store, Family::Live, &all, Direction::Forward),
        expected
    );
}

pub(in crate::store) fn a_batch_is_never_seen_in_part<S: Subject>(subject: &S) {
    let store = subject.create();
    store.write(nth_write(0)).unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut looks = 0_u64;
            while !done.load(Ordering::Relaxed) || looks == 0 {
                let image = store.snapshot();
                let numbers = TOGETHER.map(|family| image.get(family, b"number").unwrap().unwrap());
                assert!(
                    numbers.windows(2).all(|two| two[0] == two[1]),
                    "{numbers:?}"
                );
                looks += 1;
            }
        });
        for n in 1..400 {
            store.write(nth_write(n)).unwrap();
        }
        done.store(true, Ordering::Relaxed);
        reader.join().unwrap();
    });
}

pub(in crate::store) fn a_snapshot_does_not_change<S: Subject>(subject: &S) {
    let store = subject.create();
    let mut taken = Vec::new();
    for n in 0..40 {
        store.write(nth_write(n)).unwrap();
        if n % 8 == 3 {
            taken.push((store.snapshot(), contents(&*store)));
        }
        if n % 16 == 9 {
            store.flush().unwrap();
        }
    }
    for (snapshot, then) in &taken {
        assert_eq!(contents(&**snapshot), *then);
        let live: Vec<_> = then
            .iter()
            .filter(|((family, _), _)| *family == Family::Live)
            .collect();
        let keys: Vec<&[u8]> = live.iter().map(|((_, key), _)| key.as_slice()).collect();
        let values = snapshot.multi_get(Family::Live, &keys).unwrap();
        assert!(
            live.iter()
                .map(|(_, v)| Some(*v))
                .eq(values.iter().map(Option::as_ref))
        );
        let backward = scan(
            &**snapshot,
            Family::Live,
            &KeyRange::prefix(b""),
            Direction::Backward,
        );
        assert_eq!(backward.len(), live.len());
    }
    drop(store);
    let (last, then) = taken.last().unwrap();
    assert_eq!(
        contents(&**last),
        *then,
        "a snapshot outlives the store's handle"
    );
}

pub(in crate::store) fn a_flush_survives_a_restart<S: Subject>(subject: &S) {
    let mut store = subject.create();
    for round in 0..3 {
        for n in 0..5 {
            store.write(nth_write(round * 5 + n)).unwrap();
        }
        store.flush().unwrap();
        let flushed = contents(&*store);
        store = subject.restart(store);
        assert_eq!(contents(&*store), flushed);
    }
}

pub(in crate::store) fn a_restart_keeps_a_prefix_of_the_writes<S: Subject>(subject: &S) {
    let mut store = subject.create();
    let mut model = Model::new();
    let mut states = vec![model.clone()];
    for n in 0..30 {
        let batch = nth_write(n);
        write_model(&mut model, &batch);
        store.write(batch).unwrap();
        states.push(model.clone());
        if n == 11 {
            store.flush().unwrap();
        }
    }
    store = subject.restart(store);
    let found = contents(&*store);
    let kept = states.iter().position(|state| *state == found);
    assert!(kept.is_some_and(|kept| kept >= 12), "{kept:?}");
}

pub(in crate::store) fn rows_above_a_discarded_range_stay<S: Subject>(subject: &S) {
    let mut store = subject.create();
    let key = |n: u32| n.to_be_bytes().to_vec();
    let watermark = key(600);
    for n in 0..1_000_u32 {
        let mut batch = WriteBatch::default();
        for family in [Family::DueMinute, Family::History] {
            batch.put(family, key(n), key(n).repeat(75));
        }
        store.write(batch).unwrap();
        if n % 100 == 99 {
            store.flush().unwrap();
        }
    }
    let above = |view: &dyn View| {
        let range = KeyRange {
            from: watermark.clone(),
            to: successor(&[]),
        };
        [Family::DueMinute, Family::History].map(|f| scan(view, f, &range, Direction::Forward))
    };
    let before = above(&*store);
    assert_eq!(before.each_ref().map(Vec::len), [400, 400]);
    let below = KeyRange::new(key(0), watermark.clone());
    store.discard_files(Family::DueMinute, &below).unwrap();
    assert!(above(&*store) == before, "rows at and above the end stay");
    assert!(above(&*store.snapshot()) == before);
    let history = scan(&*store, Family::History, &below, Direction::Forward);
    assert_eq!(history.len(), 600, "another family is not touched");
    store
        .write(puts(Family::DueMinute, &[(&key(1_000), b"later")]))
        .unwrap();
    store.flush().unwrap();
    store = subject.restart(store);
    let mut after = above(&*store);
    assert_eq!(after[0].pop(), Some((key(1_000), b"later".to_vec())));
    assert!(after == before);
}
