//! Peer transport over loopback.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures::future::{BoxFuture, join_all};
use tokio::net::TcpListener;
use tokio::sync::Notify;

use super::connect::within;
use super::{ListenParts, TcpTransport, listen};
use crate::raft::NodeAddress;
use crate::raft::transport::{Lane, PeerError, PeerHandler, PeerTransport};
use crate::rt::{AbortOnDrop, Runtime, SystemClock, TokioRuntime};

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

struct Pair {
    transport: TcpTransport,
    address: NodeAddress,
    echo: Arc<Echo>,
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
    let parts = ListenParts {
        id: server_id,
        cluster: server_cluster.into(),
        handler: Arc::clone(&echo) as Arc<dyn PeerHandler>,
        rt: Arc::clone(&rt),
    };
    let listener = Some(listen(socket, parts).into());
    let transport = TcpTransport::new(1, "c".into(), Arc::clone(&rt));
    let address = NodeAddress {
        peer,
        api: String::new(),
    };
    Pair {
        transport,
        address,
        echo,
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

#[tokio::test]
async fn a_dead_listener_is_unreachable_and_comes_back() {
    let mut pair = pair_of("c", 2).await;
    assert!(call(&pair, "x", WIDE).await.is_ok());
    pair.listener = None;
    let mut failed = call(&pair, "x", Duration::from_secs(1)).await;
    while matches!(failed, Ok(_) | Err(PeerError::Lost(_))) {
        failed = call(&pair, "x", Duration::from_secs(1)).await;
    }
    let socket = TcpListener::bind(&pair.address.peer)
        .await
        .expect("the same port");
    let parts = ListenParts {
        id: 2,
        cluster: "c".into(),
        handler: Arc::clone(&pair.echo) as Arc<dyn PeerHandler>,
        rt: Arc::clone(&pair.rt),
    };
    pair.listener = Some(listen(socket, parts).into());
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
