//! `gradwire topo`, `simulate`, `plan`, `calibrate` and `validate` as a user meets them.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

fn gradwire(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_gradwire"))
        .args(arguments)
        .env_remove("DATA")
        .output()
        .unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// What a successful command prints.
fn printed(arguments: &[&str]) -> String {
    let output = gradwire(arguments);
    assert!(output.status.success(), "{arguments:?}: {}", text(&output.stderr));
    text(&output.stdout)
}

fn json(arguments: &[&str]) -> Value {
    serde_json::from_str(&printed(arguments)).expect("one JSON object")
}

/// The names of an object's members, sorted.
fn keys(value: &Value) -> Vec<&str> {
    let mut keys: Vec<&str> =
        value.as_object().expect("an object").keys().map(String::as_str).collect();
    keys.sort_unstable();
    keys
}

/// A command must fail with that status and one error on standard error that says all of `reasons`.
fn refused(arguments: &[&str], status: i32, reasons: &[&str]) {
    let output = gradwire(arguments);
    let error = text(&output.stderr);
    assert_eq!(output.status.code(), Some(status), "{arguments:?}: {error}");
    assert!(output.stdout.is_empty(), "{arguments:?}: {}", text(&output.stdout));
    assert_eq!(error.matches("gradwire: ").count(), 1, "{error}");
    for reason in reasons {
        assert!(error.contains(reason), "{arguments:?} lacks `{reason}`: {error}");
    }
}

fn cluster(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../clusters").join(name);
    path.to_str().unwrap().to_owned()
}

fn written(name: &str, content: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::write(&path, content).unwrap();
    path
}

const SMALL: &str = "[[hosts]]\ncount = 4\ndevice = \"a100\"\ndevices = 2\nnvlink = \"300GB/s\"\n\
                     nic = \"10gbit\"\n";

#[test]
fn topo_show_prints_draws_and_routes() {
    let file = cluster("dgx-a100-infiniband.toml");
    let svg = Path::new(env!("CARGO_TARGET_TMPDIR")).join("dgx.svg");
    let output = printed(&["topo", "show", &file, "--svg", svg.to_str().unwrap()]);
    assert!(output.contains("a100-80g") && output.contains("128"), "{output}");
    assert!(std::fs::read_to_string(svg).unwrap().contains("<svg"));
    let document = json(&["topo", "show", &file, "--route", "0:8", "--json"]);
    let expected =
        ["devices", "hosts", "kinds", "links", "name", "oversubscription", "route", "tiers"];
    assert_eq!(keys(&document), expected);
    assert_eq!(document["devices"], 1024);
    assert_eq!(keys(&document["route"]), ["bytes_per_s", "latency_s", "links"]);
    let first = &document["route"]["links"][0];
    assert_eq!(first["from"], "device 0");
    assert!(
        document["route"]["links"]
            .as_array()
            .unwrap()
            .iter()
            .any(|it| { it["from"].as_str().unwrap().contains("NIC") && it["to"] == "switch 0.0" })
    );
}

#[test]
fn topo_show_points_at_the_line() {
    let file = written("unknown-device.toml", &SMALL.replace("\"a100\"", "\"abacus\""));
    let place = format!("{}:3:", file.display());
    refused(&["topo", "show", file.to_str().unwrap()], 2, &[&place, "unknown device", "a100-80g"]);
    let file = written("no-toml.toml", "[[hosts]]\ncount = \n");
    let place = format!("{}:2:", file.display());
    refused(&["topo", "show", file.to_str().unwrap()], 2, &[&place]);
    refused(&["topo", "show", "nowhere.toml"], 2, &["nowhere.toml", "No such file"]);
    let file = written("small.toml", SMALL);
    let route = ["topo", "show", file.to_str().unwrap(), "--route", "0:8"];
    refused(&route, 2, &["`0:8` is no route", "0:7"]);
}

#[test]
fn simulate_says_where_a_step_goes() {
    let file = written("steps.toml", SMALL);
    let given = ["--model", "gpt3-1.3b", "--tp", "2", "--pp", "2", "--batch", "32"];
    let arguments = [&["simulate", "--cluster", file.to_str().unwrap()], &given[..]].concat();
    let output = printed(&arguments);
    for line in ["computation", "pipeline bubble", "optimizer", "null model", "communication share"]
    {
        assert!(output.contains(line), "no `{line}` in {output}");
    }
    let document = json(&[&arguments[..], &["--json"]].concat());
    let expected = [
        "cluster",
        "conditions",
        "error_band_pct",
        "layout",
        "layout_name",
        "model",
        "null_step_s",
        "parameters",
        "practice",
        "report",
    ];
    assert_eq!(keys(&document), expected);
    let report = &document["report"];
    let expected = [
        "bubble_s",
        "communication_share",
        "compute_s",
        "context",
        "data",
        "expert",
        "fits",
        "flops_per_device",
        "hfu",
        "link_bytes",
        "memory",
        "mfu",
        "nic_bytes",
        "optimizer_s",
        "pipeline",
        "slowdown_s",
        "step_s",
        "tensor",
        "tokens_per_second",
    ];
    assert_eq!(keys(report), expected);
    assert_eq!(keys(&report["data"]), ["bytes", "exposed_s", "total_s"]);
    assert_eq!(document["layout_name"], "tp2 pp2 dp2 zero1");
    assert!(report["step_s"].as_f64().unwrap() > report["compute_s"].as_f64().unwrap());
}

#[test]
fn simulate_takes_a_measured_step_and_hides_what_the_framework_hides() {
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../demo/model.toml");
    let lab = cluster("lab-200mbit.toml");
    let step = |framework: &str, more: &[&str]| -> Value {
        let given = ["simulate", "--cluster", &lab, "--model", model.to_str().unwrap()];
        let layout =
            ["--zero", "0", "--batch", "128", "--micro-batch", "32", "--recompute", "none"];
        let measured = ["--step-seconds", "5", "--gradient-bits", "32", "--json"];
        let framework = ["--framework", framework];
        json(&[&given[..], &layout, &measured, &framework, more].concat())["report"].clone()
    };
    let number = |report: &Value, name: &str| report[name].as_f64().unwrap();
    let ddp = step("gradwire-ddp", &[]);
    let computing = number(&ddp, "compute_s") + number(&ddp, "optimizer_s");
    assert!((computing - 5.0).abs() < 1e-6, "{ddp}");
    // 42.5 MB of gradients, 1.5 times that over 200 Mbit/s: 2.6 s, most of them under 3.3 s of backward.
    let share = |report: &Value| number(report, "communication_share");
    let parallelized = step("gradwire", &[]);
    assert!(0.0 < share(&parallelized) && share(&parallelized) < share(&ddp), "{parallelized}");
    let slow = step("gradwire", &["--nic", "20mbit"]);
    let compressed = step("gradwire", &["--nic", "20mbit", "--compress", "int4"]);
    assert!(share(&compressed) < share(&slow) / 2.0, "{compressed}");
}

#[test]
fn simulate_writes_a_timeline_and_sweeps() {
    let file = written("sweeps.toml", SMALL);
    let trace = Path::new(env!("CARGO_TARGET_TMPDIR")).join("step.json");
    let csv = Path::new(env!("CARGO_TARGET_TMPDIR")).join("sweep.csv");
    let given = ["simulate", "--cluster", file.to_str().unwrap(), "--model", "gpt3-350m"];
    let layout = ["--tp", "1", "--batch", "32"];
    printed(&[&given[..], &layout, &["--timeline", trace.to_str().unwrap()]].concat());
    let trace: Value = serde_json::from_str(&std::fs::read_to_string(trace).unwrap()).unwrap();
    assert!(!trace["traceEvents"].as_array().unwrap().is_empty());
    let sweep = ["--sweep", "nic=1gbit,100gbit", "--csv", csv.to_str().unwrap(), "--json"];
    let document = json(&[&given[..], &layout, &sweep].concat());
    let step = |at: usize| document["rows"][at]["step_s"].as_f64().unwrap();
    assert!(step(0) > step(1), "{document}");
    assert_eq!(std::fs::read_to_string(csv).unwrap().lines().count(), 3);
}

#[test]
fn simulate_drives_one_collective() {
    let arguments =
        ["simulate", "--cluster", &cluster("lab-1gbit.toml"), "--bytes", "8M", "--json"];
    let document = json(&arguments);
    let expected = [
        "algorithm",
        "algorithm_bytes_per_s",
        "bus_bytes_per_s",
        "busiest_link_bytes",
        "busiest_link_share",
        "bytes",
        "codec",
        "collective",
        "frames",
        "links",
        "ranks",
        "seconds",
        "simulated_ranks",
    ];
    assert_eq!(keys(&document), expected);
    // 8 MiB around a ring of 4 at 1 Gbit/s: 2 x 3/4 of it over each link.
    let seconds = document["seconds"].as_f64().unwrap();
    assert!((0.1..0.12).contains(&seconds), "{seconds}");
}

#[test]
fn simulate_drives_one_collective_under_every_condition() {
    let lab = cluster("lab-1gbit.toml");
    let with = |more: &[&str]| {
        json(&[&["simulate", "--cluster", &lab, "--bytes", "8M", "--json"], more].concat())
    };
    let seconds = |more: &[&str]| with(more)["seconds"].as_f64().unwrap();
    let calm = seconds(&[]);
    assert!((seconds(&["--codec", "int8"]) * 3.9 / calm - 1.0).abs() < 0.1);
    assert!(seconds(&["--straggler", "2"]) > 1.9 * calm);
    assert!(seconds(&["--late", "50000"]) > calm + 0.049);
    assert_ne!(seconds(&["--jitter", "500"]), seconds(&["--jitter", "500", "--seed", "1"]));
    let links = with(&["--unfolded"])["links"].as_array().unwrap().clone();
    let out = links.iter().filter(|it| it["to"].as_str().unwrap().starts_with("switch"));
    assert_eq!(out.count(), 4, "one link out of each host: {links:?}");
    let sweep = with(&["--sweep", "straggler=1,2"]);
    let milliseconds = |at: usize| sweep["rows"][at]["milliseconds"].as_f64().unwrap();
    assert!((milliseconds(0) - 1e3 * calm).abs() < 1e-6 && milliseconds(1) > 1.9 * milliseconds(0));
}

#[test]
fn simulate_refuses_what_cannot_be() {
    let file = written("refusals.toml", SMALL);
    let file = file.to_str().unwrap();
    let with = |model: &'static str, more: &[&'static str]| -> Vec<String> {
        let given = ["simulate", "--cluster", file, "--model", model];
        given.iter().chain(more).map(|it| (*it).to_owned()).collect()
    };
    for (arguments, reasons) in [
        (with("gpt5", &[]), &["unknown model `gpt5`", "gpt3-175b"][..]),
        (with("missing.json", &[]), &["missing.json", "No such file"]),
        (with("gpt3-1.3b", &["--tp", "3", "--ranks", "6"]), &["tp 3", "16 heads", "use one of"]),
        (with("gpt3-1.3b", &["--tp", "2", "--pp", "3"]), &["does not divide 8 devices"]),
        (with("gpt3-1.3b", &["--pp", "8", "--batch", "7", "--micro-batch", "2"]), &["use 8"]),
        (with("gpt3-1.3b", &["--ep", "2", "--tp", "1"]), &["has no experts; use ep 1"]),
        (with("gpt3-1.3b", &["--tp", "1", "--compress", "zip"]), &["`zip`", "int8"]),
        (with("gpt3-1.3b", &["--sweep", "colour=red"]), &["is no sweep", "nic="]),
        (with("gpt3-1.3b", &["--straggler", "0.5"]), &["must be at least 1"]),
        (with("gpt3-1.3b", &["--tp", "1", "--step-seconds", "0"]), &["must be above 0"]),
        (with("gpt3-175b", &[]), &["does not fit", "GB a device", "more devices"]),
    ] {
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        refused(&arguments, 2, reasons);
    }
    for (arguments, reasons) in [
        (["--codec", "int2"], &["no speed of int2 was measured", "int8"][..]),
        (["--sweep", "batch=1,2"], &["batch can't be swept", "straggler"]),
        (["--failures", "2"], &["--failures are of a training run"]),
        (["--timeline", "t.json"], &["--timeline is of a training step"]),
    ] {
        let given = ["simulate", "--cluster", file, "--bytes", "1M"];
        refused(&[&given[..], &arguments[..]].concat(), 2, reasons);
    }
    let hops = ["--bytes", "1M", "--codec", "int4", "--algorithm", "ring"];
    let hops = [&["simulate", "--cluster", file], &hops[..]].concat();
    refused(&hops, 2, &["round it at every hop", "hierarchical"]);
    refused(&["simulate", "--cluster", file], 2, &["--model is missing"]);
    let model = written("model.toml", "layers = 2\nhidden = 64\nwidth = 3\n");
    let place = format!("{}:3:", model.display());
    refused(
        &["simulate", "--cluster", file, "--model", model.to_str().unwrap()],
        2,
        &[&place, "unknown field `width`"],
    );
    let unwritable = ["--model", "gpt3-350m", "--tp", "1", "--timeline", "/nowhere/step.json"];
    refused(
        &[&["simulate", "--cluster", file], &unwritable[..]].concat(),
        1,
        &["/nowhere/step.json"],
    );
}

