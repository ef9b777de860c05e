//! The calls that a worker makes, as a trait, so that tests need no server.

use std::time::Duration;

use futures::future::BoxFuture;

use crate::client::{Client, Error};
use crate::wire::{Claim, ClaimResult, RenewLeases, ReportLeases, ReportResults};

/// The worker's calls. Each is tried once; the loop repeats it.
pub trait LeaseCalls: Send + Sync + 'static {
    /// Claims from `claim.queues`; answers when there are leases or after `claim.wait_ms`.
    fn claim(&self, claim: Claim) -> BoxFuture<'_, Result<ClaimResult, Error>>;
    /// Renews; gives up after `limit`.
    fn renew(
        &self,
        body: RenewLeases,
        limit: Duration,
    ) -> BoxFuture<'_, Result<ReportResults, Error>>;
    /// Reports.
    fn report(&self, body: ReportLeases) -> BoxFuture<'_, Result<ReportResults, Error>>;
    /// Tells the server that this worker claims no more; ends its polls.
    fn drain<'a>(&'a self, worker_id: &'a str) -> BoxFuture<'a, Result<(), Error>>;
    /// Signs off; gives back whatever the server still counts as held.
    fn sign_off<'a>(&'a self, worker_id: &'a str) -> BoxFuture<'a, Result<(), Error>>;
}

impl LeaseCalls for Client {
    fn claim(&self, claim: Claim) -> BoxFuture<'_, Result<ClaimResult, Error>> {
        Box::pin(async move { Ok(Self::claim(self, &claim).await?.value) })
    }

    fn renew(
        &self,
        body: RenewLeases,
        limit: Duration,
    ) -> BoxFuture<'_, Result<ReportResults, Error>> {
        Box::pin(async move { Ok(Self::renew(self, &body, limit).await?.value) })
    }

    fn report(&self, body: ReportLeases) -> BoxFuture<'_, Result<ReportResults, Error>> {
        Box::pin(async move { Ok(Self::report(self, &body).await?.value) })
    }

    fn drain<'a>(&'a self, worker_id: &'a str) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(async move { self.drain_worker(worker_id).await.map(drop) })
    }

    fn sign_off<'a>(&'a self, worker_id: &'a str) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(async move { self.remove_worker(worker_id).await.map(drop) })
    }
}
