//! What becomes due: when, in what order, how often.

use super::*;
use crate::command::admin::{AdminCommand, PauseScope, PutKey, PutTenant, SetPause};
use crate::command::schedules::PauseSchedule;
use crate::leader::testing::START;
use crate::model::policy::{Overlap, PauseInfo};
use crate::model::rule::When;
use crate::model::schedule::{ScheduleState, ScheduleStatus, SkipReason};
use crate::model::tenant::TenantSpec;

/// Lateness of the first grants after `due`, in milliseconds, sorted.
fn lateness(cluster: &Cluster, due: Timestamp) -> Vec<u64> {
    let mut late: Vec<u64> =
        cluster.witness(|w| w.granted.iter().map(|(_, at)| at.since(due).0).collect());
    late.sort_unstable();
    late
}

/// Workers that claim and complete until told to stop.
fn start_workers(leader: &Arc<Leader>, count: usize, batch: u32) {
    for n in 0..count {
        let leader = Arc::clone(leader);
        tokio::runtime::Handle::current().spawn(async move {
            let name = worker(&format!("w{n}"));
            let mut claim = a_claim(&name, "work", batch, Millis::secs(20));
            loop {
                let Ok(claimed) = leader.claim(claim.clone()).await else {
                    return;
                };
                claim.reports = claimed.leases.iter().map(complete).collect();
            }
        });
    }
}

/// Puts a schedule, which is answered.
async fn put(leader: &Arc<Leader>, cluster: &Cluster, name: &str, spec: ScheduleSpec) -> Outcome {
    let outcome = put_schedule(leader, cluster, name, spec).await;
    outcome.expect("an answer")
}

/// Where a schedule stands; `None`: there is none.
fn status_of(cluster: &Cluster, name: &str) -> Option<ScheduleStatus> {
    let id = ScheduleId::new(name).expect("a good name");
    let found = cluster.replica().read().schedule(TenantNo::DEFAULT, &id);
    found.expect("readable").map(|(_, status)| status)
}

/// Leases of up to `max` executions, for worker `w`.
async fn claim(leader: &Arc<Leader>, max: u32) -> Vec<Granted> {
    let claim = a_claim(&worker("w"), "work", max, Millis::secs(1));
    leader.claim(claim).await.expect("an answer").leases
}

#[tokio::test(start_paused = true)]
async fn a_quiet_execution_is_leased_within_a_few_milliseconds_of_its_time() {
    let cluster = Cluster::one(20).await;
    let leader = cluster.leader().await;
    start_workers(&leader, 4, 1);
    for n in 1..50_u64 {
        let due = leader.now().plus(Millis(137 * n));
        let from = cluster.witness(|w| w.granted.len());
        submit(&leader, "work", due, 1).await;
        cluster.pass(137 * n + 100).await;
        let (_, at) = cluster.witness(|w| w.granted[from].clone());
        assert!(at >= due, "never early");
        assert!(at.since(due).0 <= 30, "{} ms late", at.since(due).0);
    }
    cluster.check();
}

#[tokio::test(start_paused = true)]
async fn twenty_thousand_due_at_one_instant_are_leased_within_two_seconds() {
    let cluster = Cluster::one(21).await;
    let leader = cluster.leader().await;
    let due = START.plus(Millis::minutes(2));
    submit(&leader, "work", due, 20_000).await;
    start_workers(&leader, 16, 50);
    cluster.pass(125_000).await;
    let late = lateness(&cluster, due);
    assert_eq!(late.len(), 20_000);
    assert!(late[19_000] <= 2_000, "p95 is {} ms", late[19_000]);
    assert!(cluster.witness(|w| w.entry_max) <= 1 << 20);
    cluster.check();
}

