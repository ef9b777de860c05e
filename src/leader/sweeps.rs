//! Housekeeping: watermarks of the due index, retention of history, pauses that end by themselves.
//!
//! Purpose: what must move although nobody asks. Callers: the office starts these as jobs, a few times a minute.
//! Invariants:
//! 1. A watermark is proposed only from a view that held nothing earlier; what the check finds although memory did not
//!    know of it is armed, so a lost effect delays an entry by one check at most.
//! 2. Chosen ids are forgotten with the rows they point at, in bounded steps; a failover in the middle leaves a pointer
//!    to an absent row, which counts as absent too.

use std::ops::ControlFlow;

use crate::command::admin::{
    AdminCommand, AdvanceRetention, AdvanceWatermarks, PauseScope, PutKey, SetPause,
};
use crate::fault::Fault;
use crate::ids::{TenantId, TenantNo};
use crate::leader::due_index::Scan;
use crate::model::cluster::ClusterState;
use crate::model::execution::FinalExecution;
use crate::model::policy::PauseInfo;
use crate::state::replica::Replica;
use crate::state::resident::Resident;
use crate::store::due::{DueEntry, Level};
use crate::store::keys::{self, RetentionClass};
use crate::store::{Direction, Family, KeyRange, View, value};
use crate::time::{Millis, Timestamp};

/// How often watermarks are checked.
pub const WATERMARK_EVERY: Millis = Millis::secs(20);
/// How often retention is checked.
pub const RETENTION_EVERY: Millis = Millis::secs(60);
/// A watermark moves by at least this, so that an idle cluster writes little.
const WATERMARK_STEP: Millis = Millis::secs(60);
/// Keys whose parked work is promoted in one step.
const PROMOTE_MAX: usize = 50;
/// Rows of history read in one step.
const RETENTION_ROWS: usize = 5_000;
/// Chosen ids forgotten by one command.
const FORGET_MAX: usize = 900;
/// Twelve-hour buckets of idempotency answers that are kept beside the present one.
const IDEMPOTENCY_KEPT: u32 = 2;

/// What a sweep came to.
#[derive(Debug, Default)]
pub struct Swept {
    /// What to propose.
    pub commands: Vec<AdminCommand>,
    /// Entries of the due index that memory must know.
    pub found: Vec<DueEntry>,
    /// Where the sweep of retention goes on at once.
    pub resume: Option<Resume>,
    /// It was the sweep of retention (else of watermarks).
    pub retention: bool,
}

/// Checks how far the watermarks may rise. `floors`: what memory allows, by level. Blocks on the disk.
///
/// # Errors
/// Any [`Fault`] of reading.
pub fn check_watermarks(
    replica: &Replica,
    floors: [Timestamp; Level::ALL.len()],
) -> Result<Swept, Fault> {
    let from = replica.resident().cluster.due_from;
    let (view, now, _) = replica.view();
    let mut swept = Swept::default();
    let mut levels = Vec::new();
    for level in Level::ALL {
        let (Some(from), Some(floor)) = (from.get(level.index()), floors.get(level.index())) else {
            continue;
        };
        let to = (*floor).min(now);
        if to.since(*from) < WATERMARK_STEP {
            continue;
        }
        let page = Scan::new(level, *from, to).read(view.as_ref())?;
        // A page that was cut short has not seen the rest.
        let seen = if page.rest.is_some() { *from } else { to };
        let first = page.entries.iter().map(|e| e.key.at).min();
        let proven = first.map_or(seen, |first| first.min(to));
        if proven.since(*from) >= WATERMARK_STEP {
            levels.push((level, proven));
        }
        swept.found.extend(page.entries);
    }
    if !levels.is_empty() {
        let command = AdvanceWatermarks { levels };
        swept
            .commands
            .push(AdminCommand::AdvanceWatermarks(command));
    }
    Ok(swept)
}

/// Where a sweep of retention was cut: class, and first key not read.
pub type Resume = (RetentionClass, Vec<u8>);

/// Looks for history whose time has passed at `now`, from `resume` on if an earlier step was cut. Log time stands still
/// while nothing happens, and what is to go must go all the same. Blocks on the disk.
///
/// # Errors
/// Any [`Fault`] of reading or decoding.
pub fn check_retention(
    replica: &Replica,
    now: Timestamp,
    resume: Option<&Resume>,
) -> Result<Swept, Fault> {
    let cluster = replica.resident().cluster.clone();
    let (view, log_time, _) = replica.view();
    let now = now.max(log_time);
    let mut swept = Swept {
        retention: true,
        ..Swept::default()
    };
    let mut classes = Vec::new();
    let mut chosen = Vec::new();
    for class in RetentionClass::all() {
        let kept = cluster
            .history_from
            .get(usize::from(class.0))
            .copied()
            .unwrap_or(0);
        let first = class.first_kept(now);
        let from = match resume {
            Some((of, key)) if *of == class => key.clone(),
            Some(_) => continue,
            None if first > kept => keys::history_bucket(class, kept),
            None => continue,
        };
        let range = KeyRange::new(from, keys::history_bucket(class, first));
        let (rows, cut) = expired(view.as_ref(), &range, &mut chosen)?;
        if let Some(key) = cut {
            // Its whole bucket is absent from now on; the ids that are left in it are forgotten in the next step.
            let next = bucket_of(&key).map_or(kept, |bucket| bucket.saturating_add(1));
            classes.push((class.0, next.min(first)));
            swept.resume = Some((class, key));
            break;
        }
        if rows > 0 {
            classes.push((class.0, first));
        }
    }
    let command = AdvanceRetention {
        classes,
        idempotency_from: idempotency_from(&cluster, now),
        forget: names(replica, chosen),
    };
    let moves = !command.classes.is_empty() || !command.forget.is_empty();
    if moves || command.idempotency_from.is_some() {
        swept.commands.push(AdminCommand::AdvanceRetention(command));
    }
    Ok(swept)
}

