//! Frames and the handshake.
//!
//! Callers: `connect`, `listen`. See the module above for the layout.

use std::io;

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::sync::mpsc;

use super::super::transport::Lane;

/// First bytes of a connection.
const MAGIC: [u8; 4] = *b"PNCT";
/// Protocol version spoken here.
const VERSION: u8 = 2;
/// Longest cluster name.
const CLUSTER_MAX: usize = 256;
/// Bytes of a frame between its length and its body.
const HEAD: usize = 9;
/// Frames waiting to be written on one connection; a full queue makes callers wait.
pub(super) const WRITES_MAX: usize = 256;

/// What the listener says to a handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Welcome {
    /// Come in.
    Ok = 0,
    /// Another version of the protocol.
    Version = 1,
    /// Another cluster.
    Cluster = 2,
    /// Meant for another node.
    Node = 3,
    /// The caller expects another data directory here than this node has.
    Replaced = 4,
    /// The caller has another data directory than the one known here under its number.
    Stranger = 5,
}

impl Welcome {
    /// Why a connection was refused, in words; `None` when it was not.
    pub(super) fn refusal(byte: u8) -> Option<&'static str> {
        match byte {
            0 => None,
            1 => {
                Some("it speaks another version of the peer protocol: upgrade one of the two nodes")
            }
            2 => Some("it belongs to another cluster: check cluster_name and the addresses"),
            3 => Some("another node answers at this address: check node_id and the addresses"),
            4 => Some(
                "it came back with another data directory: remove it from the cluster, and let it join under a \
                 node_id that was never used",
            ),
            5 => Some("it knows this node by another data directory"),
            _ => Some("it refused the connection"),
        }
    }
}

/// Who connects, to whom and for what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Hello {
    pub(super) lane: Lane,
    pub(super) from: u64,
    pub(super) to: u64,
    /// The caller's birth.
    pub(super) from_birth: u64,
    /// The birth that the caller knows of the node it calls; 0: none yet.
    pub(super) to_birth: u64,
    pub(super) cluster: String,
}

impl Hello {
    pub(super) fn encode(&self) -> Vec<u8> {
        let name = self.cluster.as_bytes();
        let name = name.get(..CLUSTER_MAX).unwrap_or(name);
        let mut out = Vec::with_capacity(40 + name.len());
        out.extend_from_slice(&MAGIC);
        out.push(VERSION);
        out.push(lane_byte(self.lane));
        out.extend_from_slice(&self.from.to_le_bytes());
        out.extend_from_slice(&self.to.to_le_bytes());
        out.extend_from_slice(&self.from_birth.to_le_bytes());
        out.extend_from_slice(&self.to_birth.to_le_bytes());
        let len = u16::try_from(name.len()).unwrap_or(u16::MAX);
        out.extend_from_slice(&len.to_le_bytes());
        out.extend_from_slice(name);
        out
    }

    /// Reads a handshake; `Err(None)`: not our protocol, say nothing.
    pub(super) async fn read<S>(stream: &mut S) -> Result<Self, Option<Welcome>>
    where
        S: AsyncRead + Unpin,
    {
        let mut magic = [0; 4];
        stream.read_exact(&mut magic).await.map_err(|_| None)?;
        if magic != MAGIC {
            return Err(None);
        }
        let version = stream.read_u8().await.map_err(|_| None)?;
        if version != VERSION {
            return Err(Some(Welcome::Version));
        }
        let lane = lane_of(stream.read_u8().await.map_err(|_| None)?).ok_or(None)?;
        let from = stream.read_u64_le().await.map_err(|_| None)?;
        let to = stream.read_u64_le().await.map_err(|_| None)?;
        let from_birth = stream.read_u64_le().await.map_err(|_| None)?;
        let to_birth = stream.read_u64_le().await.map_err(|_| None)?;
        let len = usize::from(stream.read_u16_le().await.map_err(|_| None)?);
        if len > CLUSTER_MAX {
            return Err(Some(Welcome::Cluster));
        }
        let mut name = vec![0; len];
        stream.read_exact(&mut name).await.map_err(|_| None)?;
        let cluster = String::from_utf8(name).map_err(|_| Some(Welcome::Cluster))?;
        Ok(Self {
            lane,
            from,
            to,
            from_birth,
            to_birth,
            cluster,
        })
    }
}

fn lane_byte(lane: Lane) -> u8 {
    match lane {
        Lane::Log => 0,
        Lane::Control => 1,
        Lane::Snapshot => 2,
        Lane::Forward => 3,
    }
}

fn lane_of(byte: u8) -> Option<Lane> {
    Lane::ALL.into_iter().find(|lane| lane_byte(*lane) == byte)
}

/// Largest body on a lane, headers of the messages included.
pub(super) const fn body_max(lane: Lane) -> usize {
    const MIB: usize = 1024 * 1024;
    match lane {
        Lane::Control => MIB,
        // An append carries at most 4 MiB of entries; one entry is at most 1 MiB.
        Lane::Log => 6 * MIB,
        Lane::Snapshot => 4 * MIB,
        // A request body is at most 8 MiB.
        Lane::Forward => 9 * MIB,
    }
}

/// What a frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Kind {
    Request = 0,
    Answer = 1,
    Cancel = 2,
}

/// One frame.
#[derive(Clone, Debug)]
pub(super) struct Frame {
    pub(super) kind: Kind,
    pub(super) call: u64,
    pub(super) body: Bytes,
}

impl Frame {
    fn write(&self, out: &mut Vec<u8>) {
        let len = u32::try_from(HEAD + self.body.len()).unwrap_or(u32::MAX);
        out.extend_from_slice(&len.to_le_bytes());
        out.push(self.kind as u8);
        out.extend_from_slice(&self.call.to_le_bytes());
        out.extend_from_slice(&self.body);
    }

    /// Reads one frame with a body of at most `max` bytes.
    pub(super) async fn read<S>(stream: &mut S, max: usize) -> io::Result<Self>
    where
        S: AsyncRead + Unpin,
    {
        let len = stream.read_u32_le().await? as usize;
        if len < HEAD || len - HEAD > max {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                format!("a frame of {len} bytes; the bound is {max}"),
            ));
        }
        let kind = match stream.read_u8().await? {
            0 => Kind::Request,
            1 => Kind::Answer,
            2 => Kind::Cancel,
            other => {
                return Err(io::Error::new(
                    io::ErrorKind::InvalidData,
                    format!("frame kind {other}"),
                ));
            }
        };
        let call = stream.read_u64_le().await?;
        let mut body = vec![0; len - HEAD];
        stream.read_exact(&mut body).await?;
        Ok(Self {
            kind,
            call,
            body: Bytes::from(body),
        })
    }
}

/// Writes queued frames until the queue is closed or the stream breaks; frames that wait together go out together.
pub(super) async fn write_all<S>(mut stream: S, mut queue: mpsc::Receiver<Frame>)
where
    S: tokio::io::AsyncWrite + Unpin,
{
    use tokio::io::AsyncWriteExt;
    let mut waiting = Vec::new();
    let mut bytes = Vec::new();
    while queue.recv_many(&mut waiting, WRITES_MAX).await > 0 {
        bytes.clear();
        for frame in waiting.drain(..) {
            frame.write(&mut bytes);
        }
        if stream.write_all(&bytes).await.is_err() {
            return;
        }
        // A large burst must not pin its buffer for the life of the connection.
        if bytes.capacity() > 1024 * 1024 {
            bytes = Vec::new();
        }
    }
    let _peer_may_be_gone = stream.shutdown().await;
}
