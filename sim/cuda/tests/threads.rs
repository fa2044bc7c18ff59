//! Many threads at once: no call hangs, no order is lost.

mod common;
mod queued;

use common::row;
use queued::*;
use std::ffi::c_void;
use std::sync::atomic::{AtomicU32, Ordering};

static CALLED: AtomicU32 = AtomicU32::new(0);

unsafe extern "C" fn count(_data: *mut c_void) {
    CALLED.fetch_add(1, Ordering::SeqCst);
}

/// One thread's work: its own streams, cells that nobody else touches, events between them.
fn busy(context: u64, cells: u64, rounds: u32) {
    assert_eq!(cu!(cuCtxSetCurrent(context)), 0);
    for round in 0..rounds {
        let (a, b, e) = (stream(round % 2), stream(NON_BLOCKING), event());
        assert_eq!(fill(cells, round, 4, a), 0);
        assert_eq!(cu!(cuEventRecord(e, a)), 0);
        assert_eq!(cu!(cuStreamWaitEvent(b, e, 0)), 0);
        assert_eq!(cu!(cuMemcpyDtoDAsync_v2(cells + 16, cells, 16, b)), 0);
        if round % 3 == 0 {
            assert_eq!(cu!(cuLaunchHostFunc(b, Some(count), std::ptr::null_mut())), 0);
        }
        let mut pool = 0;
        assert_eq!(cu!(cuMemAllocAsync(&raw mut pool, 4096, b)), 0);
        assert_eq!(fill(pool, 1, 4, b), 0);
        assert_eq!(cu!(cuMemFreeAsync(pool, b)), 0);
        match round % 4 {
            0 => assert_eq!(wait(b), 0),
            1 => assert_eq!(cu!(cuCtxSynchronize()), 0),
            2 => {
                assert_eq!(cu!(cuEventRecord(e, b)), 0);
                assert_eq!(cu!(cuEventSynchronize(e)), 0);
            }
            _ => while cu!(cuStreamQuery(b)) == 600 {},
        }
        let mut word = [0u32];
        let to = word.as_mut_ptr().cast::<c_void>();
        assert_eq!(cu!(cuMemcpyDtoHAsync_v2(to, cells + 28, 4, b)), 0);
        assert_eq!(word[0], round);
        assert_eq!(cu!(cuEventDestroy_v2(e)), 0);
        assert_eq!(cu!(cuStreamDestroy_v2(a)), 0);
        assert_eq!(cu!(cuStreamDestroy_v2(b)), 0);
    }
}

fn threads_of(schedule: &str) {
    let sim = world(&format!("schedule = {schedule}"));
    let context = sim.primary(0);
    let cells = device(64 * 8);
    let work = (0..8).map(|t| std::thread::spawn(move || busy(context, cells + 64 * t, 120)));
    let work: Vec<_> = work.collect();
    work.into_iter().for_each(|t| t.join().unwrap());
    assert_eq!(cu!(cuCtxSynchronize()), 0);
    for left in ["pending", "streams", "events", "pool_blocks"] {
        assert_eq!(sim.live(left), 0, "{left}");
    }
}

#[test]
fn eight_threads_late() {
    threads_of("late");
    assert!(CALLED.load(Ordering::SeqCst) >= 8 * 40);
    row("eight threads at once keep each stream's order", "H: the driver API is thread safe");
}

#[test]
fn eight_threads_eager() {
    threads_of("eager");
}

#[test]
fn a_host_function_may_wait_for_the_thread_that_queues() {
    use std::sync::Mutex;
    static HELD: Mutex<()> = Mutex::new(());
    unsafe extern "C" fn lock(_data: *mut c_void) {
        drop(HELD.lock());
    }
    let _sim = world("schedule = eager");
    let s = stream(NON_BLOCKING);
    let cell = device(4);
    let guard = HELD.lock();
    assert_eq!(cu!(cuLaunchHostFunc(s, Some(lock), std::ptr::null_mut())), 0);
    for i in 0..20 {
        assert_eq!(fill(cell, i, 1, s), 0, "queueing does not wait for the function");
    }
    assert_eq!(cu!(cuStreamQuery(s)), 600);
    drop(guard);
    assert_eq!(wait(s), 0);
    row("queueing never waits for a host function", "H: cuLaunchHostFunc");
}

#[test]
fn a_new_world_ends_the_old_one_with_work_queued() {
    for _ in 0..10 {
        let _sim = world("");
        let s = stream(NON_BLOCKING);
        let cell = device(4096);
        for i in 0..50 {
            assert_eq!(fill(cell, i, 1024, s), 0);
        }
    }
}
