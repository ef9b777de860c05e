//! The leader as a black box over a fake log: what callers and workers see, and what goes through the log.

mod claims;
mod failover;
mod firing;

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::calendar::{Compiled, ZoneData};
use crate::command::executions::{ExecutionCommand, SubmitExecution};
use crate::command::leases::{LeaseRef, ReportAction, ReportItem};
use crate::command::outcome::{Granted, Outcome, ReportResult};
use crate::command::schedules::{PutSchedule, ScheduleCommand};
use crate::command::{Actor, Command, Envelope, Expect};
use crate::ids::{ExecutionId, Kind, QueueId, ScheduleId, TenantId, TenantNo, WorkerId};
use crate::leader::testing::Cluster;
use crate::leader::{Claim, Leader, Scheduler, Unavailable, planner};
use crate::model::policy::{MisfirePolicy, OverlapPolicy, PastPolicy, RetryPolicy, Timeouts};
use crate::model::rule::RuleSpec;
use crate::model::schedule::{JobTemplate, ScheduleSpec};
use crate::time::{Millis, Timestamp};

fn queue(name: &str) -> QueueId {
    QueueId::new(name).expect("a good name")
}

fn worker(name: &str) -> WorkerId {
    WorkerId::new(name).expect("a good name")
}

fn template() -> JobTemplate {
    JobTemplate {
        kind: Kind::new("k").expect("a good kind"),
        payload: b"{}".to_vec(),
        priority: 5,
        concurrency_key: None,
        labels: BTreeMap::new(),
        requires: BTreeMap::new(),
        retry: RetryPolicy::default(),
        timeouts: Timeouts::default(),
    }
}

fn envelope(command: Command) -> Envelope {
    Envelope {
        actor: Actor::Anonymous,
        ..Envelope::leader(command)
    }
}

fn submission(queue: &QueueId, due_at: Timestamp, template: JobTemplate) -> Envelope {
    let submit = SubmitExecution {
        tenant: TenantId::default_tenant(),
        queue: queue.clone(),
        id: None,
        template,
        due_at,
        unique: None,
        traceparent: None,
        fingerprint: 7,
        replay_of: None,
    };
    envelope(Command::Execution(ExecutionCommand::Submit(Box::new(
        submit,
    ))))
}

/// Submits executions due `at` and answers their ids.
async fn submit(leader: &Arc<Leader>, name: &str, at: Timestamp, count: usize) -> Vec<ExecutionId> {
    let queue = queue(name);
    let mut ids = Vec::new();
    for chunk in vec![(); count].chunks(1_000) {
        let commands = chunk
            .iter()
            .map(|()| submission(&queue, at, template()))
            .collect();
        let answers = leader.submit(commands).await.expect("the leader answers");
        ids.extend(answers.into_iter().map(|answer| match answer.outcome {
            Outcome::Submitted { execution, .. } => execution,
            other => panic!("not submitted: {other:?}"),
        }));
    }
    ids
}

fn schedule_spec(rule: RuleSpec) -> ScheduleSpec {
    ScheduleSpec {
        description: String::new(),
        template: template(),
        rule,
        misfire: MisfirePolicy::default(),
        overlap: OverlapPolicy::default(),
        past: PastPolicy::Run,
        keep_for: Millis::days(7),
        pause_after_failures: None,
    }
}

/// Puts a schedule as an action would: settle, read, plan, submit.
async fn put_schedule(
    leader: &Arc<Leader>,
    cluster: &Cluster,
    name: &str,
    spec: ScheduleSpec,
) -> Result<Outcome, Unavailable> {
    let id = ScheduleId::new(name).expect("a good name");
    let tenant = TenantId::default_tenant();
    leader.settle(TenantNo::DEFAULT, id.clone()).await?;
    let before = cluster
        .replica()
        .read()
        .schedule(TenantNo::DEFAULT, &id)
        .expect("readable");
    let compiled = compiled(&spec.rule, name);
    let status = before.as_ref().map(|(_, status)| status);
    let plan = planner::plan_put(status, &spec, &compiled, leader.now());
    let put = PutSchedule {
        tenant,
        id,
        queue: queue("work"),
        spec,
        plan,
        seen: before
            .as_ref()
            .map(|(schedule, status)| planner::seen(schedule, status)),
        expect: Expect::Any,
        dropped: Vec::new(),
    };
    let command = Command::Schedule(ScheduleCommand::Put(Box::new(put)));
    let mut answers = leader.submit(vec![envelope(command)]).await?;
    Ok(answers.remove(0).outcome)
}

fn compiled(rule: &RuleSpec, name: &str) -> Compiled {
    let identity = format!("default/{name}");
    Compiled::new(rule, &ZoneData::bundled(), &identity).expect("a good rule")
}

fn a_claim(worker: &WorkerId, name: &str, max: u32, wait: Millis) -> Claim {
    Claim {
        worker: worker.clone(),
        request_id: None,
        queues: vec![queue(name)],
        max,
        max_bytes: 1 << 20,
        wait,
        lease: Millis::secs(10),
        slots: None,
        kinds: None,
        labels: BTreeMap::new(),
        start_confirmation: None,
        reports: Vec::new(),
    }
}

fn complete(granted: &Granted) -> ReportItem {
    ReportItem {
        lease: LeaseRef {
            execution: granted.lease.execution.clone(),
            attempt: granted.lease.attempt,
            fencing_token: granted.lease.fencing_token,
        },
        action: ReportAction::Complete {
            result: Vec::new(),
            truncated: false,
        },
    }
}

fn renew(granted: &Granted) -> ReportItem {
    ReportItem {
        action: ReportAction::Renew {
            duration: None,
            progress: None,
        },
        ..complete(granted)
    }
}

fn is_ok(result: &ReportResult) -> bool {
    matches!(result, ReportResult::Ok { .. })
}

fn value(leader: &Leader, name: &str) -> f64 {
    let figures = leader.figures();
    let found = figures.iter().find(|f| f.name == name);
    found.map_or(0.0, |f| f.value)
}
