//! CUDA's legacy IPC for the pool's memory, between processes that both have this library.
//!
//! The driver refuses its own IPC for memory that is mapped, as a pool's is. Here a handle names
//! the exporting process and a block ([`handle`]); whoever opens it asks that process, over a
//! socket of their user's, for descriptors of the block's pages and maps them.
//!
//! | module | |
//! |---|---|
//! | [`handle`] | the 64 bytes |
//! | [`exports`], [`server`] | the exporting side: blocks, and the thread that hands them out |
//! | [`imports`], [`link`] | the importing side: mappings, and connections |
//! | [`socket`] | the folder, who is at the other end, messages |
//! | [`isolate`] | `FOREBAY_IPC=isolate`: no two blocks on one page |
//!
//! Promises: memory that is freed while an importer holds it is nobody's until the last has closed
//! it or is gone; handles that are not of this kind are the driver's; a child made by `fork` has
//! none of this. Cost for a program without handles: one load a free.

pub mod exports;
pub mod handle;
pub mod imports;
pub mod isolate;
mod link;
mod server;
mod socket;

use crate::cuda::{self, Device, DevicePtr, Handle as Context, Result};
use crate::loader;
use crate::place;
use crate::pool::{self, Api};
use crate::settings::{self, Ipc};
use crate::thread;
use handle::{Handle, RawHandle, Read};
use imports::{Refusal, Target};
use std::ffi::{c_int, c_uint};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering};

/// What is asked of an exporting process, and what it answers.
mod requests {
    /// Holds a block; the answer describes its pages.
    pub const OPEN: u64 = 1;
    /// Descriptors of some pages of a block that is held.
    pub const PAGES: u64 = 2;
    /// Lets a block go, once.
    pub const CLOSE: u64 = 3;

    pub const DONE: u64 = 0;
    /// The block is freed, or never was.
    pub const GONE: u64 = 1;
    /// The request makes no sense.
    pub const REFUSED: u64 = 2;
    /// The process's limit on descriptors is in the way.
    pub const NO_DESCRIPTORS: u64 = 3;
    /// The device makes no descriptors.
    pub const UNSUPPORTED: u64 = 4;
}

// ---- which addresses matter ------------------------------------------------------------------

const MARKS_SHIFT: u32 = 12;
/// The process that has handles, exported or opened; 0: none yet.
static PROCESS: AtomicI32 = AtomicI32::new(0);
/// How many exported blocks and imported pages have an address that leads to each place.
static MARKS: [AtomicU32; 1 << MARKS_SHIFT] = [const { AtomicU32::new(0) }; 1 << MARKS_SHIFT];

fn mark_of(address: usize) -> &'static AtomicU32 {
    let hash = (address as u64 >> 8).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    &MARKS[(hash >> (64 - MARKS_SHIFT)) as usize]
}

/// An exported block begins at `address`, or an imported one's pages.
fn mark(address: usize) {
    // SAFETY: no arguments.
    PROCESS.store(unsafe { libc::getpid() }, Ordering::Release);
    mark_of(address).fetch_add(1, Ordering::AcqRel);
}

/// It is no more.
fn unmarked(address: usize) {
    mark_of(address).fetch_sub(1, Ordering::AcqRel);
}

/// Whether freeing an address may concern this module.
#[inline(always)]
pub fn is_marked(address: DevicePtr) -> bool {
    any() && mark_of(address as usize).load(Ordering::Acquire) != 0
}

/// Whether this process, or its parent, has had handles.
#[inline(always)]
pub fn any() -> bool {
    PROCESS.load(Ordering::Acquire) != 0
}

/// Whether what is here is a parent's.
fn is_child() -> bool {
    let process = PROCESS.load(Ordering::Acquire);
    // SAFETY: no arguments.
    process != 0 && process != unsafe { libc::getpid() }
}

/// Whether an address is another process's memory, which is closed and not freed.
#[cold]
pub fn is_imported(address: DevicePtr) -> bool {
    !is_child() && imports::is_page(address as usize)
}

/// Whether an address lies on another process's page, in its block or beside it.
pub fn is_on_imported_page(address: DevicePtr) -> bool {
    any() && !is_child() && imports::covers(address as usize)
}

/// The program has freed a block of the pool's.
#[cold]
pub fn freed(address: DevicePtr) {
    exports::freed(address as usize);
}

/// The block of another process around an address: its start and length.
pub fn imported(address: DevicePtr) -> Option<(usize, usize)> {
    if !any() || is_child() {
        return None;
    }
    imports::find(address as usize)
}

/// A device's pool is about to end.
pub fn device_ends(device: Device) {
    if any() && !is_child() {
        exports::device_ends(device);
    }
}

/// It has ended.
pub fn device_ended(device: Device) {
    if any() && !is_child() {
        imports::device_ended(device);
    }
}

/// Runs a call of the pool's.
fn inside(f: impl FnOnce() -> pool::Status) -> pool::Status {
    thread::with(|thread| thread.inside(f))
}

