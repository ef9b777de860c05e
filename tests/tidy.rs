//! The layer test and the style rules that a compiler does not know.
//!
//! Purpose: fail when a module imports what it may not, when a file or function outgrows its bound, when a module has no
//! docs, or when a name that says nothing creeps in. It reads source text; it knows no types.

#![allow(clippy::expect_used, reason = "a test fails by panicking")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Who may use whom (`crate::X` in product code; tests are free). What is missing here may use nothing of ours.
const LAYERS: &[(&str, &[&str])] = &[
    ("time", &[]),
    ("ids", &[]),
    ("fault", &[]),
    ("rt", &["time"]),
    ("model", &["time", "ids", "store", "command"]),
    ("command", &["model", "time", "ids", "fault", "store"]),
    ("calendar", &["model", "time"]),
    (
        "store",
        &["fault", "ids", "time", "model", "command", "state", "rt"],
    ),
    (
        "state",
        &["command", "model", "store", "time", "ids", "fault"],
    ),
    (
        "raft",
        &["state", "store", "command", "fault", "time", "rt", "ids"],
    ),
    (
        "leader",
        &[
            "command", "raft", "state", "store", "calendar", "model", "time", "ids", "fault", "rt",
        ],
    ),
    (
        "wire",
        &[
            "model", "time", "ids", "calendar", "command", "state", "store",
        ],
    ),
    ("config", &["calendar", "time"]),
    (
        "api",
        &[
            "wire", "leader", "raft", "state", "store", "command", "calendar", "model", "time",
            "ids", "fault", "rt",
        ],
    ),
    (
        "node",
        &[
            "api", "leader", "raft", "state", "store", "config", "calendar", "time", "fault", "rt",
            "ids",
        ],
    ),
    ("client", &["wire", "time"]),
    ("worker", &["client", "wire", "time"]),
    ("crontab", &["calendar", "model", "time", "wire"]),
    (
        "cli",
        &[
            "client", "worker", "wire", "crontab", "config", "node", "calendar", "model", "time",
            "state", "store", "ids", "fault",
        ],
    ),
];

const FILE_LINES_MAX: usize = 600;
const FUNCTION_LINES_MAX: usize = 70;
const EMPTY_NAMES: &[&str] = &[
    "utils", "util", "common", "manager", "helper", "helpers", "misc",
];
/// Nothing outside `raft` may name an openraft type; nothing but `raft`'s own and `store::log` may.
const OPENRAFT_ONLY_IN: &[&str] = &["src/raft"];

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn rust_files(dir: &Path, into: &mut Vec<PathBuf>) {
    let Ok(entries) = fs::read_dir(dir) else {
        return;
    };
    for entry in entries.flatten() {
        let path = entry.path();
        if path.is_dir() {
            rust_files(&path, into);
        } else if path.extension().is_some_and(|e| e == "rs") {
            into.push(path);
        }
    }
}

fn sources() -> BTreeMap<String, String> {
    let mut files = Vec::new();
    for dir in [
        "src",
        "raft-tests/src",
        "jepsen/src",
        "jepsen/tests",
        "tests",
    ] {
        rust_files(&root().join(dir), &mut files);
    }
    assert!(
        files.len() > 30,
        "found only {} files: is the path right?",
        files.len()
    );
    let relative = |p: &Path| {
        p.strip_prefix(root())
            .unwrap_or(p)
            .to_string_lossy()
            .into_owned()
    };
    files
        .iter()
        .map(|p| {
            (
                relative(p),
                fs::read_to_string(p).expect("a readable source file"),
            )
        })
        .collect()
}

fn is_test_file(path: &str) -> bool {
    !path.starts_with("src/")
        || path.split('/').any(|part| {
            let stem = part.trim_end_matches(".rs");
            stem.ends_with("tests") || matches!(stem, "testkit" | "testing" | "conformance")
        })
}

/// Product code of a file: up to its test module.
fn product(text: &str) -> &str {
    text.split("#[cfg(test)]\nmod tests {")
        .next()
        .unwrap_or(text)
}

fn layer_of(path: &str) -> Option<&str> {
    let rest = path.strip_prefix("src/")?;
    let first = rest.split('/').next()?;
    Some(first.trim_end_matches(".rs"))
}

