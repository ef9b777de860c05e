//! Real nodes: one process each, on loopback, with data below a temporary directory.
//!
//! Nodes are named by their place (0 for the first); their numbers (`node_id`) count from 1, or are given when one is
//! added.

use std::fs::{self, File};
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use reqwest::Method;
use serde_json::Value;
use tempfile::TempDir;

use crate::http::Api;
use crate::links::Links;
use crate::procfs::{self, Usage};
use crate::wait;

/// The binary under test: `PUNCTUAL_BIN`, else the release build of this workspace.
#[must_use]
pub fn binary() -> PathBuf {
    if let Some(path) = std::env::var_os("PUNCTUAL_BIN") {
        return PathBuf::from(path);
    }
    let exe = std::env::current_exe().unwrap_or_default();
    let release = exe.ancestors().find(|dir| dir.join("punctual").is_file());
    release.unwrap_or(Path::new(".")).join("punctual")
}

struct Node {
    id: u64,
    /// Where its peers reach it.
    peer: String,
    config: PathBuf,
    data: PathBuf,
    log: PathBuf,
    url: String,
    child: Option<Child>,
}

/// A cluster of one, three or five processes.
pub struct Cluster {
    nodes: Vec<Node>,
    links: Option<Links>,
    // Kept for its drop, after the processes are gone.
    dir: TempDir,
}

impl Cluster {
    /// Starts `size` nodes and waits until they serve. `extra` is appended to each configuration file.
    ///
    /// # Errors
    /// What failed, with the end of a node's log.
    pub async fn start(size: usize, extra: &str) -> Result<Self, String> {
        Self::found(size, extra, None).await
    }

    /// The same with the network between the nodes in the test's hands: see [`Self::links`].
    ///
    /// # Errors
    /// As [`Self::start`].
    pub async fn linked(size: usize, extra: &str) -> Result<Self, String> {
        Self::found(size, extra, Some(Links::default())).await
    }

    async fn found(size: usize, extra: &str, links: Option<Links>) -> Result<Self, String> {
        let dir = tempfile::Builder::new()
            .prefix("punctual-jepsen-")
            .tempdir()
            .map_err(|e| format!("temporary directory: {e}"))?;
        let mut places = Vec::new();
        for id in 1..=size as u64 {
            places.push(Place::find(id, links.as_ref()).await?);
        }
        let mut nodes = Vec::new();
        for own in &places {
            nodes.push(prepare(dir.path(), own, &places, extra)?);
        }
        let mut cluster = Self { nodes, links, dir };
        for i in 0..size {
            cluster.spawn(i)?;
        }
        cluster.ready(wait::WIDE).await?;
        Ok(cluster)
    }

    /// Where its files are.
    #[must_use]
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// How many nodes it has.
    #[must_use]
    pub fn size(&self) -> usize {
        self.nodes.len()
    }

    /// Starts node `i`, which must not be running.
    ///
    /// # Errors
    /// When the process cannot be started.
    pub fn spawn(&mut self, i: usize) -> Result<(), String> {
        self.spawn_with(i, &[])
    }

    /// The same with further flags of `serve`.
    ///
    /// # Errors
    /// As [`Self::spawn`].
    pub fn spawn_with(&mut self, i: usize, flags: &[&str]) -> Result<(), String> {
        let node = self.nodes.get_mut(i).ok_or("no such node")?;
        let log = File::options()
            .create(true)
            .append(true)
            .open(&node.log)
            .map_err(|e| format!("{}: {e}", node.log.display()))?;
        let errors = log.try_clone().map_err(|e| e.to_string())?;
        let child = Command::new(binary())
            .args(["serve", "--config"])
            .arg(&node.config)
            .args(flags)
            .stdin(Stdio::null())
            .stdout(log)
            .stderr(errors)
            .spawn()
            .map_err(|e| {
                format!(
                    "{}: {e} (build it, or set PUNCTUAL_BIN)",
                    binary().display()
                )
            })?;
        node.child = Some(child);
        Ok(())
    }

    /// Prepares an empty node numbered `id` that waits to be added (`--join`), without starting it; answers its place.
    ///
    /// # Errors
    /// When its files cannot be written.
    pub async fn prepare_joining(&mut self, id: u64, extra: &str) -> Result<usize, String> {
        let own = Place::find(id, self.links.as_ref()).await?;
        let extra = format!("join = true\n{extra}");
        let node = prepare(self.dir.path(), &own, &[], &extra)?;
        self.nodes.push(node);
        Ok(self.nodes.len() - 1)
    }

    /// The network between the nodes.
    ///
    /// # Errors
    /// When the cluster was not started by [`Self::linked`].
    pub fn links(&self) -> Result<&Links, String> {
        self.links
            .as_ref()
            .ok_or_else(|| "started without links".to_owned())
    }

