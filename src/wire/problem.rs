//! Error answers: RFC 9457 with a closed list of codes.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// An error answer (`application/problem+json`).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Problem {
    /// A URI reference that names the code, below `/docs`.
    #[serde(default, rename = "type")]
    pub kind: String,
    /// What the code means, in a few words.
    #[serde(default)]
    pub title: String,
    /// The HTTP status.
    #[serde(default)]
    pub status: u16,
    /// What is wrong with this request, and what to do.
    #[serde(default)]
    pub detail: String,
    /// One of the documented codes.
    #[serde(default)]
    pub code: String,
    /// The places in the request that are wrong.
    #[serde(default)]
    pub errors: Vec<FieldError>,
    /// Whether the same request may succeed later without a change.
    #[serde(default)]
    pub retryable: bool,
    /// Id of the request, for support.
    #[serde(default)]
    pub request_id: String,
    /// Revision of the object now, for `revision_mismatch` and `already_exists`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub current_revision: Option<String>,
    /// The execution in the way, for `overlap` and `unique_key_held`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blocker: Option<String>,
    /// The quota that is used up, for `quota_exceeded`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quota: Option<String>,
    /// Value of the limit that was met.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u64>,
    /// What is in use, or what was sent, where a limit was met.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub current: Option<u64>,
    /// What the limit belongs to: `cluster`, `tenant`, `queue` or `request`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scope: Option<String>,
}

/// One wrong place in a request.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FieldError {
    /// JSON pointer into the body (`/rule/cron`), `query:NAME`, `header:NAME` or `path:NAME`.
    pub pointer: String,
    /// The broken rule, in snake_case.
    pub code: String,
    /// What is wrong and what to write instead.
    pub detail: String,
}
