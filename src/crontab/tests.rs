//! Tests of the crontab reader.

use std::collections::BTreeSet;

use super::*;

fn users() -> BTreeSet<String> {
    ["root", "www-data", "backup"].map(String::from).into()
}

fn accept(_: &str, _: &str) -> Result<(), String> {
    Ok(())
}

fn read_with(text: &str, user_column: UserColumn, path: Option<&str>) -> Plan {
    let known_users = users();
    let options = Options {
        user_column,
        path,
        known_users: &known_users,
        time_zone: "Europe/Berlin",
    };
    plan(text.as_bytes(), &options, &accept)
}

fn read(text: &str) -> Plan {
    read_with(text, UserColumn::Auto, None)
}

fn only(plan: &Plan) -> &Job {
    assert_eq!(plan.jobs.len(), 1, "{plan:?}");
    assert!(plan.refusals.is_empty(), "{plan:?}");
    &plan.jobs[0]
}

fn refusal(text: &str) -> String {
    let plan = read(text);
    assert!(plan.jobs.is_empty(), "{plan:?}");
    plan.refusals[0].reason.clone()
}

#[test]
fn fields_and_command_are_separated_by_any_blanks() {
    let plan = read(" \t*/5  \t 1-5 *\t* mon-fri   /usr/bin/do-it  --all \n");
    let job = only(&plan);
    assert_eq!(job.cron, "*/5 1-5 * * mon-fri");
    assert_eq!(job.command, "/usr/bin/do-it  --all");
    assert_eq!(job.time_zone, "Europe/Berlin");
    assert!(
        job.schedule_id.starts_with("do-it-all-"),
        "{}",
        job.schedule_id
    );
}

#[test]
fn blank_lines_and_comments_say_nothing() {
    let plan = read("\n   \n# 0 5 * * * off\n  # indented\n");
    assert!(plan.jobs.is_empty() && plan.refusals.is_empty() && plan.notes.is_empty());
}

#[test]
fn settings_count_for_the_lines_below_them() {
    let plan = read(
        "0 1 * * * a\nPATH=/bin:/usr/bin\n NAME = \" two words \" \n'Q N'='x'\nEMPTY=\n0 2 * * * b\nPATH = /opt\n0 3 * * * c\n",
    );
    assert!(plan.jobs[0].env.is_empty());
    let b = &plan.jobs[1].env;
    assert_eq!(b["PATH"], "/bin:/usr/bin");
    assert_eq!(b["NAME"], " two words ");
    assert_eq!(b["Q N"], "x");
    assert_eq!(b["EMPTY"], "");
    assert_eq!(plan.jobs[2].env["PATH"], "/opt");
}

#[test]
fn an_assignment_inside_a_command_is_no_setting() {
    let plan = read("0 1 * * * LANG=C sort\n@daily A=1 b\n");
    assert_eq!(plan.jobs[0].command, "LANG=C sort");
    assert_eq!(plan.jobs[1].command, "A=1 b");
    assert!(plan.jobs[1].env.is_empty());
}

#[test]
fn zones_come_from_cron_tz_then_tz_then_the_option() {
    let plan = read(
        "0 1 * * * a\nTZ=Asia/Tokyo\n0 1 * * * b\nCRON_TZ=UTC\n0 1 * * * c\nCRON_TZ=\nTZ=\n0 1 * * * d\nTZ=:US/Pacific\n0 1 * * * e\n",
    );
    let zones: Vec<_> = plan.jobs.iter().map(|j| j.time_zone.as_str()).collect();
    assert_eq!(
        zones,
        [
            "Europe/Berlin",
            "Asia/Tokyo",
            "UTC",
            "Europe/Berlin",
            "US/Pacific"
        ]
    );
    assert_eq!(plan.jobs[1].env["TZ"], "Asia/Tokyo");
    assert!(!plan.jobs[2].env.contains_key("CRON_TZ"));
    assert_eq!(plan.notes.len(), 1, "{:?}", plan.notes);
}