const MEASURED: &str = "\
# steps of last week
seconds, ranks, tp, micro_batch
2.5, 16, 1, 4
1.9, 16, 2, 4
";

#[test]
fn calibrate_makes_predictions_fit_measured_steps() {
    let file = written("calibrated.toml", SMALL);
    let steps = written("steps.csv", MEASURED);
    let out = Path::new(env!("CARGO_TARGET_TMPDIR")).join("calibration.json");
    let on = ["--cluster", file.to_str().unwrap(), "--model", "gpt3-350m", "--batch", "64"];
    let given = ["--measured", steps.to_str().unwrap(), "--out", out.to_str().unwrap()];
    let document = json(&[&["calibrate"], &on[..], &given, &["--json"]].concat());
    let rows = document["rows"].as_array().unwrap();
    assert_eq!((rows.len(), &rows[0]["line"]), (2, &Value::from(3)), "{document}");
    let layout = ["--ranks", "16", "--tp", "1", "--micro-batch", "4"];
    let calibration = ["--calibration", out.to_str().unwrap(), "--json"];
    let report = json(&[&["simulate"], &on[..], &layout, &calibration].concat());
    let predicted = report["report"]["step_s"].as_f64().unwrap();
    let error = rows[0]["error_fitted_pct"].as_f64().unwrap();
    assert!((predicted / 2.5 - 1.0 - error / 100.0).abs() < 1e-3, "{predicted} and {error} %");
    let before = document["mean_error_before_pct"].as_f64().unwrap();
    assert!(document["mean_error_fitted_pct"].as_f64().unwrap() < before / 2.0, "{document}");
    let text = printed(&[&["calibrate"], &on[..], &given[..2]].concat());
    assert!(text.contains("mean size of the error") && text.contains("left out"), "{text}");
}

