//! Every stored key outside the due families, and the retention classes.
//!
//! Purpose: the one place that lays out keys; `STORAGE.md` lists the same. Callers: `state`, `leader`, `api`.
//! Invariants: numbers are big-endian, so keys sort as their parts do; a name inside a key is last, or ends with a
//! zero byte (no name holds one).

use crate::ids::{ExecutionId, QueueNo, ScheduleId, TenantNo};
use crate::model::schedule::{Schedule, SkipReason};
use crate::time::{Millis, Timestamp};

/// `meta`: applied position and log time.
pub const APPLIED: &[u8] = b"A";
/// `meta`: membership, as raft's own bytes.
pub const MEMBERSHIP: &[u8] = b"M";
/// `meta`: the cluster's singleton state.
pub const CLUSTER: &[u8] = b"C";

/// First byte of a tenant's row in `meta`.
pub const TENANT: u8 = b'T';
/// First byte of a tenant's usage in `meta`.
pub const USAGE: u8 = b't';
/// First byte of a queue's row in `meta`.
pub const QUEUE: u8 = b'Q';
/// First byte of a deleted queue's name in `meta`.
pub const DELETED_QUEUE: u8 = b'q';
/// First byte of a line's counts in `meta`.
pub const COUNTS: u8 = b'c';
/// First byte of a concurrency key's state in `meta`.
pub const KEY_STATE: u8 = b'K';
/// First byte of a schedule's definition in `live`.
pub const SCHEDULE: u8 = b'S';
/// First byte of a schedule's status in `live`.
pub const STATUS: u8 = b's';
/// First byte of an earlier definition in `live`.
pub const GENERATION: u8 = b'G';
/// First byte of an open execution in `live`.
pub const EXECUTION: u8 = b'E';
/// First byte of a live lease in `live`.
pub const LEASE: u8 = b'L';
/// First byte of a ready line in `lines`.
pub const READY: u8 = b'R';
/// First byte of a parked line in `lines`.
pub const PARKED: u8 = b'P';
/// First byte of an idempotency answer in `keys`.
pub const IDEMPOTENCY: u8 = b'I';
/// First byte of a chosen id's pointer in `keys`.
pub const POINTER: u8 = b'X';
/// First byte of a unique key's holder in `keys`.
pub const UNIQUE: u8 = b'U';
/// Tag of a final execution in `history`.
pub const FINAL: u8 = b'E';
/// Tag of a ledger row in `history`.
pub const LEDGER: u8 = b'O';
/// Tag of an audit record in `history`.
pub const AUDIT: u8 = b'A';

/// Stands where the reason of a skip stands, in the ledger row of an execution that was fired by hand.
const MANUAL: u8 = u8::MAX;

fn with_u32(tag: u8, number: u32) -> Vec<u8> {
    let mut key = Vec::with_capacity(40);
    key.push(tag);
    key.extend_from_slice(&number.to_be_bytes());
    key
}

fn named(tag: u8, tenant: TenantNo, name: &str) -> Vec<u8> {
    let mut key = with_u32(tag, tenant.0);
    key.extend_from_slice(name.as_bytes());
    key
}

fn push_time(key: &mut Vec<u8>, at: Timestamp) {
    key.extend_from_slice(&at.since(Timestamp::MIN).0.to_be_bytes());
}

/// `meta`: a tenant.
#[must_use]
pub fn tenant(no: TenantNo) -> Vec<u8> {
    with_u32(TENANT, no.0)
}

/// `meta`: a tenant's usage.
#[must_use]
pub fn usage(no: TenantNo) -> Vec<u8> {
    with_u32(USAGE, no.0)
}

/// `meta`: a queue.
#[must_use]
pub fn queue(no: QueueNo) -> Vec<u8> {
    with_u32(QUEUE, no.0)
}

/// `meta`: the name of a deleted queue.
#[must_use]
pub fn deleted_queue(no: QueueNo) -> Vec<u8> {
    with_u32(DELETED_QUEUE, no.0)
}

/// `meta`: counts of one tenant in one queue.
#[must_use]
pub fn counts(queue: QueueNo, tenant: TenantNo) -> Vec<u8> {
    let mut key = with_u32(COUNTS, queue.0);
    key.extend_from_slice(&tenant.0.to_be_bytes());
    key
}

