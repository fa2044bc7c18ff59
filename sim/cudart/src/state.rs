//! What a thread and the process remember: current device, last error, contexts, the end.
//!
//! Owns the primary contexts that this runtime retains, one a device. Promises that a thread
//! without a current context gets its device's primary one, that a context which this
//! runtime has reset is retained again where it is still current, and that every call answers 4
//! once the exit handler has run that the first use of the driver registered. Cells of a thread
//! have no destructor, so they answer while the thread ends. Cost: one driver call
//! (`cuCtxGetCurrent`) for each call that needs a context.

use crate::driver::{self, Driver};
use crate::types::*;
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

/// Most devices that the runtime keeps contexts of.
pub const DEVICES_MAX: usize = 64;

thread_local! {
    static DEVICE: Cell<i32> = const { Cell::new(0) };
    static LAST: Cell<Code> = const { Cell::new(SUCCESS) };
}

/// A primary context.
struct Primary {
    handle: AtomicU64,
    /// Retained by this runtime, and not reset since.
    held: AtomicBool,
    /// How often it was retained: what was made in an earlier one is gone.
    generation: AtomicU64,
    lock: Mutex<()>,
}

static PRIMARIES: [Primary; DEVICES_MAX] = [const {
    Primary {
        handle: AtomicU64::new(0),
        held: AtomicBool::new(false),
        generation: AtomicU64::new(0),
        lock: Mutex::new(()),
    }
}; DEVICES_MAX];

static ENDED: AtomicBool = AtomicBool::new(false);

extern "C" fn end() {
    ENDED.store(true, Ordering::Release);
}

/// The thread's last error.
pub fn last() -> Code {
    LAST.get()
}

/// Sets the thread's last error.
pub fn fail(code: Code) {
    LAST.set(code);
}

/// The driver's functions, without starting it: 35 when there is no driver.
pub fn library() -> Result<&'static Driver, Code> {
    if ENDED.load(Ordering::Acquire) {
        return Err(ERROR_CUDART_UNLOADING);
    }
    driver::library().ok_or(ERROR_INSUFFICIENT_DRIVER)
}

static STARTED: OnceLock<Answer> = OnceLock::new();

/// The driver, started: 35 when it is older than this runtime's major version.
pub fn driver() -> Result<&'static Driver, Code> {
    let driver = library()?;
    (*STARTED.get_or_init(|| start(driver)))?;
    Ok(driver)
}

/// The driver, if a call has started it and the process is not at its end.
pub fn started() -> Option<&'static Driver> {
    matches!(STARTED.get(), Some(Ok(()))).then(|| library().ok()).flatten()
}

fn start(driver: &Driver) -> Answer {
    let mut version = 0;
    // SAFETY: a place of this frame.
    unsafe { driver.cuDriverGetVersion(&mut version) }?;
    if version / 1000 < driver::version() / 1000 {
        return Err(ERROR_INSUFFICIENT_DRIVER);
    }
    // SAFETY: takes no pointer.
    unsafe { driver.cuInit(0) }?;
    // SAFETY: registers a function that touches a flag. A table that is full costs the answer 4.
    unsafe { libc::atexit(end) };
    Ok(())
}

/// How many devices there are; 100 when there is none.
pub fn count(driver: &Driver) -> Result<i32, Code> {
    let mut count = 0;
    // SAFETY: a place of this frame.
    unsafe { driver.cuDeviceGetCount(&mut count) }?;
    if count == 0 { Err(100) } else { Ok(count) }
}

/// An ordinal that exists: 101 otherwise.
pub fn checked(driver: &Driver, device: i32) -> Answer {
    let count = count(driver)?;
    if device < 0 || device >= count || device as usize >= DEVICES_MAX {
        return Err(ERROR_INVALID_DEVICE);
    }
    Ok(())
}

/// A device's primary context, retained.
pub fn primary(driver: &Driver, device: i32) -> Result<Context, Code> {
    let slot = PRIMARIES.get(device as usize).ok_or(ERROR_INVALID_DEVICE)?;
    if slot.held.load(Ordering::Acquire) {
        return Ok(slot.handle.load(Ordering::Acquire));
    }
    let _one = slot.lock.lock().unwrap_or_else(PoisonError::into_inner);
    if !slot.held.load(Ordering::Acquire) {
        let mut context = 0;
        // SAFETY: a place of this frame.
        unsafe { driver.cuDevicePrimaryCtxRetain(&mut context, device) }?;
        slot.handle.store(context, Ordering::Release);
        slot.generation.fetch_add(1, Ordering::AcqRel);
        slot.held.store(true, Ordering::Release);
    }
    Ok(slot.handle.load(Ordering::Acquire))
}

