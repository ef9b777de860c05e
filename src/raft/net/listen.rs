//! The receiving side: accepts peers and hands their requests to the node.
//!
//! Callers: `node` starts one listener a node.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::io::{AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::{sleep, timeout};

use super::super::transport::{Lane, PeerHandler};
use super::frame::{Frame, Hello, Kind, WRITES_MAX, Welcome, body_max, write_all};
use super::presence::Presence;
use crate::rt::{AbortOnDrop, Runtime, TaskHandle};

/// Most connections at once: four lanes from each of a few nodes, with room for reconnects.
const CONNECTIONS_MAX: usize = 256;
/// Longest handshake.
const HANDSHAKE: Duration = Duration::from_secs(5);
/// Requests in hand on one connection; reading waits above it.
const fn calls_max(lane: Lane) -> usize {
    match lane {
        // Long polls of many workers may be forwarded over one connection.
        Lane::Forward => 16_384,
        Lane::Control => 1_024,
        Lane::Log | Lane::Snapshot => 64,
    }
}

/// What a listener is made of.
pub struct ListenParts {
    /// This node.
    pub presence: Presence,
    /// Who answers.
    pub handler: Arc<dyn PeerHandler>,
    /// Where tasks run.
    pub rt: Arc<dyn Runtime>,
}

/// Serves peers on `socket` until the answered task is aborted or dropped; then every connection ends.
#[must_use]
pub fn listen(socket: TcpListener, parts: ListenParts) -> TaskHandle {
    let parts = Arc::new(parts);
    let rt = Arc::clone(&parts.rt);
    rt.spawn("peer listener", Box::pin(accept(socket, parts)))
}

async fn accept(socket: TcpListener, parts: Arc<ListenParts>) {
    let room = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    // Dropped with this future: aborting the listener ends the connections.
    let connections: Arc<Mutex<BTreeMap<u64, AbortOnDrop>>> = Arc::default();
    let mut number = 0_u64;
    loop {
        let Ok(permit) = Arc::clone(&room).acquire_owned().await else {
            return;
        };
        let stream = match socket.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!(%error, "a peer connection could not be accepted");
                sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        number += 1;
        let (mine, serving) = (number, Arc::clone(&parts));
        let registry = Arc::downgrade(&connections);
        let task = async move {
            serve(stream, &serving, permit).await;
            if let Some(registry) = registry.upgrade() {
                registry.lock().remove(&mine);
            }
        };
        // Locked over the spawn: the task may end before its handle is in.
        let mut registry = connections.lock();
        let handle = parts.rt.spawn("peer connection", Box::pin(task));
        registry.insert(mine, handle.into());
        drop(registry);
    }
}

async fn serve(mut stream: TcpStream, parts: &Arc<ListenParts>, _permit: OwnedSemaphorePermit) {
    let Ok(said) = timeout(HANDSHAKE, Hello::read(&mut stream)).await else {
        return;
    };
    let welcome = match &said {
        Ok(hello) => judge(hello, parts).await,
        Err(Some(why)) => *why,
        Err(None) => return,
    };
    let mut answer = vec![welcome as u8];
    if welcome == Welcome::Ok {
        answer.extend_from_slice(&parts.presence.births.own().to_le_bytes());
    }
    let sent = stream.write_all(&answer).await;
    let (Ok(hello), Welcome::Ok, Ok(())) = (&said, welcome, sent) else {
        let from = said.as_ref().ok().map(|hello| hello.from);
        tracing::warn!(?welcome, ?from, "refused a peer connection");
        if let (Welcome::Replaced, Ok(hello)) = (welcome, &said) {
            parts.presence.replaced(hello.from);
        }
        return;
    };
    if stream.set_nodelay(true).is_ok() {
        requests(stream, hello, parts).await;
    }
}

async fn judge(hello: &Hello, parts: &ListenParts) -> Welcome {
    let own = &parts.presence;
    if hello.cluster != own.cluster {
        return Welcome::Cluster;
    }
    if hello.to != own.id || hello.from == own.id {
        return Welcome::Node;
    }
    if hello.to_birth != 0 && hello.to_birth != own.births.own() {
        return Welcome::Replaced;
    }
    match own
        .meet(parts.rt.as_ref(), hello.from, hello.from_birth)
        .await
    {
        true => Welcome::Ok,
        false => Welcome::Stranger,
    }
}

async fn requests(stream: TcpStream, hello: &Hello, parts: &Arc<ListenParts>) {
    let (reader, writer) = stream.into_split();
    let (queue, frames) = mpsc::channel(WRITES_MAX);
    let writing = parts
        .rt
        .spawn("peer answers", Box::pin(write_all(writer, frames)));
    let _ends_with_the_connection = AbortOnDrop::from(writing);
    let in_hand = Arc::new(Semaphore::new(calls_max(hello.lane)));
    let calls: Arc<Mutex<BTreeMap<u64, AbortOnDrop>>> = Arc::default();
    let mut reader = BufReader::with_capacity(64 * 1024, reader);
    while let Ok(frame) = Frame::read(&mut reader, body_max(hello.lane)).await {
        match frame.kind {
            Kind::Cancel => drop(calls.lock().remove(&frame.call)),
            Kind::Answer => return,
            Kind::Request => {
                let Ok(permit) = Arc::clone(&in_hand).acquire_owned().await else {
                    return;
                };
                // Handed over in order of arrival; the answers may overtake each other.
                let answer = parts.handler.handle(hello.from, hello.lane, frame.body);
                let (queue, registry) = (queue.clone(), Arc::downgrade(&calls));
                let call = frame.call;
                let task = async move {
                    let body = answer.await;
                    let _connection_gone = queue
                        .send(Frame {
                            kind: Kind::Answer,
                            call,
                            body,
                        })
                        .await;
                    drop(permit);
                    if let Some(registry) = registry.upgrade() {
                        registry.lock().remove(&call);
                    }
                };
                let mut registry = calls.lock();
                let handle = parts.rt.spawn("peer call", Box::pin(task));
                registry.insert(call, handle.into());
                drop(registry);
            }
        }
    }
}
