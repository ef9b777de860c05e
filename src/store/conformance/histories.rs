//! Random histories against a plain map.

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use super::*;

/// One step of a history.
#[derive(Clone, Debug)]
enum Step {
    Write(Vec<(u8, Vec<u8>, Option<u8>)>),
    Flush,
    Restart,
    /// Takes a snapshot; all are checked at the end.
    Snapshot,
    /// Transfers the store's own checkpoint into it, with a write that the install undoes.
    Reinstall,
    Look(u8, Vec<u8>, Option<Vec<u8>>),
}

fn key() -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(prop_oneof![0_u8..3, Just(255)], 0..4)
}

fn step() -> impl Strategy<Value = Step> {
    let op = (0_u8..4, key(), prop::option::weighted(0.7, any::<u8>()));
    prop_oneof![
        12 => prop::collection::vec(op, 1..8).prop_map(Step::Write),
        2 => Just(Step::Flush),
        1 => Just(Step::Restart),
        1 => Just(Step::Snapshot),
        1 => Just(Step::Reinstall),
        6 => (0_u8..4, key(), prop::option::of(key())).prop_map(|(f, a, b)| Step::Look(f, a, b)),
    ]
}

/// Four families that are tuned differently.
fn family(number: u8) -> Family {
    [
        Family::Meta,
        Family::Live,
        Family::DueMinute,
        Family::History,
    ][usize::from(number % 4)]
}

fn batch_of(ops: Vec<(u8, Vec<u8>, Option<u8>)>) -> WriteBatch {
    let mut batch = WriteBatch::default();
    for (number, key, value) in ops {
        match value {
            Some(value) => batch.put(family(number), key, vec![value; usize::from(value)]),
            None => batch.delete(family(number), key),
        }
    }
    batch
}

/// A store beside its model.
struct Run<'s, S: Subject> {
    subject: &'s S,
    store: Arc<S::Store>,
    model: Model,
    /// The model after each write since the last one that is surely durable, that one first.
    possible: Vec<Model>,
    snapshots: Vec<(Arc<dyn View>, Model)>,
}

impl<S: Subject> Run<'_, S> {
    fn write(&mut self, batch: WriteBatch) {
        write_model(&mut self.model, &batch);
        self.store.write(batch).unwrap();
        self.possible.push(self.model.clone());
    }

    fn durable(&mut self) {
        self.possible = vec![self.model.clone()];
    }

    fn restart(self) -> Self {
        self.check_snapshots();
        let Self {
            subject,
            store,
            possible,
            snapshots,
            ..
        } = self;
        drop(snapshots);
        let store = subject.restart(store);
        let model = contents(&*store);
        assert!(possible.contains(&model), "not a prefix of the writes");
        Self {
            subject,
            store,
            possible: vec![model.clone()],
            model,
            snapshots: Vec::new(),
        }
    }

    fn check_snapshots(&self) {
        for (snapshot, then) in &self.snapshots {
            assert_eq!(contents(&**snapshot), *then);
        }
    }

    fn reinstall(&mut self) {
        let checkpoint = self.store.checkpoint().unwrap();
        let mut staging = self.store.stage().unwrap();
        copy(&*checkpoint, &mut *staging, 1 << 16);
        let undone = puts(Family::Live, &[(b"undone", b"1")]);
        self.store.write(undone).unwrap();
        assert_eq!(contents(&*staging.seal().unwrap()), self.model);
        self.store.install(staging).unwrap();
        self.durable();
    }

    fn look(&self, family: Family, range: &KeyRange) {
        let in_range =
            |((f, key), _): &(&(Family, Vec<u8>), &Vec<u8>)| *f == family && range.contains(key);
        let pairs = self.model.iter().filter(in_range);
        let mut expected: Vec<Pair> = pairs.map(|((_, k), v)| (k.clone(), v.clone())).collect();
        assert_eq!(
            scan(&*self.store, family, range, Direction::Forward),
            expected
        );
        expected.reverse();
        assert_eq!(
            scan(&*self.store, family, range, Direction::Backward),
            expected
        );
        let one = self.store.get(family, &range.from).unwrap();
        assert_eq!(one.as_ref(), self.model.get(&(family, range.from.clone())));
    }

    fn step(mut self, step: Step) -> Self {
        match step {
            Step::Write(ops) => self.write(batch_of(ops)),
            Step::Flush => {
                self.store.flush().unwrap();
                self.durable();
            }
            Step::Restart => self = self.restart(),
            Step::Snapshot => self
                .snapshots
                .push((self.store.snapshot(), self.model.clone())),
            Step::Reinstall => self.reinstall(),
            Step::Look(number, from, to) => self.look(family(number), &KeyRange { from, to }),
        }
        self
    }
}

pub(in crate::store) fn random_histories_equal_a_plain_map<S: Subject>(subject: &S) {
    let mut runner = TestRunner::new(Config {
        cases: S::HISTORIES,
        failure_persistence: None,
        ..Config::default()
    });
    let histories = prop::collection::vec(step(), 1..60);
    let outcome = runner.run(&histories, |steps| {
        let mut run = Run {
            subject,
            store: subject.create(),
            model: Model::new(),
            possible: vec![Model::new()],
            snapshots: Vec::new(),
        };
        for step in steps {
            run = run.step(step);
        }
        assert_eq!(contents(&*run.store), run.model);
        run.check_snapshots();
        Ok(())
    });
    if let Err(error) = outcome {
        panic!("{error}");
    }
}
