//! Tests of the log on disk: order, restart, damage, loss.

use std::path::Path;
use std::sync::mpsc;

use super::*;
use crate::store::log::mem::{InstantSync, MemDisk, MemLog};
use crate::store::log::{LogBody, LogPosition, LogVote};

fn io(error: std::io::Error) -> Fault {
    Fault::storage("test", error)
}

fn record(term: u64, index: u64, size: usize) -> LogRecord {
    LogRecord {
        position: LogPosition {
            term,
            leader: 1,
            index,
        },
        body: LogBody::Batch(Bytes::from(vec![index as u8; size])),
    }
}

fn records(term: u64, range: std::ops::Range<u64>) -> LogWrite {
    LogWrite::Append(range.map(|index| record(term, index, 100)).collect())
}

fn write(log: &dyn LogStore, write: LogWrite) -> Result<(), Fault> {
    let (tx, rx) = mpsc::channel();
    let synced = Box::new(move |outcome| {
        let _test_gone = tx.send(outcome);
    });
    log.submit(write, synced)?;
    rx.recv().map_err(|_| Fault::invariant("no callback"))?
}

fn indexes(log: &dyn LogStore) -> Result<Vec<(u64, u64)>, Fault> {
    let all = log.read(0, u64::MAX, u64::MAX)?;
    Ok(all
        .iter()
        .map(|r| (r.position.term, r.position.index))
        .collect())
}

#[test]
fn log_is_the_same_after_a_restart() -> Result<(), Fault> {
    let dir = tempfile::tempdir().map_err(io)?;
    let vote = LogVote {
        term: 3,
        leader: 2,
        committed: false,
    };
    let before = {
        let log = RocksLog::open(dir.path(), false)?;
        assert_eq!(log.status()?, LogStatus::default());
        write(&log, records(1, 0..50))?;
        write(&log, LogWrite::TruncateAfter(Some(29)))?;
        write(&log, records(2, 30..40))?;
        write(&log, LogWrite::Purge(record(1, 9, 0).position))?;
        write(&log, LogWrite::Vote(vote))?;
        let offset = log.offset(35)?;
        (log.status()?, indexes(&log)?, offset)
    };
    let log = RocksLog::open(dir.path(), false)?;
    assert_eq!((log.status()?, indexes(&log)?, log.offset(35)?), before);
    assert_eq!(log.status()?.vote, Some(vote));
    assert_eq!(indexes(&log)?.first(), Some(&(1, 10)));
    assert_eq!(indexes(&log)?.last(), Some(&(2, 39)));
    write(&log, records(2, 40..41))?;
    assert!(write(&log, records(2, 43..44)).is_err(), "a hole");
    Ok(())
}

#[test]
fn purge_beyond_the_end_starts_anew_there() -> Result<(), Fault> {
    let dir = tempfile::tempdir().map_err(io)?;
    {
        let log = RocksLog::open(dir.path(), false)?;
        write(&log, records(1, 0..5))?;
        write(&log, LogWrite::Purge(record(4, 100, 0).position))?;
        assert_eq!(log.status()?.last, Some(record(4, 100, 0).position));
        write(&log, records(4, 101..104))?;
    }
    let log = RocksLog::open(dir.path(), false)?;
    assert_eq!(indexes(&log)?, vec![(4, 101), (4, 102), (4, 103)]);
    write(&log, LogWrite::TruncateAfter(Some(100)))?;
    assert_eq!(log.status()?.last, Some(record(4, 100, 0).position));
    write(&log, records(5, 101..102))?;
    drop(log);
    let log = RocksLog::open(dir.path(), false)?;
    assert_eq!(indexes(&log)?, vec![(5, 101)]);
    Ok(())
}

/// The same random writes into both stores lead to the same log, across restarts.
#[test]
fn disk_and_memory_agree_on_random_histories() -> Result<(), Fault> {
    use rand::{RngExt, SeedableRng};
    let mut rng = rand::rngs::SmallRng::seed_from_u64(11);
    let dir = tempfile::tempdir().map_err(io)?;
    let mem = MemLog::open(&MemDisk::new(), Arc::new(InstantSync));
    let mut log = RocksLog::open(dir.path(), false)?;
    let mut term = 1;
    for step in 0..400u64 {
        let status = mem.status()?;
        let next = status.last.map_or(0, |p| p.index + 1);
        let first = status.purged.map_or(0, |p| p.index + 1);
        let op = match rng.random_range(0..10) {
            0 if next > first => {
                term += 1;
                LogWrite::TruncateAfter(rng.random_range(first..next).checked_sub(1))
            }
            1 if next > first => {
                let upto = rng.random_range(first..next.min(first + 20));
                let held = mem.read(upto, upto + 1, 1)?;
                let Some(entry) = held.first() else { continue };
                LogWrite::Purge(entry.position)
            }
            2 => LogWrite::Vote(LogVote {
                term: step,
                leader: 1,
                committed: rng.random(),
            }),
            _ => records(term, next..next + rng.random_range(1..9u64)),
        };
        write(&mem, op.clone())?;
        write(&log, op)?;
        if rng.random_range(0..40) == 0 {
            drop(log);
            log = RocksLog::open(dir.path(), false)?;
        }
        assert_eq!(log.status()?, mem.status()?, "step {step}");
    }
    assert_eq!(
        log.read(0, u64::MAX, u64::MAX)?,
        mem.read(0, u64::MAX, u64::MAX)?
    );
    Ok(())
}

