//! Suspend and resume: memory of tags given back to the device for a while.

use super::{PoolT, null, put};
use crate::error::{Error, Result, Status};
use crate::pool::slow::guarded;
use crate::pool::suspend::{Level, Report};
use crate::pool::{Pool, report};

/// Contents are kept in host memory.
pub const FOREBAY_SUSPEND_OFFLOAD: u32 = 0;

/// Contents are dropped: undefined after the resume.
pub const FOREBAY_SUSPEND_DISCARD: u32 = 1;

/// What forebay_suspend() or forebay_resume() did.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct SuspendReport {
    /// sizeof of this structure as the caller knows it; set before the call.
    pub struct_size: usize,
    /// Bytes that went back to the device, or were taken from it again.
    pub device_bytes: u64,
    /// Bytes of the tags' contents in host memory afterwards.
    pub host_bytes: u64,
    /// Bytes of live blocks of the tags that stay on the device: allocated before
    /// forebay_tag_suspendable().
    pub kept_bytes: u64,
    /// Bytes of pages that the driver did not unmap, for now; tried again by itself.
    pub stuck_bytes: u64,
    /// Bytes of device memory that a failed resume lacks.
    pub missing_bytes: u64,
    /// Blocks of the tags that are suspended afterwards, or were before.
    pub blocks: u64,
}

/// Makes a tag suspendable in a pool, for the pool's life: what is allocated under it from now on
/// has pages of its own, shared with no other tag. Again is fine. Allocations under such a tag, and
/// frees of its blocks, take the pool's lock; its first small block takes a whole page, and a block
/// above 256 KiB begins a page of its own unless what is free in the tag's pages holds it: blocks
/// of a little more than one page take two each, for the suspend and the resume too.
///
/// @param tag from forebay_tag_create(); not 1.
/// @return FOREBAY_ERROR_INVALID_ARGUMENT for what is no such tag; FOREBAY_ERROR_UNSUPPORTED where
/// the device has no virtual memory management.
///
/// Thread-safe.
#[unsafe(no_mangle)]
pub extern "C" fn forebay_tag_suspendable(pool: PoolT, tag: u32) -> Status {
    guarded(|| Pool::from_handle(pool as u64)?.declare_suspendable(number(tag)?))
}

/// Gives the memory of tags back to the device. Blocks keep their addresses, and nothing may use
/// them, on the device or elsewhere, from this call until forebay_resume(): no kernel, no copy, no
/// launch of a graph that does. They may be freed. All work of the device queued before is awaited;
/// other tags are in use all the while. All of the tags or none; one that is suspended already
/// stays so, and FOREBAY_SUSPEND_DISCARD drops the contents that were kept of it.
///
/// @param tags tags, each made suspendable by forebay_tag_suspendable().
/// @param level FOREBAY_SUSPEND_OFFLOAD or FOREBAY_SUSPEND_DISCARD.
/// @param report receives what was done; may be NULL. Its struct_size is set by the caller.
/// @return FOREBAY_ERROR_BUSY where a block is exported or pinned (the message names it), while a
/// graph capture is open, while another thread suspends or resumes one of the tags;
/// FOREBAY_ERROR_OUT_OF_MEMORY where the host has no memory for the contents;
/// FOREBAY_ERROR_INVALID_ARGUMENT; FOREBAY_ERROR_DRIVER. Nothing has changed then.
///
/// Thread-safe. Costs the copy of all live bytes, and a call a page.
///
/// # Safety
/// `tags` is valid for reads of `count` numbers; `report` is NULL or valid for reads and writes of
/// its struct_size.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_suspend(
    pool: PoolT,
    tags: *const u32,
    count: usize,
    level: u32,
    report: *mut SuspendReport,
) -> Status {
    guarded(|| {
        let level = match level {
            FOREBAY_SUSPEND_OFFLOAD => Level::Offload,
            FOREBAY_SUSPEND_DISCARD => Level::Discard,
            _ => return Err(invalid(format!("level {level} is neither 0 nor 1"))),
        };
        // SAFETY: as the caller promised.
        let (tags, size) = unsafe { (numbers(tags, count)?, report_size(report)?) };
        let done = Pool::from_handle(pool as u64)?.suspend(&tags, level)?;
        // SAFETY: as the caller promised.
        unsafe { write_report(report, size, &done) }
    })
}

