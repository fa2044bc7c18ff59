//! The process: its pools, threads and drivers, from first use to the end.
//!
//! Owns the table of pools by number, the list of thread caches, and the state of the world
//! (not begun, running, forked, shut down). The registry's lock is the outermost; the hot path
//! and refills never take it.
//!
//! Promises: nothing happens at load; a child forked after first use gets
//! [`Status::Forked`] before any lock is touched; a destroyed pool's number serves no other
//! until 65,534 more have been made, so stale handles are told.

use super::arena::Arena;
use super::cache::{self, Entry, LaneCache, ThreadCache};
use super::core::{CacheRef, Core};
use super::devices::{self, default_pool, give_back, retry_given};
use super::hot::{SYNC_STREAM, slot_in_table};
use super::world::{self, begin, check_world, no_memory};
use super::{HANDLE_SHIFT, Settings, Shared, invalid_pool, keeper, report};
use crate::base::sync::atomic::{AtomicPtr, Ordering};
use crate::base::tls;
use crate::config::FreeMode;
use crate::driver::Driver;
use crate::error::{Error, Result, Status};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

const POOLS_MAX: usize = 1 << 16;

static POOLS: [AtomicPtr<Shared>; POOLS_MAX] =
    [const { AtomicPtr::new(std::ptr::null_mut()) }; POOLS_MAX];
static REGISTRY: Mutex<Registry> = Mutex::new(Registry::new());

struct Registry {
    threads: Vec<ThreadRef>,
    arena: Option<Arena>,
    spare: Vec<&'static Shared>,
    next: u64,
    live: Vec<u64>,
    ranges: Vec<Range>,
    stale: VecDeque<(usize, usize)>,
}

#[derive(Clone, Copy)]
struct Range {
    base: usize,
    bytes: usize,
    id: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
struct ThreadRef(*mut ThreadCache);
// SAFETY: a name only; touching the cache follows the rules of room `cache`.
unsafe impl Send for ThreadRef {}

impl Registry {
    const fn new() -> Registry {
        Registry {
            threads: Vec::new(),
            arena: None,
            spare: Vec::new(),
            next: 1,
            live: Vec::new(),
            ranges: Vec::new(),
            stale: VecDeque::new(),
        }
    }

    fn arena(&mut self) -> &mut Arena {
        self.arena.get_or_insert_with(Arena::default)
    }
}

fn registry() -> MutexGuard<'static, Registry> {
    REGISTRY.lock().unwrap_or_else(PoisonError::into_inner)
}

// ---- threads -----------------------------------------------------------------------------

/// This thread's cache with its hot path open, made at the thread's first operation. Under a
/// suspendable tag the hot path stays closed.
pub fn enrol() -> Result<*mut ThreadCache> {
    // Read before the world is checked: a shutdown in between makes it stale at once.
    let epoch = cache::EPOCH.load(Ordering::Acquire);
    check_world()?;
    begin()?;
    let mut registry = registry();
    let mut cache = cache::current();
    if cache::is_first(cache) {
        cache = registry.arena().thread().ok_or_else(no_memory)?;
        let key = world::exit_key();
        // SAFETY: the key was created in `begin`; the value is the cache's address.
        if unsafe { libc::pthread_setspecific(key, cache.cast()) } != 0 {
            // SAFETY: just made, known to nobody.
            unsafe { registry.arena().give_thread(cache) };
            return Err(no_memory());
        }
        registry.threads.push(ThreadRef(cache));
        tls::set(cache.cast());
    }
    if super::loss::any_lost() {
        forget_lost(&mut registry, cache);
    }
    // SAFETY: this thread's own registered cache; the word is an atomic.
    unsafe {
        // Blocks of a suspendable tag come from other places than a thread's caches.
        let apart = super::tagged::is_declared((*cache).tag);
        (*cache).epoch.store(if apart { 0 } else { epoch }, Ordering::Release);
    }
    Ok(cache)
}

/// Empties this thread's caches of pools whose context is gone, before its hot path opens.
fn forget_lost(registry: &mut Registry, cache: *mut ThreadCache) {
    // SAFETY: the registry is locked, and the caches are this thread's own.
    unsafe {
        let thread = &mut *cache;
        let lanes = &mut *thread.lanes;
        let lost = |lane: *mut LaneCache| (*lane).pool.lost.load(Ordering::Acquire);
        let gone: Vec<_> = lanes.iter().copied().filter(|&lane| lost(lane)).collect();
        lanes.retain(|lane| !gone.contains(lane));
        for lane in gone {
            forget_entries(thread, lane);
            drop_lane(registry, lane);
        }
    }
}

