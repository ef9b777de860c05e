//! Instants, durations and raw JSON as they stand in bodies.
//!
//! Callers: every type of `wire`.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use serde_json::value::RawValue;
use utoipa::openapi::schema::{ObjectBuilder, SchemaFormat, SchemaType, Type};
use utoipa::openapi::{KnownFormat, RefOr, Schema};
use utoipa::{PartialSchema, ToSchema};

use crate::calendar::duration;
use crate::time::{Millis, Timestamp};

/// An instant: RFC 3339 with any offset when read, UTC with milliseconds when written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant(pub Timestamp);

impl From<Timestamp> for Instant {
    fn from(at: Timestamp) -> Self {
        Self(at)
    }
}

impl fmt::Display for Instant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for Instant {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Timestamp::parse_rfc3339(text).map(Self).ok_or_else(|| {
            format!(
                "{:?} is not an instant: write RFC 3339 with an offset, such as \"2026-03-01T09:00:00Z\"",
                shortened(text)
            )
        })
    }
}

impl Serialize for Instant {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for Instant {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Cow::<'de, str>::deserialize(deserializer)?;
        text.parse().map_err(de::Error::custom)
    }
}

impl PartialSchema for Instant {
    fn schema() -> RefOr<Schema> {
        ObjectBuilder::new()
            .schema_type(SchemaType::Type(Type::String))
            .format(Some(SchemaFormat::KnownFormat(KnownFormat::DateTime)))
            .description(Some(
                "RFC 3339; any offset is accepted, answers are in UTC with milliseconds.",
            ))
            .examples([serde_json::Value::from("2026-03-01T09:00:00.000Z")])
            .into()
    }
}

impl ToSchema for Instant {}

/// A length of time: `1h30m`, `250ms` or ISO 8601 `PT1H` when read, the short form when written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Span(pub Millis);

impl From<Millis> for Span {
    fn from(length: Millis) -> Self {
        Self(length)
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&duration::format(self.0))
    }
}

impl FromStr for Span {
    type Err = duration::Error;

    fn from_str(text: &str) -> Result<Self, duration::Error> {
        duration::parse(text).map(Self)
    }
}

impl Serialize for Span {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text;
        impl de::Visitor<'_> for Text {
            type Value = Span;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a duration as text, such as \"1h30m\", \"250ms\" or \"PT1H\"")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Span, E> {
                text.parse().map_err(E::custom)
            }
        }
        deserializer.deserialize_str(Text)
    }
}

impl PartialSchema for Span {
    fn schema() -> RefOr<Schema> {
        ObjectBuilder::new()
            .schema_type(SchemaType::Type(Type::String))
            .description(Some(
                "A length of time: whole numbers with units w, d, h, m, s, ms (largest first), or ISO 8601 \
                 without years and months. A day is 24 hours.",
            ))
            .examples([serde_json::Value::from("1h30m")])
            .into()
    }
}

impl ToSchema for Span {}

/// Any JSON value, kept as the text that was sent: numbers and member order are not touched.
#[derive(Clone)]
pub struct Json(Box<RawValue>);

impl Json {
    /// `null`.
    #[must_use]
    pub fn null() -> Self {
        Self(RawValue::NULL.to_owned())
    }

    /// From text that must be one JSON value.
    ///
    /// # Errors
    /// What is wrong with the text.
    pub fn from_text(text: String) -> Result<Self, serde_json::Error> {
        RawValue::from_string(text).map(Self)
    }

    /// From anything that serialises.
    ///
    /// # Errors
    /// What the value's own serialisation says.
    pub fn from_value<T: Serialize + ?Sized>(value: &T) -> Result<Self, serde_json::Error> {
        serde_json::value::to_raw_value(value).map(Self)
    }

    /// Stored JSON text; empty means `null`. Bytes that are no JSON (which nothing stores) read as `null`.
    #[must_use]
    pub fn from_stored(bytes: &[u8]) -> Self {
        if bytes.is_empty() {
            return Self::null();
        }
        match serde_json::from_slice::<Box<RawValue>>(bytes) {
            Ok(raw) => Self(raw),
            Err(_) => Self::null(),
        }
    }

    /// The text.
    #[must_use]
    pub fn text(&self) -> &str {
        self.0.get()
    }

    /// Whether it is `null`.
    #[must_use]
    pub fn is_null(&self) -> bool {
        self.0.get() == "null"
    }

    /// As a value of the wanted type.
    ///
    /// # Errors
    /// What does not fit.
    pub fn parse<'a, T: Deserialize<'a>>(&'a self) -> Result<T, serde_json::Error> {
        serde_json::from_str(self.0.get())
    }
}

impl Default for Json {
    fn default() -> Self {
        Self::null()
    }
}

impl fmt::Debug for Json {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.get())
    }
}

impl PartialEq for Json {
    fn eq(&self, other: &Self) -> bool {
        self.0.get() == other.0.get()
    }
}

impl Serialize for Json {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Json {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Box::<RawValue>::deserialize(deserializer).map(Self)
    }
}

impl PartialSchema for Json {
    fn schema() -> RefOr<Schema> {
        // No type at all: any JSON value.
        ObjectBuilder::new()
            .schema_type(SchemaType::AnyValue)
            .description(Some("Any JSON value, kept as it was sent."))
            .into()
    }
}

impl ToSchema for Json {}

/// At most the first 60 characters, for messages.
fn shortened(text: &str) -> String {
    let mut short: String = text.chars().take(60).collect();
    if short.len() < text.len() {
        short.push('…');
    }
    short
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_instant_with_an_offset_comes_back_in_utc_with_milliseconds() {
        let at: Instant = serde_json::from_str("\"2026-03-01T10:00:00+01:00\"").unwrap();
        assert_eq!(
            serde_json::to_string(&at).unwrap(),
            "\"2026-03-01T09:00:00.000Z\""
        );
    }

    #[test]
    fn what_is_no_instant_says_what_to_write() {
        let err = serde_json::from_str::<Instant>("\"tomorrow\"").unwrap_err();
        assert!(err.to_string().contains("RFC 3339"), "{err}");
    }

    #[test]
    fn a_span_is_text_and_a_number_is_refused_with_the_form() {
        let span: Span = serde_json::from_str("\"PT90M\"").unwrap();
        assert_eq!(serde_json::to_string(&span).unwrap(), "\"1h30m\"");
        let err = serde_json::from_str::<Span>("90").unwrap_err();
        assert!(err.to_string().contains("1h30m"), "{err}");
    }

    #[test]
    fn raw_json_keeps_large_numbers_and_member_order() {
        let text = r#"{"b":12345678901234567890123,"a":1.10}"#;
        let json: Json = serde_json::from_str(text).unwrap();
        assert_eq!(serde_json::to_string(&json).unwrap(), text);
    }
}