/// `meta`: a concurrency key's state.
#[must_use]
pub fn key_state(tenant: TenantNo, key: &str) -> Vec<u8> {
    named(KEY_STATE, tenant, key)
}

/// `live`: a schedule's definition.
#[must_use]
pub fn schedule(tenant: TenantNo, id: &ScheduleId) -> Vec<u8> {
    named(SCHEDULE, tenant, id.as_str())
}

/// `live`: a schedule's status.
#[must_use]
pub fn status(tenant: TenantNo, id: &ScheduleId) -> Vec<u8> {
    named(STATUS, tenant, id.as_str())
}

/// `live`: every earlier definition of a schedule, by number.
#[must_use]
pub fn generations(tenant: TenantNo, id: &ScheduleId, incarnation: u64) -> Vec<u8> {
    let mut key = named(GENERATION, tenant, id.as_str());
    key.push(0);
    key.extend_from_slice(&incarnation.to_be_bytes());
    key
}

/// `live`: one earlier definition of a schedule.
#[must_use]
pub fn generation(tenant: TenantNo, id: &ScheduleId, incarnation: u64, generation: u64) -> Vec<u8> {
    let mut key = generations(tenant, id, incarnation);
    key.extend_from_slice(&generation.to_be_bytes());
    key
}

/// `live`: an open execution.
#[must_use]
pub fn execution(tenant: TenantNo, id: &ExecutionId) -> Vec<u8> {
    named(EXECUTION, tenant, id.as_str())
}

/// `live`: a live lease.
#[must_use]
pub fn lease(tenant: TenantNo, id: &ExecutionId) -> Vec<u8> {
    named(LEASE, tenant, id.as_str())
}

/// `body`: a payload over the inline bound.
#[must_use]
pub fn body(tenant: TenantNo, id: &ExecutionId) -> Vec<u8> {
    named(EXECUTION, tenant, id.as_str())
}

/// `lines`: everything ready of one tenant in one queue.
#[must_use]
pub fn ready_line(queue: QueueNo, tenant: TenantNo) -> Vec<u8> {
    let mut key = with_u32(READY, queue.0);
    key.extend_from_slice(&tenant.0.to_be_bytes());
    key
}

/// The part of a line's key that orders it: priority descending, then time, then id.
#[must_use]
pub fn line_order(priority: u8, at: Timestamp, id: &ExecutionId) -> Vec<u8> {
    let mut key = Vec::with_capacity(9 + id.as_str().len());
    key.push(9_u8.saturating_sub(priority));
    push_time(&mut key, at);
    key.extend_from_slice(id.as_str().as_bytes());
    key
}

/// Reads [`line_order`] back.
#[must_use]
pub fn decode_line_order(order: &[u8]) -> Option<(u8, Timestamp, ExecutionId)> {
    let (rank, rest) = order.split_first()?;
    let (at, id) = rest.split_at_checked(8)?;
    let offset = u64::from_be_bytes(at.try_into().ok()?);
    let id = ExecutionId::new(std::str::from_utf8(id).ok()?).ok()?;
    Some((
        9_u8.checked_sub(*rank)?,
        Timestamp::MIN.plus(Millis(offset)),
        id,
    ))
}

/// `lines`: one ready execution.
#[must_use]
pub fn ready(
    queue: QueueNo,
    tenant: TenantNo,
    priority: u8,
    at: Timestamp,
    id: &ExecutionId,
) -> Vec<u8> {
    let mut key = ready_line(queue, tenant);
    key.extend_from_slice(&line_order(priority, at, id));
    key
}

/// `lines`: everything parked at one concurrency key.
#[must_use]
pub fn parked_line(tenant: TenantNo, concurrency_key: &str) -> Vec<u8> {
    let mut key = named(PARKED, tenant, concurrency_key);
    key.push(0);
    key
}

/// `lines`: one parked execution.
#[must_use]
pub fn parked(
    tenant: TenantNo,
    concurrency_key: &str,
    priority: u8,
    at: Timestamp,
    id: &ExecutionId,
) -> Vec<u8> {
    let mut key = parked_line(tenant, concurrency_key);
    key.extend_from_slice(&line_order(priority, at, id));
    key
}

