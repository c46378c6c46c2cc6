//! Which network interfaces a rank uses.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::net::IpAddr;

use nix::ifaddrs::{InterfaceAddress, getifaddrs};
use nix::net::if_::{InterfaceFlags, if_nametoindex};
use thiserror::Error;

/// Names of interfaces that container runtimes, hypervisors and tunnels make. The name decides, not
/// the driver: the `eth0` of a container is a veth too, and the only way out of it.
const VIRTUAL_PREFIXES: [&str; 24] = [
    "br-",
    "cali",
    "cilium",
    "cni",
    "docker",
    "dummy",
    "flannel",
    "gre",
    "ifb",
    "incusbr",
    "ip6tnl",
    "kube-",
    "lxc",
    "lxdbr",
    "podman",
    "sit",
    "tailscale",
    "tap",
    "tun",
    "vboxnet",
    "veth",
    "virbr",
    "vmnet",
    "vxlan",
];

/// A network interface of this host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// Name as `ip link` shows it.
    pub name: String,
    /// Its addresses that other hosts may reach, IPv4 before IPv6; link-local IPv6 is left out.
    pub addresses: Vec<IpAddr>,
    /// Speed in Mbit/s that the driver claims; 0 where it does not say.
    pub speed_mbits: u32,
    /// Whether it is administratively up and has a carrier.
    pub up: bool,
    /// Whether it is the loopback interface.
    pub loopback: bool,
}

/// Why no interface could be chosen.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum InterfaceError {
    /// The specification leaves no interface that is up and has an address.
    #[error(
        "GRADWIRE_SOCKET_IFNAME={specification:?} matches no usable network interface; there is: \
         {available}"
    )]
    NoMatch {
        /// The specification.
        specification: String,
        /// The interfaces of this host, in words.
        available: String,
    },
    /// Nothing is up and has an address.
    #[error("no network interface is up and has an address; there is: {available}")]
    NoneUsable {
        /// The interfaces of this host, in words.
        available: String,
    },
}

/// A parsed `GRADWIRE_SOCKET_IFNAME`.
struct Specification<'a> {
    exclude: bool,
    exact: bool,
    names: Vec<&'a str>,
}

impl<'a> Specification<'a> {
    /// `^` excludes, then `=` asks for exact names; both hold for the whole list.
    fn parse(text: &'a str) -> Self {
        let (text, exclude) = text.strip_prefix('^').map_or((text, false), |rest| (rest, true));
        let (text, exact) = text.strip_prefix('=').map_or((text, false), |rest| (rest, true));
        let names = text.split(',').map(str::trim).filter(|name| !name.is_empty()).collect();
        Specification { exclude, exact, names }
    }

    fn names(&self, interface: &Interface) -> bool {
        self.names.iter().any(|name| {
            if self.exact { interface.name == *name } else { interface.name.starts_with(name) }
        })
    }
}

/// Chooses the interfaces to use from those there are, fastest first, then by name.
///
/// `specification` has the syntax of NCCL's `NCCL_SOCKET_IFNAME`: a list of name prefixes
/// (`eth0,eth1`), of exact names (`=eth0`), or either of them to be left out (`^docker,lo`,
/// `^=eth0`). Interfaces that are named are used whatever they are. Otherwise the real ones are
/// used, the virtual ones (bridges, tunnels, containers) only where there is no real one, and
/// loopback only where there is nothing else: then the job can only live on one host.
///
/// # Errors
/// When nothing usable (up, with an address) is left; the error lists what there is.
pub fn select(
    specification: Option<&str>,
    available: &[Interface],
) -> Result<Vec<Interface>, InterfaceError> {
    let usable = available.iter().filter(|interface| is_usable(interface));
    let text = specification.map(str::trim).filter(|text| !text.is_empty());
    let mut chosen = match text.map(Specification::parse) {
        Some(wanted) if wanted.exclude => {
            most_real(usable.filter(|interface| !wanted.names(interface)).collect())
        }
        Some(wanted) => usable.filter(|interface| wanted.names(interface)).cloned().collect(),
        None => most_real(usable.collect()),
    };
    if chosen.is_empty() {
        return Err(nothing_left(text, available));
    }
    chosen.sort_by(|a, b| b.speed_mbits.cmp(&a.speed_mbits).then_with(|| a.name.cmp(&b.name)));
    Ok(chosen)
}

