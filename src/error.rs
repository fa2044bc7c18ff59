//! Status numbers, and the thread's last error message.
//!
//! Owns the one enum that crosses the C ABI (numbers are frozen: a retired one is never
//! given to another meaning) and the thread-local message behind
//! `forebay_last_error()`. Promises that making a [`Status`] allocates nothing; only
//! [`Error::new`] formats text, and only slow paths call it.

use std::cell::RefCell;
use std::fmt;

/// What a Forebay function answers. `FOREBAY_OK` is 0; every other value is an error.
#[repr(i32)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Status {
    /// Success.
    Ok = 0,
    /// An argument is outside what the function accepts; the message says which.
    InvalidArgument = 1,
    /// The request does not fit; the message is the out-of-memory report.
    OutOfMemory = 2,
    /// The pointer lies in no memory of Forebay's.
    NotOwned = 3,
    /// The block at this address is not live: it was freed before.
    DoubleFree = 4,
    /// The pointer lies inside a block, not at its start.
    InteriorPointer = 5,
    /// The process was forked after first use: device memory belongs to the parent.
    Forked = 6,
    /// The library or the driver has been shut down.
    ShutDown = 7,
    /// The pool handle names no pool: never created, or destroyed.
    InvalidPool = 8,
    /// No usable driver for the backend asked for; the message names the variable.
    NoDriver = 9,
    /// A driver call failed; the message names the call and its code.
    Driver = 10,
    /// A configuration value is unknown or malformed (`FOREBAY_STRICT=1` only).
    Config = 11,
    /// A defect in Forebay: a panic was caught at the boundary.
    Internal = 12,
    /// The stream is unknown to this pool's device.
    InvalidStream = 13,
    /// The backend or the platform cannot do this.
    Unsupported = 14,
    /// The object is in use and cannot be changed or destroyed now.
    Busy = 15,
    /// The platform's limit on memory mappings is reached.
    MappingLimit = 16,
    /// The address belonged to a pool that was reset or destroyed.
    StalePointer = 17,
    /// The memory is open to as many other devices as a mapping can be.
    TooManyPeers = 18,
    /// The device's context is gone, and its memory with it: destroy the pool.
    ContextLost = 19,
    /// No plan fits under the capacity: proven.
    Infeasible = 20,
    /// No plan under the capacity was found within the budget; one may exist.
    NotFound = 21,
    /// The KV cache has not enough blocks now: ordinary flow control.
    NoBlocks = 22,
    /// The sequence has ended, or the handle never was one.
    StaleSequence = 23,
    /// A limit of the configuration is reached; the message names it.
    Limit = 24,
}

