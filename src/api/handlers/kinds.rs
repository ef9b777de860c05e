//! Calls about kinds. A kind is a word that schedules and executions carry; all that is kept of it is its pause.

use std::sync::Arc;

use super::{page_of, pauses};
use crate::api::Api;
use crate::api::call::Call;
use crate::api::convert::paused;
use crate::api::cursor::ListQuery;
use crate::api::problem::{Code, Error};
use crate::api::reply::Reply;
use crate::api::routes::{Handler, Route, handler};
use crate::command::admin::PauseScope;
use crate::ids::Kind;
use crate::wire;

/// The rows.
#[must_use]
pub fn routes() -> Vec<Route> {
    let act = |pattern, id, handler: Handler, summary| {
        Route::new("POST", pattern, id, handler)
            .says("kinds", summary)
            .writes()
            .may_take::<wire::Pause>()
            .gives::<wire::KindPause>(200, "The kind.")
            .refuses(&[Code::QuotaReached])
    };
    vec![
        Route::new("GET", "/v1/kinds", "listPausedKinds", handler!(list))
            .says("kinds", "Lists the kinds that are paused, by name.")
            .reads()
            .lists()
            .gives_page::<wire::KindPause>("A page.")
            .refuses(&[Code::InvalidCursor]),
        act(
            "/v1/kinds/{kind}:pause",
            "pauseKind",
            handler!(pause),
            "Grants nothing of it, in any queue and of any tenant, until resumed.",
        ),
        act(
            "/v1/kinds/{kind}:resume",
            "resumeKind",
            handler!(resume),
            "Grants it again.",
        ),
    ]
}

async fn list(api: Arc<Api>, call: Call) -> Result<Reply, Error> {
    let query = ListQuery::of(&call)?;
    let resident = api.replica.resident();
    let all = resident.cluster.paused_kinds.iter().map(|(kind, pause)| {
        let shown = wire::KindPause {
            kind: kind.to_string(),
            paused: Some(paused(pause)),
        };
        (kind.as_str(), shown)
    });
    Reply::json(200, &page_of(&query, all))
}

async fn pause(api: Arc<Api>, call: Call) -> Result<Reply, Error> {
    set_pause(api, call, true).await
}

async fn resume(api: Arc<Api>, call: Call) -> Result<Reply, Error> {
    set_pause(api, call, false).await
}

async fn set_pause(api: Arc<Api>, call: Call, is_paused: bool) -> Result<Reply, Error> {
    let kind = Kind::new(call.part("kind"))
        .map_err(|why| Error::parameter("path:kind", format!("the name {why}")))?;
    let shown = || {
        let cluster = &api.replica.resident().cluster;
        let shown = wire::KindPause {
            kind: kind.to_string(),
            paused: cluster.paused_kinds.get(&kind).map(paused),
        };
        Ok((shown, cluster.revision))
    };
    let scope = PauseScope::Kind(kind.clone());
    pauses::set_pause(&api, &call, scope, is_paused, shown).await
}
