//! Running steps by plans: bindings of plans to pools, and the step that is open.

use super::list;
use super::plan::PlanT;
use super::{PoolT, StreamT, put, read_sized, write_sized};
use crate::error::Status;
use crate::plan::handles;
use crate::pool::slow::guarded;
use crate::step::binding::{self, Setup};
use crate::step::{Totals, hot, slow};
use std::ffi::c_void;

/// A block of a pool, and the plans that share it. Opaque; use [`BindingT`].
pub struct Binding {
    _private: (),
}

/// A binding's handle. NULL names none.
pub type BindingT = *mut Binding;

/// A step that is open. Opaque; use [`StepT`].
pub struct Step {
    _private: (),
}

/// A step's handle. NULL names none.
pub type StepT = *mut Step;

/// What a binding is made with. Fill it with forebay_binding_options_init(), then change fields.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct BindingOptions {
    /// sizeof of this structure, as set by forebay_binding_options_init().
    pub struct_size: usize,
    /// Bytes of the plan block: no plan may take more. 0: it grows with the plans.
    pub bytes: u64,
    /// The plan block begins at a multiple of this power of two, up to 2 MiB.
    pub alignment: u64,
    /// The most plans kept, 1 to 4096: the one run longest ago goes for one more.
    pub plans_max: u32,
    /// When more than so many % of a step's allocations were not as recorded, the next step of its
    /// signature is recorded and planned anew; 0: never.
    pub replan_percent: u32,
}

/// What a binding has done so far.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct BindingStats {
    /// sizeof of this structure as the caller knows it; set before the call.
    pub struct_size: usize,
    /// Steps that have ended.
    pub steps: u64,
    /// Allocations that a plan served.
    pub served: u64,
    /// Allocations of buffers that outlive the step, served by the pool as recorded.
    pub by_pool: u64,
    /// Allocations that the pool served because they were not as recorded, or their bytes in use.
    pub fallbacks: u64,
    /// Recorded allocations that did not come.
    pub missing: u64,
    /// Frees of planned buffers later than recorded, or on another lane.
    pub late: u64,
    /// Allocations by forebay_step_alloc_within() out of bytes that the plan leaves free.
    pub gaps_served: u64,
    /// Those that the pool served.
    pub gaps_missed: u64,
    /// Recorded fences issued again: those that the reuse of bytes needs. All, where a buffer was
    /// freed on another lane than its own, was told to be used by another one, or outlives the
    /// step; where a block that is older than the step was freed in it; where the step was learnt
    /// over a plan, or the plan's file does not tell; where the choice would take too long; and in
    /// a step that goes another way, from there on.
    pub fences: u64,
    /// Times that the plan block was given up because the pool was short of memory.
    pub given_up: u64,
    /// Plans made of steps that were recorded again.
    pub replanned: u64,
    /// Bytes of the plan block; 0 while it is given up.
    pub plan_block_bytes: u64,
    /// Plans kept.
    pub plans: u64,
    /// Recorded fences left out: other fences say as much, or no bytes are shared by them.
    pub fences_left_out: u64,
}

/// Fills `options` with the defaults: a plan block that grows, 64 plans, no step recorded again.
///
/// @return FOREBAY_ERROR_INVALID_ARGUMENT for NULL.
///
/// # Safety
/// `options` is NULL or valid for the write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_binding_options_init(options: *mut BindingOptions) -> Status {
    guarded(|| {
        // SAFETY: as the caller promised.
        unsafe { put(options, defaults(), "the options") }
    })
}

/// The structure out of the room's figures, each of which has its name in it: one that is left out
/// here, there or in this list does not compile.
fn stats_of(totals: Totals) -> BindingStats {
    macro_rules! same {
        ($($name:ident),* $(,)?) => {{
            let Totals { $($name),* } = totals;
            BindingStats { struct_size: 0, $($name),* }
        }};
    }
    same! {
        steps, served, by_pool, fallbacks, missing, late, gaps_served, gaps_missed, fences,
        given_up, replanned, plan_block_bytes, plans, fences_left_out,
    }
}

fn defaults() -> BindingOptions {
    let struct_size = size_of::<BindingOptions>();
    BindingOptions { struct_size, bytes: 0, alignment: 512, plans_max: 64, replan_percent: 0 }
}

/// Binds a plan to a pool, under signature 0: one block of exactly the plan's height is allocated
/// and backed. It is given up when the pool is short of memory and no step is open; the next step
/// allocates it again. The plan may be destroyed afterwards.
///
/// @param pool NULL: the default pool.
/// @param binding receives the handle; NULL on failure.
/// @return FOREBAY_ERROR_BUSY when the plan is bound to this pool already;
/// FOREBAY_ERROR_INVALID_ARGUMENT: no such plan, or an alignment above 2 MiB; as forebay_alloc().
///
/// Thread-safe. End it with forebay_plan_unbind().
///
/// # Safety
/// `binding` is NULL or valid for the write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_plan_bind(
    plan: PlanT,
    pool: PoolT,
    binding: *mut BindingT,
) -> Status {
    guarded(|| {
        // SAFETY: as the caller promised.
        unsafe {
            put(binding, std::ptr::null_mut(), "the binding")?;
            let found = handles::get(plan as u64)?;
            let made = binding::bind(plan as u64, &found, pool as u64)?;
            put(binding, made as BindingT, "the binding")
        }
    })
}

