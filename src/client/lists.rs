//! What lists have in common, and the audit log.

use super::{Answer, Call, Client, Error, Method};
use crate::wire::{AuditRecord, Page};

/// Which schedules or executions a list shows.
#[derive(Clone, Debug, Default)]
pub struct ListFilter {
    /// A state, or several separated by commas.
    pub state: Option<String>,
    /// Queue.
    pub queue: Option<String>,
    /// Kind.
    pub kind: Option<String>,
    /// `name=value`.
    pub label: Option<String>,
    /// Items per page.
    pub page_size: Option<u32>,
    /// From the page before.
    pub cursor: Option<String>,
    /// Show payloads.
    pub full: bool,
}

impl ListFilter {
    /// The call for a page of the list at `path`.
    pub(super) fn ask(&self, path: impl Into<String>) -> Call {
        paged(path, self.page_size, self.cursor.as_deref())
            .query("state", self.state.as_deref())
            .query("queue", self.queue.as_deref())
            .query("kind", self.kind.as_deref())
            .query("label", self.label.as_deref())
            .query("view", self.full.then_some("full"))
    }
}

/// The call for a page of the list at `path`.
pub(super) fn paged(path: impl Into<String>, page_size: Option<u32>, cursor: Option<&str>) -> Call {
    Call::new(Method::Get, path)
        .query("page_size", page_size)
        .query("cursor", cursor)
}

/// Which audit records a list shows.
#[derive(Clone, Debug, Default)]
pub struct AuditFilter {
    /// A tenant; `None`: all.
    pub tenant: Option<String>,
    /// Kind of the object, such as `schedule`, or several separated by commas.
    pub object: Option<String>,
    /// Name of the object.
    pub id: Option<String>,
    /// Not earlier than this instant.
    pub since: Option<String>,
    /// Earlier than this instant.
    pub until: Option<String>,
    /// Items per page.
    pub page_size: Option<u32>,
    /// From the page before.
    pub cursor: Option<String>,
}

impl Client {
    /// One page of the audit log, newest first.
    ///
    /// # Errors
    /// [`Error::Problem`] for a filter that is not known.
    pub async fn list_audit(
        &self,
        filter: &AuditFilter,
    ) -> Result<Answer<Page<AuditRecord>>, Error> {
        let call = paged("/v1/audit", filter.page_size, filter.cursor.as_deref())
            .query("tenant", filter.tenant.as_deref())
            .query("object", filter.object.as_deref())
            .query("id", filter.id.as_deref())
            .query("since", filter.since.as_deref())
            .query("until", filter.until.as_deref());
        self.call(call).await
    }
}
