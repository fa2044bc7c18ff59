//! Static plans: made from buffers or a file, asked, kept in bytes.

use super::{list, null, put, read_sized, write_sized};
use crate::error::{Error, Result, Status};
use crate::plan::{self, Buffer, Options, Plan as Planned, Progress, csv, handles};
use crate::pool::slow::guarded;
use std::ffi::{CStr, c_char, c_void};
use std::time::Duration;

/// A plan: an offset for each of some buffers. Opaque; use [`PlanT`].
pub struct Plan {
    _private: (),
}

/// A plan's handle. NULL names none.
pub type PlanT = *mut Plan;

/// The fixed_offset of a buffer that may lie anywhere.
pub const FOREBAY_PLAN_ANYWHERE: u64 = u64::MAX;

/// A buffer to be placed.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct PlanBuffer {
    /// The caller's own number; no other buffer of the plan has it.
    pub id: u64,
    /// The time from which it is wanted.
    pub birth: u64,
    /// The first time from which it is not wanted any more; above birth. UINT64_MAX: at a step's
    /// end.
    pub death: u64,
    /// Bytes, not 0.
    pub size: u64,
    /// Its offset is a multiple of this power of two; 0 means 1.
    pub alignment: u64,
    /// Where it must lie; FOREBAY_PLAN_ANYWHERE for anywhere.
    pub fixed_offset: u64,
}

/// How far a search has come.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct PlanProgress {
    /// sizeof of this structure.
    pub struct_size: usize,
    /// The lowest height so far; 0 before the first.
    pub height: u64,
    /// No plan is lower.
    pub bound: u64,
    /// Effort so far.
    pub effort: u64,
    /// Time since the call began, in ms.
    pub elapsed_ms: u64,
}

/// What is asked of the planner. Fill it with forebay_plan_options_init(), then change fields.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct PlanOptions {
    /// sizeof of this structure, as set by forebay_plan_options_init().
    pub struct_size: usize,
    /// The most bytes that the plan may take; 0: as few as possible.
    pub capacity: u64,
    /// Where random choices begin: the same seed gives the same plan.
    pub seed: u64,
    /// Effort that each searcher may take, about a microsecond's work each; UINT64_MAX: no limit.
    pub effort: u64,
    /// Time that all may take, in ms, besides the effort; 0: no limit. With one, the plan depends
    /// on the machine's speed.
    pub time_ms: u64,
    /// Searchers with random choices of their own, 1 to 256. The plan depends on it.
    pub searchers: u32,
    /// Threads that they are spread over, 0 for one a core. The plan does not depend on it.
    pub threads: u32,
    /// 1: the searcher that is done first in time is taken; the plan then differs from call to
    /// call.
    pub racing: u32,
    /// 0.
    pub flags: u32,
    /// Called on the calling thread, every 50 ms or so, later while one packing of very many
    /// buffers is made; 0 ends the search as a spent budget does, and nothing is called any more.
    /// NULL: nothing is called.
    pub progress:
        Option<unsafe extern "C" fn(ctx: *mut c_void, progress: *const PlanProgress) -> i32>,
    /// Handed to progress.
    pub progress_ctx: *mut c_void,
}

/// A plan's figures.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct PlanInfo {
    /// sizeof of this structure as the caller knows it; set before the call.
    pub struct_size: usize,
    /// How many buffers it places.
    pub buffers: u64,
    /// Bytes that it takes: the highest end.
    pub height: u64,
    /// No plan for these buffers takes fewer bytes.
    pub bound: u64,
    /// height less bound: 0 means that no plan is lower.
    pub gap: u64,
    /// Its memory must begin at a multiple of this.
    pub alignment: u64,
}