/// Sets the tag of this thread's blocks from now on; answers the old one.
pub fn set_tag(tag: u32) -> Result<u32> {
    let thread = enrol()?;
    // SAFETY: this thread's own cache; the owner alone uses the field, and the epoch is an atomic.
    unsafe {
        let old = std::mem::replace(&mut (*thread).tag, tag);
        if super::tagged::is_declared(tag) {
            (*thread).epoch.store(0, Ordering::Release);
        }
        Ok(old)
    }
}

/// A thread ends: everything it cached goes back.
///
/// # Safety
/// Called by the C library with the value that `enrol` set.
pub unsafe extern "C" fn thread_exit(value: *mut libc::c_void) {
    let result = std::panic::catch_unwind(|| {
        let world = check_world();
        if matches!(&world, Err(e) if e.status() == Status::Forked) {
            return;
        }
        let cache: *mut ThreadCache = value.cast();
        tls::set(tls::first());
        let mut registry = registry();
        // SAFETY: the registry is locked and the cache is in its list; its owner is here.
        unsafe {
            cache::close_hot_path(cache);
            let lanes = std::mem::take(&mut *(*cache).lanes);
            for lane in lanes {
                drop_lane(&mut registry, lane);
            }
            registry.threads.retain(|t| t.0 != cache);
            registry.arena().give_thread(cache);
        }
    });
    if result.is_err() {
        eprintln!("forebay: a panic at thread exit was caught; the thread's cache is lost");
    }
}

/// Empties a lane cache into its pool and frees it.
///
/// # Safety
/// The registry is locked, the cache's owner is stopped (or is the caller) and forgets it.
unsafe fn drop_lane(registry: &mut Registry, lane: *mut LaneCache) {
    // SAFETY: as promised; the pool's core is locked while its cache is touched.
    unsafe {
        let shared = (*lane).pool;
        if let Some(core) = shared.core.lock().as_deref_mut() {
            core.remove_cache(&mut *lane);
        }
        registry.arena().give_lane(lane);
    }
}

/// The lane cache of this thread for (pool, stream), made if need be, entered in the
/// thread's table, with the pool it belongs to.
pub(super) fn lane_cache(
    thread: *mut ThreadCache,
    pool: u64,
    stream: u64,
) -> Result<(*mut LaneCache, &'static Shared)> {
    super::core::check_stream(stream)?;
    let key = pool ^ stream;
    let id = if pool == 0 { default_pool()? } else { pool_number(pool)? };
    let shared = self::pool(id)?;
    if shared.lost.load(Ordering::Acquire) {
        return Err(super::loss::lost());
    }
    // FOREBAY_FREE=stream: the program promises the default stream's order.
    let follows_default = stream == SYNC_STREAM && shared.free_mode() == FreeMode::Stream;
    let asked = stream;
    let stream = if follows_default { 0 } else { stream };
    let mut registry = registry();
    let true_key = (id << HANDLE_SHIFT) ^ stream;
    // SAFETY: this thread's own registered cache, the registry is locked.
    let known = unsafe {
        let lanes = &*(*thread).lanes;
        lanes.iter().copied().find(|&l| (*l).key == true_key)
    };
    let lane = match known {
        Some(lane) => lane,
        None => new_lane(&mut registry, thread, shared, id, true_key, stream)?,
    };
    // SAFETY: as above. The table is read by the owner only, and this thread is the owner;
    // `forget_lanes` writes it with the registry locked and the owner stopped.
    unsafe {
        (*thread).table[slot_in_table(key)] = Entry { key, lane };
        (*thread).last = Entry { key, lane };
        if pool == 0 && asked == SYNC_STREAM {
            (*thread).sync = lane;
        }
    }
    Ok((lane, shared))
}

