//! Commands about executions and leases.

use super::{Dice, due_entries, expect, key, kind, queue, tenant};
use crate::command::executions::{
    CancelExecution, CancelMode, DeleteExecution, ExecutionCommand, OnConflict, ProcessDue,
    SubmitExecution, UniqueKey,
};
use crate::command::leases::{
    ExpireItem, ExpireLeases, GrantItem, GrantLeases, LeaseCommand, LeaseRef, ReportAction,
    ReportItem, ReportLeases, RevokeCause, RevokeLeases,
};
use crate::ids::{ExecutionId, TenantId, TenantNo, WorkerId};
use crate::model::execution::{Execution, ExecutionState};
use crate::model::policy::{RetryPolicy, Timeouts};
use crate::model::schedule::JobTemplate;
use crate::state::reference::{Model, Open, Record};
use crate::time::Millis;

pub(super) fn chosen_id(dice: &mut Dice) -> ExecutionId {
    ExecutionId::new(dice.word(&["order-1", "order-2", "order-3"])).expect("an id")
}

fn worker(dice: &mut Dice) -> WorkerId {
    WorkerId::new(dice.word(&["w1", "w1", "w2"])).expect("a worker")
}

/// A retry policy whose delays are whole milliseconds at every step.
fn retry(dice: &mut Dice) -> RetryPolicy {
    RetryPolicy {
        max_attempts: *dice.pick(&[1, 2, 3, 6]),
        initial_backoff: Millis(*dice.pick(&[0, 1_000, 64_000])),
        multiplier_milli: *dice.pick(&[1_000, 1_500, 2_000, 100_000]),
        max_backoff: Millis(*dice.pick(&[1_500, 100_000, 3_600_000])),
        jitter_milli: *dice.pick(&[0, 200, 1_000]),
        max_elapsed: dice
            .once_in(5)
            .then(|| Millis(*dice.pick(&[2_000, 120_000]))),
        max_lease_losses: *dice.pick(&[1, 2, 3]),
        non_retryable: vec!["Fatal".into()],
    }
}

pub(super) fn template(dice: &mut Dice) -> JobTemplate {
    let after = |dice: &mut Dice| Millis(*dice.pick(&[500, 9_000, 70_000, 8_000_000]));
    JobTemplate {
        kind: kind(dice),
        payload: vec![b'1'; *dice.pick(&[0, 10, 10, 1_024, 1_025])],
        priority: u8::try_from(dice.below(10)).expect("fits"),
        concurrency_key: dice.maybe(key),
        labels: [("team".to_owned(), "a".to_owned())].into(),
        requires: std::collections::BTreeMap::new(),
        retry: retry(dice),
        timeouts: Timeouts {
            start: dice.once_in(4).then(|| after(dice)),
            attempt: dice.once_in(4).then(|| after(dice)),
            total: dice.once_in(4).then(|| after(dice)),
        },
    }
}

/// The tenant and id of an execution that is open, or final, or unknown.
fn target(model: &Model, dice: &mut Dice) -> (TenantId, ExecutionId) {
    let open: Vec<&Open> = model.open.values().collect();
    if !open.is_empty() && !dice.once_in(5) {
        let row = &dice.pick(&open).row;
        return (model.tenants[&row.tenant.0].id.clone(), row.id.clone());
    }
    let done = ended(model);
    if !done.is_empty() && !dice.once_in(5) {
        let row = dice.pick(&done);
        return (model.tenants[&row.tenant.0].id.clone(), row.id.clone());
    }
    (tenant(dice), chosen_id(dice))
}

fn ended(model: &Model) -> Vec<&Execution> {
    let rows = model.history.values();
    rows.filter_map(|record| match record {
        Record::Final(done) => Some(&done.execution),
        _ => None,
    })
    .collect()
}

pub(super) fn execution(model: &Model, dice: &mut Dice) -> ExecutionCommand {
    match dice.below(22) {
        0..=10 => submit(model, dice),
        11 | 12 => {
            let (tenant, id) = target(model, dice);
            let name = model.tenant(&tenant).map(|no| (no, id.to_string()));
            let open = name.ok().and_then(|name| model.open.get(&name));
            ExecutionCommand::Cancel(CancelExecution {
                expect: expect(open.map(|open| open.row.revision), dice),
                mode: *dice.pick(&[CancelMode::Request, CancelMode::Now]),
                tenant,
                id,
            })
        }
        13 => {
            let (tenant, id) = target(model, dice);
            ExecutionCommand::Delete(DeleteExecution { tenant, id })
        }
        _ => {
            let due = due_entries(model);
            let some = due.into_iter().filter(|_| !dice.once_in(6));
            ExecutionCommand::ProcessDue(ProcessDue {
                items: some.take(50).collect(),
            })
        }
    }
}

fn submit(model: &Model, dice: &mut Dice) -> ExecutionCommand {
    let wait = Millis(*dice.pick(&[0, 0, 0, 600, 40_000, 5_000_000, 300_000_000]));
    let minted = ended(model).first().map(|row| row.id.clone());
    ExecutionCommand::Submit(Box::new(SubmitExecution {
        tenant: tenant(dice),
        queue: queue(dice),
        id: match dice.below(12) {
            0..=2 => Some(chosen_id(dice)),
            3 => minted,
            _ => None,
        },
        template: template(dice),
        due_at: if dice.once_in(8) {
            model.now.minus(wait)
        } else {
            model.now.plus(wait)
        },
        unique: dice.once_in(4).then(|| UniqueKey {
            key: dice.word(&["u1", "u2"]).to_owned(),
            on_conflict: *dice.pick(&[
                OnConflict::Reject,
                OnConflict::ReturnExisting,
                OnConflict::Replace,
            ]),
        }),
        traceparent: dice.once_in(4).then(|| "00-trace".to_owned()),
        fingerprint: dice.below(2) as u64,
        replay_of: dice.once_in(9).then(|| chosen_id(dice)),
    }))
}