#[test]
fn entries_beyond_memory_are_read_from_disk_within_bounds() -> Result<(), Fault> {
    let dir = tempfile::tempdir().map_err(io)?;
    let log = RocksLog::open(dir.path(), false)?;
    let size = 256 * 1024;
    for start in (0..120u64).step_by(4) {
        let batch = (start..start + 4).map(|i| record(1, i, size)).collect();
        write(&log, LogWrite::Append(batch))?;
    }
    assert!(log.shared.state.lock().tail_bytes <= TAIL_BYTES + 2 * 1024 * 1024);
    let bound = 4 * 1024 * 1024;
    let mut at = 0;
    while at < 120 {
        let taken = log.read(at, 120, bound)?;
        let bytes: u64 = taken.iter().map(LogRecord::weight).sum();
        assert!(!taken.is_empty() && bytes <= bound);
        assert_eq!(taken.first().map(|r| r.position.index), Some(at));
        at += taken.len() as u64;
    }
    assert_eq!(log.read(10, 12, u64::MAX)?.len(), 2);
    // Truncate into what only the disk holds.
    write(&log, LogWrite::TruncateAfter(Some(5)))?;
    write(&log, records(2, 6..8))?;
    assert_eq!(indexes(&log)?.last(), Some(&(2, 7)));
    Ok(())
}

fn newest_wal(dir: &Path) -> Result<std::path::PathBuf, Fault> {
    let mut logs: Vec<_> = std::fs::read_dir(dir.join("log"))
        .map_err(io)?
        .filter_map(|entry| entry.ok().map(|e| e.path()))
        .filter(|path| path.extension().is_some_and(|e| e == "log"))
        .collect();
    logs.sort();
    logs.pop().ok_or_else(|| Fault::invariant("no WAL"))
}

/// A copy taken as a killed process would leave it.
fn killed(log: &RocksLog, from: &Path) -> Result<tempfile::TempDir, Fault> {
    log.shared.witness.raise()?;
    let copy = tempfile::tempdir().map_err(io)?;
    std::fs::create_dir(copy.path().join("log")).map_err(io)?;
    std::fs::copy(from.join("witness"), copy.path().join("witness")).map_err(io)?;
    for entry in std::fs::read_dir(from.join("log")).map_err(io)? {
        let entry = entry.map_err(io)?;
        if entry.file_name() != "LOCK" {
            let to = copy.path().join("log").join(entry.file_name());
            std::fs::copy(entry.path(), to).map_err(io)?;
        }
    }
    Ok(copy)
}

#[test]
fn flipped_bit_in_the_write_ahead_log_never_passes_for_a_shorter_log() -> Result<(), Fault> {
    let dir = tempfile::tempdir().map_err(io)?;
    let log = RocksLog::open(dir.path(), false)?;
    for index in 0..200 {
        write(&log, records(1, index..index + 1))?;
    }
    let intact = killed(&log, dir.path())?;
    assert_eq!(indexes(&RocksLog::open(intact.path(), false)?)?.len(), 200);
    for part in 1..8 {
        let copy = killed(&log, dir.path())?;
        let wal = newest_wal(copy.path())?;
        let mut bytes = std::fs::read(&wal).map_err(io)?;
        let at = bytes.len() * part / 8;
        bytes[at] ^= 16;
        std::fs::write(&wal, bytes).map_err(io)?;
        assert!(RocksLog::open(copy.path(), false).is_err(), "part {part}");
    }
    Ok(())
}

#[test]
fn lost_log_is_refused_and_can_be_accepted_once() -> Result<(), Fault> {
    let dir = tempfile::tempdir().map_err(io)?;
    {
        let log = RocksLog::open(dir.path(), false)?;
        write(&log, records(1, 0..9))?;
    }
    std::fs::remove_dir_all(dir.path().join("log")).map_err(io)?;
    let refused = RocksLog::open(dir.path(), false).err();
    assert!(refused.is_some_and(|f| f.to_string().contains("--accept-data-loss")));
    drop(RocksLog::open(dir.path(), true)?);
    drop(RocksLog::open(dir.path(), false)?);
    Ok(())
}

#[test]
fn grouped_writers_share_syncs() -> Result<(), Fault> {
    let dir = tempfile::tempdir().map_err(io)?;
    let log = RocksLog::open(dir.path(), false)?;
    let (tx, rx) = mpsc::channel();
    for index in 0..500 {
        let tx = tx.clone();
        let synced = Box::new(move |outcome: Result<(), Fault>| {
            let _test_gone = tx.send(outcome.is_ok());
        });
        log.submit(records(1, index..index + 1), synced)?;
    }
    drop(tx);
    assert!(rx.iter().all(|ok| ok));
    assert_eq!(indexes(&log)?.len(), 500);
    Ok(())
}
