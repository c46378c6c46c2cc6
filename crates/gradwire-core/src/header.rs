//! The fixed header that opens every frame on every wire.

use thiserror::Error;

/// Length of an encoded [`Header`].
pub const HEADER_BYTES: usize = 64;

/// The largest payload that a frame may announce. Anything larger is a violation.
pub const MAX_PAYLOAD_BYTES: u32 = 4 << 20;

/// Version of the frame layout; ranks of different versions refuse each other.
pub const WIRE_VERSION: u8 = 1;

/// What a frame carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum FrameKind {
    /// One tile of a chunk. Also says that the sender has posted the operation.
    Data = 0,
    /// The sender has posted the operation: all of it may be sent.
    Ready = 1,
    /// The sender holds data for an operation and asks for [`FrameKind::Ready`].
    Request = 2,
    /// Tiles of a step have been consumed (`tile` counts them): the window moves on.
    Acknowledge = 3,
    /// Nothing but the piggybacked credit.
    Credit = 4,
    /// The group has failed; the payload says why.
    Abort = 5,
    /// Are you there?
    Ping = 6,
    /// I am.
    Pong = 7,
    /// The sender leaves in good order and will send nothing more.
    Goodbye = 8,
}

/// The decoded header of a frame. Integers travel in little-endian order.
///
/// | bytes | field | | bytes | field |
/// |---|---|---|---|---|
/// | 0 | kind | | 24..32 | sequence |
/// | 1 | version | | 32..36 | tag |
/// | 2 | collective | | 36..40 | edge |
/// | 3 | algorithm | | 40..44 | tile |
/// | 4 | dtype | | 44..48 | credit |
/// | 5 | op | | 48..56 | count |
/// | 6 | early (0 or 1) | | 56..64 | chunk bytes |
/// | 7 | zero | | | |
/// | 8..12 | payload bytes | | | |
/// | 12..16 | argument | | | |
/// | 16..24 | group | | | |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// What the frame carries.
    pub kind: FrameKind,
    /// Code of the collective ([`crate::Descriptor`] encodes and decodes it).
    pub collective: u8,
    /// Code of the algorithm.
    pub algorithm: u8,
    /// Code of the data type.
    pub dtype: u8,
    /// Code of the reduction operator.
    pub op: u8,
    /// The tile was sent before its receiver said that it is ready; it counts against the budget
    /// for early data and returns as credit.
    pub early: bool,
    /// Bytes that follow this header, at most [`MAX_PAYLOAD_BYTES`].
    pub payload_bytes: u32,
    /// Root rank of the collective, where it has one; the codec's code, where it has one
    /// (collectives with a root have none).
    pub argument: u32,
    /// Identity of the group.
    pub group: u64,
    /// Number of the operation within its group (or within its point-to-point channel).
    pub sequence: u64,
    /// Tag of a point-to-point operation.
    pub tag: u32,
    /// Which of the steps between the two ranks: the k-th send is the k-th receive.
    pub edge: u32,
    /// Index of the tile within the chunk; a count of tiles in [`FrameKind::Acknowledge`], of the
    /// sender's lanes in [`FrameKind::Goodbye`].
    pub tile: u32,
    /// Bytes of early data consumed since the connection was made, modulo 2^32.
    pub credit: u32,
    /// Elements of the whole operation.
    pub count: u64,
    /// Bytes of the chunk that this tile belongs to.
    pub chunk_bytes: u64,
}

/// Why a header was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum HeaderError {
    /// The first byte names no frame kind.
    #[error("unknown frame kind {0}")]
    Kind(u8),
    /// The peer speaks another version.
    #[error("wire version {0}, this side speaks {WIRE_VERSION}")]
    Version(u8),
    /// The announced payload is too large.
    #[error("payload of {0} bytes announced, the limit is {MAX_PAYLOAD_BYTES}")]
    Payload(u32),
    /// Reserved bytes are not zero.
    #[error("reserved bytes are not zero")]
    Reserved,
}

impl Header {
    /// A header of the given kind with every other field zero.
    pub fn new(kind: FrameKind) -> Self {
        Header {
            kind,
            collective: 0,
            algorithm: 0,
            dtype: 0,
            op: 0,
            early: false,
            payload_bytes: 0,
            argument: 0,
            group: 0,
            sequence: 0,
            tag: 0,
            edge: 0,
            tile: 0,
            credit: 0,
            count: 0,
            chunk_bytes: 0,
        }
    }

    /// The bytes that go on the wire.
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[0] = self.kind as u8;
        bytes[1] = WIRE_VERSION;
        bytes[2] = self.collective;
        bytes[3] = self.algorithm;
        bytes[4] = self.dtype;
        bytes[5] = self.op;
        bytes[6] = u8::from(self.early);
        bytes[8..12].copy_from_slice(&self.payload_bytes.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.argument.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.group.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.sequence.to_le_bytes());
        bytes[32..36].copy_from_slice(&self.tag.to_le_bytes());
        bytes[36..40].copy_from_slice(&self.edge.to_le_bytes());
        bytes[40..44].copy_from_slice(&self.tile.to_le_bytes());
        bytes[44..48].copy_from_slice(&self.credit.to_le_bytes());
        bytes[48..56].copy_from_slice(&self.count.to_le_bytes());
        bytes[56..64].copy_from_slice(&self.chunk_bytes.to_le_bytes());
        bytes
    }

    /// Reads a header, refusing what no gradwire rank would send.
    pub fn decode(bytes: &[u8; HEADER_BYTES]) -> Result<Self, HeaderError> {
        let u32_at = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"));
        let u64_at = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
        if bytes[1] != WIRE_VERSION {
            return Err(HeaderError::Version(bytes[1]));
        }
        if bytes[6] > 1 || bytes[7] != 0 {
            return Err(HeaderError::Reserved);
        }
        let payload_bytes = u32_at(8);
        if payload_bytes > MAX_PAYLOAD_BYTES {
            return Err(HeaderError::Payload(payload_bytes));
        }
        Ok(Header {
            kind: FrameKind::from_code(bytes[0]).ok_or(HeaderError::Kind(bytes[0]))?,
            collective: bytes[2],
            algorithm: bytes[3],
            dtype: bytes[4],
            op: bytes[5],
            early: bytes[6] == 1,
            payload_bytes,
            argument: u32_at(12),
            group: u64_at(16),
            sequence: u64_at(24),
            tag: u32_at(32),
            edge: u32_at(36),
            tile: u32_at(40),
            credit: u32_at(44),
            count: u64_at(48),
            chunk_bytes: u64_at(56),
        })
    }
}

impl FrameKind {
    fn from_code(code: u8) -> Option<Self> {
        use FrameKind::*;
        [Data, Ready, Request, Acknowledge, Credit, Abort, Ping, Pong, Goodbye]
            .into_iter()
            .find(|kind| *kind as u8 == code)
    }
}
