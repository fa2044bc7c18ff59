//! Where pools are: which one serves a thread's current context, from its first use to its end.
//!
//! Owns the table of devices. A device's pool lives in one context: that which was current when
//! it was made. A program's second context on the device is served by the driver. Promises that
//! no context is made here, that a pool ends before its context does, and that addresses of ended
//! pools are never freed into what came after.

use crate::cuda::{Device, Handle, Result, SUCCESS};
use crate::lookup::{Entry, real};
use crate::pool::{self, Api};
use crate::thread::{self, Serves};
use crate::{loader, settings};
use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Devices that are looked at; those above are the driver's.
pub const DEVICES_MAX: usize = 64;

/// One device.
#[derive(Clone, Copy)]
struct Place {
    /// The pool's context; 0: no pool yet.
    context: Handle,
    /// The pool's handle.
    pool: usize,
    /// Whether that is the primary context.
    primary: bool,
    /// The pool could not be made: the driver serves until a context ends.
    refused: bool,
    /// References that the program holds on the primary context.
    references: u64,
    /// Devices whose contexts were given access to this one's memory, one a bit.
    peers: u64,
    /// Devices that were given access to the default memory pool's memory.
    pool_peers: u64,
    /// Those of both that the pool's memory is not open to yet: a capture was open.
    owed: u64,
    /// The program chose another memory pool than the default for its stream-ordered memory.
    own_memory_pool: bool,
}

const NOWHERE: Place = Place {
    context: 0,
    pool: 0,
    primary: false,
    refused: false,
    references: 0,
    peers: 0,
    pool_peers: 0,
    owed: 0,
    own_memory_pool: false,
};

static PLACES: Mutex<[Place; DEVICES_MAX]> = Mutex::new([NOWHERE; DEVICES_MAX]);
/// Whether any device's memory pool is the program's own choice.
pub static OWN_MEMORY_POOLS: AtomicBool = AtomicBool::new(false);
/// Whether several devices have had a pool at a time.
pub static SEVERAL: AtomicBool = AtomicBool::new(false);
/// Whether any pool's memory has still to be opened to a peer.
static ANY_OWED: AtomicBool = AtomicBool::new(false);
/// Whether any pool has ended: from then on addresses may have belonged to one.
static ANY_ENDED: AtomicBool = AtomicBool::new(false);
/// The driver's live allocations at addresses of ended pools.
static DRIVERS_OWN: Mutex<Option<HashSet<u64>>> = Mutex::new(None);

/// The table; in a child forked later an empty one of its own: a thread that the child does not
/// have may be making a pool, and then the parent's is locked for ever.
fn places() -> MutexGuard<'static, [Place; DEVICES_MAX]> {
    static PROCESS: AtomicI32 = AtomicI32::new(0);
    static CHILDS: Mutex<[Place; DEVICES_MAX]> = Mutex::new([NOWHERE; DEVICES_MAX]);
    // SAFETY: no arguments.
    let own = unsafe { libc::getpid() };
    let first = PROCESS.compare_exchange(0, own, Ordering::Relaxed, Ordering::Relaxed);
    let table = if first.is_err_and(|known| known != own) { &CHILDS } else { &PLACES };
    table.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The current context and its device; nothing without one.
pub fn current() -> Option<(Handle, Device)> {
    type Current = unsafe extern "C" fn(*mut Handle) -> Result;
    type OfDevice = unsafe extern "C" fn(*mut Device) -> Result;
    let (mut context, mut device) = (0, -1);
    let current = loader::symbol(loader::driver(true), c"cuCtxGetCurrent");
    let of_device = loader::symbol(loader::driver(true), c"cuCtxGetDevice");
    if current == 0 || of_device == 0 {
        return None;
    }
    // SAFETY: the driver's functions of these names have these types; locals to fill.
    let found = unsafe {
        std::mem::transmute::<usize, Current>(current)(&raw mut context) == SUCCESS
            && context != 0
            && std::mem::transmute::<usize, OfDevice>(of_device)(&raw mut device) == SUCCESS
    };
    (found && (0..DEVICES_MAX as Device).contains(&device)).then_some((context, device))
}

/// The device of a context that need not be current.
pub fn device_of(context: Handle) -> Option<Device> {
    within(context, || current().map(|(_, device)| device)).flatten()
}

