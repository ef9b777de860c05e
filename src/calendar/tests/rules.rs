//! Warnings, bounds, jitter and previews: the answers around the times themselves.

use super::super::{WARNINGS, Wall, preview};
use super::*;
use crate::model::rule::{CivilDate, DayMatch, Dialect, DstGap};
use crate::time::Millis;

pub(super) fn refusal(spec: &RuleSpec) -> (String, &'static str, String) {
    let errors = compile(spec).unwrap_err();
    let first = errors.into_iter().next().unwrap();
    (first.pointer, first.code, first.detail)
}

#[test]
fn a_rule_without_any_occurrence_is_refused_where_the_reason_is() {
    let mut window = cron("0 9 * * *", "UTC");
    window.start_at = Some(at("2026-05-01T10:00:00Z"));
    window.end_at = Some(at("2026-05-01T12:00:00Z"));
    let mut late = cron("0 9 1 1 * ", "UTC");
    late.start_at = Some(at("2199-06-01T00:00:00Z"));
    let mut swapped = cron("0 9 * * *", "UTC");
    swapped.start_at = Some(at("2026-05-02T00:00:00Z"));
    swapped.end_at = Some(at("2026-05-01T00:00:00Z"));
    let mut gone = RuleSpec::new(When::At(at("2026-12-24T10:00:00Z")));
    gone.exclude_dates = vec![CivilDate::new(2026, 12, 24).unwrap()];
    let mut lost = cron("0 30 2 8 3 * 2026", "America/New_York");
    lost.dst_gap = DstGap::Skip;
    let mut year = cron("0 0 0 1 1 * 2000", "UTC");
    year.start_at = Some(at("2026-01-01T00:00:00Z"));
    for (spec, pointer) in [
        (cron("0 0 30 2 *", "UTC"), "/cron"),
        (cron("0 0 0 29 2 * 2026", "UTC"), "/cron"),
        (window, "/end_at"),
        (late, "/start_at"),
        (swapped, "/end_at"),
        (gone, "/exclude_dates"),
        (lost, "/dst_gap"),
        (year, "/start_at"),
    ] {
        let (at, code, _) = refusal(&spec);
        assert_eq!(
            (at.as_str(), code),
            (pointer, "no_future_occurrence"),
            "{:?}",
            spec.when
        );
    }
}

#[test]
fn a_rule_that_is_merely_over_is_accepted() {
    let rule = compiled("0 0 0 1 1 * 2000", "UTC");
    assert_eq!(rule.next(at("2026-01-01T00:00:00Z")), None);
    assert_eq!(
        rule.prev(at("2026-01-01T00:00:00Z")).unwrap().nominal,
        at("2000-01-01T00:00:00Z")
    );
}

#[test]
fn bounds_are_inclusive_on_both_sides() {
    let mut spec = cron("0 9 * * *", "UTC");
    spec.start_at = Some(at("2026-05-01T09:00:00Z"));
    spec.end_at = Some(at("2026-05-03T09:00:00Z"));
    let rule = compile(&spec).unwrap();
    assert_eq!(
        times(&rule, Timestamp::MIN, 9),
        [
            "2026-05-01T09:00:00Z",
            "2026-05-02T09:00:00Z",
            "2026-05-03T09:00:00Z"
        ]
    );
    assert_eq!(
        rule.prev(Timestamp::MAX).unwrap().nominal,
        at("2026-05-03T09:00:00Z")
    );
    assert_eq!(rule.prev(at("2026-05-01T09:00:00Z")), None);
    assert_eq!(rule.count(Timestamp::MIN, Timestamp::MAX, 2).n, 2);
    assert!(rule.count(Timestamp::MIN, Timestamp::MAX, 2).at_least);
}

#[test]
fn excluded_dates_are_local_for_every_kind_of_rule() {
    let date = vec!["2026-12-24".parse().unwrap()];
    let anchor = at("2026-12-20T04:30:00Z");
    for when in [
        When::Cron("30 23 * * *".into()),
        When::Every {
            every: Millis::hours(24),
            anchor,
        },
        When::Iso8601("R/2026-12-20T23:30:00/P1D".into()),
    ] {
        let mut spec = RuleSpec::new(when);
        spec.time_zone = Some("America/New_York".into());
        spec.exclude_dates.clone_from(&date);
        let rule = compile(&spec).unwrap();
        assert_eq!(
            times(&rule, at("2026-12-23T12:00:00Z"), 2),
            ["2026-12-24T04:30:00Z", "2026-12-26T04:30:00Z"]
        );
        let back = rule.prev(at("2026-12-26T04:30:00Z")).unwrap();
        assert_eq!(short(back.nominal), "2026-12-24T04:30:00Z");
        let (from, to) = (at("2026-12-23T12:00:00Z"), at("2026-12-27T12:00:00Z"));
        assert_eq!(rule.count(from, to, 100).n, 3);
        let gone = rule.excluded_between(from, to);
        assert_eq!(gone.len(), 1);
        assert_eq!((gone[0].date.as_str(), gone[0].count), ("2026-12-24", 1));
        assert_eq!(gone[0].from, at("2026-12-25T04:30:00Z"));
        let (fire, excluded) = rule.next_with_excluded(at("2026-12-24T12:00:00Z")).unwrap();
        assert_eq!((fire.nominal, excluded), (at("2026-12-25T04:30:00Z"), true));
    }
}

