//! Memory pools: what is allocated and freed in stream order.
//!
//! Owns each pool's attributes and blocks, behind a leaf lock of its own. Promises that a block
//! may be touched by queued work only between its allocation's and its free's turn, that a freed
//! block goes to a later allocation only where CUDA lets it (the same stream; a stream that is
//! ordered behind the free; a free that is done; or by an order that the pool adds), and that
//! memory goes back to the device when somebody waits and more than the threshold is held. It
//! must not free memory itself: callers are told what to free. Cost: O(blocks of the pool) an
//! allocation.

use std::collections::{BTreeMap, VecDeque};

use super::{Code, Point, Range, Uid, code};

/// The unit of pool memory in bytes, and the alignment of every block.
pub const UNIT: u64 = 512;
/// What a pool is said to hold grows by this many bytes.
const CHUNK: u64 = 2 << 20;

/// `CU_MEMPOOL_ATTR_*`.
pub mod attribute {
    /// Reuse along event dependencies.
    pub const FOLLOW: u32 = 1;
    /// Reuse of frees that are done.
    pub const OPPORTUNISTIC: u32 = 2;
    /// Reuse by an order that the pool adds.
    pub const INTERNAL: u32 = 3;
    /// Bytes that are kept when somebody waits.
    pub const THRESHOLD: u32 = 4;
    /// Bytes held.
    pub const RESERVED: u32 = 5;
    /// Most bytes held.
    pub const RESERVED_HIGH: u32 = 6;
    /// Bytes in use.
    pub const USED: u32 = 7;
    /// Most bytes in use.
    pub const USED_HIGH: u32 = 8;
}

/// Where a block is in its life.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Stage {
    /// Allocated; its turn in stream order has not come.
    Waiting,
    /// In use.
    Live,
    /// Allocated and freed; the turn of neither has come.
    Both,
    /// Freed; the free's turn has not come.
    Leaving,
    /// Free.
    Free,
}

/// One use of a block, from an allocation to its free.
#[derive(Clone, Debug)]
struct Life {
    /// Bytes asked for.
    asked: u64,
    stage: Stage,
    /// The allocation's place in its stream.
    born: Option<Point>,
    /// The free's place in its stream.
    freed: Option<Point>,
    /// The call that freed it, for reports.
    by: &'static str,
}

/// One block of a pool.
#[derive(Clone, Debug)]
struct Block {
    pool: u64,
    /// Bytes of memory.
    len: u64,
    /// The life whose turn it is, or was last.
    now: Life,
    /// Lives that the program has begun and whose turn has not come: the block is given out
    /// again while its free is still queued.
    next: VecDeque<Life>,
}

impl Block {
    /// The life that the program knows of.
    fn last(&self) -> &Life {
        self.next.back().unwrap_or(&self.now)
    }

    fn last_mut(&mut self) -> &mut Life {
        self.next.back_mut().unwrap_or(&mut self.now)
    }

    /// Whether the program has it.
    fn in_use(&self) -> bool {
        matches!(self.last().stage, Stage::Waiting | Stage::Live)
    }
}

/// One pool.
#[derive(Clone, Debug)]
pub struct Pool {
    /// The device its memory lies in.
    pub device: i32,
    /// Most bytes it may hold; 0 for no limit.
    pub max: u64,
    /// The device's default pool, which cannot be destroyed.
    pub default: bool,
    destroyed: bool,
    flags: [bool; 3],
    threshold: u64,
    reserved_high: u64,
    used_high: u64,
    /// Rights of other devices.
    pub access: BTreeMap<i32, u32>,
}

/// How a request for memory is met.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Offer {
    /// This block, behind its free if there is a point.
    Reuse(u64, Option<Point>),
    /// New memory of this many bytes.
    Fresh(u64),
    /// The pool's limit.
    Full,
}

/// All pools and blocks.
#[derive(Default)]
pub(crate) struct Pools {
    pools: BTreeMap<u64, Pool>,
    blocks: BTreeMap<u64, Block>,
    default: BTreeMap<i32, u64>,
    current: BTreeMap<i32, u64>,
}

