//! One child from start to end.
//!
//! Callers: `worker::process`. Invariants: see there; every path out of [`run`] has waited for the child, and a
//! dropped future kills the group (tokio then collects the child).

use std::fmt;
use std::os::unix::process::ExitStatusExt;
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::process::Child;
use tokio::task::JoinSet;

use super::command::Command;
use super::tail::{Output, Tail};
use super::{Observer, Stream};
use crate::worker::{Stop, Work};

/// How long output is still read after the child has ended: what it left behind may hold the pipes for ever.
const DRAIN_OUTPUT: Duration = Duration::from_millis(300);
/// KILL comes this much before the handler would be dropped, so that its end can be seen.
const KILL_MARGIN: Duration = Duration::from_millis(100);

/// How a child ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ending {
    /// There was no child.
    NotStarted(String),
    /// It is gone.
    Exited {
        /// Exit code; `None` when a signal ended it.
        code: Option<i32>,
        /// The signal by name.
        signal: Option<String>,
        /// Why it was told to stop, if it was.
        stopped: Option<Stop>,
        /// The end of its output.
        output: Output,
    },
}

impl fmt::Display for Ending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self::Exited {
            code,
            signal,
            stopped,
            ..
        } = self
        else {
            let Self::NotStarted(reason) = self else {
                return Ok(());
            };
            return f.write_str(reason);
        };
        match (code, signal) {
            (Some(code), _) => write!(f, "exit status {code}")?,
            (None, Some(signal)) => write!(f, "ended by {signal}")?,
            (None, None) => f.write_str("ended without a status")?,
        }
        match stopped {
            Some(why) => write!(f, " after it was told to stop: {why}"),
            None => Ok(()),
        }
    }
}

/// Starts the command and stays with it.
pub(super) async fn run(
    command: &Command,
    work: &Work,
    kill_after: Duration,
    observer: &Arc<dyn Observer>,
) -> Ending {
    let mut child = match start(command) {
        Ok(child) => child,
        Err(reason) => return Ending::NotStarted(reason),
    };
    let Some(pid) = child.id() else {
        return Ending::NotStarted("the child ended before it had a number".into());
    };
    let mut group = Group::of(pid);
    observer.started(work, pid);
    let tail = Arc::new(Mutex::new(Tail::default()));
    let mut pipes = attach(&mut child, command.stdin.clone(), work, &tail, observer);

    let mut stopped = None;
    let status = tokio::select! {
        biased;
        status = child.wait() => status,
        why = work.stopped() => {
            let patience = match why {
                Stop::CancelRequested => kill_after,
                _ => kill_after.min(work.time_left().saturating_sub(KILL_MARGIN)),
            };
            stopped = Some(why);
            stop(&mut child, &group, patience, work).await
        }
    };
    group.ended();
    let _slow_pipes = tokio::time::timeout(DRAIN_OUTPUT, async {
        while pipes.join_next().await.is_some() {}
    })
    .await;
    pipes.shutdown().await;
    let output = tail.lock().output();
    match status {
        Ok(status) => exited(status, stopped, output),
        Err(error) => Ending::NotStarted(format!("the child cannot be waited for: {error}")),
    }
}

fn start(command: &Command) -> Result<Child, String> {
    let Some((program, args)) = command.argv.split_first() else {
        return Err("there is no program to run".into());
    };
    tokio::process::Command::new(program)
        .args(args)
        .envs(&command.env)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .kill_on_drop(true)
        .spawn()
        .map_err(|e| format!("{program:?} cannot be started: {e}"))
}

fn attach(
    child: &mut Child,
    input: Vec<u8>,
    work: &Work,
    tail: &Arc<Mutex<Tail>>,
    observer: &Arc<dyn Observer>,
) -> JoinSet<()> {
    let mut pipes = JoinSet::new();
    if let Some(mut stdin) = child.stdin.take() {
        pipes.spawn(async move {
            // A child that does not read its input is its own affair.
            let _unread = stdin.write_all(&input).await;
        });
    }
    if let Some(out) = child.stdout.take() {
        pipes.spawn(read(
            out,
            Stream::Out,
            work.clone(),
            Arc::clone(tail),
            Arc::clone(observer),
        ));
    }
    if let Some(err) = child.stderr.take() {
        pipes.spawn(read(
            err,
            Stream::Err,
            work.clone(),
            Arc::clone(tail),
            Arc::clone(observer),
        ));
    }
    pipes
}

async fn read(
    mut from: impl AsyncRead + Unpin,
    stream: Stream,
    work: Work,
    tail: Arc<Mutex<Tail>>,
    observer: Arc<dyn Observer>,
) {
    let mut buffer = vec![0; 8 << 10];
    while let Ok(n @ 1..) = from.read(&mut buffer).await {
        let piece = buffer.get(..n).unwrap_or_default();
        tail.lock().push(piece);
        observer.output(&work, stream, piece);
    }
}

/// TERM to the group, then KILL when the patience is over or the handler is about to be dropped.
async fn stop(
    child: &mut Child,
    group: &Group,
    patience: Duration,
    work: &Work,
) -> std::io::Result<ExitStatus> {
    group.signal(Signal::SIGTERM);
    let until = tokio::time::Instant::now() + patience;
    loop {
        // The lease may end sooner than it looked when the stop began.
        let left = until.saturating_duration_since(tokio::time::Instant::now());
        let step = left.min(work.time_left().saturating_sub(KILL_MARGIN));
        if step.is_zero() {
            break;
        }
        let step = step.min(Duration::from_millis(200));
        if let Ok(status) = tokio::time::timeout(step, child.wait()).await {
            // The leader is gone; what it started may not be.
            group.signal(Signal::SIGKILL);
            return status;
        }
    }
    group.signal(Signal::SIGKILL);
    child.wait().await
}

fn exited(status: ExitStatus, stopped: Option<Stop>, output: Output) -> Ending {
    let signal = status
        .signal()
        .map(|number| match Signal::try_from(number) {
            Ok(signal) => signal.as_str().to_owned(),
            Err(_) => format!("signal {number}"),
        });
    Ending::Exited {
        code: status.code(),
        signal,
        stopped,
        output,
    }
}

/// A child's process group; killed when dropped before [`Group::ended`].
struct Group {
    leader: Option<Pid>,
}

impl Group {
    fn of(pid: u32) -> Self {
        Self {
            leader: i32::try_from(pid)
                .ok()
                .filter(|p| *p > 1)
                .map(Pid::from_raw),
        }
    }

    fn signal(&self, signal: Signal) {
        if let Some(leader) = self.leader {
            // No such group: everything in it is gone already.
            let _gone = killpg(leader, signal);
        }
    }

    /// The leader was waited for: its number may be given to somebody else from now on.
    const fn ended(&mut self) {
        self.leader = None;
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.signal(Signal::SIGKILL);
    }
}
