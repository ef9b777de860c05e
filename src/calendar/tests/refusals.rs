//! Refusals: what they say, and that nothing wrong goes unsaid.

use super::rules::refusal;
use super::*;
use crate::time::Millis;

/// Expression, code, detail.
const REFUSALS: [(&str, &str, &str); 15] = [
    (
        "60 * * * *",
        "cron_out_of_range",
        "minute: \"60\" at character 1: out of range: minute runs from 0 to 59",
    ),
    (
        "0 9 * * MON,8",
        "cron_out_of_range",
        "day of week: \"8\" at character 13: out of range: day of week runs from 0 to 7",
    ),
    (
        "*/61 * * * *",
        "cron_step_too_large",
        "minute: \"*/61\" at character 1: the step is larger than the field, which has 60 \
         values: write one value instead, or use an interval (every)",
    ),
    (
        "30-10 * * * *",
        "cron_syntax",
        "minute: \"30-10\" at character 1: the range runs backwards: write 30-59,0-10",
    ),
    (
        "0 0 * * 5-0",
        "cron_syntax",
        "day of week: \"5-0\" at character 9: the range runs backwards: write FRI-SUN",
    ),
    (
        "0 0 * * monday",
        "cron_syntax",
        "day of week: \"monday\" at character 9: names have three letters: write MON",
    ),
    (
        "0 mon * * *",
        "cron_syntax",
        "hour: \"mon\" at character 3: this field takes numbers, no names",
    ),
    (
        "0 9 * *",
        "cron_field_count",
        "4 fields, expected five (minute hour day-of-month month day-of-week), six (a second \
         in front) or seven (a year behind as well)",
    ),
    (
        "45 12 * * TUE,THU *",
        "cron_syntax",
        "month: \"TUE\" at character 11: no such name: write one of JAN FEB MAR APR MAY JUN \
         JUL AUG SEP OCT NOV DEC (six fields: the first is the second)",
    ),
    (
        "0 9 * * 1\u{2013}5",
        "cron_character",
        "character 10: U+2013 is a dash that is not -: write -",
    ),
    (
        "0\u{a0}9 * * *",
        "cron_character",
        "character 2: U+00A0 is a blank that is not a plain one: write a plain blank",
    ),
    (
        "0 0 12 ? * 2-6",
        "dialect_ambiguous",
        "day of week: \"2-6\" at character 12 stands beside ?, where Quartz counts from 1 = \
         Sunday and Unix from 1 = Monday: name the dialect or write MON",
    ),
    (
        "cron(0 10 * * ? *)",
        "dialect_ambiguous",
        "cron(…) is EventBridge notation, which counts weekdays from 1 = Sunday: name the \
         dialect (eventbridge) or write five plain fields",
    ),
    (
        "@fortnightly",
        "cron_syntax",
        "@fortnightly is no alias: write one of @hourly, @daily, @midnight, @weekly, \
         @monthly, @yearly, @annually",
    ),
    (
        "0 0 * * L",
        "cron_syntax",
        "day of week: \"L\" at character 9: L needs a weekday here: write SATL or 6L",
    ),
];

#[test]
fn a_refusal_names_the_field_the_character_and_the_fix() {
    for (text, code, detail) in REFUSALS {
        let (pointer, got_code, got) = refusal(&cron(text, "UTC"));
        assert_eq!(
            (pointer.as_str(), got_code, got.as_str()),
            ("/cron", code, detail),
            "{text}"
        );
    }
}

#[test]
fn everything_wrong_is_reported_at_once() {
    let mut spec = cron("60 24 32 13 8", "Europe/Berlinn");
    spec.jitter = Millis::days(8);
    spec.max_occurrences = Some(0);
    let errors = compile(&spec).unwrap_err();
    let pointers: Vec<&str> = errors.iter().map(|e| e.pointer.as_str()).collect();
    assert_eq!(
        pointers,
        [
            "/jitter",
            "/max_occurrences",
            "/time_zone",
            "/cron",
            "/cron",
            "/cron",
            "/cron",
            "/cron"
        ]
    );
    assert!(
        errors[2].detail.ends_with("did you mean Europe/Berlin?"),
        "{}",
        errors[2].detail
    );
}

#[test]
fn a_zone_prefix_may_agree_but_not_conflict() {
    let alone = compile(&RuleSpec::new(When::Cron(
        "CRON_TZ=Europe/Rome 0 9 * * *".into(),
    )))
    .unwrap();
    assert_eq!(alone.time_zone(), "Europe/Rome");
    assert!(!warnings(&alone).iter().any(|w| w.code == "no_time_zone"));
    // An alias of the same zone agrees.
    let same = compiled("TZ=Europe/Kiev 0 9 * * *", "Europe/Kyiv");
    assert_eq!(same.time_zone(), "Europe/Kyiv");
    let (pointer, code, _) = refusal(&cron("TZ=Europe/Rome 0 9 * * *", "Europe/Kyiv"));
    assert_eq!((pointer.as_str(), code), ("/cron", "time_zone_conflict"));
    let (_, code, _) = refusal(&RuleSpec::new(When::Cron("TZ=Bogus/Zone 0 9 * * *".into())));
    assert_eq!(code, "time_zone_unknown");
}
