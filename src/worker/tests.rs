//! The worker against a fake server on paused time: every instant below is exact.
#![allow(
    clippy::disallowed_methods,
    reason = "tests own their runtime and clock"
)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::{Instant, sleep};

use super::*;
use crate::wire::{Problem, ReportAction};

mod fake;
mod safety;

use fake::{Fake, Seen};

const fn secs(s: u64) -> Duration {
    Duration::from_secs(s)
}

fn settings() -> Settings {
    Settings::for_queues(["q"])
}

/// Runs a worker until the fake has nothing left to do, then drains it.
async fn until_idle<H: Handler>(fake: &Fake, settings: Settings, handler: H) -> Summary {
    let (shutdown, drain) = shutdown();
    let worker = tokio::spawn(Worker::new(settings, fake.clone(), handler).run(drain));
    fake.idle().await;
    shutdown.drain();
    worker.await.unwrap().unwrap()
}

#[tokio::test(start_paused = true)]
async fn each_execution_costs_one_claim_that_carries_the_report_before_it() {
    let fake = Fake::with_work(3);
    let summary = until_idle(&fake, settings(), async |_: Work| Outcome::success()).await;
    assert_eq!((summary.claimed, summary.succeeded), (3, 3));
    let claims = fake.claims();
    let carried: Vec<_> = claims.iter().map(|c| c.reports.len()).collect();
    assert_eq!(carried[..4], [0, 1, 1, 1]);
    assert_eq!(fake.count(|s| matches!(s, Seen::Report(_))), 0);
    assert_eq!(fake.last(), Some(Seen::SignOff));
}

