//! The simulation proves itself: it is repeatable, and it finds bugs that are planted.

use raft_tests::sim::options::Overrides;
use raft_tests::sim::seed::Seed;
use raft_tests::sim::{SeedReport, run_seed};
use raft_tests::workload::Kind;

fn run(seed: u64, overrides: &Overrides) -> SeedReport {
    run_seed(Seed(seed), overrides, &|seed, options| {
        Kind::Chronicle.make(seed, options)
    })
}

#[test]
fn same_seed_gives_the_same_hash_whatever_ran_before() {
    let overrides = Overrides::default();
    let first: Vec<u64> = (0..4).map(|seed| run(seed, &overrides).hash).collect();
    let again: Vec<u64> = (0..4)
        .rev()
        .map(|seed| run(seed, &overrides).hash)
        .collect();
    assert!(first.iter().eq(again.iter().rev()));
    assert_ne!(first[0], first[1]);
}

#[test]
fn ordinary_seeds_hold_and_are_not_empty() {
    for seed in 0..6 {
        let report = run(seed, &Overrides::default());
        assert_eq!(report.violations, Vec::<String>::new(), "seed {seed}");
        assert!(report.counters.get("acked") >= 200);
        assert!(report.counters.get("faults") >= 5);
        assert!(report.counters.get("virtual_ms") >= 20_000);
    }
}

/// Seeds of `0..count` in which `overrides` break a rule.
fn broken(count: u64, overrides: &Overrides) -> u64 {
    let fails = |seed: &u64| !run(*seed, overrides).violations.is_empty();
    u64::try_from((0..count).filter(fails).count()).unwrap_or(0)
}

#[test]
fn leader_that_resumes_its_term_is_caught() {
    let planted = Overrides {
        leader_restore: true,
        only_fast_returns: true,
        ..Overrides::default()
    };
    let sound = Overrides {
        leader_restore: false,
        ..planted.clone()
    };
    assert!(broken(10, &planted) > 0);
    assert_eq!(broken(10, &sound), 0);
}

#[test]
fn acknowledgement_before_the_sync_is_caught() {
    let planted = Overrides {
        acknowledge_early: true,
        ..Overrides::default()
    };
    assert!(broken(10, &planted) > 0);
}
