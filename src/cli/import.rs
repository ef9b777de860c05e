//! `punctual import crontab`: shows what each line becomes; writes with `--apply`.
//!
//! Callers: `cli`. Reading is `crontab`'s. A dry run asks the server what would change, and does without when there is
//! none.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use serde_json::{Value, json};

use super::args::Connection;
use super::body::read_bytes;
use super::exit::Code;
use super::failure::Failure;
use super::occurrence::shown;
use super::output::Output;
use crate::calendar::{Compiled, ZoneData};
use crate::client::{Client, Error};
use crate::crontab::{self, Job, Options, Plan};
use crate::model::rule::{RuleSpec, When};
use crate::time::Timestamp;
use crate::wire::{Instant, ScheduleResult};

/// Schedules in one call.
const BATCH_MAX: usize = 1_000;
/// How long a dry run looks for a server.
const DRY_RUN_TIMEOUT: Duration = Duration::from_secs(2);

/// What can be imported.
#[derive(Debug, Subcommand)]
pub(super) enum What {
    /// A crontab file: each job line becomes a schedule. Shows what would happen, unless --apply is given.
    Crontab(Crontab),
}

/// What `import crontab` is given.
#[derive(Debug, Args)]
pub(super) struct Crontab {
    /// The file; `-` is standard input (crontab -l | punctual import crontab -).
    file: PathBuf,
    /// Write the schedules.
    #[arg(long)]
    apply: bool,
    /// Whether a user stands before each command, as in /etc/crontab.
    #[arg(long, value_enum, default_value_t)]
    user_column: UserColumn,
    /// Zone of lines without CRON_TZ or TZ (default: this machine's).
    #[arg(long, value_name = "ZONE")]
    time_zone: Option<String>,
    /// Queue of the schedules.
    #[arg(long, default_value = "default")]
    queue: String,
}

/// `crontab::UserColumn` for clap.
#[derive(Clone, Copy, Debug, Default, ValueEnum)]
enum UserColumn {
    /// Decide from the path and the lines.
    #[default]
    Auto,
    /// There is one.
    Yes,
    /// There is none.
    No,
}

pub(super) async fn run(
    what: What,
    connection: &Connection,
    output: &Output,
) -> Result<Code, Failure> {
    let What::Crontab(args) = what;
    let mut connection = connection.clone();
    if !args.apply {
        // A dry run does without a server, so it does not wait long for one.
        connection.timeout = connection.timeout.min(DRY_RUN_TIMEOUT);
    }
    let client = connection.client()?;
    let bytes = read_bytes(&args.file)?;
    let zones = ZoneData::bundled();
    let time_zone = match &args.time_zone {
        Some(zone) => zone.clone(),
        None => machine_zone()?,
    };
    let path = args.file.to_str();
    let users = known_users();
    let options = Options {
        user_column: match args.user_column {
            UserColumn::Auto => crontab::UserColumn::Auto,
            UserColumn::Yes => crontab::UserColumn::Yes,
            UserColumn::No => crontab::UserColumn::No,
        },
        path,
        known_users: &users,
        time_zone: &time_zone,
    };
    let check = |cron: &str, zone: &str| compile(cron, zone, &zones).map(drop);
    let plan = crontab::plan(&bytes, &options, &check);
    let schedules: Vec<Value> = plan.jobs.iter().map(|j| j.schedule(&args.queue)).collect();
    let outcomes = send(&schedules, args.apply, &client).await?;
    let outcomes = outcomes.unwrap_or_default();
    let shown = Shown {
        plan: &plan,
        outcomes: &outcomes,
        zones: &zones,
        apply: args.apply,
    };
    if output.is_json() {
        output.json(&shown.json(&schedules));
    } else {
        shown.table(output);
    }
    let refused = outcomes.iter().any(|o| o.outcome.is_none());
    let all = plan.refusals.is_empty() && !refused;
    Ok(if all { Code::Ok } else { Code::Unsuccessful })
}

