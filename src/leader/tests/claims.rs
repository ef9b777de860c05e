//! Claims, reports and leases as workers see them.

use tokio::time::Instant;

use super::*;
use crate::command::admin::{AdminCommand, PutKey};
use crate::command::leases::{ExpireItem, LeaseCommand, LeaseRef, RevokeCause, RevokeLeases};
use crate::command::outcome::LostReason;
use crate::leader::testing::START;

#[tokio::test(start_paused = true)]
async fn a_waiting_claim_is_served_as_soon_as_work_arrives() {
    let cluster = Cluster::one(1).await;
    let leader = cluster.leader().await;
    let poll = leader.claim(a_claim(&worker("w"), "work", 1, Millis::secs(20)));
    let poll = tokio::runtime::Handle::current().spawn(poll);
    cluster.pass(5_000).await;
    let begin = Instant::now();
    let ids = submit(&leader, "work", START, 1).await;
    let claimed = poll.await.expect("it runs").expect("the leader answers");
    assert!(begin.elapsed().as_millis() <= 20, "{:?}", begin.elapsed());
    assert_eq!(claimed.leases.len(), 1);
    assert_eq!(claimed.leases[0].lease.execution, ids[0]);
    assert_eq!(claimed.deadlines.len(), 1);
    cluster.check();
}

#[tokio::test(start_paused = true)]
async fn a_claim_without_work_ends_when_its_time_is_over() {
    let cluster = Cluster::one(2).await;
    let leader = cluster.leader().await;
    let begin = Instant::now();
    let claimed = leader
        .claim(a_claim(&worker("w"), "work", 1, Millis::secs(3)))
        .await;
    assert!(claimed.expect("an answer").leases.is_empty());
    let took = begin.elapsed().as_millis();
    assert!((3_000..3_050).contains(&took), "{took}");
    let now = leader
        .claim(a_claim(&worker("w"), "work", 1, Millis::ZERO))
        .await;
    let now = now.expect("an answer");
    assert!(now.leases.is_empty() && now.poll_after > Millis::ZERO);
}

#[tokio::test(start_paused = true)]
async fn one_item_goes_to_one_waiter_in_order_of_arrival() {
    let cluster = Cluster::one(3).await;
    let leader = cluster.leader().await;
    let mut polls = Vec::new();
    for n in 0..5 {
        let name = worker(&format!("w{n}"));
        let poll = leader.claim(a_claim(&name, "work", 1, Millis::secs(5)));
        polls.push(tokio::runtime::Handle::current().spawn(poll));
        cluster.pass(1).await;
    }
    submit(&leader, "work", START, 2).await;
    let mut got = Vec::new();
    for poll in polls {
        let claimed = poll.await.expect("it runs").expect("the leader answers");
        got.push(claimed.leases.len());
    }
    assert_eq!(got, [1, 1, 0, 0, 0]);
}

#[tokio::test(start_paused = true)]
async fn a_claim_whose_caller_hung_up_gives_its_leases_back_without_an_attempt() {
    let cluster = Cluster::one(4).await;
    cluster.commit_within(40);
    let leader = cluster.leader().await;
    submit(&leader, "work", START, 1).await;
    for patience in [1, 5, 10, 20, 30, 45, 60] {
        let poll = leader.claim(a_claim(&worker("gone"), "work", 1, Millis::secs(20)));
        let patience = std::time::Duration::from_millis(patience);
        if let Ok(claimed) = tokio::time::timeout(patience, poll).await {
            let claimed = claimed.expect("the leader answers");
            let lease = &claimed.leases[0].lease;
            let item = ExpireItem {
                tenant: lease.tenant,
                lease: LeaseRef {
                    execution: lease.execution.clone(),
                    attempt: lease.attempt,
                    fencing_token: lease.fencing_token,
                },
                draw: 0,
            };
            let revoke = Command::Lease(LeaseCommand::Revoke(RevokeLeases {
                cause: RevokeCause::Undelivered,
                items: vec![item],
            }));
            let answers = leader.submit(vec![Envelope::leader(revoke)]).await;
            let outcome = answers.expect("the leader answers").remove(0).outcome;
            assert_eq!(outcome, Outcome::Processed { done: 1 });
        }
        cluster.pass(200).await;
        assert!(cluster.replica().resident().leases.is_empty(), "given back");
    }
    let claimed = leader
        .claim(a_claim(&worker("w"), "work", 1, Millis::secs(5)))
        .await;
    let claimed = claimed.expect("the leader answers");
    assert_eq!(claimed.leases[0].lease.attempt, 1, "no attempt was spent");
    cluster.check();
}

