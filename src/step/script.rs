//! A plan as what a step does: births in order, frees in order, fences before births.
//!
//! Owns the lists that the hot path walks. Of the recorded fences those are in them that order
//! reuse of bytes (room `plan`, `fences`). A birth knows how many planned buffers were due since
//! the one before; a free knows when it is due. Promises that ordinals and lanes in the lists are
//! in range, and that two planned buffers at one offset are told apart by who is live. The count of
//! deaths of a birth changes within a step, when a buffer goes early or never comes; the log of
//! that is undone before the next. Cost: O(n log n) to make, 70 bytes a buffer.

use crate::error::{Error, Result, Status};
use crate::plan::Plan;
use crate::plan::recording::{Fence, LANES_MAX, NEVER, Recording};
use crate::pool::slow::ALIGN_MAX;

/// The offset of a buffer that the pool serves, as it was recorded.
pub(super) const BY_POOL: u64 = u64::MAX;
/// No free: its buffer is the pool's.
pub(super) const NO_FREE: u32 = u32::MAX;

/// One birth.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct Birth {
    /// From the plan block's start; [`BY_POOL`].
    pub(super) offset: u64,
    /// Requested bytes; 0 for the pool's, which no request that is compared has.
    pub(super) bytes: u64,
    /// Planned buffers that are due between the birth before and this one.
    pub(super) deaths: i32,
    /// Its lane.
    pub(super) lane: u16,
}

/// One free of a planned buffer.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct Free {
    /// The buffer's offset.
    pub(super) offset: u64,
    /// The buffer.
    pub(super) ordinal: u32,
    /// The birth before which it is due.
    pub(super) due: u32,
    /// The lane it was freed on.
    pub(super) lane: u16,
    /// Whether other lanes use the buffer too.
    pub(super) shared: bool,
    /// Whether fences bind other lanes' work to its life, which may use it without a word.
    pub(super) untold: bool,
}

/// A fence that comes before a birth.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wait {
    /// The birth.
    pub(super) before: usize,
    pub(super) from: u16,
    pub(super) to: u16,
}

/// What a step does.
#[derive(Debug)]
pub(super) struct Script {
    /// How many streams it names; 0: as many as it likes, since it has no buffers.
    pub(super) lanes: usize,
    /// All births, and one more that never comes.
    pub(super) births: Box<[Birth]>,
    /// Planned bytes of each birth; those of the pool's have theirs here only.
    pub(super) sizes: Box<[u64]>,
    /// Alignments of what the pool serves as recorded.
    pub(super) aligns: Box<[u64]>,
    /// Frees in order.
    pub(super) frees: Box<[Free]>,
    /// Each birth's place in `frees`.
    pub(super) free_of: Box<[u32]>,
    /// Planned births by offset.
    pub(super) by_offset: Box<[u32]>,
    /// Fences that reuse of planned bytes needs.
    pub(super) waits: Box<[Wait]>,
    /// All recorded fences, for a step that goes another way.
    pub(super) fences: Box<[Wait]>,
    /// Whether fences order nothing but what is due: one of the program's own stands for such a one
    /// as soon as all that is due is free.
    pub(super) orders_deaths: bool,
    /// Recorded fences that are not among the waits: no reuse of bytes needs them.
    pub(super) left_out: u64,
    /// Birth and lane of each recorded use by another lane, in order.
    pub(super) uses: Box<[(u32, u16)]>,
    pub(super) height: u64,
    pub(super) alignment: u64,
}

impl Script {
    /// A step that has nothing planned, on as many lanes as it likes.
    pub(super) fn empty() -> Script {
        Script { lanes: 0, ..Script::of(&Recording::default(), &[]) }
    }

    /// What a plan says to do.
    ///
    /// # Errors
    /// [`Status::InvalidArgument`]: an alignment that no block of a pool has.
    pub(super) fn new(plan: &Plan) -> Result<Script> {
        let pools = plan.recording().into_iter().flat_map(|r| &r.births).map(|b| b.alignment);
        let alignment = pools.fold(plan.alignment(), u64::max);
        if alignment > ALIGN_MAX as u64 {
            return Err(Error::new(
                Status::InvalidArgument,
                format!(
                    "the plan needs an alignment of {alignment} bytes; a pool's blocks have 2 MiB \
                     at most"
                ),
            ));
        }
        let (made, offsets) = match plan.recording() {
            Some(recording) => {
                let places = 0..recording.births.len() as u64;
                let at = |id| plan.offset_of(id).unwrap_or(BY_POOL);
                (recording.clone(), places.map(at).collect())
            }
            None => Recording::of_plan(plan),
        };
        if made.births.len() >= u32::MAX as usize {
            return Err(Error::new(Status::InvalidArgument, "the plan has too many buffers"));
        }
        debug_assert!(usize::from(made.lanes) <= LANES_MAX, "checked when the plan was made");
        let mut script = Script::of(&made, &offsets);
        (script.height, script.alignment) = (plan.height(), plan.alignment());
        Ok(script)
    }

