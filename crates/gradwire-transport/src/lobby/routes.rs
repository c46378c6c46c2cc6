//! The ways to a peer: pairs of a local and a remote interface.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;

use rustix::io::Errno;
use rustix::net::SocketAddrUnix;
use socket2::{Domain, Protocol, Type};

use super::connection::Socket;
use crate::endpoint::Endpoint;
use crate::interfaces::Interface;
use crate::tcp::{TcpTuning, tune};

/// One way to a peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Route {
    /// Through the abstract Unix socket of this name.
    Local(String),
    /// From a local address, through this device if given, to a remote address.
    Tcp { from: IpAddr, device: Option<String>, to: SocketAddr },
}

impl Route {
    /// The other end, for messages.
    pub(super) fn remote(&self) -> String {
        match self {
            Route::Local(_) => "its local socket".to_owned(),
            Route::Tcp { to, .. } => to.to_string(),
        }
    }

    /// Starts to connect. The socket becomes writable when the outcome is known.
    pub(super) fn open(&self, tuning: &TcpTuning) -> io::Result<Socket> {
        match self {
            Route::Local(name) => open_local(name),
            Route::Tcp { from, device, to } => open_tcp(*from, device.as_deref(), *to, tuning),
        }
    }
}

fn open_local(name: &str) -> io::Result<Socket> {
    let socket = socket2::Socket::new(Domain::UNIX, Type::STREAM.nonblocking(), None)?;
    rustix::net::connect(&socket, &SocketAddrUnix::new_abstract_name(name.as_bytes())?)?;
    Ok(Socket::Unix(UnixStream::from(std::os::fd::OwnedFd::from(socket))))
}

fn open_tcp(
    from: IpAddr,
    device: Option<&str>,
    to: SocketAddr,
    tuning: &TcpTuning,
) -> io::Result<Socket> {
    let domain = Domain::for_address(to);
    let socket = socket2::Socket::new(domain, Type::STREAM.nonblocking(), Some(Protocol::TCP))?;
    if let Some(device) = device
        && let Err(error) = socket.bind_device(Some(device.as_bytes()))
    {
        // Routing then decides by the addresses alone, which is right for most networks.
        tracing::debug!(device, %error, "cannot bind a connection to its interface");
    }
    socket.bind(&SocketAddr::new(from, 0).into())?;
    let stream = TcpStream::from(socket);
    // Before it connects: the window scale is agreed on in the first packet.
    tune(&stream, tuning)?;
    match rustix::net::connect(&stream, &to) {
        Ok(()) | Err(Errno::INPROGRESS) => Ok(Socket::Tcp(stream)),
        Err(error) => Err(error.into()),
    }
}

/// The pairs of interfaces over which a peer may be reached.
#[derive(Clone, Debug)]
pub(super) struct Pairs {
    locals: Vec<(IpAddr, String)>,
    remotes: Vec<SocketAddr>,
    /// Whether each connection is to leave through the interface of its address, which matters
    /// where several are in the same network.
    bind_devices: bool,
}

impl Pairs {
    /// IPv4 is used where both sides have it, else IPv6.
    pub(super) fn new(interfaces: &[Interface], own: &Endpoint, peer: &Endpoint) -> Pairs {
        let v4 = |ip: &IpAddr| ip.is_ipv4();
        let both_v4 = interfaces.iter().any(|interface| interface.addresses.iter().any(v4))
            && peer.addresses.iter().any(|address| v4(&address.ip));
        let locals: Vec<(IpAddr, String)> = interfaces
            .iter()
            .filter_map(|interface| {
                let ip = interface.addresses.iter().find(|ip| ip.is_ipv4() == both_v4)?;
                Some((*ip, interface.name.clone()))
            })
            .collect();
        let remotes = peer
            .addresses
            .iter()
            .filter(|address| address.ip.is_ipv4() == both_v4)
            .map(|address| SocketAddr::new(address.ip, address.port))
            .collect();
        // Packets between addresses of the same host travel over loopback, whatever they are bound to.
        let bind_devices = locals.len() > 1 && own.host_identity != peer.host_identity;
        Pairs { locals, remotes, bind_devices }
    }

    /// Whether there is any.
    pub(super) fn is_empty(&self) -> bool {
        self.locals.is_empty() || self.remotes.is_empty()
    }

    /// Enough lanes for each interface to have one.
    pub(super) fn count(&self) -> usize {
        self.locals.len().max(self.remotes.len())
    }

