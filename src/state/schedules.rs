//! (being written)
use crate::state::apply::Verdict;
use crate::state::context::Context;
pub fn put(_: &mut Context<'_>, _: &crate::command::schedules::PutSchedule) -> Verdict {
    Ok(Err(crate::command::outcome::Refusal::Superseded))
}
pub fn delete(_: &mut Context<'_>, _: &crate::command::schedules::DeleteSchedule) -> Verdict {
    Ok(Err(crate::command::outcome::Refusal::Superseded))
}
pub fn pause(_: &mut Context<'_>, _: &crate::command::schedules::PauseSchedule) -> Verdict {
    Ok(Err(crate::command::outcome::Refusal::Superseded))
}
pub fn resume(_: &mut Context<'_>, _: &crate::command::schedules::ResumeSchedule) -> Verdict {
    Ok(Err(crate::command::outcome::Refusal::Superseded))
}
pub fn remove(_: &mut Context<'_>, _: &crate::command::schedules::RemoveSchedule) -> Verdict {
    Ok(Err(crate::command::outcome::Refusal::Superseded))
}
