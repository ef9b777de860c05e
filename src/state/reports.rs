//! (being written)
use crate::state::apply::Verdict;
use crate::state::context::Context;
pub fn report(_: &mut Context<'_>, _: &crate::command::leases::ReportLeases) -> Verdict {
    Ok(Err(crate::command::outcome::Refusal::Superseded))
}