#[tokio::test(start_paused = true)]
async fn a_hundred_thousand_due_at_one_instant_take_bounded_memory_and_delay_nobody() {
    let cluster = Cluster::one(22).await;
    let leader = cluster.leader().await;
    let tenant = PutTenant {
        tenant: TenantId::new("small").expect("a good name"),
        spec: TenantSpec::default(),
        expect: Expect::Any,
    };
    let put = envelope(Command::Admin(AdminCommand::PutTenant(tenant)));
    leader.submit(vec![put]).await.expect("an answer");
    let due = START.plus(Millis::minutes(3));
    submit(&leader, "work", due, 100_000).await;
    let mut small = Vec::new();
    for _ in 0..10 {
        let mut one = submission(&queue("work"), due, template());
        if let Command::Execution(ExecutionCommand::Submit(submit)) = &mut one.command {
            submit.tenant = TenantId::new("small").expect("a good name");
        }
        small.push(one);
    }
    leader.submit(small).await.expect("an answer");
    start_workers(&leader, 16, 100);
    let mut most: f64 = 0.0;
    let mut small_done = None;
    for step in 0..1_900_u64 {
        cluster.pass(100).await;
        most = most.max(value(&leader, "leader_due_entries"));
        let tenants = cluster.witness(|w| {
            w.granted
                .iter()
                .filter(|(id, _)| id.minted_tenant() != Some(TenantNo::DEFAULT))
                .count()
        });
        if tenants == 10 && small_done.is_none() {
            small_done = Some(step * 100);
        }
    }
    assert!(most <= 50_010.0, "{most} entries held");
    let small_done = small_done.expect("the small tenant is served");
    assert!(small_done <= 181_000, "{small_done}");
    assert_eq!(lateness(&cluster, due).len(), 100_010);
    cluster.check();
}

#[tokio::test(start_paused = true)]
async fn a_schedule_fires_on_time_and_never_drifts() {
    let cluster = Cluster::one(23).await;
    let leader = cluster.leader().await;
    start_workers(&leader, 2, 5);
    let rule = RuleSpec::new(When::Cron("*/10 * * * * *".into()));
    let outcome = put_schedule(&leader, &cluster, "tick", schedule_spec(rule)).await;
    assert!(
        matches!(outcome, Ok(Outcome::Schedule { .. })),
        "{outcome:?}"
    );
    cluster.pass(600_000).await;
    let nominal: Vec<Timestamp> =
        cluster.witness(|w| w.created.keys().map(|(_, _, at)| *at).collect());
    assert!(nominal.len() >= 59, "{}", nominal.len());
    for pair in nominal.windows(2) {
        assert_eq!(pair[1].since(pair[0]), Millis::secs(10));
    }
    let granted = cluster.witness(|w| w.granted.clone());
    for ((_, at), nominal) in granted.iter().zip(&nominal) {
        assert!(
            at.since(*nominal).0 <= 50,
            "{} ms late",
            at.since(*nominal).0
        );
    }
    cluster.check();
}

#[tokio::test(start_paused = true)]
async fn ten_thousand_schedules_of_one_minute_fire_within_it() {
    let cluster = Cluster::one(24).await;
    let leader = cluster.leader().await;
    start_workers(&leader, 16, 50);
    let mut commands = Vec::new();
    for n in 0..10_000 {
        let name = format!("s{n}");
        let spec = schedule_spec(RuleSpec::new(When::Cron("* * * * *".into())));
        let compiled = compiled(&spec.rule, &name);
        let put = PutSchedule {
            tenant: TenantId::default_tenant(),
            id: ScheduleId::new(&name).expect("a good name"),
            queue: queue("work"),
            plan: planner::plan_put(None, &spec, &compiled, leader.now()),
            spec,
            seen: None,
            expect: Expect::Any,
            dropped: Vec::new(),
        };
        commands.push(envelope(Command::Schedule(ScheduleCommand::Put(Box::new(
            put,
        )))));
    }
    leader.submit(commands).await.expect("an answer");
    cluster.pass(185_000).await;
    let (created, granted) = cluster.witness(|w| (w.created.len(), w.granted.len()));
    assert_eq!((created, granted), (30_000, 30_000));
    let mut late: Vec<u64> = cluster.witness(|w| {
        w.granted
            .iter()
            .map(|(_, at)| at.millis() as u64 % 60_000)
            .collect()
    });
    late.sort_unstable();
    assert!(late[28_500] <= 5_000, "p95 is {} ms", late[28_500]);
    cluster.check();
}

