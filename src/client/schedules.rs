//! Calls on schedules.

use serde::Serialize;

use super::lists::paged;
use super::{Answer, Call, Client, Error, ListFilter, Method, segment};
use crate::wire::{
    Generation, NextOccurrences, OccurrenceRecord, Page, PauseSchedule, PreviewResult,
    ResumeResult, ResumeSchedule, Schedule, ScheduleBatchResult, TriggerResult, TriggerSchedule,
};

/// Under which condition a PUT is done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum PutCondition {
    /// Create or replace.
    #[default]
    None,
    /// Only if nothing of this name exists.
    Absent,
    /// Only if the object still has this revision.
    Revision(String),
}

impl Client {
    fn schedule_path(&self, schedule: &str, rest: &str) -> String {
        self.tenant_path(&format!("schedules/{}{rest}", segment(schedule)))
    }

    /// Creates or replaces a schedule; `body` is a [`Schedule`] or JSON of that form.
    ///
    /// # Errors
    /// [`Error::Problem`]: 422 with the place of each mistake; 412 when `condition` does not hold.
    pub async fn put_schedule<B: Serialize + ?Sized + Sync>(
        &self,
        schedule: &str,
        body: &B,
        condition: &PutCondition,
        dry_run: bool,
    ) -> Result<Answer<Schedule>, Error> {
        let call = Self::with_body(Method::Put, self.schedule_path(schedule, ""), body)?;
        self.call(conditional(call, condition).query("dry_run", dry_run.then_some(true)))
            .await
    }

    /// Creates a schedule whose name may be minted by the server.
    ///
    /// # Errors
    /// As [`Client::put_schedule`]; 409 when the name is taken.
    pub async fn create_schedule<B: Serialize + ?Sized + Sync>(
        &self,
        body: &B,
        dry_run: bool,
    ) -> Result<Answer<Schedule>, Error> {
        let call = Self::with_body(Method::Post, self.tenant_path("schedules"), body)?;
        self.call(call.query("dry_run", dry_run.then_some(true)))
            .await
    }

    /// Creates or replaces up to 1,000 schedules, each on its own.
    ///
    /// # Errors
    /// [`Error::Problem`] when the batch as a whole is refused; a refused item says so in its own result.
    pub async fn put_schedules<B: Serialize + Sync>(
        &self,
        items: &[B],
        dry_run: bool,
    ) -> Result<Answer<ScheduleBatchResult>, Error> {
        let body = serde_json::json!({ "items": items });
        let call = Self::with_body(Method::Post, self.tenant_path("schedules:batch"), &body)?;
        self.call(call.query("dry_run", dry_run.then_some(true)))
            .await
    }

    /// Reads a schedule.
    ///
    /// # Errors
    /// [`Error::Problem`] 404 when there is none.
    pub async fn get_schedule(&self, schedule: &str) -> Result<Answer<Schedule>, Error> {
        self.read(self.schedule_path(schedule, "")).await
    }

    /// One page of schedules in order of their names.
    ///
    /// # Errors
    /// [`Error::Problem`] for a filter that is not known.
    pub async fn list_schedules(
        &self,
        filter: &ListFilter,
    ) -> Result<Answer<Page<Schedule>>, Error> {
        self.call(filter.ask(self.tenant_path("schedules"))).await
    }

    /// Deletes a schedule; its executions stay.
    ///
    /// # Errors
    /// [`Error::Problem`] 404 when there is none; 412 when it has another revision.
    pub async fn delete_schedule(
        &self,
        schedule: &str,
        revision: Option<&str>,
    ) -> Result<Answer<serde_json::Value>, Error> {
        let call = Call::new(Method::Delete, self.schedule_path(schedule, ""))
            .header("if-match", revision.map(quoted));
        self.call(call).await
    }

    /// Pauses a schedule.
    ///
    /// # Errors
    /// [`Error::Problem`] 404 when there is none.
    pub async fn pause_schedule(
        &self,
        schedule: &str,
        body: &PauseSchedule,
    ) -> Result<Answer<Schedule>, Error> {
        let path = self.schedule_path(schedule, ":pause");
        self.call(Self::with_body(Method::Post, path, body)?).await
    }

    /// Resumes a schedule.
    ///
    /// # Errors
    /// [`Error::Problem`] 404 when there is none.
    pub async fn resume_schedule(
        &self,
        schedule: &str,
        body: &ResumeSchedule,
        dry_run: bool,
    ) -> Result<Answer<ResumeResult>, Error> {
        let path = self.schedule_path(schedule, ":resume");
        let call = Self::with_body(Method::Post, path, body)?;
        self.call(call.query("dry_run", dry_run.then_some(true)))
            .await
    }

    /// Fires a schedule by hand.
    ///
    /// # Errors
    /// [`Error::Problem`] 409 `overlap` with the execution in the way.
    pub async fn trigger_schedule(
        &self,
        schedule: &str,
        body: &TriggerSchedule,
    ) -> Result<Answer<TriggerResult>, Error> {
        let path = self.schedule_path(schedule, ":trigger");
        self.call(Self::with_body(Method::Post, path, body)?).await
    }

    /// The next occurrences of a stored schedule.
    ///
    /// # Errors
    /// [`Error::Problem`] 404 when there is none.
    pub async fn next_occurrences(
        &self,
        schedule: &str,
        count: Option<u32>,
    ) -> Result<Answer<NextOccurrences>, Error> {
        let call =
            Call::new(Method::Get, self.schedule_path(schedule, "/next")).query("count", count);
        self.call(call).await
    }

    /// One page of the ledger of a schedule: what became of each nominal time.
    ///
    /// # Errors
    /// [`Error::Problem`] 404 when there is none.
    pub async fn occurrences(
        &self,
        schedule: &str,
        page_size: Option<u32>,
        cursor: Option<&str>,
    ) -> Result<Answer<Page<OccurrenceRecord>>, Error> {
        let path = self.schedule_path(schedule, "/occurrences");
        self.call(paged(path, page_size, cursor)).await
    }

    /// One page of the definitions of a schedule, newest first, payloads included.
    ///
    /// # Errors
    /// [`Error::Problem`] 404 when there is none.
    pub async fn generations(
        &self,
        schedule: &str,
        page_size: Option<u32>,
        cursor: Option<&str>,
    ) -> Result<Answer<Page<Generation>>, Error> {
        let path = self.schedule_path(schedule, "/generations");
        let call = paged(path, page_size, cursor).query("view", Some("full"));
        self.call(call).await
    }

    /// Times of a rule that is not stored; `body` is a [`crate::wire::Preview`] or JSON of that form.
    ///
    /// # Errors
    /// [`Error::Problem`] 422 with the place of each mistake.
    pub async fn preview<B: Serialize + ?Sized + Sync>(
        &self,
        body: &B,
    ) -> Result<Answer<PreviewResult>, Error> {
        self.call(Self::with_body(
            Method::Post,
            "/v1/schedules:preview".into(),
            body,
        )?)
        .await
    }
}

pub(super) fn conditional(call: Call, condition: &PutCondition) -> Call {
    match condition {
        PutCondition::None => call,
        PutCondition::Absent => call.header("if-none-match", Some("*")),
        PutCondition::Revision(revision) => call.header("if-match", Some(quoted(revision))),
    }
}

fn quoted(revision: &str) -> String {
    format!("\"{}\"", revision.trim_matches('"'))
}
