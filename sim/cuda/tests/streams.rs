//! Streams and events as programs see them: order, lateness, handles, waiting.

mod common;
mod queued;

use common::row;
use queued::*;
use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU32, Ordering};

/// The kind of misuse of a handle that is not known.
const NO_STREAM: &str = "a stream that is not there";
const NO_EVENT: &str = "an event that is not there";

#[test]
fn independent_streams_are_seen_out_of_order() {
    let mut inverted = 0;
    for seed in 0..20 {
        let _sim = world(&format!("seed = {seed}"));
        let (a, b) = (stream(NON_BLOCKING), stream(NON_BLOCKING));
        let cell = device(4);
        assert_eq!(fill(cell, 1, 1, a), 0);
        assert_eq!(fill(cell, 2, 1, b), 0);
        inverted += u32::from(get(cell, 1) == [1]);
    }
    assert!(inverted > 0 && inverted < 20, "{inverted} of 20 seeds ran the second stream first");
    row("work of two streams has no order", "H: cuda.h, CUDA_STREAM; CUDA programming guide");
}

#[test]
fn one_stream_keeps_its_order_and_events_order_two() {
    for seed in 0..40 {
        let _sim = world(&format!("seed = {seed}"));
        let (a, b, e) = (stream(NON_BLOCKING), stream(NON_BLOCKING), event());
        let cell = device(4);
        assert_eq!(fill(cell, 1, 1, a), 0);
        assert_eq!(fill(cell, 2, 1, a), 0);
        assert_eq!(cu!(cuEventRecord(e, a)), 0);
        assert_eq!(cu!(cuStreamWaitEvent(b, e, 0)), 0);
        assert_eq!(cu!(cuEventDestroy_v2(e)), 0);
        assert_eq!(fill(cell, 3, 1, b), 0);
        assert_eq!(get(cell, 1), [3], "seed {seed}");
    }
    row("a wait for an event orders two streams, in every seed", "H: cuStreamWaitEvent");
    row("an event destroyed while pending still holds its waiters up", "H: cuEventDestroy");
}

#[test]
fn the_legacy_stream_orders_blocking_streams_only() {
    let mut overtaken = 0;
    for seed in 0..40 {
        let _sim = world(&format!("seed = {seed}"));
        let (blocking, free) = (stream(0), stream(NON_BLOCKING));
        let cells = device(8);
        assert_eq!(fill(cells, 1, 1, blocking), 0);
        assert_eq!(fill(cells + 4, 1, 1, free), 0);
        assert_eq!(fill(cells, 2, 1, 0), 0);
        assert_eq!(fill(cells + 4, 2, 1, LEGACY), 0);
        assert_eq!(fill(cells, 3, 1, blocking), 0);
        let found = get(cells, 2);
        assert_eq!(found[0], 3, "seed {seed}");
        overtaken += u32::from(found[1] == 1);
    }
    assert!(overtaken > 0 && overtaken < 40, "{overtaken} of 40");
    row("the legacy stream waits for blocking streams and they for it", "H: CUDA_STREAM");
    row("non-blocking streams do not synchronise with the legacy stream", "H: cuStreamCreate");
}

#[test]
fn the_per_thread_stream_is_one_a_thread_and_meets_the_legacy_one() {
    let sim = world("");
    let context = sim.primary(0);
    let (mut mine, mut other, mut legacy) = (0, 0, 0);
    assert_eq!(cu!(cuStreamGetId(PER_THREAD, &raw mut mine)), 0);
    assert_eq!(cu!(cuStreamGetId_ptsz(0, &raw mut other)), 0);
    assert_eq!(mine, other, "0 is the thread's own stream in _ptsz functions");
    assert_eq!(cu!(cuStreamGetId(0, &raw mut legacy)), 0);
    assert_ne!(mine, legacy);
    let theirs = std::thread::spawn(move || {
        let mut theirs = 0;
        assert_eq!(cu!(cuCtxSetCurrent(context)), 0);
        assert_eq!(cu!(cuStreamGetId(PER_THREAD, &raw mut theirs)), 0);
        theirs
    });
    assert_ne!(theirs.join().unwrap(), mine);
    for _ in 0..20 {
        let cell = device(4);
        assert_eq!(fill(cell, 1, 1, PER_THREAD), 0);
        assert_eq!(fill(cell, 2, 1, LEGACY), 0);
        assert_eq!(cu!(cuMemsetD32Async_ptsz(cell, 3, 1, 0)), 0);
        assert_eq!(get(cell, 1), [3]);
    }
    row("a thread's own default stream synchronises with the legacy one", "CUDA API: streams");
}

