//! A cluster for people: text and SVG.

use std::fmt::Write;

use crate::cluster::{Cluster, HostKind, LinkSpeed};
use crate::units::Rate;

/// Most hosts that are drawn for each switch; the rest is said in words.
const DRAWN_HOSTS: u32 = 4;
/// Most switches that are drawn.
const DRAWN_SWITCHES: u32 = 4;

/// A few lines that say what there is.
pub fn print(cluster: &Cluster) -> String {
    let mut text = format!(
        "{}\n{} hosts, {} devices\n",
        cluster.name,
        cluster.host_count(),
        cluster.device_count()
    );
    for kind in &cluster.hosts {
        let _ = writeln!(text, "\n{} x host", kind.count);
        for line in host_lines(kind) {
            let _ = writeln!(text, "  {line}");
        }
    }
    for tier in &cluster.tiers {
        let _ = writeln!(
            text,
            "\n{} of {} hosts\n  uplink {}",
            tier.name,
            tier.hosts,
            show_link(&tier.uplink)
        );
    }
    if cluster.oversubscription() > 1.0 {
        let _ = writeln!(text, "\noversubscribed {:.2} to 1", cluster.oversubscription());
    }
    text
}

fn show_link(link: &LinkSpeed) -> String {
    let rates = if link.up == link.down {
        link.up.to_string()
    } else {
        format!("{} up, {} down", link.up, link.down)
    };
    format!("{rates}, {}", link.latency)
}

fn host_lines(kind: &HostKind) -> Vec<String> {
    let device = &kind.device;
    let mut lines = vec![format!(
        "{} x {} ({:.0} TFLOP/s, {:.0} GB at {})",
        kind.devices,
        device.name,
        device.peak.0 / 1e12,
        device.memory.0 / 1e9,
        Rate(device.bandwidth.0)
    )];
    if let Some(nvlink) = &kind.nvlink {
        lines.push(format!("devices joined directly, {} each", show_link(nvlink)));
    }
    lines.push(format!(
        "PCIe {}, {} devices a switch, {} NUMA nodes",
        show_link(&kind.pcie),
        kind.devices_per_switch,
        kind.numa_nodes
    ));
    lines.push(format!(
        "{} x NIC {} ({} of payload)",
        kind.nics,
        show_link(&kind.nic),
        kind.nic_payload()
    ));
    lines
}

/// A drawing: the switches on top, hosts with their devices below.
pub fn svg(cluster: &Cluster) -> String {
    Drawing::new(cluster).finish()
}

const HOST_WIDTH: f64 = 172.0;
const HOST_HEIGHT: f64 = 118.0;
const GAP: f64 = 18.0;
const TIER_HEIGHT: f64 = 74.0;
const MARGIN: f64 = 24.0;

struct Drawing<'a> {
    cluster: &'a Cluster,
    body: String,
    width: f64,
    height: f64,
}

impl<'a> Drawing<'a> {
    fn new(cluster: &'a Cluster) -> Self {
        Self { cluster, body: String::new(), width: 0.0, height: 0.0 }
    }

    fn finish(mut self) -> String {
        let lowest = self.cluster.tiers.first().map_or(u32::MAX, |tier| tier.hosts);
        let hosts = self.cluster.host_count();
        let groups = if lowest == u32::MAX { 1 } else { hosts.div_ceil(lowest) };
        let tiers = self.cluster.tiers.len() as f64 + 1.0;
        let top = MARGIN + 34.0;
        let hosts_top = top + tiers * TIER_HEIGHT;
        let mut left = MARGIN;
        let mut centers = Vec::new();
        for group in 0..groups.min(DRAWN_SWITCHES) {
            let first = group * lowest.min(hosts);
            let count = lowest.min(hosts - first);
            let start = left;
            for host in first..first + count.min(DRAWN_HOSTS) {
                self.host(host, left, hosts_top);
                left += HOST_WIDTH + GAP;
            }
            if count > DRAWN_HOSTS {
                let text = format!("and {} more", count - DRAWN_HOSTS);
                self.text(left, hosts_top + 20.0, &text, "start", 12);
                left += 90.0;
            }
            centers.push((start + left - GAP) / 2.0);
            left += GAP;
        }
        if groups > DRAWN_SWITCHES {
            let text = format!("and {} more", groups - DRAWN_SWITCHES);
            self.text(left, hosts_top - TIER_HEIGHT / 2.0, &text, "start", 12);
            left += 90.0;
        }
        self.width = left + MARGIN;
        self.height = hosts_top + HOST_HEIGHT + MARGIN;
        self.switches(&centers, top);
        self.wrap()
    }

