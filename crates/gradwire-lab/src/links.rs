//! The links as iproute2 is told to make them: lines for `ip -batch` and `tc -batch`.
//!
//! Pure text; [`crate::network`] runs it.

use std::time::Duration;

use crate::plan::Lab;
use crate::rate::{Loss, Rate};

/// Name of the bridge that joins the NICs with one index.
pub(crate) fn switch(nic: usize) -> String {
    format!("sw{nic}")
}

/// Name of the switch's end of the link to a host.
pub(crate) fn port(host: usize, nic: usize) -> String {
    format!("h{host}n{nic}")
}

/// Name of the host's end.
pub(crate) fn interface(nic: usize) -> String {
    format!("eth{nic}")
}

/// `ip` lines, for the switches' namespace: the bridges, and a veth pair to each host, whose end
/// goes to the namespace of the thread given for it.
pub(crate) fn wire_up(lab: &Lab, host_threads: &[i32]) -> String {
    let mut lines = vec!["link set dev lo up".to_owned()];
    for nic in 0..lab.nics() {
        lines.push(format!("link add name {} type bridge", switch(nic)));
        lines.push(format!("link set dev {} up", switch(nic)));
    }
    for (host, thread) in host_threads.iter().enumerate() {
        for nic in 0..lab.nics() {
            lines.push(format!(
                "link add name {} type veth peer name {} netns {thread}",
                port(host, nic),
                interface(nic)
            ));
            lines.push(format!("link set dev {} master {} up", port(host, nic), switch(nic)));
        }
    }
    lines.join("\n")
}

/// `ip` lines, for a host's namespace: addresses, everything up.
pub(crate) fn address_host(lab: &Lab, host: usize) -> String {
    let mut lines = vec!["link set dev lo up".to_owned()];
    for nic in 0..lab.nics() {
        let (address, interface) = (Lab::address(host, nic), interface(nic));
        lines.push(format!("address add {address}/24 brd + dev {interface}"));
        lines.push(format!("link set dev {interface} up"));
        // The kernel notes a new carrier some time later, unless it is asked. Until then a rank
        // would take the interface for an unplugged one.
        lines.push(format!("link show dev {interface}"));
    }
    lines.join("\n")
}

/// An `ip` line that takes a port out of its switch: packets vanish in both directions while the
/// host's own end keeps its carrier, so processes meet silence and not an error.
pub(crate) fn cut(host: usize, nic: usize) -> String {
    format!("link set dev {} nomaster", port(host, nic))
}

/// An `ip` line that puts the port back.
pub(crate) fn restore(host: usize, nic: usize) -> String {
    format!("link set dev {} master {}", port(host, nic), switch(nic))
}

/// The rate that stands for "not shaped" where a token bucket is needed to carry netem.
const UNSHAPED_BITS_PER_SECOND: u64 = 100_000_000_000;

/// `tc` lines, for a host's namespace: what leaves it.
pub(crate) fn shape_host(lab: &Lab, host: usize) -> String {
    let netem = netem(lab.delay(), lab.loss(), lab.rate(host));
    let unshaped = || Rate::from_bits_per_second(UNSHAPED_BITS_PER_SECOND).expect("in range");
    let rate = lab.rate(host).or_else(|| netem.is_some().then(unshaped));
    let mut lines = Vec::new();
    for nic in 0..lab.nics() {
        lines.extend(rate.map(|rate| shape(&interface(nic), rate)));
        lines.extend(netem.as_ref().map(|netem| {
            format!("qdisc add dev {} parent 1:1 handle 10: {netem}", interface(nic))
        }));
    }
    lines.join("\n")
}

/// `tc` lines, for the switches' namespace: what goes to the hosts.
pub(crate) fn shape_ports(lab: &Lab) -> String {
    let mut lines = Vec::new();
    for host in 0..lab.hosts() {
        for nic in 0..lab.nics() {
            lines.extend(lab.rate(host).map(|rate| shape(&port(host, nic), rate)));
        }
    }
    lines.join("\n")
}