/// Makes a binding without plans, for several that share one plan block: add them by
/// forebay_binding_add(), or have them learnt by forebay_binding_learn().
///
/// @param options NULL: the defaults.
/// @param binding receives the handle; NULL on failure.
/// @return FOREBAY_ERROR_INVALID_ARGUMENT for options out of range; as forebay_alloc().
///
/// Thread-safe. End it with forebay_plan_unbind().
///
/// # Safety
/// `options` is NULL or valid for reads of its struct_size; `binding` is NULL or valid for the
/// write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_binding_create(
    pool: PoolT,
    options: *const BindingOptions,
    binding: *mut BindingT,
) -> Status {
    guarded(|| {
        // SAFETY: as the caller promised.
        unsafe {
            put(binding, std::ptr::null_mut(), "the binding")?;
            let o = match options.is_null() {
                true => defaults(),
                false => read_sized(options, defaults(), "forebay_binding_options")?,
            };
            let setup = Setup {
                bytes: o.bytes,
                alignment: o.alignment,
                plans_max: o.plans_max as usize,
                replan_percent: o.replan_percent,
            };
            put(binding, binding::create(pool as u64, setup, 0)? as BindingT, "the binding")
        }
    })
}

/// Adds a plan under a signature, in the place of one that is there. A signature is any number that
/// tells for what shapes the plan is.
///
/// @return FOREBAY_ERROR_BUSY while a step is open; FOREBAY_ERROR_INVALID_ARGUMENT when the plan
/// takes more bytes than a plan block that does not grow, or another alignment.
///
/// Thread-safe.
#[unsafe(no_mangle)]
pub extern "C" fn forebay_binding_add(binding: BindingT, signature: u64, plan: PlanT) -> Status {
    guarded(|| {
        let plan = handles::get(plan as u64)?;
        binding::get(binding as u64)?.add(signature, &plan)
    })
}

/// Has the next step of this signature recorded, and planned at its end. Where there is no plan yet
/// the pool serves that step, on as many streams as it names; where there is one, all of its
/// recorded fences are issued and recorded again, besides those that the program asks for. A plan
/// that is kept goes only once the new one is made, if there are too many then; of shapes without
/// a plan as many may be awaited as plans are kept.
///
/// @return FOREBAY_ERROR_BUSY while a step is open.
///
/// Thread-safe.
#[unsafe(no_mangle)]
pub extern "C" fn forebay_binding_learn(binding: BindingT, signature: u64) -> Status {
    guarded(|| binding::get(binding as u64)?.learn(signature))
}

/// Reads what a binding has done. Exact while no step is open.
///
/// @param stats its struct_size is set by the caller; longer structures are zero-filled.
/// @return FOREBAY_ERROR_INVALID_ARGUMENT for NULL, no struct_size, or a handle that names none.
///
/// Thread-safe.
///
/// # Safety
/// `stats` is NULL or valid for reads and writes of its struct_size.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_binding_get_stats(
    binding: BindingT,
    stats: *mut BindingStats,
) -> Status {
    guarded(|| {
        let value = stats_of(binding::get(binding as u64)?.totals());
        // SAFETY: as the caller promised.
        unsafe { write_sized(stats, value, "forebay_binding_stats") }
    })
}

/// Ends a binding. Its plan block is freed behind all work queued so far.
///
/// @return FOREBAY_ERROR_BUSY while a step is open, or while a graph captured from a step has not
/// been released; FOREBAY_ERROR_INVALID_ARGUMENT for a handle that names none.
///
/// Thread-safe.
#[unsafe(no_mangle)]
pub extern "C" fn forebay_plan_unbind(binding: BindingT) -> Status {
    guarded(|| binding::unbind(binding as u64))
}

/// Begins a step by the plan of a signature. Each of its streams waits for all streams of the
/// binding's step before; for one stream that goes on no driver call is made. The step belongs to
/// the calling thread. Where a capture begins or ends inside it, launch its graph only when the
/// step has ended: the rest of it may get bytes that buffers had while the capture was open.
///
/// @param streams one for each lane of the plan, each once: see forebay_recording_streams().
/// @param step receives the handle; NULL on failure.
/// @return FOREBAY_ERROR_BUSY: a step of the binding is open, or a wait is needed while a graph
/// capture is open; FOREBAY_ERROR_NOT_FOUND: no plan has the signature;
/// FOREBAY_ERROR_INVALID_ARGUMENT: another number of streams, or one twice;
/// FOREBAY_ERROR_INVALID_STREAM; FOREBAY_ERROR_INVALID_POOL when the pool has been destroyed;
/// FOREBAY_ERROR_OUT_OF_MEMORY when the plan block was given up and cannot be had again.
///
/// # Safety
/// `streams` is valid for reads of `count` elements; `step` is NULL or valid for the write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_plan_step(
    binding: BindingT,
    signature: u64,
    streams: *const StreamT,
    count: usize,
    step: *mut StepT,
) -> Status {
    guarded(|| {
        // SAFETY: as the caller promised.
        unsafe {
            put(step, std::ptr::null_mut(), "the step")?;
            let named = list(streams, count, "the streams")?;
            let named: Vec<u64> = named.iter().map(|s| *s as u64).collect();
            let begun = binding::get(binding as u64)?.begin(signature, &named)?;
            put(step, begun as StepT, "the step")
        }
    })
}

