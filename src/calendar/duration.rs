//! Lengths of time as text: `1h30m`, `250ms`, `PT1H`.
//!
//! Purpose: one reading and one writing of durations for API, CLI, TOML and rules.
//! Callers: `calendar`, `wire`, `cli`, configuration.
//! Invariants: `parse(format(d)) == d`; a day is 24 hours and a week seven days, always; months and
//! years are refused, because they have no fixed length.

use crate::time::Millis;

/// Longest duration that is read: 100 years of 366 days.
pub const MAX: Millis = Millis(100 * 366 * 86_400_000);

/// Why a text is no duration. The message says what to write.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Not in either form.
    #[error(
        "not a duration: write whole numbers with units, largest first, such as \"1h30m\", \
         \"250ms\", \"7d\" or \"PT1H\" (units: w d h m s ms)"
    )]
    Syntax,
    /// A unit without a fixed length.
    #[error("months and years have no fixed length: write days, such as \"30d\"")]
    Calendar,
    /// Longer than [`MAX`].
    #[error("longer than 100 years")]
    TooLong,
}

const UNITS: [(&str, u64); 6] = [
    ("w", 7 * 86_400_000),
    ("d", 86_400_000),
    ("h", 3_600_000),
    ("m", 60_000),
    ("s", 1_000),
    ("ms", 1),
];

/// Reads `1h30m`, `250ms`, `0s` or ISO 8601 `P1DT12H`, `PT0.5S`.
///
/// # Errors
/// [`Error`] says what is wrong and what to write.
pub fn parse(text: &str) -> Result<Millis, Error> {
    if !text.is_ascii() || text.len() > 100 {
        return Err(Error::Syntax);
    }
    if let Some(rest) = text.strip_prefix(['P', 'p']) {
        return iso(rest);
    }
    let mut total = 0u64;
    let mut rest = text;
    let mut next_unit = 0;
    while !rest.is_empty() || next_unit == 0 {
        let (n, after) = number(rest)?;
        let end = after
            .find(|c: char| !c.is_ascii_alphabetic())
            .unwrap_or(after.len());
        let (unit, tail) = after.split_at(end);
        let found = UNITS.iter().enumerate().skip(next_unit);
        let Some((at, (_, ms))) = found.clone().find(|(_, (u, _))| *u == unit) else {
            return Err(if matches!(unit, "y" | "mo" | "M") {
                Error::Calendar
            } else {
                Error::Syntax
            });
        };
        next_unit = at + 1;
        total = add(total, n, *ms)?;
        rest = tail;
    }
    bounded(total)
}

/// Writes the shortest exact form, such as `1h30m`, `250ms`, `0s`.
#[must_use]
pub fn format(d: Millis) -> String {
    let mut out = String::new();
    let mut left = d.0;
    // Weeks are not written: seven days read better next to other day counts.
    for (unit, ms) in UNITS.iter().skip(1) {
        let n = left / ms;
        left %= ms;
        if n > 0 {
            out.push_str(&n.to_string());
            out.push_str(unit);
        }
    }
    if out.is_empty() {
        out.push_str("0s");
    }
    out
}

fn iso(rest: &str) -> Result<Millis, Error> {
    let (date, time) = match rest.split_once(['T', 't']) {
        Some((_, "")) => return Err(Error::Syntax),
        Some((date, time)) => (date, time),
        None => (rest, ""),
    };
    if date.is_empty() && time.is_empty() {
        return Err(Error::Syntax);
    }
    let mut total = 0;
    designators(
        date,
        &[
            ('Y', None),
            ('M', None),
            ('W', Some(604_800_000)),
            ('D', Some(86_400_000)),
        ],
        &mut total,
    )?;
    designators(
        time,
        &[
            ('H', Some(3_600_000)),
            ('M', Some(60_000)),
            ('S', Some(1_000)),
        ],
        &mut total,
    )?;
    bounded(total)
}

