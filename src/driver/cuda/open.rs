//! From a library to a usable device, and the rungs below when something is refused.
//!
//! Owns the order of the first calls and what each failure means to the user. Promises that a
//! device is handed out only after memory has really been reserved, created, mapped and opened on
//! it once, so that a refusal is met here and not in the middle of a program; that every rung
//! taken is announced; and that `survey` makes no context. Cost: loading and initialising the
//! driver takes some 100 ms the first time in a process, the trial under a millisecond.

use std::collections::HashMap;
use std::ffi::{CStr, c_int, c_uint};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, PoisonError};

use super::codes;
use super::library::Library;
use super::memory::Properties;
use super::newer::{CTX_RECORD_EVENT_SINCE, RawResult};
use super::table::MISSING;
use super::{Api, Contexts, CudaDriver, Fallback};
use crate::driver::segments::SegmentDriver;
use crate::driver::{Code, DeviceInfo, Driver, DriverError, DriverResult, PageHandle};
use crate::error::{Error, Result, Status};

/// CUDA 10.2, which brought virtual memory management and what else is needed.
const VERSION_MIN: i32 = 10020;

/// Granules of plain segments, where the device names no mapping unit.
const PLAIN_GRANULE: usize = 2 << 20;

/// Length of plain segments, unless a request needs more.
const SEGMENT_BYTES: usize = 256 << 20;

/// Entry points without which no pool works; every driver since CUDA 7.0 has them.
const NEEDED: [&CStr; 27] = [
    c"cuInit",
    c"cuDriverGetVersion",
    c"cuDeviceGetCount",
    c"cuDeviceGet",
    c"cuDeviceGetAttribute",
    c"cuDeviceTotalMem",
    c"cuDevicePrimaryCtxRetain",
    c"cuDevicePrimaryCtxGetState",
    c"cuCtxGetCurrent",
    c"cuCtxGetDevice",
    c"cuCtxPushCurrent",
    c"cuCtxPopCurrent",
    c"cuCtxSynchronize",
    c"cuMemAlloc",
    c"cuMemFree",
    c"cuMemGetInfo",
    c"cuMemcpyAsync",
    c"cuMemsetD8Async",
    c"cuStreamCreate",
    c"cuStreamDestroy",
    c"cuStreamSynchronize",
    c"cuStreamWaitEvent",
    c"cuEventCreate",
    c"cuEventDestroy",
    c"cuEventRecord",
    c"cuEventQuery",
    c"cuEventSynchronize",
];

/// What virtual memory management needs, all of it: what is mapped must be unmapped.
const VIRTUAL: [&CStr; 8] = [
    c"cuMemGetAllocationGranularity",
    c"cuMemAddressReserve",
    c"cuMemAddressFree",
    c"cuMemCreate",
    c"cuMemRelease",
    c"cuMemMap",
    c"cuMemUnmap",
    c"cuMemSetAccess",
];

/// A function that only the project's simulated driver has.
const SIMULATED: &CStr = c"forebay_sim_is_simulated";

/// `CU_DEVICE_ATTRIBUTE_*` of `cuda.h`.
mod attribute {
    pub const CAPABILITY_MAJOR: u32 = 75;
    pub const CAPABILITY_MINOR: u32 = 76;
    pub const VIRTUAL_MEMORY: u32 = 102;
    pub const POSIX_FD: u32 = 103;
    pub const RDMA_WITH_VIRTUAL_MEMORY: u32 = 110;
}

/// A device that a pool can use.
#[derive(Clone)]
pub enum Opened {
    /// With virtual memory management.
    Virtual(Arc<CudaDriver>),
    /// Without: plain segments.
    Plain(Arc<SegmentDriver<CudaDriver>>),
}

impl Opened {
    /// As the pool sees it.
    pub fn driver(&self) -> Arc<dyn Driver> {
        match self {
            Opened::Virtual(driver) => Arc::clone(driver) as Arc<dyn Driver>,
            Opened::Plain(driver) => Arc::clone(driver) as Arc<dyn Driver>,
        }
    }

    /// The device itself.
    pub fn device(&self) -> &Arc<CudaDriver> {
        match self {
            Opened::Virtual(driver) => driver,
            Opened::Plain(driver) => driver.inner(),
        }
    }
}

/// What can be said of a machine without using it.
#[derive(Clone, Debug)]
pub struct Survey {
    /// The file that was loaded.
    pub library: PathBuf,
    /// Whether it is the project's simulated driver, which serves tests only.
    pub simulated: bool,
    /// The driver's CUDA version: 12080 is 12.8.
    pub version: i32,
    /// Entry points that this driver lacks.
    pub missing: Vec<String>,
    /// The devices, by number.
    pub devices: Vec<Surveyed>,
}

