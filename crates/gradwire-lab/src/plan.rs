//! What a lab is made of: hosts, NICs, addresses and what each link can carry.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::LabError;
use crate::rate::{Loss, Rate};

/// Most hosts of one lab: the addresses of one switch, 10.77.N.1 to 10.77.N.254.
pub const MAX_HOSTS: usize = 254;
/// Most NICs of each host.
pub const MAX_NICS: usize = 16;
/// Most ranks on each host.
pub const MAX_RANKS_PER_HOST: usize = 256;
/// Longest name, so that the path of the control socket fits the kernel's limit.
const MAX_NAME_BYTES: usize = 48;

/// A lab as described, not yet running: hosts 0 to `hosts - 1`, each with NICs `eth0`, `eth1`, ...
/// on one switch per NIC.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Lab {
    name: String,
    hosts: usize,
    nics: usize,
    rate: Option<Rate>,
    rate_of: BTreeMap<usize, Rate>,
    delay: Duration,
    loss: Option<Loss>,
}

impl Lab {
    /// Starts a description: 2 hosts with one NIC each, links not shaped, a name that holds the
    /// process id.
    pub fn builder() -> LabBuilder {
        LabBuilder {
            lab: Lab {
                name: format!("lab-{}", std::process::id()),
                hosts: 2,
                nics: 1,
                rate: None,
                rate_of: BTreeMap::new(),
                delay: Duration::ZERO,
                loss: None,
            },
        }
    }

    /// What `gradwire lab` commands call it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Number of hosts.
    pub fn hosts(&self) -> usize {
        self.hosts
    }

    /// Number of NICs of each host.
    pub fn nics(&self) -> usize {
        self.nics
    }

    /// The rate of each NIC of a host, in each direction; `None` where it isn't shaped.
    pub fn rate(&self, host: usize) -> Option<Rate> {
        self.rate_of.get(&host).copied().or(self.rate)
    }

    /// How long a packet that leaves a host is held back (one way).
    pub fn delay(&self) -> Duration {
        self.delay
    }

    /// The share of the packets leaving a host that are lost.
    pub fn loss(&self) -> Option<Loss> {
        self.loss
    }

    /// The address of a host on the switch of a NIC: 10.77.NIC.(HOST + 1), in a /24.
    pub fn address(host: usize, nic: usize) -> Ipv4Addr {
        let octet = |value: usize| u8::try_from(value).expect("hosts and NICs are bounded");
        Ipv4Addr::new(10, 77, octet(nic), octet(host + 1))
    }

    /// The hostname of a host: `host0`, `host1`, ...
    pub fn hostname(host: usize) -> String {
        format!("host{host}")
    }

    /// One line about the lab, without its name: `4 hosts, 2 NICs each, 1gbit (host 2: 100mbit)`.
    pub fn summary(&self) -> String {
        let mut text = format!("{} host{}", self.hosts, if self.hosts == 1 { "" } else { "s" });
        if self.nics > 1 {
            text += &format!(", {} NICs each", self.nics);
        }
        text += &self.rate.map_or(", not shaped".into(), |rate| format!(", {rate}"));
        let exceptions: Vec<_> =
            self.rate_of.iter().map(|(host, rate)| format!("host {host}: {rate}")).collect();
        if !exceptions.is_empty() {
            text += &format!(" ({})", exceptions.join(", "));
        }
        if !self.delay.is_zero() {
            text += &format!(", {:?} delay", self.delay);
        }
        if let Some(loss) = self.loss {
            text += &format!(", {loss} loss");
        }
        text
    }

    /// Checks that a host and, if given, a NIC exist in this lab.
    ///
    /// # Errors
    /// [`LabError::Invalid`] that names the index and the range.
    pub fn check_link(&self, host: usize, nic: Option<usize>) -> Result<(), LabError> {
        check_index("host", host, self.hosts)?;
        nic.map_or(Ok(()), |nic| check_index("NIC", nic, self.nics))
    }
}

/// Builds a [`Lab`]; see [`Lab::builder`].
#[derive(Clone, Debug)]
#[must_use]
pub struct LabBuilder {
    lab: Lab,
}