fn uses(text: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for line in text.lines() {
        let code = line.split("//").next().unwrap_or_default();
        for part in code.split("crate::").skip(1) {
            let name: String = part
                .chars()
                .take_while(|c| c.is_ascii_alphanumeric() || *c == '_')
                .collect();
            found.insert(name);
        }
    }
    found
}

#[test]
fn modules_import_only_what_their_layer_allows() {
    let allowed: BTreeMap<&str, &[&str]> = LAYERS.iter().copied().collect();
    let mut broken = Vec::new();
    for (path, text) in &sources() {
        let Some(layer) = layer_of(path).filter(|l| !matches!(*l, "lib" | "main")) else {
            continue;
        };
        if is_test_file(path) {
            continue;
        }
        let Some(may) = allowed.get(layer) else {
            broken.push(format!(
                "{path}: module {layer} is not in the table of layers"
            ));
            continue;
        };
        for used in uses(product(text)) {
            let known = allowed.contains_key(used.as_str());
            if known && used != layer && !may.contains(&used.as_str()) {
                broken.push(format!("{path}: {layer} may not use {used}"));
            }
        }
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

#[test]
fn the_layer_test_sees_a_forbidden_import() {
    assert!(uses("use crate::leader::Claim; // crate::api").contains("leader"));
    assert!(!uses("// crate::api is named in a comment only").contains("api"));
}

#[test]
fn openraft_is_named_only_inside_raft() {
    let broken: Vec<_> = sources()
        .into_iter()
        .filter(|(path, _)| path.starts_with("src/"))
        .filter(|(path, _)| !OPENRAFT_ONLY_IN.iter().any(|dir| path.starts_with(dir)))
        .filter(|(path, text)| !is_test_file(path) && uses_openraft(text))
        .map(|(path, _)| path)
        .collect();
    assert!(broken.is_empty(), "openraft leaks into {broken:?}");
}

fn uses_openraft(text: &str) -> bool {
    text.lines().any(|l| {
        l.split("//")
            .next()
            .is_some_and(|code| code.contains("openraft::"))
    })
}

#[test]
fn files_are_short_documented_and_named() {
    let mut broken = Vec::new();
    for (path, text) in &sources() {
        let lines = text.lines().count();
        if lines > FILE_LINES_MAX {
            broken.push(format!(
                "{path}: {lines} lines; the bound is {FILE_LINES_MAX}"
            ));
        }
        if !text.starts_with("//!") {
            broken.push(format!("{path}: no module doc on its first line"));
        }
        let stem = Path::new(path)
            .file_stem()
            .map(|s| s.to_string_lossy().into_owned());
        if stem.is_some_and(|s| EMPTY_NAMES.contains(&s.as_str())) {
            broken.push(format!("{path}: the name says nothing"));
        }
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

/// Functions as rustfmt lays them out: from the line with `fn` to the closing brace at the same indentation.
fn long_functions(path: &str, text: &str) -> Vec<String> {
    let lines: Vec<&str> = text.lines().collect();
    let mut found = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        let code = line.trim_start();
        let indent = line.len() - code.len();
        let is_fn = [
            "fn ",
            "pub fn ",
            "async fn ",
            "pub async fn ",
            "const fn ",
            "pub const fn ",
        ]
        .iter()
        .any(|p| code.starts_with(p))
            || (code.starts_with("pub(") && code.contains(" fn "));
        if !is_fn {
            continue;
        }
        let closing = format!("{}}}", " ".repeat(indent));
        let end = lines.iter().skip(at).position(|l| {
            *l == closing || l.ends_with(';') && l.len() - l.trim_start().len() == indent
        });
        let length = end.map_or(1, |e| e + 1);
        if length > FUNCTION_LINES_MAX {
            found.push(format!(
                "{path}:{}: {length} lines; the bound is 70",
                at + 1
            ));
        }
    }
    found
}

#[test]
fn functions_are_short() {
    let broken: Vec<_> = sources()
        .iter()
        .flat_map(|(path, text)| long_functions(path, text))
        .collect();
    assert!(broken.is_empty(), "{}", broken.join("\n"));
    let long = format!("fn f() {{\n{}}}\n", "    x();\n".repeat(80));
    assert_eq!(
        long_functions("x.rs", &long).len(),
        1,
        "the test sees a long function"
    );
}
