//! Misfire, pause, edit and resume by table; and a property over random rules and gaps.

use proptest::prelude::*;

use super::*;
use crate::calendar::ZoneData;
use crate::ids::{Kind, QueueNo, TenantNo};
use crate::model::policy::{MisfirePolicy, OverlapPolicy, PauseInfo, RetryPolicy, Timeouts};
use crate::model::rule::{CivilDate, DstGap, RuleSpec};
use crate::model::schedule::JobTemplate;

fn at(text: &str) -> Timestamp {
    Timestamp::parse_rfc3339(text).expect("an instant")
}

fn cron(text: &str) -> RuleSpec {
    RuleSpec::new(When::Cron(text.into()))
}

fn spec(rule: RuleSpec) -> ScheduleSpec {
    ScheduleSpec {
        description: String::new(),
        template: JobTemplate {
            kind: Kind::new("k").expect("a good kind"),
            payload: Vec::new(),
            priority: 5,
            concurrency_key: None,
            labels: std::collections::BTreeMap::new(),
            requires: std::collections::BTreeMap::new(),
            retry: RetryPolicy::default(),
            timeouts: Timeouts::default(),
        },
        rule,
        misfire: MisfirePolicy::default(),
        overlap: OverlapPolicy::default(),
        past: PastPolicy::Run,
        keep_for: Millis::days(7),
        pause_after_failures: None,
    }
}

fn compile(rule: &RuleSpec) -> Compiled {
    Compiled::new(rule, &ZoneData::bundled(), "default/s").expect("a good rule")
}

struct Bench {
    schedule: Schedule,
    status: ScheduleStatus,
    compiled: Compiled,
}

impl Bench {
    /// A schedule created at `born`, planned as an action would.
    fn new(rule: RuleSpec, born: Timestamp) -> Self {
        let compiled = compile(&rule);
        let spec = spec(rule);
        let plan = plan_put(None, &spec, &compiled, born);
        let schedule = Schedule {
            tenant: TenantNo(1),
            id: ScheduleId::new("s").expect("a good name"),
            incarnation: 9,
            generation: 1,
            revision: crate::ids::Revision::new(9, 0),
            queue: QueueNo(1),
            created_at: born,
            updated_at: born,
            spec,
        };
        Self {
            schedule,
            status: status(plan),
            compiled,
        }
    }

    fn misfire(mut self, policy: Misfire, window: Option<Millis>) -> Self {
        self.schedule.spec.misfire.policy = policy;
        self.schedule.spec.misfire.catch_up_window = window;
        self
    }

    fn fire(&self, now: Timestamp) -> Option<FireOccurrences> {
        plan_fire(&self.schedule, &self.status, &self.compiled, now, false)
    }

    /// Steps in short: `+minute` creates, `reason from..to xcount` skips.
    fn shown(&self, now: Timestamp) -> Vec<String> {
        self.fire(now)
            .map_or_else(Vec::new, |fire| show(&fire.steps))
    }
}

fn status(plan: Plan) -> ScheduleStatus {
    ScheduleStatus {
        state: ScheduleState::Active,
        cursor: plan.cursor,
        next: plan.next,
        due_key: None,
        created_count: 0,
        open: Vec::new(),
        failures_in_row: 0,
        recent: Vec::new(),
        succeeded: 0,
        dead_lettered: 0,
        cancelled: 0,
        expired: 0,
        skipped: std::collections::BTreeMap::new(),
        last_skip: None,
    }
}

fn show(steps: &[Step]) -> Vec<String> {
    let short = |t: Timestamp| t.to_rfc3339()[5..16].to_owned();
    let one = |step: &Step| match step {
        Step::Create { planned, cause } => {
            format!("+{} {}", short(planned.nominal_at), cause.as_str())
        }
        Step::Skip(s) => {
            let more = if s.at_least { "+" } else { "" };
            let local = s.local.as_deref().unwrap_or("");
            let span = format!("{}..{}", short(s.from), short(s.to));
            format!("-{span} x{}{more} {}{local}", s.count, s.reason.as_str())
        }
    };
    steps.iter().map(one).collect()
}

#[test]
fn an_occurrence_in_time_is_created_and_the_cursor_moves_to_it() {
    let bench = Bench::new(cron("0 * * * *"), at("2026-05-01T08:30:00Z"));
    assert_eq!(bench.fire(at("2026-05-01T08:59:59.999Z")), None);
    let fire = bench
        .fire(at("2026-05-01T09:00:00.010Z"))
        .expect("it is due");
    assert_eq!(show(&fire.steps), ["+05-01T09:00 due"]);
    assert_eq!(fire.seen.cursor, at("2026-05-01T08:30:00Z"));
    assert_eq!(fire.plan.cursor, at("2026-05-01T09:00:00Z"));
    assert_eq!(
        fire.plan.next.map(|n| n.nominal_at),
        Some(at("2026-05-01T10:00:00Z"))
    );
}