fn new_lane(
    registry: &mut Registry,
    thread: *mut ThreadCache,
    shared: &'static Shared,
    id: u64,
    key: u64,
    stream: u64,
) -> Result<*mut LaneCache> {
    let arena = registry.arena();
    shared.with_core(id, |core| {
        core.check_context()?;
        let lane = core.lane(key, stream)?;
        let view = core.view(lane);
        let cache = arena.lane(thread, shared, view, key).ok_or_else(no_memory)?;
        core.caches.push(CacheRef(cache));
        // SAFETY: just made; known to this thread and the locked core only.
        unsafe {
            if stream == SYNC_STREAM {
                (*cache).open_bytes_max = (core.settings.cache / 8).clamp(1 << 20, 16 << 20);
                // Where each free waits for the device, or none is ever cached, no batch is kept.
                if !core.settings.always_slow() && core.settings.free == FreeMode::Deferred {
                    (*cache).open_batch();
                }
                if core.caches_nothing() {
                    (*cache).close_open();
                }
            }
            (*(*thread).lanes).push(cache);
        }
        Ok(cache)
    })?
}

/// Stops all threads and removes the lane caches that `which` names. False: threads cannot
/// be stopped on this kernel.
fn forget_lanes(registry: &mut Registry, which: impl Fn(&LaneCache) -> bool) -> bool {
    if !stop_threads(registry) {
        return false;
    }
    let threads = registry.threads.clone();
    for thread in threads {
        // SAFETY: the registry is locked and every hot path is closed and awaited; an owner
        // in a slow path checks `owner` and `key` under the core's lock before use.
        unsafe {
            let thread = &mut *thread.0;
            let lanes = &mut *thread.lanes;
            let gone: Vec<_> = lanes.iter().copied().filter(|&l| which(&*l)).collect();
            lanes.retain(|l| !gone.contains(l));
            for lane in gone {
                forget_entries(thread, lane);
                drop_lane(registry, lane);
            }
        }
    }
    true
}

fn forget_entries(thread: &mut ThreadCache, lane: *mut LaneCache) {
    let empty = Entry { key: 0, lane: std::ptr::null_mut() };
    for entry in thread.table.iter_mut().chain([&mut thread.last]) {
        if entry.lane == lane {
            *entry = empty;
        }
    }
    if thread.sync == lane {
        thread.sync = std::ptr::null_mut();
    }
}

/// Closes every thread's hot path and awaits operations under way.
fn stop_threads(registry: &Registry) -> bool {
    // SAFETY: the registry is locked and lists these caches.
    unsafe {
        for thread in &registry.threads {
            cache::close_hot_path(thread.0);
        }
        if !cache::barrier() {
            return false;
        }
        for thread in &registry.threads {
            cache::await_owner(thread.0);
        }
    }
    true
}

/// The revoke rung: empties every thread's caches of this pool. False: they held nothing.
pub fn revoke(shared: &'static Shared, id: u64) -> Result<bool> {
    let registry = registry();
    if !stop_threads(&registry) {
        tracing::warn!("membarrier is not available: other threads' caches stay as they are");
        return Ok(false);
    }
    shared.with_core(id, |core| {
        let mut any = false;
        for cache in core.caches.clone() {
            // SAFETY: all owners are stopped, and the core is locked.
            let cache = unsafe { &mut *cache.0 };
            any |= core.flush_cache(cache);
            core.revoke_grants(cache);
        }
        let flushed = core.flush_depots();
        core.settle() | any | flushed
    })
}

// ---- pools -------------------------------------------------------------------------------

/// The number in a handle.
pub fn pool_number(handle: u64) -> Result<u64> {
    if handle & ((1 << HANDLE_SHIFT) - 1) != 0 || handle == 0 {
        return Err(invalid_pool());
    }
    Ok(handle >> HANDLE_SHIFT)
}

/// The pool with this number.
pub fn pool(id: u64) -> Result<&'static Shared> {
    check_world()?;
    let slot = POOLS.get(id as usize).ok_or_else(invalid_pool)?;
    let shared = slot.load(Ordering::Acquire);
    // SAFETY: null or leaked by `create`, never unmapped.
    unsafe { shared.as_ref() }.ok_or_else(invalid_pool)
}

/// All pools' numbers.
pub fn live_pools() -> Vec<u64> {
    registry().live.clone()
}

