//! Pauses of the cluster, a tenant, a queue or a kind. Those of a schedule are in `state::schedules`.

use super::{NO_TENANT, review, written};
use crate::command::Actor;
use crate::command::admin::{PauseScope, SetPause};
use crate::command::outcome::{Quota, Refusal, Written};
use crate::fault::Fault;
use crate::ids::{QueueNo, Revision, TenantNo};
use crate::model::policy::PauseInfo;
use crate::state::apply::Verdict;
use crate::state::context::Context;

/// Most kinds paused at a time: they are part of the cluster's one row.
pub(in crate::state) const PAUSED_KINDS_MAX: u64 = 1_000;

/// A scope whose object exists.
enum Found {
    Cluster,
    Tenant(TenantNo),
    Queue(QueueNo),
    Kind,
}

/// Sets or lifts a pause. A paused object that is paused again keeps its `since`; another `until`, reason or name
/// takes the place of the former. The leader's own lift takes effect only when `until` has passed, so that it never
/// undoes a pause that was prolonged meanwhile.
pub(in crate::state) fn set_pause(context: &mut Context<'_>, command: &SetPause) -> Verdict {
    let found = match find(context, &command.scope) {
        Ok(found) => found,
        Err(refusal) => return Ok(Err(refusal)),
    };
    let (present, revision) = present(context, &found, &command.scope);
    let wanted = command.pause.clone().map(|pause| PauseInfo {
        since: present.as_ref().map_or(context.now, |p| p.since),
        ..pause
    });
    if wanted == present || (wanted.is_none() && !may_lift(context, present.as_ref())) {
        return Ok(Ok(written(Written::Unchanged, revision)));
    }
    let paused_kinds = context.state.cluster.paused_kinds.len() as u64;
    if matches!(found, Found::Kind) && present.is_none() && paused_kinds >= PAUSED_KINDS_MAX {
        return Ok(Err(Refusal::QuotaExceeded {
            quota: Quota::PausedKinds,
            limit: PAUSED_KINDS_MAX,
            current: paused_kinds,
        }));
    }
    record(context, &command.scope, wanted.is_some())?;
    set(context, &found, &command.scope, wanted);
    review(context);
    Ok(Ok(written(Written::Updated, context.revision())))
}

fn find(context: &Context<'_>, scope: &PauseScope) -> Result<Found, Refusal> {
    match scope {
        PauseScope::Cluster => Ok(Found::Cluster),
        PauseScope::Tenant(id) => context.tenant(id).map(Found::Tenant),
        PauseScope::Queue(id) => context
            .queue(id)
            .map(Found::Queue)
            .ok_or(Refusal::QueueNotFound),
        PauseScope::Kind(_) => Ok(Found::Kind),
    }
}

/// The pause in force and the revision of what carries it.
fn present(
    context: &Context<'_>,
    found: &Found,
    scope: &PauseScope,
) -> (Option<PauseInfo>, Revision) {
    let state = &context.state;
    let cluster = &state.cluster;
    match (found, scope) {
        (Found::Tenant(no), _) => state
            .tenants
            .get(no)
            .map(|row| (row.paused.clone(), row.revision))
            .unwrap_or_default(),
        (Found::Queue(no), _) => state
            .queues
            .get(no)
            .map(|row| (row.paused.clone(), row.revision))
            .unwrap_or_default(),
        (Found::Kind, PauseScope::Kind(kind)) => {
            (cluster.paused_kinds.get(kind).cloned(), cluster.revision)
        }
        (Found::Cluster | Found::Kind, _) => (cluster.paused.clone(), cluster.revision),
    }
}

/// Whether the caller may lift the pause in force (if there is one at all).
pub(in crate::state) fn may_lift(context: &Context<'_>, present: Option<&PauseInfo>) -> bool {
    let Some(pause) = present else {
        return false;
    };
    context.caller.actor != Actor::Leader || pause.until.is_some_and(|until| until <= context.now)
}

fn record(context: &mut Context<'_>, scope: &PauseScope, paused: bool) -> Result<(), Fault> {
    let (noun, target) = match scope {
        PauseScope::Cluster => ("cluster", "cluster".to_owned()),
        PauseScope::Tenant(id) => ("tenant", id.to_string()),
        PauseScope::Queue(id) => ("queue", id.to_string()),
        PauseScope::Kind(kind) => ("kind", kind.to_string()),
    };
    let verb = if paused { "pause" } else { "resume" };
    context.audit(NO_TENANT, &format!("{noun}.{verb}"), target)
}

fn set(context: &mut Context<'_>, found: &Found, scope: &PauseScope, pause: Option<PauseInfo>) {
    let revision = context.revision();
    match (found, scope) {
        (Found::Tenant(no), _) => {
            if let Some(row) = context.tenant_mut(*no) {
                row.paused = pause;
                row.revision = revision;
            }
        }
        (Found::Queue(no), _) => {
            if let Some(row) = context.queue_mut(*no) {
                row.paused = pause;
                row.revision = revision;
            }
        }
        (Found::Kind, PauseScope::Kind(kind)) => {
            let cluster = context.cluster_mut();
            match pause {
                Some(pause) => cluster.paused_kinds.insert(kind.clone(), pause),
                None => cluster.paused_kinds.remove(kind),
            };
            cluster.revision = revision;
        }
        (Found::Cluster | Found::Kind, _) => {
            let cluster = context.cluster_mut();
            cluster.paused = pause;
            cluster.revision = revision;
        }
    }
}
