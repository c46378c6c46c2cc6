//! Reads one log of nccl-tests and takes latencies and bandwidths from it.

use gradwire_topology::{AlphaBetaGamma, Cluster};

use crate::step::Fabric;

/// What a log says.
#[derive(Clone, Debug, PartialEq)]
pub struct NcclLog {
    /// Ranks that took part.
    pub ranks: u32,
    /// Bytes and seconds, out of place.
    pub points: Vec<(f64, f64)>,
}

impl NcclLog {
    /// Reads the output of `all_reduce_perf`.
    ///
    /// # Errors
    /// When it names no ranks or has fewer than two sizes.
    pub fn parse(text: &str) -> Result<Self, String> {
        let ranks = text.lines().filter(|line| is_rank(line)).count() as u32;
        if ranks < 2 {
            return Err("the log names fewer than two ranks (lines such as `#  Rank  0 ...`); \
                        paste all of nccl-tests' output"
                .to_owned());
        }
        let points: Vec<(f64, f64)> = text.lines().filter_map(row).collect();
        if points.len() < 2 {
            return Err(
                "the log has fewer than two sizes; run all_reduce_perf -b 1M -e 1G -f 2".to_owned()
            );
        }
        Ok(Self { ranks, points })
    }

    /// Puts what was measured in the place of what is expected: within a host, or between hosts if
    /// the ranks were on several of the cluster's.
    ///
    /// # Errors
    /// When the log's times grow with no size.
    pub fn apply(&self, cluster: &Cluster, fabric: &mut Fabric) -> Result<(), String> {
        let n = f64::from(self.ranks);
        let bus: Vec<(f64, f64)> = self
            .points
            .iter()
            .map(|(bytes, seconds)| (2.0 * (n - 1.0) / n * bytes, *seconds))
            .collect();
        let (alpha, beta) = AlphaBetaGamma::fit(&bus)
            .ok_or("the log's sizes are all alike; measure from 1M to 1G")?;
        let host = cluster.host();
        if self.ranks <= host.devices {
            let link = host.nvlink.map_or(host.pcie.slower().0 / 2.0, |it| it.slower().0);
            let point = (self.ranks, alpha, 1.0 / beta / link);
            fabric.within_host.retain(|entry| entry.0 != self.ranks);
            fabric.within_host.push(point);
            fabric.within_host.sort_by_key(|entry| entry.0);
        } else {
            let payload = host.nic_payload().0 * f64::from(host.nics);
            fabric.network = (1.0 / beta / payload).min(1.0);
            let hops = 2.0 * (f64::from(self.ranks.div_ceil(host.devices)) - 1.0);
            fabric.hop = alpha / hops;
        }
        Ok(())
    }
}

fn is_rank(line: &str) -> bool {
    line.strip_prefix('#').is_some_and(|rest| rest.trim_start().starts_with("Rank "))
}

/// size, count, type, redop, root, time in microseconds, ...
fn row(line: &str) -> Option<(f64, f64)> {
    let mut columns = line.split_whitespace();
    let bytes: f64 = columns.next()?.parse().ok()?;
    let time: f64 = columns.nth(4)?.parse().ok()?;
    (bytes > 0.0 && time > 0.0).then_some((bytes, time * 1e-6))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    const LOG: &str = "\
# Using devices
#  Rank  0 Group  0 Pid   1 on node0 device  0 [0x07] NVIDIA A100
#  Rank  1 Group  0 Pid   2 on node0 device  1 [0x0f] NVIDIA A100
#       size         count      type   redop    root     time   algbw   busbw #wrong
     1048576        262144     float     sum      -1     50.0   20.97   20.97      0
   134217728      33554432     float     sum      -1    763.6  175.77  175.77      0
";

    #[test]
    fn a_log_within_a_host_sets_that_number_of_devices() {
        let log = NcclLog::parse(LOG).expect("it is whole");
        assert_eq!(log.ranks, 2);
        let text =
            "[[hosts]]\ndevice = \"a100\"\ndevices = 8\nnvlink = \"300GB/s\"\nnic = \"100gbit\"\n";
        let cluster = Cluster::parse(Path::new("c.toml"), text).expect("good");
        let mut fabric = Fabric::default();
        log.apply(&cluster, &mut fabric).expect("two sizes");
        let point = fabric.within_host[0];
        assert_eq!(point.0, 2);
        assert!((point.2 * 300e9 / 186.5e9 - 1.0).abs() < 0.02, "{}", point.2);
    }

    #[test]
    fn what_is_no_log_is_refused() {
        assert!(NcclLog::parse("hello").expect_err("no").contains("Rank"));
    }
}
