//! One running node: everything put together, started, drained and stopped.
//!
//! Purpose: [`run`] opens the data directory, starts Raft, the leader loop and the API, and ends them in order.
//! Callers: `cli::serve`. Invariants:
//! 1. Raft and apply run on threads of their own, so that API work never delays a heartbeat.
//! 2. A fault on the Raft path, or a panic anywhere, ends the process: a supervisor starts it again, and recovery is the
//!    ordinary start.
//! 3. Stop order: not ready → leadership handed over → connections drained → Raft stopped → state flushed.

mod assemble;
mod clock;
mod data_dir;
mod logging;
mod stop;
mod upkeep;

pub use data_dir::{DataDir, DataDirError};

use crate::config::ServeConfig;
use crate::fault::Fault;

/// Why a node did not start, or stopped by itself. The text says what to do.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// The data directory cannot be used.
    #[error(transparent)]
    DataDir(#[from] DataDirError),
    /// The configuration asks for something impossible here.
    #[error("{0}")]
    Config(String),
    /// An address cannot be listened on.
    #[error(
        "cannot listen on {address}: {source}; is another process there? (listen, peer_listen)"
    )]
    Listen {
        /// Which.
        address: std::net::SocketAddr,
        /// The system's word.
        source: std::io::Error,
    },
    /// Storage or Raft.
    #[error("{0}")]
    Fault(#[from] Fault),
    /// The operating system refused threads or signals.
    #[error("the system refused {what}: {source}")]
    System {
        /// What.
        what: &'static str,
        /// Its word.
        source: std::io::Error,
    },
}

/// Runs a node until it is told to stop (SIGTERM, SIGINT). Blocks; owns its runtimes.
///
/// # Errors
/// [`NodeError`] when it cannot start.
pub fn run(config: ServeConfig) -> Result<(), NodeError> {
    logging::install(&config.log).map_err(NodeError::Config)?;
    stop::end_process_on_panic();
    let data = DataDir::lock(&config.data_dir)?;
    let threads = std::thread::available_parallelism().map_or(2, usize::from);
    let raft_threads = runtime("raft", threads.clamp(2, 4))?;
    let api_threads = runtime("api", threads.clamp(2, 8))?;
    let raft_handle = raft_threads.handle().clone();
    let outcome = api_threads.block_on(assemble::serve(config, &data, raft_handle));
    // Blocking work (a flush, a checkpoint) may still hold a thread; what it protects is durable already.
    let patience = std::time::Duration::from_secs(2);
    api_threads.shutdown_timeout(patience);
    raft_threads.shutdown_timeout(patience);
    outcome
}

fn runtime(name: &'static str, threads: usize) -> Result<tokio::runtime::Runtime, NodeError> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(threads)
        .thread_name(name)
        .enable_all()
        .build()
        .map_err(|source| NodeError::System {
            what: "threads",
            source,
        })
}