/// Asks the server. A dry run without a server has no outcomes; everything else that fails, fails.
async fn send(
    schedules: &[Value],
    apply: bool,
    client: &Client,
) -> Result<Option<Vec<ScheduleResult>>, Failure> {
    let mut outcomes = Vec::new();
    for batch in schedules.chunks(BATCH_MAX) {
        match client.put_schedules(batch, !apply).await {
            Ok(mut answer) => outcomes.append(&mut answer.value.items),
            Err(Error::Unavailable { .. }) if !apply => return Ok(None),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(Some(outcomes))
}

fn compile(cron: &str, zone: &str, zones: &ZoneData) -> Result<Compiled, String> {
    let mut rule = RuleSpec::new(When::Cron(cron.to_owned()));
    rule.time_zone = Some(zone.to_owned());
    Compiled::new(&rule, zones, "default/crontab").map_err(|errors| {
        let details: Vec<_> = errors.into_iter().map(|e| e.detail).collect();
        details.join("; ")
    })
}

struct Shown<'a> {
    plan: &'a Plan,
    outcomes: &'a [ScheduleResult],
    zones: &'a ZoneData,
    apply: bool,
}

impl Shown<'_> {
    fn outcome(&self, at: usize) -> String {
        match self.outcomes.get(at) {
            Some(result) => result.outcome.clone().unwrap_or_else(|| "refused".into()),
            None => "-".into(),
        }
    }

    fn next(&self, job: &Job) -> Option<Instant> {
        let rule = compile(&job.cron, &job.time_zone, self.zones).ok()?;
        Some(Instant(rule.next(now())?.nominal))
    }

    fn table(&self, output: &Output) {
        let rows: Vec<Vec<String>> = self
            .plan
            .jobs
            .iter()
            .enumerate()
            .map(|(i, job)| {
                let mut row = vec![
                    job.line.to_string(),
                    self.outcome(i),
                    job.schedule_id.clone(),
                    job.cron.clone(),
                    job.time_zone.clone(),
                    shown(self.next(job)),
                ];
                if self.plan.user_column {
                    row.push(job.user.clone().unwrap_or_default());
                }
                row.push(job.command.chars().take(60).collect());
                row
            })
            .collect();
        let outcome = if self.apply { "OUTCOME" } else { "WOULD BE" };
        let mut headings = vec!["LINE", outcome, "SCHEDULE", "RULE", "ZONE", "NEXT"];
        if self.plan.user_column {
            headings.push("USER");
        }
        headings.push("COMMAND");
        output.table(&headings, &rows);
        self.remarks(output);
        let (taken, refused) = (self.plan.jobs.len(), self.plan.refusals.len());
        output.line(&format!("{taken} taken, {refused} refused"));
        if !self.apply {
            let server = if self.outcomes.is_empty() && taken > 0 {
                "no server was reached, so what exists is not known; "
            } else {
                ""
            };
            output.note(&format!("{server}nothing was written; --apply writes"));
        }
    }

    fn remarks(&self, output: &Output) {
        for (i, job) in self.plan.jobs.iter().enumerate() {
            for note in &job.notes {
                output.line(&format!("line {}: note: {note}", job.line));
            }
            if let Some(problem) = self.outcomes.get(i).and_then(|o| o.result.problem.as_ref()) {
                output.line(&format!(
                    "line {}: refused by the server: {}",
                    job.line, problem.detail
                ));
                for place in &problem.errors {
                    output.line(&format!("  at {}: {}", place.pointer, place.detail));
                }
            }
        }
        for refusal in &self.plan.refusals {
            output.line(&format!(
                "line {}: refused: {}",
                refusal.line, refusal.reason
            ));
            output.line(&format!("    {}", refusal.text));
        }
        let column = if self.plan.user_column {
            "with"
        } else {
            "without"
        };
        output.line(&format!(
            "read {column} a user column: {}",
            self.plan.user_column_reason
        ));
        for note in &self.plan.notes {
            output.line(&format!("note: {note}"));
        }
    }

    fn json(&self, schedules: &[Value]) -> Value {
        let jobs: Vec<Value> = self
            .plan
            .jobs
            .iter()
            .zip(schedules)
            .enumerate()
            .map(|(i, (job, schedule))| {
                let outcome = self.outcomes.get(i);
                json!({
                    "line": job.line,
                    "outcome": outcome.and_then(|o| o.outcome.clone()),
                    "problem": outcome.and_then(|o| o.result.problem.clone()),
                    "next_at": self.next(job),
                    "notes": job.notes,
                    "schedule": schedule,
                })
            })
            .collect();
        let refusals: Vec<Value> = self
            .plan
            .refusals
            .iter()
            .map(|r| json!({"line": r.line, "text": r.text, "reason": r.reason}))
            .collect();
        json!({
            "applied": self.apply,
            "user_column": self.plan.user_column,
            "jobs": jobs,
            "refusals": refusals,
            "notes": self.plan.notes,
        })
    }
}

#[allow(
    clippy::disallowed_methods,
    reason = "shown to a person at this machine; nothing is decided by it"
)]
fn now() -> Timestamp {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let ms = since.map_or(0, |d| d.as_millis());
    Timestamp::from_millis(i64::try_from(ms).unwrap_or(0))
}

/// IANA name of this machine's zone.
fn machine_zone() -> Result<String, Failure> {
    let zone = jiff::tz::TimeZone::system();
    match zone.iana_name() {
        Some(name) => Ok(name.to_owned()),
        None => Err(Failure::usage(
            "this machine's time zone has no IANA name; say --time-zone Europe/Berlin, or UTC",
        )),
    }
}

/// Names in /etc/passwd; none when it cannot be read.
fn known_users() -> BTreeSet<String> {
    let text = std::fs::read_to_string(Path::new("/etc/passwd")).unwrap_or_default();
    text.lines()
        .filter_map(|line| line.split(':').next())
        .filter(|name| !name.is_empty())
        .map(str::to_owned)
        .collect()
}
