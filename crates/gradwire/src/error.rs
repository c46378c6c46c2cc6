//! What can go wrong, as callers see it.

use std::time::Duration;

use gradwire_core::{Cause, Descriptor, OperationError, PlanError, SubmitError};
use gradwire_schedule::Unsupported;
use thiserror::Error;

/// An error of the engine.
#[derive(Clone, Debug, Error)]
pub enum Error {
    /// An operation ended with an error; it names operation, culprit and cause.
    #[error(transparent)]
    Operation(#[from] OperationError),
    /// An operation was not started because its group had failed before.
    #[error("{operation} was not started: {error}; make a new group of the ranks that remain")]
    Group {
        /// The operation in words.
        operation: String,
        /// What is wrong with the group.
        error: SubmitError,
    },
    /// A request that can't be.
    #[error("{0}")]
    Request(String),
    /// The wait was over before the operation; the operation goes on.
    #[error("{what} is still in flight after {after:?}")]
    WaitTimeout {
        /// The operation in words.
        what: String,
        /// How long was waited.
        after: Duration,
    },
    /// A setting that can't be.
    #[error("{0}")]
    Config(String),
    /// The job could not be joined.
    #[error("cannot join the job: {0}")]
    Start(String),
    /// The engine has been shut down.
    #[error("the engine has been shut down")]
    ShutDown,
}

impl Error {
    /// The kind of failure, where an operation or a group failed.
    pub fn cause(&self) -> Option<Cause> {
        match self {
            Error::Operation(error) => Some(error.failure.cause),
            Error::Group { error: SubmitError::Failed { failure, .. }, .. } => Some(failure.cause),
            _ => None,
        }
    }

    /// World rank of the one to blame, where there is one.
    pub fn culprit(&self) -> Option<u32> {
        match self {
            Error::Operation(error) => error.failure.culprit,
            Error::Group { error: SubmitError::Failed { failure, .. }, .. } => failure.culprit,
            _ => None,
        }
    }
}

impl Error {
    /// The error of an operation that was not started.
    pub(crate) fn not_started(operation: &Descriptor, error: SubmitError) -> Self {
        match error {
            SubmitError::Failed { .. } => Error::Group { operation: operation.to_string(), error },
            other => Error::Request(format!("{operation} was not started: {other}")),
        }
    }
}

impl From<Unsupported> for Error {
    fn from(error: Unsupported) -> Self {
        Error::Request(error.to_string())
    }
}

impl From<PlanError> for Error {
    fn from(error: PlanError) -> Self {
        Error::Request(error.to_string())
    }
}
