//! From buffers to a plan: checks, parts, searchers, the verifier.
//!
//! Owns [`Plan`] and what a caller may ask for. Promises that a plan given has passed
//! [`super::verify`], that an error changes nothing, and that "infeasible" is said only with a
//! proof. Must not keep anything between calls. Cost: see the module's page.

use super::portfolio::{self, Goal, Pulse, Report, SEARCHERS_MAX};
use super::prepare::{Part, prepare};
use super::{Buffer, Recording, bounds, buffer, verify};
use crate::error::{Error, Result, Status};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

/// What is asked of the planner.
#[derive(Clone, Debug)]
pub struct Options {
    /// The most bytes that the plan may take; without one the plan is to be as low as possible.
    pub capacity: Option<u64>,
    /// Where random choices begin: the same seed gives the same plan.
    pub seed: u64,
    /// Effort that each searcher may take (see the module's words); `u64::MAX` for no limit.
    pub effort: u64,
    /// Time that all may take. The plan then depends on the machine's speed. One packing is
    /// made in any case.
    pub time: Option<Duration>,
    /// Searchers with random choices of their own, 1 to 256. The plan depends on it.
    pub searchers: u32,
    /// Threads that they are spread over, at most 256; 0 for one a core. The plan does not depend
    /// on it.
    pub threads: u32,
    /// Takes the searcher that is done first in time: faster, and different from call to call.
    pub racing: bool,
    /// Set it to end the search as a spent budget does.
    pub stop: Option<Arc<AtomicBool>>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            capacity: None,
            seed: 1,
            effort: 5_000_000,
            time: None,
            searchers: 1,
            threads: 0,
            racing: false,
            stop: None,
        }
    }
}

impl Options {
    fn check(&self) -> Result<()> {
        let Options { searchers, threads, capacity, .. } = *self;
        if searchers == 0 || searchers > SEARCHERS_MAX || threads > SEARCHERS_MAX {
            return Err(Error::new(
                Status::InvalidArgument,
                format!(
                    "{searchers} searchers on {threads} threads: 1 to {SEARCHERS_MAX} searchers \
                     are accepted, on at most as many threads"
                ),
            ));
        }
        if capacity.is_some_and(|bytes| bytes > buffer::BYTES_MAX) {
            let text = "the capacity is above 2^62 bytes: leave it out for the lowest plan";
            return Err(Error::new(Status::InvalidArgument, text));
        }
        Ok(())
    }

    /// Threads that a search will use.
    pub(super) fn threads_used(&self) -> usize {
        let cores = || std::thread::available_parallelism().map_or(1, usize::from);
        if self.threads == 0 { cores() } else { self.threads as usize }
    }
}

/// How far a search has come.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    /// The lowest height so far of the part that is searched, in bytes.
    pub height: Option<u64>,
    /// The bound of that part, in bytes.
    pub bound: u64,
    /// Effort so far, of the searcher that reports.
    pub effort: u64,
    /// Time since the call began.
    pub elapsed: Duration,
}

/// Offsets for buffers, verified. See the module's words.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Plan {
    buffers: Vec<Buffer>,
    offsets: Vec<u64>,
    height: u64,
    bound: u64,
    /// Places of the buffers, smallest id first.
    by_id: Vec<u32>,
    /// The step that it is of, where one was recorded.
    recording: Option<Arc<Recording>>,
}

impl Plan {
    /// A plan out of its pieces, checked and verified whole. `bound` is taken on trust where it
    /// lies between the clique bound and the height.
    ///
    /// # Errors
    /// [`Status::InvalidArgument`] says what is wrong with the buffers, the offsets or the bound.
    pub fn from_parts(buffers: Vec<Buffer>, offsets: Vec<u64>, bound: u64) -> Result<Plan> {
        buffer::check(&buffers)?;
        let height = verify::verify(&buffers, &offsets)?;
        let least = prepare(&buffers).iter().map(bounds::lower).max().unwrap_or(0);
        if bound < least || bound > height {
            return Err(Error::new(
                Status::InvalidArgument,
                format!("a bound of {bound} bytes; it lies between {least} and {height} here"),
            ));
        }
        Ok(Plan::of(buffers, offsets, height, bound))
    }

    fn of(buffers: Vec<Buffer>, offsets: Vec<u64>, height: u64, bound: u64) -> Plan {
        let mut by_id: Vec<u32> = (0..buffers.len() as u32).collect();
        by_id.sort_unstable_by_key(|&i| buffers[i as usize].id);
        Plan { buffers, offsets, height, bound, by_id, recording: None }
    }

    /// A plan whose bound is that of the cliques alone.
    pub(super) fn lowest_of(buffers: Vec<Buffer>, offsets: Vec<u64>) -> Result<Plan> {
        let bound = prepare(&buffers).iter().map(bounds::lower).max().unwrap_or(0);
        Plan::from_parts(buffers, offsets, bound)
    }

    /// The same plan, of this recorded step; ids are places in its list.
    pub(super) fn with_recording(self, recording: Arc<Recording>) -> Plan {
        Plan { recording: Some(recording), ..self }
    }

    /// The step that the plan is of, where one was recorded.
    pub fn recording(&self) -> Option<&Recording> {
        self.recording.as_deref()
    }

    /// The buffers, in the order that they were given in.
    pub fn buffers(&self) -> &[Buffer] {
        &self.buffers
    }

    /// Each buffer's offset in bytes, in the same order.
    pub fn offsets(&self) -> &[u64] {
        &self.offsets
    }

    /// The highest end: the bytes that the plan takes. Its memory must begin at a multiple of
    /// [`Plan::alignment`].
    pub fn height(&self) -> u64 {
        self.height
    }

