//! `gradwire trace` on what a real job has recorded.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use serde_json::Value;

fn gradwire(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_gradwire")).args(arguments).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn scratch(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = fs::remove_dir_all(&path);
    path
}

/// The trace of a bench of three ranks, made once.
fn recorded() -> &'static Path {
    static RECORDED: OnceLock<PathBuf> = OnceLock::new();
    RECORDED.get_or_init(|| {
        let directory = scratch("trace-recorded");
        let mut bench = Command::new(env!("CARGO_BIN_EXE_gradwire"));
        bench.args(["bench", "--ranks", "3", "--transport", "tcp", "--sizes", "1K,4M", "-n", "4"]);
        for variable in ["RANK", "WORLD_SIZE", "GRADWIRE_ALGORITHM", "GRADWIRE_TRACE_EVENTS"] {
            bench.env_remove(variable);
        }
        let output = bench.env("GRADWIRE_TRACE", &directory).output().unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
        directory
    })
}

/// A copy of the recorded trace that may be spoilt.
fn copy(name: &str) -> PathBuf {
    let directory = scratch(name);
    fs::create_dir_all(&directory).unwrap();
    for entry in fs::read_dir(recorded()).unwrap() {
        let path = entry.unwrap().path();
        fs::copy(&path, directory.join(path.file_name().unwrap())).unwrap();
    }
    directory
}

fn summary(directory: &Path) -> Value {
    let output = gradwire(&["trace", "summary", "--json", directory.to_str().unwrap()]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is no number"))
}

fn sum<'a>(rows: &'a Value, field: &str) -> f64 {
    let rows: &'a Vec<Value> = rows.as_array().unwrap();
    rows.iter().map(|row| number(&row[field])).sum()
}

fn is_close(a: f64, b: f64) -> bool {
    (a - b).abs() <= 1e-6 + 1e-6 * a.abs().max(b.abs())
}

#[test]
fn the_summary_adds_up() {
    let summary = summary(recorded());
    assert_eq!(
        (&summary["world_size"], &summary["warnings"]),
        (&3.into(), &Vec::<Value>::new().into())
    );
    let ranks = summary["ranks"].as_array().unwrap();
    assert_eq!(ranks.len(), 3);
    for rank in ranks {
        let [communication, hidden, exposed, window] =
            ["communication_s", "hidden_s", "exposed_s", "window_s"].map(|it| number(&rank[it]));
        assert!(is_close(hidden + exposed, communication), "{rank}");
        assert!(exposed > 0.0 && communication <= window, "{rank}");
        assert!(is_close(number(&rank["share"]), exposed / window), "{rank}");
        assert_eq!((&rank["method"], &rank["lost_events"]), (&"waits".into(), &0.into()));
    }
    // Operations in flight at once share the time, so that shares add up to the ranks' figures.
    for part in ["hidden_s", "exposed_s"] {
        assert!(
            is_close(sum(&summary["operations"], part), sum(&summary["ranks"], part)),
            "{part}"
        );
    }
    let largest = summary["operations"].as_array().unwrap().iter();
    let largest = largest.max_by_key(|it| it["bytes"].as_u64()).unwrap();
    assert!(largest["name"].as_str().unwrap().contains("1048576 elements"), "{largest}");
    for part in ["wire_s", "reduce_s", "queue_s"] {
        assert!(
            number(&largest[part]) > 0.0
                && number(&largest[part]) <= number(&largest["in_flight_s"])
        );
    }
}

#[test]
fn the_critical_path_fills_the_time_and_names_who_is_slow() {
    let summary = summary(recorded());
    let path = &summary["critical_path"];
    let seconds = number(&path["seconds"]);
    assert!(is_close(sum(&path["contributions"], "seconds"), seconds));
    let by_kind: f64 = path["by_kind"].as_object().unwrap().values().map(number).sum();
    assert!(is_close(by_kind, seconds) && number(&path["by_kind"]["wire"]) > 0.0, "{path}");
    let longest = summary["ranks"].as_array().unwrap().iter().map(|it| number(&it["window_s"]));
    // From the first operation's submission, which comes a little after the trace's beginning, and
    // perhaps on another rank than where it ends: ranks begin and end their traces one by one.
    let longest = longest.fold(0.0, f64::max);
    assert!(seconds <= longest * 1.1 && seconds > longest * 0.5, "{seconds} of {longest}");
    let links = summary["links"].as_array().unwrap();
    assert_eq!(links.len(), 6, "three ranks, each to two others");
    let slowest = number(&summary["slowest_link"]["bytes_per_s"]);
    assert!(slowest > 0.0 && links.iter().any(|it| number(&it["bytes_per_s"]) == slowest));
    let arrivals = summary["arrivals"].as_array().unwrap();
    let last: u64 = arrivals.iter().map(|it| it["last"].as_u64().unwrap()).sum();
    assert_eq!(last, arrivals[0]["collectives"].as_u64().unwrap(), "one rank is last to each");
    assert!(summary["slowest_rank"].as_u64().is_some());
}

