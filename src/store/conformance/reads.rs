//! Order, ranges, and the overlay over a real store.

use super::*;
use crate::store::{Txn, successor};

const KEYS: [&[u8]; 9] = [
    b"",
    b"\x00",
    b"\x00\x00",
    b"\x00\xff",
    b"a",
    b"a\x00",
    b"b",
    b"\xff",
    b"\xff\xff",
];

fn filled<S: Subject>(subject: &S, family: Family) -> Arc<S::Store> {
    let store = subject.create();
    let mut batch = WriteBatch::default();
    for key in KEYS.iter().rev() {
        batch.put(family, key.to_vec(), [b"v", *key].concat());
    }
    store.write(batch).unwrap();
    store
}

fn keys(view: &dyn View, family: Family, range: &KeyRange, direction: Direction) -> Vec<Vec<u8>> {
    let pairs = scan(view, family, range, direction);
    pairs.into_iter().map(|(key, _)| key).collect()
}

pub(in crate::store) fn keys_are_ordered_as_unsigned_bytes_within_their_family<S: Subject>(
    subject: &S,
) {
    for family in [Family::Live, Family::DueMinute] {
        let store = filled(subject, family);
        for flushed in [false, true] {
            if flushed {
                store.flush().unwrap();
            }
            let all = KeyRange::prefix(b"");
            assert_eq!(keys(&*store, family, &all, Direction::Forward), KEYS);
            let mut backward = keys(&*store, family, &all, Direction::Backward);
            backward.reverse();
            assert_eq!(backward, KEYS);
            for other in Family::ALL.into_iter().filter(|other| *other != family) {
                assert!(keys(&*store, other, &all, Direction::Forward).is_empty());
            }
        }
    }
}

pub(in crate::store) fn ranges_are_half_open_both_ways<S: Subject>(subject: &S) {
    let store = filled(subject, Family::Lines);
    let ends = || KEYS.iter().map(|key| Some(key.to_vec())).chain([None]);
    for from in KEYS {
        for to in ends() {
            let range = KeyRange {
                from: from.to_vec(),
                to,
            };
            let mut expected: Vec<&[u8]> = KEYS.to_vec();
            expected.retain(|key| range.contains(key));
            let forward = keys(&*store, Family::Lines, &range, Direction::Forward);
            assert_eq!(forward, expected, "{range:?}");
            expected.reverse();
            let backward = keys(&*store, Family::Lines, &range, Direction::Backward);
            assert_eq!(backward, expected, "{range:?}");
        }
    }
}

pub(in crate::store) fn a_prefix_range_holds_exactly_the_keys_with_that_prefix<S: Subject>(
    subject: &S,
) {
    assert_eq!(successor(b"a\xff\xff").as_deref(), Some(&b"b"[..]));
    assert_eq!(successor(b"\xff\xff"), None);
    assert_eq!(successor(b""), None);
    let store = filled(subject, Family::Keys);
    let prefixes: [&[u8]; 7] = [b"", b"\x00", b"a", b"a\x00", b"c", b"\xff", b"\xff\xff\xff"];
    for prefix in prefixes {
        let mut expected: Vec<&[u8]> = KEYS.to_vec();
        expected.retain(|key| key.starts_with(prefix));
        let range = KeyRange::prefix(prefix);
        let found = keys(&*store, Family::Keys, &range, Direction::Forward);
        assert_eq!(found, expected, "{prefix:?}");
    }
}

pub(in crate::store) fn a_break_ends_a_scan<S: Subject>(subject: &S) {
    let store = filled(subject, Family::History);
    let all = KeyRange::prefix(b"");
    for direction in [Direction::Forward, Direction::Backward] {
        for limit in 1..=KEYS.len() {
            let mut seen = 0;
            let visit = &mut |_: &[u8], _: &[u8]| {
                seen += 1;
                if seen == limit {
                    ControlFlow::Break(())
                } else {
                    ControlFlow::Continue(())
                }
            };
            store.scan(Family::History, &all, direction, visit).unwrap();
            assert_eq!(seen, limit);
        }
    }
}

