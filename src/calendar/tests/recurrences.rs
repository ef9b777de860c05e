//! RFC 5545 recurrences beyond the cases of `tests/fixtures/calendar/recurrences.jsonl`.

use proptest::prelude::*;

use super::*;
use crate::time::Millis;

fn rrule(text: &str, zone: Option<&str>) -> Result<Compiled, Vec<RuleError>> {
    let mut spec = RuleSpec::new(When::Rrule(text.into()));
    spec.time_zone = zone.map(Into::into);
    compile(&spec)
}

fn all(text: &str) -> Vec<String> {
    times(&rrule(text, None).unwrap(), Timestamp::MIN, 20)
}

#[test]
fn extra_and_removed_dates_are_local_and_count_nothing() {
    assert_eq!(
        all("DTSTART;TZID=America/New_York:20260301T090000\n\
             RRULE:FREQ=WEEKLY;COUNT=3\n\
             EXDATE;TZID=America/New_York:20260308T090000\n\
             RDATE;TZID=America/New_York:20260310T120000,20260301T090000"),
        [
            "2026-03-01T14:00:00Z",
            "2026-03-10T16:00:00Z",
            "2026-03-15T13:00:00Z"
        ]
    );
}

#[test]
fn folded_lines_bare_rules_and_lower_case_are_read() {
    let folded = "dtstart:20260101T000000Z\r\nrrule:freq=daily;\r\n count=2\r\n";
    assert_eq!(
        all(folded),
        ["2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"]
    );
    let mut bare = RuleSpec::new(When::Rrule("FREQ=MONTHLY;BYDAY=-1FR".into()));
    bare.start_at = Some(at("2026-01-01T09:00:00Z"));
    bare.time_zone = Some("Europe/Berlin".into());
    let rule = compile(&bare).unwrap();
    assert_eq!(times(&rule, Timestamp::MIN, 1), ["2026-01-30T09:00:00Z"]);
    assert_eq!(
        rule.local(at("2026-01-30T09:00:00Z")),
        "2026-01-30T10:00:00+01:00[Europe/Berlin]"
    );
}

#[test]
fn a_week_number_alone_keeps_the_weekday_of_the_start() {
    assert_eq!(
        all("DTSTART:20260101T090000Z\nRRULE:FREQ=YEARLY;BYWEEKNO=20;COUNT=2"),
        ["2026-05-14T09:00:00Z", "2027-05-20T09:00:00Z"]
    );
}

#[test]
fn plain_and_numbered_weekdays_add_up() {
    assert_eq!(
        all(
            "DTSTART:20260801T090000Z\nRRULE:FREQ=MONTHLY;BYMONTH=8;BYDAY=-1FR,WE;UNTIL=20260831T235959Z"
        ),
        [5, 12, 19, 26, 28].map(|d| format!("2026-08-{d:02}T09:00:00Z"))
    );
}

#[test]
fn a_removed_local_time_moves_on_and_a_repeated_one_is_the_first() {
    let text = "DTSTART;TZID=America/New_York:20260307T023000\nRRULE:FREQ=DAILY;COUNT=2";
    let rule = rrule(text, None).unwrap();
    let second = rule.next(at("2026-03-08T00:00:00Z")).unwrap();
    assert_eq!(
        (short(second.nominal), second.reason.as_str()),
        ("2026-03-08T07:30:00Z".into(), "shifted")
    );
    let text = "DTSTART;TZID=America/New_York:20261101T013000\nRRULE:FREQ=DAILY;COUNT=2";
    assert_eq!(all(text), ["2026-11-01T05:30:00Z", "2026-11-02T06:30:00Z"]);
    // An hour that is read twice is one occurrence.
    let text = "DTSTART;TZID=America/New_York:20260308T010000\nRRULE:FREQ=HOURLY;COUNT=4";
    assert_eq!(
        all(text),
        [
            "2026-03-08T06:00:00Z",
            "2026-03-08T07:00:00Z",
            "2026-03-08T08:00:00Z"
        ]
    );
}

