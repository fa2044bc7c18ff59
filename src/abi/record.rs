//! Recording a step: what a program asks of a pool, as buffers that can be planned.

use super::plan::{PlanOptions, PlanT, answer, read_options, to_options};
use super::{PoolT, StreamT, null, put};
use crate::error::{Error, Result, Status};
use crate::plan::recording::NEVER;
use crate::pool::slow::guarded;
use crate::step::record;

/// What a program asked of a pool between two calls. Opaque; use [`RecordingT`].
pub struct Recording {
    _private: (),
}

/// A recording's handle. NULL names none.
pub type RecordingT = *mut Recording;

/// In the place of a stream: all streams of the pool.
pub const FOREBAY_ALL_STREAMS: u64 = 0x7fff_ffff_fff2;

/// The death of a recorded buffer that outlived the recording, or was freed by forebay_free().
pub const FOREBAY_RECORD_NEVER: u64 = u64::MAX;

/// A buffer of a recorded step.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct RecordedBuffer {
    /// Its number, from 0, in the order of births: its id in the step's plan.
    pub id: u64,
    /// When it was allocated, as a number of the recording's order.
    pub birth: u64,
    /// When it was freed, in the same order; FOREBAY_RECORD_NEVER for a buffer that is not planned.
    pub death: u64,
    /// Requested bytes.
    pub size: u64,
    /// Its address is a multiple of this.
    pub alignment: u64,
    /// The tag it carried.
    pub tag: u32,
    /// The lane it was allocated on: a place in the recording's streams.
    pub lane: u32,
    /// The lane it was freed on.
    pub end_lane: u32,
    /// 0.
    pub reserved: u32,
}

/// Begins to record what is allocated from a pool and freed to it by stream-ordered calls, until
/// forebay_record_end(). Meanwhile every operation takes the slow path. Memory of forebay_malloc()
/// is left out.
///
/// @param pool NULL: the default pool.
/// @param stream a stream, whose allocations are recorded, or FOREBAY_ALL_STREAMS as a pointer:
/// those of all.
/// @param recording receives the handle; NULL on failure.
/// @return FOREBAY_ERROR_BUSY while a recording is open on the pool; FOREBAY_ERROR_INVALID_POOL;
/// FOREBAY_ERROR_UNSUPPORTED where the kernel has no membarrier.
///
/// Thread-safe. End it with forebay_recording_destroy().
///
/// # Safety
/// `recording` is NULL or valid for the write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_record_begin(
    pool: PoolT,
    stream: StreamT,
    recording: *mut RecordingT,
) -> Status {
    guarded(|| {
        let only = Some(stream as u64).filter(|s| *s != FOREBAY_ALL_STREAMS);
        // SAFETY: as the caller promised.
        unsafe {
            put(recording, std::ptr::null_mut(), "the recording")?;
            put(recording, record::begin(pool as u64, only)? as RecordingT, "the recording")
        }
    })
}

/// Makes later work of stream `to` wait for the work queued on `from` so far, as an event recorded
/// on the one and awaited by the other does, and records it: a buffer that died on `from` may then
/// give its bytes to one that is born on `to`. A step that runs by the plan issues it again by
/// itself before the next allocation, if reuse of memory needs it. That orders reuse alone: between
/// its recorded place and that allocation work is unordered; a fence behind the last allocation is
/// never issued, and one that others imply, or that no reuse of bytes needs, only where all are:
/// see the fences of forebay_binding_stats. Where work of one stream reads what another has
/// written, the program's own fence stays.
///
/// @return FOREBAY_ERROR_INVALID_STREAM; FOREBAY_ERROR_BUSY while a graph capture is open;
/// FOREBAY_ERROR_INVALID_ARGUMENT when the recording has ended.
///
/// Thread-safe.
#[unsafe(no_mangle)]
pub extern "C" fn forebay_record_fence(
    recording: RecordingT,
    from: StreamT,
    to: StreamT,
) -> Status {
    guarded(|| record::fence(recording as u64, from as u64, to as u64))
}

/// Ends a recording. What it holds can be asked and planned from now on.
///
/// @return FOREBAY_ERROR_INVALID_ARGUMENT when it has ended already; FOREBAY_ERROR_INVALID_POOL
/// when its pool has been destroyed; FOREBAY_ERROR_UNSUPPORTED: more than 64 streams, or 2^24
/// events.
///
/// Thread-safe.
#[unsafe(no_mangle)]
pub extern "C" fn forebay_record_end(recording: RecordingT) -> Status {
    guarded(|| record::end(recording as u64))
}

