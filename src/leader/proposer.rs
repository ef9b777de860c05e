//! Lanes in front of the log: what goes into the next entry, and what is under way.
//!
//! Purpose: natural batching without a timer. Callers: the office.
//! Invariants:
//! 1. Each lane is first in, first out. The urgent lane (firing, leases) goes first; the API lane keeps a quarter of
//!    every entry, so that neither starves the other.
//! 2. An entry holds at most [`COMMANDS_MAX`] commands, [`BYTES_SOFT`] bytes and [`WEIGHT_MAX`] rows' worth of work; a
//!    larger command travels alone. Commands glued to the one before are in its entry.
//! 3. Entries are answered in the order in which they were proposed.

use std::collections::VecDeque;

use crate::command::codec::Frame;
use crate::command::executions::ExecutionCommand;
use crate::command::leases::LeaseCommand;
use crate::command::schedules::ScheduleCommand;
use crate::command::{Command, Envelope};

/// Commands of an entry at most.
pub const COMMANDS_MAX: usize = 256;
/// Bytes after which an entry closes.
pub const BYTES_SOFT: usize = 128 * 1024;
/// Items (each some rows) after which an entry closes: bounds how long apply takes for one entry.
pub const WEIGHT_MAX: usize = 1_024;
/// What is left to the API lane of each bound when both lanes are full.
const API_SHARE: usize = 4;
/// Commands waiting for which a second entry may be under way: below that they go sooner in one entry after the first
/// than in many small ones, each of which wakes half a dozen threads.
const SECOND: usize = 16;
/// Commands waiting for which more than two entries may be under way.
const DEEP: usize = 64;

/// How much apply has to do for a command, in items.
#[must_use]
pub fn weight(command: &Command) -> usize {
    match command {
        Command::Admin(_) => 1,
        Command::Schedule(ScheduleCommand::Fire(c)) => 1 + c.steps.len(),
        Command::Schedule(ScheduleCommand::Resume(c)) => 1 + c.steps.len(),
        Command::Schedule(_) => 1,
        Command::Execution(ExecutionCommand::ProcessDue(c)) => c.items.len(),
        Command::Execution(_) => 1,
        Command::Lease(LeaseCommand::Grant(c)) => c.items.len(),
        Command::Lease(LeaseCommand::Report(c)) => c.items.len(),
        Command::Lease(LeaseCommand::Expire(c)) => c.items.len(),
        Command::Lease(LeaseCommand::Revoke(c)) => c.items.len(),
    }
}

/// An encoded command.
#[derive(Clone, Debug)]
pub struct Parcel {
    /// Its bytes.
    pub frame: Frame,
    /// What apply has to do for it.
    pub weight: usize,
}

impl Parcel {
    /// Encodes a command.
    ///
    /// # Errors
    /// In words, for a command over the bound.
    pub fn pack(envelope: &Envelope) -> Result<Self, String> {
        let frame = Frame::encode(envelope).map_err(|e| e.to_string())?;
        let weight = weight(&envelope.command);
        Ok(Self { frame, weight })
    }
}

/// A command in a lane, with who waits for its outcome.
#[derive(Debug)]
pub struct Queued<O> {
    /// The command.
    pub parcel: Parcel,
    /// Who.
    pub origin: O,
    /// It must be in the entry of the command before it.
    pub glued: bool,
}

/// See the module.
#[derive(Debug)]
pub struct Lanes<O> {
    urgent: VecDeque<Queued<O>>,
    api: VecDeque<Queued<O>>,
    bytes: usize,
}

impl<O> Default for Lanes<O> {
    fn default() -> Self {
        Self {
            urgent: VecDeque::new(),
            api: VecDeque::new(),
            bytes: 0,
        }
    }
}

#[derive(Clone, Copy)]
struct Room {
    commands: usize,
    bytes: usize,
    weight: usize,
}

impl<O> Lanes<O> {
    /// Adds to the urgent lane.
    pub fn push_urgent(&mut self, queued: Queued<O>) {
        self.bytes += queued.parcel.frame.len();
        self.urgent.push_back(queued);
    }

