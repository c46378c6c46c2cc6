//! The ready-made files, and files that are wrong.

use std::fs;
use std::path::Path;

use gradwire_topology::{Cluster, Graph, draw};
use proptest::prelude::*;

fn ready_made() -> Vec<Cluster> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../clusters");
    let files = fs::read_dir(directory).expect("the directory of ready-made files");
    let paths = files.map(|file| file.expect("readable").path());
    let clusters: Vec<Cluster> = paths
        .filter(|path| path.extension().is_some_and(|it| it == "toml"))
        .map(|path| Cluster::read(&path).unwrap_or_else(|fault| panic!("{fault}")))
        .collect();
    assert!(clusters.len() >= 10);
    clusters
}

#[test]
fn routes_are_unbroken_and_come_back_the_same_way() {
    for cluster in ready_made() {
        let graph = Graph::of(&cluster);
        let devices = graph.device_count();
        for (from, to) in [(0, devices - 1), (0, 1), (devices / 2, 0), (devices - 1, devices / 3)] {
            if from == to || from.max(to) >= devices {
                continue;
            }
            let route = graph.route(from, to, 0);
            for pair in route.windows(2) {
                let (one, next) = (graph.links[pair[0] as usize], graph.links[pair[1] as usize]);
                assert_eq!(one.to, next.from, "{}: {from} to {to}", cluster.name);
            }
            let mut back: Vec<u32> = graph.route(to, from, 0).iter().map(|link| link ^ 1).collect();
            back.reverse();
            assert_eq!(route, back, "{}: {from} to {to}", cluster.name);
        }
    }
}

#[test]
fn every_ready_made_file_is_shown_and_drawn() {
    for cluster in ready_made() {
        let text = draw::print(&cluster);
        assert!(text.contains(&cluster.hosts[0].device.name), "{text}");
        let svg = draw::svg(&cluster);
        assert!(svg.starts_with("<svg") && svg.ends_with("</svg>"));
        assert!(svg.contains("host 0"));
    }
}

fn fault_of(text: &str) -> (Option<usize>, String) {
    let fault = Cluster::parse(Path::new("bad.toml"), text).expect_err("it is wrong");
    (fault.line(), fault.to_string())
}

#[test]
fn faults_point_at_the_line_and_say_what_works() {
    let good = "[[hosts]]\ncount = 2\ndevice = \"h100\"\nnic = \"10gbit\"\n";
    assert!(Cluster::parse(Path::new("good.toml"), good).is_ok());
    let cases = [
        ("\"h100\"", "\"h1000\"", 3, "h100"),
        ("\"10gbit\"", "\"10 gallons\"", 4, "100gbit"),
        ("count = 2", "count = 0", 2, "at least 1"),
        ("count = 2", "cuont = 2", 2, "count"),
        ("count = 2", "count = -1", 2, ""),
        ("\"10gbit\"", "\"0gbit\"", 4, "above 0"),
        ("count = 2", "count = 2000000", 1, "limit"),
    ];
    for (from, to, line, says) in cases {
        let (found, text) = fault_of(&good.replace(from, to));
        assert_eq!(found, Some(line), "{text}");
        assert!(text.contains(says), "{text}");
    }
    let tiers = format!(
        "{good}[[tiers]]\nname = \"a\"\nhosts = 4\nuplink = \"1gbit\"\n\
                         [[tiers]]\nname = \"b\"\nhosts = 6\nuplink = \"1gbit\"\n"
    );
    let (line, text) = fault_of(&tiers);
    assert_eq!(line, Some(11), "{text}");
}

proptest! {
    #[test]
    fn no_text_makes_it_panic(text in "\\PC*", cut in 0usize..120) {
        let path = Path::new("any.toml");
        let _ = Cluster::parse(path, &text).map_err(|fault| fault.to_string());
        let good = "[[hosts]]\ncount = 3\ndevice = \"cpu\"\nnic = { up = \"1gbit\", latency = \"1ms\" }\n";
        let cut = cut.min(good.len());
        let mixed = format!("{}{text}{}", &good[..cut], &good[cut..]);
        if let Ok(cluster) = Cluster::parse(path, &mixed) {
            let _ = draw::print(&cluster);
        }
    }

    #[test]
    fn the_graph_has_what_the_file_says(hosts in 1u32..20, devices in 1u32..9, nics in 1u32..9) {
        let text = format!(
            "[[hosts]]\ncount = {hosts}\ndevices = {devices}\nnics = {nics}\ndevice = \"cpu\"\nnic = \"1gbit\"\n"
        );
        let cluster = Cluster::parse(Path::new("c.toml"), &text).expect("good");
        let graph = Graph::of(&cluster);
        prop_assert_eq!(graph.device_count(), hosts * devices);
        for device in 0..graph.device_count() {
            prop_assert_eq!(graph.host_of(device), cluster.place_of(device).0);
        }
    }
}
