//! Points in streams' orders, for rooms above: marked now, waited for later.
//!
//! A point is a stamp of the stream's lane (room `stream`): it stands for all work queued on the
//! stream by then, and stays true when the stream is retired. Marking makes no driver call;
//! waiting records a fence where there is none yet. Promises that nothing is recorded or awaited
//! while a capture is open: a wait that would need it is [`Status::Busy`]. Cost: the core's lock.

use super::core::unknown_stream;
use super::hot::SYNC_STREAM;
use super::{HANDLE_SHIFT, Pool, control};
use crate::driver::StreamHandle;
use crate::error::{Error, Result, Status};
use crate::stream::{LaneId, Stamp};

/// One name for each stream: 1 is the default stream's second.
#[inline]
pub fn stream_name(stream: u64) -> u64 {
    if stream == 1 { 0 } else { stream }
}

impl Pool {
    fn lane_of(&self, core: &mut super::core::Core, stream: u64) -> Result<LaneId> {
        if stream == SYNC_STREAM {
            return Err(unknown_stream(stream));
        }
        core.lane((self.id << HANDLE_SHIFT) ^ stream, stream)
    }

    /// The point that the stream has come to.
    ///
    /// # Errors
    /// [`Status::InvalidStream`], [`Status::InvalidPool`], [`Status::ContextLost`].
    pub fn point(&self, stream: u64) -> Result<Stamp> {
        self.with_core(|core| {
            let lane = self.lane_of(core, stream)?;
            Ok(core.lanes.stamp(lane, 0))
        })?
    }

    /// Makes later work of `stream` wait for these points; its own, and those passed, cost nothing.
    ///
    /// # Errors
    /// As [`Pool::point`]; [`Status::Busy`] when a capture is open (or has the memory still) and a
    /// fence would be needed; [`Status::Driver`]. Some waits may have been queued then.
    pub fn wait_for_points(&self, stream: u64, points: &[Stamp]) -> Result<()> {
        self.with_core(|core| {
            let lane = self.lane_of(core, stream)?;
            let handle = StreamHandle(stream_name(stream));
            let driver = std::sync::Arc::clone(core.driver());
            let (open, own) = (core.lanes.open_captures() > 0, core.lanes.is_capture(lane));
            for &point in points {
                if point.lane == lane || core.lanes.passed(point) {
                    continue;
                }
                let waited = if open || own {
                    false
                } else {
                    let waited = core.lanes.wait_in(&*driver, (lane, handle), point);
                    waited.map_err(control::driver_error)?
                };
                if !waited {
                    return Err(Error::new(
                        Status::Busy,
                        format!(
                            "stream {stream:#x} is to wait for other work, and a graph capture \
                             is open or keeps that work's memory: end and release it first"
                        ),
                    ));
                }
            }
            Ok(())
        })?
    }

    /// Makes later work of `to` wait for the work queued on `from` so far.
    ///
    /// # Errors
    /// As [`Pool::wait_for_points`].
    pub fn fence(&self, from: u64, to: u64) -> Result<()> {
        let point = self.point(from)?;
        self.wait_for_points(to, &[point])
    }

    /// Whether a capture is open that forbids fences.
    pub fn captures_open(&self) -> Result<bool> {
        self.with_core(|core| core.lanes.open_captures() > 0)
    }

    /// The captures of these streams that have ended and are not released, by number.
    pub fn captures_over(&self, streams: &[u64]) -> Result<Vec<u64>> {
        let keys = self.keys(streams);
        self.with_core(|core| {
            let open = core.captures_on(&keys, true);
            let all = core.captures_on(&keys, false).into_iter();
            all.filter(|one| !open.contains(one)).map(|(number, _)| number).collect()
        })
    }

    /// Points in the captures of these streams that are not released, but for those `over` before:
    /// where work that was queued since then may be.
    pub fn captures_since(&self, streams: &[u64], over: &[u64]) -> Result<Vec<Stamp>> {
        let keys = self.keys(streams);
        self.with_core(|core| {
            let all = core.captures_on(&keys, false).into_iter();
            let since = all.filter(|(number, _)| !over.contains(number));
            since.map(|(_, lane)| core.lanes.stamp(lane, 0)).collect()
        })
    }

    fn keys(&self, streams: &[u64]) -> Vec<u64> {
        streams.iter().map(|stream| (self.id << HANDLE_SHIFT) ^ stream).collect()
    }

    /// Whether one of the points is a capture's that is not released: its graph may run again.
    pub fn any_captured(&self, points: &[Stamp]) -> Result<bool> {
        self.with_core(|core| points.iter().any(|&point| core.lanes.awaits_graph(point)))
    }
}
