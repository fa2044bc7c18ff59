//! PyTorch's allocator hooks: the functions of `torch.cuda.memory.CUDAPluggableAllocator`.
//!
//! All but one have PyTorch's own types, so their addresses can be given to it as they are: a
//! `cudaStream_t` is a forebay_stream_t, a `MempoolId_t` a forebay_torch_pool_id. What begins a
//! private pool takes a C function in place of a `std::function`. None of them throws: what
//! turns an error into an exception of PyTorch's is `libforebay_torch.so` of the Python package.

use super::{StreamT, put};
use crate::error::{Status, set_last};
use crate::pool::slow::guarded;
use crate::torch::{self, private, watch};
use std::ffi::c_void;

/// PyTorch's name for a private pool of memory (`c10::cuda::MempoolId_t`).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct TorchPoolId {
    /// A number of the process's graphs, or 0.
    pub first: u64,
    /// A number of the program's own pools, or 0.
    pub second: u64,
}

impl From<TorchPoolId> for private::Id {
    fn from(id: TorchPoolId) -> private::Id {
        private::Id { first: id.first, second: id.second }
    }
}

/// A number over time, as PyTorch's statistics have it.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct TorchStat {
    /// Now.
    pub current: u64,
    /// The highest since the last reset.
    pub peak: u64,
    /// All that was ever added.
    pub allocated: u64,
    /// All that was ever taken away.
    pub freed: u64,
}

fn pack(stats: torch::counts::Stats3) -> [TorchStat; 3] {
    stats.map(|s| TorchStat {
        current: s.current,
        peak: s.peak,
        allocated: s.allocated,
        freed: s.freed,
    })
}

/// What PyTorch's statistics of a device count, each for all blocks, for those of at most 1 MiB,
/// and for larger ones.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct TorchStats {
    /// sizeof of this structure; set before the call.
    pub struct_size: usize,
    /// Blocks.
    pub blocks: [TorchStat; 3],
    /// Their bytes, rounded up to what they take.
    pub bytes: [TorchStat; 3],
    /// Their bytes as they were asked for.
    pub requested: [TorchStat; 3],
    /// Requests that failed for memory.
    pub out_of_memory: u64,
    /// Bytes of a page of the device's pool; 0 before its first use.
    pub page_bytes: u64,
}

/// Allocates for PyTorch: at a multiple of 512, for work on a stream of a device. The device's
/// pool is made at first use, the default pool for the default device.
///
/// @param ptr receives the address; NULL on failure and for 0 bytes.
/// @return as forebay_alloc().
///
/// Thread-safe. Costs what forebay_alloc() does and a lock.
///
/// # Safety
/// `ptr` is NULL or valid for the write of a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_torch_allocate(
    ptr: *mut *mut c_void,
    bytes: usize,
    device: i32,
    stream: StreamT,
) -> Status {
    guarded(|| {
        // SAFETY: as the caller promised.
        unsafe { put(ptr, std::ptr::null_mut(), "the block")? };
        let address = torch::alloc(bytes, device, stream as u64)?;
        // SAFETY: as the caller promised.
        unsafe { put(ptr, address as *mut c_void, "the block") }
    })
}

/// `alloc_fn`: forebay_torch_allocate() with PyTorch's type. NULL on failure, which PyTorch takes
/// for an error in a `MemPool` only.
///
/// Thread-safe.
#[unsafe(no_mangle)]
pub extern "C" fn forebay_torch_alloc(bytes: usize, device: i32, stream: StreamT) -> *mut c_void {
    let mut address = 0;
    let _told = guarded(|| {
        address = torch::alloc(bytes, device, stream as u64)?;
        Ok(())
    });
    address as *mut c_void
}

/// `free_fn`: gives a block back in a stream's order. Never fails: a block that cannot be freed is
/// told in the log, once.
///
/// Thread-safe.
#[unsafe(no_mangle)]
pub extern "C" fn forebay_torch_free(ptr: *mut c_void, bytes: usize, device: i32, stream: StreamT) {
    let _told = guarded(|| {
        torch::free(ptr as usize, bytes, device, stream as u64);
        Ok(())
    });
}

