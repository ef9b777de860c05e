//! `punctual worker`: runs a command for every execution.
//!
//! Callers: `cli`. The loop and the processes are `worker`'s; here are flags, signals and lines for people.

use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use tokio::signal::unix::{SignalKind, signal};

use super::args::{Connection, pair, span};
use super::exit::Code;
use super::failure::Failure;
use super::output::Output;
use crate::worker::process::{Ending, Observer, ProcessHandler, Source, Stream};
use crate::worker::{self, Settings, Shutdown, Summary, Work, Worker};

/// What `worker` is given.
#[derive(Debug, Args)]
#[command(after_help = "\
The payload is the command's standard input; PUNCTUAL_EXECUTION_ID, _ATTEMPT, _FENCING_TOKEN, _NOMINAL_AT,
_DUE_AT, _DEADLINE_AT, _QUEUE, _KIND, _TENANT and _SCHEDULE_ID are in its environment.
Exit 0: succeeded. 75: give it back, try later. 65: failed for good. Anything else, or a signal: failed.
SIGTERM or SIGINT: claim no more, finish, sign off. A second one: stop the commands too.")]
pub(super) struct Run {
    /// A queue to serve; several in order of preference.
    #[arg(long = "queue", short, required = true, value_name = "QUEUE")]
    queues: Vec<String>,
    /// Commands at a time.
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    slots: u32,
    /// Length of a lease; renewed every third of it.
    #[arg(long, default_value = "30s", value_parser = span, value_name = "DURATION")]
    lease: Duration,
    /// Only executions of this kind; may be given several times (default: all).
    #[arg(long = "kind", value_name = "KIND")]
    kinds: Vec<String>,
    /// A label shown to `requires`, name=value; may be given several times.
    #[arg(long = "label", value_name = "NAME=VALUE", value_parser = pair)]
    labels: Vec<(String, String)>,
    /// Name of this worker, unique per process start (default: host, process id and random letters).
    #[arg(long, value_name = "ID")]
    worker_id: Option<String>,
    /// Give CMD to /bin/sh as one text, instead of running it as a program with arguments.
    #[arg(long, requires = "command")]
    shell: bool,
    /// Run what each payload says, as `import crontab` writes it. Whoever may submit to the queue may then run
    /// anything as this user.
    #[arg(long, conflicts_with_all = ["command", "shell"])]
    run_payload_commands: bool,
    /// Run commands that were written for another user as this one.
    #[arg(long, requires = "run_payload_commands")]
    ignore_payload_user: bool,
    /// Delay after exit 75.
    #[arg(long, default_value = "30s", value_parser = span, value_name = "DURATION")]
    retry_later: Duration,
    /// Time between TERM and KILL after a cancel.
    #[arg(long, default_value = "10s", value_parser = span, value_name = "DURATION")]
    kill_after: Duration,
    /// When draining, stop commands that have not ended after this (default: let them finish).
    #[arg(long, value_parser = span, value_name = "DURATION")]
    drain_timeout: Option<Duration>,
    /// Pass the commands' output on, beside keeping its end.
    #[arg(long)]
    pass_output: bool,
    /// Say nothing about each command.
    #[arg(long)]
    quiet: bool,
    /// The program and its arguments.
    #[arg(
        last = true,
        value_name = "CMD",
        required_unless_present = "run_payload_commands"
    )]
    command: Vec<String>,
}

impl Run {
    fn source(&self) -> Source {
        if self.run_payload_commands {
            Source::Payload {
                ignore_user: self.ignore_payload_user,
            }
        } else if self.shell {
            Source::Shell(self.command.join(" "))
        } else {
            Source::Argv(self.command.clone())
        }
    }

    fn settings(&self) -> Settings {
        let mut settings = Settings::for_queues(self.queues.clone());
        settings.slots = self.slots;
        settings.lease = self.lease;
        settings.kinds = (!self.kinds.is_empty()).then(|| self.kinds.clone());
        settings.labels = self.labels.iter().cloned().collect();
        settings.drain_timeout = self.drain_timeout;
        // A child gets this long between TERM and KILL when its lease ends; the loop keeps it below a fifth of that.
        settings.stop_grace = self.kill_after.min(Duration::from_secs(5));
        if let Some(id) = &self.worker_id {
            settings.worker_id.clone_from(id);
        }
        settings
    }
}