#[tokio::test(start_paused = true)]
async fn no_more_handlers_run_than_there_are_slots() {
    let fake = Fake::with_work(20);
    let running = Arc::new(AtomicU32::new(0));
    let most = Arc::new(AtomicU32::new(0));
    let (r, m) = (Arc::clone(&running), Arc::clone(&most));
    let handler = move |_: Work| {
        let (r, m) = (Arc::clone(&r), Arc::clone(&m));
        async move {
            m.fetch_max(r.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            sleep(secs(2)).await;
            r.fetch_sub(1, Ordering::SeqCst);
            Outcome::success()
        }
    };
    let four = Settings {
        slots: 4,
        ..settings()
    };
    let summary = until_idle(&fake, four, handler).await;
    assert_eq!(summary.succeeded, 20);
    assert_eq!(most.load(Ordering::SeqCst), 4);
}

#[tokio::test(start_paused = true)]
async fn leases_are_renewed_every_third_while_the_handler_runs() {
    let fake = Fake::with_work(1);
    let summary = until_idle(&fake, settings(), async |_: Work| {
        sleep(secs(35)).await;
        Outcome::success()
    })
    .await;
    assert_eq!(summary.succeeded, 1);
    assert_eq!(fake.times(|s| matches!(s, Seen::Renew(_))), [10, 20, 30]);
}

#[tokio::test(start_paused = true)]
async fn a_handler_is_told_and_then_dropped_before_a_lease_that_cannot_be_renewed_ends() {
    let fake = Fake::with_work(1);
    fake.set(|s| s.renewals_fail = true);
    let told = Arc::new(Mutex::new(None));
    let dropped = Arc::new(Mutex::new(None));
    let (t, d) = (Arc::clone(&told), Arc::clone(&dropped));
    let began = Instant::now();
    let handler = move |work: Work| {
        let (t, d) = (Arc::clone(&t), Arc::clone(&d));
        async move {
            let _at_drop = OnDrop(d, began);
            let why = work.stopped().await;
            *t.lock() = Some((began.elapsed(), why));
            std::future::pending::<()>().await;
            Outcome::success()
        }
    };
    let summary = until_idle(&fake, settings(), handler).await;
    assert_eq!(told.lock().take(), Some((secs(22), Stop::LeaseEnding)));
    assert_eq!(dropped.lock().take(), Some(secs(27)));
    assert_eq!((summary.claimed, summary.succeeded), (1, 0));
    let (item, _) = fake.reported();
    assert_eq!(item.action, Some(ReportAction::Fail));
    assert_eq!(item.error.unwrap().kind.as_deref(), Some("Stopped"));
}

struct OnDrop(Arc<Mutex<Option<Duration>>>, Instant);

impl Drop for OnDrop {
    fn drop(&mut self) {
        *self.0.lock() = Some(self.1.elapsed());
    }
}

#[tokio::test(start_paused = true)]
async fn the_deadline_counts_from_when_the_claim_was_sent_not_answered() {
    let fake = Fake::with_work(1);
    fake.set(|s| {
        s.renewals_fail = true;
        s.claims_take = secs(6);
    });
    let left = Arc::new(Mutex::new(Duration::ZERO));
    let l = Arc::clone(&left);
    until_idle(&fake, settings(), move |work: Work| {
        *l.lock() = work.time_left();
        async { Outcome::success() }
    })
    .await;
    assert_eq!(*left.lock(), secs(21));
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_came_late_in_a_poll_is_renewed_before_its_handler_starts() {
    // The lease is shorter than the poll: counted from when the claim was sent it would be over already.
    let fake = Fake::with_work(0);
    fake.set(|s| s.lease_ms = 6_000);
    let f = fake.clone();
    tokio::spawn(async move {
        sleep(secs(15)).await;
        f.set(|s| s.ready = 1);
    });
    let left = Arc::new(Mutex::new(Duration::ZERO));
    let l = Arc::clone(&left);
    let (shutdown, drain) = shutdown();
    let handler = move |work: Work| {
        *l.lock() = work.time_left();
        async { Outcome::success() }
    };
    let worker = tokio::spawn(Worker::new(settings(), fake.clone(), handler).run(drain));
    sleep(secs(18)).await;
    shutdown.drain();
    let summary = worker.await.unwrap().unwrap();
    assert_eq!((summary.succeeded, summary.lost), (1, 0));
    assert_eq!(fake.times(|s| matches!(s, Seen::Renew(_))), [15]);
    assert_eq!(*left.lock(), Duration::from_millis(5_400));
}

#[tokio::test(start_paused = true)]
async fn a_late_lease_that_cannot_be_confirmed_is_never_worked_on() {
    let fake = Fake::with_work(1);
    fake.set(|s| {
        s.claims_take = secs(11);
        s.renewals_fail = true;
    });
    let (shutdown, drain) = shutdown();
    let handler = async |_: Work| panic!("must not run");
    let worker = tokio::spawn(Worker::new(settings(), fake.clone(), handler).run(drain));
    sleep(secs(50)).await;
    shutdown.drain();
    let summary = worker.await.unwrap().unwrap();
    assert_eq!((summary.claimed, summary.lost), (1, 1));
    assert!(fake.reports().is_empty());
    assert!(fake.count(|s| matches!(s, Seen::Renew(_))) > 3);
}

#[tokio::test(start_paused = true)]
async fn a_renewal_that_fails_for_a_while_is_repeated_and_saves_the_lease() {
    let fake = Fake::with_work(1);
    fake.set(|s| s.renewals_fail = true);
    let f = fake.clone();
    tokio::spawn(async move {
        sleep(secs(18)).await;
        f.set(|s| s.renewals_fail = false);
    });
    let summary = until_idle(&fake, settings(), async |_: Work| {
        sleep(secs(60)).await;
        Outcome::success()
    })
    .await;
    assert_eq!(summary.succeeded, 1);
    let times = fake.times(|s| matches!(s, Seen::Renew(_)));
    assert!(times.len() >= 6 && times[0] == 10, "{times:?}");
}

#[tokio::test(start_paused = true)]
async fn a_cancel_request_reaches_the_handler_with_the_next_renewal() {
    let fake = Fake::with_work(1);
    fake.set(|s| s.cancel = true);
    let summary = until_idle(&fake, settings(), async |work: Work| {
        let began = Instant::now();
        assert_eq!(work.stopped().await, Stop::CancelRequested);
        assert_eq!(began.elapsed(), secs(10));
        // It may go on, and is still renewed.
        sleep(secs(40)).await;
        Outcome::success()
    })
    .await;
    assert_eq!(summary.succeeded, 1);
}

#[tokio::test(start_paused = true)]
async fn a_lost_lease_stops_the_handler_and_is_not_reported() {
    let fake = Fake::with_work(1);
    fake.set(|s| s.lost = Some("revoked".into()));
    let stop = Arc::new(Mutex::new(None));
    let s = Arc::clone(&stop);
    let summary = until_idle(&fake, settings(), move |work: Work| {
        let s = Arc::clone(&s);
        async move {
            *s.lock() = Some(work.stopped().await);
            std::future::pending().await
        }
    })
    .await;
    assert_eq!(stop.lock().take(), Some(Stop::LeaseLost("revoked".into())));
    assert_eq!((summary.lost, summary.failed), (1, 0));
    assert!(fake.reports().is_empty());
}

#[tokio::test(start_paused = true)]
async fn the_attempts_own_time_out_stops_the_handler_though_the_lease_lives() {
    let fake = Fake::with_work(1);
    fake.set(|s| s.attempt_timeout = Some(secs(20)));
    let seen = Arc::new(Mutex::new(None));
    let s = Arc::clone(&seen);
    let began = Instant::now();
    until_idle(&fake, settings(), move |work: Work| {
        let s = Arc::clone(&s);
        async move {
            let why = work.stopped().await;
            *s.lock() = Some((began.elapsed(), why));
            Outcome::fail("Slow", "too slow")
        }
    })
    .await;
    assert_eq!(seen.lock().take(), Some((secs(18), Stop::TimedOut)));
}

#[tokio::test(start_paused = true)]
async fn a_failed_claim_is_repeated_with_the_same_id_and_its_reports_go_on_their_own() {
    let fake = Fake::with_work(2);
    let f = fake.clone();
    let handler = move |_: Work| {
        f.set(|s| s.failing_claims = 3);
        async { Outcome::success() }
    };
    let summary = until_idle(&fake, settings(), handler).await;
    assert_eq!(summary.succeeded, 2);
    let claims = fake.claims();
    let ids: Vec<_> = claims
        .iter()
        .map(|c| c.request_id.clone().unwrap())
        .collect();
    assert!(
        ids[1] == ids[2] && ids[2] == ids[3] && ids[3] == ids[4],
        "{ids:?}"
    );
    assert!(ids[0] != ids[1] && ids[4] != ids[5]);
    // The report of the first execution did not wait for a claim to get through.
    assert_eq!(claims[1].reports.len(), 1);
    assert_eq!(fake.count(|s| matches!(s, Seen::Report(_))), 2);
    // 100 ms, 200 ms, 400 ms, each less up to half of jitter.
    let waits = fake.claim_gaps();
    for (wait, base) in waits[1..4].iter().zip([100u64, 200, 400]) {
        let ms = u64::try_from(wait.as_millis()).unwrap();
        assert!((base / 2..=base + 1).contains(&ms), "{waits:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_poll_is_much_shorter_than_the_lease_it_asks_for() {
    let fake = Fake::with_work(1);
    let short = Settings {
        lease: secs(9),
        wait: secs(20),
        ..settings()
    };
    until_idle(&fake, short, async |_: Work| Outcome::success()).await;
    assert!(fake.claims().iter().all(|c| c.wait_ms <= Some(3_000)));
}

#[tokio::test(start_paused = true)]
async fn what_the_server_asks_for_is_waited() {
    let fake = Fake::with_work(1);
    fake.set(|s| {
        s.failing_claims = 1;
        s.retry_after = Some(secs(3));
    });
    until_idle(&fake, settings(), async |_: Work| Outcome::success()).await;
    let wait = fake.claim_gaps()[0].as_secs_f64();
    assert!((3.0..=3.4).contains(&wait), "{wait}");
}

#[tokio::test(start_paused = true)]
async fn while_a_poll_waits_reports_go_by_their_own_call_and_together() {
    let fake = Fake::with_work(3);
    let eight = Settings {
        slots: 8,
        ..settings()
    };
    let summary = until_idle(&fake, eight, async |_: Work| {
        sleep(secs(2)).await;
        Outcome::fail("Exit", "exit status 1")
    })
    .await;
    assert_eq!(summary.failed, 3);
    assert_eq!(fake.times(|s| matches!(s, Seen::Report(_))), [2]);
    assert_eq!(fake.reports().len(), 3);
}

#[tokio::test(start_paused = true)]
async fn an_ended_handler_keeps_its_lease_until_its_report_has_arrived() {
    let fake = Fake::with_work(1);
    let f = fake.clone();
    let handler = move |_: Work| {
        f.set(|s| (s.failing_claims, s.failing_reports) = (8, 8));
        async { Outcome::success() }
    };
    let summary = until_idle(&fake, settings(), handler).await;
    assert_eq!((summary.succeeded, summary.lost), (1, 0));
    assert!(fake.count(|s| matches!(s, Seen::Renew(_))) >= 1);
}

#[tokio::test(start_paused = true)]
async fn a_drain_finishes_what_is_held_claims_no_more_and_signs_off() {
    let fake = Fake::with_work(5);
    let (shutdown, drain) = shutdown();
    let two = Settings {
        slots: 3,
        ..settings()
    };
    fake.set(|s| s.grant_max = 2);
    let handler = async |_: Work| {
        sleep(secs(50)).await;
        Outcome::success()
    };
    let worker = tokio::spawn(Worker::new(two, fake.clone(), handler).run(drain));
    sleep(secs(5)).await;
    fake.set(|s| s.ready = 0);
    let claims_before = fake.claims().len();
    shutdown.drain();
    sleep(secs(1)).await;
    fake.set(|s| s.ready = 5);
    let summary = worker.await.unwrap().unwrap();
    assert_eq!(fake.claims().len(), claims_before);
    assert_eq!((summary.claimed, summary.succeeded), (3, 3));
    assert_eq!(fake.last(), Some(Seen::SignOff));
    assert!(fake.count(|s| matches!(s, Seen::Renew(_))) > 0);
}

#[tokio::test(start_paused = true)]
async fn a_stop_ends_handlers_within_the_grace_and_gives_leases_back() {
    let fake = Fake::with_work(1);
    let (shutdown, drain) = shutdown();
    let handler = async |work: Work| {
        assert_eq!(work.stopped().await, Stop::Shutdown);
        std::future::pending().await
    };
    let worker = tokio::spawn(Worker::new(settings(), fake.clone(), handler).run(drain));
    sleep(secs(1)).await;
    let began = Instant::now();
    shutdown.drain();
    shutdown.stop();
    let summary = worker.await.unwrap().unwrap();
    assert!(began.elapsed() <= secs(6), "{:?}", began.elapsed());
    assert_eq!(summary.released, 1);
    let (item, _) = fake.reported();
    assert_eq!(item.action, Some(ReportAction::Release));
    assert_eq!(item.reason.as_deref(), Some("shutdown"));
}

#[tokio::test(start_paused = true)]
async fn a_drain_time_out_stops_what_has_not_finished() {
    let fake = Fake::with_work(1);
    let (shutdown, drain) = shutdown();
    let bounded = Settings {
        drain_timeout: Some(secs(60)),
        ..settings()
    };
    let handler = async |work: Work| {
        work.stopped().await;
        Outcome::Release {
            delay: Duration::ZERO,
            reason: "told to".into(),
        }
    };
    let worker = tokio::spawn(Worker::new(bounded, fake.clone(), handler).run(drain));
    sleep(secs(1)).await;
    let began = Instant::now();
    shutdown.drain();
    let summary = worker.await.unwrap().unwrap();
    assert_eq!(began.elapsed(), secs(60));
    assert_eq!(summary.released, 1);
}

#[tokio::test(start_paused = true)]
async fn an_operators_drain_ends_the_worker() {
    let fake = Fake::with_work(0);
    let f = fake.clone();
    tokio::spawn(async move {
        sleep(secs(7)).await;
        f.set(|s| s.drain = true);
    });
    let (_shutdown, drain) = shutdown();
    let handler = async |_: Work| Outcome::success();
    let summary = Worker::new(settings(), fake.clone(), handler)
        .run(drain)
        .await
        .unwrap();
    assert_eq!(summary, Summary::default());
    assert_eq!(fake.last(), Some(Seen::SignOff));
}

#[tokio::test(start_paused = true)]
async fn a_panic_is_one_failed_attempt() {
    let fake = Fake::with_work(2);
    let first = Arc::new(AtomicU32::new(0));
    let summary = until_idle(&fake, settings(), move |_: Work| {
        let n = first.fetch_add(1, Ordering::SeqCst);
        async move {
            assert!(n > 0, "the first one breaks");
            Outcome::success()
        }
    })
    .await;
    assert_eq!((summary.succeeded, summary.failed), (1, 1));
    let error = fake.reports()[0].error.clone().unwrap();
    assert_eq!(error.kind.as_deref(), Some("Panic"));
    assert!(error.message.unwrap().contains("the first one breaks"));
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_is_refused_for_good_ends_the_worker_with_the_problem() {
    let fake = Fake::with_work(1);
    fake.set(|s| {
        s.refuse_claims = Some(Problem {
            status: 422,
            code: "invalid".into(),
            ..Problem::default()
        });
    });
    let (_shutdown, drain) = shutdown();
    let handler = async |_: Work| Outcome::success();
    let error = Worker::new(settings(), fake.clone(), handler)
        .run(drain)
        .await
        .unwrap_err();
    assert_eq!(error.status(), Some(422));
}

#[tokio::test(start_paused = true)]
async fn one_report_that_is_refused_does_not_hold_up_the_others() {
    let fake = Fake::with_work(3);
    fake.set(|s| s.refuse_report_of = Some("e2".into()));
    let eight = Settings {
        slots: 8,
        ..settings()
    };
    let summary = until_idle(&fake, eight, async |_: Work| {
        sleep(secs(1)).await;
        Outcome::success()
    })
    .await;
    assert_eq!((summary.succeeded, summary.lost), (2, 1));
}

#[tokio::test(start_paused = true)]
async fn progress_travels_with_the_next_renewal_and_survives_a_failed_one() {
    let fake = Fake::with_work(1);
    fake.set(|s| s.renewals_fail = true);
    let f = fake.clone();
    tokio::spawn(async move {
        sleep(secs(12)).await;
        f.set(|s| s.renewals_fail = false);
    });
    until_idle(&fake, settings(), async |work: Work| {
        work.set_progress(Json::from_text("{\"done\":7}".into()).unwrap());
        sleep(secs(30)).await;
        Outcome::success()
    })
    .await;
    let renewals = fake.renewals();
    let given: Vec<_> = renewals
        .iter()
        .filter(|r| !r.leases[0].progress.is_null())
        .collect();
    assert!(given.len() >= 2, "{renewals:?}");
    assert!(renewals.last().unwrap().leases[0].progress.is_null());
}

#[tokio::test(start_paused = true)]
async fn settings_out_of_range_are_refused_before_anything_is_sent() {
    for (bad, what) in [
        (
            Settings {
                queues: vec![],
                ..settings()
            },
            "queue",
        ),
        (
            Settings {
                slots: 0,
                ..settings()
            },
            "slots",
        ),
        (
            Settings {
                lease: Duration::from_millis(999),
                ..settings()
            },
            "lease",
        ),
        (
            Settings {
                wait: secs(61),
                ..settings()
            },
            "waits",
        ),
    ] {
        let fake = Fake::with_work(1);
        let (_shutdown, drain) = shutdown();
        let handler = async |_: Work| Outcome::success();
        let error = Worker::new(bad, fake.clone(), handler)
            .run(drain)
            .await
            .unwrap_err();
        assert!(error.to_string().contains(what), "{error}");
        assert!(fake.claims().is_empty());
    }
}

#[test]
fn worker_ids_differ_and_are_valid() {
    let (a, b) = (fresh_worker_id(), fresh_worker_id());
    assert_ne!(a, b);
    assert!(crate::ids::WorkerId::new(&a).is_ok(), "{a}");
}
