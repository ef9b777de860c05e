//! Audit records, towards answers.

use crate::model::history::AuditRecord;
use crate::state::reader::lists::Audited;
use crate::wire;

/// Kinds of objects that records are about: the first half of an action.
pub const OBJECTS: &[&str] = &[
    "schedule",
    "execution",
    "lease",
    "queue",
    "tenant",
    "key",
    "kind",
    "cluster",
    "settings",
];

/// What a record is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parts<'a> {
    /// Kind of the object.
    pub object: &'a str,
    /// Its owner, or the tenant itself.
    pub tenant: Option<&'a str>,
    /// Its name.
    pub id: &'a str,
}

/// Reads action and target of a record. The target of what belongs to a tenant is `tenant/name`.
#[must_use]
pub fn parts_of(record: &AuditRecord) -> Parts<'_> {
    let target = record.target.as_str();
    let object = record.action.split('.').next().unwrap_or_default();
    let (tenant, id) = match object {
        "schedule" | "execution" | "lease" | "key" => match target.split_once('/') {
            Some((tenant, id)) => (Some(tenant), id),
            None => (None, target),
        },
        "tenant" => (Some(target), target),
        _ => (None, target),
    };
    Parts { object, tenant, id }
}

/// Towards answers.
#[must_use]
pub fn audit_out(audited: &Audited) -> wire::AuditRecord {
    let record = &audited.record;
    let parts = parts_of(record);
    wire::AuditRecord {
        at: record.at.into(),
        log_index: audited.token,
        actor: record.actor.as_str().to_owned(),
        action: record.action.clone(),
        object: parts.object.to_owned(),
        tenant: parts.tenant.map(str::to_owned),
        id: parts.id.to_owned(),
        reason: record.reason.clone(),
        request_id: record.request_id.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::Actor;
    use crate::time::Timestamp;

    #[test]
    fn a_record_says_what_it_is_about() {
        for (action, target, object, tenant, id) in [
            ("schedule.pause", "a/daily", "schedule", Some("a"), "daily"),
            ("key.put", "a/db/rows", "key", Some("a"), "db/rows"),
            ("tenant.put", "a", "tenant", Some("a"), "a"),
            ("queue.delete", "mail", "queue", None, "mail"),
            ("kind.pause", "x/y", "kind", None, "x/y"),
            ("settings.put", "cluster", "settings", None, "cluster"),
        ] {
            let record = AuditRecord {
                at: Timestamp::EPOCH,
                actor: Actor::Anonymous,
                reason: None,
                request_id: None,
                action: action.into(),
                target: target.into(),
            };
            assert_eq!(parts_of(&record), Parts { object, tenant, id });
            assert!(OBJECTS.contains(&object));
        }
    }
}
