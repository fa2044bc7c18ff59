//! The pool: heap, slabs, lanes and pages composed into one allocator.
//!
//! - [`hot`]: what usually happens, without a lock;
//! - [`arena`]: where caches live;
//! - [`cache`]: thread and lane caches, and who may touch them;
//! - [`slow`]: everything else an allocation or a free may need;
//! - [`core`]: the locked heart; [`slots`]: its refill and spill of magazines; [`settle`]: what
//!   waits for fences; [`grow`]: placement with its driver calls;
//! - [`ladder`]: what is tried, in order, before an allocation fails;
//! - [`world`], [`devices`], [`registry`], [`start`]: the process: its state, drivers, pools and
//!   threads; a pool's beginning;
//! - [`control`]: limits, trim, pins, streams' end; [`capture`]: graph captures;
//! - [`blocks`]: what interposers ask: the block around an address, known streams;
//! - [`tagged`]: tags with granules of their own; [`suspend`], [`resume`]: their memory taken away
//!   and brought back; [`copier`]: contents on their way to host memory and back;
//! - [`regions`]: address ranges that others fill with the pool's pages; [`events`]: points in
//!   streams' work;
//! - [`share`]: peers, exports and imports; [`loss`]: a context that is gone;
//! - [`stats`], [`report`]: the accounts, leaks, what an out-of-memory error says;
//! - [`buffers`]: sets of buffers of one size;
//! - [`record`]: what a program asks, written down; [`order`]: points in streams' orders;
//!   [`evict`]: blocks that are handed out piece by piece by rooms above, and given up under
//!   pressure;
//! - [`keeper`]: the thread that settles, trims and recovers in the background; [`ahead`]: what it
//!   maps before it is asked for.
//!
//! Locks, outermost first: the registry, a pool's core, a pool's hooks. User callbacks run with no
//! lock
//! held (but for the
//! unmap callback, which runs inside the core's). Cost: see [`hot`] for hits; a miss takes the
//! core's lock once.

pub mod ahead;
pub mod arena;
pub mod blocks;
pub mod buffers;
pub mod cache;
pub mod capture;
pub mod control;
pub mod copier;
pub mod core;
pub mod devices;
pub mod events;
pub mod evict;
pub mod grow;
pub mod hot;
pub mod keeper;
pub mod ladder;
pub mod loss;
pub mod order;
pub mod record;
pub mod regions;
pub mod registry;
pub mod report;
pub mod resume;
#[cfg(all(test, shuttle))]
mod schedules;
pub mod settle;
pub mod share;
pub mod slots;
pub mod slow;
pub mod start;
pub mod stats;
pub mod suspend;
pub mod tagged;
pub mod window;
pub mod wipes;
pub mod world;

use crate::base::sync::SpinLock;
use crate::base::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use crate::config::{Config, DebugChecks, FreeMode, Leaks, Move, Reuse};
use crate::driver::Driver;
use crate::error::{Error, Result, Status};
use std::ffi::c_void;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

/// How far a pool's number is shifted in its handle, which is never a real address.
pub const HANDLE_SHIFT: u32 = 48;

/// A pool's limits and policy in bytes, fixed at creation save the two limits.
#[derive(Clone, Debug)]
#[allow(missing_docs, reason = "each field is the setting of the same name, resolved to bytes")]
pub struct Settings {
    pub limit: u64,
    pub soft_limit: Option<u64>,
    pub reserve: u64,
    pub release_threshold: u64,
    pub decay: Duration,
    pub cache: u64,
    pub oom_wait: Duration,
    pub keeper: bool,
    pub keeper_budget_ms: u32,
    pub ahead: u64,
    pub leaks: Leaks,
    pub backtrace: bool,
    pub debug: DebugChecks,
    pub scrub: bool,
    pub moves: Move,
    pub free: FreeMode,
    pub reuse: Reuse,
}

impl Settings {
    /// What `config` says for a device of `total` bytes.
    pub fn resolve(config: &Config, total: u64, host: bool) -> Settings {
        let limit = config.limit_bytes(total, host);
        Settings {
            limit,
            soft_limit: config.soft_limit_bytes(total),
            reserve: config.reserve_bytes(total),
            release_threshold: config.release_threshold_bytes(total),
            decay: config.decay,
            cache: config.cache_bytes(total, limit),
            oom_wait: Duration::from_millis(u64::from(config.oom_wait_ms)),
            keeper: config.keeper,
            keeper_budget_ms: config.keeper_budget_ms,
            ahead: config.ahead.resolve(total),
            leaks: config.leaks,
            backtrace: config.backtrace,
            debug: config.debug,
            scrub: config.scrub,
            moves: config.r#move,
            free: config.free,
            reuse: config.reuse,
        }
    }

