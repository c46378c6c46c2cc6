//! `gradwire top` on a real job.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

fn scratch(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = fs::remove_dir_all(&path);
    path
}

fn top(directory: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gradwire"));
    command.arg("top").arg(directory).args(arguments).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// A bench of three ranks that goes on until it is dropped.
struct Job(Child);

impl Job {
    fn start(directory: &Path) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_gradwire"));
        command.args(["bench", "--ranks", "3", "--transport", "tcp", "-n", "1000000"]);
        command.args(["--sizes", "4M", "-c", "0"]).env("GRADWIRE_STATUS", directory);
        command.env_remove("RANK").env_remove("WORLD_SIZE");
        Job(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap())
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        // Its ranks die with it.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Looks until all ranks are seen to send.
fn view(directory: &Path) -> Value {
    let end = Instant::now() + Duration::from_secs(20);
    loop {
        let output = top(directory, &["--once", "--json", "--interval", "200ms"]);
        if output.status.success() {
            let view: Value = serde_json::from_slice(&output.stdout).unwrap();
            let ranks = view["jobs"][0]["ranks"].as_array().unwrap();
            let is_busy = |it: &Value| it["sent_bytes_per_s"].as_f64().unwrap() > 1e6;
            if ranks.len() == 3 && ranks.iter().all(is_busy) {
                return view;
            }
        }
        assert!(Instant::now() < end, "{} {}", text(&output.stdout), text(&output.stderr));
    }
}

#[test]
fn a_running_job_is_seen_until_it_ends() {
    let directory = scratch("top");
    let job = Job::start(&directory);
    let view = view(&directory);
    let job_seen = &view["jobs"][0];
    assert_eq!(
        (&job_seen["world_size"], &job_seen["unseen"]),
        (&3.into(), &Vec::<Value>::new().into())
    );
    for (rank, seen) in (0..).zip(job_seen["ranks"].as_array().unwrap()) {
        assert_eq!(seen["rank"], rank);
        let share = seen["share"].as_f64().unwrap();
        assert!(share > 0.1 && share <= 1.01, "a bench does nothing but wait: {seen}");
        assert!(seen["in_flight_share"].as_f64().unwrap() > 0.1 && seen["compression"].is_null());
    }
    let links = job_seen["links"].as_array().unwrap();
    let speeds: Vec<f64> = links.iter().map(|it| it["bytes_per_s"].as_f64().unwrap()).collect();
    assert!(links.iter().all(|it| it["wire"] == "tcp") && speeds.is_sorted_by(|a, b| a >= b));
    let table = text(&top(&directory, &["--once", "--interval", "1ms"]).stdout);
    assert!(
        table.contains("3 of 3 ranks") && table.contains("share %") && table.contains("bit/s"),
        "{table}"
    );
    assert!(!table.contains('\x1b'), "no terminal, no escapes");
    drop(job);
    // What the killed ranks have left is seen to be dead, and removed.
    let end = Instant::now() + Duration::from_secs(20);
    while top(&directory, &["--once", "--interval", "1ms"]).status.success() {
        assert!(Instant::now() < end, "the dead are still shown");
        std::thread::sleep(Duration::from_millis(100));
    }
    let left = fs::read_dir(&directory).unwrap().map(|it| it.unwrap().path());
    assert_eq!(left.filter(|it| it.extension().is_some_and(|it| it == "json")).count(), 0);
}

#[test]
fn a_view_for_each_interval_goes_down_a_pipe() {
    let directory = scratch("top-pipe");
    let _job = Job::start(&directory);
    view(&directory);
    let mut command = Command::new(env!("CARGO_BIN_EXE_gradwire"));
    command.arg("top").arg(&directory).args(["--json", "--interval", "50ms"]);
    let mut watching = command.stdout(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(watching.stdout.take().unwrap()).lines();
    for line in lines.take(3) {
        let view: Value = serde_json::from_str(&line.unwrap()).unwrap();
        assert_eq!(view["jobs"].as_array().unwrap().len(), 1);
    }
    // Whoever read it has gone: it ends in good order.
    assert!(watching.wait().unwrap().success());
}

#[test]
fn without_a_job_there_is_an_error_that_says_what_to_look_at() {
    let output = top(Path::new("/nowhere/at/all"), &["--once"]);
    assert_eq!(output.status.code(), Some(1));
    let error = text(&output.stderr);
    assert!(error.contains("no job of this user") && error.contains("GRADWIRE_STATUS"), "{error}");
    let output = top(Path::new("/nowhere/at/all"), &["--interval", "0s"]);
    assert_eq!(output.status.code(), Some(2));
}
