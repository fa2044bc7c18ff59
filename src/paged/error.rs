//! Why a call over the cache's memory was refused.

use crate::error::{Error, Status};
use crate::kv::KvError;
use std::fmt;

/// What a call answers.
pub type Result<T> = std::result::Result<T, MemoryError>;

/// Why a call was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MemoryError {
    /// The books refused it.
    Kv(KvError),
    /// The pool or the driver refused it.
    Pool(Error),
    /// Something is in use just now, and nothing waits here: try again when work has ended.
    Again(&'static str),
    /// An argument makes no sense.
    Invalid(&'static str),
}

impl MemoryError {
    /// The status that the refusal is in C.
    pub fn status(&self) -> Status {
        Error::from(self.clone()).status()
    }
}

impl From<MemoryError> for Error {
    fn from(error: MemoryError) -> Error {
        match error {
            MemoryError::Kv(error) => error.into(),
            MemoryError::Pool(error) => error,
            MemoryError::Again(what) => Error::new(Status::Busy, what),
            MemoryError::Invalid(what) => Error::new(Status::InvalidArgument, what),
        }
    }
}

impl fmt::Display for MemoryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MemoryError::Kv(error) => error.fmt(f),
            MemoryError::Pool(error) => error.fmt(f),
            MemoryError::Again(what) | MemoryError::Invalid(what) => f.write_str(what),
        }
    }
}

impl std::error::Error for MemoryError {}

impl From<KvError> for MemoryError {
    fn from(error: KvError) -> MemoryError {
        MemoryError::Kv(error)
    }
}

impl From<Error> for MemoryError {
    fn from(error: Error) -> MemoryError {
        MemoryError::Pool(error)
    }
}
