//! From lines to schedules: user column, settings in force, ids.
//!
//! Callers: `cli::import`. Pure.

use std::collections::BTreeMap;

use xxhash_rust::xxh3::xxh3_64;

use super::line::{Line, Time, percent, read, split_word};
use super::{Check, Job, Options, Plan, Refusal, UserColumn, shorten};

/// Longest part of an id that comes from the command.
const SLUG_MAX: usize = 40;
/// Longest piece of a line shown with a refusal.
const SHOWN_MAX: usize = 80;

/// Reads a whole crontab.
///
/// Never fails: what cannot be taken is in [`Plan::refusals`]. `check` is asked once per job line.
#[must_use]
pub fn plan(file: &[u8], options: &Options<'_>, check: &Check<'_>) -> Plan {
    let (user_column, user_column_reason) = user_column(file, options);
    let mut reader = Reader {
        options,
        check,
        user_column,
        env: BTreeMap::new(),
        ids: BTreeMap::new(),
        jobs: Vec::new(),
        refusals: Vec::new(),
        notes: Vec::new(),
    };
    let mut carriage_returns = false;
    for (i, bytes) in lines(file).enumerate() {
        carriage_returns |= bytes.ends_with(b"\r");
        reader.line(i + 1, bytes.strip_suffix(b"\r").unwrap_or(bytes));
    }
    if carriage_returns {
        reader.note("lines end with a carriage return, which cron would pass on; it was removed");
    }
    if !file.is_empty() && !file.ends_with(b"\n") {
        reader
            .note("the last line has no line end; cron would ignore or refuse it, here it counts");
    }
    Plan {
        user_column,
        user_column_reason,
        jobs: reader.jobs,
        refusals: reader.refusals,
        notes: reader.notes,
    }
}

fn lines(file: &[u8]) -> impl Iterator<Item = &[u8]> {
    let body = file.strip_suffix(b"\n").unwrap_or(file);
    body.split(|b| *b == b'\n')
}

struct Reader<'a> {
    options: &'a Options<'a>,
    check: &'a Check<'a>,
    user_column: bool,
    env: BTreeMap<String, String>,
    ids: BTreeMap<String, u32>,
    jobs: Vec<Job>,
    refusals: Vec<Refusal>,
    notes: Vec<String>,
}

impl Reader<'_> {
    fn note(&mut self, text: &str) {
        if !self.notes.iter().any(|n| n == text) {
            self.notes.push(text.to_owned());
        }
    }

    fn line(&mut self, number: usize, bytes: &[u8]) {
        let text = match std::str::from_utf8(bytes) {
            Ok(text) if text.contains('\0') => {
                return self.refuse(number, text, "has a NUL byte; remove it".into());
            }
            Ok(text) => text,
            Err(error) => {
                let lossy = String::from_utf8_lossy(bytes).into_owned();
                let reason = format!(
                    "is not UTF-8 at byte {}; convert the file (iconv -t UTF-8)",
                    error.valid_up_to() + 1
                );
                return self.refuse(number, &lossy, reason);
            }
        };
        match read(text) {
            Line::Empty => {}
            Line::Setting { name, value } => self.setting(name, value),
            Line::Bad(reason) => self.refuse(number, text, reason),
            Line::Job { time, quiet, rest } => match self.job(number, time, quiet, rest) {
                Ok(job) => self.jobs.push(job),
                Err(reason) => self.refuse(number, text, reason),
            },
        }
    }

    fn refuse(&mut self, line: usize, text: &str, reason: String) {
        self.refusals.push(Refusal {
            line,
            text: shorten(text.trim(), SHOWN_MAX),
            reason,
        });
    }

    fn setting(&mut self, name: String, value: String) {
        if name == "MAILTO" || name == "MAILFROM" {
            self.note(
                "MAILTO sends nothing here: the end of a command's output is kept with the attempt",
            );
        }
        if name == "TZ" {
            self.note("TZ= is taken as the zone of the times below it too, unless CRON_TZ= says otherwise");
        }
        if value.contains('$') && name != "MAILTO" {
            self.note("settings are taken as they stand: cron expands no $NAME in them either");
        }
        self.env.insert(name, value);
    }

    fn zone(&self) -> String {
        let set = |name| self.env.get(name).filter(|v| !v.is_empty());
        set("CRON_TZ").or_else(|| set("TZ")).map_or_else(
            || self.options.time_zone.to_owned(),
            |z| z.trim_start_matches(':').to_owned(),
        )
    }

    fn job(&mut self, line: usize, time: Time, quiet: bool, rest: &str) -> Result<Job, String> {
        let cron = match time {
            Time::Cron(cron) => cron,
            Time::Refused(reason) => return Err(reason),
        };
        let (user, rest) = if self.user_column {
            let (user, rest) = split_word(rest);
            if !is_user(user) {
                return Err(format!(
                    "{user:?} stands where the user should; if the file has no user column, say \
                     --user-column no"
                ));
            }
            (Some(user.to_owned()), rest)
        } else {
            (None, rest)
        };
        let (command, stdin) = percent(rest);
        if command.is_empty() {
            return Err("has no command after the time fields".into());
        }
        let time_zone = self.zone();
        (self.check)(&cron, &time_zone)?;
        let mut env = self.env.clone();
        env.remove("CRON_TZ");
        let mut job = Job {
            line,
            schedule_id: String::new(),
            cron,
            time_zone,
            user,
            command,
            stdin,
            env,
            notes: Vec::new(),
        };
        job.notes = self.job_notes(&job, quiet);
        job.schedule_id = self.id(&job);
        Ok(job)
    }

    fn job_notes(&self, job: &Job, quiet: bool) -> Vec<String> {
        let mut notes = Vec::new();
        if quiet {
            notes.push("the leading '-' (do not log) has no meaning here".to_owned());
        }
        if job.command.ends_with('\\') {
            notes.push("ends with a backslash: a crontab has no continuation lines".to_owned());
        }
        let (first, more) = split_word(&job.command);
        if !self.user_column && !more.is_empty() && self.options.known_users.contains(first) {
            notes.push(format!(
                "the command begins with the user name {first:?}; for a system crontab say \
                 --user-column yes"
            ));
        }
        if let Some(user) = &job.user {
            notes.push(format!("runs only on a worker that runs as {user}"));
        }
        notes
    }

    fn id(&mut self, job: &Job) -> String {
        let whole = [
            job.cron.as_str(),
            job.user.as_deref().unwrap_or_default(),
            &job.command,
            job.stdin.as_deref().unwrap_or_default(),
        ]
        .join("\0");
        let hash = xxh3_64(whole.as_bytes()) >> 24;
        let id = format!("{}-{hash:010x}", slug(&job.command));
        let seen = self.ids.entry(id.clone()).or_insert(0);
        *seen += 1;
        if *seen == 1 {
            id
        } else {
            format!("{id}-{seen}")
        }
    }
}

