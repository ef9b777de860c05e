//! Everything that can be seen of a state, from the model and from a store, in one comparable form.
//!
//! Keys are read here from their bytes as `STORAGE.md` lays them out, not with the functions that write them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;

use super::{Chosen, Model, Named, Open, Record};
use crate::command::outcome::LineValue;
use crate::ids::{QueueNo, ScheduleId, TenantNo};
use crate::model::cluster::ClusterState;
use crate::model::execution::{Execution, ExecutionState, StoredPayload};
use crate::model::history::{ChosenId, IdempotencyRecord, UniqueHolder};
use crate::model::lease::Lease;
use crate::model::queue::{DeletedQueue, KeyState, LineCounts, Queue};
use crate::model::schedule::{Schedule, ScheduleState, ScheduleStatus};
use crate::model::tenant::{Tenant, TenantUsage};
use crate::state::resident::Resident;
use crate::state::testkit::rows;
use crate::store::due::{DueEntry, DueKey, DueKind, Level};
use crate::store::{Family, View, value};
use crate::time::Timestamp;

/// A place in a line: queue (ready) or key (parked), tenant, 9 − priority, time, id; with the hint of a ready one.
type Place = (Result<u32, String>, u32, u8, Timestamp, String);

/// See the module.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Observed {
    now: Timestamp,
    cluster: ClusterState,
    tenants: BTreeMap<u32, Tenant>,
    queues: BTreeMap<u32, Queue>,
    deleted_queues: BTreeMap<u32, DeletedQueue>,
    counts: BTreeMap<(u32, u32), LineCounts>,
    usage: BTreeMap<u32, TenantUsage>,
    keys: Named<KeyState>,
    schedules: Named<(Schedule, ScheduleStatus)>,
    former: BTreeMap<(u32, String, u64, u64), Schedule>,
    executions: Named<Execution>,
    leases: Named<Lease>,
    bodies: Named<Vec<u8>>,
    lines: BTreeMap<Place, Option<LineValue>>,
    due: BTreeSet<DueEntry>,
    chosen: Named<Chosen>,
    unique: Named<String>,
    history: BTreeMap<Vec<u8>, Record>,
    answers: BTreeMap<(u32, u32, [u8; 16]), IdempotencyRecord>,
}

impl Observed {
    /// The first part in which two states differ, in words.
    pub(super) fn difference(&self, other: &Self) -> Option<String> {
        let parts = [
            differ("log time", &self.now, &other.now),
            differ("cluster", &self.cluster, &other.cluster),
            differ_in("tenants", &self.tenants, &other.tenants),
            differ_in("queues", &self.queues, &other.queues),
            differ_in(
                "deleted queues",
                &self.deleted_queues,
                &other.deleted_queues,
            ),
            differ_in("schedules", &self.schedules, &other.schedules),
            differ_in("earlier definitions", &self.former, &other.former),
            differ_in("executions", &self.executions, &other.executions),
            differ_in("leases", &self.leases, &other.leases),
            differ_in("bodies", &self.bodies, &other.bodies),
            differ_in("lines", &self.lines, &other.lines),
            differ("due index", &self.due, &other.due),
            differ_in("counts", &self.counts, &other.counts),
            differ_in("usage", &self.usage, &other.usage),
            differ_in("keys", &self.keys, &other.keys),
            differ_in("chosen ids", &self.chosen, &other.chosen),
            differ_in("unique keys", &self.unique, &other.unique),
            differ_in("history", &self.history, &other.history),
            differ_in("answers", &self.answers, &other.answers),
        ];
        parts.into_iter().flatten().next()
    }
}

fn differ<T: Debug + PartialEq>(what: &str, a: &T, b: &T) -> Option<String> {
    (a != b).then(|| format!("{what}:\n  {a:?}\n  {b:?}"))
}

fn differ_in<K: Debug + Ord, V: Debug + PartialEq>(
    what: &str,
    a: &BTreeMap<K, V>,
    b: &BTreeMap<K, V>,
) -> Option<String> {
    let keys: BTreeSet<&K> = a.keys().chain(b.keys()).collect();
    let key = keys.into_iter().find(|key| a.get(key) != b.get(key))?;
    Some(format!(
        "{what} {key:?}:\n  {:?}\n  {:?}",
        a.get(key),
        b.get(key)
    ))
}

// ---- the model ------------------------------------------------------------------------------------------------

