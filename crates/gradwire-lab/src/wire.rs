//! What front and supervisor tell each other over the lifeline, one JSON object a line.

use std::io::{self, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::LabError;
use crate::front::Job;
use crate::plan::Lab;
use crate::supervision::{Ending, RankFailure};

/// What happened in a running lab.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Event {
    /// The network is up; the ranks are about to start.
    Up,
    /// A rank failed.
    RankFailed(RankFailure),
    /// All is over; the last event.
    Ended(Outcome),
}

/// How a run ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outcome {
    /// Why it ended.
    pub ending: Ending,
    /// Ranks that still ran when it was ended for another reason than their own end.
    pub unfinished: Vec<usize>,
    /// Ranks that failed by themselves, in the order in which they did.
    pub failures: Vec<RankFailure>,
}

impl Outcome {
    /// Whether every rank ended by itself with status 0.
    pub fn is_success(&self) -> bool {
        self.ending == Ending::AllEnded && self.failures.is_empty()
    }
}

/// What the front tells the supervisor.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum FrontMessage {
    /// The first message.
    Run(Box<Spec>),
    /// End the run gently; at once when sent again.
    Stop,
}

/// All that a supervisor needs to know.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Spec {
    pub lab: Lab,
    pub job: Job,
    pub control: PathBuf,
    pub front: u32,
}

/// What the lab's processes tell the front.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum LabMessage {
    Event(Event),
    Failed(Failure),
}

/// A [`LabError`] as it crosses the lifeline.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Failure {
    Invalid(String),
    CommandNotFound(String),
    CommandNotExecutable { command: String, errno: Option<i32> },
    Network(String),
}

impl From<LabError> for Failure {
    fn from(error: LabError) -> Self {
        match error {
            LabError::Invalid(text) => Self::Invalid(text),
            LabError::CommandNotFound(command) => Self::CommandNotFound(command),
            LabError::CommandNotExecutable { command, source } => {
                Self::CommandNotExecutable { command, errno: source.raw_os_error() }
            }
            other => Self::Network(other.to_string()),
        }
    }
}

impl From<Failure> for LabError {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Invalid(text) => Self::Invalid(text),
            Failure::CommandNotFound(command) => Self::CommandNotFound(command),
            Failure::CommandNotExecutable { command, errno } => Self::CommandNotExecutable {
                command,
                source: errno.map_or_else(
                    || io::Error::other("can't be executed"),
                    io::Error::from_raw_os_error,
                ),
            },
            Failure::Network(text) => Self::Network(text),
        }
    }
}

/// Sends one message as one line.
pub(crate) fn send(stream: &UnixStream, message: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    (&mut &*stream).write_all(&line)
}
