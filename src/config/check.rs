//! What must hold between keys.
//!
//! Callers: `config`. Pure; looks at nothing outside the value.

use std::collections::BTreeSet;

use super::read::Problem;
use super::{ClockMode, ServeConfig};

impl ServeConfig {
    /// Every contradiction between keys; empty when the configuration can be used.
    #[must_use]
    pub fn check(&self) -> Vec<Problem> {
        let mut found = Vec::new();
        self.check_dev(&mut found);
        self.check_listeners(&mut found);
        self.check_peers(&mut found);
        self.check_raft(&mut found);
        self.check_log(&mut found);
        found
    }

    fn check_dev(&self, found: &mut Vec<Problem>) {
        if self.clock == ClockMode::Manual && !self.dev {
            found.push(Problem::of_key(
                "clock",
                "the manual clock exists only in development; add --dev or write clock = \"system\"",
            ));
        }
        if self.dev && !self.peers.is_empty() {
            found.push(Problem::of_key(
                "dev",
                "development runs one node; remove [[peers]] or dev",
            ));
        }
        if self.dev && !self.listen.ip().is_loopback() {
            found.push(Problem::of_key(
                "listen",
                "development listens on loopback only; write \"127.0.0.1:7070\" or leave --dev out",
            ));
        }
    }

    fn check_listeners(&self, found: &mut Vec<Problem>) {
        if self.insecure_no_auth {
            return;
        }
        let fix = "is reachable from other machines and nobody is asked who they are; \
                   write an address of loopback (127.0.0.1), or say insecure_no_auth = true \
                   (--insecure-no-auth) if a trusted network guards it";
        if !self.dev && !self.listen.ip().is_loopback() {
            found.push(Problem::of_key("listen", format!("{} {fix}", self.listen)));
        }
        if let Some(addr) = self.peer_listen.filter(|a| !a.ip().is_loopback()) {
            found.push(Problem::of_key("peer_listen", format!("{addr} {fix}")));
        }
    }

    fn check_peers(&self, found: &mut Vec<Problem>) {
        if self.join && self.peer_listen.is_none() {
            found.push(Problem::of_key(
                "join",
                "a node that joins needs peer_listen, where the cluster reaches it",
            ));
        }
        if self.peers.is_empty() {
            return;
        }
        if self.peer_listen.is_none() {
            found.push(Problem::of_key(
                "peer_listen",
                "is missing; with [[peers]] a node must say where it listens for the others",
            ));
        }
        if self.accept_data_loss && self.peers.len() > 1 {
            found.push(Problem::of_key(
                "--accept-data-loss",
                "is for a node that is alone; in a cluster remove this node, empty its data_dir \
                 and add it again under a new node_id",
            ));
        }
        if !self.peers.iter().any(|p| p.id == self.node_id) {
            found.push(Problem::of_key(
                "node_id",
                format!(
                    "{} is not among [[peers]]; list every node, this one too",
                    self.node_id
                ),
            ));
        }
        self.check_unique_peers(found);
    }

    fn check_unique_peers(&self, found: &mut Vec<Problem>) {
        let mut ids = BTreeSet::new();
        let mut places = BTreeSet::new();
        for peer in &self.peers {
            if !ids.insert(peer.id) {
                let what = format!("id {} appears twice; give every node its own", peer.id);
                found.push(Problem::of_key("peers.id", what));
            }
            for (key, place) in [
                ("peers.peer_addr", &peer.peer_addr),
                ("peers.api_url", &peer.api_url),
            ] {
                if !places.insert(place.as_str()) {
                    let what = format!("{place} appears twice; give every node its own");
                    found.push(Problem::of_key(key, what));
                }
            }
        }
        if self.peers.len() > 9 {
            found.push(Problem::of_key(
                "peers",
                "a cluster has at most nine nodes; three or five are usual",
            ));
        }
    }

    fn check_raft(&self, found: &mut Vec<Problem>) {
        let raft = &self.raft;
        if raft.election_max <= raft.election_min {
            found.push(Problem::of_key(
                "raft.election_max",
                "must be above raft.election_min, else two nodes keep standing at the same moment",
            ));
        }
        if raft.heartbeat.saturating_mul(2) >= raft.election_min {
            found.push(Problem::of_key(
                "raft.heartbeat",
                "must be below half of raft.election_min, else one lost packet ends a leader",
            ));
        }
    }

    fn check_log(&self, found: &mut Vec<Problem>) {
        let directives = &self.log.level;
        if let Err(error) = directives.parse::<tracing_subscriber::filter::Targets>() {
            found.push(Problem::of_key(
                "log.level",
                format!("{directives:?}: {error}; write \"info\" or \"info,punctual::raft=debug\""),
            ));
        }
    }
}
