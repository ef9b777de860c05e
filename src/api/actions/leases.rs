//! What an operator does to leases.

use crate::api::Api;
use crate::api::actions::{Done, Purpose, unexpected};
use crate::api::call::Call;
use crate::api::problem::Error;
use crate::command::leases::{ExpireItem, ITEMS_MAX, LeaseCommand, RevokeCause, RevokeLeases};
use crate::command::outcome::Outcome;
use crate::command::{Command, Envelope};

/// What a revocation came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Revoked {
    /// Leases that were live and have ended.
    pub count: u32,
    /// Log index of the last entry; 0: nothing was proposed.
    pub index: u64,
}

impl Api {
    /// Takes leases away, each as a lease loss of its execution. Those that are not live are passed over.
    ///
    /// # Errors
    /// Any; some of the leases may have ended then.
    pub async fn revoke_leases(
        &self,
        call: &Call,
        items: &[ExpireItem],
        purpose: &Purpose,
    ) -> Result<Revoked, Error> {
        let revoke = |items: &[ExpireItem]| -> Envelope {
            let command = LeaseCommand::Revoke(RevokeLeases {
                cause: RevokeCause::Operator,
                items: items.to_vec(),
            });
            self.envelope(call, purpose, Command::Lease(command))
        };
        let mut revoked = Revoked::default();
        let commands: Vec<_> = items.chunks(ITEMS_MAX).map(revoke).collect();
        if commands.is_empty() {
            return Ok(revoked);
        }
        for answer in self.scheduler.submit(commands).await? {
            let done = Done::of(answer)?;
            let Outcome::Processed { done: count } = done.outcome else {
                return Err(unexpected(&done.outcome));
            };
            revoked.count = revoked.count.saturating_add(count);
            revoked.index = revoked.index.max(done.index);
        }
        Ok(revoked)
    }
}
