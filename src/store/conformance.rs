//! One suite of behaviours for every implementation of [`StateStore`].
//!
//! Purpose: the memory store, which simulation trusts, and the RocksDB store, which users trust,
//! must not differ.
//! Callers: `mem/tests.rs` and `rocks/tests.rs`, through [`conformance_suite`]; every behaviour
//! becomes one test of each store.
//! Order of reading: this file holds the subject and small checks; `reads`, `writes`, `transfer`
//! and `histories` hold the behaviours.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use crate::store::{
    Checkpoint, Direction, Family, KeyRange, Staging, StateStore, View, WriteBatch,
};

pub(super) mod histories;
pub(super) mod reads;
pub(super) mod transfer;
pub(super) mod writes;

/// A store under test.
pub(super) trait Subject: Sized {
    /// The implementation.
    type Store: StateStore;

    /// How many random histories it is worth running (opening a store on disk costs much more).
    const HISTORIES: u32;

    /// A subject with no store yet.
    fn new() -> Self;

    /// A new empty store.
    fn create(&self) -> Arc<Self::Store>;

    /// Ends the process that holds `store`, in a way that may lose unflushed writes, and opens it
    /// again.
    fn restart(&self, store: Arc<Self::Store>) -> Arc<Self::Store>;
}

/// Makes one test of each behaviour for the subject.
macro_rules! conformance_suite {
    ($subject:ty) => {
        $crate::store::conformance::conformance_suite!(@ $subject,
            reads: keys_are_ordered_as_unsigned_bytes_within_their_family;
            reads: ranges_are_half_open_both_ways;
            reads: a_prefix_range_holds_exactly_the_keys_with_that_prefix;
            reads: a_break_ends_a_scan;
            reads: multi_get_answers_in_order_with_absences;
            reads: empty_keys_and_values_are_kept;
            reads: large_values_are_kept_whole;
            reads: a_scan_may_read_the_store_again;
            reads: an_overlay_reads_as_if_it_were_written;
            writes: the_last_operation_on_a_key_of_a_batch_wins;
            writes: a_batch_is_never_seen_in_part;
            writes: a_snapshot_does_not_change;
            writes: a_flush_survives_a_restart;
            writes: a_restart_keeps_a_prefix_of_the_writes;
            writes: rows_above_a_discarded_range_stay;
            transfer: a_checkpoint_is_an_image_of_its_moment;
            transfer: a_checkpoint_travels_in_pieces_and_installs;
            transfer: a_snapshot_from_before_an_install_keeps_the_old_content;
            transfer: an_install_is_durable_and_takes_writes;
            transfer: an_unsealed_or_foreign_staging_is_not_installed;
            transfer: a_damaged_or_incomplete_staging_is_not_sealed;
            transfer: names_that_leave_the_directory_are_refused;
            transfer: a_dropped_staging_leaves_the_store_as_it_was;
            histories: random_histories_equal_a_plain_map;
        );
    };
    (@ $subject:ty, $($area:ident: $name:ident;)*) => {
        $(
            #[test]
            fn $name() {
                let subject = <$subject as $crate::store::conformance::Subject>::new();
                $crate::store::conformance::$area::$name(&subject);
            }
        )*
    };
}
pub(super) use conformance_suite;

/// What a store should hold.
pub(super) type Model = BTreeMap<(Family, Vec<u8>), Vec<u8>>;

/// A pair as scans give it.
pub(super) type Pair = (Vec<u8>, Vec<u8>);

/// Writes `batch` to the model as a store would.
pub(super) fn write_model(model: &mut Model, batch: &WriteBatch) {
    for (family, key, value) in &batch.ops {
        let place = (*family, key.clone());
        match value {
            Some(value) => model.insert(place, value.clone()),
            None => model.remove(&place),
        };
    }
}

/// A batch that puts each of `rows`.
pub(super) fn puts(family: Family, rows: &[(&[u8], &[u8])]) -> WriteBatch {
    let mut batch = WriteBatch::default();
    for (key, value) in rows {
        batch.put(family, key.to_vec(), value.to_vec());
    }
    batch
}

/// The pairs of `range`.
pub(super) fn scan(
    view: &dyn View,
    family: Family,
    range: &KeyRange,
    direction: Direction,
) -> Vec<Pair> {
    let mut pairs = Vec::new();
    view.scan(family, range, direction, &mut |key, value| {
        pairs.push((key.to_vec(), value.to_vec()));
        ControlFlow::Continue(())
    })
    .unwrap();
    pairs
}

/// Everything in `view`.
pub(super) fn contents(view: &dyn View) -> Model {
    let all = KeyRange::prefix(b"");
    let mut model = Model::new();
    for family in Family::ALL {
        let pairs = scan(view, family, &all, Direction::Forward);
        assert!(pairs.is_sorted_by(|a, b| a.0 < b.0), "strictly ascending");
        model.extend(pairs.into_iter().map(|(key, value)| ((family, key), value)));
    }
    model
}

/// Copies every file of `checkpoint` into `staging`, `piece` bytes at a time.
pub(super) fn copy(checkpoint: &dyn Checkpoint, staging: &mut dyn Staging, piece: usize) {
    for file in checkpoint.files() {
        staging.append(&file.name, b"").unwrap();
        let mut offset = 0;
        while offset < file.len {
            let bytes = checkpoint.read(&file.name, offset, piece).unwrap();
            assert!(!bytes.is_empty() && bytes.len() <= piece);
            offset += bytes.len() as u64;
            staging.append(&file.name, &bytes).unwrap();
        }
        assert_eq!(offset, file.len);
        let past = checkpoint.read(&file.name, offset, piece).unwrap();
        assert!(past.is_empty());
    }
}