/// Makes a pool. Everything that fails is undone.
pub fn create(driver: Arc<dyn Driver>, settings: Settings) -> Result<u64> {
    check_world()?;
    begin()?;
    let free_mode = settings.free;
    retry_given();
    let mut core = super::start::new_core(Arc::clone(&driver), settings)?;
    let mut registry = registry();
    let id = match next_number(&mut registry) {
        Ok(id) => id,
        Err(error) => {
            drop(registry);
            give_back(core.vmem);
            return Err(error);
        }
    };
    core.id = id;
    super::capture::begin_open_captures(&mut core);
    for space in core.vmem.spaces() {
        registry.ranges.push(Range { base: space.base, bytes: space.bytes, id });
        let (base, bytes) = (space.base, space.bytes);
        registry.stale.retain(|&(b, n)| b + n <= base || base + bytes <= b);
    }
    let shared = registry.spare.pop().unwrap_or_else(|| Box::leak(Box::default()));
    let fuse = Arc::clone(&core.fuse);
    shared.lost.store(false, Ordering::Relaxed);
    *shared.core.lock() = Some(Box::new(core));
    *shared.hooks.lock().unwrap_or_else(PoisonError::into_inner) = super::Hooks::default();
    shared.forget_plan_blocks();
    shared.free_mode.store(free_mode as u8, Ordering::Relaxed);
    shared.id.store(id, Ordering::Release);
    POOLS[id as usize].store(std::ptr::from_ref(shared).cast_mut(), Ordering::Release);
    registry.live.push(id);
    // Before anybody can end the pool: its end forgets what was watched.
    keeper::watch(id);
    drop(registry);
    super::loss::watch(&fuse, shared, id);
    tracing::info!(id, backend = driver.backend(), "pool created");
    Ok(id)
}

fn next_number(registry: &mut Registry) -> Result<u64> {
    for _ in 0..POOLS_MAX {
        let id = registry.next;
        // The highest number is no pool's: keys with it are lanes that no stream has.
        registry.next = if id + 2 >= POOLS_MAX as u64 { 1 } else { id + 1 };
        if POOLS[id as usize].load(Ordering::Relaxed).is_null() {
            return Ok(id);
        }
    }
    Err(Error::new(Status::Busy, "65,534 pools exist at once; destroy some"))
}

/// Ends a pool: threads forget it, live blocks are reported as configured, memory goes back
/// to the driver. On failure part of it may be gone: the pool takes no other call then, and
/// this one may be repeated.
pub fn destroy(id: u64) -> Result<()> {
    pool(id)?;
    if devices::is_own(id) {
        return Err(Error::new(
            Status::InvalidArgument,
            "the default pool lives as long as the process; use forebay_shutdown to end",
        ));
    }
    end(id)
}

/// [`destroy`] for any pool, the process's own too.
pub(super) fn end(id: u64) -> Result<()> {
    retry_given();
    let shared = pool(id)?;
    // A repeated end has nothing to report: its pool takes no calls.
    let ready = |core: &mut Core| {
        core.without_captures().and_then(|()| core.check_settled()).map(|()| core.settings.clone())
    };
    if let Ok(ready) = shared.with_core(id, ready) {
        let settings = ready?;
        if settings.wipes() {
            // What overwrites freed memory was queued by the pool; the caller cannot wait for it.
            match super::control::synchronize(shared, id) {
                Err(error) if error.status() != Status::ContextLost => return Err(error),
                _ => {}
            }
        }
        report::print_leaks(id, settings.leaks, "pool destruction");
    }
    let mut registry = registry();
    let here = std::ptr::from_ref(shared);
    if !forget_lanes(&mut registry, |lane| std::ptr::eq(lane.pool, here)) {
        return Err(Error::new(
            Status::Unsupported,
            "this kernel has no membarrier: a pool cannot be destroyed while threads run",
        ));
    }
    let mut guard = shared.core.lock();
    let Some(core) = guard.as_deref_mut().filter(|core| core.id == id) else {
        return Err(invalid_pool());
    };
    core.without_captures()?;
    core.check_settled()?;
    keeper::forget(id);
    let captures = core.open_captures();
    core.ending = true;
    registry.live.retain(|&p| p != id);
    let ended = core.lanes.close(&*core.driver.0).and_then(|()| core.close_memory());
    // With the context gone the driver is not called, and nothing is left to give back.
    if let Err(error) = ended
        && !core.fuse.is_blown()
    {
        drop(guard);
        return Err(Error::new(
            Status::Driver,
            format!("the pool's memory could not be given back ({error}); destroy it again"),
        ));
    }
    *guard = None;
    shared.id.store(0, Ordering::Release);
    drop(guard);
    POOLS[id as usize].store(std::ptr::null_mut(), Ordering::Release);
    enter_later(&mut registry);
    let gone: Vec<Range> = registry.ranges.iter().copied().filter(|r| r.id == id).collect();
    registry.ranges.retain(|r| r.id != id);
    for range in gone {
        registry.stale.push_back((range.base, range.bytes));
    }
    while registry.stale.len() > 1024 {
        registry.stale.pop_front();
    }
    registry.spare.push(shared);
    drop(registry);
    super::capture::pool_ended(&captures);
    tracing::info!(id, "pool destroyed");
    Ok(())
}

