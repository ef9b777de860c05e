//! Lists over several pages.
//!
//! Callers: every `list`. Invariant: at most `limit` items are shown, and a cursor is printed when there are more.

use clap::Args;
use serde::Serialize;
use serde_json::Value;

use super::failure::Failure;
use super::output::Output;
use crate::client::{Answer, Error, ListFilter};
use crate::wire::Page;

/// Largest page.
const PAGE_MAX: u32 = 1_000;

/// How much of a list is shown.
#[derive(Clone, Debug, Args)]
pub(super) struct PageArgs {
    /// Most items shown.
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) limit: u32,
    /// Continue behind an earlier list.
    #[arg(long, value_name = "CURSOR")]
    pub(super) cursor: Option<String>,
}

/// Filters that lists of schedules and of executions share.
#[derive(Clone, Debug, Args)]
pub(super) struct ListArgs {
    /// Only in this state, or in one of several separated by commas.
    #[arg(long)]
    state: Option<String>,
    /// Only of this queue.
    #[arg(long)]
    queue: Option<String>,
    /// Only of this kind.
    #[arg(long)]
    kind: Option<String>,
    /// Only with this label.
    #[arg(long, value_name = "NAME=VALUE")]
    label: Option<String>,
    #[command(flatten)]
    pub(super) page: PageArgs,
}

impl ListArgs {
    /// What the server is asked for, for one page.
    pub(super) fn filter(&self, page_size: u32, cursor: Option<String>) -> ListFilter {
        ListFilter {
            state: self.state.clone(),
            queue: self.queue.clone(),
            kind: self.kind.clone(),
            label: self.label.clone(),
            page_size: Some(page_size),
            cursor,
            full: false,
        }
    }
}

/// What was collected; the items as sent, for programs.
#[derive(Serialize)]
struct Collected {
    items: Vec<Value>,
    next_cursor: Option<String>,
}

/// Fetches pages until the limit and shows them.
pub(super) async fn list<T, F>(
    args: &PageArgs,
    output: &Output,
    headings: &[&str],
    mut fetch: impl FnMut(u32, Option<String>) -> F,
    row: impl Fn(&T) -> Vec<String>,
) -> Result<(), Failure>
where
    F: Future<Output = Result<Answer<Page<T>>, Error>>,
{
    let mut rows = Vec::new();
    let mut raw = Vec::new();
    let mut cursor = args.cursor.clone();
    loop {
        let have = u32::try_from(rows.len()).unwrap_or(u32::MAX);
        let want = args.limit.saturating_sub(have).min(PAGE_MAX);
        let page = fetch(want, cursor).await?;
        rows.extend(page.value.items.iter().map(&row));
        if output.is_json() {
            raw.append(&mut items_of(&page.text));
        }
        cursor = page.value.next_cursor;
        if cursor.is_none() || rows.len() >= args.limit as usize {
            break;
        }
    }
    if output.is_json() {
        output.json(&Collected {
            items: raw,
            next_cursor: cursor,
        });
        return Ok(());
    }
    output.table(headings, &rows);
    if let Some(cursor) = cursor {
        output.note(&format!("there are more: --cursor {cursor}"));
    }
    Ok(())
}

fn items_of(text: &str) -> Vec<Value> {
    match serde_json::from_str::<Value>(text) {
        Ok(Value::Object(mut page)) => match page.remove("items") {
            Some(Value::Array(items)) => items,
            _ => Vec::new(),
        },
        _ => Vec::new(),
    }
}