#[tokio::test(start_paused = true)]
async fn overlap_skip_records_the_blocker_and_fires_again_when_it_is_done() {
    let cluster = Cluster::one(25).await;
    let leader = cluster.leader().await;
    let mut spec = schedule_spec(RuleSpec::new(When::Cron("*/10 * * * * *".into())));
    spec.overlap.policy = Overlap::Skip;
    put(&leader, &cluster, "tick", spec).await;
    cluster.pass(35_000).await;
    let status = || status_of(&cluster, "tick").expect("it exists");
    let blocked = status();
    assert_eq!(blocked.created_count, 1);
    assert!(blocked.skipped[&SkipReason::Overlap] >= 2);
    let record = blocked.last_skip.expect("a record").record;
    assert_eq!(record.blocker, blocked.open.first().cloned());
    start_workers(&leader, 1, 1);
    cluster.pass(30_000).await;
    assert!(status().created_count >= 3);
    cluster.check();
}

#[tokio::test(start_paused = true)]
async fn a_timed_pause_of_a_schedule_ends_by_itself_and_catches_nothing_up() {
    let cluster = Cluster::one(26).await;
    let leader = cluster.leader().await;
    let rule = RuleSpec::new(When::Cron("*/10 * * * * *".into()));
    put(&leader, &cluster, "tick", schedule_spec(rule)).await;
    let id = ScheduleId::new("tick").expect("a good name");
    let pause = PauseSchedule {
        tenant: TenantId::default_tenant(),
        id: id.clone(),
        expect: Expect::Any,
        until: Some(leader.now().plus(Millis::secs(60))),
    };
    let pause = envelope(Command::Schedule(ScheduleCommand::Pause(pause)));
    leader.submit(vec![pause]).await.expect("an answer");
    cluster.pass(59_000).await;
    assert_eq!(cluster.witness(|w| w.created.len()), 0);
    cluster.pass(30_000).await;
    let created = cluster.witness(|w| w.created.len());
    assert!((2..=3).contains(&created), "{created}");
    let status = status_of(&cluster, "tick").expect("it exists");
    assert_eq!(status.state, ScheduleState::Active);
    assert!(
        status.skipped[&SkipReason::Paused] >= 5,
        "{:?}",
        status.skipped
    );
    cluster.check();
}

#[tokio::test(start_paused = true)]
async fn a_paused_tenant_skips_and_a_timed_pause_is_lifted() {
    let cluster = Cluster::one(27).await;
    let leader = cluster.leader().await;
    start_workers(&leader, 1, 5);
    let rule = RuleSpec::new(When::Cron("*/10 * * * * *".into()));
    put(&leader, &cluster, "tick", schedule_spec(rule)).await;
    let pause = SetPause {
        scope: PauseScope::Tenant(TenantId::default_tenant()),
        pause: Some(PauseInfo {
            by: "ops".into(),
            reason: None,
            since: START,
            until: Some(leader.now().plus(Millis::secs(60))),
        }),
    };
    let pause = envelope(Command::Admin(AdminCommand::SetPause(pause)));
    leader.submit(vec![pause]).await.expect("an answer");
    cluster.pass(58_000).await;
    assert_eq!(
        cluster.witness(|w| (w.created.len(), w.granted.len())),
        (0, 0)
    );
    cluster.pass(32_000).await;
    assert!(cluster.witness(|w| w.granted.len()) >= 2);
    let resident = cluster.replica();
    let tenant = resident.resident().tenants[&TenantNo::DEFAULT].clone();
    assert_eq!(tenant.paused, None, "lifted, not only overtaken");
}

