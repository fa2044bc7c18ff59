//! What meets a suspend or a resume at its edges: graphs that go, calls that fail half way, pages
//! that the driver keeps, users that do not know.

use super::*;
use forebay::driver::StreamHandle;
use forebay::driver::faulty::{CallSet, Fault};
use forebay::driver::{Call, Driver};
use forebay::pool::hot::SYNC_STREAM;
use forebay::pool::{buffers, capture, tagged};
use forebay::step::binding::{self, Setup};
use std::ffi::c_void;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Whether `a` and `b` share an address.
fn overlap(a: Block, b: Block) -> bool {
    a.address < b.address + b.bytes && b.address < a.address + a.bytes
}

/// Takes all memory that there is under a tag; whether one of the blocks lies in `block`.
fn anyone_gets(g: &mut Ground, tag: u8, block: Block, bytes: usize) -> bool {
    let mut taken = Vec::new();
    while let Ok(more) = g.alloc(tag, bytes, 0) {
        taken.push(more);
        if taken.len() > 4096 {
            break;
        }
    }
    let found = taken.iter().any(|more| overlap(*more, block));
    taken.into_iter().for_each(|more| g.free(more));
    g.driver.inner().run_all();
    found
}

#[test]
fn kept_contents_survive_a_discard_that_fails() {
    let mut g = Ground::new(64, 2, |_| {});
    let (a, b) = (g.tags[0], g.tags[1]);
    let kept = g.alloc(a, 3 * GRANULE, 0).expect("room");
    let other = g.alloc(b, 2 * GRANULE, 0).expect("room");
    g.suspend(&[a]);
    g.driver.fail(Fault::once(CallSet::of(&[Call::EventRecord]), 1));
    g.pool.suspend(&[a, b], Level::Discard).expect_err("the device cannot be awaited");
    g.driver.clear_faults();
    assert!(!g.pool.is_suspended(b).expect("alive"));
    other.check();
    assert_eq!(g.stats().suspended_host_bytes, 3 * GRANULE as u64);
    g.resume(&[a]);
    kept.check();
    g.suspend(&[a]);
    let told = g.pool.suspend(&[a, b], Level::Discard).expect("nothing in the way");
    assert_eq!((told.host_bytes, told.blocks), (0, 2));
    g.resume(&[a, b]);
    g.free(kept);
    g.free(other);
    g.end(&[]);
}

/// A block that a graph uses is freed asleep: `free_on_graph` on the capture's stream, else the use
/// was recorded before.
fn freed_asleep(bytes: usize, free_on_graph: bool) {
    let mut g = Ground::new(64, 1, |_| {});
    let (kv, streams) = (g.tags[0], streams(&g.driver, 1));
    let block = g.alloc(kv, bytes, 0).expect("room");
    let beside = g.alloc(kv, 700, 0).expect("room");
    let mut number = 0;
    if !free_on_graph {
        number = capture::begin(streams[0]).expect("no other is open");
        g.pool.record_use(block.address, streams[0]).expect("live");
        capture::end(number).expect("open");
    }
    g.suspend(&[kv]);
    if free_on_graph {
        number = capture::begin(streams[0]).expect("no other is open");
        g.pool.dealloc(block.address, streams[0]).expect("live");
        capture::end(number).expect("open");
    } else {
        g.free(block);
    }
    g.stats();
    g.resume(&[kv]);
    g.stats();
    beside.check();
    let tag = if bytes < GRANULE { kv } else { 1 };
    assert!(!anyone_gets(&mut g, tag, block, bytes), "the graph may still write there");
    capture::release(number).expect("ended");
    g.driver.inner().run_all();
    g.stats();
    g.pool.trim(0).expect("idle memory");
    assert!(anyone_gets(&mut g, tag, block, bytes), "it is everyone's by now");
    g.free(beside);
    g.end(&streams);
}

#[test]
fn what_a_graph_uses_and_is_freed_asleep_stays_the_graphs() {
    for bytes in [700, 4 * GRANULE] {
        freed_asleep(bytes, false);
        freed_asleep(bytes, true);
    }
}

