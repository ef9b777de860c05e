//! Leadership changes at random moments: nothing lost, nothing doubled, nothing expired by the change itself.

use std::time::Duration;

use tokio::time::Instant;

use super::*;
use crate::leader::testing::START;
use crate::model::rule::When;

/// A worker that goes on over changes of leader, and sometimes falls silent with its leases.
async fn stubborn_worker(cluster: Arc<Cluster>, name: WorkerId, lazy: u64) {
    let mut reports = Vec::new();
    loop {
        let leader = cluster.leader().await;
        let mut claim = a_claim(&name, "work", 3, Millis::secs(5));
        claim.reports = std::mem::take(&mut reports);
        let kept = claim.reports.clone();
        match leader.claim(claim).await {
            Ok(claimed) => {
                for granted in &claimed.leases {
                    if cluster.dice.below(100) >= lazy {
                        reports.push(complete(granted));
                    }
                }
                tokio::time::sleep(Duration::from_millis(cluster.dice.below(200))).await;
            }
            Err(_) => {
                reports = kept;
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
    }
}

async fn run_with_changes(seed: u64) {
    let cluster = Arc::new(Cluster::new(seed, 3));
    cluster.commit_within(1 + seed % 20);
    cluster.elect(0);
    let leader = cluster.leader().await;
    for n in 0..4_u64 {
        let name = format!("s{n}");
        let rule = RuleSpec::new(When::Every {
            every: Millis::secs(2 + n),
            anchor: START,
        });
        put_schedule(&leader, &cluster, &name, schedule_spec(rule))
            .await
            .expect("an answer");
    }
    for n in 0..3 {
        let name = worker(&format!("w{n}"));
        let task = stubborn_worker(Arc::clone(&cluster), name, 10);
        tokio::runtime::Handle::current().spawn(task);
    }
    for _ in 0..12 {
        cluster.pass(500 + cluster.dice.below(6_000)).await;
        let next = cluster.dice.below(3);
        match cluster.dice.below(4) {
            0 => {
                cluster.depose();
                cluster.pass(cluster.dice.below(800)).await;
                cluster.elect(next);
            }
            1 => {
                cluster.elect_unseen(next);
                cluster.pass(cluster.dice.below(2_000)).await;
                cluster.exorcise();
            }
            2 => cluster.lose_effects(usize::try_from(next).expect("small")),
            _ => cluster.elect(next),
        }
    }
    cluster.pass(90_000).await;
    let leader = cluster.leader().await;
    for n in 0..4_u64 {
        let id = ScheduleId::new(&format!("s{n}")).expect("a good name");
        let found = cluster
            .replica()
            .read()
            .schedule(TenantNo::DEFAULT, &id)
            .expect("readable");
        let (schedule, status) = found.expect("it exists");
        let rule = compiled(&schedule.spec.rule, id.as_str());
        let from = schedule.created_at.plus(Millis(1));
        let all = rule.count(from, status.cursor.plus(Millis(1)), 1 << 30).n;
        let skipped: u64 = status.skipped.values().sum();
        assert_eq!(
            status.created_count + skipped,
            all,
            "seed {seed}: {id} lost or doubled one"
        );
        let next = status.next.expect("it goes on");
        assert!(
            next.due_at > leader.now().minus(Millis::secs(1)),
            "seed {seed}: {id} is behind"
        );
    }
    cluster.check();
}

#[tokio::test(start_paused = true)]
async fn no_occurrence_is_lost_or_doubled_over_changes_of_leader() {
    for seed in 0..12 {
        run_with_changes(seed).await;
    }
}

#[tokio::test(start_paused = true)]
async fn the_same_seed_gives_the_same_log() {
    async fn history(seed: u64) -> (u64, u64, Vec<(ExecutionId, Timestamp)>) {
        let cluster = Arc::new(Cluster::new(seed, 3));
        cluster.elect(0);
        let leader = cluster.leader().await;
        let rule = RuleSpec::new(When::Every {
            every: Millis::secs(2),
            anchor: START,
        });
        put_schedule(&leader, &cluster, "s", schedule_spec(rule))
            .await
            .expect("an answer");
        for n in 0..3 {
            let name = worker(&format!("w{n}"));
            let task = stubborn_worker(Arc::clone(&cluster), name, 20);
            tokio::runtime::Handle::current().spawn(task);
        }
        cluster.pass(9_000).await;
        cluster.elect(1);
        cluster.pass(60_000).await;
        cluster.witness(|w| (w.entries, w.commands, w.granted.clone()))
    }
    assert_eq!(history(5).await, history(5).await);
}

#[tokio::test(start_paused = true)]
async fn a_leader_without_a_majority_tells_its_callers_within_three_seconds() {
    let cluster = Cluster::new(41, 3);
    cluster.elect(0);
    let old = cluster.leader().await;
    cluster.elect_unseen(1);
    let begun = Instant::now();
    let claim = a_claim(&worker("w"), "work", 1, Millis::secs(60));
    let (written, claimed) = tokio::join!(
        old.submit(vec![submission(&queue("work"), START, template())]),
        old.claim(claim)
    );
    assert_eq!(written.err(), Some(Unavailable::Unknown));
    assert!(claimed.is_err());
    assert!(
        begun.elapsed() < Duration::from_secs(3),
        "{:?}",
        begun.elapsed()
    );
    assert!(!old.in_office());
    // Whoever comes now is sent away at once; what the old leader may still propose leads nowhere.
    cluster.pass(5_000).await;
    assert!(!old.in_office());
    cluster.exorcise();
    cluster.check();
}

#[tokio::test(start_paused = true)]
async fn an_election_expires_no_lease() {
    let cluster = Cluster::new(40, 3);
    cluster.elect(0);
    let leader = cluster.leader().await;
    submit(&leader, "work", START, 50).await;
    let claimed = leader
        .claim(a_claim(&worker("w"), "work", 50, Millis::secs(1)))
        .await;
    let leases = claimed.expect("an answer").leases;
    assert_eq!(leases.len(), 50);
    // Just before their deadline the leader is gone, for longer than they had left.
    cluster.pass(9_000).await;
    cluster.depose();
    cluster.pass(4_000).await;
    cluster.elect(2);
    let begin = Instant::now();
    let leader = cluster.leader().await;
    assert!(
        begin.elapsed() <= Duration::from_secs(1),
        "in office at once"
    );
    cluster.pass(9_000).await;
    assert_eq!(cluster.witness(|w| w.expired), 0);
    let reports = leases.iter().map(complete).collect();
    let done = leader
        .report(worker("w"), reports)
        .await
        .expect("an answer");
    assert!(done.results.iter().all(is_ok));
    cluster.check();
}

#[tokio::test(start_paused = true)]
async fn a_follower_turns_calls_away_and_a_lost_term_leaves_nobody_waiting() {
    let cluster = Cluster::new(41, 2);
    cluster.elect(0);
    let leader = cluster.leader().await;
    let follower = &cluster.leaders[1];
    let refused = follower
        .submit(vec![submission(&queue("work"), START, template())])
        .await;
    assert_eq!(refused, Err(Unavailable::NotLeader { leader: Some(0) }));
    let poll = leader.claim(a_claim(&worker("w"), "work", 1, Millis::secs(50)));
    let poll = tokio::runtime::Handle::current().spawn(poll);
    cluster.pass(100).await;
    cluster.elect(1);
    let ended = tokio::time::timeout(Duration::from_secs(1), poll).await;
    let ended = ended.expect("not left waiting").expect("it runs");
    assert!(
        matches!(ended, Err(Unavailable::NotLeader { .. })),
        "{ended:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn acknowledged_submissions_survive_every_change() {
    let cluster = Arc::new(Cluster::new(42, 3));
    cluster.commit_within(10);
    cluster.elect(0);
    let mut acknowledged = Vec::new();
    for round in 0..60_u64 {
        let leader = cluster.leader().await;
        let commands = (0..5)
            .map(|_| submission(&queue("work"), START, template()))
            .collect();
        let call = tokio::runtime::Handle::current().spawn(leader.submit(commands));
        if round % 3 == 0 {
            cluster.pass(cluster.dice.below(12)).await;
            cluster.elect(cluster.dice.below(3));
        }
        if let Ok(answers) = call.await.expect("it runs") {
            acknowledged.extend(answers.into_iter().map(|answer| match answer.outcome {
                Outcome::Submitted { execution, .. } => execution,
                other => panic!("not submitted: {other:?}"),
            }));
        }
    }
    cluster.pass(1_000).await;
    assert!(acknowledged.len() >= 100, "{}", acknowledged.len());
    let replica = cluster.replica();
    for id in &acknowledged {
        let found = replica
            .read()
            .execution(TenantNo::DEFAULT, id)
            .expect("readable");
        assert!(found.is_some(), "{id} is gone");
    }
    cluster.check();
}