#[test]
fn query_says_not_ready_until_the_work_is_done() {
    let sim = world("schedule = stepped");
    let (s, e) = (stream(0), event());
    let cell = device(4);
    assert_eq!(cu!(cuEventQuery(e)), 0);
    row("an event never recorded is complete", "H: cuEventRecord");
    assert_eq!(cu!(cuStreamQuery(s)), 0);
    assert_eq!(fill(cell, 1, 1, s), 0);
    assert_eq!(cu!(cuEventRecord(e, s)), 0);
    assert_eq!(cu!(cuStreamQuery(s)), 600);
    assert_eq!(cu!(cuEventQuery(e)), 600);
    assert_eq!(cu!(forebay_sim_step(1)), 1);
    assert_eq!(cu!(cuEventQuery(e)), 600);
    assert_eq!(cu!(forebay_sim_step(9)), 1);
    assert_eq!(cu!(cuEventQuery(e)), 0);
    assert_eq!(cu!(cuStreamQuery(s)), 0);
    assert_eq!(fill(cell, 2, 1, s), 0);
    assert_eq!(cu!(cuEventQuery(e)), 0, "later work does not move the mark");
    assert_eq!(cu!(cuEventRecord(e, s)), 0);
    assert_eq!(cu!(cuEventQuery(e)), 600, "a second record does");
    assert_eq!(cu!(cuEventSynchronize(e)), 0);
    assert_eq!(cu!(cuStreamQuery(s)), 0);
    assert_eq!(sim.live("pending"), 0);
    row("cuStreamQuery, cuEventQuery: 600 until done", "H: cuStreamQuery, cuEventQuery");
}

#[test]
fn waiting_for_the_legacy_stream_waits_for_blocking_streams() {
    let _sim = world("schedule = stepped");
    let (blocking, free) = (stream(0), stream(NON_BLOCKING));
    let cells = device(8);
    assert_eq!(fill(cells, 1, 1, blocking), 0);
    assert_eq!(fill(cells + 4, 1, 1, free), 0);
    assert_eq!(cu!(cuStreamQuery(LEGACY)), 600);
    assert_eq!(wait(LEGACY), 0);
    assert_eq!((cu!(cuStreamQuery(blocking)), cu!(cuStreamQuery(free))), (0, 600));
    row("querying or awaiting the legacy stream takes blocking streams in", "assumption");
}

#[test]
fn polling_alone_gets_there() {
    let _sim = world("");
    let s = stream(0);
    assert_eq!(fill(device(4), 1, 1, s), 0);
    let mut polls = 0;
    while cu!(cuStreamQuery(s)) == 600 {
        polls += 1;
        assert!(polls < 100_000, "late is not never");
    }
    assert!(polls > 0, "work ran inside the call that queued it");
}

