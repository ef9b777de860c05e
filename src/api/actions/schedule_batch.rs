//! Many schedules at once, each as a `PUT` of its own.

use std::collections::BTreeSet;
use std::sync::Arc;

use futures::stream::{self, StreamExt as _};

use crate::api::Api;
use crate::api::actions::schedules::Put;
use crate::api::actions::{Done, Purpose, unexpected};
use crate::api::call::Call;
use crate::api::idempotency::Keyed;
use crate::api::issues::{At, Issues};
use crate::api::problem::Error;
use crate::api::reply::written_word;
use crate::command::outcome::{Outcome, Refusal, Written};
use crate::command::schedules::ScheduleCommand;
use crate::command::{Command, Envelope, Expect};
use crate::ids::{Revision, ScheduleId, TenantId};
use crate::wire;

/// Schedules that are replaced at the same time; each of them may wait for what is due of it.
const REPLACED_AT_ONCE: usize = 32;

/// What a batch shares.
pub struct Batch<'a> {
    /// The request.
    pub call: &'a Call,
    /// Owner of all of them.
    pub tenant: TenantId,
    /// Why.
    pub reason: Option<String>,
    /// Key of the batch.
    pub keyed: &'a Keyed,
    /// Nothing is submitted.
    pub is_dry: bool,
}

type ItemResult = Result<(Written, Revision), Error>;

impl Api {
    /// Creates or replaces schedules. Answers by position. New ones travel together; others one by one.
    ///
    /// # Errors
    /// Only when the batch as a whole cannot be carried out; whatever is wrong with an item is in its result.
    pub async fn put_schedules(
        self: &Arc<Self>,
        batch: &Batch<'_>,
        items: Vec<wire::Schedule>,
    ) -> Result<Vec<wire::ScheduleResult>, Error> {
        let ids: Vec<Option<String>> = items.iter().map(|i| i.schedule_id.clone()).collect();
        let mut results: Vec<Option<ItemResult>> = Vec::new();
        let mut fresh: Vec<(usize, Put, Envelope)> = Vec::new();
        let mut single: Vec<(usize, Put)> = Vec::new();
        let mut names = BTreeSet::new();
        for (i, item) in items.into_iter().enumerate() {
            results.push(None);
            let put = match self.item(batch, i, item) {
                Ok(put) => put,
                Err(error) => {
                    set(&mut results, i, Err(error));
                    continue;
                }
            };
            // The second of one name must see what the first one did.
            let is_first = names.insert(put.id.clone());
            if !is_first || self.exists(&put)? {
                single.push((i, put));
                continue;
            }
            match self.plan_put(&put).await {
                Ok(planned) => {
                    let command = ScheduleCommand::Put(Box::new(planned.command));
                    let envelope =
                        self.envelope(batch.call, &put.purpose, Command::Schedule(command));
                    fresh.push((i, put, envelope));
                }
                Err(error) => set(&mut results, i, Err(error)),
            }
        }
        let again = self.create_together(fresh, &mut results, batch.is_dry);
        single.extend(again.await?);
        single.sort_by_key(|(i, _)| *i);
        self.put_singly(batch, single, &mut results).await?;
        let shown = ids.into_iter().zip(results);
        Ok(shown.map(|(id, result)| shown_result(id, result)).collect())
    }

    fn item(&self, batch: &Batch<'_>, index: usize, body: wire::Schedule) -> Result<Put, Error> {
        let mut issues = Issues::default();
        let root = At::Root;
        let items = root.key("items");
        let at = items.index(index);
        let place = at.key("schedule_id");
        let id = match body.schedule_id.as_deref() {
            None => {
                issues.add(&place, "required", "is required in a batch");
                None
            }
            Some(text) => crate::api::convert::schedule_name(&mut issues, &place, text),
        };
        let expect = match body.revision.as_deref().map(str::parse::<Revision>) {
            None => Expect::Any,
            Some(Ok(revision)) => Expect::Revision(revision),
            Some(Err(_)) => {
                let detail = "is not a revision that this API gave out";
                issues.add(&at.key("revision"), "invalid", detail);
                Expect::Any
            }
        };
        issues.finish()?;
        let id: ScheduleId = id.ok_or(Refusal::ScheduleNotFound)?;
        Ok(Put {
            tenant: batch.tenant.clone(),
            id,
            body,
            expect,
            drops_pending: false,
            purpose: Purpose {
                reason: batch.reason.clone(),
                key: batch.keyed.item(index),
            },
        })
    }

    fn exists(&self, put: &Put) -> Result<bool, Error> {
        let reader = self.replica.read();
        let no = crate::api::reads::tenant_no(&reader, &put.tenant)?;
        Ok(reader.schedule(no, &put.id)?.is_some())
    }