/// Brings the memory of tags back at the same addresses, with the contents that were kept. All of
/// the tags or none; one that is not suspended stays as it is. On return the blocks may be used.
///
/// @param report receives what was done, on failure too; may be NULL. Its struct_size is set by the
/// caller.
/// @return FOREBAY_ERROR_OUT_OF_MEMORY: everything is suspended still, contents kept; the message
/// and missing_bytes say how much was missing. Others as forebay_suspend().
///
/// Thread-safe. Costs the copy of all bytes kept, and some calls a page.
///
/// # Safety
/// As forebay_suspend().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_resume(
    pool: PoolT,
    tags: *const u32,
    count: usize,
    report: *mut SuspendReport,
) -> Status {
    guarded(|| {
        // SAFETY: as the caller promised.
        let (tags, size) = unsafe { (numbers(tags, count)?, report_size(report)?) };
        let mut told = Report::default();
        let done = Pool::from_handle(pool as u64)?.resume(&tags, &mut told);
        // SAFETY: as the caller promised.
        unsafe { write_report(report, size, &told)? };
        done
    })
}

/// Whether a tag is suspended in a pool now.
///
/// @param suspended receives the answer.
/// @return FOREBAY_ERROR_INVALID_ARGUMENT for NULL and for what is no tag.
///
/// Thread-safe.
///
/// # Safety
/// `suspended` is NULL or valid for the write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_tag_is_suspended(
    pool: PoolT,
    tag: u32,
    suspended: *mut bool,
) -> Status {
    guarded(|| {
        let answer = Pool::from_handle(pool as u64)?.is_suspended(number(tag)?)?;
        // SAFETY: as the caller promised.
        unsafe { put(suspended, answer, "the answer") }
    })
}

fn invalid(message: String) -> Error {
    Error::new(Status::InvalidArgument, message)
}

fn number(tag: u32) -> Result<u8> {
    let known = u8::try_from(tag).ok().filter(|_| report::tag_exists(tag));
    known.ok_or_else(|| invalid(format!("{tag} is no tag; make one with forebay_tag_create()")))
}

/// # Safety
/// `tags` is NULL or valid for reads of `count` numbers.
unsafe fn numbers(tags: *const u32, count: usize) -> Result<Vec<u8>> {
    if count == 0 {
        return Ok(Vec::new());
    }
    if tags.is_null() {
        return Err(null("the tags"));
    }
    if count > 127 {
        return Err(invalid(format!("there are 127 tags, not {count}")));
    }
    // SAFETY: not null, and as long as promised.
    let tags = unsafe { std::slice::from_raw_parts(tags, count) };
    tags.iter().map(|&tag| number(tag)).collect()
}

/// The struct_size of a report; 0 for NULL.
///
/// # Safety
/// `report` is NULL or its first word is valid for reads.
unsafe fn report_size(report: *const SuspendReport) -> Result<usize> {
    if report.is_null() {
        return Ok(0);
    }
    // SAFETY: not null, as promised.
    let size = unsafe { (*report).struct_size };
    if size < size_of::<SuspendReport>() || size > 1 << 16 {
        return Err(invalid(format!(
            "struct_size is {size}: set it to sizeof(forebay_suspend_report) before the call"
        )));
    }
    Ok(size)
}

/// # Safety
/// `report` is NULL or valid for writes of `size` bytes, at least its own length.
unsafe fn write_report(report: *mut SuspendReport, size: usize, told: &Report) -> Result<()> {
    if report.is_null() {
        return Ok(());
    }
    let value = SuspendReport {
        struct_size: size,
        device_bytes: told.device_bytes,
        host_bytes: told.host_bytes,
        kept_bytes: told.kept_bytes,
        stuck_bytes: told.stuck_bytes,
        missing_bytes: told.missing_bytes,
        blocks: told.blocks,
    };
    // SAFETY: as promised; what a newer caller has beyond is zero.
    unsafe {
        let rest = report.cast::<u8>().add(size_of::<SuspendReport>());
        rest.write_bytes(0, size - size_of::<SuspendReport>());
        put(report, value, "the report")
    }
}
