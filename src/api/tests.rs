//! The API over a real state machine, one area a file.

mod after_end;
mod cases;
mod cases_calls;
mod cases_dry_runs;
mod cases_effects;
mod cases_fields;
mod cases_leases;
mod cases_limits;
mod cases_schedules;
mod cases_times;
mod cases_waiting;
mod crew;
mod document;
mod every_call;
mod executions;
mod history;
mod malformed;
mod nodes;
mod schedules;
mod system;
mod whole;
