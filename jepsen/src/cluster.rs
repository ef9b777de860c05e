//! Real nodes: one process each, on loopback, with data below a temporary directory.

use std::fs::{self, File};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use reqwest::Method;
use tempfile::TempDir;

use crate::http::Api;
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
    config: PathBuf,
    data: PathBuf,
    log: PathBuf,
    url: String,
    child: Option<Child>,
}

/// A cluster of one, three or five processes.
pub struct Cluster {
    nodes: Vec<Node>,
    // Kept for its drop, after the processes are gone.
    dir: TempDir,
}

impl Cluster {
    /// Starts `size` nodes and waits until they serve. `extra` is appended to each configuration file.
    ///
    /// # Errors
    /// What failed, with the end of a node's log.
    pub async fn start(size: usize, extra: &str) -> Result<Self, String> {
        let dir = tempfile::Builder::new()
            .prefix("punctual-jepsen-")
            .tempdir()
            .map_err(|e| format!("temporary directory: {e}"))?;
        let ports = free_ports(size * 2)?;
        let mut nodes = Vec::new();
        for i in 0..size {
            nodes.push(prepare(dir.path(), i, size, &ports, extra)?);
        }
        let mut cluster = Self { nodes, dir };
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

    /// Waits until every running node says that it is ready; answers how long that took.
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
        Ok(longest)
    }

    /// Which node leads, by the word of any running node.
    ///
    /// # Errors
    /// When none is found in time.
    pub async fn leader(&self, deadline: Duration) -> Result<usize, String> {
        let api = self.api()?;
        let running: Vec<usize> = (0..self.size())
            .filter(|i| self.pid(*i).is_some())
            .collect();
        let (id, _) = wait::until("a leader", deadline, || async {
            for i in &running {
                let path = "/v1/cluster?consistency=stale";
                let Ok(answer) = api.at(*i, Method::GET, path, None).await else {
                    continue;
                };
                let leader = answer
                    .body
                    .get("leader")
                    .and_then(serde_json::Value::as_u64);
                let leader = leader.and_then(|id| usize::try_from(id).ok()?.checked_sub(1));
                if let Some(leader) = leader.filter(|l| running.contains(l)) {
                    return Some(leader);
                }
            }
            None
        })
        .await?;
        Ok(id)
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

fn prepare(dir: &Path, i: usize, size: usize, ports: &[u16], extra: &str) -> Result<Node, String> {
    let home = dir.join(format!("node-{}", i + 1));
    fs::create_dir_all(&home).map_err(|e| format!("{}: {e}", home.display()))?;
    let port = |n: usize| ports.get(n).copied().unwrap_or(0);
    let (data, config) = (home.join("data"), home.join("node.toml"));
    let mut text = format!(
        "node_id = {}\ncluster_name = \"jepsen\"\ndata_dir = {:?}\nlisten = \"127.0.0.1:{}\"\n",
        i + 1,
        data,
        port(i)
    );
    if size > 1 {
        text.push_str(&format!("peer_listen = \"127.0.0.1:{}\"\n", port(size + i)));
    }
    text.push_str(extra);
    if size > 1 {
        for peer in 0..size {
            text.push_str(&format!(
                "\n[[peers]]\nid = {}\npeer_addr = \"127.0.0.1:{}\"\napi_url = \"http://127.0.0.1:{}\"\n",
                peer + 1,
                port(size + peer),
                port(peer)
            ));
        }
    }
    fs::write(&config, text).map_err(|e| format!("{}: {e}", config.display()))?;
    let url = format!("http://127.0.0.1:{}", port(i));
    Ok(Node {
        config,
        data,
        log: home.join("log"),
        url,
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
