//! One instant as text: RFC 3339, or a local time in a zone.
//!
//! Callers: API and CLI for `at`; `repeat` for the start of an ISO 8601 repeat.
//! Invariant: strict and total. A local time that a clock change removed is read with the offset
//! before it (it moves on by the gap); a repeated one is its first pass.

use super::civil::{DAY, END_LABEL, FIRST_LABEL, days_from_civil};
use super::error::{Code, RuleError};
use super::zone_data::ZoneData;
use crate::model::rule::CivilDate;
use crate::time::Timestamp;

/// A date and time as written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Written {
    /// Whole seconds on the wall clock.
    pub(crate) label: i64,
    /// 0 to 999.
    pub(crate) millis: i64,
    /// Local minus UTC in seconds, when written.
    pub(crate) offset: Option<i64>,
}

/// Reads an `at`: an instant, or a local time with a zone (UTC without one is refused).
///
/// # Errors `instant_syntax` for text that is neither, `time_zone_unknown` for the zone,
/// `instant_out_of_range` outside 1970 to 2199. Errors point at `/at` and `/time_zone`.
pub fn parse_at(
    text: &str,
    time_zone: Option<&str>,
    zones: &ZoneData,
) -> Result<Timestamp, RuleError> {
    let written = read(text).ok_or_else(|| not_an_instant("/at", text))?;
    let seconds = match (written.offset, time_zone) {
        (Some(offset), _) => written.label - offset,
        (None, Some(name)) => zones
            .zone(name, "/time_zone")?
            .read(written.label)
            .instant(),
        (None, None) => {
            let detail = "a local time needs a zone: end it with Z or an offset, or give time_zone";
            return Err(RuleError::new("/at", Code::InstantSyntax, detail));
        }
    };
    let at = seconds * 1_000 + written.millis;
    if !within_horizon(at) {
        return Err(outside_horizon("/at"));
    }
    Ok(Timestamp::from_millis(at))
}

/// Whether an instant lies in the years that rules may name.
pub(crate) const fn within_horizon(ms: i64) -> bool {
    ms >= FIRST_LABEL * 1_000 && ms < END_LABEL * 1_000
}

pub(crate) fn outside_horizon(pointer: &str) -> RuleError {
    RuleError::new(pointer, Code::Horizon, "outside the years 1970 to 2199")
}

pub(crate) fn not_an_instant(pointer: &str, text: &str) -> RuleError {
    let shown: String = text
        .chars()
        .take(80)
        .flat_map(char::escape_default)
        .collect();
    let detail = format!(
        "\"{shown}\" is no date and time that exists: write 2026-05-01T12:00:00Z, \
         2026-05-01T12:00:00+02:00, or 2026-05-01T12:00:00 with time_zone"
    );
    RuleError::new(pointer, Code::InstantSyntax, detail)
}

/// Reads `2026-05-01T12:00[:00[.000]][Z|+02:00]`; a blank may stand for the `T`.
pub(crate) fn read(text: &str) -> Option<Written> {
    let (date, rest) = text.split_at_checked(10)?;
    let date: CivilDate = date.parse().ok()?;
    let rest = rest.strip_prefix(['T', 't', ' '])?;
    let end = rest.find(['Z', 'z', '+', '-']).unwrap_or(rest.len());
    let (time, offset) = rest.split_at(end);
    let (time, fraction) = match time.split_once('.') {
        Some((time, fraction)) => (time, Some(fraction)),
        None => (time, None),
    };
    let mut parts = time.split(':');
    let (h, m) = (
        two_digits(parts.next()?, 23)?,
        two_digits(parts.next()?, 59)?,
    );
    let s = match parts.next() {
        Some(s) => two_digits(s, 59)?,
        None if fraction.is_some() => return None,
        None => 0,
    };
    if parts.next().is_some() {
        return None;
    }
    let day = days_from_civil(i64::from(date.year), date.month, date.day);
    Some(Written {
        label: day * DAY + h * 3_600 + m * 60 + s,
        millis: fraction.map_or(Some(0), millis)?,
        offset: read_offset(offset)?,
    })
}