#[test]
fn several_due_within_the_threshold_are_created_in_order() {
    let bench = Bench::new(cron("*/10 * * * * *"), at("2026-05-01T08:00:00Z"));
    let fire = bench.fire(at("2026-05-01T08:00:35Z")).expect("it is due");
    let nominal: Vec<i64> = fire
        .steps
        .iter()
        .filter_map(|s| match s {
            Step::Create { planned, .. } => Some(planned.nominal_at.millis() / 1_000 % 60),
            Step::Skip(_) => None,
        })
        .collect();
    assert_eq!(nominal, [10, 20, 30]);
}

#[test]
fn misfire_policies_take_the_whole_gap() {
    let born = at("2026-05-01T08:30:00Z");
    let now = at("2026-05-01T12:20:00Z");
    let table: [(Misfire, Option<Millis>, &[&str]); 5] = [
        (
            Misfire::Skip,
            None,
            &["-05-01T09:00..05-01T12:00 x4 misfire"],
        ),
        (
            Misfire::FireLatest,
            None,
            &[
                "-05-01T09:00..05-01T11:00 x3 misfire",
                "+05-01T12:00 catch_up",
            ],
        ),
        (
            Misfire::FireLatest,
            Some(Millis::minutes(10)),
            &["-05-01T09:00..05-01T12:00 x4 misfire"],
        ),
        (
            Misfire::FireAll,
            Some(Millis::hours(2)),
            &[
                "-05-01T09:00..05-01T10:00 x2 misfire",
                "+05-01T11:00 catch_up",
                "+05-01T12:00 catch_up",
            ],
        ),
        (
            Misfire::FireAll,
            None,
            &[
                "+05-01T09:00 catch_up",
                "+05-01T10:00 catch_up",
                "+05-01T11:00 catch_up",
                "+05-01T12:00 catch_up",
            ],
        ),
    ];
    for (policy, window, wanted) in table {
        let bench = Bench::new(cron("0 * * * *"), born).misfire(policy, window);
        assert_eq!(bench.shown(now), wanted, "{policy:?} {window:?}");
        let fire = bench.fire(now).expect("it is due");
        assert_eq!(fire.plan.cursor, at("2026-05-01T12:00:00Z"));
        assert_eq!(
            fire.plan.next.map(|n| n.nominal_at),
            Some(at("2026-05-01T13:00:00Z"))
        );
    }
}

#[test]
fn misfire_is_judged_on_the_oldest_undecided_occurrence() {
    // The newest one is in time, the oldest is not: the policy takes both.
    let bench = Bench::new(cron("* * * * *"), at("2026-05-01T08:00:30Z"));
    assert_eq!(
        bench.shown(at("2026-05-01T08:02:01Z")),
        [
            "-05-01T08:01..05-01T08:01 x1 misfire",
            "+05-01T08:02 catch_up"
        ]
    );
    assert_eq!(
        bench.shown(at("2026-05-01T08:02:00Z")),
        ["+05-01T08:01 due", "+05-01T08:02 due"]
    );
}

#[test]
fn a_long_gap_is_counted_up_to_a_million() {
    let bench = Bench::new(cron("* * * * * *"), at("2026-01-01T00:00:00Z"));
    let shown = bench.shown(at("2026-03-01T00:00:00Z"));
    assert_eq!(shown.len(), 2);
    assert!(shown[0].contains("x1000000+ misfire"), "{shown:?}");
}

#[test]
fn a_single_late_occurrence_runs_under_fire_latest() {
    let rule = RuleSpec::new(When::At(at("2026-05-01T09:00:00Z")));
    let bench = Bench::new(rule, at("2026-05-01T08:00:00Z"));
    let fire = bench.fire(at("2026-05-03T00:00:00Z")).expect("it is due");
    assert_eq!(show(&fire.steps), ["+05-01T09:00 catch_up"]);
    assert_eq!(fire.plan.next, None);
}

#[test]
fn a_paused_tenant_leaves_skip_records() {
    let bench = Bench::new(cron("0 * * * *"), at("2026-05-01T08:30:00Z"));
    let now = at("2026-05-01T11:00:01Z");
    let fire = plan_fire(&bench.schedule, &bench.status, &bench.compiled, now, true);
    let steps = fire.map(|f| show(&f.steps)).unwrap_or_default();
    assert_eq!(steps, ["-05-01T09:00..05-01T11:00 x3 paused"]);
}

