//! Queues, tenants, concurrency keys and pauses, in both directions.

use crate::api::convert::{paused, policy, same_as_path, tenant};
use crate::api::issues::{At, Issues};
use crate::ids::{QueueId, TenantId};
use crate::model::policy::RateLimit;
use crate::model::queue::{KeyState, LineCounts, Queue, QueueOrder, QueueRetention, QueueSpec};
use crate::model::tenant::{Tenant, TenantSpec, TenantUsage};
use crate::wire;
use crate::wire::limits;

fn bounded(issues: &mut Issues, at: &At<'_>, value: Option<u64>) -> Option<u64> {
    value.map(|v| issues.number(at, v, &limits::LIMIT_VALUE))
}

/// Towards the model.
pub fn queue_spec(issues: &mut Issues, wire: wire::Queue, id: &QueueId) -> QueueSpec {
    let root = At::Root;
    same_as_path(
        issues,
        &root.key("queue"),
        wire.queue.as_deref(),
        id.as_str(),
    );
    let place = root.key("weights");
    let weights = wire.weights.unwrap_or_default();
    issues.length(&place, weights.len(), &limits::WEIGHTS);
    let weights = weights
        .into_iter()
        .filter_map(|(name, weight)| {
            let at = place.key(&name);
            let weight = issues.count(&at, weight, &limits::WEIGHT);
            Some((tenant(issues, &at, &name)?, weight))
        })
        .collect();
    let place = root.key("allowed_tenants");
    let allowed_tenants = wire.allowed_tenants.map(|names| {
        issues.length(&place, names.len(), &limits::WEIGHTS);
        let names = names.iter().enumerate();
        names
            .filter_map(|(i, name)| tenant(issues, &place.index(i), name))
            .collect()
    });
    let place = root.key("retention");
    let retention = wire.retention.unwrap_or_default();
    let mut keep = |name: &str, value: Option<wire::Span>| {
        value.map(|v| issues.span(&place.key(name), v, &limits::RETENTION_MS))
    };
    let retention = QueueRetention {
        succeeded: keep("succeeded", retention.succeeded),
        other: keep("other", retention.other),
        dead_lettered: keep("dead_lettered", retention.dead_lettered),
    };
    QueueSpec {
        max_pending: bounded(issues, &root.key("max_pending"), wire.max_pending),
        max_leased: bounded(issues, &root.key("max_leased"), wire.max_leased),
        rate: policy::rate(issues, &root.key("rate"), wire.rate.as_ref()),
        order: match wire.order.unwrap_or_default() {
            wire::QueueOrder::FairFirst => QueueOrder::FairFirst,
            wire::QueueOrder::PriorityFirst => QueueOrder::PriorityFirst,
        },
        weights,
        allowed_tenants,
        retention,
    }
}

/// Towards answers.
#[must_use]
pub fn queue_out(row: &Queue, backlog: wire::Backlog) -> wire::Queue {
    let spec = &row.spec;
    wire::Queue {
        queue: Some(row.id.to_string()),
        max_pending: spec.max_pending,
        max_leased: spec.max_leased,
        rate: spec.rate.as_ref().map(policy::rate_out),
        order: Some(match spec.order {
            QueueOrder::FairFirst => wire::QueueOrder::FairFirst,
            QueueOrder::PriorityFirst => wire::QueueOrder::PriorityFirst,
        }),
        weights: Some(
            spec.weights
                .iter()
                .map(|(t, w)| (t.to_string(), *w))
                .collect(),
        ),
        allowed_tenants: spec
            .allowed_tenants
            .as_ref()
            .map(|set| set.iter().map(ToString::to_string).collect()),
        retention: Some(wire::QueueRetention {
            succeeded: spec.retention.succeeded.map(Into::into),
            other: spec.retention.other.map(Into::into),
            dead_lettered: spec.retention.dead_lettered.map(Into::into),
        }),
        revision: Some(row.revision.to_string()),
        status: Some(wire::QueueStatus {
            paused: row.paused.as_ref().map(paused),
            created_at: Some(row.created_at.into()),
            backlog,
        }),
    }
}

/// Adds the counts of one line.
pub fn add_counts(backlog: &mut wire::Backlog, counts: &LineCounts) {
    backlog.waiting = backlog.waiting.saturating_add(counts.waiting);
    backlog.ready = backlog.ready.saturating_add(counts.ready);
    backlog.parked = backlog.parked.saturating_add(counts.parked);
    backlog.leased = backlog.leased.saturating_add(counts.leased);
    backlog.backing_off = backlog.backing_off.saturating_add(counts.backing_off);
}