#[tokio::test(start_paused = true)]
async fn a_repeated_request_id_gets_the_same_live_leases_also_after_failover() {
    let cluster = Cluster::new(5, 3);
    cluster.elect(0);
    let leader = cluster.leader().await;
    submit(&leader, "work", START, 10).await;
    let mut claim = a_claim(&worker("w"), "work", 3, Millis::secs(1));
    claim.request_id = Some("r1".into());
    let first = leader.claim(claim.clone()).await.expect("an answer");
    let again = leader.claim(claim.clone()).await.expect("an answer");
    assert!(again.replayed && !first.replayed);
    assert_eq!(first.leases, again.leases);
    cluster.elect(1);
    let leader = cluster.leader().await;
    let after = leader.claim(claim).await.expect("an answer");
    assert!(after.replayed);
    assert_eq!(first.leases, after.leases);
    assert_eq!(cluster.replica().resident().leases.len(), 3);
}

#[tokio::test(start_paused = true)]
async fn a_repeat_while_the_first_call_is_under_way_takes_its_place() {
    let cluster = Cluster::one(6).await;
    cluster.commit_within(30);
    let leader = cluster.leader().await;
    submit(&leader, "work", START, 10).await;
    let mut claim = a_claim(&worker("w"), "work", 2, Millis::secs(1));
    claim.request_id = Some("r1".into());
    let first = tokio::runtime::Handle::current().spawn(leader.claim(claim.clone()));
    cluster.pass(1).await;
    first.abort();
    let again = leader.claim(claim).await.expect("an answer");
    assert_eq!(again.leases.len(), 2);
    cluster.pass(500).await;
    assert_eq!(
        cluster.replica().resident().leases.len(),
        2,
        "one set of leases"
    );
}

#[tokio::test(start_paused = true)]
async fn reports_in_a_claim_are_applied_first_and_free_its_slots() {
    let cluster = Cluster::one(7).await;
    let leader = cluster.leader().await;
    submit(&leader, "work", START, 10).await;
    let mut claim = a_claim(&worker("w"), "work", 5, Millis::secs(1));
    claim.slots = Some(2);
    let mut done = 0;
    while done < 10 {
        let claimed = leader.claim(claim.clone()).await.expect("an answer");
        assert!(claimed.reports.iter().all(is_ok));
        done += claimed.reports.len();
        assert!(claimed.leases.len() <= 2);
        claim.reports = claimed.leases.iter().map(complete).collect();
    }
    cluster.pass(10).await;
    assert!(cluster.replica().resident().leases.is_empty());
    cluster.check();
}

#[tokio::test(start_paused = true)]
async fn a_silent_worker_loses_its_lease_neither_early_nor_late() {
    let cluster = Cluster::one(8).await;
    let leader = cluster.leader().await;
    submit(&leader, "work", START, 1).await;
    let claimed = leader
        .claim(a_claim(&worker("dead"), "work", 1, Millis::secs(1)))
        .await;
    let claimed = claimed.expect("an answer");
    let begin = Instant::now();
    let stale = claimed.leases[0].clone();
    while !cluster.replica().resident().leases.is_empty() {
        cluster.pass(1).await;
    }
    let held = begin.elapsed().as_millis();
    assert!((9_950..11_000).contains(&held), "{held}");
    let late = leader
        .report(worker("dead"), vec![complete(&stale)])
        .await
        .expect("an answer");
    let lost = ReportResult::LeaseLost {
        reason: LostReason::LeaseExpired,
    };
    assert_eq!(late.results, [lost]);
    assert_eq!(cluster.witness(|w| w.expired), 1);
}

#[tokio::test(start_paused = true)]
async fn a_renewed_lease_lives_on() {
    let cluster = Cluster::one(9).await;
    let leader = cluster.leader().await;
    submit(&leader, "work", START, 1).await;
    let claimed = leader
        .claim(a_claim(&worker("w"), "work", 1, Millis::secs(1)))
        .await;
    let lease = claimed.expect("an answer").leases[0].clone();
    for _ in 0..20 {
        cluster.pass(3_300).await;
        let renewed = leader
            .report(worker("w"), vec![renew(&lease)])
            .await
            .expect("an answer");
        assert!(is_ok(&renewed.results[0]), "{:?}", renewed.results);
    }
    let done = leader
        .report(worker("w"), vec![complete(&lease)])
        .await
        .expect("an answer");
    assert!(is_ok(&done.results[0]));
    assert_eq!(cluster.witness(|w| w.expired), 0);
}

