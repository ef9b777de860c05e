//! Pages of lists, over one image of the store.
//!
//! Purpose: keyset pages with filters that cost a bounded number of rows. Callers: `api`.
//! Invariants:
//! 1. One call examines at most [`EXAMINED_MAX`] rows; a page may be short, even empty, and still say where it goes on.
//! 2. Everything in one page belongs to one applied entry.
//! 3. History is merged over its buckets by the end of the key (id or nominal time), newest first.

mod audit;

pub use audit::{AuditRange, Audited};

use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::sync::Arc;

use crate::fault::Fault;
use crate::ids::{ExecutionId, ScheduleId, TenantNo};
use crate::model::cluster::ClusterState;
use crate::model::execution::{Execution, FinalExecution};
use crate::model::history::LedgerRow;
use crate::model::lease::Lease;
use crate::model::schedule::{Schedule, ScheduleStatus};
use crate::state::history::kept_buckets;
use crate::state::reader::Found;
use crate::state::replica::{Replica, token_of};
use crate::state::resident::read;
use crate::store::keys::{self, RetentionClass};
use crate::store::value::{self, Stored};
use crate::store::{Direction, Family, KeyRange, View};
use crate::time::Timestamp;

/// Most rows that one page examines.
pub const EXAMINED_MAX: usize = 10_000;
/// Rows fetched at a time while filtering.
const CHUNK: usize = 256;
/// Rows fetched at a time from one bucket of history.
const BUCKET_CHUNK: usize = 32;

/// One image of the store with what is needed to read it.
#[derive(Clone)]
pub struct Listing {
    view: Arc<dyn View>,
    cluster: ClusterState,
    now: Timestamp,
    token: u64,
}

/// A page with the place where the next one begins.
#[derive(Clone, Debug)]
pub struct PageOf<T> {
    /// In order.
    pub items: Vec<T>,
    /// End of the key of the last row examined; `None`: nothing is left.
    pub next: Option<Vec<u8>>,
}

/// How much a page may hold and cost.
#[derive(Clone, Copy, Debug)]
pub struct Size {
    /// Most items.
    pub items: usize,
    /// Most rows examined.
    pub examined: usize,
}

impl Size {
    /// A page of `items`.
    #[must_use]
    pub const fn of(items: usize) -> Self {
        Self {
            items,
            examined: EXAMINED_MAX,
        }
    }
}

/// A raw row: end of its key, value.
type Row = (Vec<u8>, Vec<u8>);
/// A bucket of a retention class.
type Place = (RetentionClass, u32);

impl Listing {
    /// The present image of `replica`.
    #[must_use]
    pub fn of(replica: &Replica) -> Self {
        // Apply writes under the write lock, so memory and snapshot are of one entry.
        let resident = replica.resident();
        Self {
            view: replica.store().snapshot(),
            cluster: resident.cluster.clone(),
            now: resident.applied.now,
            token: token_of(&resident),
        }
    }

    /// Replicated time of the image.
    #[must_use]
    pub const fn now(&self) -> Timestamp {
        self.now
    }

    /// Token of its last entry.
    #[must_use]
    pub const fn token(&self) -> u64 {
        self.token
    }

    /// Schedules of a tenant after `after`, by name.
    ///
    /// # Errors
    /// Any [`Fault`] of reading or decoding.
    pub fn schedules(
        &self,
        tenant: TenantNo,
        after: Option<&[u8]>,
        size: Size,
        mut keep: impl FnMut(&Schedule, &ScheduleStatus) -> bool,
    ) -> Result<PageOf<(Schedule, ScheduleStatus)>, Fault> {
        let prefix = named_prefix(keys::SCHEDULE, tenant);
        let statuses = named_prefix(keys::STATUS, tenant);
        self.filtered(&prefix, (after, Direction::Forward), size, |rows| {
            let values = self.companions(&statuses, rows)?;
            let mut out = Vec::with_capacity(rows.len());
            for ((_, bytes), status) in rows.iter().zip(values) {
                let schedule: Schedule = value::decode(bytes)?;
                let status = status.ok_or_else(|| {
                    Fault::invariant(format!("schedule {} has no status row", schedule.id))
                })?;
                let status: ScheduleStatus = value::decode(&status)?;
                out.push(keep(&schedule, &status).then_some((schedule, status)));
            }
            Ok(out)
        })
    }

