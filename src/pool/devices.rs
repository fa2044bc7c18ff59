//! Which driver serves which pool: the default pool, the pinned pool, the open drivers.
//!
//! Owns the two pools that the process makes for itself, and one driver a device: another one once
//! the device's context is lost, since a driver works in one context for good. Promises that host
//! memory is given to nobody who did not ask for it.

use super::Settings;
use super::core::Core;
use super::registry::{create, end, pool};
use super::world::check_world;
use crate::base::sync::atomic::{AtomicU64, Ordering};
use crate::config::{Backend, Config};
use crate::driver::cuda::pinned::{self, PinnedDriver};
use crate::driver::cuda::{self, Opened};
use crate::driver::host::{HostDriver, HostOptions};
use crate::driver::segments::SegmentDriver;
use crate::driver::{Code, Driver, DriverError};
use crate::error::{Error, Result, Status};
use crate::vmem::Vmem;
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The number of the default pool; 0: not made yet, or ended with its device.
static DEFAULT: AtomicU64 = AtomicU64::new(0);

/// The default pool's number, made at first use as the environment says.
pub fn default_pool() -> Result<u64> {
    made_once(&DEFAULT, || {
        let config = Config::from_env()?;
        crate::logging::init(&config);
        let driver = open_driver(&config)?;
        let total = driver.device().total_bytes as u64;
        let settings = Settings::resolve(&config, total, driver.backend() == "host");
        create_on(config.device, driver, settings)
    })
}

/// The number of the pool of pinned host memory; 0: not made yet, or ended with its device.
static HOST: AtomicU64 = AtomicU64::new(0);

/// The pool of pinned host memory, made at first use. Its limit is the device's size.
pub fn host_pool() -> Result<u64> {
    made_once(&HOST, || {
        let config = Config::from_env()?;
        // The backend must be usable: pinned memory serves copies to its device.
        let driver = match config.backend {
            Backend::Host => pinned_by_the_system(&config)?,
            Backend::Auto | Backend::Cuda => pinned_by_cuda(&config)?,
        };
        let total = driver.device().total_bytes as u64;
        let mut settings = Settings::resolve(&config, total, true);
        settings.reserve = 0;
        create_on(config.device, driver, settings)
    })
}

/// The pool whose number is in `number`; if there is none, `make` makes it, once at a time.
fn made_once(number: &AtomicU64, make: impl FnOnce() -> Result<u64>) -> Result<u64> {
    static MAKING: Mutex<()> = Mutex::new(());
    check_world()?;
    let made = |number: &AtomicU64| Some(number.load(Ordering::Acquire)).filter(|&id| id != 0);
    if let Some(id) = made(number) {
        return Ok(id);
    }
    let _making = MAKING.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(id) = made(number) {
        return Ok(id);
    }
    let id = make()?;
    number.store(id, Ordering::Release);
    Ok(id)
}

/// Pools by the device that they were made for.
static PLACED: Mutex<Vec<(u64, i32)>> = Mutex::new(Vec::new());

fn placed() -> MutexGuard<'static, Vec<(u64, i32)>> {
    PLACED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Makes a pool, noted as one of `device`: it ends when that is reset.
pub fn create_on(device: i32, driver: Arc<dyn Driver>, settings: Settings) -> Result<u64> {
    let id = create(driver, settings)?;
    let mut placed = placed();
    placed.retain(|&(known, _)| known != id && pool(known).is_ok());
    placed.push((id, device));
    Ok(id)
}

/// Ends every pool of a device, the process's own too, and forgets the device: the next use opens
/// it anew, in the context that is there then.
pub fn end_device(device: i32) -> Result<()> {
    check_world()?;
    let config = Config::from_env()?;
    let ids: Vec<u64> = placed().iter().filter(|p| p.1 == device).map(|p| p.0).collect();
    for id in ids {
        if let Ok(pool) = pool(id) {
            // One that ends meanwhile keeps nothing.
            let _ended = pool.with_core(id, Core::let_foreign_go);
        }
        match end(id) {
            Ok(()) => {}
            Err(error) if error.status() == Status::InvalidPool => {}
            Err(error) => return Err(error),
        }
        for own in [&DEFAULT, &HOST] {
            let _other = own.compare_exchange(id, 0, Ordering::AcqRel, Ordering::Relaxed);
        }
        placed().retain(|&(known, _)| known != id);
    }
    retry_given();
    let mut opened = OPENED.lock().unwrap_or_else(PoisonError::into_inner);
    let forgotten = opened.as_mut().and_then(|o| o.remove(&(config.cuda_library, device)));
    drop(opened);
    // Gives the context back.
    drop(forgotten);
    Ok(())
}

/// The number of the pool of pinned host memory, for a block that is said to be of it.
///
/// # Errors
/// `NotOwned` before its first use.
pub fn host_pool_of(address: usize) -> Result<u64> {
    check_world()?;
    match HOST.load(Ordering::Acquire) {
        0 => Err(Error::new(
            Status::NotOwned,
            format!("address {address:#x} is no pinned host memory"),
        )),
        id => Ok(id),
    }
}