    /// A height that no plan for these buffers can go below, in bytes.
    pub fn bound(&self) -> u64 {
        self.bound
    }

    /// The optimality gap in bytes: 0 means that no plan is lower.
    pub fn gap(&self) -> u64 {
        self.height - self.bound
    }

    /// The largest alignment of a buffer.
    pub fn alignment(&self) -> u64 {
        self.buffers.iter().map(|b| b.alignment).max().unwrap_or(1)
    }

    /// The offset of the buffer with this id. O(log n).
    pub fn offset_of(&self, id: u64) -> Option<u64> {
        let find = self.by_id.binary_search_by_key(&id, |&i| self.buffers[i as usize].id);
        find.ok().map(|at| self.offsets[self.by_id[at] as usize])
    }
}

/// Makes a plan.
///
/// # Errors
/// [`Status::InvalidArgument`] names the buffer or option that is wrong; [`Status::Infeasible`]:
/// no plan fits under the capacity, which is proven; [`Status::NotFound`]: none was found within
/// the budget, and one may exist.
pub fn solve(buffers: &[Buffer], options: &Options) -> Result<Plan> {
    solve_reporting(buffers, options, None)
}

/// As [`solve`], and tells `report` every 50 ms or so how far it is, on the calling thread; later
/// while one packing of very many buffers is made. When that answers false the search ends as if
/// its budget were spent, and nothing is told any more.
///
/// # Errors
/// As [`solve`].
pub fn solve_with(
    buffers: &[Buffer],
    options: &Options,
    report: &mut dyn FnMut(&Progress) -> bool,
) -> Result<Plan> {
    solve_reporting(buffers, options, Some(report))
}

fn solve_reporting(
    buffers: &[Buffer],
    options: &Options,
    report: Option<Report<'_>>,
) -> Result<Plan> {
    let began = Instant::now();
    let mut pulse = Pulse::new(report, began);
    options.check()?;
    buffer::check(buffers)?;
    verify::check_fixed(buffers)?;
    if let Some(capacity) = options.capacity {
        check_each(buffers, capacity)?;
    }
    let mut parts: Vec<(u64, Part)> =
        prepare(buffers).into_iter().map(|part| (bounds::lower(&part), part)).collect();
    // The part with the largest bound first: what it takes the others may take for nothing.
    parts.sort_by_key(|(bound, _)| std::cmp::Reverse(*bound));
    let mut bound = parts.first().map_or(0, |(bound, _)| *bound);
    if let Some(capacity) = options.capacity.filter(|capacity| bound > *capacity) {
        return Err(overloaded(buffers, capacity, bound));
    }
    let mut offsets = vec![0; buffers.len()];
    let (mut height, mut effort) = (0, 0);
    for (own, part) in &parts {
        let goal = Goal {
            bound: *own,
            enough: options.capacity.unwrap_or(bound.max(height)),
            strict: options.capacity.is_some(),
            effort: options.effort.saturating_sub(effort),
        };
        let state = || {
            let elapsed = began.elapsed();
            Progress { height: Some(height).filter(|h| *h > 0), bound, effort, elapsed }
        };
        // Once stopped, what is left is packed once, so that there is an answer.
        pulse.beat(state);
        let answer = portfolio::run(part, goal, options, (began, effort), &mut pulse);
        bound = bound.max(answer.bound);
        effort += answer.effort;
        if let Some(capacity) = options.capacity.filter(|capacity| answer.bound > *capacity) {
            return Err(infeasible(format!(
                "no plan takes {capacity} bytes or less: the search has excluded every one"
            )));
        }
        let Some(best) = answer.best else {
            return Err(Error::new(Status::Internal, "a packing was not made"));
        };
        if let Some(capacity) = options.capacity.filter(|capacity| best.height > *capacity) {
            return Err(not_found(capacity, best.height, bound));
        }
        height = height.max(best.height);
        for (item, offset) in part.items.iter().zip(best.offsets) {
            offsets[item.source as usize] = offset;
        }
    }
    let verified = verify::verify(buffers, &offsets).map_err(|why| {
        Error::new(Status::Internal, format!("the planner made a wrong plan: {}", why.message()))
    })?;
    debug_assert!(verified >= bound && verified == height);
    Ok(Plan::of(buffers.to_vec(), offsets, verified, bound.min(verified)))
}

fn infeasible(text: String) -> Error {
    Error::new(Status::Infeasible, text)
}

/// Whether each buffer alone fits.
fn check_each(buffers: &[Buffer], capacity: u64) -> Result<()> {
    match buffers.iter().find(|b| b.fixed.unwrap_or(0) + b.size > capacity) {
        Some(b) => {
            let at = b.fixed.map_or(String::new(), |at| format!(" at its fixed offset {at}"));
            Err(infeasible(format!(
                "buffer {} takes {} bytes{at}: more than the capacity of {capacity}",
                b.id, b.size
            )))
        }
        None => Ok(()),
    }
}

fn overloaded(buffers: &[Buffer], capacity: u64, bound: u64) -> Error {
    let (time, load) = bounds::peak(buffers);
    let why = if load > capacity {
        format!("the buffers that live at {time} come to {load}")
    } else {
        format!("with their alignment the buffers need {bound}")
    };
    infeasible(format!("no plan takes {capacity} bytes or less: {why}"))
}

fn not_found(capacity: u64, height: u64, bound: u64) -> Error {
    Error::new(
        Status::NotFound,
        format!(
            "no plan of {capacity} bytes or less was found within the budget; one may exist. The \
             lowest found takes {height}, the bound is {bound}: allow more effort, time or \
             searchers"
        ),
    )
}
