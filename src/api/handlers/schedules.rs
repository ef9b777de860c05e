//! Calls about schedules: the rows. The handlers are beside it: [`write`] (definitions), [`act`] (pause, resume,
//! trigger, delete), [`read`].

mod act;
mod read;
mod write;

use crate::api::problem::Code;
use crate::api::routes::{Route, handler};
use crate::wire;

const COLLECTION: &str = "/v1/tenants/{tenant}/schedules";
const ITEM: &str = "/v1/tenants/{tenant}/schedules/{schedule}";

/// The rows.
#[must_use]
pub fn routes() -> Vec<Route> {
    let mut rows = puts();
    rows.extend(actions());
    rows.extend(reads());
    rows.extend(times());
    rows
}

/// Problems of a deletion.
const GONE: &[Code] = &[
    Code::TenantNotFound,
    Code::ScheduleNotFound,
    Code::RevisionMismatch,
];
/// Problems of a put.
const PUT: &[Code] = &[
    Code::TenantNotFound,
    Code::RevisionMismatch,
    Code::NotSupported,
    Code::QuotaReached,
    Code::QueueNotAllowed,
    Code::Contended,
];
/// Problems of a creation.
const CREATE: &[Code] = &[
    Code::TenantNotFound,
    Code::AlreadyExists,
    Code::NotSupported,
    Code::QuotaReached,
    Code::QueueNotAllowed,
];

fn puts() -> Vec<Route> {
    let put = Route::new("PUT", ITEM, "putSchedule", handler!(write::put))
        .says("schedules", "Creates or replaces a schedule; equal content changes nothing.")
        .writes()
        .conditional()
        .param(
            "pending",
            "string",
            "`keep` (default): occurrences already due run first; `drop`: they are recorded as superseded.",
        )
        .takes::<wire::Schedule>()
        .gives::<wire::Schedule>(201, "Created.")
        .gives::<wire::Schedule>(200, "Updated or unchanged; `X-Outcome` says which.")
        .refuses(PUT);
    let mut patch = put.clone();
    patch.method = "PATCH";
    patch.id = "patchSchedule";
    patch.summary = "Changes a schedule by a JSON merge patch (RFC 7396) of what GET answers.";
    patch.handler = handler!(write::patch_one);
    patch.answers.retain(|(status, ..)| *status == 200);
    vec![
        put,
        patch,
        Route::new(
            "POST",
            COLLECTION,
            "createSchedule",
            handler!(write::create),
        )
        .says(
            "schedules",
            "Creates a schedule; its name is minted when left out.",
        )
        .writes()
        .takes::<wire::Schedule>()
        .gives::<wire::Schedule>(201, "Created.")
        .gives::<wire::Schedule>(200, "What a dry run would create.")
        .refuses(CREATE),
        Route::new(
            "POST",
            "/v1/tenants/{tenant}/schedules:batch",
            "putSchedules",
            handler!(write::batch),
        )
        .says(
            "schedules",
            "Creates or replaces up to 1,000 schedules, each on its own.",
        )
        .writes()
        .takes::<wire::ScheduleBatch>()
        .gives::<wire::ScheduleBatchResult>(200, "An answer for each item, in order.")
        .refuses(&[Code::TenantNotFound]),
        Route::new("DELETE", ITEM, "deleteSchedule", handler!(act::delete))
            .says("schedules", "Deletes a schedule; its open executions stay.")
            .writes()
            .conditional()
            .gives_bare(204, "Deleted.", "")
            .refuses(GONE),
    ]
}

