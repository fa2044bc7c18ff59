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
    /// The status that the refusal is in C. Shortages of blocks are [`Status::OutOfMemory`].
    pub fn status(&self) -> Status {
        match self {
            MemoryError::Kv(KvError::NoBlocks(_) | KvError::NoMemory) => Status::OutOfMemory,
            MemoryError::Kv(KvError::Unsupported(_)) => Status::Unsupported,
            MemoryError::Kv(KvError::TooManySequences) | MemoryError::Again(_) => Status::Busy,
            MemoryError::Kv(_) | MemoryError::Invalid(_) => Status::InvalidArgument,
            MemoryError::Pool(error) => error.status(),
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