pub(super) async fn run(
    args: Run,
    connection: &Connection,
    output: &Output,
) -> Result<Code, Failure> {
    super::logging::to_stderr("warn", crate::config::LogFormat::Text)?;
    let client = connection.client()?;
    let settings = args.settings();
    let mut handler = ProcessHandler::new(args.source());
    handler.retry_later = args.retry_later;
    handler.kill_after = args.kill_after;
    // The observer outlives this call in the handler, so it has an output of its own.
    handler.observer = Arc::new(Watch {
        output: output.for_worker(),
        quiet: args.quiet,
        pass_output: args.pass_output,
    });
    if !args.quiet {
        let queues = settings.queues.join(", ");
        output.note(&format!(
            "worker {} serves {queues} at {} with {} slot(s)",
            settings.worker_id, connection.server, settings.slots
        ));
    }
    let (shutdown, drain) = worker::shutdown();
    let signals = on_signals(shutdown, !args.quiet, output.for_worker())?;
    let ended = Worker::new(settings, client, handler).run(drain).await;
    signals.abort();
    let summary = ended?;
    if output.is_json() {
        output.json(&as_json(&summary));
    } else if !args.quiet {
        output.note(&format!(
            "signed off: {} claimed, {} succeeded, {} failed, {} given back, {} lost",
            summary.claimed, summary.succeeded, summary.failed, summary.released, summary.lost
        ));
    }
    Ok(Code::Ok)
}

fn as_json(s: &Summary) -> serde_json::Value {
    serde_json::json!({
        "claimed": s.claimed, "succeeded": s.succeeded, "failed": s.failed,
        "released": s.released, "lost": s.lost,
    })
}

/// First signal drains, second stops.
#[allow(
    clippy::disallowed_methods,
    reason = "a worker runs on its own tokio, outside the simulation"
)]
fn on_signals(
    shutdown: Shutdown,
    tell: bool,
    output: Output,
) -> Result<tokio::task::JoinHandle<()>, Failure> {
    let failed = |e: std::io::Error| Failure::other(format!("signals cannot be caught: {e}"));
    let mut term = signal(SignalKind::terminate()).map_err(failed)?;
    let mut int = signal(SignalKind::interrupt()).map_err(failed)?;
    Ok(tokio::spawn(async move {
        for n in 0.. {
            tokio::select! {
                _ = term.recv() => {}
                _ = int.recv() => {}
            }
            let what = if n == 0 {
                shutdown.drain();
                "draining: finishing what is held; a second signal stops it"
            } else {
                shutdown.stop();
                "stopping"
            };
            if tell {
                output.note(what);
            }
        }
    }))
}

struct Watch {
    output: Output,
    quiet: bool,
    pass_output: bool,
}

impl Observer for Watch {
    fn started(&self, work: &Work, pid: u32) {
        if self.quiet || self.output.is_json() {
            return;
        }
        let lease = work.lease();
        let name = lease.schedule_id.as_deref().unwrap_or(&lease.kind);
        let nominal = super::occurrence::shown(lease.nominal_at.or(lease.due_at));
        self.output.line(&format!(
            "started  {name}  {nominal}  attempt {}  token {}  {} pid {pid}",
            lease.attempt, lease.fencing_token, lease.execution_id
        ));
    }

    fn output(&self, _: &Work, stream: Stream, bytes: &[u8]) {
        if self.pass_output {
            self.output
                .pass_on(stream == Stream::Err || self.output.is_json(), bytes);
        }
    }

    fn ended(&self, work: &Work, ending: &Ending, took: Duration) {
        let lease = work.lease();
        let took_ms = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
        if self.output.is_json() {
            return self.output.json(&serde_json::json!({
                "execution_id": lease.execution_id, "schedule_id": lease.schedule_id,
                "attempt": lease.attempt, "fencing_token": lease.fencing_token,
                "nominal_at": lease.nominal_at, "ending": ending.to_string(), "took_ms": took_ms,
            }));
        }
        if !self.quiet {
            let name = lease.schedule_id.as_deref().unwrap_or(&lease.kind);
            self.output.line(&format!(
                "ended    {name}  {ending}  after {}  {}",
                super::occurrence::millis(took_ms),
                lease.execution_id
            ));
        }
    }
}
