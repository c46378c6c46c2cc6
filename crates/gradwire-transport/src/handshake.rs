//! The authenticated start of a connection, without I/O.
//!
//! The handshake is `Noise_NNpsk0_25519_ChaChaPoly_BLAKE2s` of the [Noise protocol framework]: both
//! sides prove that they know the job's secret, and what they say meanwhile is encrypted. Four
//! messages of fixed length go back and forth:
//!
//! | | from | content |
//! |---|---|---|
//! | 1 | initiator | a preface in the clear, then the [`Hello`] |
//! | 2 | acceptor | welcome, or why not |
//! | 3 | initiator | confirmation: only who took part in 1 and 2 can make it, so a replay ends here |
//! | 4 | acceptor | the verdict: the connection stands, or why not |
//!
//! Only the start is protected. Data frames that follow are neither encrypted nor authenticated:
//! the network between the hosts is trusted not to tamper with established connections, as
//! it is for every other collective library.
//!
//! [Noise protocol framework]: https://noiseprotocol.org/noise.html

use gradwire_core::WIRE_VERSION;
use snow::{Builder, HandshakeState, TransportState};
use thiserror::Error;

use crate::endpoint::truncated;
use crate::lane::Wire;

const NOISE: &str = "Noise_NNpsk0_25519_ChaChaPoly_BLAKE2s";
/// What an initiator sends first, so that clients of other protocols are turned away at once.
const PREFACE: [u8; 6] = [b'G', b'W', b'I', b'R', b'E', WIRE_VERSION];
const LENGTH_BYTES: usize = 2;

/// An ephemeral public key of Curve25519.
const KEY_BYTES: usize = 32;
/// An authentication tag of Poly1305.
const TAG_BYTES: usize = 16;
const HELLO_BYTES: usize = 112;
const REPLY_BYTES: usize = 160;
const CONFIRMATION: [u8; 8] = *b"confirm\0";
const HELLO_MESSAGE_BYTES: usize = KEY_BYTES + HELLO_BYTES + TAG_BYTES;
const WELCOME_MESSAGE_BYTES: usize = KEY_BYTES + REPLY_BYTES + TAG_BYTES;
const CONFIRMATION_MESSAGE_BYTES: usize = CONFIRMATION.len() + TAG_BYTES;
const VERDICT_MESSAGE_BYTES: usize = REPLY_BYTES + TAG_BYTES;
/// A message in the clear that says why the acceptor can't go on: cause and wire version.
const REFUSAL_BYTES: usize = 2;
/// No message is longer.
const MAX_MESSAGE_BYTES: usize = 256;
/// Where the host name starts in a [`Hello`].
const HOST_AT: usize = 35;
const MAX_HOST_BYTES: usize = 64;

const CANNOT_AUTHENTICATE: u8 = 1;
const OTHER_VERSION: u8 = 2;

/// The job's secret. It never appears in logs.
#[derive(Clone)]
pub struct Secret([u8; 32]);

impl Secret {
    /// Wraps the key that all ranks of a job share.
    pub fn new(key: [u8; 32]) -> Self {
        Secret(key)
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret(redacted)")
    }
}

/// What an initiator says about the connection that it asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    /// Rank that connects.
    pub initiator: u32,
    /// Rank that it means to reach.
    pub acceptor: u32,
    /// Ranks in the job.
    pub world_size: u32,
    /// The job's session; both sides are given the same one.
    pub session: u64,
    /// Drawn at random by the initiator: ties together the lanes of one pair of ranks.
    pub attempt: u64,
    /// Which lane it is.
    pub lane: u16,
    /// How many lanes there will be at most.
    pub lanes: u16,
    /// What the lane will be made of.
    pub wire: Wire,
    /// Host name of the initiator, for messages; cut to 64 bytes on the wire.
    pub host: String,
}

