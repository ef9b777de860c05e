//! Calls about the cluster and its members.

use std::sync::Arc;
use std::time::Duration;

use crate::api::Api;
use crate::api::actions::Purpose;
use crate::api::call::Call;
use crate::api::convert::paused;
use crate::api::handlers::pauses::pause_until;
use crate::api::issues::{At, Issues};
use crate::api::problem::{Code, Error};
use crate::api::reply::Reply;
use crate::api::routes::{Handler, Route, handler};
use crate::command::admin::PauseScope;
use crate::raft::{ConsensusStatus, MembershipError, NodeAddress};
use crate::time::Millis;
use crate::wire;
use crate::wire::limits;

/// How long a joining node may take to get the log.
const CATCH_UP: Duration = Duration::from_secs(60);
/// Age up to which a measured clock is shown.
const CLOCK_SHOWN: Millis = Millis::secs(10);
/// How often that is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// The rows.
#[must_use]
pub fn routes() -> Vec<Route> {
    let mut rows = members_and_log();
    rows.extend(pauses());
    rows
}

fn act(pattern: &'static str, id: &'static str, handler: Handler, summary: &'static str) -> Route {
    Route::new("POST", pattern, id, handler)
        .says("cluster", summary)
        .asks_leader()
}

fn members_and_log() -> Vec<Route> {
    const MEMBERSHIP: &[Code] = &[Code::MembershipInProgress, Code::MembershipRefused];
    vec![
        Route::new("GET", "/v1/cluster", "getCluster", handler!(get))
            .says("cluster", "The cluster as the answering node sees it.")
            .reads()
            .gives::<wire::Cluster>(200, "The cluster."),
        act(
            "/v1/cluster/members",
            "addMember",
            handler!(add_member),
            "Lets an empty node join; answers when it votes.",
        )
        .takes::<wire::AddMember>()
        .gives::<wire::Member>(200, "The member.")
        .refuses(&[
            Code::MembershipInProgress,
            Code::MembershipRefused,
            Code::MemberBehind,
        ]),
        act(
            "/v1/cluster/members/{node}:remove",
            "removeMember",
            handler!(remove_member),
            "Removes a node, dead or alive; its id is never used again.",
        )
        .gives_bare(204, "Removed.", "")
        .refuses(MEMBERSHIP),
        act(
            "/v1/cluster:transfer-leadership",
            "transferLeadership",
            handler!(transfer),
            "Hands leadership to another voter.",
        )
        .may_take::<wire::TransferLeadership>()
        .gives::<wire::Transferred>(200, "Whether another node leads now."),
        Route::new(
            "POST",
            "/v1/cluster:snapshot",
            "takeSnapshot",
            handler!(snapshot),
        )
        .says(
            "cluster",
            "Takes a snapshot on the answering node and purges its log.",
        )
        .gives_bare(204, "Taken.", ""),
    ]
}

fn pauses() -> Vec<Route> {
    vec![
        act(
            "/v1/cluster:pause",
            "pauseCluster",
            handler!(pause),
            "Nothing fires or is granted until resumed.",
        )
        .writes()
        .may_take::<wire::Pause>()
        .gives::<wire::Cluster>(200, "The cluster."),
        act(
            "/v1/cluster:resume",
            "resumeCluster",
            handler!(resume),
            "Fires and grants again.",
        )
        .writes()
        .may_take::<wire::Pause>()
        .gives::<wire::Cluster>(200, "The cluster."),
    ]
}

fn members(api: &Api, status: &ConsensusStatus) -> Vec<wire::Member> {
    let clock = api.runtime.clock();
    let (wall, now) = (clock.wall(), clock.monotonic());
    let clocks = api.consensus.peer_clocks();
    let ahead = |id: u64| {
        let measured = clocks.iter().find(|c| c.node == id)?;
        (measured.age(now) <= CLOCK_SHOWN).then(|| measured.ahead_ms(wall, now))
    };
    let one = |id: u64, address: &NodeAddress, voter: bool| wire::Member {
        node: id,
        peer: address.peer.clone(),
        api: address.api.clone(),
        voter,
        leader: status.leader == Some(id),
        replicated_index: status.replicated.get(&id).copied().flatten(),
        clock_ahead_ms: ahead(id),
    };
    let voters = status
        .members
        .voters
        .iter()
        .map(|(id, a)| one(*id, a, true));
    let learners = status
        .members
        .learners
        .iter()
        .map(|(id, a)| one(*id, a, false));
    voters.chain(learners).collect()
}

fn shown(api: &Api) -> wire::Cluster {
    let status = api.consensus.status();
    let leads = status.is_leader();
    let resident = api.replica.resident();
    let sum = |of: fn(&crate::model::tenant::TenantUsage) -> u64| {
        resident.usage.values().map(of).fold(0, u64::saturating_add)
    };
    let count = |n: usize| u64::try_from(n).unwrap_or(u64::MAX);
    let figures = match leads {
        true => api.scheduler.figures(),
        false => Vec::new(),
    };
    wire::Cluster {
        node: api.config.node,
        version: api.config.version.to_owned(),
        leader: status.leader,
        term: status.term,
        in_office: leads.then(|| api.scheduler.in_office()),
        members: members(api, &status),
        joint: status.members.joint,
        last_log_index: status.last_log,
        committed_index: status.committed,
        applied_index: status.applied,
        snapshot_index: status.snapshot,
        purged_index: status.purged,
        quorum_ack_age_ms: status.quorum_ack_age_ms,
        tzdata: Some(api.zones.release().to_owned()),
        paused: resident.cluster.paused.as_ref().map(paused),
        log_time: Some(resident.applied.now.into()),
        totals: wire::ClusterLimits {
            tenants: count(resident.tenants.len()),
            queues: count(resident.queues.len()),
            schedules: sum(|u| u.schedules),
            open_executions: sum(|u| u.open),
            leased: count(resident.leases.len()),
        },
        figures: figures
            .into_iter()
            .map(|f| wire::Figure {
                name: f
                    .labels
                    .iter()
                    .fold(f.name.to_owned(), |name, (label, value)| {
                        format!("{name},{label}={value}")
                    }),
                value: f.value,
            })
            .collect(),
    }
}

