//! Memory of a pool in the types of the `cust` crate (feature `cust`).
//!
//! Owns [`DeviceBuffer`]: a typed block that is freed in its stream's order when dropped, and
//! that is a `cust::memory::DeviceSlice` in between, so all of cust's copies, fills and launches
//! work with it. Must not make contexts, streams or modules: those stay cust's. Cost: that of the
//! pool's hot path; no driver call.
//!
//! A program that uses `cust` links `libcuda`; this library itself does not, feature or not. Let
//! cust make its context before the pool is first used (`cust::quick_init`, which makes the
//! primary one current): the pool then works in the same one.
//!
//! ```no_run
//! use cust::prelude::*;
//! use forebay::cust::DeviceBuffer;
//! use forebay::pool::Pool;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let _context = cust::quick_init()?;
//! let stream = Stream::new(StreamFlags::DEFAULT, None)?;
//! let pool = Pool::default_pool()?;
//! let mut buffer = DeviceBuffer::from_slice(&pool, &[1.0f32, 2.0, 3.0], &stream)?;
//! buffer.set_zero()?; // a method of cust's DeviceSlice
//! assert_eq!(buffer.as_host_vec()?, [0.0; 3]);
//! # Ok(())
//! # }
//! ```

use std::ops::{Deref, DerefMut};

use ::cust::error::CudaError;
use ::cust::memory::{CopyDestination, DeviceCopy, DevicePointer, DeviceSlice};
use ::cust::stream::Stream;

use crate::error::{Error, Result, Status};
use crate::pool::{Buffer, Pool};

/// The number that Forebay knows a stream of cust's by.
pub fn stream_number(stream: &Stream) -> u64 {
    stream.as_inner().expose_provenance() as u64
}

/// Allocates room for `len` values of `T` for work on `stream`, without contents. The caller frees
/// it with [`Pool::dealloc`]; [`DeviceBuffer`] does so by itself. 0 bytes are the null pointer.
///
/// # Errors
/// As [`Pool::alloc`]; [`Status::InvalidArgument`] when the length overflows.
pub fn alloc<T: DeviceCopy>(pool: &Pool, len: usize, stream: &Stream) -> Result<DevicePointer<T>> {
    let bytes = bytes_of::<T>(len)?;
    let address = pool.alloc_aligned(bytes, align_of_type::<T>(), stream_number(stream))?;
    Ok(DevicePointer::from_raw(address as u64))
}

fn bytes_of<T>(len: usize) -> Result<usize> {
    len.checked_mul(size_of::<T>()).ok_or_else(|| {
        Error::new(Status::InvalidArgument, format!("{len} values have more bytes than can be"))
    })
}

/// What the pool has to see to: its addresses are multiples of 256 anyway.
fn align_of_type<T>() -> usize {
    if align_of::<T>() > 256 { align_of::<T>() } else { 0 }
}

fn cuda(error: CudaError) -> Error {
    Error::new(Status::Driver, format!("cust: {error}"))
}

/// `len` values of `T` in a pool's memory, freed in their stream's order when dropped: queue all
/// work that uses them on that stream, or let it wait. Not tied to the pool by a lifetime: a
/// buffer that outlives its pool is freed with it.
#[derive(Debug)]
pub struct DeviceBuffer<T: DeviceCopy> {
    slice: DeviceSlice<T>,
    /// Frees when dropped.
    block: Buffer,
}

impl<T: DeviceCopy> DeviceBuffer<T> {
    /// Room for `len` values, without contents.
    ///
    /// # Safety
    /// The values are written before they are read.
    ///
    /// # Errors
    /// As [`alloc`].
    pub unsafe fn uninitialized(pool: &Pool, len: usize, stream: &Stream) -> Result<Self> {
        debug_assert!(align_of::<T>() <= 256, "the pool's own alignment");
        let block = pool.buffer(bytes_of::<T>(len)?, stream_number(stream))?;
        let pointer = DevicePointer::from_raw(block.address() as u64);
        // SAFETY: the block holds `len` values for as long as `self` lives.
        let slice = unsafe { DeviceSlice::from_raw_parts(pointer, len) };
        Ok(DeviceBuffer { slice, block })
    }

    /// A copy of `values`, finished when this returns.
    ///
    /// # Errors
    /// As [`alloc`]; [`Status::Driver`] when the copy fails.
    pub fn from_slice(pool: &Pool, values: &[T], stream: &Stream) -> Result<Self> {
        // SAFETY: written below.
        let mut buffer = unsafe { Self::uninitialized(pool, values.len(), stream) }?;
        // The memory's last owner may still have work on this stream.
        stream.synchronize().map_err(cuda)?;
        buffer.slice.copy_from(values).map_err(cuda)?;
        Ok(buffer)
    }

    /// The first value's place.
    pub fn as_device_ptr(&self) -> DevicePointer<T> {
        self.slice.as_device_ptr()
    }

    /// The stream in whose order the memory is freed.
    pub fn stream_number(&self) -> u64 {
        self.block.stream()
    }

    /// Frees in another stream's order from now on. The caller has ordered that stream behind
    /// all uses.
    pub fn set_stream(&mut self, stream: &Stream) {
        self.block.set_stream(stream_number(stream));
    }
}

impl<T: DeviceCopy> Deref for DeviceBuffer<T> {
    type Target = DeviceSlice<T>;

    fn deref(&self) -> &DeviceSlice<T> {
        &self.slice
    }
}

impl<T: DeviceCopy> DerefMut for DeviceBuffer<T> {
    fn deref_mut(&mut self) -> &mut DeviceSlice<T> {
        &mut self.slice
    }
}
