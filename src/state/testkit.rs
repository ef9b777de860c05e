//! A state machine on a memory store, driven entry by entry, for tests of apply.
//!
//! Callers: the tests beside the command modules. Every entry goes through the codec, is applied
//! twice (the same writes must come out), and is followed by [`check::holds`]: the test fails at
//! the entry that broke an invariant.

use std::collections::BTreeMap;

use crate::command::codec;
use crate::command::executions::{
    CancelExecution, CancelMode, ExecutionCommand, ProcessDue, SubmitExecution,
};
use crate::command::leases::{
    ExpireItem, ExpireLeases, GrantItem, GrantLeases, LeaseCommand, LeaseRef, ReportAction,
    ReportItem, ReportLeases, RevokeCause, RevokeLeases,
};
use crate::command::outcome::{Effect, GrantResult, Granted, Outcome, ReportResult};
use crate::command::{Actor, Batch, Command, Envelope, Expect};
use crate::ids::{ExecutionId, Kind, QueueId, TenantId, TenantNo, WorkerId};
use crate::model::execution::{Execution, FinalExecution};
use crate::model::history::AuditRecord;
use crate::model::lease::Lease;
use crate::model::policy::{RetryPolicy, Timeouts};
use crate::model::schedule::JobTemplate;
use crate::state::apply::apply_batch;
use crate::state::history;
use crate::state::machine::Position;
use crate::state::resident::{Resident, read};
use crate::store::due::{DueEntry, DueKind, Level};
use crate::store::{
    Direction, Family, KeyRange, MemStore, StateStore, View, WriteBatch, keys, value,
};
use crate::time::{Millis, Timestamp};

mod admin;
mod check;
mod histories;
mod measure;
mod schedules;

pub(crate) use admin::{a_pause, queue_id, tenant_id};
pub(crate) use schedules::{a_put, create, minute, plan, skip};

/// Log time of a new [`World`].
pub(crate) const START: Timestamp = Timestamp::from_millis(1_800_000_000_000);
/// Tenant `default`.
pub(crate) const TENANT: TenantNo = TenantNo::DEFAULT;
/// Lease length of [`World::grant`].
pub(crate) const LEASE: Millis = Millis::secs(10);

/// One state machine with its store. Term 1 is in office from the start.
pub(crate) struct World {
    /// The store.
    pub(crate) store: MemStore,
    /// The memory.
    pub(crate) state: Resident,
    /// Stamp of the next entry; tests move it.
    pub(crate) now: Timestamp,
    /// Term of the next entry.
    pub(crate) term: u64,
    /// Effects of the last entry.
    pub(crate) effects: Vec<Effect>,
    /// What the last entry wrote.
    pub(crate) writes: WriteBatch,
    index: u64,
    witness: check::Witness,
}

impl World {
    /// An empty state in office.
    pub(crate) fn new() -> Self {
        let store = MemStore::new();
        let mut state = Resident::load(&store).expect("an empty store loads");
        state.cluster.office_term = 1;
        let mut office = WriteBatch::default();
        let row = value::encode(&state.cluster).expect("encodes");
        office.put(Family::Meta, keys::CLUSTER.to_vec(), row);
        store.write(office).expect("a memory store writes");
        Self {
            store,
            state,
            now: START,
            term: 1,
            effects: Vec::new(),
            writes: WriteBatch::default(),
            index: 0,
            witness: check::Witness::default(),
        }
    }

    /// Lets time pass until the next entry.
    pub(crate) fn advance(&mut self, by: Millis) {
        self.now = self.now.plus(by);
    }

    /// Token that the next entry will have.
    pub(crate) fn next_token(&self) -> u64 {
        self.index + 1 + self.state.cluster.index_base
    }

