//! Allocating and freeing in stream order: the pools, joined with streams and memory.
//!
//! Owns no state. Promises that a pool's lock is never held while memory changes. Cost: that of
//! the pools, of a queued item, and, for new memory, of an allocation.

use std::sync::{Arc, MutexGuard, PoisonError};

use super::bytes::{self, Rows};
use super::graphmem::{self, Reserved};
use super::pool::{Offer, Pools, StreamOrder};
use super::{Action, Body, Code, Engine, Kind, Range, State, Uid, Work, code};

/// What new memory is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Use {
    /// A pool.
    Pool,
    /// An allocation node of a graph.
    Node,
}

/// `CUDA_ERROR_OUT_OF_MEMORY`.
const OUT_OF_MEMORY: Code = 2;
/// The kind of misuse.
const OUT_OF_ORDER: &str = "pool memory out of stream order";

impl State {
    /// The order of a stream's next item.
    pub(crate) fn order_of(&self, uid: Uid) -> StreamOrder<'_> {
        StreamOrder { uid, state: self, behind: self.needed(&self.would_wait_for(uid)) }
    }
}

impl Engine {
    pub(crate) fn pools(&self) -> MutexGuard<'_, Pools> {
        self.pools.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Allocates from a pool in a stream's order. `fresh` makes new memory of so many bytes, or, if
    /// it is told so, takes addresses for an allocation node of a graph: in a captured stream.
    pub fn pool_alloc(
        self: &Arc<Self>,
        uid: Uid,
        pool: u64,
        bytes: u64,
        fresh: impl Fn(u64, Use) -> Result<u64, Code>,
    ) -> Result<u64, Code> {
        let mut state = self.lock();
        if state.captured(uid)? {
            drop(state);
            let device = self.pool_device(pool)?;
            return self.capture_alloc(uid, || {
                fresh(bytes, Use::Node).map(|at| Reserved { at, len: bytes, device })
            });
        }
        state.implicit(uid)?;
        let offer = self.pools().offer(pool, bytes, &state.order_of(uid))?;
        drop(state);
        let (at, dep) = match offer {
            Offer::Reuse(at, dep) => (at, dep),
            Offer::Fresh(len) => (self.grow(pool, len, |len| fresh(len, Use::Pool))?, None),
            Offer::Full => return Err(OUT_OF_MEMORY),
        };
        let len = bytes.next_multiple_of(super::pool::UNIT);
        self.pools().take(pool, at, len, bytes);
        let me = self.me.clone();
        let poison = self.poison;
        let body: Body = Arc::new(move |view| {
            if let Some(engine) = me.upgrade() {
                engine.pools().begin(at);
            }
            if let Some(byte) = poison {
                // SAFETY: the block is this pool's and given to nobody else until it is freed;
                // blocks are given back to the device only once they are free.
                unsafe { bytes::fill(view, at, 0, Rows::one(bytes), &[byte]) };
            }
            Ok(())
        });
        let mut state = self.lock();
        let action = ordered("cuMemAllocAsync", Kind::MemAlloc, body);
        let point = state.push(uid, action, dep.into_iter().collect(), self.now_us(), 1.0);
        self.pools().set_born(at, Some(point));
        drop(state);
        self.start_idler();
        Ok(at)
    }

    /// New memory; when the device is full, after giving back what all pools hold in vain.
    fn grow(
        &self,
        pool: u64,
        len: u64,
        fresh: impl Fn(u64) -> Result<u64, Code>,
    ) -> Result<u64, Code> {
        match fresh(len) {
            Err(OUT_OF_MEMORY) => {
                self.pool_trim(pool, 0)?;
                fresh(len)
            }
            done => done,
        }
    }

    /// Frees a pool's or a graph's block in a stream's order: none if the address is neither's. In
    /// a captured stream only a graph's can be freed, by a node: 1 for all else.
    pub fn pool_free(&self, uid: Uid, at: u64) -> Option<Result<(), Code>> {
        let mut state = self.lock();
        match state.captured(uid) {
            Ok(false) => {}
            Ok(true) => {
                drop(state);
                return Some(self.capture_free(uid, at));
            }
            Err(code) => return Some(Err(code)),
        }
        if let Some(freeable) = self.graph_freeable(at, "cuMemFreeAsync") {
            let done = freeable.and_then(|()| state.implicit(uid));
            return Some(done.map(|()| self.graph_free_later(state, uid, at)));
        }
        if !self.pools().owns(at) {
            return None;
        }
        if let Err(code) = state.implicit(uid) {
            return Some(Err(code));
        }
        let Some(len) = self.pools().leave(at, "cuMemFreeAsync") else {
            drop(state);
            self.report("double free", format!("cuMemFreeAsync of {at:#x}, freed before"));
            return Some(Err(code::INVALID_VALUE));
        };
        let range = Range { start: at, len, device: 0, copy: false };
        let unordered = state.unordered_use(uid, &range);
        let me = self.me.clone();
        let body: Body = Arc::new(move |_| {
            if let Some(engine) = me.upgrade() {
                engine.pools().end(at);
            }
            Ok(())
        });
        let action = ordered("cuMemFreeAsync", Kind::MemFree, body);
        let point = state.push(uid, action, Vec::new(), self.now_us(), 1.0);
        self.pools().set_freed(at, Some(point));
        drop(state);
        self.start_idler();
        if let Some(other) = unordered {
            self.report(OUT_OF_ORDER, format!("{at:#x} freed while {other} is not ordered"));
        }
        Some(Ok(()))
    }

