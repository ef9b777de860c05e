//! Actions on tenants, queues, keys and pauses.

use std::sync::Arc;

use crate::api::Api;
use crate::api::actions::{Done, Purpose};
use crate::api::call::Call;
use crate::api::problem::Error;
use crate::command::Command;
use crate::command::admin::{AdminCommand, PauseScope, SetPause};
use crate::model::policy::PauseInfo;
use crate::time::Timestamp;

impl Api {
    /// What a command about the cluster, a tenant, a queue or a key would do.
    ///
    /// # Errors
    /// Any.
    pub async fn rehearse_admin(
        self: &Arc<Self>,
        call: &Call,
        command: AdminCommand,
    ) -> Result<Done, Error> {
        let keyed = self.keyed(call)?;
        let purpose = Purpose {
            reason: call.reason(None)?,
            key: keyed.command(),
        };
        let envelope = self.envelope(call, &purpose, Command::Admin(command));
        self.rehearse_one(envelope).await
    }

    /// Carries a command about the cluster, a tenant, a queue or a key into the log, one at a time for each object.
    ///
    /// # Errors
    /// Any.
    pub async fn administer(
        &self,
        call: &Call,
        object: String,
        purpose: &Purpose,
        command: AdminCommand,
    ) -> Result<Done, Error> {
        let _turn = self.locks.hold(object).await;
        let envelope = self.envelope(call, purpose, Command::Admin(command));
        self.carry_or_refuse(envelope).await
    }

    /// Pauses something, or lets it go on.
    ///
    /// # Errors
    /// Any.
    pub async fn set_pause(
        &self,
        call: &Call,
        scope: PauseScope,
        (is_paused, until): (bool, Option<Timestamp>),
        purpose: &Purpose,
    ) -> Result<Done, Error> {
        let object = format!("pause {scope:?}");
        let pause = is_paused.then(|| PauseInfo {
            by: call.actor.as_str().to_owned(),
            reason: purpose.reason.clone(),
            since: self.scheduler.now(),
            until,
        });
        let command = AdminCommand::SetPause(SetPause { scope, pause });
        self.administer(call, object, purpose, command).await
    }
}
