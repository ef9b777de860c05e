//! The only place that prints.
//!
//! Callers: every command. Invariants: text from a server or a file cannot move the cursor or change colours (control
//! characters are replaced); a closed pipe ends the output, not the program with a panic.
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "this is the place for it"
)]

use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;

use clap::ValueEnum;
use parking_lot::Mutex;
use serde::Serialize;

use super::exit::Code;
use super::failure::Failure;
use crate::client::Answer;

/// Form of the output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(super) enum Format {
    /// For people.
    #[default]
    Table,
    /// For programs.
    Json,
}

/// When colours are used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(super) enum Color {
    /// On a terminal, unless `NO_COLOR` is set or `TERM` is `dumb`.
    #[default]
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

type Sink = Mutex<Box<dyn Write + Send>>;

/// Standard output and error of a command.
pub(super) struct Output {
    format: Format,
    color: bool,
    out: Sink,
    err: Sink,
}

impl Output {
    pub(super) fn to_terminal(format: Format, color: Color) -> Self {
        let color = match color {
            Color::Always => true,
            Color::Never => false,
            Color::Auto => terminal_takes_color(),
        };
        Self::new(
            format,
            color,
            Box::new(io::stdout()),
            Box::new(io::stderr()),
        )
    }

    pub(super) fn new(
        format: Format,
        color: bool,
        out: Box<dyn Write + Send>,
        err: Box<dyn Write + Send>,
    ) -> Self {
        Self {
            format,
            color,
            out: Mutex::new(out),
            err: Mutex::new(err),
        }
    }

    /// Another handle on the same streams and settings, for tasks that outlive a call.
    pub(super) fn for_worker(&self) -> Self {
        Self::new(
            self.format,
            self.color,
            Box::new(io::stdout()),
            Box::new(io::stderr()),
        )
    }

    pub(super) const fn is_json(&self) -> bool {
        matches!(self.format, Format::Json)
    }

    /// An answer: for programs as it was sent, for people as `show` prints it.
    pub(super) fn answer<T>(&self, answer: &Answer<T>, show: impl FnOnce(&T)) {
        if self.is_json() {
            let text = answer.text.trim_end();
            put(&self.out, if text.is_empty() { "null" } else { text });
        } else {
            show(&answer.value);
        }
    }

    /// A value of our own making.
    pub(super) fn json<T: Serialize + ?Sized>(&self, value: &T) {
        match serde_json::to_string(value) {
            Ok(text) => put(&self.out, &text),
            Err(error) => put(&self.err, &format!("error: {error}")),
        }
    }

    /// A line for people on standard output.
    pub(super) fn line(&self, text: &str) {
        put(&self.out, &self.paint(&clean(text)));
    }

    /// A remark on standard error, in either format.
    pub(super) fn note(&self, text: &str) {
        put(&self.err, &clean(text));
    }

    /// Rows under headings; columns as wide as they need.
    pub(super) fn table(&self, headings: &[&str], rows: &[Vec<String>]) {
        let rows: Vec<Vec<String>> = rows
            .iter()
            .map(|r| r.iter().map(|c| clean(c)).collect())
            .collect();
        let mut widths: Vec<usize> = headings.iter().map(|h| h.chars().count()).collect();
        for row in &rows {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = (*width).max(cell.chars().count());
            }
        }
        let heading: Vec<String> = headings.iter().map(|h| (*h).to_owned()).collect();
        let line = aligned(&heading, &widths);
        put(
            &self.out,
            &if self.color {
                format!("\u{1b}[1m{line}\u{1b}[0m")
            } else {
                line
            },
        );
        for row in &rows {
            put(&self.out, &self.paint(&aligned(row, &widths)));
        }
    }

    /// Names and values below each other; empty values are left out.
    pub(super) fn record(&self, pairs: &[(&str, String)]) {
        let shown: Vec<_> = pairs.iter().filter(|(_, v)| !v.is_empty()).collect();
        let width = shown
            .iter()
            .map(|(n, _)| n.chars().count())
            .max()
            .unwrap_or(0);
        for (name, value) in shown {
            self.line(&format!("{name:width$}  {value}"));
        }
    }

    /// Text with line ends, indented.
    pub(super) fn block(&self, text: &str) {
        for line in text.lines() {
            self.line(&format!("    {line}"));
        }
    }

    pub(super) fn failure(&self, failure: &Failure) {
        let mark = if self.color {
            "\u{1b}[31merror:\u{1b}[0m"
        } else {
            "error:"
        };
        for (i, line) in failure.lines().iter().enumerate() {
            let line = clean(line);
            put(
                &self.err,
                &if i == 0 {
                    format!("{mark} {line}")
                } else {
                    line
                },
            );
        }
    }

    /// Bytes of a child, passed on as they are.
    pub(super) fn pass_on(&self, to_err: bool, bytes: &[u8]) {
        let sink = if to_err { &self.err } else { &self.out };
        let mut sink = sink.lock();
        // A closed pipe is nobody's mistake here.
        let _closed = sink.write_all(bytes).and_then(|()| sink.flush());
    }

    pub(super) fn completions(&self, shell: clap_complete::Shell, command: &mut clap::Command) {
        let mut script = Vec::new();
        clap_complete::generate(shell, command, "punctual", &mut script);
        self.pass_on(false, &script);
    }

    /// Colours the words that say how something stands.
    fn paint(&self, line: &str) -> String {
        if !self.color {
            return line.to_owned();
        }
        let words = line.split_inclusive(' ').map(|word| {
            let code = match word.trim_end() {
                "succeeded" | "active" | "created" | "ok" | "leader" => "32",
                "leased" | "ready" | "updated" | "backing_off" | "paused" | "draining" => "33",
                "dead_lettered" | "expired" | "refused" | "failed" | "lease_lost" => "31",
                "waiting" | "cancelled" | "completed" | "unchanged" => "2",
                _ => return word.to_owned(),
            };
            let text = word.trim_end();
            format!(
                "\u{1b}[{code}m{text}\u{1b}[0m{}",
                word.get(text.len()..).unwrap_or_default()
            )
        });
        words.collect()
    }
}