fn actions() -> Vec<Route> {
    const ACT: &[Code] = &[
        Code::TenantNotFound,
        Code::ScheduleNotFound,
        Code::ScheduleCompleted,
        Code::Overlap,
        Code::RevisionMismatch,
        Code::Contended,
    ];
    let action = |pattern, id, handler, summary| {
        Route::new("POST", pattern, id, handler)
            .says("schedules", summary)
            .writes()
            .refuses(ACT)
    };
    vec![
        action(
            "/v1/tenants/{tenant}/schedules/{schedule}:pause",
            "pauseSchedule",
            handler!(act::pause),
            "Stops firing until resumed.",
        )
        .conditional()
        .may_take::<wire::PauseSchedule>()
        .gives::<wire::Schedule>(200, "The schedule."),
        action(
            "/v1/tenants/{tenant}/schedules/{schedule}:resume",
            "resumeSchedule",
            handler!(act::resume),
            "Fires again; a pause is caught up only when asked for.",
        )
        .conditional()
        .may_take::<wire::ResumeSchedule>()
        .gives::<wire::ResumeResult>(200, "The schedule, and what was decided about the pause."),
        action(
            "/v1/tenants/{tenant}/schedules/{schedule}:trigger",
            "triggerSchedule",
            handler!(act::trigger),
            "Creates an execution now, beside the rule.",
        )
        .may_take::<wire::TriggerSchedule>()
        .gives::<wire::TriggerResult>(201, "The execution that was created.")
        .gives::<wire::TriggerResult>(200, "What a dry run would create."),
    ]
}

fn reads() -> Vec<Route> {
    const NONE: &[Code] = &[Code::TenantNotFound, Code::ScheduleNotFound];
    vec![
        Route::new("GET", ITEM, "getSchedule", handler!(read::get))
            .says("schedules", "Reads a schedule.")
            .reads()
            .gives::<wire::Schedule>(200, "The schedule.")
            .refuses(NONE),
        Route::new("GET", COLLECTION, "listSchedules", handler!(read::list))
            .says("schedules", "Lists schedules by name.")
            .reads()
            .lists()
            .param(
                "view",
                "string",
                "`basic` (default) leaves payloads out; `full`.",
            )
            .param(
                "state",
                "string",
                "`active`, `paused`, `completed`; several with commas.",
            )
            .param("queue", "string", "Only those of this queue.")
            .param("kind", "string", "Only those of this kind.")
            .param("label", "string", "`name=value`, or `name` for any value.")
            .param(
                "last_outcome",
                "string",
                "State in which the last execution ended.",
            )
            .gives_page::<wire::Schedule>("A page.")
            .refuses(&[Code::TenantNotFound, Code::InvalidCursor]),
    ]
}

fn times() -> Vec<Route> {
    const NONE: &[Code] = &[Code::TenantNotFound, Code::ScheduleNotFound];
    const PAGE: &[Code] = &[
        Code::TenantNotFound,
        Code::ScheduleNotFound,
        Code::InvalidCursor,
    ];
    vec![
        Route::new(
            "GET",
            "/v1/tenants/{tenant}/schedules/{schedule}/next",
            "nextOccurrences",
            handler!(read::next),
        )
        .says(
            "schedules",
            "The next occurrences of a schedule as it is defined now.",
        )
        .reads()
        .param("count", "integer", "How many, 1 to 1,000 (10).")
        .gives::<wire::NextOccurrences>(200, "The occurrences.")
        .refuses(NONE),
        Route::new(
            "GET",
            "/v1/tenants/{tenant}/schedules/{schedule}/occurrences",
            "listOccurrences",
            handler!(read::occurrences),
        )
        .says(
            "schedules",
            "The ledger: what became of each nominal time, newest first.",
        )
        .reads()
        .lists()
        .gives_page::<wire::OccurrenceRecord>("A page; open executions come first.")
        .refuses(PAGE),
        Route::new(
            "GET",
            "/v1/tenants/{tenant}/schedules/{schedule}/generations",
            "listGenerations",
            handler!(read::generations),
        )
        .says(
            "schedules",
            "The definitions of a schedule, newest first: the present one and the 99 before it.",
        )
        .reads()
        .lists()
        .param(
            "view",
            "string",
            "`basic` (default) leaves payloads out; `full`.",
        )
        .gives_page::<wire::Generation>("A page.")
        .refuses(PAGE),
        Route::new(
            "POST",
            "/v1/schedules:preview",
            "previewSchedule",
            handler!(read::preview),
        )
        .says("schedules", "Times of a rule that is not stored.")
        .takes::<wire::Preview>()
        .gives::<wire::PreviewResult>(200, "The occurrences, and what may surprise.")
        .refuses(&[Code::NotSupported]),
    ]
}
