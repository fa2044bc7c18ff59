//! What others do while a tag falls asleep or wakes.

use super::*;
use forebay::driver::host::HostDriver;
use forebay::driver::{Driver, StreamHandle};
use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Blocks that a callback frees, 0-ended.
static TO_FREE: [AtomicUsize; 8] = [const { AtomicUsize::new(0) }; 8];
static POOL: AtomicUsize = AtomicUsize::new(0);
static REFUSED: AtomicUsize = AtomicUsize::new(0);
/// What the owner frees when memory is short, if anything.
static HOARD: AtomicUsize = AtomicUsize::new(0);

fn prepare(pool: &Pool, tag: u8, blocks: &[Block]) {
    TO_FREE.iter().for_each(|slot| slot.store(0, Ordering::SeqCst));
    for (slot, block) in TO_FREE.iter().zip(blocks) {
        slot.store(block.address, Ordering::SeqCst);
    }
    POOL.store(pool.id() as usize | usize::from(tag) << 32, Ordering::SeqCst);
    REFUSED.store(0, Ordering::SeqCst);
}

/// Frees the blocks, each twice, and tries what must be refused now.
fn meddle() {
    let word = POOL.load(Ordering::SeqCst);
    let pool = Pool::from_number((word & 0xffff_ffff) as u64).expect("alive");
    let mut refused = 0;
    for slot in &TO_FREE {
        let address = slot.swap(0, Ordering::SeqCst);
        if address == 0 {
            continue;
        }
        refused += usize::from(told(pool.pin(address)).0 == Status::Busy);
        pool.dealloc(address, 0).expect("live");
        refused += usize::from(told(pool.dealloc(address, 0)).0 == Status::DoubleFree);
    }
    let tag = (word >> 32) as u8;
    refused += usize::from(told(under(tag, || pool.alloc(100, 0))).0 == Status::Busy);
    refused += usize::from(told(pool.suspend(&[tag], Level::Discard)).0 == Status::Busy);
    refused += usize::from(told(pool.resume(&[tag], &mut Report::default())).0 == Status::Busy);
    refused += usize::from(told(registry::destroy(pool.id())).0 == Status::Busy);
    REFUSED.store(refused, Ordering::SeqCst);
}

fn in_a_queue(_: [usize; 4]) {
    meddle();
}

unsafe extern "C" fn when_short(first: *mut c_void, _bytes: usize) -> bool {
    // SAFETY: the test keeps the flag for as long as the pool.
    let first = unsafe { &*(first as *const AtomicBool) };
    let again = first.swap(false, Ordering::SeqCst);
    if again {
        meddle();
        let pool = Pool::from_number((POOL.load(Ordering::SeqCst) & 0xffff_ffff) as u64);
        // Address 0 is nobody's.
        let hoard = HOARD.swap(0, Ordering::SeqCst);
        pool.and_then(|pool| pool.dealloc(hoard, 0)).expect("live");
    }
    again
}

fn sizes(tune: impl FnOnce(&mut Settings)) -> (Ground, Vec<Block>) {
    let mut g = Ground::new(64, 1, tune);
    let kv = g.tags[0];
    let sizes = [700, 700, 40_000, 5 * GRANULE, GRANULE / 2, 8 * GRANULE, 300, 2 * GRANULE];
    let blocks = sizes.iter().map(|&bytes| g.alloc(kv, bytes, 0).expect("room")).collect();
    (g, blocks)
}

#[test]
fn what_is_freed_while_a_tag_falls_asleep_is_freed_then() {
    for wipes in [false, true] {
        let (g, mut blocks) = sizes(|settings| settings.scrub = wipes);
        let kv = g.tags[0];
        let gone: Vec<Block> = [5, 3, 0].into_iter().map(|i| blocks.swap_remove(i)).collect();
        prepare(&g.pool, kv, &gone);
        // Runs when the suspend awaits the device.
        g.driver.inner().launch(StreamHandle(0), in_a_queue, [0; 4]).expect("queued");
        let told = g.suspend(&[kv]);
        assert_eq!(REFUSED.load(Ordering::SeqCst), 3 * 2 + 4, "scrub {wipes}");
        assert_eq!((told.blocks, g.stats().live_blocks), (5, 5));
        assert!(told.host_bytes <= told.device_bytes - 13 * GRANULE as u64, "{told:?}");
        g.resume(&[kv]);
        blocks.iter().for_each(|block| block.check());
        g.driver.inner().run_all();
        g.stats();
        blocks.into_iter().for_each(|block| g.free(block));
        g.driver.inner().run_all();
        g.stats();
        g.end(&[]);
    }
}