/// What can be seen of the model.
pub(super) fn of_model(model: &Model) -> Observed {
    let mut seen = Observed {
        now: model.now,
        cluster: model.cluster.clone(),
        tenants: model.tenants.clone(),
        queues: model.queues.clone(),
        deleted_queues: model.deleted_queues.clone(),
        chosen: model.chosen.clone(),
        history: model.history.clone(),
        answers: model.answers.clone(),
        due: due_of_model(model).into_iter().collect(),
        ..Observed::default()
    };
    for (name, limits) in &model.limits {
        let key = seen.keys.entry(name.clone()).or_default();
        key.max_leased = limits.max_leased;
        key.rate = limits.rate;
        key.rate_tat_ns = limits.tat_ns;
    }
    for (name, planned) in &model.schedules {
        let pair = (planned.row.clone(), planned.status.clone());
        let line = (planned.row.queue.0, name.0);
        seen.counts.entry(line).or_default().schedules += 1;
        seen.usage.entry(name.0).or_default().schedules += 1;
        for (generation, row) in &planned.former {
            let key = (name.0, name.1.clone(), row.incarnation, *generation);
            seen.former.insert(key, row.clone());
        }
        seen.schedules.insert(name.clone(), pair);
    }
    for (name, open) in &model.open {
        see_open(&mut seen, name, open);
    }
    seen
}

/// Everything that waits for a time, by owner.
pub(super) fn due_of_model(model: &Model) -> Vec<DueEntry> {
    let entry = |name: &(u32, String), key: Option<DueKey>, kind| {
        key.map(|key| DueEntry {
            key,
            tenant: TenantNo(name.0),
            kind,
            id: name.1.clone(),
        })
    };
    let schedules = model.schedules.iter().filter_map(|(name, planned)| {
        let kind = match planned.status.state {
            ScheduleState::Active => DueKind::Occurrence,
            ScheduleState::Paused(_) => DueKind::PauseEnd,
            ScheduleState::Completed { .. } => DueKind::Removal,
        };
        entry(name, planned.status.due_key, kind)
    });
    let executions = model.open.iter().filter_map(|(name, open)| {
        let kind = match open.row.state {
            ExecutionState::Ready => DueKind::StartDeadline,
            _ => DueKind::Execution,
        };
        entry(name, open.row.due_key, kind)
    });
    schedules.chain(executions).collect()
}

fn see_open(seen: &mut Observed, name: &(u32, String), open: &Open) {
    let row = &open.row;
    seen.executions.insert(name.clone(), row.clone());
    if let Some(body) = &open.body {
        seen.bodies.insert(name.clone(), body.clone());
    }
    if let Some(key) = &row.unique_key {
        seen.unique.insert((name.0, key.clone()), name.1.clone());
    }
    let usage = seen.usage.entry(name.0).or_default();
    usage.open += 1;
    let counts = seen.counts.entry((row.queue.0, name.0)).or_default();
    if let Some(lease) = &open.lease {
        usage.leased += 1;
        counts.leased += 1;
        seen.leases.insert(name.clone(), lease.clone());
        return;
    }
    match row.state {
        ExecutionState::Waiting => counts.waiting += 1,
        ExecutionState::BackingOff => counts.backing_off += 1,
        _ if row.parked => counts.parked += 1,
        _ => counts.ready += 1,
    }
    if row.state != ExecutionState::Ready {
        return;
    }
    let at = row.line_at.expect("a ready one has a place");
    let rank = 9 - row.template.priority;
    let key = row.template.concurrency_key.clone();
    if row.parked {
        let key = key.expect("parked at a key");
        seen.keys.entry((name.0, key.clone())).or_default().parked += 1;
        seen.lines
            .insert((Err(key), name.0, rank, at, name.1.clone()), None);
    } else {
        let len = match row.payload {
            StoredPayload::Inline => row.template.payload.len(),
            StoredPayload::Body { len } => len as usize,
        };
        let hint = LineValue {
            kind: row.template.kind.clone(),
            payload_len: u32::try_from(len).expect("fits"),
            concurrency_key: key,
            requires: row.template.requires.clone(),
        };
        let place = (Ok(row.queue.0), name.0, rank, at, name.1.clone());
        seen.lines.insert(place, Some(hint));
    }
}

// ---- a store --------------------------------------------------------------------------------------------------