#[test]
fn a_destroyed_stream_finishes_and_its_handle_comes_back() {
    let mut reused = false;
    for seed in 0..20 {
        let mut sim = world(&format!("seed = {seed}"));
        sim.expect_misuse(NO_STREAM);
        let (mut old_id, mut new_id) = (0, 0);
        let old = stream(NON_BLOCKING);
        let cell = device(4);
        assert_eq!(cu!(cuStreamGetId(old, &raw mut old_id)), 0);
        assert_eq!(fill(cell, 7, 1, old), 0);
        assert_eq!(cu!(cuStreamDestroy_v2(old)), 0);
        assert_eq!(cu!(cuStreamQuery(old)), 400);
        let new = stream(NON_BLOCKING);
        if new == old {
            reused = true;
            assert_eq!(cu!(cuStreamGetId(new, &raw mut new_id)), 0);
            assert_ne!(old_id, new_id);
        }
        assert_eq!(get(cell, 1), [7], "the old stream's work is done all the same");
    }
    assert!(reused);
    row("cuStreamDestroy returns at once; queued work completes", "H: cuStreamDestroy");
    row("a destroyed stream's handle serves a later stream", "rmm.md, vllm: handles are reused");
    row("use of a destroyed stream: 400 and misuse", "assumption");
}

#[test]
fn getters_tell_what_was_asked_for() {
    let sim = world("");
    let context = sim.primary(0);
    let (mut s, mut flags, mut priority, mut device) = (0, 9, 9, 9);
    let (mut found, mut green) = (0, 9);
    assert_eq!(cu!(cuStreamCreateWithPriority(&raw mut s, NON_BLOCKING, -100)), 0);
    assert_eq!(cu!(cuStreamGetFlags(s, &raw mut flags)), 0);
    assert_eq!(cu!(cuStreamGetPriority(s, &raw mut priority)), 0);
    assert_eq!(cu!(cuStreamGetDevice(s, &raw mut device)), 0);
    assert_eq!(cu!(cuStreamGetCtx(s, &raw mut found)), 0);
    assert_eq!((flags, priority, device, found), (NON_BLOCKING, -5, 0, context));
    assert_eq!(cu!(cuStreamGetCtx_v2(0, &raw mut found, &raw mut green)), 0);
    assert_eq!((found, green), (context, 0));
    row("priorities are clamped to the range", "H: cuStreamCreateWithPriority");
    assert_eq!(cu!(cuStreamCreate(&raw mut s, 2)), 1);
    assert_eq!(cu!(cuStreamCreate(null_mut(), 0)), 1);
    assert_eq!(cu!(cuStreamDestroy_v2(LEGACY)), 400);
    row("cuStreamCreate: unknown flags 1, null place 1", "H: cuStreamCreate");
}

#[test]
fn event_flags_and_times() {
    let mut sim = world("");
    sim.expect_misuse(NO_EVENT);
    let (mut e, mut start, mut ms) = (0, 0, 0.0f32);
    assert_eq!(cu!(cuEventCreate(&raw mut e, 4)), 1);
    row("an interprocess event needs timing disabled: 1", "H: cuEventCreate");
    assert_eq!(cu!(cuEventCreate(&raw mut e, 8)), 1);
    assert_eq!(cu!(cuEventCreate(&raw mut e, 6)), 0);
    assert_eq!(cu!(cuEventDestroy_v2(e)), 0);
    assert_eq!(cu!(cuEventDestroy_v2(e)), 400);
    assert_eq!(cu!(cuEventCreate(&raw mut start, 0)), 0);
    assert_eq!(cu!(cuEventCreate(&raw mut e, 1)), 0);
    assert_eq!(cu!(cuEventElapsedTime(&raw mut ms, start, e)), 400);
    row("elapsed time of an event never recorded: 400", "H: cuEventElapsedTime");
    let s = stream(0);
    let big = device(64 << 20);
    assert_eq!(cu!(cuEventRecord(start, s)), 0);
    assert_eq!(fill(big, 1, 16 << 20, s), 0);
    assert_eq!(cu!(cuEventRecord(e, s)), 0);
    assert_eq!(cu!(cuEventElapsedTime(&raw mut ms, start, e)), 600);
    assert_eq!(wait(s), 0);
    assert_eq!(cu!(cuEventElapsedTime(&raw mut ms, start, e)), 0);
    assert!((0.06..0.08).contains(&ms), "{ms} ms of virtual time for 64 MiB");
    let untimed = event();
    assert_eq!(cu!(cuEventElapsedTime(&raw mut ms, start, untimed)), 400);
    row("elapsed time: 600 before both are done, 400 without timing", "H: cuEventElapsedTime");
}

