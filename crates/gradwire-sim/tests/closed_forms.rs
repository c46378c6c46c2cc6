//! The closed forms of a training step's collectives against the core driven over modelled links.

use std::path::Path;

use gradwire_schedule::{Algorithm, Collective, Hosts};
use gradwire_sim::network::{Operation, simulate};
use gradwire_sim::step::groups::{Group, Network};
use gradwire_sim::step::{Fabric, Practice};
use gradwire_topology::Cluster;

/// Largest relative difference between a closed form and the driven network.
const BOUND: f64 = 0.10;

fn cluster(text: &str) -> Cluster {
    Cluster::parse(Path::new("test.toml"), text).expect("a good file")
}

fn driven(cluster: &Cluster, algorithm: Algorithm, bytes: f64) -> f64 {
    let operation = Operation::all_reduce(algorithm, cluster.device_count(), bytes as u64);
    simulate(cluster, &operation, false).expect("it runs").seconds
}

/// How far a closed form is from the driven network, and where that was.
type Difference = (f64, String);

fn larger(worst: Difference, next: Difference) -> Difference {
    if next.0.abs() > worst.0.abs() { next } else { worst }
}

fn assert_bounded(differences: impl Iterator<Item = Difference>) {
    let (off, place) = differences.fold((0.0, String::new()), larger);
    assert!(!place.is_empty() && off.abs() <= BOUND, "{place}: {:+.1} %", 100.0 * off);
}

/// Bytes near so many megabytes in whole chunks, so that the driven run can be folded.
fn whole_chunks(megabytes: f64, ranks: u32) -> f64 {
    let grain = f64::from(4 * ranks);
    (megabytes * 1e6 / grain).floor() * grain
}

/// Copies on hosts of their own, as tensor groups that fill a host leave them: between 2 and 64 of
/// them, buckets of 1 to 256 MB, over 1 to 100 Gbit/s for each. Left out at 100 Gbit/s are a megabyte
/// (buckets are split among the devices of a host, and so are its NICs) and 4 MB around a ring of
/// four, where processors keep tiles waiting and the form is 16 % too fast.
#[test]
fn gradwires_exchange_between_hosts() {
    let one = |ranks: u32, gigabits: u32, megabytes: f64| {
        let hosts = cluster(&format!(
            "[[hosts]]\ncount = {ranks}\ndevice = \"a100\"\nnic = \"{gigabits}gbit\"\n"
        ));
        let fabric = Fabric::default();
        let network = Network { cluster: &hosts, fabric: &fabric };
        let group = Group::of(&hosts, ranks, 1);
        let bytes = whole_chunks(megabytes, ranks);
        let practice = Practice { gradient_bytes: 4.0, ..Practice::gradwire_ddp() };
        let closed = network.gradients(&group, bytes, &practice, 2.0);
        let apart = Hosts::apart(ranks);
        let chosen = Algorithm::choose(Collective::AllReduce, bytes as usize, &apart, true);
        let driven = driven(&hosts, chosen, bytes);
        let place = format!("{ranks} ranks, {gigabits} Gbit/s, {megabytes} MB: {closed} {driven}");
        (closed / driven - 1.0, place)
    };
    let settings = [2, 4, 8, 16, 32, 64].into_iter().flat_map(|ranks| {
        let rates = [1, 5, 10, 25, 100].into_iter();
        rates.flat_map(move |rate| {
            [1.0, 4.0, 40.0, 80.0, 256.0].map(|megabytes| (ranks, rate, megabytes))
        })
    });
    let occurring = settings.filter(|(ranks, rate, megabytes)| {
        *rate <= 25 || *megabytes >= if *ranks == 4 { 40.0 } else { 4.0 }
    });
    assert_bounded(occurring.map(|(ranks, rate, megabytes)| one(ranks, rate, megabytes)));
}

/// NCCL's ring with one or two devices of each host, as groups that share a host's NICs have them.
/// What the driven network can judge is the bandwidth that a ring of this shape finds: its processors
/// are made fast, and NCCL's share of the NICs is taken to be all. Eight groups of one device, or four
/// of two, on a host with four NICs: each has half a NIC, or a half of two. (With more devices of a
/// host NCCL makes several rings at once, which the engine does not.)
#[test]
fn rings_find_the_bandwidth_that_links_leave_them() {
    const FAST: &str = "reduce = \"10000GB/s\"\nper_frame = \"0us\"\nwire = \"infiniband\"\n\
                        pcie = \"200GB/s\"\nnvlink = \"300GB/s\"\ndevice = \"a100\"\n";
    let hosts_of = |hosts: u32, devices: u32, nics: u32, rate: &str| {
        cluster(&format!(
            "[[hosts]]\ncount = {hosts}\ndevices = {devices}\nnics = {nics}\nnic = \"{rate}\"\n{FAST}"
        ))
    };
    let fabric = Fabric { network: 1.0, ..Fabric::default() };
    let one = |per_host: u32, hosts: u32, megabytes: f64| {
        let all = hosts_of(hosts, 8, 4, "200gbit");
        let group = Group::of(&all, hosts * per_host, 8 / per_host);
        let network = Network { cluster: &all, fabric: &fabric };
        let bytes = whole_chunks(megabytes, group.ranks);
        let closed = network.all_reduce(&group, bytes);
        // The group's share of the host, alone.
        let own = hosts_of(hosts, per_host, per_host, "100gbit");
        let driven = driven(&own, Algorithm::Ring, bytes);
        let place = format!("{per_host} a host, {hosts} hosts, {megabytes} MB: {closed} {driven}");
        (closed / driven - 1.0, place)
    };
    let settings = [1, 2].into_iter().flat_map(|per_host| {
        let hosts = [2, 8, 32].into_iter();
        hosts.flat_map(move |hosts| [256.0, 1024.0].map(|megabytes| (per_host, hosts, megabytes)))
    });
    assert_bounded(settings.map(|(per_host, hosts, megabytes)| one(per_host, hosts, megabytes)));
}
