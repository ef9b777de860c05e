//! Reading a configuration file: text to values, every mistake with its place.
//!
//! Callers: `config`. Invariant: what is not in [`KEYS`] is refused with the nearest key that is.

use std::fmt;
use std::path::{Path, PathBuf};

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::keys::{KEYS, Key, PEER_KEYS, PeerKey};
use super::{PeerConfig, ServeConfig};

/// One mistake: where, what, and how to mend it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Line and column in the file, both from 1; `None` when the mistake has no single place.
    pub place: Option<(usize, usize)>,
    /// The key concerned, such as `raft.heartbeat`; empty for a syntax error.
    pub key: String,
    /// What is wrong and what would be right.
    pub message: String,
}

impl Problem {
    pub(super) fn of_key(key: &str, message: impl Into<String>) -> Self {
        Self {
            place: None,
            key: key.into(),
            message: message.into(),
        }
    }
}

/// A configuration that cannot be used: every mistake that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    /// The file, if one was read.
    pub file: Option<PathBuf>,
    /// At least one.
    pub problems: Vec<Problem>,
}

impl ConfigError {
    pub(super) fn unreadable(path: &Path, error: &std::io::Error) -> Self {
        let message = format!("cannot be read: {error}; give the path of a TOML file to --config");
        Self::in_file(path, vec![Problem::of_key("", message)])
    }

    pub(super) fn in_file(path: &Path, problems: Vec<Problem>) -> Self {
        Self {
            file: Some(path.to_path_buf()),
            problems,
        }
    }

    pub(super) const fn in_flags(problems: Vec<Problem>) -> Self {
        Self {
            file: None,
            problems,
        }
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, problem) in self.problems.iter().enumerate() {
            if i > 0 {
                f.write_str("\n")?;
            }
            match &self.file {
                Some(path) => write!(f, "{}", path.display())?,
                None => f.write_str("configuration")?,
            }
            if let Some((line, column)) = problem.place {
                write!(f, ":{line}:{column}")?;
            }
            if !problem.key.is_empty() {
                write!(f, ": {}", problem.key)?;
            }
            write!(f, ": {}", problem.message)?;
        }
        Ok(())
    }
}

impl std::error::Error for ConfigError {}

/// Reads a whole file; does not compare keys with each other.
pub(super) fn parse(text: &str) -> Result<ServeConfig, Vec<Problem>> {
    let mut reader = Reader {
        text,
        problems: Vec::new(),
        config: ServeConfig::default(),
    };
    let (root, errors) = DeTable::parse_recoverable(text);
    for error in errors {
        reader.syntax(&error);
    }
    if reader.problems.is_empty() {
        reader.table("", root.get_ref());
    }
    if reader.problems.is_empty() {
        Ok(reader.config)
    } else {
        reader.problems.sort_by_key(|p| p.place);
        Err(reader.problems)
    }
}

struct Reader<'t> {
    text: &'t str,
    problems: Vec<Problem>,
    config: ServeConfig,
}