#[test]
fn an_event_belongs_to_its_context() {
    let sim = world("devices = 2");
    let e = event();
    let s = stream(0);
    sim.primary(1);
    let there = stream(0);
    assert_eq!(cu!(cuEventRecord(e, there)), 400);
    row("cuEventRecord: event and stream of different contexts: 400", "H: cuEventRecord");
    let cell = device(4);
    assert_eq!(cu!(cuEventRecord(e, s)), 0);
    assert_eq!(cu!(cuStreamWaitEvent(there, e, 0)), 0);
    assert_eq!(fill(cell, 1, 1, there), 0);
    assert_eq!(get(cell, 1), [1]);
    row("cuStreamWaitEvent: an event of another context is fine", "H: cuStreamWaitEvent");
}

#[test]
fn context_events_cover_all_streams() {
    for seed in 0..20 {
        let sim = world(&format!("seed = {seed}"));
        let context = sim.primary(0);
        let (a, b, e) = (stream(0), stream(NON_BLOCKING), event());
        let cells = pinned(2);
        cells.fill(0);
        let at = cells.as_ptr() as u64;
        assert_eq!(fill(at, 1, 1, a), 0);
        assert_eq!(fill(at + 4, 2, 1, b), 0);
        assert_eq!(cu!(cuCtxRecordEvent(context, e)), 0);
        assert_eq!(cu!(cuEventSynchronize(e)), 0);
        assert_eq!(*cells, [1, 2], "seed {seed}");
        assert_eq!(fill(at, 3, 1, a), 0);
        assert_eq!(cu!(cuEventRecord(e, a)), 0);
        assert_eq!(cu!(cuCtxWaitEvent(context, e)), 0);
        assert_eq!(fill(at, 4, 1, stream(NON_BLOCKING)), 0);
        assert_eq!(cu!(cuCtxSynchronize()), 0);
        assert_eq!(cells[0], 4, "seed {seed}");
    }
    row("cuCtxRecordEvent covers the work of every stream", "H: cuCtxRecordEvent");
    row("cuCtxWaitEvent holds every stream's later work up", "H: cuCtxWaitEvent");
}

static SEEN: AtomicU32 = AtomicU32::new(0);
static REFUSED: AtomicU32 = AtomicU32::new(0);

unsafe extern "C" fn look(data: *mut c_void) {
    // SAFETY: the test gives pinned memory that it keeps.
    SEEN.store(unsafe { *data.cast::<u32>() }, Ordering::SeqCst);
    let mut count = 0;
    REFUSED.store(cu!(cuDeviceGetCount(&raw mut count)), Ordering::SeqCst);
}

static STATUS: AtomicU32 = AtomicU32::new(99);

unsafe extern "C" fn told(_stream: *mut c_void, status: u32, _data: *mut c_void) {
    STATUS.store(status, Ordering::SeqCst);
}

#[test]
fn host_functions_run_in_order_and_may_not_call() {
    let mut sim = world("");
    sim.expect_misuse("call where none is allowed");
    let s = stream(NON_BLOCKING);
    let cell = pinned(1);
    let at = cell.as_ptr() as u64;
    assert_eq!(fill(at, 5, 1, s), 0);
    assert_eq!(cu!(cuLaunchHostFunc(s, Some(look), at as *mut c_void)), 0);
    assert_eq!(fill(at, 6, 1, s), 0);
    assert_eq!(cu!(cuStreamAddCallback(s, Some(told), null_mut(), 0)), 0);
    assert_eq!(wait(s), 0);
    assert_eq!(SEEN.load(Ordering::SeqCst), 5);
    assert_eq!(REFUSED.load(Ordering::SeqCst), 800);
    assert_eq!(STATUS.load(Ordering::SeqCst), 0);
    row("a host function runs behind earlier and before later work", "H: cuLaunchHostFunc");
    row("a call from a host function: 800 and misuse", "H: cuLaunchHostFunc");
}