    /// Kills node `i` with SIGKILL.
    pub fn kill(&mut self, i: usize) {
        if let Some(mut child) = self.nodes.get_mut(i).and_then(|n| n.child.take()) {
            let _gone_already = child.kill();
            let _status = child.wait();
        }
    }

    /// Sends a signal by name (`STOP`, `CONT`, `TERM`) to node `i`.
    ///
    /// # Errors
    /// When `kill` fails.
    pub fn signal(&self, i: usize, name: &str) -> Result<(), String> {
        let pid = self.pid(i).ok_or("the node is not running")?;
        let status = Command::new("kill")
            .args([format!("-{name}"), pid.to_string()])
            .status()
            .map_err(|e| e.to_string())?;
        if status.success() {
            Ok(())
        } else {
            Err(format!("kill -{name} {pid} failed"))
        }
    }

    /// Waits for the exit of node `i` after a signal.
    ///
    /// # Errors
    /// When it does not exit in time.
    pub async fn exited(&mut self, i: usize, deadline: Duration) -> Result<i32, String> {
        let node = self.nodes.get_mut(i).ok_or("no such node")?;
        let mut child = node.child.take().ok_or("the node is not running")?;
        let (code, _) = wait::until("the node's exit", deadline, || {
            let status = child.try_wait().ok().flatten();
            async move { status.map(|s| s.code().unwrap_or(-1)) }
        })
        .await?;
        Ok(code)
    }

    /// Runs the binary with `words` (and JSON output, if asked for with `-o json`); answers exit code, output, errors.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn run(words: &[&str]) -> Result<(i32, String, String), String> {
        let out = Command::new(binary())
            .args(words)
            .stdin(Stdio::null())
            .output()
            .map_err(|e| e.to_string())?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let code = out.status.code().unwrap_or(-1);
        Ok((code, text(&out.stdout), text(&out.stderr)))
    }

    /// What `store verify` says of the stopped node `i`, as JSON, and its exit code.
    ///
    /// # Errors
    /// When it does not run or does not answer JSON.
    pub fn verify(&self, i: usize) -> Result<(i32, Value), String> {
        let dir = self.data_dir(i);
        let dir = dir.to_string_lossy();
        let (code, out, errors) =
            Self::run(&["store", "verify", "-o", "json", "--data-dir", &dir])?;
        let value = serde_json::from_str(&out).map_err(|e| format!("{e}: {out}{errors}"))?;
        Ok((code, value))
    }

    /// The number of node `i`.
    #[must_use]
    pub fn id(&self, i: usize) -> u64 {
        self.nodes.get(i).map_or(0, |n| n.id)
    }

    /// Where the peers of node `i` reach it.
    #[must_use]
    pub fn peer(&self, i: usize) -> String {
        self.nodes
            .get(i)
            .map(|n| n.peer.clone())
            .unwrap_or_default()
    }

    /// The process id of node `i`, while it runs.
    #[must_use]
    pub fn pid(&self, i: usize) -> Option<u32> {
        self.nodes.get(i)?.child.as_ref().map(Child::id)
    }

    /// The base URL of node `i`.
    #[must_use]
    pub fn url(&self, i: usize) -> String {
        self.nodes.get(i).map(|n| n.url.clone()).unwrap_or_default()
    }

    /// The data directory of node `i`.
    #[must_use]
    pub fn data_dir(&self, i: usize) -> PathBuf {
        self.nodes
            .get(i)
            .map(|n| n.data.clone())
            .unwrap_or_default()
    }

    /// A client for all nodes, running or not.
    ///
    /// # Errors
    /// When the HTTP client cannot be made.
    pub fn api(&self) -> Result<Api, String> {
        Api::new(self.nodes.iter().map(|n| n.url.clone()).collect())
    }

    /// What all running nodes used together.
    #[must_use]
    pub fn usage(&self) -> Usage {
        let mut total = Usage::default();
        for i in 0..self.nodes.len() {
            if let Some(pid) = self.pid(i) {
                let one = procfs::usage(pid);
                total.cpu_ms += one.cpu_ms;
                total.rss_bytes += one.rss_bytes;
            }
        }
        total
    }

    /// Waits until every running node says that it is ready, and one that it is in office; answers how long that took.
    ///
    /// # Errors
    /// The end of a node's log when it is not.
    pub async fn ready(&self, deadline: Duration) -> Result<Duration, String> {
        let api = self.api()?;
        let mut longest = Duration::ZERO;
        for (i, node) in self
            .nodes
            .iter()
            .enumerate()
            .filter(|(_, n)| n.child.is_some())
        {
            let probe = || async {
                let answer = api.at(i, Method::GET, "/readyz", None).await.ok()?;
                answer.ok().then_some(())
            };
            let waited = wait::until("a node that is ready", deadline, probe).await;
            let ((), took) =
                waited.map_err(|e| format!("node {}: {e}\n{}", i + 1, tail(&node.log)))?;
            longest = longest.max(took);
        }
        // A leader may be known a moment before it can serve.
        let in_office = || async {
            for i in (0..self.size()).filter(|i| self.pid(*i).is_some()) {
                let path = "/v1/cluster?consistency=stale";
                let answer = api.at(i, Method::GET, path, None).await;
                if answer.is_ok_and(|a| a.body["in_office"] == true) {
                    return Some(());
                }
            }
            None
        };
        let ((), took) = wait::until("a leader in office", deadline, in_office).await?;
        Ok(longest.max(took))
    }

    /// Which node leads, by the word of any running node.
    ///
    /// # Errors
    /// When none is found in time.
    pub async fn leader(&self, deadline: Duration) -> Result<usize, String> {
        let running: Vec<usize> = (0..self.size())
            .filter(|i| self.pid(*i).is_some())
            .collect();
        self.leader_of(&running, deadline).await
    }

    /// Which of `nodes` leads, by the word of any of them.
    ///
    /// # Errors
    /// When none is found in time.
    pub async fn leader_of(&self, nodes: &[usize], deadline: Duration) -> Result<usize, String> {
        let api = self.api()?.with_patience(Duration::from_secs(2));
        let (id, _) = wait::until("a leader", deadline, || async {
            for i in nodes {
                let path = "/v1/cluster?consistency=stale";
                let Ok(answer) = api.at(*i, Method::GET, path, None).await else {
                    continue;
                };
                let leader = answer.body.get("leader").and_then(Value::as_u64);
                let leader = leader.and_then(|id| self.nodes.iter().position(|n| n.id == id));
                if let Some(leader) = leader.filter(|l| nodes.contains(l)) {
                    return Some(leader);
                }
            }
            None
        })
        .await?;
        Ok(id)
    }

    /// Whether node `i` has logged a line with `words`.
    #[must_use]
    pub fn log_has(&self, i: usize, words: &str) -> bool {
        let log = self.nodes.get(i).map(|n| &n.log);
        let text = log.and_then(|log| fs::read_to_string(log).ok());
        text.is_some_and(|text| text.contains(words))
    }

    /// The end of the log of node `i`.
    #[must_use]
    pub fn log_tail(&self, i: usize) -> String {
        self.nodes.get(i).map(|n| tail(&n.log)).unwrap_or_default()
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for i in 0..self.nodes.len() {
            self.kill(i);
        }
    }
}