/// Whether the free of a block orders the asking stream behind it, and what to add if not.
pub(crate) trait Order {
    /// Whether the point is in the asking stream.
    fn same_stream(&self, point: Point) -> bool;
    /// Whether the point has been passed.
    fn passed(&self, point: Point) -> bool;
    /// Whether the asking stream's end comes behind the point.
    fn behind(&self, point: Point) -> bool;
}

impl Pools {
    pub fn add(&mut self, handle: u64, device: i32, max: u64, default: bool) {
        let pool = Pool {
            device,
            max,
            default,
            destroyed: false,
            flags: [true; 3],
            threshold: 0,
            reserved_high: 0,
            used_high: 0,
            access: BTreeMap::new(),
        };
        self.pools.insert(handle, pool);
        if default {
            self.default.insert(device, handle);
        }
    }

    pub fn pool(&mut self, handle: u64) -> Result<&mut Pool, Code> {
        self.pools.get_mut(&handle).filter(|p| !p.destroyed).ok_or(code::INVALID_VALUE)
    }

    pub fn default_of(&self, device: i32) -> Option<u64> {
        self.default.get(&device).copied()
    }

    pub fn current_of(&self, device: i32) -> Option<u64> {
        self.current.get(&device).copied().or_else(|| self.default_of(device))
    }

    pub fn set_current(&mut self, device: i32, handle: u64) -> Result<(), Code> {
        match self.pool(handle)?.device == device {
            true => {
                self.current.insert(device, handle);
                Ok(())
            }
            false => Err(code::INVALID_VALUE),
        }
    }

    fn of(&self, pool: u64) -> impl Iterator<Item = (&u64, &Block)> {
        self.blocks.iter().filter(move |(_, b)| b.pool == pool)
    }

    /// Bytes that a pool holds: large blocks in whole chunks, small ones together.
    pub fn reserved(&self, pool: u64) -> u64 {
        let (mut large, mut small) = (0, 0);
        for (_, block) in self.of(pool) {
            match block.len > CHUNK / 2 {
                true => large += block.len.next_multiple_of(CHUNK),
                false => small += block.len,
            }
        }
        large + small.next_multiple_of(CHUNK)
    }

    /// Bytes that are allocated and not freed.
    pub fn used(&self, pool: u64) -> u64 {
        let used = self.of(pool).filter(|(_, b)| b.in_use());
        used.map(|(_, b)| b.last().asked.next_multiple_of(UNIT)).sum()
    }

    /// How to meet a request: the shortest free block that suffices and wastes less than half,
    /// among those the stream may have; else new memory.
    pub fn offer(&mut self, handle: u64, bytes: u64, order: &dyn Order) -> Result<Offer, Code> {
        let [follow, opportunistic, internal] = self.pool(handle)?.flags;
        let len = bytes.checked_next_multiple_of(UNIT).ok_or(code::OUT_OF_MEMORY)?;
        let mut best: Option<(u64, u64, Option<Point>)> = None;
        for (at, block) in self.of(handle) {
            let fits = block.len >= len && block.len < len.saturating_mul(2).max(UNIT + 1);
            let (true, false, Some(point)) = (fits, block.in_use(), block.last().freed) else {
                continue;
            };
            let dep = if order.same_stream(point)
                || (opportunistic && order.passed(point))
                || (follow && !order.passed(point) && order.behind(point))
            {
                None
            } else if internal {
                Some(point)
            } else {
                continue;
            };
            if best.is_none_or(|(_, l, d)| (block.len, dep.is_some()) < (l, d.is_some())) {
                best = Some((*at, block.len, dep));
            }
        }
        if let Some((at, _, dep)) = best {
            return Ok(Offer::Reuse(at, dep));
        }
        let max = self.pool(handle)?.max;
        match max > 0 && self.reserved(handle) + len > max {
            true => Ok(Offer::Full),
            false => Ok(Offer::Fresh(len)),
        }
    }

