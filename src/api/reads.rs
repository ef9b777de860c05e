//! From rows to answers.
//!
//! Purpose: what handlers and actions share in showing a schedule, execution, queue or tenant. Callers: those two.
//! Invariant: nothing here waits; a reader is never held over an await.

use std::sync::Arc;

use crate::api::Api;
use crate::api::convert::{execution, lease, queue, rule, schedule};
use crate::api::problem::{Code, Error};
use crate::calendar::Compiled;
use crate::command::outcome::Refusal;
use crate::fault::Fault;
use crate::ids::{ExecutionId, QueueId, QueueNo, Revision, ScheduleId, TenantId, TenantNo};
use crate::leader::planner::identity;
use crate::model::schedule::{Schedule, ScheduleStatus};
use crate::rt::blocking;
use crate::state::reader::{Found, Reader};
use crate::state::resident::Resident;
use crate::time::Timestamp;
use crate::wire;

/// Open executions of a schedule whose states one answer looks up.
const OPEN_LOOKED_UP: usize = 100;

/// The number of a tenant.
///
/// # Errors
/// `tenant_not_found`.
pub fn tenant_no(resident: &Resident, tenant: &TenantId) -> Result<TenantNo, Error> {
    resident
        .tenant_numbers
        .get(tenant)
        .copied()
        .ok_or_else(|| Refusal::TenantNotFound.into())
}

/// The number of a queue.
///
/// # Errors
/// `queue_not_found`.
pub fn queue_no(resident: &Resident, queue: &QueueId) -> Result<QueueNo, Error> {
    resident
        .queue_numbers
        .get(queue)
        .copied()
        .ok_or_else(|| Refusal::QueueNotFound.into())
}

/// A schedule with its status.
///
/// # Errors
/// `tenant_not_found`, `schedule_not_found`, and any fault.
pub fn schedule_rows(
    reader: &Reader<'_>,
    tenant: &TenantId,
    id: &ScheduleId,
) -> Result<(Schedule, ScheduleStatus), Error> {
    let no = tenant_no(reader, tenant)?;
    reader
        .schedule(no, id)?
        .ok_or_else(|| Refusal::ScheduleNotFound.into())
}

/// An execution.
///
/// # Errors
/// `tenant_not_found`, `execution_not_found`, and any fault.
pub fn execution_rows(
    reader: &Reader<'_>,
    tenant: &TenantId,
    id: &ExecutionId,
) -> Result<Found, Error> {
    let no = tenant_no(reader, tenant)?;
    reader
        .execution(no, id)?
        .ok_or_else(|| Refusal::ExecutionNotFound.into())
}

/// States of the open executions of a schedule, for the first hundred.
///
/// # Errors
/// Any fault.
pub fn open_counts(
    reader: &Reader<'_>,
    tenant: TenantNo,
    status: &ScheduleStatus,
) -> Result<wire::OpenCounts, Fault> {
    let mut counts = total_open(status);
    for id in status.open.iter().take(OPEN_LOOKED_UP) {
        if let Some(found) = reader.execution(tenant, id)? {
            schedule::count_open(&mut counts, found.state());
        }
    }
    Ok(counts)
}

/// How many executions of a schedule are open, without their states.
#[must_use]
pub fn total_open(status: &ScheduleStatus) -> wire::OpenCounts {
    wire::OpenCounts {
        total: u64::try_from(status.open.len()).unwrap_or(u64::MAX),
        ..wire::OpenCounts::default()
    }
}

/// Open executions of a queue over tenants.
#[must_use]
pub fn backlog(resident: &Resident, no: QueueNo) -> wire::Backlog {
    let mut backlog = wire::Backlog::default();
    for (_, counts) in resident.lines_of(no) {
        queue::add_counts(&mut backlog, counts);
    }
    backlog
}

