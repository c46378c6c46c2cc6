//! Why a group failed, in a form that travels.

use std::fmt;

use thiserror::Error;

/// The kind of a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Cause {
    /// A rank's connection ended: its process died, or its host did.
    PeerLost = 0,
    /// A rank has not answered for longer than the limit: frozen, or cut off.
    PeerSilent = 1,
    /// Ranks asked for different operations.
    Mismatch = 2,
    /// The deadline passed.
    Timeout = 3,
    /// A rank called abort.
    Aborted = 4,
    /// A rank broke the protocol.
    Violation = 5,
}

impl Cause {
    fn from_code(code: u8) -> Option<Self> {
        use Cause::*;
        [PeerLost, PeerSilent, Mismatch, Timeout, Aborted, Violation]
            .into_iter()
            .find(|cause| *cause as u8 == code)
    }
}

/// What ended a group's operations. Every rank of the group gets the same one.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub struct Failure {
    /// The kind.
    pub cause: Cause,
    /// World rank of the one to blame, where there is one.
    pub culprit: Option<u32>,
    /// World rank of the one that noticed.
    pub reporter: u32,
    /// What happened, in words.
    pub text: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Longest text that travels with a failure.
pub const MAX_FAILURE_TEXT: usize = 2048;

impl Failure {
    /// The payload of an abort frame.
    pub fn encode(&self) -> Box<[u8]> {
        let mut text = self.text.as_str();
        while text.len() > MAX_FAILURE_TEXT {
            let mut end = MAX_FAILURE_TEXT;
            while !text.is_char_boundary(end) {
                end -= 1;
            }
            text = &text[..end];
        }
        let mut bytes = vec![self.cause as u8];
        bytes.extend(self.culprit.unwrap_or(u32::MAX).to_le_bytes());
        bytes.extend(self.reporter.to_le_bytes());
        bytes.extend(text.as_bytes());
        bytes.into_boxed_slice()
    }

    /// Reads the payload of an abort frame; `None` if it can't be one.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        if bytes.len() < 9 || bytes.len() > 9 + MAX_FAILURE_TEXT {
            return None;
        }
        let culprit = u32::from_le_bytes(bytes[1..5].try_into().ok()?);
        Some(Failure {
            cause: Cause::from_code(bytes[0])?,
            culprit: (culprit != u32::MAX).then_some(culprit),
            reporter: u32::from_le_bytes(bytes[5..9].try_into().ok()?),
            text: String::from_utf8_lossy(&bytes[9..]).into_owned(),
        })
    }
}