    /// A block is given out; `born` follows once the allocation has its place.
    pub fn take(&mut self, handle: u64, at: u64, len: u64, asked: u64) {
        let life = Life { asked, stage: Stage::Waiting, born: None, freed: None, by: "" };
        match self.blocks.get_mut(&at) {
            Some(block) if block.now.stage == Stage::Free => block.now = life,
            Some(block) => block.next.push_back(life),
            None => {
                let block = Block { pool: handle, len, now: life, next: VecDeque::new() };
                self.blocks.insert(at, block);
            }
        }
        let (reserved, used) = (self.reserved(handle), self.used(handle));
        if let Some(pool) = self.pools.get_mut(&handle) {
            pool.reserved_high = pool.reserved_high.max(reserved);
            pool.used_high = pool.used_high.max(used);
        }
    }

    pub fn set_born(&mut self, at: u64, point: Option<Point>) {
        if let Some(block) = self.blocks.get_mut(&at) {
            block.last_mut().born = point;
        }
    }

    /// The allocation's turn has come.
    pub fn begin(&mut self, at: u64) {
        if let Some(block) = self.blocks.get_mut(&at) {
            block.now.stage = match block.now.stage {
                Stage::Waiting => Stage::Live,
                Stage::Both => Stage::Leaving,
                stage => stage,
            };
        }
    }

    /// A free is queued: the block's length, or none if it may not be freed.
    pub fn leave(&mut self, at: u64, by: &'static str) -> Option<u64> {
        let block = self.blocks.get_mut(&at)?;
        if !block.in_use() {
            return None;
        }
        let waits = !block.next.is_empty() || block.now.stage == Stage::Waiting;
        let life = block.last_mut();
        life.by = by;
        // A free queued before the allocation's turn must not look like one that is due.
        life.stage = if waits { Stage::Both } else { Stage::Leaving };
        Some(life.asked)
    }

    pub fn set_freed(&mut self, at: u64, point: Option<Point>) {
        if let Some(block) = self.blocks.get_mut(&at) {
            block.last_mut().freed = point;
        }
    }

    /// The free's turn has come: that of the next life, if there is one, begins.
    pub fn end(&mut self, at: u64) {
        if let Some(block) = self.blocks.get_mut(&at)
            && matches!(block.now.stage, Stage::Live | Stage::Leaving)
        {
            block.now.stage = Stage::Free;
            if let Some(next) = block.next.pop_front() {
                block.now = next;
            }
        }
    }

    /// Whether the address is a block's that is allocated and not freed.
    pub fn owns(&self, at: u64) -> bool {
        self.blocks.contains_key(&at)
    }

    /// A block that was freed outside of stream order is gone.
    pub fn forget(&mut self, at: u64) {
        self.blocks.remove(&at);
    }

    fn covering(&self, range: &Range) -> Option<(u64, &Block)> {
        let end = range.start.saturating_add(range.len);
        let (at, block) = self.blocks.range(..end).next_back()?;
        (range.start < at + block.len).then_some((*at, block))
    }

    /// Whether a range touches any block, free or not.
    pub fn near(&self, range: &Range) -> bool {
        self.covering(range).is_some()
    }

    /// Why an item that runs now may not touch a range, if it may not.
    pub fn denied(&self, range: &Range) -> Option<String> {
        let (at, block) = self.covering(range)?;
        let end = range.start.saturating_add(range.len);
        let Life { by, stage, asked, .. } = block.now;
        match stage {
            Stage::Waiting | Stage::Both => {
                Some(format!("pool memory {at:#x}: its allocation has not had its turn"))
            }
            Stage::Free => Some(format!("pool memory {at:#x}: freed by {by}, and that is done")),
            // Work before the free in stream order may still run.
            Stage::Live | Stage::Leaving if end <= at + asked => None,
            Stage::Live | Stage::Leaving => Some(format!("pool memory {at:#x} has {asked} bytes")),
        }
    }

    /// What is wrong with queueing work on a range now: it was freed before, or the work is not
    /// ordered behind the allocation.
    pub fn misused(&self, range: &Range, order: &dyn Order) -> Option<String> {
        let (at, block) = self.covering(range)?;
        let life = block.last();
        if !block.in_use() {
            return Some(format!("pool memory {at:#x} was freed before by {}", life.by));
        }
        let born = life.born?;
        let ordered = order.same_stream(born) || order.passed(born) || order.behind(born);
        (!ordered).then(|| format!("pool memory {at:#x}: no order behind its allocation"))
    }

