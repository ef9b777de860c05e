//! Calls on executions.

use std::time::Duration;

use serde::Serialize;

use super::{Answer, Call, Client, Error, ListFilter, Method, segment};
use crate::wire::{Cancel, CancelResult, Execution, Page, SubmitBatchResult};

/// Longest wait that one read asks for; longer waits are several reads.
const WAIT_MAX: Duration = Duration::from_secs(30);

/// Which executions a list shows.
#[derive(Clone, Debug, Default)]
pub struct ExecutionFilter {
    /// Schedule.
    pub schedule: Option<String>,
    /// What any list is asked for.
    pub list: ListFilter,
}

impl Client {
    fn execution_path(&self, execution: &str, rest: &str) -> String {
        self.tenant_path(&format!("executions/{}{rest}", segment(execution)))
    }

    /// Submits work; `body` is a [`crate::wire::SubmitExecution`] or JSON of that form.
    ///
    /// # Errors
    /// [`Error::Problem`]: 422 with the place of each mistake; 409 when id or unique key are taken; 429 when a
    /// quota is used up.
    pub async fn submit_execution<B: Serialize + ?Sized + Sync>(
        &self,
        body: &B,
        dry_run: bool,
    ) -> Result<Answer<Execution>, Error> {
        let call = Self::with_body(Method::Post, self.tenant_path("executions"), body)?;
        self.call(call.query("dry_run", dry_run.then_some(true)))
            .await
    }

    /// Submits up to 1,000 executions, each on its own.
    ///
    /// # Errors
    /// [`Error::Problem`] when the batch as a whole is refused; a refused item says so in its own result.
    pub async fn submit_executions<B: Serialize + Sync>(
        &self,
        items: &[B],
    ) -> Result<Answer<SubmitBatchResult>, Error> {
        let body = serde_json::json!({ "items": items });
        self.call(Self::with_body(
            Method::Post,
            self.tenant_path("executions:batch"),
            &body,
        )?)
        .await
    }

    /// Reads an execution with its attempts; `wait`: answer when it is final or after that time.
    ///
    /// # Errors
    /// [`Error::Problem`] 404 when there is none.
    pub async fn get_execution(
        &self,
        execution: &str,
        wait: Duration,
    ) -> Result<Answer<Execution>, Error> {
        let wait = wait.min(WAIT_MAX);
        let wait_ms = Some(wait.as_millis()).filter(|ms| *ms > 0);
        let call = Call::new(Method::Get, self.execution_path(execution, ""))
            .query("wait_ms", wait_ms)
            .waiting(wait);
        self.call(call).await
    }

    /// One page of executions.
    ///
    /// # Errors
    /// [`Error::Problem`] for a filter that is not known.
    pub async fn list_executions(
        &self,
        filter: &ExecutionFilter,
    ) -> Result<Answer<Page<Execution>>, Error> {
        let call = filter.list.ask(self.tenant_path("executions"));
        self.call(call.query("schedule", filter.schedule.as_deref()))
            .await
    }

    /// Asks for an execution to be cancelled.
    ///
    /// # Errors
    /// [`Error::Problem`] 404 when there is none.
    pub async fn cancel_execution(
        &self,
        execution: &str,
        body: &Cancel,
    ) -> Result<Answer<CancelResult>, Error> {
        let path = self.execution_path(execution, ":cancel");
        self.call(Self::with_body(Method::Post, path, body)?).await
    }

    /// Deletes a final execution.
    ///
    /// # Errors
    /// [`Error::Problem`] 404 when there is none, 409 when it is open.
    pub async fn delete_execution(
        &self,
        execution: &str,
    ) -> Result<Answer<serde_json::Value>, Error> {
        self.call(Call::new(
            Method::Delete,
            self.execution_path(execution, ""),
        ))
        .await
    }
}
