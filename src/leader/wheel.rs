//! The hierarchical timing wheel (Varghese & Lauck, scheme 7): who must be woken when.
//!
//! Purpose: insert, cancel and expire in O(1), whatever the number of entries. Callers: the office, for the near part
//! of the due index and for lease deadlines; the claims of waiting workers keep their own deadlines.
//! Invariants:
//! 1. An entry never expires before its time, and at the first [`Wheel::advance`] to its tick ([`TICK`]) or later.
//! 2. Three levels of 32 slots span [`HORIZON`]; an entry beyond it waits in the last slot and is placed again from
//!    there, so any distance is allowed, at one move per horizon.
//! 3. A [`Key`] of an entry that expired or was cancelled is never mistaken for a later one.
//!
//! ```text
//! level 0: 32 slots of one tick      (10 ms)     expires
//! level 1: 32 slots of 32 ticks      (320 ms)    moves to level 0 when its block begins
//! level 2: 32 slots of 1,024 ticks   (10.24 s)   moves to level 1 or 0 when its block begins
//! ```

use crate::time::{Millis, Timestamp};

/// Resolution of the wheel.
pub const TICK: Millis = Millis(10);
const SLOT_BITS: u32 = 5;
const SLOTS: usize = 1 << SLOT_BITS;
const LEVELS: usize = 3;
/// Ticks that the three levels span.
const SPAN: u64 = 1 << (SLOT_BITS * 3);
/// How far ahead an entry finds its own slot.
pub const HORIZON: Millis = Millis(SPAN * TICK.0);
/// List of entries whose tick has passed at insert; after the slots of all levels.
const OVERDUE: usize = LEVELS * SLOTS;
const NONE: u32 = u32::MAX;

/// Names an entry until it expires or is cancelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key {
    place: u32,
    generation: u32,
}

#[derive(Debug)]
struct Node<T> {
    item: Option<T>,
    tick: u64,
    generation: u32,
    list: u16,
    prev: u32,
    next: u32,
}

/// See the module.
#[derive(Debug)]
pub struct Wheel<T> {
    nodes: Vec<Node<T>>,
    free: Vec<u32>,
    /// First node of each slot, levels in order, then the overdue list.
    heads: [u32; OVERDUE + 1],
    tails: [u32; OVERDUE + 1],
    occupied: [u32; LEVELS],
    /// Every tick up to here has expired.
    current: u64,
    len: usize,
}

/// The tick at which something due `at` expires: the first one that begins at or after it.
fn tick_of(at: Timestamp) -> u64 {
    at.since(Timestamp::MIN).0.div_ceil(TICK.0)
}

fn time_of(tick: u64) -> Timestamp {
    Timestamp::MIN.plus(Millis(tick.saturating_mul(TICK.0)))
}

impl<T> Wheel<T> {
    /// An empty wheel that stands at `now`.
    #[must_use]
    pub fn new(now: Timestamp) -> Self {
        Self {
            nodes: Vec::new(),
            free: Vec::new(),
            heads: [NONE; OVERDUE + 1],
            tails: [NONE; OVERDUE + 1],
            occupied: [0; LEVELS],
            current: now.since(Timestamp::MIN).0 / TICK.0,
            len: 0,
        }
    }

    /// Entries in it.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it holds nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Adds an entry that expires `at`; at the next advance if that has passed.
    pub fn insert(&mut self, at: Timestamp, item: T) -> Key {
        let place = match self.free.pop() {
            Some(place) => place,
            None => {
                let place = u32::try_from(self.nodes.len()).unwrap_or(NONE);
                self.nodes.push(Node {
                    item: None,
                    tick: 0,
                    generation: 0,
                    list: 0,
                    prev: NONE,
                    next: NONE,
                });
                place
            }
        };
        let tick = tick_of(at);
        let mut generation = 0;
        if let Some(node) = self.nodes.get_mut(place as usize) {
            node.item = Some(item);
            node.tick = tick;
            generation = node.generation;
        }
        self.link(place, self.slot_for(tick));
        self.len += 1;
        Key { place, generation }
    }

    /// Takes an entry out. `None` when it is no longer there.
    pub fn cancel(&mut self, key: Key) -> Option<T> {
        let node = self.nodes.get(key.place as usize)?;
        if node.generation != key.generation || node.item.is_none() {
            return None;
        }
        self.unlink(key.place);
        self.release(key.place)
    }

    /// Moves to `now` and hands out what has expired, by tick; within a tick in no promised order. A `now` in the past
    /// hands out only what was overdue at insert.
    pub fn advance(&mut self, now: Timestamp, out: &mut Vec<T>) {
        self.drain(OVERDUE, out);
        let target = now.since(Timestamp::MIN).0 / TICK.0;
        while let Some(event) = self.next_event() {
            if event > target {
                break;
            }
            self.current = event;
            self.cascade(2, out);
            self.cascade(1, out);
            self.drain(usize::try_from(event).unwrap_or(0) % SLOTS, out);
        }
        self.current = self.current.max(target);
    }

