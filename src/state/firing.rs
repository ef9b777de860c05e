//! (being written)
use crate::state::apply::Verdict;
use crate::state::context::Context;
pub fn trigger(_: &mut Context<'_>, _: &crate::command::schedules::TriggerSchedule) -> Verdict {
    Ok(Err(crate::command::outcome::Refusal::Superseded))
}
pub fn fire(_: &mut Context<'_>, _: &crate::command::schedules::FireOccurrences) -> Verdict {
    Ok(Err(crate::command::outcome::Refusal::Superseded))
}