#[test]
fn percent_begins_the_input_and_later_ones_end_its_lines() {
    let plan = read("0 1 * * * mail -s Hi joe%Dear Joe,%%Where are your \\% kids?\n");
    let job = only(&plan);
    assert_eq!(job.command, "mail -s Hi joe");
    assert_eq!(
        job.stdin.as_deref(),
        Some("Dear Joe,\n\nWhere are your % kids?\n")
    );
    let plan = read("0 1 * * * date +\\%F >> log \\\\x\n");
    assert_eq!(only(&plan).command, "date +%F >> log \\\\x");
    assert_eq!(only(&plan).stdin, None);
    assert_eq!(only(&read("0 1 * * * cat%\n")).stdin.as_deref(), Some("\n"));
}

#[test]
fn aliases_are_kept_and_reboot_is_refused_with_the_reason() {
    for alias in [
        "yearly", "annually", "monthly", "weekly", "daily", "midnight", "hourly",
    ] {
        let plan = read(&format!("@{alias} x\n"));
        assert_eq!(only(&plan).cron, format!("@{alias}"));
    }
    assert_eq!(only(&read("@Daily x")).cron, "@daily");
    assert_eq!(only(&read("@every_minute x")).cron, "* * * * *");
    assert!(refusal("@reboot /usr/bin/start").contains("names no time"));
    assert!(refusal("@600 x").contains("\"every\": \"600s\""));
    assert!(refusal("@sometimes x").contains("not known"));
    assert!(refusal("0~59 1 * * * x").contains("random"));
}

#[test]
fn incomplete_lines_are_refused_with_their_number() {
    let plan = read("ok=1\n5 4 * * *\nnonsense\n* * * * * fine\n@daily\n");
    let lines: Vec<_> = plan.refusals.iter().map(|r| r.line).collect();
    assert_eq!(lines, [2, 3, 5]);
    assert!(plan.refusals[0].reason.contains("no command"));
    assert!(plan.refusals[1].reason.contains("has 1 words"));
    assert_eq!(plan.jobs.len(), 1);
}

#[test]
fn what_the_check_refuses_is_refused_with_its_reason() {
    let known_users = users();
    let options = Options {
        user_column: UserColumn::No,
        path: None,
        known_users: &known_users,
        time_zone: "UTC",
    };
    let check = |cron: &str, zone: &str| {
        if cron.starts_with("61") || zone != "UTC" {
            Err(format!("bad {cron} in {zone}"))
        } else {
            Ok(())
        }
    };
    let plan = plan(
        b"61 * * * * a\nCRON_TZ=Mars/Base\n1 * * * * b\n",
        &options,
        &check,
    );
    assert_eq!(plan.refusals[0].reason, "bad 61 * * * * in UTC");
    assert_eq!(plan.refusals[1].reason, "bad 1 * * * * in Mars/Base");
}

#[test]
fn the_user_column_is_recognised_by_path_or_by_every_line() {
    let text = "17 * * * * root cd / && run-parts --report /etc/cron.hourly\n";
    for plan in [
        read(text),
        read_with(text, UserColumn::Yes, None),
        read_with(text, UserColumn::Auto, Some("/etc/cron.d/php")),
    ] {
        let job = only(&plan);
        assert_eq!(job.user.as_deref(), Some("root"));
        assert_eq!(job.command, "cd / && run-parts --report /etc/cron.hourly");
        assert_eq!(job.payload()["user"], "root");
    }
    let plan = read_with(text, UserColumn::No, Some("/etc/crontab"));
    assert_eq!(only(&plan).user, None);
    assert!(only(&plan).notes[0].contains("--user-column yes"));
    assert!(!read("0 1 * * * root a b\n0 1 * * * /bin/x y\n").user_column);
    assert!(!read("0 1 * * * backup\n").user_column);
    let plan = read_with("0 1 * * * /bin/x y\n", UserColumn::Yes, None);
    assert!(plan.refusals[0].reason.contains("--user-column no"));
}

