//! The one list of what is known and refused.
//!
//! Purpose: a request for a feature that a later version has gets told so, by name, instead of being accepted and
//! ignored. Callers: `api::convert` (fields), `routes` (calls). Notations of rules have their own list beside the
//! calendar (`calendar::unsupported`). Invariant: nothing is refused as `not_supported` that is not in
//! [`Feature::ALL`], and no call as `not_implemented` that is not in [`CALLS`].

use crate::api::issues::{At, Issues};

macro_rules! features {
    ($($name:ident: $what:literal, $instead:literal;)*) => {
        /// A field or value that is known and refused.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Feature { $(#[doc = $what] $name,)* }

        impl Feature {
            /// Every one.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// What it is.
            #[must_use]
            pub const fn what(self) -> &'static str {
                match self { $(Self::$name => $what,)* }
            }

            /// What to do instead.
            #[must_use]
            pub const fn instead(self) -> &'static str {
                match self { $(Self::$name => $instead,)* }
            }
        }
    };
}

features! {
    FireAll: "misfire policy \"fire_all\", with its catch_up_max and catch_up_rate",
        "use \"fire_latest\" or \"skip\"";
    BufferOne: "overlap policy \"buffer_one\"", "use \"allow\" or \"skip\"";
    Buffer: "overlap policy \"buffer\"", "use \"allow\" or \"skip\"";
    CancelRunning: "overlap policy \"cancel_running\"", "use \"allow\" or \"skip\"";
    Notify: "notices", "leave it out, and watch /metrics or the list of dead letters";
    After: "executions that wait for others", "submit the next one when the first is done";
}

impl Feature {
    /// Notes the refusal.
    pub fn refuse(self, issues: &mut Issues, at: &At<'_>) {
        let detail = format!(
            "{} is not supported in this version: {}",
            self.what(),
            self.instead()
        );
        issues.add(at, "not_supported", detail);
    }
}

/// Calls that a later version has: method, pattern, what.
pub const CALLS: &[(&str, &str, &str)] = &[
    (
        "POST",
        "/v1/tenants/{tenant}/schedules/{schedule}:backfill",
        "backfill of a past range",
    ),
    (
        "POST",
        "/v1/tenants/{tenant}/schedules/{schedule}:explain",
        "explanations",
    ),
    (
        "POST",
        "/v1/tenants/{tenant}/executions/{execution}:explain",
        "explanations",
    ),
    ("POST", "/v1/queues/{queue}:explain", "explanations"),
    (
        "POST",
        "/v1/tenants/{tenant}/executions/{execution}:replay",
        "replay of dead letters",
    ),
    (
        "POST",
        "/v1/tenants/{tenant}/executions/{execution}:retry_now",
        "ending a backoff early",
    ),
    (
        "POST",
        "/v1/tenants/{tenant}/executions/{execution}:reschedule",
        "moving the due time of an execution",
    ),
    (
        "POST",
        "/v1/tenants/{tenant}/dead-letters:replay",
        "replay of dead letters",
    ),
    (
        "POST",
        "/v1/tenants/{tenant}/dead-letters:discard",
        "discarding of dead letters",
    ),
    (
        "POST",
        "/v1/tenants/{tenant}/keys/{key}:pause",
        "pauses of concurrency keys (set max_leased to 0)",
    ),
    (
        "POST",
        "/v1/tenants/{tenant}/keys/{key}:resume",
        "pauses of concurrency keys (set max_leased to 0)",
    ),
    ("DELETE", "/v1/tenants/{tenant}", "deletion of tenants"),
    (
        "PUT",
        "/v1/tenants/{tenant}/calendars/{calendar}",
        "named calendars",
    ),
    (
        "GET",
        "/v1/tenants/{tenant}/calendars/{calendar}",
        "named calendars",
    ),
    ("GET", "/v1/tzdata", "zone data releases by API"),
    ("PUT", "/v1/tzdata", "zone data releases by API"),
    ("GET", "/v1/events", "the change feed"),
    ("POST", "/v1/operations", "bulk operations"),
    ("GET", "/v1/operations", "bulk operations"),
    ("GET", "/v1/operations/{operation}", "bulk operations"),
    ("GET", "/v1/cluster/backup", "backups"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_refusal_names_the_field_and_what_to_do_instead() {
        for feature in Feature::ALL {
            let mut issues = Issues::default();
            let root = At::Root;
            feature.refuse(&mut issues, &root.key("here"));
            let error = issues.finish().unwrap_err();
            assert_eq!(error.code.as_str(), "not_supported");
            assert_eq!(error.errors[0].pointer, "/here");
            assert!(error.detail.contains(feature.instead()), "{error:?}");
        }
    }
}