    /// Applies one entry and checks every invariant.
    pub(crate) fn apply(&mut self, envelopes: Vec<Envelope>) -> Vec<Outcome> {
        self.index += 1;
        let position = Position {
            term: self.term,
            leader: 1,
            index: self.index,
        };
        let batch = Batch {
            proposed_at: self.now,
            term: self.term,
            commands: envelopes,
        };
        let bytes = codec::encode(&batch).expect("the batch encodes");
        let decoded = codec::decode(&bytes).expect("the batch decodes");
        assert_eq!(decoded, batch, "the codec is faithful");
        let mut again = self.state.clone();
        let applied =
            apply_batch(&mut self.state, &self.store, position, &batch).expect("the entry applies");
        let repeated =
            apply_batch(&mut again, &self.store, position, &batch).expect("the entry applies");
        assert_eq!(applied.writes, repeated.writes, "apply is a function");
        assert_eq!(applied.outcomes, repeated.outcomes, "apply is a function");
        let refused = |o: &Outcome| matches!(o, Outcome::Refused(_));
        if applied.outcomes.iter().all(refused) {
            assert_eq!(applied.writes.ops.len(), 1, "a refusal changes nothing");
        }
        self.writes = applied.writes.clone();
        self.store.write(applied.writes).expect("writes");
        self.effects = applied.effects;
        check::holds(self);
        applied.outcomes
    }

    /// Applies one command of an anonymous caller as an entry.
    pub(crate) fn one(&mut self, command: Command) -> Outcome {
        self.one_received(command, None)
    }

    /// As [`World::one`], received by the leader at `received_at`.
    pub(crate) fn one_received(
        &mut self,
        command: Command,
        received_at: Option<Timestamp>,
    ) -> Outcome {
        let mut outcomes = self.apply(vec![by_anyone(command, received_at)]);
        outcomes.pop().expect("one command, one outcome")
    }

    // ---- commands
    // ---------------------------------------------------------------------------------------------

    /// Submits and answers the id.
    pub(crate) fn submit(&mut self, submission: SubmitExecution) -> ExecutionId {
        match self.one(submit_command(submission)) {
            Outcome::Submitted { execution, .. } => execution,
            other => panic!("submit answered {other:?}"),
        }
    }

    /// Submits a plain execution due now.
    pub(crate) fn plain(&mut self) -> ExecutionId {
        let submission = submission(self.now);
        self.submit(submission)
    }

    /// Grants `ids` of queue `queue` to `worker` in one command.
    pub(crate) fn grant_all(&mut self, worker: &str, ids: &[&ExecutionId]) -> Vec<GrantResult> {
        let items: Vec<GrantItem> = ids.iter().map(|id| self.grant_item(id)).collect();
        match self.one(grant_command(worker, None, items)) {
            Outcome::Granted(results) => results,
            other => panic!("grant answered {other:?}"),
        }
    }

    /// What a grant of `id` (tenant `default`) says.
    pub(crate) fn grant_item(&self, id: &ExecutionId) -> GrantItem {
        let queue = self
            .open(id)
            .map_or(crate::ids::QueueNo::DEFAULT, |e| e.queue);
        GrantItem {
            queue,
            tenant: TENANT,
            execution: id.clone(),
        }
    }

    /// Grants one execution, which must succeed.
    pub(crate) fn grant(&mut self, worker: &str, id: &ExecutionId) -> Granted {
        match self.grant_all(worker, &[id]).pop() {
            Some(GrantResult::Granted(granted)) => *granted,
            other => panic!("grant of {id} answered {other:?}"),
        }
    }

    /// A report of `worker` received now.
    pub(crate) fn report(
        &mut self,
        worker: &str,
        lease: &Lease,
        action: ReportAction,
    ) -> ReportResult {
        let now = self.now;
        self.report_received(worker, lease, action, now)
    }

    /// A report of `worker` received at `received_at`.
    pub(crate) fn report_received(
        &mut self,
        worker: &str,
        lease: &Lease,
        action: ReportAction,
        received_at: Timestamp,
    ) -> ReportResult {
        let item = ReportItem {
            lease: reference(lease),
            action,
        };
        let command = report_command(worker, vec![item]);
        match self.one_received(command, Some(received_at)) {
            Outcome::Reported(mut results) => results.pop().expect("one item, one result"),
            other => panic!("report answered {other:?}"),
        }
    }

    /// Expires `lease` if its time is over. Answers how many were.
    pub(crate) fn expire(&mut self, lease: &Lease) -> u32 {
        let items = vec![item_of(lease)];
        let command = Command::Lease(LeaseCommand::Expire(ExpireLeases { items }));
        processed(&self.one(command))
    }

    /// Takes `lease` away. Answers how many were live.
    pub(crate) fn revoke(&mut self, cause: RevokeCause, lease: &Lease) -> u32 {
        let items = vec![item_of(lease)];
        let command = Command::Lease(LeaseCommand::Revoke(RevokeLeases { cause, items }));
        processed(&self.one(command))
    }

