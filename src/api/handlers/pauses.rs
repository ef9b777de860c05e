//! Pausing and resuming, the same for queues, tenants and kinds.

use serde::Serialize;

use crate::api::Api;
use crate::api::actions::Purpose;
use crate::api::call::Call;
use crate::api::handlers::written_reply;
use crate::api::issues::Issues;
use crate::api::problem::Error;
use crate::api::reply::Reply;
use crate::command::admin::PauseScope;
use crate::ids::Revision;
use crate::time::Timestamp;
use crate::wire;

/// Pauses what `scope` names, or lets it go on. `shown` reads the object.
pub(super) async fn set_pause<T: Serialize>(
    api: &Api,
    call: &Call,
    scope: PauseScope,
    is_paused: bool,
    shown: impl Fn() -> Result<(T, Revision), Error>,
) -> Result<Reply, Error> {
    let body: wire::Pause = call.body_or_default()?;
    let until = pause_until(api, is_paused, &body)?;
    let (before, revision) = shown()?;
    let keyed = api.keyed(call)?;
    let purpose = Purpose {
        reason: call.reason(body.reason)?,
        key: keyed.command(),
    };
    if call.dry_run()? {
        return Ok(Reply::json(200, &before)?
            .etag(revision)
            .with("x-dry-run", "true"));
    }
    let done = api
        .set_pause(call, scope, (is_paused, until), &purpose)
        .await?;
    written_reply(&done, &shown()?)
}

/// The end of a pause; refused for a resume, and in the past.
pub(super) fn pause_until(
    api: &Api,
    is_paused: bool,
    body: &wire::Pause,
) -> Result<Option<Timestamp>, Error> {
    let mut issues = Issues::default();
    let until = body.until.map(|i| i.0);
    let now = api.scheduler.now();
    match until {
        Some(_) if !is_paused => {
            issues.add_at(
                "/until".into(),
                "invalid",
                "belongs to a pause, not to a resume",
            );
        }
        Some(until) if until <= now => {
            let detail = format!("{until} is in the past: it is {now} now");
            issues.add_at("/until".into(), "in_the_past", detail);
        }
        _ => {}
    }
    issues.finish()?;
    Ok(until)
}