/// Another reservation of pool `id`. Called with the core locked, so the registry may be
/// locked by a thread that waits for that core: the range is kept for the next look.
pub fn add_range(id: u64, base: usize, bytes: usize) {
    let mut later = LATER.lock().unwrap_or_else(PoisonError::into_inner);
    later.push(Range { base, bytes, id });
}

/// Ranges that wait to be entered into the registry.
static LATER: Mutex<Vec<Range>> = Mutex::new(Vec::new());

fn enter_later(registry: &mut Registry) {
    let mut later = LATER.lock().unwrap_or_else(PoisonError::into_inner);
    registry.ranges.append(&mut later);
}

/// The pool that holds an address.
pub fn pool_of(address: usize) -> Result<u64> {
    check_world()?;
    let mut registry = registry();
    enter_later(&mut registry);
    let inside = |base: usize, bytes: usize| address.wrapping_sub(base) < bytes;
    if let Some(range) = registry.ranges.iter().find(|r| inside(r.base, r.bytes)) {
        return Ok(range.id);
    }
    if registry.stale.iter().any(|&(base, bytes)| inside(base, bytes)) {
        return Err(Error::new(
            Status::StalePointer,
            format!("address {address:#x} belonged to a pool that has been destroyed"),
        ));
    }
    Err(Error::new(
        Status::NotOwned,
        format!("address {address:#x} lies in no memory of Forebay's"),
    ))
}

/// Ends a stream's lanes in every pool that knows it, before the stream is destroyed.
pub fn retire_stream(stream: u64) -> Result<()> {
    check_world()?;
    if stream == SYNC_STREAM {
        return Err(super::core::unknown_stream(stream));
    }
    super::core::check_stream(stream)?;
    let mut registry = registry();
    let pools = registry.live.clone();
    let keys: Vec<u64> = pools.iter().map(|id| (id << HANDLE_SHIFT) ^ stream).collect();
    if !forget_lanes(&mut registry, |lane| keys.contains(&lane.key)) {
        return Err(Error::new(Status::Unsupported, "this kernel has no membarrier"));
    }
    for id in pools {
        pool(id)?.with_core(id, |core| core.retire((id << HANDLE_SHIFT) ^ stream))??;
    }
    Ok(())
}

/// Runs `f` with every thread stopped and the core of pool `id` locked; hot paths stay
/// closed until their owners enrol again. For changes that the hot path must see.
pub fn with_threads_stopped<R>(id: u64, f: impl FnOnce(&mut Core) -> R) -> Result<R> {
    let registry = registry();
    if !stop_threads(&registry) {
        return Err(Error::new(Status::Unsupported, "this kernel has no membarrier"));
    }
    pool(id)?.with_core(id, |core| {
        for cache in core.caches.clone() {
            // SAFETY: all owners are stopped, and the core is locked.
            core.flush_cache(unsafe { &mut *cache.0 });
        }
        f(core)
    })
}

/// [`with_threads_stopped`], with every cache of the pool without capacity as well, and no free
/// into an open batch but by the lock: what may be cached again `f` decides.
pub fn with_caches_closed<R>(id: u64, f: impl FnOnce(&mut Core) -> R) -> Result<R> {
    with_threads_stopped(id, |core| {
        for cache in core.caches.clone() {
            // SAFETY: all owners are stopped, and the core is locked.
            let cache = unsafe { &mut *cache.0 };
            core.revoke_grants(cache);
            cache.close_open();
        }
        core.flush_depots();
        f(core)
    })
}

/// Removes all threads' caches that `which` names, then runs `f` on the core of pool `id`; no
/// thread can make such a cache anew in between.
pub fn without_caches<R>(
    id: u64,
    which: impl Fn(&LaneCache) -> bool,
    f: impl FnOnce(&mut Core) -> R,
) -> Result<R> {
    let shared = pool(id)?;
    let mut registry = registry();
    if !forget_lanes(&mut registry, which) {
        return Err(Error::new(Status::Unsupported, "this kernel has no membarrier"));
    }
    shared.with_core(id, f)
}