#[test]
fn calibrate_refuses_rows_that_cannot_be() {
    let file = written("uncalibrated.toml", SMALL);
    for (name, text, reasons) in [
        ("colour.csv", "seconds,colour\n1,red\n", &["line: 2", "unknown field `colour`"][..]),
        ("word.csv", "seconds,tp\nfast,1\n", &["line: 2", "invalid float"]),
        ("none.csv", "seconds,tp\n", &["there are no rows"]),
        ("zero.csv", "seconds,tp\n1,2\n0,2\n", &["line 3: seconds 0 must be above 0"]),
        ("three.csv", "seconds,tp\n1,3\n", &["line 2: tp 3", "does not divide"]),
        ("model.csv", "seconds,model\n1,gpt5\n", &["line 2: unknown model `gpt5`"]),
    ] {
        let steps = written(name, text);
        let given = ["--model", "gpt3-350m", "--measured", steps.to_str().unwrap()];
        let arguments = [&["calibrate", "--cluster", file.to_str().unwrap()], &given[..]].concat();
        refused(&arguments, 2, &[&[name], reasons].concat());
    }
    let given = ["--model", "gpt3-350m", "--measured", "/nowhere.csv"];
    let arguments = [&["calibrate", "--cluster", file.to_str().unwrap()], &given[..]].concat();
    refused(&arguments, 2, &["/nowhere.csv", "No such file"]);
}

