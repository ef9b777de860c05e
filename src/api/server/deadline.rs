//! A connection whose silences have deadlines.
//!
//! Purpose: tell an idle connection from a slow head and from a peer that does not read, each with a deadline of its
//! own. Callers: `server`. Invariant: while a request is in hand there is no deadline on reading (its body has one in
//! `reading`); the peer's hang-up is still seen.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use futures::task::AtomicWaker;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

use crate::api::server::ServerConfig;

/// Whether a request is in hand on a connection. Odd: yes; each change counts up.
#[derive(Clone, Debug, Default)]
pub(super) struct Activity(Arc<Counted>);

#[derive(Debug, Default)]
struct Counted {
    changes: AtomicU64,
    /// Who reads the connection: hyper does not look at it again by itself when a request has ended.
    reader: AtomicWaker,
}

/// A request in hand.
#[derive(Debug)]
pub(super) struct Busy(Activity);

impl Activity {
    /// A request is in hand until the result is dropped.
    pub(super) fn begin(&self) -> Busy {
        self.0.changes.fetch_add(1, Ordering::AcqRel);
        Busy(self.clone())
    }

    fn count(&self) -> u64 {
        self.0.changes.load(Ordering::Acquire)
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        let counted = &self.0.0;
        counted.changes.fetch_add(1, Ordering::AcqRel);
        counted.reader.wake();
    }
}

/// See the module.
#[derive(Debug)]
pub(super) struct Timed<S> {
    inner: S,
    activity: Activity,
    config: ServerConfig,
    /// Count of the activity to which `silence` belongs.
    seen: u64,
    head_began: bool,
    silence: Option<Pin<Box<Sleep>>>,
    unread: Option<Pin<Box<Sleep>>>,
}

impl<S> Timed<S> {
    pub(super) fn new(inner: S, activity: Activity, config: ServerConfig) -> Self {
        Self {
            inner,
            activity,
            config,
            seen: 0,
            head_began: false,
            silence: None,
            unread: None,
        }
    }

    /// The deadline for the silence that goes on now; `None` while a request is in hand.
    fn allowed(&mut self) -> Option<Duration> {
        let count = self.activity.count();
        if count != self.seen {
            self.seen = count;
            self.head_began = false;
            self.silence = None;
        }
        match (count % 2 == 1, self.head_began, count) {
            (true, ..) => None,
            (false, true, _) => Some(self.config.head),
            (false, false, 0) => Some(self.config.first_byte),
            (false, false, _) => Some(self.config.idle),
        }
    }
}

fn expired(
    sleep: &mut Option<Pin<Box<Sleep>>>,
    allowed: Duration,
    context: &mut Context<'_>,
) -> bool {
    let sleep =
        sleep.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(Instant::now() + allowed)));
    sleep.as_mut().poll(context).is_ready()
}

fn timed_out(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, what)
}

impl<S: AsyncRead + Unpin> AsyncRead for Timed<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buffer.filled().len();
        let allowed = this.allowed();
        if let Poll::Ready(result) = Pin::new(&mut this.inner).poll_read(context, buffer) {
            if allowed.is_some() && !this.head_began && buffer.filled().len() > before {
                this.head_began = true;
                this.silence = None;
            }
            return Poll::Ready(result);
        }
        match allowed {
            Some(allowed) if expired(&mut this.silence, allowed, context) => {
                Poll::Ready(Err(timed_out("the peer was silent for too long")))
            }
            Some(_) => Poll::Pending,
            None => {
                this.activity.0.reader.register(context.waker());
                Poll::Pending
            }
        }
    }
}

impl<S: AsyncWrite + Unpin> Timed<S> {
    fn written<T>(
        &mut self,
        poll: Poll<io::Result<T>>,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<T>> {
        if poll.is_ready() {
            self.unread = None;
            return poll;
        }
        if expired(&mut self.unread, self.config.write, context) {
            return Poll::Ready(Err(timed_out("the peer does not read its answer")));
        }
        Poll::Pending
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Timed<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let poll = Pin::new(&mut this.inner).poll_write(context, bytes);
        this.written(poll, context)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let poll = Pin::new(&mut this.inner).poll_write_vectored(context, slices);
        this.written(poll, context)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let poll = Pin::new(&mut this.inner).poll_flush(context);
        this.written(poll, context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    fn config() -> ServerConfig {
        ServerConfig {
            first_byte: Duration::from_secs(5),
            head: Duration::from_secs(2),
            idle: Duration::from_secs(60),
            ..ServerConfig::default()
        }
    }

    async fn silent_for(timed: &mut Timed<tokio::io::DuplexStream>) -> Duration {
        let began = Instant::now();
        let mut buffer = [0; 8];
        let error = timed.read(&mut buffer).await.expect_err("a deadline");
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        began.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn first_byte_head_and_idle_have_their_own_deadlines() {
        let (near, mut far) = tokio::io::duplex(64);
        let activity = Activity::default();
        let mut timed = Timed::new(near, activity.clone(), config());
        assert_eq!(silent_for(&mut timed).await.as_secs(), 5);
        far.write_all(b"GET").await.unwrap();
        let mut buffer = [0; 8];
        assert_eq!(timed.read(&mut buffer).await.unwrap(), 3);
        assert_eq!(silent_for(&mut timed).await.as_secs(), 2);
        drop(activity.begin());
        assert_eq!(silent_for(&mut timed).await.as_secs(), 60);
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_in_hand_has_no_deadline_on_reading() {
        let (near, _far) = tokio::io::duplex(64);
        let activity = Activity::default();
        let mut timed = Timed::new(near, activity.clone(), config());
        let _busy = activity.begin();
        let mut buffer = [0; 8];
        let waited = tokio::time::timeout(Duration::from_secs(3_600), timed.read(&mut buffer));
        assert!(waited.await.is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn a_peer_that_does_not_read_is_given_up() {
        let (near, _far) = tokio::io::duplex(4);
        let mut timed = Timed::new(near, Activity::default(), config());
        let error = timed.write_all(&[0; 64]).await.expect_err("a deadline");
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }
}
