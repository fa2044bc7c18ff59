//! Memory behind a KV cache's blocks: grown and shrunk, fenced, copied, its tables sent.

use super::kv_types::{KvFence, KvSeq, KvT};
use super::{PoolT, StreamT, check_size, list, null, put, read_sized, write_sized};
use crate::error::{Error, Result, Status};
use crate::kv::{self, Seq};
use crate::paged::handles::{MEMORIES, take_memory};
use crate::paged::tables::Table;
use crate::paged::{Backed, KvMemory as Memory};
use crate::pool::Pool;
use crate::pool::slow::guarded;
use std::ffi::c_void;

/// Memory behind a KV cache. Opaque; use [`KvMemoryT`].
pub struct KvMemory {
    _private: (),
}

/// The handle of memory behind a KV cache. NULL names none.
pub type KvMemoryT = *mut KvMemory;

/// A group's memory.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct KvBacked {
    /// sizeof of this structure, set by the caller.
    pub struct_size: usize,
    /// Bytes of its pages.
    pub bytes: u64,
    /// Blocks that may be given out.
    pub open: u32,
    /// Blocks that have memory: more than open while a group drains.
    pub backed: u32,
}

/// A table to be bound. Set what is unused to 0.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct KvTable {
    /// sizeof of this structure, set by the caller.
    pub struct_size: usize,
    /// The array of int32: device memory, or pinned host memory. It stays the caller's.
    pub array: *mut c_void,
    /// The group whose blocks it holds.
    pub group: u32,
    /// Its rows.
    pub rows: u32,
    /// Entries from a row to the next.
    pub stride: u32,
    /// Bytes of a staging buffer, a multiple of 4; 0: 64 KiB.
    pub staging_bytes: u32,
    /// Staging buffers at most; 0: enough for the array three times, 4 at least.
    pub staging_buffers: u32,
    /// 0.
    pub reserved: u32,
}

fn with(memory: KvMemoryT, f: impl FnOnce(&Memory) -> Result<()>) -> Status {
    guarded(|| f(&*MEMORIES.get(memory as u64)?))
}

/// Puts memory of a pool behind the first blocks of a cache that nobody has used. All addresses
/// are fixed from now on, for as many blocks as the cache's groups were made with; the calls of
/// forebay_kv_* go on working on the cache, save forebay_kv_pass(), whose work is
/// forebay_kv_memory_poll()'s now.
///
/// @param initial blocks of each group that have memory at first, 2 at least.
/// @param count the cache's groups.
/// @param memory receives the handle; NULL on failure.
/// @return FOREBAY_ERROR_OUT_OF_MEMORY: no address range, or no memory below the pool's limit;
/// FOREBAY_ERROR_UNSUPPORTED: the cache is in use, or the device has no virtual memory.
///
/// Thread-safe. End it with forebay_kv_memory_destroy(), before the cache and the pool.
///
/// # Safety
/// `initial` is valid for reads of `count` numbers; `memory` is NULL or valid for the write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_kv_memory_create(
    kv: KvT,
    pool: PoolT,
    initial: *const u32,
    count: usize,
    memory: *mut KvMemoryT,
) -> Status {
    guarded(|| {
        // SAFETY: as the caller promised.
        let initial = unsafe {
            put(memory, std::ptr::null_mut(), "the memory")?;
            list(initial, count, "the first blocks")?
        };
        let cache = kv::handles::share(kv as u64)?;
        let made = Memory::over(&Pool::from_handle(pool as u64)?, cache, initial)?;
        let number = MEMORIES.keep(made)?;
        // SAFETY: as above.
        unsafe { put(memory, number as KvMemoryT, "the memory") }
    })
}

/// Gives the memory back; the caller knows that no work uses it any more. Waits for copies of
/// tables in flight. The cache stays; its blocks have no memory.
///
/// The handle is an error from now on; the memory goes once other calls on it have ended, those of
/// other threads and a look of the pool's keeper, which may be after the answer: until then its
/// pages stay mapped and forebay_kv_destroy() answers FOREBAY_ERROR_BUSY.
///
/// Copies that a failed call had queued are waited for. Also after forebay_shutdown().
///
/// @return FOREBAY_ERROR_INVALID_ARGUMENT for a handle that names none; FOREBAY_ERROR_BUSY, with
/// nothing changed, while a graph capture is open and a copy that has no event is to be waited for,
/// or in a callback of the pool as forebay_kv_memory_resize() says.
///
/// Thread-safe.
#[unsafe(no_mangle)]
pub extern "C" fn forebay_kv_memory_destroy(memory: KvMemoryT) -> Status {
    guarded(|| take_memory(memory as u64).map(drop))
}

