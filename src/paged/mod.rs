//! Memory behind the paged KV cache: blocks that a pool backs, growing and shrinking while running.
//!
//! [`kv`](crate::kv) keeps the books and touches no memory; this room gives its blocks a place. A
//! [`KvMemory`] holds a cache and one region of a pool (room `pool::regions`) that is long enough
//! for the most blocks that there can be, so that **no address ever moves**; pages stand behind
//! the blocks that there are. [`ContiguousKv`] is the other way to hold a cache: a range of
//! addresses for each sequence, for attention kernels that know no blocks. What is promised:
//!
//! - A group grows only when its memory is there, and gives memory back only when nobody holds the
//!   blocks and their fences have passed. Its pages are the pool's: they come out of its limit and
//!   its stock and go back there; in its accounts they are `region_bytes`.
//! - A failing driver call changes nothing that is in use, and what could not be given back is
//!   tried again by [`KvMemory::poll`], and by the pool's keeper.
//! - Fences ([`KvMemory::fence`]) are numbers of one order: events of streams, or a counter of the
//!   caller's. Nothing waits for the device.
//! - Tables reach the device by deltas through pinned buffers that are never written while a copy
//!   from them is in flight ([`tables`]).
//!
//! All calls may come from any thread. Locks, outermost first: one of a memory's own, the cache's,
//! the pool's. The pool's callbacks run under a memory's own lock where a call of its own maps or
//! unmaps, or staging is made: calls of that memory that need the lock are refused there, and those
//! of another memory while another thread's call has its lock ([`MemoryError::Again`]). Cost: calls
//! of the cache itself cost what they cost there; growing and shrinking costs the driver's calls.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use forebay::config::Config;
//! use forebay::driver::host::{HostDriver, HostOptions};
//! use forebay::kv::{self, Content, Element, Geometry, Open, Order, Tokens};
//! use forebay::paged::{KvMemory, MemoryConfig};
//! use forebay::pool::{Pool, Settings};
//! use std::sync::Arc;
//!
//! let device = 64 << 20;
//! let driver = HostDriver::new(HostOptions { total_bytes: device, ..HostOptions::default() })?;
//! let settings = Settings::resolve(&Config::default(), device as u64, true);
//! let pool = Pool::with_driver(Arc::new(driver), settings)?;
//!
//! let llama3_8b = Geometry {
//!     layers: 32,
//!     heads: 8,
//!     key_size: 128,
//!     value_size: 128,
//!     block_tokens: 16,
//!     element: Element::Bf16,
//!     content: Content::Attention { window: 0 },
//!     order: Order::BlockOuter,
//! };
//! let config = MemoryConfig { kv: kv::Config::new(llama3_8b, 1000), initial: vec![4] };
//! let memory = KvMemory::new(&pool, config)?;
//! assert_eq!(pool.stats()?.region_bytes, 4 * (2 << 20));
//!
//! let view = memory.view(0)?;
//! assert_eq!((view.offset, view.layer_stride, view.block_stride), (0, 64 << 10, 2 << 20));
//! memory.resize(0, 8)?;
//! assert_eq!(memory.view(0)?, view, "addresses do not move");
//!
//! let seq = memory.cache().open(Open::default())?;
//! memory.cache().append(seq, Tokens::Count(100))?;
//! // ... work that reads the blocks is queued on stream 0 ...
//! let fence = memory.fence(&[0])?;
//! memory.cache().free(&[seq], fence)?;
//! memory.resize(0, 2)?;
//! memory.poll()?;
//! assert_eq!(pool.stats()?.region_bytes, 2 * (2 << 20));
//! # Ok(())
//! # }
//! ```

mod backing;
pub mod contiguous;
mod copies;
mod error;
mod fences;
pub mod handles;
mod lock;
mod places;
mod staging;
pub mod tables;

pub use contiguous::ContiguousKv;
pub use error::{MemoryError, Result};

