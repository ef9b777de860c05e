//! What people and workers do: submit, schedule, edit, pause, cancel; claim, renew, complete, fail, fall silent.
//!
//! Callers: [`super::SchedulerWorkload`]. Every call has a deadline, since the node that answers may be gone.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use punctual::calendar::{Compiled, ZoneData};
use punctual::command::executions::{
    CancelExecution, CancelMode, ExecutionCommand, SubmitExecution,
};
use punctual::command::leases::{LeaseRef, ReportAction, ReportItem};
use punctual::command::outcome::{Granted, Outcome};
use punctual::command::schedules::{PauseSchedule, PutSchedule, ResumeSchedule, ScheduleCommand};
use punctual::command::{Actor, Command, Envelope, Expect};
use punctual::ids::{ExecutionId, Kind, QueueId, ScheduleId, TenantId, TenantNo, WorkerId};
use punctual::leader::planner::{self, CatchUp};
use punctual::leader::{Claim, Leader, Scheduler, Unavailable};
use punctual::model::policy::{MisfirePolicy, OverlapPolicy, PastPolicy, RetryPolicy, Timeouts};
use punctual::model::rule::{RuleSpec, When};
use punctual::model::schedule::{JobTemplate, ScheduleSpec};
use punctual::state::reader::Found;
use punctual::state::replica::Replica;
use punctual::time::{Millis, Timestamp};
use rand::RngExt;
use rand::rngs::SmallRng;
use tokio::time::{Instant, sleep, timeout};

use super::{CHAIN_DELAY, CHAINED, STEADY, SchedulerWorkload, steady};
use crate::sim::World;

/// A run goes on until this many submissions were acknowledged.
const ACKED_MIN: u64 = 220;
/// Longest that a client waits for an answer.
const PATIENCE: Duration = Duration::from_secs(3);
/// How long the workers may take for what is left after the faults.
const DRAIN: Duration = Duration::from_secs(25);
/// Edited schedules.
const EDITED: u64 = 3;

/// What clients were promised.
#[derive(Default)]
pub(super) struct Promises {
    acked: Mutex<BTreeSet<ExecutionId>>,
    undrained: Mutex<Option<String>>,
    /// Cursors with which each schedule may have been created.
    planned: Mutex<BTreeMap<String, Vec<Timestamp>>>,
}

impl Promises {
    /// Cursors with which a schedule may have been created.
    pub(super) fn plans(&self, schedule: &str) -> Vec<Timestamp> {
        self.planned
            .lock()
            .get(schedule)
            .cloned()
            .unwrap_or_default()
    }

    /// Promises that `replica` does not keep.
    pub(super) fn broken(&self, replica: &Replica) -> Vec<String> {
        let mut wrong: Vec<String> = self.undrained.lock().iter().cloned().collect();
        for id in self.acked.lock().iter() {
            match replica.read().execution(TenantNo::DEFAULT, id) {
                Ok(Some(_)) => {}
                Ok(None) => wrong.push(format!("acknowledged execution {id} is gone")),
                Err(fault) => wrong.push(format!("execution {id}: {fault}")),
            }
        }
        wrong
    }
}

/// Everything one client needs.
struct Client {
    workload: SchedulerWorkload,
    world: World,
    rng: SmallRng,
}

/// Runs all clients until the faults are over and the work is done.
pub(super) async fn run(workload: SchedulerWorkload, world: World) {
    let client = |name: &str, number: u64| Client {
        workload: workload.clone(),
        world: world.clone(),
        rng: world.rng(name, number),
    };
    let count = world.options().clients;
    let stop = Arc::new(Mutex::new(false));
    for n in 0..count + 2 {
        let worker = client("worker", n);
        let stop = Arc::clone(&stop);
        world.spawn(async move { worker.work(n, &stop).await });
    }
    let submitters = (0..count).map(|n| client("submitter", n).submit());
    let people = client("people", 0).edit();
    let canceller = client("canceller", 0).cancel();
    let setup = client("setup", 0).set_up();
    setup.await;
    futures::future::join3(futures::future::join_all(submitters), people, canceller).await;
    client("drain", 0).drain().await;
    *stop.lock() = true;
}

fn name<T>(made: Result<T, punctual::ids::InvalidName>) -> T {
    made.unwrap_or_else(|e| panic!("a name of the workload is none: {e}"))
}

fn queue() -> QueueId {
    name(QueueId::new("work"))
}

fn template(key: Option<&str>) -> JobTemplate {
    JobTemplate {
        kind: name(Kind::new("k")),
        payload: b"{}".to_vec(),
        priority: 5,
        concurrency_key: key.map(str::to_owned),
        labels: BTreeMap::new(),
        requires: BTreeMap::new(),
        retry: RetryPolicy {
            max_attempts: 1_000,
            initial_backoff: Millis(100),
            max_backoff: Millis(400),
            max_lease_losses: 1_000,
            ..RetryPolicy::default()
        },
        timeouts: Timeouts::default(),
    }
}