    /// Adds to the API lane.
    pub fn push_api(&mut self, queued: Queued<O>) {
        self.bytes += queued.parcel.frame.len();
        self.api.push_back(queued);
    }

    /// Puts an entry back that could not be appended, in front of everything.
    pub fn put_back(&mut self, entry: Vec<Queued<O>>) {
        for queued in entry.into_iter().rev() {
            self.bytes += queued.parcel.frame.len();
            self.urgent.push_front(queued);
        }
    }

    /// Commands waiting.
    #[must_use]
    pub fn len(&self) -> usize {
        self.urgent.len() + self.api.len()
    }

    /// Whether nothing waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.urgent.is_empty() && self.api.is_empty()
    }

    /// Whether to propose an entry now, with `under_way` others: at once while none is; beyond that only when enough
    /// waits, so that entries grow with the load.
    #[must_use]
    pub fn is_ripe(&self, under_way: usize, max: usize) -> bool {
        if self.is_empty() || under_way >= max {
            return false;
        }
        let enough = match under_way {
            0 => 1,
            1 => SECOND,
            _ => DEEP,
        };
        self.len() >= enough || self.bytes >= BYTES_SOFT / 2
    }

    /// Takes the commands of the next entry.
    pub fn compose(&mut self) -> Vec<Queued<O>> {
        let mut entry = Vec::new();
        let all = Room {
            commands: COMMANDS_MAX,
            bytes: BYTES_SOFT,
            weight: WEIGHT_MAX,
        };
        let keep = if self.api.is_empty() { 0 } else { 1 };
        let urgent = Room {
            commands: all.commands - keep * all.commands / API_SHARE,
            bytes: all.bytes - keep * all.bytes / API_SHARE,
            weight: all.weight - keep * all.weight / API_SHARE,
        };
        let used = take(&mut self.urgent, urgent, &mut entry);
        let room = Room {
            commands: all.commands.saturating_sub(used.commands),
            bytes: all.bytes.saturating_sub(used.bytes),
            weight: all.weight.saturating_sub(used.weight),
        };
        take(&mut self.api, room, &mut entry);
        let bytes: usize = entry.iter().map(|q| q.parcel.frame.len()).sum();
        self.bytes = self.bytes.saturating_sub(bytes);
        entry
    }

    /// Takes everything, for a last answer.
    pub fn drain(&mut self) -> impl Iterator<Item = Queued<O>> + use<O> {
        self.bytes = 0;
        let urgent = std::mem::take(&mut self.urgent);
        urgent.into_iter().chain(std::mem::take(&mut self.api))
    }
}