fn designators(
    mut text: &str,
    units: &[(char, Option<u64>)],
    total: &mut u64,
) -> Result<(), Error> {
    let mut from = 0;
    while !text.is_empty() {
        let (n, after) = number(text)?;
        let (fraction, after) = fraction(after)?;
        let letter = after
            .chars()
            .next()
            .ok_or(Error::Syntax)?
            .to_ascii_uppercase();
        let mut candidates = units.iter().enumerate().skip(from);
        let Some((at, (_, ms))) = candidates.find(|(_, (u, _))| *u == letter) else {
            return Err(Error::Syntax);
        };
        let ms = ms.ok_or(Error::Calendar)?;
        from = at + 1;
        *total = add(*total, n, ms)?;
        if let Some(thousandths) = fraction {
            // Only seconds have fractions: "PT1.5H" is rare and easy to write otherwise.
            if letter != 'S' {
                return Err(Error::Syntax);
            }
            *total = add(*total, thousandths, 1)?;
        }
        text = after.get(1..).unwrap_or("");
    }
    Ok(())
}

/// A fraction of a second in whole milliseconds, if there is one.
fn fraction(text: &str) -> Result<(Option<u64>, &str), Error> {
    let Some(rest) = text.strip_prefix(['.', ',']) else {
        return Ok((None, text));
    };
    let end = rest
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(rest.len());
    let (digits, tail) = rest.split_at(end);
    if digits.is_empty() || digits.len() > 3 {
        return Err(Error::Syntax);
    }
    let value: u64 = digits.parse().map_err(|_| Error::Syntax)?;
    let scale = match digits.len() {
        1 => 100,
        2 => 10,
        _ => 1,
    };
    Ok((Some(value * scale), tail))
}

fn number(text: &str) -> Result<(u64, &str), Error> {
    let end = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let (digits, rest) = text.split_at(end);
    if digits.is_empty() {
        return Err(Error::Syntax);
    }
    // More digits than any bound allows; the parse below must not see an overflow.
    let n = digits.parse().map_err(|_| Error::TooLong)?;
    Ok((n, rest))
}

fn add(total: u64, n: u64, unit: u64) -> Result<u64, Error> {
    let part = n.checked_mul(unit).ok_or(Error::TooLong)?;
    total.checked_add(part).ok_or(Error::TooLong)
}

fn bounded(total: u64) -> Result<Millis, Error> {
    if total > MAX.0 {
        return Err(Error::TooLong);
    }
    Ok(Millis(total))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn both_forms_are_read() {
        for (text, ms) in [
            ("0s", 0),
            ("250ms", 250),
            ("1h30m", 5_400_000),
            ("90m", 5_400_000),
            ("2w1d", 15 * 86_400_000),
            ("PT1H", 3_600_000),
            ("P1DT12H", 129_600_000),
            ("P2W", 1_209_600_000),
            ("PT0.5S", 500),
            ("pt1m30s", 90_000),
        ] {
            assert_eq!(parse(text), Ok(Millis(ms)), "{text}");
        }
    }

    #[test]
    fn what_is_no_duration_is_refused_with_the_reason() {
        for text in [
            "", " ", "5", "-1s", "1.5h", "h", "30m1h", "1m1m", "P", "PT", "PT1.5H", "1h 30m",
            "P1H", "PT1D", "\u{661}s", "1\u{b5}s",
        ] {
            assert_eq!(parse(text), Err(Error::Syntax), "{text}");
        }
        assert_eq!(parse("1y"), Err(Error::Calendar));
        assert_eq!(parse("P1M"), Err(Error::Calendar));
        assert_eq!(parse("99999999999999999999s"), Err(Error::TooLong));
        assert_eq!(parse("36601d"), Err(Error::TooLong));
    }

    proptest! {
        #[test]
        fn every_duration_reads_back(ms in 0..=MAX.0) {
            prop_assert_eq!(parse(&format(Millis(ms))), Ok(Millis(ms)));
        }

        #[test]
        fn no_text_panics(text in ".{0,40}") {
            let _ = parse(&text);
        }
    }
}
