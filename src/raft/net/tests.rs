//! Peer transport over loopback.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures::future::{BoxFuture, join_all};
use tokio::net::TcpListener;
use tokio::sync::Notify;

use super::connect::within;
use super::{ListenParts, OnReplaced, Presence, TcpTransport, listen};
use crate::raft::NodeAddress;
use crate::raft::transport::{Lane, PeerError, PeerHandler, PeerTransport};
use crate::rt::{AbortOnDrop, Runtime, SystemClock, TokioRuntime};
use crate::store::log::births::Births;

const WIDE: Duration = Duration::from_secs(20);

/// Echoes; `stall` never answers but says when it is dropped; `big` answers 5 MiB.
#[derive(Default)]
struct Echo {
    calls: AtomicUsize,
    dropped: Arc<Notify>,
}

struct SaysDropped(Arc<Notify>);

impl Drop for SaysDropped {
    fn drop(&mut self) {
        self.0.notify_one();
    }
}

impl PeerHandler for Echo {
    fn handle(&self, from: u64, _: Lane, request: Bytes) -> BoxFuture<'static, Bytes> {
        self.calls.fetch_add(1, Ordering::SeqCst);
        let says = SaysDropped(Arc::clone(&self.dropped));
        Box::pin(async move {
            if request == "stall" {
                let _held = says;
                std::future::pending::<()>().await;
            }
            if request == "big" {
                return Bytes::from(vec![7; 5 * 1024 * 1024]);
            }
            Bytes::from([from.to_string().as_bytes(), b":", &request].concat())
        })
    }
}

/// Node `id` of cluster `c` with the data directory `birth`; who told it that it was replaced goes to `told`.
fn presence(cluster: &str, id: u64, birth: u64, told: &Arc<AtomicUsize>) -> Presence {
    let told = Arc::clone(told);
    let on_replaced: OnReplaced =
        Arc::new(move |by| told.store(usize::try_from(by).unwrap_or(0), Ordering::SeqCst));
    Presence {
        id,
        cluster: cluster.into(),
        births: Arc::new(Births::in_memory(birth)),
        on_replaced,
    }
}

struct Pair {
    transport: TcpTransport,
    address: NodeAddress,
    echo: Arc<Echo>,
    /// Who told a side that it was replaced; 0: nobody.
    told: Arc<AtomicUsize>,
    listener: Option<AbortOnDrop>,
    rt: Arc<dyn Runtime>,
}

async fn pair_of(server_cluster: &str, server_id: u64) -> Pair {
    let rt: Arc<dyn Runtime> = Arc::new(TokioRuntime::new(
        tokio::runtime::Handle::current(),
        Arc::new(SystemClock),
    ));
    let socket = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let peer = socket.local_addr().expect("an address").to_string();
    let echo = Arc::new(Echo::default());
    let told = Arc::default();
    let parts = ListenParts {
        presence: presence(server_cluster, server_id, 2_000, &told),
        handler: Arc::clone(&echo) as Arc<dyn PeerHandler>,
        rt: Arc::clone(&rt),
    };
    let listener = Some(listen(socket, parts).into());
    let transport = TcpTransport::new(presence("c", 1, 1_000, &told), Arc::clone(&rt));
    let address = NodeAddress {
        peer,
        api: String::new(),
    };
    Pair {
        transport,
        address,
        echo,
        told,
        listener,
        rt,
    }
}

async fn call(pair: &Pair, text: &'static str, deadline: Duration) -> Result<Bytes, PeerError> {
    let body = Bytes::from_static(text.as_bytes());
    pair.transport
        .call(2, &pair.address, Lane::Forward, body, deadline)
        .await
}

#[tokio::test]
async fn calls_are_answered_each_with_its_own_answer() {
    let pair = pair_of("c", 2).await;
    let calls = (0..500).map(|i| {
        let body = Bytes::from(i.to_string());
        let lane = if i % 2 == 0 {
            Lane::Forward
        } else {
            Lane::Control
        };
        let call = pair.transport.call(2, &pair.address, lane, body, WIDE);
        async move { (i, call.await) }
    });
    for (i, answer) in join_all(calls).await {
        assert_eq!(answer.expect("an answer"), format!("1:{i}"));
    }
    let big = call(&pair, "big", WIDE).await.expect("an answer");
    assert_eq!(big.len(), 5 * 1024 * 1024);
}