impl Hello {
    fn encode(&self) -> [u8; HELLO_BYTES] {
        let mut bytes = [0; HELLO_BYTES];
        bytes[0..4].copy_from_slice(&self.initiator.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.acceptor.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.world_size.to_le_bytes());
        bytes[12..20].copy_from_slice(&self.session.to_le_bytes());
        bytes[20..28].copy_from_slice(&self.attempt.to_le_bytes());
        bytes[28..30].copy_from_slice(&self.lane.to_le_bytes());
        bytes[30..32].copy_from_slice(&self.lanes.to_le_bytes());
        bytes[32] = match self.wire {
            Wire::Tcp => 0,
            Wire::SharedMemory => 1,
        };
        bytes[33] = WIRE_VERSION;
        let host = truncated(&self.host, MAX_HOST_BYTES).as_bytes();
        bytes[34] = host.len() as u8;
        bytes[HOST_AT..HOST_AT + host.len()].copy_from_slice(host);
        bytes
    }

    fn decode(bytes: &[u8; HELLO_BYTES]) -> Option<Self> {
        let u16_at = |at: usize| u16::from_le_bytes(bytes[at..at + 2].try_into().expect("2 bytes"));
        let u32_at = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"));
        let u64_at = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
        let wire = match bytes[32] {
            0 => Wire::Tcp,
            1 => Wire::SharedMemory,
            _ => return None,
        };
        let host_bytes = usize::from(bytes[34]);
        if bytes[33] != WIRE_VERSION || host_bytes > MAX_HOST_BYTES {
            return None;
        }
        let host = std::str::from_utf8(&bytes[HOST_AT..HOST_AT + host_bytes]).ok()?.to_owned();
        Some(Hello {
            initiator: u32_at(0),
            acceptor: u32_at(4),
            world_size: u32_at(8),
            session: u64_at(12),
            attempt: u64_at(20),
            lane: u16_at(28),
            lanes: u16_at(30),
            wire,
            host,
        })
    }
}

/// What kind of thing stands against a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum RejectionKind {
    /// The two sides disagree about who they are or what the job is.
    Mismatch = 1,
    /// The acceptor's own attempt to connect goes ahead of this one; it is about to arrive.
    Superseded = 2,
    /// There is such a connection already.
    AlreadyConnected = 3,
}

/// Why an acceptor that knows the secret does not want a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejection {
    /// What kind of thing.
    pub kind: RejectionKind,
    /// In words; cut to 158 bytes on the wire.
    pub reason: String,
}

/// Encodes a welcome (or verdict) or its rejection.
fn encode_reply(reply: &Result<(), Rejection>) -> [u8; REPLY_BYTES] {
    let mut bytes = [0; REPLY_BYTES];
    if let Err(rejection) = reply {
        let reason = truncated(&rejection.reason, REPLY_BYTES - 2).as_bytes();
        bytes[0] = rejection.kind as u8;
        bytes[1] = reason.len() as u8;
        bytes[2..2 + reason.len()].copy_from_slice(reason);
    }
    bytes
}

fn decode_reply(bytes: &[u8; REPLY_BYTES]) -> Result<(), HandshakeError> {
    let kind = match bytes[0] {
        0 => return Ok(()),
        1 => RejectionKind::Mismatch,
        2 => RejectionKind::Superseded,
        3 => RejectionKind::AlreadyConnected,
        _ => return Err(HandshakeError::Malformed("unknown reply")),
    };
    let reason = bytes.get(2..2 + usize::from(bytes[1])).unwrap_or_default();
    let reason = String::from_utf8_lossy(reason).into_owned();
    Err(HandshakeError::Rejected(Rejection { kind, reason }))
}

/// Why a handshake ended without a connection.
#[derive(Debug, PartialEq, Eq, Error)]
pub enum HandshakeError {
    /// The bytes are none that a gradwire rank would send.
    #[error("malformed handshake: {0}")]
    Malformed(&'static str),
    /// The peer does not know the secret.
    #[error("the peer does not prove knowledge of the job's secret")]
    Unauthenticated,
    /// The acceptor says that this side does not know its secret.
    #[error("the peer has another secret: it belongs to another job")]
    OtherSecret,
    /// The two sides speak different versions.
    #[error(
        "the peer speaks wire version {theirs}, this side {WIRE_VERSION}: install the same gradwire everywhere"
    )]
    OtherVersion {
        /// The peer's version.
        theirs: u8,
    },
    /// The acceptor does not want the connection.
    #[error("{}", .0.reason)]
    Rejected(Rejection),
}