/// A rule that fires every so often, on a grid of its own.
fn grid(every: Millis) -> When {
    let anchor = Timestamp::EPOCH;
    When::Every { every, anchor }
}

fn spec(rule: When) -> ScheduleSpec {
    ScheduleSpec {
        description: String::new(),
        template: template(None),
        rule: RuleSpec::new(rule),
        misfire: MisfirePolicy::default(),
        overlap: OverlapPolicy::default(),
        past: PastPolicy::Run,
        keep_for: Millis::days(7),
        pause_after_failures: None,
    }
}

fn envelope(command: Command) -> Envelope {
    Envelope {
        actor: Actor::Anonymous,
        ..Envelope::leader(command)
    }
}

/// An answer within [`PATIENCE`]; `None`: the call was not answered, or refused for want of a leader.
async fn answered<T>(call: impl Future<Output = Result<T, Unavailable>>) -> Option<T> {
    timeout(PATIENCE, call).await.ok()?.ok()
}

impl Client {
    fn leads(&self) -> Option<(Arc<Leader>, Arc<Replica>)> {
        let member = self.workload.member(self.world.leader()?)?;
        let leader = member.leader.filter(|leader| leader.in_office())?;
        Some((leader, member.replica))
    }

    async fn pause(&mut self, ms: std::ops::Range<u64>) {
        let ms = self.rng.random_range(ms);
        sleep(Duration::from_millis(ms)).await;
    }

    async fn set_up(mut self) {
        let mut left: BTreeSet<u64> = (0..=STEADY + EDITED).collect();
        while let Some(n) = left.first().copied() {
            let (id, rule) = match n.checked_sub(STEADY) {
                None => (steady(n), grid(Millis(1_000 + 700 * n))),
                Some(EDITED) => (CHAINED.to_owned(), When::AfterEnd(CHAIN_DELAY)),
                Some(n) => (format!("edited-{n}"), grid(Millis(1_500 + 500 * n))),
            };
            if self.put(&id, rule).await {
                left.remove(&n);
            } else if self.world.is_chaos_over() {
                // Too late to be of use; the check will say what is missing.
                return;
            }
            self.pause(10..50).await;
        }
    }

    /// Puts a schedule as the API's action would.
    async fn put(&mut self, id: &str, rule: When) -> bool {
        let Some((leader, replica)) = self.leads() else {
            return false;
        };
        let schedule = name(ScheduleId::new(id));
        if answered(leader.settle(TenantNo::DEFAULT, schedule.clone()))
            .await
            .is_none()
        {
            return false;
        }
        let Ok(before) = replica.read().schedule(TenantNo::DEFAULT, &schedule) else {
            return false;
        };
        let spec = spec(rule);
        let Ok(rule) = Compiled::new(&spec.rule, &ZoneData::bundled(), &format!("default/{id}"))
        else {
            return false;
        };
        let status = before.as_ref().map(|(_, status)| status);
        let plan = planner::plan_put(status, &spec, &rule, leader.now());
        if before.is_none() {
            let mut planned = self.workload.shared.promises.planned.lock();
            planned.entry(id.to_owned()).or_default().push(plan.cursor);
        }
        let put = PutSchedule {
            tenant: TenantId::default_tenant(),
            id: schedule,
            queue: queue(),
            spec,
            plan,
            seen: before.as_ref().map(|(s, status)| planner::seen(s, status)),
            expect: Expect::Any,
            dropped: Vec::new(),
        };
        self.schedule(&leader, ScheduleCommand::Put(Box::new(put)))
            .await
    }

    async fn schedule(&self, leader: &Leader, command: ScheduleCommand) -> bool {
        let call = leader.submit(vec![envelope(Command::Schedule(command))]);
        let Some(answers) = answered(call).await else {
            return false;
        };
        let done = answers
            .iter()
            .all(|a| !matches!(a.outcome, Outcome::Refused(_)));
        self.world.counters().add(
            if done {
                "schedule_writes"
            } else {
                "schedule_retries"
            },
            1,
        );
        done
    }

    async fn hold(&self, id: &str) -> bool {
        let Some((leader, _)) = self.leads() else {
            return false;
        };
        let pause = PauseSchedule {
            tenant: TenantId::default_tenant(),
            id: name(ScheduleId::new(id)),
            expect: Expect::Any,
            until: None,
        };
        self.schedule(&leader, ScheduleCommand::Pause(pause)).await
    }