#[test]
fn a_buffer_that_is_away_is_not_handed_out_and_a_plan_block_never_is_away() {
    let g = Ground::new(64, 1, |_| {});
    let kv = g.tags[0];
    let set = under(kv, || buffers::create(g.pool.handle(), 3 * GRANULE, 2)).expect("room");
    let bytes = 4 * GRANULE as u64;
    let setup = Setup { bytes, alignment: 512, plans_max: 1, replan_percent: 0 };
    let number = under(kv, || binding::create(g.pool.handle(), setup, 0)).expect("room");
    let bound = binding::get(number).expect("there");
    bound.learn(7).expect("no step is open");
    g.suspend(&[kv]);
    assert_eq!(told(buffers::acquire(set, 0)).0, Status::Busy);
    // A plan block carries no tag of the program's.
    let step = bound.begin(7, &[0]).expect("its memory is there");
    forebay::step::slow::end(step, true).expect("open");
    g.resume(&[kv]);
    let buffer = buffers::acquire(set, 0).expect("awake");
    buffers::release(set, buffer, 0).expect("out");
    let step = bound.begin(7, &[0]).expect("awake");
    forebay::step::slow::end(step, true).expect("open");
    binding::unbind(number).expect("idle");
    drop(bound);
    buffers::destroy(set).expect("all are in");
    g.driver.inner().run_all();
    g.end(&[]);
}

#[test]
fn a_slot_that_waits_for_a_graph_is_away_in_the_accounts_too() {
    let mut g = Ground::new(64, 1, |_| {});
    let (kv, streams) = (g.tags[0], streams(&g.driver, 1));
    let block = g.alloc(kv, 40_000, 0).expect("room");
    let number = capture::begin(streams[0]).expect("no other is open");
    g.pool.dealloc(block.address, streams[0]).expect("live");
    capture::end(number).expect("open");
    g.suspend(&[kv]);
    let asleep = g.stats();
    assert_eq!((asleep.sum(), asleep.mapped_bytes), (0, 0), "{asleep:?}");
    g.resume(&[kv]);
    assert!(g.stats().pending_bytes >= 40_000);
    capture::release(number).expect("ended");
    g.driver.inner().run_all();
    assert_eq!(g.stats().pending_bytes, 0);
    g.end(&streams);
}

#[test]
fn a_graph_that_goes_takes_what_was_kept_for_it() {
    let mut g = Ground::new(64, 1, |_| {});
    let (kv, streams) = (g.tags[0], streams(&g.driver, 1));
    let number = capture::begin(streams[0]).expect("no other is open");
    let scratch = g.alloc(kv, 5 * GRANULE, streams[0]).expect("room");
    g.free(scratch);
    capture::end(number).expect("open");
    assert_eq!(g.suspend(&[kv]).host_bytes, 5 * GRANULE as u64);
    capture::release(number).expect("ended");
    let left = g.stats();
    assert_eq!((left.suspended_bytes, left.suspended_host_bytes), (0, 0), "{left:?}");
    g.end(&streams);
}

#[test]
fn pages_that_the_driver_keeps_are_told_and_go_back_later() {
    for scrub in [false, true] {
        let mut g = Ground::new(64, 1, |settings| settings.scrub = scrub);
        let kv = g.tags[0];
        let block = g.alloc(kv, 4 * GRANULE, 0).expect("room");
        g.driver.fail(Fault::from_then_on(CallSet::of(&[Call::Release]), 2));
        let told = g.suspend(&[kv]);
        let pages = |bytes: u64| bytes / GRANULE as u64;
        assert_eq!((pages(told.device_bytes), pages(told.stuck_bytes)), (1, 3), "{told:?}");
        assert_eq!(device_bytes(&g.driver), 3 * GRANULE);
        // What was in them reaches nobody.
        let next = under(1, || g.pool.alloc(3 * GRANULE, 0)).expect("room");
        // SAFETY: a live block of that many bytes, mapped.
        let bytes = unsafe { std::slice::from_raw_parts(next as *const u8, 3 * GRANULE) };
        assert!(bytes.iter().all(|&byte| byte == 0), "scrub {scrub}: another's contents");
        g.pool.dealloc(next, 0).expect("live");
        g.driver.clear_faults();
        g.driver.inner().run_all();
        assert!(!g.pool.with_core(|core| core.recover()).expect("alive"));
        g.pool.trim(0).expect("idle memory");
        assert_eq!((device_bytes(&g.driver), g.stats().stranded_pages), (0, 0));
        g.resume(&[kv]);
        block.check();
        g.free(block);
        g.driver.inner().run_all();
        g.end(&[]);
    }
}