    /// Blocks to give back so that a pool holds no more than `keep` bytes, as far as frees that
    /// are done allow; they are forgotten here.
    pub fn trim(&mut self, handle: u64, keep: u64, passed: &dyn Fn(Point) -> bool) -> Vec<u64> {
        let mut gone = Vec::new();
        while self.reserved(handle) > keep {
            let idle = |b: &Block| b.now.stage == Stage::Free && b.now.freed.is_none_or(passed);
            let found = self.of(handle).find(|(_, b)| idle(b)).map(|(at, _)| *at);
            let Some(at) = found else { break };
            let held = self.reserved(handle);
            let block = self.blocks.remove(&at);
            if self.reserved(handle) < keep
                && held - self.reserved(handle) > 0
                && let Some(block) = block
            {
                // It would fall below what is to be kept.
                self.blocks.insert(at, block);
                break;
            }
            gone.push(at);
        }
        gone
    }

    /// What a wait gives back: of every pool what is above its threshold, of destroyed ones all.
    pub fn settle(&mut self, passed: &dyn Fn(Point) -> bool) -> Vec<u64> {
        let all: Vec<(u64, u64)> = self
            .pools
            .iter()
            .map(|(h, p)| (*h, if p.destroyed { 0 } else { p.threshold }))
            .collect();
        let mut gone = Vec::new();
        for (handle, keep) in all {
            gone.extend(self.trim(handle, keep, passed));
            let empty = self.of(handle).next().is_none();
            if empty && self.pools.get(&handle).is_some_and(|p| p.destroyed) {
                self.pools.remove(&handle);
            }
        }
        gone
    }

    pub fn destroy(&mut self, handle: u64) -> Result<(), Code> {
        let pool = self.pool(handle)?;
        if pool.default {
            return Err(code::INVALID_VALUE);
        }
        pool.destroyed = true;
        self.current.retain(|_, h| *h != handle);
        Ok(())
    }

    /// An attribute's value.
    pub fn get(&mut self, handle: u64, attribute: u32) -> Result<u64, Code> {
        let (reserved, used) = (self.reserved(handle), self.used(handle));
        let pool = self.pool(handle)?;
        Ok(match attribute {
            1..=3 => u64::from(pool.flags[attribute as usize - 1]),
            attribute::THRESHOLD => pool.threshold,
            attribute::RESERVED => reserved,
            attribute::RESERVED_HIGH => pool.reserved_high,
            attribute::USED => used,
            attribute::USED_HIGH => pool.used_high,
            _ => return Err(code::INVALID_VALUE),
        })
    }

    /// Sets an attribute; high-water marks can only be reset, by 0.
    pub fn set(&mut self, handle: u64, attribute: u32, value: u64) -> Result<(), Code> {
        let (reserved, used) = (self.reserved(handle), self.used(handle));
        let pool = self.pool(handle)?;
        match (attribute, value) {
            (1..=3, _) => pool.flags[attribute as usize - 1] = value != 0,
            (attribute::THRESHOLD, _) => pool.threshold = value,
            (attribute::RESERVED_HIGH, 0) => pool.reserved_high = reserved,
            (attribute::USED_HIGH, 0) => pool.used_high = used,
            _ => return Err(code::INVALID_VALUE),
        }
        Ok(())
    }

    /// Live pools that the program made, and their blocks in use.
    pub fn counts(&self) -> (u64, u64) {
        let made = self.pools.values().filter(|p| !p.default && !p.destroyed).count();
        (made as u64, self.blocks.values().filter(|b| b.in_use()).count() as u64)
    }
}

/// The order between streams as the engine knows it, for one asking stream.
pub(crate) struct StreamOrder<'a> {
    pub uid: Uid,
    pub state: &'a super::State,
    /// For each queue, up to where the asking stream's end comes behind it.
    pub behind: BTreeMap<Uid, u64>,
}

impl Order for StreamOrder<'_> {
    fn same_stream(&self, point: Point) -> bool {
        point.uid == self.uid
    }

    fn passed(&self, point: Point) -> bool {
        self.state.passed(point)
    }

    fn behind(&self, point: Point) -> bool {
        self.behind.get(&point.uid).is_some_and(|seq| *seq >= point.seq)
    }
}
