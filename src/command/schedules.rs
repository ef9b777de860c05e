//! Commands about schedules and their occurrences.

use serde::{Deserialize, Serialize};

use crate::command::Expect;
use crate::ids::{QueueId, ScheduleId, TenantId, TenantNo};
use crate::model::execution::Cause;
use crate::model::policy::Overlap;
use crate::model::schedule::{Planned, ScheduleSpec, SkipRecord};
use crate::time::Timestamp;

/// Most occurrences and skip records in one [`FireOccurrences`].
pub const STEPS_MAX: usize = 100;

/// See each variant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ScheduleCommand {
    /// Creates or replaces.
    Put(Box<PutSchedule>),
    /// Deletes. Open executions stay.
    Delete(DeleteSchedule),
    /// Stops firing until resumed.
    Pause(PauseSchedule),
    /// Fires again from now, catching up only what `steps` say.
    Resume(ResumeSchedule),
    /// Creates an execution by hand.
    Trigger(TriggerSchedule),
    /// Decides occurrences that are due and moves the cursor.
    Fire(FireOccurrences),
    /// Removes a completed schedule whose time to be kept has passed.
    Remove(RemoveSchedule),
}

/// What the action planned, from the replicated zone data. The cursor is never earlier than the present one and `next`
/// is later than the cursor: a plan that leads back answers `Superseded`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// Nominal times up to here (included) are decided or lie before the schedule's time.
    pub cursor: Timestamp,
    /// The next occurrence; `None`: there is none (the schedule completes when nothing of it is open).
    pub next: Option<Planned>,
}

/// What the action read of the schedule before it planned: a change since then answers `Superseded`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seen {
    /// Its incarnation.
    pub incarnation: u64,
    /// Its generation.
    pub generation: u64,
    /// Its cursor.
    pub cursor: Timestamp,
}

/// Creates or replaces a schedule. Equal content answers `unchanged` and changes nothing. Occurrences already due
/// were fired by a command before this one in the same batch, unless `drop_pending`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PutSchedule {
    /// Owner; must exist.
    pub tenant: TenantId,
    /// Its name.
    pub id: ScheduleId,
    /// Queue of its executions; created if it does not exist.
    pub queue: QueueId,
    /// Its definition.
    pub spec: ScheduleSpec,
    /// Its plan.
    pub plan: Plan,
    /// `None`: the action saw no schedule of that name.
    pub seen: Option<Seen>,
    /// What must hold.
    pub expect: Expect,
    /// Undecided occurrences up to the new cursor, recorded as `superseded`.
    pub dropped: Vec<SkipRecord>,
}

/// Deletes a schedule. One created by the same entry answers `Superseded`: its successor would have its incarnation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeleteSchedule {
    /// Owner.
    pub tenant: TenantId,
    /// Its name.
    pub id: ScheduleId,
    /// What must hold.
    pub expect: Expect,
}

/// Pauses a schedule; a paused one keeps its `since`, name and reason, and another `until` takes effect.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PauseSchedule {
    /// Owner.
    pub tenant: TenantId,
    /// Its name.
    pub id: ScheduleId,
    /// What must hold.
    pub expect: Expect,
    /// Ends by itself then.
    pub until: Option<Timestamp>,
}

/// Resumes a schedule; an active one stays as it is. By the leader (the end of a timed pause): `Superseded` unless
/// `until` has passed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResumeSchedule {
    /// Owner.
    pub tenant: TenantId,
    /// Its name.
    pub id: ScheduleId,
    /// What must hold.
    pub expect: Expect,
    /// What the action read.
    pub seen: Seen,
    /// Where it goes on.
    pub plan: Plan,
    /// Decisions about the pause span, oldest first; at most [`STEPS_MAX`].
    pub steps: Vec<Step>,
}

/// Creates an execution of a schedule now, beside its rule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TriggerSchedule {
    /// Owner.
    pub tenant: TenantId,
    /// Its name.
    pub id: ScheduleId,
    /// JSON text instead of the template's payload.
    pub payload: Option<Vec<u8>>,
    /// Instead of the schedule's own overlap policy.
    pub overlap: Option<Overlap>,
    /// W3C trace context of the caller.
    pub traceparent: Option<String>,
}

/// One decision about nominal times.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Step {
    /// Create an execution (apply may still turn it into a skip: overlap, quota, pause of the tenant is not one).
    Create {
        /// The occurrence.
        planned: Planned,
        /// `Due` or `CatchUp`.
        cause: Cause,
    },
    /// Record a skip.
    Skip(SkipRecord),
}

/// Decides the occurrences of one schedule up to `plan.cursor`, oldest first. Compared and swapped on `seen`;
/// otherwise `Superseded` and nothing moved. A paused or completed schedule answers `Superseded` too.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FireOccurrences {
    /// Owner.
    pub tenant: TenantNo,
    /// Its name.
    pub id: ScheduleId,
    /// What the leader read.
    pub seen: Seen,
    /// Decisions; at most [`STEPS_MAX`].
    pub steps: Vec<Step>,
    /// Where it goes on.
    pub plan: Plan,
}

/// Removes a completed schedule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemoveSchedule {
    /// Owner.
    pub tenant: TenantNo,
    /// Its name.
    pub id: ScheduleId,
    /// Which schedule of that name.
    pub incarnation: u64,
}
