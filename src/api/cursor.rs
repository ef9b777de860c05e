//! Cursors of lists: opaque, with the filters bound in.
//!
//! Callers: list handlers. Invariants: a cursor works for the list that gave it only; a changed filter beside it is
//! refused, so that a page never mixes two questions.

use std::collections::BTreeMap;

use bincode::Options;

use crate::api::call::Call;
use crate::api::problem::{Code, Error};
use crate::command::codec::bincode;
use crate::wire::limits;

/// Items of a page unless told otherwise.
const PAGE_SIZE_DEFAULT: u64 = 100;
/// Query parameters that belong to no filter.
const NO_FILTER: &[&str] = &["page_size", "cursor", "view", "consistency", "min_index"];

type Content = (String, Vec<(String, String)>, Vec<u8>);

/// What a list call asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListQuery {
    /// Most items.
    pub page_size: usize,
    /// Filters, by name.
    pub filters: BTreeMap<String, String>,
    /// Where the page begins; `None`: at the start.
    pub position: Option<Vec<u8>>,
    /// Payloads are shown.
    pub is_full: bool,
    list: String,
}

impl ListQuery {
    /// Reads page size, cursor, view and filters of `call`. The route knows the parameter names.
    ///
    /// # Errors
    /// `invalid_parameter`, `invalid_cursor`.
    pub fn of(call: &Call) -> Result<Self, Error> {
        let page_size = call
            .number("page_size", &limits::PAGE_SIZE)?
            .unwrap_or(PAGE_SIZE_DEFAULT);
        let is_full = match call.param("view")? {
            None | Some("basic") => false,
            Some("full") => true,
            Some(other) => {
                let detail = format!("{other:?} is neither basic nor full");
                return Err(Error::parameter("query:view", detail));
            }
        };
        let mut filters = BTreeMap::new();
        for (name, _) in &call.query {
            if NO_FILTER.contains(&name.as_str()) {
                continue;
            }
            if let Some(value) = call.param(name)? {
                filters.insert(name.clone(), value.to_owned());
            }
        }
        let list = call.request.path.clone();
        let mut query = Self {
            page_size: usize::try_from(page_size).unwrap_or(1),
            filters,
            position: None,
            is_full,
            list,
        };
        if let Some(cursor) = call.param("cursor")? {
            query.resume(cursor)?;
        }
        Ok(query)
    }

    fn resume(&mut self, cursor: &str) -> Result<(), Error> {
        let (list, filters, position) = decode(cursor).ok_or_else(|| {
            Error::new(
                Code::InvalidCursor,
                "the cursor is not one that this API gave out; begin again without it",
            )
        })?;
        let filters: BTreeMap<String, String> = filters.into_iter().collect();
        if list != self.list {
            let detail = "the cursor belongs to another list; begin again without it";
            return Err(Error::new(Code::InvalidCursor, detail));
        }
        if !self.filters.is_empty() && self.filters != filters {
            let detail = "the cursor was made with other filters; begin again without it";
            return Err(Error::new(Code::InvalidCursor, detail));
        }
        self.filters = filters;
        self.position = Some(position);
        Ok(())
    }

    /// The cursor of the page that follows.
    #[must_use]
    pub fn next(&self, position: Option<Vec<u8>>) -> Option<String> {
        let position = position?;
        let filters = self
            .filters
            .iter()
            .map(|(n, v)| (n.clone(), v.clone()))
            .collect();
        encode(&(self.list.clone(), filters, position))
    }

    /// A filter's value.
    #[must_use]
    pub fn filter(&self, name: &str) -> Option<&str> {
        self.filters.get(name).map(String::as_str)
    }
}

fn encode(content: &Content) -> Option<String> {
    let mut bytes = bincode(limits::CURSOR_BYTES.max).serialize(content).ok()?;
    bytes.extend_from_slice(&checksum(&bytes));
    let mut text = String::with_capacity(bytes.len() * 2);
    for byte in bytes {
        text.push_str(&format!("{byte:02x}"));
    }
    Some(text)
}

fn decode(text: &str) -> Option<Content> {
    let length = u64::try_from(text.len()).ok()?;
    if length > limits::CURSOR_BYTES.max || !text.is_ascii() || !text.len().is_multiple_of(2) {
        return None;
    }
    let bytes: Vec<u8> = text
        .as_bytes()
        .chunks_exact(2)
        .map(|pair| {
            let pair = std::str::from_utf8(pair).ok()?;
            u8::from_str_radix(pair, 16).ok()
        })
        .collect::<Option<_>>()?;
    let (content, sum) = bytes.split_at_checked(bytes.len().checked_sub(4)?)?;
    if checksum(content) != sum {
        return None;
    }
    bincode(limits::CURSOR_BYTES.max).deserialize(content).ok()
}

fn checksum(bytes: &[u8]) -> [u8; 4] {
    let hash = xxhash_rust::xxh3::xxh3_64(bytes).to_be_bytes();
    let mut first = [0; 4];
    for (to, from) in first.iter_mut().zip(hash) {
        *to = from;
    }
    first
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::call::{Request, parse_query};
    use crate::command::Actor;

    fn call(path: &str, query: &str) -> Call {
        Call {
            request: Request {
                path: path.into(),
                ..Request::default()
            },
            path: BTreeMap::new(),
            query: parse_query(query).unwrap(),
            actor: Actor::Anonymous,
        }
    }

    #[test]
    fn a_cursor_carries_place_and_filters_to_its_own_list_only() {
        let first = ListQuery::of(&call("/a", "state=ready&page_size=3")).unwrap();
        let cursor = first.next(Some(b"place".to_vec())).unwrap();
        let next = ListQuery::of(&call("/a", &format!("cursor={cursor}"))).unwrap();
        assert_eq!(next.filter("state"), Some("ready"));
        assert_eq!(next.position.as_deref(), Some(b"place" as &[u8]));
        for (path, query) in [
            ("/b", format!("cursor={cursor}")),
            ("/a", format!("cursor={cursor}&state=leased")),
            ("/a", format!("cursor={}", &cursor[2..])),
            ("/a", "cursor=zz".into()),
            ("/a", "cursor=%C3%A9%C3%A9".into()),
            ("/a", "cursor=".into()),
        ] {
            let error = ListQuery::of(&call(path, &query)).unwrap_err();
            assert_eq!(error.code, Code::InvalidCursor, "{path} {query}");
        }
    }

    #[test]
    fn page_size_and_view_are_checked() {
        for query in ["page_size=0", "page_size=1001", "page_size=x", "view=all"] {
            assert!(ListQuery::of(&call("/a", query)).is_err(), "{query}");
        }
    }
}
