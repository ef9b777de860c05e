//! (being written)
use crate::state::apply::Verdict;
use crate::state::context::Context;
pub fn advance_watermarks(
    _: &mut Context<'_>,
    _: &crate::command::admin::AdvanceWatermarks,
) -> Verdict {
    Ok(Err(crate::command::outcome::Refusal::Superseded))
}
pub fn advance_retention(
    _: &mut Context<'_>,
    _: &crate::command::admin::AdvanceRetention,
) -> Verdict {
    Ok(Err(crate::command::outcome::Refusal::Superseded))
}
pub fn put_tenant(_: &mut Context<'_>, _: &crate::command::admin::PutTenant) -> Verdict {
    Ok(Err(crate::command::outcome::Refusal::Superseded))
}
pub fn put_queue(_: &mut Context<'_>, _: &crate::command::admin::PutQueue) -> Verdict {
    Ok(Err(crate::command::outcome::Refusal::Superseded))
}
pub fn delete_queue(_: &mut Context<'_>, _: &crate::command::admin::DeleteQueue) -> Verdict {
    Ok(Err(crate::command::outcome::Refusal::Superseded))
}
pub fn put_key(_: &mut Context<'_>, _: &crate::command::admin::PutKey) -> Verdict {
    Ok(Err(crate::command::outcome::Refusal::Superseded))
}
pub fn set_pause(_: &mut Context<'_>, _: &crate::command::admin::SetPause) -> Verdict {
    Ok(Err(crate::command::outcome::Refusal::Superseded))
}
pub fn put_settings(_: &mut Context<'_>, _: &crate::command::admin::PutSettings) -> Verdict {
    Ok(Err(crate::command::outcome::Refusal::Superseded))
}
pub fn take_office(_: &mut Context<'_>, _: u64, _: crate::command::admin::TakeOffice) -> Verdict {
    Ok(Err(crate::command::outcome::Refusal::Superseded))
}
pub fn tenant_of(_: &Context<'_>, _: &crate::command::Command) -> crate::ids::TenantNo {
    crate::ids::TenantNo::DEFAULT
}
