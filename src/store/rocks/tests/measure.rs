//! Figures of the store on this machine, not checks:
//! `cargo test --release --lib -- --ignored --nocapture --test-threads=1 rocks::tests::measure`.

#![allow(
    clippy::disallowed_methods,
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    reason = "it measures real time and rounds"
)]

use std::time::{Duration, Instant};

use super::*;
use crate::store::{Txn, WriteBatch};

const BATCH: u64 = 256;

fn id(n: u64) -> [u8; 16] {
    let high = n.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let low = (n ^ 0x5bd1_e995).wrapping_mul(0xff51_afd7_ed55_8ccd);
    (u128::from(high) << 64 | u128::from(low)).to_be_bytes()
}

fn due_key(n: u64) -> Vec<u8> {
    let due = 1_760_000_000_000 + n * 7;
    [&due.to_be_bytes()[..], &id(n)].concat()
}

/// A value that compresses about as real ones do: half noise, half constant.
fn value(n: u64, len: usize) -> Vec<u8> {
    let mut value = vec![0; len];
    let mut x = n | 1;
    for chunk in value.chunks_mut(16) {
        x = x
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        for (byte, noise) in chunk.iter_mut().zip(x.to_be_bytes()) {
            *byte = noise;
        }
    }
    value
}

/// The batch that 256 creates make: record, due key, idempotency key each, and the applied
/// position.
fn creates(base: &dyn View, from: u64, len: usize) -> WriteBatch {
    let mut txn = Txn::new(base);
    for n in from..from + BATCH {
        txn.put(Family::Live, id(n).to_vec(), value(n, len));
        txn.put(Family::DueHour, due_key(n), Vec::new());
        txn.put(Family::Keys, [&[1; 8][..], &id(n)].concat(), id(n).to_vec());
    }
    txn.put(
        Family::Meta,
        b"applied".to_vec(),
        from.to_be_bytes().to_vec(),
    );
    txn.into_batch()
}

fn percentile(times: &mut [Duration], percent: usize) -> Duration {
    times.sort_unstable();
    times[(times.len() - 1) * percent / 100]
}

/// CPU time of this process, all threads.
fn cpu() -> Duration {
    let usage = nix::sys::resource::getrusage(nix::sys::resource::UsageWho::RUSAGE_SELF).unwrap();
    let part = |t: nix::sys::time::TimeVal| {
        Duration::new(
            t.tv_sec().unsigned_abs(),
            t.tv_usec().unsigned_abs() as u32 * 1_000,
        )
    };
    part(usage.user_time()) + part(usage.system_time())
}

fn resident_mib(field: &str) -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with(field)).unwrap();
    line.split_whitespace()
        .nth(1)
        .unwrap()
        .parse::<u64>()
        .unwrap()
        / 1_024
}

fn load(store: &RocksStore, schedules: u64, len: usize) {
    let (started, cpu_before) = (Instant::now(), cpu());
    let mut times = Vec::new();
    let mut unflushed = Instant::now();
    for from in (0..schedules).step_by(BATCH as usize) {
        let batch = creates(store, from, len);
        let begun = Instant::now();
        store.write(batch).unwrap();
        times.push(begun.elapsed());
        if unflushed.elapsed() > Duration::from_secs(10) || from % 200_192 == 0 {
            store.flush().unwrap();
            unflushed = Instant::now();
        }
    }
    store.flush().unwrap();
    let (wall, used) = (started.elapsed(), cpu() - cpu_before);
    let (p50, p99) = (percentile(&mut times, 50), percentile(&mut times, 99));
    let each = used.as_nanos() as u64 / schedules;
    let rate = schedules as f64 / wall.as_secs_f64();
    println!("load of {schedules}: {rate:.0}/s, CPU {each} ns each, write p50 {p50:?} p99 {p99:?}");
}

fn multi_gets(store: &RocksStore, schedules: u64, what: &str) {
    let mut times = Vec::new();
    for round in 0..400_u64 {
        let picks = (0..BATCH).map(|i| (round * 7_919 + i * 104_729) % schedules);
        let absent = if what == "absent" { schedules * 2 } else { 0 };
        let mut keys: Vec<[u8; 16]> = picks.map(|n| id(n + absent)).collect();
        keys.sort_unstable();
        keys.dedup();
        let keys: Vec<&[u8]> = keys.iter().map(|key| &key[..]).collect();
        let begun = Instant::now();
        let found = store.multi_get(Family::Live, &keys).unwrap();
        times.push(begun.elapsed() / keys.len() as u32);
        assert!(found.iter().all(|value| value.is_some() == (absent == 0)));
    }
    let (p50, p99) = (percentile(&mut times, 50), percentile(&mut times, 99));
    println!("multi_get of 256, {what}: p50 {p50:?} p99 {p99:?} a key");
}

