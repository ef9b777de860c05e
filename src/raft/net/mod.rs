//! Peer transport over TCP.
//!
//! Purpose: [`PeerTransport`] and the listener that calls a [`PeerHandler`], on real sockets.
//! Callers: `node` makes a [`TcpTransport`] and a [`listen`]er; `raft` knows only the traits.
//! Invariants:
//! 1. One connection a (node, lane), so that heartbeats, entries, snapshots and forwards never queue behind each other.
//! 2. Every call has a deadline; a connection on which a call ran into its deadline without a single byte from the other
//!    side is given up, so that a vanished machine is noticed.
//! 3. A frame is bounded by its lane before it is read into memory; calls in hand are bounded a connection.
//! 4. Whoever connects must name this cluster, this node and a protocol version that both know.
//! 5. Nothing is exchanged with a node whose data directory is another one than the first met under its number: it has
//!    forgotten its votes. The node that is told so stops ([`Presence::on_replaced`]).
//!
//! Handshake: `"PNCT" | version u8 | lane u8 | from u64 | to u64 | from's birth u64 | to's birth u64, 0 if unknown |
//! cluster len u16 | cluster`, answered by one byte ([`frame::Welcome`]) and, if that is 0, `birth u64`. Then frames both ways: `len u32 | kind u8 | call u64 | body` (little-endian; `len` counts what
//! follows it). Plain TCP: peers must share a trusted network until mutual TLS is added.

mod connect;
mod frame;
mod listen;
mod presence;

pub use connect::TcpTransport;
pub use listen::{ListenParts, listen};
pub use presence::{OnReplaced, Presence, introduce};

#[cfg(test)]
mod tests;
