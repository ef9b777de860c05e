//! Pages of lists and the shape of a batch answer.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::wire::Problem;

/// One page of a list, in key order. A page may be shorter than asked for (even empty) while `next_cursor` is set.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Page<T> {
    /// The items.
    pub items: Vec<T>,
    /// Give it back as `cursor` for the page that follows; `null`: this was the last one.
    #[serde(default)]
    pub next_cursor: Option<String>,
}

impl<T> Default for Page<T> {
    fn default() -> Self {
        Self {
            items: Vec::new(),
            next_cursor: None,
        }
    }
}

/// What became of one item of a batch.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ItemStatus {
    /// The HTTP status that the same request would have got alone.
    pub status: u16,
    /// Why it was refused; `null` when it was not.
    #[serde(default)]
    pub problem: Option<Problem>,
}
