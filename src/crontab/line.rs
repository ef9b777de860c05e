//! One line of a crontab, taken apart as Vixie cron and its descendants do.
//!
//! Callers: `crontab::plan`. Pure.

/// What a line is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Line<'a> {
    /// Nothing, or a comment.
    Empty,
    /// `NAME=value`.
    Setting {
        /// Name, unquoted.
        name: String,
        /// Value, trimmed and unquoted.
        value: String,
    },
    /// Time fields and the rest.
    Job {
        /// The time fields.
        time: Time,
        /// A `-` stood in front of them (cronie: do not log).
        quiet: bool,
        /// What follows the time fields, blanks in front removed.
        rest: &'a str,
    },
    /// Neither; the reason.
    Bad(String),
}

/// The time fields of a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Time {
    /// An expression that a schedule can have.
    Cron(String),
    /// One that it cannot; the reason.
    Refused(String),
}

const BLANKS: [char; 2] = [' ', '\t'];

/// Takes a line apart; `text` has no line end.
pub(super) fn read(text: &str) -> Line<'_> {
    let text = text.trim_start_matches(BLANKS);
    if text.is_empty() || text.starts_with('#') {
        return Line::Empty;
    }
    if let Some((name, value)) = setting(text) {
        return Line::Setting { name, value };
    }
    let (quiet, text) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text),
    };
    if let Some(word) = text.strip_prefix('@') {
        let (word, rest) = split_word(word);
        return Line::Job {
            time: alias(word),
            quiet,
            rest,
        };
    }
    fields(text, quiet)
}

fn fields(text: &str, quiet: bool) -> Line<'_> {
    let mut rest = text;
    let mut fields = Vec::with_capacity(5);
    for _ in 0..5 {
        let (field, after) = split_word(rest);
        if field.is_empty() {
            return Line::Bad(format!(
                "has {} words; a job needs five time fields and a command, a setting needs NAME=value",
                fields.len()
            ));
        }
        fields.push(field);
        rest = after;
    }
    let time = match fields.iter().find(|f| f.contains('~')) {
        Some(field) => Time::Refused(format!(
            "{field:?} draws a random value, another one at every start of cron; write one value, \
             such as the first of the range"
        )),
        None => Time::Cron(fields.join(" ")),
    };
    Line::Job { time, quiet, rest }
}

fn alias(word: &str) -> Time {
    match word.to_ascii_lowercase().as_str() {
        known @ ("yearly" | "annually" | "monthly" | "weekly" | "daily" | "midnight" | "hourly") => {
            Time::Cron(format!("@{known}"))
        }
        "every_minute" => Time::Cron("* * * * *".into()),
        "reboot" => Time::Refused(
            "@reboot names no time: it runs when a machine starts, and a scheduler has no such moment; \
             leave it to the machine's init system"
                .into(),
        ),
        other if !other.is_empty() && other.bytes().all(|b| b.is_ascii_digit()) => Time::Refused(
            format!("@{other} is an interval in seconds; put a schedule with \"every\": \"{other}s\""),
        ),
        _ => Time::Refused(format!(
            "@{word} is not known; use @yearly, @monthly, @weekly, @daily, @hourly or five fields"
        )),
    }
}

/// The first word and what follows it without the blanks between.
pub(super) fn split_word(text: &str) -> (&str, &str) {
    match text.find(BLANKS) {
        Some(end) => {
            let (word, rest) = text.split_at(end);
            (word, rest.trim_start_matches(BLANKS))
        }
        None => (text, ""),
    }
}

/// `NAME = value`, either side in matching quotes or bare.
fn setting(text: &str) -> Option<(String, String)> {
    let (name, after) = match text.chars().next()? {
        quote @ ('"' | '\'') => text.get(1..)?.split_once(quote)?,
        _ => {
            let end = text.find(|c: char| c == '=' || BLANKS.contains(&c))?;
            text.split_at(end)
        }
    };
    let value = after.trim_start_matches(BLANKS).strip_prefix('=')?;
    if name.is_empty() || name.starts_with(|c: char| c.is_ascii_digit() || "*@-,/".contains(c)) {
        return None;
    }
    Some((
        name.to_owned(),
        unquote(value.trim_matches(BLANKS)).to_owned(),
    ))
}

fn unquote(value: &str) -> &str {
    for quote in ['"', '\''] {
        let inner = value
            .strip_prefix(quote)
            .and_then(|v| v.strip_suffix(quote));
        if let Some(inner) = inner {
            return inner;
        }
    }
    value
}

/// Splits at the first bare `%`: the command, and the input with later `%` as line ends. `\%` is a percent sign.
pub(super) fn percent(text: &str) -> (String, Option<String>) {
    let mut command = String::new();
    let mut stdin: Option<String> = None;
    let mut letters = text.chars().peekable();
    while let Some(c) = letters.next() {
        let escaped = c == '\\' && letters.peek() == Some(&'%');
        if escaped {
            letters.next();
        }
        match &mut stdin {
            _ if escaped => stdin.as_mut().unwrap_or(&mut command).push('%'),
            None if c == '%' => stdin = Some(String::new()),
            Some(input) => input.push(if c == '%' { '\n' } else { c }),
            None => command.push(c),
        }
    }
    if let Some(input) = stdin.as_mut().filter(|i| !i.ends_with('\n')) {
        input.push('\n');
    }
    (command.trim_end_matches(BLANKS).to_owned(), stdin)
}