/// Fills `options` with the defaults: as few bytes as possible, seed 1, one searcher, an effort of
/// 5000000.
///
/// @return FOREBAY_ERROR_INVALID_ARGUMENT for NULL.
///
/// # Safety
/// `options` is NULL or valid for the write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_plan_options_init(options: *mut PlanOptions) -> Status {
    guarded(|| {
        // SAFETY: as the caller promised.
        unsafe { put(options, default_options(), "the options") }
    })
}

/// Makes a plan for `count` buffers. It is verified before it is given.
///
/// @param options NULL: the defaults.
/// @param plan receives the handle; NULL on failure.
/// @return FOREBAY_ERROR_INVALID_ARGUMENT names the buffer or option that is wrong;
/// FOREBAY_ERROR_INFEASIBLE: no plan fits under the capacity, which is proven;
/// FOREBAY_ERROR_NOT_FOUND: none was found within the budget, and one may exist.
///
/// Thread-safe; needs no device. End the plan with forebay_plan_destroy().
///
/// # Safety
/// `buffers` is valid for reads of `count` elements; `options` is NULL or valid for reads; `plan`
/// is NULL or valid for the write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_plan_create(
    buffers: *const PlanBuffer,
    count: usize,
    options: *const PlanOptions,
    plan: *mut PlanT,
) -> Status {
    // SAFETY: as the caller promised.
    unsafe {
        create(options, plan, || {
            Ok(list(buffers, count, "the buffers")?.iter().map(read_buffer).collect())
        })
    }
}

/// Makes a plan for the buffers in a text file: lines under a header such as id,lower,upper,size
/// (more columns: alignment, offset for a fixed one, and tag, which changes nothing). Where ids are
/// words, buffers are numbered by their rows, from 0. Rows of size 0 are left out.
///
/// @param path ended by a NUL.
/// @return as forebay_plan_create(); FOREBAY_ERROR_INVALID_ARGUMENT names the line that is wrong,
/// or says why the file cannot be read.
///
/// Thread-safe. End the plan with forebay_plan_destroy().
///
/// # Safety
/// `path` is NULL or a text; the others as in forebay_plan_create().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_plan_create_from_file(
    path: *const c_char,
    options: *const PlanOptions,
    plan: *mut PlanT,
) -> Status {
    let read = || {
        if path.is_null() {
            return Err(null("the path"));
        }
        // SAFETY: not null, and a text as the caller promised.
        let path = unsafe { CStr::from_ptr(path) }.to_str().map_err(|error| {
            Error::new(Status::InvalidArgument, format!("the path is no UTF-8: {error}"))
        })?;
        Ok(csv::read_file(std::path::Path::new(path))?.buffers)
    };
    // SAFETY: as the caller promised.
    unsafe { create(options, plan, read) }
}

/// Ends a plan. Its handle is an error from now on.
///
/// @return FOREBAY_ERROR_INVALID_ARGUMENT for a handle that names none.
///
/// Thread-safe.
#[unsafe(no_mangle)]
pub extern "C" fn forebay_plan_destroy(plan: PlanT) -> Status {
    guarded(|| handles::let_go(plan as u64))
}

/// Reads a plan's figures.
///
/// @param info its struct_size is set by the caller; longer structures are zero-filled.
/// @return FOREBAY_ERROR_INVALID_ARGUMENT for NULL, no struct_size, or a handle that names none.
///
/// Thread-safe.
///
/// # Safety
/// `info` is NULL or valid for reads and writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_plan_get_info(plan: PlanT, info: *mut PlanInfo) -> Status {
    guarded(|| {
        let plan = handles::get(plan as u64)?;
        let value = PlanInfo {
            struct_size: 0,
            buffers: plan.buffers().len() as u64,
            height: plan.height(),
            bound: plan.bound(),
            gap: plan.gap(),
            alignment: plan.alignment(),
        };
        // SAFETY: as the caller promised.
        unsafe { write_sized(info, value, "forebay_plan_info") }
    })
}

