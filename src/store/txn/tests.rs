//! What a [`Txn`] shows and writes, against plain maps.

use std::sync::atomic::{AtomicUsize, Ordering};

use proptest::prelude::*;

use super::*;

/// One family's worth of rows with a count of reads.
#[derive(Default)]
struct Rows {
    rows: BTreeMap<(Family, Vec<u8>), Vec<u8>>,
    gets: AtomicUsize,
    multi_gets: AtomicUsize,
}

impl Rows {
    fn of(rows: &[(&str, &str)]) -> Self {
        let rows = rows
            .iter()
            .map(|(k, v)| ((Family::Live, k.as_bytes().to_vec()), v.as_bytes().to_vec()))
            .collect();
        Self {
            rows,
            ..Self::default()
        }
    }
}

impl View for Rows {
    fn get(&self, family: Family, key: &[u8]) -> Result<Option<Vec<u8>>, Fault> {
        self.gets.fetch_add(1, Ordering::Relaxed);
        Ok(self.rows.get(&(family, key.to_vec())).cloned())
    }

    fn multi_get(&self, family: Family, keys: &[&[u8]]) -> Result<Vec<Option<Vec<u8>>>, Fault> {
        assert!(keys.is_sorted_by(|a, b| a < b), "sorted, without repeats");
        self.multi_gets.fetch_add(1, Ordering::Relaxed);
        Ok(keys
            .iter()
            .map(|k| self.rows.get(&(family, k.to_vec())).cloned())
            .collect())
    }