#[test]
fn a_suspend_that_fails_frees_what_was_freed_meanwhile() {
    for wipes in [false, true] {
        let (g, mut blocks) = sizes(|settings| settings.scrub = wipes);
        let kv = g.tags[0];
        let gone: Vec<Block> = [5, 3, 0].into_iter().map(|i| blocks.swap_remove(i)).collect();
        prepare(&g.pool, kv, &gone);
        g.driver.inner().launch(StreamHandle(0), in_a_queue, [0; 4]).expect("queued");
        use forebay::driver::Call;
        use forebay::driver::faulty::{CallSet, Fault};
        g.driver.fail(Fault::once(CallSet::of(&[Call::Copy]), 1));
        let (status, _) = told(g.pool.suspend(&[kv], Level::Offload));
        assert_eq!((status, REFUSED.load(Ordering::SeqCst)), (Status::Driver, 10));
        g.driver.clear_faults();
        g.driver.inner().run_all();
        blocks.iter().for_each(|block| block.check());
        assert_eq!(g.stats().live_blocks, 5);
        // Their memory is there for others, once it has been overwritten where that is asked for.
        let mut trimmed = 0;
        for _ in 0..3 {
            trimmed += g.pool.trim(0).expect("idle");
            g.driver.inner().run_all();
        }
        assert!(trimmed >= 13 * GRANULE as u64, "{trimmed}");
        blocks.into_iter().for_each(|block| g.free(block));
        g.driver.inner().run_all();
        g.end(&[]);
    }
}

#[test]
fn what_is_freed_while_a_tag_wakes_is_freed_then() {
    for enough in [true, false] {
        let (mut g, mut blocks) = sizes(|_| {});
        let kv = g.tags[0];
        g.suspend(&[kv]);
        let hoard = g.alloc(1, 50 * GRANULE, 0).expect("room");
        let own: Vec<Block> = [3, 0].into_iter().map(|i| blocks.swap_remove(i)).collect();
        prepare(&g.pool, kv, &own);
        HOARD.store(if enough { hoard.address } else { 0 }, Ordering::SeqCst);
        let first = AtomicBool::new(true);
        let word = std::ptr::from_ref(&first) as usize;
        g.pool.set_on_out_of_memory(Some((when_short, word))).expect("alive");
        let mut report = Report::default();
        let done = g.pool.resume(&[kv], &mut report);
        assert_eq!(REFUSED.load(Ordering::SeqCst), 2 * 2 + 4);
        g.pool.set_on_out_of_memory(None).expect("alive");
        if enough {
            done.expect("the owner has freed the hoard");
        } else {
            assert_eq!(told(done).0, Status::OutOfMemory);
            assert_eq!(g.stats().live_blocks, 7);
            g.free(hoard);
            g.resume(&[kv]);
        }
        blocks.iter().for_each(|block| block.check());
        assert_eq!(g.stats().live_blocks, 6);
        blocks.into_iter().for_each(|block| g.free(block));
        g.driver.inner().run_all();
        g.stats();
        g.end(&[]);
    }
}

/// A thread that allocates, checks and frees under a tag of its own, and frees what it is handed of
/// another's.
fn work(
    (pool, tag): (u64, u8),
    (stop, rounds): (&AtomicBool, &AtomicUsize),
    handed: &Mutex<Vec<Block>>,
    seed: u64,
) {
    let pool = Pool::from_number(pool).expect("alive");
    let mut random = common::Random(seed);
    let mut live = Vec::<Block>::new();
    while !stop.load(Ordering::Relaxed) {
        rounds.fetch_add(1, Ordering::Relaxed);
        let bytes = random.size_to(17);
        match under(tag, || pool.alloc(bytes, 0)) {
            Ok(address) => live.push(Block::new(address, bytes, 0, random.bits())),
            Err(error) => assert_eq!(error.status(), Status::OutOfMemory, "{error}"),
        }
        if live.len() > 20 || random.one_in(3) && !live.is_empty() {
            let block = live.swap_remove(random.below(live.len()));
            block.check();
            pool.dealloc(block.address, 0).expect("live");
        }
        if random.one_in(8)
            && let Some(block) = handed.lock().expect("no panic").pop()
        {
            pool.dealloc(block.address, 0).expect("live, asleep or not");
        }
    }
    live.into_iter().for_each(|block| {
        block.check();
        pool.dealloc(block.address, 0).expect("live");
    });
}