    /// Gives free memory of a pool back to the device, down to `keep` bytes.
    pub fn pool_trim(&self, pool: u64, keep: u64) -> Result<(), Code> {
        let gone = {
            let state = self.lock();
            let mut pools = self.pools();
            pools.pool(pool)?;
            pools.trim(pool, keep, &|point| state.passed(point))
        };
        gone.into_iter().for_each(|at| self.memory.free(at));
        Ok(())
    }

    /// What every wait does: gives back what pools hold above their thresholds.
    pub(crate) fn pools_settle(&self) {
        let gone = {
            let state = self.lock();
            self.pools().settle(&|point| state.passed(point))
        };
        gone.into_iter().for_each(|at| self.memory.free(at));
        self.graph_memory_settle();
    }

    /// A pool's block has been freed by `cuMemFree`.
    pub fn pool_forget(&self, at: u64) {
        self.pools().forget(at);
    }

    /// What is wrong with work that is queued on memory of pools or graphs: a kind of misuse, and
    /// a sentence.
    pub(crate) fn check_order(
        &self,
        state: &State,
        uid: Uid,
        work: &Work,
    ) -> Option<(&'static str, String)> {
        let ranges = || work.reads.iter().chain(&work.writes);
        let of_graphs = ranges().any(|r| self.graph_memory().near(r));
        if !of_graphs && !ranges().any(|r| self.pools().near(r)) {
            return None;
        }
        let order = state.order_of(uid);
        let wrong = match of_graphs {
            true => ranges().find_map(|r| self.graph_memory().misused(r, &order)),
            false => ranges().find_map(|r| self.pools().misused(r, &order)),
        };
        let kind = if of_graphs { graphmem::OUT_OF_ORDER } else { OUT_OF_ORDER };
        wrong.map(|why| (kind, format!("{}: {why}", work.label)))
    }
}

fn ordered(label: &'static str, kind: Kind, body: Body) -> Action {
    Action::Work(Work { label, kind, reads: Vec::new(), writes: Vec::new(), body })
}

/// Pools by handle: thin, since callers hold no lock of the engine.
impl Engine {
    /// Makes a device's default pool, once.
    pub fn pool_default(&self, handle: u64, device: i32) {
        let mut pools = self.pools();
        if pools.default_of(device).is_none() {
            pools.add(handle, device, 0, true);
        }
    }

    /// Makes a pool with a handle of the region that starts at `base`.
    pub fn pool_create(&self, base: u64, device: i32, max: u64) -> u64 {
        // Default pools have the first handles of the region.
        const FIRST: u64 = 0x1_0000;
        let handle = base + FIRST + self.lock().fresh() * 0x40;
        self.pools().add(handle, device, max, false);
        handle
    }

    /// Destroys a pool; not a default one.
    pub fn pool_destroy(&self, pool: u64) -> Result<(), Code> {
        self.pools().destroy(pool)?;
        self.pools_settle();
        Ok(())
    }

    /// The device of a pool's memory.
    pub fn pool_device(&self, pool: u64) -> Result<i32, Code> {
        self.pools().pool(pool).map(|p| p.device)
    }

    /// The current pool of a device, if it has one yet.
    pub fn pool_current(&self, device: i32) -> Option<u64> {
        self.pools().current_of(device)
    }

    /// Makes a pool of the device its current one.
    pub fn pool_set_current(&self, device: i32, pool: u64) -> Result<(), Code> {
        self.pools().set_current(device, pool)
    }

    /// An attribute of a pool.
    pub fn pool_get(&self, pool: u64, attribute: u32) -> Result<u64, Code> {
        self.pools().get(pool, attribute)
    }

    /// Sets an attribute of a pool.
    pub fn pool_set(&self, pool: u64, attribute: u32, value: u64) -> Result<(), Code> {
        self.pools().set(pool, attribute, value)
    }

    /// Notes what another device may do with a pool's memory.
    pub fn pool_open(&self, pool: u64, device: i32, flags: u32) -> Result<(), Code> {
        self.pools().pool(pool)?.access.insert(device, flags);
        Ok(())
    }

    /// What a device may do with a pool's memory.
    pub fn pool_access(&self, pool: u64, device: i32) -> Result<u32, Code> {
        const ALL: u32 = 3;
        let mut pools = self.pools();
        let pool = pools.pool(pool)?;
        let given = pool.access.get(&device).copied().unwrap_or(0);
        Ok(if pool.device == device { ALL } else { given })
    }
}