/// `alloc_fn` of a `torch.cuda.MemPool`: a segment, for work on any stream.
///
/// Thread-safe. NULL on failure.
#[unsafe(no_mangle)]
pub extern "C" fn forebay_torch_segment_alloc(
    bytes: usize,
    device: i32,
    _stream: StreamT,
) -> *mut c_void {
    let mut address = 0;
    let _told = guarded(|| {
        address = torch::segment_alloc(bytes, device)?;
        Ok(())
    });
    address as *mut c_void
}

/// `free_fn` of a `torch.cuda.MemPool`: waits for the device, as cudaFree does, and gives idle
/// memory back to it. What fails is the thread's last error.
///
/// Thread-safe.
#[unsafe(no_mangle)]
pub extern "C" fn forebay_torch_segment_free(
    ptr: *mut c_void,
    _bytes: usize,
    device: i32,
    _stream: StreamT,
) {
    let freed = guarded(|| torch::segment_free(ptr as usize, device));
    if freed != Status::Ok {
        tracing::warn!(status = freed.name(), "a segment of PyTorch's could not be freed");
    }
}

/// `init_fn`: how many devices PyTorch has. Nothing is made yet.
#[unsafe(no_mangle)]
pub extern "C" fn forebay_torch_init(device_count: i32) {
    let _told = guarded(|| {
        torch::init(device_count);
        Ok(())
    });
}

/// `reset_fn`, which is `torch.cuda.empty_cache()`: waits for the devices, unless a capture is
/// open, and gives idle memory back to them. What fails is the thread's last error.
///
/// Thread-safe.
#[unsafe(no_mangle)]
pub extern "C" fn forebay_torch_reset() {
    let reset = guarded(torch::reset);
    if reset != Status::Ok {
        tracing::warn!(status = reset.name(), "PyTorch's cache could not be emptied");
    }
}

/// `memory_fraction_fn`: limits a device's pool to a share of its memory, above 0 and at most 1.
/// Another one changes nothing and is the thread's last error.
///
/// Thread-safe.
#[unsafe(no_mangle)]
pub extern "C" fn forebay_torch_memory_fraction(fraction: f64, device: i32) {
    let set = guarded(|| torch::memory_fraction(fraction, device));
    if set != Status::Ok {
        tracing::warn!(status = set.name(), "PyTorch's share of the memory could not be set");
    }
}

/// `base_alloc_fn`: the start of the block that an address lies in.
///
/// @param bytes receives the block's usable length; may be NULL.
/// @return the address itself, and 0 bytes, when no live block holds it.
///
/// Thread-safe. Takes the pool's lock.
///
/// # Safety
/// `bytes` is NULL or valid for the write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_torch_base_alloc(
    ptr: *mut c_void,
    bytes: *mut usize,
) -> *mut c_void {
    let mut found = (ptr as usize, 0);
    let _told = guarded(|| {
        found = torch::base(ptr as usize)?;
        Ok(())
    });
    if !bytes.is_null() {
        // SAFETY: not null, as the caller promised.
        unsafe { bytes.write(found.1) };
    }
    found.0 as *mut c_void
}

/// `record_stream_fn`: work on `stream` uses the block too. What fails is the thread's last error.
///
/// Thread-safe.
#[unsafe(no_mangle)]
pub extern "C" fn forebay_torch_record_stream(ptr: *mut c_void, stream: StreamT) {
    let recorded = guarded(|| torch::record_stream(ptr as usize, stream as u64));
    if recorded != Status::Ok {
        tracing::warn!(status = recorded.name(), "a use by another stream could not be recorded");
    }
}

/// `begin_allocate_to_pool`: from now on allocations on streams that the filter takes belong to a
/// private pool, whose memory serves nothing else until it is released as often as it was begun.
/// No fence is recorded until it ends.
///
/// @param filter called with `ctx` and the stream of a block that comes or goes: once for a stream
/// that it takes, each time for one that it refuses. It must not call Forebay.
/// @return FOREBAY_ERROR_INVALID_ARGUMENT without a filter; else as forebay_capture_begin().
///
/// Thread-safe. Until the private pool ends each block of the process costs a lock, and on a stream
/// of the device that is not taken the call of the filter under it.
///
/// # Safety
/// `filter` stays callable with `ctx`, from any thread, until the private pool has ended.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_torch_begin_allocate_to_pool(
    device: i32,
    id: TorchPoolId,
    filter: Option<unsafe extern "C" fn(ctx: *mut c_void, stream: StreamT) -> bool>,
    ctx: *mut c_void,
) -> Status {
    guarded(|| {
        let filter = filter.ok_or_else(|| super::null("the filter"))?;
        private::begin(device, id.into(), filter, ctx as usize)
    })
}

