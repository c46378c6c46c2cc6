//! `gradwire schedule show` as a user meets it.

use std::process::{Command, Output};

fn show(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_gradwire"))
        .args(["schedule", "show"])
        .args(arguments)
        .output()
        .unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[test]
fn a_ring_is_printed_and_drawn() {
    let svg = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("ring.svg");
    let output = show(&["--algorithm", "ring", "--ranks", "8", "--svg", svg.to_str().unwrap()]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(text(&output.stdout).starts_with("all_reduce by ring: 8 ranks, 8 chunks, 14 rounds"));
    assert!(std::fs::read_to_string(svg).unwrap().contains("<svg"));
}

#[test]
fn json_is_one_object_with_every_step() {
    let output = show(&["--algorithm", "ring", "--ranks", "4", "--json"]);
    let document: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(document["algorithm"], "ring");
    assert_eq!(document["ranks"], 4);
    assert_eq!(document["programs"].as_array().unwrap().len(), 4);
    assert_eq!(document["programs"][0]["steps"].as_array().unwrap().len(), 12);
}

#[test]
fn what_cannot_be_is_bad_usage() {
    for (arguments, reason) in [
        (&["--algorithm", "ring", "--ranks", "0"][..], "at least one rank"),
        (&["--algorithm", "ring", "--ranks", "1025"], "the limit is 1024"),
        (&["--algorithm", "spiral", "--ranks", "4"], "unknown algorithm `spiral`"),
        (&["--algorithm", "ring", "--ranks", "4", "--root", "1"], "has no root"),
        (
            &["--algorithm", "star", "--ranks", "4", "--collective", "reduce", "--root", "4"],
            "rank 4 is not in a group of 4",
        ),
        (
            &["--algorithm", "ring", "--ranks", "4", "--collective", "all_to_all"],
            "ring does not do all_to_all",
        ),
    ] {
        let output = show(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(text(&output.stderr).contains(reason), "{}", text(&output.stderr));
    }
}
