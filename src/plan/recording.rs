//! A step as it was recorded: which buffers, in what order, on which lanes, with which fences.
//!
//! A **lane** here is one stream of the step, numbered from 0. **Times** are numbers that grow with
//! the program's order; at one time deaths come first, then fences, then births. A **fence** makes
//! later work of one lane wait for the work of another. What outlives the step, or is freed by a
//! meaning that no lane orders, has the death [`NEVER`]: it keeps its place in the order and is not
//! planned.
//!
//! Owns the checks of such a list and the way from one to a plan: one lane is the planner's own
//! problem; of several, [`order`] says which buffers may not share bytes although they
//! do not meet, and the lowest of three packings is taken (see [`Recording::plan`]). Pure.
//! Cost: O(n log n), and O(n squared) for several lanes.

use super::order::Order;
use super::{Buffer, Options, Plan, order, solve};
use crate::error::{Error, Result, Status};
use std::sync::Arc;

/// The death of a buffer that is not planned.
pub const NEVER: u64 = u64::MAX;
/// The most lanes of a step.
pub const LANES_MAX: usize = 64;
/// The most buffers, uses and fences of a step, times its lanes: what is noted for each of these
/// comes to some hundred MiB, and to seconds of work.
pub const EVENTS_MAX: usize = 1 << 24;
/// The most buffers for which packings with a conflict of their own for each pair are tried.
const PAIRS_MAX: usize = 20_000;

/// A buffer of a recorded step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Recorded {
    /// When it was allocated.
    pub birth: u64,
    /// When it was freed, or [`NEVER`].
    pub death: u64,
    /// Requested bytes, not 0.
    pub size: u64,
    /// A power of two that its address is a multiple of.
    pub alignment: u64,
    /// The tag it carried.
    pub tag: u32,
    /// The lane it was allocated on.
    pub lane: u16,
    /// The lane it was freed on.
    pub end_lane: u16,
}

/// Later work of `to` waits for the work of `from`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fence {
    /// When it was issued.
    pub time: u64,
    /// The lane waited for.
    pub from: u16,
    /// The lane that waits.
    pub to: u16,
}

/// A recorded step. See the module's words.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Recording {
    /// How many lanes it has, at least 1 where there is a buffer.
    pub lanes: u16,
    /// All buffers in the order of their births.
    pub births: Vec<Recorded>,
    /// Lanes besides the freeing one whose work uses a buffer: its place in `births`, the lane.
    pub uses: Vec<(u32, u16)>,
    /// Fences in their order.
    pub fences: Vec<Fence>,
    /// Whether memory that is not in the list relies on the fences, or they may come later than
    /// the program had them: a step by the plan issues all of them.
    pub keeps_fences: bool,
}

pub(super) fn bad(text: String) -> Error {
    Error::new(Status::InvalidArgument, text)
}

impl Recording {
    /// The step that a plan without a recording stands for: one lane, births in order.
    pub fn of_plan(plan: &Plan) -> (Recording, Vec<u64>) {
        let mut order: Vec<usize> = (0..plan.buffers().len()).collect();
        order.sort_by_key(|&i| plan.buffers()[i].birth);
        let of = |&i: &usize| {
            let Buffer { birth, death, size, alignment, .. } = plan.buffers()[i];
            Recorded { birth, death, size, alignment, tag: 0, lane: 0, end_lane: 0 }
        };
        let births = order.iter().map(of).collect();
        let offsets = order.iter().map(|&i| plan.offsets()[i]).collect();
        (Recording { lanes: 1, births, ..Recording::default() }, offsets)
    }

    /// Checks the list. Sizes and alignments of what is planned are the planner's to check.
    ///
    /// # Errors
    /// [`Status::InvalidArgument`] names what is wrong.
    pub fn check(&self) -> Result<()> {
        if usize::from(self.lanes) > LANES_MAX {
            return Err(bad(format!("{} lanes; at most {LANES_MAX}", self.lanes)));
        }
        let events = self.births.len() + self.uses.len() + self.fences.len();
        let most = EVENTS_MAX / usize::from(self.lanes).max(1);
        if events > most {
            return Err(bad(format!(
                "{events} buffers, uses and fences; at most {most} on {} lanes",
                self.lanes
            )));
        }
        let lane = |lane: u16| lane < self.lanes;
        for (i, b) in self.births.iter().enumerate() {
            if !lane(b.lane) || !lane(b.end_lane) {
                return Err(bad(format!("buffer {i} is on a lane that the step has not")));
            }
            if b.size == 0 {
                return Err(bad(format!("buffer {i} has size 0: leave it out")));
            }
            if b.death == NEVER && !b.alignment.is_power_of_two() {
                let alignment = b.alignment;
                return Err(bad(format!("buffer {i} has alignment {alignment}: no power of two")));
            }
        }
        if !self.births.is_sorted_by_key(|b| b.birth) {
            return Err(bad("the buffers are not in the order of their births".to_owned()));
        }
        if !self.fences.is_sorted_by_key(|f| f.time) {
            return Err(bad("the fences are not in their order".to_owned()));
        }
        if let Some(f) = self.fences.iter().find(|f| !lane(f.from) || !lane(f.to)) {
            return Err(bad(format!("a fence of lanes {} and {}, which are not", f.from, f.to)));
        }
        let known = |&(at, user): &(u32, u16)| (at as usize) < self.births.len() && lane(user);
        if !self.uses.iter().all(known) {
            return Err(bad("a use of no buffer, or on no lane".to_owned()));
        }
        Ok(())
    }