    async fn resume(&mut self, id: &str) -> bool {
        let Some((leader, replica)) = self.leads() else {
            return false;
        };
        let schedule = name(ScheduleId::new(id));
        let found = replica.read().schedule(TenantNo::DEFAULT, &schedule);
        let Ok(Some((definition, status))) = found else {
            return false;
        };
        let identity = format!("default/{id}");
        let zones = ZoneData::bundled();
        let Ok(rule) = Compiled::new(&definition.spec.rule, &zones, &identity) else {
            return false;
        };
        let catch_up = match self.rng.random_range(0..3) {
            0 => CatchUp::None,
            1 => CatchUp::Latest,
            _ => CatchUp::All(3),
        };
        let decision = planner::plan_resume(&status, &rule, leader.now(), catch_up);
        let resume = ResumeSchedule {
            tenant: TenantId::default_tenant(),
            id: schedule,
            expect: Expect::Any,
            seen: planner::seen(&definition, &status),
            plan: decision.plan,
            steps: decision.steps,
        };
        self.schedule(&leader, ScheduleCommand::Resume(resume))
            .await
    }

    /// Edits, pauses and resumes until the faults are over.
    async fn edit(mut self) {
        while !self.world.is_chaos_over() {
            self.pause(100..900).await;
            let id = format!("edited-{}", self.rng.random_range(0..EDITED));
            match self.rng.random_range(0..3) {
                0 => {
                    let every = Millis(self.rng.random_range(1_000..4_000));
                    self.put(&id, grid(every)).await;
                }
                1 => {
                    self.hold(&id).await;
                }
                _ => {
                    self.resume(&id).await;
                }
            }
        }
    }

    async fn submit(mut self) {
        while !self.world.is_chaos_over() || self.world.counters().get("acked") < ACKED_MIN {
            self.pause(60..260).await;
            let Some((leader, _)) = self.leads() else {
                continue;
            };
            let count = self.rng.random_range(1..4_usize);
            let commands = (0..count).map(|_| self.submission(&leader)).collect();
            let Some(answers) = answered(leader.submit(commands)).await else {
                self.world.counters().add("unanswered", 1);
                continue;
            };
            for answer in answers {
                if let Outcome::Submitted { execution, .. } = answer.outcome {
                    self.world.counters().add("acked", 1);
                    self.workload.shared.promises.acked.lock().insert(execution);
                }
            }
        }
    }

    fn submission(&mut self, leader: &Leader) -> Envelope {
        let ahead = match self.rng.random_range(0..3) {
            0 => self.rng.random_range(0..4_000),
            _ => 0,
        };
        let key = (self.rng.random_range(0..4) == 0).then_some("narrow");
        let mut template = template(key);
        template.priority = self.rng.random_range(0..10);
        let submit = SubmitExecution {
            tenant: TenantId::default_tenant(),
            queue: queue(),
            id: None,
            template,
            due_at: leader.now().plus(Millis(ahead)),
            unique: None,
            traceparent: None,
            fingerprint: 1,
            replay_of: None,
        };
        envelope(Command::Execution(ExecutionCommand::Submit(Box::new(
            submit,
        ))))
    }

    /// Cancels something now and then.
    async fn cancel(mut self) {
        while !self.world.is_chaos_over() {
            self.pause(200..1_200).await;
            let picked = {
                let acked = self.workload.shared.promises.acked.lock();
                let at = self.rng.random_range(0..acked.len().max(1));
                acked.iter().nth(at).cloned()
            };
            let (Some(id), Some((leader, _))) = (picked, self.leads()) else {
                continue;
            };
            let mode = match self.rng.random_range(0..2) {
                0 => CancelMode::Request,
                _ => CancelMode::Now,
            };
            let cancel = CancelExecution {
                tenant: TenantId::default_tenant(),
                id,
                mode,
                expect: Expect::Any,
            };
            let command = Command::Execution(ExecutionCommand::Cancel(cancel));
            if answered(leader.submit(vec![envelope(command)]))
                .await
                .is_some()
            {
                self.world.counters().add("cancels", 1);
            }
        }
    }

    /// A worker: claims, then completes, fails, gives back, renews or falls silent.
    async fn work(mut self, number: u64, stop: &Mutex<bool>) {
        let worker = name(WorkerId::new(&format!("worker-{number}")));
        let mut calls = 0_u64;
        let mut reports: Vec<ReportItem> = Vec::new();
        while !*stop.lock() {
            let Some((leader, _)) = self.leads() else {
                self.pause(20..100).await;
                continue;
            };
            calls += 1;
            let claim = Claim {
                worker: worker.clone(),
                request_id: Some(format!("{number}-{calls}")),
                queues: vec![queue()],
                max: self.rng.random_range(1..6),
                max_bytes: 1 << 20,
                wait: Millis(self.rng.random_range(0..600)),
                lease: Millis(self.rng.random_range(1_000..3_000)),
                slots: Some(6),
                kinds: None,
                labels: BTreeMap::new(),
                start_confirmation: None,
                reports: reports.clone(),
            };
            // Some callers hang up early.
            let patience = match self.rng.random_range(0..12) {
                0 => Duration::from_millis(self.rng.random_range(1..40)),
                _ => PATIENCE,
            };
            match timeout(patience, leader.claim(claim)).await {
                Ok(Ok(claimed)) => {
                    reports.clear();
                    for granted in &claimed.leases {
                        self.handle(&leader, &worker, granted, &mut reports).await;
                    }
                }
                Ok(Err(_)) => self.pause(10..80).await,
                Err(_) => self.world.counters().add("hang_ups", 1),
            }
        }
    }