impl Status {
    /// The C name, e.g. `"FOREBAY_ERROR_OUT_OF_MEMORY"`.
    pub const fn name(self) -> &'static str {
        match self {
            Status::Ok => "FOREBAY_OK",
            Status::InvalidArgument => "FOREBAY_ERROR_INVALID_ARGUMENT",
            Status::OutOfMemory => "FOREBAY_ERROR_OUT_OF_MEMORY",
            Status::NotOwned => "FOREBAY_ERROR_NOT_OWNED",
            Status::DoubleFree => "FOREBAY_ERROR_DOUBLE_FREE",
            Status::InteriorPointer => "FOREBAY_ERROR_INTERIOR_POINTER",
            Status::Forked => "FOREBAY_ERROR_FORKED",
            Status::ShutDown => "FOREBAY_ERROR_SHUT_DOWN",
            Status::InvalidPool => "FOREBAY_ERROR_INVALID_POOL",
            Status::NoDriver => "FOREBAY_ERROR_NO_DRIVER",
            Status::Driver => "FOREBAY_ERROR_DRIVER",
            Status::Config => "FOREBAY_ERROR_CONFIG",
            Status::Internal => "FOREBAY_ERROR_INTERNAL",
            Status::InvalidStream => "FOREBAY_ERROR_INVALID_STREAM",
            Status::Unsupported => "FOREBAY_ERROR_UNSUPPORTED",
            Status::Busy => "FOREBAY_ERROR_BUSY",
            Status::MappingLimit => "FOREBAY_ERROR_MAPPING_LIMIT",
            Status::StalePointer => "FOREBAY_ERROR_STALE_POINTER",
            Status::TooManyPeers => "FOREBAY_ERROR_TOO_MANY_PEERS",
            Status::ContextLost => "FOREBAY_ERROR_CONTEXT_LOST",
            Status::Infeasible => "FOREBAY_ERROR_INFEASIBLE",
            Status::NotFound => "FOREBAY_ERROR_NOT_FOUND",
            Status::NoBlocks => "FOREBAY_ERROR_NO_BLOCKS",
            Status::StaleSequence => "FOREBAY_ERROR_STALE_SEQUENCE",
            Status::Limit => "FOREBAY_ERROR_LIMIT",
        }
    }

    /// The status with this number, if it is one.
    pub const fn from_code(code: i32) -> Option<Status> {
        Some(match code {
            0 => Status::Ok,
            1 => Status::InvalidArgument,
            2 => Status::OutOfMemory,
            3 => Status::NotOwned,
            4 => Status::DoubleFree,
            5 => Status::InteriorPointer,
            6 => Status::Forked,
            7 => Status::ShutDown,
            8 => Status::InvalidPool,
            9 => Status::NoDriver,
            10 => Status::Driver,
            11 => Status::Config,
            12 => Status::Internal,
            13 => Status::InvalidStream,
            14 => Status::Unsupported,
            15 => Status::Busy,
            16 => Status::MappingLimit,
            17 => Status::StalePointer,
            18 => Status::TooManyPeers,
            19 => Status::ContextLost,
            20 => Status::Infeasible,
            21 => Status::NotFound,
            22 => Status::NoBlocks,
            23 => Status::StaleSequence,
            24 => Status::Limit,
            _ => return None,
        })
    }
}

/// A status with the sentence that explains it. Never carries [`Status::Ok`].
#[derive(Clone, PartialEq, Eq)]
pub struct Error {
    status: Status,
    message: Box<str>,
}

/// The result of everything that can fail.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// An error with its message: what was wrong, and what to do about it.
    #[cold]
    pub fn new(status: Status, message: impl Into<Box<str>>) -> Error {
        debug_assert!(status != Status::Ok, "an error needs an error status");
        Error { status, message: message.into() }
    }

    /// The status number that crosses the ABI.
    pub fn status(&self) -> Status {
        self.status
    }

    /// The sentence behind the status.
    pub fn message(&self) -> &str {
        &self.message
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.status.name(), self.message)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for Error {}

thread_local! {
    static LAST: RefCell<Option<std::ffi::CString>> = const { RefCell::new(None) };
}

/// Keeps `message` as this thread's last error. At thread exit, after the
/// thread-local is gone, the message is dropped without a panic.
pub fn set_last(message: &str) {
    let bytes: Vec<u8> = message.bytes().filter(|b| *b != 0).collect();
    let text = std::ffi::CString::new(bytes).unwrap_or_default();
    if let Err(gone) = LAST.try_with(|last| *last.borrow_mut() = Some(text)) {
        tracing::trace!(%gone, "last error dropped at thread exit");
    }
}

/// Runs `f` on this thread's last error message (empty when none). The pointer given
/// to C stays valid until the thread's next failing call.
pub fn with_last<R>(f: impl FnOnce(&std::ffi::CStr) -> R) -> R {
    let mut f = Some(f);
    let done = LAST.try_with(|last| {
        let last = last.borrow();
        let call = f.take().expect("called once");
        call(last.as_deref().unwrap_or(c""))
    });
    match done {
        Ok(value) => value,
        Err(_gone) => f.take().expect("not called yet")(c""),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_frozen_and_round_trip() {
        for code in 0..=24 {
            let status = Status::from_code(code).expect("assigned");
            assert_eq!(status as i32, code);
            assert!(status.name().starts_with("FOREBAY_"));
        }
        assert_eq!(Status::from_code(25), None);
        assert_eq!(Status::OutOfMemory as i32, 2);
    }

    #[test]
    fn last_error_is_per_thread_and_survives_nul_bytes() {
        set_last("a\0b");
        with_last(|m| assert_eq!(m.to_str(), Ok("ab")));
        std::thread::spawn(|| with_last(|m| assert!(m.is_empty()))).join().expect("no panic");
    }
}