#[tokio::test(start_paused = true)]
async fn filters_find_their_work_behind_that_of_others() {
    let cluster = Cluster::one(10).await;
    let leader = cluster.leader().await;
    submit(&leader, "work", START, 1_500).await;
    let mut rare = template();
    rare.kind = Kind::new("rare").expect("a good kind");
    let command = submission(&queue("work"), START, rare);
    leader.submit(vec![command]).await.expect("an answer");
    let mut claim = a_claim(&worker("w"), "work", 5, Millis::secs(2));
    claim.kinds = Some(vec![Kind::new("rare").expect("a good kind")]);
    let claimed = leader.claim(claim).await.expect("an answer");
    assert_eq!(claimed.leases.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_is_drained_or_signs_off_gets_no_more() {
    let cluster = Cluster::one(11).await;
    let leader = cluster.leader().await;
    submit(&leader, "work", START, 3).await;
    let name = worker("w");
    let claimed = leader
        .claim(a_claim(&name, "work", 2, Millis::secs(1)))
        .await;
    assert_eq!(claimed.expect("an answer").leases.len(), 2);
    assert!(leader.drain_worker(&name));
    let claimed = leader
        .claim(a_claim(&name, "work", 2, Millis::secs(9)))
        .await;
    let claimed = claimed.expect("an answer");
    assert!(claimed.drain && claimed.leases.is_empty());
    let seen = leader.workers();
    assert_eq!((seen.len(), seen[0].leased, seen[0].draining), (1, 2, true));
    assert_eq!(leader.sign_off(name).await, Ok(2));
    assert!(cluster.replica().resident().leases.is_empty());
    assert!(leader.workers().is_empty());
}

#[tokio::test(start_paused = true)]
async fn waiting_for_a_result_ends_with_it_or_with_patience() {
    let cluster = Cluster::one(12).await;
    let leader = cluster.leader().await;
    let id = submit(&leader, "work", START, 1).await.remove(0);
    let wait = |ms| leader.wait_final(TenantNo::DEFAULT, id.clone(), Millis(ms));
    assert_eq!(wait(500).await, Ok(false));
    let waiter = tokio::runtime::Handle::current().spawn(wait(30_000));
    let claimed = leader
        .claim(a_claim(&worker("w"), "work", 1, Millis::secs(1)))
        .await;
    let lease = claimed.expect("an answer").leases[0].clone();
    leader
        .report(worker("w"), vec![complete(&lease)])
        .await
        .expect("an answer");
    assert_eq!(waiter.await.expect("it runs"), Ok(true));
    assert_eq!(wait(30_000).await, Ok(true));
}

#[tokio::test(start_paused = true)]
async fn ten_thousand_pollers_cost_no_more_than_their_answers() {
    let cluster = Cluster::one(13).await;
    let leader = cluster.leader().await;
    let mut polls = Vec::new();
    for n in 0..10_000 {
        let poll = leader.claim(a_claim(
            &worker(&format!("w{n}")),
            "work",
            1,
            Millis::secs(5),
        ));
        polls.push(tokio::runtime::Handle::current().spawn(poll));
    }
    cluster.pass(600).await;
    assert_eq!(value(&leader, "leader_claims_waiting"), 10_000.0);
    let before = cluster.witness(|w| w.entries);
    submit(&leader, "work", START, 2_000).await;
    let mut got = 0;
    for poll in polls {
        got += poll
            .await
            .expect("it runs")
            .expect("an answer")
            .leases
            .len();
    }
    assert_eq!(got, 2_000);
    let entries = cluster.witness(|w| w.entries) - before;
    assert!(entries < 200, "{entries} entries");
}

/// A slot of a concurrency key is a live lease: one that stands ready where nobody comes takes none.
#[tokio::test(start_paused = true)]
async fn a_queue_without_workers_does_not_keep_others_of_a_key_from_running() {
    let cluster = Cluster::one(9).await;
    let leader = cluster.leader().await;
    let limit = PutKey {
        tenant: TenantId::default_tenant(),
        key: "k".into(),
        max_leased: Some(1),
        rate: None,
    };
    let put = envelope(Command::Admin(AdminCommand::PutKey(limit)));
    leader.submit(vec![put]).await.expect("the leader answers");
    let mut keyed = template();
    keyed.concurrency_key = Some("k".into());
    let send = |name| leader.submit(vec![submission(&queue(name), START, keyed.clone())]);
    send("work").await.expect("an answer");
    let mut claim = a_claim(&worker("w"), "work", 1, Millis::secs(30));
    let first = leader.claim(claim.clone()).await.expect("an answer");
    send("idle").await.expect("an answer");
    send("work").await.expect("an answer");
    claim.reports = first.leases.iter().map(complete).collect();
    let second = leader.claim(claim).await.expect("an answer");
    assert_eq!(second.leases.len(), 1);
    assert_ne!(first.leases[0].execution.id, second.leases[0].execution.id);
    cluster.check();
}
