//! Processes killed in mid-load and in mid-install.
//!
//! A test starts this test binary again as a child that runs one `child_…` test (ignored otherwise)
//! on a shared directory, and looks at what the child left.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use super::*;
use crate::store::WriteBatch;

/// Tells a child where to work, and at which step to die.
const PLACE: &str = "PUNCTUAL_TEST_PLACE";
const STEP: &str = "PUNCTUAL_TEST_STEP";

fn child(test: &str, place: &Path, step: &str) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "--ignored", "--nocapture", "--test-threads=1"])
        .arg(format!("store::rocks::tests::crash::{test}"))
        .env(PLACE, place)
        .env(STEP, step)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

/// Where a child works; `None` when it was not started by its parent test and has nothing to do.
fn place() -> Option<PathBuf> {
    std::env::var_os(PLACE).map(PathBuf::from)
}

fn number_in(view: &dyn View, family: Family) -> u64 {
    match view.get(family, b"number").unwrap() {
        Some(bytes) => u64::from_be_bytes(bytes.try_into().unwrap()),
        None => 0,
    }
}

/// The `n`th write: its number and a row in every family.
fn nth_write(n: u64) -> WriteBatch {
    let mut batch = WriteBatch::default();
    let noise = n.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes();
    for family in Family::ALL {
        batch.put(family, b"number".to_vec(), n.to_be_bytes().to_vec());
        batch.put(
            family,
            [b"row/", &n.to_be_bytes()[..]].concat(),
            noise.repeat(40),
        );
    }
    batch
}

#[test]
#[ignore = "is killed by its parent test"]
fn child_writes_without_end() {
    let Some(place) = place() else { return };
    // Small memtables: about every 1,500 writes RocksDB flushes of its own accord.
    let store = RocksStore::open(&place, &RocksMemory::new(1 << 20, 6 << 20)).unwrap();
    let from = number_in(&store, Family::Meta);
    println!();
    for n in from + 1.. {
        store.write(nth_write(n)).unwrap();
        if n % 5_000 == 0 {
            store.flush().unwrap();
            println!("flushed {n}");
        } else if n % 250 == 0 {
            println!("wrote {n}");
        }
    }
}

/// Runs the child until it has said `lines` things, kills it, and tells up to where it was surely
/// durable.
fn write_and_kill(place: &Path, lines: usize) -> u64 {
    let mut child = child("child_writes_without_end", place, "");
    let said = BufReader::new(child.stdout.take().unwrap()).lines();
    let steps = said.map_while(Result::ok).filter_map(|line| {
        let (what, number) = line.split_once(' ')?;
        let flushed = match what {
            "flushed" => true,
            "wrote" => false,
            _ => return None,
        };
        Some((flushed, number.parse::<u64>().ok()?))
    });
    let steps: Vec<_> = steps.take(lines).collect();
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(steps.len(), lines, "the child ended early");
    let flushed = steps.iter().filter(|(flushed, _)| *flushed);
    flushed.map(|(_, number)| *number).max().unwrap_or(0)
}

#[test]
fn after_a_kill_in_mid_load_every_family_stands_at_the_same_write() {
    let dir = TempDir::new().unwrap();
    let (mut surely, mut unflushed_kept) = (0, 0);
    for lines in [9, 17, 12, 23] {
        surely = surely.max(write_and_kill(dir.path(), lines));
        let store = reopen(&dir).unwrap();
        let numbers = Family::ALL.map(|family| number_in(&store, family));
        let number = numbers[0];
        assert!(numbers.iter().all(|n| *n == number), "{numbers:?}");
        assert!(number >= surely, "{number} of at least {surely}");
        unflushed_kept += u64::from(number > surely);
        surely = number;
        for family in Family::ALL {
            let rows = KeyRange::prefix(b"row/");
            let mut expected = 0;
            let check = &mut |key: &[u8], _: &[u8]| {
                expected += 1;
                assert_eq!(key[4..], u64::to_be_bytes(expected), "no hole");
                std::ops::ControlFlow::Continue(())
            };
            store
                .scan(family, &rows, Direction::Forward, check)
                .unwrap();
            assert_eq!(expected, number);
        }
    }
    assert!(
        unflushed_kept > 0,
        "no kill fell after a flush of RocksDB's own"
    );
}

/// Steps of an install after which a process can die.
const STEPS: [(&str, &[u8]); 6] = [
    ("received", b"old"),
    ("sealed", b"old"),
    ("pointer written", b"old"),
    ("pointer switched", b"new"),
    ("installed", b"new"),
    ("written and flushed", b"newer"),
];

