//! PyTorch's hooks: a pool for each device that PyTorch names, its private pools, its counts.
//!
//! Owns the table of those pools and what PyTorch is told of them. Promises: a size of 0 is
//! address 0; addresses are multiples of 512, as those of PyTorch's own allocator are; a free is
//! in the order of the stream that PyTorch names and never fails the caller; memory of a graph's
//! private pool serves nothing else until PyTorch releases it (`private`). Must not call PyTorch,
//! but for the filter that it gave for a private pool, and that with no lock of a pool's held.
//! Cost over the pool's own: a lock for the counts, and a look at whether a private pool is open,
//! for each block that comes and each that goes.

pub mod counts;
mod peers;
pub mod private;
pub mod watch;

use crate::base::units::QUANTUM_SHIFT;
use crate::config::Config;
use crate::error::{Error, Result, Status};
use crate::pool::{HANDLE_SHIFT, Pool, Settings, capture, control, devices, hot, registry};
use crate::slab::class::{SLOT_MAX, class_of, slot_bytes};
use counts::Counts;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use watch::Kind;

/// Most devices that PyTorch can name.
pub const DEVICES_MAX: usize = 64;
/// Requests are multiples of this, as in PyTorch's own allocator (`kMinBlockSize` of
/// `c10/core/AllocatorConfig.h`): slots of such classes begin at multiples of it.
pub const UNIT: usize = 512;
/// No pool yet.
const NONE: u64 = u64::MAX;

/// What is known of a device.
struct Device {
    /// The pool's handle; 0 is the process's default pool.
    handle: AtomicU64,
    counts: Mutex<Counts>,
}

static DEVICES: [Device; DEVICES_MAX] =
    [const { Device { handle: AtomicU64::new(NONE), counts: Mutex::new(Counts::new()) } };
        DEVICES_MAX];
/// Whether a free that could not be done has been told.
static TOLD: AtomicBool = AtomicBool::new(false);

fn device(number: i32) -> Result<&'static Device> {
    usize::try_from(number).ok().and_then(|at| DEVICES.get(at)).ok_or_else(|| {
        Error::new(
            Status::InvalidArgument,
            format!("PyTorch's device {number} is none of 0 to {}", DEVICES_MAX - 1),
        )
    })
}

fn counts(device: &Device) -> MutexGuard<'_, Counts> {
    device.counts.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The handle of a device's pool, which is made at first use.
pub fn handle(number: i32) -> Result<u64> {
    let of = device(number)?;
    match of.handle.load(Ordering::Acquire) {
        NONE => make(number, of),
        0 => Ok(0),
        handle if registry::pool(handle >> HANDLE_SHIFT).is_ok() => Ok(handle),
        // It ended with its device, which was reset.
        _ => make(number, of),
    }
}

/// The pool of a device, not owned.
pub fn pool(number: i32) -> Result<Pool> {
    Pool::from_handle(handle(number)?)
}

/// The pool that a device has now. Makes none, unlike [`pool`]: the caller may be making one.
fn made(number: i32) -> Option<Pool> {
    match device(number).ok()?.handle.load(Ordering::Acquire) {
        NONE => None,
        0 => devices::default_made().and_then(|id| Pool::from_number(id).ok()),
        handle => Pool::from_handle(handle).ok(),
    }
}

#[cold]
fn make(number: i32, of: &Device) -> Result<u64> {
    static MAKING: Mutex<()> = Mutex::new(());
    let _one = MAKING.lock().unwrap_or_else(PoisonError::into_inner);
    let mut config = Config::from_env()?;
    let known = of.handle.load(Ordering::Acquire);
    if known != NONE && (known == 0 || registry::pool(known >> HANDLE_SHIFT).is_ok()) {
        return Ok(known);
    }
    let made = if config.device == number {
        devices::default_pool()?;
        0
    } else {
        config.device = number;
        let driver = devices::open_driver(&config)?;
        let total = driver.device().total_bytes as u64;
        let settings = Settings::resolve(&config, total, driver.backend() == "host");
        devices::create_on(number, driver, settings)? << HANDLE_SHIFT
    };
    of.handle.store(made, Ordering::Release);
    peers::open(number);
    Ok(made)
}