#[test]
fn excluded_dates_and_lost_wall_times_are_recorded_when_passed() {
    let mut rule = cron("30 2 * * *");
    rule.time_zone = Some("Europe/Berlin".into());
    rule.dst_gap = DstGap::Skip;
    rule.exclude_dates = vec![CivilDate::new(2026, 3, 28).expect("a date")];
    let bench = Bench::new(rule, at("2026-03-27T12:00:00Z"));
    let next = bench.status.next.expect("a next one").nominal_at;
    assert_eq!(next, at("2026-03-30T00:30:00Z"));
    assert_eq!(
        bench.shown(at("2026-03-30T00:30:01Z")),
        [
            "-03-28T01:30..03-28T01:30 x1 calendar",
            "-03-29T01:00..03-29T01:00 x1 dst_gap2026-03-29T02:30:00",
            "+03-30T00:30 due"
        ]
    );
}

#[test]
fn several_wall_times_lost_by_one_change_are_named_by_the_first_and_the_last() {
    let mut rule = cron("0,20,40 2 * * *");
    rule.time_zone = Some("Europe/Berlin".into());
    rule.dst_gap = DstGap::Skip;
    let bench = Bench::new(rule, at("2026-03-28T12:00:00Z"));
    assert_eq!(
        bench.shown(at("2026-03-30T00:00:01Z")),
        [
            "-03-29T01:00..03-29T01:00 x3 dst_gap2026-03-29T02:00:00/2026-03-29T02:40:00",
            "+03-30T00:00 due"
        ]
    );
}

/// What is joined to keep the number of records bounded still says what it stands for.
#[test]
fn records_that_are_joined_keep_their_ends_and_their_bounds() {
    let mut rule = cron("30 2 * * *");
    rule.time_zone = Some("Europe/Berlin".into());
    rule.dst_gap = DstGap::Skip;
    let bench = Bench::new(rule, at("2026-03-01T12:00:00Z")).misfire(Misfire::Skip, None);
    let steps = bench.shown(at("2050-06-01T12:00:00Z"));
    let lost: Vec<_> = steps.iter().filter(|s| s.contains("dst_gap")).collect();
    assert_eq!(lost.len(), RECORDS_MAX);
    let last = lost.last().expect("one");
    assert!(
        last.contains(" x8 dst_gap2043-03-29T02:30:00/2050-03-27T02:30:00"),
        "{last}"
    );

    let mut rule = cron("0 9 * * *");
    let dates = (2026..=2028).flat_map(|y| (1..=12).map(move |m| (y, m)));
    let days = |(y, m)| (1..=31).filter_map(move |d| CivilDate::new(y, m, d));
    rule.exclude_dates = dates.flat_map(days).collect();
    let bench = Bench::new(rule, at("2025-12-31T12:00:00Z"));
    let fire = bench.fire(at("2029-01-01T09:00:01Z")).expect("it is due");
    let calendar: Vec<_> = show(&fire.steps);
    let last = calendar.iter().rfind(|s| s.contains("calendar"));
    // A thousand dates are looked at; there are more.
    let last = last.expect("one");
    assert!(
        last.contains(&format!(" x{}+ calendar", 1_000 - RECORDS_MAX + 1)),
        "{last}"
    );
}

#[test]
fn a_one_time_instant_in_the_past_runs_once_and_is_not_late() {
    let rule = RuleSpec::new(When::At(at("2026-05-01T09:00:00Z")));
    let now = at("2026-06-01T00:00:00Z");
    let bench = Bench::new(rule.clone(), now).misfire(Misfire::Skip, None);
    assert_eq!(bench.shown(now), ["+05-01T09:00 due"]);
    // The same definition put again after it ran: it is decided.
    let mut ran = bench.status.clone();
    ran.cursor = at("2026-05-01T09:00:00Z");
    ran.next = None;
    let plan = plan_put(Some(&ran), &bench.schedule.spec, &bench.compiled, now);
    assert_eq!(plan.next, None);
    let mut strict = spec(rule);
    strict.past = PastPolicy::Reject;
    assert_eq!(plan_put(None, &strict, &bench.compiled, now).next, None);
}

#[test]
fn an_edit_keeps_an_occurrence_whose_jittered_due_time_lies_ahead() {
    let mut rule = cron("0 * * * *");
    rule.jitter = Millis::minutes(30);
    let mut bench = Bench::new(rule, at("2026-05-01T08:30:00Z"));
    let next = Planned {
        nominal_at: at("2026-05-01T09:00:00Z"),
        due_at: at("2026-05-01T09:20:00Z"),
    };
    bench.status.next = Some(next);
    let daily = compile(&cron("0 0 * * *"));
    let edit = |now| plan_put(Some(&bench.status), &bench.schedule.spec, &daily, now);
    let during = edit(at("2026-05-01T09:10:00Z"));
    assert_eq!(
        (during.cursor, during.next),
        (bench.status.cursor, Some(next))
    );
    let before = edit(at("2026-05-01T08:50:00Z"));
    assert_eq!(
        before.next.map(|n| n.nominal_at),
        Some(at("2026-05-02T00:00:00Z"))
    );
}