/// Makes the first `blocks` blocks of a group those that there are. A group that grows has its
/// memory when this returns. One that shrinks gives out nothing above from now on, and gives memory
/// back as far as blocks are nobody's and their fences have passed, the rest in
/// forebay_kv_memory_poll() or by the pool's keeper.
///
/// @param backed NULL, or receives how far that is.
/// @return FOREBAY_ERROR_OUT_OF_MEMORY, with nothing changed; FOREBAY_ERROR_INVALID_ARGUMENT for a
/// number of blocks that the group cannot have.
///
/// Thread-safe. Costs the driver's calls. The pool's out-of-memory callback may run inside;
/// calls of this memory that need its lock answer FOREBAY_ERROR_BUSY there, and so do those of
/// another memory while another thread's call has its lock.
///
/// # Safety
/// `backed` is NULL or valid for reads and writes of its struct_size.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_kv_memory_resize(
    memory: KvMemoryT,
    group: u32,
    blocks: u32,
    backed: *mut KvBacked,
) -> Status {
    with(memory, |memory| {
        if backed.is_null() {
            memory.resize(group, blocks)?;
            return Ok(());
        }
        // SAFETY: not null; the size is its first word, the caller's as promised.
        check_size("forebay_kv_backed", unsafe { backed.cast::<usize>().read() })?;
        let now = memory.resize(group, blocks)?;
        // SAFETY: as the caller promised.
        unsafe { tell(backed, now) }
    })
}

/// A group's memory now.
///
/// Thread-safe.
///
/// # Safety
/// `backed` is NULL or valid for reads and writes of its struct_size.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_kv_memory_backed(
    memory: KvMemoryT,
    group: u32,
    backed: *mut KvBacked,
) -> Status {
    // SAFETY: as the caller promised.
    with(memory, |memory| unsafe { tell(backed, memory.backed(group)?) })
}

/// # Safety
/// `to` is NULL or valid for reads and writes of its struct_size.
unsafe fn tell(to: *mut KvBacked, now: Backed) -> Result<()> {
    let Backed { open, backed, bytes } = now;
    // SAFETY: as promised.
    unsafe {
        write_sized(to, KvBacked { struct_size: 0, bytes, open, backed }, "forebay_kv_backed")
    }
}

/// Where a group's elements lie: `offset` bytes from `base` on, with the strides of
/// forebay_kv_get_layout(). Neither ever changes.
///
/// @param base NULL, or receives the first address of the memory of all groups.
/// @param offset NULL, or receives the bytes from there to the group's first element.
///
/// Thread-safe.
///
/// # Safety
/// `base` and `offset` are NULL or valid for the write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_kv_memory_view(
    memory: KvMemoryT,
    group: u32,
    base: *mut *mut c_void,
    offset: *mut u64,
) -> Status {
    with(memory, |memory| {
        let view = memory.view(group)?;
        if !base.is_null() {
            // SAFETY: as the caller promised.
            unsafe { put(base, view.base as *mut c_void, "the base")? };
        }
        if !offset.is_null() {
            // SAFETY: as the caller promised.
            unsafe { put(offset, view.offset, "the offset")? };
        }
        Ok(())
    })
}

/// Makes a fence behind all work queued so far on some streams. What is freed behind it by
/// forebay_kv_free() and its like is handed out again when a poll has seen it passed. Fences pass
/// in their order.
///
/// @param count 1 to 64.
/// @return FOREBAY_ERROR_INVALID_STREAM; FOREBAY_ERROR_BUSY for a stream that captures a graph.
///
/// Thread-safe. Records an event a stream.
///
/// # Safety
/// `streams` is valid for reads of `count` handles; `fence` is NULL or valid for the write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_kv_memory_fence(
    memory: KvMemoryT,
    streams: *const StreamT,
    count: usize,
    fence: *mut KvFence,
) -> Status {
    with(memory, |memory| {
        if fence.is_null() {
            return Err(null("the fence"));
        }
        // SAFETY: as the caller promised.
        let streams = unsafe { list(streams, count, "the streams")? };
        let streams: Vec<u64> = streams.iter().take(65).map(|&stream| stream as u64).collect();
        let made = memory.fence(&streams)?;
        // SAFETY: as the caller promised.
        unsafe { put(fence, made, "the fence") }
    })
}

/// Makes a fence that passes when the caller's counter is at `value` or above: see
/// forebay_kv_memory_reach().
///
/// Thread-safe.
///
/// # Safety
/// `fence` is NULL or valid for the write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_kv_memory_fence_at(
    memory: KvMemoryT,
    value: u64,
    fence: *mut KvFence,
) -> Status {
    with(memory, |memory| {
        if fence.is_null() {
            return Err(null("the fence"));
        }
        // SAFETY: as the caller promised.
        unsafe { put(fence, memory.fence_at(value)?, "the fence") }
    })
}

/// The caller's counter is at `value`: the work that it stands for has ended.
///
/// Thread-safe.
#[unsafe(no_mangle)]
pub extern "C" fn forebay_kv_memory_reach(memory: KvMemoryT, value: u64) -> Status {
    with(memory, |memory| Ok(memory.reach(value)?))
}