/// What a block of so many requested bytes takes: its slot, or its whole quanta.
fn taken(bytes: usize) -> usize {
    let asked = bytes.next_multiple_of(UNIT);
    match asked <= SLOT_MAX {
        true => slot_bytes(class_of(asked)),
        false => asked.next_multiple_of(1 << QUANTUM_SHIFT),
    }
}

/// Memory for work on `stream` of a device: address 0 for 0 bytes.
///
/// # Errors
/// As `forebay_alloc`, and `InvalidArgument` for a device that cannot be.
pub fn alloc(bytes: usize, number: i32, stream: u64) -> Result<usize> {
    if bytes == 0 {
        return Ok(0);
    }
    let of = device(number)?;
    let pool = handle(number)?;
    private::look(number, stream)?;
    let Some(asked) = bytes.checked_next_multiple_of(UNIT) else {
        return Err(Error::new(Status::OutOfMemory, format!("{bytes} bytes are no device's")));
    };
    let mut address = std::ptr::null_mut();
    // SAFETY: `address` is a local pointer, valid for the write.
    let status = unsafe { hot::alloc(pool, &raw mut address, asked, stream) };
    if status != Status::Ok {
        let text = crate::error::with_last(|m| m.to_string_lossy().into_owned());
        if matches!(status, Status::OutOfMemory | Status::MappingLimit) {
            counts(of).out_of_memory += 1;
            watch::tell(Kind::OutOfMemory, 0, bytes, number, stream);
        }
        return Err(Error::new(status, text));
    }
    counts(of).taken(bytes, taken(bytes));
    watch::tell(Kind::Alloc, address as usize, bytes, number, stream);
    Ok(address as usize)
}

/// Gives a block of `bytes` back in the order of `stream`. What cannot be done is told once.
pub fn free(address: usize, bytes: usize, number: i32, stream: u64) {
    if address == 0 {
        return;
    }
    watch::tell(Kind::Free, address, bytes, number, stream);
    let freed = device(number).and_then(|of| {
        let pool = handle(number)?;
        // A free may be the first that is heard of a capture, too. Without one it goes on.
        if let Err(error) = private::look(number, stream) {
            tracing::debug!(%error, "a stream's capture could not be begun at a free");
        }
        let pointer = address as *mut std::ffi::c_void;
        // First: once the pool has the block, another thread may have it, and it would count twice.
        let counted = counts(of).given(bytes, taken(bytes));
        // SAFETY: any address is answered with an error; the caller gives the block up.
        let mut status = unsafe { hot::dealloc(pool, pointer, stream) };
        if status == Status::InvalidStream {
            // The stream is gone, or another context's: behind all work of the device, then.
            // SAFETY: as above.
            status = unsafe { hot::free(pointer) };
        }
        if status != Status::Ok {
            counts(of).not_given(counted);
            return Err(Error::new(
                status,
                crate::error::with_last(|m| m.to_string_lossy().into_owned()),
            ));
        }
        Ok(())
    });
    if let Err(error) = freed
        && !TOLD.swap(true, Ordering::Relaxed)
    {
        tracing::warn!(%error, "a block of PyTorch's could not be freed; told once");
    }
}

/// A segment for PyTorch's own allocator, which asks for it as for `cudaMalloc`'s memory.
///
/// # Errors
/// As [`alloc`].
pub fn segment_alloc(bytes: usize, number: i32) -> Result<usize> {
    if bytes == 0 {
        return Ok(0);
    }
    pool(number)?.alloc(bytes, hot::SYNC_STREAM)
}

/// Gives a segment back as `cudaFree` does: after all work of the device, and to the device. While
/// a graph capture is open it stays the pool's.
///
/// # Errors
/// As `forebay_free`, and what the device says of the wait.
pub fn segment_free(address: usize, number: i32) -> Result<()> {
    if address == 0 {
        return Ok(());
    }
    let pool = pool(number)?;
    pool.dealloc(address, hot::SYNC_STREAM)?;
    empty(&pool)
}

