//! Where the state lies on disk.
//!
//! Purpose: name the directories, switch between them atomically, remove what a killed process
//! left.
//! Callers: `store::rocks` only. The data directory must be held by one process (`node` locks it).
//!
//! ```text
//! <data>/state/CURRENT          names the generation in use; written aside, synced, renamed
//! <data>/state/<generation>/    a RocksDB instance; not named by CURRENT: staging or leftover
//! <data>/state/creating/        the first instance until it is complete
//! <data>/state/checkpoint-<n>/  hard links of an image being sent
//! ```
//!
//! Invariants:
//! 1. A numbered directory is never renamed once RocksDB has opened it, and its number is never
//!    used again while CURRENT names a lower one.
//! 2. Nothing is deleted before an instance named by CURRENT has opened.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use xxhash_rust::xxh3::xxh3_64;

use crate::fault::Fault;

const POINTER: &str = "CURRENT";
const POINTER_ASIDE: &str = "CURRENT.tmp";
const CREATING: &str = "creating";
const CHECKPOINT_PREFIX: &str = "checkpoint-";

/// First line of the pointer file. A build that changes the layout raises the number.
const POINTER_HEAD: &str = "punctual state directory, format 1";

/// A directory that removes itself when the last user is gone, if it was told to.
pub(super) struct Directory {
    path: PathBuf,
    remove: AtomicBool,
}

impl Directory {
    pub(super) fn new(path: PathBuf, remove: bool) -> Arc<Self> {
        let remove = AtomicBool::new(remove);
        Arc::new(Self { path, remove })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Says whether the directory goes with its last user.
    pub(super) fn set_remove(&self, remove: bool) {
        self.remove.store(remove, Ordering::Relaxed);
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        if *self.remove.get_mut()
            && let Err(error) = remove_tree(&self.path)
        {
            // Only space is lost, and the next start removes it.
            tracing::warn!(path = %self.path.display(), %error, "directory not removed");
        }
    }
}

/// The `state` directory of a node.
pub(super) struct Layout {
    root: PathBuf,
}

impl Layout {
    /// The layout below `data_dir`, made if missing.
    pub(super) fn open(data_dir: &Path) -> Result<Self, Fault> {
        let root = data_dir.join("state");
        fs::create_dir_all(&root).map_err(|e| io_fault("create", &root, e))?;
        sync_dir(data_dir)?;
        Ok(Self { root })
    }

    pub(super) fn generation(&self, number: u64) -> PathBuf {
        self.root.join(number.to_string())
    }

    pub(super) fn checkpoint(&self, number: u64) -> PathBuf {
        self.root.join(format!("{CHECKPOINT_PREFIX}{number}"))
    }

    /// An empty place for the first instance, free of what an earlier attempt left.
    pub(super) fn creating(&self) -> Result<PathBuf, Fault> {
        let path = self.root.join(CREATING);
        remove_tree(&path).map_err(|e| io_fault("remove", &path, e))?;
        Ok(path)
    }

    /// Makes the closed instance in [`Layout::creating`] generation `number`.
    pub(super) fn created(&self, number: u64) -> Result<(), Fault> {
        let from = self.root.join(CREATING);
        sync_dir(&from)?;
        fs::rename(&from, self.generation(number)).map_err(|e| io_fault("rename", &from, e))?;
        sync_dir(&self.root)
    }

    /// The generation that CURRENT names; `None` without a CURRENT.
    ///
    /// # Errors
    /// [`Fault::UnknownFormat`] for a layout of another build, [`Fault::Corrupt`] for a
    /// damaged file.
    pub(super) fn current(&self) -> Result<Option<u64>, Fault> {
        let path = self.root.join(POINTER);
        match fs::read(&path) {
            Ok(bytes) => parse_pointer(&bytes).map(Some),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(io_fault("read", &path, error)),
        }
    }

    /// Every numbered directory, ascending.
    pub(super) fn generations(&self) -> Result<Vec<u64>, Fault> {
        let names = self.names()?;
        let mut found: Vec<u64> = names.iter().filter_map(|name| number(name)).collect();
        found.sort_unstable();
        Ok(found)
    }

    /// First half of a switch: the new pointer, synced, beside the old one.
    pub(super) fn write_pointer_aside(&self, generation: u64) -> Result<(), Fault> {
        let path = self.root.join(POINTER_ASIDE);
        let write = || {
            let mut file = File::create(&path)?;
            file.write_all(pointer(generation).as_bytes())?;
            file.sync_all()
        };
        write().map_err(|e| io_fault("write", &path, e))
    }

