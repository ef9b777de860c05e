//! A deserializer that knows where it is and lets nothing pass unread.
//!
//! Purpose: the types of `wire` are lenient, for clients; around them this refuses fields that do not exist, refuses
//! arrays where objects belong (serde would read them as the fields in order), and says where something is wrong.
//! Callers: `api::body`. Invariants: the first error recorded is the innermost; raw JSON values pass through untouched.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fmt;

use serde::de::value::{BorrowedStrDeserializer, StringDeserializer};
use serde::de::{
    DeserializeSeed, Deserializer, EnumAccess, Error, IntoDeserializer as _, MapAccess, SeqAccess,
    Visitor,
};

use crate::api::issues::escape;
use crate::wire::FieldError;

/// Most unknown fields that are noted.
const UNKNOWN_MAX: usize = 20;

/// What was found on the way.
#[derive(Debug, Default)]
pub struct Notes {
    unknown: RefCell<Vec<FieldError>>,
    failed_at: RefCell<Option<String>>,
}

impl Notes {
    /// Fields that do not exist.
    pub fn into_unknown(self) -> Vec<FieldError> {
        self.unknown.into_inner()
    }

    /// Where the error happened.
    pub fn failed_at(&self) -> String {
        self.failed_at.borrow().clone().unwrap_or_default()
    }

    fn fail<T, E>(&self, place: &Place<'_>, result: Result<T, E>) -> Result<T, E> {
        if result.is_err() && self.failed_at.borrow().is_none() {
            *self.failed_at.borrow_mut() = Some(place.pointer());
        }
        result
    }

    fn unknown(&self, place: &Place<'_>) {
        let mut unknown = self.unknown.borrow_mut();
        if unknown.len() >= UNKNOWN_MAX {
            return;
        }
        let (name, known) = match place {
            Place::Member { name, known, .. } => (*name, *known),
            _ => ("", &[][..]),
        };
        let detail = match known.is_empty() {
            true => format!("there is no field {name:?} here"),
            false => format!(
                "there is no field {name:?} here; there is {}",
                known.join(", ")
            ),
        };
        unknown.push(FieldError {
            pointer: place.pointer(),
            code: "unknown_field".into(),
            detail,
        });
    }
}

/// Where the reader is. Borrowed down the calls; text is made only for a note.
#[derive(Clone, Copy)]
enum Place<'p> {
    Root,
    Member {
        parent: &'p Place<'p>,
        name: &'p str,
        /// Fields of the object, when it is one with fixed fields.
        known: &'static [&'static str],
    },
    Element {
        parent: &'p Place<'p>,
        index: usize,
    },
}

impl Place<'_> {
    fn pointer(&self) -> String {
        match self {
            Self::Root => String::new(),
            Self::Member { parent, name, .. } => format!("{}/{}", parent.pointer(), escape(name)),
            Self::Element { parent, index } => format!("{}/{index}", parent.pointer()),
        }
    }
}

/// See the module.
pub struct Strict<'p, D> {
    inner: D,
    place: Place<'p>,
    notes: &'p Notes,
}

impl<'p, D> Strict<'p, D> {
    /// Around `inner`, at the root.
    pub const fn new(inner: D, notes: &'p Notes) -> Self {
        Self {
            inner,
            place: Place::Root,
            notes,
        }
    }
}

/// A visitor that wraps what it is given.
struct Wrap<'p, V> {
    inner: V,
    place: Place<'p>,
    known: &'static [&'static str],
    notes: &'p Notes,
}

macro_rules! forward {
    ($($method:ident($($arg:ident: $type:ty),*);)*) => {$(
        fn $method<V: Visitor<'de>>(self, $($arg: $type,)* visitor: V) -> Result<V::Value, D::Error> {
            let wrap = Wrap { inner: visitor, place: self.place, known: &[], notes: self.notes };
            self.inner.$method($($arg,)* wrap)
        }
    )*};
}

impl<'de, D: Deserializer<'de>> Deserializer<'de> for Strict<'_, D> {
    type Error = D::Error;

    forward! {
        deserialize_any(); deserialize_bool();
        deserialize_i8(); deserialize_i16(); deserialize_i32(); deserialize_i64();
        deserialize_u8(); deserialize_u16(); deserialize_u32(); deserialize_u64();
        deserialize_f32(); deserialize_f64(); deserialize_char();
        deserialize_str(); deserialize_string(); deserialize_bytes(); deserialize_byte_buf();
        deserialize_option(); deserialize_unit(); deserialize_seq(); deserialize_map();
        deserialize_identifier();
        deserialize_unit_struct(name: &'static str);
        deserialize_tuple(len: usize);
        deserialize_tuple_struct(name: &'static str, len: usize);
        deserialize_enum(name: &'static str, variants: &'static [&'static str]);
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        // serde_json's raw values: their text is taken as it is.
        if name.starts_with("$serde_json::private") {
            return self.inner.deserialize_newtype_struct(name, visitor);
        }
        let wrap = Wrap {
            inner: visitor,
            place: self.place,
            known: &[],
            notes: self.notes,
        };
        self.inner.deserialize_newtype_struct(name, wrap)
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        let wrap = Wrap {
            inner: visitor,
            place: self.place,
            known: fields,
            notes: self.notes,
        };
        self.inner.deserialize_map(wrap)
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        self.notes.unknown(&self.place);
        self.inner.deserialize_ignored_any(visitor)
    }
}

macro_rules! visit {
    ($($method:ident: $type:ty;)*) => {$(
        fn $method<E: Error>(self, value: $type) -> Result<V::Value, E> {
            self.inner.$method(value)
        }
    )*};
}

impl<'de, V: Visitor<'de>> Visitor<'de> for Wrap<'_, V> {
    type Value = V::Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.expecting(f)
    }

    visit! {
        visit_bool: bool; visit_i64: i64; visit_u64: u64; visit_i128: i128; visit_u128: u128; visit_f64: f64;
        visit_char: char; visit_str: &str; visit_borrowed_str: &'de str; visit_string: String;
        visit_bytes: &[u8]; visit_borrowed_bytes: &'de [u8]; visit_byte_buf: Vec<u8>;
    }

    fn visit_none<E: Error>(self) -> Result<V::Value, E> {
        self.inner.visit_none()
    }

    fn visit_unit<E: Error>(self) -> Result<V::Value, E> {
        self.inner.visit_unit()
    }

    fn visit_some<D: Deserializer<'de>>(self, inner: D) -> Result<V::Value, D::Error> {
        self.inner.visit_some(Strict {
            inner,
            place: self.place,
            notes: self.notes,
        })
    }

    fn visit_newtype_struct<D: Deserializer<'de>>(self, inner: D) -> Result<V::Value, D::Error> {
        self.inner.visit_newtype_struct(Strict {
            inner,
            place: self.place,
            notes: self.notes,
        })
    }

    fn visit_seq<A: SeqAccess<'de>>(self, inner: A) -> Result<V::Value, A::Error> {
        self.inner.visit_seq(Elements {
            inner,
            place: &self.place,
            index: 0,
            notes: self.notes,
        })
    }