/// Where a node listens, and where its peers reach it.
struct Place {
    id: u64,
    api: u16,
    listens: SocketAddr,
    reached: SocketAddr,
}

impl Place {
    async fn find(id: u64, links: Option<&Links>) -> Result<Self, String> {
        let ports = free_ports(2)?;
        let port = |n: usize| ports.get(n).copied().unwrap_or(0);
        let listens = SocketAddr::from(([127, 0, 0, 1], port(1)));
        let reached = match links {
            Some(links) => links.before(id, listens).await?,
            None => listens,
        };
        Ok(Self {
            id,
            api: port(0),
            listens,
            reached,
        })
    }
}

/// Writes the configuration of a node; a single one has no peer listener unless it joins.
fn prepare(dir: &Path, own: &Place, founders: &[Place], extra: &str) -> Result<Node, String> {
    let home = dir.join(format!("node-{}", own.id));
    fs::create_dir_all(&home).map_err(|e| format!("{}: {e}", home.display()))?;
    let (data, config) = (home.join("data"), home.join("node.toml"));
    let mut text = format!(
        "node_id = {}\ncluster_name = \"jepsen\"\ndata_dir = {:?}\nlisten = \"127.0.0.1:{}\"\n",
        own.id, data, own.api
    );
    if founders.len() != 1 {
        text.push_str(&format!("peer_listen = \"{}\"\n", own.listens));
    }
    text.push_str(extra);
    if founders.len() > 1 {
        for peer in founders {
            text.push_str(&format!(
                "\n[[peers]]\nid = {}\npeer_addr = \"{}\"\napi_url = \"http://127.0.0.1:{}\"\n",
                peer.id, peer.reached, peer.api
            ));
        }
    }
    fs::write(&config, text).map_err(|e| format!("{}: {e}", config.display()))?;
    Ok(Node {
        id: own.id,
        peer: own.reached.to_string(),
        config,
        data,
        log: home.join("log"),
        url: format!("http://127.0.0.1:{}", own.api),
        child: None,
    })
}

/// Ports that were free a moment ago.
fn free_ports(count: usize) -> Result<Vec<u16>, String> {
    let mut held = Vec::new();
    for _ in 0..count {
        let listener = TcpListener::bind("127.0.0.1:0").map_err(|e| e.to_string())?;
        held.push(listener);
    }
    held.iter()
        .map(|l| l.local_addr().map(|a| a.port()).map_err(|e| e.to_string()))
        .collect()
}

fn tail(log: &Path) -> String {
    let text = fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    lines
        .iter()
        .skip(lines.len().saturating_sub(20))
        .copied()
        .collect::<Vec<_>>()
        .join("\n")
}
