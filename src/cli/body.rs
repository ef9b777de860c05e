//! JSON bodies from files and flags.
//!
//! Callers: verbs that write. Invariant: what a file holds is sent as it is, so that the server judges every field of it;
//! flags stand over the file.

use std::io::Read;
use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::{Map, Value};

use super::failure::Failure;

/// Largest file that is read.
const FILE_MAX: u64 = 8 << 20;

/// An object under way.
#[derive(Debug, Default)]
pub(super) struct Body(Map<String, Value>);

impl Body {
    /// From a JSON file (`-`: standard input), or empty.
    pub(super) fn from_file(path: Option<&Path>) -> Result<Self, Failure> {
        let Some(path) = path else {
            return Ok(Self::default());
        };
        let text = read_text(path)?;
        match serde_json::from_str::<Value>(&text) {
            Ok(Value::Object(map)) => Ok(Self(map)),
            Ok(_) => Err(Failure::usage(format!(
                "{}: is no JSON object",
                path.display()
            ))),
            Err(error) => Err(Failure::usage(format!("{}: {error}", path.display()))),
        }
    }

    /// Sets a field when there is a value.
    pub(super) fn set(&mut self, name: &str, value: Option<impl Into<Value>>) {
        if let Some(value) = value {
            self.0.insert(name.to_owned(), value.into());
        }
    }

    /// Sets a field of an inner object.
    pub(super) fn set_in(&mut self, outer: &str, name: &str, value: Option<impl Into<Value>>) {
        let Some(value) = value else { return };
        let inner = self
            .0
            .entry(outer)
            .or_insert_with(|| Value::Object(Map::new()));
        if !inner.is_object() {
            *inner = Value::Object(Map::new());
        }
        if let Value::Object(map) = inner {
            map.insert(name.to_owned(), value.into());
        }
    }

    /// Drops fields of an inner object that another one now takes the place of.
    pub(super) fn drop_in(&mut self, outer: &str, names: &[&str]) {
        if let Some(Value::Object(map)) = self.0.get_mut(outer) {
            for name in names {
                map.remove(*name);
            }
        }
    }

    /// Adds pairs to an inner object.
    pub(super) fn add_pairs(&mut self, outer: &str, pairs: &[(String, String)]) {
        for (name, value) in pairs {
            self.set_in(outer, name, Some(value.clone()));
        }
    }

    /// Whether a field is there.
    pub(super) fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    /// The object.
    pub(super) fn value(self) -> Value {
        Value::Object(self.0)
    }
}

/// A payload on the command line.
#[derive(Debug, Args)]
pub(super) struct PayloadArgs {
    /// What the worker is given, as JSON.
    #[arg(long, value_name = "JSON", conflicts_with = "payload_file")]
    payload: Option<String>,
    /// The same from a file; `-` is standard input.
    #[arg(long, value_name = "FILE")]
    payload_file: Option<PathBuf>,
}

impl PayloadArgs {
    pub(super) fn read(&self) -> Result<Option<Value>, Failure> {
        let (name, text) = match (&self.payload, &self.payload_file) {
            (Some(text), _) => ("--payload".to_owned(), text.clone()),
            (None, Some(path)) => (path.display().to_string(), read_text(path)?),
            (None, None) => return Ok(None),
        };
        serde_json::from_str(&text).map(Some).map_err(|e| {
            Failure::usage(format!(
                "{name}: {e}; a text is JSON only in quotes, such as '\"text\"'"
            ))
        })
    }
}

/// The text of a file; `-` is standard input.
pub(super) fn read_text(path: &Path) -> Result<String, Failure> {
    let bytes = read_bytes(path)?;
    String::from_utf8(bytes)
        .map_err(|e| Failure::usage(format!("{}: is not UTF-8: {e}", path.display())))
}

/// The bytes of a file; `-` is standard input.
pub(super) fn read_bytes(path: &Path) -> Result<Vec<u8>, Failure> {
    let failed = |e: std::io::Error| Failure::usage(format!("{}: {e}", path.display()));
    let mut bytes = Vec::new();
    let source: Box<dyn Read> = if path == Path::new("-") {
        Box::new(std::io::stdin())
    } else {
        Box::new(std::fs::File::open(path).map_err(failed)?)
    };
    source
        .take(FILE_MAX + 1)
        .read_to_end(&mut bytes)
        .map_err(failed)?;
    if bytes.len() as u64 > FILE_MAX {
        return Err(Failure::usage(format!(
            "{}: has more than 8 MiB",
            path.display()
        )));
    }
    Ok(bytes)
}
