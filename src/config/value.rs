//! Durations and sizes as people write them in TOML and on the command line.
//!
//! Callers: `config` and `cli` (flags). Pure.

use std::time::Duration;

use crate::calendar;
use crate::time::Millis;

const SIZE_UNITS: [(&str, u64); 8] = [
    ("B", 1),
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("kB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("TiB", 1 << 40),
];

/// Reads `1h30m`, `250ms`, `2d`: whole numbers with a unit each, largest first.
///
/// # Errors
/// A sentence that says what is wrong and shows a right form.
pub fn duration(text: &str) -> Result<Duration, String> {
    let read = calendar::duration::parse(text).map_err(|e| format!("{text:?} is {e}"))?;
    Ok(read.to_duration())
}

/// Reads `64MiB`, `1GiB`: whole numbers with a unit (`B`, `KiB`, `MiB`, `GiB`, `TiB`, `kB`, `MB`, `GB`).
///
/// # Errors
/// A sentence that says what is wrong and shows a right form.
pub fn size(text: &str) -> Result<u64, String> {
    sum_of_units(text, &SIZE_UNITS)
        .map_err(|what| format!("{what}; write a size such as \"64MiB\" or \"1GiB\""))
}

fn sum_of_units(text: &str, units: &[(&str, u64)]) -> Result<u64, String> {
    let mut rest = text.trim();
    if rest.is_empty() {
        return Err("is empty".into());
    }
    let mut total: u64 = 0;
    while !rest.is_empty() {
        let digits = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let (number, after) = rest.split_at(digits);
        let letters = after.len()
            - after
                .trim_start_matches(|c: char| c.is_ascii_alphabetic())
                .len();
        let (unit, after) = after.split_at(letters);
        if number.is_empty() {
            return Err(format!("{text:?} has no number before {rest:?}"));
        }
        let Some((_, factor)) = units.iter().find(|(name, _)| *name == unit) else {
            let known: Vec<_> = units.iter().map(|(name, _)| *name).collect();
            return Err(if unit.is_empty() {
                format!("{number:?} has no unit ({})", known.join(", "))
            } else {
                format!("{unit:?} is no unit ({})", known.join(", "))
            });
        };
        total = number
            .parse::<u64>()
            .ok()
            .and_then(|n| n.checked_mul(*factor))
            .and_then(|n| n.checked_add(total))
            .ok_or_else(|| format!("{text:?} is too large"))?;
        rest = after.trim_start();
    }
    Ok(total)
}

/// Writes a duration in the form [`duration`] reads, exactly.
#[must_use]
pub fn show_duration(d: Duration) -> String {
    calendar::duration::format(Millis(u64::try_from(d.as_millis()).unwrap_or(u64::MAX)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_and_written_back() {
        for text in ["250ms", "30s", "1h30m", "2d", "0s"] {
            assert_eq!(duration(text).map(show_duration).as_deref(), Ok(text));
        }
        let err = duration("30").expect_err("a number alone");
        assert!(err.contains("\"30\" is not a duration"), "{err}");
    }

    #[test]
    fn sizes_know_binary_and_decimal_units() {
        assert_eq!(size("64MiB"), Ok(67_108_864));
        assert_eq!(size("1 GB"), Err("\"1\" has no unit (B, KiB, MiB, GiB, kB, MB, GB, TiB); write a size such as \"64MiB\" or \"1GiB\"".into()));
        assert_eq!(size("1GB"), Ok(1_000_000_000));
        assert!(size("20000000TiB").is_err());
    }
}