fn idempotency_from(cluster: &ClusterState, now: Timestamp) -> Option<u32> {
    let from = keys::idempotency_bucket(now).saturating_sub(IDEMPOTENCY_KEPT);
    (from > cluster.idempotency_from).then_some(from)
}

/// Reads expired rows and collects the chosen ids among them. Answers how many rows it read, and where it was cut.
fn expired(
    view: &dyn View,
    range: &KeyRange,
    chosen: &mut Vec<(TenantNo, String)>,
) -> Result<(usize, Option<Vec<u8>>), Fault> {
    let (mut rows, mut fault, mut cut) = (0_usize, None, None);
    view.scan(
        Family::History,
        range,
        Direction::Forward,
        &mut |key, row| {
            if rows >= RETENTION_ROWS || chosen.len() >= FORGET_MAX {
                cut = Some(key.to_vec());
                return ControlFlow::Break(());
            }
            rows += 1;
            if key.get(9) != Some(&keys::FINAL) {
                return ControlFlow::Continue(());
            }
            match value::decode::<FinalExecution>(row) {
                Ok(done) if done.execution.chosen_id => {
                    let execution = done.execution;
                    chosen.push((execution.tenant, execution.id.as_str().to_owned()));
                }
                Ok(_) => {}
                Err(e) => {
                    fault = Some(e);
                    return ControlFlow::Break(());
                }
            }
            ControlFlow::Continue(())
        },
    )?;
    fault.map_or(Ok((rows, cut)), Err)
}

fn bucket_of(key: &[u8]) -> Option<u32> {
    let bytes = key.get(1..5)?.try_into().ok()?;
    Some(u32::from_be_bytes(bytes))
}

fn names(replica: &Replica, chosen: Vec<(TenantNo, String)>) -> Vec<(TenantId, String)> {
    let resident = replica.resident();
    let name = |(no, id)| Some((resident.tenants.get(&no)?.id.clone(), id));
    chosen.into_iter().filter_map(name).collect()
}

/// Repeats the limits of keys whose parked work could go, which makes apply promote more of it; at most
/// [`PROMOTE_MAX`] keys.
#[must_use]
pub fn promotions(resident: &Resident) -> Vec<AdminCommand> {
    let mut commands = Vec::new();
    for ((tenant, key), state) in &resident.keys {
        let used = || {
            resident
                .key_leased
                .get(&(*tenant, key.clone()))
                .copied()
                .unwrap_or(0)
        };
        if state.parked == 0 || state.max_leased.is_some_and(|max| used() >= max) {
            continue;
        }
        let Some(row) = resident.tenants.get(tenant) else {
            continue;
        };
        commands.push(AdminCommand::PutKey(PutKey {
            tenant: row.id.clone(),
            key: key.clone(),
            max_leased: state.max_leased,
            rate: state.rate,
        }));
        if commands.len() >= PROMOTE_MAX {
            break;
        }
    }
    commands
}

/// The command that lifts a pause whose time is over.
#[must_use]
pub fn lift(scope: PauseScope) -> AdminCommand {
    AdminCommand::SetPause(SetPause { scope, pause: None })
}

/// Pauses of cluster, tenants, queues and kinds that end by themselves: the earliest end, and those that are over.
#[must_use]
pub fn timed_pauses(resident: &Resident, now: Timestamp) -> (Option<Timestamp>, Vec<PauseScope>) {
    let mut next: Option<Timestamp> = None;
    let mut over = Vec::new();
    let mut look = |pause: Option<&PauseInfo>, scope: PauseScope| {
        let Some(until) = pause.and_then(|p| p.until) else {
            return;
        };
        if until <= now {
            over.push(scope);
        } else {
            next = Some(next.map_or(until, |n| n.min(until)));
        }
    };
    look(resident.cluster.paused.as_ref(), PauseScope::Cluster);
    for tenant in resident.tenants.values() {
        look(
            tenant.paused.as_ref(),
            PauseScope::Tenant(tenant.id.clone()),
        );
    }
    for queue in resident.queues.values() {
        look(queue.paused.as_ref(), PauseScope::Queue(queue.id.clone()));
    }
    for (kind, pause) in &resident.cluster.paused_kinds {
        look(Some(pause), PauseScope::Kind(kind.clone()));
    }
    (next, over)
}
