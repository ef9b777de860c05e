//! What a worker does right without being told: bounded reports, renewals beside a stubborn handler, a clean close.

use super::*;

#[tokio::test(start_paused = true)]
async fn a_result_over_the_bound_is_replaced_by_a_note() {
    let fake = Fake::with_work(1);
    let summary = until_idle(&fake, settings(), async |_: Work| {
        Outcome::success_with(&"x".repeat(RESULT_MAX))
    })
    .await;
    assert_eq!(summary.succeeded, 1);
    let (item, _) = fake.reported();
    assert!(
        item.result.text().contains("result_left_out"),
        "{:?}",
        item.result
    );
}

/// A report that the server refuses would leave the lease to expire and the work to be done again.
#[tokio::test(start_paused = true)]
async fn what_a_handler_says_at_length_is_cut_to_what_the_server_takes() {
    use crate::wire::limits;
    let within = |text: &str, bound: &limits::Bound| {
        assert!(text.len() as u64 <= bound.max, "{} bytes", text.len());
        assert!(text.ends_with('…'), "it is marked");
    };
    let fake = Fake::with_work(1);
    until_idle(&fake, settings(), async |_: Work| {
        let mut outcome = Outcome::fail("é".repeat(500), "\n at x".repeat(1 << 20));
        if let Outcome::Failure {
            error, retry_in, ..
        } = &mut outcome
        {
            error.details = Json::from_value(&"y".repeat(1 << 20)).unwrap();
            *retry_in = Some(Duration::MAX);
        }
        outcome
    })
    .await;
    let (item, _) = fake.reported();
    let error = item.error.unwrap();
    within(&error.kind.unwrap(), &limits::ERROR_TYPE_BYTES);
    within(&error.message.unwrap(), &limits::ERROR_BYTES);
    assert!(error.details.is_null());
    assert_eq!(item.retry_in_ms, Some(limits::BACKOFF_MS.max));
    let fake = Fake::with_work(1);
    until_idle(&fake, settings(), async |_: Work| Outcome::Release {
        delay: Duration::MAX,
        reason: "z".repeat(1 << 20),
    })
    .await;
    let (item, _) = fake.reported();
    within(&item.reason.unwrap(), &limits::REASON_BYTES);
    assert_eq!(item.delay_ms, Some(limits::RELEASE_DELAY_MS.max));
    let fake = Fake::with_work(1);
    until_idle(&fake, settings(), async |_: Work| {
        Outcome::fail("", "no type")
    })
    .await;
    let (item, _) = fake.reported();
    assert_eq!(item.error.unwrap().kind, None, "an empty type is none");
}

/// Work that arrives between the wish to close and the end of the poll is nobody's yet: it is given back unspent, and no
/// handler begins.
#[tokio::test(start_paused = true)]
async fn work_that_arrives_after_the_close_is_given_back_and_never_begun() {
    for gap in 0..20 {
        let fake = Fake::with_work(0);
        let (shutdown, drain) = shutdown();
        let begun = Arc::new(AtomicU32::new(0));
        let b = Arc::clone(&begun);
        let handler = move |_: Work| {
            b.fetch_add(1, Ordering::SeqCst);
            async { Outcome::success() }
        };
        let worker = tokio::spawn(Worker::new(settings(), fake.clone(), handler).run(drain));
        sleep(secs(1)).await;
        // The drain call is slower than the work that comes: the poll still answers with it.
        fake.set(|s| s.deaf_to_drain = true);
        shutdown.drain();
        sleep(Duration::from_millis(gap)).await;
        fake.set(|s| s.ready = 1);
        let began = Instant::now();
        let summary = worker.await.unwrap().unwrap();
        assert!(began.elapsed() <= secs(3), "{:?}", began.elapsed());
        assert_eq!(begun.load(Ordering::SeqCst), 0, "{gap} ms");
        assert_eq!((summary.claimed, summary.released), (1, 1));
        let (item, after) = fake.reported();
        assert_eq!(item.action, Some(ReportAction::Release));
        assert!(after <= secs(2), "{after:?}");
        assert_eq!(fake.last(), Some(Seen::SignOff));
    }
}

/// A handler that keeps its thread busy, or blocks it, does not keep its lease from being renewed.
#[test]
fn a_handler_that_blocks_its_thread_keeps_its_lease() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        for busy in [true, false] {
            let fake = Fake::with_work(1);
            fake.set(|s| s.lease_ms = 1_000);
            let short = Settings {
                lease: secs(1),
                ..settings()
            };
            let summary = until_idle(&fake, short, move |work: Work| async move {
                let end = std::time::Instant::now() + Duration::from_millis(2_500);
                while std::time::Instant::now() < end {
                    if !busy {
                        std::thread::sleep(Duration::from_millis(100));
                    }
                }
                assert!(work.time_left() > Duration::ZERO, "it lives");
                Outcome::success()
            })
            .await;
            assert_eq!(
                (summary.claimed, summary.succeeded, summary.lost),
                (1, 1, 0)
            );
            assert!(fake.renewals().len() >= 5, "{}", fake.renewals().len());
        }
    });
}
