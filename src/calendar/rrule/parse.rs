//! From RFC 5545 text to [`Rrule`].
//!
//! Invariants: total and linear in the text, which is bounded; what the RFC forbids is refused,
//! naming the part.

use std::sync::Arc;

use super::days::{ByDay, DayFilter, Scope};
use super::{COUNT_MAX, Clock, FIRST_START, Freq, Rrule};
use crate::calendar::civil::{DAY, END_LABEL, civil_from_days, days_from_civil, weekday};
use crate::calendar::error::{Code, RuleError};
use crate::calendar::unsupported::Feature;
use crate::calendar::zone::Zone;
use crate::calendar::zone_data::ZoneData;
use crate::model::rule::CivilDate;

/// Where errors point.
pub(crate) const POINTER: &str = "/rrule";
/// Longest text, in bytes.
const LENGTH_MAX: usize = 8_000;
/// Dates of one list at most.
const DATES_MAX: usize = 1_000;
const WEEKDAYS: [&str; 7] = ["SU", "MO", "TU", "WE", "TH", "FR", "SA"];

/// A recurrence and the zone that it is read in.
pub(crate) struct Parsed {
    pub(crate) rule: Rrule,
    pub(crate) zone: Option<Arc<Zone>>,
}

/// What the rule gives besides its text.
#[derive(Clone, Copy)]
pub(crate) struct Given<'a> {
    pub(crate) zones: &'a ZoneData,
    /// The zone of `time_zone`.
    pub(crate) zone: Option<&'a Arc<Zone>>,
    /// `start_at` in seconds, which stands in for DTSTART.
    pub(crate) start: Option<i64>,
}

/// One content line: name, zone parameter, value.
struct Line<'t> {
    name: String,
    zone: Option<&'t str>,
    value: &'t str,
}

/// A date and time of a property. `utc` says that it ended in Z.
#[derive(Clone, Copy)]
struct Stamp {
    label: i64,
    utc: bool,
}

/// Reads the text.
pub(crate) fn parse(text: &str, given: Given<'_>) -> Result<Parsed, RuleError> {
    if text.len() > LENGTH_MAX {
        let detail = format!("longer than {LENGTH_MAX} bytes");
        return Err(RuleError::new(POINTER, Code::TooLong, detail));
    }
    // A line that begins with a blank continues the one before it.
    let unfolded = text
        .replace("\r\n", "\n")
        .replace("\n ", "")
        .replace("\n\t", "");
    let lines = unfolded.lines().map(str::trim).filter(|l| !l.is_empty());
    let lines: Vec<Line<'_>> = lines.map(line).collect::<Result<_, _>>()?;
    let zone = zone_of(&lines, given)?;
    let single = |name: &str| -> Result<Option<&Line<'_>>, RuleError> {
        let mut found = lines.iter().filter(|l| l.name == name);
        match (found.next(), found.next()) {
            (_, Some(_)) => Err(refuse(format!("{name} is given twice: keep one"))),
            (one, None) => Ok(one),
        }
    };
    let start = match single("DTSTART")? {
        Some(line) => stamp(line.value)?,
        None => start_from_rule(given, zone.as_ref())?,
    };
    let utc = start.utc && zone.is_none();
    if zone.is_none() && !utc {
        let why = "DTSTART needs a zone: end it with Z, write DTSTART;TZID=…, or give time_zone";
        return Err(refuse(why));
    }
    let local = |s: Stamp| match (&zone, s.utc) {
        (Some(zone), true) => zone.label_at(s.label),
        _ => s.label,
    };
    let rule = single("RRULE")?.ok_or_else(|| refuse("there is no RRULE line"))?;
    let mut rule = Parts::read(rule.value)?.build(local(start), zone.as_deref())?;
    rule.extra = dates(&lines, "RDATE", local)?;
    rule.removed = dates(&lines, "EXDATE", local)?;
    Ok(Parsed { rule, zone })
}

