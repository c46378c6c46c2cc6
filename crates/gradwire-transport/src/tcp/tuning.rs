//! Socket options.

use std::io;
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::time::Duration;

use rustix::net::sockopt;

/// What is asked of the operating system for one connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TcpTuning {
    /// Congestion control by the kernel's name (`cubic`, `bbr`, ...); `None` takes `cubic` where the
    /// round trip is short, and keeps the default where it is long. Several senders that use BBR
    /// and meet in front of one receiver, as in every exchange of all with all, lose packets by the
    /// queue (up to three times the time on a slow link, `docs/benchmarks.md`), and within a host
    /// its timers cost more than the copies.
    pub congestion_control: Option<String>,
    /// Size of the kernel's send buffer; `None` lets the kernel adapt it.
    pub send_buffer_bytes: Option<usize>,
    /// Size of the kernel's receive buffer; `None` lets the kernel adapt it.
    pub receive_buffer_bytes: Option<usize>,
    /// How long sent bytes may stay unacknowledged before the connection counts as dead.
    pub user_timeout: Duration,
    /// Silence after which the kernel probes the peer (whole seconds).
    pub keepalive_idle: Duration,
    /// Time between two probes (whole seconds).
    pub keepalive_interval: Duration,
    /// Unanswered probes after which the connection counts as dead.
    pub keepalive_probes: u32,
    /// Unsent bytes above which the kernel reports the socket as not writable, so that a slow
    /// lane does not swallow frames that another could carry. `None` keeps the system's limit.
    pub unsent_bytes: Option<u32>,
}

impl Default for TcpTuning {
    fn default() -> Self {
        TcpTuning {
            congestion_control: None,
            send_buffer_bytes: None,
            receive_buffer_bytes: None,
            user_timeout: Duration::from_secs(30),
            keepalive_idle: Duration::from_secs(10),
            keepalive_interval: Duration::from_secs(5),
            keepalive_probes: 3,
            unsent_bytes: Some(512 << 10),
        }
    }
}

/// Applies `tuning` to a connection, and switches Nagle's algorithm off.
///
/// # Errors
///
/// What the system refuses, with the option's name and value; for an unknown congestion control
/// the text lists those that this host offers.
pub fn tune(stream: &TcpStream, tuning: &TcpTuning) -> io::Result<()> {
    let timeout_ms = u32::try_from(tuning.user_timeout.as_millis()).unwrap_or(u32::MAX);
    option("TCP_NODELAY", 1, sockopt::set_tcp_nodelay(stream, true))?;
    option("SO_KEEPALIVE", 1, sockopt::set_socket_keepalive(stream, true))?;
    let idle = tuning.keepalive_idle;
    option("TCP_KEEPIDLE", idle.as_secs(), sockopt::set_tcp_keepidle(stream, idle))?;
    let interval = tuning.keepalive_interval;
    option("TCP_KEEPINTVL", interval.as_secs(), sockopt::set_tcp_keepintvl(stream, interval))?;
    let probes = tuning.keepalive_probes;
    option("TCP_KEEPCNT", probes.into(), sockopt::set_tcp_keepcnt(stream, probes))?;
    let set = sockopt::set_tcp_user_timeout(stream, timeout_ms);
    option("TCP_USER_TIMEOUT", timeout_ms.into(), set)?;
    if let Some(bytes) = tuning.send_buffer_bytes {
        let set = sockopt::set_socket_send_buffer_size(stream, bytes);
        option("SO_SNDBUF", bytes as u64, set)?;
    }
    if let Some(bytes) = tuning.receive_buffer_bytes {
        let set = sockopt::set_socket_recv_buffer_size(stream, bytes);
        option("SO_RCVBUF", bytes as u64, set)?;
    }
    if let Some(bytes) = tuning.unsent_bytes {
        limit_unsent(stream, bytes)?;
    }
    match &tuning.congestion_control {
        Some(name) => choose_congestion_control(stream, name),
        None if is_near(stream) => {
            // Without it the default does as well, only slower.
            let _ = sockopt::set_tcp_congestion(stream, "cubic");
            Ok(())
        }
        None => Ok(()),
    }
}

