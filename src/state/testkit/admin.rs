//! Tenants, queues, keys and pauses in a [`World`].

use super::World;
use crate::command::admin::{
    AdminCommand, DeleteQueue, PauseScope, PutKey, PutQueue, PutTenant, SetPause,
};
use crate::command::outcome::Outcome;
use crate::command::{Command, Expect};
use crate::ids::{QueueId, TenantId};
use crate::model::policy::PauseInfo;
use crate::model::queue::QueueSpec;
use crate::model::tenant::TenantSpec;
use crate::time::Timestamp;

/// A tenant's name.
pub(crate) fn tenant_id(name: &str) -> TenantId {
    TenantId::new(name).expect("a tenant id")
}

/// A queue's name.
pub(crate) fn queue_id(name: &str) -> QueueId {
    QueueId::new(name).expect("a queue id")
}

/// A pause by `ops`; apply sets its `since`.
pub(crate) fn a_pause(until: Option<Timestamp>) -> PauseInfo {
    PauseInfo {
        by: "ops".into(),
        reason: Some("deploy".into()),
        since: Timestamp::EPOCH,
        until,
    }
}

impl World {
    /// Applies one administrative command of an anonymous caller.
    pub(crate) fn admin(&mut self, command: AdminCommand) -> Outcome {
        self.one(Command::Admin(command))
    }

    /// Puts a tenant.
    pub(crate) fn put_tenant(&mut self, name: &str, spec: TenantSpec, expect: Expect) -> Outcome {
        self.admin(AdminCommand::PutTenant(PutTenant {
            tenant: tenant_id(name),
            spec,
            expect,
        }))
    }

    /// Puts a queue.
    pub(crate) fn put_queue(&mut self, queue: QueueId, spec: QueueSpec, expect: Expect) -> Outcome {
        self.admin(AdminCommand::PutQueue(PutQueue {
            queue,
            spec,
            expect,
        }))
    }

    /// Deletes a queue.
    pub(crate) fn delete_queue(&mut self, name: &str) -> Outcome {
        self.admin(AdminCommand::DeleteQueue(DeleteQueue {
            queue: queue_id(name),
            expect: Expect::Any,
        }))
    }

    /// Sets the lease limit of a key of tenant `default`.
    pub(crate) fn put_key(&mut self, key: &str, max_leased: Option<u32>) -> Outcome {
        self.admin(AdminCommand::PutKey(PutKey {
            tenant: TenantId::default_tenant(),
            key: key.to_owned(),
            max_leased,
            rate: None,
        }))
    }

    /// Sets or lifts a pause.
    pub(crate) fn set_pause(&mut self, scope: PauseScope, pause: Option<PauseInfo>) -> Outcome {
        self.admin(AdminCommand::SetPause(SetPause { scope, pause }))
    }
}
