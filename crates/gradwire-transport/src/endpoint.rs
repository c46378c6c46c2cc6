//! What a rank publishes about itself, so that the others can connect to it.

use std::fs;
use std::net::IpAddr;
use std::os::unix::fs::MetadataExt;

use blake2::digest::consts::U16;
use blake2::{Blake2s, Digest};
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Version of the encoding.
const VERSION: u32 = 1;
/// Longest encoding that is looked at.
const MAX_ENCODED_BYTES: usize = 16 << 10;
/// Most addresses that a rank may have.
const MAX_ADDRESSES: usize = 64;
/// Longest host name (RFC 1035 allows 255 bytes).
const MAX_HOSTNAME_BYTES: usize = 255;
/// Longest abstract socket name that fits in `sockaddr_un`.
const MAX_LOCAL_NAME_BYTES: usize = 107;

/// Where a rank listens on one of its interfaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Address {
    /// Address of the interface.
    pub ip: IpAddr,
    /// TCP port.
    pub port: u16,
    /// Claimed speed of the interface in Mbit/s; 0 where unknown.
    pub speed_mbits: u32,
}

/// How a rank is reached. It goes through the rendezvous store, as JSON, and holds no secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Endpoint {
    /// The rank.
    pub rank: u32,
    /// Ranks with equal identity run on the same kernel, in the same network namespace, for the
    /// same user: they may share memory.
    pub host_identity: [u8; 16],
    /// Host name, for messages.
    pub hostname: String,
    /// Process, for messages.
    pub pid: u32,
    /// TCP addresses, in the order of the interfaces.
    pub addresses: Vec<Address>,
    /// Name of the abstract Unix socket, where the rank offers shared memory.
    pub local_name: Option<String>,
}

/// Why an endpoint could not be decoded.
#[derive(Debug, Error)]
pub enum EndpointError {
    /// It is not what [`Endpoint::encode`] makes.
    #[error("malformed endpoint: {0}")]
    Malformed(#[from] serde_json::Error),
    /// The peer speaks another version.
    #[error(
        "endpoint version {0}, this side speaks {VERSION}: install the same gradwire everywhere"
    )]
    Version(u32),
    /// Something in it is longer than may be.
    #[error("endpoint with {what} of {length}, the limit is {limit}")]
    TooLong {
        /// What it is.
        what: &'static str,
        /// Its length.
        length: usize,
        /// The longest there may be.
        limit: usize,
    },
}

#[derive(Serialize, Deserialize)]
struct Versioned<T> {
    gradwire_endpoint: u32,
    #[serde(flatten)]
    content: T,
}

#[derive(Deserialize)]
struct Nothing {}

impl Endpoint {
    /// The bytes to publish.
    pub fn encode(&self) -> Vec<u8> {
        serde_json::to_vec(&Versioned { gradwire_endpoint: VERSION, content: self })
            .expect("strings and numbers always have a JSON form")
    }

    /// Reads what [`Endpoint::encode`] has made.
    ///
    /// # Errors
    /// When the bytes are no endpoint, one of another version, or longer than any endpoint is.
    pub fn decode(bytes: &[u8]) -> Result<Self, EndpointError> {
        check_length("encoding", bytes.len(), MAX_ENCODED_BYTES)?;
        let version = serde_json::from_slice::<Versioned<Nothing>>(bytes)?.gradwire_endpoint;
        if version != VERSION {
            return Err(EndpointError::Version(version));
        }
        let endpoint = serde_json::from_slice::<Versioned<Endpoint>>(bytes)?.content;
        check_length("addresses", endpoint.addresses.len(), MAX_ADDRESSES)?;
        check_length("host name", endpoint.hostname.len(), MAX_HOSTNAME_BYTES)?;
        let local_name_bytes = endpoint.local_name.as_ref().map_or(0, String::len);
        check_length("socket name", local_name_bytes, MAX_LOCAL_NAME_BYTES)?;
        Ok(endpoint)
    }
}

fn check_length(what: &'static str, length: usize, limit: usize) -> Result<(), EndpointError> {
    if length > limit { Err(EndpointError::TooLong { what, length, limit }) } else { Ok(()) }
}

/// The identity of this host, as [`Endpoint::host_identity`] has it: a hash of the kernel's boot,
/// the network namespace, the user, and an id that sets apart what has all of these in common.
pub fn host_identity(id: &str) -> [u8; 16] {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let namespace = fs::metadata("/proc/self/ns/net").map(|meta| (meta.dev(), meta.ino())).ok();
    let user = rustix::process::getuid().as_raw();
    let mut hash = Blake2s::<U16>::new();
    // Without these two the host can't be told from others, so nobody else may have its identity.
    if boot.is_empty() || namespace.is_none() {
        hash.update(b"process");
        hash.update(std::process::id().to_le_bytes());
        hash.update(hostname());
    }
    let (device, inode) = namespace.unwrap_or_default();
    hash.update(boot.trim());
    hash.update(device.to_le_bytes());
    hash.update(inode.to_le_bytes());
    hash.update(user.to_le_bytes());
    hash.update(id);
    hash.finalize().into()
}

/// The name of this host, cut to what an endpoint may hold.
pub(crate) fn hostname() -> String {
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    truncated(&name, MAX_HOSTNAME_BYTES).to_owned()
}

/// The longest prefix of `text` that has at most `limit` bytes.
pub(crate) fn truncated(text: &str, limit: usize) -> &str {
    let mut end = limit.min(text.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoint() -> Endpoint {
        Endpoint {
            rank: 3,
            host_identity: host_identity(""),
            hostname: "node-3".to_owned(),
            pid: 77,
            addresses: vec![
                Address { ip: "10.0.0.3".parse().unwrap(), port: 4711, speed_mbits: 25_000 },
                Address { ip: "2001:db8::3".parse().unwrap(), port: 4712, speed_mbits: 0 },
            ],
            local_name: Some("gradwire-1".to_owned()),
        }
    }

    #[test]
    fn decode_reverses_encode() {
        let there = endpoint();
        assert_eq!(Endpoint::decode(&there.encode()).unwrap(), there);
    }

    #[test]
    fn another_version_is_named() {
        let text = String::from_utf8(endpoint().encode()).unwrap();
        let newer = text.replace("\"gradwire_endpoint\":1", "\"gradwire_endpoint\":2");
        let error = Endpoint::decode(newer.as_bytes()).unwrap_err();
        assert!(matches!(error, EndpointError::Version(2)), "{error}");
    }

    #[test]
    fn lengths_are_checked() {
        let mut many = endpoint();
        many.addresses = vec![many.addresses[0]; MAX_ADDRESSES + 1];
        let mut long_name = endpoint();
        long_name.hostname = "x".repeat(MAX_HOSTNAME_BYTES + 1);
        let mut long_socket = endpoint();
        long_socket.local_name = Some("x".repeat(MAX_LOCAL_NAME_BYTES + 1));
        for bytes in [many.encode(), long_name.encode(), long_socket.encode(), vec![b' '; 20_000]] {
            let error = Endpoint::decode(&bytes).unwrap_err();
            assert!(matches!(error, EndpointError::TooLong { .. }), "{error}");
        }
    }

    #[test]
    fn truncated_encodings_are_errors() {
        let bytes = endpoint().encode();
        for end in 0..bytes.len() {
            assert!(Endpoint::decode(&bytes[..end]).is_err());
        }
    }
}
