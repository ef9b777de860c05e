//! Where the apply thread hands over effects.

use crate::command::outcome::Effect;
use crate::leader::inbox::Inbox;
use crate::leader::waiters::FinalWaiters;
use crate::state::replica::EffectSink;
use crate::time::Timestamp;

/// Takes effects from the apply thread.
pub(super) struct Sink {
    pub(super) inbox: Inbox,
    pub(super) finals: FinalWaiters,
}

impl EffectSink for Sink {
    fn deliver(&self, _: u64, _: Timestamp, mut effects: Vec<Effect>) {
        effects.retain(|effect| match effect {
            Effect::AnnounceFinal {
                tenant, execution, ..
            } => {
                self.finals.announce(*tenant, execution);
                false
            }
            _ => true,
        });
        if !effects.is_empty() {
            self.inbox.deliver(effects);
        }
    }

    fn replaced(&self) {
        self.finals.announce_all();
        self.inbox.lose_effects();
    }
}