#[test]
fn a_stream_waits_for_a_value() {
    for seed in 0..10 {
        let _sim = world(&format!("seed = {seed}"));
        let (a, b) = (stream(NON_BLOCKING), stream(NON_BLOCKING));
        let cells = device(16);
        put(cells, &[0, 0, 0, 0]);
        assert_eq!(cu!(cuStreamWaitValue32_v2(a, cells, 3, 0)), 0);
        assert_eq!(fill(cells + 4, 8, 1, a), 0);
        assert_eq!(cu!(cuStreamQuery(a)), 600);
        assert_eq!(fill(cells + 8, 9, 1, b), 0);
        assert_eq!(cu!(cuStreamWriteValue64_v2(b, cells, 3, 0)), 0);
        assert_eq!(wait(a), 0, "the wait runs what the other stream has to do");
        assert_eq!(get(cells, 3), [3, 8, 9]);
    }
    row("cuStreamWaitValue32 holds a stream until another writes", "H: CUDA_MEMOP");
    let _sim = world("");
    let (s, cells) = (stream(0), device(16));
    assert_eq!(cu!(cuStreamWaitValue32_v2(s, cells + 2, 3, 0)), 1);
    assert_eq!(cu!(cuStreamWriteValue64_v2(s, cells + 4, 3, 0)), 1);
    assert_eq!(cu!(cuStreamWriteValue32_v2(s, cells, 3, 8)), 1);
    assert_eq!(cu!(cuStreamWaitValue32_v2(s, cells, 3, 1 << 30)), 801);
    row("a stream memory operation with a flush, which the device lacks: 801", "H: CUDA_MEMOP");
    row("a stream memory operation on an unaligned address: 1", "assumption");
}

#[test]
fn a_spinning_kernel_ends_when_the_host_writes() {
    let _sim = world("");
    let s = stream(NON_BLOCKING);
    let flag = pinned(1);
    flag[0] = 0;
    let at = flag.as_mut_ptr() as usize;
    assert_eq!(spin(s, at as u64, 1), 0);
    for _ in 0..100 {
        assert_eq!(cu!(cuStreamQuery(s)), 600);
    }
    let writer = std::thread::spawn(move || {
        // SAFETY: pinned memory of this test, which waits for the thread's write.
        unsafe { std::ptr::write_volatile(at as *mut u32, 1) };
    });
    assert_eq!(wait(s), 0);
    writer.join().unwrap();
}

#[test]
fn late_work_runs_by_itself_when_the_program_sleeps() {
    let _sim = world("");
    let s = stream(NON_BLOCKING);
    let flag = pinned(1);
    flag[0] = 0;
    assert_eq!(fill(flag.as_ptr() as u64, 1, 1, s), 0);
    // SAFETY: pinned memory; the driver writes it while this looks.
    while unsafe { std::ptr::read_volatile(flag.as_ptr()) } == 0 {
        std::thread::yield_now();
    }
}

#[test]
fn one_seed_is_one_run() {
    let run = |seed: u32| {
        let sim = world(&format!("seed = {seed}"));
        let cells = device(4 * 64);
        let streams: Vec<u64> = (0..6).map(|_| stream(NON_BLOCKING)).collect();
        for i in 0..60 {
            assert_eq!(fill(cells + 4 * (i % 7), i as u32, 8, streams[i as usize % 6]), 0);
        }
        let found = get(cells, 64);
        (found, sim.time_us().to_bits())
    };
    assert_eq!(run(5), run(5));
    assert_ne!(run(5).0, run(6).0);
    row("one seed and one program: one order", "DESIGN 7: a seed replays any failure");
}
