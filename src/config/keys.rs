//! The configuration keys: one definition for the reader and for the reference.
//!
//! Callers: `config::read`, `config::reference`. Invariant: `default` is what [`ServeConfig::default`] holds.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use toml::de::DeValue;

use super::value;
use super::{ClockMode, LogFormat, PeerConfig, ServeConfig};

/// Whether all nodes must agree on a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Each node has its own.
    Node,
    /// The same on every node.
    Cluster,
}

/// One key of the file.
pub struct Key {
    /// Section and name, such as `raft.heartbeat`.
    pub path: &'static str,
    /// What it means, in lines of at most 90 letters.
    pub doc: &'static [&'static str],
    /// Its default as TOML; empty when absence itself is the default.
    pub default: &'static str,
    /// An example as TOML for a key without a default.
    pub example: &'static str,
    /// What is allowed, for people.
    pub range: &'static str,
    /// Whether all nodes must agree.
    pub scope: Scope,
    /// Version that added it.
    pub since: &'static str,
    /// Stores a value, or says what is wrong with it.
    pub set: fn(&mut ServeConfig, &DeValue<'_>) -> Result<(), String>,
}

/// One key of a `[[peers]]` entry; all are required.
pub struct PeerKey {
    /// Name.
    pub name: &'static str,
    /// What it means.
    pub doc: &'static str,
    /// An example as TOML.
    pub example: &'static str,
    /// Stores a value, or says what is wrong with it.
    pub set: fn(&mut PeerConfig, &DeValue<'_>) -> Result<(), String>,
}

const fn key(path: &'static str, doc: &'static [&'static str]) -> Key {
    Key {
        path,
        doc,
        default: "",
        example: "",
        range: "",
        scope: Scope::Node,
        since: "0.1.0",
        set: |_, _| Ok(()),
    }
}

/// Every key outside `[[peers]]`, in the order of the reference.
pub const KEYS: &[Key] = &[
    Key {
        default: "false",
        range: "true, false",
        set: |c, v| boolean(v).map(|b| c.dev = b),
        ..key(
            "dev",
            &[
                "Development: one node, loopback only, no authentication, manual clock allowed.",
                "The flag --dev sets it.",
            ],
        )
    },
    Key {
        default: "\"system\"",
        range: "\"system\", \"manual\" (manual only with dev)",
        set: |c, v| clock(v).map(|m| c.clock = m),
        ..key(
            "clock",
            &[
                "Where replicated time comes from. \"manual\": it stands still until",
                "POST /v1/dev/clock:advance moves it, so that a month passes in a second.",
            ],
        )
    },
    Key {
        default: "\"500ms\"",
        range: "50ms to 1m",
        scope: Scope::Cluster,
        set: |c, v| span(v, 50, 60_000).map(|d| c.max_clock_skew = d),
        ..key(
            "max_clock_skew",
            &[
                "How far the nodes' wall clocks may be apart, or one may leap, before the others' clocks",
                "decide who is right: a leader against a majority of them steps down.",
            ],
        )
    },
    Key {
        default: "1",
        range: "1 to 1,000,000",
        set: |c, v| integer(v, 1, 1_000_000).map(|n| c.node_id = n),
        ..key(
            "node_id",
            &["This node's number. A number is never used again, not even for a replaced machine."],
        )
    },
    Key {
        default: "\"punctual\"",
        range: "1 to 64 of a-z, 0-9, '.', '_', '-'",
        scope: Scope::Cluster,
        set: |c, v| name(v).map(|t| c.cluster_name = t),
        ..key(
            "cluster_name",
            &["Name of the cluster. A node of another name is refused."],
        )
    },
    Key {
        default: "\"./punctual-data\"",
        range: "a directory on a local disk, one per node; relative to the working directory",
        set: |c, v| text(v).map(|t| c.data_dir = PathBuf::from(t)),
        ..key("data_dir", &["Where the node stores everything."])
    },
    Key {
        default: "\"127.0.0.1:7070\"",
        range: "address:port; beyond loopback only with insecure_no_auth",
        set: |c, v| address(v).map(|a| c.listen = a),
        ..key("listen", &["Where the API listens."])
    },
    Key {
        example: "\"http://10.0.0.1:7070\"",
        range: "an http URL without a path",
        set: |c, v| url(v).map(|u| c.api_url = Some(u)),
        ..key(
            "api_url",
            &[
                "URL under which clients and other nodes reach this node's API.",
                "Default: the api_url of this node in [[peers]], else http:// and listen.",
            ],
        )
    },
    Key {
        example: "\"127.0.0.1:7170\"",
        range: "address:port, required with [[peers]]; beyond loopback only with insecure_no_auth",
        set: |c, v| address(v).map(|a| c.peer_listen = Some(a)),
        ..key(
            "peer_listen",
            &["Where the node listens for other nodes. Absent for a node that is alone."],
        )
    },
    Key {
        default: "false",
        range: "true, false",
        set: |c, v| boolean(v).map(|b| c.join = b),
        ..key(
            "join",
            &[
                "Start empty and wait until `punctual cluster add-member` adds this node to a running",
                "cluster, instead of founding one from [[peers]]. Ignored once the node has data.",
            ],
        )
    },
    Key {
        default: "false",
        range: "true, false",
        set: |c, v| boolean(v).map(|b| c.insecure_no_auth = b),
        ..key(
            "insecure_no_auth",
            &["Listen beyond loopback although there is no authentication and no encryption."],
        )
    },
    Key {
        default: "\"info\"",
        range: "error, warn, info, debug, trace; per module: \"info,punctual::raft=debug\"",
        set: |c, v| text(v).map(|t| c.log.level = t),
        ..key("log.level", &["What is logged, to standard error."])
    },
    Key {
        default: "\"text\"",
        range: "\"text\", \"json\"",
        set: |c, v| log_format(v).map(|f| c.log.format = f),
        ..key("log.format", &["Form of a log line."])
    },
    Key {
        default: "\"50ms\"",
        range: "10ms to 10s, below half of raft.election_min",
        scope: Scope::Cluster,
        set: |c, v| span(v, 10, 10_000).map(|d| c.raft.heartbeat = d),
        ..key(
            "raft.heartbeat",
            &[
                "Pause between two heartbeats of the leader, and how long one may take: above the",
                "longest round trip between two nodes.",
            ],
        )
    },
    Key {
        default: "\"250ms\"",
        range: "50ms to 60s",
        scope: Scope::Cluster,
        set: |c, v| span(v, 50, 60_000).map(|d| c.raft.election_min = d),
        ..key(
            "raft.election_min",
            &["Shortest silence of the leader after which a node stands for election."],
        )
    },
    Key {
        default: "\"400ms\"",
        range: "50ms to 60s, above raft.election_min",
        scope: Scope::Cluster,
        set: |c, v| span(v, 50, 60_000).map(|d| c.raft.election_max = d),
        ..key(
            "raft.election_max",
            &["Longest such silence. Failover takes about twice this."],
        )
    },
    Key {
        default: "\"512MiB\"",
        range: "1MiB to 64GiB",
        set: |c, v| bytes(v, 1 << 20, 64 << 30).map(|n| c.snapshot.log_bytes = n),
        ..key(
            "snapshot.log_bytes",
            &["A snapshot is taken after so much log."],
        )
    },
    Key {
        default: "\"10m\"",
        range: "10s to 24h",
        set: |c, v| span(v, 10_000, 86_400_000).map(|d| c.snapshot.interval = d),
        ..key(
            "snapshot.interval",
            &["Or after this time, if anything changed."],
        )
    },
    Key {
        default: "\"1GiB\"",
        range: "1MiB to 256GiB",
        set: |c, v| bytes(v, 1 << 20, 256 << 30).map(|n| c.snapshot.log_tail_bytes = n),
        ..key(
            "snapshot.log_tail_bytes",
            &["Log kept behind the applied index, so that a node that was away needs no snapshot."],
        )
    },
    Key {
        default: "\"256MiB\"",
        range: "8MiB to 256GiB",
        set: |c, v| bytes(v, 8 << 20, 256 << 30).map(|n| c.store.cache_bytes = n),
        ..key(
            "store.cache_bytes",
            &["Block cache of the store, in memory."],
        )
    },
    Key {
        default: "\"64MiB\"",
        range: "4MiB to 4GiB",
        set: |c, v| bytes(v, 4 << 20, 4 << 30).map(|n| c.store.write_buffer_bytes = n),
        ..key(
            "store.write_buffer_bytes",
            &["Unflushed writes held in memory. More means fewer flushes and a longer restart."],
        )
    },
    Key {
        default: "20000",
        range: "16 to 1,000,000",
        set: |c, v| count(v, 16, 1_000_000).map(|n| c.bounds.connections_max = n),
        ..key(
            "bounds.connections_max",
            &["Open API connections; more wait to be accepted."],
        )
    },
    Key {
        default: "16384",
        range: "1 to 1,000,000",
        set: |c, v| count(v, 1, 1_000_000).map(|n| c.bounds.waiting_claims_max = n),
        ..key(
            "bounds.waiting_claims_max",
            &["Claims that wait for work at the leader; more are answered 429."],
        )
    },
    Key {
        default: "65536",
        range: "64 to 10,000,000",
        set: |c, v| count(v, 64, 10_000_000).map(|n| c.bounds.queued_commands_max = n),
        ..key(
            "bounds.queued_commands_max",
            &["Commands that wait for the log; more are answered 429."],
        )
    },
];

/// The keys of a `[[peers]]` entry.
pub const PEER_KEYS: &[PeerKey] = &[
    PeerKey {
        name: "id",
        doc: "The node's node_id.",
        example: "1",
        set: |p, v| integer(v, 1, 1_000_000).map(|n| p.id = n),
    },
    PeerKey {
        name: "peer_addr",
        doc: "host:port of its peer_listen, as the other nodes reach it.",
        example: "\"127.0.0.1:7171\"",
        set: |p, v| host_port(v).map(|t| p.peer_addr = t),
    },
    PeerKey {
        name: "api_url",
        doc: "URL of its API, as clients and the other nodes reach it.",
        example: "\"http://127.0.0.1:7071\"",
        set: |p, v| url(v).map(|t| p.api_url = t),
    },
];

fn text(v: &DeValue<'_>) -> Result<String, String> {
    let t = v
        .as_str()
        .ok_or_else(|| format!("is {}; write a text in quotes", v.type_str()))?;
    if t.is_empty() {
        return Err("is empty".into());
    }
    Ok(t.to_owned())
}

fn boolean(v: &DeValue<'_>) -> Result<bool, String> {
    v.as_bool()
        .ok_or_else(|| format!("is {}; write true or false without quotes", v.type_str()))
}

fn integer(v: &DeValue<'_>, min: u64, max: u64) -> Result<u64, String> {
    let i = v
        .as_integer()
        .ok_or_else(|| format!("is {}; write a whole number without quotes", v.type_str()))?;
    let digits: String = i.as_str().chars().filter(|c| *c != '_').collect();
    u64::from_str_radix(&digits, i.radix())
        .ok()
        .filter(|n| (min..=max).contains(n))
        .ok_or_else(|| format!("{digits} is out of range"))
}

fn count(v: &DeValue<'_>, min: u32, max: u32) -> Result<u32, String> {
    let n = integer(v, min.into(), max.into())?;
    u32::try_from(n).map_err(|_| format!("{n} is out of range"))
}

fn span(v: &DeValue<'_>, min_ms: u64, max_ms: u64) -> Result<Duration, String> {
    let d = value::duration(&text(v)?)?;
    let within = Duration::from_millis(min_ms)..=Duration::from_millis(max_ms);
    if within.contains(&d) {
        Ok(d)
    } else {
        Err(format!("{} is out of range", value::show_duration(d)))
    }
}

fn bytes(v: &DeValue<'_>, min: u64, max: u64) -> Result<u64, String> {
    if v.is_integer() {
        return integer(v, min, max);
    }
    let t = text(v)?;
    let n = value::size(&t)?;
    if (min..=max).contains(&n) {
        Ok(n)
    } else {
        Err(format!("{t:?} is out of range"))
    }
}

fn address(v: &DeValue<'_>) -> Result<SocketAddr, String> {
    let t = text(v)?;
    t.parse()
        .map_err(|_| format!("{t:?} is no address with a port; write \"127.0.0.1:7070\""))
}

fn host_port(v: &DeValue<'_>) -> Result<String, String> {
    let t = text(v)?;
    let ok = t.rsplit_once(':').is_some_and(|(host, port)| {
        !host.is_empty() && !host.contains('/') && port.parse::<u16>().is_ok_and(|p| p > 0)
    });
    if ok {
        Ok(t)
    } else {
        Err(format!("{t:?} is not host:port; write \"10.0.0.1:7170\""))
    }
}

fn url(v: &DeValue<'_>) -> Result<String, String> {
    let t = text(v)?;
    let rest = t.strip_prefix("http://").map(|r| r.trim_end_matches('/'));
    match rest {
        Some(r) if !r.is_empty() && !r.contains('/') => Ok(format!("http://{r}")),
        _ => Err(format!(
            "{t:?} is no http URL of a node; write \"http://10.0.0.1:7070\""
        )),
    }
}

fn name(v: &DeValue<'_>) -> Result<String, String> {
    let t = text(v)?;
    let fits = t.len() <= 64
        && t.bytes()
            .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b"._-".contains(&b));
    if fits {
        Ok(t)
    } else {
        Err(format!("{t:?} is no name"))
    }
}

fn clock(v: &DeValue<'_>) -> Result<ClockMode, String> {
    match text(v)?.as_str() {
        "system" => Ok(ClockMode::System),
        "manual" => Ok(ClockMode::Manual),
        other => Err(format!("{other:?} is no clock")),
    }
}

fn log_format(v: &DeValue<'_>) -> Result<LogFormat, String> {
    match text(v)?.as_str() {
        "text" => Ok(LogFormat::Text),
        "json" => Ok(LogFormat::Json),
        other => Err(format!("{other:?} is no format")),
    }
}
