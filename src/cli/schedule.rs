//! `punctual schedule …`

use std::path::PathBuf;

use clap::{Args, Subcommand};
use serde_json::Value;

use super::args::pair;
use super::body::{Body, PayloadArgs};
use super::exit::Code;
use super::failure::Failure;
use super::occurrence::{RuleArgs, brief, shown};
use super::output::Output;
use super::paging::{self, ListArgs, PageArgs};
use crate::client::{Answer, Client, PutCondition};
use crate::wire::{
    CatchUp, Generation, OccurrenceKind, OccurrenceRecord, Overlap, PauseSchedule, ResumeSchedule,
    Schedule, TriggerSchedule,
};

/// Verbs of `schedule`.
#[derive(Debug, Subcommand)]
pub(super) enum Verb {
    /// Create a schedule or replace it.
    Put(Box<Put>),
    /// Show one.
    Get {
        /// Its name.
        schedule: String,
    },
    /// Show many, in order of their names; states are active, paused and completed.
    List(ListArgs),
    /// Delete one; its executions stay.
    Delete {
        /// Its name.
        schedule: String,
        /// Only if it still has this revision.
        #[arg(long, value_name = "REVISION")]
        if_revision: Option<String>,
    },
    /// Stop firing until resumed.
    Pause {
        /// Its name.
        schedule: String,
        /// Why.
        #[arg(long, value_name = "TEXT")]
        reason: Option<String>,
        /// Resume by itself at this instant.
        #[arg(long, value_name = "TIME")]
        until: Option<crate::wire::Instant>,
    },
    /// Fire again.
    Resume(Resume),
    /// Fire now, by hand.
    Trigger(Trigger),
    /// The next occurrences.
    Next {
        /// Its name.
        schedule: String,
        /// How many.
        #[arg(long, default_value_t = 10, value_name = "N")]
        count: u32,
    },
    /// What became of each nominal time, latest first.
    Occurrences {
        /// Its name.
        schedule: String,
        #[command(flatten)]
        page: PageArgs,
    },
    /// Its definitions, newest first: the present one and those before it.
    Generations {
        /// Its name.
        schedule: String,
        #[command(flatten)]
        page: PageArgs,
    },
}

/// What `schedule put` is given.
#[derive(Debug, Args)]
pub(super) struct Put {
    /// Its name: a-z, 0-9, '.', '_', '-'.
    schedule: String,
    /// The schedule as JSON; `-` is standard input. Flags stand over it.
    #[arg(long, short, value_name = "FILE")]
    file: Option<PathBuf>,
    #[command(flatten)]
    rule: RuleArgs,
    /// Handler that a worker must have (default: the schedule's name).
    #[arg(long)]
    kind: Option<String>,
    /// Queue of its executions.
    #[arg(long)]
    queue: Option<String>,
    #[command(flatten)]
    payload: PayloadArgs,
    /// Free text.
    #[arg(long, value_name = "TEXT")]
    description: Option<String>,
    /// 0 to 9, 9 is highest.
    #[arg(long, value_name = "N")]
    priority: Option<u8>,
    /// Attempts in all.
    #[arg(long, value_name = "N")]
    max_attempts: Option<u32>,
    /// What happens to an occurrence that is too late: skip, fire_latest, fire_all.
    #[arg(long, value_name = "POLICY")]
    misfire: Option<String>,
    /// What happens beside an open execution: allow, skip, …
    #[arg(long, value_name = "POLICY")]
    overlap: Option<String>,
    /// Longest time of one attempt.
    #[arg(long, value_name = "DURATION")]
    attempt_timeout: Option<String>,
    /// A label, name=value; may be given several times.
    #[arg(long = "label", value_name = "NAME=VALUE", value_parser = pair)]
    labels: Vec<(String, String)>,
    /// Only if nothing of this name exists.
    #[arg(long, conflicts_with = "if_revision")]
    create_only: bool,
    /// Only if it still has this revision.
    #[arg(long, value_name = "REVISION")]
    if_revision: Option<String>,
    /// Show what would happen; change nothing.
    #[arg(long)]
    dry_run: bool,
}