/// Host memory that the system locks.
fn pinned_by_the_system(config: &Config) -> Result<Arc<dyn Driver>> {
    let device = open_driver(config)?;
    let mut options = host_options(config);
    options.pinned = true;
    options.event_cost_ns = 0;
    options.context_events = true;
    options.total_bytes = device.device().total_bytes;
    let driver = HostDriver::new(options).map_err(|e| {
        Error::new(Status::NoDriver, format!("pinned host memory could not start: {e}"))
    })?;
    Ok(Arc::new(driver))
}

/// Host memory that CUDA allocates and pins, a segment at a time.
fn pinned_by_cuda(config: &Config) -> Result<Arc<dyn Driver>> {
    let device = Arc::clone(open_cuda(config)?.device());
    let pinned = Arc::new(PinnedDriver::new(device));
    Ok(Arc::new(SegmentDriver::new(pinned, pinned::SEGMENT_BYTES)))
}

/// Live and held bytes of pinned host memory; zeros before its first use.
pub fn host_bytes() -> (u64, u64) {
    let id = HOST.load(Ordering::Acquire);
    if id == 0 {
        return (0, 0);
    }
    let stats = pool(id).and_then(|p| p.with_core(id, Core::stats));
    stats.map_or((0, 0), |s| (s.live_bytes, s.mapped_bytes))
}

/// The driver that the configuration asks for. One a process and device.
pub fn open_driver(config: &Config) -> Result<Arc<dyn Driver>> {
    match config.backend {
        Backend::Host => open_host(config),
        Backend::Auto | Backend::Cuda => open_cuda(config).map(|opened| opened.driver()),
    }
}

/// A device by the driver's library, if that is named, and its number.
type DeviceKey = (Option<PathBuf>, i32);

/// Devices that are open.
static OPENED: Mutex<Option<HashMap<DeviceKey, Opened>>> = Mutex::new(None);

/// The CUDA device that the configuration asks for, opened once. When its context is lost it is
/// opened anew, in another context; pools of the old one stay lost.
pub fn open_cuda(config: &Config) -> Result<Opened> {
    let mut opened = OPENED.lock().unwrap_or_else(PoisonError::into_inner);
    let opened = opened.get_or_insert_default();
    let key = (config.cuda_library.clone(), config.device);
    if let Some(device) = opened.get(&key)
        && !device.device().is_lost()
    {
        return Ok(device.clone());
    }
    let device = cuda::open(config.cuda_library.as_deref(), config.device)?;
    // Exit handlers run last in, first out: this one parks the keeper before CUDA ends.
    super::world::park_at_exit();
    opened.insert(key, device.clone());
    Ok(device)
}

fn open_host(config: &Config) -> Result<Arc<dyn Driver>> {
    static DRIVERS: Mutex<Option<HashMap<i32, Arc<dyn Driver>>>> = Mutex::new(None);
    if config.device != 0 {
        return Err(Error::new(
            Status::InvalidArgument,
            format!("device {} does not exist: the host backend has device 0", config.device),
        ));
    }
    let mut drivers = DRIVERS.lock().unwrap_or_else(PoisonError::into_inner);
    let drivers = drivers.get_or_insert_default();
    if let Some(driver) = drivers.get(&config.device) {
        return Ok(Arc::clone(driver));
    }
    let driver = HostDriver::new(host_options(config)).map_err(|e| {
        Error::new(Status::NoDriver, format!("the host backend could not start: {e}"))
    })?;
    let driver: Arc<dyn Driver> = Arc::new(driver);
    drivers.insert(config.device, Arc::clone(&driver));
    Ok(driver)
}

/// What the configuration says of the host device.
pub fn host_options(config: &Config) -> HostOptions {
    let mut options = HostOptions::default();
    if let Some(limit) = config.limit {
        let bytes = limit.resolve(options.total_bytes as u64) as usize;
        options.total_bytes = bytes.max(options.granularity);
    }
    options.event_cost_ns = config.host_event_ns;
    options.context_events = config.host_context_events;
    options
}

/// Whether the process made this pool for itself: such a pool lives as long as it.
pub fn is_own(id: u64) -> bool {
    id != 0 && [&DEFAULT, &HOST].iter().any(|own| own.load(Ordering::Acquire) == id)
}

/// The default pool's number, if it has been made.
pub fn default_made() -> Option<u64> {
    Some(DEFAULT.load(Ordering::Acquire)).filter(|&id| id != 0)
}

/// What the driver would not take back of pools that could not be made.
static GIVEN: Mutex<Vec<Vmem>> = Mutex::new(Vec::new());

/// Gives all memory of a pool that could not be made back to its driver. What the driver refuses
/// is kept and tried again when a pool is made or ends.
pub(super) fn give_back(mut vmem: Vmem) {
    if let Err(error) = vmem.close()
        && error.code != Code::ContextLost
    {
        tracing::warn!(%error, "memory of a pool that could not be made is still held");
        GIVEN.lock().unwrap_or_else(PoisonError::into_inner).push(vmem);
    }
}

pub(super) fn retry_given() {
    let mut given = GIVEN.lock().unwrap_or_else(PoisonError::into_inner);
    let lost = |error: DriverError| error.code == Code::ContextLost;
    given.retain_mut(|vmem| vmem.close().is_err_and(|error| !lost(error)));
}