/// One device of a [`Survey`].
#[derive(Clone, Debug)]
#[allow(missing_docs, reason = "what CUDA's attribute of the same name says")]
pub struct Surveyed {
    pub name: String,
    pub total_bytes: usize,
    pub compute_capability: (i32, i32),
    pub virtual_memory: bool,
    pub posix_fd: bool,
    pub rdma: bool,
    /// Numbers of the devices that can be given access to its memory.
    pub peers: Vec<u32>,
}

fn no_driver(text: impl Into<String>) -> Error {
    Error::new(Status::NoDriver, text.into())
}

/// Loads and initialises the driver; once a process and path.
fn load(path: Option<&Path>) -> Result<Arc<Api>> {
    static LOADED: Mutex<Option<HashMap<Option<PathBuf>, Arc<Api>>>> = Mutex::new(None);
    let mut loaded = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
    let loaded = loaded.get_or_insert_default();
    let key = path.map(Path::to_path_buf);
    if let Some(api) = loaded.get(&key) {
        return Ok(Arc::clone(api));
    }
    let library = Library::open(path).map_err(|why| {
        no_driver(match path {
            Some(path) => {
                format!("FOREBAY_CUDA_LIBRARY={} cannot be loaded: {why}", path.display())
            }
            None => format!(
                "libcuda.so.1 cannot be loaded ({why}): install NVIDIA's driver, in containers \
                 start with --gpus all, or name the file in FOREBAY_CUDA_LIBRARY; set \
                 FOREBAY_BACKEND=host to use host memory instead"
            ),
        })
    })?;
    let api = Arc::new(Api::new(library));
    let missing = api.missing();
    if let Some(name) = NEEDED.iter().find(|name| missing.contains(*name)) {
        return Err(no_driver(format!(
            "CUDA does not start with {}: {}: {}",
            api.library().path().display(),
            name.to_string_lossy(),
            codes::sentence(MISSING)
        )));
    }
    // SAFETY: the first call to the driver, as it wants it.
    let result = unsafe { api.init(0) };
    if result != codes::SUCCESS {
        return Err(no_driver(format!(
            "CUDA does not start with {}: {}",
            api.library().path().display(),
            codes::sentence(result)
        )));
    }
    let version = version(&api)?;
    if version < VERSION_MIN {
        return Err(no_driver(format!(
            "the CUDA driver is too old: {} offers CUDA {}, and Forebay needs {}",
            api.library().path().display(),
            in_words(version),
            in_words(VERSION_MIN)
        )));
    }
    tracing::info!(path = %api.library().path().display(), version, "CUDA driver");
    loaded.insert(key, Arc::clone(&api));
    Ok(api)
}

/// A CUDA version as people write it.
pub fn in_words(version: i32) -> String {
    format!("{}.{}", version / 1000, version % 1000 / 10)
}

fn version(api: &Api) -> Result<i32> {
    let mut version = 0;
    // SAFETY: a local to fill.
    needed("cuDriverGetVersion", unsafe { api.driver_get_version(&raw mut version) })?;
    Ok(version)
}

/// Fails when a call without which nothing can be done failed.
fn needed(call: &str, result: RawResult) -> Result<()> {
    if result == codes::SUCCESS {
        return Ok(());
    }
    Err(no_driver(format!("{call} failed: {}", codes::sentence(result))))
}

fn device_count(api: &Api) -> Result<i32> {
    let mut count = 0;
    // SAFETY: a local to fill.
    needed("cuDeviceGetCount", unsafe { api.device_get_count(&raw mut count) })?;
    if count < 1 {
        return Err(no_driver(format!(
            "the driver has no device: {}",
            codes::sentence(codes::NO_DEVICE)
        )));
    }
    Ok(count)
}

fn attribute(api: &Api, device: c_int, which: c_uint) -> i32 {
    let mut value = 0;
    // SAFETY: a local to fill.
    let result = unsafe { api.device_get_attribute(&raw mut value, which, device) };
    // A driver that does not know an attribute does not have what it stands for.
    if result == codes::SUCCESS { value } else { 0 }
}

fn name(api: &Api, device: c_int) -> String {
    let mut text = [0u8; 256];
    // SAFETY: a local of that length; CUDA ends it with a NUL.
    let result = unsafe { api.device_get_name(text.as_mut_ptr().cast(), 255, device) };
    match CStr::from_bytes_until_nul(&text) {
        Ok(name) if result == codes::SUCCESS => name.to_string_lossy().into_owned(),
        _ => "a device without a name".into(),
    }
}