/// Ends the threads also when the test fails.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn other_threads_go_on_with_other_tags() {
    let _alone = alone();
    let seed = common::seed(77);
    let options =
        HostOptions { total_bytes: 64 << 20, granularity: GRANULE, ..HostOptions::default() };
    let driver = Arc::new(HostDriver::new(options).expect("a host device"));
    let mut settings = Settings::resolve(&forebay::config::Config::default(), 64 << 20, true);
    settings.keeper = true;
    let shared = Arc::clone(&driver) as Arc<dyn Driver>;
    let pool = Pool::with_driver(shared, settings).expect("a pool");
    let (a, b, c) = (tag(0), tag(1), 1);
    for tag in [a, b] {
        pool.declare_suspendable(tag).expect("a tag");
    }
    let mut random = common::Random(seed);
    let (stop, handed) = (AtomicBool::new(false), Mutex::new(Vec::new()));
    let (id, rounds) = (pool.id(), AtomicUsize::new(0));
    let meanwhile = std::thread::scope(|scope| {
        let (stop, handed, rounds) = (&stop, &handed, &rounds);
        let threads = [b, c].map(|tag| {
            let seed = seed ^ u64::from(tag);
            scope.spawn(move || work((id, tag), (stop, rounds), handed, seed))
        });
        let stopping = Stop(stop);
        let mut meanwhile = 0;
        let mut kept: Vec<Block> = Vec::new();
        for _ in 0..60 {
            while kept.len() < 12 {
                let bytes = random.size_between(100, 2 << 20);
                let address = under(a, || pool.alloc(bytes, 0)).expect("room");
                kept.push(Block::new(address, bytes, 0, random.bits()));
            }
            let more = kept.split_off(8);
            handed.lock().expect("no panic").extend(more);
            let before = rounds.load(Ordering::Relaxed);
            pool.suspend(&[a], Level::Offload).expect("nothing in the way");
            meanwhile += rounds.load(Ordering::Relaxed) - before;
            pool.resume(&[a], &mut Report::default()).expect("room");
            kept.iter().for_each(|block| block.check());
        }
        drop(stopping);
        threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
        kept.iter().for_each(|block| pool.dealloc(block.address, 0).expect("live"));
        meanwhile
    });
    println!("{meanwhile} rounds of other tags while one fell asleep");
    assert!(meanwhile > 0, "nobody else got on while a tag fell asleep");
    for block in handed.into_inner().expect("no panic") {
        pool.dealloc(block.address, 0).expect("live");
    }
    let stats = pool.stats().expect("alive");
    assert_eq!((stats.live_blocks, stats.sum()), (0, stats.mapped_bytes), "{stats:?}");
    pool.with_core(|core| core.check()).expect("alive");
    drop(pool);
    assert!(driver.census().is_clean(), "{:?}", driver.census());
}

/// What the accounts say when memory is short, after the callback has freed a block.
static SUMS: [AtomicUsize; 4] = [const { AtomicUsize::new(0) }; 4];

unsafe extern "C" fn free_and_look(_: *mut c_void, _bytes: usize) -> bool {
    let pool = Pool::from_number(POOL.load(Ordering::SeqCst) as u64).expect("alive");
    for slot in &TO_FREE {
        pool.dealloc(slot.swap(0, Ordering::SeqCst), 0).expect("live");
    }
    let stats = pool.stats().expect("alive");
    let glance = pool.with_core(|core| core.glance()).expect("alive");
    let told = [stats.sum(), stats.mapped_bytes, stats.other_bytes, glance.occupied_free_bytes];
    for (slot, value) in SUMS.iter().zip(told) {
        slot.store(value as usize, Ordering::SeqCst);
    }
    false
}

#[test]
fn the_accounts_sum_while_a_tag_wakes() {
    let (mut g, mut blocks) = sizes(|_| {});
    let kv = g.tags[0];
    g.suspend(&[kv]);
    let hoard = g.alloc(1, 50 * GRANULE, 0).expect("room");
    let gone: Vec<Block> = [5, 3, 0].into_iter().map(|i| blocks.swap_remove(i)).collect();
    prepare(&g.pool, kv, &gone);
    POOL.store(g.pool.id() as usize, Ordering::SeqCst);
    g.pool.set_on_out_of_memory(Some((free_and_look, 0))).expect("alive");
    let (status, _) = told(g.pool.resume(&[kv], &mut Report::default()));
    assert_eq!(status, Status::OutOfMemory, "the hoard is kept");
    g.pool.set_on_out_of_memory(None).expect("alive");
    let [sum, mapped, other, occupied] = SUMS.each_ref().map(|sum| sum.load(Ordering::SeqCst));
    assert_eq!((sum, other), (mapped, mapped - 50 * GRANULE), "what sleeps is no part of them");
    assert_eq!(occupied, 0, "nothing but the hoard has granules");
    g.stats();
    g.free(hoard);
    g.resume(&[kv]);
    blocks.iter().for_each(|block| block.check());
    blocks.into_iter().for_each(|block| g.free(block));
    g.driver.inner().run_all();
    g.end(&[]);
}
