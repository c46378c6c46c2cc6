//! How runs end, and that nothing is left.

use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::setup::{self, Background, Setup, assert_status, text};

#[test]
fn the_first_failure_ends_the_run_and_is_named() {
    if !setup::possible() {
        return;
    }
    let setup = Setup::new();
    let began = Instant::now();
    let script = "test $RANK = 2 && exit 3; sleep 60";
    let output = setup.lab_run("--hosts 2 --ranks-per-host 2 -- sh -c", script).output().unwrap();
    assert_status(&output, 1);
    let said = text(&output.stderr);
    assert!(said.contains("rank 2 on host 1 exited with status 3"), "{said}");
    assert!(said.contains("terminated ranks 0, 1 and 3 because rank 2 failed"), "{said}");
    assert!(began.elapsed() < Duration::from_secs(20));
    setup.assert_nothing_left();
}

#[test]
fn a_rank_that_ignores_the_request_is_killed_after_the_grace() {
    if !setup::possible() {
        return;
    }
    let setup = Setup::new();
    let script = "trap '' TERM; test $RANK = 1 && exit 3; while :; do sleep 0.1; done";
    let output = setup.lab_run("--hosts 2 --grace 300ms -- sh -c", script).output().unwrap();
    assert_status(&output, 1);
    setup.assert_nothing_left();
}

#[test]
fn keep_going_waits_for_the_others() {
    if !setup::possible() {
        return;
    }
    let setup = Setup::new();
    let script = "test $RANK = 0 && kill -9 $$; sleep 0.5; echo survived";
    let output = setup.lab_run("--hosts 2 --keep-going -- sh -c", script).output().unwrap();
    assert_status(&output, 1);
    assert_eq!(text(&output.stdout), "[1] survived\n");
    assert!(text(&output.stderr).contains("rank 0 on host 0 was ended by SIGKILL"));
}

#[test]
fn a_run_over_its_time_ends() {
    if !setup::possible() {
        return;
    }
    let setup = Setup::new();
    let output = setup.lab_run("--hosts 2 --timeout 500ms -- sleep", "60").output().unwrap();
    assert_status(&output, 1);
    assert!(text(&output.stderr).contains("timed out after 500ms; terminated ranks 0 and 1"));
    setup.assert_nothing_left();
}

#[test]
fn a_command_that_cannot_run_has_the_shells_status() {
    if !setup::possible() {
        return;
    }
    let setup = Setup::new();
    let output = setup.lab_run("--hosts 2 --", "no-such-command").output().unwrap();
    assert_status(&output, 127);
    assert!(text(&output.stderr).contains("no-such-command: command not found"));
    let output = setup.lab_run("--hosts 2 --", "/etc/passwd").output().unwrap();
    assert_status(&output, 126);
    setup.assert_nothing_left();
}

/// Ranks with children, one of them in a session of its own, out of reach of any signal to a
/// process group.
const FAMILY: &str = "sleep 300 & setsid sleep 300 & sleep 0.2; echo up; wait";

#[test]
fn a_killed_lab_leaves_nothing() {
    if !setup::possible() {
        return;
    }
    let setup = Setup::new();
    let lab = Background::start(&mut setup.lab_run("--hosts 3 -- sh -c", FAMILY), "up", 3);
    // Front, gate, init, supervisor, socket, and for each rank a shell and two children.
    assert_eq!(setup.left_behind().len(), 5 + 3 * 3, "{:?}", setup.left_behind());
    lab.signal(Signal::KILL);
    drop(lab);
    setup.assert_nothing_left();
}

#[test]
fn a_lab_that_loses_a_process_of_its_own_ends() {
    if !setup::possible() {
        return;
    }
    for victim in ["gate", "init", "supervisor"] {
        let setup = Setup::new();
        let lab = Background::start(&mut setup.lab_run("--hosts 2 -- sh -c", FAMILY), "up", 2);
        let victim = format!("gradwire-lab-{victim}\0");
        let (process, _) = setup.processes().into_iter().find(|(_, line)| *line == victim).unwrap();
        rustix::process::kill_process(process, Signal::KILL).unwrap();
        assert_eq!(lab.finish().0.code(), Some(1), "{victim}");
        setup.assert_nothing_left();
    }
}

#[test]
fn an_interrupt_terminates_the_ranks_and_leaves_nothing() {
    if !setup::possible() {
        return;
    }
    for (signal, status) in [(Signal::INT, 130), (Signal::TERM, 143)] {
        let setup = Setup::new();
        let script = format!("trap 'echo terminated; exit 0' TERM; {FAMILY}");
        let lab = Background::start(&mut setup.lab_run("--hosts 2 -- sh -c", &script), "up", 2);
        lab.signal(signal);
        let (ended, mut rest) = lab.finish();
        rest.sort();
        assert_eq!(ended.code(), Some(status));
        assert_eq!(rest, ["[0] terminated", "[1] terminated"]);
        setup.assert_nothing_left();
    }
}

#[test]
fn a_rank_can_be_killed_and_frozen_from_outside() {
    if !setup::possible() {
        return;
    }
    let setup = Setup::new();
    let script = "echo up; i=0; while sleep 0.1; do i=$((i+1)); echo beat; done";
    let mut lab =
        Background::start(&mut setup.lab_run("--hosts 2 --keep-going -- sh -c", script), "up", 2);
    let name = &setup.name;
    assert_status(&setup.lab(&format!("signal --name {name} --rank 1 kill")), 0);
    assert_status(&setup.lab(&format!("signal --name {name} --rank 7 kill")), 2);
    let gone = Instant::now() + Duration::from_secs(10);
    while setup.lab(&format!("signal --name {name} --rank 1 kill")).status.success() {
        assert!(Instant::now() < gone, "rank 1 still runs");
    }
    assert_status(&setup.lab(&format!("signal --name {name} --rank 0 stop")), 0);
    assert_status(&setup.lab(&format!("signal --name {name} --rank 0 cont")), 0);
    lab.wait_for_line("[0] beat");
    assert_status(&setup.lab(&format!("signal --name {name} --rank 0 term")), 0);
    assert_eq!(lab.finish().0.code(), Some(1));
}
