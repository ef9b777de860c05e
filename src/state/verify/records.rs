//! Bodies, unique keys, pointers, idempotency answers and history.

use super::{Check, row_name};
use crate::fault::Fault;
use crate::ids::{ExecutionId, TenantNo};
use crate::model::execution::{Execution, FinalExecution, StoredPayload};
use crate::model::history::{AuditRecord, ChosenId, IdempotencyRecord, LedgerRow, UniqueHolder};
use crate::state::history::is_kept;
use crate::store::Family;
use crate::store::keys::{self, RetentionClass};

/// Bytes of a history key before its tag: class, bucket, tenant.
const HISTORY_PREFIX: usize = 1 + 4 + 4;

impl Check<'_> {
    /// A body belongs to an open execution that says so.
    pub(super) fn bodies(&mut self) -> Result<(), Fault> {
        self.each(Family::Body, |check, key, _| {
            check.count("bodies");
            // Bodies and executions have the same key.
            let row: Option<Execution> = check.read(Family::Live, key)?;
            if row.is_none_or(|row| row.payload == StoredPayload::Inline) {
                check.problem(
                    || row_name(Family::Body, key),
                    "a body of no open execution",
                );
            }
            Ok(())
        })
    }

    pub(super) fn keys(&mut self) -> Result<(), Fault> {
        self.each(Family::Keys, |check, key, bytes| match key.first() {
            Some(&keys::UNIQUE) => check.unique(key, bytes),
            Some(&keys::POINTER) => check.pointer(key, bytes),
            Some(&keys::IDEMPOTENCY) => {
                check.count("idempotency answers");
                check
                    .decode::<IdempotencyRecord>(Family::Keys, key, bytes)
                    .map(drop)
            }
            _ => {
                let what = "nothing of this name is stored here";
                check.problem(|| row_name(Family::Keys, key), what);
                Ok(())
            }
        })
    }

    fn unique(&mut self, key: &[u8], bytes: &[u8]) -> Result<(), Fault> {
        self.count("unique keys");
        let Some(holder) = self.decode::<UniqueHolder>(Family::Keys, key, bytes)? else {
            return Ok(());
        };
        let tenant = number(key, 1);
        let row = keys::execution(TenantNo(tenant), &holder.execution);
        let row: Option<Execution> = self.read(Family::Live, &row)?;
        let holds = row
            .and_then(|row| row.unique_key)
            .is_some_and(|name| keys::unique(TenantNo(tenant), &name) == key);
        if !holds {
            let what = format!("{} holds it and is not open", holder.execution);
            self.problem(|| row_name(Family::Keys, key), what);
        }
        Ok(())
    }

    fn pointer(&mut self, key: &[u8], bytes: &[u8]) -> Result<(), Fault> {
        self.count("chosen ids");
        let Some(chosen) = self.decode::<ChosenId>(Family::Keys, key, bytes)? else {
            return Ok(());
        };
        let Some((tenant, id)) = owner_of_pointer(key) else {
            self.problem(|| row_name(Family::Keys, key), "not the key of a pointer");
            return Ok(());
        };
        let there = match chosen.history {
            None => {
                let row: Option<Execution> =
                    self.read(Family::Live, &keys::execution(tenant, &id))?;
                row.is_some_and(|row| row.chosen_id)
            }
            Some((class, bucket)) => {
                let class = RetentionClass(class);
                let row = keys::final_execution(class, bucket, tenant, &id);
                !is_kept(&self.resident.cluster, class, bucket)
                    || self.view.get(Family::History, &row)?.is_some()
            }
        };
        if !there {
            let name = || format!("chosen id {}/{id}", tenant.0);
            self.problem(name, "its execution is not where it says");
        }
        Ok(())
    }

    /// A final execution is final, and the pointer of a chosen id leads to it.
    fn final_execution(&mut self, key: &[u8], bytes: &[u8]) -> Result<(), Fault> {
        self.count("final executions");
        let Some(row) = self.decode::<FinalExecution>(Family::History, key, bytes)? else {
            return Ok(());
        };
        let execution = &row.execution;
        let name = || row_name(Family::History, key);
        if !execution.state.is_final() {
            self.problem(name, "it is not final");
        }
        if execution.chosen_id {
            let pointer = keys::pointer(&execution.id, execution.tenant);
            let pointer: Option<ChosenId> = self.read(Family::Keys, &pointer)?;
            let place = key.first().map(|class| (*class, number(key, 1)));
            if pointer.is_none_or(|pointer| pointer.history != place) {
                self.problem(name, "its id was chosen and no pointer leads to it");
            }
        }
        Ok(())
    }

    /// Every kept row of history decodes and has its place.
    pub(super) fn history(&mut self) -> Result<(), Fault> {
        self.each(Family::History, |check, key, bytes| {
            let class = RetentionClass(key.first().copied().unwrap_or(u8::MAX));
            if !is_kept(&check.resident.cluster, class, number(key, 1)) {
                return Ok(());
            }
            match key.get(HISTORY_PREFIX) {
                Some(&keys::FINAL) => check.final_execution(key, bytes),
                Some(&keys::LEDGER) => {
                    check.count("ledger rows");
                    check
                        .decode::<LedgerRow>(Family::History, key, bytes)
                        .map(drop)
                }
                Some(&keys::AUDIT) => {
                    check.count("audit records");
                    check
                        .decode::<AuditRecord>(Family::History, key, bytes)
                        .map(drop)
                }
                _ => {
                    let what = "nothing of this name is stored here";
                    check.problem(|| row_name(Family::History, key), what);
                    Ok(())
                }
            }
        })
    }
}

fn number(key: &[u8], at: usize) -> u32 {
    let bytes = key.get(at..at + 4).and_then(|bytes| bytes.try_into().ok());
    bytes.map_or(0, u32::from_be_bytes)
}

/// Tenant and execution of a pointer's key: `X id 0 tenant`.
fn owner_of_pointer(key: &[u8]) -> Option<(TenantNo, ExecutionId)> {
    let (name, tenant) = key.split_at_checked(key.len().checked_sub(4)?)?;
    let id = name.strip_suffix(&[0])?.get(1..)?;
    let id = ExecutionId::new(std::str::from_utf8(id).ok()?).ok()?;
    Some((TenantNo(u32::from_be_bytes(tenant.try_into().ok()?)), id))
}