use crate::base::sync::SpinLock;
use crate::error::{Error, Status};
use crate::kv::{self, Fence, KvCache, Layout};
use crate::pool::keeper::{self, Tended};
use crate::pool::regions::Region;
use crate::pool::{Pool, control, registry, world};
use backing::Backing;
use copies::Unfinished;
use fences::Fences;
use lock::Turns;
use places::Place;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tables::Tables;

/// What a cache with memory is made with.
#[derive(Clone, Debug)]
pub struct MemoryConfig {
    /// The cache. Its groups' blocks are the most that there can be: they cost address space and
    /// the books' tables, not device memory.
    pub kv: kv::Config,
    /// Blocks of each group at the beginning, 2 at least: the null block has memory too, since
    /// kernels read it where a table says so.
    pub initial: Vec<u32>,
}

/// Where a group's elements lie. Layer `l` of block `b` starts `offset + l * layer_stride +
/// b * block_stride` bytes from `base`; the layout tells the rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct View {
    /// The region's first address; never changes.
    pub base: usize,
    /// From there to the group's first element.
    pub offset: u64,
    /// From a layer to the next, within a block.
    pub layer_stride: u64,
    /// From a block to the next, within a layer.
    pub block_stride: u64,
    /// Strides within a layer of a block, for the most blocks that there can be.
    pub layout: Layout,
}

/// A group's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backed {
    /// Blocks that may be given out.
    pub open: u32,
    /// Blocks that have memory: more than `open` while a group drains. Pages that could not be
    /// given back are in `bytes` alone.
    pub backed: u32,
    /// Bytes of its pages.
    pub bytes: u64,
}

