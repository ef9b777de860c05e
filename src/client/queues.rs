//! Calls on queues.

use serde::Serialize;

use super::lists::paged;
use super::schedules::conditional;
use super::{Answer, Client, Error, Method, PutCondition, segment};
use crate::wire::{Page, Pause, Queue, QueueStats};

fn queue_path(queue: &str, rest: &str) -> String {
    format!("/v1/queues/{}{rest}", segment(queue))
}

impl Client {
    /// Creates or replaces a queue; `body` is a [`Queue`] or JSON of that form.
    ///
    /// # Errors
    /// [`Error::Problem`]: 422 with the place of each mistake; 412 when `condition` does not hold.
    pub async fn put_queue<B: Serialize + ?Sized + Sync>(
        &self,
        queue: &str,
        body: &B,
        condition: &PutCondition,
        dry_run: bool,
    ) -> Result<Answer<Queue>, Error> {
        let call = Self::with_body(Method::Put, queue_path(queue, ""), body)?;
        self.call(conditional(call, condition).query("dry_run", dry_run.then_some(true)))
            .await
    }

    /// Reads a queue.
    ///
    /// # Errors
    /// [`Error::Problem`] 404 when there is none.
    pub async fn get_queue(&self, queue: &str) -> Result<Answer<Queue>, Error> {
        self.read(queue_path(queue, "")).await
    }

    /// One page of queues in order of their names.
    ///
    /// # Errors
    /// As [`Client::call`].
    pub async fn list_queues(
        &self,
        page_size: Option<u32>,
        cursor: Option<&str>,
    ) -> Result<Answer<Page<Queue>>, Error> {
        self.call(paged("/v1/queues", page_size, cursor)).await
    }

    /// Depth of a queue and its oldest due execution.
    ///
    /// # Errors
    /// [`Error::Problem`] 404 when there is none.
    pub async fn queue_stats(&self, queue: &str) -> Result<Answer<QueueStats>, Error> {
        self.read(queue_path(queue, "/stats")).await
    }

    /// Grants nothing from a queue until it is resumed.
    ///
    /// # Errors
    /// [`Error::Problem`] 404 when there is none.
    pub async fn pause_queue(&self, queue: &str, body: &Pause) -> Result<Answer<Queue>, Error> {
        self.call(Self::with_body(
            Method::Post,
            queue_path(queue, ":pause"),
            body,
        )?)
        .await
    }

    /// Grants from a queue again.
    ///
    /// # Errors
    /// [`Error::Problem`] 404 when there is none.
    pub async fn resume_queue(&self, queue: &str, body: &Pause) -> Result<Answer<Queue>, Error> {
        self.call(Self::with_body(
            Method::Post,
            queue_path(queue, ":resume"),
            body,
        )?)
        .await
    }
}