/// A random number that is not 0; nothing where the system has none.
fn random() -> Option<u64> {
    let mut number = 0u64;
    let size = size_of::<u64>();
    loop {
        // SAFETY: a local of this size.
        let came = unsafe { libc::getrandom((&raw mut number).cast(), size, 0) };
        if came == size as isize && number != 0 {
            return Some(number);
        }
        let interrupted = std::io::Error::last_os_error().raw_os_error() == Some(libc::EINTR);
        if came < 0 && !interrupted {
            return None;
        }
    }
}

// ---- the three calls -------------------------------------------------------------------------

/// The handle of a live block of `bytes` bytes.
///
/// # Errors
/// CUDA's number.
pub fn handle_of(base: usize, bytes: usize) -> std::result::Result<RawHandle, Result> {
    if is_child() {
        return Err(cuda::NOT_INITIALIZED);
    }
    if imports::find(base).is_some() {
        // Its own process gives it a handle.
        return Err(cuda::INVALID_VALUE);
    }
    if let Some(known) = exports::known(base) {
        return Ok(known.raw());
    }
    static SAID: AtomicBool = AtomicBool::new(false);
    let refuse = |why: &str| {
        let advice = "FOREBAY_IPC=driver leaves all allocations to CUDA";
        loader::say_once(&SAID, &format!("cuIpcGetMemHandle is refused: {why}; {advice}"));
        cuda::NOT_SUPPORTED
    };
    let api = pool::api().ok_or(cuda::INVALID_VALUE)?;
    let device = device_of(api, base).ok_or(cuda::INVALID_VALUE)?;
    let uuid = uuid_of(device).ok_or_else(|| refuse("the device has no UUID"))?;
    let identity = server::begin().map_err(|why| refuse(&why))?;
    let (process, nonce) = (identity.process, identity.nonce);
    let fresh = Handle { process, nonce, key: 0, bytes: bytes as u64, uuid };
    let accept = |export: &pool::Export| {
        let isolated = settings::get().ipc == Ipc::Isolate;
        if isolated && !isolate::is_alone(export, bytes) || !is_exportable(api, export.id) {
            return Err(pool::UNSUPPORTED);
        }
        Ok(())
    };
    match exports::enter(api, base, device, fresh, accept) {
        Ok(handle) => Ok(handle.raw()),
        Err(pool::UNSUPPORTED) => Err(refuse("the device or the block cannot be shared")),
        Err(pool::FORKED) => Err(cuda::NOT_INITIALIZED),
        Err(_) => Err(cuda::INVALID_VALUE),
    }
}

/// Whether pages can be given to other processes: tried once.
fn is_exportable(api: &Api, id: u64) -> bool {
    static TRIED: AtomicBool = AtomicBool::new(false);
    if TRIED.load(Ordering::Relaxed) {
        return true;
    }
    let mut fd = -1;
    // SAFETY: room for one descriptor.
    let status = inside(|| unsafe { (api.export_pages)(id, 0, &raw mut fd, 1) });
    if status == pool::OK {
        socket::close(&[fd]);
        TRIED.store(true, Ordering::Relaxed);
    }
    status != pool::UNSUPPORTED
}

fn device_of(api: &Api, base: usize) -> Option<Device> {
    let mut pool = 0;
    // SAFETY: a local to fill.
    let found = inside(|| unsafe { (api.pool_of)(base, &raw mut pool) });
    if found == pool::OK { place::device_of_pool(pool) } else { None }
}

/// Opens a handle in the current context, which `serving` serves. Nothing: it is the driver's.
pub fn open(
    raw: &RawHandle,
    flags: c_uint,
    serving: Option<(usize, &Api)>,
) -> Option<std::result::Result<usize, Result>> {
    /// `CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS`, the one flag that CUDA takes.
    const LAZY_PEERS: c_uint = 1;
    static SAID: AtomicBool = AtomicBool::new(false);
    let handle = match Handle::read(raw) {
        Read::Foreign => return None,
        Read::Newer => return Some(Err(cuda::INVALID_HANDLE)),
        Read::Ours(handle) => handle,
    };
    if flags != LAZY_PEERS {
        return Some(Err(cuda::INVALID_VALUE));
    }
    if is_child() {
        return Some(Err(cuda::NOT_INITIALIZED));
    }
    let Some((context, device)) = place::current() else { return Some(Err(cuda::INVALID_CONTEXT)) };
    if server::identity().is_some_and(|own| own.nonce == handle.nonce) {
        // As the driver says of its own.
        return Some(Err(cuda::INVALID_CONTEXT));
    }
    let process = handle.process;
    let refuse = |result, why: &str| {
        let text = format!("memory of process {process} is not opened: {why}");
        loader::say_once(&SAID, &text);
        result
    };
    let Some((pool, api)) = serving else {
        let why = "the pool does not serve this context; run it with the settings of that process";
        return Some(Err(refuse(cuda::NOT_SUPPORTED, why)));
    };
    let owner = match owner_within_reach(device, handle.uuid) {
        Ok(owner) => owner,
        Err(result) => {
            let why = match result {
                cuda::PEER_ACCESS_UNSUPPORTED => "the current device cannot reach its device",
                _ => "its device is not visible in this process",
            };
            return Some(Err(refuse(result, why)));
        }
    };
    let opened = imports::open(&handle, Target { api, pool, context, device, owner });
    Some(opened.map_err(|refusal| match refusal {
        Refusal::Gone => refuse(cuda::MAP_FAILED, "it has ended, or has freed the memory"),
        Refusal::Other(why) => refuse(cuda::MAP_FAILED, &why),
        Refusal::Pool(pool::OUT_OF_MEMORY, why) => refuse(cuda::OUT_OF_MEMORY, &why),
        Refusal::Pool(pool::FORKED, _) => cuda::NOT_INITIALIZED,
        Refusal::Pool(pool::SHUT_DOWN, _) => cuda::DEINITIALIZED,
        Refusal::Pool(_, why) => refuse(cuda::MAP_FAILED, &why),
    }))
}

