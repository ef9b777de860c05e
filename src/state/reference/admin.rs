//! The cluster, tenants, queues, keys and pauses.

use super::{Answer, CLASS_HOURS, HOUR, Limits, Model, class_bucket, demand, half_days};
use crate::command::Actor;
use crate::command::admin::{
    AdminCommand, AdvanceRetention, PauseScope, PutKey, PutQueue, PutSettings, PutTenant, SetPause,
};
use crate::command::outcome::{Outcome, Quota, Refusal, Written};
use crate::ids::{QueueId, Revision, TenantId};
use crate::model::policy::PauseInfo;
use crate::model::queue::DeletedQueue;
use crate::model::tenant::Tenant;
use crate::store::due::Level;
use crate::time::{Millis, Timestamp};

fn wrote(written: Written, revision: Revision) -> Answer {
    Ok(Outcome::Written { written, revision })
}

impl Model {
    pub(super) fn take_office(&mut self, term: u64, node: u64) -> Outcome {
        if term < self.cluster.office_term {
            return Outcome::Refused(Refusal::NotInOffice);
        }
        self.cluster.office_term = term;
        self.cluster.office_node = node;
        self.cluster.took_office_at = self.now;
        Outcome::Done
    }

    pub(super) fn admin(&mut self, command: &AdminCommand) -> Answer {
        match command {
            AdminCommand::TakeOffice(_) => Ok(Outcome::Done),
            AdminCommand::AdvanceWatermarks(c) => {
                for (level, at) in &c.levels {
                    let place = Level::ALL.iter().position(|l| l == level).expect("a level");
                    let from = &mut self.cluster.due_from[place];
                    *from = (*from).max((*at).min(self.now));
                }
                Ok(Outcome::Done)
            }
            AdminCommand::AdvanceRetention(c) => self.retention(c),
            AdminCommand::PutTenant(c) => self.put_tenant(c),
            AdminCommand::PutQueue(c) => self.put_queue(c),
            AdminCommand::DeleteQueue(c) => self.delete_queue(&c.queue, c.expect),
            AdminCommand::PutKey(c) => self.put_key(c),
            AdminCommand::SetPause(c) => self.set_pause(c),
            AdminCommand::PutSettings(c) => self.put_settings(c),
        }
    }

    fn retention(&mut self, command: &AdvanceRetention) -> Answer {
        for (class, first) in &command.classes {
            let Some(hours) = CLASS_HOURS.get(usize::from(*class)) else {
                continue;
            };
            let span = Millis(u64::try_from(hours * HOUR).expect("fits"));
            let bound = class_bucket(*class, self.now.minus(span));
            let from = &mut self.cluster.history_from[usize::from(*class)];
            *from = (*from).max((*first).min(bound));
        }
        if let Some(first) = command.idempotency_from {
            let bound = half_days(self.now) - 2;
            let from = &mut self.cluster.idempotency_from;
            *from = (*from).max(first.min(bound));
        }
        for (tenant, id) in &command.forget {
            let Ok(tenant) = self.tenant(tenant) else {
                continue;
            };
            let name = (tenant, id.clone());
            let history = self.chosen.get(&name).and_then(|chosen| chosen.history);
            if history.is_some_and(|(class, bucket)| !self.is_kept(class, bucket)) {
                self.chosen.remove(&name);
            }
        }
        Ok(Outcome::Done)
    }

    fn put_tenant(&mut self, command: &PutTenant) -> Answer {
        let no = self.tenant(&command.tenant).ok();
        let row = no.map(|no| self.tenants[&no].clone());
        demand(command.expect, row.as_ref().map(|row| row.revision))?;
        let mut tenant = match &row {
            Some(row) if row.spec == command.spec => {
                return wrote(Written::Unchanged, row.revision);
            }
            Some(row) => row.clone(),
            None => Tenant {
                id: command.tenant.clone(),
                spec: command.spec.clone(),
                paused: None,
                created_at: self.now,
                revision: Revision::default(),
                rate_tat_ns: 0,
            },
        };
        if tenant.spec.rate != command.spec.rate {
            tenant.rate_tat_ns = 0;
        }
        tenant.spec = command.spec.clone();
        tenant.revision = self.revision();
        let no = no.unwrap_or_else(|| {
            self.cluster.next_tenant += 1;
            self.cluster.next_tenant - 1
        });
        self.tenants.insert(no, tenant);
        self.audit(0, "tenant.put", command.tenant.to_string());
        let did = if row.is_some() {
            Written::Updated
        } else {
            Written::Created
        };
        wrote(did, self.revision())
    }