/// Makes a device the thread's and its primary context current.
pub fn choose(driver: &Driver, device: i32) -> Answer {
    checked(driver, device)?;
    let context = primary(driver, device)?;
    // SAFETY: takes no pointer.
    unsafe { driver.cuCtxSetCurrent(context) }?;
    DEVICE.set(device);
    Ok(())
}

/// The driver with a context current: the thread's own if there is one, else the primary context
/// of its device.
pub fn ready() -> Result<&'static Driver, Code> {
    let driver = driver()?;
    let context = context(driver)?;
    if context == 0 {
        choose(driver, DEVICE.get())?;
    } else if let Some(device) = reset_device_of(context) {
        choose(driver, device)?;
    }
    Ok(driver)
}

/// The current context's error, if work that ran in it has failed for good.
///
/// For calls that have nothing to ask the driver for: CUDA answers such an error from them too
/// (`cudaFree(NULL)` is used to look for one: llvm/llvm-project#213184).
pub fn healthy(driver: &Driver) -> Answer {
    let mut config = 0;
    // SAFETY: a place of this frame.
    unsafe { driver.cuCtxGetCacheConfig(&mut config) }
}

/// The error that the thread's current context has failed with, which no call clears. Starts
/// nothing.
pub fn failed() -> Option<Code> {
    let driver = started()?;
    if context(driver).ok()? == 0 {
        return None;
    }
    healthy(driver).err().filter(|code| lasts(*code))
}

/// Errors of which CUDA's documentation says that all further work answers them.
fn lasts(code: Code) -> bool {
    matches!(code, 214 | 220 | 226 | 700 | 702 | 710 | 714..=719 | 721)
}

/// Runs driver calls that this library makes for itself, and that no capture of the thread's may
/// forbid, since the program did not ask for them.
pub fn uncaptured<T>(driver: &Driver, run: impl FnOnce() -> Result<T, Code>) -> Result<T, Code> {
    /// `cudaStreamCaptureModeRelaxed`.
    const RELAXED: u32 = 2;
    let mut mode = RELAXED;
    // SAFETY: a place of this frame.
    unsafe { driver.cuThreadExchangeStreamCaptureMode(&mut mode) }?;
    let done = run();
    // SAFETY: a place of this frame.
    unsafe { driver.cuThreadExchangeStreamCaptureMode(&mut mode) }?;
    done
}

/// The thread's current context.
pub fn context(driver: &Driver) -> Result<Context, Code> {
    let mut context = 0;
    // SAFETY: a place of this frame.
    unsafe { driver.cuCtxGetCurrent(&mut context) }?;
    Ok(context)
}

/// The device whose primary context this is, if this runtime has reset it.
fn reset_device_of(context: Context) -> Option<i32> {
    let at = PRIMARIES.iter().position(|p| p.handle.load(Ordering::Acquire) == context)?;
    (!PRIMARIES[at].held.load(Ordering::Acquire)).then_some(at as i32)
}

/// The device of the thread's current context, else the one it chose.
pub fn current_device(driver: &Driver) -> i32 {
    let mut device = 0;
    let mut context = 0;
    // SAFETY: places of this frame.
    let asked = unsafe {
        driver.cuCtxGetCurrent(&mut context).is_ok()
            && context != 0
            && driver.cuCtxGetDevice(&mut device).is_ok()
    };
    if asked { device } else { DEVICE.get() }
}

/// Which retain of a device's primary context this is.
pub fn generation(device: i32) -> u64 {
    PRIMARIES.get(device as usize).map_or(0, |p| p.generation.load(Ordering::Acquire))
}

/// Whether this is a primary context that this runtime holds, as it was after that retain. Of
/// contexts that the program made itself nothing is known.
pub fn lives(context: Context, generation: u64) -> bool {
    PRIMARIES.iter().any(|p| {
        p.handle.load(Ordering::Acquire) == context
            && p.held.load(Ordering::Acquire)
            && p.generation.load(Ordering::Acquire) == generation
    })
}

/// Whether this is a primary context that this runtime has ever retained.
pub fn is_primary(context: Context) -> bool {
    PRIMARIES.iter().any(|p| p.handle.load(Ordering::Acquire) == context)
}

/// Ends all that is in a device's primary context; the next call that needs it retains it again.
pub fn reset(driver: &Driver, device: i32) -> Answer {
    let slot = PRIMARIES.get(device as usize).ok_or(ERROR_INVALID_DEVICE)?;
    let _one = slot.lock.lock().unwrap_or_else(PoisonError::into_inner);
    // SAFETY: takes no pointer.
    unsafe { driver.cuDevicePrimaryCtxReset(device) }?;
    if slot.held.swap(false, Ordering::AcqRel) {
        // The reset keeps the count of retains, and this one is made anew.
        // SAFETY: takes no pointer.
        let _ = unsafe { driver.cuDevicePrimaryCtxRelease(device) };
    }
    Ok(())
}