    fn switches(&mut self, centers: &[f64], top: f64) {
        let tiers = self.cluster.tiers.clone();
        let levels = tiers.len();
        let middle = centers.iter().sum::<f64>() / centers.len() as f64;
        let y_of = |level: usize| top + (levels - level) as f64 * TIER_HEIGHT;
        if let Some(tier) = tiers.first() {
            for &center in centers {
                self.line(center, y_of(0), middle, y_of(1) + 28.0);
                self.box_of(center, y_of(0), &tier.name);
            }
        }
        for (level, tier) in tiers.iter().enumerate() {
            let label = show_link(&tier.uplink);
            self.text(middle + 66.0, y_of(level) - 12.0, &label, "start", 11);
            if level > 0 {
                self.line(middle, y_of(level), middle, y_of(level + 1) + 28.0);
                let name = format!("{} x {}", self.count_of(tier.hosts), tier.name);
                self.box_of(middle, y_of(level), &name);
            }
        }
        self.box_of(middle, y_of(levels), if levels == 0 { "switch" } else { "core" });
    }

    fn count_of(&self, hosts: u32) -> u32 {
        self.cluster.host_count().div_ceil(hosts)
    }

    fn box_of(&mut self, center: f64, top: f64, name: &str) {
        let _ = write!(
            self.body,
            r##"<rect x="{:.1}" y="{top:.1}" width="120" height="28" rx="6" fill="#dde6f0" stroke="#456"/>"##,
            center - 60.0
        );
        self.text(center, top + 18.0, name, "middle", 12);
    }

    fn line(&mut self, x1: f64, y1: f64, x2: f64, y2: f64) {
        let _ = write!(
            self.body,
            r##"<path d="M{x1:.1} {y1:.1}L{x2:.1} {y2:.1}" stroke="#89a" fill="none"/>"##
        );
    }

    fn text(&mut self, x: f64, y: f64, text: &str, anchor: &str, size: u32) {
        let text = text.replace('&', "&amp;").replace('<', "&lt;");
        let _ = write!(
            self.body,
            r#"<text x="{x:.1}" y="{y:.1}" text-anchor="{anchor}" font-size="{size}">{text}</text>"#
        );
    }

    fn host(&mut self, host: u32, left: f64, top: f64) {
        let kind = self.cluster.kind_of(host).clone();
        let center = left + HOST_WIDTH / 2.0;
        self.line(center, top, center, top - TIER_HEIGHT + 28.0);
        let _ = write!(
            self.body,
            r##"<rect x="{left:.1}" y="{top:.1}" width="{HOST_WIDTH}" height="{HOST_HEIGHT}" rx="8" fill="#f7f7f2" stroke="#665"/>"##
        );
        self.text(center, top + 16.0, &format!("host {host}"), "middle", 12);
        let nics = format!("{} x {}", kind.nics, kind.nic.up);
        self.text(center, top + 32.0, &nics, "middle", 10);
        let shown = kind.devices.min(8);
        for index in 0..shown {
            let (x, y) = (
                left + 12.0 + f64::from(index % 4) * 38.0,
                top + 42.0 + f64::from(index / 4) * 26.0,
            );
            let _ = write!(
                self.body,
                r##"<rect x="{x:.1}" y="{y:.1}" width="34" height="22" rx="3" fill="#cfe3c8" stroke="#575"/>"##
            );
            self.text(x + 17.0, y + 15.0, &index.to_string(), "middle", 10);
        }
        let more =
            if kind.devices > shown { format!(", {} in all", kind.devices) } else { "".into() };
        let joined = kind.nvlink.map_or_else(|| kind.pcie.up.to_string(), |it| it.up.to_string());
        let label = format!("{}{more}, {joined}", kind.device.name);
        self.text(center, top + HOST_HEIGHT - 8.0, &label, "middle", 10);
    }

    fn wrap(self) -> String {
        let Self { cluster, body, width, height } = self;
        let title = cluster.name.replace('&', "&amp;").replace('<', "&lt;");
        format!(
            r##"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0} {height:.0}" width="{width:.0}" height="{height:.0}" font-family="sans-serif"><rect width="100%" height="100%" fill="white"/><text x="{MARGIN}" y="{}" font-size="15" font-weight="bold">{title}</text>{body}</svg>"##,
            MARGIN + 4.0
        )
    }
}