#[test]
fn plan_ranks_layouts_and_explains_every_change() {
    let file = written("plans.toml", &SMALL.replace("10gbit", "1gbit"));
    // Eight copies over 1 Gbit/s: compression pays.
    let given = ["--model", "gpt3-350m", "--batch", "64", "--tp", "1", "--framework", "ddp"];
    let arguments = [&["plan", "--cluster", file.to_str().unwrap()], &given[..]].concat();
    let output = printed(&arguments);
    assert!(output.contains("what each change brings") && output.contains("chosen"), "{output}");
    assert!(output.contains("extrapolation"), "{output}");
    let document = json(&[&arguments[..], &["--json"]].concat());
    let expected = [
        "batch",
        "best",
        "changes",
        "days",
        "days_before",
        "devices",
        "dollars",
        "dollars_before",
        "fitting",
        "layouts",
        "looked_at",
        "model",
        "parameters",
        "tokens",
        "tolerance_pct",
    ];
    assert_eq!(keys(&document), expected);
    let best = &document["best"];
    assert_eq!(keys(best), ["cost_s", "layout", "loss_pct", "practice", "report", "steps"]);
    assert!(best["loss_pct"].as_f64().unwrap() <= 0.1, "{best}");
    assert!(!best["practice"]["compression"].is_null(), "{}", best["practice"]);
    for change in document["changes"].as_array().unwrap() {
        let expected =
            ["chosen", "communication_share", "gain_pct", "loss_pct", "name", "reason", "step_s"];
        assert_eq!(keys(change), expected);
        let chosen = change["chosen"].as_bool().unwrap();
        assert_eq!(chosen, change["reason"].is_null(), "{change}");
        if change["loss_pct"].as_f64().unwrap() > 0.1 {
            let reason = change["reason"].as_str().unwrap();
            assert!(!chosen && reason.contains("the tolerance is 0.1 %"), "{change}");
        }
    }
}