/// What can be seen of a store. Rows of history below their watermark are absent.
pub(super) fn of_store(view: &dyn View) -> Observed {
    let state = Resident::load(view).expect("loads");
    let mut seen = Observed {
        now: state.applied.now,
        cluster: state.cluster.clone(),
        tenants: state
            .tenants
            .iter()
            .map(|(no, row)| (no.0, row.clone()))
            .collect(),
        queues: state
            .queues
            .iter()
            .map(|(no, row)| (no.0, row.clone()))
            .collect(),
        deleted_queues: state
            .deleted_queues
            .iter()
            .map(|(no, row)| (no.0, row.clone()))
            .collect(),
        usage: state.usage.iter().map(|(no, row)| (no.0, *row)).collect(),
        ..Observed::default()
    };
    seen.usage.retain(|_, row| *row != TenantUsage::default());
    for ((QueueNo(queue), TenantNo(tenant)), counts) in &state.counts {
        seen.counts.insert((*queue, *tenant), *counts);
    }
    for ((tenant, name), row) in &state.keys {
        seen.keys.insert((tenant.0, name.clone()), row.clone());
    }
    see_live(&mut seen, view);
    see_lines(&mut seen, view);
    see_keys(&mut seen, view);
    for (key, body) in rows(view, Family::Body, b"E") {
        seen.bodies.insert(named(&key), body);
    }
    for level in Level::ALL {
        for key in rows(view, level.family(), &[]).into_keys() {
            seen.due
                .insert(DueEntry::decode(level, &key).expect("a due key"));
        }
    }
    for (key, bytes) in rows(view, Family::History, &[]) {
        let record = match key[9] {
            b'E' => Record::Final(Box::new(value::decode(&bytes).expect("a final one"))),
            b'O' => Record::Ledger(value::decode(&bytes).expect("a ledger row")),
            b'A' => Record::Audit(value::decode(&bytes).expect("an audit record")),
            other => panic!("tag {other}"),
        };
        seen.history.insert(key, record);
    }
    seen
}

fn u32_at(key: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(key[at..at + 4].try_into().expect("four bytes"))
}

fn u64_at(key: &[u8], at: usize) -> u64 {
    u64::from_be_bytes(key[at..at + 8].try_into().expect("eight bytes"))
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("text")
}

/// `tag tenant name`.
fn named(key: &[u8]) -> (u32, String) {
    (u32_at(key, 1), text(&key[5..]))
}

fn see_live(seen: &mut Observed, view: &dyn View) {
    for (key, bytes) in rows(view, Family::Live, &[]) {
        match key[0] {
            b'E' => {
                let row = value::decode(&bytes).expect("an execution");
                seen.executions.insert(named(&key), row);
            }
            b'L' => {
                seen.leases
                    .insert(named(&key), value::decode(&bytes).expect("a lease"));
            }
            b'S' => {
                let name = named(&key);
                let status_key = [b"s", &key[1..]].concat();
                let status = view.get(Family::Live, &status_key).expect("reads");
                let status = value::decode(&status.expect("a status")).expect("a status");
                let row: Schedule = value::decode(&bytes).expect("a schedule");
                assert_eq!(row.id, ScheduleId::new(&name.1).expect("a name"));
                seen.schedules.insert(name, (row, status));
            }
            b's' => {}
            b'G' => {
                let (name, numbers) = key.split_at(key.len() - 16);
                let (tenant, id) = named(&name[..name.len() - 1]);
                let place = (tenant, id, u64_at(numbers, 0), u64_at(numbers, 8));
                seen.former
                    .insert(place, value::decode(&bytes).expect("a definition"));
            }
            other => panic!("tag {other} in live"),
        }
    }
}

fn see_lines(seen: &mut Observed, view: &dyn View) {
    for (key, bytes) in rows(view, Family::Lines, &[]) {
        let (line, tenant, order) = match key[0] {
            b'R' => (Ok(u32_at(&key, 1)), u32_at(&key, 5), &key[9..]),
            b'P' => {
                let end = key[5..].iter().position(|b| *b == 0).expect("a zero") + 5;
                (Err(text(&key[5..end])), u32_at(&key, 1), &key[end + 1..])
            }
            other => panic!("tag {other} in lines"),
        };
        let at = i64::try_from(u64_at(order, 1)).expect("fits") - super::BEFORE_EPOCH;
        let at = Timestamp::from_millis(at);
        let hint = line.is_ok().then(|| value::decode(&bytes).expect("a hint"));
        seen.lines
            .insert((line, tenant, order[0], at, text(&order[9..])), hint);
    }
}

fn see_keys(seen: &mut Observed, view: &dyn View) {
    for (key, bytes) in rows(view, Family::Keys, &[]) {
        match key[0] {
            b'U' => {
                let holder: UniqueHolder = value::decode(&bytes).expect("a holder");
                seen.unique
                    .insert(named(&key), holder.execution.to_string());
            }
            b'X' => {
                let (id, tenant) = key.split_at(key.len() - 4);
                let row: ChosenId = value::decode(&bytes).expect("a pointer");
                let chosen = Chosen {
                    fingerprint: row.fingerprint,
                    history: row.history,
                };
                let name = (u32_at(tenant, 0), text(&id[1..id.len() - 1]));
                seen.chosen.insert(name, chosen);
            }
            b'I' => {
                let hash = key[9..25].try_into().expect("16 bytes");
                let place = (u32_at(&key, 1), u32_at(&key, 5), hash);
                seen.answers
                    .insert(place, value::decode(&bytes).expect("an answer"));
            }
            other => panic!("tag {other} in keys"),
        }
    }
}
