//! What reaches the office from outside its task: calls, effects, results of jobs.
//!
//! Purpose: one bounded place, emptied in one go, in an order that is the same in every run of the simulation. Callers:
//! [`crate::leader::Leader`] and the apply thread fill it, the office empties it.
//! Invariants:
//! 1. Closed (no term of office), it takes nothing: callers are told `NotLeader` at once.
//! 2. Effects are taken before messages, so that an answer never overtakes the effects of its entry.
//! 3. Over [`EFFECTS_MAX`] effects are dropped and that is noted: the office reads everything again.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot};

use crate::command::outcome::{Effect, LineValue};
use crate::fault::Fault;
use crate::ids::{ExecutionId, QueueNo, ScheduleId, TenantNo, WorkerId};
use crate::leader::claims::NewClaim;
use crate::leader::due_index::Page;
use crate::leader::firing::Plotted;
use crate::leader::lines::Order;
use crate::leader::proposer::Parcel;
use crate::leader::sweeps::Swept;
use crate::leader::{Answer, Reported, Unavailable};
use crate::time::Timestamp;

/// Effects that may wait for the office.
pub const EFFECTS_MAX: usize = 500_000;

/// Where an answer goes.
pub type Reply<T> = oneshot::Sender<Result<T, Unavailable>>;

/// One lease, as callers name it: tenant, execution, fencing token.
pub type LeaseName = (TenantNo, ExecutionId, u64);

/// A page of a ready line.
#[derive(Debug)]
pub struct LinePage {
    /// Its queue.
    pub queue: QueueNo,
    /// Its tenant.
    pub tenant: TenantNo,
    /// What was read.
    pub items: Vec<(Order, LineValue)>,
    /// The line ended in it.
    pub whole: bool,
}

/// See the module.
#[derive(Debug)]
pub enum Message {
    /// API commands.
    Submit {
        /// Encoded, in order.
        parcels: Vec<Parcel>,
        /// Where the answers go.
        reply: Reply<Vec<Answer>>,
    },
    /// A claim.
    Claim(Box<NewClaim>),
    /// The caller of a claim is gone.
    HangUp(u64),
    /// A claim was answered, but nobody took the answer.
    Undelivered {
        /// Whose.
        worker: WorkerId,
        /// What was granted.
        leases: Vec<LeaseName>,
    },
    /// Renewals and reports.
    Report {
        /// Encoded.
        parcels: Vec<Parcel>,
        /// Where the results go.
        reply: Reply<Reported>,
    },
    /// Decides what is due of a schedule.
    Settle {
        /// Its tenant.
        tenant: TenantNo,
        /// Its name.
        schedule: ScheduleId,
        /// Where the end is told.
        reply: Reply<()>,
    },
    /// Tells when everything due at `until` is decided.
    CatchUp {
        /// When.
        until: Timestamp,
        /// Where it is told.
        reply: Reply<()>,
    },
    /// A worker was told to claim no more: its polls end.
    Drain(WorkerId),
    /// A worker signs off.
    SignOff {
        /// Who.
        worker: WorkerId,
        /// Where the count goes.
        reply: Reply<u32>,
    },
    /// A page of the due index.
    DuePage(Page),
    /// Pages of lines.
    LinePages(Vec<LinePage>),
    /// Schedules were planned.
    Planned(Vec<Plotted>),
    /// A sweep is through.
    Swept(Swept),
    /// A job could not read the store.
    Failed(Fault),
}

#[derive(Debug, Default)]
struct State {
    open: bool,
    messages: VecDeque<Message>,
    effects: Vec<Effect>,
    overflowed: bool,
}

/// What was in the inbox.
#[derive(Debug, Default)]
pub struct Mail {
    /// In the order of their entries.
    pub effects: Vec<Effect>,
    /// In the order of arrival.
    pub messages: VecDeque<Message>,
    /// Effects were dropped since the last time.
    pub overflowed: bool,
}

/// See the module. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Inbox {
    state: Arc<Mutex<State>>,
    notify: Arc<Notify>,
}

impl Inbox {
    /// Opens it, empty.
    pub fn open(&self) {
        *self.state.lock() = State {
            open: true,
            ..State::default()
        };
    }

    /// Closes it and hands out what was in it.
    pub fn close(&self) -> Mail {
        let mut state = self.state.lock();
        state.open = false;
        take(&mut state)
    }

    /// Adds a message; gives it back when closed.
    ///
    /// # Errors
    /// The message, when there is no term of office.
    pub fn push(&self, message: Message) -> Result<(), Box<Message>> {
        let mut state = self.state.lock();
        if !state.open {
            return Err(Box::new(message));
        }
        state.messages.push_back(message);
        drop(state);
        self.notify.notify_one();
        Ok(())
    }

    /// Adds effects; drops them when closed or over the bound. Wakes nobody: in a term of office every entry that is
    /// applied is the office's own, and its answer, which comes right after, does.
    pub fn deliver(&self, effects: Vec<Effect>) {
        let mut state = self.state.lock();
        if !state.open {
            return;
        }
        if state.effects.len() + effects.len() > EFFECTS_MAX {
            state.overflowed = true;
        } else {
            state.effects.extend(effects);
        }
    }

    /// Notes that effects were lost (the state was replaced).
    pub fn lose_effects(&self) {
        self.state.lock().overflowed = true;
        self.notify.notify_one();
    }

    /// Takes everything.
    #[must_use]
    pub fn take(&self) -> Mail {
        take(&mut self.state.lock())
    }

    /// Resolves when something was added since the last call.
    pub async fn added(&self) {
        self.notify.notified().await;
    }
}

fn take(state: &mut State) -> Mail {
    Mail {
        effects: std::mem::take(&mut state.effects),
        messages: std::mem::take(&mut state.messages),
        overflowed: std::mem::take(&mut state.overflowed),
    }
}