/// `keys`: an idempotency answer. `bucket` counts twelve-hour spans ([`idempotency_bucket`]).
#[must_use]
pub fn idempotency(bucket: u32, tenant: TenantNo, hash: &[u8; 16]) -> Vec<u8> {
    let mut key = with_u32(IDEMPOTENCY, bucket);
    key.extend_from_slice(&tenant.0.to_be_bytes());
    key.extend_from_slice(hash);
    key
}

/// The smallest possible key of an idempotency bucket.
#[must_use]
pub fn idempotency_bucket_start(bucket: u32) -> Vec<u8> {
    with_u32(IDEMPOTENCY, bucket)
}

/// The twelve-hour span that holds `at`.
#[must_use]
pub fn idempotency_bucket(at: Timestamp) -> u32 {
    let from = at.since(Timestamp::MIN).0;
    u32::try_from(from / Millis::hours(12).0).unwrap_or(u32::MAX)
}

/// `keys`: the tenants in which a caller chose `id`; id first, so that a worker's call finds them.
#[must_use]
pub fn pointer(id: &ExecutionId, tenant: TenantNo) -> Vec<u8> {
    let mut key = pointer_prefix(id);
    key.extend_from_slice(&tenant.0.to_be_bytes());
    key
}

/// Prefix of [`pointer`] over all tenants.
#[must_use]
pub fn pointer_prefix(id: &ExecutionId) -> Vec<u8> {
    let mut key = vec![POINTER];
    key.extend_from_slice(id.as_str().as_bytes());
    key.push(0);
    key
}

/// `keys`: the open execution that holds a unique key.
#[must_use]
pub fn unique(tenant: TenantNo, unique_key: &str) -> Vec<u8> {
    named(UNIQUE, tenant, unique_key)
}

/// How long a row of the history family is kept; buckets are a thirtieth of it, so at most 32 live ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RetentionClass(pub u8);

impl RetentionClass {
    /// The spans, shortest first: 1 h, 6 h, 1 d, 3 d, 7 d, 14 d, 30 d, 90 d, 180 d, 400 d.
    pub const SPANS: [Millis; 10] = [
        Millis::hours(1),
        Millis::hours(6),
        Millis::days(1),
        Millis::days(3),
        Millis::days(7),
        Millis::days(14),
        Millis::days(30),
        Millis::days(90),
        Millis::days(180),
        Millis::days(400),
    ];

    /// The shortest class that keeps rows at least `span` (the longest one for anything above).
    #[must_use]
    pub fn for_span(span: Millis) -> Self {
        let found = Self::SPANS.iter().position(|s| *s >= span);
        Self(u8::try_from(found.unwrap_or(Self::SPANS.len() - 1)).unwrap_or(0))
    }

    /// All classes.
    pub fn all() -> impl DoubleEndedIterator<Item = Self> {
        (0..Self::SPANS.len()).filter_map(|i| u8::try_from(i).ok().map(Self))
    }

    /// How long its rows are kept.
    #[must_use]
    pub fn span(self) -> Millis {
        Self::SPANS
            .get(usize::from(self.0))
            .copied()
            .unwrap_or(Millis::days(400))
    }

    /// Width of its buckets.
    #[must_use]
    pub fn width(self) -> Millis {
        Millis(self.span().0 / 30)
    }

    /// The bucket of rows that came into being at `at`.
    #[must_use]
    pub fn bucket(self, at: Timestamp) -> u32 {
        u32::try_from(at.since(Timestamp::MIN).0 / self.width().0).unwrap_or(u32::MAX)
    }

    /// The first bucket that is still kept at log time `now`: every row of an earlier one is older than the span.
    #[must_use]
    pub fn first_kept(self, now: Timestamp) -> u32 {
        self.bucket(now.minus(self.span()))
    }
}

fn history(class: RetentionClass, bucket: u32, tenant: TenantNo, tag: u8) -> Vec<u8> {
    let mut key = Vec::with_capacity(48);
    key.push(class.0);
    key.extend_from_slice(&bucket.to_be_bytes());
    key.extend_from_slice(&tenant.0.to_be_bytes());
    key.push(tag);
    key
}

/// `history`: everything in one bucket of a class.
#[must_use]
pub fn history_bucket(class: RetentionClass, bucket: u32) -> Vec<u8> {
    let mut key = vec![class.0];
    key.extend_from_slice(&bucket.to_be_bytes());
    key
}