#[test]
fn excluded_occurrences_are_listed_by_date_and_counted() {
    let mut spec = cron("*/10 * * * *", "Europe/Berlin");
    spec.exclude_dates = ["2026-10-25", "2026-10-26"]
        .map(|d| d.parse().unwrap())
        .to_vec();
    let rule = compile(&spec).unwrap();
    let gone = rule.excluded_between(at("2026-10-01T00:00:00Z"), at("2026-11-01T00:00:00Z"));
    let shown: Vec<_> = gone
        .iter()
        .map(|e| format!("{} {} {} {}", e.date, e.count, short(e.from), short(e.to)))
        .collect();
    // The first has 25 hours.
    assert_eq!(
        shown,
        [
            "2026-10-25 150 2026-10-24T22:00:00Z 2026-10-25T22:50:00Z",
            "2026-10-26 144 2026-10-25T23:00:00Z 2026-10-26T22:50:00Z",
        ]
    );
}

/// Counting stops at a million steps and at a thousand dates; whoever reads the answer is told.
#[test]
fn a_bounded_answer_about_excluded_dates_says_that_there_is_more() {
    let (from, to) = (at("2026-01-01T00:00:00Z"), at("2031-01-01T00:00:00Z"));
    let days = |count: i64| {
        let day = |n| Wall((from.millis() / 1_000) + n * 86_400).to_string();
        (0..count).map(|n| day(n)[..10].parse().unwrap()).collect()
    };
    let mut daily = cron("0 9 * * *", "UTC");
    daily.exclude_dates = days(1_000);
    let whole = compile(&daily).unwrap().excluded_between(from, to);
    assert_eq!(whole.len(), 1_000);
    assert!(whole.iter().all(|e| !e.at_least && e.count == 1));
    daily.exclude_dates = days(1_001);
    let cut = compile(&daily).unwrap().excluded_between(from, to);
    assert_eq!(cut.len(), 1_000);
    assert!(cut.last().unwrap().at_least && !cut[998].at_least);

    let mut seconds = cron("* * * * * *", "UTC");
    seconds.exclude_dates = days(12);
    let cut = compile(&seconds).unwrap().excluded_between(from, to);
    assert_eq!(cut.iter().map(|e| e.count).sum::<u64>(), 1_000_000);
    assert!(cut.last().unwrap().at_least);
}

#[test]
fn named_calendars_add_their_dates() {
    let mut spec = cron("0 9 * * *", "UTC");
    spec.calendars = vec!["holidays".into()];
    let dates = |name: &str| (name == "holidays").then(|| vec!["2026-05-01".parse().unwrap()]);
    let zones = ZoneData::bundled();
    let rule = Compiled::with_calendars(&spec, &zones, WHO, &dates).unwrap();
    assert_eq!(
        times(&rule, at("2026-04-30T10:00:00Z"), 1),
        ["2026-05-02T09:00:00Z"]
    );
    spec.calendars.push("missing".into());
    let errors = Compiled::with_calendars(&spec, &zones, WHO, &dates).unwrap_err();
    assert_eq!(
        (errors[0].pointer.as_str(), errors[0].code),
        ("/calendars/1", "calendar_unknown")
    );
}

#[test]
fn jitter_is_stable_spread_and_ends_before_the_next_occurrence() {
    let mut spec = cron("*/5 * * * *", "UTC");
    spec.jitter = Millis::hours(1);
    let zones = ZoneData::bundled();
    let nominal = at("2026-05-01T12:05:00Z");
    let mut sum = 0;
    for i in 0..1_000 {
        let rule = Compiled::new(&spec, &zones, &format!("default/s{i}")).unwrap();
        let due = rule.due_at(nominal);
        assert_eq!(due, rule.due_at(nominal));
        assert!(due >= nominal && due < nominal.plus(Millis::minutes(5)));
        sum += due.since(nominal).0;
    }
    // The mean of an even spread over 300 s is 150 s.
    assert!(
        (140_000..160_000).contains(&(sum / 1_000)),
        "{}",
        sum / 1_000
    );
    // Fixed for ever: people rely on the minute their job runs at.
    spec.jitter = Millis::minutes(2);
    let rule = compile(&spec).unwrap();
    assert_eq!(rule.due_at(nominal).since(nominal), Millis(62_180));
}