    /// Definitions of a schedule before `before`, newest first, the present one at the head; `None`: there is no such
    /// schedule.
    ///
    /// # Errors
    /// Any [`Fault`] of reading or decoding.
    pub fn generations(
        &self,
        tenant: TenantNo,
        id: &ScheduleId,
        before: Option<&[u8]>,
        size: Size,
    ) -> Result<Option<PageOf<Schedule>>, Fault> {
        let present = self.row::<Schedule>(Family::Live, &keys::schedule(tenant, id))?;
        let Some(present) = present else {
            return Ok(None);
        };
        let prefix = keys::generations(tenant, id, present.incarnation);
        let newest = present.generation.to_be_bytes();
        let head = before.is_none().then_some(present);
        let start = Some(before.unwrap_or(&newest));
        let size = Size {
            items: size.items.saturating_sub(usize::from(head.is_some())),
            ..size
        };
        let mut page = self.filtered(&prefix, (start, Direction::Backward), size, |rows| {
            let decode = |(_, bytes): &Row| value::decode(bytes).map(Some);
            rows.iter().map(decode).collect()
        })?;
        page.items.splice(..0, head);
        Ok(Some(page))
    }

    /// Open executions of a tenant before `before`, by id, newest first.
    ///
    /// # Errors
    /// Any [`Fault`] of reading or decoding.
    pub fn open_executions(
        &self,
        tenant: TenantNo,
        before: Option<&[u8]>,
        size: Size,
        mut keep: impl FnMut(&Found) -> bool,
    ) -> Result<PageOf<Found>, Fault> {
        let prefix = named_prefix(keys::EXECUTION, tenant);
        let leases = named_prefix(keys::LEASE, tenant);
        self.filtered(&prefix, (before, Direction::Backward), size, |rows| {
            let values = self.companions(&leases, rows)?;
            let mut out = Vec::with_capacity(rows.len());
            for ((_, bytes), lease) in rows.iter().zip(values) {
                let execution: Execution = value::decode(bytes)?;
                let lease: Option<Lease> = lease.map(|b| value::decode(&b)).transpose()?;
                let found = Found::Open(Box::new(execution), lease.map(Box::new));
                out.push(keep(&found).then_some(found));
            }
            Ok(out)
        })
    }

    /// Final executions of a tenant before `before`, by id, newest first.
    ///
    /// # Errors
    /// Any [`Fault`] of reading or decoding.
    pub fn final_executions(
        &self,
        tenant: TenantNo,
        before: Option<&[u8]>,
        size: Size,
        mut keep: impl FnMut(&Found) -> bool,
    ) -> Result<PageOf<Found>, Fault> {
        let prefixes = self.buckets(|class, bucket| keys::final_prefix(class, bucket, tenant));
        self.merged(prefixes, before, size, |_, _, bytes| {
            let done: FinalExecution = value::decode(bytes)?;
            let found = Found::Final(Box::new(done));
            Ok(keep(&found).then_some(found))
        })
    }

    /// The ledger of a schedule before `before`, newest nominal time first.
    ///
    /// # Errors
    /// Any [`Fault`] of reading or decoding.
    pub fn ledger(
        &self,
        tenant: TenantNo,
        schedule: &ScheduleId,
        before: Option<&[u8]>,
        size: Size,
        mut keep: impl FnMut(&LedgerRow) -> bool,
    ) -> Result<PageOf<LedgerRow>, Fault> {
        let prefixes =
            self.buckets(|class, bucket| keys::ledger_prefix(class, bucket, tenant, schedule));
        self.merged(prefixes, before, size, |_, _, bytes| {
            let row: LedgerRow = value::decode(bytes)?;
            Ok(keep(&row).then_some(row))
        })
    }

