//! The worker's loop: claims, reports, drain.
//!
//! Callers: [`super::Worker::run`]. One task owns all of it; renewals and handlers are tasks of their own.
//! Invariants: at most one claim and one report call are under way; a claim carries the reports that wait when it is
//! sent; while a claim waits for work, reports go by their own call at once.

use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::attempt::{Ended, attend};
use super::calls::LeaseCalls;
use super::held::{Held, Phase, Stop, Table};
use super::renew::{renew_all, reporting};
use super::report::{Reports, Sent};
use super::{Drain, Handler, Level, Outcome, Settings, Summary};
use crate::client::{Backoff, Error, random_id};
use crate::wire::{
    Claim, ClaimResult, ExecutionState, ReportLeases, ReportResult, ReportResults, ReportStatus,
};

/// How long a poll may still answer after a drain began.
const LAST_POLL: Duration = Duration::from_secs(2);
/// How long a sign-off is tried.
const SIGN_OFF: Duration = Duration::from_secs(5);

type Call<T> = BoxFuture<'static, Result<T, Error>>;

struct ClaimUnderWay {
    sent: Instant,
    reports: Sent,
    call: Call<ClaimResult>,
}

struct ReportUnderWay {
    reports: Sent,
    call: Call<ReportResults>,
}

struct Loop<H> {
    settings: Settings,
    calls: Arc<dyn LeaseCalls>,
    handler: Arc<H>,
    table: Arc<Table>,
    attempts: JoinSet<()>,
    ended_tx: mpsc::UnboundedSender<Ended>,
    running: u32,
    reports: Reports,
    claim: Option<ClaimUnderWay>,
    report: Option<ReportUnderWay>,
    request_id: Option<String>,
    claim_at: Instant,
    report_at: Instant,
    claim_backoff: Backoff,
    report_backoff: Backoff,
    level: Level,
    /// Set when a drain begins: a poll that is still out by then is given up.
    last_poll_until: Option<Instant>,
    stop_at: Option<Instant>,
    refusal: Option<Error>,
    summary: Summary,
}

/// Works until drained.
pub(super) async fn run<H: Handler>(
    settings: Settings,
    calls: Arc<dyn LeaseCalls>,
    handler: Arc<H>,
    mut shutdown: Drain,
) -> Result<Summary, Error> {
    let (ended_tx, mut ended) = mpsc::unbounded_channel();
    let table = Arc::new(Table::default());
    // In a set, so that it ends with this function however that ends.
    let mut renewals = JoinSet::new();
    renewals.spawn(renew_all(
        Arc::clone(&table),
        Arc::clone(&calls),
        settings.worker_id.clone(),
    ));
    let now = Instant::now();
    let mut it = Loop {
        settings,
        calls,
        handler,
        table,
        attempts: JoinSet::new(),
        ended_tx,
        running: 0,
        reports: Reports::default(),
        claim: None,
        report: None,
        request_id: None,
        claim_at: now,
        report_at: now,
        claim_backoff: Backoff::default(),
        report_backoff: Backoff::default(),
        level: Level::Work,
        last_poll_until: None,
        stop_at: None,
        refusal: None,
        summary: Summary::default(),
    };
    while !it.is_done() {
        it.start_calls();
        it.step(&mut ended, &mut shutdown).await;
    }
    it.sign_off().await;
    match it.refusal {
        Some(error) => Err(error),
        None => Ok(it.summary),
    }
}

impl<H: Handler> Loop<H> {
    const fn draining(&self) -> bool {
        self.last_poll_until.is_some()
    }

    fn is_done(&self) -> bool {
        self.draining()
            && self.running == 0
            && self.report.is_none()
            && self.claim.is_none()
            && self.reports.is_empty()
    }

    /// Waits for the next thing that happens and takes it in.
    async fn step(&mut self, ended: &mut mpsc::UnboundedReceiver<Ended>, shutdown: &mut Drain) {
        let timer = self.next_timer();
        tokio::select! {
            biased;
            level = next_level(shutdown, self.level) => self.on_shutdown(level),
            Some(one) = ended.recv() => {
                self.on_ended(one);
                // All that ended by now travel together.
                while let Ok(more) = ended.try_recv() {
                    self.on_ended(more);
                }
            }
            answer = of_claim(&mut self.claim) => self.on_claim(answer),
            answer = of_report(&mut self.report) => self.on_report(answer),
            Some(_) = self.attempts.join_next() => {}
            () = sleep_until(timer) => self.on_timer(),
        }
    }

