//! Apply against the model, over random histories.
//!
//! A failure prints the seed and the number of entries of the shortest history that shows it; `replay` with these two
//! runs it alone.

use std::sync::Arc;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestCaseError, TestRunner};

use super::generate::{self, Dice};
use super::{Model, Record, observe};
use crate::command::Batch;
use crate::command::codec;
use crate::command::outcome::Outcome;
use crate::state::machine::{CommittedEntry, Machine, Payload, Position};
use crate::state::replica::{BatchAnswer, Replica};
use crate::state::verify::verify;
use crate::store::{MemStore, StateStore, View};

/// Histories in a run: fewer where nothing is optimised.
const HISTORIES: u32 = if cfg!(debug_assertions) { 400 } else { 2_500 };
/// Entries of the longest history.
const ENTRIES_MAX: usize = 60;

/// A state machine of the product.
struct Real {
    store: Arc<dyn StateStore>,
    replica: Replica,
}

impl Real {
    fn over(store: Arc<dyn StateStore>) -> Self {
        let replica = Replica::open(Arc::clone(&store)).expect("opens");
        Self { store, replica }
    }

    fn view(&self) -> &dyn View {
        self.store.as_ref()
    }

    fn apply(&self, entry: CommittedEntry) -> Vec<Outcome> {
        let mut answers = self.replica.apply(vec![entry]).expect("applies");
        let answer = answers.pop().flatten().expect("a batch is answered");
        let answer = answer.downcast::<BatchAnswer>().expect("a batch's answer");
        answer.outcomes.clone()
    }
}

/// The entry as the log carries it: through the codec and back.
fn committed(index: u64, batch: &Batch) -> CommittedEntry {
    let bytes = codec::encode(batch).expect("encodes");
    assert_eq!(codec::decode(&bytes).expect("decodes"), *batch);
    CommittedEntry {
        position: Position {
            term: batch.term,
            leader: 1,
            index,
        },
        payload: Payload::Batch(bytes),
    }
}

/// A history: seed and number of entries. Only the length shrinks: an entry depends on all before it.
fn histories() -> impl Strategy<Value = (u64, usize)> {
    (any::<u64>().no_shrink(), 1..=ENTRIES_MAX)
}

fn run(histories_count: u32, test: impl Fn(u64, usize) -> Result<(), TestCaseError>) {
    let config = Config {
        cases: histories_count,
        failure_persistence: None,
        ..Config::default()
    };
    let outcome = TestRunner::new(config).run(&histories(), |(seed, len)| test(seed, len));
    if let Err(failure) = outcome {
        panic!("(seed, entries): {failure}");
    }
}

/// Applies a history to the model and to `real`; they must agree after every entry.
fn agree(seed: u64, len: usize, real: &Real) -> Result<Tally, TestCaseError> {
    let mut model = Model::new();
    let mut dice = Dice::new(seed);
    let mut tally = Tally::default();
    for index in 1..=len as u64 {
        let batch = generate::batch(&model, &mut dice);
        let expected = model.apply(index, &batch);
        let outcomes = real.apply(committed(index, &batch));
        for ((command, expected), outcome) in batch.commands.iter().zip(&expected).zip(&outcomes) {
            prop_assert_eq!(expected, outcome, "entry {}: {:?}", index, command);
        }
        tally.add(&outcomes);
        let (model, store) = (observe::of_model(&model), observe::of_store(real.view()));
        if let Some(difference) = model.difference(&store) {
            let why = format!("entry {index} left (model, store) {difference}\nafter {batch:#?}");
            return Err(TestCaseError::fail(why));
        }
    }
    let report = verify(real.view()).expect("verifies");
    prop_assert_eq!(report.problems, Vec::new());
    tally.add_ends(&model);
    Ok(tally)
}

/// What histories brought about, so that a generator that stops reaching something is noticed.
#[derive(Clone, Debug, Default)]
struct Tally(std::collections::BTreeMap<String, u64>);

impl Tally {
    fn add(&mut self, outcomes: &[Outcome]) {
        for outcome in outcomes {
            let text = format!("{outcome:?}");
            let words = text.split(|c: char| !c.is_ascii_alphanumeric());
            for word in words.filter(|w| w.starts_with(|c: char| c.is_ascii_uppercase())) {
                *self.0.entry(word.to_owned()).or_default() += 1;
            }
        }
    }
}

impl Tally {
    /// How executions ended: an expiry tells no reason in its outcome.
    fn add_ends(&mut self, model: &Model) {
        for record in model.history.values() {
            if let Record::Final(done) = record {
                *self.0.entry(format!("{:?}", done.reason)).or_default() += 1;
            }
        }
    }
}

