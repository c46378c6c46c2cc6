//! The sockets that a lobby listens on.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixSocketAddr, UnixListener};

use socket2::{Domain, Protocol, Type};

use super::LobbyConfig;
use super::connection::Socket;
use crate::endpoint::{Address, Endpoint, host_identity, hostname};
use crate::interfaces::Interface;

/// Connections that the kernel keeps until they are accepted (it may keep fewer, see
/// `net.core.somaxconn`): all ranks of a large job may connect at once.
const BACKLOG: i32 = 4096;

pub(super) enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl Listener {
    /// Accepts a connection; with it the name of the other end, for messages.
    pub(super) fn accept(&self) -> io::Result<(Socket, String)> {
        match self {
            Listener::Tcp(listener) => {
                let (stream, remote) = listener.accept()?;
                Ok((Socket::Tcp(stream), remote.to_string()))
            }
            Listener::Unix(listener) => {
                let (stream, _) = listener.accept()?;
                Ok((Socket::Unix(stream), "a process of this host".to_owned()))
            }
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Listener::Tcp(listener) => listener.as_fd(),
            Listener::Unix(listener) => listener.as_fd(),
        }
    }
}

/// All listening sockets of a rank.
pub(super) struct Listeners {
    pub(super) sockets: Vec<Listener>,
    addresses: Vec<Address>,
    local_name: Option<String>,
}

impl Listeners {
    /// Listens on one address of each family of each interface, and on an abstract Unix socket
    /// where shared memory is on. Addresses that can't be bound (an IPv6 address that is still
    /// being checked for duplicates) are left out.
    pub(super) fn open(config: &LobbyConfig) -> io::Result<Listeners> {
        let mut listeners =
            Listeners { sockets: Vec::new(), addresses: Vec::new(), local_name: None };
        let mut problem = None;
        for interface in &config.interfaces {
            for ip in one_of_each_family(interface) {
                if let Err(error) = listeners.open_tcp(ip, interface.speed_mbits) {
                    tracing::warn!(%ip, interface = interface.name, %error, "cannot listen");
                    problem =
                        Some(io::Error::new(error.kind(), format!("listen on {ip}: {error}")));
                }
            }
        }
        if config.shared_memory {
            listeners.open_unix()?;
        }
        if listeners.sockets.is_empty() {
            return Err(problem.unwrap_or_else(|| {
                io::Error::new(io::ErrorKind::InvalidInput, "no interface to listen on")
            }));
        }
        Ok(listeners)
    }

    fn open_tcp(&mut self, ip: IpAddr, speed_mbits: u32) -> io::Result<()> {
        let address = SocketAddr::new(ip, 0);
        let domain = Domain::for_address(address);
        let socket = socket2::Socket::new(domain, Type::STREAM.nonblocking(), Some(Protocol::TCP))?;
        socket.bind(&address.into())?;
        socket.listen(BACKLOG)?;
        let listener = TcpListener::from(socket);
        let port = listener.local_addr()?.port();
        self.addresses.push(Address { ip, port, speed_mbits });
        self.sockets.push(Listener::Tcp(listener));
        Ok(())
    }

    fn open_unix(&mut self) -> io::Result<()> {
        let name = format!("gradwire-{:016x}{:016x}", random()?, random()?);
        let listener =
            UnixListener::bind_addr(&UnixSocketAddr::from_abstract_name(name.as_bytes())?)?;
        listener.set_nonblocking(true)?;
        self.local_name = Some(name);
        self.sockets.push(Listener::Unix(listener));
        Ok(())
    }

    pub(super) fn endpoint(&self, config: &LobbyConfig) -> Endpoint {
        Endpoint {
            rank: config.rank,
            host_identity: host_identity(&config.host_id),
            hostname: hostname(),
            pid: std::process::id(),
            addresses: self.addresses.clone(),
            local_name: self.local_name.clone(),
        }
    }
}

/// The first IPv4 and the first IPv6 address.
fn one_of_each_family(interface: &Interface) -> Vec<IpAddr> {
    let first = |wanted: fn(&&IpAddr) -> bool| interface.addresses.iter().find(wanted).copied();
    [first(|ip| ip.is_ipv4()), first(|ip| ip.is_ipv6())].into_iter().flatten().collect()
}

/// A random number from the system.
pub(super) fn random() -> io::Result<u64> {
    let mut bytes = [0; 8];
    let got = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    if got == bytes.len() {
        Ok(u64::from_ne_bytes(bytes))
    } else {
        Err(io::ErrorKind::Other.into())
    }
}
