//! The head of one ready line: what may be granted next of one tenant in one queue.
//!
//! Purpose: hold a bounded window of a stored line, in its stored order, opened lazily and filled from the store page by
//! page. Callers: `leader::admission`.
//! Invariants:
//! 1. The window holds every stored item up to its edge that is neither held back nor in a grant under way; so its
//!    first item is the first of the line, however long the line is: the bound inverts nothing.
//! 2. Items beyond the edge are not remembered; they are read when the edge moves. What happens to the line while a
//!    page is being read is noted and merged, since the page's snapshot may be older.

use std::collections::{BTreeMap, BTreeSet};

use crate::command::outcome::LineValue;
use crate::ids::{ExecutionId, Kind};
use crate::model::execution::Labels;
use crate::time::Timestamp;

/// Items that a page reads at most.
pub const PAGE: usize = 256;
/// Items of a window in the ordinary case.
pub const WINDOW: usize = 512;
/// Items of a window when a worker found nothing of its kinds in a smaller one: how deep filters see.
pub const WINDOW_DEEP: usize = 4_096;
/// Changes noted while a page is being read; with more of them the page is read again.
const NOTES_MAX: usize = 4_096;

/// Place in a line: rank (9 − priority), time in the key, id.
pub type Order = (u8, Timestamp, ExecutionId);

/// What a worker takes.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Filter {
    /// Handlers it has; `None`: all.
    pub kinds: Option<BTreeSet<Kind>>,
    /// What it shows to `requires`.
    pub labels: Labels,
}

impl Filter {
    /// Whether the worker may take such an item.
    #[must_use]
    pub fn admits(&self, item: &LineValue) -> bool {
        let kind = self.kinds.as_ref().is_none_or(|k| k.contains(&item.kind));
        kind && item
            .requires
            .iter()
            .all(|(name, value)| self.labels.get(name) == Some(value))
    }
}

/// What holds items of a line back while others may go.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum HeldBy {
    /// A paused kind.
    Kind(Kind),
    /// The rate of a concurrency key.
    Key(String),
}

#[derive(Debug, Default)]
enum Edge {
    /// The window is the whole line.
    End,
    /// It goes up to this item (included).
    At(Order),
    /// Nothing was read yet.
    #[default]
    Start,
}

#[derive(Debug, Default)]
struct Loading {
    offered: BTreeMap<Order, LineValue>,
    withdrawn: BTreeSet<Order>,
    overflowed: bool,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Line {
    window: BTreeMap<Order, LineValue>,
    held: BTreeMap<HeldBy, BTreeMap<Order, LineValue>>,
    held_count: usize,
    edge: Edge,
    loading: Option<Loading>,
    deep: bool,
}

impl Line {
    /// A line of which the store holds nothing: its window is whole from the start.
    #[must_use]
    pub fn empty() -> Self {
        Self {
            edge: Edge::End,
            ..Self::default()
        }
    }

    /// An item entered the stored line.
    pub fn offer(&mut self, order: Order, value: LineValue) {
        if self.covers(&order) {
            self.window.insert(order, value);
            self.trim();
        } else if let Some(loading) = &mut self.loading {
            loading.withdrawn.remove(&order);
            if loading.offered.len() < NOTES_MAX {
                loading.offered.insert(order, value);
            } else {
                loading.overflowed = true;
            }
        }
    }

    /// An item left the stored line other than by a grant.
    pub fn withdraw(&mut self, order: &Order) {
        if self.window.remove(order).is_none() {
            for items in self.held.values_mut() {
                if items.remove(order).is_some() {
                    self.held_count = self.held_count.saturating_sub(1);
                    break;
                }
            }
        }
        if let Some(loading) = &mut self.loading {
            loading.offered.remove(order);
            if loading.withdrawn.len() < NOTES_MAX {
                loading.withdrawn.insert(order.clone());
            } else {
                loading.overflowed = true;
            }
        }
    }

    /// The first item that `filter` admits.
    #[must_use]
    pub fn find(&self, filter: &Filter) -> Option<(&Order, &LineValue)> {
        self.window.iter().find(|(_, value)| filter.admits(value))
    }

    /// Rank of the first item.
    #[must_use]
    pub fn head_rank(&self) -> Option<u8> {
        self.window.first_key_value().map(|(order, _)| order.0)
    }

    /// Takes an item out to grant it.
    pub fn take(&mut self, order: &Order) -> Option<LineValue> {
        self.window.remove(order)
    }

    /// Puts an item back that was not granted after all and is still in the stored line.
    pub fn put_back(&mut self, order: Order, value: LineValue) {
        if self.covers(&order) {
            self.window.insert(order, value);
        }
    }