#[test]
fn plan_refuses_what_cannot_be() {
    let file = written("plan-refusals.toml", SMALL);
    let given = ["plan", "--cluster", file.to_str().unwrap(), "--model"];
    let cases: [(&[&str], &[&str]); 6] = [
        (&["gpt5"], &["unknown model `gpt5`"]),
        (&["gpt3-175b"], &["does not fit", "more devices"]),
        (&["gpt3-1.3b", "--tp", "3", "--ranks", "6"], &["16 heads"]),
        (&["gpt3-1.3b", "--tolerance=-1"], &["--tolerance"]),
        (&["gpt3-1.3b", "--compress", "one-bit"], &["6.6 %", "the tolerance is 0.1 %", "simulate"]),
        (&["gpt3-1.3b", "--sweep", "straggler=1,2"], &["plan sweeps nic"]),
    ];
    for (arguments, reasons) in cases {
        refused(&[&given[..], arguments].concat(), 2, reasons);
    }
}

#[test]
fn validate_refuses_tables_that_it_cannot_read() {
    refused(&["validate", "nonsense"], 2, &["`nonsense`", "DATA=directory"]);
    refused(&["validate", "DATA=/nowhere"], 2, &["/nowhere is no directory"]);
    let empty = Path::new(env!("CARGO_TARGET_TMPDIR")).join("no-tables");
    std::fs::create_dir_all(&empty).unwrap();
    refused(
        &["validate", "--data", empty.to_str().unwrap()],
        1,
        &["vtrain_single_node_a100.csv", "No such file"],
    );
    let broken = Path::new(env!("CARGO_TARGET_TMPDIR")).join("broken-tables");
    std::fs::create_dir_all(&broken).unwrap();
    std::fs::write(broken.join("vtrain_single_node_a100.csv"), "num_gpus,global batch\n8,many\n")
        .unwrap();
    refused(
        &["validate", "--data", broken.to_str().unwrap()],
        1,
        &["vtrain_single_node_a100.csv", "line: 2"],
    );
}

#[test]
fn validate_judges_every_table_and_writes_the_page() {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("page");
    let document = json(&["validate", "--json", "--write", directory.to_str().unwrap()]);
    assert_eq!(keys(&document), ["calibration", "lab", "networks", "sections", "zero3_slope"]);
    assert_eq!(keys(&document["calibration"]), ["efficiency", "fabric"]);
    let sections = document["sections"].as_array().unwrap();
    for section in sections {
        assert_eq!(keys(section), ["key", "name", "points", "role", "score"]);
        let expected = [
            "bias_pct",
            "mape_pct",
            "null_mape_pct",
            "ordered_pct",
            "points",
            "regret_pct",
            "worst_pct",
        ];
        assert_eq!(keys(&section["score"]), expected);
    }
    let judged = |key: &str| sections.iter().find(|it| it["key"] == key).expect("it is judged");
    assert_eq!(judged("vtrain-single")["role"], "calibration");
    assert_eq!(judged("vtrain-multi")["role"], "judged");
    let page = std::fs::read_to_string(directory.join("validation.md")).unwrap();
    for section in sections {
        assert!(page.contains(section["name"].as_str().unwrap()), "{}", section["name"]);
    }
    let plot = std::fs::read_to_string(directory.join("validation/vtrain-multi.svg")).unwrap();
    assert!(plot.contains("<svg"));
    // What validate prints under `calibration` is what simulate takes.
    let constants = written("constants.json", &document["calibration"].to_string());
    let file = written("calibrated.toml", SMALL);
    let given = ["simulate", "--cluster", file.to_str().unwrap(), "--model", "gpt3-350m"];
    let layout = ["--tp", "1", "--batch", "32", "--json"];
    let plain = json(&[&given[..], &layout].concat());
    let taken = ["--calibration", constants.to_str().unwrap()];
    let fitted = json(&[&given[..], &layout, &taken].concat());
    assert_ne!(plain["report"]["step_s"], fitted["report"]["step_s"]);
}