/// The offset of the buffer with this id, in bytes. O(log n).
///
/// @return FOREBAY_ERROR_INVALID_ARGUMENT when the plan has no such buffer.
///
/// Thread-safe.
///
/// # Safety
/// `offset` is NULL or valid for the write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_plan_offset(plan: PlanT, id: u64, offset: *mut u64) -> Status {
    guarded(|| {
        let found = handles::get(plan as u64)?.offset_of(id).ok_or_else(|| {
            Error::new(Status::InvalidArgument, format!("the plan has no buffer {id}"))
        })?;
        // SAFETY: as the caller promised.
        unsafe { put(offset, found, "the offset") }
    })
}

/// All offsets, in the order in which the buffers were given.
///
/// @param count the plan's number of buffers: see forebay_plan_get_info().
/// @return FOREBAY_ERROR_INVALID_ARGUMENT for another count: nothing is written then.
///
/// Thread-safe.
///
/// # Safety
/// `offsets` is valid for writes of `count` numbers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_plan_offsets(
    plan: PlanT,
    offsets: *mut u64,
    count: usize,
) -> Status {
    guarded(|| {
        let plan = handles::get(plan as u64)?;
        let has = plan.offsets().len();
        if count != has {
            let text = format!("room for {count} offsets; the plan has {has} buffers");
            return Err(Error::new(Status::InvalidArgument, text));
        }
        if offsets.is_null() && has > 0 {
            return Err(null("the offsets"));
        }
        if has > 0 {
            // SAFETY: not null, and room for `count` numbers as the caller promised.
            unsafe { std::ptr::copy_nonoverlapping(plan.offsets().as_ptr(), offsets, has) };
        }
        Ok(())
    })
}

/// Writes a plan as bytes, for forebay_plan_load() in any later process. The same plan gives the
/// same bytes.
///
/// @param bytes receives them if capacity suffices; may be NULL when capacity is 0.
/// @param needed receives how many they are; may be NULL.
/// @return FOREBAY_ERROR_INVALID_ARGUMENT when there is some capacity and it does not suffice:
/// nothing is written to bytes then.
///
/// Thread-safe.
///
/// # Safety
/// `bytes` is valid for writes of `capacity` bytes; `needed` is NULL or valid for the write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_plan_save(
    plan: PlanT,
    bytes: *mut c_void,
    capacity: usize,
    needed: *mut usize,
) -> Status {
    guarded(|| {
        if bytes.is_null() && capacity > 0 {
            return Err(null("the bytes"));
        }
        let all = handles::get(plan as u64)?.to_bytes();
        if !needed.is_null() {
            // SAFETY: as the caller promised.
            unsafe { needed.write(all.len()) };
        }
        if capacity == 0 {
            return Ok(());
        }
        if capacity < all.len() {
            let text = format!("the plan takes {} bytes; there is room for {capacity}", all.len());
            return Err(Error::new(Status::InvalidArgument, text));
        }
        // SAFETY: not null, and room as the caller promised.
        unsafe { std::ptr::copy_nonoverlapping(all.as_ptr(), bytes.cast(), all.len()) };
        Ok(())
    })
}

/// Loads a plan that forebay_plan_save() or `forebay plan --out` wrote, and verifies it.
///
/// @param plan receives the handle; NULL on failure.
/// @return FOREBAY_ERROR_INVALID_ARGUMENT says what is wrong: no plan, another version, cut short,
/// altered, or offsets that are no plan.
///
/// Thread-safe. End the plan with forebay_plan_destroy().
///
/// # Safety
/// `bytes` is valid for reads of `count` bytes; `plan` is NULL or valid for the write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_plan_load(
    bytes: *const c_void,
    count: usize,
    plan: *mut PlanT,
) -> Status {
    // SAFETY: as the caller promised.
    unsafe { answer(plan, || Planned::from_bytes(list(bytes.cast::<u8>(), count, "the bytes")?)) }
}