/// Waits for the device and gives what is idle back to it; nothing of that during a capture.
fn empty(pool: &Pool) -> Result<()> {
    pool.trim(0)?;
    if pool.stats()?.pending_bytes > 0 && !capture::any_open() {
        control::synchronize(registry::pool(pool.id())?, pool.id())?;
    }
    pool.trim(0).map(drop)
}

/// PyTorch has so many devices: told in the log, since pools are made at first use.
pub fn init(devices: i32) {
    tracing::debug!(devices, "PyTorch allocates here");
}

/// `torch.cuda.empty_cache()`: idle memory of every device goes back to it.
///
/// # Errors
/// The first device's that fails; the others are emptied all the same.
pub fn reset() -> Result<()> {
    let mut all = Ok(());
    for (number, of) in (0i32..).zip(&DEVICES) {
        if of.handle.load(Ordering::Acquire) != NONE {
            let one = pool(number).and_then(|pool| empty(&pool));
            all = all.and(one);
        }
    }
    all
}

/// Limits a device's pool to a share of the device's memory.
///
/// # Errors
/// `InvalidArgument` for a share that is not above 0 and at most 1.
pub fn memory_fraction(fraction: f64, number: i32) -> Result<()> {
    if !(fraction > 0.0 && fraction <= 1.0) {
        return Err(Error::new(
            Status::InvalidArgument,
            format!("{fraction} is no share of a device's memory: it is above 0 and at most 1"),
        ));
    }
    let pool = pool(number)?;
    let (_, total) = pool.memory_info()?;
    pool.set_limits(Some(((total as f64 * fraction) as u64).max(1)), None)
}

/// The block that an address lies in: its start and length.
///
/// # Errors
/// As `forebay_block_range`.
pub fn base(address: usize) -> Result<(usize, usize)> {
    Pool::from_number(registry::pool_of(address)?)?.block_around(address)
}

/// Work on `stream` uses the block too.
///
/// # Errors
/// As `forebay_record_use`.
pub fn record_stream(address: usize, stream: u64) -> Result<()> {
    if address == 0 {
        return Ok(());
    }
    Pool::from_number(registry::pool_of(address)?)?.record_use(address, stream)
}

/// A device's counts now.
///
/// # Errors
/// `InvalidArgument` for a device that cannot be.
pub fn read_counts(number: i32) -> Result<Counts> {
    Ok(*counts(device(number)?))
}

/// Bytes of a page of a device's pool; 0 where it has none. Makes none.
pub fn page_bytes(number: i32) -> u64 {
    made(number).and_then(|pool| pool.page_bytes().ok()).unwrap_or(0) as u64
}

/// The peaks begin anew at what is there now, that of the pool's memory too.
///
/// # Errors
/// `InvalidArgument` for a device that cannot be.
pub fn reset_peaks(number: i32) -> Result<()> {
    let of = device(number)?;
    counts(of).reset_peaks();
    match of.handle.load(Ordering::Acquire) {
        NONE => Ok(()),
        _ => pool(number)?.reset_peaks(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_take_slots_that_begin_at_multiples_of_512() {
        for bytes in (1..=SLOT_MAX).step_by(97) {
            let slot = taken(bytes);
            assert!(slot >= bytes && slot.is_multiple_of(UNIT), "{bytes}: {slot}");
        }
        assert_eq!(taken(SLOT_MAX + 1), SLOT_MAX + (1 << QUANTUM_SHIFT));
        assert_eq!(taken(400), 512);
    }

    #[test]
    fn a_device_that_cannot_be_is_an_error() {
        for number in [-1, DEVICES_MAX as i32] {
            let told = alloc(1, number, 0).map_err(|e| e.status());
            assert_eq!(told, Err(Status::InvalidArgument));
            assert!(read_counts(number).is_err() && reset_peaks(number).is_err());
        }
        assert_eq!(alloc(0, 0, 0), Ok(0), "no pool is made for it");
    }

    #[test]
    fn shares_of_a_device_are_checked() {
        for share in [0.0, -1.0, 1.5, f64::NAN] {
            assert!(
                memory_fraction(share, 0).is_err_and(|e| e.status() == Status::InvalidArgument)
            );
        }
    }
}
