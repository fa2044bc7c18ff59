//! A pool's log as a step: buffers, lanes, fences; and recordings by number.
//!
//! Owns the recordings that programs hold, open and ended. What was allocated by `cudaMalloc`'s
//! meaning is left out: no lane orders it. What outlives the recording, or is freed by `cudaFree`'s
//! meaning, keeps its place in the order and stays the pool's. What is freed on a stream and was
//! not born in the step is not in it, but relies on its fences: all of these are kept. Promises
//! that an open recording ends when it is destroyed. Cost: O(n) for n events.

use crate::base::handles::Handles;
use crate::error::{Error, Result, Status};
use crate::plan::recording::{Fence, LANES_MAX, NEVER, Recorded, Recording};
use crate::pool::Pool;
use crate::pool::record::{Event, is_sync};
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Every planned address is a multiple of this: what PyTorch's allocator gives.
pub const ALIGNMENT: u64 = 512;

/// A step that was recorded.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct StepLog {
    /// Its buffers, lanes and fences.
    pub step: Recording,
    /// The stream of each lane, in the order in which they came.
    pub streams: Vec<u64>,
    /// Frees of what was not born in it.
    pub older: u64,
    /// Buffers that it left live, or that no lane freed.
    pub outliving: u64,
}

/// The step in a log. Its first lanes are those streams, known or not; others follow as they come.
///
/// # Errors
/// [`Status::Unsupported`]: more than 64 streams.
pub fn read(events: &[Event], streams: Vec<u64>) -> Result<StepLog> {
    let mut found = StepLog { streams, ..StepLog::default() };
    let mut live: HashMap<usize, usize> = HashMap::new();
    let mut left_out: HashSet<usize> = HashSet::new();
    for (time, event) in (0u64..).zip(events) {
        match *event {
            // One that was freed unseen before has no end that is known.
            Event::Gone { address } => drop(live.remove(&address)),
            Event::Alloc { address, stream, .. } if is_sync(stream) => {
                live.remove(&address);
                left_out.insert(address);
            }
            Event::Alloc { address, bytes, align, stream, tag } => {
                let lane = lane(&mut found.streams, stream)?;
                left_out.remove(&address);
                live.insert(address, found.step.births.len());
                found.step.births.push(Recorded {
                    birth: time,
                    death: NEVER,
                    size: bytes,
                    alignment: align.max(ALIGNMENT),
                    tag: u32::from(tag),
                    lane,
                    end_lane: lane,
                });
            }
            Event::Free { address, stream } => match live.remove(&address) {
                None => {
                    found.older += u64::from(!left_out.remove(&address));
                    // Who has its memory next is behind its work by fences.
                    found.step.keeps_fences |= !is_sync(stream);
                }
                Some(_) if is_sync(stream) => {}
                Some(at) => {
                    let lane = lane(&mut found.streams, stream)?;
                    let buffer = &mut found.step.births[at];
                    (buffer.death, buffer.end_lane) = (time, lane);
                }
            },
            Event::Use { address, stream } => {
                if let Some(&at) = live.get(&address) {
                    let lane = lane(&mut found.streams, stream)?;
                    found.step.uses.push((at as u32, lane));
                }
            }
            Event::Fence { from, to } => {
                let (from, to) = (lane(&mut found.streams, from)?, lane(&mut found.streams, to)?);
                found.step.fences.push(Fence { time, from, to });
            }
        }
    }
    found.step.lanes = found.streams.len() as u16;
    found.outliving = found.step.births.iter().filter(|b| b.death == NEVER).count() as u64;
    // A use on the lane that frees says nothing more.
    let births = &found.step.births;
    found.step.uses.retain(|&(at, lane)| births[at as usize].end_lane != lane);
    Ok(found)
}

