//! (being written)
use crate::state::apply::Verdict;
use crate::state::context::Context;
pub fn cancel(_: &mut Context<'_>, _: &crate::command::executions::CancelExecution) -> Verdict {
    Ok(Err(crate::command::outcome::Refusal::Superseded))
}