impl Reader<'_> {
    fn syntax(&mut self, error: &toml::de::Error) {
        let place = error.span().map(|span| self.place(span.start));
        self.problems.push(Problem {
            place,
            key: String::new(),
            message: format!("not TOML: {}", error.message().replace('\n', "; ")),
        });
    }

    fn wrong(&mut self, at: usize, key: &str, message: impl Into<String>) {
        let place = Some(self.place(at));
        self.problems.push(Problem {
            place,
            key: key.into(),
            message: message.into(),
        });
    }

    fn place(&self, offset: usize) -> (usize, usize) {
        let before = self.text.get(..offset).unwrap_or(self.text);
        let line = before.matches('\n').count() + 1;
        let column = before.rsplit('\n').next().map_or(0, |l| l.chars().count()) + 1;
        (line, column)
    }

    fn table(&mut self, section: &str, table: &DeTable<'_>) {
        for (name, value) in table {
            let at = name.span().start;
            let path = if section.is_empty() {
                name.get_ref().to_string()
            } else {
                format!("{section}.{}", name.get_ref())
            };
            if path == "peers" {
                self.peers(value);
            } else if let Some(key) = KEYS.iter().find(|k| k.path == path) {
                self.set(key, value);
            } else if is_section(&path) {
                match value.get_ref() {
                    DeValue::Table(inner) => self.table(&path, inner),
                    _ => self.wrong(at, &path, format!("is a section; write [{path}]")),
                }
            } else {
                self.wrong(at, &path, unknown(&path));
            }
        }
    }

    fn set(&mut self, key: &Key, value: &Spanned<DeValue<'_>>) {
        if let Err(message) = (key.set)(&mut self.config, value.get_ref()) {
            let hint = format!("{message} (allowed: {})", key.range);
            self.wrong(value.span().start, key.path, hint);
        }
    }

    fn peers(&mut self, value: &Spanned<DeValue<'_>>) {
        let DeValue::Array(items) = value.get_ref() else {
            self.wrong(
                value.span().start,
                "peers",
                "is a list; write [[peers]] once per node",
            );
            return;
        };
        for item in items {
            let DeValue::Table(table) = item.get_ref() else {
                self.wrong(
                    item.span().start,
                    "peers",
                    "write [[peers]] with id, peer_addr, api_url",
                );
                continue;
            };
            self.peer(item.span().start, table);
        }
    }

    fn peer(&mut self, at: usize, table: &DeTable<'_>) {
        let mut peer = PeerConfig {
            id: 0,
            peer_addr: String::new(),
            api_url: String::new(),
        };
        let mut seen = Vec::new();
        for (name, value) in table {
            let Some(key) = PEER_KEYS.iter().find(|k| k.name == name.get_ref().as_ref()) else {
                let known = names(PEER_KEYS);
                let what = format!("unknown key; [[peers]] has {known}");
                self.wrong(
                    name.span().start,
                    &format!("peers.{}", name.get_ref()),
                    what,
                );
                continue;
            };
            seen.push(key.name);
            if let Err(message) = (key.set)(&mut peer, value.get_ref()) {
                self.wrong(value.span().start, &format!("peers.{}", key.name), message);
            }
        }
        for key in PEER_KEYS.iter().filter(|k| !seen.contains(&k.name)) {
            self.wrong(
                at,
                "peers",
                format!("this node has no `{}`; add it", key.name),
            );
        }
        self.config.peers.push(peer);
    }
}

fn names(keys: &[PeerKey]) -> String {
    keys.iter().map(|k| k.name).collect::<Vec<_>>().join(", ")
}

fn is_section(path: &str) -> bool {
    KEYS.iter().any(|k| {
        k.path
            .strip_prefix(path)
            .is_some_and(|rest| rest.starts_with('.'))
    })
}

fn unknown(path: &str) -> String {
    let last = path.rsplit('.').next().unwrap_or(path);
    let nearest = KEYS
        .iter()
        .map(|k| {
            let own = k.path.rsplit('.').next().unwrap_or(k.path);
            let distance = distance(k.path, path).min(distance(own, last));
            (distance, k.path)
        })
        .min();
    match nearest {
        Some((d, key)) if d <= 3 => format!("unknown key; did you mean `{key}`?"),
        _ => "unknown key; config/reference.toml lists all of them".into(),
    }
}

/// Letters to insert, remove or change between two short texts.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, ca) in a.chars().enumerate() {
        let mut next = vec![i + 1];
        for (j, cb) in b.iter().enumerate() {
            let changed = row
                .get(j)
                .map_or(usize::MAX, |d| d + usize::from(ca != *cb));
            let removed = row.get(j + 1).map_or(usize::MAX, |d| d + 1);
            let added = next.last().map_or(usize::MAX, |d| d + 1);
            next.push(changed.min(removed).min(added));
        }
        row = next;
    }
    row.last().copied().unwrap_or(usize::MAX)
}