/// `end_allocate_to_pool_fn`: no more allocations belong to the private pool.
///
/// Thread-safe.
#[unsafe(no_mangle)]
pub extern "C" fn forebay_torch_end_allocate_to_pool(device: i32, id: TorchPoolId) {
    let ended = guarded(|| private::end(device, id.into()));
    if ended != Status::Ok {
        tracing::warn!(status = ended.name(), "a private pool of PyTorch's ended badly");
    }
}

/// `release_pool`: the private pool is needed once less.
///
/// Thread-safe.
#[unsafe(no_mangle)]
pub extern "C" fn forebay_torch_release_pool(device: i32, id: TorchPoolId) {
    let released = guarded(|| private::release(device, id.into()));
    if released != Status::Ok {
        tracing::warn!(status = released.name(), "a private pool of PyTorch's is kept");
    }
}

/// The pool that serves a device of PyTorch's, made at first use.
///
/// @param pool receives the handle; not to be destroyed.
/// @return as forebay_pool_default(); FOREBAY_ERROR_INVALID_ARGUMENT for a device that cannot be.
///
/// Thread-safe.
///
/// # Safety
/// `pool` is NULL or valid for the write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_torch_pool(device: i32, pool: *mut super::PoolT) -> Status {
    guarded(|| {
        let handle = torch::pool(device)?.handle();
        // SAFETY: as the caller promised.
        unsafe { put(pool, handle as super::PoolT, "the pool") }
    })
}

/// Reads what PyTorch's statistics of a device count.
///
/// @return FOREBAY_ERROR_INVALID_ARGUMENT for NULL, a size that is too small, a device that cannot
/// be.
///
/// Thread-safe.
///
/// # Safety
/// `stats` is NULL or valid for reads and writes of its struct_size.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_torch_device_stats(device: i32, stats: *mut TorchStats) -> Status {
    guarded(|| {
        let counts = torch::read_counts(device)?;
        // SAFETY: null, or its first word is readable as the caller promised.
        let size = if stats.is_null() { 0 } else { unsafe { (*stats).struct_size } };
        if size < size_of::<TorchStats>() {
            return Err(super::null("statistics of this size"));
        }
        let value = TorchStats {
            struct_size: size,
            blocks: pack(counts.blocks),
            bytes: pack(counts.bytes),
            requested: pack(counts.requested),
            out_of_memory: counts.out_of_memory,
            page_bytes: torch::page_bytes(device),
        };
        // SAFETY: not null, and as long as the caller said.
        unsafe { put(stats, value, "the statistics") }
    })
}

/// Begins the peaks of PyTorch's statistics, and of the device's pool, anew.
///
/// @return FOREBAY_ERROR_INVALID_ARGUMENT for a device that cannot be.
///
/// Thread-safe.
#[unsafe(no_mangle)]
pub extern "C" fn forebay_torch_reset_peaks(device: i32) -> Status {
    guarded(|| torch::reset_peaks(device))
}

/// Sets the function that is told of each block of forebay_torch_allocate(): with `ctx`, what
/// happened (0 it has come, 1 it is about to go, 2 there was no memory), its address, the bytes
/// asked for, its device and stream. No lock of ours is held.
///
/// @param watcher NULL: none. A call that is under way may still reach the one before.
///
/// Thread-safe.
///
/// # Safety
/// `watcher` stays callable with `ctx`, from any thread, until replaced and no call is under way.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_torch_watch(
    watcher: Option<
        unsafe extern "C" fn(
            ctx: *mut c_void,
            what: i32,
            ptr: *mut c_void,
            bytes: usize,
            device: i32,
            stream: StreamT,
        ),
    >,
    ctx: *mut c_void,
) {
    let set = std::panic::catch_unwind(|| watch::set(watcher.map(|w| (w, ctx as usize))));
    if set.is_err() {
        set_last("a defect in Forebay was caught");
    }
}