    /// Moves an item aside until [`Line::release`].
    pub fn hold(&mut self, by: HeldBy, order: &Order) {
        if let Some(value) = self.window.remove(order) {
            self.held
                .entry(by)
                .or_default()
                .insert(order.clone(), value);
            self.held_count += 1;
        }
    }

    /// Puts back what `by` held.
    pub fn release(&mut self, by: &HeldBy) {
        if let Some(items) = self.held.remove(by) {
            self.held_count = self.held_count.saturating_sub(items.len());
            self.window.extend(items);
        }
    }

    /// Puts back everything held.
    pub fn release_all(&mut self) {
        for (_, items) in std::mem::take(&mut self.held) {
            self.window.extend(items);
        }
        self.held_count = 0;
    }

    /// A worker found nothing for its filter, and there is more in the store: lets the window grow once.
    pub fn look_deeper(&mut self) {
        self.deep = true;
    }

    /// Whether a page should be read now.
    #[must_use]
    pub fn wants_page(&self) -> bool {
        let present = self.window.len() + self.held_count;
        let low = if self.deep { WINDOW_DEEP } else { WINDOW / 4 };
        !matches!(self.edge, Edge::End)
            && self.loading.is_none()
            && (self.window.len() < WINDOW / 4 || self.deep)
            && present < low.max(WINDOW_DEEP * usize::from(self.held_count > 0))
    }

    /// Starts to note changes, and says after which item to read (`None`: from the start). Take the snapshot only
    /// after this call.
    pub fn begin_page(&mut self) -> Option<Order> {
        self.loading = Some(Loading::default());
        match &self.edge {
            Edge::At(order) => Some(order.clone()),
            Edge::Start | Edge::End => None,
        }
    }

    /// Merges a page read in order from where [`Line::begin_page`] said. `whole`: the line ended in it.
    pub fn end_page(&mut self, page: Vec<(Order, LineValue)>, whole: bool) {
        let Some(loading) = self.loading.take() else {
            return;
        };
        self.deep = false;
        if loading.overflowed {
            return;
        }
        if whole {
            self.edge = Edge::End;
        } else if let Some((last, _)) = page.last() {
            self.edge = Edge::At(last.clone());
        }
        for (order, value) in page {
            if !loading.withdrawn.contains(&order) {
                self.window.insert(order, value);
            }
        }
        for (order, value) in loading.offered {
            if self.covers(&order) {
                self.window.insert(order, value);
            }
        }
        // No trim: what was read at a worker's special wish would be forgotten at once.
    }

    /// Whether nothing is known of it that the store would not give again.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        matches!(self.edge, Edge::End)
            && self.window.is_empty()
            && self.held_count == 0
            && self.loading.is_none()
    }

    /// Items in memory.
    #[must_use]
    pub fn len(&self) -> usize {
        self.window.len() + self.held_count
    }