#[tokio::test(start_paused = true)]
async fn a_raised_limit_lets_all_parked_work_in() {
    let cluster = Cluster::one(32).await;
    let leader = cluster.leader().await;
    let put_key = |max_leased| {
        let key = PutKey {
            tenant: TenantId::default_tenant(),
            key: "narrow".into(),
            max_leased,
            rate: None,
        };
        leader.submit(vec![envelope(Command::Admin(AdminCommand::PutKey(key)))])
    };
    put_key(Some(1)).await.expect("an answer");
    let mut narrow = template();
    narrow.concurrency_key = Some("narrow".into());
    // One holds the only slot, so that the others park.
    leader
        .submit(vec![submission(&queue("work"), START, narrow.clone())])
        .await
        .expect("ok");
    assert_eq!(claim(&leader, 1).await.len(), 1);
    let many = (0..1_000)
        .map(|_| submission(&queue("work"), START, narrow.clone()))
        .collect();
    leader.submit(many).await.expect("an answer");
    let parked = || {
        let resident = cluster.replica();
        let resident = resident.resident();
        resident.keys.values().map(|key| key.parked).sum::<u64>()
    };
    assert_eq!(parked(), 1_000);
    put_key(Some(2_000)).await.expect("an answer");
    cluster.pass(3_000).await;
    assert_eq!(parked(), 0);
    assert_eq!(claim(&leader, 250).await.len(), 250);
    cluster.check();
}

#[tokio::test(start_paused = true)]
async fn an_edit_finds_what_is_due_already_decided() {
    let cluster = Cluster::one(28).await;
    let leader = cluster.leader().await;
    let rule = RuleSpec::new(When::Cron("*/10 * * * * *".into()));
    let spec = schedule_spec(rule);
    put(&leader, &cluster, "tick", spec.clone()).await;
    let mut edits = 0;
    for n in 0..40_u8 {
        // Edits fall on the very millisecond of an occurrence.
        let to_next = 10_000 - leader.now().millis().rem_euclid(10_000) as u64;
        cluster.pass(to_next).await;
        let mut edit = spec.clone();
        edit.description = format!("edit {n}");
        let outcome = put(&leader, &cluster, "tick", edit).await;
        edits += u32::from(matches!(outcome, Outcome::Schedule { .. }));
    }
    assert!(edits >= 38, "{edits} edits went through");
    let nominal: Vec<Timestamp> =
        cluster.witness(|w| w.created.keys().map(|(_, _, at)| *at).collect());
    assert!(nominal.len() >= 39);
    for pair in nominal.windows(2) {
        assert_eq!(
            pair[1].since(pair[0]),
            Millis::secs(10),
            "none lost, none doubled"
        );
    }
    cluster.check();
}

#[tokio::test(start_paused = true)]
async fn a_completed_schedule_is_removed_when_its_time_is_over() {
    let cluster = Cluster::one(29).await;
    let leader = cluster.leader().await;
    start_workers(&leader, 1, 1);
    let mut spec = schedule_spec(RuleSpec::new(When::At(START.plus(Millis::secs(5)))));
    spec.keep_for = Millis::secs(60);
    put(&leader, &cluster, "once", spec).await;
    let exists = || status_of(&cluster, "once").is_some();
    cluster.pass(60_000).await;
    assert!(exists());
    assert_eq!(cluster.witness(|w| w.granted.len()), 1);
    cluster.pass(10_000).await;
    assert!(!exists());
    cluster.check();
}

#[tokio::test(start_paused = true)]
async fn watermarks_follow_and_idle_costs_little() {
    let cluster = Cluster::one(30).await;
    let leader = cluster.leader().await;
    start_workers(&leader, 1, 5);
    let rule = RuleSpec::new(When::Cron("*/10 * * * * *".into()));
    put(&leader, &cluster, "tick", schedule_spec(rule)).await;
    cluster.pass(600_000).await;
    let from = cluster.replica().resident().cluster.due_from;
    for from in from {
        assert!(leader.now().since(from) <= Millis::minutes(3), "{from}");
    }
    cluster.check();
}

