//! Replay by several threads: each plays the whole trace against one shared target.
//!
//! Promises that the threads meet at the end of the warm-up (so the figures after it belong
//! to no thread's warm-up) and that a thread that fails still meets the others. Must not
//! hold a lock while events are played. Cost: two barriers a run.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Barrier;

use super::{Options, Outcome, Player, ReplayError, Watch, warmup_events};
use crate::progress::Progress;
use crate::target::{SharedTarget, TargetError, TargetStats};
use crate::trace::Trace;

struct Share {
    cpu_ns: u64,
    warm_cpu_ns: u64,
    watch: Watch,
    warm: TargetStats,
    end: TargetStats,
}

/// Plays the trace on `threads` threads at once, each with streams of its own.
///
/// `peak_live_bytes` is then the largest sampled sum of all threads' live requests.
pub fn run_threads<T: SharedTarget>(
    trace: &Trace,
    target: &mut T,
    threads: usize,
    options: Options,
    progress: &mut Progress,
) -> Result<Outcome, ReplayError> {
    if threads <= 1 {
        return super::run(trace, target, options, progress);
    }
    let mut handles = Vec::new();
    for _ in 0..threads {
        handles.push(target.share().map_err(|cause| not_played(trace, cause))?);
    }
    let barrier = Barrier::new(threads);
    let barrier = &barrier;
    let mut shares = Vec::new();
    std::thread::scope(|scope| {
        let mut running = Vec::new();
        let mut first_progress = Some(progress);
        for handle in handles {
            let mut hidden = Progress::hidden();
            let shown = first_progress.take();
            running.push(scope.spawn(move || {
                let progress = shown.unwrap_or(&mut hidden);
                one_thread(trace, handle, options, barrier, progress)
            }));
        }
        for thread in running {
            shares.push(match thread.join() {
                Ok(share) => share,
                Err(_) => Err(not_played(trace, TargetError::other("a replay thread panicked"))),
            });
        }
    });
    sum_up(trace, target, shares)
}

fn one_thread<T: SharedTarget>(
    trace: &Trace,
    mut target: T,
    options: Options,
    barrier: &Barrier,
    progress: &mut Progress,
) -> Result<Share, ReplayError> {
    let mut player = Player::new(trace, options);
    let third = warmup_events(trace.events.len());
    let mut played = guarded(trace, || player.play(0..third, &mut target, progress));
    barrier.wait();
    let (warm, before) = (target.stats(), player.cpu_ns);
    barrier.wait();
    if played.is_ok() {
        let rest = third..trace.events.len();
        played = guarded(trace, || player.play(rest, &mut target, progress));
    }
    barrier.wait();
    let end = target.stats();
    barrier.wait();
    let freed = player.free_rest(&mut target);
    played.and(freed)?;
    let warm_cpu_ns = player.cpu_ns - before;
    Ok(Share { cpu_ns: player.cpu_ns, warm_cpu_ns, watch: player.watch, warm, end })
}

/// Turns a panic into an error: a thread that unwinds would leave the others waiting.
fn guarded(
    trace: &Trace,
    play: impl FnOnce() -> Result<(), ReplayError>,
) -> Result<(), ReplayError> {
    catch_unwind(AssertUnwindSafe(play))
        .unwrap_or_else(|_| Err(not_played(trace, TargetError::other("the target panicked"))))
}

fn sum_up<T: SharedTarget>(
    trace: &Trace,
    target: &mut T,
    shares: Vec<Result<Share, ReplayError>>,
) -> Result<Outcome, ReplayError> {
    let threads = shares.len() as u64;
    let mut watch = Watch::default();
    let (mut cpu_ns, mut warm_cpu_ns) = (0, 0);
    let (mut warm, mut end) = (TargetStats::default(), TargetStats::default());
    for share in shares {
        let share = share?;
        watch.merge(&share.watch);
        cpu_ns += share.cpu_ns;
        warm_cpu_ns += share.warm_cpu_ns;
        (warm, end) = (share.warm, share.end);
    }
    Ok(Outcome {
        events: trace.events.len() as u64 * threads,
        threads,
        peak_live_bytes: watch.requested_peak_bytes.max(trace.peak_live_bytes),
        cpu_ns,
        warm_cpu_ns,
        watch,
        warm,
        end,
        left_bytes: trace.left_bytes * threads,
        leaked_bytes: target.stats().live_bytes,
    })
}

fn not_played(trace: &Trace, cause: TargetError) -> ReplayError {
    let action = "play it by several threads".to_string();
    ReplayError { trace: trace.name.clone(), event: 0, action, cause }
}