pub(in crate::store) fn multi_get_answers_in_order_with_absences<S: Subject>(subject: &S) {
    let store = filled(subject, Family::Live);
    for flushed in [false, true] {
        if flushed {
            store.flush().unwrap();
        }
        let wanted: [&[u8]; 5] = [b"", b"\x00\x01", b"a", b"aa", b"\xff\xff"];
        let found = store.multi_get(Family::Live, &wanted).unwrap();
        let expected = [Some(&b"v"[..]), None, Some(b"va"), None, Some(b"v\xff\xff")];
        assert!(found.iter().map(Option::as_deref).eq(expected));
        for (key, value) in wanted.iter().zip(&found) {
            assert_eq!(store.get(Family::Live, key).unwrap(), *value);
        }
        assert!(store.multi_get(Family::Live, &[]).unwrap().is_empty());
        let snapshot = store.snapshot();
        assert_eq!(snapshot.multi_get(Family::Live, &wanted).unwrap(), found);
    }
}

pub(in crate::store) fn empty_keys_and_values_are_kept<S: Subject>(subject: &S) {
    let store = subject.create();
    store
        .write(puts(Family::Lines, &[(b"", b""), (b"k", b"")]))
        .unwrap();
    assert_eq!(store.get(Family::Lines, b"").unwrap(), Some(Vec::new()));
    let found = store.multi_get(Family::Lines, &[b"", b"k", b"l"]).unwrap();
    assert_eq!(found, [Some(Vec::new()), Some(Vec::new()), None]);
    assert_eq!(contents(&*store).len(), 2);
}

pub(in crate::store) fn large_values_are_kept_whole<S: Subject>(subject: &S) {
    let store = subject.create();
    let large: Vec<u8> = (0..1_200_000_u32)
        .map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8)
        .collect();
    let rows: [(&[u8], &[u8]); 2] = [(b"one", &large), (b"two", &large[1..])];
    store.write(puts(Family::Body, &rows)).unwrap();
    store.flush().unwrap();
    assert_eq!(
        store.get(Family::Body, b"one").unwrap().as_deref(),
        Some(&large[..])
    );
    let found = store.multi_get(Family::Body, &[b"two"]).unwrap();
    assert_eq!(found[0].as_deref(), Some(&large[1..]));
}

pub(in crate::store) fn a_scan_may_read_the_store_again<S: Subject>(subject: &S) {
    let store = filled(subject, Family::Live);
    let all = KeyRange::prefix(b"");
    let mut inner = 0;
    store
        .scan(Family::Live, &all, Direction::Forward, &mut |key, value| {
            assert_eq!(
                store.get(Family::Live, key).unwrap().as_deref(),
                Some(value)
            );
            inner += scan(&*store, Family::Live, &all, Direction::Backward).len();
            ControlFlow::Continue(())
        })
        .unwrap();
    assert_eq!(inner, KEYS.len() * KEYS.len());
}

pub(in crate::store) fn an_overlay_reads_as_if_it_were_written<S: Subject>(subject: &S) {
    let store = filled(subject, Family::Live);
    store.flush().unwrap();
    store
        .write(puts(Family::Live, &[(b"b", b"newer"), (b"c", b"c")]))
        .unwrap();
    let mut txn = Txn::new(&*store);
    let fetch = KEYS.iter().map(|key| (Family::Live, key.to_vec()));
    txn.prefetch(fetch.collect()).unwrap();
    assert_eq!(
        txn.get(Family::Live, b"b").unwrap().as_deref(),
        Some(&b"newer"[..])
    );
    txn.delete(Family::Live, b"a".to_vec());
    txn.put(Family::Live, b"a\x00".to_vec(), b"over".to_vec());
    txn.put(Family::Live, b"\xff\xfe".to_vec(), b"new".to_vec());
    txn.delete(Family::Live, b"absent".to_vec());
    txn.put(Family::Meta, b"m".to_vec(), b"1".to_vec());
    let overlaid = contents(&txn);
    let ranges = [
        KeyRange::prefix(b""),
        KeyRange::prefix(b"a"),
        KeyRange::new(b"\x00\xff".to_vec(), b"\xff\xff".to_vec()),
    ];
    let directions = [Direction::Forward, Direction::Backward];
    let pieces = ranges
        .iter()
        .flat_map(|range| directions.map(|direction| (range, direction)));
    let before: Vec<_> = pieces
        .clone()
        .map(|(range, way)| scan(&txn, Family::Live, range, way))
        .collect();
    let batch = txn.into_batch();
    store.write(batch).unwrap();
    let after: Vec<_> = pieces
        .map(|(range, way)| scan(&*store, Family::Live, range, way))
        .collect();
    assert_eq!(before, after);
    assert_eq!(overlaid, contents(&*store));
}