/// The command as the readable half of an id: the program's name and what follows, in `a-z0-9` and hyphens.
fn slug(command: &str) -> String {
    let (program, rest) = split_word(command);
    let program = program.rsplit('/').next().unwrap_or(program);
    let mut out = String::new();
    for c in program.chars().chain([' ']).chain(rest.chars()) {
        if out.len() >= SLUG_MAX {
            break;
        }
        if c.is_ascii_alphanumeric() {
            out.push(c.to_ascii_lowercase());
        } else if !out.is_empty() && !out.ends_with('-') {
            out.push('-');
        }
    }
    let out = out.trim_end_matches('-');
    if out.is_empty() {
        "cron".into()
    } else {
        out.into()
    }
}

fn is_user(word: &str) -> bool {
    let bytes = word.strip_suffix('$').unwrap_or(word).as_bytes();
    let first = bytes
        .first()
        .is_some_and(|b| b.is_ascii_alphabetic() || *b == b'_');
    first
        && bytes.len() <= 64
        && bytes
            .iter()
            .all(|b| b.is_ascii_alphanumeric() || b"_-.".contains(b))
}

fn begins_command(c: char) -> bool {
    c.is_alphanumeric() || "/._$\"'([{:!".contains(c)
}

fn user_column(file: &[u8], options: &Options<'_>) -> (bool, &'static str) {
    match options.user_column {
        UserColumn::Yes => return (true, "as told"),
        UserColumn::No => return (false, "as told"),
        UserColumn::Auto => {}
    }
    if options
        .path
        .is_some_and(|p| p == "/etc/crontab" || p.starts_with("/etc/cron.d/"))
    {
        return (true, "the file is a system crontab by its path");
    }
    let mut jobs = 0;
    for bytes in lines(file) {
        let Ok(text) = std::str::from_utf8(bytes) else {
            continue;
        };
        let Line::Job { rest, .. } = read(text.strip_suffix('\r').unwrap_or(text)) else {
            continue;
        };
        let (user, command) = split_word(rest);
        // `backup | gzip` and `backup --all` begin with a program that is called like a user.
        if !command.starts_with(begins_command) || !options.known_users.contains(user) {
            return (
                false,
                "not every line names a user of this machine before its command",
            );
        }
        jobs += 1;
    }
    if jobs == 0 {
        (false, "there is no job line")
    } else {
        (
            true,
            "every line names a user of this machine before its command",
        )
    }
}