#[test]
fn a_resume_that_fails_leaves_no_contents_in_stock() {
    let mut g = Ground::new(64, 1, |_| {});
    let kv = g.tags[0];
    let block = g.alloc(kv, 4 * GRANULE, 0).expect("room");
    g.suspend(&[kv]);
    // Pages that were made and could not be mapped stay in stock.
    g.driver.fail(Fault::from_then_on(CallSet::of(&[Call::Map]), 1));
    g.pool.alloc(3 * GRANULE, 0).expect_err("no page can be mapped");
    g.driver.clear_faults();
    assert_eq!(g.stats().stock_bytes, 3 * GRANULE as u64);
    g.driver.fail(Fault::once(CallSet::of(&[Call::Copy]), 1));
    g.pool.resume(&[kv], &mut Report::default()).expect_err("contents cannot be copied");
    g.driver.clear_faults();
    let left = g.stats();
    assert_eq!((left.stock_bytes, device_bytes(&g.driver)), (0, 0), "{left:?}");
    g.resume(&[kv]);
    block.check();
    g.free(block);
    g.end(&[]);
}

static STREAM: AtomicU64 = AtomicU64::new(0);
static NUMBER: AtomicU64 = AtomicU64::new(0);
static POOL: AtomicU64 = AtomicU64::new(0);
static HOARD: AtomicUsize = AtomicUsize::new(0);

unsafe extern "C" fn capture_and_free(_: *mut c_void, _bytes: usize) -> bool {
    let hoard = HOARD.swap(0, Ordering::SeqCst);
    if hoard == 0 {
        return false;
    }
    let pool = Pool::from_number(POOL.load(Ordering::SeqCst)).expect("alive");
    pool.dealloc(hoard, 0).expect("live");
    pool.trim(0).expect("no capture is open yet");
    let number = capture::begin(STREAM.load(Ordering::SeqCst)).expect("no other is open");
    NUMBER.store(number, Ordering::SeqCst);
    true
}

#[test]
fn a_resume_that_fails_unmaps_nothing_while_a_capture_is_open() {
    let mut g = Ground::new(64, 1, |_| {});
    let (kv, streams) = (g.tags[0], streams(&g.driver, 1));
    let block = g.alloc(kv, 20 * GRANULE, 0).expect("room");
    g.suspend(&[kv]);
    let hoard = g.alloc(1, 60 * GRANULE, 0).expect("room");
    HOARD.store(hoard.address, Ordering::SeqCst);
    STREAM.store(streams[0], Ordering::SeqCst);
    POOL.store(g.pool.id(), Ordering::SeqCst);
    g.pool.set_on_out_of_memory(Some((capture_and_free, 0))).expect("alive");
    g.driver.fail(Fault::once(CallSet::of(&[Call::Copy]), 1));
    g.driver.start_journal(1000);
    g.pool.resume(&[kv], &mut Report::default()).expect_err("contents cannot be copied");
    let journal = g.driver.stop_journal();
    g.driver.clear_faults();
    g.pool.set_on_out_of_memory(None).expect("alive");
    let from = journal.iter().rposition(|entry| entry.call == Call::Copy).expect("it failed");
    let unmaps = journal[from..].iter().filter(|entry| entry.call == Call::Unmap).count();
    assert_eq!(unmaps, 0, "nothing is unmapped while a capture is open");
    assert!(g.pool.is_suspended(kv).expect("alive"));
    let number = NUMBER.load(Ordering::SeqCst);
    capture::end(number).expect("open");
    capture::release(number).expect("ended");
    g.driver.inner().run_all();
    assert!(!g.pool.with_core(|core| core.recover()).expect("alive"));
    g.stats();
    g.resume(&[kv]);
    block.check();
    g.free(block);
    g.driver.inner().run_all();
    g.end(&streams);
}

