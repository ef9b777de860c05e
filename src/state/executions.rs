//! (being written)
use crate::state::apply::Verdict;
use crate::state::context::Context;
pub fn submit(_: &mut Context<'_>, _: &crate::command::executions::SubmitExecution) -> Verdict {
    Ok(Err(crate::command::outcome::Refusal::Superseded))
}
pub fn delete(_: &mut Context<'_>, _: &crate::command::executions::DeleteExecution) -> Verdict {
    Ok(Err(crate::command::outcome::Refusal::Superseded))
}
pub fn process_due(_: &mut Context<'_>, _: &crate::command::executions::ProcessDue) -> Verdict {
    Ok(Err(crate::command::outcome::Refusal::Superseded))
}
