//! A record beside the log of what the log must at least contain.
//!
//! Purpose: notice that a disk has silently lost what was once synced (a flipped bit in a write-ahead log is enough to make
//! RocksDB drop everything after it). A node that went on would forget its vote and entries that others count on.
//! Callers: [`super::rocks`](super) raises and lowers it; `node` opens it before the log.
//! Invariants:
//! 1. The record is a lower bound: it is raised only after a sync and lowered, synced, before a truncation.
//! 2. It is never the authority: it can stop a node, never change its log.

use std::path::{Path, PathBuf};

use bytes::Bytes;
use parking_lot::Mutex;
use xxhash_rust::xxh3::xxh3_64;

use super::durable;
use super::fields::{Reader, Writer};
use super::{LogStatus, LogVote};
use crate::fault::Fault;

const FORMAT: u8 = 0xA9;
const VERSION: u8 = 1;

/// What was durable once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Witnessed {
    /// The vote.
    pub vote: Option<LogVote>,
    /// The last index.
    pub last: Option<u64>,
}

/// Why a node must not go on with the log it finds.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the log has lost data that was durable: {what}. This node must not vote or acknowledge again. \
     In a cluster: remove it (`punctual cluster remove-member N`), empty its data directory, start it with --join under a \
     node_id that was never used, and add it (`punctual cluster add-member`). \
     A single node can be started once with --accept-data-loss"
)]
pub struct Loss {
    what: String,
}

fn encode(record: &Witnessed) -> Vec<u8> {
    let mut w = Writer::with_capacity(64);
    w.u8(FORMAT);
    w.u8(VERSION);
    w.bool(record.vote.is_some());
    if let Some(vote) = &record.vote {
        w.u64(vote.term);
        w.u64(vote.leader);
        w.bool(vote.committed);
    }
    w.bool(record.last.is_some());
    if let Some(last) = record.last {
        w.u64(last);
    }
    let sum = xxh3_64(w.written());
    w.u64(sum);
    w.finish()
}

fn decode(bytes: &[u8]) -> Result<Witnessed, Fault> {
    let what = "the record beside the log";
    let Some((body, sum)) = bytes.split_last_chunk::<8>() else {
        return Err(Fault::corrupt(format!("{what} is too short")));
    };
    if xxh3_64(body) != u64::from_le_bytes(*sum) {
        return Err(Fault::corrupt(format!("{what} has a wrong checksum")));
    }
    let mut r = Reader::new(Bytes::copy_from_slice(body), what);
    let (format, version) = (r.u8()?, r.u8()?);
    if format != FORMAT || version != VERSION {
        return Err(Fault::UnknownFormat(format!("{what}, version {version}")));
    }
    let vote = if r.bool()? {
        Some(LogVote {
            term: r.u64()?,
            leader: r.u64()?,
            committed: r.bool()?,
        })
    } else {
        None
    };
    let last = if r.bool()? { Some(r.u64()?) } else { None };
    r.end()?;
    Ok(Witnessed { vote, last })
}

#[derive(Default)]
struct Values {
    /// Durable in the log.
    durable: Witnessed,
    /// In the file.
    written: Witnessed,
}

/// The record of one node.
pub struct Witness {
    path: PathBuf,
    values: Mutex<Values>,
    /// Held while the file is written, so that a raise never overtakes a lowering.
    file: Mutex<()>,
}

impl Witness {
    /// Opens the record in `directory`, which must exist.
    ///
    /// # Errors
    /// [`Fault::Corrupt`] for a damaged record: treat it as a loss.
    pub fn open(directory: &Path) -> Result<Self, Fault> {
        let path = directory.join("witness");
        let written = match durable::read(&path)? {
            Some(bytes) => decode(&bytes)?,
            None => Witnessed::default(),
        };
        Ok(Self {
            path,
            values: Mutex::new(Values {
                durable: written,
                written,
            }),
            file: Mutex::new(()),
        })
    }

    /// Replaces the record by what `status` shows, whatever it said before: the way of `--accept-data-loss`.
    ///
    /// # Errors
    /// [`Fault::Storage`].
    pub fn reset(directory: &Path, status: &LogStatus) -> Result<(), Fault> {
        let record = Witnessed {
            vote: status.vote,
            last: status.last.map(|p| p.index),
        };
        durable::replace(&directory.join("witness"), &encode(&record))
    }