fn line(text: &str) -> Result<Line<'_>, RuleError> {
    // The bare value of a rule is accepted as the rule.
    if text
        .get(..5)
        .is_some_and(|t| t.eq_ignore_ascii_case("FREQ="))
    {
        return Ok(Line {
            name: "RRULE".to_owned(),
            zone: None,
            value: text,
        });
    }
    let (head, value) = text
        .split_once(':')
        .ok_or_else(|| refuse("each line is NAME:value, such as RRULE:FREQ=DAILY"))?;
    let mut parts = head.split(';');
    let name = parts.next().unwrap_or("").to_ascii_uppercase();
    let mut zone = None;
    for parameter in parts {
        match parameter.split_once('=') {
            Some((k, v)) if k.eq_ignore_ascii_case("TZID") => zone = Some(v),
            Some((k, _)) if k.eq_ignore_ascii_case("VALUE") => {}
            _ => return Err(refuse(format!("{name}: only TZID and VALUE may follow ;"))),
        }
    }
    match name.as_str() {
        "DTSTART" | "RRULE" | "RDATE" | "EXDATE" => Ok(Line { name, zone, value }),
        "EXRULE" => Err(Feature::ExRule.refuse(POINTER)),
        _ => Err(refuse(
            "only DTSTART, RRULE, RDATE and EXDATE lines are read",
        )),
    }
}