pub(super) fn lease(model: &Model, dice: &mut Dice) -> LeaseCommand {
    match dice.below(12) {
        0..=4 => grant(model, dice),
        5..=8 => report(model, dice),
        9 | 10 => LeaseCommand::Expire(ExpireLeases {
            items: items(model, dice),
        }),
        _ => LeaseCommand::Revoke(RevokeLeases {
            cause: *dice.pick(&[
                RevokeCause::Operator,
                RevokeCause::Undelivered,
                RevokeCause::SignOff,
            ]),
            items: items(model, dice),
        }),
    }
}

fn grant(model: &Model, dice: &mut Dice) -> LeaseCommand {
    let mut items = Vec::new();
    for open in model.open.values() {
        let row = &open.row;
        let is_ready = row.state == ExecutionState::Ready && open.lease.is_none();
        if (is_ready && !dice.once_in(3)) || dice.once_in(9) {
            let queue = if dice.once_in(25) {
                crate::ids::QueueNo(1)
            } else {
                row.queue
            };
            items.push(GrantItem {
                queue,
                tenant: row.tenant,
                execution: row.id.clone(),
            });
        }
    }
    if dice.once_in(6) {
        items.push(GrantItem {
            queue: crate::ids::QueueNo(1),
            tenant: TenantNo(1),
            execution: chosen_id(dice),
        });
    }
    LeaseCommand::Grant(GrantLeases {
        worker: worker(dice),
        request_id: dice.maybe(|dice| dice.word(&["c1", "c2"]).to_owned()),
        duration: Millis(*dice.pick(&[1_000, 10_000, 60_000])),
        start_confirmation: dice.once_in(4).then_some(Millis(2_000)),
        items,
    })
}

/// A lease that lives, or one that has ended, or one that never was; with its worker.
fn reference(model: &Model, dice: &mut Dice) -> (TenantNo, LeaseRef, WorkerId) {
    let live: Vec<_> = model
        .open
        .values()
        .filter_map(|open| open.lease.as_ref())
        .collect();
    if !live.is_empty() && !dice.once_in(4) {
        let lease = dice.pick(&live);
        let named = LeaseRef {
            execution: lease.execution.clone(),
            attempt: lease.attempt + u32::from(dice.once_in(20)),
            fencing_token: lease.fencing_token + u64::from(dice.once_in(20)),
        };
        return (lease.tenant, named, lease.worker.clone());
    }
    let open = model.open.values().map(|open| &open.row);
    let tried: Vec<_> = open
        .chain(ended(model))
        .filter(|r| !r.attempts.is_empty())
        .collect();
    if !tried.is_empty() && !dice.once_in(6) {
        let row = dice.pick(&tried);
        let attempt = dice.pick(&row.attempts);
        let named = LeaseRef {
            execution: row.id.clone(),
            attempt: attempt.attempt,
            fencing_token: attempt.fencing_token,
        };
        return (row.tenant, named, attempt.worker.clone());
    }
    let named = LeaseRef {
        execution: chosen_id(dice),
        attempt: 1,
        fencing_token: 5,
    };
    (TenantNo(1), named, worker(dice))
}

fn items(model: &Model, dice: &mut Dice) -> Vec<ExpireItem> {
    let count = 1 + dice.below(3);
    let item = |_| {
        let (tenant, lease, _) = reference(model, dice);
        ExpireItem {
            tenant,
            lease,
            draw: draw(dice),
        }
    };
    (0..count).map(item).collect()
}

fn draw(dice: &mut Dice) -> u32 {
    *dice.pick(&[0, 1, u32::MAX / 3, u32::MAX])
}

fn report(model: &Model, dice: &mut Dice) -> LeaseCommand {
    let (_, first, worker) = reference(model, dice);
    let mut items = vec![ReportItem {
        lease: first,
        action: action(dice),
    }];
    for _ in 0..dice.below(3) {
        let (_, lease, _) = reference(model, dice);
        let action = action(dice);
        items.push(ReportItem { lease, action });
    }
    LeaseCommand::Report(ReportLeases { worker, items })
}

fn action(dice: &mut Dice) -> ReportAction {
    match dice.below(8) {
        0..=2 => ReportAction::Renew {
            duration: dice.maybe(|dice| Millis(*dice.pick(&[1_000, 5_000, 30_000]))),
            progress: dice.maybe(|_| b"{\"done\":1}".to_vec()),
        },
        3 | 4 => ReportAction::Complete {
            result: if dice.once_in(2) {
                b"7".to_vec()
            } else {
                Vec::new()
            },
            truncated: dice.once_in(5),
        },
        5 | 6 => ReportAction::Fail {
            error: b"{\"type\":\"Smtp\"}".to_vec(),
            error_type: dice.maybe(|dice| dice.word(&["Smtp", "Smtp", "Fatal"]).to_owned()),
            retryable: !dice.once_in(6),
            retry_in: dice
                .once_in(4)
                .then(|| Millis(*dice.pick(&[0, 800, 9_000_000]))),
            draw: draw(dice),
            truncated: dice.once_in(5),
        },
        _ => ReportAction::Release {
            delay: Millis(*dice.pick(&[0, 0, 2_000])),
            reason: dice.maybe(|_| "shutdown".to_owned()),
            draw: draw(dice),
        },
    }
}
