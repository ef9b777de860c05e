//! The two lists behind one: open executions, then final ones, each newest id first.

use std::collections::BTreeSet;

use crate::api::handlers::LabelFilter;
use crate::api::problem::Error;
use crate::ids::{QueueNo, ScheduleId, TenantNo};
use crate::model::execution::ExecutionState;
use crate::state::reader::Found;
use crate::state::reader::lists::{Listing, PageOf, Size};
use crate::time::Timestamp;

/// What an execution must be to be listed.
pub(super) struct Filter {
    pub(super) states: Option<Vec<ExecutionState>>,
    /// Numbers of the queues of one name, deleted ones too.
    pub(super) queue: Option<BTreeSet<QueueNo>>,
    pub(super) kind: Option<String>,
    pub(super) label: Option<LabelFilter>,
    pub(super) due_from: Option<Timestamp>,
    pub(super) due_to: Option<Timestamp>,
}

impl Filter {
    fn wants(&self, is_final: bool) -> bool {
        let states = self.states.as_ref();
        states.is_none_or(|s| s.iter().any(|s| s.is_final() == is_final))
    }

    fn keeps(&self, found: &Found) -> bool {
        let row = found.execution();
        let template = &row.template;
        self.states
            .as_ref()
            .is_none_or(|s| s.contains(&found.state()))
            && self.queue.as_ref().is_none_or(|q| q.contains(&row.queue))
            && self
                .kind
                .as_deref()
                .is_none_or(|k| k == template.kind.as_str())
            && self
                .label
                .as_ref()
                .is_none_or(|l| l.matches(&template.labels))
            && self.due_from.is_none_or(|from| row.due_at >= from)
            && self.due_to.is_none_or(|to| row.due_at < to)
    }
}

/// First byte of a position among open executions.
const OPEN: u8 = b'o';
/// First byte of a position among final ones.
const FINAL: u8 = b'f';

/// The two lists behind one: open executions, then final ones.
pub(super) struct Source<'a> {
    pub(super) listing: &'a Listing,
    pub(super) tenant: TenantNo,
    pub(super) schedule: Option<&'a ScheduleId>,
    pub(super) filter: &'a Filter,
}

impl Source<'_> {
    pub(super) fn page(
        &self,
        position: Option<&[u8]>,
        page_size: usize,
    ) -> Result<PageOf<Found>, Error> {
        let (part, place) = match position.and_then(|p| p.split_first()) {
            None => (OPEN, None),
            Some((part, place)) => (*part, (!place.is_empty()).then_some(place)),
        };
        let mut items = Vec::new();
        if part == OPEN && self.filter.wants(false) {
            let page = self.open(place, page_size)?;
            items = page.items;
            if let Some(next) = page.next {
                let next = Some(tagged(OPEN, &next));
                return Ok(PageOf { items, next });
            }
        }
        if !self.filter.wants(true) {
            return Ok(PageOf { items, next: None });
        }
        if items.len() >= page_size {
            let next = Some(vec![FINAL]);
            return Ok(PageOf { items, next });
        }
        let place = place.filter(|_| part == FINAL);
        let page = self.ended(place, page_size - items.len())?;
        items.extend(page.items);
        let next = page.next.map(|next| tagged(FINAL, &next));
        Ok(PageOf { items, next })
    }

    fn open(&self, before: Option<&[u8]>, page_size: usize) -> Result<PageOf<Found>, Error> {
        let keep = |found: &Found| self.filter.keeps(found);
        let Some(schedule) = self.schedule else {
            let size = Size::of(page_size);
            return Ok(self
                .listing
                .open_executions(self.tenant, before, size, keep)?);
        };
        // A schedule knows its open executions; there are at most a thousand.
        let status: Option<crate::model::schedule::ScheduleStatus> = self.listing.row(
            crate::store::Family::Live,
            &crate::store::keys::status(self.tenant, schedule),
        )?;
        let mut ids = status.map(|s| s.open).unwrap_or_default();
        ids.sort_unstable_by(|a, b| b.cmp(a));
        ids.retain(|id| before.is_none_or(|before| id.as_str().as_bytes() < before));
        let found = self.listing.open_by_id(self.tenant, &ids)?;
        let mut items: Vec<Found> = found.into_iter().filter(keep).collect();
        let next = match items.len() > page_size {
            true => items
                .get(page_size.saturating_sub(1))
                .map(|last| last.execution().id.as_str().as_bytes().to_vec()),
            false => None,
        };
        items.truncate(page_size);
        Ok(PageOf { items, next })
    }

    fn ended(&self, before: Option<&[u8]>, page_size: usize) -> Result<PageOf<Found>, Error> {
        let keep = |found: &Found| self.filter.keeps(found);
        let size = Size::of(page_size);
        Ok(match self.schedule {
            Some(schedule) => {
                self.listing
                    .final_executions_of(self.tenant, schedule, before, size, keep)?
            }
            None => self
                .listing
                .final_executions(self.tenant, before, size, keep)?,
        })
    }
}

fn tagged(part: u8, place: &[u8]) -> Vec<u8> {
    let mut position = vec![part];
    position.extend_from_slice(place);
    position
}
