//! How a node ends.
//!
//! Callers: `node`. A panic anywhere ends the process, because tokio would only end the task and leave a node that
//! looks alive.

use tokio::signal::unix::{SignalKind, signal};

use crate::config::ServeConfig;
use crate::fault::Fault;
use crate::node::NodeError;

/// Exit status after a fault or a panic.
const FAULT_STATUS: i32 = 70;

/// From now on a panic prints itself and ends the process.
pub(super) fn end_process_on_panic() {
    let print = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        print(info);
        std::process::exit(FAULT_STATUS);
    }));
}

/// Ends the process because of a fault: going on could corrupt the state.
pub(super) fn end_process(fault: &Fault) -> ! {
    tracing::error!(%fault, "this node stops: going on could lose data. Start it again; if this repeats, see the text above");
    std::process::exit(FAULT_STATUS)
}

/// Ends the process because Raft ended by itself.
pub(super) fn end_process_because(why: &str) -> ! {
    tracing::error!(
        why,
        "this node stops: Raft has ended. Start it again; if this repeats, see the text above"
    );
    std::process::exit(FAULT_STATUS)
}

/// Ends the process because node `by` knows this node's number by another data directory: it has forgotten its votes and
/// what it acknowledged, and must not take part under that number again. Says what to type instead.
pub(super) fn end_process_replaced(config: &ServeConfig, by: u64, last_known: Option<u64>) -> ! {
    // Everything in the text: what is to be typed ends its line.
    tracing::error!(
        "this node stops: its data directory is not the one that its number belongs to\n{}",
        way_back(config, by, last_known)
    );
    std::process::exit(FAULT_STATUS)
}

/// How a machine whose disk was lost comes back.
fn way_back(config: &ServeConfig, by: u64, last_known: Option<u64>) -> String {
    let old = config.node_id;
    let listed = config.peers.iter().map(|p| p.id).max();
    let new = listed.max(last_known).max(Some(old)).unwrap_or(old) + 1;
    let server = config.peers.iter().find(|p| p.id == by);
    let server = server.map_or("http://ANOTHER-NODE:7070", |p| p.api_url.as_str());
    let own = config.peers.iter().find(|p| p.id == old);
    let listens = config.peer_listen.map(|a| a.to_string());
    let peer = own.map(|p| p.peer_addr.clone()).or(listens);
    let peer = peer.unwrap_or_else(|| "HOST:PORT".into());
    let dir = config.data_dir.display();
    let api = config.own_api_url();
    format!(
        "Node {by} knows node {old} by another data directory than {dir}. A node whose disk was lost must not come back \
         under its number: it has forgotten its votes and what it acknowledged. If the right directory still exists, \
         start with that one. Otherwise:\n  \
         1. punctual --server {server} cluster remove-member {old}\n  \
         2. empty {dir}; in the configuration set node_id = {new} (or another number that was never used) and \
         join = true, and take [[peers]] out; start the node\n  \
         3. punctual --server {server} cluster add-member --node {new} --peer {peer} --api {api}"
    )
}

/// SIGTERM and SIGINT.
pub(super) struct Signals {
    terminate: tokio::signal::unix::Signal,
    interrupt: tokio::signal::unix::Signal,
}

impl Signals {
    pub(super) fn listen() -> Result<Self, NodeError> {
        let system = |source| NodeError::System {
            what: "signals",
            source,
        };
        Ok(Self {
            terminate: signal(SignalKind::terminate()).map_err(system)?,
            interrupt: signal(SignalKind::interrupt()).map_err(system)?,
        })
    }

    /// Waits for the next one.
    pub(super) async fn next(&mut self) -> &'static str {
        tokio::select! {
            biased;
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::PeerConfig;

    #[test]
    fn the_way_back_can_be_typed_as_it_is() {
        let peer = |id: u64| PeerConfig {
            id,
            peer_addr: format!("10.0.0.{id}:7170"),
            api_url: format!("http://10.0.0.{id}:7070"),
        };
        let config = ServeConfig {
            node_id: 3,
            peers: (1..=3).map(peer).collect(),
            ..ServeConfig::default()
        };
        let text = way_back(&config, 2, Some(4));
        for line in [
            "1. punctual --server http://10.0.0.2:7070 cluster remove-member 3\n",
            "node_id = 5 ",
            "cluster add-member --node 5 --peer 10.0.0.3:7170 --api http://10.0.0.3:7070",
        ] {
            assert!(text.contains(line), "{text}");
        }
    }
}