    /// Whether nothing can be granted of it now.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.window.is_empty()
    }

    fn covers(&self, order: &Order) -> bool {
        match &self.edge {
            Edge::End => true,
            Edge::At(edge) => order <= edge,
            Edge::Start => false,
        }
    }

    /// Forgets the far end of a window that offers have made too large.
    fn trim(&mut self) {
        if self.window.len() <= WINDOW_DEEP {
            return;
        }
        while self.window.len() > WINDOW {
            self.window.pop_last();
        }
        if let Some((last, _)) = self.window.last_key_value() {
            self.edge = Edge::At(last.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::time::Millis;

    fn order(n: u64) -> Order {
        let at = Timestamp::EPOCH.plus(Millis(n));
        let id = ExecutionId::new(&format!("e{n}")).expect("a good name");
        (4, at, id)
    }

    fn value(kind: &str) -> LineValue {
        LineValue {
            kind: Kind::new(kind).expect("a good kind"),
            payload_len: 0,
            concurrency_key: None,
            requires: Labels::new(),
        }
    }

    fn page(from: u64, to: u64) -> Vec<(Order, LineValue)> {
        (from..to).map(|n| (order(n), value("a"))).collect()
    }

    fn head(line: &Line) -> Option<u64> {
        let (order, _) = line.find(&Filter::default())?;
        Some(order.1.since(Timestamp::EPOCH).0)
    }

    #[test]
    fn nothing_is_granted_before_the_head_of_the_line_is_known() {
        let mut line = Line::default();
        line.offer(order(50), value("a"));
        assert_eq!(head(&line), None);
        assert!(line.wants_page());
        assert_eq!(line.begin_page(), None);
        line.end_page(page(10, 20), false);
        assert_eq!(head(&line), Some(10));
    }

    #[test]
    fn what_happens_while_a_page_is_read_is_merged() {
        let mut line = Line::default();
        line.begin_page();
        line.offer(order(5), value("a"));
        line.offer(order(15), value("a"));
        line.offer(order(99), value("a"));
        line.withdraw(&order(11));
        line.end_page(page(10, 20), false);
        assert_eq!(line.len(), 10);
        assert_eq!(head(&line), Some(5));
        line.take(&order(5));
        line.take(&order(10));
        assert_eq!(head(&line), Some(12));
    }

    #[test]
    fn a_flood_while_a_page_is_read_makes_it_be_read_again() {
        let mut line = Line::default();
        line.begin_page();
        for n in 0..=NOTES_MAX as u64 {
            line.offer(order(100 + n), value("a"));
        }
        line.end_page(page(10, 20), true);
        assert_eq!(head(&line), None);
        assert!(line.wants_page());
    }

    #[test]
    fn a_window_that_grew_too_large_forgets_its_far_end_only() {
        let mut line = Line::empty();
        for n in (0..=WINDOW_DEEP as u64).rev() {
            line.offer(order(n), value("a"));
        }
        assert_eq!(line.len(), WINDOW);
        assert_eq!(head(&line), Some(0));
        line.offer(order(WINDOW as u64 + 7), value("a"));
        assert_eq!(line.len(), WINDOW, "beyond the edge: the store has it");
        line.offer((3, Timestamp::EPOCH, order(0).2), value("a"));
        assert_eq!(
            line.head_rank(),
            Some(3),
            "a higher priority is seen at once"
        );
    }

    #[test]
    fn held_items_step_aside_and_come_back_in_their_place() {
        let mut line = Line::empty();
        for n in 1..4 {
            line.offer(order(n), value("a"));
        }
        let by = HeldBy::Key("k".into());
        line.hold(by.clone(), &order(1));
        assert_eq!(head(&line), Some(2));
        assert!(!line.is_idle());
        line.release(&by);
        assert_eq!(head(&line), Some(1));
        line.hold(by, &order(1));
        line.withdraw(&order(1));
        line.release_all();
        assert_eq!(head(&line), Some(2));
    }

    #[test]
    fn filters_look_at_kind_and_required_labels() {
        let mut needy = value("b");
        needy.requires.insert("zone".into(), "eu".into());
        let mut line = Line::empty();
        line.offer(order(1), needy);
        line.offer(order(2), value("a"));
        assert_eq!(head(&line), Some(2), "a worker without the label");
        let worker = Filter {
            kinds: Some([Kind::new("b").expect("a good kind")].into()),
            labels: [("zone".to_owned(), "eu".to_owned())].into(),
        };
        assert_eq!(line.find(&worker).map(|(o, _)| o.clone()), Some(order(1)));
    }

    #[derive(Clone, Debug)]
    enum Op {
        Offer(u64),
        Withdraw(u64),
        Grant,
        Begin,
        End,
    }

    fn op() -> impl Strategy<Value = Op> {
        prop_oneof![
            4 => (0..60_u64).prop_map(Op::Offer),
            1 => (0..60_u64).prop_map(Op::Withdraw),
            2 => Just(Op::Grant),
            2 => Just(Op::Begin),
            2 => Just(Op::End),
        ]
    }

    proptest! {
        /// Against a model that sees the whole line: whatever is granted is the first of the stored line.
        #[test]
        fn what_is_granted_is_always_the_first_of_the_stored_line(
            ops in proptest::collection::vec(op(), 1..120),
        ) {
            let mut stored: BTreeMap<Order, LineValue> = BTreeMap::new();
            let mut line = Line::default();
            let mut snapshot = None;
            for op in ops {
                match op {
                    Op::Offer(n) => {
                        stored.insert(order(n), value("a"));
                        line.offer(order(n), value("a"));
                    }
                    Op::Withdraw(n) => {
                        if stored.remove(&order(n)).is_some() {
                            line.withdraw(&order(n));
                        }
                    }
                    Op::Grant => {
                        let found = line.find(&Filter::default()).map(|(o, _)| o.clone());
                        if let Some(found) = found {
                            prop_assert_eq!(Some(&found), stored.keys().next());
                            line.take(&found);
                            stored.remove(&found);
                        }
                    }
                    Op::Begin if snapshot.is_none() && line.wants_page() => {
                        let after = line.begin_page();
                        snapshot = Some((after, stored.clone()));
                    }
                    Op::End => {
                        if let Some((after, rows)) = snapshot.take() {
                            let mut rest = rows
                                .into_iter()
                                .filter(|(o, _)| after.as_ref().is_none_or(|a| o > a));
                            let page: Vec<_> = rest.by_ref().take(5).collect();
                            line.end_page(page, rest.next().is_none());
                        }
                    }
                    Op::Begin => {}
                }
            }
        }
    }
}