    /// Final executions of one schedule before `before`, newest nominal time first, found through its ledger.
    ///
    /// # Errors
    /// Any [`Fault`] of reading or decoding.
    pub fn final_executions_of(
        &self,
        tenant: TenantNo,
        schedule: &ScheduleId,
        before: Option<&[u8]>,
        size: Size,
        mut keep: impl FnMut(&Found) -> bool,
    ) -> Result<PageOf<Found>, Fault> {
        let prefixes =
            self.buckets(|class, bucket| keys::ledger_prefix(class, bucket, tenant, schedule));
        self.merged(prefixes, before, size, |(class, bucket), _, bytes| {
            let LedgerRow::Ran { execution, .. } = value::decode(bytes)? else {
                return Ok(None);
            };
            let key = keys::final_execution(class, bucket, tenant, &execution);
            let done: Option<FinalExecution> = read(self.view.as_ref(), Family::History, &key)?;
            // Deleted ones keep their ledger row.
            let found = done.map(|done| Found::Final(Box::new(done)));
            Ok(found.filter(|found| keep(found)))
        })
    }

    /// Open executions by id, with their leases; those that are not open any more are left out.
    ///
    /// # Errors
    /// Any [`Fault`] of reading or decoding.
    pub fn open_by_id(&self, tenant: TenantNo, ids: &[ExecutionId]) -> Result<Vec<Found>, Fault> {
        let rows: Vec<Row> = ids
            .iter()
            .map(|id| (id.as_str().as_bytes().to_vec(), Vec::new()))
            .collect();
        let executions = self.companions(&named_prefix(keys::EXECUTION, tenant), &rows)?;
        let leases = self.companions(&named_prefix(keys::LEASE, tenant), &rows)?;
        let mut out = Vec::with_capacity(ids.len());
        for (bytes, lease) in executions.into_iter().zip(leases) {
            let Some(bytes) = bytes else { continue };
            let lease: Option<Lease> = lease.map(|b| value::decode(&b)).transpose()?;
            let execution: Execution = value::decode(&bytes)?;
            out.push(Found::Open(Box::new(execution), lease.map(Box::new)));
        }
        Ok(out)
    }

    /// A payload stored apart.
    ///
    /// # Errors
    /// Any [`Fault`] of reading.
    pub fn body(&self, tenant: TenantNo, id: &ExecutionId) -> Result<Option<Vec<u8>>, Fault> {
        self.view.get(Family::Body, &keys::body(tenant, id))
    }

    /// A row by key.
    ///
    /// # Errors
    /// Any [`Fault`] of reading or decoding.
    pub fn row<T: Stored>(&self, family: Family, key: &[u8]) -> Result<Option<T>, Fault> {
        read(self.view.as_ref(), family, key)
    }

    /// Rows of another kind with the same name, in the order of `rows`.
    fn companions(&self, prefix: &[u8], rows: &[Row]) -> Result<Vec<Option<Vec<u8>>>, Fault> {
        let mut keys: Vec<(usize, Vec<u8>)> = rows
            .iter()
            .map(|(name, _)| [prefix, name.as_slice()].concat())
            .enumerate()
            .collect();
        keys.sort_by(|a, b| a.1.cmp(&b.1));
        keys.dedup_by(|a, b| a.1 == b.1);
        let sorted: Vec<&[u8]> = keys.iter().map(|(_, key)| key.as_slice()).collect();
        let values = self.view.multi_get(Family::Live, &sorted)?;
        let mut out = vec![None; rows.len()];
        for ((place, _), value) in keys.iter().zip(values) {
            if let Some(slot) = out.get_mut(*place) {
                *slot = value;
            }
        }
        Ok(out)
    }

    /// Walks a prefix of the live family in chunks until the page is full or has cost enough.
    fn filtered<T>(
        &self,
        prefix: &[u8],
        (start, direction): (Option<&[u8]>, Direction),
        size: Size,
        mut convert: impl FnMut(&[Row]) -> Result<Vec<Option<T>>, Fault>,
    ) -> Result<PageOf<T>, Fault> {
        let mut items = Vec::new();
        let mut at = start.map(<[u8]>::to_vec);
        let mut examined = 0;
        loop {
            let want = CHUNK.min(size.examined.saturating_sub(examined)).max(1);
            let rows = self.chunk(Family::Live, prefix, (at.as_deref(), direction), want)?;
            let is_last = rows.len() < want;
            for (row, item) in rows.iter().zip(convert(&rows)?) {
                if items.len() >= size.items {
                    return Ok(PageOf { items, next: at });
                }
                at = Some(row.0.clone());
                examined += 1;
                items.extend(item);
            }
            if is_last {
                return Ok(PageOf { items, next: None });
            }
            if examined >= size.examined || items.len() >= size.items {
                return Ok(PageOf { items, next: at });
            }
        }
    }