/// The one zone of all lines and of `time_zone`.
fn zone_of(lines: &[Line<'_>], given: Given<'_>) -> Result<Option<Arc<Zone>>, RuleError> {
    let mut zone = given.zone.cloned();
    for name in lines.iter().filter_map(|l| l.zone) {
        let named = given.zones.zone(name, POINTER)?;
        match &zone {
            Some(zone) if !zone.same_time(&named) => {
                let (a, b) = (named.name(), zone.name());
                let detail = format!("TZID={a} conflicts with {b}: use one zone throughout");
                return Err(RuleError::new(POINTER, Code::ZoneConflict, detail));
            }
            Some(_) => {}
            None => zone = Some(named),
        }
    }
    Ok(zone)
}

fn start_from_rule(given: Given<'_>, zone: Option<&Arc<Zone>>) -> Result<Stamp, RuleError> {
    let at = given
        .start
        .ok_or_else(|| refuse("write a DTSTART line, or give start_at: the rule counts from it"))?;
    Ok(Stamp {
        label: zone.map_or(at, |z| z.label_at(at)),
        utc: zone.is_none(),
    })
}

fn dates(
    lines: &[Line<'_>],
    name: &str,
    local: impl Fn(Stamp) -> i64,
) -> Result<Vec<i64>, RuleError> {
    let mut out = Vec::new();
    for text in lines
        .iter()
        .filter(|l| l.name == name)
        .flat_map(|l| l.value.split(','))
    {
        out.push(local(stamp(text)?));
    }
    if out.len() > DATES_MAX {
        let detail = format!("more than {DATES_MAX} dates in {name}");
        return Err(RuleError::new(POINTER, Code::TooMany, detail));
    }
    out.sort_unstable();
    out.dedup();
    Ok(out)
}

/// `20260131T090000`, with Z for UTC, or `20260131` for midnight.
fn stamp(text: &str) -> Result<Stamp, RuleError> {
    let bad = || {
        let shown: String = text
            .chars()
            .take(40)
            .flat_map(char::escape_default)
            .collect();
        refuse(format!(
            "\"{shown}\" is no date and time of 1970 to 2199: write 20260131T090000 or 20260131T090000Z"
        ))
    };
    let (body, utc) = match text.strip_suffix(['Z', 'z']) {
        Some(body) => (body, true),
        None => (text, false),
    };
    let (date, time) = body.split_once(['T', 't']).unwrap_or((body, "000000"));
    let plain = |t: &str, n: usize| t.len() == n && t.bytes().all(|b| b.is_ascii_digit());
    if !plain(date, 8) || !plain(time, 6) || utc && !body.contains(['T', 't']) {
        return Err(bad());
    }
    let part = |t: &str, a: usize, b: usize| t.get(a..b).and_then(|p| p.parse::<i16>().ok());
    let numbers = (part(date, 0, 4), part(date, 4, 6), part(date, 6, 8));
    let (Some(y), Some(m), Some(d)) = numbers else {
        return Err(bad());
    };
    let small = |n: i16| u8::try_from(n).unwrap_or(0);
    let date = CivilDate::new(y, small(m), small(d)).ok_or_else(bad)?;
    let clock = (part(time, 0, 2), part(time, 2, 4), part(time, 4, 6));
    let (Some(h @ 0..=23), Some(min @ 0..=59), Some(s @ 0..=59)) = clock else {
        return Err(bad());
    };
    let day = days_from_civil(i64::from(date.year), date.month, date.day);
    let label = day * DAY + i64::from(h) * 3_600 + i64::from(min) * 60 + i64::from(s);
    if !(FIRST_START..END_LABEL).contains(&label) {
        return Err(bad());
    }
    Ok(Stamp { label, utc })
}

/// The parts of a rule as written; lists are empty when not given.
#[derive(Default)]
struct Parts {
    text: String,
    freq: Option<Freq>,
    interval: i64,
    count: Option<u64>,
    until: Option<Stamp>,
    seconds: Vec<i64>,
    minutes: Vec<i64>,
    hours: Vec<i64>,
    weekdays: Vec<ByDay>,
    month_days: Vec<i64>,
    year_days: Vec<i64>,
    weeks: Vec<i64>,
    months: Vec<i64>,
    positions: Vec<i64>,
    week_starts_on: u8,
}

impl Parts {
    fn read(text: &str) -> Result<Self, RuleError> {
        let mut parts = Self {
            text: text.to_ascii_uppercase(),
            interval: 1,
            week_starts_on: 1,
            ..Self::default()
        };
        let mut seen: Vec<String> = Vec::new();
        for part in text.split(';') {
            let (name, value) = part
                .split_once('=')
                .ok_or_else(|| refuse("a part of the rule is NAME=value, such as FREQ=DAILY"))?;
            let name = name.to_ascii_uppercase();
            if seen.contains(&name) {
                return Err(refuse(format!("{} is given twice: keep one", shown(&name))));
            }
            parts.set(&name, &value.to_ascii_uppercase())?;
            seen.push(name);
        }
        Ok(parts)
    }

    fn set(&mut self, name: &str, value: &str) -> Result<(), RuleError> {
        match name {
            "FREQ" => self.freq = Some(freq(value)?),
            "INTERVAL" => self.interval = number(name, value, 1, 1_000_000)?,
            "COUNT" => {
                let n = number(name, value, 1, i64::try_from(COUNT_MAX).unwrap_or(1))?;
                self.count = u64::try_from(n).ok();
            }
            "UNTIL" if value.contains('T') => self.until = Some(stamp(value)?),
            "UNTIL" => return Err(refuse("UNTIL needs a time as well: write 20261231T235959Z")),
            "BYSECOND" => self.seconds = list(name, value, 0, 59, false)?,
            "BYMINUTE" => self.minutes = list(name, value, 0, 59, false)?,
            "BYHOUR" => self.hours = list(name, value, 0, 23, false)?,
            "BYMONTHDAY" => self.month_days = list(name, value, 1, 31, true)?,
            "BYYEARDAY" => self.year_days = list(name, value, 1, 366, true)?,
            "BYWEEKNO" => self.weeks = list(name, value, 1, 53, true)?,
            "BYMONTH" => self.months = list(name, value, 1, 12, false)?,
            "BYSETPOS" => self.positions = list(name, value, 1, 366, true)?,
            "BYDAY" => self.weekdays = value.split(',').map(by_day).collect::<Result<_, _>>()?,
            "WKST" => self.week_starts_on = by_day(value)?.weekday,
            "BYEASTER" | "RSCALE" | "SKIP" => return Err(Feature::RruleExtension.refuse(POINTER)),
            _ => return Err(refuse(format!("{} is no part of a rule", shown(name)))),
        }
        Ok(())
    }

    /// What the RFC forbids to combine.
    fn check(&self, freq: Freq) -> Result<(), RuleError> {
        let numbered = self.weekdays.iter().any(|d| d.nth != 0);
        let wrong = if self.count.is_some() && self.until.is_some() {
            "COUNT and UNTIL exclude each other: keep one"
        } else if !self.weeks.is_empty() && freq != Freq::Yearly {
            "BYWEEKNO needs FREQ=YEARLY"
        } else if !self.year_days.is_empty()
            && matches!(freq, Freq::Daily | Freq::Weekly | Freq::Monthly)
        {
            "BYYEARDAY does not go with FREQ=DAILY, WEEKLY or MONTHLY"
        } else if !self.month_days.is_empty() && freq == Freq::Weekly {
            "BYMONTHDAY does not go with FREQ=WEEKLY"
        } else if numbered && !matches!(freq, Freq::Monthly | Freq::Yearly) {
            "a numbered BYDAY, such as 2FR, needs FREQ=MONTHLY or YEARLY"
        } else if numbered && !self.weeks.is_empty() {
            "a numbered BYDAY does not go with BYWEEKNO"
        } else if !self.positions.is_empty() && !self.has_other_list() {
            "BYSETPOS needs another BY… part to choose from"
        } else {
            return if !self.positions.is_empty() && freq > Freq::Daily {
                Err(Feature::ShortSetPos.refuse(POINTER))
            } else {
                Ok(())
            };
        };
        Err(refuse(wrong))
    }

    const fn has_other_list(&self) -> bool {
        !(self.seconds.is_empty()
            && self.minutes.is_empty()
            && self.hours.is_empty()
            && self.weekdays.is_empty()
            && self.month_days.is_empty()
            && self.year_days.is_empty()
            && self.weeks.is_empty()
            && self.months.is_empty())
    }

    /// The days that DTSTART gives where the rule leaves them open.
    fn fill_in_days(&mut self, freq: Freq, day: i64) {
        let given =
            !(self.weekdays.is_empty() && self.month_days.is_empty() && self.year_days.is_empty());
        if given {
            return;
        }
        let (_, month, dom) = civil_from_days(day);
        let own_weekday = ByDay {
            nth: 0,
            weekday: weekday(day),
        };
        match freq {
            Freq::Yearly if !self.weeks.is_empty() => self.weekdays.push(own_weekday),
            Freq::Yearly => {
                self.month_days.push(dom.into());
                if self.months.is_empty() {
                    self.months.push(month.into());
                }
            }
            Freq::Monthly => self.month_days.push(dom.into()),
            Freq::Weekly => self.weekdays.push(own_weekday),
            _ => {}
        }
    }

    /// The limits of the clock. A step of an hour keeps the minute of DTSTART; a shorter one runs
    /// through all of them.
    fn clock(&self, freq: Freq, minutes: &[i64], seconds: &[i64]) -> Clock {
        let limit = |free: bool, values: &[i64]| if free { u64::MAX } else { bits(values) };
        Clock {
            hours: limit(self.hours.is_empty(), &self.hours),
            minutes: limit(self.minutes.is_empty() && freq > Freq::Hourly, minutes),
            seconds: limit(self.seconds.is_empty() && freq > Freq::Minutely, seconds),
        }
    }

    /// Fills in from DTSTART what the rule leaves open.
    fn build(mut self, start: i64, zone: Option<&Zone>) -> Result<Rrule, RuleError> {
        let freq = self.freq.ok_or_else(|| refuse("the rule has no FREQ"))?;
        self.check(freq)?;
        let by_year = freq == Freq::Yearly && self.months.is_empty();
        self.fill_in_days(freq, start.div_euclid(DAY));
        let time = start.rem_euclid(DAY);
        let or = |list: &[i64], own: i64| {
            if list.is_empty() {
                vec![own]
            } else {
                list.to_vec()
            }
        };
        let hours = or(&self.hours, time / 3_600);
        let minutes = or(&self.minutes, time / 60 % 60);
        let seconds = or(&self.seconds, time % 60);
        let positions = self.positions.iter().filter_map(|p| i32::try_from(*p).ok());
        let mut rule = Rrule {
            freq,
            interval: self.interval,
            start,
            last: self.until.map_or(END_LABEL - 1, |u| last_label(u, zone)),
            times: times(&hours, &minutes, &seconds),
            clock: self.clock(freq, &minutes, &seconds),
            positions: positions.collect(),
            extra: Vec::new(),
            removed: Vec::new(),
            text: self.text,
            days: DayFilter {
                months: self.months,
                month_days: self.month_days,
                year_days: self.year_days,
                weeks: self.weeks,
                weekdays: self.weekdays,
                scope: if by_year { Scope::Year } else { Scope::Month },
                week_starts_on: self.week_starts_on,
            },
        };
        if let Some(count) = self.count {
            rule.check_reachable()?;
            rule.stop_after(count);
        }
        Ok(rule)
    }
}

impl Rrule {
    /// Refuses a short step that never meets its own clock limits, before anything walks it.
    pub(crate) fn check_reachable(&self) -> Result<(), RuleError> {
        if self.freq <= Freq::Daily {
            return Ok(());
        }
        let unit = match self.freq {
            Freq::Hourly => 3_600,
            Freq::Minutely => 60,
            _ => 1,
        };
        let steps = DAY / unit;
        let stride = gcd(self.interval, steps);
        let phase = self.start.div_euclid(unit).rem_euclid(stride);
        let mut reached = (0..steps).filter(|n| n % stride == phase);
        let met = reached.any(|n| self.clock.next(n * unit, unit).is_some());
        if met {
            Ok(())
        } else {
            let why = "the interval never meets BYHOUR, BYMINUTE and BYSECOND";
            Err(RuleError::new(POINTER, Code::NoFutureOccurrence, why))
        }
    }
}

const fn gcd(a: i64, b: i64) -> i64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// The last label that UNTIL lets through.
fn last_label(until: Stamp, zone: Option<&Zone>) -> i64 {
    let Some(zone) = zone.filter(|_| until.utc) else {
        return until.label;
    };
    let label = zone.label_at(until.label);
    // In the second pass of a repeated hour every label of the first pass is over.
    let seen = zone
        .spans()
        .get(zone.index_at(until.label))
        .map_or(label, |s| s.seen_until - 1);
    label.max(seen)
}

fn times(hours: &[i64], minutes: &[i64], seconds: &[i64]) -> Vec<i64> {
    let mut out = Vec::with_capacity(hours.len() * minutes.len() * seconds.len());
    for h in hours {
        for m in minutes {
            out.extend(seconds.iter().map(|s| h * 3_600 + m * 60 + s));
        }
    }
    out.sort_unstable();
    out.dedup();
    out
}

fn bits(values: &[i64]) -> u64 {
    values.iter().fold(0, |bits, v| bits | 1 << v)
}

fn freq(value: &str) -> Result<Freq, RuleError> {
    Ok(match value {
        "YEARLY" => Freq::Yearly,
        "MONTHLY" => Freq::Monthly,
        "WEEKLY" => Freq::Weekly,
        "DAILY" => Freq::Daily,
        "HOURLY" => Freq::Hourly,
        "MINUTELY" => Freq::Minutely,
        "SECONDLY" => Freq::Secondly,
        _ => {
            return Err(refuse(
                "FREQ is one of YEARLY, MONTHLY, WEEKLY, DAILY, HOURLY, MINUTELY, SECONDLY",
            ));
        }
    })
}

fn number(name: &str, text: &str, min: i64, max: i64) -> Result<i64, RuleError> {
    let plain = text.len() <= 9 && text.bytes().all(|b| b.is_ascii_digit());
    match text.parse() {
        Ok(n) if plain && (min..=max).contains(&n) => Ok(n),
        _ => Err(refuse(format!(
            "{name} is a whole number from {min} to {max}"
        ))),
    }
}

/// A list of numbers; with `signed`, also counted from the end.
fn list(name: &str, text: &str, min: i64, max: i64, signed: bool) -> Result<Vec<i64>, RuleError> {
    let mut out = Vec::new();
    for item in text.split(',') {
        let (sign, digits) = match item.strip_prefix('-') {
            Some(digits) if signed => (-1, digits),
            _ => (1, item.strip_prefix('+').filter(|_| signed).unwrap_or(item)),
        };
        out.push(sign * number(name, digits, min, max)?);
    }
    out.sort_unstable();
    out.dedup();
    Ok(out)
}

/// `FR`, `2FR`, `-1FR`.
fn by_day(text: &str) -> Result<ByDay, RuleError> {
    let bad = || {
        refuse(
            "a weekday is one of MO TU WE TH FR SA SU, with a number from 1 to 53 before it at most",
        )
    };
    let split = text.len().checked_sub(2).ok_or_else(bad)?;
    let (number, name) = text.split_at_checked(split).ok_or_else(bad)?;
    let found = WEEKDAYS.iter().position(|d| *d == name).ok_or_else(bad)?;
    let nth = match number {
        "" => 0,
        n => *list("BYDAY", n, 1, 53, true)?.first().ok_or_else(bad)?,
    };
    Ok(ByDay {
        nth,
        weekday: u8::try_from(found).unwrap_or(0),
    })
}

fn shown(text: &str) -> String {
    text.chars()
        .take(40)
        .flat_map(char::escape_default)
        .collect()
}

fn refuse(why: impl Into<String>) -> RuleError {
    RuleError::new(POINTER, Code::RruleSyntax, why)
}
