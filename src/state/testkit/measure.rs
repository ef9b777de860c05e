//! What apply costs on this machine: figures, not checks.
//! `cargo test --release --lib -- --ignored --nocapture --test-threads=1 testkit::measure`.

#![allow(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    reason = "it prints rounded figures"
)]

use nix::time::{ClockId, clock_gettime};

use super::{complete, fail, grant_command, reference, report_command, submission, submit_command};
use crate::command::leases::{GrantItem, ReportItem};
use crate::command::outcome::{GrantResult, Outcome};
use crate::command::{Batch, Command, Envelope, codec};
use crate::ids::ExecutionId;
use crate::model::lease::Lease;
use crate::state::apply::apply_batch;
use crate::state::machine::Position;
use crate::state::resident::Resident;
use crate::store::{Family, MemStore, StateStore, WriteBatch, keys, value};

const EXECUTIONS: usize = 51_200;
const ENTRY: usize = 256;
const CLAIM: usize = 16;

/// Seconds of CPU time of this thread.
fn cpu() -> f64 {
    let at = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).expect("the clock reads");
    at.tv_sec() as f64 + at.tv_nsec() as f64 / 1e9
}

struct Bench<S> {
    store: S,
    state: Resident,
    index: u64,
    decode: f64,
    apply: f64,
    write: f64,
    keys: usize,
}

impl<S: StateStore> Bench<S> {
    fn new(store: S) -> Self {
        let mut state = Resident::load(&store).expect("loads");
        state.cluster.office_term = 1;
        let mut office = WriteBatch::default();
        let row = value::encode(&state.cluster).expect("encodes");
        office.put(Family::Meta, keys::CLUSTER.to_vec(), row);
        store.write(office).expect("writes");
        Self {
            store,
            state,
            index: 0,
            decode: 0.0,
            apply: 0.0,
            write: 0.0,
            keys: 0,
        }
    }

    fn entry(&mut self, commands: Vec<Command>) -> Vec<Outcome> {
        self.index += 1;
        let batch = Batch {
            proposed_at: super::START,
            term: 1,
            commands: commands.into_iter().map(Envelope::leader).collect(),
        };
        let bytes = codec::encode(&batch).expect("encodes");
        let position = Position {
            term: 1,
            leader: 1,
            index: self.index,
        };
        let start = cpu();
        let batch = codec::decode(&bytes).expect("decodes");
        let decoded = cpu();
        let applied = apply_batch(&mut self.state, &self.store, position, &batch).expect("applies");
        let done = cpu();
        self.keys += applied.writes.ops.len();
        self.store.write(applied.writes).expect("writes");
        self.decode += decoded - start;
        self.apply += done - decoded;
        self.write += cpu() - done;
        applied.outcomes
    }

    fn tell(&mut self, what: &str) {
        let each = |seconds: f64| seconds * 1e6 / EXECUTIONS as f64;
        println!(
            "{what:<28} decode {:>5.2} µs  apply {:>5.2} µs  write {:>5.2} µs  {:.2} keys, each",
            each(self.decode),
            each(self.apply),
            each(self.write),
            self.keys as f64 / EXECUTIONS as f64,
        );
        (self.decode, self.apply, self.write, self.keys) = (0.0, 0.0, 0.0, 0);
    }

    fn create(&mut self) -> Vec<ExecutionId> {
        let mut created = Vec::with_capacity(EXECUTIONS);
        for _ in 0..EXECUTIONS / ENTRY {
            let mut submission = submission(super::START);
            submission.template.payload = vec![b'7'; 100];
            let outcomes = self.entry(vec![submit_command(submission); ENTRY]);
            created.extend(outcomes.into_iter().map(|outcome| match outcome {
                Outcome::Submitted { execution, .. } => execution,
                other => panic!("{other:?}"),
            }));
        }
        created
    }

    fn grant(&mut self, ids: &[ExecutionId]) -> Vec<Lease> {
        let mut leases = Vec::with_capacity(EXECUTIONS);
        for entry in ids.chunks(ENTRY) {
            let claims = entry.chunks(CLAIM).enumerate().map(|(n, claim)| {
                let item = |id: &ExecutionId| GrantItem {
                    queue: crate::ids::QueueNo::DEFAULT,
                    tenant: super::TENANT,
                    execution: id.clone(),
                };
                let request = "0123456789abcdef0123456789abcdef";
                grant_command(
                    &format!("w{n}"),
                    Some(request),
                    claim.iter().map(item).collect(),
                )
            });
            for outcome in self.entry(claims.collect()) {
                let Outcome::Granted(results) = outcome else {
                    panic!("a grant is answered by items");
                };
                leases.extend(results.into_iter().map(|result| match result {
                    GrantResult::Granted(granted) => granted.lease,
                    refused => panic!("{refused:?}"),
                }));
            }
        }
        leases
    }

    fn report(&mut self, leases: &[Lease], action: &crate::command::leases::ReportAction) {
        for entry in leases.chunks(ENTRY) {
            let reports = entry.chunks(CLAIM).map(|held| {
                let item = |lease: &Lease| ReportItem {
                    lease: reference(lease),
                    action: action.clone(),
                };
                let worker = held[0].worker.as_str().to_owned();
                report_command(&worker, held.iter().map(item).collect())
            });
            self.entry(reports.collect());
        }
    }

    fn run(&mut self) {
        let ids = self.create();
        self.tell("create");
        let leases = self.grant(&ids);
        self.tell("grant");
        self.report(&leases, &complete());
        self.tell("complete");
        let ids = self.create();
        let leases = self.grant(&ids);
        self.tell("create and grant");
        self.report(&leases, &fail());
        self.tell("fail");
    }
}

#[test]
#[ignore = "prints figures"]
fn in_memory() {
    Bench::new(MemStore::new()).run();
}

#[cfg(feature = "rocks")]
#[test]
#[ignore = "prints figures"]
fn on_rocksdb() {
    let dir = tempfile::tempdir().expect("a directory");
    let memory = crate::store::RocksMemory::default();
    let store = crate::store::RocksStore::open(dir.path(), &memory);
    Bench::new(store.expect("opens")).run();
}
