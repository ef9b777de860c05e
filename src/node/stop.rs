//! How a node ends.
//!
//! Callers: `node`. A panic anywhere ends the process, because tokio would only end the task and leave a node that
//! looks alive.

use tokio::signal::unix::{SignalKind, signal};

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