/// Allocates the step's next buffer for work on one of its streams: at its planned address if it is
/// as recorded, else from the pool. Some ns where it is as recorded.
///
/// @param ptr receives the address; NULL on failure and for 0 bytes.
/// @return FOREBAY_ERROR_INVALID_ARGUMENT: the step has ended, or is another thread's;
/// FOREBAY_ERROR_INVALID_STREAM: no stream of the step; as forebay_alloc().
///
/// # Safety
/// `ptr` is NULL or valid for the write of a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_step_alloc(
    step: StepT,
    ptr: *mut *mut c_void,
    bytes: usize,
    stream: StreamT,
) -> Status {
    // SAFETY: as the caller promised.
    unsafe { hot::alloc(step as u64, ptr, bytes, stream as u64) }
}

/// Allocates a buffer that is not planned and is freed before `births` more planned ones have been
/// allocated: out of bytes that the plan leaves free until then if there are some, else from the
/// pool.
///
/// @param births UINT64_MAX: freed by the step's end; 0: not known, and the pool serves it.
/// @return as forebay_step_alloc().
///
/// # Safety
/// `ptr` is NULL or valid for the write of a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_step_alloc_within(
    step: StepT,
    ptr: *mut *mut c_void,
    bytes: usize,
    births: u64,
    stream: StreamT,
) -> Status {
    // SAFETY: as the caller promised.
    unsafe { slow::alloc_within(step as u64, ptr, bytes, births, stream as u64) }
}

/// Frees a buffer of the step, or any other block of its pool, in a stream's order: as
/// forebay_dealloc().
///
/// @param ptr NULL is fine.
/// @return as forebay_step_alloc(); FOREBAY_ERROR_DOUBLE_FREE, FOREBAY_ERROR_INTERIOR_POINTER,
/// FOREBAY_ERROR_NOT_OWNED; nothing changes then.
///
/// # Safety
/// The caller gives the buffer up. Any other address is answered with an error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_step_free(
    step: StepT,
    ptr: *mut c_void,
    stream: StreamT,
) -> Status {
    // SAFETY: as the caller promised.
    unsafe { hot::free(step as u64, ptr, stream as u64) }
}

/// Notes that work on another stream of the step uses a buffer: as forebay_record_use(). Tell every
/// use in every step, also one that was recorded: buffers are known by size and stream alone, so
/// that in a step which goes another way a recorded use may be another buffer's. In one that goes
/// as recorded it costs a lock, and changes nothing.
///
/// @return as forebay_step_free().
#[unsafe(no_mangle)]
pub extern "C" fn forebay_step_record_use(
    step: StepT,
    ptr: *mut c_void,
    stream: StreamT,
) -> Status {
    guarded(|| slow::record_use(step as u64, ptr as usize, stream as u64))
}

/// Makes later work of stream `to` wait for the work queued on `from` so far; both are streams of
/// the step. A recorded fence is issued again by itself only before the next allocation and where
/// reuse of memory needs it, and orders that alone: where work of one stream reads what another has
/// written, the program's own fence stays. So does one before the free of a buffer that is not
/// planned, or that is freed later than it was recorded, if other streams use it without a word.
///
/// @return as forebay_step_alloc(); FOREBAY_ERROR_BUSY while a graph capture is open.
#[unsafe(no_mangle)]
pub extern "C" fn forebay_step_fence(step: StepT, from: StreamT, to: StreamT) -> Status {
    guarded(|| slow::fence(step as u64, from as u64, to as u64))
}

/// Ends a step whose buffers in the plan block are all freed. Blocks that the pool served may live
/// on.
///
/// @return FOREBAY_ERROR_BUSY when some are live: the step stays open then;
/// FOREBAY_ERROR_INVALID_ARGUMENT: it has ended, or is another thread's. Another error is that of
/// planning a learnt step: it has ended.
#[unsafe(no_mangle)]
pub extern "C" fn forebay_step_end(step: StepT) -> Status {
    guarded(|| slow::end(step as u64, false))
}

/// Ends a step in any case: its buffers in the plan block are given up, as if freed now.
///
/// @return as forebay_step_end(), but never FOREBAY_ERROR_BUSY.
#[unsafe(no_mangle)]
pub extern "C" fn forebay_step_abandon(step: StepT) -> Status {
    guarded(|| slow::end(step as u64, true))
}