    /// The routes that lane `index` may take, best first: lanes go round the interfaces of both
    /// sides. Lane 0 takes any other pair as well, since nothing works without it.
    pub(super) fn routes(&self, index: usize) -> Vec<Route> {
        if self.is_empty() {
            return Vec::new();
        }
        let (locals, remotes) = (self.locals.len(), self.remotes.len());
        let natural = |lane: usize| (lane % locals, lane % remotes);
        let mut pairs = vec![natural(index)];
        if index == 0 {
            pairs.extend((1..self.count()).map(natural));
            let all = (0..locals).flat_map(|l| (0..remotes).map(move |r| (l, r)));
            let others: Vec<_> = all.filter(|pair| !pairs.contains(pair)).collect();
            pairs.extend(others);
        }
        let route = |(local, remote): (usize, usize), bound: bool| {
            let (from, device) = &self.locals[local];
            let device = bound.then(|| device.clone());
            Route::Tcp { from: *from, device, to: self.remotes[remote] }
        };
        let bound = pairs.iter().filter(|_| self.bind_devices).map(|pair| route(*pair, true));
        bound.chain(pairs.iter().map(|pair| route(*pair, false))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::endpoint::Address;

    fn interface(name: &str, addresses: &[&str]) -> Interface {
        Interface {
            name: name.to_owned(),
            addresses: addresses.iter().map(|text| text.parse().unwrap()).collect(),
            speed_mbits: 0,
            up: true,
            loopback: false,
        }
    }

    fn endpoint(host: u8, addresses: &[&str]) -> Endpoint {
        let address = |text: &&str| Address { ip: text.parse().unwrap(), port: 1, speed_mbits: 0 };
        Endpoint {
            rank: 0,
            host_identity: [host; 16],
            hostname: "h".to_owned(),
            pid: 1,
            addresses: addresses.iter().map(address).collect(),
            local_name: None,
        }
    }

    fn ends(routes: &[Route]) -> Vec<(String, Option<&str>, String)> {
        let end = |route: &Route| match route {
            Route::Tcp { from, device, to } => {
                (from.to_string(), device.clone(), to.ip().to_string())
            }
            Route::Local(_) => panic!("{route:?}"),
        };
        let name = |device: Option<String>| device.map(|name| &*name.leak());
        routes.iter().map(end).map(|(from, device, to)| (from, name(device), to)).collect()
    }

    #[test]
    fn lanes_go_round_the_interfaces_of_both_sides() {
        let own = [interface("a", &["10.0.0.1"]), interface("b", &["10.0.1.1"])];
        let peer = endpoint(2, &["10.0.0.2", "10.0.1.2", "10.0.2.2"]);
        let pairs = Pairs::new(&own, &endpoint(1, &[]), &peer);
        assert_eq!(pairs.count(), 3);
        let expected = |from: &str, device, to: &str| (from.to_owned(), device, to.to_owned());
        assert_eq!(
            ends(&pairs.routes(5)),
            [expected("10.0.1.1", Some("b"), "10.0.2.2"), expected("10.0.1.1", None, "10.0.2.2")]
        );
        let first = pairs.routes(0);
        assert_eq!(ends(&first)[0], expected("10.0.0.1", Some("a"), "10.0.0.2"));
        assert_eq!(ends(&first)[1], expected("10.0.1.1", Some("b"), "10.0.1.2"));
        assert_eq!(first.len(), 12, "every pair, with and without its device");
    }

    #[test]
    fn devices_are_not_bound_within_a_host_or_where_there_is_one() {
        let two = [interface("a", &["10.0.0.1"]), interface("b", &["10.0.1.1"])];
        let own = endpoint(1, &["10.0.0.1", "10.0.1.1"]);
        let within = Pairs::new(&two, &own, &endpoint(1, &["10.0.0.1"]));
        let single = Pairs::new(&two[..1], &own, &endpoint(2, &["10.0.0.2"]));
        for routes in [within.routes(0), single.routes(0)] {
            assert!(ends(&routes).iter().all(|(_, device, _)| device.is_none()));
        }
    }

    #[test]
    fn the_family_is_one_that_both_sides_have() {
        let dual = [interface("a", &["10.0.0.1", "2001:db8::1"])];
        let own = endpoint(1, &[]);
        let to_v6 = Pairs::new(&dual, &own, &endpoint(2, &["2001:db8::2"]));
        assert_eq!(ends(&to_v6.routes(0))[0].0, "2001:db8::1");
        let to_both = Pairs::new(&dual, &own, &endpoint(2, &["10.0.0.2", "2001:db8::2"]));
        assert_eq!(ends(&to_both.routes(0)), [("10.0.0.1".into(), None, "10.0.0.2".into())]);
        let only_v4 = [interface("a", &["10.0.0.1"])];
        assert!(Pairs::new(&only_v4, &own, &endpoint(2, &["2001:db8::2"])).is_empty());
    }
}