#[test]
fn what_the_standard_forbids_is_refused() {
    for (rule, part) in [
        ("FREQ=FORTNIGHTLY", "FREQ is one of"),
        ("INTERVAL=2", "no FREQ"),
        ("FREQ=DAILY;INTERVAL=0", "INTERVAL"),
        ("FREQ=DAILY;COUNT=0", "COUNT"),
        (
            "FREQ=DAILY;COUNT=2;UNTIL=20260101T000000Z",
            "exclude each other",
        ),
        ("FREQ=DAILY;UNTIL=20260101", "UNTIL needs a time"),
        ("FREQ=DAILY;FREQ=DAILY", "given twice"),
        ("FREQ=DAILY;BYWEEKNO=1", "BYWEEKNO"),
        ("FREQ=MONTHLY;BYYEARDAY=1", "BYYEARDAY"),
        ("FREQ=WEEKLY;BYMONTHDAY=1", "BYMONTHDAY"),
        ("FREQ=WEEKLY;BYDAY=2FR", "numbered BYDAY"),
        ("FREQ=YEARLY;BYWEEKNO=2;BYDAY=2FR", "numbered BYDAY"),
        ("FREQ=MONTHLY;BYSETPOS=1", "BYSETPOS needs"),
        ("FREQ=MONTHLY;BYDAY=XX", "a weekday is one of"),
        ("FREQ=MONTHLY;BYDAY=0FR", "BYDAY"),
        ("FREQ=MONTHLY;BYMONTHDAY=32", "BYMONTHDAY"),
        ("FREQ=DAILY;BYHOUR=24", "BYHOUR"),
        ("FREQ=DAILY;X=1", "X is no part"),
        ("FREQ=DAILY;", "NAME=value"),
    ] {
        let errors = rrule(&format!("DTSTART:20260101T000000Z\nRRULE:{rule}"), None).unwrap_err();
        assert_eq!(
            (errors[0].pointer.as_str(), errors[0].code),
            ("/rrule", "rrule_syntax"),
            "{rule}"
        );
        assert!(
            errors[0].detail.contains(part),
            "{rule}: {}",
            errors[0].detail
        );
    }
    for (text, code) in [
        ("", "rrule_syntax"),
        ("RRULE:FREQ=DAILY", "rrule_syntax"),
        ("DTSTART:20260101T000000\nRRULE:FREQ=DAILY", "rrule_syntax"),
        ("DTSTART:20260230T000000Z\nRRULE:FREQ=DAILY", "rrule_syntax"),
        ("DTSTART:20260101T000000Z", "rrule_syntax"),
        (
            "DTSTART:20260101T000000Z\nRRULE:FREQ=DAILY\nRRULE:FREQ=DAILY",
            "rrule_syntax",
        ),
        (
            "DTSTART;TZID=Mars/Base:20260101T000000\nRRULE:FREQ=DAILY",
            "time_zone_unknown",
        ),
        ("BEGIN:VEVENT\nRRULE:FREQ=DAILY", "rrule_syntax"),
    ] {
        assert_eq!(rrule(text, None).unwrap_err()[0].code, code, "{text}");
    }
    let text = "DTSTART;TZID=Europe/Berlin:20260101T000000\nRRULE:FREQ=DAILY";
    assert_eq!(
        rrule(text, Some("Europe/Rome")).unwrap_err()[0].code,
        "time_zone_conflict"
    );
    assert!(rrule(&"x".repeat(10_000), None).is_err());
}

#[test]
fn impossible_recurrences_are_refused_at_once() {
    for rule in [
        "FREQ=YEARLY;BYMONTH=2;BYMONTHDAY=30",
        "FREQ=DAILY;BYMONTH=2;BYMONTHDAY=30",
        "FREQ=SECONDLY;INTERVAL=2;BYSECOND=1",
        "FREQ=HOURLY;INTERVAL=24;BYHOUR=5",
        "FREQ=MINUTELY;BYMONTH=2;BYMONTHDAY=30",
        "FREQ=WEEKLY;BYMONTH=1;BYDAY=MO;BYSETPOS=2",
        "FREQ=SECONDLY;INTERVAL=2;BYSECOND=1;COUNT=10000",
    ] {
        let errors = rrule(&format!("DTSTART:20260101T000000Z\nRRULE:{rule}"), None).unwrap_err();
        assert_eq!(errors[0].code, "no_future_occurrence", "{rule}");
    }
}

proptest! {
    #[test]
    fn no_text_panics(text in prop_oneof!["\\PC{0,80}", "(DTSTART|RRULE|RDATE|FREQ|[=:;,A-Z0-9\n-]){0,30}"]) {
        let _ = rrule(&text, Some("Europe/Berlin"));
    }

    #[test]
    fn next_and_prev_agree(
        freq in prop::sample::select(&["YEARLY", "MONTHLY", "WEEKLY", "DAILY", "HOURLY", "MINUTELY"][..]),
        interval in 1..40,
        part in prop::sample::select(&[
            "", ";BYDAY=MO,FR", ";BYMONTH=3,10", ";BYHOUR=2,3;BYMINUTE=30", ";BYMONTH=3;BYDAY=SU",
            ";BYMINUTE=0,20,40", ";COUNT=9", ";UNTIL=20300101T000000Z",
        ][..]),
        zone in prop::sample::select(&["Europe/Berlin", "America/New_York", "Australia/Lord_Howe"][..]),
        after in 1_700_000_000_000i64..1_900_000_000_000,
    ) {
        let text = format!("DTSTART;TZID={zone}:20240229T023000\nRRULE:FREQ={freq};INTERVAL={interval}{part}");
        if let Ok(rule) = rrule(&text, None) {
            let mut at = Timestamp::from_millis(after);
            let from = at.plus(Millis(1));
            let mut walked = 0;
            while let Some(f) = rule.next(at).filter(|_| walked < 12) {
                prop_assert!(f.nominal > at);
                prop_assert_eq!(rule.prev(f.nominal.plus(Millis(1))), Some(f));
                prop_assert!(rule.prev(f.nominal).is_none_or(|p| p.nominal <= at), "{}", text);
                at = f.nominal;
                walked += 1;
            }
            prop_assert_eq!(rule.count(from, at.plus(Millis(1)), 100).n, walked);
        }
    }
}
