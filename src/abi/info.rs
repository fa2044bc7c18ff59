//! Accounts, reports, leaks, tags.

use super::{PoolT, null, put};
use crate::error::{Error, Status};
use crate::pool::devices;
use crate::pool::slow::guarded;
use crate::pool::{Pool, registry, report};
use std::ffi::{CStr, CString, c_char, c_void};

/// Where every byte of a pool is. live, cached, pending, trapped, idle and other are disjoint;
/// their
/// sum is mapped_bytes, exactly while no other thread allocates or frees.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Stats {
    /// sizeof of this structure as the caller knows it; set before the call.
    pub struct_size: usize,
    /// Live blocks, rounded up to their slots and quanta.
    pub live_bytes: u64,
    /// What live blocks were asked for (slots: the mean of all requests scaled).
    pub requested_bytes: u64,
    /// Free slots in slabs, depots and magazines.
    pub cached_bytes: u64,
    /// Freed; the fence has not been seen passed.
    pub pending_bytes: u64,
    /// Free, in granules that live blocks hold.
    pub trapped_bytes: u64,
    /// Free whole granules.
    pub idle_bytes: u64,
    /// Pages in stock or stranded, imported memory, and what is freed while an export of it is
    /// open.
    pub other_bytes: u64,
    /// All that the pool holds of the device, and what it has imported.
    pub mapped_bytes: u64,
    /// The highest live_bytes seen by a reader or a slow path.
    pub peak_live_bytes: u64,
    /// The highest mapped_bytes; exact.
    pub peak_mapped_bytes: u64,
    /// The hard limit.
    pub limit_bytes: u64,
    /// The soft limit; 0: none.
    pub soft_limit_bytes: u64,
    /// Address space reserved.
    pub reserved_address_bytes: u64,
    /// Live blocks.
    pub live_blocks: u64,
    /// Allocations so far.
    pub allocs: u64,
    /// Frees so far.
    pub frees: u64,
    /// Driver calls that changed memory, and fences recorded.
    pub driver_calls: u64,
    /// Pages created so far.
    pub pages_created: u64,
    /// Pages given back so far.
    pub pages_released: u64,
    /// Pages moved so far.
    pub pages_moved: u64,
    /// Calls that mapped a page.
    pub map_calls: u64,
    /// Calls that unmapped a run.
    pub unmap_calls: u64,
    /// Calls that opened access to a run.
    pub set_access_calls: u64,
    /// Times that idle pages were gathered.
    pub gathers: u64,
    /// Fences recorded.
    pub fences_recorded: u64,
    /// Allocations that failed for memory.
    pub oom_count: u64,
    /// Pages that the driver would not unmap or take back, until it does.
    pub stranded_pages: u64,
    /// Created pages that are mapped nowhere.
    pub unmapped_stock_bytes: u64,
    /// Live pinned host memory (of the process).
    pub host_live_bytes: u64,
    /// Pinned host memory held (of the process).
    pub host_mapped_bytes: u64,
    /// Live blocks of suspended tags: no part of live_bytes, nor of the sum.
    pub suspended_bytes: u64,
    /// Their contents in host memory.
    pub suspended_host_bytes: u64,
    /// Pages behind regions: a KV cache's blocks. One of the states that sum to mapped_bytes.
    pub region_bytes: u64,
}

/// One live block.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Leak {
    /// sizeof of this structure.
    pub struct_size: usize,
    /// Its address.
    pub address: *const c_void,
    /// Requested bytes; the slot's length where the request is not known.
    pub bytes: u64,
    /// Its age in ms; 0 unless FOREBAY_LEAKS=full or FOREBAY_BACKTRACE=1.
    pub age_ms: u64,
    /// Its tag.
    pub tag: u32,
    /// Where it was allocated; empty unless FOREBAY_BACKTRACE=1. Valid during the visit.
    pub call_site: *const c_char,
}

/// Reads a pool's accounts. Fences are looked at first.
///
/// @param stats its struct_size is set by the caller; longer structures are zero-filled.
///
/// Thread-safe; exact while no other thread allocates or frees.
///
/// # Safety
/// `stats` is NULL or valid for reads and writes of its struct_size.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_pool_stats(pool: PoolT, stats: *mut Stats) -> Status {
    guarded(|| {
        if stats.is_null() {
            return Err(null("the stats"));
        }
        // SAFETY: as the caller promised.
        let size = unsafe { (*stats).struct_size };
        if size < size_of::<usize>() + size_of::<u64>() || size > 1 << 16 {
            return Err(Error::new(
                Status::InvalidArgument,
                format!("struct_size is {size}: set it to sizeof(forebay_stats) before the call"),
            ));
        }
        let mut value = read_stats(&Pool::from_handle(pool as u64)?)?;
        value.struct_size = size;
        let ours = size_of::<Stats>();
        // SAFETY: `size` bytes are the caller's; `value` has `ours`.
        unsafe {
            let to = stats.cast::<u8>();
            std::ptr::copy_nonoverlapping((&raw const value).cast(), to, size.min(ours));
            if size > ours {
                to.add(ours).write_bytes(0, size - ours);
            }
        }
        Ok(())
    })
}

/// The structure out of [`report::stats_fields`] and what the process adds: each account is
/// named once, in the order of that table.
macro_rules! stats_of {
    ($fields:expr, $host:expr; $($name:ident),* $(,)?) => {{
        let [$($name),*] = $fields;
        $(debug_assert_eq!($name.0, stringify!($name), "as the table has it");)*
        let (host_live_bytes, host_mapped_bytes) = $host;
        Stats { struct_size: 0, $($name: $name.1,)* host_live_bytes, host_mapped_bytes }
    }};
}

