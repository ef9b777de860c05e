//! Reads of the state at one entry.
//!
//! Purpose: typed point reads over memory and store, shared by `api` and `leader`. Callers: those two.
//! Invariant: everything read through one [`Reader`] belongs to the same applied entry.

pub mod lists;

use std::ops::Deref;

use parking_lot::RwLockReadGuard;

use crate::fault::Fault;
use crate::ids::{ExecutionId, ScheduleId, TenantNo};
use crate::model::execution::{Execution, ExecutionState, FinalExecution, StoredPayload};
use crate::model::lease::Lease;
use crate::model::schedule::{Schedule, ScheduleStatus};
use crate::state::history;
use crate::state::replica::token_of;
use crate::state::resident::{Resident, read};
use crate::store::{Family, View, keys};
use crate::time::Timestamp;

/// See the module. Dereferences to the memory.
pub struct Reader<'a> {
    resident: RwLockReadGuard<'a, Resident>,
    store: &'a dyn View,
}

/// An execution, wherever it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// Open, with its live lease if it has one.
    Open(Box<Execution>, Option<Box<Lease>>),
    /// Final.
    Final(Box<FinalExecution>),
}

impl Found {
    /// The row.
    #[must_use]
    pub fn execution(&self) -> &Execution {
        match self {
            Self::Open(execution, _) => execution,
            Self::Final(done) => &done.execution,
        }
    }

    /// The state that a reader is told.
    #[must_use]
    pub fn state(&self) -> ExecutionState {
        match self {
            Self::Open(_, Some(_)) => ExecutionState::Leased,
            Self::Open(execution, None) => execution.state,
            Self::Final(done) => done.execution.state,
        }
    }
}

impl Deref for Reader<'_> {
    type Target = Resident;

    fn deref(&self) -> &Resident {
        &self.resident
    }
}

impl<'a> Reader<'a> {
    /// Over a locked memory and its store.
    #[must_use]
    pub fn new(resident: RwLockReadGuard<'a, Resident>, store: &'a dyn View) -> Self {
        Self { resident, store }
    }

    /// The store, for point reads while this reader lives.
    #[must_use]
    pub fn store(&self) -> &dyn View {
        self.store
    }

    /// Replicated time.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        self.resident.applied.now
    }

    /// Token of the last applied entry: what `X-Log-Index` and `min_index` speak of.
    #[must_use]
    pub fn token(&self) -> u64 {
        token_of(&self.resident)
    }

    /// A schedule with its status.
    ///
    /// # Errors
    /// Any [`Fault`] of reading or decoding.
    pub fn schedule(
        &self,
        tenant: TenantNo,
        id: &ScheduleId,
    ) -> Result<Option<(Schedule, ScheduleStatus)>, Fault> {
        let Some(schedule) = read(self.store, Family::Live, &keys::schedule(tenant, id))? else {
            return Ok(None);
        };
        let status = read(self.store, Family::Live, &keys::status(tenant, id))?
            .ok_or_else(|| Fault::invariant(format!("schedule {id} has no status row")))?;
        Ok(Some((schedule, status)))
    }

    /// An execution, open or final.
    ///
    /// # Errors
    /// Any [`Fault`] of reading or decoding.
    pub fn execution(&self, tenant: TenantNo, id: &ExecutionId) -> Result<Option<Found>, Fault> {
        let open: Option<Execution> = read(self.store, Family::Live, &keys::execution(tenant, id))?;
        if let Some(execution) = open {
            let lease = self.resident.lease(tenant, id).cloned().map(Box::new);
            return Ok(Some(Found::Open(Box::new(execution), lease)));
        }
        let found = history::find_final(
            &mut |family, key| self.store.get(family, key),
            &self.resident.cluster,
            self.now(),
            tenant,
            id,
        )?;
        Ok(found.map(|(_, _, done)| Found::Final(Box::new(done))))
    }

    /// The payload of an execution (JSON text; empty means `null`).
    ///
    /// # Errors
    /// Any [`Fault`]; [`Fault::Invariant`] when a stored body is missing.
    pub fn payload(&self, execution: &Execution) -> Result<Vec<u8>, Fault> {
        match execution.payload {
            StoredPayload::Inline => Ok(execution.template.payload.clone()),
            StoredPayload::Body { .. } => {
                let key = keys::body(execution.tenant, &execution.id);
                self.store.get(Family::Body, &key)?.ok_or_else(|| {
                    Fault::invariant(format!("execution {} has no body", execution.id))
                })
            }
        }
    }
}