/// What `schedule resume` is given.
#[derive(Debug, Args)]
pub(super) struct Resume {
    /// Its name.
    schedule: String,
    /// What is caught up of the pause: none, latest or all.
    #[arg(long, value_name = "WHAT", value_parser = word::<CatchUp>)]
    catch_up: Option<CatchUp>,
    /// Most executions created for the pause.
    #[arg(long, value_name = "N")]
    catch_up_max: Option<u32>,
    /// Why.
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
    /// Show how many would be caught up; change nothing.
    #[arg(long)]
    dry_run: bool,
}

/// What `schedule trigger` is given.
#[derive(Debug, Args)]
pub(super) struct Trigger {
    /// Its name.
    schedule: String,
    #[command(flatten)]
    payload: PayloadArgs,
    /// Instead of the schedule's overlap policy, such as allow.
    #[arg(long, value_name = "POLICY", value_parser = word::<Overlap>)]
    overlap: Option<Overlap>,
    /// Why.
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
}

/// Reads a word of the API's vocabulary for clap.
fn word<T: serde::de::DeserializeOwned>(text: &str) -> Result<T, String> {
    serde_json::from_value(Value::from(text)).map_err(|e| e.to_string())
}

pub(super) async fn run(verb: Verb, client: &Client, output: &Output) -> Result<Code, Failure> {
    match verb {
        Verb::Put(put) => self::put(*put, client, output).await?,
        Verb::Get { schedule } => {
            let answer = client.get_schedule(&schedule).await?;
            output.answer(&answer, |s| show(s, output));
        }
        Verb::List(list) => self::list(list, client, output).await?,
        Verb::Delete {
            schedule,
            if_revision,
        } => {
            let answer = client
                .delete_schedule(&schedule, if_revision.as_deref())
                .await?;
            output.answer(&answer, |_| output.line(&format!("deleted {schedule}")));
        }
        Verb::Pause {
            schedule,
            reason,
            until,
        } => {
            let body = PauseSchedule { reason, until };
            let answer = client.pause_schedule(&schedule, &body).await?;
            output.answer(&answer, |s| show(s, output));
        }
        Verb::Resume(resume) => self::resume(resume, client, output).await?,
        Verb::Trigger(trigger) => self::trigger(trigger, client, output).await?,
        Verb::Next { schedule, count } => {
            let answer = client.next_occurrences(&schedule, Some(count)).await?;
            output.answer(&answer, |next| {
                let rows: Vec<_> = next
                    .occurrences
                    .iter()
                    .map(|o| {
                        vec![
                            shown(Some(o.nominal_at)),
                            shown(Some(o.due_at)),
                            o.local.clone(),
                        ]
                    })
                    .collect();
                output.table(&["NOMINAL", "DUE", "LOCAL"], &rows);
                if next.exhausted {
                    output.note("there are no more");
                }
                for warning in &next.warnings {
                    output.note(&format!("warning: {}", warning.detail));
                }
            });
        }
        Verb::Occurrences { schedule, page } => {
            occurrences(&schedule, &page, client, output).await?
        }
        Verb::Generations { schedule, page } => {
            generations(&schedule, &page, client, output).await?
        }
    }
    Ok(Code::Ok)
}

async fn put(put: Put, client: &Client, output: &Output) -> Result<(), Failure> {
    let mut body = Body::from_file(put.file.as_deref())?;
    put.rule.lay_over(&mut body);
    body.set("kind", put.kind);
    body.set("queue", put.queue);
    body.set("payload", put.payload.read()?);
    body.set("description", put.description);
    body.set("priority", put.priority);
    body.set_in("retry", "max_attempts", put.max_attempts);
    body.set_in("misfire", "policy", put.misfire);
    body.set_in("overlap", "policy", put.overlap);
    body.set_in("timeouts", "attempt", put.attempt_timeout);
    body.add_pairs("labels", &put.labels);
    if !body.has("rule") {
        return Err(Failure::usage(
            "no rule given; write --cron, --every or --at, or a file with a \"rule\"",
        ));
    }
    let condition = match put.if_revision {
        Some(revision) => PutCondition::Revision(revision),
        None if put.create_only => PutCondition::Absent,
        None => PutCondition::None,
    };
    let answer = client
        .put_schedule(&put.schedule, &body.value(), &condition, put.dry_run)
        .await?;
    output.answer(&answer, |s| {
        let outcome = answer.outcome.as_deref().unwrap_or("stored");
        let would = if put.dry_run {
            " (dry run: nothing was changed)"
        } else {
            ""
        };
        output.line(&format!("{outcome} {}{would}", put.schedule));
        show_next(&answer, s, output);
    });
    Ok(())
}