    /// Submits new schedules together (in a dry run: rehearses them); answers those that somebody else created meanwhile.
    async fn create_together(
        self: &Arc<Self>,
        fresh: Vec<(usize, Put, Envelope)>,
        results: &mut [Option<ItemResult>],
        is_dry: bool,
    ) -> Result<Vec<(usize, Put)>, Error> {
        if fresh.is_empty() {
            return Ok(Vec::new());
        }
        let mut puts = Vec::with_capacity(fresh.len());
        let mut envelopes = Vec::with_capacity(fresh.len());
        for (i, put, envelope) in fresh {
            puts.push((i, put));
            envelopes.push(envelope);
        }
        let answers: Vec<_> = match is_dry {
            true => self.rehearse(envelopes).await?,
            false => {
                let answers = self.scheduler.submit(envelopes).await?;
                answers.into_iter().map(Done::of).collect()
            }
        };
        let mut again = Vec::new();
        for ((i, put), answer) in puts.into_iter().zip(answers) {
            match answer {
                Err(Refusal::Superseded) => again.push((i, put)),
                Err(refusal) => set(results, i, Err(refusal.into())),
                // What a dry run would create has no revision yet.
                Ok(done) if is_dry => set(
                    results,
                    i,
                    written(&done).map(|(w, _)| (w, Revision::default())),
                ),
                Ok(done) => set(results, i, written(&done)),
            }
        }
        Ok(again)
    }

    async fn put_singly(
        self: &Arc<Self>,
        batch: &Batch<'_>,
        single: Vec<(usize, Put)>,
        results: &mut [Option<ItemResult>],
    ) -> Result<(), Error> {
        if batch.is_dry {
            return self.rehearse_singly(batch, single, results).await;
        }
        let mut done = stream::iter(single.into_iter().map(|(i, put)| async move {
            let done = self.put_schedule(batch.call, put).await;
            (i, done.and_then(|done| written(&done)))
        }))
        .buffered(REPLACED_AT_ONCE);
        while let Some((i, result)) = done.next().await {
            set(results, i, result);
        }
        Ok(())
    }

    /// Rehearses them all on one copy of the state.
    async fn rehearse_singly(
        self: &Arc<Self>,
        batch: &Batch<'_>,
        single: Vec<(usize, Put)>,
        results: &mut [Option<ItemResult>],
    ) -> Result<(), Error> {
        let mut envelopes = Vec::with_capacity(single.len());
        let mut places = Vec::with_capacity(single.len());
        for (i, put) in single {
            match self.plan_put(&put).await {
                Ok(planned) => {
                    let command = ScheduleCommand::Put(Box::new(planned.command));
                    let command = Command::Schedule(command);
                    envelopes.push(self.envelope(batch.call, &put.purpose, command));
                    places.push((i, planned.written));
                }
                Err(error) => set(results, i, Err(error)),
            }
        }
        if envelopes.is_empty() {
            return Ok(());
        }
        let answers = self.rehearse(envelopes).await?;
        for ((i, planned), answer) in places.into_iter().zip(answers) {
            let result = match answer {
                // An item before it changed the same schedule; the real one would plan again.
                Ok(_) | Err(Refusal::Superseded) => Ok((planned, Revision::default())),
                Err(refusal) => Err(refusal.into()),
            };
            set(results, i, result);
        }
        Ok(())
    }
}

fn set(results: &mut [Option<ItemResult>], index: usize, result: ItemResult) {
    if let Some(slot) = results.get_mut(index) {
        *slot = Some(result);
    }
}

fn written(done: &Done) -> ItemResult {
    match done.outcome {
        Outcome::Schedule {
            written, revision, ..
        } => Ok((written, revision)),
        ref other => Err(unexpected(other)),
    }
}

fn shown_result(id: Option<String>, result: Option<ItemResult>) -> wire::ScheduleResult {
    let result = result.unwrap_or_else(|| Err(Refusal::Superseded.into()));
    match result {
        Ok((written, revision)) => wire::ScheduleResult {
            schedule_id: id,
            outcome: Some(written_word(written).to_owned()),
            revision: (!revision.is_none()).then(|| revision.to_string()),
            result: wire::ItemStatus {
                status: if written == Written::Created {
                    201
                } else {
                    200
                },
                problem: None,
            },
        },
        Err(error) => wire::ScheduleResult {
            schedule_id: id,
            outcome: None,
            revision: None,
            result: wire::ItemStatus {
                status: error.code.status(),
                problem: Some(error.to_wire("")),
            },
        },
    }
}
