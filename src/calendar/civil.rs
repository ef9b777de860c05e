//! Days, dates and wall-clock labels as plain integers.
//!
//! Purpose: the arithmetic under every rule. A *label* is what a wall clock shows, counted in
//! seconds as if the clock had never been changed: `1970-01-01T00:00:00` is 0. Labels know no zone;
//! `zone` maps them to instants.
//! Callers: the rest of `calendar`.
//! Invariants: total for the years 1 to 9999; no function allocates except to render.

use std::fmt;

use crate::model::rule::CivilDate;

/// Seconds of a day on a wall clock.
pub(crate) const DAY: i64 = 86_400;
/// First label a rule can name: 1970-01-01T00:00:00.
pub(crate) const FIRST_LABEL: i64 = 0;
/// First year a rule can name.
pub(crate) const FIRST_YEAR: u16 = 1970;
/// Last year a rule can name.
pub(crate) const LAST_YEAR: u16 = 2199;
/// The label after the last one a rule can name: 2200-01-01T00:00:00.
pub(crate) const END_LABEL: i64 = days_from_civil(LAST_YEAR as i64 + 1, 1, 1) * DAY;

/// Days since 1970-01-01 of a date in the proleptic Gregorian calendar.
pub(crate) const fn days_from_civil(year: i64, month: u8, day: u8) -> i64 {
    // Years start in March here, so that the leap day is the last day of a year.
    let m = month as i64;
    let y = if m <= 2 { year - 1 } else { year };
    let era = y.div_euclid(400);
    let year_of_era = y.rem_euclid(400);
    let shifted = if m > 2 { m - 3 } else { m + 9 };
    let day_of_year = (153 * shifted + 2) / 5 + day as i64 - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    era * 146_097 + day_of_era - 719_468
}

/// Year, month and day of a day count; the inverse of [`days_from_civil`].
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a day is 1 to 31 and a month 1 to 12 by construction"
)]
pub(crate) const fn civil_from_days(days: i64) -> (i64, u8, u8) {
    let z = days + 719_468;
    let era = z.div_euclid(146_097);
    let day_of_era = z.rem_euclid(146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let day = (day_of_year - (153 * shifted + 2) / 5 + 1) as u8;
    let month = if shifted < 10 {
        shifted + 3
    } else {
        shifted - 9
    } as u8;
    let year = year_of_era + era * 400 + if month <= 2 { 1 } else { 0 };
    (year, month, day)
}

/// Weekday of a day count, 0 = Sunday.
#[expect(clippy::cast_possible_truncation, reason = "a remainder of 7")]
pub(crate) const fn weekday(days: i64) -> u8 {
    (days + 4).rem_euclid(7) as u8
}

/// Day count of a label.
pub(crate) const fn day_of(label: i64) -> i64 {
    label.div_euclid(DAY)
}

/// Day count of a date.
pub(crate) fn day_of_date(date: CivilDate) -> i64 {
    days_from_civil(i64::from(date.year), date.month, date.day)
}

/// What a wall clock shows, to the second; renders as `2026-03-08T02:30:00`.
///
/// It may name a time that a clock change removed. It is no instant: it has no zone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Wall(pub(crate) i64);

impl Wall {
    /// The date part, if its year fits four digits.
    #[must_use]
    pub fn date(self) -> Option<CivilDate> {
        let (y, m, d) = civil_from_days(day_of(self.0));
        CivilDate::new(i16::try_from(y).ok()?, m, d)
    }
}

impl fmt::Display for Wall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (y, m, d) = civil_from_days(day_of(self.0));
        let tod = self.0.rem_euclid(DAY);
        let (h, min, s) = (tod / 3_600, tod / 60 % 60, tod % 60);
        write!(f, "{y:04}-{m:02}-{d:02}T{h:02}:{min:02}:{s:02}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_agree_with_an_independent_calendar_over_all_supported_years() {
        let mut date = jiff::civil::date(1969, 12, 1);
        for n in -31..84_400 {
            let (y, m, d) = civil_from_days(n);
            assert_eq!(
                (y, m, d),
                (
                    i64::from(date.year()),
                    date.month().cast_unsigned(),
                    date.day().cast_unsigned()
                )
            );
            assert_eq!(days_from_civil(y, m, d), n);
            assert_eq!(
                weekday(n),
                date.weekday().to_sunday_zero_offset().cast_unsigned()
            );
            date = date.tomorrow().unwrap();
        }
    }

    #[test]
    fn the_horizon_is_the_turn_of_2199_to_2200() {
        assert_eq!(Wall(END_LABEL - 1).to_string(), "2199-12-31T23:59:59");
        assert_eq!(Wall(FIRST_LABEL).to_string(), "1970-01-01T00:00:00");
    }
}