    fn of(step: &Recording, offsets: &[u64]) -> Script {
        let before = |time: u64| step.births.partition_point(|b| b.birth < time);
        let mut births: Vec<Birth> = (step.births.iter().zip(offsets))
            .map(|(b, &offset)| {
                let bytes = if offset == BY_POOL { 0 } else { b.size };
                Birth { offset, bytes, deaths: 0, lane: b.lane }
            })
            .collect();
        births.push(Birth { offset: BY_POOL, bytes: 0, deaths: 0, lane: 0 });
        // One that never dies is planned too where a plan is not of a recording: due at the end.
        let planned = |&i: &usize| offsets[i] != BY_POOL;
        let mut dying: Vec<usize> = (0..step.births.len()).filter(planned).collect();
        dying.sort_by_key(|&i| step.births[i].death);
        let mut shared = vec![false; step.births.len()];
        step.uses.iter().for_each(|&(at, _)| shared[at as usize] = true);
        let untold = step.untold_work();
        let outlived = step.births.iter().any(|b| b.death == NEVER);
        let orders_deaths = !step.keeps_fences && !outlived && !untold.contains(&true);
        let mut uses = step.uses.clone();
        uses.sort_unstable();
        let mut free_of = vec![NO_FREE; step.births.len()];
        let mut frees = Vec::with_capacity(dying.len());
        for &i in &dying {
            let due = before(step.births[i].death);
            births[due].deaths += 1;
            free_of[i] = frees.len() as u32;
            frees.push(Free {
                offset: offsets[i],
                ordinal: i as u32,
                due: due as u32,
                lane: step.births[i].end_lane,
                shared: shared[i],
                untold: untold[i],
            });
        }
        let mut by_offset: Vec<u32> = dying.iter().map(|&i| i as u32).collect();
        by_offset.sort_unstable_by_key(|&i| (offsets[i as usize], i));
        let needed = step.needed_fences(offsets);
        let wait = |f: &Fence| Wait { before: before(f.time), from: f.from, to: f.to };
        let other = |f: &&Fence| f.from != f.to;
        let fences: Box<[Wait]> = step.fences.iter().filter(other).map(wait).collect();
        let waits: Box<[Wait]> = (step.fences.iter().zip(needed))
            .filter(|(_, needed)| *needed)
            .map(|(f, _)| wait(f))
            .collect();
        Script {
            lanes: usize::from(step.lanes),
            births: births.into(),
            sizes: step.births.iter().map(|b| b.size).collect(),
            aligns: step.births.iter().map(|b| b.alignment).collect(),
            frees: frees.into(),
            free_of: free_of.into(),
            by_offset: by_offset.into(),
            left_out: (fences.len() - waits.len()) as u64,
            waits,
            fences,
            orders_deaths,
            uses: uses.into(),
            height: 0,
            alignment: 1,
        }
    }

    /// How many births there are.
    pub(super) fn len(&self) -> usize {
        self.sizes.len()
    }

    /// Whether the birth is planned.
    pub(super) fn planned(&self, ordinal: usize) -> bool {
        self.free_of[ordinal] != NO_FREE
    }

    /// The free of a planned birth.
    pub(super) fn free(&self, ordinal: usize) -> &Free {
        &self.frees[self.free_of[ordinal] as usize]
    }

    /// First and past byte of a planned birth, from the plan block's start.
    pub(super) fn bytes(&self, ordinal: usize) -> (u64, u64) {
        let offset = self.births[ordinal].offset;
        (offset, offset + self.sizes[ordinal])
    }

    /// The planned births that begin at an offset.
    pub(super) fn at(&self, offset: u64) -> &[u32] {
        let of = |&i: &u32| self.births[i as usize].offset;
        let first = self.by_offset.partition_point(|i| of(i) < offset);
        let count = self.by_offset[first..].partition_point(|i| of(i) == offset);
        &self.by_offset[first..first + count]
    }
}