#[test]
fn a_quiet_mark_is_noted_and_removed() {
    let plan = read_with(
        "-*/15 * * * * root test -x /x && /x\n",
        UserColumn::Yes,
        None,
    );
    assert_eq!(only(&plan).cron, "*/15 * * * *");
    assert!(only(&plan).notes[0].contains("do not log"));
}

#[test]
fn line_ends_of_other_systems_and_a_missing_one_are_taken_and_noted() {
    let plan = read("A=1\r\n0 1 * * * x\r\n\r\n0 2 * * * y");
    assert_eq!(plan.jobs[0].command, "x");
    assert_eq!(plan.jobs[0].env["A"], "1");
    assert_eq!(plan.jobs[1].command, "y");
    assert_eq!(plan.notes.len(), 2, "{:?}", plan.notes);
    assert!(plan.refusals.is_empty());
    assert!(read("").notes.is_empty());
}

#[test]
fn bytes_that_are_no_text_are_refused_with_their_line() {
    let known_users = users();
    let options = Options {
        user_column: UserColumn::Auto,
        path: None,
        known_users: &known_users,
        time_zone: "UTC",
    };
    let plan = plan(
        b"0 1 * * * a\n0 1 * * * \xff\n0 1 * * * n\0ul\n",
        &options,
        &accept,
    );
    assert_eq!(plan.jobs.len(), 1);
    assert_eq!(plan.refusals[0].line, 2);
    assert!(plan.refusals[0].reason.contains("byte 11"));
    assert_eq!(plan.refusals[1].line, 3);
}

#[test]
fn ids_depend_on_the_line_alone_and_equal_lines_are_numbered() {
    let a = read("0 1 * * * /opt/a.sh\n0 1 * * * /opt/a.sh\n0 2 * * * /opt/a.sh\n");
    let ids: Vec<_> = a.jobs.iter().map(|j| j.schedule_id.clone()).collect();
    assert_eq!(ids[1], format!("{}-2", ids[0]));
    assert_ne!(ids[0], ids[2]);
    let moved = read("# new head\nX=1\n\n0  1 * * *   /opt/a.sh\n");
    assert_eq!(moved.jobs[0].schedule_id, ids[0]);
    for job in &a.jobs {
        assert!(
            crate::ids::ScheduleId::new(&job.schedule_id).is_ok(),
            "{}",
            job.schedule_id
        );
    }
    let odd = read(&format!(
        "0 1 * * * \"/ÄÖ/ü\" {}\n0 1 * * * ///\n",
        "long ".repeat(200)
    ));
    for job in &odd.jobs {
        assert!(
            crate::ids::ScheduleId::new(&job.schedule_id).is_ok(),
            "{}",
            job.schedule_id
        );
    }
}

#[test]
fn a_schedule_runs_once_late_never_and_may_overlap_as_under_cron() {
    let plan = read("SHELL=/bin/bash\n30 2 * * 1 backup | gzip%in\n");
    let job = only(&plan);
    let schedule = job.schedule("night");
    assert_eq!(
        schedule["rule"],
        json!({"cron": "30 2 * * 1", "time_zone": "Europe/Berlin"})
    );
    assert_eq!(schedule["retry"]["max_attempts"], 1);
    assert_eq!(schedule["misfire"]["policy"], "skip");
    assert_eq!(schedule["overlap"]["policy"], "allow");
    assert_eq!(schedule["kind"], "command");
    assert_eq!(schedule["queue"], "night");
    assert_eq!(
        schedule["payload"],
        json!({"shell": "backup | gzip", "env": {"SHELL": "/bin/bash"}, "stdin": "in\n"})
    );
    assert_eq!(schedule["description"], "30 2 * * 1 backup | gzip");
}
