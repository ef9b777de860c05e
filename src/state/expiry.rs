//! (being written)
use crate::state::apply::Verdict;
use crate::state::context::Context;
pub fn expire(_: &mut Context<'_>, _: &crate::command::leases::ExpireLeases) -> Verdict {
    Ok(Err(crate::command::outcome::Refusal::Superseded))
}
pub fn revoke(_: &mut Context<'_>, _: &crate::command::leases::RevokeLeases) -> Verdict {
    Ok(Err(crate::command::outcome::Refusal::Superseded))
}
