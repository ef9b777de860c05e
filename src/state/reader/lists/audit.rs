//! Pages of the audit log, newest first.
//!
//! Purpose: who changed what and why, over all owners or one. Callers: `api`. Invariants:
//! 1. Records come in the reverse order of the log: a later bucket holds later positions only, and inside a bucket the
//!    owners are merged by position.
//! 2. Looking for the first record of one owner in one bucket counts as a row examined, so that a page costs no more
//!    with ten thousand tenants; such a page may be short.

use super::{Bucket, Listing, PageOf, Size};
use crate::fault::Fault;
use crate::ids::TenantNo;
use crate::model::history::AuditRecord;
use crate::state::history::{KEEP_DEAD, kept_buckets};
use crate::store::keys::{self, RetentionClass};
use crate::store::value;
use crate::time::Timestamp;

/// Bytes of a bucket's number at the head of a position.
const BUCKET_LEN: usize = 4;

/// Where a page looks.
#[derive(Clone, Debug, Default)]
pub struct AuditRange {
    /// Tenants whose records are looked through; number 0 has those that belong to none.
    pub owners: Vec<TenantNo>,
    /// Not earlier than this.
    pub since: Option<Timestamp>,
    /// Earlier than this.
    pub until: Option<Timestamp>,
}

/// A record with its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Audited {
    /// Token of the entry that wrote it.
    pub token: u64,
    /// The record.
    pub record: AuditRecord,
}

impl Listing {
    /// Audit records in `range` that `keep` wants, from `position` (of an earlier page) on.
    ///
    /// # Errors
    /// Any [`Fault`] of reading or decoding.
    pub fn audit(
        &self,
        range: &AuditRange,
        position: Option<&[u8]>,
        size: Size,
        mut keep: impl FnMut(&AuditRecord) -> bool,
    ) -> Result<PageOf<Audited>, Fault> {
        let class = RetentionClass::for_span(KEEP_DEAD);
        let (first, mut before) = match position.and_then(|p| p.split_first_chunk::<BUCKET_LEN>()) {
            Some((bucket, before)) => (u32::from_be_bytes(*bucket), before),
            None => (u32::MAX, Default::default()),
        };
        let newest = range.until.map_or(first, |at| class.bucket(at).min(first));
        let oldest = range.since.map_or(0, |at| class.bucket(at));
        let in_range = |at: Timestamp| {
            range.since.is_none_or(|since| at >= since)
                && range.until.is_none_or(|until| at < until)
        };
        let mut items = Vec::new();
        let mut examined = 0;
        for bucket in kept_buckets(&self.cluster, class, self.now) {
            if bucket > newest || bucket < oldest {
                continue;
            }
            if items.len() >= size.items || examined >= size.examined {
                let next = Some(place(bucket, &[]));
                return Ok(PageOf { items, next });
            }
            let owners = range.owners.iter();
            let lines = owners.map(|owner| {
                Bucket::new((class, bucket), keys::audit_prefix(class, bucket, *owner))
            });
            examined += range.owners.len();
            let left = Size {
                items: size.items - items.len(),
                examined: size.examined.saturating_sub(examined).max(1),
            };
            let start =
                Some(std::mem::take(&mut before)).filter(|b| bucket == first && !b.is_empty());
            let page = self.merged(lines.collect(), start, left, |_, end, bytes| {
                examined += 1;
                let record: AuditRecord = value::decode(bytes)?;
                let token = token_of(end)?;
                let wanted = in_range(record.at) && keep(&record);
                Ok(wanted.then_some(Audited { token, record }))
            })?;
            items.extend(page.items);
            if let Some(end) = page.next {
                let next = Some(place(bucket, &end));
                return Ok(PageOf { items, next });
            }
        }
        Ok(PageOf { items, next: None })
    }
}

fn place(bucket: u32, before: &[u8]) -> Vec<u8> {
    [&bucket.to_be_bytes(), before].concat()
}

/// The entry of a record, from the end of its key: token, slot.
fn token_of(end: &[u8]) -> Result<u64, Fault> {
    let token = end.first_chunk().copied().map(u64::from_be_bytes);
    token.ok_or_else(|| Fault::corrupt("the key of an audit record"))
}