/// Makes a plan, keeps it and writes its handle; NULL on failure.
///
/// # Safety
/// `plan` is null or valid for the write.
pub(super) unsafe fn answer(plan: *mut PlanT, make: impl FnOnce() -> Result<Planned>) -> Status {
    guarded(|| {
        // SAFETY: as the caller promised.
        unsafe {
            put(plan, std::ptr::null_mut(), "the plan")?;
            put(plan, handles::keep(make()?)? as PlanT, "the plan")
        }
    })
}

/// Plans the buffers that `read` finds.
///
/// # Safety
/// `options` is null or valid for reads of its struct_size; `plan` is null or valid for the write.
unsafe fn create(
    options: *const PlanOptions,
    plan: *mut PlanT,
    read: impl FnOnce() -> Result<Vec<Buffer>>,
) -> Status {
    // SAFETY: as the caller promised.
    unsafe { answer(plan, || solve(&read()?, read_options(options)?)) }
}

/// The options as far as the caller knows them, the defaults for the rest. `None` for null.
///
/// # Safety
/// `options` is null or valid for reads of its struct_size.
pub(super) unsafe fn read_options(options: *const PlanOptions) -> Result<Option<PlanOptions>> {
    if options.is_null() {
        return Ok(None);
    }
    // SAFETY: as the caller promised; any bytes are numbers, or a function or null as the caller of
    // the C function promised.
    unsafe { read_sized(options, default_options(), "forebay_plan_options") }.map(Some)
}

fn default_options() -> PlanOptions {
    let defaults = Options::default();
    PlanOptions {
        struct_size: size_of::<PlanOptions>(),
        capacity: 0,
        seed: defaults.seed,
        effort: defaults.effort,
        time_ms: 0,
        searchers: defaults.searchers,
        threads: defaults.threads,
        racing: 0,
        flags: 0,
        progress: None,
        progress_ctx: std::ptr::null_mut(),
    }
}

fn read_buffer(b: &PlanBuffer) -> Buffer {
    Buffer {
        id: b.id,
        birth: b.birth,
        death: b.death,
        size: b.size,
        alignment: if b.alignment == 0 { 1 } else { b.alignment },
        fixed: Some(b.fixed_offset).filter(|at| *at != FOREBAY_PLAN_ANYWHERE),
    }
}

/// Plans, and tells how far it is where that is asked for.
fn solve(buffers: &[Buffer], options: Option<PlanOptions>) -> Result<Planned> {
    let asked = to_options(options)?;
    let Some((progress, ctx)) = options.and_then(|o| Some((o.progress?, o.progress_ctx))) else {
        return plan::solve(buffers, &asked);
    };
    let mut report = |state: &Progress| {
        let value = PlanProgress {
            struct_size: size_of::<PlanProgress>(),
            height: state.height.unwrap_or(0),
            bound: state.bound,
            effort: state.effort,
            elapsed_ms: state.elapsed.as_millis() as u64,
        };
        // SAFETY: callable with its context, as the caller of the C function promised; `value`
        // lives through the call, and no lock is held.
        unsafe { progress(ctx, &raw const value) != 0 }
    };
    plan::solve_with(buffers, &asked, &mut report)
}

/// What is asked of the planner, but for the progress.
pub(super) fn to_options(options: Option<PlanOptions>) -> Result<Options> {
    let Some(o) = options else { return Ok(Options::default()) };
    if o.flags != 0 || o.racing > 1 {
        let text = format!("flags {:#x} or racing {} are unknown; use 0", o.flags, o.racing);
        return Err(Error::new(Status::InvalidArgument, text));
    }
    Ok(Options {
        capacity: Some(o.capacity).filter(|bytes| *bytes != 0),
        seed: o.seed,
        effort: o.effort,
        time: Some(o.time_ms).filter(|ms| *ms != 0).map(Duration::from_millis),
        searchers: o.searchers,
        threads: o.threads,
        racing: o.racing == 1,
        stop: None,
    })
}
