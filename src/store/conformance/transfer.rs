//! Checkpoints, stagings, installs.

use super::*;
use crate::fault::Fault;

fn filled<S: Subject>(subject: &S, tag: u8) -> Arc<S::Store> {
    let store = subject.create();
    for n in 0..200_u32 {
        let key = n.wrapping_mul(2_654_435_761).to_be_bytes();
        let mut batch = WriteBatch::default();
        for family in Family::ALL {
            batch.put(family, key.to_vec(), vec![tag; 40]);
        }
        store.write(batch).unwrap();
        if n == 120 {
            store.flush().unwrap();
        }
    }
    store
}

/// A sealed staging in `target` with the content of `source`, and that content.
fn transferred<S: StateStore>(source: &S, target: &S) -> (Box<dyn Staging>, Model) {
    let checkpoint = source.checkpoint().unwrap();
    let mut staging = target.stage().unwrap();
    copy(&*checkpoint, &mut *staging, 64 * 1024);
    let sealed = staging.seal().unwrap();
    let model = contents(&*sealed);
    (staging, model)
}

pub(in crate::store) fn a_checkpoint_is_an_image_of_its_moment<S: Subject>(subject: &S) {
    let store = filled(subject, 1);
    let then = contents(&*store);
    let checkpoint = store.checkpoint().unwrap();
    store
        .write(puts(Family::Live, &[(b"later", b"1")]))
        .unwrap();
    store.flush().unwrap();
    let view = checkpoint.view().unwrap();
    assert_eq!(contents(&*view), then);
    let names: Vec<_> = checkpoint.files().iter().map(|file| &file.name).collect();
    assert!(
        names.len() > 1 && names.is_sorted_by(|a, b| a < b),
        "{names:?}"
    );
    drop(checkpoint);
    assert_eq!(contents(&*view), then, "a view keeps its checkpoint");
    assert_ne!(contents(&*store), then);
}

pub(in crate::store) fn a_checkpoint_travels_in_pieces_and_installs<S: Subject>(subject: &S) {
    let source = filled(subject, 1);
    let target = filled(subject, 2);
    target
        .write(puts(Family::Live, &[(b"only here", b"1")]))
        .unwrap();
    let expected = contents(&*source);
    let checkpoint = source.checkpoint().unwrap();
    let mut staging = target.stage().unwrap();
    source
        .write(puts(Family::Live, &[(b"later", b"1")]))
        .unwrap();
    copy(&*checkpoint, &mut *staging, 777);
    let before = contents(&*target);
    let sealed = staging.seal().unwrap();
    assert_eq!(contents(&*sealed), expected);
    assert_eq!(contents(&*target), before, "not before the install");
    drop(sealed);
    target.install(staging).unwrap();
    assert_eq!(contents(&*target), expected);
}

pub(in crate::store) fn a_snapshot_from_before_an_install_keeps_the_old_content<S: Subject>(
    subject: &S,
) {
    let source = filled(subject, 1);
    let target = filled(subject, 2);
    let old = contents(&*target);
    let snapshot = target.snapshot();
    let checkpoint = target.checkpoint().unwrap();
    for round in 0..2 {
        let (staging, model) = transferred(&*source, &*target);
        let between = target.snapshot();
        target.install(staging).unwrap();
        assert_eq!(contents(&*target), model);
        assert_eq!(contents(&*snapshot), old, "round {round}");
        drop(between);
    }
    assert_eq!(contents(&*checkpoint.view().unwrap()), old);
}

pub(in crate::store) fn an_install_is_durable_and_takes_writes<S: Subject>(subject: &S) {
    let source = filled(subject, 1);
    let mut target = subject.create();
    let (staging, mut model) = transferred(&*source, &*target);
    target.install(staging).unwrap();
    target = subject.restart(target);
    assert_eq!(contents(&*target), model);
    for round in 0..2_u8 {
        let batch = puts(Family::Live, &[(&[round], b"new")]);
        write_model(&mut model, &batch);
        target.write(batch).unwrap();
        target.flush().unwrap();
        target = subject.restart(target);
        assert_eq!(contents(&*target), model);
    }
    let (staging, model) = transferred(&*source, &*target);
    target.install(staging).unwrap();
    assert_eq!(contents(&*target), model);
}

pub(in crate::store) fn an_unsealed_or_foreign_staging_is_not_installed<S: Subject>(subject: &S) {
    let source = filled(subject, 1);
    let target = filled(subject, 2);
    let before = contents(&*target);
    let mut unsealed = target.stage().unwrap();
    copy(&*source.checkpoint().unwrap(), &mut *unsealed, 4096);
    assert!(matches!(target.install(unsealed), Err(Fault::Invariant(_))));
    let (foreign, _) = transferred(&*source, &*source);
    assert!(matches!(target.install(foreign), Err(Fault::Invariant(_))));
    let (replaced, _) = transferred(&*source, &*target);
    let _newer = target.stage().unwrap();
    assert!(matches!(target.install(replaced), Err(Fault::Invariant(_))));
    assert_eq!(contents(&*target), before);
}

pub(in crate::store) fn a_damaged_or_incomplete_staging_is_not_sealed<S: Subject>(subject: &S) {
    let source = filled(subject, 1);
    let target = filled(subject, 2);
    let before = contents(&*target);
    assert!(target.stage().unwrap().seal().is_err(), "nothing received");
    let checkpoint = source.checkpoint().unwrap();
    let largest = checkpoint
        .files()
        .iter()
        .max_by_key(|file| file.len)
        .unwrap();
    let mut staging = target.stage().unwrap();
    for file in checkpoint
        .files()
        .iter()
        .filter(|file| file.name != largest.name)
    {
        let len = usize::try_from(file.len).unwrap();
        staging
            .append(&file.name, &checkpoint.read(&file.name, 0, len).unwrap())
            .unwrap();
    }
    let len = usize::try_from(largest.len / 2).unwrap();
    staging
        .append(
            &largest.name,
            &checkpoint.read(&largest.name, 0, len).unwrap(),
        )
        .unwrap();
    assert!(
        staging.seal().is_err(),
        "half of {} is missing",
        largest.name
    );
    drop(staging);
    assert_eq!(contents(&*target), before);
}

pub(in crate::store) fn names_that_leave_the_directory_are_refused<S: Subject>(subject: &S) {
    let store = subject.create();
    let mut staging = store.stage().unwrap();
    let long = "x".repeat(129);
    for name in [
        "",
        ".",
        "..",
        "../x",
        "a/b",
        "/etc/x",
        ".hidden",
        "a\0b",
        "ä",
        long.as_str(),
    ] {
        let answer = staging.append(name, b"x");
        assert!(
            matches!(answer, Err(Fault::Corrupt(_))),
            "{name:?}: {answer:?}"
        );
    }
}

pub(in crate::store) fn a_dropped_staging_leaves_the_store_as_it_was<S: Subject>(subject: &S) {
    let source = filled(subject, 1);
    let target = filled(subject, 2);
    let before = contents(&*target);
    for _ in 0..2 {
        drop(transferred(&*source, &*target));
    }
    assert_eq!(contents(&*target), before);
    target.flush().unwrap();
    let target = subject.restart(target);
    assert_eq!(contents(&*target), before);
}