/// Runs `f` with a context current.
pub fn within<R>(context: Handle, f: impl FnOnce() -> R) -> Option<R> {
    type Push = unsafe extern "C" fn(Handle) -> Result;
    type Pop = unsafe extern "C" fn(*mut Handle) -> Result;
    let (push, pop) = (real(Entry::CtxPush), real(Entry::CtxPop));
    if push == 0 || pop == 0 {
        return None;
    }
    // SAFETY: the driver's functions of these names have these types; it checks the context.
    unsafe {
        if std::mem::transmute::<usize, Push>(push)(context) != SUCCESS {
            return None;
        }
        let result = f();
        let mut popped = 0;
        std::mem::transmute::<usize, Pop>(pop)(&raw mut popped);
        Some(result)
    }
}

/// What serves this thread now. The first time, in a device's first context, its pool is made.
#[cold]
pub fn look_up() -> Serves {
    let generation = thread::generation();
    if !settings::get().enabled {
        return keep(generation, Serves::Driver);
    }
    // Without a context the driver has the answer; that is not kept, one may come unseen.
    let Some((context, device)) = current() else { return Serves::Driver };
    let Some(api) = pool::open() else { return keep(generation, Serves::Driver) };
    let mut places = places();
    let Some(place) = places.get_mut(device as usize) else { return Serves::Driver };
    if place.context == 0 && !place.refused {
        make(api, place, context, device);
    }
    let serves = match *place {
        Place { context: own, pool, refused: false, .. } if own == context => Serves::Pool(pool),
        _ => Serves::Driver,
    };
    if places.iter().filter(|place| place.context != 0).count() > 1 {
        SEVERAL.store(true, Ordering::Release);
    }
    drop(places);
    keep(generation, serves)
}

fn keep(generation: u64, serves: Serves) -> Serves {
    thread::with(|thread| thread.keep(generation, serves));
    serves
}

/// Makes a device's pool in the current context.
fn make(api: &Api, place: &mut Place, context: Handle, device: Device) {
    match thread::with(|thread| thread.inside(|| api.make_pool(device))) {
        Ok(pool) => {
            place.context = context;
            place.pool = pool;
            place.primary = is_primary(context, device);
            let reach = place.peers | place.pool_peers;
            for peer in (0..64).filter(|peer| reach >> peer & 1 != 0) {
                // SAFETY: numbers only. Refused: the peer's accesses fail as without Forebay.
                if unsafe { (api.enable_peer)(pool, peer) } == pool::BUSY {
                    place.owed |= 1 << peer;
                    ANY_OWED.store(true, Ordering::Release);
                }
            }
            crate::hooks::stream::note_made(api, pool, context);
            crate::hooks::capture::declare_open(api, pool);
        }
        // The parent's pool: the driver tells the child the same.
        Err(pool::FORKED | pool::SHUT_DOWN) => {}
        Err(_) => {
            static SAID: AtomicBool = AtomicBool::new(false);
            let text = format!("device {device} stays the driver's: {}", api.why());
            loader::say_once(&SAID, &text);
            place.refused = true;
        }
    }
}

/// Whether a context of the device is its primary one.
pub fn is_primary(context: Handle, device: Device) -> bool {
    primary_of(device) == Some(context)
}

/// The device's primary context, if it exists: asking makes none.
pub fn primary_of(device: Device) -> Option<Handle> {
    type State = unsafe extern "C" fn(Device, *mut u32, *mut i32) -> Result;
    type Retain = unsafe extern "C" fn(*mut Handle, Device) -> Result;
    type Release = unsafe extern "C" fn(Device) -> Result;
    let state = loader::symbol(loader::driver(true), c"cuDevicePrimaryCtxGetState");
    let (retain, release) = (real(Entry::PrimaryRetain), real(Entry::PrimaryRelease));
    if state == 0 || retain == 0 || release == 0 {
        return None;
    }
    let (mut flags, mut active, mut primary) = (0, 0, 0);
    // SAFETY: the driver's functions of these names have these types; locals to fill; the
    // reference that is taken is given back.
    unsafe {
        let state = std::mem::transmute::<usize, State>(state);
        if state(device, &raw mut flags, &raw mut active) != SUCCESS || active == 0 {
            return None;
        }
        let retain = std::mem::transmute::<usize, Retain>(retain);
        if retain(&raw mut primary, device) != SUCCESS {
            return None;
        }
        std::mem::transmute::<usize, Release>(release)(device);
    }
    Some(primary)
}

/// Ends the pool of a context that is about to go.
pub fn end_context(context: Handle) {
    crate::hooks::stream::context_ends(context);
    crate::hooks::capture::context_ends(context);
    let found = places().iter().position(|p| p.context == context && context != 0);
    match found {
        Some(device) => end_device(device as Device),
        None => thread::forget_all(),
    }
}