/// The longest round trip within a site: beyond it paths cross what loses packets for other reasons
/// than full queues, and the system's administrator knows better.
const NEAR: Duration = Duration::from_millis(2);

/// Whether the peer is on this host or at this site.
fn is_near(stream: &TcpStream) -> bool {
    let stays_here = match (stream.local_addr(), stream.peer_addr()) {
        (Ok(own), Ok(peer)) => own.ip() == peer.ip(),
        _ => false,
    };
    stays_here || round_trip(stream).is_some_and(|time| time < NEAR)
}

/// The round trip as the kernel has measured it; nothing before the connection is made.
fn round_trip(stream: &TcpStream) -> Option<Duration> {
    // SAFETY: the structure is plain integers, for which zero is a value.
    let mut info: libc::tcp_info = unsafe { std::mem::zeroed() };
    let mut length = size_of::<libc::tcp_info>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes to the structure, which has as many.
    let status = unsafe {
        libc::getsockopt(
            stream.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            (&raw mut info).cast(),
            &mut length,
        )
    };
    (status == 0 && info.tcpi_rtt > 0).then(|| Duration::from_micros(info.tcpi_rtt.into()))
}

fn option(name: &str, value: u64, result: rustix::io::Result<()>) -> io::Result<()> {
    result.map_err(|error| {
        let error = io::Error::from(error);
        io::Error::new(error.kind(), format!("can't set {name} to {value}: {error}"))
    })
}

fn limit_unsent(stream: &TcpStream, bytes: u32) -> io::Result<()> {
    set_integer(stream, libc::IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT, bytes).map_err(|error| {
        io::Error::new(error.kind(), format!("can't set TCP_NOTSENT_LOWAT to {bytes}: {error}"))
    })
}

fn set_integer(
    stream: &TcpStream,
    level: libc::c_int,
    name: libc::c_int,
    value: u32,
) -> io::Result<()> {
    // SAFETY: the option's value is a plain integer whose address and size are passed.
    let status = unsafe {
        libc::setsockopt(
            stream.as_raw_fd(),
            level,
            name,
            (&raw const value).cast(),
            size_of::<u32>() as libc::socklen_t,
        )
    };
    if status == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Keeps about `bytes` of data in the kernel's send buffer, sent and unacknowledged bytes included;
/// `None` lets the kernel adapt it again (as far as it can: Linux before 5.15 keeps the limit).
///
/// # Errors
///
/// What the system says when it refuses.
pub(super) fn limit_send_buffer(stream: &TcpStream, bytes: Option<usize>) -> io::Result<()> {
    let Some(bytes) = bytes else {
        let _ = set_integer(stream, libc::SOL_SOCKET, SO_BUF_LOCK, 0);
        return Ok(());
    };
    // The kernel takes twice the figure, and its book-keeping uses about half of that.
    option("SO_SNDBUF", bytes as u64, sockopt::set_socket_send_buffer_size(stream, bytes))
}

/// Which buffer sizes the user has fixed; 0 for none (Linux 5.15, `include/uapi/asm-generic`).
const SO_BUF_LOCK: libc::c_int = 72;

fn choose_congestion_control(stream: &TcpStream, name: &str) -> io::Result<()> {
    sockopt::set_tcp_congestion(stream, name).map_err(|error| {
        let error = io::Error::from(error);
        let offered =
            std::fs::read_to_string("/proc/sys/net/ipv4/tcp_available_congestion_control")
                .unwrap_or_else(|_| "unknown".into());
        let text = format!(
            "can't use congestion control {name:?}: {error}; this host offers: {}",
            offered.trim()
        );
        io::Error::new(error.kind(), text)
    })
}