#[tokio::test]
async fn a_dropped_call_drops_the_handler_on_the_other_side() {
    let pair = pair_of("c", 2).await;
    let dropped = Arc::clone(&pair.echo.dropped);
    assert!(
        within(Duration::from_millis(300), call(&pair, "stall", WIDE))
            .await
            .is_none()
    );
    within(WIDE, dropped.notified())
        .await
        .expect("the handler's future is dropped");
    assert_eq!(
        call(&pair, "x", WIDE)
            .await
            .expect("the connection lives on"),
        "1:x"
    );
}

#[tokio::test]
async fn a_silent_peer_costs_the_deadline_and_the_connection() {
    let pair = pair_of("c", 2).await;
    let lost = call(&pair, "stall", Duration::from_millis(200)).await;
    assert!(matches!(lost, Err(PeerError::Lost(_))), "{lost:?}");
    assert_eq!(
        call(&pair, "x", WIDE).await.expect("a new connection"),
        "1:x"
    );
}

#[tokio::test]
async fn another_cluster_or_node_is_refused_with_the_reason() {
    let other = call(&pair_of("other", 2).await, "x", WIDE).await;
    assert!(matches!(&other, Err(PeerError::Unreachable(why)) if why.contains("cluster_name")));
    let wrong = call(&pair_of("c", 3).await, "x", WIDE).await;
    assert!(matches!(&wrong, Err(PeerError::Unreachable(why)) if why.contains("node_id")));
}

/// Listens again on the same port, with data directory `birth`.
async fn serve_again(pair: &mut Pair, birth: u64) {
    // The listener before it is gone at its task's next turn.
    let bound = async {
        loop {
            match TcpListener::bind(&pair.address.peer).await {
                Ok(socket) => return socket,
                Err(_) => tokio::time::sleep(Duration::from_millis(5)).await,
            }
        }
    };
    let socket = within(WIDE, bound).await.expect("the same port");
    let parts = ListenParts {
        presence: presence("c", 2, birth, &pair.told),
        handler: Arc::clone(&pair.echo) as Arc<dyn PeerHandler>,
        rt: Arc::clone(&pair.rt),
    };
    pair.listener = Some(listen(socket, parts).into());
}

#[tokio::test]
async fn a_node_that_comes_back_without_its_data_is_refused_and_told() {
    let mut pair = pair_of("c", 2).await;
    let (second, address) = (WIDE, pair.address.clone());
    assert!(pair.transport.greet(2, &address, second).await.is_ok());
    // Called: its number belongs to another data directory.
    pair.listener = None;
    serve_again(&mut pair, 2_001).await;
    let refused = pair.transport.greet(2, &address, second).await;
    let is_named = |r: &Result<(), PeerError>| format!("{r:?}").contains("another data directory");
    assert!(is_named(&refused), "{refused:?}");
    assert_eq!(pair.told.swap(0, Ordering::SeqCst), 1);
    // Calling: the same.
    let caller = presence("c", 1, 1_001, &pair.told);
    pair.listener = None;
    serve_again(&mut pair, 2_002).await;
    let first = TcpTransport::new(presence("c", 1, 1_000, &pair.told), Arc::clone(&pair.rt));
    assert!(first.greet(2, &address, second).await.is_ok());
    let replaced = TcpTransport::new(caller, Arc::clone(&pair.rt));
    let refused = replaced.greet(2, &address, second).await;
    assert!(is_named(&refused), "{refused:?}");
    assert_eq!(pair.told.swap(0, Ordering::SeqCst), 2);
    assert_eq!(pair.echo.calls.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn a_dead_listener_is_unreachable_and_comes_back() {
    let mut pair = pair_of("c", 2).await;
    assert!(call(&pair, "x", WIDE).await.is_ok());
    pair.listener = None;
    let mut failed = call(&pair, "x", Duration::from_secs(1)).await;
    while matches!(failed, Ok(_) | Err(PeerError::Lost(_))) {
        failed = call(&pair, "x", Duration::from_secs(1)).await;
    }
    serve_again(&mut pair, 2_000).await;
    let back = async {
        while call(&pair, "x", WIDE).await.is_err() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    within(WIDE, back)
        .await
        .expect("reconnects after the pause");
}

#[tokio::test]
async fn a_request_over_the_lane_s_bound_is_not_sent() {
    let pair = pair_of("c", 2).await;
    let body = Bytes::from(vec![0; 2 * 1024 * 1024]);
    let refused = pair
        .transport
        .call(2, &pair.address, Lane::Control, body, WIDE)
        .await;
    assert!(matches!(refused, Err(PeerError::Unreachable(_))));
    assert_eq!(pair.echo.calls.load(Ordering::SeqCst), 0);
}