impl LabBuilder {
    /// Name of the lab: letters, digits, `-`, `_` and `.`, at most 48 of them.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.lab.name = name.into();
        self
    }

    /// Number of hosts, 1 to [`MAX_HOSTS`].
    pub fn hosts(mut self, hosts: usize) -> Self {
        self.lab.hosts = hosts;
        self
    }

    /// Number of NICs of each host, 1 to [`MAX_NICS`].
    pub fn nics(mut self, nics: usize) -> Self {
        self.lab.nics = nics;
        self
    }

    /// Rate of every link, in each direction.
    pub fn rate(mut self, rate: Rate) -> Self {
        self.lab.rate = Some(rate);
        self
    }

    /// Rate of the links of one host, in place of the common one.
    pub fn rate_of(mut self, host: usize, rate: Rate) -> Self {
        self.lab.rate_of.insert(host, rate);
        self
    }

    /// Delay of what leaves each host (one way). Needs netem.
    pub fn delay(mut self, delay: Duration) -> Self {
        self.lab.delay = delay;
        self
    }

    /// Loss of what leaves each host. Needs netem.
    pub fn loss(mut self, loss: Loss) -> Self {
        self.lab.loss = Some(loss);
        self
    }

    /// Checks the description.
    ///
    /// # Errors
    /// [`LabError::Invalid`] for a count out of range, a rate for a host that isn't there, a delay
    /// over a minute or a name that can't be a file name.
    pub fn build(self) -> Result<Lab, LabError> {
        let lab = self.lab;
        check_count("number of hosts", lab.hosts, MAX_HOSTS)?;
        check_count("number of NICs", lab.nics, MAX_NICS)?;
        for &host in lab.rate_of.keys() {
            check_index("host", host, lab.hosts)?;
        }
        if lab.delay > Duration::from_secs(60) {
            return Err(LabError::Invalid(format!(
                "a delay of {:?} is over one minute",
                lab.delay
            )));
        }
        check_name(&lab.name)?;
        Ok(lab)
    }
}

pub(crate) fn check_count(what: &str, count: usize, most: usize) -> Result<(), LabError> {
    if (1..=most).contains(&count) {
        return Ok(());
    }
    Err(LabError::Invalid(format!("the {what} must be 1 to {most}, not {count}")))
}

fn check_index(what: &str, index: usize, count: usize) -> Result<(), LabError> {
    if index < count {
        return Ok(());
    }
    let there = if count == 1 { "only 0".into() } else { format!("0 to {}", count - 1) };
    Err(LabError::Invalid(format!("there is no {what} {index} in this lab ({there})")))
}

pub(crate) fn check_name(name: &str) -> Result<(), LabError> {
    let fits = (1..=MAX_NAME_BYTES).contains(&name.len());
    let plain = name.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b));
    if fits && plain && !name.starts_with('.') {
        return Ok(());
    }
    Err(LabError::Invalid(format!(
        "{name:?} can't name a lab: use 1 to {MAX_NAME_BYTES} letters, digits, '-', '_' or '.' \
         (not in front)"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rate(text: &str) -> Rate {
        text.parse().unwrap()
    }

    #[test]
    fn addresses_follow_nic_and_host() {
        assert_eq!(Lab::address(0, 0).to_string(), "10.77.0.1");
        assert_eq!(Lab::address(253, 15).to_string(), "10.77.15.254");
    }

    #[test]
    fn a_hosts_own_rate_wins() {
        let lab = Lab::builder().hosts(3).rate(rate("1gbit")).rate_of(2, rate("100mbit"));
        let lab = lab.build().unwrap();
        assert_eq!(lab.rate(1), Some(rate("1gbit")));
        assert_eq!(lab.rate(2), Some(rate("100mbit")));
        assert_eq!(lab.summary(), "3 hosts, 1gbit (host 2: 100mbit)");
    }

    #[test]
    fn wrong_descriptions_are_refused_with_the_reason() {
        let cases = [
            (Lab::builder().hosts(0), "number of hosts must be 1 to 254, not 0"),
            (Lab::builder().hosts(255), "not 255"),
            (Lab::builder().nics(17), "number of NICs must be 1 to 16"),
            (Lab::builder().rate_of(2, rate("1gbit")), "no host 2 in this lab (0 to 1)"),
            (Lab::builder().delay(Duration::from_secs(61)), "over one minute"),
            (Lab::builder().name("../x"), "can't name a lab"),
            (Lab::builder().name(""), "can't name a lab"),
        ];
        for (builder, reason) in cases {
            let error = builder.build().unwrap_err();
            assert!(matches!(error, LabError::Invalid(_)));
            assert!(error.to_string().contains(reason), "{error}");
        }
    }

    #[test]
    fn links_out_of_range_are_named() {
        let lab = Lab::builder().hosts(4).nics(1).build().unwrap();
        assert!(lab.check_link(3, Some(0)).is_ok());
        assert!(lab.check_link(4, None).unwrap_err().to_string().contains("no host 4"));
        assert!(lab.check_link(0, Some(1)).unwrap_err().to_string().contains("no NIC 1"));
    }
}
