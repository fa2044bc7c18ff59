//! Why a call of the cache was refused. Each refusal has changed nothing.

use crate::error::{Error, Status};
use std::fmt;

/// What a call answers.
pub type Result<T> = std::result::Result<T, KvError>;

/// How many blocks a call needed and how many there were, in blocks of the group that lacked them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shortage {
    /// The group, by its place in the configuration.
    pub group: u32,
    /// Blocks that the call needed.
    pub need: u32,
    /// Blocks that hold nothing.
    pub free: u32,
    /// Blocks that hold reusable prefixes of nobody, and could be given up.
    pub evictable: u32,
    /// Blocks that wait for a fence.
    pub quarantined: u32,
}

/// Why a call was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum KvError {
    /// There are not enough blocks now: ordinary flow control, not a fault.
    NoBlocks(Shortage),
    /// The handle's sequence has ended, or never was.
    Stale,
    /// All sequences of the configuration are open.
    TooManySequences,
    /// The sequence would grow past the blocks that one may have.
    TooLong {
        /// Blocks that it would take.
        blocks: u32,
        /// Blocks that it may have.
        most: u32,
    },
    /// A token or block number that the sequence or cache does not have.
    OutOfRange(&'static str),
    /// The group's geometry makes no sense, or its bytes overflow.
    Geometry(&'static str),
    /// The configuration makes no sense.
    Config(&'static str),
    /// The call does not go with this cache's configuration or the sequence's state.
    Unsupported(&'static str),
    /// Memory of the machine for the tables could not be had.
    NoMemory,
}

impl fmt::Display for KvError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            KvError::NoBlocks(s) => write!(
                f,
                "group {} needs {} blocks: {} are free, {} hold prefixes that nobody uses, {} wait \
                 for a fence",
                s.group, s.need, s.free, s.evictable, s.quarantined
            ),
            KvError::Stale => f.write_str("the sequence has ended, or the handle is not one"),
            KvError::TooManySequences => {
                f.write_str("all sequences of the cache are open: free some, or configure more")
            }
            KvError::TooLong { blocks, most } => {
                write!(f, "the sequence would take {blocks} blocks, and may have {most}")
            }
            KvError::OutOfRange(what)
            | KvError::Geometry(what)
            | KvError::Config(what)
            | KvError::Unsupported(what) => f.write_str(what),
            KvError::NoMemory => f.write_str("the machine has no memory for the cache's tables"),
        }
    }
}

impl std::error::Error for KvError {}

impl From<KvError> for Error {
    fn from(error: KvError) -> Error {
        let status = match error {
            KvError::NoBlocks(_) => Status::NoBlocks,
            KvError::Stale => Status::StaleSequence,
            KvError::TooManySequences | KvError::TooLong { .. } => Status::Limit,
            KvError::OutOfRange(_) | KvError::Geometry(_) | KvError::Config(_) => {
                Status::InvalidArgument
            }
            KvError::Unsupported(_) => Status::Unsupported,
            KvError::NoMemory => Status::OutOfMemory,
        };
        Error::new(status, error.to_string())
    }
}
