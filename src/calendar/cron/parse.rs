//! From text to [`Expr`].
//!
//! Invariants: total (any text gives an answer, in time linear in its length, which is bounded);
//! every refusal names the field, the character counted from 1, and what to write instead.

use super::field::{Field, FieldExpr, Item};
use super::{Expr, parse_item};
use crate::calendar::error::{Code, RuleError};
use crate::calendar::stable_hash::Seed;
use crate::calendar::unsupported::Feature;
use crate::model::rule::Dialect;

/// Where errors point.
pub(crate) const POINTER: &str = "/cron";
/// Longest expression, in characters.
pub(crate) const LENGTH_MAX: usize = 1_000;

/// Aliases of the Unix dialect.
pub(crate) const ALIASES: [(&str, &str); 7] = [
    ("@hourly", "0 * * * *"),
    ("@daily", "0 0 * * *"),
    ("@midnight", "0 0 * * *"),
    ("@weekly", "0 0 * * 0"),
    ("@monthly", "0 0 1 * *"),
    ("@yearly", "0 0 1 1 *"),
    ("@annually", "0 0 1 1 *"),
];

/// systemd's words for what the aliases mean.
const ON_CALENDAR_WORDS: [&str; 9] = [
    "minutely",
    "hourly",
    "daily",
    "weekly",
    "monthly",
    "quarterly",
    "semiannually",
    "yearly",
    "annually",
];

type Errors = Vec<RuleError>;

/// Reads an expression.
///
/// # Errors
/// Everything found wrong, at least one entry.
pub(crate) fn parse(text: &str, dialect: Dialect, seed: Seed) -> Result<Expr, Errors> {
    check_characters(text).map_err(one)?;
    let (zone_prefix, start) = split_prefix(text).map_err(one)?;
    let body = text.get(start..).unwrap_or("");
    let trimmed = body.trim();
    if trimmed.is_empty() {
        let detail = "the expression is empty: write five fields, such as 0 9 * * MON-FRI";
        return Err(one(syntax(detail)));
    }
    if trimmed.starts_with('@') {
        let fields = alias(trimmed).map_err(one)?;
        return fields_of(
            &split(fields, 0),
            dialect_of_alias(dialect),
            seed,
            zone_prefix,
        );
    }
    let (trimmed, offset) = unwrap_call(text, body, start, dialect).map_err(one)?;
    refuse_foreign(trimmed).map_err(one)?;
    fields_of(&split(trimmed, offset), dialect, seed, zone_prefix)
}

fn one(e: RuleError) -> Errors {
    vec![e]
}

pub(super) fn syntax(detail: impl Into<String>) -> RuleError {
    RuleError::new(POINTER, Code::Syntax, detail)
}

/// Length first, so that nothing later depends on how long the text is; then the alphabet.
fn check_characters(text: &str) -> Result<(), RuleError> {
    if text.len() > LENGTH_MAX && text.chars().count() > LENGTH_MAX {
        let detail =
            format!("longer than {LENGTH_MAX} characters: split it into several schedules");
        return Err(RuleError::new(POINTER, Code::TooLong, detail));
    }
    let stranger = |c: &char| !matches!(c, ' '..='~' | '\t');
    let Some((at, c)) = text.chars().enumerate().find(|(_, c)| stranger(c)) else {
        return Ok(());
    };
    let (name, fix) = match c {
        '\u{2010}'..='\u{2015}' | '\u{2212}' => ("a dash that is not -", "write -"),
        '\u{a0}' | '\u{2000}'..='\u{200b}' | '\u{202f}' | '\u{3000}' | '\u{feff}' => {
            ("a blank that is not a plain one", "write a plain blank")
        }
        '\u{2217}' | '\u{ff0a}' | '\u{d7}' => ("a star that is not *", "write *"),
        '\n' | '\r' => ("a line break", "remove it"),
        c if c.is_control() => ("a control character", "remove it"),
        _ => (
            "not an ASCII character",
            "an expression is plain ASCII: remove or replace it",
        ),
    };
    let code = u32::from(c);
    let detail = format!("character {}: U+{code:04X} is {name}: {fix}", at + 1);
    Err(RuleError::new(POINTER, Code::Character, detail))
}

