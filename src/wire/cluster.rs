//! The cluster: members, health, the development clock.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::wire::{Instant, Paused, Span};

/// The cluster as the answering node sees it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Cluster {
    /// The answering node.
    pub node: u64,
    /// Version of its program.
    pub version: String,
    /// Who leads, as far as it knows.
    pub leader: Option<u64>,
    /// Raft term.
    pub term: u64,
    /// The leader is in office: it fires and grants.
    pub in_office: Option<bool>,
    /// Everybody who belongs to it.
    pub members: Vec<Member>,
    /// A change of members is under way.
    pub joint: bool,
    /// Last index in this node's log.
    pub last_log_index: Option<u64>,
    /// Last index known to be committed.
    pub committed_index: Option<u64>,
    /// Last index applied here.
    pub applied_index: Option<u64>,
    /// Last index of the snapshot kept for sending.
    pub snapshot_index: Option<u64>,
    /// Last index purged from the log.
    pub purged_index: Option<u64>,
    /// Milliseconds since a majority last confirmed the leader (on the leader).
    pub quorum_ack_age_ms: Option<u64>,
    /// Zone data release used for planning.
    pub tzdata: Option<String>,
    /// The cluster's pause.
    pub paused: Option<Paused>,
    /// Time of the replicated state on this node.
    pub log_time: Option<Instant>,
    /// Totals over all tenants.
    pub totals: ClusterLimits,
    /// Figures of the leader, when this node leads.
    pub figures: Vec<Figure>,
}

/// Totals over all tenants and queues.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct ClusterLimits {
    /// Tenants.
    pub tenants: u64,
    /// Queues.
    pub queues: u64,
    /// Schedules, completed ones too.
    pub schedules: u64,
    /// Open executions.
    pub open_executions: u64,
    /// Live leases.
    pub leased: u64,
}

/// One figure of the leader.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Figure {
    /// Its name, as in `/metrics` without the prefix, with its labels.
    pub name: String,
    /// Its value.
    pub value: f64,
}

/// A node of the cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Member {
    /// Its id.
    pub node: u64,
    /// Host and port of its peer listener.
    pub peer: String,
    /// Base URL of its API.
    pub api: String,
    /// It votes.
    pub voter: bool,
    /// It leads.
    pub leader: bool,
    /// Last index known to be on it (told by the leader only).
    pub replicated_index: Option<u64>,
    /// Milliseconds by which its wall clock is ahead of the answering node's, measured within the last seconds.
    pub clock_ahead_ms: Option<i64>,
}

/// Body of `POST /v1/cluster/members`: an empty node joins.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct AddMember {
    /// Its id; never one that was removed.
    pub node: u64,
    /// Host and port of its peer listener.
    pub peer: String,
    /// Base URL of its API.
    pub api: String,
    /// Make it a voter as soon as it has the log; `false`: it stays a learner.
    #[schema(default = true)]
    pub voter: Option<bool>,
}

/// Body of `:transfer-leadership`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct TransferLeadership {
    /// To whom; `null`: the most advanced voter.
    pub to: Option<u64>,
}

/// Answer of `:transfer-leadership`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Transferred {
    /// Another node leads now.
    pub transferred: bool,
    /// Who leads, as far as the answering node knows.
    #[serde(default)]
    pub leader: Option<u64>,
}

/// Answer of `/healthz` and `/readyz`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Health {
    /// `ok`, or why not.
    pub status: String,
    /// What was looked at.
    #[serde(default)]
    pub checks: Vec<HealthCheck>,
}

/// One thing that was looked at.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct HealthCheck {
    /// What.
    pub name: String,
    /// Whether it is well.
    pub ok: bool,
    /// For people.
    pub detail: String,
}

/// Body of `POST /v1/dev/clock:advance`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AdvanceClock {
    /// How far.
    pub by: Span,
}

/// Answer of `POST /v1/dev/clock:advance`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ClockNow {
    /// The clock after it.
    pub now: Instant,
}
