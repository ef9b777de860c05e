//! The network between nodes, in the test's hands: one TCP proxy in front of each node's peer listener.
//!
//! Every node is reached by its peers under the address of its proxy, which reads from the handshake who connects (the
//! calling node's number: eight bytes at offset six) and passes bytes on. Cutting `a → b` holds back every byte on its
//! way from node a to node b, on connections of either side, as a network does that drops packets: nothing is closed, and
//! what was held back arrives after the healing.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use crate::spawn;

/// Bytes of the handshake up to and with the caller's number.
const HEAD: usize = 14;
/// Offset of the caller's number in it.
const CALLER: usize = 6;

/// What happens to bytes from one node to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Cut,
    Delayed(Duration),
}

type Rules = BTreeMap<(u64, u64), Way>;

/// The links of a cluster. Dropping it ends with the test's runtime.
pub struct Links {
    rules: watch::Sender<Rules>,
}

impl Default for Links {
    fn default() -> Self {
        Self {
            rules: watch::channel(Rules::new()).0,
        }
    }
}

impl Links {
    /// Puts a proxy in front of node `node`, whose peer listener is at `target`; answers the proxy's address.
    ///
    /// # Errors
    /// When no port is free.
    pub async fn before(&self, node: u64, target: SocketAddr) -> Result<SocketAddr, String> {
        let listener = TcpListener::bind("127.0.0.1:0")
            .await
            .map_err(|e| e.to_string())?;
        let address = listener.local_addr().map_err(|e| e.to_string())?;
        let rules = self.rules.subscribe();
        let _ends_with_the_runtime = spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let _same = spawn(pass(stream, node, target, rules.clone()));
            }
        });
        Ok(address)
    }

    /// Nothing goes from `from` to `to` any more.
    pub fn cut_way(&self, from: u64, to: u64) {
        self.rules.send_modify(|rules| {
            rules.insert((from, to), Way::Cut);
        });
    }

    /// Nothing goes between `a` and `b` any more.
    pub fn cut(&self, a: u64, b: u64) {
        self.cut_way(a, b);
        self.cut_way(b, a);
    }

    /// Everything between `a` and `b` takes so much longer, each way.
    pub fn delay(&self, a: u64, b: u64, by: Duration) {
        self.rules.send_modify(|rules| {
            rules.insert((a, b), Way::Delayed(by));
            rules.insert((b, a), Way::Delayed(by));
        });
    }

    /// Everything goes through again.
    pub fn heal(&self) {
        self.rules.send_modify(Rules::clear);
    }
}

async fn pass(mut caller: TcpStream, to: u64, target: SocketAddr, rules: watch::Receiver<Rules>) {
    let mut head = [0; HEAD];
    if caller.read_exact(&mut head).await.is_err() {
        return;
    }
    let Some(Ok(from)) = head.get(CALLER..).map(<[u8; 8]>::try_from) else {
        return;
    };
    let from = u64::from_le_bytes(from);
    let Ok(mut callee) = TcpStream::connect(target).await else {
        return;
    };
    if caller.set_nodelay(true).is_err() || callee.set_nodelay(true).is_err() {
        return;
    }
    if !let_through(from, to, &mut rules.clone()).await || callee.write_all(&head).await.is_err() {
        return;
    }
    let (caller_reads, caller_writes) = caller.into_split();
    let (callee_reads, callee_writes) = callee.into_split();
    tokio::join!(
        pump(caller_reads, callee_writes, (from, to), rules.clone()),
        pump(callee_reads, caller_writes, (to, from), rules)
    );
}

/// Copies one direction. The end of one side is passed on like a byte.
async fn pump(
    mut reads: OwnedReadHalf,
    mut writes: OwnedWriteHalf,
    (from, to): (u64, u64),
    mut rules: watch::Receiver<Rules>,
) {
    let mut buffer = vec![0; 64 * 1024];
    loop {
        let read = reads.read(&mut buffer).await.unwrap_or(0);
        if !let_through(from, to, &mut rules).await {
            return;
        }
        let bytes = buffer.get(..read).unwrap_or_default();
        if read == 0 || writes.write_all(bytes).await.is_err() {
            // The other side may be gone already.
            let _closed = writes.shutdown().await;
            return;
        }
    }
}

/// Waits as the rules say; `false` when the test is over.
async fn let_through(from: u64, to: u64, rules: &mut watch::Receiver<Rules>) -> bool {
    loop {
        let way = rules.borrow_and_update().get(&(from, to)).copied();
        match way {
            None => return true,
            Some(Way::Delayed(by)) => {
                tokio::time::sleep(by).await;
                return true;
            }
            Some(Way::Cut) => {}
        }
        if rules.changed().await.is_err() {
            return false;
        }
    }
}