    fn start_calls(&mut self) {
        let now = Instant::now();
        let free = self.settings.slots.saturating_sub(self.running);
        if self.claim.is_none() && !self.draining() && free > 0 && now >= self.claim_at {
            self.start_claim(free, now);
        }
        if self.report.is_none() && !self.reports.is_empty() && now >= self.report_at {
            let reports = self.reports.take();
            reporting(&self.table, reports.references(), true);
            let body = ReportLeases {
                worker_id: self.settings.worker_id.clone(),
                leases: reports.items(),
            };
            let calls = Arc::clone(&self.calls);
            let call = Box::pin(async move { calls.report(body).await });
            self.report = Some(ReportUnderWay { reports, call });
        }
    }

    fn start_claim(&mut self, free: u32, now: Instant) {
        let reports = self.reports.take();
        reporting(&self.table, reports.references(), true);
        let id = self.request_id.get_or_insert_with(random_id).clone();
        // A lease counts from when its claim was sent: a poll as long as the lease would return leases that are over.
        // The same holds for the leases whose reports it carries.
        let wait = self.settings.wait.min(self.settings.lease / 3);
        let labels = &self.settings.labels;
        let claim = Claim {
            worker_id: self.settings.worker_id.clone(),
            request_id: Some(id),
            queues: Some(self.settings.queues.clone()),
            max: Some(free),
            wait_ms: Some(millis(wait)),
            lease_ms: Some(millis(self.settings.lease)),
            kinds: self.settings.kinds.clone(),
            labels: (!labels.is_empty()).then(|| labels.clone()),
            reports: reports.items(),
            ..Claim::default()
        };
        let calls = Arc::clone(&self.calls);
        let call = Box::pin(async move { calls.claim(claim).await });
        self.claim = Some(ClaimUnderWay {
            sent: now,
            reports,
            call,
        });
    }

    fn on_claim(&mut self, (sent, reports, answer): (Instant, Sent, Result<ClaimResult, Error>)) {
        let now = Instant::now();
        let answer = match answer {
            Ok(answer) => answer,
            Err(error) => return self.on_claim_failed(reports, error, now),
        };
        self.claim_backoff.reset();
        self.request_id = None;
        self.settle(&reports, &answer.reports);
        self.claim_at = now + Duration::from_millis(answer.poll_after_ms);
        for lease in answer.leases {
            let grace = self.settings.stop_grace;
            let held = Arc::new(Held::new(lease, sent, answer.server_time, grace));
            if !self.table.insert(Arc::clone(&held)) {
                continue;
            }
            self.summary.claimed += 1;
            if self.draining() {
                self.give_back(&held);
                continue;
            }
            self.running += 1;
            let (handler, ended) = (Arc::clone(&self.handler), self.ended_tx.clone());
            self.attempts.spawn(attend(held, handler, ended));
        }
        if answer.drain {
            self.begin_drain();
        }
    }

    /// A lease that arrived in the last poll, after the drain began: nothing new is started, somebody else may have it.
    fn give_back(&mut self, held: &Arc<Held>) {
        held.set_phase(Phase::Ended);
        let outcome = Outcome::Release {
            delay: Duration::ZERO,
            reason: "the worker is stopping".into(),
        };
        self.reports
            .push(held.reference(), outcome, held.deadline());
    }

    fn on_claim_failed(&mut self, reports: Sent, error: Error, now: Instant) {
        let refused =
            matches!(&error, Error::Problem(_) | Error::Settings(_)) && !error.is_transient();
        self.claim_at = now + self.claim_backoff.next(error.retry_after());
        if refused && reports.len() == 0 {
            tracing::error!(%error, "the server refuses the claim; this worker stops");
            self.refusal = Some(error);
            return self.begin_drain();
        }
        tracing::warn!(%error, failures = self.claim_backoff.failures(), "claim failed; trying again");
        reporting(&self.table, reports.references(), false);
        let dropped = if refused {
            self.reports.refused(reports, now)
        } else {
            self.reports.put_back(reports, now)
        };
        self.give_up(&dropped);
    }

    fn on_report(&mut self, (reports, answer): (Sent, Result<ReportResults, Error>)) {
        let now = Instant::now();
        match answer {
            Ok(answer) => {
                self.report_backoff.reset();
                self.settle(&reports, &answer.results);
                if answer.drain {
                    self.begin_drain();
                }
            }
            Err(error) => {
                tracing::warn!(%error, reports = reports.len(), "report failed; trying again");
                reporting(&self.table, reports.references(), false);
                let dropped = if error.is_transient() {
                    self.report_at = now + self.report_backoff.next(error.retry_after());
                    self.reports.put_back(reports, now)
                } else {
                    self.reports.refused(reports, now)
                };
                self.give_up(&dropped);
            }
        }
    }

