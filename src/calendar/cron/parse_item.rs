//! From the text of one field to its items.
//!
//! Callers: `parse`. Invariant: total; positions in messages count characters of the whole
//! expression from 1.

use super::field::{Field, FieldExpr, Item};
use super::parse::{POINTER, Placed, syntax};
use crate::calendar::error::{Code, RuleError};
use crate::calendar::stable_hash::Seed;
use crate::calendar::unsupported::Feature;
use crate::model::rule::Dialect;

/// What an item is read against.
#[derive(Clone, Copy)]
struct Context<'t> {
    field: Field,
    dialect: Dialect,
    seed: Seed,
    /// Text of the item.
    text: &'t str,
    /// Position of its first character.
    at: usize,
}

/// A number or a name.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Value {
    number: u16,
    named: bool,
}

/// Reads one field.
pub(super) fn field(
    field: Field,
    (text, at): Placed<'_>,
    dialect: Dialect,
    seed: Seed,
) -> Result<FieldExpr, RuleError> {
    let mut items = Vec::new();
    let mut offset = at;
    for item in text.split(',') {
        let context = Context {
            field,
            dialect,
            seed,
            text: item,
            at: offset,
        };
        items.push(context.item()?);
        offset += item.len() + 1;
    }
    if items.len() > 1 && items.contains(&Item::Question) {
        return Err(syntax(format!(
            "{}: ? must stand alone in its field",
            field.name()
        )));
    }
    Ok(FieldExpr {
        items,
        starts_with_star: text.starts_with('*') || text == "?",
        is_bare: text == "*" || text == "?",
    })
}

impl<'t> Context<'t> {
    fn item(self) -> Result<Item, RuleError> {
        let text = self.text;
        if text.is_empty() {
            return Err(self.refuse("an empty item: remove the extra comma"));
        }
        if let Some(rest) = text.strip_prefix('*') {
            return self.star(rest);
        }
        if text.starts_with('?') {
            return self.question();
        }
        if let Some(rest) = text.strip_prefix(['H', 'h']) {
            return self.hash(rest);
        }
        let special = match self.field {
            Field::DayOfMonth => self.month_day_special()?,
            Field::DayOfWeek => self.weekday_special()?,
            _ => None,
        };
        match special {
            Some(item) => Ok(item),
            None => self.range(),
        }
    }

    fn star(self, rest: &str) -> Result<Item, RuleError> {
        match rest.strip_prefix('/') {
            None if rest.is_empty() => Ok(Item::Star { step: 1 }),
            None => Err(self.refuse("only a step may follow *, such as */5")),
            Some(step) => Ok(Item::Star {
                step: self.step(step)?,
            }),
        }
    }

    fn question(self) -> Result<Item, RuleError> {
        if !matches!(self.field, Field::DayOfMonth | Field::DayOfWeek) {
            return Err(self.refuse("? is only for day of month and day of week: write *"));
        }
        if self.text.len() > 1 {
            return Err(self.refuse("? takes no step or value: write ? or *"));
        }
        Ok(Item::Question)
    }

    /// `H`, `H/n`, `H(a-b)`, `H(a-b)/n`: one stable value, or a stable phase of a step.
    fn hash(self, rest: &str) -> Result<Item, RuleError> {
        if self.field == Field::Year {
            return Err(self.refuse("H is not for years: write the years"));
        }
        let (low, high, rest) = match rest.strip_prefix('(') {
            // Every month has 28 days; a hash must not make a schedule skip months.
            None if self.field == Field::DayOfMonth => (1, 28, rest),
            None => (self.field.min(), self.field.max(), rest),
            Some(inner) => {
                let Some((bounds, rest)) = inner.split_once(')') else {
                    return Err(self.refuse("H( is not closed: write H(0-29)"));
                };
                let Some((a, b)) = bounds.split_once('-') else {
                    return Err(self.refuse("H( ) takes a range: write H(0-29)"));
                };
                let (a, b) = (self.value(a)?.number, self.value(b)?.number);
                if a > b {
                    return Err(
                        self.refuse("the range in H( ) runs backwards: write the smaller first")
                    );
                }
                (a, b, rest)
            }
        };
        let hash = self.seed.for_name(self.field.name());
        let pick = |n: u16| low + u16::try_from(hash % u64::from(n)).unwrap_or(0);
        let size = high - low + 1;
        match rest.strip_prefix('/') {
            None if rest.is_empty() => Ok(Item::value(pick(size))),
            None => Err(self.refuse("after H only a range in parentheses and a step may follow")),
            Some(step) => {
                let step = self.step(step)?;
                Ok(Item::Range {
                    from: pick(step.min(size)),
                    to: high,
                    step,
                })
            }
        }
    }