/// What has come of received bytes.
#[derive(Debug, PartialEq, Eq)]
pub enum Progress {
    /// More bytes are needed.
    Incomplete,
    /// Acceptor: this has been asked for; [`Acceptor::welcome`] is to be called.
    Introduced(Hello),
    /// Initiator: the acceptor is real and its verdict is being asked for. From here on the
    /// acceptor may regard the connection as established.
    /// Acceptor: the initiator is real; [`Acceptor::verdict`] is to be called.
    Confirmed,
    /// Initiator: the connection stands.
    Established,
}

/// Gathers one message of known length, so that no stranger decides how much memory is taken.
struct Message {
    bytes: [u8; PREFACE.len() + LENGTH_BYTES + MAX_MESSAGE_BYTES],
    filled: usize,
    /// Bytes in front of the length.
    preface: usize,
}

impl Message {
    fn new(preface: usize) -> Self {
        Message { bytes: [0; PREFACE.len() + LENGTH_BYTES + MAX_MESSAGE_BYTES], filled: 0, preface }
    }

    fn head(&self) -> usize {
        self.preface + LENGTH_BYTES
    }

    /// The announced length, once it is there.
    fn length(&self) -> Option<usize> {
        let length = self.bytes[self.preface..self.head()].try_into().expect("2 bytes");
        (self.filled >= self.head()).then(|| usize::from(u16::from_le_bytes(length)))
    }

    fn wanted(&self) -> usize {
        self.head() + self.length().unwrap_or(0) - self.filled
    }

    /// Takes in at most [`Message::wanted`] bytes. True when the head has just become complete.
    fn extend(&mut self, bytes: &[u8]) -> Result<bool, HandshakeError> {
        if bytes.len() > self.wanted() {
            return Err(HandshakeError::Malformed("more bytes than the message has"));
        }
        let had_head = self.filled >= self.head();
        self.bytes[self.filled..self.filled + bytes.len()].copy_from_slice(bytes);
        self.filled += bytes.len();
        Ok(!had_head && self.filled >= self.head())
    }

    fn body(&self) -> &[u8] {
        &self.bytes[self.head()..self.filled]
    }
}

fn builder(secret: &Secret) -> Builder<'_> {
    Builder::new(NOISE.parse().expect("the pattern is known to the library"))
        .psk(0, &secret.0)
        .and_then(|builder| builder.prologue(&PREFACE))
        .expect("key and prologue are given once")
}

/// Appends a length and the message that `write` makes.
fn append(outgoing: &mut Vec<u8>, write: impl FnOnce(&mut [u8]) -> Result<usize, snow::Error>) {
    let mut message = [0; MAX_MESSAGE_BYTES];
    let length = write(&mut message).expect("fixed messages are in turn and fit");
    outgoing.extend((length as u16).to_le_bytes());
    outgoing.extend(&message[..length]);
}

/// Decrypts a message of `N` payload bytes.
fn open<const N: usize>(
    read: impl FnOnce(&mut [u8]) -> Result<usize, snow::Error>,
) -> Result<[u8; N], HandshakeError> {
    let mut payload = [0; N];
    match read(&mut payload) {
        Ok(length) if length == N => Ok(payload),
        _ => Err(HandshakeError::Unauthenticated),
    }
}

enum InitiatorState {
    AwaitingWelcome(Box<HandshakeState>),
    AwaitingVerdict(Box<TransportState>),
    Over,
}

/// The side that connects.
pub struct Initiator {
    state: InitiatorState,
    incoming: Message,
    outgoing: Vec<u8>,
}

impl Initiator {
    /// Starts a handshake; its first message is in [`Initiator::take_outgoing`].
    pub fn new(secret: &Secret, hello: &Hello) -> Self {
        let mut noise = Box::new(builder(secret).build_initiator().expect("valid parameters"));
        let mut outgoing = PREFACE.to_vec();
        append(&mut outgoing, |message| noise.write_message(&hello.encode(), message));
        let state = InitiatorState::AwaitingWelcome(noise);
        Initiator { state, incoming: Message::new(0), outgoing }
    }

