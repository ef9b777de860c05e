//! Which data directory each node number belongs to.
//!
//! Purpose: a node whose disk was lost must not come back empty under its old number: it has forgotten its votes and
//! what it acknowledged, and others count on both. So every data directory draws a random number when it is first used,
//! its *birth*, and every node keeps the births of the nodes it has met.
//! Callers: `node` opens it at start; `raft::net` compares births in every handshake.
//! Invariants:
//! 1. The own birth is on disk before anybody is told of it, and never changes.
//! 2. The first birth met under a number is kept for ever, also after that node was removed.
//! 3. At most [`NODES_MAX`] numbers are kept.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use parking_lot::Mutex;
use xxhash_rust::xxh3::xxh3_64;

use super::durable;
use crate::fault::Fault;

/// Node numbers kept; a cluster has nine members at most, and a number is used up only when a machine is replaced.
pub const NODES_MAX: usize = 10_000;

const HEAD: &str = "punctual births 1";

/// What a node says of its birth, compared with what is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Met {
    /// The one that is known, or the first under this number.
    Same,
    /// Another data directory than the one that is known under this number.
    Other,
}

/// The births that one node knows, its own included.
pub struct Births {
    /// `None` keeps them in memory only.
    path: Option<PathBuf>,
    own: u64,
    is_new: bool,
    known: Mutex<BTreeMap<u64, u64>>,
}

fn render(own: u64, known: &BTreeMap<u64, u64>) -> String {
    let mut text = format!("{HEAD}\nown {own:016x}\n");
    for (node, birth) in known {
        // Writing to a string cannot fail.
        let _infallible = writeln!(text, "node {node} {birth:016x}");
    }
    let sum = xxh3_64(text.as_bytes());
    let _infallible = writeln!(text, "checksum {sum:016x}");
    text
}

fn parse(text: &str) -> Option<(u64, BTreeMap<u64, u64>)> {
    let hex = |digits: &str| u64::from_str_radix(digits, 16).ok();
    let mut lines = text.lines().skip(1);
    let own = hex(lines.next()?.strip_prefix("own ")?)?;
    let mut known = BTreeMap::new();
    for line in lines {
        let Some(pair) = line.strip_prefix("node ") else {
            break;
        };
        let (node, birth) = pair.split_once(' ')?;
        known.insert(node.parse().ok()?, hex(birth)?);
    }
    // Whatever was edited, cut or repeated renders to another text.
    (render(own, &known) == text).then_some((own, known))
}

impl Births {
    /// Reads the file in `directory`, or begins one with `draw`, a random number. Blocks.
    ///
    /// # Errors
    /// [`Fault::Corrupt`], [`Fault::UnknownFormat`], [`Fault::Storage`].
    pub fn open(directory: &Path, draw: u64) -> Result<Self, Fault> {
        let path = directory.join("births");
        let (own, known, is_new) = match durable::read(&path)? {
            Some(bytes) => {
                let corrupt = || Fault::corrupt(format!("{} is damaged", path.display()));
                let text = String::from_utf8(bytes).map_err(|_| corrupt())?;
                if text.lines().next() != Some(HEAD) {
                    return Err(Fault::UnknownFormat(path.display().to_string()));
                }
                let (own, known) = parse(&text).ok_or_else(corrupt)?;
                (own, known, false)
            }
            None => {
                // Zero means "unknown" in a handshake.
                let own = draw.max(1);
                durable::replace(&path, render(own, &BTreeMap::new()).as_bytes())?;
                (own, BTreeMap::new(), true)
            }
        };
        Ok(Self {
            path: Some(path),
            own,
            is_new,
            known: Mutex::new(known),
        })
    }

    /// Births that are forgotten with the process, for tests.
    #[must_use]
    pub fn in_memory(own: u64) -> Self {
        Self {
            path: None,
            own,
            is_new: true,
            known: Mutex::default(),
        }
    }

    /// This node's own.
    #[must_use]
    pub const fn own(&self) -> u64 {
        self.own
    }

    /// Whether this start drew it.
    #[must_use]
    pub const fn is_new(&self) -> bool {
        self.is_new
    }

    /// What is known of `node`.
    #[must_use]
    pub fn of(&self, node: u64) -> Option<u64> {
        self.known.lock().get(&node).copied()
    }

    /// The largest number that is known.
    #[must_use]
    pub fn last_node(&self) -> Option<u64> {
        self.known.lock().keys().next_back().copied()
    }

    /// Compares, and keeps the birth of a node that is met for the first time: durable on return. Blocks then.
    ///
    /// # Errors
    /// [`Fault::Storage`]; [`Fault::Invariant`] for one number too many.
    pub fn meet(&self, node: u64, birth: u64) -> Result<Met, Fault> {
        let mut known = self.known.lock();
        match known.get(&node) {
            Some(before) if *before == birth => return Ok(Met::Same),
            Some(_) => return Ok(Met::Other),
            None => {}
        }
        if known.len() >= NODES_MAX {
            return Err(Fault::invariant("too many node numbers were used"));
        }
        let mut next = known.clone();
        next.insert(node, birth);
        if let Some(path) = &self.path {
            durable::replace(path, render(self.own, &next).as_bytes())?;
        }
        *known = next;
        Ok(Met::Same)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_birth_under_a_number_stays_also_after_a_restart() {
        let dir = tempfile::tempdir().expect("a directory");
        let births = Births::open(dir.path(), 7).expect("a first start");
        assert!(births.is_new());
        assert_eq!(births.meet(2, 20).expect("met"), Met::Same);
        assert_eq!(births.meet(3, 30).expect("met"), Met::Same);
        let again = Births::open(dir.path(), 8).expect("a second start");
        assert_eq!((again.own(), again.is_new()), (7, false));
        assert_eq!(again.meet(2, 20).expect("met"), Met::Same);
        assert_eq!(again.meet(3, 31).expect("met"), Met::Other);
        assert_eq!((again.of(3), again.last_node()), (Some(30), Some(3)));
    }

    #[test]
    fn any_flipped_bit_is_found() {
        let dir = tempfile::tempdir().expect("a directory");
        let births = Births::open(dir.path(), 7).expect("a first start");
        births.meet(2, 20).expect("met");
        let path = dir.path().join("births");
        let good = std::fs::read(&path).expect("the file");
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 1;
            std::fs::write(&path, &bad).expect("written");
            assert!(Births::open(dir.path(), 8).is_err(), "byte {at}");
        }
    }
}