    /// `L`, `L-n`, `LW`, `nW`.
    fn month_day_special(self) -> Result<Option<Item>, RuleError> {
        let upper = self.text.to_ascii_uppercase();
        if upper == "L" {
            return Ok(Some(Item::LastDay { before: 0 }));
        }
        if upper == "LW" || upper == "WL" {
            return Ok(Some(Item::LastWorkday));
        }
        if let Some(n) = upper.strip_prefix("L-") {
            if n.ends_with('W') {
                return Err(Feature::NearestToLast.refuse(POINTER));
            }
            let n: Option<u8> = digits(n)
                .and_then(|n| u8::try_from(n).ok())
                .filter(|n| *n <= 30);
            let before = n.ok_or_else(|| {
                self.refuse_as(
                    Code::OutOfRange,
                    "after L- comes a number of days from 0 to 30",
                )
            })?;
            return Ok(Some(Item::LastDay { before }));
        }
        let Some(day) = upper.strip_suffix('W') else {
            return Ok(None);
        };
        let day = digits(day).and_then(|d| u8::try_from(d).ok());
        match day.filter(|d| (1..=31).contains(d)) {
            Some(d) => Ok(Some(Item::NearestWorkday(d))),
            None => Err(self.refuse("before W comes one day from 1 to 31, such as 15W")),
        }
    }

    /// `d#n`, `dL`, and Quartz's lone `L`.
    fn weekday_special(self) -> Result<Option<Item>, RuleError> {
        if self.text.eq_ignore_ascii_case("L") {
            return match self.dialect {
                Dialect::Unix => Err(self.refuse("L needs a weekday here: write SATL or 6L")),
                // Quartz: the last day of the week.
                _ => Ok(Some(Item::value(6))),
            };
        }
        if let Some((day, n)) = self.text.split_once('#') {
            let weekday = self.weekday(day)?;
            let n = digits(n).and_then(|n| u8::try_from(n).ok());
            return match n.filter(|n| (1..=5).contains(n)) {
                Some(n) => Ok(Some(Item::Nth { weekday, n })),
                None => Err(self.refuse_as(
                    Code::OutOfRange,
                    "after # comes a number from 1 to 5: no month has a sixth",
                )),
            };
        }
        match self.text.strip_suffix(['L', 'l']) {
            Some(day) => Ok(Some(Item::LastOf {
                weekday: self.weekday(day)?,
            })),
            None => Ok(None),
        }
    }

    fn weekday(self, text: &str) -> Result<u8, RuleError> {
        let v = self.value(text)?.number % 7;
        Ok(u8::try_from(v).unwrap_or(0))
    }

    /// `a`, `a-b`, `a/n`, `a-b/n`.
    fn range(self) -> Result<Item, RuleError> {
        let (range, step) = match self.text.split_once('/') {
            None => (self.text, None),
            Some((range, step)) => (range, Some(self.step(step)?)),
        };
        let Some((from, to)) = range.split_once('-') else {
            let from = self.value(range)?.number;
            return Ok(match step {
                None => Item::value(from),
                // 7 is Sunday, beyond where the weekday field ends.
                Some(step) => Item::Range {
                    from,
                    to: self.field.max().max(from),
                    step,
                },
            });
        };
        let (from, to) = (self.value(from)?, self.value(to)?);
        let mut end = to.number;
        if from.number > end {
            // Sunday at the end of a range is the seventh day, and named ranges go round.
            if !self.wraps() || !(from.named || to.named) {
                return Err(self.refuse_backwards(from, to));
            }
            end += self.field.size();
        }
        Ok(Item::Range {
            from: from.number,
            to: end,
            step: step.unwrap_or(1),
        })
    }