#[test]
fn the_summary_is_also_a_table() {
    let output = gradwire(&["trace", "summary", recorded().to_str().unwrap(), "--list", "2"]);
    let table = text(&output.stdout);
    for part in [
        "exposed by",
        "waits",
        "4.0 MiB",
        "(--list)",
        "critical path of the trace",
        "slowest link: rank",
    ] {
        assert!(table.contains(part), "'{part}' is missing:\n{table}");
    }
}

#[test]
fn merged_ranks_are_one_file_with_all_events() {
    let output_path = recorded().with_file_name("merged.json");
    let output = gradwire(&[
        "trace",
        "merge",
        recorded().to_str().unwrap(),
        "-o",
        output_path.to_str().unwrap(),
    ]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let merged: Value = serde_json::from_slice(&fs::read(output_path).unwrap()).unwrap();
    let events = merged["traceEvents"].as_array().unwrap();
    for rank in 0..3 {
        let alone = fs::read(recorded().join(format!("rank{rank}.json"))).unwrap();
        let alone: Value = serde_json::from_slice(&alone).unwrap();
        assert_eq!(alone["baseTimeNanoseconds"], merged["baseTimeNanoseconds"]);
        let of_rank: Vec<&Value> = events.iter().filter(|it| it["pid"] == rank).collect();
        assert_eq!(of_rank, alone["traceEvents"].as_array().unwrap().iter().collect::<Vec<_>>());
    }
}

#[test]
fn what_is_missing_is_said() {
    let directory = copy("trace-missing");
    fs::remove_file(directory.join("rank1.json")).unwrap();
    let found = summary(&directory);
    let warnings = found["warnings"].to_string();
    assert!(warnings.contains("left no trace") && warnings.contains("rank 1"), "{warnings}");
    assert_eq!(found["ranks"].as_array().unwrap().len(), 2);
    let stranger = fs::read_to_string(directory.join("rank2.json")).unwrap();
    let job = format!("\"job\":{}", found["job"]);
    assert!(stranger.contains(&job));
    fs::write(directory.join("rank2.json"), stranger.replace(&job, "\"job\":\"other\"")).unwrap();
    let newest = fs::read(directory.join("rank0.json")).unwrap();
    std::thread::sleep(std::time::Duration::from_millis(20));
    fs::write(directory.join("rank0.json"), newest).unwrap();
    let found = summary(&directory);
    assert!(found["warnings"].to_string().contains("earlier job and passed over: rank 2"));
    assert_eq!(found["ranks"].as_array().unwrap().len(), 1);
}

#[test]
fn what_cannot_be_read_is_one_clear_error() {
    let empty = scratch("trace-empty");
    fs::create_dir_all(&empty).unwrap();
    let broken = copy("trace-broken");
    let whole = fs::read(broken.join("rank1.json")).unwrap();
    fs::write(broken.join("rank1.json"), &whole[..whole.len() / 2]).unwrap();
    let foreign = scratch("trace-foreign");
    fs::create_dir_all(&foreign).unwrap();
    fs::write(foreign.join("rank0.json"), "{\"traceEvents\": []}").unwrap();
    for (directory, status, reason) in [
        (Path::new("/nowhere/at/all"), 2, "cannot read /nowhere/at/all"),
        (&empty, 2, "there is no rank<N>.json"),
        (&broken, 1, "rank1.json is no trace that gradwire wrote, or damaged"),
        (&foreign, 1, "rank0.json is no trace that gradwire wrote"),
    ] {
        for command in [&["summary"][..], &["merge", "-o", "/dev/null"]] {
            let arguments = [&["trace"], command, &[directory.to_str().unwrap()]].concat();
            let output = gradwire(&arguments);
            assert_eq!(output.status.code(), Some(status), "{arguments:?}");
            let error = text(&output.stderr);
            assert!(error.contains(reason) && error.lines().count() == 1, "{arguments:?}: {error}");
        }
    }
}
