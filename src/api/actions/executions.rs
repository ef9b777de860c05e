//! Actions on executions.

use std::sync::Arc;

use crate::api::Api;
use crate::api::actions::{Done, Purpose};
use crate::api::body::canonical;
use crate::api::call::Call;
use crate::api::convert::execution::submission;
use crate::api::idempotency::{Keyed, fingerprint};
use crate::api::issues::{At, Issues};
use crate::api::problem::{Code, Error};
use crate::command::executions::{
    CancelExecution, CancelMode, DeleteExecution, ExecutionCommand, SubmitExecution,
};
use crate::command::{Command, Envelope};
use crate::ids::{ExecutionId, TenantId};
use crate::time::Timestamp;
use crate::wire;

impl Api {
    /// Checks a submission and makes its command.
    ///
    /// # Errors
    /// `invalid_request` with the places below `at`.
    pub fn submission(
        &self,
        call: &Call,
        at: &At<'_>,
        body: wire::SubmitExecution,
        (tenant, now): (&TenantId, Timestamp),
    ) -> Result<SubmitExecution, Error> {
        let content = match body.execution_id {
            // Only a chosen id is ever compared.
            Some(_) => fingerprint(&canonical(&serde_json::to_vec(&body).unwrap_or_default())),
            None => 0,
        };
        let mut issues = Issues::default();
        let command = submission(&mut issues, at, body, tenant, now);
        issues.finish()?;
        let mut command = command
            .ok_or_else(|| Error::new(Code::Internal, "a submission without issues is missing"))?;
        command.fingerprint = content;
        command.traceparent = call.traceparent();
        Ok(command)
    }

    /// Submits one execution.
    ///
    /// # Errors
    /// Any.
    pub async fn submit_execution(
        self: &Arc<Self>,
        call: &Call,
        tenant: &TenantId,
        body: wire::SubmitExecution,
        purpose: Purpose,
    ) -> Result<Done, Error> {
        // A repeat is answered before `past: reject` can find that time has passed.
        if let Some(answer) = self.recall(purpose.key, tenant.as_str())? {
            return Ok(Done::of(answer)?);
        }
        let now = self.scheduler.now();
        let command = self.submission(call, &At::Root, body, (tenant, now))?;
        let command = ExecutionCommand::Submit(Box::new(command));
        let envelope = self.envelope(call, &purpose, Command::Execution(command));
        self.carry_or_refuse(envelope).await
    }

    /// Submits executions together. Answers by position; whatever is wrong with an item is in its result.
    ///
    /// # Errors
    /// When the batch as a whole cannot be carried out.
    pub async fn submit_executions(
        self: &Arc<Self>,
        call: &Call,
        tenant: &TenantId,
        items: Vec<wire::SubmitExecution>,
        (keyed, reason, is_dry): (&Keyed, Option<String>, bool),
    ) -> Result<Vec<Result<Option<Done>, Error>>, Error> {
        let now = self.scheduler.now();
        let root = At::Root;
        let place = root.key("items");
        let mut results: Vec<Result<Option<Done>, Error>> = Vec::with_capacity(items.len());
        let mut envelopes: Vec<Envelope> = Vec::with_capacity(items.len());
        let mut places = Vec::with_capacity(items.len());
        for (i, item) in items.into_iter().enumerate() {
            match self.submission(call, &place.index(i), item, (tenant, now)) {
                Ok(command) => {
                    let purpose = Purpose {
                        reason: reason.clone(),
                        key: keyed.item(i),
                    };
                    let command = ExecutionCommand::Submit(Box::new(command));
                    envelopes.push(self.envelope(call, &purpose, Command::Execution(command)));
                    places.push(i);
                    results.push(Ok(None));
                }
                Err(error) => results.push(Err(error)),
            }
        }
        if envelopes.is_empty() {
            return Ok(results);
        }
        let answers = match is_dry {
            true => self.rehearse(envelopes).await?,
            false => {
                let answers = self.scheduler.submit(envelopes).await?;
                answers.into_iter().map(Done::of).collect()
            }
        };
        for (i, answer) in places.into_iter().zip(answers) {
            if let Some(slot) = results.get_mut(i) {
                *slot = answer.map(Some).map_err(Error::from);
            }
        }
        Ok(results)
    }

    /// Asks for the end of an execution. A dry run answers what it would do.
    ///
    /// # Errors
    /// Any.
    pub async fn cancel_execution(
        self: &Arc<Self>,
        call: &Call,
        (tenant, id): (TenantId, ExecutionId),
        mode: CancelMode,
        purpose: Purpose,
        is_dry: bool,
    ) -> Result<Done, Error> {
        let expect = call.expect(None)?;
        let command = ExecutionCommand::Cancel(CancelExecution {
            tenant,
            id,
            mode,
            expect,
        });
        let envelope = self.envelope(call, &purpose, Command::Execution(command));
        match is_dry {
            true => self.rehearse_one(envelope).await,
            false => self.carry_or_refuse(envelope).await,
        }
    }

    /// Deletes a final execution.
    ///
    /// # Errors
    /// Any.
    pub async fn delete_execution(
        self: &Arc<Self>,
        call: &Call,
        (tenant, id): (TenantId, ExecutionId),
        purpose: Purpose,
        is_dry: bool,
    ) -> Result<Option<Done>, Error> {
        let command = ExecutionCommand::Delete(DeleteExecution { tenant, id });
        let envelope = self.envelope(call, &purpose, Command::Execution(command));
        match is_dry {
            true => self.rehearse_one(envelope).await.map(|_| None),
            false => self.carry_or_refuse(envelope).await.map(Some),
        }
    }
}