    /// Whether freed memory is overwritten: by work that the pool queues itself.
    pub fn wipes(&self) -> bool {
        self.overwrites_with().is_some()
    }

    /// What freed memory is overwritten with; `None`: it keeps what it held.
    pub fn overwrites_with(&self) -> Option<u8> {
        match (self.debug.poison, self.scrub) {
            (true, _) => Some(wipes::POISON),
            (false, true) => Some(0),
            (false, false) => None,
        }
    }

    /// Whether each block gets a record: when and where it was allocated.
    pub fn keeps_records(&self) -> bool {
        self.backtrace || self.leaks == Leaks::Full
    }

    /// Whether every operation must take the slow path: no slot is cached then.
    pub fn always_slow(&self) -> bool {
        let debug = self.debug;
        self.keeps_records() || self.wipes() || debug.streams || debug.guard
    }
}

/// Called before memory loses its place: address and bytes.
pub type OnUnmap = unsafe extern "C" fn(*mut c_void, *mut c_void, usize);
/// Called before an allocation of so many bytes fails; true: something was freed, try again.
pub type OnOutOfMemory = unsafe extern "C" fn(*mut c_void, usize) -> bool;

/// The owner's callbacks with their context words.
#[derive(Clone, Copy, Default, Debug)]
pub struct Hooks {
    /// See [`OnUnmap`].
    pub on_unmap: Option<(OnUnmap, usize)>,
    /// See [`OnOutOfMemory`].
    pub on_out_of_memory: Option<(OnOutOfMemory, usize)>,
}

/// A pool as threads share it. Never unmapped: after the pool's end it serves another.
pub struct Shared {
    /// The pool's number now; 0 when it serves none.
    pub id: AtomicU64,
    /// The heart; `None` when the pool has ended.
    pub core: SpinLock<Option<Box<core::Core>>>,
    /// Callbacks.
    pub hooks: Mutex<Hooks>,
    /// `FOREBAY_FREE` of this pool, as its number, for a look without the lock.
    pub free_mode: AtomicU8,
    /// Whether the pool's context is gone.
    pub lost: AtomicBool,
    /// Owners of plan blocks, which may be given up when memory is short.
    pub plan_blocks: Mutex<Vec<Weak<dyn evict::Evictable>>>,
}

impl Shared {
    /// Serves no pool yet.
    pub fn new() -> Shared {
        Shared {
            id: AtomicU64::new(0),
            core: SpinLock::new(None),
            hooks: Mutex::new(Hooks::default()),
            free_mode: AtomicU8::new(0),
            lost: AtomicBool::new(false),
            plan_blocks: Mutex::new(Vec::new()),
        }
    }

    /// What `forebay_free` means in this pool.
    pub fn free_mode(&self) -> FreeMode {
        match self.free_mode.load(Ordering::Relaxed) {
            0 => FreeMode::Deferred,
            1 => FreeMode::Sync,
            _ => FreeMode::Stream,
        }
    }

    /// Runs `f` on the locked core of pool `id`.
    pub fn with_core<R>(&self, id: u64, f: impl FnOnce(&mut core::Core) -> R) -> Result<R> {
        let mut guard = self.core.lock();
        match self.open_core(&mut guard, id) {
            Some(core) => Ok(f(core)),
            None => Err(invalid_pool()),
        }
    }

    /// The core behind the lock, if it is still that of pool `id` and the pool is not ending.
    #[inline(always)]
    fn open_core<'a>(
        &self,
        guard: &'a mut Option<Box<core::Core>>,
        id: u64,
    ) -> Option<&'a mut core::Core> {
        let same = self.id.load(Ordering::Relaxed) == id;
        guard.as_deref_mut().filter(|core| same && !core.ending)
    }

    /// The callbacks now.
    pub fn hooks(&self) -> Hooks {
        *self.hooks.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

impl Default for Shared {
    fn default() -> Shared {
        Shared::new()
    }
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("id", &self.id).finish_non_exhaustive()
    }
}

/// The error for a handle that names no pool.
#[cold]
pub fn invalid_pool() -> Error {
    Error::new(
        Status::InvalidPool,
        "this handle names no pool: it was never created, or it has been destroyed",
    )
}

/// A pool of one device's memory; the Rust side of `forebay_pool_t`. Destroyed when
/// dropped, unless it is the default pool. All methods may be called from any thread.
#[derive(Debug)]
pub struct Pool {
    id: u64,
    owned: bool,
}

impl Pool {
    /// A new pool over a driver. Reserves address space and fills the reservoir.
    pub fn with_driver(driver: Arc<dyn Driver>, settings: Settings) -> Result<Pool> {
        let id = registry::create(driver, settings)?;
        Ok(Pool { id, owned: true })
    }

    /// The default pool, as the environment configures it, made at first use.
    pub fn default_pool() -> Result<Pool> {
        Ok(Pool { id: devices::default_pool()?, owned: false })
    }