    fn put_queue(&mut self, command: &PutQueue) -> Answer {
        let row = self
            .queue(&command.queue)
            .map(|no| self.queues[&no].clone());
        demand(command.expect, row.as_ref().map(|row| row.revision))?;
        if let Some(row) = &row
            && row.spec == command.spec
        {
            return wrote(Written::Unchanged, row.revision);
        }
        let no = self.queue_for(&command.queue);
        let revision = self.revision();
        let queue = self.queues.get_mut(&no).expect("there");
        if queue.spec.rate != command.spec.rate {
            queue.rate_tat_ns = 0;
        }
        queue.spec = command.spec.clone();
        queue.revision = revision;
        self.audit(0, "queue.put", command.queue.to_string());
        let did = if row.is_some() {
            Written::Updated
        } else {
            Written::Created
        };
        wrote(did, self.revision())
    }

    fn delete_queue(&mut self, id: &QueueId, expect: crate::command::Expect) -> Answer {
        let no = self.queue(id).ok_or(Refusal::QueueNotFound)?;
        demand(expect, Some(self.queues[&no].revision))?;
        if id.as_str() == "default" {
            return Err(Refusal::Protected);
        }
        let open = self.open.values().filter(|o| o.row.queue.0 == no).count();
        let named = self.schedules.values().any(|s| s.row.queue.0 == no);
        if open > 0 || named {
            return Err(Refusal::QueueInUse { open: open as u64 });
        }
        self.queues.remove(&no);
        let left = DeletedQueue {
            id: id.clone(),
            deleted_at: self.now,
        };
        self.deleted_queues.insert(no, left);
        self.audit(0, "queue.delete", id.to_string());
        wrote(Written::Deleted, self.revision())
    }

    fn put_key(&mut self, command: &PutKey) -> Answer {
        let tenant = self.tenant(&command.tenant)?;
        let name = (tenant, command.key.clone());
        let before = self.limits.get(&name).cloned().unwrap_or_default();
        let mut after = Limits {
            max_leased: command.max_leased,
            rate: command.rate,
            tat_ns: before.tat_ns,
        };
        if before.rate != after.rate {
            after.tat_ns = 0;
        }
        let did = match (&before.max_leased, &before.rate) {
            _ if before == after => Written::Unchanged,
            (None, None) => Written::Created,
            _ => Written::Updated,
        };
        if did != Written::Unchanged {
            self.limits.insert(name, after);
            self.limits.retain(|_, limits| *limits != Limits::default());
            self.audit(
                tenant,
                "key.put",
                format!("{}/{}", command.tenant, command.key),
            );
        }
        let free = self.free_slots(tenant, &command.key).min(100);
        self.promote(tenant, &command.key, free, 100);
        wrote(did, self.revision())
    }

    fn set_pause(&mut self, command: &SetPause) -> Answer {
        let (noun, target) = match &command.scope {
            PauseScope::Cluster => ("cluster", "cluster".to_owned()),
            PauseScope::Tenant(id) => ("tenant", id.to_string()),
            PauseScope::Queue(id) => ("queue", id.to_string()),
            PauseScope::Kind(kind) => ("kind", kind.to_string()),
        };
        let (pause, revision) = self.pause_of(&command.scope)?;
        let wanted = command.pause.clone().map(|mut wanted| {
            wanted.since = pause.as_ref().map_or(self.now, |pause| pause.since);
            wanted
        });
        if wanted == pause {
            return wrote(Written::Unchanged, revision);
        }
        if let (None, Some(present)) = (&wanted, &pause)
            && self.is_too_early_for_the_leader(present)
        {
            return wrote(Written::Unchanged, revision);
        }
        let verb = if wanted.is_some() { "pause" } else { "resume" };
        self.audit(0, &format!("{noun}.{verb}"), target);
        self.write_pause(&command.scope, wanted)?;
        wrote(Written::Updated, self.revision())
    }

