//! `punctual cluster …`

use clap::Subcommand;

use super::exit::Code;
use super::failure::Failure;
use super::output::Output;
use crate::client::Client;
use crate::wire::{AddMember, Cluster, TransferLeadership};

/// Verbs of `cluster`.
#[derive(Debug, Subcommand)]
pub(super) enum Verb {
    /// Who leads, who belongs to it, how far each has come.
    Status,
    /// Add an empty node that was started with --join.
    AddMember {
        /// Its node_id; never one that was used before.
        #[arg(long, value_name = "N")]
        node: u64,
        /// host:port of its peer listener.
        #[arg(long, value_name = "HOST:PORT")]
        peer: String,
        /// URL of its API.
        #[arg(long, value_name = "URL")]
        api: String,
        /// Leave it without a vote.
        #[arg(long)]
        learner: bool,
    },
    /// Remove a node, dead or alive.
    RemoveMember {
        /// Its node_id.
        node: u64,
    },
    /// Hand leadership to another node.
    Transfer {
        /// To whom (default: the one that is furthest).
        #[arg(long, value_name = "N")]
        to: Option<u64>,
    },
    /// Take a snapshot on the node that answers.
    Snapshot,
}

pub(super) async fn run(verb: Verb, client: &Client, output: &Output) -> Result<Code, Failure> {
    match verb {
        Verb::Status => {
            let answer = client.cluster().await?;
            output.answer(&answer, |c| show(c, output));
        }
        Verb::AddMember {
            node,
            peer,
            api,
            learner,
        } => {
            let body = AddMember {
                node,
                peer,
                api,
                voter: learner.then_some(false),
            };
            let answer = client.add_member(&body).await?;
            output.answer(&answer, |m| {
                let role = if m.voter { "voter" } else { "learner" };
                output.line(&format!("node {} is a {role}", m.node));
            });
        }
        Verb::RemoveMember { node } => {
            // Removing twice does no harm, but a mistyped number should not look like a success.
            let known = client.cluster().await?.value.members;
            let answer = client.remove_member(node).await?;
            output.answer(&answer, |_| {
                output.line(&match known.iter().any(|m| m.node == node) {
                    true => format!("node {node} is removed"),
                    false => format!("node {node} is not a member; nothing was changed"),
                });
            });
        }
        Verb::Transfer { to } => {
            let answer = client
                .transfer_leadership(&TransferLeadership { to })
                .await?;
            output.answer(&answer, |t| {
                let leader = t
                    .leader
                    .map_or_else(|| "nobody yet".into(), |n| format!("node {n}"));
                output.line(&format!("{leader} leads"));
            });
        }
        Verb::Snapshot => {
            let answer = client.snapshot().await?;
            output.answer(&answer, |_| output.line("snapshot taken"));
        }
    }
    Ok(Code::Ok)
}

fn show(cluster: &Cluster, output: &Output) {
    let number = |n: Option<u64>| n.map(|n| n.to_string()).unwrap_or_default();
    let leader = cluster
        .leader
        .map_or_else(|| "none known".into(), |n| format!("node {n}"));
    let in_office = match cluster.in_office {
        Some(true) => "yes",
        Some(false) => "not yet",
        None => "",
    };
    let totals = &cluster.totals;
    output.record(&[
        (
            "answered by",
            format!("node {} ({})", cluster.node, cluster.version),
        ),
        ("leader", leader),
        ("in office", in_office.to_owned()),
        ("term", cluster.term.to_string()),
        ("applied", number(cluster.applied_index)),
        ("snapshot", number(cluster.snapshot_index)),
        ("log time", super::occurrence::shown(cluster.log_time)),
        ("zone data", cluster.tzdata.clone().unwrap_or_default()),
        ("schedules", totals.schedules.to_string()),
        ("open executions", totals.open_executions.to_string()),
        ("leased", totals.leased.to_string()),
    ]);
    let rows: Vec<_> = cluster
        .members
        .iter()
        .map(|m| {
            let role = match (m.leader, m.voter) {
                (true, _) => "leader",
                (false, true) => "voter",
                (false, false) => "learner",
            };
            vec![
                m.node.to_string(),
                role.to_owned(),
                m.api.clone(),
                m.peer.clone(),
                number(m.replicated_index),
                m.clock_ahead_ms
                    .map(|ms| format!("{ms:+} ms"))
                    .unwrap_or_default(),
            ]
        })
        .collect();
    output.table(
        &["NODE", "ROLE", "API", "PEER", "REPLICATED", "CLOCK"],
        &rows,
    );
    let leads = cluster.members.iter().find(|m| m.leader);
    if let Some(leader) = leads.filter(|m| m.node != cluster.node) {
        let api = &leader.api;
        output.note(&format!(
            "how far each is, the leader knows: punctual --server {api} cluster status"
        ));
    }
    if cluster.joint {
        output.note("a change of members is under way");
    }
}
