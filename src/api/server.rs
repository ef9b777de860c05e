//! The HTTP server of one node.
//!
//! Purpose: connections with deadlines and bounds, requests read whole, answers written. Callers: `node`.
//! Invariants:
//! 1. Nothing waits for ever: first byte, head, body, idle connection and a peer that does not read have deadlines.
//! 2. Nothing grows for ever: connections, requests in hand, waiting requests and bodies have bounds; over one of
//!    them a caller is told when to come back.
//! 3. A caller that hangs up drops the future of its request.

mod deadline;
mod reading;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{Extension, Request, State};
use axum::response::Response;
use hyper::StatusCode;
use hyper_util::rt::TokioIo;
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

use crate::api::Api;
use crate::api::dispatch::Origin;
use crate::api::problem::{Code, Error};
use crate::api::reply::Reply;
use deadline::{Activity, Timed};

/// Deadlines and bounds of a server.
#[derive(Clone, Copy, Debug)]
pub struct ServerConfig {
    /// Open connections; more wait to be accepted.
    pub connections_max: usize,
    /// From accept to the first byte.
    pub first_byte: Duration,
    /// From the first byte of a request to the end of its head.
    pub head: Duration,
    /// From the head to the end of the body.
    pub body: Duration,
    /// Between two requests of a connection.
    pub idle: Duration,
    /// Without progress while an answer is written.
    pub write: Duration,
    /// For requests in hand after the stop.
    pub drain: Duration,
}

impl Default for ServerConfig {
    fn default() -> Self {
        Self {
            connections_max: 20_000,
            first_byte: Duration::from_secs(10),
            head: Duration::from_secs(10),
            body: Duration::from_secs(30),
            idle: Duration::from_secs(90),
            write: Duration::from_secs(30),
            drain: Duration::from_secs(10),
        }
    }
}

/// What the requests of a server share.
struct Shared {
    api: Arc<Api>,
    config: ServerConfig,
    in_flight: Semaphore,
    waiting: Semaphore,
}

/// Serves until `stop` resolves, then finishes what is in hand and returns.
pub async fn serve(
    api: Arc<Api>,
    listener: TcpListener,
    config: ServerConfig,
    stop: impl Future<Output = ()> + Send,
) {
    let shared = Arc::new(Shared {
        in_flight: Semaphore::new(api.config.in_flight_max),
        waiting: Semaphore::new(api.config.waiting_max),
        config,
        api,
    });
    let connections = Arc::new(Semaphore::new(config.connections_max));
    let graceful = GracefulShutdown::new();
    let mut stop = std::pin::pin!(stop);
    loop {
        let next = accept(&listener, &connections);
        let (stream, permit) = tokio::select! {
            biased;
            () = &mut stop => break,
            accepted = next => accepted,
        };
        let serving = connection(Arc::clone(&shared), stream, &graceful);
        let task = async move {
            serving.await;
            drop(permit);
        };
        let _detached = shared.api.runtime.spawn("http connection", Box::pin(task));
    }
    drop(listener);
    shared.api.begin_stop();
    if tokio::time::timeout(config.drain, graceful.shutdown())
        .await
        .is_err()
    {
        tracing::info!("some requests did not end in time; their connections are closed");
    }
}

async fn accept(
    listener: &TcpListener,
    connections: &Arc<Semaphore>,
) -> (TcpStream, Option<tokio::sync::OwnedSemaphorePermit>) {
    // Closed never: the semaphore lives as long as the server.
    let permit = Arc::clone(connections).acquire_owned().await.ok();
    loop {
        match listener.accept().await {
            Ok((stream, _)) => return (stream, permit),
            Err(error) => {
                // Too many open files, or a connection that ended before it was accepted.
                tracing::warn!(%error, "a connection could not be accepted");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
}

fn connection(
    shared: Arc<Shared>,
    stream: TcpStream,
    graceful: &GracefulShutdown,
) -> impl Future<Output = ()> + Send + use<> {
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "TCP_NODELAY");
    }
    let activity = Activity::default();
    let io = TokioIo::new(Timed::new(stream, activity.clone(), shared.config));
    let service = TowerToHyperService::new(front(shared, activity));
    let mut builder = hyper::server::conn::http1::Builder::new();
    // The deadline is that of `Timed`, which tells an idle connection from a slow head.
    builder.header_read_timeout(None).max_buf_size(64 * 1024);
    let serving = graceful.watch(builder.serve_connection(io, service));
    async move {
        if let Err(error) = serving.await {
            tracing::debug!(%error, "a connection ended");
        }
    }
}

/// The axum router of one connection. Every path goes to one handler: calls are told apart by the table of
/// [`super::routes`], because their paths end in actions (`{id}:pause`) and because a request that is forwarded to the
/// leader must stay whole until then.
fn front(shared: Arc<Shared>, activity: Activity) -> Router {
    Router::new()
        .fallback(respond)
        .layer(Extension(activity))
        .with_state(shared)
}

async fn respond(
    State(shared): State<Arc<Shared>>,
    Extension(activity): Extension<Activity>,
    request: Request,
) -> Response {
    // Lives until the answer is handed over, or until the caller hangs up.
    let _busy = activity.begin();
    let id = reading::request_id(&shared.api, &request);
    let reply = match answer(&shared, request, &id).await {
        Ok(reply) => reply,
        Err(error) => Reply::problem(&error, &id).with("x-request-id", id),
    };
    to_response(reply)
}

async fn answer(shared: &Shared, request: Request, id: &str) -> Result<Reply, Error> {
    reading::check(&shared.api, &request)?;
    let waits = reading::may_wait(&request);
    let slots = if waits {
        &shared.waiting
    } else {
        &shared.in_flight
    };
    let _slot = slots.try_acquire().map_err(|_| {
        Error::new(
            Code::TooManyRequests,
            "this node has as many requests in hand as it may; try again shortly",
        )
    })?;
    let request = reading::read(&shared.api, request, id.to_owned(), shared.config.body).await?;
    let answered = shared.api.answer(request, Origin::Client);
    if !waits {
        return Ok(answered.await);
    }
    tokio::select! {
        biased;
        reply = answered => Ok(reply),
        // A grant that was under way is undone: its lease spends no attempt.
        () = shared.api.stop_begun() => {
            Err(Error::new(Code::Stopping, "the node is stopping; ask another one"))
        }
    }
}

fn to_response(reply: Reply) -> Response {
    let mut builder = Response::builder().status(reply.status);
    if !reply.content_type.is_empty() {
        builder = builder.header("content-type", reply.content_type);
    }
    for (name, value) in &reply.headers {
        builder = builder.header(name, value);
    }
    builder = builder.header("x-content-type-options", "nosniff");
    builder
        .body(Body::from(reply.body))
        .unwrap_or_else(|error| {
            tracing::error!(%error, "an answer has a header that is none");
            let mut plain = Response::new(Body::empty());
            *plain.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
            plain
        })
}

#[cfg(test)]
mod tests;
