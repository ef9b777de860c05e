//! A server in a few lines: hands out leases, takes reports, records every call with its time.

use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep};

use crate::client::Error;
use crate::time::Timestamp;
use crate::wire::{
    Claim, ClaimResult, ExecutionState, Lease, Problem, RenewLeases, ReportAction, ReportItem,
    ReportLeases, ReportResult, ReportResults, ReportStatus,
};
use crate::worker::LeaseCalls;

/// A call as it came.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Seen {
    Claim(Claim),
    Renew(RenewLeases),
    Report(ReportLeases),
    Drain,
    SignOff,
}

/// What the server does.
pub(super) struct State {
    pub(super) ready: u32,
    pub(super) grant_max: u32,
    pub(super) failing_claims: u32,
    pub(super) failing_reports: u32,
    pub(super) retry_after: Option<Duration>,
    pub(super) claims_take: Duration,
    pub(super) renewals_fail: bool,
    pub(super) cancel: bool,
    pub(super) lost: Option<String>,
    pub(super) drain: bool,
    /// A drain is not taken notice of.
    pub(super) deaf_to_drain: bool,
    pub(super) lease_ms: u64,
    pub(super) attempt_timeout: Option<Duration>,
    pub(super) refuse_claims: Option<Problem>,
    pub(super) refuse_report_of: Option<String>,
    next: u64,
    open: u32,
    accepted: Vec<(ReportItem, Duration)>,
    seen: Vec<(Duration, Seen)>,
}

#[derive(Clone)]
pub(super) struct Fake {
    state: Arc<Mutex<State>>,
    changed: Arc<Notify>,
    began: Instant,
}

impl Fake {
    pub(super) fn with_work(ready: u32) -> Self {
        let state = State {
            ready,
            grant_max: 1_000,
            failing_claims: 0,
            failing_reports: 0,
            retry_after: None,
            claims_take: Duration::ZERO,
            renewals_fail: false,
            cancel: false,
            lost: None,
            drain: false,
            deaf_to_drain: false,
            lease_ms: 30_000,
            attempt_timeout: None,
            refuse_claims: None,
            refuse_report_of: None,
            next: 1,
            open: 0,
            accepted: Vec::new(),
            seen: Vec::new(),
        };
        Self {
            state: Arc::new(Mutex::new(state)),
            changed: Arc::new(Notify::new()),
            began: Instant::now(),
        }
    }

