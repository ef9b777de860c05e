//! What a command checks before it changes anything, and the record that a person's change leaves.
//!
//! Callers: the command modules beside it. Invariants: a check changes nothing; a refusal names what broke.

use crate::command::Expect;
use crate::command::outcome::{Quota, Refusal};
use crate::fault::Fault;
use crate::ids::{ExecutionId, QueueId, QueueNo, Revision, TenantNo};
use crate::model::history::AuditRecord;
use crate::state::context::{Context, QUEUES_MAX, shift};
use crate::state::history::KEEP_DEAD;
use crate::store::Family;
use crate::store::keys::{self, RetentionClass};

/// Compares what a write demands with the object's present revision (`None`: it does not exist).
///
/// # Errors
/// [`Refusal::AlreadyExists`] or [`Refusal::RevisionMismatch`] (with none for an absent object).
pub(super) fn expect(wanted: Expect, current: Option<Revision>) -> Result<(), Refusal> {
    match (wanted, current) {
        (Expect::Any, _) | (Expect::Absent, None) | (Expect::Present, Some(_)) => Ok(()),
        (Expect::Absent, Some(revision)) => Err(Refusal::AlreadyExists { revision }),
        (Expect::Revision(wanted), Some(current)) if wanted == current => Ok(()),
        (Expect::Present | Expect::Revision(_), current) => Err(Refusal::RevisionMismatch {
            current: current.unwrap_or_default(),
        }),
    }
}

impl Context<'_> {
    /// Whether `tenant` may put work into `queue`, which exists or may still be created.
    ///
    /// # Errors
    /// [`Refusal::QueueNotAllowed`]; [`Refusal::QuotaExceeded`] when the cluster has as many queues as it may.
    pub fn queue_admits(&self, queue: &QueueId, tenant: TenantNo) -> Result<(), Refusal> {
        let Some(no) = self.queue(queue) else {
            let current = self.state.queues.len() as u64;
            if current >= u64::from(QUEUES_MAX) {
                return Err(Refusal::QuotaExceeded {
                    quota: Quota::Queues,
                    limit: u64::from(QUEUES_MAX),
                    current,
                });
            }
            return Ok(());
        };
        if self.tenant_may_use(no, tenant) {
            Ok(())
        } else {
            Err(Refusal::QueueNotAllowed)
        }
    }

    /// Whether the queue's `allowed_tenants` holds `tenant` (or says nothing).
    #[must_use]
    pub fn tenant_may_use(&self, queue: QueueNo, tenant: TenantNo) -> bool {
        let allowed = self
            .state
            .queues
            .get(&queue)
            .and_then(|q| q.spec.allowed_tenants.as_ref());
        match (allowed, self.state.tenants.get(&tenant)) {
            (None, _) => true,
            (Some(allowed), Some(row)) => allowed.contains(&row.id),
            (Some(_), None) => false,
        }
    }

    /// Counts a schedule into its tenant and queue, or out of them (`by` is 1 or −1).
    ///
    /// # Errors
    /// [`Fault::Invariant`] when a count would fall below zero.
    pub fn count_schedule(
        &mut self,
        queue: QueueNo,
        tenant: TenantNo,
        by: i64,
    ) -> Result<(), Fault> {
        shift(&mut self.usage_mut(tenant).schedules, by)?;
        shift(&mut self.counts_mut(queue, tenant).schedules, by)
    }

    /// Moves a schedule from the counts of one queue to those of another.
    ///
    /// # Errors
    /// [`Fault::Invariant`] when a count would fall below zero.
    pub fn move_schedule(
        &mut self,
        from: QueueNo,
        to: QueueNo,
        tenant: TenantNo,
    ) -> Result<(), Fault> {
        shift(&mut self.counts_mut(from, tenant).schedules, -1)?;
        shift(&mut self.counts_mut(to, tenant).schedules, 1)
    }

    /// Name of an execution in audit records.
    #[must_use]
    pub fn execution_name(&self, tenant: TenantNo, id: &ExecutionId) -> String {
        match self.state.tenants.get(&tenant) {
            Some(row) => format!("{}/{id}", row.id),
            None => id.as_str().to_owned(),
        }
    }

    /// Records that the present caller changed something: one row of the audit class. `tenant` is 0 for what belongs
    /// to no tenant; `action` is verb and noun (`schedule.pause`), `target` the object's name.
    ///
    /// # Errors
    /// [`Fault::Invariant`] for a value over the bound.
    pub fn audit(&mut self, tenant: TenantNo, action: &str, target: String) -> Result<(), Fault> {
        let class = RetentionClass::for_span(KEEP_DEAD);
        let bucket = class.bucket(self.now);
        let slot = self.next_slot();
        let key = keys::audit(class, bucket, tenant, self.token, slot);
        let record = AuditRecord {
            at: self.now,
            actor: self.caller.actor.clone(),
            reason: self.caller.reason.clone(),
            request_id: self.caller.request_id.clone(),
            action: action.to_owned(),
            target,
        };
        self.put(Family::History, key, &record)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_is_held_to_what_it_expects() {
        let none = Revision::default();
        let (six, seven) = (Revision::new(6, 0), Revision::new(7, 0));
        let mismatch = |current| Err(Refusal::RevisionMismatch { current });
        assert_eq!(expect(Expect::Any, None), Ok(()));
        assert_eq!(expect(Expect::Any, Some(seven)), Ok(()));
        assert_eq!(expect(Expect::Absent, None), Ok(()));
        assert_eq!(
            expect(Expect::Absent, Some(seven)),
            Err(Refusal::AlreadyExists { revision: seven })
        );
        assert_eq!(expect(Expect::Present, None), mismatch(none));
        assert_eq!(expect(Expect::Present, Some(seven)), Ok(()));
        assert_eq!(expect(Expect::Revision(seven), Some(seven)), Ok(()));
        assert_eq!(expect(Expect::Revision(six), Some(seven)), mismatch(seven));
        assert_eq!(expect(Expect::Revision(six), None), mismatch(none));
    }
}
