//! The worker's calls, each sent once: the worker repeats them, because its leases bound how long it may.

use std::time::Duration;

use super::{Answer, Call, Client, Error, Method, segment};
use crate::wire::{
    Claim, ClaimResult, Page, RenewLeases, ReportLeases, ReportResults, SignedOff, Worker,
};

/// How much later than its wait a claim may be answered before another server is asked.
const CLAIM_MARGIN: Duration = Duration::from_secs(5);

fn worker_path(worker: &str, rest: &str) -> String {
    format!("/v1/workers/{}{rest}", segment(worker))
}

impl Client {
    /// Claims leases from `claim.queues`, in order; answers when there are some or after `claim.wait_ms`.
    ///
    /// # Errors
    /// As [`Client::call_once`].
    pub async fn claim(&self, claim: &Claim) -> Result<Answer<ClaimResult>, Error> {
        let wait = Duration::from_millis(claim.wait_ms.unwrap_or(0));
        let call = Call::repeatable_post("/v1/leases:claim")
            .json(claim)?
            .waiting(wait);
        self.call_once(call.within(CLAIM_MARGIN)).await
    }

    /// Renews leases; gives up after `limit`.
    ///
    /// # Errors
    /// As [`Client::call_once`].
    pub async fn renew(
        &self,
        body: &RenewLeases,
        limit: Duration,
    ) -> Result<Answer<ReportResults>, Error> {
        let call = Call::repeatable_post("/v1/leases:renew").json(body)?;
        self.call_once(call.within(limit)).await
    }

    /// Reports what became of leases.
    ///
    /// # Errors
    /// As [`Client::call_once`].
    pub async fn report(&self, body: &ReportLeases) -> Result<Answer<ReportResults>, Error> {
        self.call_once(Call::repeatable_post("/v1/leases:report").json(body)?)
            .await
    }

    /// Ends a worker's polls and gives its leases back; no attempt is spent.
    ///
    /// # Errors
    /// As [`Client::call`].
    pub async fn remove_worker(&self, worker: &str) -> Result<Answer<Option<SignedOff>>, Error> {
        self.call(Call::new(Method::Delete, worker_path(worker, "")))
            .await
    }

    /// Tells a worker to claim no more.
    ///
    /// # Errors
    /// [`Error::Problem`] 404 when it was not seen.
    pub async fn drain_worker(&self, worker: &str) -> Result<Answer<serde_json::Value>, Error> {
        self.call(Call::new(Method::Post, worker_path(worker, ":drain")))
            .await
    }

    /// The workers that the leader has seen.
    ///
    /// # Errors
    /// As [`Client::call`].
    pub async fn list_workers(&self, cursor: Option<&str>) -> Result<Answer<Page<Worker>>, Error> {
        self.call(Call::new(Method::Get, "/v1/workers").query("cursor", cursor))
            .await
    }
}
