//! What `punctual serve` is told: a TOML file, flags over it, checked as a whole.
//!
//! Purpose: turn a file and flags into one plain value, [`ServeConfig`], or into every mistake at once, each with its
//! place and the fix.
//! Callers: `cli::serve` reads it, `node::run` takes it. It uses `calendar` for durations, and starts nothing.
//! Invariants:
//! 1. One table, [`keys::KEYS`], says what each key is called, means, defaults to and may be; the reader and
//!    `config/reference.toml` both come from it.
//! 2. A [`ServeConfig`] that passed [`ServeConfig::check`] is complete: nothing in it is looked up elsewhere.
//! 3. Unknown keys are refused, never ignored.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

mod check;
pub mod keys;
mod read;
pub mod reference;
pub mod value;

pub use read::{ConfigError, Problem};

/// Everything one node is told at its start.
///
/// Durations are of the monotonic clock. Changing any of it needs a restart of the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServeConfig {
    /// Development: one node, loopback only, no authentication, and the manual clock is allowed.
    pub dev: bool,
    /// Where replicated time comes from; [`ClockMode::Manual`] only with `dev`.
    pub clock: ClockMode,
    /// How far wall clocks may be apart, or leap, before the cluster asks who is right.
    pub max_clock_skew: Duration,
    /// This node's number, unique in the cluster for ever; at least 1.
    pub node_id: u64,
    /// Name of the cluster; nodes of another name are refused.
    pub cluster_name: String,
    /// Directory of everything the node stores; one per node, on a local disk.
    pub data_dir: PathBuf,
    /// Where the API listens.
    pub listen: SocketAddr,
    /// URL under which clients and the other nodes reach this node's API; derived from `listen` when absent.
    pub api_url: Option<String>,
    /// Where the node listens for other nodes; `None` for a node that is alone.
    pub peer_listen: Option<SocketAddr>,
    /// Every node of the cluster, this one included; empty for a node that is alone.
    pub peers: Vec<PeerConfig>,
    /// Wait to be added to a running cluster instead of founding one from `peers`.
    pub join: bool,
    /// Start although the node's own record says that its log lost acknowledged entries (a single node only).
    pub accept_data_loss: bool,
    /// Serve without authentication beyond loopback.
    pub insecure_no_auth: bool,
    /// Logging.
    pub log: LogConfig,
    /// Elections.
    pub raft: RaftConfig,
    /// Snapshots and the log that is kept.
    pub snapshot: SnapshotConfig,
    /// Memory of the store.
    pub store: StoreConfig,
    /// Bounds on what waits in memory.
    pub bounds: BoundsConfig,
}

/// Another node, or this one, as the cluster's first configuration names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerConfig {
    /// Its number.
    pub id: u64,
    /// `host:port` of its peer listener.
    pub peer_addr: String,
    /// URL of its API.
    pub api_url: String,
}

/// Where replicated time comes from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ClockMode {
    /// The machine's clock.
    #[default]
    System,
    /// It stands still until `POST /v1/dev/clock:advance` moves it.
    Manual,
}

/// Logging to standard error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogConfig {
    /// Directives as `tracing` reads them: `info`, `info,punctual::raft=debug`.
    pub level: String,
    /// Form of a line.
    pub format: LogFormat,
}

/// Form of a log line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

/// Elections. Failover takes about twice `election_max`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RaftConfig {
    /// Pause between two heartbeats of the leader; below half of `election_min`.
    pub heartbeat: Duration,
    /// Shortest silence after which a node stands for election.
    pub election_min: Duration,
    /// Longest such silence; above `election_min`.
    pub election_max: Duration,
}

/// Snapshots and the log that is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotConfig {
    /// A snapshot is taken after this many bytes of log.
    pub log_bytes: u64,
    /// Or after this time, if anything changed.
    pub interval: Duration,
    /// Log kept behind the applied index, so that a node that was away needs no snapshot.
    pub log_tail_bytes: u64,
}

/// Memory of the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreConfig {
    /// Block cache, in bytes.
    pub cache_bytes: u64,
    /// Unflushed writes held in memory, in bytes.
    pub write_buffer_bytes: u64,
}

/// Bounds on what waits in memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BoundsConfig {
    /// Open API connections.
    pub connections_max: u32,
    /// Claims that wait for work at the leader.
    pub waiting_claims_max: u32,
    /// Commands that wait for the log; more are answered 429.
    pub queued_commands_max: u32,
}

