//! Random schedules of the pool's core: three threads under shuttle, against a model.
//!
//! The core's lock is shuttle's here, so its scheduler chooses who gets it next. What runs
//! without the lock (hot paths, the registry's lock, the keeper) is not scheduled: those use
//! thread slots and statics that shuttle cannot own. The device is deferred; the threads step it.
//! The model says which blocks are live, and which freed ranges still have work queued: those
//! may go to the lane that freed them only.

use super::arena::Arena;
use super::cache::LaneCache;
use super::core::{CacheRef, Core};
use super::ladder::{Fit, Refusal};
use super::{Settings, Shared};
use crate::config::{Config, FreeMode};
use crate::driver::host::{HostDriver, HostOptions};
use crate::driver::{Driver, StreamHandle};
use crate::slab::class::{SLOT_MAX, class_aligned};
use crate::stream::LaneId;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

const DEVICE: usize = 8 << 20;
const POOL: u64 = 9;
const THREADS: usize = 3;
const OPERATIONS: usize = 24;

/// Freed memory with work behind it.
struct Busy {
    start: usize,
    end: usize,
    lane: LaneId,
    done: Arc<AtomicBool>,
}

#[derive(Default)]
struct Model {
    live: BTreeMap<usize, usize>,
    busy: Vec<Busy>,
}

impl Model {
    fn add(&mut self, address: usize, bytes: usize, lane: LaneId) {
        if let Some((&before, &len)) = self.live.range(..=address).next_back() {
            assert!(before + len <= address, "{address:#x} lies in a live block");
        }
        if let Some((&after, _)) = self.live.range(address..).next() {
            assert!(address + bytes <= after, "{address:#x} reaches a live block");
        }
        self.busy.retain(|b| !b.done.load(Ordering::Relaxed));
        for busy in &self.busy {
            let overlaps = address < busy.end && busy.start < address + bytes;
            assert!(!overlaps || busy.lane == lane, "lane {lane} got memory still in use");
        }
        self.live.insert(address, bytes);
    }
}

struct World {
    shared: Shared,
    driver: Arc<HostDriver>,
    model: Mutex<Model>,
}

/// One thread: its lane, its cache, its blocks.
struct Worker {
    world: &'static World,
    stream: u64,
    cache: CacheRef,
    blocks: Vec<(usize, usize)>,
}

fn done(words: [usize; 4]) {
    // SAFETY: the word came from `Arc::into_raw` when the call was queued, once.
    let flag = unsafe { Arc::from_raw(words[0] as *const AtomicBool) };
    flag.store(true, Ordering::Relaxed);
}

fn random(end: usize) -> usize {
    use shuttle::rand::Rng;
    shuttle::rand::thread_rng().gen_range(0..end)
}

impl Worker {
    fn with_core<R>(&self, f: impl FnOnce(&mut Core, &mut LaneCache) -> R) -> R {
        let cache = self.cache;
        let run = |core: &mut Core| {
            // SAFETY: this worker's own cache, and the core is locked.
            f(core, unsafe { &mut *cache.0 })
        };
        self.world.shared.with_core(POOL, run).expect("the pool lives")
    }

    fn alloc(&mut self) {
        let bytes = [700, 5000, 60_000, 300_000, 3 << 20][random(5)];
        let world = self.world;
        for _ in 0..3 {
            let taken = self.with_core(|core, cache| {
                let address = take(core, cache, bytes)?;
                let lane = cache.id as LaneId;
                world.model.lock().expect("no panic").add(address, bytes, lane);
                Ok::<usize, Refusal>(address)
            });
            match taken {
                Ok(address) => return self.blocks.push((address, bytes)),
                Err(Refusal::Short { .. } | Refusal::AddressSpace) => {}
                Err(other) => panic!("{other:?}"),
            }
            // The ladder's rung of waiting, with others at work in between.
            world.driver.step(random(1000) as u64);
            self.settle();
        }
    }

    fn free(&mut self) {
        if self.blocks.is_empty() {
            return;
        }
        let (address, bytes) = self.blocks.swap_remove(random(self.blocks.len()));
        let flag = Arc::new(AtomicBool::new(false));
        let word = Arc::into_raw(Arc::clone(&flag)) as usize;
        let stream = StreamHandle(self.stream);
        self.world.driver.launch(stream, done, [word, 0, 0, 0]).expect("a live stream");
        let world = self.world;
        self.with_core(|core, cache| {
            let mut model = world.model.lock().expect("no panic");
            model.live.remove(&address);
            let lane = cache.id as LaneId;
            model.busy.push(Busy { start: address, end: address + bytes, lane, done: flag });
            drop(model);
            core.free_at(cache, address, FreeMode::Deferred).expect("a live block");
        });
    }

    fn settle(&self) {
        self.with_core(|core, _| {
            core.lanes.record_all(&*core.driver.0).expect("the host records");
            core.settle();
            core.check();
        });
    }