    /// Second half: the new pointer replaces the old one, durably.
    pub(super) fn switch_pointer(&self) -> Result<(), Fault> {
        let aside = self.root.join(POINTER_ASIDE);
        fs::rename(&aside, self.root.join(POINTER)).map_err(|e| io_fault("rename", &aside, e))?;
        sync_dir(&self.root)
    }

    /// Removes what a killed process left beside generation `current`. Names that are not ours
    /// stay.
    pub(super) fn remove_leftovers(&self, current: u64) -> Result<(), Fault> {
        for name in self.names()? {
            let leftover = match number(&name) {
                Some(number) => number != current,
                None => {
                    name == CREATING || name == POINTER_ASIDE || name.starts_with(CHECKPOINT_PREFIX)
                }
            };
            if leftover {
                let path = self.root.join(&name);
                remove_tree(&path).map_err(|e| io_fault("remove", &path, e))?;
            }
        }
        Ok(())
    }

    fn names(&self) -> Result<Vec<String>, Fault> {
        let fault = |e| io_fault("list", &self.root, e);
        let mut names = Vec::new();
        for entry in fs::read_dir(&self.root).map_err(fault)? {
            if let Ok(name) = entry.map_err(fault)?.file_name().into_string() {
                names.push(name);
            }
        }
        Ok(names)
    }
}

/// Syncs the directory itself: its names.
pub(super) fn sync_dir(path: &Path) -> Result<(), Fault> {
    let sync = || File::open(path)?.sync_all();
    sync().map_err(|e| io_fault("sync", path, e))
}

/// An error of the file system, with the path.
pub(super) fn io_fault(doing: &str, path: &Path, error: io::Error) -> Fault {
    Fault::storage(format!("{doing} {}", path.display()), error)
}

/// Removes a file or directory, present or not.
fn remove_tree(path: &Path) -> io::Result<()> {
    let removed = match fs::symlink_metadata(path) {
        Ok(meta) if meta.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
        Err(error) => Err(error),
    };
    match removed {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// The number that a generation's directory name spells, in its one spelling.
fn number(name: &str) -> Option<u64> {
    let number: u64 = name.parse().ok()?;
    (number.to_string() == name).then_some(number)
}

fn pointer(generation: u64) -> String {
    let text = format!("{POINTER_HEAD}\ngeneration {generation}\n");
    let sum = xxh3_64(text.as_bytes());
    format!("{text}sum {sum:016x}\n")
}

fn parse_pointer(bytes: &[u8]) -> Result<u64, Fault> {
    let damaged = || Fault::corrupt("the state's CURRENT file is damaged");
    let text = str::from_utf8(bytes).map_err(|_| damaged())?;
    let mut lines = text.lines();
    let head = lines.next().unwrap_or_default();
    if head != POINTER_HEAD {
        let (known, _) = POINTER_HEAD.rsplit_once(' ').unwrap_or_default();
        return match head.strip_prefix(known) {
            Some(format) => Err(Fault::UnknownFormat(format!(
                "state directory of format{format}"
            ))),
            None => Err(damaged()),
        };
    }
    let line = lines
        .next()
        .and_then(|line| line.strip_prefix("generation "));
    let generation = line.and_then(number).ok_or_else(damaged)?;
    if pointer(generation) != text {
        return Err(damaged());
    }
    Ok(generation)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pointer_reads_back() {
        for generation in [0, 1, 42, u64::MAX] {
            let text = pointer(generation);
            assert_eq!(parse_pointer(text.as_bytes()).unwrap(), generation);
        }
    }

    #[test]
    fn any_flipped_bit_or_missing_byte_of_a_pointer_is_refused() {
        let good = pointer(42).into_bytes();
        for place in 0..good.len() {
            assert!(parse_pointer(&good[..place]).is_err());
            for bit in 0..8 {
                let mut bad = good.clone();
                bad[place] ^= 1 << bit;
                assert!(parse_pointer(&bad).is_err(), "byte {place}, bit {bit}");
            }
        }
    }

    #[test]
    fn a_pointer_of_another_format_is_named_as_such() {
        let text = pointer(1).replace("format 1", "format 12");
        let fault = parse_pointer(text.as_bytes()).unwrap_err();
        assert!(
            matches!(&fault, Fault::UnknownFormat(what) if what.contains("12")),
            "{fault}"
        );
    }

    #[test]
    fn only_canonical_numbers_name_generations() {
        assert_eq!(number("7"), Some(7));
        for name in ["07", "+7", "-7", "7a", "", "checkpoint-7"] {
            assert_eq!(number(name), None, "{name}");
        }
    }
}