/// Ends the pool in a device's primary context, which is about to go.
pub fn end_primary(device: Device) {
    crate::hooks::stream::primary_ends(device);
    if let Some(context) = primary_of(device) {
        crate::hooks::capture::context_ends(context);
    }
    let primary = places().get(device as usize).is_some_and(|p| p.primary && p.context != 0);
    if primary {
        end_device(device);
    } else {
        thread::forget_all();
    }
}

fn end_device(device: Device) {
    let Some(api) = pool::api() else { return };
    let (context, pool) = match places().get_mut(device as usize) {
        Some(place) => {
            // Nobody makes a pool in what is ending.
            place.refused = true;
            (std::mem::take(&mut place.context), place.pool)
        }
        None => return,
    };
    thread::forget_all();
    ANY_ENDED.store(true, Ordering::Release);
    crate::hooks::capture::pool_ends(api, pool, device);
    within(context, || {
        type Synchronize = unsafe extern "C" fn() -> Result;
        let wait = loader::symbol(loader::driver(true), c"cuCtxSynchronize");
        if wait != 0 {
            // SAFETY: the driver's function of this name has this type. An error means that the
            // context has failed; nothing runs in it then.
            unsafe { std::mem::transmute::<usize, Synchronize>(wait)() };
        }
    });
    crate::ipc::device_ends(device);
    // SAFETY: a number. The device has been waited for.
    let status = thread::with(|t| t.inside(|| unsafe { (api.device_reset)(device) }));
    if status != pool::OK && status != pool::FORKED && status != pool::SHUT_DOWN {
        static SAID: AtomicBool = AtomicBool::new(false);
        let text = format!("device {device} is reset under its pool: {}", api.why());
        loader::say_once(&SAID, &text);
    }
    if let Some(place) = places().get_mut(device as usize) {
        // The default memory pool outlives the context, and who reaches it.
        let Place { references, pool_peers, .. } = *place;
        *place = Place { references, pool_peers, ..NOWHERE };
    }
    crate::ipc::device_ended(device);
    thread::forget_all();
}

/// The program took a reference on a primary context.
pub fn retained(device: Device) {
    if let Some(place) = places().get_mut(device as usize) {
        place.references += 1;
    }
}

/// The program gives a reference back. Answers whether it was its last: the pool's own does not
/// keep the context alive then.
pub fn releases(device: Device) -> bool {
    places().get_mut(device as usize).is_some_and(|place| {
        place.references = place.references.saturating_sub(1);
        place.references == 0
    })
}

/// By which of the program's calls a device reaches another's memory.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Said {
    /// `cuCtxEnablePeerAccess`.
    Context,
    /// `cuMemPoolSetAccess` of the default memory pool.
    MemoryPool,
}

/// Memory of the device in `owner` becomes accessible to `peer`, or no more, as contexts have it.
pub fn set_peer(owner: Handle, peer: Device, access: bool) -> pool::Status {
    device_of(owner).map_or(pool::OK, |device| set_reach(device, peer, access, Said::Context))
}

/// Memory of a device becomes accessible to `peer`, or no more on that account. What is said before
/// the pool is made holds from its start. Refused, nothing changes.
pub fn set_reach(device: Device, peer: Device, access: bool, said: Said) -> pool::Status {
    let mut places = places();
    let Some(place) = places.get_mut(device as usize) else { return pool::OK };
    let bit = 1u64 << (peer as u32 & 63);
    let before = (place.peers, place.pool_peers);
    let set = if said == Said::Context { &mut place.peers } else { &mut place.pool_peers };
    *set = if access { *set | bit } else { *set & !bit };
    let reached = (before.0 | before.1) & bit != 0;
    let reaches = (place.peers | place.pool_peers) & bit != 0;
    let place = *place;
    drop(places);
    // Given again is done again: the pool may have refused when it was made.
    let changes = place.context != 0 && (access || reached != reaches);
    let (Some(api), true) = (pool::api(), changes) else { return pool::OK };
    let change = if reaches { api.enable_peer } else { api.disable_peer };
    // SAFETY: numbers only.
    let mut status = thread::with(|t| t.inside(|| unsafe { change(place.pool, peer) }));
    if !reaches && status == pool::INVALID_ARGUMENT {
        // It is no peer of the pool's: that refused it.
        status = pool::OK;
    }
    if status != pool::OK
        && let Some(place) = self::places().get_mut(device as usize)
    {
        (place.peers, place.pool_peers) = before;
    }
    status
}