#[tokio::test(start_paused = true)]
async fn a_leap_of_the_wall_clock_is_an_outage_for_leases_and_misfire_for_schedules() {
    let cluster = Cluster::one(31).await;
    let leader = cluster.leader().await;
    let rule = RuleSpec::new(When::Cron("* * * * *".into()));
    put(&leader, &cluster, "tick", schedule_spec(rule)).await;
    submit(&leader, "work", START, 1).await;
    let lease = claim(&leader, 1).await.remove(0);
    let before = leader.now();
    cluster.clock.jump(3_600_000);
    cluster.pass(1_000).await;
    assert!(
        leader.now().since(before) <= Millis(1_600),
        "not believed at once"
    );
    cluster.pass(4_000).await;
    assert!(
        leader.now().since(before) >= Millis::hours(1),
        "believed when stable"
    );
    let renewed = leader
        .report(worker("w"), vec![renew(&lease)])
        .await
        .expect("an answer");
    assert!(is_ok(&renewed.results[0]), "{:?}", renewed.results);
    assert_eq!(cluster.witness(|w| (w.expired, w.created.len())), (0, 1));
    cluster.check();
}

#[tokio::test(start_paused = true)]
async fn whoever_waits_for_a_time_finds_everything_due_by_then_decided() {
    let cluster = Cluster::one(33).await;
    let leader = cluster.leader().await;
    let rule = RuleSpec::new(When::Cron("* * * * *".into()));
    put(&leader, &cluster, "tick", schedule_spec(rule)).await;
    let until = START.plus(Millis::hours(2));
    submit(&leader, "work", until, 3_000).await;
    submit(&leader, "work", until.plus(Millis(1)), 1).await;
    cluster.clock.jump(7_000_000);
    leader.caught_up(until).await.expect("an answer");
    assert!(leader.now() >= until);
    let next = status_of(&cluster, "tick").expect("it is there").next;
    assert!(next.is_some_and(|next| next.due_at > until), "{next:?}");
    assert!(value(&leader, "executions_due_total") >= 3_000.0);
    cluster.check();
    // Nothing due: at once.
    let before = leader.now();
    leader.caught_up(before).await.expect("an answer");
    assert!(leader.now().since(before) <= Millis(300));
}

/// Its distance is counted from the end of what ran, also over a change of leader; it never meets itself.
#[tokio::test(start_paused = true)]
async fn an_after_end_rule_fires_so_long_after_each_end() {
    let cluster = Cluster::new(31, 3);
    cluster.elect(0);
    let leader = cluster.leader().await;
    let mut spec = schedule_spec(RuleSpec::new(When::AfterEnd(Millis::secs(60))));
    spec.rule.max_occurrences = Some(4);
    put(&leader, &cluster, "s", spec).await;
    let status = || status_of(&cluster, "s").expect("it is there");
    let mut before = leader.now();
    for round in 0..4_u64 {
        if round == 2 {
            cluster.elect(1);
        }
        let leader = cluster.leader().await;
        let mut claim = a_claim(&worker("w"), "work", 1, Millis::secs(60));
        let claimed = loop {
            let claimed = leader.claim(claim.clone()).await.expect("an answer");
            if !claimed.leases.is_empty() {
                break claimed;
            }
        };
        let waited = leader.now().since(before);
        assert!((60_000..62_000).contains(&waited.0), "{round}: {waited:?}");
        assert_eq!(status().next, None, "nothing is planned beside what runs");
        // It runs for nine seconds.
        cluster.pass(9_000).await;
        claim.reports = claimed.leases.iter().map(complete).collect();
        claim.wait = Millis::ZERO;
        let told = leader.claim(claim).await.expect("an answer");
        assert!(told.reports.iter().all(is_ok));
        before = leader.now();
    }
    let end = status();
    assert_eq!(end.created_count, 4);
    assert!(matches!(end.state, ScheduleState::Completed { .. }));
    assert!(end.skipped.is_empty());
    cluster.check();
}