/// Looks which fences have passed and goes on with what waits for that. Waits neither for the
/// device nor for a resize under way. To be called once a step.
///
/// @param fence NULL, or receives the highest fence that has passed.
///
/// Thread-safe. A query a fence in flight.
///
/// # Safety
/// `fence` is NULL or valid for the write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_kv_memory_poll(memory: KvMemoryT, fence: *mut KvFence) -> Status {
    with(memory, |memory| {
        let passed = memory.poll()?;
        if fence.is_null() {
            return Ok(());
        }
        // SAFETY: as the caller promised.
        unsafe { put(fence, passed, "the fence") }
    })
}

/// Queues the copies that the cache asks for on a stream, instead of forebay_kv_take_copies() and
/// forebay_kv_copied(): before the work that reads or writes their targets. After a failure the
/// next call queues all of them; the work that needs them must not be queued until then.
///
/// @param count NULL, or receives how many.
/// @return FOREBAY_ERROR_BUSY for a stream that captures a graph, or while any capture is open
/// where a failed call's copies have no event and their stream is gone.
///
/// Thread-safe; one thread should call it.
///
/// # Safety
/// `count` is NULL or valid for the write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_kv_memory_run_copies(
    memory: KvMemoryT,
    stream: StreamT,
    count: *mut usize,
) -> Status {
    with(memory, |memory| {
        let (made, _) = memory.run_copies(stream as u64)?;
        if count.is_null() {
            return Ok(());
        }
        // SAFETY: as the caller promised.
        unsafe { put(count, made, "the count") }
    })
}

/// Binds a group's table: an array of int32 that follows the cache by deltas.
///
/// @return FOREBAY_ERROR_INVALID_ARGUMENT: a table that makes no sense, or the group has one.
///
/// Thread-safe. Undo with forebay_kv_memory_table_unbind().
///
/// # Safety
/// `table` is NULL or valid for reads of its struct_size. Its array is writable by copies of the
/// pool's device until it is unbound.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_kv_memory_table_bind(
    memory: KvMemoryT,
    table: *const KvTable,
) -> Status {
    with(memory, |memory| {
        let none = KvTable {
            struct_size: 0,
            array: std::ptr::null_mut(),
            group: 0,
            rows: 0,
            stride: 0,
            staging_bytes: 0,
            staging_buffers: 0,
            reserved: 0,
        };
        // SAFETY: as the caller promised; any bytes are numbers or an address.
        let t = unsafe { read_sized(table, none, "forebay_kv_table")? };
        if t.reserved != 0 {
            let text = "the reserved field of forebay_kv_table must be 0";
            return Err(Error::new(Status::InvalidArgument, text));
        }
        let table = Table {
            group: t.group,
            address: t.array as usize,
            rows: t.rows,
            stride: t.stride,
            staging_bytes: t.staging_bytes,
            staging_buffers: t.staging_buffers,
        };
        // SAFETY: the array is as the caller promised.
        unsafe { memory.bind_table(table)? };
        Ok(())
    })
}

/// Unbinds a group's table; waits for copies in flight.
///
/// @return FOREBAY_ERROR_INVALID_ARGUMENT when it has none; FOREBAY_ERROR_BUSY as of
/// forebay_kv_memory_destroy().
///
/// Thread-safe.
#[unsafe(no_mangle)]
pub extern "C" fn forebay_kv_memory_table_unbind(memory: KvMemoryT, group: u32) -> Status {
    with(memory, |memory| Ok(memory.unbind_table(group)?))
}

/// Row i of the group's table becomes the i-th sequence's; rows behind are null blocks. Queues
/// copies of what has changed, out of pinned buffers that are not written while in flight.
///
/// @param entries NULL, or receives how many entries were sent.
/// @return FOREBAY_ERROR_BUSY when all staging buffers are in flight, or the stream captures a
/// graph, or in a callback of the pool as forebay_kv_memory_resize() says: call again, nothing is
/// lost.
///
/// Thread-safe; a table's syncs belong on one stream.
///
/// # Safety
/// `seqs` is valid for reads of `count` sequences; `entries` is NULL or valid for the write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_kv_memory_table_sync(
    memory: KvMemoryT,
    group: u32,
    seqs: *const KvSeq,
    count: usize,
    stream: StreamT,
    entries: *mut usize,
) -> Status {
    with(memory, |memory| {
        // SAFETY: as the caller promised.
        let seqs = unsafe { list(seqs, count, "the sequences")? };
        let seqs: Vec<Seq> = seqs.iter().map(|&seq| Seq::from_raw(seq)).collect();
        let sent = memory.sync_table(group, &seqs, stream as u64)?;
        if entries.is_null() {
            return Ok(());
        }
        // SAFETY: as the caller promised.
        unsafe { put(entries, sent.entries, "the entries") }
    })
}