/// API port of a node that is told nothing.
pub const DEFAULT_PORT: u16 = 7070;

impl Default for ServeConfig {
    fn default() -> Self {
        Self {
            dev: false,
            clock: ClockMode::System,
            max_clock_skew: Duration::from_millis(500),
            node_id: 1,
            cluster_name: "punctual".into(),
            data_dir: PathBuf::from("./punctual-data"),
            listen: SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), DEFAULT_PORT),
            api_url: None,
            peer_listen: None,
            peers: Vec::new(),
            join: false,
            accept_data_loss: false,
            insecure_no_auth: false,
            log: LogConfig {
                level: "info".into(),
                format: LogFormat::Text,
            },
            raft: RaftConfig {
                heartbeat: Duration::from_millis(50),
                election_min: Duration::from_millis(250),
                election_max: Duration::from_millis(400),
            },
            snapshot: SnapshotConfig {
                log_bytes: 512 << 20,
                interval: Duration::from_secs(600),
                log_tail_bytes: 1 << 30,
            },
            store: StoreConfig {
                cache_bytes: 256 << 20,
                write_buffer_bytes: 64 << 20,
            },
            bounds: BoundsConfig {
                connections_max: 20_000,
                waiting_claims_max: 16_384,
                queued_commands_max: 65_536,
            },
        }
    }
}

/// Flags of `punctual serve` that stand over the file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Overrides {
    /// `--dev`.
    pub dev: bool,
    /// `--listen`.
    pub listen: Option<SocketAddr>,
    /// `--data-dir`.
    pub data_dir: Option<PathBuf>,
    /// `--clock`.
    pub clock: Option<ClockMode>,
    /// `--join`.
    pub join: bool,
    /// `--accept-data-loss`.
    pub accept_data_loss: bool,
    /// `--insecure-no-auth`.
    pub insecure_no_auth: bool,
    /// `--log-level`.
    pub log_level: Option<String>,
    /// `--log-format`.
    pub log_format: Option<LogFormat>,
}

impl ServeConfig {
    /// Reads `file` (defaults when `None`), lays `flags` over it and checks the whole.
    ///
    /// # Errors
    /// [`ConfigError`] with every mistake found: a file that cannot be read, syntax, unknown keys, values out of
    /// range, and keys that contradict each other.
    pub fn load(file: Option<&Path>, flags: &Overrides) -> Result<Self, ConfigError> {
        let mut config = Self::default();
        if let Some(path) = file {
            let text =
                std::fs::read_to_string(path).map_err(|e| ConfigError::unreadable(path, &e))?;
            config = read::parse(&text).map_err(|problems| ConfigError::in_file(path, problems))?;
        }
        config.overlay(flags);
        let problems = config.check();
        if problems.is_empty() {
            Ok(config)
        } else {
            Err(match file {
                Some(path) => ConfigError::in_file(path, problems),
                None => ConfigError::in_flags(problems),
            })
        }
    }

    /// Reads the text of a configuration file; the caller checks the result ([`Self::check`]).
    ///
    /// # Errors
    /// Every mistake found, with line and column.
    pub fn parse(text: &str) -> Result<Self, Vec<Problem>> {
        read::parse(text)
    }

    fn overlay(&mut self, flags: &Overrides) {
        self.dev |= flags.dev;
        self.join |= flags.join;
        self.accept_data_loss |= flags.accept_data_loss;
        self.insecure_no_auth |= flags.insecure_no_auth;
        if let Some(listen) = flags.listen {
            self.listen = listen;
        }
        if let Some(dir) = &flags.data_dir {
            self.data_dir.clone_from(dir);
        }
        if let Some(clock) = flags.clock {
            self.clock = clock;
        }
        if let Some(level) = &flags.log_level {
            self.log.level.clone_from(level);
        }
        if let Some(format) = flags.log_format {
            self.log.format = format;
        }
    }

    /// URL under which others reach this node's API.
    #[must_use]
    pub fn own_api_url(&self) -> String {
        if let Some(url) = &self.api_url {
            return url.clone();
        }
        let own = self.peers.iter().find(|p| p.id == self.node_id);
        own.map_or_else(|| format!("http://{}", self.listen), |p| p.api_url.clone())
    }
}

#[cfg(test)]
mod tests;