    /// When to call [`Wheel::advance`] next, at the earliest (sometimes only to move entries down a level); `None` for
    /// an empty wheel.
    #[must_use]
    pub fn next_at(&self) -> Option<Timestamp> {
        if self.head(OVERDUE) != NONE {
            return Some(time_of(self.current));
        }
        self.next_event().map(time_of)
    }

    /// The next tick at which a slot of level 0 expires or one above moves down.
    fn next_event(&self) -> Option<u64> {
        let mut next: Option<u64> = None;
        for (level, occupied) in (0_u32..).zip(self.occupied) {
            if occupied == 0 {
                continue;
            }
            let shift = level * SLOT_BITS;
            let block = (self.current >> shift) + 1;
            let turn = u32::try_from(block % SLOTS as u64).unwrap_or(0);
            let ahead = u64::from(occupied.rotate_right(turn).trailing_zeros());
            let tick = (block + ahead) << shift;
            next = Some(next.map_or(tick, |n| n.min(tick)));
        }
        next
    }

    fn slot_for(&self, tick: u64) -> usize {
        let Some(distance) = tick.checked_sub(self.current).filter(|d| *d > 0) else {
            return OVERDUE;
        };
        let tick = self.current + distance.min(SPAN - 1);
        let level = match distance {
            0..32 => 0,
            32..1_024 => 1,
            _ => 2,
        };
        let slot = (tick >> (SLOT_BITS * level)) % SLOTS as u64;
        level as usize * SLOTS + usize::try_from(slot).unwrap_or(0)
    }

    /// Moves the slot of `level` whose block begins now down to where its entries belong.
    fn cascade(&mut self, level: u32, out: &mut Vec<T>) {
        let shift = SLOT_BITS * level;
        if !self.current.is_multiple_of(1 << shift) {
            return;
        }
        let slot = usize::try_from((self.current >> shift) % SLOTS as u64).unwrap_or(0);
        let mut place = self.take_list(level as usize * SLOTS + slot);
        while place != NONE {
            let Some(node) = self.nodes.get(place as usize) else {
                return;
            };
            let (next, tick) = (node.next, node.tick);
            if tick <= self.current {
                out.extend(self.release(place));
            } else {
                self.link(place, self.slot_for(tick));
            }
            place = next;
        }
    }

    fn drain(&mut self, list: usize, out: &mut Vec<T>) {
        let mut place = self.take_list(list);
        while place != NONE {
            let next = self.nodes.get(place as usize).map_or(NONE, |n| n.next);
            out.extend(self.release(place));
            place = next;
        }
    }

    fn head(&self, list: usize) -> u32 {
        self.heads.get(list).copied().unwrap_or(NONE)
    }

    /// Detaches a whole list and answers its first node.
    fn take_list(&mut self, list: usize) -> u32 {
        let first = self.head(list);
        self.set_ends(list, NONE, NONE);
        first
    }

    fn set_ends(&mut self, list: usize, head: u32, tail: u32) {
        if let (Some(h), Some(t)) = (self.heads.get_mut(list), self.tails.get_mut(list)) {
            *h = head;
            *t = tail;
        }
        if let Some(occupied) = self.occupied.get_mut(list / SLOTS) {
            let bit = 1_u32 << (list % SLOTS);
            if head == NONE {
                *occupied &= !bit;
            } else {
                *occupied |= bit;
            }
        }
    }

    /// Appends a node to a list.
    fn link(&mut self, place: u32, list: usize) {
        let tail = self.tails.get(list).copied().unwrap_or(NONE);
        if let Some(node) = self.nodes.get_mut(place as usize) {
            node.list = u16::try_from(list).unwrap_or(0);
            node.prev = tail;
            node.next = NONE;
        }
        if let Some(last) = self.nodes.get_mut(tail as usize) {
            last.next = place;
        }
        let head = if tail == NONE { place } else { self.head(list) };
        self.set_ends(list, head, place);
    }

    fn unlink(&mut self, place: u32) {
        let Some(node) = self.nodes.get(place as usize) else {
            return;
        };
        let (list, prev, next) = (usize::from(node.list), node.prev, node.next);
        if let Some(before) = self.nodes.get_mut(prev as usize) {
            before.next = next;
        }
        if let Some(after) = self.nodes.get_mut(next as usize) {
            after.prev = prev;
        }
        let head = if prev == NONE { next } else { self.head(list) };
        let tail = self.tails.get(list).copied().unwrap_or(NONE);
        self.set_ends(list, head, if next == NONE { prev } else { tail });
    }

