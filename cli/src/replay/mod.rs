//! Replay: a trace's events played through a target, and the figures of the run.
//!
//! Owns the loop, its clock and the sampling; promises that the clock covers the allocator's
//! calls and the loop around them only (figures are read with the clock stopped), that the
//! warm-up is exactly the first third of the events, and that every block is freed at the
//! end, also after a failure. Must not touch memory unless asked. Cost: about 2 ns an event
//! beside the target's own.

mod outcome;
mod smallest;
mod threads;

pub use outcome::Outcome;
pub use smallest::{Search, smallest_device};
pub use threads::run_threads;

use std::fmt;
use std::ops::Range;

use crate::cpu_time::thread_cpu_ns;
use crate::progress::Progress;
use crate::target::{Target, TargetError, TargetStats};
use crate::trace::{Kind, Trace};

/// How a trace is played.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Options {
    /// Write every block after its allocation. The clock then covers the queueing of it.
    pub touch: bool,
    /// Events between two readings of the target's figures; at least 1.
    pub stats_every: usize,
}

impl Default for Options {
    fn default() -> Options {
        Options { touch: false, stats_every: 256 }
    }
}

/// An event that could not be played.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ReplayError {
    /// The trace's name.
    pub trace: String,
    /// The event's number, from 1; 0 when none was reached.
    pub event: usize,
    /// What was being done, in words.
    pub action: String,
    /// What the target said.
    pub cause: TargetError,
}

impl fmt::Display for ReplayError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.event == 0 {
            return write!(f, "{}: {}: {}", self.trace, self.action, self.cause);
        }
        write!(f, "{}: event {} ({}): {}", self.trace, self.event, self.action, self.cause)
    }
}

impl std::error::Error for ReplayError {}

/// The end of the warm-up: the number of events in the first third, rounded up.
pub fn warmup_events(events: usize) -> usize {
    events.div_ceil(3)
}

/// Plays the whole trace on the calling thread.
pub fn run<T: Target>(
    trace: &Trace,
    target: &mut T,
    options: Options,
    progress: &mut Progress,
) -> Result<Outcome, ReplayError> {
    let mut player = Player::new(trace, options);
    let third = warmup_events(trace.events.len());
    let (mut warm, mut before) = (TargetStats::default(), 0);
    let mut played = player.play(0..third, target, progress);
    if played.is_ok() {
        (warm, before) = (target.stats(), player.cpu_ns);
        played = player.play(third..trace.events.len(), target, progress);
    }
    let end = target.stats();
    let freed = player.free_rest(target);
    played.and(freed)?;
    let watch = player.watch;
    Ok(Outcome {
        events: trace.events.len() as u64,
        threads: 1,
        peak_live_bytes: trace.peak_live_bytes,
        cpu_ns: player.cpu_ns,
        warm_cpu_ns: player.cpu_ns - before,
        watch,
        warm,
        end,
        left_bytes: trace.left_bytes,
        leaked_bytes: target.stats().live_bytes,
    })
}

/// Sampled figures of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Watch {
    /// Largest sampled [`TargetStats::trapped_bytes`].
    pub trapped_peak_bytes: u64,
    /// Largest sampled [`TargetStats::requested_bytes`].
    pub requested_peak_bytes: u64,
    trapped_sum: u128,
    samples: u64,
}

impl Watch {
    fn sample(&mut self, stats: &TargetStats) {
        self.trapped_peak_bytes = self.trapped_peak_bytes.max(stats.trapped_bytes);
        self.requested_peak_bytes = self.requested_peak_bytes.max(stats.requested_bytes);
        self.trapped_sum += u128::from(stats.trapped_bytes);
        self.samples += 1;
    }

    fn merge(&mut self, other: &Watch) {
        self.trapped_peak_bytes = self.trapped_peak_bytes.max(other.trapped_peak_bytes);
        self.requested_peak_bytes = self.requested_peak_bytes.max(other.requested_peak_bytes);
        self.trapped_sum += other.trapped_sum;
        self.samples += other.samples;
    }

    /// The mean of the sampled trapped bytes, 0 without samples.
    pub fn trapped_mean_bytes(&self) -> u64 {
        let mean = self.trapped_sum / u128::from(self.samples.max(1));
        u64::try_from(mean).unwrap_or(u64::MAX)
    }
}

/// One thread's play of a trace.
struct Player<'a> {
    trace: &'a Trace,
    options: Options,
    /// By id; 0 where nothing is live (no target gives out address 0).
    addresses: Vec<u64>,
    cpu_ns: u64,
    watch: Watch,
}

impl<'a> Player<'a> {
    fn new(trace: &'a Trace, options: Options) -> Player<'a> {
        let addresses = vec![0; trace.ids as usize];
        Player { trace, options, addresses, cpu_ns: 0, watch: Watch::default() }
    }

    fn play<T: Target>(
        &mut self,
        range: Range<usize>,
        target: &mut T,
        progress: &mut Progress,
    ) -> Result<(), ReplayError> {
        let mut at = range.start;
        while at < range.end {
            let end = at.saturating_add(self.options.stats_every.max(1)).min(range.end);
            let start = thread_cpu_ns();
            let done = self.chunk(at..end, target);
            self.cpu_ns += thread_cpu_ns().saturating_sub(start);
            done?;
            let stats = target.stats();
            self.watch.sample(&stats);
            progress.update(end as u64, || {
                let (live, mapped) = (stats.requested_bytes >> 20, stats.mapped_bytes >> 20);
                format!("live {live} MiB, mapped {mapped} MiB, {} calls", stats.calls.total())
            });
            at = end;
        }
        Ok(())
    }

    fn chunk<T: Target>(&mut self, range: Range<usize>, target: &mut T) -> Result<(), ReplayError> {
        for (at, event) in self.trace.events[range.clone()].iter().enumerate() {
            let place = &mut self.addresses[event.id() as usize];
            let stream = event.stream();
            let done = match event.kind() {
                Kind::Alloc(bytes) => match target.alloc(bytes, stream) {
                    Ok(address) => {
                        *place = address;
                        let touch = self.options.touch;
                        if touch { target.touch(address, bytes, stream) } else { Ok(()) }
                    }
                    Err(cause) => Err(cause),
                },
                Kind::Free => target.free(std::mem::take(place), stream),
            };
            if let Err(cause) = done {
                return Err(self.failed(range.start + at, cause));
            }
        }
        Ok(())
    }

    /// Frees what is still live, so that what stays is the target's own leak.
    fn free_rest<T: Target>(&mut self, target: &mut T) -> Result<(), ReplayError> {
        for place in &mut self.addresses {
            let address = std::mem::take(place);
            if address == 0 {
                continue;
            }
            if let Err(cause) = target.free(address, 0) {
                return Err(ReplayError {
                    trace: self.trace.name.clone(),
                    event: self.trace.events.len(),
                    action: "free what is left at the end".to_string(),
                    cause,
                });
            }
        }
        Ok(())
    }

    #[cold]
    fn failed(&self, at: usize, cause: TargetError) -> ReplayError {
        let event = self.trace.events[at];
        let action = match event.kind() {
            Kind::Alloc(bytes) => format!("allocate {bytes} bytes"),
            Kind::Free => format!("free block {}", event.id()),
        };
        ReplayError { trace: self.trace.name.clone(), event: at + 1, action, cause }
    }
}
