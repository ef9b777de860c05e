//! The usual entries read their rows in one go: apply asks the store for no single row.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;
use crate::command::executions::{CancelMode, OnConflict, ProcessDue, UniqueKey};
use crate::command::leases::{ExpireLeases, ReportItem};
use crate::command::{Envelope, Idempotency};
use crate::fault::Fault;
use crate::state::machine::Position;
use crate::state::testkit::*;
use crate::store::{Direction, KeyRange, View, Visit};
use crate::time::Millis;

/// A view that counts reads of single rows.
struct Counting<'a> {
    inner: &'a dyn View,
    gets: AtomicUsize,
}

impl View for Counting<'_> {
    fn get(&self, family: Family, key: &[u8]) -> Result<Option<Vec<u8>>, Fault> {
        self.gets.fetch_add(1, Ordering::Relaxed);
        self.inner.get(family, key)
    }

    fn multi_get(&self, family: Family, keys: &[&[u8]]) -> Result<Vec<Option<Vec<u8>>>, Fault> {
        self.inner.multi_get(family, keys)
    }

    fn scan(
        &self,
        family: Family,
        range: &KeyRange,
        direction: Direction,
        visit: &mut Visit<'_>,
    ) -> Result<(), Fault> {
        self.inner.scan(family, range, direction, visit)
    }
}

/// Single rows that the entry reads; then it is applied for good.
fn single_reads(world: &mut World, envelope: Envelope) -> usize {
    let view = Counting {
        inner: &world.store,
        gets: AtomicUsize::new(0),
    };
    let position = Position {
        term: world.term,
        leader: 1,
        index: world.next_token(),
    };
    let batch = Batch {
        proposed_at: world.now,
        term: world.term,
        commands: vec![envelope.clone()],
    };
    let mut state = world.state.clone();
    apply::apply_batch(&mut state, &view, position, &batch).expect("the entry applies");
    let gets = view.gets.into_inner();
    world.apply(vec![envelope]);
    gets
}

#[test]
fn creating_granting_and_finishing_read_no_single_row() {
    let mut world = World::new();
    let mut named = submission(world.now);
    named.id = ExecutionId::new("order-77").ok();
    named.unique = Some(UniqueKey {
        key: "u".into(),
        on_conflict: OnConflict::Reject,
    });
    let mut create = by_anyone(submit_command(named), None);
    create.idempotency = Some(Idempotency {
        hash: [7; 16],
        fingerprint: 1,
    });
    assert_eq!(single_reads(&mut world, create), 0, "create");
    let id = ExecutionId::new("order-77").unwrap();
    let grant = grant_command("w1", Some("r"), vec![world.grant_item(&id)]);
    assert_eq!(single_reads(&mut world, by_anyone(grant, None)), 0, "grant");
    for (action, what) in [(renew(), "renew"), (fail(), "fail")] {
        let lease = reference(&world.lease(&id).unwrap());
        let report = report_command("w1", vec![ReportItem { lease, action }]);
        assert_eq!(
            single_reads(&mut world, by_anyone(report, None)),
            0,
            "{what}"
        );
    }
    world.advance(Millis::secs(1));
    let items = world.due_entries();
    let due = Command::Execution(ExecutionCommand::ProcessDue(ProcessDue { items }));
    assert_eq!(single_reads(&mut world, by_anyone(due, None)), 0, "due");
    let lease = world.grant("w1", &id).lease;
    world.advance(LEASE);
    let items = vec![item_of(&lease)];
    let expire = Command::Lease(LeaseCommand::Expire(ExpireLeases { items }));
    assert_eq!(
        single_reads(&mut world, by_anyone(expire, None)),
        0,
        "expire"
    );
    let cancel = cancel_command(&id, CancelMode::Request);
    assert_eq!(
        single_reads(&mut world, by_anyone(cancel, None)),
        0,
        "cancel"
    );
}