    pub(super) fn set(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state.lock());
        self.changed.notify_waiters();
    }

    fn see(&self, what: Seen) {
        self.state.lock().seen.push((self.began.elapsed(), what));
    }

    /// Resolves when nothing is ready and everything granted has been reported, lost or refused.
    pub(super) async fn idle(&self) {
        loop {
            sleep(Duration::from_millis(50)).await;
            let s = self.state.lock();
            if s.ready == 0 && s.open == 0 {
                return;
            }
        }
    }

    pub(super) fn claims(&self) -> Vec<Claim> {
        let s = self.state.lock();
        s.seen
            .iter()
            .filter_map(|(_, w)| {
                if let Seen::Claim(c) = w {
                    Some(c.clone())
                } else {
                    None
                }
            })
            .collect()
    }

    pub(super) fn renewals(&self) -> Vec<RenewLeases> {
        let s = self.state.lock();
        s.seen
            .iter()
            .filter_map(|(_, w)| {
                if let Seen::Renew(r) = w {
                    Some(r.clone())
                } else {
                    None
                }
            })
            .collect()
    }

    /// Times between claims.
    pub(super) fn claim_gaps(&self) -> Vec<Duration> {
        let s = self.state.lock();
        let at: Vec<_> = s
            .seen
            .iter()
            .filter(|(_, w)| matches!(w, Seen::Claim(_)))
            .map(|(t, _)| *t)
            .collect();
        at.windows(2).map(|w| w[1] - w[0]).collect()
    }

    /// Whole seconds at which such calls came.
    pub(super) fn times(&self, want: impl Fn(&Seen) -> bool) -> Vec<u64> {
        let s = self.state.lock();
        s.seen
            .iter()
            .filter(|(_, w)| want(w))
            .map(|(t, _)| t.as_secs())
            .collect()
    }

    pub(super) fn count(&self, want: impl Fn(&Seen) -> bool) -> usize {
        self.times(want).len()
    }

    pub(super) fn last(&self) -> Option<Seen> {
        self.state.lock().seen.last().map(|(_, w)| w.clone())
    }

    pub(super) fn reports(&self) -> Vec<ReportItem> {
        self.state
            .lock()
            .accepted
            .iter()
            .map(|(i, _)| i.clone())
            .collect()
    }

    /// The only report.
    pub(super) fn reported(&self) -> (ReportItem, Duration) {
        let s = self.state.lock();
        assert_eq!(s.accepted.len(), 1, "{:?}", s.accepted);
        s.accepted[0].clone()
    }

    fn take_reports(&self, items: &[ReportItem]) -> Result<Vec<ReportResult>, Error> {
        let now = self.began.elapsed();
        let mut s = self.state.lock();
        let bad = s.refuse_report_of.clone();
        if items.iter().any(|i| Some(&i.execution_id) == bad.as_ref()) {
            if items.len() == 1 {
                s.open -= 1;
            }
            return Err(refusal(422));
        }
        Ok(items
            .iter()
            .map(|item| {
                s.open -= 1;
                s.accepted.push((item.clone(), now));
                let state = match item.action {
                    Some(ReportAction::Complete) => ExecutionState::Succeeded,
                    Some(ReportAction::Fail) => ExecutionState::BackingOff,
                    _ => ExecutionState::Ready,
                };
                ReportResult {
                    execution_id: item.execution_id.clone(),
                    attempt: item.attempt,
                    fencing_token: item.fencing_token,
                    status: ReportStatus::Ok,
                    state: Some(state),
                    ..ReportResult::default()
                }
            })
            .collect())
    }

    fn grant(&self, max: u32) -> Vec<Lease> {
        let mut s = self.state.lock();
        let n = s.ready.min(max).min(s.grant_max);
        s.ready -= n;
        s.open += n;
        (0..n)
            .map(|_| {
                let id = s.next;
                s.next += 1;
                Lease {
                    execution_id: format!("e{id}"),
                    attempt: 1,
                    fencing_token: 100 + id,
                    lease_ms: s.lease_ms,
                    expires_in_ms: s.lease_ms,
                    deadline_at: s.attempt_timeout.map(|t| {
                        Timestamp::from_millis(i64::try_from(t.as_millis()).unwrap()).into()
                    }),
                    ..Lease::default()
                }
            })
            .collect()
    }

    async fn claimed(&self, claim: Claim) -> Result<ClaimResult, Error> {
        self.see(Seen::Claim(claim.clone()));
        let until = Instant::now() + Duration::from_millis(claim.wait_ms.unwrap_or(0));
        let take = {
            let mut s = self.state.lock();
            if let Some(problem) = &s.refuse_claims {
                return Err(Error::Problem(Box::new(problem.clone())));
            }
            if s.failing_claims > 0 {
                s.failing_claims -= 1;
                return Err(unavailable(s.retry_after));
            }
            s.claims_take
        };
        sleep(take).await;
        let reports = self.take_reports(&claim.reports)?;
        loop {
            let leases = self.grant(claim.max.unwrap_or(1));
            let drain = self.state.lock().drain;
            if !leases.is_empty() || drain || Instant::now() >= until {
                return Ok(ClaimResult {
                    leases,
                    reports,
                    drain,
                    server_time: Some(Timestamp::EPOCH.into()),
                    ..ClaimResult::default()
                });
            }
            tokio::select! {
                () = self.changed.notified() => {}
                () = tokio::time::sleep_until(until) => {}
            }
        }
    }

    fn renewed(&self, body: &RenewLeases) -> Result<ReportResults, Error> {
        self.see(Seen::Renew(body.clone()));
        let mut s = self.state.lock();
        if s.renewals_fail {
            return Err(unavailable(None));
        }
        let lost = s.lost.clone();
        if lost.is_some() {
            s.open -= u32::try_from(body.leases.len()).unwrap();
        }
        let results = body
            .leases
            .iter()
            .map(|item| ReportResult {
                execution_id: item.execution_id.clone(),
                attempt: item.attempt,
                fencing_token: item.fencing_token,
                status: lost
                    .as_ref()
                    .map_or(ReportStatus::Ok, |_| ReportStatus::LeaseLost),
                reason: lost.clone(),
                expires_in_ms: Some(s.lease_ms),
                cancel_requested: Some(s.cancel),
                state: Some(ExecutionState::Leased),
                ..ReportResult::default()
            })
            .collect();
        Ok(ReportResults {
            results,
            ..ReportResults::default()
        })
    }
}

fn unavailable(retry_after: Option<Duration>) -> Error {
    Error::Unavailable {
        server: "fake".into(),
        cause: "down".into(),
        retry_after,
    }
}

fn refusal(status: u16) -> Error {
    Error::Problem(Box::new(Problem {
        status,
        code: "invalid".into(),
        ..Problem::default()
    }))
}

impl LeaseCalls for Fake {
    fn claim(&self, claim: Claim) -> BoxFuture<'_, Result<ClaimResult, Error>> {
        Box::pin(self.claimed(claim))
    }

    fn renew(
        &self,
        body: RenewLeases,
        _limit: Duration,
    ) -> BoxFuture<'_, Result<ReportResults, Error>> {
        Box::pin(async move { self.renewed(&body) })
    }

    fn report(&self, body: ReportLeases) -> BoxFuture<'_, Result<ReportResults, Error>> {
        Box::pin(async move {
            self.see(Seen::Report(body.clone()));
            {
                let mut s = self.state.lock();
                if s.failing_reports > 0 {
                    s.failing_reports -= 1;
                    return Err(unavailable(None));
                }
            }
            let results = self.take_reports(&body.leases)?;
            Ok(ReportResults {
                results,
                ..ReportResults::default()
            })
        })
    }

    fn drain<'a>(&'a self, _: &'a str) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(async move {
            self.see(Seen::Drain);
            self.set(|s| s.drain |= !s.deaf_to_drain);
            Ok(())
        })
    }

    fn sign_off<'a>(&'a self, _: &'a str) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(async move {
            self.see(Seen::SignOff);
            Ok(())
        })
    }
}
