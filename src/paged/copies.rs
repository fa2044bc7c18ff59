//! Copies of blocks that the cache asks for, queued on a stream.
//!
//! Owns the copies that were taken from the cache and are not all queued, because a call failed.
//! Promises that both ends stay held until a fence behind every copy that was queued, on whatever
//! stream, has passed; that none is lost; and that one which a failed call queued on another stream
//! is made before the next call's, so that it overwrites nothing later. Cost: a copy a
//! block where a block's layers lie together, else one a layer.

use super::{
    Inner, KvMemory, MemoryError, NO_GROUP, Result, locked, wait_for_device, wait_for_stream,
};
use crate::error::Status;
use crate::kv::{Copies, CopyJob, Fence, NO_FENCE};
use crate::pool::events::Event;
use crate::pool::{Pool, world};

/// Copies that a failed call left.
#[derive(Debug, Default)]
pub(super) struct Unfinished {
    batch: Option<Copies>,
    jobs: Vec<CopyJob>,
    /// Streams on which some of them were queued, each with an event behind these once one could
    /// be recorded: the stream may be destroyed meanwhile.
    earlier: Vec<Earlier>,
}

#[derive(Debug)]
struct Earlier {
    stream: u64,
    event: Option<Event>,
}

impl KvMemory {
    /// Queues the copies that the cache asks for on `stream`: before the work that reads or writes
    /// their targets, and, of states, before the work that goes on writing their sources. Answers
    /// how many, and the fence behind them. Whole blocks are copied. To be called before each
    /// step's work is queued, from one thread; work that writes the sources must be ordered before.
    ///
    /// # Errors
    /// A driver call's failure, or a stream that captures a graph. The copies are not lost: the
    /// next call queues all of them, and until then the work that needs them must not be queued.
    /// On another stream that call's copies wait, on the device, for the failed one's; where that
    /// one's stream is gone and has no event, the call waits for the device, and while a graph
    /// capture is open it is refused instead.
    pub fn run_copies(&self, stream: u64) -> Result<(usize, Option<Fence>)> {
        self.0.run_copies(stream)
    }
}

impl Inner {
    fn run_copies(&self, stream: u64) -> Result<(usize, Option<Fence>)> {
        world::check_world()?;
        let mut left = locked(&self.copies);
        let (mut count, mut last) = (0, None);
        loop {
            if left.batch.is_none() {
                left.jobs.clear();
                left.batch = self.cache.take_copies(&mut left.jobs);
            }
            if left.batch.is_none() {
                return Ok((count, last));
            }
            self.pool.outside_capture(stream)?;
            left.follow(&self.pool, stream)?;
            let mut begun = false;
            let queued = self.queue_all(&left.jobs, stream, &mut begun);
            let fence = match queued {
                // The stream waits for what earlier calls queued elsewhere.
                Ok(fence) => fence,
                Err(error) => {
                    if begun {
                        left.remember(&self.pool, stream);
                    }
                    return Err(error);
                }
            };
            left.earlier.clear();
            if let Some(batch) = left.batch.take() {
                self.cache.copied(batch, fence)?;
            }
            (count, last) = (count + left.jobs.len(), Some(fence));
        }
    }

    /// `begun` says whether a copy was queued, also on failure.
    fn queue_all(&self, jobs: &[CopyJob], stream: u64, begun: &mut bool) -> Result<Fence> {
        jobs.iter().try_for_each(|&job| self.queue(job, stream, begun))?;
        self.fence_behind(&[stream])
    }

    /// Waits for copies of failed calls. Refused alone while a capture forbids it.
    pub(super) fn await_copies(&self) -> Result<()> {
        for earlier in &mut locked(&self.copies).earlier {
            // Where it failed in another way the end tries again, and tells.
            if let Err(error @ MemoryError::Again(_)) = earlier.wait(&self.pool) {
                return Err(error);
            }
        }
        Ok(())
    }

    /// Waits for copies of failed calls, which are nobody's any more.
    pub(super) fn end_copies(&self) {
        let mut left = locked(&self.copies);
        for earlier in &mut left.earlier {
            if let Err(error) = earlier.wait(&self.pool) {
                tracing::warn!(%error, "copies of a KV cache's blocks were not waited for");
            }
        }
        left.earlier.clear();
        if let Some(batch) = left.batch.take()
            && let Err(error) = self.cache.copied(batch, NO_FENCE)
        {
            tracing::warn!(%error, "copies of a KV cache's blocks are still held");
        }
    }

    /// Queues the copies of one block.
    fn queue(&self, job: CopyJob, stream: u64, begun: &mut bool) -> Result<()> {
        let place = self.places.get(job.group as usize).ok_or(NO_GROUP)?;
        let (stretches, bytes) = place.pieces();
        for stretch in 0..stretches {
            let at = |block: u32| self.region.base() + place.piece(block, stretch) as usize;
            // SAFETY: the cache holds both blocks until a fence behind the copy has passed, so they
            // are below their group's end, have memory of this region, and are the job's.
            unsafe { self.pool.copy(at(job.to), at(job.from), bytes as usize, stream)? };
            *begun = true;
        }
        Ok(())
    }
}

impl Unfinished {
    /// Has a stream wait for copies that earlier calls queued on others.
    fn follow(&mut self, pool: &Pool, stream: u64) -> Result<()> {
        for earlier in &mut self.earlier {
            if earlier.stream != stream {
                earlier.mark(pool)?;
            }
            match &earlier.event {
                // Also where it is the stream's own: that one may be gone, and this another that
                // was given its handle. On its own stream the wait costs nothing.
                Some(event) => event.holds_back(stream)?,
                // The stream was destroyed before an event could be recorded; one of its handle
                // is another.
                None => wait_for_device(pool)?,
            }
        }
        Ok(())
    }

    /// A call that failed may have queued copies on a stream.
    fn remember(&mut self, pool: &Pool, stream: u64) {
        // A stream of this handle has waited for these, whosever they were (`follow`).
        self.earlier.retain(|earlier| earlier.stream != stream);
        let mut earlier = Earlier { stream, event: None };
        if let Err(error) = earlier.mark(pool) {
            tracing::debug!(%error, "copies have no event yet");
        }
        self.earlier.push(earlier);
    }
}

impl Earlier {
    /// Records an event behind the copies, unless there is one or the stream is gone.
    fn mark(&mut self, pool: &Pool) -> Result<()> {
        if self.event.is_some() {
            return Ok(());
        }
        match pool.event(self.stream) {
            Ok(event) => self.event = Some(event),
            Err(error) if error.status() == Status::InvalidStream => {}
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    /// Waits for the copies, by whatever can be waited for.
    fn wait(&mut self, pool: &Pool) -> Result<()> {
        if let Err(error) = self.mark(pool) {
            tracing::debug!(%error, "the stream is waited for instead of an event");
        }
        match &self.event {
            Some(event) if event.wait().is_ok() => Ok(()),
            _ => wait_for_stream(pool, self.stream),
        }
    }
}