    /// The pool with this number, not owned.
    pub fn from_number(id: u64) -> Result<Pool> {
        registry::pool(id)?;
        Ok(Pool { id, owned: false })
    }

    /// The pool behind a C handle, not owned.
    pub fn from_handle(handle: u64) -> Result<Pool> {
        if handle == 0 {
            return Pool::default_pool();
        }
        let id = handle >> HANDLE_SHIFT;
        if handle & ((1 << HANDLE_SHIFT) - 1) != 0 {
            return Err(invalid_pool());
        }
        registry::pool(id)?;
        Ok(Pool { id, owned: false })
    }

    /// The C handle; gives ownership away.
    pub fn into_handle(mut self) -> u64 {
        self.owned = false;
        self.handle()
    }

    /// The C handle.
    pub fn handle(&self) -> u64 {
        self.id << HANDLE_SHIFT
    }

    /// The pool's number.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Runs `f` on the locked core. For the pool's own rooms and tests; callbacks must not
    /// be made in it.
    pub fn with_core<R>(&self, f: impl FnOnce(&mut core::Core) -> R) -> Result<R> {
        registry::pool(self.id)?.with_core(self.id, f)
    }

    /// Allocates `bytes` for work on `stream`; the address is a multiple of 256 B. Size 0
    /// answers address 0, which may be freed.
    pub fn alloc(&self, bytes: usize, stream: u64) -> Result<usize> {
        self.alloc_aligned(bytes, 0, stream)
    }

    /// [`Pool::alloc`] at a multiple of `align` (0, or a power of two up to 2 MiB).
    pub fn alloc_aligned(&self, bytes: usize, align: usize, stream: u64) -> Result<usize> {
        let mut address: *mut c_void = std::ptr::null_mut();
        // SAFETY: `address` is a local pointer, valid for the write.
        let status = unsafe {
            if align == 0 {
                hot::alloc(self.handle(), &raw mut address, bytes, stream)
            } else {
                slow::alloc(self.handle(), &raw mut address, bytes, align, stream)
            }
        };
        if status == Status::Ok { Ok(address as usize) } else { Err(last(status)) }
    }

    /// Frees a block in `stream`'s order: later work on it may reuse the memory at once.
    pub fn dealloc(&self, address: usize, stream: u64) -> Result<()> {
        let status = if stream == hot::SYNC_STREAM {
            // Behind a fence, as `hot::free` does it; the magazines are for stream order.
            slow::dealloc(self.handle(), address, stream)
        } else {
            // SAFETY: any address is answered with an error, not a fault; the block is given up.
            unsafe { hot::dealloc(self.handle(), address as *mut c_void, stream) }
        };
        if status == Status::Ok { Ok(()) } else { Err(last(status)) }
    }
}

/// A block that is freed, in its stream's order, when dropped. Keeps no borrow of the
/// pool: one that outlives its pool is freed with it, and the drop then says so in the log.
#[derive(Debug)]
pub struct Buffer {
    pool: u64,
    address: usize,
    bytes: usize,
    stream: u64,
}

impl Pool {
    /// [`Pool::alloc`] as an owned buffer.
    pub fn buffer(&self, bytes: usize, stream: u64) -> Result<Buffer> {
        let address = self.alloc(bytes, stream)?;
        Ok(Buffer { pool: self.handle(), address, bytes, stream })
    }
}

impl Buffer {
    /// The first address; 0 for an empty buffer.
    pub fn address(&self) -> usize {
        self.address
    }

    /// The requested bytes.
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Whether nothing was requested.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// The stream in whose order the buffer will be freed.
    pub fn stream(&self) -> u64 {
        self.stream
    }

    /// Frees in `stream`'s order from now on; the caller has ordered it after all uses.
    pub fn set_stream(&mut self, stream: u64) {
        self.stream = stream;
    }

    /// Gives the block away: the caller frees it.
    pub fn into_address(mut self) -> usize {
        std::mem::take(&mut self.address)
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if self.address == 0 {
            return;
        }
        // SAFETY: any address is answered with an error, not a fault; the block is given up.
        let freed = unsafe { hot::dealloc(self.pool, self.address as *mut c_void, self.stream) };
        if freed != Status::Ok {
            tracing::warn!(status = freed.name(), "a buffer could not be freed");
        }
    }
}

/// The error behind a status that the hot path answered.
fn last(status: Status) -> Error {
    let text = crate::error::with_last(|m| m.to_string_lossy().into_owned());
    Error::new(status, text)
}

impl Drop for Pool {
    fn drop(&mut self) {
        if self.owned
            && let Err(error) = registry::destroy(self.id)
        {
            tracing::error!(%error, "a pool could not be destroyed");
        }
    }
}
