//! The HTTP API.
//!
//! Purpose: thin handlers over `actions` (writes) and reads of the replica; problem answers; the OpenAPI document and
//! the docs page. Callers: `node` starts `server`; the console uses the same actions.
//! Reading order: `routes` (the table that router and document share), `call` (one request), `dispatch` (which node
//! answers), then the handlers by area.

pub mod body;
pub mod call;
pub mod convert;
pub mod issues;
pub mod problem;
pub mod reply;
pub mod unsupported;