fn is_usable(interface: &Interface) -> bool {
    interface.up && !interface.addresses.is_empty()
}

fn is_virtual(interface: &Interface) -> bool {
    VIRTUAL_PREFIXES.iter().any(|prefix| interface.name.starts_with(prefix))
}

/// The real interfaces, or else the virtual ones, or else loopback.
fn most_real(candidates: Vec<&Interface>) -> Vec<Interface> {
    let (loopback, others): (Vec<_>, Vec<_>) =
        candidates.into_iter().partition(|interface| interface.loopback);
    let (virtual_ones, real): (Vec<_>, Vec<_>) =
        others.into_iter().partition(|interface| is_virtual(interface));
    [real, virtual_ones, loopback]
        .into_iter()
        .find(|class| !class.is_empty())
        .unwrap_or_default()
        .into_iter()
        .cloned()
        .collect()
}

fn nothing_left(specification: Option<&str>, available: &[Interface]) -> InterfaceError {
    let described: Vec<String> = available.iter().map(describe).collect();
    let available =
        if described.is_empty() { "none at all".to_owned() } else { described.join(", ") };
    match specification {
        Some(specification) => {
            InterfaceError::NoMatch { specification: specification.to_owned(), available }
        }
        None => InterfaceError::NoneUsable { available },
    }
}

fn describe(interface: &Interface) -> String {
    let state = match (interface.up, interface.addresses.first()) {
        (false, _) => "down".to_owned(),
        (true, None) => "no address".to_owned(),
        (true, Some(address)) => address.to_string(),
    };
    format!("{} ({state})", interface.name)
}

/// The network interfaces of this host (of the network namespace that the caller lives in).
///
/// # Errors
/// When the kernel does not list them.
pub fn discover() -> io::Result<Vec<Interface>> {
    let mut found: BTreeMap<String, Interface> = BTreeMap::new();
    for entry in getifaddrs()? {
        let interface =
            found.entry(entry.interface_name.clone()).or_insert_with(|| without_address(&entry));
        interface.addresses.extend(reachable_address(&entry));
    }
    let mut interfaces: Vec<Interface> = found.into_values().collect();
    for interface in &mut interfaces {
        interface.addresses.sort_by_key(IpAddr::is_ipv6);
        interface.speed_mbits = speed_of(&interface.name);
    }
    Ok(interfaces)
}

fn without_address(entry: &InterfaceAddress) -> Interface {
    let needed = InterfaceFlags::IFF_UP | InterfaceFlags::IFF_RUNNING;
    Interface {
        name: entry.interface_name.clone(),
        addresses: Vec::new(),
        speed_mbits: 0,
        up: entry.flags.contains(needed),
        loopback: entry.flags.contains(InterfaceFlags::IFF_LOOPBACK),
    }
}

fn reachable_address(entry: &InterfaceAddress) -> Option<IpAddr> {
    let address = entry.address.as_ref()?;
    if let Some(v4) = address.as_sockaddr_in() {
        return Some(IpAddr::V4(v4.ip()));
    }
    let v6 = address.as_sockaddr_in6()?.ip();
    (!v6.is_unicast_link_local()).then_some(IpAddr::V6(v6))
}

