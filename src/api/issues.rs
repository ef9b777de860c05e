//! Collects what is wrong with the fields of a request.
//!
//! Purpose: a converter goes on after the first wrong field, so that the caller is told all of them at once.
//! Callers: `api::convert`, handlers. Invariant: a converter's result is used only when [`Issues::finish`] is `Ok`.

use crate::api::problem::Error;
use crate::time::Millis;
use crate::wire::limits::Bound;
use crate::wire::{FieldError, Span};

/// Most wrong fields reported at once.
const ISSUES_MAX: usize = 50;

/// Where in the body a converter is. Borrowed down the call chain; text is made only for an error.
#[derive(Clone, Copy, Debug)]
pub enum At<'a> {
    /// The body itself.
    Root,
    /// A member.
    Key(&'a At<'a>, &'a str),
    /// An element.
    Index(&'a At<'a>, usize),
}

impl<'a> At<'a> {
    /// The member `name` of this place.
    #[must_use]
    pub const fn key(&'a self, name: &'a str) -> At<'a> {
        At::Key(self, name)
    }

    /// The element `index` of this place.
    #[must_use]
    pub const fn index(&'a self, index: usize) -> At<'a> {
        At::Index(self, index)
    }

    /// As a JSON pointer (RFC 6901).
    #[must_use]
    pub fn pointer(&self) -> String {
        match self {
            Self::Root => String::new(),
            Self::Key(parent, name) => {
                let mut text = parent.pointer();
                text.push('/');
                text.push_str(&escape(name));
                text
            }
            Self::Index(parent, index) => format!("{}/{index}", parent.pointer()),
        }
    }
}

/// A member name inside a JSON pointer.
#[must_use]
pub fn escape(name: &str) -> String {
    name.replace('~', "~0").replace('/', "~1")
}

/// See the module.
#[derive(Debug, Default)]
pub struct Issues {
    errors: Vec<FieldError>,
}

impl Issues {
    /// Notes one.
    pub fn add(&mut self, at: &At<'_>, code: &str, detail: impl Into<String>) {
        self.add_at(at.pointer(), code, detail);
    }

    /// Notes one at a pointer made elsewhere.
    pub fn add_at(&mut self, pointer: String, code: &str, detail: impl Into<String>) {
        if self.errors.len() < ISSUES_MAX {
            self.errors.push(FieldError {
                pointer,
                code: code.to_owned(),
                detail: detail.into(),
            });
        }
    }

    /// Whether nothing was noted.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.errors.is_empty()
    }

    /// `Ok` when nothing was noted.
    ///
    /// # Errors
    /// The problem with every noted field.
    pub fn finish(self) -> Result<(), Error> {
        if self.errors.is_empty() {
            Ok(())
        } else {
            Err(Error::fields(self.errors))
        }
    }

    /// `value`, noted when outside `bound`.
    pub fn number(&mut self, at: &At<'_>, value: u64, bound: &Bound) -> u64 {
        if value < bound.min || value > bound.max {
            self.add(at, "out_of_range", range_text(value, bound));
        }
        value.clamp(bound.min, bound.max)
    }

    /// `value` as a `u32`, noted when outside `bound`.
    pub fn count(&mut self, at: &At<'_>, value: u32, bound: &Bound) -> u32 {
        u32::try_from(self.number(at, u64::from(value), bound)).unwrap_or(u32::MAX)
    }

    /// A duration, noted when outside `bound` (in milliseconds).
    pub fn span(&mut self, at: &At<'_>, value: Span, bound: &Bound) -> Millis {
        let ms = value.0.0;
        if ms < bound.min || ms > bound.max {
            let (min, max) = (Span(Millis(bound.min)), Span(Millis(bound.max)));
            let detail = format!("{value} is out of range: {min} to {max}");
            self.add(at, "out_of_range", detail);
        }
        Millis(ms.clamp(bound.min, bound.max))
    }

    /// A length in bytes or items, noted when outside `bound`.
    pub fn length(&mut self, at: &At<'_>, length: usize, bound: &Bound) {
        let length = u64::try_from(length).unwrap_or(u64::MAX);
        if length > bound.max {
            let detail = format!(
                "has {length} {}; the maximum is {} ({} of /v1/limits)",
                bound.unit,
                bound.max,
                bound.name.to_ascii_lowercase()
            );
            self.add(at, "too_long", detail);
        } else if length < bound.min {
            let detail = format!("has {length} {}; the minimum is {}", bound.unit, bound.min);
            self.add(at, "too_short", detail);
        }
    }
}

fn range_text(value: u64, bound: &Bound) -> String {
    format!(
        "{value} is out of range: {} to {} ({} of /v1/limits)",
        bound.min,
        bound.max,
        bound.name.to_ascii_lowercase()
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::limits;

    #[test]
    fn a_place_becomes_an_escaped_pointer() {
        let root = At::Root;
        let items = root.key("items");
        let third = items.index(2);
        assert_eq!(third.key("a/b~c").pointer(), "/items/2/a~1b~0c");
        assert_eq!(root.pointer(), "");
    }

    #[test]
    fn every_wrong_field_is_reported_at_once() {
        let mut issues = Issues::default();
        let root = At::Root;
        issues.number(&root.key("priority"), 10, &limits::PRIORITY);
        issues.span(
            &root.key("jitter"),
            Span(Millis::days(8)),
            &limits::JITTER_MS,
        );
        let error = issues.finish().unwrap_err();
        let places: Vec<_> = error.errors.iter().map(|e| e.pointer.as_str()).collect();
        assert_eq!(places, ["/priority", "/jitter"]);
        assert!(error.errors[1].detail.contains("0s to 7d"), "{error:?}");
    }
}