    /// Cancels an execution of tenant `default`.
    pub(crate) fn cancel(&mut self, id: &ExecutionId, mode: CancelMode) -> Outcome {
        self.one(cancel_command(id, mode))
    }

    /// Processes every due entry of an execution up to now, as the leader would. Answers how many
    /// were carried out.
    pub(crate) fn process_due(&mut self) -> u32 {
        let now = self.now;
        let mine = |e: &DueEntry| {
            e.key.at <= now && matches!(e.kind, DueKind::Execution | DueKind::StartDeadline)
        };
        let items: Vec<DueEntry> = self.due_entries().into_iter().filter(mine).collect();
        if items.is_empty() {
            return 0;
        }
        let command = Command::Execution(ExecutionCommand::ProcessDue(ProcessDue { items }));
        processed(&self.one(command))
    }

    // ---- what is there
    // ----------------------------------------------------------------------------------------

    /// An open execution of tenant `default`.
    pub(crate) fn open(&self, id: &ExecutionId) -> Option<Execution> {
        read(&self.store, Family::Live, &keys::execution(TENANT, id)).expect("reads")
    }

    /// An open execution of tenant `default` that must be there.
    pub(crate) fn must_open(&self, id: &ExecutionId) -> Execution {
        self.open(id).unwrap_or_else(|| panic!("{id} is not open"))
    }

    /// A final execution of tenant `default`.
    pub(crate) fn ended(&self, id: &ExecutionId) -> Option<FinalExecution> {
        history::find_final(
            &mut |family, key| self.store.get(family, key),
            &self.state.cluster,
            self.state.applied.now,
            TENANT,
            id,
        )
        .expect("reads")
        .map(|(_, _, done)| done)
    }

    /// A final execution of tenant `default` that must be there.
    pub(crate) fn must_have_ended(&self, id: &ExecutionId) -> FinalExecution {
        self.ended(id)
            .unwrap_or_else(|| panic!("{id} is not final"))
    }

    /// The live lease on an execution of tenant `default`.
    pub(crate) fn lease(&self, id: &ExecutionId) -> Option<Lease> {
        self.state.lease(TENANT, id).cloned()
    }

    /// Every row of `family` that begins with `prefix`.
    pub(crate) fn rows(&self, family: Family, prefix: &[u8]) -> BTreeMap<Vec<u8>, Vec<u8>> {
        rows(&self.store, family, prefix)
    }

    /// Actions of every audit record, oldest first.
    pub(crate) fn audits(&self) -> Vec<String> {
        let mut rows = self.rows(Family::History, &[]);
        // class u8, bucket u32, tenant u32, tag.
        rows.retain(|key, _| key.get(9) == Some(&keys::AUDIT));
        let action = |bytes: Vec<u8>| {
            let record: AuditRecord = value::decode(&bytes).expect("an audit record");
            record.action
        };
        rows.into_values().map(action).collect()
    }

    /// The due index, by level.
    pub(crate) fn due_entries(&self) -> Vec<DueEntry> {
        let mut found = Vec::new();
        for level in Level::ALL {
            for key in self.rows(level.family(), &[]).into_keys() {
                found.push(DueEntry::decode(level, &key).expect("a due key"));
            }
        }
        found
    }

    /// How many keys the last entry touched, without the applied position, counts, usage and
    /// limits' states, which are written once an entry whatever it does.
    pub(crate) fn budget(&self) -> usize {
        let own = |op: &&(Family, Vec<u8>, Option<Vec<u8>>)| op.0 != Family::Meta;
        self.writes.ops.iter().filter(own).count()
    }
}

/// Every row of `family` in `view` that begins with `prefix`.
pub(crate) fn rows(view: &dyn View, family: Family, prefix: &[u8]) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut found = BTreeMap::new();
    view.scan(
        family,
        &KeyRange::prefix(prefix),
        Direction::Forward,
        &mut |key, value| {
            found.insert(key.to_vec(), value.to_vec());
            std::ops::ControlFlow::Continue(())
        },
    )
    .expect("scans");
    found
}