#[test]
fn h_is_resolved_once_from_the_identity() {
    let zones = ZoneData::bundled();
    let shown = |text: &str, who: &str| {
        Compiled::new(&cron(text, "UTC"), &zones, who)
            .unwrap()
            .expression()
            .unwrap()
    };
    assert_eq!(
        shown("H H * * H", "default/a"),
        shown("H H * * H", "default/a")
    );
    assert_ne!(
        shown("H H * * *", "default/a"),
        shown("H H * * *", "default/b")
    );
    assert_eq!(shown("H H H H H", WHO), "58 2 23 4 WED");
    assert_eq!(shown("H/15 H(9-17) * * *", WHO), "13-59/15 11 * * *");
    let minutes: std::collections::BTreeSet<String> = (0..2_000)
        .map(|i| shown("H 0 * * *", &format!("default/s{i}")))
        .collect();
    assert_eq!(minutes.len(), 60);
}

#[test]
fn lost_times_are_recorded_once_per_clock_change() {
    let (from, to) = (at("2026-03-01T00:00:00Z"), at("2026-04-01T00:00:00Z"));
    let lost = |text: &str, gap: DstGap| {
        let mut spec = cron(text, "America/New_York");
        spec.dst_gap = gap;
        let lost = compile(&spec).unwrap().lost_between(from, to);
        lost.iter()
            .map(|l| format!("{} {}..{} {}", short(l.at), l.local, l.local_last, l.count))
            .collect::<Vec<_>>()
    };
    let none: Vec<String> = Vec::new();
    // One lost time runs at the end of the gap: nothing is lost.
    assert_eq!(lost("30 2 * * *", DstGap::RunAfter), none);
    assert_eq!(lost("30 2 * * *", DstGap::Shift), none);
    assert_eq!(
        lost("30 2 * * *", DstGap::Skip),
        ["2026-03-08T07:00:00Z 2026-03-08T02:30:00..2026-03-08T02:30:00 1"]
    );
    // Of several, the first runs; the others fall together with it.
    assert_eq!(
        lost("0,20,40 2 * * *", DstGap::RunAfter),
        ["2026-03-08T07:00:00Z 2026-03-08T02:20:00..2026-03-08T02:40:00 2"]
    );
    assert_eq!(lost("0,20,40 2 * * *", DstGap::Shift), none);
    // 03:00 is an occurrence of its own, so 02:00 has none.
    assert_eq!(
        lost("0 2,3 * * *", DstGap::Shift),
        ["2026-03-08T07:00:00Z 2026-03-08T02:00:00..2026-03-08T02:00:00 1"]
    );
    assert_eq!(
        lost("0 2,3 * * *", DstGap::RunAfter),
        lost("0 2,3 * * *", DstGap::Shift)
    );
    // A wildcard rule catches nothing up, but one for every hour keeps its rhythm.
    assert_eq!(
        lost("0 */2 * * *", DstGap::RunAfter),
        ["2026-03-08T07:00:00Z 2026-03-08T02:00:00..2026-03-08T02:00:00 1"]
    );
    assert_eq!(lost("*/5 * * * *", DstGap::RunAfter), none);
    // A whole lost day is not caught up.
    let apia = compiled("0 9 * * *", "Pacific/Apia");
    let lost = apia.lost_between(at("2011-12-01T00:00:00Z"), at("2012-01-31T00:00:00Z"));
    assert_eq!(
        (lost.len(), lost[0].local.as_str()),
        (1, "2011-12-30T09:00:00")
    );
}