    const fn wraps(self) -> bool {
        matches!(self.field, Field::DayOfWeek | Field::Month)
    }

    fn refuse_backwards(self, from: Value, to: Value) -> RuleError {
        let names = self.field.names();
        let name = |v: Value| {
            let i = usize::from(v.number - self.field.min()) % names.len().max(1);
            names.get(i).copied().unwrap_or("")
        };
        if self.wraps() {
            let (a, b) = (name(from), name(to));
            return self.refuse(&format!("the range runs backwards: write {a}-{b}"));
        }
        let (a, b, max) = (from.number, to.number, self.field.max());
        let min = self.field.min();
        self.refuse(&format!(
            "the range runs backwards: write {a}-{max},{min}-{b}"
        ))
    }

    fn step(self, text: &str) -> Result<u16, RuleError> {
        if text.is_empty() {
            return Err(self.refuse("a number must follow /, such as */5"));
        }
        let Some(step) = digits(text) else {
            return Err(self.refuse("the step after / must be a whole number, such as */5"));
        };
        let size = self.field.size();
        if step == 0 {
            return Err(self.refuse("a step of 0 never moves on: write 1 or more"));
        }
        if step > u32::from(size) {
            let detail = format!(
                "the step is larger than the field, which has {size} values: \
                 write one value instead, or use an interval (every)"
            );
            return Err(self.refuse_as(Code::StepTooLarge, &detail));
        }
        Ok(u16::try_from(step).unwrap_or(1))
    }

    fn value(self, text: &str) -> Result<Value, RuleError> {
        if text.is_empty() {
            return Err(self.refuse("a value is missing beside - or /"));
        }
        if text.bytes().all(|b| b.is_ascii_digit()) {
            let number = self.number(text)?;
            return Ok(Value {
                number,
                named: false,
            });
        }
        let upper = text.to_ascii_uppercase();
        let names = self.field.names();
        if let Some(i) = names.iter().position(|n| *n == upper) {
            let number = self.field.min() + u16::try_from(i).unwrap_or(0);
            return Ok(Value {
                number,
                named: true,
            });
        }
        Err(self.refuse_value(&upper))
    }

    fn refuse_value(self, upper: &str) -> RuleError {
        let names = self.field.names();
        if upper.bytes().any(|b| !b.is_ascii_alphanumeric()) {
            return self.refuse("not a value, a range or a step");
        }
        if names.is_empty() {
            return self.refuse("this field takes numbers, no names");
        }
        let near = upper.get(..3).and_then(|p| names.iter().find(|n| **n == p));
        match near {
            Some(name) => self.refuse(&format!("names have three letters: write {name}")),
            None => self.refuse(&format!("no such name: write one of {}", names.join(" "))),
        }
    }

    fn number(self, text: &str) -> Result<u16, RuleError> {
        let (min, max) = match (self.field, self.dialect) {
            (Field::DayOfWeek, Dialect::Unix) => (0, 7),
            (Field::DayOfWeek, _) => (1, 7),
            (f, _) => (f.min(), f.max()),
        };
        let n = digits(text).and_then(|n| u16::try_from(n).ok());
        match n.filter(|n| (min..=max).contains(n)) {
            // Quartz counts from 1 = Sunday.
            Some(n) if min == 1 && self.field == Field::DayOfWeek => Ok(n - 1),
            Some(n) => Ok(n),
            None => Err(self.refuse_as(
                Code::OutOfRange,
                &format!(
                    "out of range: {} runs from {min} to {max}",
                    self.field.name()
                ),
            )),
        }
    }

    fn refuse(self, why: &str) -> RuleError {
        self.refuse_as(Code::Syntax, why)
    }

    fn refuse_as(self, code: Code, why: &str) -> RuleError {
        let (field, text, at) = (self.field.name(), self.text, self.at);
        RuleError::new(
            POINTER,
            code,
            format!("{field}: \"{text}\" at character {at}: {why}"),
        )
    }
}

/// A number of at most six digits.
fn digits(text: &str) -> Option<u32> {
    let fits = (1..=6).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_digit());
    if fits { text.parse().ok() } else { None }
}