fn gets_and_snapshots(store: &RocksStore, schedules: u64) {
    let (mut gets, mut snapshots) = (Vec::new(), Vec::new());
    for round in 0..5_000_u64 {
        let key = id(round * 7_919 % schedules);
        let begun = Instant::now();
        assert!(store.get(Family::Live, &key).unwrap().is_some());
        gets.push(begun.elapsed());
        let begun = Instant::now();
        drop(store.snapshot());
        snapshots.push(begun.elapsed());
    }
    let (get, snapshot) = (percentile(&mut gets, 50), percentile(&mut snapshots, 50));
    println!("get p50 {get:?}, snapshot taken and dropped p50 {snapshot:?}");
}

/// Pops 100 due rows at a time from a cursor, with a flush now and then.
fn pops(store: &RocksStore, rounds: u64) {
    let mut cursor = Vec::new();
    let (mut seeks, started) = (Vec::new(), Instant::now());
    for round in 0..rounds {
        let range = KeyRange::new(cursor.clone(), vec![u8::MAX; 25]);
        let mut batch = WriteBatch::default();
        let begun = Instant::now();
        store
            .scan(
                Family::DueHour,
                &range,
                Direction::Forward,
                &mut |key, _| {
                    batch.delete(Family::DueHour, key.to_vec());
                    if batch.ops.len() < 100 {
                        std::ops::ControlFlow::Continue(())
                    } else {
                        std::ops::ControlFlow::Break(())
                    }
                },
            )
            .unwrap();
        seeks.push(begun.elapsed());
        cursor = batch.ops.last().unwrap().1.clone();
        store.write(batch).unwrap();
        if round % 500 == 499 {
            store.flush().unwrap();
        }
    }
    let rate = rounds as f64 * 100.0 / started.elapsed().as_secs_f64();
    let half = seeks.len() / 2;
    let (first, last) = seeks.split_at_mut(half);
    let (first, last) = (percentile(first, 50), percentile(last, 50));
    let p99 = percentile(&mut seeks, 99);
    println!("scan of 100 at a cursor: p50 {first:?} -> {last:?}, p99 {p99:?}; {rate:.0} pops/s");
}

fn checkpoints(store: &RocksStore, from: u64) {
    let begun = Instant::now();
    drop(store.checkpoint().unwrap());
    let clean = begun.elapsed();
    for step in 0..256 {
        store
            .write(creates(store, from + step * BATCH, 300))
            .unwrap();
    }
    let dirty_bytes = store.statistics().unwrap().memtable_bytes;
    let begun = Instant::now();
    let checkpoint = store.checkpoint().unwrap();
    let dirty = begun.elapsed();
    let begun = Instant::now();
    let mut staging = store.stage().unwrap();
    copy(&*checkpoint, &mut *staging, 1 << 20);
    let copied = begun.elapsed();
    let begun = Instant::now();
    drop(staging.seal().unwrap());
    let sealed = begun.elapsed();
    let begun = Instant::now();
    store.install(staging).unwrap();
    let installed = begun.elapsed();
    let bytes: u64 = checkpoint.files().iter().map(|file| file.len).sum();
    println!(
        "checkpoint clean {clean:?}, with {} MiB dirty {dirty:?}; copy of {} MiB {copied:?}, \
         seal {sealed:?}, install {installed:?}",
        dirty_bytes >> 20,
        bytes >> 20,
    );
}

#[test]
#[ignore = "a measurement"]
fn store_figures() {
    let schedules: u64 = std::env::var("SCHEDULES").map_or(1_000_000, |n| n.parse().unwrap());
    let dir = TempDir::new_in(std::env::var("PLACE").unwrap_or("/var/tmp".into())).unwrap();
    let begun = Instant::now();
    let store = RocksStore::open(dir.path(), &RocksMemory::default()).unwrap();
    println!("create: {:?}", begun.elapsed());
    println!("RSS before: {} MiB", resident_mib("VmRSS"));
    load(&store, schedules, 300);
    println!(
        "RSS after load: {} MiB, peak {}",
        resident_mib("VmRSS"),
        resident_mib("VmHWM")
    );
    let sizes = store.statistics().unwrap();
    let bytes: u64 = sizes
        .families
        .iter()
        .map(|(_, family)| family.sst_bytes)
        .sum();
    println!("on disk: {} bytes each", bytes / schedules);
    multi_gets(&store, schedules, "present");
    multi_gets(&store, schedules, "absent");
    gets_and_snapshots(&store, schedules);
    pops(&store, 2_000.min(schedules / 100));
    checkpoints(&store, schedules);
    println!(
        "RSS at the end: {} MiB, peak {}",
        resident_mib("VmRSS"),
        resident_mib("VmHWM")
    );
    println!("{:?}", store.statistics().unwrap());
    drop(store);
    let begun = Instant::now();
    drop(RocksStore::open(dir.path(), &RocksMemory::default()).unwrap());
    println!("open: {:?}", begun.elapsed());
}