#[test]
#[ignore = "aborts, for its parent test"]
fn child_dies_in_mid_install() {
    let Some(place) = place() else { return };
    let step = std::env::var_os(STEP).expect("the parent test names a step");
    let step = step.into_string().unwrap();
    let die_after = |done: &str| {
        if done == step {
            std::process::abort();
        }
    };
    let source = RocksStore::open(&place.join("source"), &memory()).unwrap();
    let store = RocksStore::open(&place.join("target"), &memory()).unwrap();
    let mut staging = store.stage().unwrap();
    copy(&*source.checkpoint().unwrap(), &mut *staging, 1 << 20);
    die_after("received");
    let _view = staging.seal().unwrap();
    die_after("sealed");
    if ["pointer written", "pointer switched"].contains(&step.as_str()) {
        // The two halves of the switch, as `install` calls them.
        let number = store.numbers.lock().generation;
        store.layout.write_pointer_aside(number).unwrap();
        die_after("pointer written");
        store.layout.switch_pointer().unwrap();
        die_after("pointer switched");
    }
    let _snapshot = store.snapshot();
    store.install(staging).unwrap();
    die_after("installed");
    store
        .write(puts(Family::Live, &[(b"content", b"newer")]))
        .unwrap();
    store.flush().unwrap();
    die_after("written and flushed");
}

#[test]
fn an_install_killed_at_any_step_leaves_the_old_or_the_new_content() {
    for (step, expected) in STEPS {
        let dir = TempDir::new().unwrap();
        for (name, content) in [("source", &b"new"[..]), ("target", b"old")] {
            let place = dir.path().join(name);
            fs::create_dir(&place).unwrap();
            let store = RocksStore::open(&place, &memory()).unwrap();
            store
                .write(puts(Family::Live, &[(b"content", content)]))
                .unwrap();
        }
        let status = child("child_dies_in_mid_install", dir.path(), step)
            .wait()
            .unwrap();
        assert!(!status.success(), "{step}: the child lived");
        let target = dir.path().join("target");
        let before = names(&target);
        assert!(before.contains("2"), "{step}: {before:?}");
        for _ in 0..2 {
            let store = RocksStore::open(&target, &memory()).unwrap();
            let content = store.get(Family::Live, b"content").unwrap();
            assert_eq!(content.as_deref(), Some(expected), "after {step}");
            let number = if expected == b"old" { "1" } else { "2" };
            assert_eq!(names(&target), set(&[number, "CURRENT"]), "after {step}");
        }
    }
}

#[test]
#[ignore = "runs into its parent test's file size limit"]
fn child_writes_until_the_disk_refuses() {
    let Some(place) = place() else { return };
    let store = RocksStore::open(&place, &memory()).unwrap();
    println!();
    let mut seed = 1_u64;
    for n in 1.. {
        let mut batch = nth_write(n);
        let noise = std::iter::repeat_with(|| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 56) as u8
        });
        batch.put(
            Family::Body,
            [b"big/", &n.to_be_bytes()[..]].concat(),
            noise.take(50_000).collect(),
        );
        let written = store.write(batch);
        let flushed = written.and_then(|()| if n % 20 == 0 { store.flush() } else { Ok(()) });
        match flushed {
            Ok(()) if n % 20 == 0 => println!("flushed {n}"),
            Ok(()) => {}
            Err(fault) => {
                assert!(matches!(fault, Fault::Storage { .. }), "{fault}");
                let again = store.write(nth_write(n + 1)).and_then(|()| store.flush());
                assert!(again.is_err(), "a store that failed once goes on failing");
                println!("refused {n}");
                std::process::abort();
            }
        }
    }
}

#[test]
fn a_refusing_disk_is_an_error_and_what_was_flushed_before_stays() {
    let dir = TempDir::new().unwrap();
    // Twenty writes make a table of 1 MB; compaction of the first few runs into the limit.
    let limited = "trap '' XFSZ; ulimit -f 5000; exec \"$0\" \"$@\"";
    let output = Command::new("sh")
        .args(["-c", limited])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "--ignored", "--nocapture", "--test-threads=1"])
        .arg("store::rocks::tests::crash::child_writes_until_the_disk_refuses")
        .env(PLACE, dir.path())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        said.contains("refused "),
        "{said} {}",
        String::from_utf8_lossy(&output.stderr)
    );
    let flushed = said
        .lines()
        .filter_map(|line| line.strip_prefix("flushed "));
    let flushed = flushed.map(|number| number.parse::<u64>().unwrap());
    let flushed = flushed.max().expect("a flush fits");
    let store = reopen(&dir).unwrap();
    let numbers = Family::ALL.map(|family| number_in(&store, family));
    assert!(
        numbers.iter().all(|n| *n == numbers[0] && *n >= flushed),
        "{numbers:?}, {flushed}"
    );
}