#[test]
fn an_edit_never_moves_the_cursor_back() {
    let bench = Bench::new(cron("0 * * * *"), at("2026-05-01T08:30:00Z"));
    let mut status = bench.status.clone();
    status.cursor = at("2026-05-01T09:00:00Z");
    status.next = None;
    let now = at("2026-05-01T08:59:00Z");
    let plan = plan_put(Some(&status), &bench.schedule.spec, &bench.compiled, now);
    assert_eq!(plan.cursor, status.cursor);
    assert_eq!(
        plan.next.map(|n| n.nominal_at),
        Some(at("2026-05-01T10:00:00Z"))
    );
}

#[test]
fn a_resume_catches_up_only_what_is_asked_for() {
    let bench = Bench::new(cron("0 * * * *"), at("2026-05-01T08:30:00Z"));
    let mut status = bench.status.clone();
    status.next = None;
    status.state = ScheduleState::Paused(PauseInfo {
        by: "ops".into(),
        reason: None,
        since: at("2026-05-01T08:31:00Z"),
        until: None,
    });
    let now = at("2026-05-01T12:30:00Z");
    let resume = |catch_up| plan_resume(&status, &bench.compiled, now, catch_up);
    let table: [(CatchUp, &[&str]); 4] = [
        (CatchUp::None, &["-05-01T09:00..05-01T12:00 x4 paused"]),
        (
            CatchUp::Latest,
            &[
                "-05-01T09:00..05-01T11:00 x3 paused",
                "+05-01T12:00 catch_up",
            ],
        ),
        (
            CatchUp::All(2),
            &[
                "-05-01T09:00..05-01T10:00 x2 paused",
                "+05-01T11:00 catch_up",
                "+05-01T12:00 catch_up",
            ],
        ),
        (
            CatchUp::All(100),
            &[
                "+05-01T09:00 catch_up",
                "+05-01T10:00 catch_up",
                "+05-01T11:00 catch_up",
                "+05-01T12:00 catch_up",
            ],
        ),
    ];
    for (catch_up, wanted) in table {
        let decision = resume(catch_up);
        assert_eq!(show(&decision.steps), wanted, "{catch_up:?}");
        let next = decision.plan.next.map(|n| n.nominal_at);
        assert_eq!(next, Some(at("2026-05-01T13:00:00Z")));
    }
    assert_eq!(resume(CatchUp::All(2)).create_count(), 2);
    let short = plan_resume(
        &status,
        &bench.compiled,
        at("2026-05-01T08:40:00Z"),
        CatchUp::None,
    );
    assert_eq!(show(&short.steps), Vec::<String>::new());
    assert_eq!(
        short.plan.next.map(|n| n.nominal_at),
        Some(at("2026-05-01T09:00:00Z"))
    );
}

proptest! {
    /// Walks a schedule through random looks at the clock: each nominal time is decided once, in order, none is lost.
    #[test]
    fn every_nominal_time_is_decided_exactly_once(
        every in 1_u64..600,
        jitter in 0_u64..300,
        policy in prop_oneof![
            Just(Misfire::Skip), Just(Misfire::FireLatest), Just(Misfire::FireAll)
        ],
        looks in proptest::collection::vec(1_u64..4_000, 1..40),
    ) {
        let born = at("2026-05-01T08:00:00Z");
        let mut rule = RuleSpec::new(When::Every { every: Millis::secs(every), anchor: born });
        rule.jitter = Millis::secs(jitter);
        let mut bench = Bench::new(rule, born).misfire(policy, None);
        let mut now = born;
        let mut decided = 0;
        for look in looks {
            now = now.plus(Millis::secs(look));
            while let Some(fire) = bench.fire(now) {
                prop_assert!(fire.steps.len() <= STEPS_MAX);
                prop_assert!(fire.plan.cursor > bench.status.cursor);
                let mut last = bench.status.cursor;
                for step in &fire.steps {
                    match step {
                        Step::Create { planned, .. } => {
                            prop_assert!(planned.nominal_at > last);
                            last = planned.nominal_at;
                            decided += 1;
                        }
                        Step::Skip(record) => {
                            prop_assert!(record.from > last && record.to >= record.from);
                            last = record.to;
                            decided += record.count;
                        }
                    }
                }
                prop_assert_eq!(last, fire.plan.cursor);
                bench.status.cursor = fire.plan.cursor;
                bench.status.next = fire.plan.next;
            }
            let cursor = bench.status.cursor;
            let all = bench.compiled.count(born.plus(Millis(1)), cursor.plus(Millis(1)), 1 << 40);
            prop_assert_eq!(decided, all.n);
            let next = bench.status.next.expect("an interval has no end");
            prop_assert!(next.due_at > now);
        }
    }
}
