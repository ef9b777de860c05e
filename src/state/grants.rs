//! (being written)
use crate::state::apply::Verdict;
use crate::state::context::Context;
pub fn grant(_: &mut Context<'_>, _: &crate::command::leases::GrantLeases) -> Verdict {
    Ok(Err(crate::command::outcome::Refusal::Superseded))
}
