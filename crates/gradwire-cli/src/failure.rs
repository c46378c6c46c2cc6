//! Errors that choose the exit status.

use std::process::ExitCode;

use thiserror::Error;

/// An error with an exit status of its own; any other error exits with 1.
#[derive(Debug, Error)]
#[error("{message}")]
pub struct Failure {
    status: u8,
    message: String,
}

impl Failure {
    /// Bad usage: exit status 2.
    pub fn usage(message: impl Into<String>) -> Self {
        Self::new(2, message)
    }

    /// An error with this exit status.
    pub fn new(status: u8, message: impl Into<String>) -> Self {
        Self { status, message: message.into() }
    }
}

/// The exit status for an error.
pub fn status(error: &anyhow::Error) -> ExitCode {
    ExitCode::from(error.downcast_ref::<Failure>().map_or(1, |failure| failure.status))
}