/// Closes an opened block once. Nothing: the address is none.
pub fn close(address: DevicePtr) -> Option<Result> {
    if !any() || is_child() {
        return None;
    }
    let api = pool::api()?;
    let wait = |context, owner| {
        wait_for(context)?;
        if crate::hooks::capture::any_open() {
            // To wait for the owner would end what captures there, which no program expects of
            // a close: it waits for its own work on that device, as CUDA asks of it.
            return Ok(());
        }
        place::context_of_device(owner).filter(|own| *own != context).map_or(Ok(()), wait_for)
    };
    match imports::close(api, address as usize, wait) {
        Ok(()) => Some(cuda::SUCCESS),
        Err(Some(result)) => Some(result),
        Err(None) => None,
    }
}

/// Waits for a context's work. One that is gone has none.
fn wait_for(context: Context) -> std::result::Result<(), Result> {
    type Synchronize = unsafe extern "C" fn() -> Result;
    let found = loader::symbol(loader::driver(true), c"cuCtxSynchronize");
    if found == 0 {
        return Err(cuda::NOT_FOUND);
    }
    let wait = || {
        crate::hooks::plainly(|| {
            // SAFETY: the driver's function of this name has this type.
            unsafe { std::mem::transmute::<usize, Synchronize>(found)() }
        })
    };
    match place::within(context, wait) {
        Some(cuda::SUCCESS) | None => Ok(()),
        Some(result) => Err(result),
    }
}

// ---- devices ---------------------------------------------------------------------------------

/// A device's UUID; that of its part where it is shared out.
fn uuid_of(device: Device) -> Option<[u8; 16]> {
    type Uuid = unsafe extern "C" fn(*mut [u8; 16], Device) -> Result;
    let driver = loader::driver(true);
    let newer = loader::symbol(driver, c"cuDeviceGetUuid_v2");
    let found = if newer == 0 { loader::symbol(driver, c"cuDeviceGetUuid") } else { newer };
    if found == 0 {
        return None;
    }
    let mut uuid = [0; 16];
    // SAFETY: the driver's functions of these names have this type; a local to fill.
    let result = unsafe { std::mem::transmute::<usize, Uuid>(found)(&raw mut uuid, device) };
    (result == cuda::SUCCESS).then_some(uuid)
}

/// The number here of the device with this UUID, if `device` is it or may be given access to its
/// memory. CUDA opens handles of peers too, "as if the user called cudaDeviceEnablePeerAccess"
/// (CUDA Runtime API 12.9, `cudaIpcOpenMemHandle`): so what that answers where there is no access.
fn owner_within_reach(device: Device, uuid: [u8; 16]) -> std::result::Result<Device, Result> {
    type Count = unsafe extern "C" fn(*mut c_int) -> Result;
    type CanAccess = unsafe extern "C" fn(*mut c_int, Device, Device) -> Result;
    if uuid_of(device) == Some(uuid) {
        return Ok(device);
    }
    let count = loader::symbol(loader::driver(true), c"cuDeviceGetCount");
    let can = loader::symbol(loader::driver(true), c"cuDeviceCanAccessPeer");
    let (mut devices, mut yes) = (0, 0);
    if count != 0 {
        // SAFETY: the driver's function of this name has this type; a local to fill.
        unsafe { std::mem::transmute::<usize, Count>(count)(&raw mut devices) };
    }
    let owner = (0..devices).find(|other| uuid_of(*other) == Some(uuid));
    let owner = owner.ok_or(cuda::INVALID_DEVICE)?;
    if can != 0 {
        // SAFETY: as above.
        unsafe { std::mem::transmute::<usize, CanAccess>(can)(&raw mut yes, device, owner) };
    }
    if yes == 0 { Err(cuda::PEER_ACCESS_UNSUPPORTED) } else { Ok(owner) }
}