fn total_bytes(api: &Api, device: c_int) -> Result<usize> {
    let mut bytes = 0;
    // SAFETY: a local to fill.
    needed("cuDeviceTotalMem", unsafe { api.device_total_mem(&raw mut bytes, device) })?;
    Ok(bytes)
}

/// The devices that can be given access to memory of `device`, one bit each.
fn reachable(api: &Api, device: c_int, count: i32) -> u64 {
    let can = |&peer: &i32| {
        let mut yes = 0;
        // SAFETY: a local to fill. The peer is who reaches.
        let result = unsafe { api.device_can_access_peer(&raw mut yes, peer, device) };
        peer != device && result == codes::SUCCESS && yes != 0
    };
    (0..count.min(64)).filter(can).fold(0, |set, peer| set | 1 << peer)
}

/// Looks at the machine. Makes no context and no memory.
pub fn survey(path: Option<&Path>) -> Result<Survey> {
    let api = load(path)?;
    let count = device_count(&api)?;
    let missing = api.missing().iter().map(|n| n.to_string_lossy().into_owned()).collect();
    let one = |device: i32| {
        let has = |which| attribute(&api, device, which) != 0;
        let peers = reachable(&api, device, count);
        Ok(Surveyed {
            name: name(&api, device),
            total_bytes: total_bytes(&api, device)?,
            compute_capability: (
                attribute(&api, device, attribute::CAPABILITY_MAJOR),
                attribute(&api, device, attribute::CAPABILITY_MINOR),
            ),
            virtual_memory: has(attribute::VIRTUAL_MEMORY),
            posix_fd: has(attribute::POSIX_FD),
            rdma: has(attribute::RDMA_WITH_VIRTUAL_MEMORY),
            peers: (0..64).filter(|peer| peers >> peer & 1 != 0).collect(),
        })
    };
    Ok(Survey {
        library: api.library().path().to_path_buf(),
        simulated: api.library().symbol(SIMULATED).is_some(),
        version: version(&api)?,
        missing,
        devices: (0..count).map(one).collect::<Result<_>>()?,
    })
}

/// Opens device `ordinal` of the driver at `path`, or of the system's.
pub fn open(path: Option<&Path>, ordinal: i32) -> Result<Opened> {
    let api = load(path)?;
    retry_trials();
    let driver = describe(&api, ordinal)?;
    let refused = match driver.refusal() {
        Some(refused) => refused,
        None => match driver.trial() {
            Ok(None) => return Ok(Opened::Virtual(Arc::new(driver))),
            Ok(Some(refused)) => refused,
            Err(error) => {
                let name = driver.info.name.clone();
                if !driver.end_trials() {
                    HOLDING.lock().unwrap_or_else(PoisonError::into_inner).push(driver);
                }
                let status = match error.code {
                    Code::ContextLost => Status::ContextLost,
                    _ => Status::NoDriver,
                };
                let message = format!("device {ordinal} ({name}) cannot be used: {error}");
                return Err(Error::new(status, message));
            }
        },
    };
    driver.announce(Fallback::PlainSegments(refused));
    Ok(Opened::Plain(Arc::new(SegmentDriver::new(Arc::new(driver), SEGMENT_BYTES))))
}

/// What is known of a device before anything is done with it.
fn describe(api: &Arc<Api>, ordinal: i32) -> Result<CudaDriver> {
    let count = device_count(api)?;
    if !(0..count).contains(&ordinal) {
        return Err(Error::new(
            Status::InvalidArgument,
            format!(
                "device {ordinal} does not exist: CUDA shows {count}, numbered from 0 (see \
                 FOREBAY_DEVICE and CUDA_VISIBLE_DEVICES)"
            ),
        ));
    }
    let mut device = 0;
    // SAFETY: a local to fill.
    needed("cuDeviceGet", unsafe { api.device_get(&raw mut device, ordinal) })?;
    let version = version(api)?;
    let has = |which| attribute(api, device, which) != 0;
    let context_events = api.has_context_events() && version >= CTX_RECORD_EVENT_SINCE;
    let info = DeviceInfo {
        name: name(api, device),
        total_bytes: total_bytes(api, device)?,
        granularity: CudaDriver::granularity(api, device).unwrap_or(PLAIN_GRANULE),
        context_events,
        host_accessible: false,
    };
    let (rdma, fd) = (has(attribute::RDMA_WITH_VIRTUAL_MEMORY), has(attribute::POSIX_FD));
    let driver = CudaDriver {
        api: Arc::clone(api),
        device,
        ordinal,
        info,
        version,
        contexts: Contexts::new(Arc::clone(api), device),
        properties: Properties::new(rdma, fd),
        reachable: reachable(api, device, count),
        opened: AtomicU64::new(0),
        peers: Mutex::default(),
        context_events_refused: AtomicBool::new(false),
        fallbacks: Mutex::new(Vec::new()),
        trials: Mutex::new(Vec::new()),
        refused_pages: Mutex::default(),
        objects: Mutex::new(Vec::new()),
    };
    if !context_events {
        driver.announce(Fallback::NoContextEvents);
    }
    Ok(driver)
}

