//! Tests of the log in memory, and of the contract in [`super::super`] on it.

use bytes::Bytes;

use super::*;
use crate::store::log::{LogBody, LogPosition, LogVote};

fn record(term: u64, index: u64) -> LogRecord {
    LogRecord {
        position: LogPosition {
            term,
            leader: 1,
            index,
        },
        body: LogBody::Batch(Bytes::from(vec![7; 10])),
    }
}

/// A device whose syncs end when the test says so.
#[derive(Default)]
struct Manual(Mutex<Vec<Synced>>);

impl SyncDevice for Manual {
    fn sync(&self, _bytes: u64, done: Synced) {
        self.0.lock().push(done);
    }
}

fn flag() -> (Arc<Mutex<Vec<bool>>>, impl Fn() -> Synced) {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let out = Arc::clone(&seen);
    (seen, move || {
        let out = Arc::clone(&out);
        Box::new(move |r: Result<(), Fault>| out.lock().push(r.is_ok()))
    })
}

#[test]
fn callback_waits_for_the_sync_and_reads_do_not() -> Result<(), Fault> {
    let disk = MemDisk::new();
    let device = Arc::new(Manual::default());
    let log = MemLog::open(&disk, Arc::clone(&device) as Arc<dyn SyncDevice>);
    let (seen, synced) = flag();
    log.submit(LogWrite::Append(vec![record(1, 0), record(1, 1)]), synced())?;
    log.submit(LogWrite::Append(vec![record(1, 2)]), synced())?;
    assert_eq!(log.read(0, 9, u64::MAX)?.len(), 3);
    assert!(seen.lock().is_empty());
    let first = device.0.lock().remove(0);
    first(Ok(()));
    assert_eq!(
        *seen.lock(),
        vec![true],
        "the second write came after that sync began"
    );
    let second = device.0.lock().remove(0);
    second(Ok(()));
    assert_eq!(*seen.lock(), vec![true, true]);
    Ok(())
}

#[test]
fn crash_keeps_what_was_synced_and_a_prefix_of_the_rest() -> Result<(), Fault> {
    let disk = MemDisk::new();
    let device = Arc::new(Manual::default());
    let log = MemLog::open(&disk, Arc::clone(&device) as Arc<dyn SyncDevice>);
    let (_, synced) = flag();
    log.submit(LogWrite::Append(vec![record(1, 0)]), synced())?;
    device.0.lock().remove(0)(Ok(()));
    let vote = LogVote {
        term: 2,
        leader: 2,
        committed: false,
    };
    log.submit(LogWrite::Vote(vote), synced())?;
    log.submit(LogWrite::Append(vec![record(1, 1), record(1, 2)]), synced())?;
    disk.crash(1, 1);
    assert!(log.status().is_err(), "the old handle is dead");
    let log = MemLog::open(&disk, Arc::new(InstantSync));
    assert_eq!(log.status()?.vote, Some(vote));
    assert_eq!(log.status()?.last.map(|p| p.index), Some(1));
    Ok(())
}

#[test]
fn hole_is_refused_and_truncate_and_purge_keep_the_ends() -> Result<(), Fault> {
    let disk = MemDisk::new();
    let log = MemLog::open(&disk, Arc::new(InstantSync));
    let (_, synced) = flag();
    log.submit(
        LogWrite::Append((0..10).map(|i| record(1, i)).collect()),
        synced(),
    )?;
    assert!(
        log.submit(LogWrite::Append(vec![record(1, 11)]), synced())
            .is_err()
    );
    log.submit(LogWrite::TruncateAfter(Some(6)), synced())?;
    assert_eq!(log.status()?.last.map(|p| p.index), Some(6));
    log.submit(LogWrite::Append(vec![record(2, 7)]), synced())?;
    log.submit(LogWrite::Purge(record(1, 3).position), synced())?;
    assert_eq!(
        log.read(0, 100, u64::MAX)?
            .first()
            .map(|r| r.position.index),
        Some(4)
    );
    let per_entry = record(1, 0).weight();
    assert_eq!(log.offset(5)?, Some(5 * per_entry));
    log.submit(LogWrite::Purge(record(2, 20).position), synced())?;
    assert_eq!(log.status()?.last, Some(record(2, 20).position));
    log.submit(LogWrite::Append(vec![record(2, 21)]), synced())?;
    assert_eq!(
        log.read(21, 22, 0)?.len(),
        1,
        "at least one, whatever the bound"
    );
    Ok(())
}

#[test]
fn failed_sync_is_final() -> Result<(), Fault> {
    let disk = MemDisk::new();
    let device = Arc::new(Manual::default());
    let log = MemLog::open(&disk, Arc::clone(&device) as Arc<dyn SyncDevice>);
    let (seen, synced) = flag();
    log.submit(LogWrite::Append(vec![record(1, 0)]), synced())?;
    log.submit(LogWrite::Append(vec![record(1, 1)]), synced())?;
    let eio = std::io::Error::from_raw_os_error(5);
    device.0.lock().remove(0)(Err(Fault::storage("fdatasync", eio)));
    assert_eq!(*seen.lock(), vec![false, false]);
    assert!(log.status().is_err());
    assert!(
        log.submit(LogWrite::Append(vec![record(1, 2)]), synced())
            .is_err()
    );
    Ok(())
}