/// `history`: a final execution, in the bucket of its end.
#[must_use]
pub fn final_execution(
    class: RetentionClass,
    bucket: u32,
    tenant: TenantNo,
    id: &ExecutionId,
) -> Vec<u8> {
    let mut key = history(class, bucket, tenant, FINAL);
    key.extend_from_slice(id.as_str().as_bytes());
    key
}

/// `history`: all final executions of a tenant in one bucket.
#[must_use]
pub fn final_prefix(class: RetentionClass, bucket: u32, tenant: TenantNo) -> Vec<u8> {
    history(class, bucket, tenant, FINAL)
}

/// `history`: the ledger of one schedule in one bucket.
#[must_use]
pub fn ledger_prefix(
    class: RetentionClass,
    bucket: u32,
    tenant: TenantNo,
    id: &ScheduleId,
) -> Vec<u8> {
    let mut key = history(class, bucket, tenant, LEDGER);
    key.extend_from_slice(id.as_str().as_bytes());
    key.push(0);
    key
}

/// `history`: the ledger row of an execution that ended.
#[must_use]
pub fn ledger(
    class: RetentionClass,
    bucket: u32,
    tenant: TenantNo,
    id: &ScheduleId,
    nominal_at: Timestamp,
    incarnation: u64,
) -> Vec<u8> {
    let mut key = ledger_prefix(class, bucket, tenant, id);
    push_time(&mut key, nominal_at);
    key.extend_from_slice(&incarnation.to_be_bytes());
    key
}

/// `history`: the ledger row of an execution that was fired by hand at `created_at`: after whatever the rule names at that
/// instant.
#[must_use]
pub fn ledger_manual(
    (class, bucket): (RetentionClass, u32),
    tenant: TenantNo,
    id: &ScheduleId,
    (created_at, incarnation): (Timestamp, u64),
    execution: &ExecutionId,
) -> Vec<u8> {
    let mut key = ledger(class, bucket, tenant, id, created_at, incarnation);
    key.push(MANUAL);
    key.extend_from_slice(execution.as_str().as_bytes());
    key
}

/// `history`: the ledger row of a run of skips that begins at `nominal_at`: after that of an execution of the same
/// instant (a lost wall time may share it), by reason.
#[must_use]
pub fn ledger_skip(
    class: RetentionClass,
    bucket: u32,
    schedule: &Schedule,
    nominal_at: Timestamp,
    reason: SkipReason,
) -> Vec<u8> {
    let (tenant, id) = (schedule.tenant, &schedule.id);
    let mut key = ledger(class, bucket, tenant, id, nominal_at, schedule.incarnation);
    key.push(reason as u8);
    key
}

/// `history`: the audit records of a tenant (0: of none) in one bucket.
#[must_use]
pub fn audit_prefix(class: RetentionClass, bucket: u32, tenant: TenantNo) -> Vec<u8> {
    history(class, bucket, tenant, AUDIT)
}

/// `history`: one audit record, by log position.
#[must_use]
pub fn audit(
    class: RetentionClass,
    bucket: u32,
    tenant: TenantNo,
    index: u64,
    slot: u32,
) -> Vec<u8> {
    let mut key = audit_prefix(class, bucket, tenant);
    key.extend_from_slice(&index.to_be_bytes());
    key.extend_from_slice(&slot.to_be_bytes());
    key
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_ordered_by_priority_then_time_then_id() {
        let t = Timestamp::from_millis(1_000);
        let id = |s: &str| ExecutionId::new(s).expect("a good name");
        let key = |p, at, s: &str| ready(QueueNo(1), TenantNo(1), p, at, &id(s));
        assert!(key(9, t, "b") < key(5, t, "a"));
        assert!(key(5, t, "b") < key(5, t.plus(Millis(1)), "a"));
        assert!(key(5, t, "a") < key(5, t, "b"));
        assert_eq!(
            decode_line_order(&line_order(7, t, &id("x1"))),
            Some((7, t, id("x1")))
        );
    }

    #[test]
    fn a_class_keeps_at_least_its_span_in_at_most_32_buckets() {
        let now = Timestamp::from_millis(1_800_000_000_123);
        for class in RetentionClass::all() {
            assert!(RetentionClass::for_span(class.span()) == class);
            let first = class.first_kept(now);
            assert!(class.bucket(now.minus(class.span())) >= first);
            assert!(class.bucket(now) - first < 32, "{class:?}");
        }
    }
}
