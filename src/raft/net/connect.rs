//! The sending side: one connection a (node, lane), made when first needed and again after it broke.
//!
//! Callers: `raft` through [`PeerTransport`].

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::net::tcp::OwnedReadHalf;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, timeout_at};

use super::super::NodeAddress;
use super::super::transport::{Lane, PeerError, PeerTransport};
use super::frame::{Frame, Hello, Kind, WRITES_MAX, Welcome, body_max, write_all};
use super::presence::Presence;
use crate::rt::{AbortOnDrop, Runtime};

/// Longest wait for a connection, within the call's own deadline.
const CONNECT: Duration = Duration::from_secs(1);
/// First and longest pause after a failed connection, during which calls fail at once.
const PAUSE_MIN: Duration = Duration::from_millis(20);
const PAUSE_MAX: Duration = Duration::from_millis(500);

/// See the module. Clones share the connections.
#[derive(Clone)]
pub struct TcpTransport {
    shared: Arc<Shared>,
}

struct Shared {
    presence: Presence,
    rt: Arc<dyn Runtime>,
    links: Mutex<BTreeMap<(u64, Lane, String), Arc<Link>>>,
}

/// The way to one node on one lane.
#[derive(Default)]
struct Link {
    /// Held while connecting, so that calls wait for one attempt instead of making their own.
    state: tokio::sync::Mutex<LinkState>,
}

#[derive(Default)]
struct LinkState {
    connection: Option<Arc<Connection>>,
    failures: u32,
    not_before: Option<Instant>,
}

struct Connection {
    queue: mpsc::Sender<Frame>,
    pending: Mutex<BTreeMap<u64, oneshot::Sender<Bytes>>>,
    next: AtomicU64,
    /// Frames received: a call that sees none until its deadline gives the connection up.
    heard: AtomicU64,
    broken: AtomicBool,
    tasks: Mutex<Vec<AbortOnDrop>>,
}

impl TcpTransport {
    /// For the node that `presence` names; tasks run on `rt`.
    #[must_use]
    pub fn new(presence: Presence, rt: Arc<dyn Runtime>) -> Self {
        let shared = Shared {
            presence,
            rt,
            links: Mutex::default(),
        };
        Self {
            shared: Arc::new(shared),
        }
    }
}

impl PeerTransport for TcpTransport {
    fn call(
        &self,
        to: u64,
        address: &NodeAddress,
        lane: Lane,
        request: Bytes,
        deadline: Duration,
    ) -> BoxFuture<'static, Result<Bytes, PeerError>> {
        let shared = Arc::clone(&self.shared);
        let address = address.peer.clone();
        let until = Instant::now() + deadline;
        Box::pin(async move {
            if request.len() > body_max(lane) {
                let len = request.len();
                return Err(PeerError::Unreachable(format!("{len} bytes are too many")));
            }
            let link = shared.link(to, lane, &address);
            let connection = shared.connection(&link, to, lane, &address, until).await?;
            connection.call(request, until).await
        })
    }

    fn greet(
        &self,
        to: u64,
        address: &NodeAddress,
        deadline: Duration,
    ) -> BoxFuture<'static, Result<(), PeerError>> {
        let shared = Arc::clone(&self.shared);
        let address = address.peer.clone();
        let until = Instant::now() + deadline;
        Box::pin(async move {
            let greeted = timeout_at(until, shared.open(to, Lane::Control, &address)).await;
            let greeted = greeted.unwrap_or_else(|_| Err("no answer in time".into()));
            greeted
                .map(drop)
                .map_err(|why| PeerError::Unreachable(format!("{address}: {why}")))
        })
    }
}

impl Shared {
    fn link(&self, to: u64, lane: Lane, address: &str) -> Arc<Link> {
        let mut links = self.links.lock();
        // A node that moved keeps one link: its old address is of no use any more.
        links.retain(|(id, l, a), _| !(*id == to && *l == lane && a != address));
        Arc::clone(links.entry((to, lane, address.to_owned())).or_default())
    }

    async fn connection(
        &self,
        link: &Link,
        to: u64,
        lane: Lane,
        address: &str,
        until: Instant,
    ) -> Result<Arc<Connection>, PeerError> {
        let busy = |_| PeerError::Unreachable("still connecting".into());
        let mut state = timeout_at(until, link.state.lock()).await.map_err(busy)?;
        if let Some(open) = state.connection.as_ref().filter(|c| !c.is_broken()) {
            return Ok(Arc::clone(open));
        }
        state.connection = None;
        if state.not_before.is_some_and(|at| Instant::now() < at) {
            return Err(PeerError::Unreachable(
                "the last connection failed a moment ago".into(),
            ));
        }
        let limit = until.min(Instant::now() + CONNECT);
        let made = timeout_at(limit, self.open(to, lane, address)).await;
        let made = made.unwrap_or_else(|_| Err("no answer to the handshake in time".into()));
        match made {
            Ok(stream) => {
                let connection = Connection::start(stream, lane, self.rt.as_ref());
                state.failures = 0;
                state.not_before = None;
                state.connection = Some(Arc::clone(&connection));
                Ok(connection)
            }
            Err(why) => {
                let pause = PAUSE_MIN
                    .saturating_mul(1 << state.failures.min(8))
                    .min(PAUSE_MAX);
                state.failures = state.failures.saturating_add(1);
                state.not_before = Some(Instant::now() + pause);
                Err(PeerError::Unreachable(format!("{address}: {why}")))
            }
        }
    }
}