    fn settle(&mut self, reports: &Sent, results: &[ReportResult]) {
        for (reference, result) in reports.references().zip(results) {
            self.table.remove(&reference);
            match (result.status, result.state) {
                (ReportStatus::LeaseLost, _) => {
                    self.summary.lost += 1;
                    let reason = result.reason.as_deref().unwrap_or("unknown");
                    tracing::warn!(
                        execution = reference.execution_id,
                        reason,
                        "report came too late"
                    );
                }
                (ReportStatus::Ok, Some(ExecutionState::Succeeded)) => self.summary.succeeded += 1,
                (ReportStatus::Ok, Some(ExecutionState::Ready | ExecutionState::Waiting)) => {
                    self.summary.released += 1;
                }
                (ReportStatus::Ok, _) => self.summary.failed += 1,
            }
        }
    }

    fn give_up(&mut self, dropped: &[crate::wire::LeaseRef]) {
        for reference in dropped {
            tracing::error!(execution = reference.execution_id, "report given up");
            self.table.remove(reference);
            self.summary.lost += 1;
        }
    }

    fn on_ended(&mut self, ended: Ended) {
        self.running = self.running.saturating_sub(1);
        let held = ended.held;
        match ended.outcome {
            Some(outcome) => {
                held.set_phase(Phase::Ended);
                self.reports
                    .push(held.reference(), outcome, held.deadline());
            }
            None => {
                self.table.remove(held.reference());
                self.summary.lost += 1;
            }
        }
    }

    fn on_shutdown(&mut self, level: Level) {
        self.level = level;
        self.begin_drain();
        if level == Level::Stop {
            self.stop_attempts();
        }
    }

    /// Claims no more. A poll that is out is ended through the server, so that no lease is granted into the void.
    fn begin_drain(&mut self) {
        if self.draining() {
            return;
        }
        let now = Instant::now();
        self.stop_at = self.settings.drain_timeout.map(|t| now + t);
        self.last_poll_until = Some(now + LAST_POLL);
        if self.claim.is_some() {
            let calls = Arc::clone(&self.calls);
            let worker = self.settings.worker_id.clone();
            self.attempts.spawn(async move {
                if let Err(error) = calls.drain(&worker).await {
                    tracing::debug!(%error, "the server could not be told of the drain");
                }
            });
        }
    }

    fn stop_attempts(&mut self) {
        self.stop_at = Some(Instant::now());
        for held in self.table.all() {
            held.stop(Stop::Shutdown);
        }
    }

    fn next_timer(&self) -> Option<Instant> {
        let claim =
            (self.claim.is_none() && !self.draining() && self.running < self.settings.slots)
                .then_some(self.claim_at);
        let report = (self.report.is_none() && !self.reports.is_empty()).then_some(self.report_at);
        let last_poll = self.claim.as_ref().and(self.last_poll_until);
        let stop = self
            .stop_at
            .filter(|at| *at > Instant::now() && self.running > 0);
        [claim, report, last_poll, stop].into_iter().flatten().min()
    }

    fn on_timer(&mut self) {
        let now = Instant::now();
        if self.stop_at.is_some_and(|at| at <= now) && self.running > 0 {
            self.stop_attempts();
        }
        if self.last_poll_until.is_some_and(|at| at <= now)
            && let Some(claim) = self.claim.take()
        {
            reporting(&self.table, claim.reports.references(), false);
            let dropped = self.reports.put_back(claim.reports, now);
            self.give_up(&dropped);
        }
    }

    async fn sign_off(&mut self) {
        let worker = self.settings.worker_id.clone();
        match tokio::time::timeout(SIGN_OFF, self.calls.sign_off(&worker)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!(%error, "could not sign off"),
            Err(_) => tracing::warn!("could not sign off in time"),
        }
    }
}

async fn next_level(shutdown: &mut Drain, seen: Level) -> Level {
    let level = shutdown
        .0
        .wait_for(|level| *level > seen)
        .await
        .map(|level| *level);
    match level {
        Ok(level) => level,
        // Nobody is left who could shut this worker down.
        Err(_) => std::future::pending().await,
    }
}

async fn of_claim(
    claim: &mut Option<ClaimUnderWay>,
) -> (Instant, Sent, Result<ClaimResult, Error>) {
    let Some(under_way) = claim else {
        return std::future::pending().await;
    };
    let answer = (&mut under_way.call).await;
    let (sent, reports) = (under_way.sent, std::mem::take(&mut under_way.reports));
    *claim = None;
    (sent, reports, answer)
}

async fn of_report(report: &mut Option<ReportUnderWay>) -> (Sent, Result<ReportResults, Error>) {
    let Some(under_way) = report else {
        return std::future::pending().await;
    };
    let answer = (&mut under_way.call).await;
    let reports = std::mem::take(&mut under_way.reports);
    *report = None;
    (reports, answer)
}

async fn sleep_until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

fn millis(d: Duration) -> u64 {
    u64::try_from(d.as_millis()).unwrap_or(u64::MAX)
}
