//! The rate algorithm as a table. Whole grants are tested in `state::grants`.

use super::*;

const NOW: Timestamp = Timestamp::from_millis(1_800_000_000_000);

const fn rate(count: u32, per: Millis, burst: u32) -> RateLimit {
    RateLimit { count, per, burst }
}

/// How many of `asked` are admitted at NOW + each offset.
fn admitted(rate: RateLimit, offsets_ms: &[u64], asked: u32) -> Vec<u32> {
    let mut tat_ns = 0;
    let mut at = |offset: u64| {
        let now = NOW.plus(Millis(offset));
        let mut count = 0;
        for _ in 0..asked {
            if let Ok(next) = take(&rate, tat_ns, now) {
                tat_ns = next;
                count += 1;
            }
        }
        count
    };
    offsets_ms.iter().map(|offset| at(*offset)).collect()
}

#[test]
fn a_rate_admits_as_the_table_says() {
    let second = Millis::secs(1);
    let cases: &[(RateLimit, &[u64], &[u32])] = &[
        // One at an instant, then one an interval.
        (
            rate(10, second, 1),
            &[0, 99, 100, 150, 200],
            &[1, 0, 1, 0, 1],
        ),
        // A burst, then the pace; a rest fills it again, never over the burst.
        (rate(10, second, 3), &[0, 100, 150, 10_000], &[3, 1, 0, 3]),
        (
            rate(1, Millis::hours(1), 1),
            &[0, 3_599_999, 3_600_000],
            &[1, 0, 1],
        ),
        // An interval below a millisecond: a log time admits what came due since the last one.
        (rate(5_000, second, 5), &[0, 1, 2], &[5, 5, 5]),
        (rate(5_000, second, 1), &[0, 1, 2, 500], &[1, 5, 5, 1]),
        // Late entries lose nothing of the rate, unless they are later than a tenth of a second.
        (
            rate(10, second, 1),
            &[0, 180, 200, 290, 300],
            &[1, 1, 1, 0, 1],
        ),
        (rate(10, second, 1), &[0, 201, 300, 301], &[1, 1, 0, 1]),
        // An interval that is no whole number of nanoseconds is rounded up.
        (
            rate(3, second, 1),
            &[0, 333, 334, 666, 667],
            &[1, 0, 1, 0, 1],
        ),
    ];
    for (rate, offsets, expected) in cases {
        assert_eq!(
            admitted(*rate, offsets, 9),
            *expected,
            "{rate:?} at {offsets:?}"
        );
    }
}

#[test]
fn a_long_run_is_never_faster_than_the_rate() {
    let rate = rate(7, Millis::secs(1), 2);
    let every_ms: Vec<u64> = (0_u64..60_000).collect();
    let total: u32 = admitted(rate, &every_ms, 1).iter().sum();
    assert!(
        (419..=422).contains(&total),
        "{total} in a minute of 7 a second"
    );
}

#[test]
fn a_refusal_names_the_first_time_that_admits() {
    for rate in [
        rate(3, Millis::secs(1), 1),
        rate(7, Millis::minutes(1), 4),
        rate(1, Millis::days(1), 1),
    ] {
        let mut tat_ns = 0;
        let until = loop {
            match take(&rate, tat_ns, NOW) {
                Ok(next) => tat_ns = next,
                Err(until) => break until,
            }
        };
        assert!(until > NOW);
        assert!(take(&rate, tat_ns, until).is_ok(), "{rate:?}");
        assert!(
            take(&rate, tat_ns, until.minus(Millis(1))).is_err(),
            "{rate:?}"
        );
    }
}

#[test]
fn absurd_limits_neither_panic_nor_admit_without_end() {
    let extremes = [
        rate(0, Millis::ZERO, 0),
        rate(u32::MAX, Millis(1), u32::MAX),
        rate(1, Millis(u64::MAX), u32::MAX),
    ];
    for rate in extremes {
        for at in [Timestamp::MIN, Timestamp::EPOCH, NOW, Timestamp::MAX] {
            for tat_ns in [0, u64::MAX / 2, u64::MAX] {
                let _ = take(&rate, tat_ns, at);
            }
        }
    }
}