    /// The buffers that can be planned; ids are their places in `births`.
    pub fn buffers(&self) -> Vec<Buffer> {
        let planned = (0u64..).zip(&self.births).filter(|(_, b)| b.death != NEVER);
        planned
            .map(|(id, b)| Buffer {
                alignment: b.alignment,
                ..Buffer::new(id, b.birth, b.death, b.size)
            })
            .collect()
    }

    /// Makes the step's plan. With several lanes, the lowest of: lifetimes drawn out until every
    /// lane is ordered behind them; the lanes one above the other; first fit by the exact
    /// conflicts, for up to 20,000 buffers. Its bound is that of one lane.
    ///
    /// # Errors
    /// As [`solve`]; [`Status::InvalidArgument`] as [`Recording::check`].
    pub fn plan(self, options: &Options) -> Result<Plan> {
        self.check()?;
        let buffers = self.buffers();
        if self.lanes <= 1 && self.uses.is_empty() {
            let plan = solve(&buffers, options)?;
            return Ok(plan.with_recording(Arc::new(self)));
        }
        let order = Order::new(&self);
        let free = Options { capacity: None, ..options.clone() };
        let mut best = drawn_out(&self, &order, &buffers, &free)?;
        best = lower(best, stacked(&self, &order, &buffers, &free)?, &buffers);
        if buffers.len() <= PAIRS_MAX {
            for fit in order::first_fits(&self, &order, &buffers) {
                best = lower(best, fit, &buffers);
            }
        }
        let (found, most) = (height(&best, &buffers), options.capacity.unwrap_or(u64::MAX));
        if found > most {
            let text = format!(
                "no plan of {most} bytes or less was found for {} lanes; the lowest takes {found}",
                self.lanes
            );
            return Err(Error::new(Status::NotFound, text));
        }
        let plan = Plan::lowest_of(buffers, best)?.with_recording(Arc::new(self));
        plan.check_lanes().map_err(|why| {
            Error::new(Status::Internal, format!("a wrong plan was made: {}", why.message()))
        })?;
        Ok(plan)
    }
}

fn height(offsets: &[u64], buffers: &[Buffer]) -> u64 {
    offsets.iter().zip(buffers).map(|(offset, b)| offset + b.size).max().unwrap_or(0)
}

fn lower(a: Vec<u64>, b: Vec<u64>, buffers: &[Buffer]) -> Vec<u64> {
    if height(&b, buffers) < height(&a, buffers) { b } else { a }
}

/// Each buffer lives on until all lanes with later births are ordered behind its death.
fn drawn_out(
    recording: &Recording,
    order: &Order,
    buffers: &[Buffer],
    options: &Options,
) -> Result<Vec<u64>> {
    let longer: Vec<Buffer> = buffers
        .iter()
        .map(|b| {
            let lanes = 0..recording.lanes;
            let ready = lanes.map(|lane| order.ready(b.id as u32, lane)).max();
            Buffer { death: ready.unwrap_or(b.death).max(b.death), ..*b }
        })
        .collect();
    Ok(solve(&longer, options)?.offsets().to_vec())
}

/// Each lane's buffers in bytes of their own.
fn stacked(
    recording: &Recording,
    order: &Order,
    buffers: &[Buffer],
    options: &Options,
) -> Result<Vec<u64>> {
    let mut offsets = vec![0; buffers.len()];
    let align = buffers.iter().map(|b| b.alignment).max().unwrap_or(1);
    let mut base = 0;
    for lane in 0..recording.lanes {
        let own = |b: &&Buffer| recording.births[b.id as usize].lane == lane;
        let part: Vec<Buffer> = buffers
            .iter()
            .filter(own)
            .map(|b| Buffer { death: order.ready(b.id as u32, lane).max(b.death), ..*b })
            .collect();
        let plan = solve(&part, options)?;
        for (at, b) in buffers.iter().enumerate().filter(|(_, b)| own(b)) {
            offsets[at] = base + plan.offset_of(b.id).unwrap_or(0);
        }
        base = super::align_up(base + plan.height(), align);
    }
    Ok(offsets)
}