/// Moves what fits from the front of `lane`; the first command of an entry always fits.
fn take<O>(lane: &mut VecDeque<Queued<O>>, room: Room, entry: &mut Vec<Queued<O>>) -> Room {
    let mut used = Room {
        commands: 0,
        bytes: 0,
        weight: 0,
    };
    while let Some(first) = lane.front() {
        let mut group = Room {
            commands: 1,
            bytes: first.parcel.frame.len(),
            weight: first.parcel.weight,
        };
        for glued in lane.iter().skip(1).take_while(|q| q.glued) {
            group.commands += 1;
            group.bytes += glued.parcel.frame.len();
            group.weight += glued.parcel.weight;
        }
        let fits = used.commands + group.commands <= room.commands
            && used.bytes + group.bytes <= room.bytes
            && used.weight + group.weight <= room.weight;
        if !fits && !entry.is_empty() {
            break;
        }
        for _ in 0..group.commands {
            entry.extend(lane.pop_front());
        }
        used.commands += group.commands;
        used.bytes += group.bytes;
        used.weight += group.weight;
        if !fits {
            break;
        }
    }
    used
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::admin::{AdminCommand, TakeOffice};
    use crate::command::executions::ProcessDue;
    use crate::ids::TenantNo;
    use crate::store::due::{DueEntry, DueKey, DueKind};
    use crate::time::Timestamp;

    fn small(origin: u32) -> Queued<u32> {
        let command = Command::Admin(AdminCommand::TakeOffice(TakeOffice { node: 1 }));
        Queued {
            parcel: Parcel::pack(&Envelope::leader(command)).expect("it is small"),
            origin,
            glued: false,
        }
    }

    fn heavy(origin: u32, items: usize) -> Queued<u32> {
        let entry = DueEntry {
            key: DueKey::new(Timestamp::EPOCH, Timestamp::EPOCH),
            tenant: TenantNo(1),
            kind: DueKind::Execution,
            id: "e".repeat(100),
        };
        let items = vec![entry; items];
        let command = Command::Execution(ExecutionCommand::ProcessDue(ProcessDue { items }));
        Queued {
            parcel: Parcel::pack(&Envelope::leader(command)).expect("it fits"),
            origin,
            glued: false,
        }
    }

    fn origins(entry: &[Queued<u32>]) -> Vec<u32> {
        entry.iter().map(|q| q.origin).collect()
    }

    #[test]
    fn urgent_goes_first_and_each_lane_keeps_its_order() {
        let mut lanes = Lanes::default();
        lanes.push_api(small(10));
        lanes.push_urgent(small(1));
        lanes.push_api(small(11));
        lanes.push_urgent(small(2));
        assert_eq!(origins(&lanes.compose()), [1, 2, 10, 11]);
        assert!(lanes.is_empty());
    }

    #[test]
    fn the_api_lane_keeps_its_share_of_a_full_entry() {
        let mut lanes = Lanes::default();
        for n in 0..1_000 {
            lanes.push_urgent(small(n));
            lanes.push_api(small(10_000 + n));
        }
        let entry = origins(&lanes.compose());
        assert_eq!(entry.len(), COMMANDS_MAX);
        assert_eq!(entry.iter().filter(|o| **o >= 10_000).count(), 64);
    }

    #[test]
    fn a_command_over_the_soft_bound_travels_alone() {
        let mut lanes = Lanes::default();
        lanes.push_urgent(small(1));
        lanes.push_urgent(heavy(2, 1_500));
        lanes.push_urgent(small(3));
        assert_eq!(origins(&lanes.compose()), [1]);
        assert_eq!(origins(&lanes.compose()), [2]);
        assert_eq!(origins(&lanes.compose()), [3]);
    }

    #[test]
    fn weight_closes_an_entry_before_bytes_do() {
        let mut lanes = Lanes::default();
        for n in 0..10 {
            lanes.push_urgent(heavy(n, 200));
        }
        assert_eq!(origins(&lanes.compose()), [0, 1, 2, 3, 4]);
    }

    #[test]
    fn glued_commands_share_an_entry() {
        let mut lanes = Lanes::default();
        for n in 0..4 {
            lanes.push_urgent(heavy(n, 200));
        }
        lanes.push_urgent(heavy(4, 200));
        lanes.push_urgent(Queued {
            glued: true,
            ..heavy(5, 200)
        });
        assert_eq!(origins(&lanes.compose()), [0, 1, 2, 3]);
        assert_eq!(origins(&lanes.compose()), [4, 5]);
    }

    #[test]
    fn what_could_not_be_appended_goes_first_again() {
        let mut lanes = Lanes::default();
        lanes.push_urgent(small(1));
        let entry = lanes.compose();
        lanes.push_urgent(small(2));
        lanes.put_back(entry);
        assert_eq!(origins(&lanes.compose()), [1, 2]);
    }

    #[test]
    fn entries_grow_with_the_load() {
        let mut lanes = Lanes::default();
        assert!(!lanes.is_ripe(0, 4));
        lanes.push_urgent(small(1));
        assert!(lanes.is_ripe(0, 4) && !lanes.is_ripe(1, 4));
        for n in 1..SECOND as u32 {
            lanes.push_urgent(small(n));
        }
        assert!(lanes.is_ripe(1, 4) && !lanes.is_ripe(2, 4));
        for n in 0..DEEP as u32 {
            lanes.push_urgent(small(n));
        }
        assert!(lanes.is_ripe(3, 4));
        assert!(!lanes.is_ripe(4, 4));
    }
}