    /// Frees an unlinked node and answers its item.
    fn release(&mut self, place: u32) -> Option<T> {
        let node = self.nodes.get_mut(place as usize)?;
        node.generation = node.generation.wrapping_add(1);
        let item = node.item.take();
        self.free.push(place);
        self.len = self.len.saturating_sub(1);
        item
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn start() -> Timestamp {
        Timestamp::from_millis(1_800_000_000_003)
    }

    fn expired(wheel: &mut Wheel<u32>, now: Timestamp) -> Vec<u32> {
        let mut out = Vec::new();
        wheel.advance(now, &mut out);
        out.sort_unstable();
        out
    }

    #[test]
    fn an_entry_is_never_early_and_at_most_one_tick_late() {
        for distance in [
            0, 1, 9, 10, 319, 320, 10_239, 10_240, 327_670, 327_680, 4_000_000,
        ] {
            let at = start().plus(Millis(distance));
            let mut wheel = Wheel::new(start());
            wheel.insert(at, 1);
            if distance > 0 {
                assert!(
                    expired(&mut wheel, at.minus(Millis(1))).is_empty(),
                    "{distance}"
                );
            }
            assert_eq!(expired(&mut wheel, at.plus(TICK)), [1], "{distance}");
            assert!(wheel.is_empty());
        }
    }

    #[test]
    fn a_jump_over_everything_hands_out_everything() {
        let mut wheel = Wheel::new(start());
        for i in 0..1_000 {
            wheel.insert(start().plus(Millis(u64::from(i) * 997)), i);
        }
        let all: Vec<u32> = (0..1_000).collect();
        assert_eq!(expired(&mut wheel, start().plus(Millis::days(400))), all);
        assert_eq!(wheel.next_at(), None);
    }

    #[test]
    fn a_key_of_an_expired_entry_does_not_cancel_its_successor() {
        let mut wheel = Wheel::new(start());
        let old = wheel.insert(start().plus(Millis(20)), 1);
        assert_eq!(expired(&mut wheel, start().plus(Millis(40))), [1]);
        let new = wheel.insert(start().plus(Millis(90)), 2);
        assert_eq!(wheel.cancel(old), None);
        assert_eq!(wheel.cancel(new), Some(2));
        assert_eq!(wheel.cancel(new), None);
    }

    #[derive(Clone, Debug)]
    enum Op {
        Insert(u64),
        Cancel(usize),
        Advance(u64),
    }

    fn op() -> impl Strategy<Value = Op> {
        let distance = prop_oneof![0..40_u64, 0..2_000_u64, 0..400_000_u64, 0..2_000_000_u64];
        prop_oneof![
            4 => distance.clone().prop_map(Op::Insert),
            1 => any::<usize>().prop_map(Op::Cancel),
            2 => distance.prop_map(Op::Advance),
        ]
    }

    proptest! {
        /// The model: a sorted map of ticks. Source of the property: the module's invariants 1 and 3.
        #[test]
        fn it_behaves_as_a_sorted_map(ops in proptest::collection::vec(op(), 1..200)) {
            let mut now = start();
            let mut wheel = Wheel::new(now);
            let mut model: BTreeMap<u32, u64> = BTreeMap::new();
            let mut keys = Vec::new();
            for (id, op) in (0_u32..).zip(ops) {
                match op {
                    Op::Insert(distance) => {
                        let at = now.plus(Millis(distance));
                        keys.push((id, wheel.insert(at, id)));
                        model.insert(id, tick_of(at));
                    }
                    Op::Cancel(at) if !keys.is_empty() => {
                        let (id, key) = keys[at % keys.len()];
                        prop_assert_eq!(wheel.cancel(key), model.remove(&id).map(|_| id));
                    }
                    Op::Cancel(_) => {}
                    Op::Advance(distance) => {
                        // Overdue entries wait for an advance: `next_at` must ask for one in time.
                        let first = model.values().min().copied();
                        let wake = wheel.next_at();
                        prop_assert_eq!(wake.is_some(), first.is_some());
                        if let (Some(wake), Some(first)) = (wake, first) {
                            prop_assert!(wake <= time_of(first.max(wheel.current)));
                        }
                        now = now.plus(Millis(distance));
                        let tick = now.since(Timestamp::MIN).0 / TICK.0;
                        let due: Vec<u32> =
                            model.iter().filter(|(_, t)| **t <= tick).map(|(i, _)| *i).collect();
                        model.retain(|_, t| *t > tick);
                        prop_assert_eq!(expired(&mut wheel, now), due);
                    }
                }
                prop_assert_eq!(wheel.len(), model.len());
            }
        }
    }
}
