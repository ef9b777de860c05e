//! Tests of the configuration: reading, checking, the samples and the reference.

use std::path::{Path, PathBuf};

use super::keys::KEYS;
use super::*;

fn repo(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

fn problems(text: &str) -> Vec<String> {
    let found = match ServeConfig::parse(text) {
        Ok(config) => config.check(),
        Err(found) => found,
    };
    ConfigError::in_flags(found)
        .to_string()
        .lines()
        .map(|l| l.trim_start_matches("configuration").to_owned())
        .collect()
}

#[test]
fn an_empty_file_is_the_default_and_usable() {
    let config = ServeConfig::parse("").unwrap();
    assert_eq!(config, ServeConfig::default());
    assert!(config.check().is_empty());
}

#[test]
fn every_documented_default_is_the_real_one() {
    for key in KEYS.iter().filter(|k| !k.default.is_empty()) {
        let text = format!("{} = {}\n", key.path, key.default);
        let config = ServeConfig::parse(&text).unwrap();
        assert_eq!(config, ServeConfig::default(), "{}", key.path);
    }
    for key in KEYS.iter().filter(|k| k.default.is_empty()) {
        let text = format!("{} = {}\n", key.path, key.example);
        let config = ServeConfig::parse(&text).unwrap();
        assert_ne!(
            config,
            ServeConfig::default(),
            "{} stores nothing",
            key.path
        );
    }
}

#[test]
fn the_reference_in_the_repository_is_current() {
    let path = repo("config/reference.toml");
    if std::env::var_os("PUNCTUAL_WRITE_REFERENCE").is_some() {
        std::fs::write(&path, reference::render()).unwrap();
    }
    let kept = std::fs::read_to_string(&path).unwrap();
    assert_eq!(
        kept,
        reference::render(),
        "run PUNCTUAL_WRITE_REFERENCE=1 cargo test --lib config::"
    );
    assert_eq!(ServeConfig::parse(&kept).unwrap(), ServeConfig::default());
}

#[test]
fn the_samples_are_usable_and_belong_together() {
    let dev = ServeConfig::load(Some(&repo("config/dev.toml")), &Overrides::default()).unwrap();
    assert!(dev.dev);
    let mut first: Option<ServeConfig> = None;
    for id in 1..=3 {
        let path = repo(&format!("config/node-{id}.toml"));
        let node = ServeConfig::load(Some(&path), &Overrides::default()).unwrap();
        assert_eq!(node.node_id, id);
        let own = node.peers.iter().find(|p| p.id == id).unwrap();
        assert_eq!(own.api_url, format!("http://{}", node.listen));
        assert_eq!(
            Some(own.peer_addr.clone()),
            node.peer_listen.map(|a| a.to_string())
        );
        assert_eq!(node.own_api_url(), own.api_url);
        match &first {
            Some(other) => {
                assert_eq!(node.peers, other.peers);
                assert_eq!(node.cluster_name, other.cluster_name);
                assert_ne!(node.data_dir, other.data_dir);
            }
            None => first = Some(node),
        }
    }
}

#[test]
fn mistakes_name_line_column_key_and_fix() {
    let found = problems("node_id = 0\nlistn = \"x\"\n[raft]\n\n[log]\nformat = \"xml\"\n");
    assert_eq!(
        found,
        [
            ":1:11: node_id: 0 is out of range (allowed: 1 to 1,000,000)",
            ":2:1: listn: unknown key; did you mean `listen`?",
            ":6:10: log.format: \"xml\" is no format (allowed: \"text\", \"json\")",
        ]
    );
}

#[test]
fn a_duration_without_unit_is_refused_with_the_form() {
    let found = problems("[raft]\nheartbeat = \"5\"\n");
    assert!(
        found[0].starts_with(":2:13: raft.heartbeat: \"5\" is not a duration"),
        "{found:?}"
    );
    assert!(found[0].contains("(allowed: 10ms to 10s"), "{found:?}");
    let found = problems("[raft]\nheartbeat = \"5ms\"\n");
    assert!(found[0].contains("5ms is out of range"), "{found:?}");
}

#[test]
fn broken_toml_names_its_line() {
    let found = problems("node_id = 1\nlisten = \n");
    assert!(found[0].starts_with(":2:"), "{found:?}");
    assert!(found[0].contains("not TOML"), "{found:?}");
}

#[test]
fn a_peer_must_be_complete_and_known() {
    let found = problems(
        "peer_listen = \"127.0.0.1:7170\"\n[[peers]]\nid = 1\npeer_addr = \"nowhere\"\nurl = \"x\"\n",
    );
    assert_eq!(
        found,
        [
            ":2:1: peers: this node has no `api_url`; add it",
            ":4:13: peers.peer_addr: \"nowhere\" is not host:port; write \"10.0.0.1:7170\"",
            ":5:1: peers.url: unknown key; [[peers]] has id, peer_addr, api_url",
        ]
    );
}

#[test]
fn contradictions_between_keys_are_found() {
    let two = "[[peers]]\nid = 2\npeer_addr = \"a:1\"\napi_url = \"http://a:2\"\n";
    for (text, expected) in [
        (
            "clock = \"manual\"",
            "clock: the manual clock exists only in development",
        ),
        (
            "listen = \"0.0.0.0:7070\"",
            "listen: 0.0.0.0:7070 is reachable",
        ),
        (
            "peer_listen = \"0.0.0.0:7170\"",
            "peer_listen: 0.0.0.0:7170 is reachable",
        ),
        (
            "dev = true\nlisten = \"10.0.0.1:7070\"",
            "listen: development listens on loopback only",
        ),
        (
            "raft.heartbeat = \"200ms\"",
            "raft.heartbeat: must be below half",
        ),
        (
            "raft.election_max = \"250ms\"",
            "raft.election_max: must be above",
        ),
        ("log.level = \"loud=very\"", "log.level: "),
        ("join = true", "join: a node that joins needs peer_listen"),
        (two, "peer_listen: is missing"),
        (two, "node_id: 1 is not among [[peers]]"),
        (&format!("{two}{two}"), "peers.id: id 2 appears twice"),
    ] {
        let found = problems(text);
        assert!(
            found.iter().any(|p| p.contains(expected)),
            "{text}: {found:?}"
        );
    }
}

#[test]
fn flags_stand_over_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("p.toml");
    std::fs::write(&path, "listen = \"127.0.0.1:1\"\nnode_id = 9\n").unwrap();
    let flags = Overrides {
        dev: true,
        listen: Some("127.0.0.1:2".parse().unwrap()),
        clock: Some(ClockMode::Manual),
        ..Overrides::default()
    };
    let config = ServeConfig::load(Some(&path), &flags).unwrap();
    assert_eq!(config.listen.port(), 2);
    assert_eq!(config.node_id, 9);
    assert_eq!(config.clock, ClockMode::Manual);
    let missing = ServeConfig::load(Some(&dir.path().join("no.toml")), &flags).unwrap_err();
    assert!(
        missing.to_string().contains("no.toml: cannot be read"),
        "{missing}"
    );
}