async fn get(api: Arc<Api>, _: Call) -> Result<Reply, Error> {
    Reply::json(200, &shown(&api))
}

async fn add_member(api: Arc<Api>, call: Call) -> Result<Reply, Error> {
    let body: wire::AddMember = call.body()?;
    let mut issues = Issues::default();
    let root = At::Root;
    if body.node == 0 {
        issues.add(&root.key("node"), "required", "is required, from 1");
    }
    for (name, value) in [("peer", &body.peer), ("api", &body.api)] {
        if value.is_empty() {
            issues.add(&root.key(name), "required", "is required");
        }
    }
    issues.number(&root.key("node"), body.node, &limits::LIMIT_VALUE);
    if !body.peer.is_empty() && !is_host_and_port(&body.peer) {
        let detail = "is no host and port: write \"node-4.example:7071\"";
        issues.add(&root.key("peer"), "invalid", detail);
    }
    let mut schemes = ["http://", "https://"].iter();
    let host = schemes.find_map(|scheme| body.api.strip_prefix(scheme));
    if !body.api.is_empty() && host.is_none_or(str::is_empty) {
        let detail = "is no base URL: write \"http://node-4.example:7070\"";
        issues.add(&root.key("api"), "invalid", detail);
    }
    issues.finish()?;
    let address = NodeAddress {
        peer: body.peer,
        api: body.api,
    };
    api.consensus.add_learner(body.node, address).await?;
    if body.voter.unwrap_or(true) {
        promote(&api, body.node).await?;
    }
    let status = api.consensus.status();
    let member = members(&api, &status)
        .into_iter()
        .find(|m| m.node == body.node);
    let member = member.unwrap_or_else(|| wire::Member {
        node: body.node,
        ..wire::Member::default()
    });
    Reply::json(200, &member)
}

fn is_host_and_port(text: &str) -> bool {
    let parts = text.rsplit_once(':');
    parts.is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok_and(|p| p > 0))
}

async fn promote(api: &Api, node: u64) -> Result<(), Error> {
    let waited = tokio::time::timeout(CATCH_UP, async {
        loop {
            match api.consensus.promote(node).await {
                Err(MembershipError::Behind { .. } | MembershipError::InProgress) => {
                    tokio::time::sleep(LOOK_EVERY).await;
                }
                ended => return ended,
            }
        }
    });
    match waited.await {
        Ok(ended) => ended.map_err(Error::from),
        Err(_) => Err(Error::new(
            Code::MemberBehind,
            format!(
                "node {node} is a learner now and still gets the log; ask again to make it a voter"
            ),
        )),
    }
}

async fn remove_member(api: Arc<Api>, call: Call) -> Result<Reply, Error> {
    let text = call.part("node");
    let node: u64 = text
        .parse()
        .map_err(|_| Error::parameter("path:node", format!("{text:?} is not a node's number")))?;
    api.consensus.remove(node).await?;
    Ok(Reply::empty())
}

async fn transfer(api: Arc<Api>, call: Call) -> Result<Reply, Error> {
    let body: wire::TransferLeadership = call.body_or_default()?;
    if let Some(to) = body.to
        && !api.consensus.status().members.voters.contains_key(&to)
    {
        let mut issues = Issues::default();
        issues.add_at("/to".into(), "invalid", format!("node {to} is not a voter"));
        issues.finish()?;
    }
    let transferred = api.consensus.transfer_leader(body.to).await;
    let answer = wire::Transferred {
        transferred,
        leader: api.consensus.status().leader,
    };
    Reply::json(200, &answer)
}

async fn snapshot(api: Arc<Api>, _: Call) -> Result<Reply, Error> {
    api.consensus.trigger_snapshot().await;
    Ok(Reply::empty())
}

async fn pause(api: Arc<Api>, call: Call) -> Result<Reply, Error> {
    set_pause(api, call, true).await
}

async fn resume(api: Arc<Api>, call: Call) -> Result<Reply, Error> {
    set_pause(api, call, false).await
}

async fn set_pause(api: Arc<Api>, call: Call, is_paused: bool) -> Result<Reply, Error> {
    let body: wire::Pause = call.body_or_default()?;
    let until = pause_until(&api, is_paused, &body)?;
    let keyed = api.keyed(&call)?;
    let purpose = Purpose {
        reason: call.reason(body.reason)?,
        key: keyed.command(),
    };
    if call.dry_run()? {
        return Ok(Reply::json(200, &shown(&api))?.with("x-dry-run", "true"));
    }
    let done = api
        .set_pause(&call, PauseScope::Cluster, (is_paused, until), &purpose)
        .await?;
    Ok(Reply::json(200, &shown(&api))?
        .at_index(done.index)
        .replayed(done.is_replayed))
}
