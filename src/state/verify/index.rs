//! Lines and the due index: nothing in them without an owner.

use super::executions::line_of;
use super::{Check, row_name};
use crate::command::outcome::LineValue;
use crate::fault::Fault;
use crate::ids::{ExecutionId, TenantNo};
use crate::model::execution::{Execution, ExecutionState};
use crate::store::due::{DueEntry, Level};
use crate::store::{Family, keys};

impl Check<'_> {
    /// Every row of a line belongs to a ready execution that is not leased and says that it is there.
    pub(super) fn lines(&mut self) -> Result<(), Fault> {
        self.each(Family::Lines, |check, key, bytes| {
            let is_ready = key.first() == Some(&keys::READY);
            check.count(if is_ready {
                "ready places"
            } else {
                "parked places"
            });
            if is_ready {
                check.decode::<LineValue>(Family::Lines, key, bytes)?;
            }
            let owner = owner_of_line(key);
            let row: Option<Execution> = match &owner {
                Some((tenant, id)) => check.read(Family::Live, &keys::execution(*tenant, id))?,
                None => None,
            };
            let belongs = row.is_some_and(|row| {
                row.state == ExecutionState::Ready
                    && check.resident.lease(row.tenant, &row.id).is_none()
                    && line_of(&row).as_deref() == Some(key)
            });
            if !belongs {
                let what = "a place in a line that no ready execution takes";
                check.problem(|| row_name(Family::Lines, key), what);
            }
            Ok(())
        })
    }

    /// Every entry at or above its watermark is the one that its owner calls for.
    pub(super) fn due_index(&mut self) -> Result<(), Fault> {
        for level in Level::ALL {
            let from = self.resident.cluster.due_from.get(level.index()).copied();
            self.each(level.family(), |check, key, _| {
                check.count("due entries");
                let name = || row_name(level.family(), key);
                let entry = DueEntry::decode(level, key);
                let Some(entry) = entry.filter(|entry| entry.encode() == key) else {
                    check.problem(name, "not the key of a due entry");
                    return Ok(());
                };
                let is_live = from.is_none_or(|from| entry.key.at >= from);
                if is_live && !check.is_wanted(&entry)? {
                    check.problem(name, format!("nobody waits for it: {entry:?}"));
                }
                Ok(())
            })?;
        }
        Ok(())
    }
}

/// Tenant and execution of a place in a line: `R queue tenant order` or `P tenant name 0 order`.
fn owner_of_line(key: &[u8]) -> Option<(TenantNo, ExecutionId)> {
    let (tag, rest) = key.split_first()?;
    let (first, rest) = rest.split_at_checked(4)?;
    let (tenant, order) = match *tag {
        keys::READY => rest.split_at_checked(4)?,
        keys::PARKED => {
            let end = rest.iter().position(|byte| *byte == 0)?;
            (first, rest.get(end + 1..)?)
        }
        _ => return None,
    };
    let (_, _, id) = keys::decode_line_order(order)?;
    Some((TenantNo(u32::from_be_bytes(tenant.try_into().ok()?)), id))
}