/// Towards the model.
pub fn tenant_spec(issues: &mut Issues, wire: &wire::Tenant, id: &TenantId) -> TenantSpec {
    let root = At::Root;
    same_as_path(
        issues,
        &root.key("tenant"),
        wire.tenant.as_deref(),
        id.as_str(),
    );
    TenantSpec {
        weight: wire.weight.map_or(TenantSpec::default().weight, |w| {
            issues.count(&root.key("weight"), w, &limits::WEIGHT)
        }),
        max_leased: bounded(issues, &root.key("max_leased"), wire.max_leased),
        rate: policy::rate(issues, &root.key("rate"), wire.rate.as_ref()),
        schedules_max: bounded(issues, &root.key("schedules_max"), wire.schedules_max),
        open_executions_max: bounded(
            issues,
            &root.key("open_executions_max"),
            wire.open_executions_max,
        ),
    }
}

/// Towards answers.
#[must_use]
pub fn tenant_out(row: &Tenant) -> wire::Tenant {
    wire::Tenant {
        tenant: Some(row.id.to_string()),
        weight: Some(row.spec.weight),
        max_leased: row.spec.max_leased,
        rate: row.spec.rate.as_ref().map(policy::rate_out),
        schedules_max: row.spec.schedules_max,
        open_executions_max: row.spec.open_executions_max,
        revision: Some(row.revision.to_string()),
        status: Some(wire::TenantStatus {
            paused: row.paused.as_ref().map(paused),
            created_at: Some(row.created_at.into()),
        }),
    }
}

/// Towards answers.
#[must_use]
pub fn usage_out(row: &Tenant, usage: &TenantUsage) -> wire::TenantUsage {
    wire::TenantUsage {
        tenant: row.id.to_string(),
        schedules: usage.schedules,
        schedules_max: row.spec.schedules_max,
        open_executions: usage.open,
        open_executions_max: row.spec.open_executions_max,
        leased: usage.leased,
        max_leased: row.spec.max_leased,
    }
}

/// Towards the model: most live leases and the rate of a concurrency key.
pub fn key_limits(
    issues: &mut Issues,
    wire: &wire::KeyLimits,
    key: &str,
) -> (Option<u32>, Option<RateLimit>) {
    let root = At::Root;
    same_as_path(issues, &root.key("key"), wire.key.as_deref(), key);
    (
        wire.max_leased,
        policy::rate(issues, &root.key("rate"), wire.rate.as_ref()),
    )
}

/// Towards answers.
#[must_use]
pub fn key_out(key: &str, state: &KeyState, leased: u64) -> wire::KeyLimits {
    wire::KeyLimits {
        key: Some(key.to_owned()),
        max_leased: state.max_leased,
        rate: state.rate.as_ref().map(policy::rate_out),
        leased: Some(leased),
        parked: Some(state.parked),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_reads_back_as_it_was_answered() {
        let id = QueueId::new("email").unwrap();
        let text = r#"{"max_pending":5,"rate":{"count":2,"per":"1s"},"order":"priority_first",
            "weights":{"a":3},"allowed_tenants":["a","b"],"retention":{"succeeded":"1d"}}"#;
        let mut issues = Issues::default();
        let spec = queue_spec(&mut issues, serde_json::from_str(text).unwrap(), &id);
        let row = Queue {
            id: id.clone(),
            spec: spec.clone(),
            paused: None,
            created_at: crate::time::Timestamp::EPOCH,
            revision: crate::ids::Revision::new(7, 0),
            rate_tat_ns: 0,
        };
        let again = queue_spec(&mut issues, queue_out(&row, wire::Backlog::default()), &id);
        assert_eq!(again, spec);
        assert!(issues.is_empty());
    }

    #[test]
    fn wrong_queues_name_their_places() {
        let id = QueueId::new("email").unwrap();
        for (text, pointer) in [
            (r#"{"queue":"other"}"#, "/queue"),
            (r#"{"weights":{"A":1}}"#, "/weights/A"),
            (r#"{"weights":{"a":0}}"#, "/weights/a"),
            (r#"{"allowed_tenants":["ok","No"]}"#, "/allowed_tenants/1"),
            (r#"{"rate":{"count":0,"per":"1s"}}"#, "/rate/count"),
            (r#"{"retention":{"other":"1m"}}"#, "/retention/other"),
            (r#"{"max_pending":9007199254740992}"#, "/max_pending"),
        ] {
            let mut issues = Issues::default();
            queue_spec(&mut issues, serde_json::from_str(text).unwrap(), &id);
            assert_eq!(
                issues.finish().unwrap_err().errors[0].pointer,
                pointer,
                "{text}"
            );
        }
    }
}
