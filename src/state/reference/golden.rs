//! Bytes that must be read for ever: `tests/golden/values.txt` and `commands.txt`.
//!
//! A line is `kind version hex debug`: the bytes of one stored value (or of a batch of one command) and what they mean.
//! Decoding must give that meaning, encoding the same bytes. A new kind or version adds lines; a line never goes.
//! `cargo test --lib golden -- --ignored` writes lines for what has none yet: run it after adding a kind, and read the
//! difference.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{Debug, Write as _};
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use super::Model;
use super::generate::{self, Dice};
use crate::command::outcome::LineValue;
use crate::command::{Batch, Command, codec};
use crate::model::cluster::ClusterState;
use crate::model::execution::{Execution, FinalExecution};
use crate::model::history::{AuditRecord, ChosenId, IdempotencyRecord, LedgerRow, UniqueHolder};
use crate::model::lease::Lease;
use crate::model::queue::{DeletedQueue, KeyState, LineCounts, Queue};
use crate::model::schedule::{Schedule, ScheduleStatus};
use crate::model::tenant::{Tenant, TenantUsage};
use crate::state::machine::{CommittedEntry, Machine, Payload, Position};
use crate::state::replica::Replica;
use crate::state::resident::AppliedRow;
use crate::state::testkit::rows;
use crate::store::value::{self, KINDS, Stored};
use crate::store::{Family, MemStore, StateStore};

/// Lines kept for one kind: different in shape, not only in their numbers and names.
const SHAPES_MAX: usize = 8;
/// Larger values are left out: they say nothing new.
const BYTES_MAX: usize = 900;
/// Kinds of commands, as `command::codec` numbers them.
const COMMANDS: &[u16] = &[
    1, 2, 3, 4, 5, 6, 7, 8, 9, 20, 21, 22, 23, 24, 25, 26, 40, 41, 42, 43, 60, 61, 62, 63,
];

fn file(name: &str) -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "tests", "golden", name]
        .iter()
        .collect()
}

/// One line: bytes and what they mean.
struct Line {
    kind: u16,
    version: u8,
    bytes: Vec<u8>,
    meaning: String,
}

fn lines(name: &str) -> Vec<Line> {
    let text = fs::read_to_string(file(name)).unwrap_or_default();
    text.lines()
        .filter(|line| !line.starts_with('#'))
        .map(parse)
        .collect()
}

fn parse(line: &str) -> Line {
    let mut words = line.splitn(4, ' ');
    let mut word = || words.next().expect("four words");
    let kind = word().parse().expect("a kind");
    let version = word().parse().expect("a version");
    let hex = word();
    let byte = |at| u8::from_str_radix(&hex[at..at + 2], 16).expect("hex");
    Line {
        kind,
        version,
        bytes: (0..hex.len()).step_by(2).map(byte).collect(),
        meaning: word().to_owned(),
    }
}

fn print(line: &Line) -> String {
    let hex = line.bytes.iter().fold(String::new(), |mut hex, byte| {
        write!(hex, "{byte:02x}").expect("writes");
        hex
    });
    format!("{} {} {hex} {}\n", line.kind, line.version, line.meaning)
}

fn again<T: Stored + Debug>(bytes: &[u8]) -> (String, Vec<u8>) {
    let row: T = value::decode(bytes).expect("decodes");
    (format!("{row:?}"), value::encode(&row).expect("encodes"))
}

/// Decodes a value of any kind: what it means, and its bytes encoded again.
fn reread(kind: u16, bytes: &[u8]) -> (String, Vec<u8>) {
    macro_rules! by_kind {
        ($($type:ty),*) => {
            match kind {
                $(<$type>::KIND => again::<$type>(bytes),)*
                other => panic!("kind {other} is not known here"),
            }
        };
    }
    by_kind!(
        AppliedRow,
        ClusterState,
        Tenant,
        TenantUsage,
        Queue,
        LineCounts,
        KeyState,
        Schedule,
        ScheduleStatus,
        Execution,
        Lease,
        LineValue,
        FinalExecution,
        LedgerRow,
        AuditRecord,
        IdempotencyRecord,
        ChosenId,
        UniqueHolder,
        DeletedQueue
    )
}

fn reread_batch(bytes: &[u8]) -> (String, Vec<u8>) {
    let batch = codec::decode(bytes).expect("decodes");
    let again = codec::encode(&batch).expect("encodes");
    (format!("{:?}", batch.commands), again.to_vec())
}

/// A value's meaning without its numbers, texts and repeats: which variants and options it shows.
fn shape(meaning: &str) -> String {
    let words = meaning.split(|c: char| !c.is_ascii_alphabetic());
    let named = words.filter(|w| w.starts_with(|c: char| c.is_ascii_uppercase()));
    named
        .collect::<BTreeSet<_>>()
        .into_iter()
        .collect::<Vec<_>>()
        .join(" ")
}

#[derive(Default)]
struct Collected {
    lines: BTreeMap<u16, Vec<Line>>,
    shapes: BTreeSet<(u16, String)>,
}

impl Collected {
    fn add(&mut self, line: Line) {
        let lines = self.lines.entry(line.kind).or_default();
        let is_new = self.shapes.insert((line.kind, shape(&line.meaning)));
        if is_new && lines.len() < SHAPES_MAX && line.bytes.len() <= BYTES_MAX {
            lines.push(line);
        }
    }