#[test]
fn warnings_say_what_might_surprise() {
    let codes = |spec: &RuleSpec| -> Vec<&str> {
        warnings(&compile(spec).unwrap())
            .iter()
            .map(|w| w.code)
            .collect()
    };
    let quartz = RuleSpec {
        dialect: Dialect::Quartz,
        ..cron("0 0 12 ? * 2-6", "UTC")
    };
    let and = RuleSpec {
        day_match: Some(DayMatch::And),
        ..cron("0 9 1,15 * MON", "UTC")
    };
    for (spec, expected) in [
        (cron("0 9 * * *", "UTC"), vec![]),
        (
            RuleSpec::new(When::Cron("0 9 * * *".into())),
            vec!["no_time_zone"],
        ),
        (cron("0 9 1,15 * MON", "UTC"), vec!["day_rule_or"]),
        (cron("0 9 */2 * MON", "UTC"), vec!["day_rule_and"]),
        (and, vec![]),
        (cron("0 9 31 * *", "UTC"), vec!["short_months"]),
        (cron("0 9 29 2 *", "UTC"), vec!["short_months"]),
        (cron("0 9 31 1,3 *", "UTC"), vec![]),
        (cron("0 9 L * *", "UTC"), vec![]),
        (cron("30 2 * * *", "Europe/Berlin"), vec!["clock_change"]),
        (cron("30 4 * * *", "Europe/Berlin"), vec![]),
        (cron("*/30 2 * * *", "Europe/Berlin"), vec![]),
        (cron("*/7 * * * *", "UTC"), vec!["uneven_step"]),
        (cron("* 0 12 * * *", "UTC"), vec!["every_second"]),
        (quartz, vec!["weekday_numbers"]),
        (
            RuleSpec::new(When::AfterEnd(Millis::minutes(5))),
            vec!["depends_on_executions"],
        ),
    ] {
        let got = codes(&spec);
        assert_eq!(got, expected, "{:?}", spec.when);
        assert!(got.iter().all(|c| WARNINGS.contains(c)));
    }
    let gap = warnings(&compiled("30 2 * * *", "Europe/Berlin"));
    assert_eq!(
        gap[0].detail,
        "2026-03-29T02:30:00 does not exist in Europe/Berlin: it runs at \
         2026-03-29T03:00:00+02:00[Europe/Berlin] (dst_gap)"
    );
}

#[test]
fn intervals_keep_their_phase_and_their_bounds() {
    let anchor = at("2026-05-01T00:00:07Z");
    let spec = RuleSpec::new(When::Every {
        every: Millis::minutes(10),
        anchor,
    });
    let rule = compile(&spec).unwrap();
    assert_eq!(
        times(&rule, Timestamp::MIN, 2),
        ["2026-05-01T00:00:07Z", "2026-05-01T00:10:07Z"]
    );
    assert_eq!(times(&rule, at("2199-12-31T23:45:00Z"), 3).len(), 1);
    for (every, fits) in [(999, false), (1_000, true), (101 * 366 * 86_400_000, false)] {
        let spec = RuleSpec::new(When::Every {
            every: Millis(every),
            anchor,
        });
        assert_eq!(compile(&spec).is_ok(), fits, "{every}");
    }
    let early = RuleSpec::new(When::Every {
        every: Millis::hours(1),
        anchor: Timestamp::MIN,
    });
    assert_eq!(refusal(&early).1, "instant_out_of_range");
}

#[test]
fn after_end_follows_the_end_that_is_given() {
    let mut spec = RuleSpec::new(When::AfterEnd(Millis::minutes(5)));
    spec.start_at = Some(at("2026-05-01T00:00:00Z"));
    spec.exclude_dates = vec!["2026-05-02".parse().unwrap()];
    let rule = compile(&spec).unwrap();
    assert_eq!(
        times(&rule, at("2026-04-01T00:00:00Z"), 1),
        ["2026-05-01T00:00:00Z"]
    );
    assert_eq!(
        times(&rule, at("2026-05-01T10:00:00Z"), 1),
        ["2026-05-01T10:05:00Z"]
    );
    assert_eq!(
        times(&rule, at("2026-05-01T23:58:00Z"), 1),
        ["2026-05-03T00:00:00Z"]
    );
    assert_eq!(rule.prev(Timestamp::MAX), None);
    assert_eq!(rule.count(Timestamp::MIN, Timestamp::MAX, 9).n, 0);
}