/// What the driver claims. `/sys` may show another network namespace than the one that the process
/// lives in (a new namespace does not remount it), so the index has to agree.
fn speed_of(name: &str) -> u32 {
    let attribute = |attribute: &str| -> Option<i64> {
        let text = fs::read_to_string(format!("/sys/class/net/{name}/{attribute}")).ok()?;
        text.trim().parse().ok()
    };
    let same = attribute("ifindex") == if_nametoindex(name).ok().map(i64::from);
    let claimed = if same { attribute("speed") } else { None };
    // Drivers that don't know say -1, or the unsigned form of it.
    claimed.filter(|mbits| (1..10_000_000).contains(mbits)).map_or(0, |mbits| mbits as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interface(name: &str, speed_mbits: u32) -> Interface {
        Interface {
            name: name.to_owned(),
            addresses: vec!["10.0.0.1".parse().unwrap()],
            speed_mbits,
            up: true,
            loopback: name == "lo",
        }
    }

    fn host() -> Vec<Interface> {
        let mut down = interface("eth9", 100_000);
        down.up = false;
        let mut bare = interface("eth8", 100_000);
        bare.addresses.clear();
        vec![
            interface("lo", 0),
            interface("docker0", 0),
            interface("eth0", 1_000),
            interface("eth1", 25_000),
            interface("eth10", 25_000),
            interface("veth12ab", 10_000),
            interface("br-77", 0),
            down,
            bare,
        ]
    }

    fn names(specification: Option<&str>, available: &[Interface]) -> Vec<String> {
        let chosen = select(specification, available).unwrap();
        chosen.into_iter().map(|interface| interface.name).collect()
    }

    #[test]
    fn the_specification_has_the_syntax_of_nccl() {
        let table: [(Option<&str>, &[&str]); 11] = [
            (None, &["eth1", "eth10", "eth0"]),
            (Some(""), &["eth1", "eth10", "eth0"]),
            (Some("eth0"), &["eth0"]),
            (Some("eth1"), &["eth1", "eth10"]),
            (Some("=eth1"), &["eth1"]),
            (Some("=eth1, eth0"), &["eth1", "eth0"]),
            (Some("docker,lo"), &["docker0", "lo"]),
            (Some("veth"), &["veth12ab"]),
            (Some("^docker,lo"), &["eth1", "eth10", "eth0"]),
            (Some("^eth1"), &["eth0"]),
            (Some("^=eth1"), &["eth10", "eth0"]),
        ];
        for (specification, expected) in table {
            assert_eq!(names(specification, &host()), expected, "{specification:?}");
        }
    }

    #[test]
    fn virtual_interfaces_and_then_loopback_are_the_last_resort() {
        let lo = interface("lo", 0);
        let veth = interface("veth1", 0);
        let tunnel = interface("tun0", 0);
        assert_eq!(names(None, &[lo.clone(), veth.clone(), tunnel.clone()]), ["tun0", "veth1"]);
        assert_eq!(names(Some("^veth"), &[lo.clone(), veth, tunnel]), ["tun0"]);
        assert_eq!(names(None, &[lo]), ["lo"]);
    }

    #[test]
    fn errors_list_what_there_is() {
        let error = select(Some("=ib0"), &host()).unwrap_err().to_string();
        for part in ["\"=ib0\"", "eth0 (10.0.0.1)", "eth9 (down)", "eth8 (no address)"] {
            assert!(error.contains(part), "{part} in {error}");
        }
        let error = select(None, &[]).unwrap_err().to_string();
        assert!(error.contains("none at all"), "{error}");
        assert!(select(Some("eth9"), &host()).is_err(), "an interface that is down is not usable");
    }

    #[test]
    fn this_host_has_interfaces_and_one_may_be_chosen_by_its_exact_name() {
        let found = discover().unwrap();
        let Ok(chosen) = select(None, &found) else {
            assert!(found.iter().all(|interface| !is_usable(interface)));
            return;
        };
        let exact = format!("={}", chosen[0].name);
        assert_eq!(select(Some(&exact), &found).unwrap(), chosen[..1]);
    }
}