    fn scan(
        &self,
        family: Family,
        range: &KeyRange,
        direction: Direction,
        visit: &mut Visit<'_>,
    ) -> Result<(), Fault> {
        let mut rows: Vec<_> = self
            .rows
            .iter()
            .filter(|((f, key), _)| *f == family && range.contains(key))
            .collect();
        if direction == Direction::Backward {
            rows.reverse();
        }
        for ((_, key), value) in rows {
            if visit(key, value).is_break() {
                break;
            }
        }
        Ok(())
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn scan(view: &dyn View, range: &KeyRange, direction: Direction, limit: usize) -> Vec<String> {
    let mut seen = Vec::new();
    view.scan(Family::Live, range, direction, &mut |key, value| {
        seen.push(format!("{}={}", text(key), text(value)));
        if seen.len() >= limit {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    })
    .unwrap();
    seen
}

fn put(txn: &mut Txn<'_>, key: &str, value: &str) {
    txn.put(Family::Live, key.into(), value.into());
}

fn delete(txn: &mut Txn<'_>, key: &str) {
    txn.delete(Family::Live, key.into());
}

#[test]
fn a_scan_weaves_pending_rows_between_stored_ones_both_ways() {
    let base = Rows::of(&[("b", "1"), ("d", "1"), ("f", "1"), ("h", "1")]);
    let mut txn = Txn::new(&base);
    put(&mut txn, "a", "2");
    delete(&mut txn, "b");
    put(&mut txn, "c", "2");
    put(&mut txn, "d", "2");
    delete(&mut txn, "e");
    put(&mut txn, "z", "2");
    let all = KeyRange::prefix(b"");
    let forward = scan(&txn, &all, Direction::Forward, 9);
    assert_eq!(forward, ["a=2", "c=2", "d=2", "f=1", "h=1", "z=2"]);
    let backward = scan(&txn, &all, Direction::Backward, 9);
    assert!(backward.iter().eq(forward.iter().rev()));
    let middle = KeyRange::new(b"c".to_vec(), b"h".to_vec());
    assert_eq!(
        scan(&txn, &middle, Direction::Forward, 9),
        ["c=2", "d=2", "f=1"]
    );
    assert_eq!(
        scan(&txn, &middle, Direction::Backward, 9),
        ["f=1", "d=2", "c=2"]
    );
}

#[test]
fn a_break_ends_a_scan_whether_at_a_stored_or_a_pending_row() {
    let base = Rows::of(&[("b", "1"), ("d", "1")]);
    let mut txn = Txn::new(&base);
    put(&mut txn, "c", "2");
    put(&mut txn, "e", "2");
    let all = KeyRange::prefix(b"");
    for limit in 1..=4 {
        assert_eq!(scan(&txn, &all, Direction::Forward, limit).len(), limit);
        assert_eq!(scan(&txn, &all, Direction::Backward, limit).len(), limit);
    }
}

#[test]
fn an_inverted_or_empty_range_has_no_rows() {
    let base = Rows::of(&[("b", "1")]);
    let mut txn = Txn::new(&base);
    put(&mut txn, "b", "2");
    for range in [
        KeyRange::new(b"c".to_vec(), b"a".to_vec()),
        KeyRange::new(b"b".to_vec(), b"b".to_vec()),
    ] {
        assert!(scan(&txn, &range, Direction::Forward, 9).is_empty());
        assert!(scan(&txn, &range, Direction::Backward, 9).is_empty());
    }
}

#[test]
fn prefetched_keys_are_read_once_and_absences_are_remembered() {
    let base = Rows::of(&[("a", "1"), ("b", "1")]);
    let mut txn = Txn::new(&base);
    put(&mut txn, "b", "2");
    let key = |family, key: &str| (family, Vec::from(key));
    let wanted = vec![
        key(Family::Live, "x"),
        key(Family::Live, "a"),
        key(Family::Keys, "a"),
        key(Family::Live, "x"),
        key(Family::Live, "b"),
    ];
    txn.prefetch(wanted.clone()).unwrap();
    txn.prefetch(wanted).unwrap();
    txn.prefetch(vec![key(Family::Live, "m"), key(Family::Live, "0")])
        .unwrap();
    assert_eq!(
        base.multi_gets.load(Ordering::Relaxed),
        3,
        "one a family, once"
    );
    let get = |key: &str| {
        txn.get(Family::Live, key.as_bytes())
            .unwrap()
            .map(|v| text(&v))
    };
    assert_eq!(get("a").as_deref(), Some("1"));
    assert_eq!(get("b").as_deref(), Some("2"));
    for absent in ["x", "m", "0"] {
        assert_eq!(get(absent), None);
    }
    assert!(!txn.contains(Family::Keys, b"a").unwrap());
    assert_eq!(base.gets.load(Ordering::Relaxed), 0);
    assert_eq!(get("unknown"), None);
    assert_eq!(base.gets.load(Ordering::Relaxed), 1);
}

#[test]
fn a_pending_write_hides_a_prefetched_value() {
    let base = Rows::of(&[("a", "1")]);
    let mut txn = Txn::new(&base);
    txn.prefetch(vec![(Family::Live, b"a".to_vec())]).unwrap();
    delete(&mut txn, "a");
    assert!(!txn.contains(Family::Live, b"a").unwrap());
    put(&mut txn, "a", "3");
    assert_eq!(
        txn.get(Family::Live, b"a").unwrap().as_deref(),
        Some(&b"3"[..])
    );
}

#[test]
fn the_batch_holds_the_final_value_of_each_key_in_order() {
    let base = Rows::default();
    let mut txn = Txn::new(&base);
    txn.put(Family::Keys, b"k".to_vec(), b"1".to_vec());
    put(&mut txn, "b", "1");
    put(&mut txn, "a", "1");
    put(&mut txn, "b", "2");
    delete(&mut txn, "a");
    txn.put(Family::Meta, b"m".to_vec(), b"1".to_vec());
    assert_eq!(txn.touched_count(), 4);
    let expected = vec![
        (Family::Meta, b"m".to_vec(), Some(b"1".to_vec())),
        (Family::Live, b"a".to_vec(), None),
        (Family::Live, b"b".to_vec(), Some(b"2".to_vec())),
        (Family::Keys, b"k".to_vec(), Some(b"1".to_vec())),
    ];
    assert_eq!(txn.into_batch().ops, expected);
}

type Change = (Vec<u8>, Option<Vec<u8>>);

fn key() -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(0_u8..3, 0..4)
}

fn changes() -> impl Strategy<Value = Vec<Change>> {
    prop::collection::vec((key(), prop::option::of(Just(b"new".to_vec()))), 0..24)
}

proptest! {
    #[test]
    fn reads_equal_those_of_a_store_with_everything_written(
        stored in prop::collection::btree_set(key(), 0..24),
        changes in changes(),
        ranges in prop::collection::vec((key(), prop::option::of(key())), 1..6),
        fetch in prop::collection::vec(key(), 0..6),
    ) {
        let mut written = Rows::default();
        for key in stored {
            written.rows.insert((Family::Live, key), b"old".to_vec());
        }
        let base = Rows { rows: written.rows.clone(), ..Rows::default() };
        let mut txn = Txn::new(&base);
        txn.prefetch(fetch.into_iter().map(|key| (Family::Live, key)).collect()).unwrap();
        for (key, value) in changes {
            let place = (Family::Live, key.clone());
            if let Some(value) = value {
                written.rows.insert(place, value.clone());
                txn.put(Family::Live, key, value);
            } else {
                written.rows.remove(&place);
                txn.delete(Family::Live, key);
            }
        }
        for (from, to) in ranges {
            let range = KeyRange { from, to };
            for direction in [Direction::Forward, Direction::Backward] {
                for limit in [1, 3, usize::MAX] {
                    let expected = scan(&written, &range, direction, limit);
                    prop_assert_eq!(scan(&txn, &range, direction, limit), expected);
                }
            }
            let one = View::get(&txn, Family::Live, &range.from).unwrap();
            prop_assert_eq!(&one, &written.get(Family::Live, &range.from).unwrap());
            let many = txn.multi_get(Family::Live, &[&range.from]).unwrap();
            prop_assert_eq!(many, vec![one]);
        }
    }
}

/// Not a check but a measure: `cargo test --release -- --ignored --nocapture txn_cost`.
#[test]
#[ignore = "a measurement"]
#[allow(clippy::disallowed_methods, reason = "it measures real time")]
fn txn_cost() {
    const CREATES: usize = 256;
    const ROUNDS: usize = 400;
    let base = Rows::default();
    let started = std::time::Instant::now();
    let mut ops = 0;
    for round in 0..ROUNDS {
        let mut txn = Txn::new(&base);
        for create in 0..CREATES {
            let id = ((round * CREATES + create) as u128).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let id = id.to_be_bytes();
            txn.put(Family::Live, id.to_vec(), vec![7; 300]);
            txn.put(Family::DueHour, [&id[8..], &id[..]].concat(), Vec::new());
            txn.put(Family::Keys, [&id[..], &id[8..]].concat(), vec![1; 24]);
        }
        ops += txn.into_batch().ops.len();
    }
    let each = started.elapsed().as_nanos() / (ROUNDS * CREATES) as u128;
    println!("{ops} ops, {each} ns for each create of three keys");
}