#[test]
fn a_page_under_a_copy_that_was_not_awaited_stays_mapped() {
    let mut g = Ground::new(64, 1, |_| {});
    let kv = g.tags[0];
    let block = g.alloc(kv, 4 * GRANULE, 0).expect("room");
    g.driver.fail(Fault::from_then_on(CallSet::of(&[Call::StreamSynchronize]), 1));
    g.pool.suspend(&[kv], Level::Offload).expect_err("the copy cannot be awaited");
    block.check();
    g.free(block);
    g.driver.reset_counts();
    g.pool.trim(0).expect("it may release less");
    assert_eq!(g.driver.count(Call::Unmap), 0, "the copy may be under way");
    g.driver.clear_faults();
    g.driver.inner().run_all();
    assert!(!g.pool.with_core(|core| core.recover()).expect("alive"));
    g.pool.trim(0).expect("idle memory");
    assert_eq!(device_bytes(&g.driver), 0);
    g.end(&[]);
}

#[test]
fn a_copy_that_is_under_way_is_not_awaited_under_the_lock() {
    let mut g = Ground::new(64, 1, |_| {});
    let kv = g.tags[0];
    let block = g.alloc(kv, 4 * GRANULE, 0).expect("room");
    g.driver.fail(Fault::from_then_on(CallSet::of(&[Call::StreamSynchronize]), 1));
    g.pool.suspend(&[kv], Level::Offload).expect_err("the copy cannot be awaited");
    g.driver.clear_faults();
    g.driver.reset_counts();
    assert!(g.pool.with_core(|core| core.recover()).expect("alive"), "it is under way");
    assert_eq!(g.driver.count(Call::StreamSynchronize), 0);
    g.driver.inner().run_all();
    assert!(!g.pool.with_core(|core| core.recover()).expect("alive"));
    let census = g.driver.inner().census();
    assert_eq!((census.host_allocs, census.streams), (0, 0));
    g.free(block);
    g.end(&[]);
}

#[test]
fn a_stream_destroyed_untold_fails_no_suspend() {
    let mut g = Ground::new(64, 1, |_| {});
    let (kv, mut streams) = (g.tags[0], streams(&g.driver, 2));
    let kept = g.alloc(kv, GRANULE, streams[0]).expect("room");
    let gone = g.alloc(kv, 2 * GRANULE, streams[0]).expect("room");
    let other = g.alloc(1, 2 * GRANULE, streams[1]).expect("room");
    g.free(other);
    g.free(gone);
    g.driver.stream_destroy(StreamHandle(streams[1])).expect("idle");
    streams.pop();
    g.suspend(&[kv]);
    g.resume(&[kv]);
    kept.check();
    g.free(kept);
    g.end(&streams);
}

fn release_it(_: [usize; 4]) {
    capture::release(NUMBER.load(Ordering::SeqCst)).expect("ended");
}

#[test]
fn what_a_graph_gives_up_during_a_suspend_that_fails_is_everyones() {
    let mut g = Ground::new(64, 1, |_| {});
    let (kv, streams) = (g.tags[0], streams(&g.driver, 1));
    let kept = g.alloc(kv, GRANULE, 0).expect("room");
    let number = capture::begin(streams[0]).expect("no other is open");
    let scratch = g.alloc(kv, 5 * GRANULE, streams[0]).expect("room");
    g.free(scratch);
    capture::end(number).expect("open");
    NUMBER.store(number, Ordering::SeqCst);
    g.driver.inner().launch(StreamHandle(0), release_it, [0; 4]).expect("queued");
    g.driver.fail(Fault::once(CallSet::of(&[Call::Copy]), 1));
    g.pool.suspend(&[kv], Level::Offload).expect_err("contents cannot be copied");
    g.driver.clear_faults();
    g.driver.inner().run_all();
    g.stats();
    g.pool.trim(0).expect("idle memory");
    assert_eq!(device_bytes(&g.driver), GRANULE);
    kept.check();
    g.free(kept);
    g.end(&streams);
}

#[test]
fn a_pools_end_opens_the_hot_path_of_its_tags_again() {
    let g = Ground::new(16, 0, |_| {});
    let own = tag(9);
    g.pool.declare_suspendable(own).expect("a tag");
    g.pool.declare_suspendable(own).expect("again is fine");
    assert!(tagged::is_declared(u32::from(own)));
    g.end(&[]);
    assert!(!tagged::is_declared(u32::from(own)));
}