fn read_stats(pool: &Pool) -> crate::error::Result<Stats> {
    let stats = pool.stats()?;
    Ok(stats_of! {
        report::stats_fields(&stats), devices::host_bytes();
        live_bytes, requested_bytes, cached_bytes, pending_bytes, trapped_bytes, idle_bytes,
        other_bytes, mapped_bytes, peak_live_bytes, peak_mapped_bytes, limit_bytes,
        soft_limit_bytes, reserved_address_bytes, live_blocks, allocs, frees, driver_calls,
        pages_created, pages_released, pages_moved, map_calls, unmap_calls, set_access_calls,
        gathers, fences_recorded, oom_count, stranded_pages, unmapped_stock_bytes,
        suspended_bytes, suspended_host_bytes, region_bytes,
    })
}

/// Writes a pool's accounts, limits and tags as one JSON object, ended by a NUL.
///
/// @param buffer receives as much as fits; may be NULL when capacity is 0.
/// @param needed receives the bytes that the whole text needs, NUL included; may be NULL.
///
/// Thread-safe.
///
/// # Safety
/// `buffer` is valid for writes of `capacity` bytes; `needed` is NULL or valid for the write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_pool_report_json(
    pool: PoolT,
    buffer: *mut c_char,
    capacity: usize,
    needed: *mut usize,
) -> Status {
    guarded(|| {
        if buffer.is_null() && capacity > 0 {
            return Err(null("the text"));
        }
        let text = Pool::from_handle(pool as u64)?.report_json()?;
        // SAFETY: as the caller promised; the copy leaves room for the NUL.
        unsafe {
            if capacity > 0 {
                let mut fits = text.len().min(capacity - 1);
                while !text.is_char_boundary(fits) {
                    fits -= 1;
                }
                std::ptr::copy_nonoverlapping(text.as_ptr().cast(), buffer, fits);
                buffer.add(fits).write(0);
            }
            if !needed.is_null() {
                needed.write(text.len() + 1);
            }
        }
        Ok(())
    })
}

/// Calls `visit` with each live block of a pool, by address. `visit` holds no lock of ours and may
/// free.
///
/// Thread-safe; blocks freed meanwhile may still be shown.
///
/// # Safety
/// `visit` is NULL (an error) or callable with `ctx`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_pool_leaks(
    pool: PoolT,
    visit: Option<unsafe extern "C" fn(ctx: *mut c_void, leak: *const Leak)>,
    ctx: *mut c_void,
) -> Status {
    guarded(|| {
        let visit = visit.ok_or_else(|| null("the visitor"))?;
        for leak in Pool::from_handle(pool as u64)?.leaks()? {
            let site = CString::new(leak.site).unwrap_or_default();
            let value = Leak {
                struct_size: size_of::<Leak>(),
                address: leak.address as *const c_void,
                bytes: leak.bytes as u64,
                age_ms: leak.age_ms,
                tag: u32::from(leak.tag),
                call_site: site.as_ptr(),
            };
            // SAFETY: as the caller promised; `value` lives through the call.
            unsafe { visit(ctx, &raw const value) };
        }
        Ok(())
    })
}

/// The number for a tag's name (1 to 64 bytes of UTF-8); the same name has one number. There are
/// 126 besides 1, "untagged".
///
/// @return FOREBAY_ERROR_INVALID_ARGUMENT for NULLs, bad names, and when all are taken.
///
/// Thread-safe.
///
/// # Safety
/// `name` is NULL or NUL-ended; `tag` is NULL or valid for the write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_tag_create(name: *const c_char, tag: *mut u32) -> Status {
    guarded(|| {
        if name.is_null() {
            return Err(null("the name"));
        }
        if tag.is_null() {
            return Err(null("the tag"));
        }
        // SAFETY: not null, NUL-ended as promised.
        let name = unsafe { CStr::from_ptr(name) }
            .to_str()
            .map_err(|_| Error::new(Status::InvalidArgument, "a tag's name is UTF-8 text"))?;
        let number = report::tag_create(name)?;
        // SAFETY: as the caller promised.
        unsafe { put(tag, u32::from(number), "the tag") }
    })
}

/// Sets the tag that this thread's allocations carry from now on.
///
/// @param previous receives the old one; may be NULL.
/// @return FOREBAY_ERROR_INVALID_ARGUMENT for a number that forebay_tag_create() never gave (1 is
/// fine).
///
/// # Safety
/// `previous` is NULL or valid for the write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_tag_set(tag: u32, previous: *mut u32) -> Status {
    guarded(|| {
        if !report::tag_exists(tag) {
            return Err(Error::new(
                Status::InvalidArgument,
                format!("{tag} is no tag; make one with forebay_tag_create()"),
            ));
        }
        let old = registry::set_tag(tag)?;
        if !previous.is_null() {
            // SAFETY: as the caller promised.
            unsafe { previous.write(old) };
        }
        Ok(())
    })
}

/// Live bytes (rounded) of a pool that carry a tag. Walks all marks: for readers, not hot paths.
///
/// Thread-safe.
///
/// # Safety
/// `live_bytes` is NULL or valid for the write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_tag_bytes(pool: PoolT, tag: u32, live_bytes: *mut u64) -> Status {
    guarded(|| {
        if !report::tag_exists(tag) {
            return Err(Error::new(Status::InvalidArgument, format!("{tag} is no tag")));
        }
        let tags = Pool::from_handle(pool as u64)?.tag_bytes()?;
        // SAFETY: as the caller promised.
        unsafe { put(live_bytes, tags[tag as usize].0, "the bytes") }
    })
}
