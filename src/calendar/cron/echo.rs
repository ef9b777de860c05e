//! An expression back as text, the way it was understood.
//!
//! Purpose: the answer to a client shows weekdays by name and `H` as the value it became, so that a
//! misread dialect shows at once. Callers: `preview`, `describe`.
//! Invariant: in the Unix dialect the text reads back as an expression that matches the same
//! labels.

use super::Expr;
use super::field::{Field, FieldExpr, Item};

/// The whole expression, without a zone prefix.
pub(crate) fn expr(e: &Expr) -> String {
    let fields = [
        (e.second.as_ref(), Field::Second),
        (Some(&e.minute), Field::Minute),
        (Some(&e.hour), Field::Hour),
        (Some(&e.day_of_month), Field::DayOfMonth),
        (Some(&e.month), Field::Month),
        (Some(&e.day_of_week), Field::DayOfWeek),
        (e.year.as_ref(), Field::Year),
    ];
    let texts = fields
        .iter()
        .filter_map(|(f, kind)| f.map(|f| field(f, *kind)));
    texts.collect::<Vec<_>>().join(" ")
}

/// One field.
pub(crate) fn field(f: &FieldExpr, kind: Field) -> String {
    let items = f.items.iter().map(|i| item(*i, kind));
    items.collect::<Vec<_>>().join(",")
}

fn item(item: Item, kind: Field) -> String {
    match item {
        Item::Star { step: 1 } => "*".to_owned(),
        Item::Star { step } => format!("*/{step}"),
        Item::Question => "?".to_owned(),
        Item::Range { from, to, .. } if from == to => value(from, kind),
        Item::Range { from, to, step: 1 } => format!("{}-{}", value(from, kind), value(to, kind)),
        Item::Range { from, to, step } => {
            format!("{}-{}/{step}", value(from, kind), value(to, kind))
        }
        Item::LastDay { before: 0 } => "L".to_owned(),
        Item::LastDay { before } => format!("L-{before}"),
        Item::LastWorkday => "LW".to_owned(),
        Item::NearestWorkday(day) => format!("{day}W"),
        Item::Nth { weekday, n } => format!("{}#{n}", value(weekday.into(), kind)),
        Item::LastOf { weekday } => format!("{}L", value(weekday.into(), kind)),
    }
}

/// A value, by name where the field has names that matter.
pub(crate) fn value(v: u16, kind: Field) -> String {
    let wrapped = (v - kind.min()) % kind.size();
    match kind {
        Field::DayOfWeek => kind
            .names()
            .get(usize::from(wrapped))
            .copied()
            .unwrap_or("?")
            .to_owned(),
        Field::Month => (wrapped + kind.min()).to_string(),
        _ => v.to_string(),
    }
}