    /// The leader ends only pauses whose time is over.
    pub(super) fn is_too_early_for_the_leader(&self, pause: &PauseInfo) -> bool {
        self.caller.actor == Actor::Leader && pause.until.is_none_or(|until| until > self.now)
    }

    fn pause_of(&self, scope: &PauseScope) -> Result<(Option<PauseInfo>, Revision), Refusal> {
        let cluster = &self.cluster;
        Ok(match scope {
            PauseScope::Cluster => (cluster.paused.clone(), cluster.revision),
            PauseScope::Kind(kind) => (cluster.paused_kinds.get(kind).cloned(), cluster.revision),
            PauseScope::Tenant(id) => {
                let row = &self.tenants[&self.tenant(id)?];
                (row.paused.clone(), row.revision)
            }
            PauseScope::Queue(id) => {
                let row = &self.queues[&self.queue(id).ok_or(Refusal::QueueNotFound)?];
                (row.paused.clone(), row.revision)
            }
        })
    }

    fn write_pause(&mut self, scope: &PauseScope, pause: Option<PauseInfo>) -> Result<(), Refusal> {
        let revision = self.revision();
        match scope {
            PauseScope::Tenant(id) => {
                let no = self.tenant(id)?;
                let row = self.tenants.get_mut(&no).expect("there");
                row.paused = pause;
                row.revision = revision;
                return Ok(());
            }
            PauseScope::Queue(id) => {
                let no = self.queue(id).ok_or(Refusal::QueueNotFound)?;
                let row = self.queues.get_mut(&no).expect("there");
                row.paused = pause;
                row.revision = revision;
                return Ok(());
            }
            PauseScope::Cluster => self.cluster.paused = pause,
            PauseScope::Kind(kind) => {
                let kinds = &mut self.cluster.paused_kinds;
                kinds.remove(kind);
                kinds.extend(pause.map(|pause| (kind.clone(), pause)));
            }
        }
        self.cluster.revision = revision;
        Ok(())
    }

    fn put_settings(&mut self, command: &PutSettings) -> Answer {
        let mut after = self.cluster.clone();
        if let Some(release) = &command.zone_release {
            after.zone_release.clone_from(release);
        }
        if let Some(base) = command.index_base
            && base.trailing_zeros() >= 40
            && (after.index_base + 1..1 << 53).contains(&base)
        {
            after.index_base = base;
        }
        if after == self.cluster {
            return wrote(Written::Unchanged, self.cluster.revision);
        }
        after.revision = self.revision();
        self.cluster = after;
        self.audit(0, "settings.put", "cluster".to_owned());
        wrote(Written::Updated, self.revision())
    }

    /// Whether a new queue may come into being, and the tenant may use it.
    pub(super) fn may_put_into(&self, tenant: &TenantId, queue: &QueueId) -> Result<(), Refusal> {
        let tenant = self.tenant(tenant)?;
        match self.queue(queue) {
            Some(no) if !self.is_allowed(tenant, no) => Err(Refusal::QueueNotAllowed),
            Some(_) => Ok(()),
            None if self.queues.len() >= 10_000 => Err(Refusal::QuotaExceeded {
                quota: Quota::Queues,
                limit: 10_000,
                current: self.queues.len() as u64,
            }),
            None => Ok(()),
        }
    }

    /// Whether a pause holds now.
    pub(super) fn holds(&self, pause: Option<&PauseInfo>) -> bool {
        let until = |pause: &PauseInfo| pause.until.unwrap_or(Timestamp::MAX);
        pause.is_some_and(|pause| until(pause) > self.now)
    }
}