    fn visit_map<A: MapAccess<'de>>(self, inner: A) -> Result<V::Value, A::Error> {
        self.inner.visit_map(Members {
            inner,
            place: &self.place,
            known: self.known,
            seen: BTreeSet::new(),
            name: Text::Borrowed(""),
            notes: self.notes,
        })
    }

    fn visit_enum<A: EnumAccess<'de>>(self, inner: A) -> Result<V::Value, A::Error> {
        self.inner.visit_enum(inner)
    }
}

struct Elements<'p, A> {
    inner: A,
    place: &'p Place<'p>,
    index: usize,
    notes: &'p Notes,
}

impl<'de, A: SeqAccess<'de>> SeqAccess<'de> for Elements<'_, A> {
    type Error = A::Error;

    fn next_element_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, A::Error> {
        let place = Place::Element {
            parent: self.place,
            index: self.index,
        };
        self.index += 1;
        let notes = self.notes;
        let value = self.inner.next_element_seed(Seed { seed, place, notes });
        notes.fail(&place, value)
    }

    fn size_hint(&self) -> Option<usize> {
        self.inner.size_hint()
    }
}

struct Members<'p, 'de, A> {
    inner: A,
    place: &'p Place<'p>,
    known: &'static [&'static str],
    /// Names so far, where they are not fixed: a map would keep the last of two values and drop the other. (Fields of a
    /// struct are looked after by what serde derives.)
    seen: BTreeSet<String>,
    name: Text<'de>,
    notes: &'p Notes,
}

impl<'de, A: MapAccess<'de>> MapAccess<'de> for Members<'_, 'de, A> {
    type Error = A::Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, A::Error> {
        let key = self.inner.next_key_seed(KeyText);
        let Some(name) = self.notes.fail(self.place, key)? else {
            return Ok(None);
        };
        if self.known.is_empty() && !self.seen.insert(name.as_str().to_owned()) {
            let place = Place::Member {
                parent: self.place,
                name: name.as_str(),
                known: self.known,
            };
            return self
                .notes
                .fail(&place, Err(A::Error::custom("is there twice")));
        }
        let value = match &name {
            Text::Borrowed(text) => seed.deserialize(BorrowedStrDeserializer::new(text)),
            Text::Owned(text) => {
                let key: StringDeserializer<A::Error> = text.clone().into_deserializer();
                seed.deserialize(key)
            }
        };
        self.name = name;
        value.map(Some)
    }

    fn next_value_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<T::Value, A::Error> {
        let place = Place::Member {
            parent: self.place,
            name: self.name.as_str(),
            known: self.known,
        };
        let notes = self.notes;
        let value = self.inner.next_value_seed(Seed { seed, place, notes });
        notes.fail(&place, value)
    }

    fn size_hint(&self) -> Option<usize> {
        self.inner.size_hint()
    }
}

/// Wraps the deserializer that a value is read from.
struct Seed<'p, T> {
    seed: T,
    place: Place<'p>,
    notes: &'p Notes,
}

impl<'de, T: DeserializeSeed<'de>> DeserializeSeed<'de> for Seed<'_, T> {
    type Value = T::Value;

    fn deserialize<D: Deserializer<'de>>(self, inner: D) -> Result<T::Value, D::Error> {
        self.seed.deserialize(Strict {
            inner,
            place: self.place,
            notes: self.notes,
        })
    }
}

/// A member's name.
enum Text<'de> {
    Borrowed(&'de str),
    Owned(String),
}

impl Text<'_> {
    fn as_str(&self) -> &str {
        match self {
            Self::Borrowed(text) => text,
            Self::Owned(text) => text,
        }
    }
}

/// Reads a member's name.
struct KeyText;

impl<'de> DeserializeSeed<'de> for KeyText {
    type Value = Text<'de>;

    fn deserialize<D: Deserializer<'de>>(self, inner: D) -> Result<Text<'de>, D::Error> {
        inner.deserialize_str(self)
    }
}

impl<'de> Visitor<'de> for KeyText {
    type Value = Text<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a field's name")
    }

    fn visit_borrowed_str<E: Error>(self, text: &'de str) -> Result<Text<'de>, E> {
        Ok(Text::Borrowed(text))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Text<'de>, E> {
        Ok(Text::Owned(text.to_owned()))
    }
}