    /// Up to `want` rows of a prefix beyond `start`.
    fn chunk(
        &self,
        family: Family,
        prefix: &[u8],
        (start, direction): (Option<&[u8]>, Direction),
        want: usize,
    ) -> Result<Vec<Row>, Fault> {
        let mut range = KeyRange::prefix(prefix);
        match (start, direction) {
            (None, _) => {}
            (Some(start), Direction::Forward) => {
                // The first key past `start`: no name holds a zero byte.
                range.from = [prefix, start, &[0]].concat();
            }
            (Some(start), Direction::Backward) => range.to = Some([prefix, start].concat()),
        }
        let mut rows = Vec::new();
        self.view
            .scan(family, &range, direction, &mut |key, bytes| {
                rows.push((
                    key.get(prefix.len()..).unwrap_or_default().to_vec(),
                    bytes.to_vec(),
                ));
                if rows.len() < want {
                    ControlFlow::Continue(())
                } else {
                    ControlFlow::Break(())
                }
            })?;
        Ok(rows)
    }

    fn buckets(&self, prefix: impl Fn(RetentionClass, u32) -> Vec<u8>) -> Vec<Bucket> {
        RetentionClass::all()
            .flat_map(|class| {
                kept_buckets(&self.cluster, class, self.now).map(move |bucket| (class, bucket))
            })
            .map(|(class, bucket)| Bucket::new((class, bucket), prefix(class, bucket)))
            .collect()
    }

    /// Merges buckets of history by the end of their keys, largest first. `convert` is given bucket, end of key, value.
    fn merged<T>(
        &self,
        mut buckets: Vec<Bucket>,
        before: Option<&[u8]>,
        size: Size,
        mut convert: impl FnMut(Place, &[u8], &[u8]) -> Result<Option<T>, Fault>,
    ) -> Result<PageOf<T>, Fault> {
        for bucket in &mut buckets {
            self.refill(bucket, before, 1)?;
        }
        buckets.retain(|bucket| !bucket.rows.is_empty());
        let mut items = Vec::new();
        let mut last = before.map(<[u8]>::to_vec);
        let mut examined = 0;
        loop {
            let newest = buckets
                .iter_mut()
                .filter(|bucket| !bucket.rows.is_empty())
                .max_by(|a, b| a.head().cmp(b.head()));
            let Some(bucket) = newest else {
                return Ok(PageOf { items, next: None });
            };
            if examined >= size.examined || items.len() >= size.items {
                return Ok(PageOf { items, next: last });
            }
            let Some((end, bytes)) = bucket.rows.pop_front() else {
                continue;
            };
            items.extend(convert(bucket.place, &end, &bytes)?);
            examined += 1;
            if bucket.rows.is_empty() && !bucket.is_done {
                self.refill(bucket, Some(&end), BUCKET_CHUNK)?;
            }
            last = Some(end);
        }
    }

    fn refill(&self, bucket: &mut Bucket, before: Option<&[u8]>, want: usize) -> Result<(), Fault> {
        let from = (before, Direction::Backward);
        let rows = self.chunk(Family::History, &bucket.prefix, from, want)?;
        bucket.is_done = rows.len() < want;
        bucket.rows.extend(rows);
        Ok(())
    }
}

/// One bucket of history in a merge.
struct Bucket {
    place: Place,
    prefix: Vec<u8>,
    rows: VecDeque<Row>,
    is_done: bool,
}

impl Bucket {
    const fn new(place: Place, prefix: Vec<u8>) -> Self {
        Self {
            place,
            prefix,
            rows: VecDeque::new(),
            is_done: false,
        }
    }

    fn head(&self) -> &[u8] {
        self.rows.front().map_or(&[], |(end, _)| end.as_slice())
    }
}

fn named_prefix(tag: u8, tenant: TenantNo) -> Vec<u8> {
    let mut prefix = vec![tag];
    prefix.extend_from_slice(&tenant.0.to_be_bytes());
    prefix
}