fn show_next(answer: &Answer<Schedule>, schedule: &Schedule, output: &Output) {
    let Some(status) = &schedule.status else {
        return;
    };
    if let Some(next) = &status.next {
        output.line(&format!(
            "next {} ({})",
            shown(Some(next.nominal_at)),
            next.local
        ));
    }
    for warning in &status.warnings {
        output.note(&format!("warning: {}", warning.detail));
    }
    if answer.replayed {
        output.note("this had been done already");
    }
}

async fn list(list: ListArgs, client: &Client, output: &Output) -> Result<(), Failure> {
    let fetch = |size, cursor| {
        let filter = list.filter(size, cursor);
        async move { client.list_schedules(&filter).await }
    };
    let headings = ["SCHEDULE", "STATE", "RULE", "ZONE", "QUEUE", "NEXT", "LAST"];
    paging::list(&list.page, output, &headings, fetch, |s: &Schedule| {
        let status = s.status.clone().unwrap_or_default();
        let last = status.last.map(|l| l.state).unwrap_or_default();
        vec![
            s.schedule_id.clone().unwrap_or_default(),
            state(&status.state),
            rule(s),
            s.rule.time_zone.clone().unwrap_or_default(),
            s.queue.clone().unwrap_or_default(),
            shown(status.next.map(|n| n.due_at)),
            last,
        ]
    })
    .await
}

fn state(state: &crate::wire::ScheduleState) -> String {
    let value = serde_json::to_value(state).unwrap_or_default();
    value.as_str().unwrap_or_default().to_owned()
}

fn rule(schedule: &Schedule) -> String {
    let rule = &schedule.rule;
    let spans = [("every", rule.every), ("after_end", rule.after_end)];
    let texts = [
        ("", &rule.cron),
        ("at ", &rule.at),
        ("", &rule.rrule),
        ("", &rule.iso8601),
    ];
    let span = spans
        .iter()
        .find_map(|(n, v)| v.map(|v| format!("{n} {v}")));
    let text = texts
        .iter()
        .find_map(|(n, v)| v.as_ref().map(|v| format!("{n}{v}")));
    text.or(span).unwrap_or_default()
}

fn show(schedule: &Schedule, output: &Output) {
    let status = schedule.status.clone().unwrap_or_default();
    let paused = status
        .paused
        .as_ref()
        .map(|p| serde_json::to_string(p).unwrap_or_default());
    let open = status.open;
    output.record(&[
        ("schedule", schedule.schedule_id.clone().unwrap_or_default()),
        (
            "description",
            schedule.description.clone().unwrap_or_default(),
        ),
        ("state", state(&status.state)),
        ("paused", paused.unwrap_or_default()),
        ("rule", rule(schedule)),
        (
            "time zone",
            schedule.rule.time_zone.clone().unwrap_or_default(),
        ),
        ("kind", schedule.kind.clone().unwrap_or_default()),
        ("queue", schedule.queue.clone().unwrap_or_default()),
        ("payload", brief(&schedule.payload)),
        ("next", shown(status.next.as_ref().map(|n| n.nominal_at))),
        ("due", shown(status.next.as_ref().map(|n| n.due_at))),
        (
            "open",
            format!(
                "{} ({} ready, {} leased)",
                open.total, open.ready, open.leased
            ),
        ),
        ("succeeded", status.totals.succeeded.to_string()),
        ("dead-lettered", status.totals.dead_lettered.to_string()),
        ("skipped", skipped(&status.totals.skipped)),
        ("revision", schedule.revision.clone().unwrap_or_default()),
    ]);
    for outcome in &status.recent {
        output.line(&format!(
            "  {}  {}  {}",
            shown(outcome.nominal_at),
            outcome.state,
            outcome.execution_id
        ));
    }
    for warning in &status.warnings {
        output.note(&format!("warning: {}", warning.detail));
    }
}