/// Access to the default memory pool becomes what it was, as soon as no capture is open.
pub fn put_reach_back(device: Device, peer: Device, access: bool) {
    if set_reach(device, peer, access, Said::MemoryPool) != pool::BUSY {
        return;
    }
    if let Some(place) = places().get_mut(device as usize) {
        let bit = 1u64 << (peer as u32 & 63);
        place.pool_peers |= bit;
        place.owed |= bit;
        ANY_OWED.store(true, Ordering::Release);
    }
    if !crate::hooks::capture::any_open() {
        enable_owed();
    }
}

/// No capture is open: pools' memory is opened to peers that had to wait.
pub fn enable_owed() {
    let Some(api) = pool::api().filter(|_| ANY_OWED.swap(false, Ordering::AcqRel)) else { return };
    let mut owed = Vec::new();
    for place in places().iter_mut().filter(|place| place.context != 0) {
        let reach = std::mem::take(&mut place.owed) & (place.peers | place.pool_peers);
        owed.extend((0..64).filter(|peer| reach >> peer & 1 != 0).map(|peer| (place.pool, peer)));
    }
    for (pool, peer) in owed {
        // SAFETY: numbers only. Refused: the peer's accesses fail as without Forebay.
        let status = thread::with(|t| t.inside(|| unsafe { (api.enable_peer)(pool, peer) }));
        if status == pool::BUSY
            && let Some(place) = places().iter_mut().find(|p| p.context != 0 && p.pool == pool)
        {
            place.owed |= 1 << peer;
            ANY_OWED.store(true, Ordering::Release);
        }
    }
}

/// Whether a device was given access to the memory of another's default memory pool.
pub fn reaches_pool(owner: Device, peer: Device) -> bool {
    let places = places();
    places.get(owner as usize).is_some_and(|p| p.pool_peers >> (peer as u32 & 63) & 1 != 0)
}

/// The program chose a memory pool for a device's stream-ordered memory.
pub fn set_memory_pool(device: Device, is_default: bool) {
    let mut places = places();
    if let Some(place) = places.get_mut(device as usize) {
        place.own_memory_pool = !is_default;
    }
    let any = places.iter().any(|place| place.own_memory_pool);
    OWN_MEMORY_POOLS.store(any, Ordering::Release);
}

/// Whether the current device's stream-ordered memory comes from the program's own choice.
pub fn has_own_memory_pool() -> bool {
    current().is_some_and(|(_, device)| {
        places().get(device as usize).is_some_and(|place| place.own_memory_pool)
    })
}

/// The pool of the current context, if it has been made.
pub fn made() -> Option<usize> {
    let (context, device) = current()?;
    let places = places();
    let place = places.get(device as usize)?;
    (place.context == context).then_some(place.pool)
}

/// Any pool that has been made.
pub fn any() -> Option<usize> {
    places().iter().find(|p| p.context != 0).map(|p| p.pool)
}

/// The context that a pool lives in.
pub fn context_of(pool: usize) -> Option<Handle> {
    places().iter().find(|p| p.context != 0 && p.pool == pool).map(|p| p.context)
}

/// The context that the program works in on a device, as far as that is known: its pool's, else
/// the primary one if it exists.
pub fn context_of_device(device: Device) -> Option<Handle> {
    let of_pool = places().get(device as usize).map(|place| place.context);
    of_pool.filter(|context| *context != 0).or_else(|| primary_of(device))
}

/// The device that a pool is of.
pub fn device_of_pool(pool: usize) -> Option<Device> {
    let at = places().iter().position(|p| p.context != 0 && p.pool == pool)?;
    Device::try_from(at).ok()
}

/// Gives idle memory of all pools back to the devices. Whether any went back.
pub fn trim_all() -> bool {
    let Some(api) = pool::api() else { return false };
    let pools: Vec<usize> = places().iter().filter(|p| p.context != 0).map(|p| p.pool).collect();
    let mut any = false;
    for pool in pools {
        let mut released = 0;
        // SAFETY: a local to fill.
        let status =
            thread::with(|t| t.inside(|| unsafe { (api.pool_trim)(pool, 0, &raw mut released) }));
        any |= status == pool::OK && released > 0;
    }
    any
}

/// The driver has allocated at `address`, perhaps where a pool was.
pub fn driver_allocated(address: u64) {
    if ANY_ENDED.load(Ordering::Acquire) {
        let mut own = DRIVERS_OWN.lock().unwrap_or_else(PoisonError::into_inner);
        own.get_or_insert_default().insert(address);
    }
}

/// Whether an address of an ended pool is the driver's by now; it is about to be freed.
pub fn driver_frees(address: u64) -> bool {
    let mut own = DRIVERS_OWN.lock().unwrap_or_else(PoisonError::into_inner);
    own.as_mut().is_some_and(|own| own.remove(&address))
}
