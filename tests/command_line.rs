//! The binary as a shell sees it: exit codes, streams, colours, broken pipes.

#![allow(clippy::expect_used, reason = "a test fails by panicking")]

use std::process::{Command, Output, Stdio};

fn punctual(words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_punctual"));
    command
        .args(words)
        .env_remove("PUNCTUAL_SERVER")
        .env_remove("PUNCTUAL_TENANT")
        .stdin(Stdio::null());
    command
}

fn run(words: &[&str]) -> (Option<i32>, String, String) {
    let Output {
        status,
        stdout,
        stderr,
    } = punctual(words).output().expect("the binary starts");
    let text = |bytes| String::from_utf8(bytes).expect("text");
    (status.code(), text(stdout), text(stderr))
}

#[test]
fn help_and_version_are_success_on_standard_output() {
    let (code, out, err) = run(&["--version"]);
    assert_eq!((code, err.as_str()), (Some(0), ""));
    assert!(out.starts_with("punctual "), "{out}");
    let (code, out, _) = run(&["--help"]);
    assert_eq!(code, Some(0));
    assert!(
        out.contains("Exit codes:") && out.contains("schedule"),
        "{out}"
    );
    let (code, out, _) = run(&["schedule", "put", "--help"]);
    assert_eq!(code, Some(0));
    assert!(out.contains("--cron"), "{out}");
}

#[test]
fn a_wrong_command_line_is_exit_code_two_on_standard_error() {
    for words in [
        &["fly"][..],
        &["schedule", "get"],
        &["execution", "list", "--limit", "0"],
    ] {
        let (code, out, err) = run(words);
        assert_eq!((code, out.as_str()), (Some(2), ""), "{words:?}");
        assert!(err.contains("Usage") || err.contains("--help"), "{err}");
    }
}

#[test]
fn without_a_server_the_exit_code_says_so_and_nothing_is_coloured() {
    let words = [
        "cluster",
        "status",
        "--server",
        "http://127.0.0.1:1",
        "--timeout",
        "300ms",
    ];
    let (code, out, err) = run(&words);
    assert_eq!((code, out.as_str()), (Some(5), ""));
    assert!(err.starts_with("error: no server could be used"), "{err}");
    assert!(!err.contains('\u{1b}'), "{err:?}");
    let (_, _, err) = run(&[&words[..], &["--color", "always"]].concat());
    assert!(err.contains('\u{1b}'), "{err:?}");
}

#[test]
fn every_shell_gets_a_completion_script() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let (code, out, _) = run(&["completions", shell]);
        assert_eq!(code, Some(0));
        assert!(
            out.contains("punctual") && out.contains("crontab"),
            "{shell}"
        );
    }
}

#[test]
fn a_reader_that_goes_away_ends_the_output_without_a_panic() {
    let mut child = punctual(&["completions", "zsh"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary starts");
    drop(child.stdout.take());
    let out = child.wait_with_output().expect("it ends");
    let err = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(!err.contains("panicked"), "{err}");
}

#[cfg(feature = "rocks")]
#[test]
fn a_wrong_configuration_names_every_place_and_starts_nothing() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("node.toml");
    std::fs::write(&file, "node_id = 0\nlistn = \"x\"\n").expect("a file");
    let file = file.to_str().expect("a path");
    let (code, _, err) = run(&["serve", "--config", file]);
    assert_eq!(code, Some(2));
    assert!(err.contains("node.toml:1:11: node_id"), "{err}");
    assert!(
        err.contains("node.toml:2:1: listn: unknown key; did you mean `listen`?"),
        "{err}"
    );
    let (code, _, err) = run(&["serve"]);
    assert_eq!(code, Some(2));
    assert!(err.contains("--config"), "{err}");
    let (code, _, err) = run(&["serve", "--dev", "--listen", "0.0.0.0:1"]);
    assert_eq!(code, Some(2));
    assert!(err.contains("loopback"), "{err}");
}

#[cfg(feature = "rocks")]
#[test]
fn a_directory_without_a_store_is_not_verified_and_not_changed() {
    let dir = tempfile::tempdir().expect("a directory");
    let (code, _, err) = run(&[
        "store",
        "verify",
        "--data-dir",
        dir.path().to_str().expect("a path"),
    ]);
    assert_eq!(code, Some(2));
    assert!(err.contains("holds no store"), "{err}");
    assert_eq!(
        std::fs::read_dir(dir.path()).expect("a directory").count(),
        0
    );
}
