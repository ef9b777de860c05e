//! Black-box tests of real `punctual` processes.
//!
//! Purpose: start, kill and pause real nodes, talk to them over HTTP, and judge by what clients and workers saw. It knows
//! the binary and the HTTP contract, and nothing else of the product. Callers: `jepsen/tests`, the `bench` binary.
//! Invariants:
//! 1. Nothing here waits for luck: a wait polls a condition up to a wide deadline and says what it waited for.
//! 2. Every process started here is killed when its [`cluster::Cluster`] is dropped.

pub mod bench;
pub mod cluster;
pub mod history;
pub mod http;
pub mod links;
pub mod observe;
pub mod procfs;
pub mod wait;
pub mod watcher;

#[allow(
    clippy::disallowed_methods,
    reason = "the harness is outside the product's runtime"
)]
fn spawn<F>(future: F) -> tokio::task::JoinHandle<F::Output>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    tokio::spawn(future)
}