/// A `CRON_TZ=` or `TZ=` prefix and where the rest begins.
fn split_prefix(text: &str) -> Result<(Option<String>, usize), RuleError> {
    let lead = text.len() - text.trim_start().len();
    let body = text.trim_start();
    let upper = body.get(..8).unwrap_or(body).to_ascii_uppercase();
    let key = match upper {
        u if u.starts_with("CRON_TZ=") => 8,
        u if u.starts_with("TZ=") => 3,
        _ => return Ok((None, 0)),
    };
    let value = body.get(key..).unwrap_or("");
    let end = value.find([' ', '\t']).unwrap_or(value.len());
    let zone = value.get(..end).unwrap_or("");
    if zone.is_empty() {
        let detail = "the zone after TZ= is empty: write TZ=Europe/Rome, or use time_zone";
        return Err(syntax(detail));
    }
    Ok((Some(zone.to_owned()), lead + key + end))
}

fn alias(text: &str) -> Result<&'static str, RuleError> {
    let word = text.to_ascii_lowercase();
    if let Some((_, fields)) = ALIASES.iter().find(|(name, _)| *name == word) {
        return Ok(fields);
    }
    match word.split_whitespace().next().unwrap_or("") {
        "@reboot" => Err(Feature::Reboot.refuse(POINTER)),
        "@every" => Err(Feature::EveryAlias.refuse(POINTER)),
        other => {
            let known: Vec<&str> = ALIASES.iter().map(|(name, _)| *name).collect();
            let detail = format!("{other} is no alias: write one of {}", known.join(", "));
            Err(syntax(detail))
        }
    }
}

/// Aliases are defined in Unix numbering whatever the dialect of the rule.
const fn dialect_of_alias(_: Dialect) -> Dialect {
    Dialect::Unix
}

/// Takes `cron(…)` off in the EventBridge dialect, refuses it and `rate(…)` elsewhere.
fn unwrap_call<'t>(
    text: &'t str,
    body: &'t str,
    start: usize,
    dialect: Dialect,
) -> Result<(&'t str, usize), RuleError> {
    let offset = start + (body.len() - body.trim_start().len());
    let trimmed = body.trim();
    let lower = trimmed.get(..5).unwrap_or("").to_ascii_lowercase();
    if lower == "rate(" {
        return Err(Feature::Rate.refuse(POINTER));
    }
    if lower != "cron(" {
        return Ok((trimmed, offset));
    }
    if dialect != Dialect::EventBridge {
        let detail = "cron(…) is EventBridge notation, which counts weekdays from 1 = Sunday: \
                      name the dialect (eventbridge) or write five plain fields";
        return Err(RuleError::new(POINTER, Code::AmbiguousDialect, detail));
    }
    let end = offset + trimmed.len();
    if !trimmed.ends_with(')') {
        return Err(syntax(format!(
            "character {end}: cron( is not closed: end it with )"
        )));
    }
    Ok((text.get(offset + 5..end - 1).unwrap_or(""), offset + 5))
}

/// Notations of other programs that could be taken for broken cron.
fn refuse_foreign(text: &str) -> Result<(), RuleError> {
    if text.contains('~') {
        return Err(Feature::RandomRange.refuse(POINTER));
    }
    let lower = text.to_ascii_lowercase();
    if text.contains(':') || text.contains("..") || ON_CALENDAR_WORDS.contains(&lower.as_str()) {
        return Err(Feature::OnCalendar.refuse(POINTER));
    }
    Ok(())
}

/// A field's text and the position of its first character, counted from 1.
pub(super) type Placed<'t> = (&'t str, usize);

/// Splits at blanks. `offset` is where `text` begins in the whole expression.
fn split(text: &str, offset: usize) -> Vec<Placed<'_>> {
    let base = text.as_ptr() as usize;
    text.split([' ', '\t'])
        .filter(|f| !f.is_empty())
        .map(|f| (f, f.as_ptr() as usize - base + offset + 1))
        .collect()
}