/// A `tc` line that shapes what leaves a device with a token bucket filter.
///
/// The bucket holds 2 ms of the rate, since the kernel may serve it late by that much on a busy
/// machine, and whole segments of 64 KiB, for which the filter counts the headers of all their
/// packets, where the rate is high enough for them: those that do not fit it cuts into packets,
/// which costs the processor time that a network card would save. The queue holds 12 ms more, as a switch's does, and never under 256 KiB,
/// so that several senders towards one host don't starve each other.
pub(crate) fn shape(device: &str, rate: Rate) -> String {
    let bytes = rate.bytes_per_second();
    let smallest_bucket = if rate.bits_per_second() < 50_000_000 { 8 << 10 } else { 72 << 10 };
    let bucket = (bytes / 500).max(smallest_bucket);
    let queue = bucket + (bytes * 12 / 1000).max(256 << 10);
    let bits = rate.bits_per_second();
    format!(
        "qdisc replace dev {device} root handle 1: tbf rate {bits}bit burst {bucket} limit {queue}"
    )
}

/// The netem discipline for a delay and a loss, or none when there is neither. Its queue must hold
/// what is under way during the delay; 64-byte packets are not planned for.
fn netem(delay: Duration, loss: Option<Loss>, rate: Option<Rate>) -> Option<String> {
    if delay.is_zero() && loss.is_none() {
        return None;
    }
    let bytes = rate.map_or(UNSHAPED_BITS_PER_SECOND / 8, Rate::bytes_per_second) as f64;
    let packets = (bytes * delay.as_secs_f64() / 1500.0) as u64 + 1000;
    let mut text = format!("netem limit {}", packets.min(1_000_000));
    if !delay.is_zero() {
        text += &format!(" delay {}us", delay.as_micros());
    }
    if let Some(loss) = loss {
        text += &format!(" loss {}%", loss.percent());
    }
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_switch_per_nic_and_one_pair_per_host_and_nic() {
        let lab = Lab::builder().hosts(2).nics(2).build().unwrap();
        let text = wire_up(&lab, &[71, 72]);
        assert_eq!(text.matches("type bridge").count(), 2);
        assert_eq!(text.matches("type veth").count(), 4);
        assert!(text.contains("link add name h1n0 type veth peer name eth0 netns 72\n"));
        assert!(text.contains("link set dev h1n1 master sw1 up"));
        assert!(address_host(&lab, 1).contains("address add 10.77.1.2/24 brd + dev eth1"));
    }

    #[test]
    fn nothing_is_shaped_without_a_rate() {
        let lab = Lab::builder().build().unwrap();
        assert_eq!(shape_host(&lab, 0), "");
        assert_eq!(shape_ports(&lab), "");
    }

    #[test]
    fn buckets_hold_two_milliseconds_and_queues_twelve_more() {
        assert_eq!(
            shape("eth0", "10gbit".parse().unwrap()),
            "qdisc replace dev eth0 root handle 1: tbf rate 10000000000bit burst 2500000 limit 17500000"
        );
        assert!(shape("eth0", "100mbit".parse().unwrap()).ends_with("burst 73728 limit 335872"));
        assert!(shape("eth0", "1mbit".parse().unwrap()).ends_with("burst 8192 limit 270336"));
    }

    #[test]
    fn delay_and_loss_hang_below_the_bucket() {
        let lab = Lab::builder()
            .rate("1gbit".parse().unwrap())
            .delay(Duration::from_millis(10))
            .loss("0.1%".parse().unwrap())
            .build()
            .unwrap();
        let lines = shape_host(&lab, 0);
        assert!(lines.ends_with(
            "qdisc add dev eth0 parent 1:1 handle 10: netem limit 1833 delay 10000us loss 0.1%"
        ));
        let unshaped = Lab::builder().delay(Duration::from_millis(1)).build().unwrap();
        assert!(shape_host(&unshaped, 0).starts_with("qdisc replace dev eth0 root handle 1: tbf"));
    }
}