/// Digits after the point; those below a millisecond are cut.
fn millis(digits: &str) -> Option<i64> {
    let plain = (1..=9).contains(&digits.len()) && digits.bytes().all(|b| b.is_ascii_digit());
    let padded = format!("{digits:0<3}");
    if plain {
        padded.get(..3)?.parse().ok()
    } else {
        None
    }
}

/// `None` for nonsense, `Some(None)` for no offset at all.
#[expect(
    clippy::option_option,
    reason = "nonsense and absence are different answers"
)]
fn read_offset(text: &str) -> Option<Option<i64>> {
    let (sign, rest) = match text.split_at_checked(1) {
        None => return Some(None),
        Some(("Z" | "z", "")) => return Some(Some(0)),
        Some(("+", rest)) => (1, rest),
        Some(("-", rest)) => (-1, rest),
        Some(_) => return None,
    };
    let (h, m) = rest.split_once(':')?;
    Some(Some(
        sign * (two_digits(h, 23)? * 3_600 + two_digits(m, 59)? * 60),
    ))
}

fn two_digits(text: &str, max: i64) -> Option<i64> {
    let plain = text.len() == 2 && text.bytes().all(|b| b.is_ascii_digit());
    let n: i64 = if plain {
        text.parse().ok()?
    } else {
        return None;
    };
    (n <= max).then_some(n)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(text: &str, zone: Option<&str>) -> Result<String, &'static str> {
        parse_at(text, zone, &ZoneData::bundled())
            .map(Timestamp::to_rfc3339)
            .map_err(|e| e.code)
    }

    #[test]
    fn instants_and_local_times_are_read() {
        let berlin = Some("Europe/Berlin");
        for (text, zone, expected) in [
            (
                "2026-05-01T12:00:00+05:45",
                None,
                "2026-05-01T06:15:00.000Z",
            ),
            (
                "2026-05-01T12:00:00.2567Z",
                berlin,
                "2026-05-01T12:00:00.256Z",
            ),
            ("2026-05-01 12:00", berlin, "2026-05-01T10:00:00.000Z"),
            // In the gap: moves on by an hour. In the fold: the first pass.
            ("2026-03-29T02:30:00", berlin, "2026-03-29T01:30:00.000Z"),
            ("2026-10-25T02:30:00", berlin, "2026-10-25T00:30:00.000Z"),
            // A day that was never there.
            (
                "2011-12-30T12:00:00",
                Some("Pacific/Apia"),
                "2011-12-30T22:00:00.000Z",
            ),
        ] {
            assert_eq!(at(text, zone).as_deref(), Ok(expected), "{text}");
        }
    }

    #[test]
    fn what_is_no_instant_is_refused() {
        for text in [
            "",
            "tomorrow",
            "2026-01-01",
            "2026-01-01T25:00:00Z",
            "2026-01-01T24:00:00Z",
            "2026-02-30T00:00:00Z",
            "2026-13-01T00:00:00Z",
            "2026-01-01T00:00:60Z",
            "2026-01-01T00:00:00",
            "2026-01-01T00:00:00+2",
            "2026-01-01T00:00:00.Z",
            "2026-01-01T00:00:00Z ",
            "２026-01-01T00:00:00Z",
        ] {
            assert_eq!(at(text, None), Err("instant_syntax"), "{text}");
        }
        assert_eq!(
            at("2026-01-01T00:00:00", Some("Mars/Base")),
            Err("time_zone_unknown")
        );
        assert_eq!(
            at("1969-12-31T23:59:59Z", None),
            Err("instant_out_of_range")
        );
        assert_eq!(
            at("2200-01-01T00:00:00Z", None),
            Err("instant_out_of_range")
        );
    }

    proptest! {
        #[test]
        fn every_instant_reads_back(ms in 0..END_LABEL * 1_000) {
            let t = Timestamp::from_millis(ms);
            prop_assert_eq!(parse_at(&t.to_rfc3339(), None, &ZoneData::bundled()), Ok(t));
        }

        #[test]
        fn no_text_panics(text in "\\PC{0,40}") {
            let _ = parse_at(&text, Some("Europe/Berlin"), &ZoneData::bundled());
        }
    }
}