    fn trim(&self) {
        self.with_core(|core, cache| {
            core.flush_cache(cache);
            core.flush_depots();
            core.trim(random(DEVICE) as u64).expect("the host unmaps");
        });
    }

    fn run(mut self) {
        for _ in 0..OPERATIONS {
            match random(10) {
                0..=4 => self.alloc(),
                5..=6 => self.free(),
                7 => self.settle(),
                8 => self.trim(),
                _ => {
                    self.world.driver.step(random(1000) as u64);
                }
            }
        }
        while !self.blocks.is_empty() {
            self.free();
        }
        self.with_core(|core, cache| core.remove_cache(cache));
    }
}

fn take(core: &mut Core, cache: &mut LaneCache, bytes: usize) -> Result<usize, Refusal> {
    if bytes > SLOT_MAX {
        return core.take_extent(cache, bytes, 0, 1, [Fit::Granules, Fit::Anywhere][random(2)]);
    }
    let class = class_aligned(bytes, 1).expect("a slot's size");
    let round = core.take_slot(cache, class)?;
    core.marks.mark(round.mark()).store(1, Ordering::Relaxed);
    let allocs = &cache.mags[class].allocs;
    allocs.store(allocs.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    Ok(core.slot_address(round))
}

/// Cache memory for all schedules: it is never unmapped.
static ARENA: Mutex<Option<Arena>> = Mutex::new(None);

fn worker(world: &'static World, arena: &mut Arena) -> Worker {
    let stream = world.driver.stream_create().expect("a stream").0;
    let key = POOL << super::HANDLE_SHIFT ^ stream;
    let made = world.shared.with_core(POOL, |core| {
        let lane = core.lane(key, stream).expect("a lane is left");
        let view = core.view(lane);
        let nobody = std::ptr::null_mut();
        let cache = arena.lane(nobody, &world.shared, view, key).expect("memory");
        core.caches.push(CacheRef(cache));
        cache
    });
    Worker { world, stream, cache: CacheRef(made.expect("lives")), blocks: Vec::new() }
}

/// One schedule: three threads to their end, then nothing may be left.
fn schedule(ignore_stamps: bool) {
    let options = HostOptions { total_bytes: DEVICE, deferred: true, ..HostOptions::default() };
    let driver = Arc::new(HostDriver::new(options).expect("a host device"));
    let mut settings = Settings::resolve(&Config::default(), DEVICE as u64, true);
    settings.keeper = false;
    let core = super::start::new_core(driver.clone() as Arc<dyn Driver>, settings);
    let world = Box::new(World { shared: Shared::new(), driver, model: Mutex::default() });
    let mut core = Box::new(core.expect("a core"));
    if ignore_stamps {
        core.ignore_stamps();
    }
    *world.shared.core.lock() = Some(core);
    world.shared.id.store(POOL, Ordering::Relaxed);
    let world: *mut World = Box::into_raw(world);
    // SAFETY: just made; given back below, when no thread or cache refers to it any more.
    let lives: &'static World = unsafe { &*world };
    let mut arena = ARENA.lock().expect("no panic").take().unwrap_or_default();
    let workers: Vec<Worker> = (0..THREADS).map(|_| worker(lives, &mut arena)).collect();
    let caches: Vec<CacheRef> = workers.iter().map(|w| w.cache).collect();
    let threads: Vec<_> =
        workers.into_iter().map(|w| shuttle::thread::spawn(move || w.run())).collect();
    for thread in threads {
        thread.join().expect("no panic");
    }
    lives.driver.run_all();
    let ended = lives.shared.with_core(POOL, |core| {
        core.trim(0).expect("the host unmaps");
        let stats = core.stats();
        assert_eq!((stats.live_bytes, stats.mapped_bytes), (0, 0), "{stats:?}");
        core.lanes.close(&*core.driver.0).and_then(|()| core.close_memory())
    });
    ended.expect("lives").expect("the host gives back");
    for cache in caches {
        // SAFETY: emptied by its worker, which has ended; the core forgot it.
        unsafe { arena.give_lane(cache.0) };
    }
    *ARENA.lock().expect("no panic") = Some(arena);
    // SAFETY: made by `Box::into_raw` above; every thread has ended.
    drop(unsafe { Box::from_raw(world) });
}

#[test]
fn shuttle_random_schedules_of_the_core_agree_with_the_model() {
    shuttle::check_random(|| schedule(false), 2000);
}

#[test]
fn shuttle_schedules_with_few_switches_agree_with_the_model() {
    shuttle::check_pct(|| schedule(false), 2000, 4);
}

#[test]
#[should_panic(expected = "got memory still in use")]
fn shuttle_canary_ignored_stamps_are_noticed() {
    shuttle::check_random(|| schedule(true), 2000);
}
