//! The list of files that travels with a checkpoint.
//!
//! Purpose: tell a complete staging from one that only opens. RocksDB takes a cut manifest for a
//! shorter history and would come up with fewer rows.
//! Callers: `transfer` (written when a checkpoint is taken, verified and removed before a staging
//! is opened).
//! Format: a head line with the format's number; `<name> <length> <XXH3 sum or ->` for each file in
//! order of names; `sum <XXH3 sum of the lines before>`. Tables carry no sum here: their blocks
//! have their own.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::Path;
use std::{fs, io};

use xxhash_rust::xxh3::xxh3_64;

use super::directory::io_fault;
use crate::fault::Fault;

/// The list's own name.
pub(super) const NAME: &str = "LISTING";

const HEAD: &str = "punctual checkpoint, format ";
const FORMAT: &str = "1";

/// Writes the list of the files in `directory`.
pub(super) fn write(directory: &Path) -> Result<(), Fault> {
    let text = describe(directory)?;
    let path = directory.join(NAME);
    fs::write(&path, text).map_err(|e| io_fault("write", &path, e))
}

/// Checks that `directory` holds exactly the listed files, whole, and removes the list.
///
/// # Errors
/// [`Fault::UnknownFormat`] for a list of another build; [`Fault::Corrupt`] for anything
/// that does not match.
pub(super) fn verify_and_remove(directory: &Path) -> Result<(), Fault> {
    let path = directory.join(NAME);
    let text = match fs::read_to_string(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(Fault::corrupt("the checkpoint has no list of its files"));
        }
        read => read.map_err(|e| io_fault("read", &path, e))?,
    };
    let head = text.lines().next().unwrap_or_default();
    match head.strip_prefix(HEAD) {
        Some(FORMAT) => {}
        Some(other) => {
            return Err(Fault::UnknownFormat(format!(
                "checkpoint of format {other}"
            )));
        }
        None => return Err(Fault::corrupt("the checkpoint's list of files is damaged")),
    }
    let found = describe(directory)?;
    if found != text {
        let listed: BTreeSet<&str> = text.lines().collect();
        let differs = found.lines().find(|line| !listed.contains(line));
        let what = differs.unwrap_or("a file is missing");
        return Err(Fault::corrupt(format!(
            "the checkpoint differs from its list: {what}"
        )));
    }
    fs::remove_file(&path).map_err(|e| io_fault("remove", &path, e))
}

/// What the list of `directory` should say.
fn describe(directory: &Path) -> Result<String, Fault> {
    let mut lines = BTreeSet::new();
    let fault = |e| io_fault("list", directory, e);
    for entry in fs::read_dir(directory).map_err(fault)? {
        let entry = entry.map_err(fault)?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if name == NAME {
            continue;
        }
        let len = entry.metadata().map_err(fault)?.len();
        let sum = if name.ends_with(".sst") {
            "-".to_owned()
        } else {
            let path = entry.path();
            let bytes = fs::read(&path).map_err(|e| io_fault("read", &path, e))?;
            format!("{:016x}", xxh3_64(&bytes))
        };
        lines.insert(format!("{name} {len} {sum}"));
    }
    let mut text = format!("{HEAD}{FORMAT}\n");
    for line in lines {
        text.push_str(&line);
        text.push('\n');
    }
    let sum = xxh3_64(text.as_bytes());
    // Writing to a string cannot fail.
    let _ = writeln!(text, "sum {sum:016x}");
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled() -> tempfile::TempDir {
        let dir = tempfile::TempDir::new().unwrap();
        for (name, bytes) in [
            ("CURRENT", "MANIFEST-1"),
            ("MANIFEST-1", "abc"),
            ("1.sst", "rows"),
        ] {
            fs::write(dir.path().join(name), bytes).unwrap();
        }
        write(dir.path()).unwrap();
        dir
    }

    #[test]
    fn what_was_listed_verifies_once() {
        let dir = filled();
        verify_and_remove(dir.path()).unwrap();
        assert!(verify_and_remove(dir.path()).is_err(), "the list is gone");
    }

    #[test]
    fn a_missing_additional_cut_or_changed_file_is_damage() {
        let changes: [fn(&Path); 5] = [
            |dir| fs::remove_file(dir.join("1.sst")).unwrap(),
            |dir| fs::write(dir.join("2.sst"), "").unwrap(),
            |dir| fs::write(dir.join("1.sst"), "row").unwrap(),
            |dir| fs::write(dir.join("MANIFEST-1"), "abd").unwrap(),
            |dir| fs::write(dir.join(NAME), "abd").unwrap(),
        ];
        for (place, change) in changes.iter().enumerate() {
            let dir = filled();
            change(dir.path());
            let answer = verify_and_remove(dir.path());
            assert!(
                matches!(answer, Err(Fault::Corrupt(_))),
                "{place}: {answer:?}"
            );
        }
    }

    #[test]
    fn a_list_of_another_format_is_named_as_such() {
        let dir = filled();
        let path = dir.path().join(NAME);
        let text = fs::read_to_string(&path)
            .unwrap()
            .replace("format 1", "format 2");
        fs::write(&path, text).unwrap();
        let answer = verify_and_remove(dir.path());
        assert!(matches!(answer, Err(Fault::UnknownFormat(_))), "{answer:?}");
    }
}
