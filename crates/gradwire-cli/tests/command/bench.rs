//! `gradwire bench` as a user meets it.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process, test_kill_process};

fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gradwire"));
    command.arg("bench").args(arguments);
    for variable in ["RANK", "WORLD_SIZE", "GRADWIRE_TRANSPORT", "GRADWIRE_ALGORITHM"] {
        command.env_remove(variable);
    }
    command
}

fn bench(arguments: &[&str]) -> Output {
    command(arguments).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[test]
fn json_is_one_object_with_a_result_for_each_size() {
    for transport in ["shm", "tcp"] {
        let arguments = ["--ranks", "2", "--transport", transport, "--sizes", "8,1K,1M", "-n", "3"];
        let output = bench(&[&arguments[..], &["--json"]].concat());
        assert!(output.status.success(), "{}", text(&output.stderr));
        let document: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(document["ranks"], 2);
        assert_eq!(document["transport"], transport);
        assert_eq!(document["collective"], "all_reduce");
        assert_eq!(document["algorithm"], "auto");
        assert_eq!(document["dtype"], "float32");
        let results = document["results"].as_array().unwrap();
        let sizes: Vec<_> = results.iter().map(|it| it["size_bytes"].as_u64().unwrap()).collect();
        assert_eq!(sizes, [8, 1024, 1 << 20]);
        for result in results {
            assert_eq!(result["wrong"], 0);
            let median = result["time_us"].as_f64().unwrap();
            assert!(median > 0.0 && median <= result["time_us_p99"].as_f64().unwrap());
            let bandwidth = result["size_bytes"].as_f64().unwrap() / median / 1e3;
            assert!(
                (result["busbw_gbytes_per_s"].as_f64().unwrap() / bandwidth - 1.0).abs() < 1e-6
            );
        }
    }
}

#[test]
fn every_collective_gives_what_it_should() {
    for collective in [
        "all_reduce",
        "reduce:1",
        "broadcast:2",
        "reduce_scatter",
        "all_gather",
        "gather:1",
        "scatter:1",
        "all_to_all",
        "barrier",
        "send_receive:2:1",
    ] {
        let output =
            bench(&["--ranks", "3", "--collective", collective, "--sizes", "8,100K", "-n", "2"]);
        assert!(output.status.success(), "{collective}: {}", text(&output.stderr));
        assert!(text(&output.stdout).contains("# Out of bounds values : 0 OK"), "{collective}");
    }
}

#[test]
fn the_table_is_also_written_as_comma_separated_values() {
    let path = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("bench.csv");
    let csv = path.to_str().unwrap();
    let output =
        bench(&["--ranks", "2", "-b", "1K", "-e", "4K", "-n", "2", "-c", "0", "--csv", csv]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let lines: Vec<String> = fs::read_to_string(path).unwrap().lines().map(str::to_owned).collect();
    assert_eq!(lines.len(), 4);
    let columns = lines[0].split(',').count();
    assert!(lines.iter().all(|line| line.split(',').count() == columns));
    assert!(lines[3].starts_with("2,auto,all_reduce,auto,float32,sum,,4096,1024,"));
}

#[test]
fn what_cannot_be_is_bad_usage() {
    for (arguments, reason) in [
        (&[][..], "give --ranks N"),
        (&["--ranks", "0"], "--ranks"),
        (&["--ranks", "2", "--dtype", "float31"], "float32"),
        (&["--ranks", "2", "--transport", "pigeon"], "auto, tcp or shm"),
        (&["--ranks", "2", "--collective", "reduce", "--root", "2"], "names rank 2"),
        (&["--ranks", "2", "--op", "bxor"], "bxor is not defined for float32"),
    ] {
        let output = bench(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        let error = text(&output.stderr);
        assert!(error.contains(reason), "{arguments:?}: {error}");
    }
}

/// A bench that would go on for hours, and its ranks' process numbers.
fn endless() -> (Child, Vec<Pid>) {
    let mut child = command(&["--ranks", "3", "--sizes", "64M,64M", "-n", "1000000"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.as_mut().unwrap()).lines();
    let pids = lines
        .map(Result::unwrap)
        .filter(|line| line.starts_with("#  Rank"))
        .map(|line| line.split_whitespace().nth(4).unwrap().parse().unwrap())
        .map(|pid| Pid::from_raw(pid).unwrap())
        .take(3)
        .collect();
    (child, pids)
}

#[test]
fn a_killed_rank_ends_the_run_with_its_name() {
    let (mut child, ranks) = endless();
    kill_process(ranks[1], Signal::KILL).unwrap();
    let status = child.wait().unwrap();
    assert_eq!(status.code(), Some(1));
    let mut error = String::new();
    child.stderr.unwrap().read_to_string(&mut error).unwrap();
    assert!(error.contains("rank 1"), "{error}");
    assert!(ranks.iter().all(|rank| test_kill_process(*rank).is_err()), "a rank is left");
}

#[test]
fn ctrl_c_ends_all_ranks() {
    let (mut child, ranks) = endless();
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert!(ranks.iter().all(|rank| test_kill_process(*rank).is_err()), "a rank is left");
}

#[test]
fn ranks_do_not_outlive_a_killed_parent() {
    let (mut child, ranks) = endless();
    child.kill().unwrap();
    child.wait().unwrap();
    let end = Instant::now() + Duration::from_secs(5);
    while ranks.iter().any(|rank| test_kill_process(*rank).is_ok()) {
        assert!(Instant::now() < end, "a rank is left");
        std::thread::sleep(Duration::from_millis(10));
    }
}