    /// Compares the log with the record.
    ///
    /// # Errors
    /// [`Loss`], for people, when the log holds less than it must.
    pub fn check(&self, status: &LogStatus) -> Result<(), Loss> {
        let record = self.values.lock().written;
        let last = status.last.map(|p| p.index);
        if last < record.last {
            return Err(Loss {
                what: format!(
                    "it ends at {} and once went to {}",
                    shown(last),
                    shown(record.last)
                ),
            });
        }
        if status.vote < record.vote {
            let term = |vote: Option<LogVote>| shown(vote.map(|v| v.term));
            return Err(Loss {
                what: format!(
                    "its vote is of term {} and was once of term {}",
                    term(status.vote),
                    term(record.vote)
                ),
            });
        }
        Ok(())
    }

    /// Notes what is durable now. Cheap; the file follows with [`Self::raise`].
    pub fn observe(&self, vote: Option<LogVote>, last: Option<u64>) {
        self.values.lock().durable = Witnessed { vote, last };
    }

    /// Writes what was observed, if it differs from the file. Blocks.
    ///
    /// # Errors
    /// [`Fault::Storage`].
    pub fn raise(&self) -> Result<(), Fault> {
        let _one_at_a_time = self.file.lock();
        let record = {
            let values = self.values.lock();
            if values.durable == values.written {
                return Ok(());
            }
            values.durable
        };
        self.write(record)
    }

    /// Makes sure, durably, that the record claims nothing above `after`. Blocks.
    ///
    /// # Errors
    /// [`Fault::Storage`]; then the truncation must not be carried out.
    pub fn lower(&self, after: Option<u64>) -> Result<(), Fault> {
        let _one_at_a_time = self.file.lock();
        let record = {
            let mut values = self.values.lock();
            values.durable.last = values.durable.last.min(after);
            let mut record = values.written;
            if record.last <= after {
                return Ok(());
            }
            record.last = after;
            record
        };
        self.write(record)
    }

    fn write(&self, record: Witnessed) -> Result<(), Fault> {
        durable::replace(&self.path, &encode(&record))?;
        self.values.lock().written = record;
        Ok(())
    }
}

fn shown(number: Option<u64>) -> String {
    number.map_or_else(|| "nothing".to_owned(), |n| n.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::log::LogPosition;

    fn status(term: u64, last: u64) -> LogStatus {
        LogStatus {
            vote: Some(LogVote {
                term,
                leader: 1,
                committed: true,
            }),
            purged: None,
            last: Some(LogPosition {
                term,
                leader: 1,
                index: last,
            }),
        }
    }

    fn fault(error: std::io::Error) -> Fault {
        Fault::storage("test directory", error)
    }

    #[test]
    fn shorter_log_and_older_vote_are_refused_until_the_loss_is_accepted() -> Result<(), Fault> {
        let dir = tempfile::tempdir().map_err(fault)?;
        let witness = Witness::open(dir.path())?;
        witness.observe(status(3, 10).vote, Some(10));
        witness.raise()?;
        let witness = Witness::open(dir.path())?;
        assert!(witness.check(&status(3, 10)).is_ok());
        assert!(witness.check(&status(4, 12)).is_ok());
        assert!(witness.check(&status(3, 9)).is_err());
        assert!(witness.check(&status(2, 10)).is_err());
        assert!(witness.check(&LogStatus::default()).is_err());
        Witness::reset(dir.path(), &status(2, 9))?;
        assert!(Witness::open(dir.path())?.check(&status(2, 9)).is_ok());
        Ok(())
    }

    #[test]
    fn lowering_is_on_disk_before_it_returns() -> Result<(), Fault> {
        let dir = tempfile::tempdir().map_err(fault)?;
        let witness = Witness::open(dir.path())?;
        witness.observe(status(3, 10).vote, Some(10));
        witness.raise()?;
        witness.lower(Some(6))?;
        assert!(Witness::open(dir.path())?.check(&status(3, 6)).is_ok());
        assert!(Witness::open(dir.path())?.check(&status(3, 5)).is_err());
        // A raise that follows must not bring the old bound back.
        witness.raise()?;
        assert!(Witness::open(dir.path())?.check(&status(3, 6)).is_ok());
        Ok(())
    }

    #[test]
    fn damaged_record_is_found() -> Result<(), Fault> {
        let dir = tempfile::tempdir().map_err(fault)?;
        let witness = Witness::open(dir.path())?;
        witness.observe(status(3, 10).vote, Some(10));
        witness.raise()?;
        let path = dir.path().join("witness");
        let good = std::fs::read(&path).map_err(fault)?;
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 4;
            std::fs::write(&path, &bad).map_err(fault)?;
            assert!(Witness::open(dir.path()).is_err(), "byte {at}");
        }
        Ok(())
    }
}