/// Outcomes, refusals and ends that random histories must reach.
const REACHED: &[&str] = &[
    "AlreadyExists",
    "AlreadyFinal",
    "AttemptTimeout",
    "AttemptsExhausted",
    "BackingOff",
    "CancelRequested",
    "Cancelled",
    "Completed",
    "Created",
    "Deleted",
    "Existing",
    "Expired",
    "Fired",
    "Granted",
    "IdConflict",
    "IdempotencyConflict",
    "KeyFull",
    "LeaseExpired",
    "LeaseLost",
    "MaxElapsed",
    "MaxPending",
    "NonRetryable",
    "NotAllowed",
    "NotFinal",
    "NotInOffice",
    "NotReady",
    "OpenExecutions",
    "Overlap",
    "Paused",
    "Poison",
    "Processed",
    "Protected",
    "QueueFull",
    "QueueInUse",
    "QueueNotAllowed",
    "QueueNotFound",
    "RateLimited",
    "Released",
    "Replaced",
    "Replayed",
    "Requested",
    "RevisionMismatch",
    "Schedules",
    "ScheduleCompleted",
    "ScheduleNotFound",
    "Submitted",
    "Succeeded",
    "Superseded",
    "TenantFull",
    "TenantNotFound",
    "TotalTimeout",
    "Unchanged",
    "UniqueKeyHeld",
    "Unknown",
    "Updated",
];

#[test]
fn apply_does_what_the_model_does() {
    let total = std::cell::RefCell::new(Tally::default());
    run(HISTORIES, |seed, len| {
        let tally = agree(seed, len, &Real::over(Arc::new(MemStore::new())))?;
        for (word, count) in tally.0 {
            *total.borrow_mut().0.entry(word).or_default() += count;
        }
        Ok(())
    });
    let total = total.into_inner().0;
    let missed: Vec<_> = REACHED
        .iter()
        .filter(|word| !total.contains_key(**word))
        .collect();
    if !cfg!(debug_assertions) {
        assert!(
            missed.is_empty(),
            "never reached: {missed:?}; reached: {total:?}"
        );
    }
}

/// A crash leaves a prefix of the entries, at least up to the last flush; the log brings the rest again.
#[test]
fn entries_applied_again_after_a_crash_give_the_same_state() {
    run(HISTORIES / 10, |seed, len| {
        let mut model = Model::new();
        let mut dice = Dice::new(seed);
        let mut crashes = Dice::new(!seed);
        let mut store = Arc::new(MemStore::new());
        let mut real = Real::over(Arc::clone(&store) as Arc<dyn StateStore>);
        let mut log: Vec<(CommittedEntry, Vec<Outcome>)> = Vec::new();
        for index in 1..=len as u64 {
            let batch = generate::batch(&model, &mut dice);
            let outcomes = model.apply(index, &batch);
            let entry = committed(index, &batch);
            prop_assert_eq!(&real.apply(entry.clone()), &outcomes);
            log.push((entry, outcomes));
            if crashes.below(4) == 0 {
                real.replica.flush().expect("flushes");
            }
            if crashes.below(6) > 0 {
                continue;
            }
            let durable = real.replica.durable_index();
            let kept = crashes.below(store.unflushed() + 1);
            store = Arc::new(store.crash(kept));
            real = Real::over(Arc::clone(&store) as Arc<dyn StateStore>);
            let applied = real.replica.applied().position.map_or(0, |p| p.index);
            prop_assert!(
                applied >= durable,
                "{} is durable, {} is left",
                durable,
                applied
            );
            for (entry, outcomes) in log.iter().skip(usize::try_from(applied).expect("fits")) {
                prop_assert_eq!(&real.apply(entry.clone()), outcomes);
            }
        }
        let (model, store) = (observe::of_model(&model), observe::of_store(real.view()));
        prop_assert_eq!(model.difference(&store), None);
        Ok(())
    });
}

/// The store on disk holds what the model says, and still does after it was closed and opened again.
#[cfg(feature = "rocks")]
#[test]
fn apply_does_the_same_on_disk() {
    use crate::store::{RocksMemory, RocksStore};
    let memory = RocksMemory::new(4 << 20, 8 << 20);
    run(30, |seed, len| {
        let place = tempfile::tempdir().expect("a directory");
        let open = || {
            let store = RocksStore::open(place.path(), &memory).expect("opens");
            Real::over(Arc::new(store))
        };
        let before = {
            let real = open();
            agree(seed, len, &real)?;
            real.replica.flush().expect("flushes");
            observe::of_store(real.view())
        };
        let after = observe::of_store(open().view());
        prop_assert_eq!(before.difference(&after), None);
        Ok(())
    });
}

/// Runs one history alone: put the seed and length of a failure here.
#[test]
fn histories_that_once_failed_agree() {
    for (seed, len) in [(1, ENTRIES_MAX), (2, ENTRIES_MAX), (3, ENTRIES_MAX)] {
        let real = Real::over(Arc::new(MemStore::new()));
        agree(seed, len, &real).expect("agrees");
    }
}