/// A connection that is welcome on the other side.
async fn open(address: &str, hello: &Hello) -> std::io::Result<(TcpStream, u8)> {
    let mut stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    stream.write_all(&hello.encode()).await?;
    let answer = stream.read_u8().await?;
    Ok((stream, answer))
}

impl Shared {
    async fn open(&self, to: u64, lane: Lane, address: &str) -> Result<TcpStream, String> {
        let own = &self.presence;
        let hello = Hello {
            lane,
            from: own.id,
            to,
            from_birth: own.births.own(),
            to_birth: own.births.of(to).unwrap_or(0),
            cluster: own.cluster.clone(),
        };
        let (mut stream, answer) = open(address, &hello).await.map_err(|e| e.to_string())?;
        if answer == Welcome::Stranger as u8 {
            own.replaced(to);
        }
        if let Some(why) = Welcome::refusal(answer) {
            return Err(why.to_owned());
        }
        let birth = stream.read_u64_le().await.map_err(|e| e.to_string())?;
        match own.meet(self.rt.as_ref(), to, birth).await {
            true => Ok(stream),
            false => Err("its data directory is not the one known under its number".into()),
        }
    }
}

impl Connection {
    fn start(stream: TcpStream, lane: Lane, rt: &dyn Runtime) -> Arc<Self> {
        let (reader, writer) = stream.into_split();
        let (queue, frames) = mpsc::channel(WRITES_MAX);
        let connection = Arc::new(Self {
            queue,
            pending: Mutex::default(),
            next: AtomicU64::new(1),
            heard: AtomicU64::new(0),
            broken: AtomicBool::new(false),
            tasks: Mutex::default(),
        });
        let weak = Arc::downgrade(&connection);
        let reading = rt.spawn("peer answers", Box::pin(read_answers(reader, lane, weak)));
        let weak = Arc::downgrade(&connection);
        let writing = rt.spawn(
            "peer requests",
            Box::pin(async move {
                write_all(writer, frames).await;
                if let Some(connection) = weak.upgrade() {
                    connection.give_up();
                }
            }),
        );
        connection
            .tasks
            .lock()
            .extend([reading.into(), writing.into()]);
        connection
    }

    fn is_broken(&self) -> bool {
        self.broken.load(Ordering::Acquire)
    }

    /// No new calls; those in hand are told that no answer will come.
    fn give_up(&self) {
        self.broken.store(true, Ordering::Release);
        self.pending.lock().clear();
        self.tasks.lock().clear();
    }

    async fn call(self: Arc<Self>, body: Bytes, until: Instant) -> Result<Bytes, PeerError> {
        let call = self.next.fetch_add(1, Ordering::Relaxed);
        let (answer, answered) = oneshot::channel();
        let heard = self.heard.load(Ordering::Relaxed);
        self.pending.lock().insert(call, answer);
        let mut guard = CallGuard {
            connection: &self,
            call,
            sent: false,
        };
        let frame = Frame {
            kind: Kind::Request,
            call,
            body,
        };
        match timeout_at(until, self.queue.send(frame)).await {
            Ok(Ok(())) => guard.sent = true,
            Ok(Err(_)) => return Err(PeerError::Unreachable("the connection broke".into())),
            Err(_) => return Err(PeerError::Unreachable("its queue is full".into())),
        }
        // Broken between the two: the reader cleared the calls before this one was in.
        if self.is_broken() {
            return Err(PeerError::Lost("the connection broke".into()));
        }
        match timeout_at(until, answered).await {
            Ok(Ok(body)) => {
                guard.sent = false;
                Ok(body)
            }
            Ok(Err(_)) => Err(PeerError::Lost("the connection broke".into())),
            Err(_) => {
                if self.heard.load(Ordering::Relaxed) == heard {
                    self.give_up();
                }
                Err(PeerError::Lost("the deadline passed".into()))
            }
        }
    }
}

/// Forgets a call, and tells the other side when its answer is no longer wanted.
struct CallGuard<'a> {
    connection: &'a Connection,
    call: u64,
    sent: bool,
}

impl Drop for CallGuard<'_> {
    fn drop(&mut self) {
        self.connection.pending.lock().remove(&self.call);
        if self.sent && !self.connection.is_broken() {
            let cancel = Frame {
                kind: Kind::Cancel,
                call: self.call,
                body: Bytes::new(),
            };
            let _a_full_queue_only_costs_the_other_side_work =
                self.connection.queue.try_send(cancel);
        }
    }
}

async fn read_answers(reader: OwnedReadHalf, lane: Lane, connection: std::sync::Weak<Connection>) {
    let mut reader = BufReader::with_capacity(64 * 1024, reader);
    loop {
        let frame = Frame::read(&mut reader, body_max(lane)).await;
        let Some(connection) = connection.upgrade() else {
            return;
        };
        match frame {
            Ok(frame) if frame.kind == Kind::Answer => {
                connection.heard.fetch_add(1, Ordering::Relaxed);
                let waiting = connection.pending.lock().remove(&frame.call);
                if let Some(waiting) = waiting {
                    let _caller_gone = waiting.send(frame.body);
                }
            }
            Ok(_) | Err(_) => {
                connection.give_up();
                return;
            }
        }
    }
}

/// For callers that wait on nothing else: a bounded pause used by tests.
#[cfg(test)]
pub(super) async fn within<T>(limit: Duration, future: impl Future<Output = T>) -> Option<T> {
    tokio::time::timeout(limit, future).await.ok()
}