    /// How many bytes to read at most before the next [`Initiator::received`]; never 0 before the
    /// end.
    pub fn wanted(&self) -> usize {
        self.incoming.wanted()
    }

    /// The bytes to send now.
    pub fn take_outgoing(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.outgoing)
    }

    /// Takes in bytes, no more than [`Initiator::wanted`].
    ///
    /// # Errors
    /// When the peer is no rank of this job or does not want the connection; it is over then.
    pub fn received(&mut self, bytes: &[u8]) -> Result<Progress, HandshakeError> {
        let result = self.take_in(bytes);
        if result.is_err() {
            self.state = InitiatorState::Over;
        }
        result
    }

    fn take_in(&mut self, bytes: &[u8]) -> Result<Progress, HandshakeError> {
        if self.incoming.extend(bytes)? {
            self.check_length()?;
        }
        if self.incoming.wanted() > 0 {
            return Ok(Progress::Incomplete);
        }
        let message = std::mem::replace(&mut self.incoming, Message::new(0));
        match std::mem::replace(&mut self.state, InitiatorState::Over) {
            InitiatorState::AwaitingWelcome(noise) => self.welcomed(noise, message.body()),
            InitiatorState::AwaitingVerdict(mut noise) => {
                let reply = open(|payload| noise.read_message(message.body(), payload))?;
                decode_reply(&reply).map(|()| Progress::Established)
            }
            InitiatorState::Over => Err(HandshakeError::Malformed("bytes after the end")),
        }
    }

    fn check_length(&self) -> Result<(), HandshakeError> {
        let fits = matches!(
            (&self.state, self.incoming.length()),
            (InitiatorState::AwaitingWelcome(_), Some(WELCOME_MESSAGE_BYTES | REFUSAL_BYTES))
                | (InitiatorState::AwaitingVerdict(_), Some(VERDICT_MESSAGE_BYTES))
        );
        if fits { Ok(()) } else { Err(HandshakeError::Malformed("unexpected length")) }
    }

    fn welcomed(
        &mut self,
        mut noise: Box<HandshakeState>,
        body: &[u8],
    ) -> Result<Progress, HandshakeError> {
        if let [cause, version] = *body {
            return Err(match cause {
                CANNOT_AUTHENTICATE => HandshakeError::OtherSecret,
                OTHER_VERSION => HandshakeError::OtherVersion { theirs: version },
                _ => HandshakeError::Malformed("unknown refusal"),
            });
        }
        decode_reply(&open(|payload| noise.read_message(body, payload))?)?;
        let mut noise = into_transport(noise);
        append(&mut self.outgoing, |message| noise.write_message(&CONFIRMATION, message));
        self.state = InitiatorState::AwaitingVerdict(noise);
        Ok(Progress::Confirmed)
    }
}

fn into_transport(noise: Box<HandshakeState>) -> Box<TransportState> {
    Box::new(noise.into_transport_mode().expect("the handshake's two messages are through"))
}

enum AcceptorState {
    AwaitingHello(Box<HandshakeState>),
    Introduced(Box<HandshakeState>),
    AwaitingConfirmation(Box<TransportState>),
    Confirmed(Box<TransportState>),
    Over,
}

/// The side that is connected to.
pub struct Acceptor {
    state: AcceptorState,
    incoming: Message,
    outgoing: Vec<u8>,
}

impl Acceptor {
    /// Waits for a first message.
    pub fn new(secret: &Secret) -> Self {
        let noise = Box::new(builder(secret).build_responder().expect("valid parameters"));
        Acceptor {
            state: AcceptorState::AwaitingHello(noise),
            incoming: Message::new(PREFACE.len()),
            outgoing: Vec::new(),
        }
    }

    /// How many bytes to read at most before the next [`Acceptor::received`].
    pub fn wanted(&self) -> usize {
        self.incoming.wanted()
    }