/// A KV cache whose blocks have memory. See the room's page. Dropping it gives the memory back:
/// the caller knows that no work uses it any more. Where [`KvMemory::await_copies`] would be
/// refused it is kept until the next memory is made or dropped after the capture's end. In a forked
/// child every call that takes a lock of a memory's own is refused.
#[derive(Debug)]
pub struct KvMemory(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    pool: Pool,
    cache: Arc<KvCache>,
    /// Before the region: copies into and out of it are awaited first.
    tables: Turns<Tables>,
    region: Region,
    places: Vec<Place>,
    backing: Turns<Vec<Backing>>,
    fences: Mutex<Fences>,
    copies: Mutex<Unfinished>,
    /// What has been passed on to the cache.
    passed: SpinLock<Fence>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl KvMemory {
    /// A cache with memory of `pool` behind its first blocks. The pool must live as long.
    ///
    /// # Errors
    /// A configuration that makes no sense; no address space, or no memory below the pool's limit
    /// for the first blocks: nothing is kept then.
    pub fn new(pool: &Pool, config: MemoryConfig) -> Result<KvMemory> {
        let cache = KvCache::new(config.kv)?;
        KvMemory::over(pool, Arc::new(cache), &config.initial)
    }

    /// As [`KvMemory::new`] for a cache that others hold too and nobody has used: its blocks have
    /// memory from now on, as many of each group as `initial` says.
    ///
    /// # Errors
    /// As [`KvMemory::new`]; also for a cache in use, or behind which memory stands.
    pub fn over(pool: &Pool, cache: Arc<KvCache>, initial: &[u32]) -> Result<KvMemory> {
        drop_kept();
        let pool = Pool::from_number(pool.id())?;
        let groups = cache.groups();
        if initial.len() != groups.len() {
            return Err(MemoryError::Invalid("each group needs a number of blocks to begin with"));
        }
        let granule = pool.page_bytes()? as u64;
        let mut places = Vec::new();
        let mut end = 0u64;
        for (at, group) in (0u32..).zip(&groups) {
            let layout = *cache.layout(at).ok_or(NO_GROUP)?;
            let place = Place::new(end, &group.geometry, layout);
            let bytes = place.bytes(granule).and_then(|bytes| end.checked_add(bytes));
            end = bytes.ok_or(TOO_LONG)?;
            places.push(place);
        }
        let region = pool.region(usize::try_from(end).map_err(|_| TOO_LONG)?)?;
        let passed = cache.begin_memory(initial)?;
        // From here on its drop ends the memory.
        let inner = Inner {
            tables: Turns::default(),
            backing: Turns::new(vec![Backing::default(); groups.len()]),
            fences: Mutex::new(Fences::above(passed)),
            copies: Mutex::default(),
            passed: SpinLock::new(passed),
            pool,
            cache,
            region,
            places,
        };
        inner.begin(initial)?;
        let inner = Arc::new(inner);
        let tended: Arc<dyn Tended> = Arc::clone(&inner) as Arc<dyn Tended>;
        keeper::tend_too(inner.pool.id(), &tended);
        Ok(KvMemory(inner))
    }

    /// The books. Two of its calls are this room's: [`KvCache::pass`] ([`KvMemory::poll`] makes
    /// it) and [`KvCache::resize`] ([`KvMemory::resize`]); fences given to the others are those of
    /// [`KvMemory::fence`].
    pub fn cache(&self) -> &Arc<KvCache> {
        &self.0.cache
    }

    /// Where a group's elements lie.
    pub fn view(&self, group: u32) -> Result<View> {
        let place = self.0.places.get(group as usize).ok_or(NO_GROUP)?;
        let Layout { layer_stride, block_stride, .. } = place.layout;
        let (base, layout) = (self.0.region.base(), place.layout);
        Ok(View { base, offset: place.offset, layer_stride, block_stride, layout })
    }

    /// A fence behind all work queued so far on these streams, 1 to 64. Streams that capture a
    /// graph are refused.
    pub fn fence(&self, streams: &[u64]) -> Result<Fence> {
        world::check_world()?;
        self.0.fence_behind(streams)
    }

    /// A fence that passes when the caller's counter is at `value` or above ([`KvMemory::reach`]).
    pub fn fence_at(&self, value: u64) -> Result<Fence> {
        world::check_world()?;
        let fence = locked(&self.0.fences).at_counter(value);
        self.0.cache.fence_made(fence);
        Ok(fence)
    }

    /// The caller's counter is at `value`: the work that it stands for has ended.
    pub fn reach(&self, value: u64) -> Result<()> {
        world::check_world()?;
        locked(&self.0.fences).reach(value);
        Ok(())
    }

    /// Looks which fences have passed, tells the cache, and goes on with what waits for that:
    /// groups that shrink. Answers the highest fence that has passed. Waits neither for the device
    /// nor for a call that grows or shrinks a group meanwhile: what is to be given back then, the
    /// next poll gives back.
    ///
    /// # Errors
    /// A driver call's failure; what was done before it stands, and the next call goes on.
    pub fn poll(&self) -> Result<Fence> {
        self.0.poll()
    }

    /// Waits for what calls of this memory have queued: copies of failed calls, and of tables. A
    /// drop does it too, but cannot refuse.
    ///
    /// # Errors
    /// [`MemoryError::Again`] where some of it has no event, its stream is gone, and a graph
    /// capture forbids to wait for the device. What else cannot be waited for is logged by the
    /// drop.
    pub fn await_copies(&self) -> Result<()> {
        world::check_world()?;
        self.0.await_copies()?;
        self.0.tables.lock()?.settle()
    }
}

impl Inner {
    fn fence_behind(&self, streams: &[u64]) -> Result<Fence> {
        let fence = locked(&self.fences).behind(&self.pool, streams)?;
        self.cache.fence_made(fence);
        Ok(fence)
    }

    fn poll(&self) -> Result<Fence> {
        world::check_world()?;
        let asked = self.pass();
        let released = self.release_all();
        let fence = asked?;
        released?;
        Ok(fence)
    }

    /// Looks which fences have passed and tells the cache.
    fn pass(&self) -> Result<Fence> {
        let mut fences = locked(&self.fences);
        let (fence, asked) = fences.poll();
        // With the fences locked: numbers reach the cache in their order.
        let mut passed = self.passed.lock();
        if fence > *passed {
            *passed = fence;
            self.cache.pass_behind(fence);
        }
        asked.map(|()| fence)
    }
}

impl Drop for KvMemory {
    fn drop(&mut self) {
        if matches!(self.await_copies(), Err(MemoryError::Again(_))) {
            tracing::warn!("a KV cache's memory is kept until a graph capture has ended");
            locked(&KEPT).push(Arc::clone(&self.0));
            return;
        }
        leave_keeper(&self.0);
        drop_kept();
    }
}

/// Memories that were dropped while a graph capture forbade to wait for their copies.
static KEPT: Mutex<Vec<Arc<Inner>>> = Mutex::new(Vec::new());

/// Ends those whose copies can be waited for by now.
fn drop_kept() {
    if world::check_world().is_err() {
        return;
    }
    let kept = std::mem::take(&mut *locked(&KEPT));
    // Each is dropped with the lock let go, and goes back there if it is too early still.
    kept.into_iter().map(KvMemory).for_each(drop);
}

const IN_CAPTURE: MemoryError = MemoryError::Again(
    "a graph capture is open, and work of a stream that is gone is to be waited for: end it first",
);

/// Waits for all work of the device, that of streams that are gone included.
///
/// # Errors
/// [`MemoryError::Again`] while a graph capture is open, which the wait would end.
fn wait_for_device(pool: &Pool) -> Result<()> {
    match control::synchronize(registry::pool(pool.id())?, pool.id())? {
        true => Ok(()),
        false => Err(IN_CAPTURE),
    }
}

/// Waits for a stream's work that has no event: as [`wait_for_device`] where it is none any more.
fn wait_for_stream(pool: &Pool, stream: u64) -> Result<()> {
    if pool.captures_open()? {
        return Err(IN_CAPTURE);
    }
    pool.stream_synchronize(stream).or_else(|_| wait_for_device(pool))
}

/// Has the keeper look after something no more, and waits for a look under way: what its owner
/// drops has ended then.
fn leave_keeper<T: Tended + 'static>(inner: &Arc<T>) {
    // In a forked child there is no keeper, and a lock may be held for ever.
    if world::check_world().is_err() {
        return;
    }
    let tended: Arc<dyn Tended> = Arc::clone(inner) as Arc<dyn Tended>;
    keeper::tend_no_more(&tended);
    drop(tended);
    for _ in 0..PATIENCE {
        if Arc::strong_count(inner) == 1 {
            return;
        }
        std::thread::sleep(Duration::from_micros(100));
    }
    tracing::warn!("the keeper still looks after memory that is dropped; it ends it");
}

/// Looks of 100 us at the keeper that an end waits for at most.
const PATIENCE: u32 = 20_000;

impl Drop for Inner {
    fn drop(&mut self) {
        // In a forked child others' threads may have held the locks.
        if world::check_world().is_err_and(|error| error.status() == Status::Forked) {
            return;
        }
        self.end_copies();
        // No work is left, as the caller knows: whatever waited for a fence waits no more.
        self.cache.pass_behind(locked(&self.fences).last());
        self.cache.end_memory();
    }
}

impl Tended for Inner {
    fn tend(&self) -> Option<Duration> {
        if let Err(error) = self.poll() {
            tracing::debug!(%error, "a KV cache's memory is looked at again later");
        }
        self.is_draining().then_some(Duration::from_millis(5))
    }
}

const NO_GROUP: MemoryError = MemoryError::Invalid("the cache has no such group");
const TOO_LONG: MemoryError =
    MemoryError::Invalid("the groups' bytes do not fit in one range of addresses");

/// The status of a pool that refuses for want of memory now.
fn is_short(error: &Error) -> bool {
    matches!(error.status(), Status::OutOfMemory | Status::MappingLimit)
}
