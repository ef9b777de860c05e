//! Checks every example in the tables of `docs/cron.md`.

use super::*;
use crate::model::rule::{DayMatch, Dialect, DstGap, DstOverlap};

/// The rows of the table that begins with the given header cells, code marks taken off.
fn table(header: &[&str]) -> Vec<Vec<String>> {
    let text = include_str!("../../../docs/cron.md");
    let cells = |line: &str| -> Vec<String> {
        let inner = line.trim().trim_start_matches('|').trim_end_matches('|');
        inner
            .split('|')
            .map(|c| c.trim().trim_matches('`').to_owned())
            .collect()
    };
    let mut lines = text.lines().skip_while(|l| cells(l) != header);
    assert!(
        lines.next().is_some(),
        "docs/cron.md has no table {header:?}"
    );
    let rows: Vec<_> = lines
        .skip(1)
        .take_while(|l| l.starts_with('|'))
        .map(cells)
        .collect();
    assert!(rows.len() > 3 && rows.iter().all(|r| r.len() == header.len()));
    rows
}

#[test]
fn expressions_read_as_the_page_says() {
    for row in table(&["expression", "reads as"]) {
        assert_eq!(
            compiled(&row[0], "UTC").describe(),
            format!("{} (UTC)", row[1]),
            "{}",
            row[0]
        );
    }
}

#[test]
fn day_fields_combine_as_the_page_says() {
    for row in table(&["expression", "day_match", "after", "next three"]) {
        let mut spec = cron(&row[0], "UTC");
        spec.day_match = match row[1].as_str() {
            "" => None,
            "and" => Some(DayMatch::And),
            other => panic!("{other}"),
        };
        let got = times(&compile(&spec).unwrap(), at(&row[2]), 3);
        let days: Vec<&str> = got.iter().map(|t| &t[..10]).collect();
        assert_eq!(days.join(" "), row[3], "{}", row[0]);
    }
}

#[test]
fn dialects_read_as_the_page_says() {
    for row in table(&["expression", "dialect", "understood as"]) {
        let mut spec = cron(&row[0], "UTC");
        spec.dialect = match row[1].as_str() {
            "unix" => Dialect::Unix,
            "quartz" => Dialect::Quartz,
            "eventbridge" => Dialect::EventBridge,
            other => panic!("{other}"),
        };
        assert_eq!(
            compile(&spec).unwrap().expression().unwrap(),
            row[2],
            "{}",
            row[0]
        );
    }
}

#[test]
fn refusals_carry_the_code_of_the_page() {
    for row in table(&["expression", "code"]) {
        let spec = RuleSpec::new(When::Cron(row[0].clone()));
        let errors = compile(&spec).expect_err(&row[0]);
        assert_eq!(errors[0].code, row[1], "{}", row[0]);
    }
}

#[test]
fn clock_changes_go_as_the_page_says() {
    for row in table(&["rule", "zone", "setting", "from", "to", "fires"]) {
        let mut spec = cron(&row[0], &row[1]);
        match row[2].as_str() {
            "" => {}
            "dst_gap=shift" => spec.dst_gap = DstGap::Shift,
            "dst_gap=skip" => spec.dst_gap = DstGap::Skip,
            "dst_overlap=second" => spec.dst_overlap = DstOverlap::Second,
            "dst_overlap=both" => spec.dst_overlap = DstOverlap::Both,
            other => panic!("{other}"),
        }
        let rule = compile(&spec).unwrap();
        let first = rule.next(at(&row[3]).minus(crate::time::Millis(1)));
        let fires = std::iter::successors(first, |f| rule.next(f.nominal));
        let shown: Vec<String> = fires
            .take_while(|f| f.nominal < at(&row[4]))
            .map(|f| {
                let (utc, local) = (short(f.nominal), rule.local(f.nominal));
                format!("{} ({} local)", &utc[11..16], &local[11..16])
            })
            .collect();
        let shown = if shown.is_empty() {
            "none".to_owned()
        } else {
            shown.join(" ")
        };
        assert_eq!(shown, row[5], "{row:?}");
    }
}