    /// The bytes to send now. There may be some after an error too: they tell the peer.
    pub fn take_outgoing(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.outgoing)
    }

    /// Takes in bytes, no more than [`Acceptor::wanted`].
    ///
    /// # Errors
    /// When the peer is no rank of this job; it is over then.
    pub fn received(&mut self, bytes: &[u8]) -> Result<Progress, HandshakeError> {
        let result = self.take_in(bytes);
        if let Err(error) = &result {
            self.state = AcceptorState::Over;
            self.refuse(error);
        }
        result
    }

    fn take_in(&mut self, bytes: &[u8]) -> Result<Progress, HandshakeError> {
        if self.incoming.extend(bytes)? {
            self.check_head()?;
        }
        if self.incoming.wanted() > 0 {
            return Ok(Progress::Incomplete);
        }
        let message = std::mem::replace(&mut self.incoming, Message::new(0));
        match std::mem::replace(&mut self.state, AcceptorState::Over) {
            AcceptorState::AwaitingHello(mut noise) => {
                let hello = open(|payload| noise.read_message(message.body(), payload))?;
                self.state = AcceptorState::Introduced(noise);
                Hello::decode(&hello)
                    .map(Progress::Introduced)
                    .ok_or(HandshakeError::Malformed("unreadable hello"))
            }
            AcceptorState::AwaitingConfirmation(mut noise) => {
                let payload = open(|payload| noise.read_message(message.body(), payload))?;
                self.state = AcceptorState::Confirmed(noise);
                if payload == CONFIRMATION {
                    Ok(Progress::Confirmed)
                } else {
                    Err(HandshakeError::Malformed("unreadable confirmation"))
                }
            }
            _ => Err(HandshakeError::Malformed("bytes out of turn")),
        }
    }

    fn check_head(&self) -> Result<(), HandshakeError> {
        let preface = &self.incoming.bytes[..self.incoming.preface];
        let (own_magic, own_version) = PREFACE.split_at(PREFACE.len() - 1);
        if !preface.is_empty() {
            let (magic, version) = preface.split_at(own_magic.len());
            if magic != own_magic {
                return Err(HandshakeError::Malformed("not the gradwire protocol"));
            }
            if version != own_version {
                return Err(HandshakeError::OtherVersion { theirs: version[0] });
            }
        }
        let expected = match &self.state {
            AcceptorState::AwaitingHello(_) => HELLO_MESSAGE_BYTES,
            _ => CONFIRMATION_MESSAGE_BYTES,
        };
        if self.incoming.length() == Some(expected) {
            Ok(())
        } else {
            Err(HandshakeError::Malformed("unexpected length"))
        }
    }

    /// Tells a peer that at least speaks the protocol what is wrong.
    fn refuse(&mut self, error: &HandshakeError) {
        let cause = match error {
            HandshakeError::Unauthenticated => CANNOT_AUTHENTICATE,
            HandshakeError::OtherVersion { .. } => OTHER_VERSION,
            _ => return,
        };
        self.outgoing.extend((REFUSAL_BYTES as u16).to_le_bytes());
        self.outgoing.extend([cause, WIRE_VERSION]);
    }

    /// Answers the hello. After a rejection the handshake is over. Does nothing out of turn.
    pub fn welcome(&mut self, reply: &Result<(), Rejection>) {
        match std::mem::replace(&mut self.state, AcceptorState::Over) {
            AcceptorState::Introduced(mut noise) => {
                append(&mut self.outgoing, |message| {
                    noise.write_message(&encode_reply(reply), message)
                });
                if reply.is_ok() {
                    self.state = AcceptorState::AwaitingConfirmation(into_transport(noise));
                }
            }
            other => self.state = other,
        }
    }

    /// Answers the confirmation, which ends the handshake. Does nothing out of turn.
    pub fn verdict(&mut self, reply: &Result<(), Rejection>) {
        match std::mem::replace(&mut self.state, AcceptorState::Over) {
            AcceptorState::Confirmed(mut noise) => append(&mut self.outgoing, |message| {
                noise.write_message(&encode_reply(reply), message)
            }),
            other => self.state = other,
        }
    }
}

#[cfg(test)]
#[path = "handshake/tests.rs"]
mod tests;