/// `FOREBAY_MOVE` says that pages may go only while the device stands still: then those that a
/// failed resume leaves mapped wait for that, whoever asks.
#[test]
fn what_a_failed_resume_leaves_is_unmapped_when_the_device_stands_still() {
    use forebay::config::Move;
    for moves in [Move::Always, Move::Idle, Move::Never] {
        let mut g = Ground::new(64, 1, |settings| settings.moves = moves);
        let (kv, streams) = (g.tags[0], streams(&g.driver, 1));
        let block = g.alloc(kv, 4 * GRANULE, 0).expect("room");
        g.suspend(&[kv]);
        let stream = StreamHandle(streams[0]);
        g.driver.inner().hold(stream).expect("a stream");
        g.driver.inner().spin(stream, 0).expect("a stream");
        g.driver.fail(Fault::once(CallSet::of(&[Call::Copy]), 1));
        g.pool.resume(&[kv], &mut Report::default()).expect_err("contents cannot be copied");
        g.driver.clear_faults();
        g.driver.reset_counts();
        let may = moves == Move::Always;
        let mapped = if may { 0 } else { 4 };
        for _ in 0..2 {
            let stuck = g.pool.with_core(|core| core.recover()).expect("alive");
            assert_eq!(stuck, !may, "{moves:?}");
            assert_eq!(g.driver.count(Call::Unmap), 0, "{moves:?}: the device works");
            assert_eq!(g.driver.inner().census().mappings, mapped, "{moves:?}");
            if !may {
                let (status, _) = told(g.pool.resume(&[kv], &mut Report::default()));
                assert_eq!(status, Status::Busy, "{moves:?}: they are in the way");
            }
        }
        g.stats();
        g.driver.inner().unhold(stream).expect("a stream");
        g.driver.inner().quiesce();
        assert!(!g.pool.with_core(|core| core.recover()).expect("alive"), "{moves:?}");
        assert_eq!(g.driver.inner().census().mappings, 0, "{moves:?}");
        g.resume(&[kv]);
        block.check();
        g.free(block);
        g.driver.inner().run_all();
        g.end(&streams);
    }
}

#[test]
fn an_event_that_could_not_be_recorded_is_kept_for_the_next_look() {
    let mut g = Ground::new(64, 1, |_| {});
    let kv = g.tags[0];
    let block = g.alloc(kv, 4 * GRANULE, 0).expect("room");
    g.driver.fail(Fault::from_then_on(CallSet::of(&[Call::StreamSynchronize]), 1));
    g.pool.suspend(&[kv], Level::Offload).expect_err("the copy cannot be awaited");
    g.driver.clear_faults();
    let calls = [Call::EventRecord, Call::EventDestroy];
    g.driver.fail(Fault::from_then_on(CallSet::of(&calls), 1));
    let events = g.driver.inner().census().events;
    for _ in 0..3 {
        assert!(g.pool.with_core(|core| core.recover()).expect("alive"), "it is under way");
        assert!(g.driver.inner().census().events <= events + 1, "one serves all looks");
    }
    g.driver.clear_faults();
    g.driver.inner().run_all();
    assert!(!g.pool.with_core(|core| core.recover()).expect("alive"));
    block.check();
    g.free(block);
    g.driver.inner().run_all();
    g.end(&[]);
}

/// The number of a pool that ends in the middle of a wait.
static ENDS: AtomicU64 = AtomicU64::new(0);

fn end_it(_: [usize; 4]) {
    registry::destroy(ENDS.load(Ordering::SeqCst)).expect("nothing stands in the way");
}

#[test]
fn a_pool_that_ends_while_it_is_awaited_leaves_no_event() {
    let g = Ground::new(16, 0, |settings| settings.free = forebay::config::FreeMode::Sync);
    let block = g.pool.alloc(1000, SYNC_STREAM).expect("room");
    ENDS.store(g.pool.id(), Ordering::SeqCst);
    g.driver.inner().launch(StreamHandle(0), end_it, [0; 4]).expect("queued");
    // Waits for the device, and so for the end.
    let (status, _) = told(g.pool.dealloc(block, SYNC_STREAM));
    assert_eq!(status, Status::InvalidPool);
    let census = g.driver.inner().census();
    assert!(census.is_clean(), "left: {census:?}");
    let _ = g.pool.into_handle();
}