/// A command of a caller without a name.
pub(crate) fn by_anyone(command: Command, received_at: Option<Timestamp>) -> Envelope {
    Envelope {
        actor: Actor::Anonymous,
        reason: None,
        request_id: None,
        received_at,
        idempotency: None,
        command,
    }
}

/// Retries without jitter: 3 attempts, 1 s, doubling, at most 1 min.
pub(crate) fn retry() -> RetryPolicy {
    RetryPolicy {
        max_attempts: 3,
        initial_backoff: Millis::secs(1),
        multiplier_milli: 2_000,
        max_backoff: Millis::minutes(1),
        jitter_milli: 0,
        max_elapsed: None,
        max_lease_losses: 5,
        non_retryable: vec!["Fatal".into()],
    }
}

/// A template of kind `mail` with [`retry`] and no time-outs.
pub(crate) fn template() -> JobTemplate {
    JobTemplate {
        kind: Kind::new("mail").expect("a kind"),
        payload: b"{\"to\":\"you\"}".to_vec(),
        priority: 5,
        concurrency_key: None,
        labels: BTreeMap::new(),
        requires: BTreeMap::new(),
        retry: retry(),
        timeouts: Timeouts::default(),
    }
}

/// A submission to queue and tenant `default` with [`template`].
pub(crate) fn submission(due_at: Timestamp) -> SubmitExecution {
    SubmitExecution {
        tenant: TenantId::default_tenant(),
        queue: QueueId::default_queue(),
        id: None,
        template: template(),
        due_at,
        unique: None,
        traceparent: None,
        fingerprint: 7,
        replay_of: None,
    }
}

/// A submission as a command.
pub(crate) fn submit_command(submission: SubmitExecution) -> Command {
    Command::Execution(ExecutionCommand::Submit(Box::new(submission)))
}

/// A cancel of an execution of tenant `default`.
pub(crate) fn cancel_command(id: &ExecutionId, mode: CancelMode) -> Command {
    Command::Execution(ExecutionCommand::Cancel(CancelExecution {
        tenant: TenantId::default_tenant(),
        id: id.clone(),
        mode,
        expect: Expect::Any,
    }))
}

/// A grant of [`LEASE`] without start confirmation.
pub(crate) fn grant_command(
    worker: &str,
    request_id: Option<&str>,
    items: Vec<GrantItem>,
) -> Command {
    Command::Lease(LeaseCommand::Grant(GrantLeases {
        worker: worker_id(worker),
        request_id: request_id.map(str::to_owned),
        duration: LEASE,
        start_confirmation: None,
        items,
    }))
}

/// A report.
pub(crate) fn report_command(worker: &str, items: Vec<ReportItem>) -> Command {
    Command::Lease(LeaseCommand::Report(ReportLeases {
        worker: worker_id(worker),
        items,
    }))
}

/// A worker's id.
pub(crate) fn worker_id(name: &str) -> WorkerId {
    WorkerId::new(name).expect("a worker id")
}

/// How a worker names `lease`.
pub(crate) fn reference(lease: &Lease) -> LeaseRef {
    LeaseRef {
        execution: lease.execution.clone(),
        attempt: lease.attempt,
        fencing_token: lease.fencing_token,
    }
}

/// How the leader names `lease`.
pub(crate) fn item_of(lease: &Lease) -> ExpireItem {
    ExpireItem {
        tenant: lease.tenant,
        lease: reference(lease),
        draw: u32::MAX / 2,
    }
}

/// A renewal of the same length.
pub(crate) const fn renew() -> ReportAction {
    ReportAction::Renew {
        duration: None,
        progress: None,
    }
}

/// A success without result.
pub(crate) const fn complete() -> ReportAction {
    ReportAction::Complete {
        result: Vec::new(),
        truncated: false,
    }
}

/// A retryable failure with the policy's own delay.
pub(crate) const fn fail() -> ReportAction {
    ReportAction::Fail {
        error: Vec::new(),
        error_type: None,
        retryable: true,
        retry_in: None,
        draw: u32::MAX / 2,
        truncated: false,
    }
}

/// A release.
pub(crate) const fn release(delay: Millis) -> ReportAction {
    ReportAction::Release {
        delay,
        reason: None,
        draw: u32::MAX / 2,
    }
}

fn processed(outcome: &Outcome) -> u32 {
    match outcome {
        Outcome::Processed { done } => *done,
        other => panic!("expected a count, got {other:?}"),
    }
}