impl CudaDriver {
    /// Why there is no virtual memory management here, if the device says so itself.
    fn refusal(&self) -> Option<RawResult> {
        let missing = self.api.missing();
        if VIRTUAL.iter().any(|name| missing.contains(name)) {
            return Some(MISSING);
        }
        if let Err(refused) = CudaDriver::granularity(&self.api, self.device) {
            return Some(refused);
        }
        let has = attribute(&self.api, self.device, attribute::VIRTUAL_MEMORY) != 0;
        (!has).then_some(codes::NOT_SUPPORTED)
    }

    /// Uses one granule as a pool would. `Some`: virtual memory management is refused. A device
    /// that is merely full has refused nothing.
    fn trial(&self) -> DriverResult<Option<RawResult>> {
        let mut tried = self.try_granule();
        if is_refusal(&tried, codes::UNKNOWN) && self.give_up_rdma(codes::UNKNOWN) {
            tried = self.try_granule();
        }
        let Err(error) = tried else { return Ok(None) };
        match error.code {
            Code::OutOfMemory | Code::NoAddressSpace | Code::MappingLimit => Ok(None),
            Code::NotSupported => Ok(Some(codes::NOT_SUPPORTED)),
            Code::Other(why @ (codes::NOT_PERMITTED | codes::UNKNOWN)) => Ok(Some(why)),
            _ => Err(error),
        }
    }

    fn try_granule(&self) -> DriverResult<()> {
        let mut trial = Trial::default();
        let used = self.use_granule(&mut trial);
        // Twice: what failed once has done nothing.
        let given = self.give_back(&mut trial).or_else(|_| self.give_back(&mut trial));
        if !trial.is_over() {
            self.trials.lock().unwrap_or_else(PoisonError::into_inner).push(trial);
        }
        used.and(given)
    }

    fn use_granule(&self, trial: &mut Trial) -> DriverResult<()> {
        let granule = self.info.granularity;
        let page = *trial.page.insert(self.create(granule)?);
        let base = *trial.base.insert(self.reserve(granule)?);
        self.map(base, granule, page)?;
        trial.mapped = true;
        self.set_access(base, granule, &[])
    }

    /// Gives back what a trial holds, as far as the driver takes it. Answers the first failure.
    fn give_back(&self, trial: &mut Trial) -> DriverResult<()> {
        let granule = self.info.granularity;
        let mut given = Ok(());
        if let Some(base) = trial.base {
            if trial.mapped {
                let unmapped = self.unmap(base, granule);
                trial.mapped = unmapped.is_err();
                given = given.and(unmapped);
            }
            // Addresses that are mapped must not be given back.
            if !trial.mapped {
                let freed = self.unreserve(base, granule);
                trial.base = freed.err().map(|_| base);
                given = given.and(freed);
            }
        }
        if let Some(page) = trial.page {
            let released = self.release(page);
            trial.page = released.err().map(|_| page);
            given = given.and(released);
        }
        given
    }

    /// Gives back what trials have left. Whether nothing is left now.
    pub(super) fn end_trials(&self) -> bool {
        let mut trials = self.trials.lock().unwrap_or_else(PoisonError::into_inner);
        trials.retain_mut(|trial| self.give_back(trial).is_err());
        trials.is_empty()
    }
}

/// What trying a granule holds: what the driver has not taken back yet.
#[derive(Default, Debug)]
pub(super) struct Trial {
    page: Option<PageHandle>,
    base: Option<usize>,
    mapped: bool,
}

impl Trial {
    fn is_over(&self) -> bool {
        self.page.is_none() && self.base.is_none()
    }
}

/// Devices that could not be used, and whose drivers have not taken back what a trial held.
static HOLDING: Mutex<Vec<CudaDriver>> = Mutex::new(Vec::new());

/// Tries again to give back what trials of devices that could not be used hold.
fn retry_trials() {
    let mut holding = HOLDING.lock().unwrap_or_else(PoisonError::into_inner);
    holding.retain(|driver| !driver.end_trials());
}

fn is_refusal(tried: &DriverResult<()>, number: RawResult) -> bool {
    matches!(tried, Err(DriverError { code: Code::Other(n), .. }) if *n == number)
}