    fn print(&self) -> String {
        let all = self.lines.values().flatten();
        all.map(print).collect()
    }
}

fn collect_commands(batch: &Batch, commands: &mut Collected) {
    for envelope in &batch.commands {
        let one = Batch {
            commands: vec![envelope.clone()],
            ..batch.clone()
        };
        let bytes = codec::encode(&one).expect("encodes").to_vec();
        let at = codec::HEADER_LEN;
        let (meaning, _) = reread_batch(&bytes);
        commands.add(Line {
            kind: u16::from_le_bytes([bytes[at], bytes[at + 1]]),
            version: bytes[at + 2],
            bytes,
            meaning,
        });
    }
}

fn collect_values(store: &MemStore, values: &mut Collected) {
    for family in [
        Family::Meta,
        Family::Live,
        Family::Lines,
        Family::History,
        Family::Keys,
    ] {
        for (_, bytes) in rows(store, family, &[]) {
            let [_, low, high, version, ..] = bytes.as_slice() else {
                continue;
            };
            let (kind, version) = (u16::from_le_bytes([*low, *high]), *version);
            let (meaning, _) = reread(kind, &bytes);
            values.add(Line {
                kind,
                version,
                bytes,
                meaning,
            });
        }
    }
}

#[test]
#[ignore = "writes lines for kinds that have none"]
fn golden_files_are_written() {
    let mut values = Collected::default();
    let mut commands = Collected::default();
    for (name, collected) in [("values.txt", &mut values), ("commands.txt", &mut commands)] {
        for line in lines(name) {
            let shape = (line.kind, shape(&line.meaning));
            collected.shapes.insert(shape);
            collected.lines.entry(line.kind).or_default().push(line);
        }
    }
    for seed in 0..300 {
        let (mut model, mut dice) = (Model::new(), Dice::new(seed));
        let store = Arc::new(MemStore::new());
        let replica = Replica::open(Arc::clone(&store) as Arc<dyn StateStore>).expect("opens");
        for index in 1..=40 {
            let batch = generate::batch(&model, &mut dice);
            model.apply(index, &batch);
            let position = Position {
                term: batch.term,
                leader: 1,
                index,
            };
            let payload = Payload::Batch(codec::encode(&batch).expect("encodes"));
            replica
                .apply(vec![CommittedEntry { position, payload }])
                .expect("applies");
            collect_commands(&batch, &mut commands);
        }
        collect_values(&store, &mut values);
    }
    fs::create_dir_all(file("")).expect("a directory");
    let head = "# kind version hex meaning; written by `cargo test --lib golden -- --ignored`\n";
    for (name, collected) in [("values.txt", values), ("commands.txt", commands)] {
        fs::write(file(name), format!("{head}{}", collected.print())).expect("writes");
    }
}

#[test]
fn golden_values_keep_their_meaning_and_their_bytes() {
    let lines = lines("values.txt");
    let present: BTreeSet<(u16, u8)> = lines.iter().map(|l| (l.kind, l.version)).collect();
    for (kind, version, name) in KINDS {
        assert!(
            present.contains(&(*kind, *version)),
            "{name} has no golden value"
        );
    }
    for line in lines {
        let (meaning, bytes) = reread(line.kind, &line.bytes);
        assert_eq!(meaning, line.meaning, "kind {}", line.kind);
        assert_eq!(bytes, line.bytes, "kind {}", line.kind);
    }
}

#[test]
fn golden_commands_keep_their_meaning_and_their_bytes() {
    let lines = lines("commands.txt");
    let present: BTreeSet<u16> = lines.iter().map(|l| l.kind).collect();
    for kind in COMMANDS {
        assert!(present.contains(kind), "command {kind} has no golden bytes");
    }
    for line in lines {
        let (meaning, bytes) = reread_batch(&line.bytes);
        assert_eq!(meaning, line.meaning, "kind {}", line.kind);
        assert_eq!(bytes, line.bytes, "kind {}", line.kind);
    }
}

/// A command that this list does not know would have no golden bytes.
#[test]
fn the_list_of_commands_is_the_codecs() {
    let mut seen = BTreeSet::new();
    for seed in 0..60 {
        let (mut model, mut dice) = (Model::new(), Dice::new(seed));
        for index in 1..=40 {
            let batch = generate::batch(&model, &mut dice);
            model.apply(index, &batch);
            for envelope in &batch.commands {
                let bytes = codec::Frame::encode(envelope).expect("encodes").len();
                assert!(bytes < codec::COMMAND_MAX);
                seen.insert(number(&envelope.command));
            }
        }
    }
    assert_eq!(seen, COMMANDS.iter().copied().collect());
}

/// The number of a command, by its first bytes in a batch.
fn number(command: &Command) -> u16 {
    let batch = Batch {
        proposed_at: crate::time::Timestamp::EPOCH,
        term: 0,
        commands: vec![crate::command::Envelope::leader(command.clone())],
    };
    let bytes = codec::encode(&batch).expect("encodes");
    u16::from_le_bytes([bytes[codec::HEADER_LEN], bytes[codec::HEADER_LEN + 1]])
}
