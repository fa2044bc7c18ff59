//! Copies of blocks that the cache asks for, queued on a stream.
//!
//! Owns the copies that were taken from the cache and are not all queued, because a call failed.
//! Promises that both ends stay held until a fence behind every copy that was queued, on whatever
//! stream, has passed; and that none is lost. Cost: a copy a block where a block's layers lie
//! together, else one a layer.

use super::{Inner, KvMemory, NO_GROUP, Result, locked};
use crate::kv::{Copies, CopyJob, Fence};
use crate::pool::world;

/// Copies that a failed call left.
#[derive(Debug, Default)]
pub(super) struct Unfinished {
    batch: Option<Copies>,
    jobs: Vec<CopyJob>,
    /// Streams on which some of them were queued.
    streams: Vec<u64>,
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
                left.streams.clear();
                left.batch = self.cache.take_copies(&mut left.jobs);
            }
            if left.batch.is_none() {
                return Ok((count, last));
            }
            self.pool.outside_capture(stream)?;
            if !left.streams.contains(&stream) {
                left.streams.push(stream);
            }
            for job in &left.jobs {
                self.queue(*job, stream)?;
            }
            // What an earlier call queued elsewhere reads and writes the same blocks.
            let fence = locked(&self.fences).behind(&self.pool, &left.streams)?;
            if let Some(batch) = left.batch.take() {
                self.cache.copied(batch, fence)?;
            }
            (count, last) = (count + left.jobs.len(), Some(fence));
        }
    }

    /// Queues the copies of one block.
    fn queue(&self, job: CopyJob, stream: u64) -> Result<()> {
        let place = self.places.get(job.group as usize).ok_or(NO_GROUP)?;
        let (stretches, bytes) = place.pieces();
        for stretch in 0..stretches {
            let at = |block: u32| self.region.base() + place.piece(block, stretch) as usize;
            self.pool.copy(at(job.to), at(job.from), bytes as usize, stream)?;
        }
        Ok(())
    }
}