/// The fields a dialect expects, in order, for a number of fields.
fn layout(dialect: Dialect, count: usize) -> Result<&'static [Field], RuleError> {
    use Field::{DayOfMonth, DayOfWeek, Hour, Minute, Month, Second, Year};
    const ALL: &[Field] = &[Second, Minute, Hour, DayOfMonth, Month, DayOfWeek, Year];
    let picked = match (dialect, count) {
        (Dialect::Unix, 5) => ALL.get(1..6),
        (Dialect::Unix | Dialect::Quartz, 6) => ALL.get(..6),
        (Dialect::Unix | Dialect::Quartz, 7) => Some(ALL),
        (Dialect::EventBridge, 6) => ALL.get(1..),
        _ => None,
    };
    picked.ok_or_else(|| {
        let wanted = match dialect {
            Dialect::Unix => {
                "five (minute hour day-of-month month day-of-week), six (a second in front) or \
                 seven (a year behind as well)"
            }
            Dialect::Quartz => {
                "six (second minute hour day-of-month month day-of-week) or seven (a year behind) \
                 in the quartz dialect"
            }
            Dialect::EventBridge => {
                "six (minute hour day-of-month month day-of-week year) in the eventbridge dialect"
            }
        };
        let s = if count == 1 { "" } else { "s" };
        let detail = format!("{count} field{s}, expected {wanted}");
        RuleError::new(POINTER, Code::FieldCount, detail)
    })
}

fn fields_of(
    texts: &[Placed<'_>],
    dialect: Dialect,
    seed: Seed,
    zone_prefix: Option<String>,
) -> Result<Expr, Errors> {
    let layout = layout(dialect, texts.len()).map_err(one)?;
    let mut errors = Vec::new();
    let mut slots: [Option<FieldExpr>; 7] = [const { None }; 7];
    for (field, text) in layout.iter().copied().zip(texts) {
        match parse_item::field(field, *text, dialect, seed) {
            Ok(parsed) => {
                if let Some(slot) = slots.get_mut(field as usize) {
                    *slot = Some(parsed);
                }
            }
            Err(mut e) => {
                hint_at_layout(&mut e, field, layout);
                errors.push(e);
            }
        }
    }
    if !errors.is_empty() {
        return Err(errors);
    }
    let [second, minute, hour, day_of_month, month, day_of_week, year] = slots;
    let (Some(minute), Some(hour), Some(day_of_month), Some(month), Some(day_of_week)) =
        (minute, hour, day_of_month, month, day_of_week)
    else {
        return Err(one(syntax("a field is missing")));
    };
    let expr = Expr {
        dialect,
        zone_prefix,
        second,
        minute,
        hour,
        day_of_month,
        month,
        day_of_week,
        year,
    };
    check_question_marks(&expr, layout, texts).map_err(one)?;
    Ok(expr)
}

/// People who count five fields and write six read the sixth as something else.
fn hint_at_layout(e: &mut RuleError, field: Field, layout: &[Field]) {
    let seconds_first = layout.first() == Some(&Field::Second);
    let late = matches!(field, Field::Month | Field::DayOfWeek | Field::Year);
    if seconds_first && late {
        let n = if layout.len() == 6 { "six" } else { "seven" };
        e.detail
            .push_str(&format!(" ({n} fields: the first is the second)"));
    }
}

/// The rules about `?`: where a dialect demands it, and where it hides a wrong weekday number.
fn check_question_marks(
    expr: &Expr,
    layout: &[Field],
    texts: &[Placed<'_>],
) -> Result<(), RuleError> {
    let asks = |f: &FieldExpr| f.items.contains(&Item::Question);
    let (dom, dow) = (asks(&expr.day_of_month), asks(&expr.day_of_week));
    if expr.dialect != Dialect::Unix {
        if dom == dow {
            let detail = "exactly one of day of month and day of week must be ? in this dialect: \
                          put ? into the one that does not matter";
            return Err(syntax(detail));
        }
        return Ok(());
    }
    let place = layout.iter().position(|f| *f == Field::DayOfWeek);
    let Some((text, at)) = place.and_then(|i| texts.get(i)) else {
        return Ok(());
    };
    // A step or an ordinal is no weekday, so only digits before them count.
    let numbered = text.split(',').any(|item| {
        let days = item.split(['/', '#']).next().unwrap_or("");
        days.bytes().any(|b| b.is_ascii_digit())
    });
    if dom && numbered {
        let detail = format!(
            "day of week: \"{text}\" at character {at} stands beside ?, where Quartz counts from \
             1 = Sunday and Unix from 1 = Monday: name the dialect or write MON"
        );
        return Err(RuleError::new(POINTER, Code::AmbiguousDialect, detail));
    }
    Ok(())
}
