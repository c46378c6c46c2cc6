//! What can go wrong with a lab.

use std::io;

use thiserror::Error;

use crate::availability::Unavailable;

/// Why a lab could not be made, run or changed. Each message is one line.
#[derive(Debug, Error)]
pub enum LabError {
    /// The caller asked for something that can't be: a count, an index or a name out of range.
    #[error("{0}")]
    Invalid(String),
    /// This machine can't make labs.
    #[error("no lab on this machine: {0}")]
    Unavailable(#[from] Unavailable),
    /// The command to run on the ranks does not exist.
    #[error("{0}: command not found")]
    CommandNotFound(String),
    /// The command to run on the ranks is there but can't be executed.
    #[error("{command}: {source}")]
    CommandNotExecutable {
        /// The command as given.
        command: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// The lab's network could not be set up or changed; says which step failed and how.
    #[error("{0}")]
    Network(String),
    /// The lab's own processes were killed from outside.
    #[error("the lab {0} was killed")]
    Killed(String),
    /// There is no running lab with this name.
    #[error("no lab named {0} is running")]
    NotRunning(String),
    /// The machine refused a file, a socket or a process.
    #[error("{what}: {source}")]
    Io {
        /// What was attempted.
        what: String,
        /// What the kernel said.
        source: io::Error,
    },
}

impl LabError {
    /// For `map_err`: an I/O error with what was attempted.
    pub(crate) fn io<E: Into<io::Error>>(what: impl Into<String>) -> impl FnOnce(E) -> Self {
        let what = what.into();
        move |source| Self::Io { what, source: source.into() }
    }
}
