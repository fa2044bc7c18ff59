//! Events.

use crate::entry::{export, place};
use crate::state;
use crate::types::*;

export! {
    /// Makes an event.
    fn cudaEventCreate(event: *mut Event) {
        state::ready()?.cuEventCreate(place(event)?, 0)
    }

    /// Makes an event, with flags.
    fn cudaEventCreateWithFlags(event: *mut Event, flags: u32) {
        state::ready()?.cuEventCreate(place(event)?, flags)
    }

    /// Destroys an event.
    fn cudaEventDestroy(event: Event) {
        state::ready()?.cuEventDestroy(event)
    }

    /// The event is the stream's point of now.
    pair own fn cudaEventRecord, cudaEventRecord_ptsz(event: Event, stream: Stream) {
        state::ready()?.cuEventRecord(own, event, stream)
    }

    /// The event is the stream's point of now, with flags.
    pair own fn cudaEventRecordWithFlags, cudaEventRecordWithFlags_ptsz(
        event: Event, stream: Stream, flags: u32,
    ) {
        state::ready()?.cuEventRecordWithFlags(own, event, stream, flags)
    }

    /// 600 while the point is not reached.
    fn cudaEventQuery(event: Event) {
        state::ready()?.cuEventQuery(event)
    }

    /// Waits until the point is reached.
    fn cudaEventSynchronize(event: Event) {
        state::ready()?.cuEventSynchronize(event)
    }

    /// Milliseconds between two points.
    fn cudaEventElapsedTime(ms: *mut f32, start: Event, end: Event) {
        state::ready()?.cuEventElapsedTime(place(ms)?, start, end)
    }

    /// Milliseconds between two points.
    fn cudaEventElapsedTime_v2(ms: *mut f32, start: Event, end: Event) {
        state::ready()?.cuEventElapsedTime(place(ms)?, start, end)
    }
}
