//! The C ABI: unpack, call, pack; no logic. `include/forebay.h` is generated from this room.
//!
//! Promises: no panic crosses (slow paths catch it and answer [`Status::Internal`]; the hot
//! functions contain no code that panics); NULL where a pointer is needed is an error value; a
//! result is written only as documented. Handles are numbers, never dereferenced, so a stale one is
//! an error value too.

pub mod alloc;
pub mod host;
pub mod info;
pub mod interpose;
pub mod kv;
pub mod kv_contiguous;
pub mod kv_memory;
pub mod kv_tables;
pub mod kv_types;
pub mod plan;
pub mod pools;
pub mod record;
pub mod share;
pub mod step;
pub mod streams;
pub mod suspend;
pub mod torch;

use crate::error::{Error, Result, Status};
use std::ffi::{CStr, c_char, c_void};
use std::mem::MaybeUninit;

/// A pool of one device's memory. Opaque; use [`PoolT`].
pub struct Pool {
    _private: (),
}

/// A pool's handle. NULL names the default pool of the default device.
pub type PoolT = *mut Pool;

/// A stream of the pool's device: a cudaStream_t fits. NULL is the default stream.
pub type StreamT = *mut c_void;

/// The ABI's version: structures and meanings of this header.
pub const ABI_VERSION: u32 = 1;

/// The version of the ABI that the loaded library speaks. Compare it with the version the
/// program was built for: they must be equal until 1.0. Never fails.
#[unsafe(no_mangle)]
pub extern "C" fn forebay_abi_version() -> u32 {
    ABI_VERSION
}

/// The library's version as text, e.g. "0.1.0". Static; never fails.
#[unsafe(no_mangle)]
pub extern "C" fn forebay_version() -> *const c_char {
    const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");
    VERSION.as_ptr().cast()
}

/// The name of a status, e.g. "FOREBAY_ERROR_OUT_OF_MEMORY"; "FOREBAY_ERROR_UNKNOWN" for a number
/// that is none. Static; never fails.
#[unsafe(no_mangle)]
pub extern "C" fn forebay_status_name(status: i32) -> *const c_char {
    macro_rules! names {
        ($($status:ident => $name:literal),* $(,)?) => {
            match Status::from_code(status) {
                $(Some(Status::$status) => $name,)*
                None => c"FOREBAY_ERROR_UNKNOWN",
            }
        };
    }
    let name: &'static CStr = names! {
        Ok => c"FOREBAY_OK",
        InvalidArgument => c"FOREBAY_ERROR_INVALID_ARGUMENT",
        OutOfMemory => c"FOREBAY_ERROR_OUT_OF_MEMORY",
        NotOwned => c"FOREBAY_ERROR_NOT_OWNED",
        DoubleFree => c"FOREBAY_ERROR_DOUBLE_FREE",
        InteriorPointer => c"FOREBAY_ERROR_INTERIOR_POINTER",
        Forked => c"FOREBAY_ERROR_FORKED",
        ShutDown => c"FOREBAY_ERROR_SHUT_DOWN",
        InvalidPool => c"FOREBAY_ERROR_INVALID_POOL",
        NoDriver => c"FOREBAY_ERROR_NO_DRIVER",
        Driver => c"FOREBAY_ERROR_DRIVER",
        Config => c"FOREBAY_ERROR_CONFIG",
        Internal => c"FOREBAY_ERROR_INTERNAL",
        InvalidStream => c"FOREBAY_ERROR_INVALID_STREAM",
        Unsupported => c"FOREBAY_ERROR_UNSUPPORTED",
        Busy => c"FOREBAY_ERROR_BUSY",
        MappingLimit => c"FOREBAY_ERROR_MAPPING_LIMIT",
        StalePointer => c"FOREBAY_ERROR_STALE_POINTER",
        TooManyPeers => c"FOREBAY_ERROR_TOO_MANY_PEERS",
        ContextLost => c"FOREBAY_ERROR_CONTEXT_LOST",
        Infeasible => c"FOREBAY_ERROR_INFEASIBLE",
        NotFound => c"FOREBAY_ERROR_NOT_FOUND",
        NoBlocks => c"FOREBAY_ERROR_NO_BLOCKS",
        StaleSequence => c"FOREBAY_ERROR_STALE_SEQUENCE",
        Limit => c"FOREBAY_ERROR_LIMIT",
    };
    name.as_ptr()
}