fn lane(streams: &mut Vec<u64>, stream: u64) -> Result<u16> {
    if let Some(known) = streams.iter().position(|s| *s == stream) {
        return Ok(known as u16);
    }
    if streams.len() >= LANES_MAX {
        let text = format!("a step with more than {LANES_MAX} streams cannot be planned");
        return Err(Error::new(Status::Unsupported, text));
    }
    streams.push(stream);
    Ok(streams.len() as u16 - 1)
}

/// A recording that a program holds.
#[derive(Debug)]
pub struct Held {
    pool: Pool,
    number: u64,
    stage: Mutex<Stage>,
}

/// How far a recording is.
#[derive(Debug)]
enum Stage {
    Open,
    /// It has ended; what it holds is being read, without the lock.
    Reading,
    /// What it has recorded, or why that cannot be told.
    Ended(Result<Arc<StepLog>>),
}

impl Held {
    fn stage(&self) -> MutexGuard<'_, Stage> {
        self.stage.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let stage = self.stage.get_mut().unwrap_or_else(PoisonError::into_inner);
        if matches!(stage, Stage::Open) {
            // A pool that has ended took its recording with it.
            let _log = self.pool.end_recording(self.number);
        }
    }
}

static RECORDINGS: Handles<Held> = Handles::new("recording");

/// Begins a recording of a pool: of one stream's allocations, or of all. Its number.
///
/// # Errors
/// As [`Pool::begin_recording`]; [`Status::InvalidPool`].
pub fn begin(pool: u64, only: Option<u64>) -> Result<u64> {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    let pool = Pool::from_handle(pool)?;
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    pool.begin_recording(number, only)?;
    RECORDINGS.keep(Arc::new(Held { pool, number, stage: Mutex::new(Stage::Open) }))
}

/// Makes later work of `to` wait for the work queued on `from`, and records it.
///
/// # Errors
/// As [`Pool::fence_recorded`]; [`Status::InvalidArgument`] for a recording that has ended.
pub fn fence(recording: u64, from: u64, to: u64) -> Result<()> {
    let held = RECORDINGS.get(recording)?;
    if !matches!(*held.stage(), Stage::Open) {
        return Err(Error::new(Status::InvalidArgument, "the recording has ended"));
    }
    held.pool.fence_recorded(from, to)
}

/// Ends a recording; what it has recorded can be asked from now on. One that cannot be read has
/// ended too, and answers why each time that it is asked.
///
/// # Errors
/// As [`Pool::end_recording`] and [`read`]; [`Status::InvalidPool`] when the pool has ended.
pub fn end(recording: u64) -> Result<()> {
    let held = RECORDINGS.get(recording)?;
    let mut stage = held.stage();
    if !matches!(*stage, Stage::Open) {
        return Err(Error::new(Status::InvalidArgument, "the recording has ended already"));
    }
    let log = held.pool.end_recording(held.number);
    let over = |error: &Error| matches!(error.status(), Status::Unsupported | Status::InvalidPool);
    if let Err(error) = &log
        && !over(error)
    {
        return Err(error.clone());
    }
    *stage = Stage::Reading;
    drop(stage);
    // A process that is forked meanwhile finds no lock held.
    let found = log.and_then(|log| read(&log, Vec::new())).map(Arc::new);
    let answer = found.as_ref().map(drop).map_err(Error::clone);
    *held.stage() = Stage::Ended(found);
    answer
}

/// What an ended recording holds.
///
/// # Errors
/// [`Status::InvalidArgument`]: unknown; [`Status::Busy`]: not ended yet; that of its end.
pub fn get(recording: u64) -> Result<Arc<StepLog>> {
    let held = RECORDINGS.get(recording)?;
    match &*held.stage() {
        Stage::Open => Err(Error::new(Status::Busy, "the recording is open: end it first")),
        Stage::Reading => Err(Error::new(Status::Busy, "the recording is being ended")),
        Stage::Ended(found) => found.clone(),
    }
}

/// Lets a recording go; an open one ends.
///
/// # Errors
/// As [`Handles::let_go`].
pub fn let_go(recording: u64) -> Result<()> {
    RECORDINGS.let_go(recording).map(drop)
}