/// What clap has to say: help and version on standard output, mistakes on standard error.
pub(super) fn usage(error: &clap::Error) -> ExitCode {
    // A closed pipe is nobody's mistake here.
    let _closed = error.print();
    if error.use_stderr() {
        Code::Usage.into()
    } else {
        Code::Ok.into()
    }
}

#[allow(
    clippy::disallowed_methods,
    reason = "the conventions of terminals are environment variables"
)]
fn terminal_takes_color() -> bool {
    let set = |name| std::env::var(name).is_ok_and(|v| !v.is_empty());
    let dumb = std::env::var("TERM").is_ok_and(|t| t == "dumb");
    io::stdout().is_terminal() && !set("NO_COLOR") && !dumb
}

fn aligned(cells: &[String], widths: &[usize]) -> String {
    let mut line = String::new();
    for (i, cell) in cells.iter().enumerate() {
        if i > 0 {
            line.push_str("  ");
        }
        line.push_str(cell);
        let fill = widths
            .get(i)
            .map_or(0, |w| w.saturating_sub(cell.chars().count()));
        line.extend(std::iter::repeat_n(' ', fill));
    }
    line.trim_end().to_owned()
}

/// Replaces what a terminal would obey.
fn clean(text: &str) -> String {
    text.chars()
        .map(|c| {
            if c.is_control() && c != '\t' {
                '\u{fffd}'
            } else {
                c
            }
        })
        .collect()
}

fn put(sink: &Sink, line: &str) {
    let mut sink = sink.lock();
    // A closed pipe (`| head`) ends the output; there is nobody to tell.
    let _closed = writeln!(sink, "{line}");
}

#[cfg(test)]
pub(super) mod testing {
    use std::sync::Arc;

    use super::*;

    /// Collects what is printed.
    #[derive(Clone, Default)]
    pub(in crate::cli) struct Pages(Arc<Mutex<Vec<u8>>>);

    impl Write for Pages {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl Pages {
        pub(in crate::cli) fn text(&self) -> String {
            String::from_utf8(self.0.lock().clone()).unwrap()
        }
    }

    pub(in crate::cli) fn captured(format: Format, color: bool) -> (Output, Pages, Pages) {
        let (out, err) = (Pages::default(), Pages::default());
        let output = Output::new(format, color, Box::new(out.clone()), Box::new(err.clone()));
        (output, out, err)
    }
}

#[cfg(test)]
mod tests {
    use super::testing::captured;
    use super::*;

    #[test]
    fn tables_are_aligned_without_trailing_blanks() {
        let (output, out, _) = captured(Format::Table, false);
        let row = |a: &str, b: &str| vec![a.to_owned(), b.to_owned()];
        output.table(
            &["ID", "STATE"],
            &[row("long-name", "ready"), row("é", "succeeded")],
        );
        assert_eq!(
            out.text(),
            "ID         STATE\nlong-name  ready\né          succeeded\n"
        );
    }

    #[test]
    fn text_from_elsewhere_cannot_command_the_terminal() {
        let (output, out, _) = captured(Format::Table, false);
        output.line("a\u{1b}[2Jb\rc\u{7}");
        assert_eq!(out.text(), "a\u{fffd}[2Jb\u{fffd}c\u{fffd}\n");
    }

    #[test]
    fn colours_are_added_to_states_only_when_wanted() {
        let (output, out, _) = captured(Format::Table, true);
        output.line("e1  succeeded  x");
        assert_eq!(out.text(), "e1  \u{1b}[32msucceeded\u{1b}[0m  x\n");
    }

    #[test]
    fn a_problem_shows_detail_place_and_code() {
        let (output, _, err) = captured(Format::Table, false);
        let problem = crate::wire::Problem {
            status: 422,
            code: "invalid_request".into(),
            detail: "Fields are wrong.".into(),
            errors: vec![crate::wire::FieldError {
                pointer: "/rule/cron".into(),
                code: "cron_syntax".into(),
                detail: "\"61\" is above 59".into(),
            }],
            ..crate::wire::Problem::default()
        };
        let failure = Failure::Call(crate::client::Error::Problem(Box::new(problem)));
        output.failure(&failure);
        assert_eq!(
            err.text(),
            "error: Fields are wrong. (422 invalid_request)\n  at /rule/cron: \"61\" is above 59\n"
        );
        assert_eq!(failure.code(), Code::Failed);
    }
}