/// A final or open execution, towards answers. `payload`: `None` leaves it out.
#[must_use]
pub fn show_execution(
    resident: &Resident,
    tenant: &TenantId,
    found: &Found,
    payload: Option<Vec<u8>>,
) -> wire::Execution {
    let lease_ends_at = match found {
        Found::Open(_, Some(lease)) => {
            Some(lease.effective_deadline(resident.cluster.took_office_at))
        }
        _ => None,
    };
    let shown = execution::Shown {
        tenant,
        queue: lease::queue_name_of(resident, found.execution().queue),
        payload,
        lease_ends_at,
    };
    execution::execution_out(found, &shown)
}

impl Api {
    /// A stored rule, ready to be asked.
    ///
    /// # Errors
    /// `internal`: a stored rule compiles, unless the zone data lost its zone.
    pub fn compiled(&self, tenant: &TenantId, row: &Schedule) -> Result<Compiled, Error> {
        let name = identity(tenant, &row.id);
        Compiled::new(&row.spec.rule, &self.zones, &name).map_err(|errors| {
            let why = errors.first().map(ToString::to_string).unwrap_or_default();
            let detail = format!("the stored rule of {name} does not compile: {why}");
            Error::new(Code::Internal, detail)
        })
    }

    /// A schedule, towards answers.
    #[must_use]
    pub fn show_schedule(
        &self,
        resident: &Resident,
        tenant: &TenantId,
        (row, status): (&Schedule, &ScheduleStatus),
        open: wire::OpenCounts,
        is_basic: bool,
    ) -> wire::Schedule {
        let compiled = self.compiled(tenant, row).ok();
        let local = |at: Timestamp| compiled.as_ref().map(|c| c.local(at));
        let warnings = compiled
            .as_ref()
            .map(|c| rule::warnings(c, resident.applied.now))
            .unwrap_or_default();
        let shown = schedule::Shown {
            tenant,
            queue: lease::queue_name_of(resident, row.queue),
            basic: is_basic,
            open,
            local: status.next.and_then(|next| local(next.nominal_at)),
            warnings,
        };
        schedule::schedule_out(row, status, shown)
    }

    /// Reads and shows one schedule.
    ///
    /// # Errors
    /// `tenant_not_found`, `schedule_not_found`, and any fault.
    pub fn read_schedule(
        &self,
        tenant: &TenantId,
        id: &ScheduleId,
    ) -> Result<(wire::Schedule, Revision), Error> {
        let reader = self.replica.read();
        let (row, status) = schedule_rows(&reader, tenant, id)?;
        let open = open_counts(&reader, row.tenant, &status)?;
        let shown = self.show_schedule(&reader, tenant, (&row, &status), open, false);
        Ok((shown, row.revision))
    }

    /// Reads and shows one execution.
    ///
    /// # Errors
    /// `tenant_not_found`, `execution_not_found`, and any fault.
    pub fn read_execution(
        &self,
        tenant: &TenantId,
        id: &ExecutionId,
        is_full: bool,
    ) -> Result<(wire::Execution, Revision), Error> {
        let reader = self.replica.read();
        let found = execution_rows(&reader, tenant, id)?;
        let payload = match is_full {
            true => Some(reader.payload(found.execution())?),
            false => None,
        };
        let shown = show_execution(&reader, tenant, &found, payload);
        Ok((shown, found.execution().revision))
    }

    /// Runs a longer read away from the async threads.
    ///
    /// # Errors
    /// What `work` says; `stopping` when the runtime ends.
    pub async fn long_read<T, F>(self: &Arc<Self>, work: F) -> Result<T, Error>
    where
        T: Send + 'static,
        F: FnOnce(&Self) -> Result<T, Error> + Send + 'static,
    {
        let api = Arc::clone(self);
        match blocking(self.runtime.as_ref(), move || work(&api)).await {
            Some(result) => result,
            None => Err(Error::new(Code::Stopping, "the node is stopping")),
        }
    }
}
