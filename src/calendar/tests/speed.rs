//! How long things take. `cargo test --release -- --ignored --nocapture calendar_speed` prints it.
//!
//! One bound is always checked, generous enough for a busy machine in a debug build: nothing hangs.

use std::hint::black_box;
use std::time::Duration;

use super::super::compiled::CronRule;
use super::*;

#[expect(
    clippy::disallowed_methods,
    reason = "measuring is what this file is for"
)]
fn measure(n: u32, mut f: impl FnMut(u32)) -> Duration {
    let start = std::time::Instant::now();
    for i in 0..n {
        f(i);
    }
    start.elapsed() / n
}

/// A question late in the range of what people ask, so that nothing is cheap by accident.
fn after(i: u32) -> Timestamp {
    Timestamp::from_millis(1_790_000_000_000 + i64::from(i) * 977_777)
}

#[test]
#[ignore = "prints timings"]
fn calendar_speed() {
    let rules = [
        (
            "every five minutes, New York",
            "*/5 * * * *",
            "America/New_York",
        ),
        (
            "weekdays at nine, Berlin",
            "0 9 * * MON-FRI",
            "Europe/Berlin",
        ),
        ("29 February, Berlin", "0 0 29 2 *", "Europe/Berlin"),
        (
            "leap days on a Sunday, Berlin",
            "0 0 29 2 */7",
            "Europe/Berlin",
        ),
        (
            "1 January 2199, Berlin",
            "0 0 0 1 1 * 2199",
            "Europe/Berlin",
        ),
        ("last Friday, UTC", "0 0 * * FRIL", "UTC"),
        ("every second, London", "* * * * * *", "Europe/London"),
    ];
    for (name, text, zone) in rules {
        let rule = compiled(text, zone);
        let next = measure(100_000, |i| {
            black_box(rule.next(after(i)));
        });
        let prev = measure(100_000, |i| {
            black_box(rule.prev(after(i)));
        });
        println!("{name:30} next {next:?}, prev {prev:?}");
    }
    let zones = ZoneData::bundled();
    let spec = cron("*/5 8-17 * * MON-FRI", "America/New_York");
    let compile = measure(100_000, |_| {
        black_box(Compiled::new(&spec, &zones, WHO)).unwrap();
    });
    let size = size_of::<Compiled>() + size_of::<CronRule>();
    println!("compile {compile:?}, {size} bytes and the text");
    let never = cron("0 0 30 2 *", "Europe/Berlin");
    let refuse = measure(1_000, |_| {
        black_box(Compiled::new(&never, &zones, WHO)).unwrap_err();
    });
    println!("refuse 30 February {refuse:?}");
    let every = compiled("* * * * * *", "Europe/London");
    let count = measure(100, |_| {
        black_box(every.count(Timestamp::EPOCH, Timestamp::MAX, u64::MAX));
    });
    println!("count every second of 230 years {count:?}");
}

#[test]
fn nothing_hangs() {
    let took = measure(1, |_| {
        for text in [
            "0 0 30 2 *",
            "0 0 31 2,4,6,9,11 *",
            "* * * 30 2 *",
            "0 0 0 29 2 */7 2100",
            "0 0 L-30 2 *",
            "0 0 30W 2 *",
        ] {
            let errors = compile(&cron(text, "Europe/Berlin")).unwrap_err();
            assert_eq!(errors[0].code, "no_future_occurrence", "{text}");
        }
        let every = compiled("* * * * * *", "Europe/Berlin");
        let all = every.count(Timestamp::MIN, Timestamp::MAX, u64::MAX);
        // The local day of both ends lies an hour before the UTC one.
        assert_eq!((all.n, all.at_least), (84_006 * 86_400, false));
        let long = "1,".repeat(5_000);
        assert_eq!(
            compile(&cron(&long, "UTC")).unwrap_err()[0].code,
            "rule_too_long"
        );
        let huge = "\u{2603}".repeat(10_000);
        assert_eq!(
            compile(&cron(&huge, "UTC")).unwrap_err()[0].code,
            "rule_too_long"
        );
    });
    assert!(took < Duration::from_secs(10), "{took:?}");
}