/// The sentence behind this thread's last error: what was wrong and what to do. Empty before
/// the first. Valid until the thread's next failing call. Never fails.
#[unsafe(no_mangle)]
pub extern "C" fn forebay_last_error() -> *const c_char {
    crate::error::with_last(CStr::as_ptr)
}

/// A list that C gave.
///
/// # Safety
/// `from` is valid for reads of `count` elements while the slice is in use.
unsafe fn list<'a, T>(from: *const T, count: usize, what: &str) -> Result<&'a [T]> {
    if count == 0 {
        return Ok(&[]);
    }
    check_list::<T>(from.is_null(), count, what)?;
    // SAFETY: not null and not too long; the rest as the caller promised.
    Ok(unsafe { std::slice::from_raw_parts(from, count) })
}

/// A list that C gave to be written; it may hold nothing yet.
///
/// # Safety
/// `to` is valid for writes of `count` elements, by nobody else while the slice is in use.
unsafe fn list_mut<'a, T>(
    to: *mut T,
    count: usize,
    what: &str,
) -> Result<&'a mut [MaybeUninit<T>]> {
    if count == 0 {
        return Ok(&mut []);
    }
    check_list::<T>(to.is_null(), count, what)?;
    // SAFETY: not null and not too long; the rest as the caller promised. Such elements need hold
    // nothing.
    Ok(unsafe { std::slice::from_raw_parts_mut(to.cast(), count) })
}

fn check_list<T>(is_null: bool, count: usize, what: &str) -> Result<()> {
    if is_null {
        return Err(null(what));
    }
    if count > isize::MAX as usize / size_of::<T>() {
        let text = format!("{count} elements of {what} are more than memory can hold");
        return Err(Error::new(Status::InvalidArgument, text));
    }
    Ok(())
}

/// A structure that grows with versions, as far as the caller knows it; `value` for the rest.
///
/// # Safety
/// `from` is NULL or valid for reads of the size in its first word; any bytes are a `T`.
unsafe fn read_sized<T>(from: *const T, value: T, name: &str) -> Result<T> {
    if from.is_null() {
        return Err(null(name));
    }
    // SAFETY: not null; the size is the first word of every such structure.
    let size = unsafe { from.cast::<usize>().read() };
    check_size(name, size)?;
    let mut value = value;
    // SAFETY: `size` bytes can be read, as the caller promised, and `value` has room for its own.
    unsafe {
        let to = (&raw mut value).cast::<u8>();
        std::ptr::copy_nonoverlapping(from.cast::<u8>(), to, size.min(size_of::<T>()));
    }
    Ok(value)
}

/// Writes a structure that grows with versions as far as the caller knows it, zeros behind what
/// this version knows. `value`'s first word is overwritten by the caller's size.
///
/// # Safety
/// `to` is NULL or valid for reads and writes of the size in its first word.
unsafe fn write_sized<T>(to: *mut T, value: T, name: &str) -> Result<()> {
    if to.is_null() {
        return Err(null(name));
    }
    // SAFETY: not null; the size is the first word of every such structure.
    let size = unsafe { to.cast::<usize>().read() };
    check_size(name, size)?;
    let ours = size_of::<T>();
    // SAFETY: `size` bytes are the caller's; `value` has `ours`.
    unsafe {
        let bytes = to.cast::<u8>();
        std::ptr::copy_nonoverlapping((&raw const value).cast(), bytes, size.min(ours));
        if size > ours {
            bytes.add(ours).write_bytes(0, size - ours);
        }
        to.cast::<usize>().write(size);
    }
    Ok(())
}

fn check_size(name: &str, size: usize) -> Result<()> {
    if (size_of::<usize>() + size_of::<u64>()..=1 << 16).contains(&size) {
        return Ok(());
    }
    let text = format!("struct_size is {size}: set it to sizeof({name}) before the call");
    Err(Error::new(Status::InvalidArgument, text))
}

/// The error for a NULL where `what` is needed.
fn null(what: &str) -> Error {
    Error::new(Status::InvalidArgument, format!("the pointer for {what} is NULL"))
}

/// Writes through a C pointer, or says that it is NULL.
///
/// # Safety
/// `to` is NULL or valid for the write.
unsafe fn put<T>(to: *mut T, value: T, what: &str) -> Result<()> {
    if to.is_null() {
        return Err(null(what));
    }
    // SAFETY: not null, and valid as the C caller promised.
    unsafe { to.write(value) };
    Ok(())
}