/// The buffers of an ended recording, in the order of their births.
///
/// @param buffers receives them if capacity suffices; may be NULL when capacity is 0.
/// @param count receives how many they are; may be NULL.
/// @return FOREBAY_ERROR_INVALID_ARGUMENT when there is some capacity and it does not suffice;
/// FOREBAY_ERROR_BUSY while the recording is open.
///
/// Thread-safe.
///
/// # Safety
/// `buffers` is valid for writes of `capacity` elements; `count` is NULL or valid for the write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_recording_buffers(
    recording: RecordingT,
    buffers: *mut RecordedBuffer,
    capacity: usize,
    count: *mut usize,
) -> Status {
    guarded(|| {
        let log = record::get(recording as u64)?;
        let list: Vec<RecordedBuffer> = (0u64..).zip(&log.step.births).map(buffer).collect();
        // SAFETY: as the caller promised.
        unsafe { copy_list(&list, (buffers, capacity), count, "the buffers") }
    })
}

/// The streams of an ended recording: the first is lane 0. A step by its plan names one stream for
/// each, in this order.
///
/// @param streams receives them if capacity suffices; may be NULL when capacity is 0.
/// @param count receives how many they are; may be NULL.
/// @return as forebay_recording_buffers().
///
/// Thread-safe.
///
/// # Safety
/// `streams` is valid for writes of `capacity` elements; `count` is NULL or valid for the write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_recording_streams(
    recording: RecordingT,
    streams: *mut StreamT,
    capacity: usize,
    count: *mut usize,
) -> Status {
    guarded(|| {
        let log = record::get(recording as u64)?;
        let list: Vec<StreamT> = log.streams.iter().map(|s| *s as StreamT).collect();
        // SAFETY: as the caller promised.
        unsafe { copy_list(&list, (streams, capacity), count, "the streams") }
    })
}

/// Lets a recording go; one that is open ends. Plans made of it stay.
///
/// @return FOREBAY_ERROR_INVALID_ARGUMENT for a handle that names none.
///
/// Thread-safe.
#[unsafe(no_mangle)]
pub extern "C" fn forebay_recording_destroy(recording: RecordingT) -> Status {
    guarded(|| record::let_go(recording as u64))
}

/// Makes a plan for a recorded step: for its buffers that were born and died in it, whose ids
/// are their numbers. Those of several lanes share bytes only where recorded fences allow it.
///
/// @param options NULL: the defaults.
/// @param plan receives the handle; NULL on failure.
/// @return as forebay_plan_create(); FOREBAY_ERROR_INVALID_ARGUMENT for more than 2^24 buffers,
/// uses and fences, divided by the lanes; FOREBAY_ERROR_BUSY while the recording is open.
///
/// Thread-safe; needs no device. End the plan with forebay_plan_destroy().
///
/// # Safety
/// `options` is NULL or valid for reads; `plan` is NULL or valid for the write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_plan_create_from_recording(
    recording: RecordingT,
    options: *const PlanOptions,
    plan: *mut PlanT,
) -> Status {
    // SAFETY: as the caller promised.
    unsafe {
        answer(plan, || {
            let log = record::get(recording as u64)?;
            log.step.clone().plan(&to_options(read_options(options)?)?)
        })
    }
}

fn buffer((id, b): (u64, &crate::plan::recording::Recorded)) -> RecordedBuffer {
    const { assert!(FOREBAY_RECORD_NEVER == NEVER) };
    RecordedBuffer {
        id,
        birth: b.birth,
        death: b.death,
        size: b.size,
        alignment: b.alignment,
        tag: b.tag,
        lane: u32::from(b.lane),
        end_lane: u32::from(b.end_lane),
        reserved: 0,
    }
}

/// Writes a list and its length to C.
///
/// # Safety
/// `to` is valid for writes of `capacity` elements; `count` is NULL or valid for the write.
unsafe fn copy_list<T: Copy>(
    list: &[T],
    (to, capacity): (*mut T, usize),
    count: *mut usize,
    what: &str,
) -> Result<()> {
    if to.is_null() && capacity > 0 {
        return Err(null(what));
    }
    if !count.is_null() {
        // SAFETY: as the caller promised.
        unsafe { count.write(list.len()) };
    }
    if capacity == 0 {
        return Ok(());
    }
    if capacity < list.len() {
        let text = format!("{} of {what}; there is room for {capacity}", list.len());
        return Err(Error::new(Status::InvalidArgument, text));
    }
    // SAFETY: not null, and room as the caller promised.
    unsafe { std::ptr::copy_nonoverlapping(list.as_ptr(), to, list.len()) };
    Ok(())
}