#[test]
fn iso_repeats_count_from_the_start() {
    let rule = |text: &str, zone: Option<&str>| {
        let mut spec = RuleSpec::new(When::Iso8601(text.into()));
        spec.time_zone = zone.map(Into::into);
        compile(&spec)
    };
    let five = rule("R3/2026-01-31T09:00:00Z/P1M", None).unwrap();
    assert_eq!(
        times(&five, Timestamp::MIN, 9),
        [
            "2026-01-31T09:00:00Z",
            "2026-02-28T09:00:00Z",
            "2026-03-31T09:00:00Z"
        ]
    );
    // The offset of the start keeps the second pass of a repeated local time.
    let second = rule("R/2026-10-25T02:30:00+01:00/P1D", Some("Europe/Berlin")).unwrap();
    assert_eq!(
        times(&second, Timestamp::MIN, 2),
        ["2026-10-25T01:30:00Z", "2026-10-26T01:30:00Z"]
    );
    let mixed = rule("R2/2026-01-01T00:00:00Z/P1DT12H", None).unwrap();
    assert_eq!(
        times(&mixed, Timestamp::MIN, 9),
        ["2026-01-01T00:00:00Z", "2026-01-02T12:00:00Z"]
    );
    for text in [
        "",
        "R5",
        "R5/2026-01-31T09:00:00Z",
        "R0/2026-01-31T09:00:00Z/P1M",
        "5/2026-01-31T09:00:00Z/P1M",
        "R/2026-01-31T09:00:00Z/P0D",
        "R/2026-01-31T09:00:00Z/P",
        "R/2026-01-31T09:00:00Z/P1M1Y",
        "R/2026-01-31T09:00:00Z/P-1M",
        "R/2026-01-31T09:00:00Z/PT0.5S",
        "R/2026-01-31T09:00:00/P1M",
        "R/2026-01-31T09:00:00Z/P1M/x",
        "R/2026-01-31T09:00:00Z/P999999D",
    ] {
        assert_eq!(
            rule(text, None).unwrap_err()[0].code,
            "iso8601_syntax",
            "{text}"
        );
    }
    assert_eq!(
        rule("R/2026-02-30T09:00:00Z/P1M", None).unwrap_err()[0].code,
        "instant_syntax"
    );
}

#[test]
fn a_preview_explains_itself() {
    let spec = cron("30 2 * * *", "Europe/Berlin");
    let got = preview(
        &spec,
        &ZoneData::bundled(),
        WHO,
        at("2026-03-28T12:00:00Z"),
        2,
    )
    .unwrap();
    let shown: Vec<String> = got
        .occurrences
        .iter()
        .map(|o| format!("{} {} {}", short(o.nominal_at), o.local, o.reason.as_str()))
        .collect();
    assert_eq!(
        shown,
        [
            "2026-03-29T01:00:00Z 2026-03-29T03:00:00+02:00[Europe/Berlin] gap_end",
            "2026-03-30T00:30:00Z 2026-03-30T02:30:00+02:00[Europe/Berlin] regular",
        ]
    );
    assert_eq!(got.description, "At 02:30 (Europe/Berlin)");
    assert_eq!(got.expression.as_deref(), Some("30 2 * * *"));
    assert_eq!(got.tzdata, ZoneData::bundled().release());
    assert!(!got.exhausted);
    assert_eq!(got.zone_changes.len(), 1);
    assert_eq!(got.zone_changes[0].at, at("2026-03-29T01:00:00Z"));
    assert_eq!(got.zone_changes[0].from, "2026-03-29T02:00:00+01:00");
    assert_eq!(got.zone_changes[0].to, "2026-03-29T03:00:00+02:00");
}

#[test]
fn a_preview_is_exhausted_when_nothing_follows() {
    let zones = ZoneData::bundled();
    let after = at("2026-01-01T00:00:00Z");
    let over = preview(&cron("0 0 0 1 1 * 2000", "UTC"), &zones, WHO, after, 5).unwrap();
    assert_eq!((over.occurrences.len(), over.exhausted), (0, true));
    let once = RuleSpec::new(When::At(at("2026-05-01T12:00:00Z")));
    let once = preview(&once, &zones, WHO, after, 5).unwrap();
    assert_eq!((once.occurrences.len(), once.exhausted), (1, true));
    let mut three = cron("0 9 * * *", "UTC");
    three.max_occurrences = Some(3);
    let three = preview(&three, &zones, WHO, after, 5).unwrap();
    assert_eq!((three.occurrences.len(), three.exhausted), (3, true));
    let exact = preview(&cron("0 9 1 1 *", "UTC"), &zones, WHO, after, 1).unwrap();
    assert!(!exact.exhausted);
    let waits = RuleSpec::new(When::AfterEnd(Millis::minutes(5)));
    let waits = preview(&waits, &zones, WHO, after, 5).unwrap();
    assert_eq!((waits.occurrences.len(), waits.exhausted), (0, false));
}

#[test]
fn the_same_time_twice_is_labelled_by_pass() {
    let rule = compiled("*/30 1 * * *", "America/New_York");
    let mut at_ = at("2026-11-01T04:00:00Z");
    let mut reasons = Vec::new();
    for _ in 0..5 {
        let f = rule.next(at_).unwrap();
        reasons.push(f.reason.as_str());
        at_ = f.nominal;
    }
    assert_eq!(
        reasons,
        [
            "first_pass",
            "first_pass",
            "second_pass",
            "second_pass",
            "regular"
        ]
    );
}