    async fn handle(
        &mut self,
        leader: &Arc<Leader>,
        worker: &WorkerId,
        granted: &Granted,
        reports: &mut Vec<ReportItem>,
    ) {
        let lease = LeaseRef {
            execution: granted.lease.execution.clone(),
            attempt: granted.lease.attempt,
            fencing_token: granted.lease.fencing_token,
        };
        let item = |action| ReportItem {
            lease: lease.clone(),
            action,
        };
        let complete = || ReportAction::Complete {
            result: b"1".to_vec(),
            truncated: false,
        };
        let renew = || ReportAction::Renew {
            duration: None,
            progress: None,
        };
        match self.rng.random_range(0..20) {
            0 => reports.push(item(ReportAction::Fail {
                error: b"{}".to_vec(),
                error_type: None,
                retryable: true,
                retry_in: None,
                draw: self.rng.random(),
                truncated: false,
            })),
            1 => reports.push(item(ReportAction::Release {
                delay: Millis(self.rng.random_range(0..300)),
                reason: None,
                draw: self.rng.random(),
            })),
            2 | 3 => {
                // It falls silent, and comes back when its lease is over.
                let over = granted.lease.duration.0 + self.rng.random_range(0..1_500);
                let (leader, worker) = (Arc::clone(leader), worker.clone());
                let late = item(complete());
                self.world.spawn(async move {
                    sleep(Duration::from_millis(over)).await;
                    let _refused_or_in_time = answered(leader.report(worker, vec![late])).await;
                });
            }
            4 | 5 => {
                self.pause(100..700).await;
                let renewed = answered(leader.report(worker.clone(), vec![item(renew())])).await;
                if renewed.is_some() {
                    self.world.counters().add("renewals", 1);
                }
                reports.push(item(complete()));
            }
            _ => reports.push(item(complete())),
        }
    }

    /// Stops the schedules and waits until nothing is open.
    async fn drain(mut self) {
        let give_up = Instant::now() + DRAIN;
        let mut left: BTreeSet<String> = (0..STEADY).map(steady).collect();
        left.extend((0..EDITED).map(|n| format!("edited-{n}")));
        left.insert(CHAINED.to_owned());
        let mut open = u64::MAX;
        while Instant::now() < give_up {
            if let Some(id) = left.first().cloned() {
                if self.hold(&id).await || self.is_missing(&id) {
                    left.remove(&id);
                }
            } else if let Some((_, replica)) = self.leads() {
                let usage = replica.resident().usage.get(&TenantNo::DEFAULT).copied();
                open = usage.map_or(0, |usage| usage.open);
                if open == 0 {
                    return;
                }
            }
            self.pause(50..100).await;
        }
        let stuck = self
            .leads()
            .map(|(_, replica)| self.stuck(&replica))
            .unwrap_or_default();
        let what = format!("{open} executions still open, schedules not held {left:?}; {stuck}");
        *self.workload.shared.promises.undrained.lock() = Some(what);
    }

    fn is_missing(&self, id: &str) -> bool {
        let schedule = name(ScheduleId::new(id));
        let found = self
            .leads()
            .map(|(_, r)| r.read().schedule(TenantNo::DEFAULT, &schedule));
        matches!(found, Some(Ok(None)))
    }

    /// One of the executions that did not end, for the report.
    fn stuck(&self, replica: &Replica) -> String {
        let acked = self.workload.shared.promises.acked.lock();
        let reader = replica.read();
        let open = acked
            .iter()
            .find_map(|id| match reader.execution(TenantNo::DEFAULT, id) {
                Ok(Some(Found::Open(execution, lease))) => Some((execution, lease)),
                _ => None,
            });
        match open {
            Some((execution, lease)) => format!(
                "at log time {}: {} is {:?}, {} attempts, due {:?}, line {:?}, lease ends {:?}",
                reader.now(),
                execution.id,
                execution.state,
                execution.attempts_started,
                execution.due_key,
                execution.line_at,
                lease.map(|lease| (lease.granted_at, reader.lease_ends_at(&lease)))
            ),
            None => "none of the submitted ones".to_owned(),
        }
    }
}