fn skipped(reasons: &std::collections::BTreeMap<String, u64>) -> String {
    reasons
        .iter()
        .map(|(reason, n)| format!("{n} {reason}"))
        .collect::<Vec<_>>()
        .join(", ")
}

async fn resume(resume: Resume, client: &Client, output: &Output) -> Result<(), Failure> {
    let body = ResumeSchedule {
        reason: resume.reason,
        catch_up: resume.catch_up,
        catch_up_max: resume.catch_up_max,
    };
    let answer = client
        .resume_schedule(&resume.schedule, &body, resume.dry_run)
        .await?;
    output.answer(&answer, |r| {
        let would = if resume.dry_run {
            "would catch up"
        } else {
            "caught up"
        };
        output.line(&format!("{would} {}, skipped {}", r.caught_up, r.skipped));
        show(&r.schedule, output);
    });
    Ok(())
}

async fn trigger(trigger: Trigger, client: &Client, output: &Output) -> Result<(), Failure> {
    let payload = match trigger.payload.read()? {
        Some(value) => crate::wire::Json::from_value(&value).ok(),
        None => None,
    };
    let body = TriggerSchedule {
        reason: trigger.reason,
        payload,
        overlap: trigger.overlap,
    };
    let answer = client.trigger_schedule(&trigger.schedule, &body).await?;
    output.answer(&answer, |r| {
        output.line(&format!(
            "execution {}",
            r.execution_id.as_deref().unwrap_or("-")
        ));
    });
    Ok(())
}

async fn occurrences(
    schedule: &str,
    page: &PageArgs,
    client: &Client,
    output: &Output,
) -> Result<(), Failure> {
    let fetch = |size, cursor: Option<String>| async move {
        client
            .occurrences(schedule, Some(size), cursor.as_deref())
            .await
    };
    let headings = ["NOMINAL", "OUTCOME", "COUNT", "EXECUTION", "UNTIL"];
    paging::list(page, output, &headings, fetch, |o: &OccurrenceRecord| {
        let outcome = match o.kind {
            OccurrenceKind::Execution => {
                let by_hand = o.triggered_at.map_or("", |_| " (by hand)");
                format!("{}{by_hand}", o.state.as_deref().unwrap_or_default())
            }
            OccurrenceKind::Skipped => format!("skipped: {}", o.reason.as_deref().unwrap_or("?")),
        };
        let at_least = if o.at_least { "≥" } else { "" };
        vec![
            shown(o.nominal_at.or(o.triggered_at)),
            outcome,
            format!("{at_least}{}", o.count),
            o.execution_id
                .clone()
                .or_else(|| o.blocker.clone())
                .unwrap_or_default(),
            shown(o.to),
        ]
    })
    .await
}

async fn generations(
    schedule: &str,
    page: &PageArgs,
    client: &Client,
    output: &Output,
) -> Result<(), Failure> {
    let fetch = |size, cursor: Option<String>| async move {
        client
            .generations(schedule, Some(size), cursor.as_deref())
            .await
    };
    let headings = ["GENERATION", "SINCE", "RULE", "ZONE", "KIND", "QUEUE"];
    paging::list(page, output, &headings, fetch, |g: &Generation| {
        let schedule = &g.schedule;
        vec![
            g.generation.to_string(),
            shown(g.since),
            rule(schedule),
            schedule.rule.time_zone.clone().unwrap_or_default(),
            schedule.kind.clone().unwrap_or_default(),
            schedule.queue.clone().unwrap_or_default(),
        ]
    })
    .await
}
