//! A program's step as a list, played by the pool or by a plan, with marks in device order.
//!
//! Each buffer gets marks at both ends, written in its lane's order when it comes and looked at in
//! that order before it goes; and no two live buffers of the step may overlap on the host. Must
//! not hide a failure: wrong marks are counted where they are found, and asked at the end.

use crate::common::{self, Random, Watched};
use forebay::driver::host::HostOptions;
use forebay::driver::{Driver, StreamHandle};
use forebay::error::Status;
use forebay::pool::Pool;
use forebay::step::{hot, record, slow};
use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// One thing that a step does. Buffers are named by numbers of their own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Op {
    /// A buffer of so many bytes, on a lane.
    Alloc(u32, usize, usize),
    /// Its end, on a lane.
    Free(u32, usize),
    /// Later work of the second lane waits for the first.
    Fence(usize, usize),
}

/// A device with late streams, a pool over it, and streams to be lanes.
pub struct Rig {
    pub driver: Arc<Watched>,
    pub pool: Pool,
    pub streams: Vec<u64>,
    pub marks: &'static Marks,
}

/// What queued checks found.
#[derive(Debug, Default)]
pub struct Marks {
    pub checked: AtomicU64,
    pub wrong: AtomicU64,
}

/// Up to 8 bytes at each end, which do not overlap.
fn ends(address: usize, bytes: usize) -> [(*mut u8, usize); 2] {
    let length = (bytes / 2).clamp(1, 8);
    [(address as *mut u8, length), ((address + bytes - length) as *mut u8, length)]
}

fn write(words: [usize; 4]) {
    let [address, bytes, value, _] = words;
    for (end, length) in ends(address, bytes) {
        // SAFETY: whoever queued it keeps the buffer's memory mapped until it is done; that two
        // buffers may have it at once is what the test looks for.
        unsafe { std::ptr::copy_nonoverlapping(value.to_le_bytes().as_ptr(), end, length) };
    }
}

fn check(words: [usize; 4]) {
    let [address, bytes, value, marks] = words;
    // SAFETY: marks live for ever.
    let marks = unsafe { &*(marks as *const Marks) };
    marks.checked.fetch_add(1, Ordering::Relaxed);
    let same = ends(address, bytes).into_iter().all(|(end, length)| {
        // SAFETY: as in `write`.
        let found = unsafe { std::slice::from_raw_parts(end, length) };
        found == &value.to_le_bytes()[..length]
    });
    if !same {
        marks.wrong.fetch_add(1, Ordering::Relaxed);
    }
}

impl Rig {
    /// A pool over a device of `bytes`, whose work runs only when a test says so.
    pub fn new(bytes: usize, lanes: usize) -> Rig {
        let options = HostOptions { total_bytes: bytes, deferred: true, ..HostOptions::default() };
        let driver = common::device(options);
        let pool = common::pool(&driver, common::settings(&driver));
        let streams = (0..lanes).map(|_| driver.stream_create().expect("a stream").0).collect();
        Rig { driver, pool, streams, marks: Box::leak(Box::default()) }
    }

    /// One more stream, for the caller to use; it ends with the others once it is among them.
    pub fn add_stream(&self) -> u64 {
        self.driver.stream_create().expect("a stream").0
    }

    /// Queues the marks of a buffer's ends on a lane.
    pub fn mark(&self, (address, bytes): (usize, usize), value: u64, lane: usize) {
        let words = [address, bytes, value as usize, 0];
        let stream = StreamHandle(self.streams[lane]);
        self.driver.inner().launch(stream, write, words).expect("a live stream");
    }

    /// Queues a look on a lane whether they are there.
    pub fn look(&self, (address, bytes): (usize, usize), value: u64, lane: usize) {
        let words = [address, bytes, value as usize, std::ptr::from_ref(self.marks) as usize];
        let stream = StreamHandle(self.streams[lane]);
        self.driver.inner().launch(stream, check, words).expect("a live stream");
    }

    /// Runs some of the queued work, of streams that `random` chooses.
    pub fn work(&self, random: &mut Random) {
        // Late, and then much at once: lanes fall behind each other.
        let most = if random.one_in(20) { 80 } else { 2 };
        for _ in 0..random.below(most) {
            self.driver.inner().step(random.bits());
        }
    }

    /// Runs all queued work; how many marks were found and how many of them wrong.
    pub fn finish(&self) -> (u64, u64) {
        self.driver.inner().run_all();
        self.driver.inner().quiesce();
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        (of(&self.marks.checked), of(&self.marks.wrong))
    }

    /// Ends pool and streams; nothing may be left.
    pub fn end(self) {
        self.driver.inner().run_all();
        common::end(&self.driver, self.pool, &self.streams);
    }
}

/// Who serves a step.
#[derive(Clone, Copy, Debug)]
pub enum By<'a> {
    /// The pool; a recording's number, for its fences.
    Pool(u64),
    /// The open step with this handle.
    Step(u64),
    /// The same, where the step's fences are not recorded yet: they are asked for.
    Learnt(u64),
    /// As [`By::Step`], and beside it buffers that are not planned.
    Gaps(u64, &'a RefCell<Vec<Dynamic>>),
}

/// A buffer that is not planned: where and how long, its marks, its lane, how many allocations it
/// lives on.
type Dynamic = ((usize, usize), u64, usize, usize);

impl By<'_> {
    pub fn alloc(self, rig: &Rig, bytes: usize, lane: usize) -> usize {
        let stream = rig.streams[lane];
        match self {
            By::Pool(_) => rig.pool.alloc(bytes, stream).expect("fits"),
            By::Step(step) | By::Learnt(step) | By::Gaps(step, _) => {
                step_alloc(step, bytes, stream).expect("fits")
            }
        }
    }

    pub fn free(self, rig: &Rig, address: usize, lane: usize) {
        let stream = rig.streams[lane];
        match self {
            By::Pool(_) => rig.pool.dealloc(address, stream).expect("live"),
            By::Step(step) | By::Learnt(step) | By::Gaps(step, _) => {
                assert_eq!(step_free(step, address, stream), Status::Ok)
            }
        }
    }

    /// Before an allocation: ends those whose life is over, and makes one now and then.
    fn dynamic(self, rig: &Rig, places: &mut BTreeMap<usize, usize>, random: &mut Random) {
        let By::Gaps(step, live) = self else { return };
        let mut live = live.borrow_mut();
        live.retain_mut(|(place, value, lane, left)| {
            *left = left.saturating_sub(1);
            if *left > 0 {
                return true;
            }
            end_dynamic(rig, step, (*place, *value, *lane), places);
            false
        });
        if !random.one_in(3) {
            return;
        }
        let (births, lane) = (1 + random.below(12), random.below(rig.streams.len()));
        let bytes = random.size_between(16, 60_000);
        let found = step_alloc_within(step, bytes, births as u64, rig.streams[lane]);
        let (place, value) = ((found.expect("fits"), bytes), random.bits());
        put(places, place);
        rig.mark(place, value, lane);
        // Some overstay what they said.
        let overstay = if random.one_in(8) { 3 } else { 0 };
        live.push((place, value, lane, births + overstay));
    }

    /// Ends all that are left.
    fn end_dynamic(self, rig: &Rig, places: &mut BTreeMap<usize, usize>) {
        let By::Gaps(step, live) = self else { return };
        for (place, value, lane, _) in live.take() {
            end_dynamic(rig, step, (place, value, lane), places);
        }
    }

    fn fence(self, rig: &Rig, from: usize, to: usize) {
        match self {
            By::Pool(recording) => {
                record::fence(recording, rig.streams[from], rig.streams[to]).expect("streams");
            }
            By::Learnt(step) => {
                slow::fence(step, rig.streams[from], rig.streams[to]).expect("lanes");
            }
            // The plan issues its own.
            By::Step(_) | By::Gaps(..) => {}
        }
    }
}

fn end_dynamic(
    rig: &Rig,
    step: u64,
    (place, value, lane): ((usize, usize), u64, usize),
    places: &mut BTreeMap<usize, usize>,
) {
    rig.look(place, value, lane);
    assert_eq!(step_free(step, place.0, rig.streams[lane]), Status::Ok);
    places.remove(&place.0);
}

/// Notes a live buffer, which must not overlap another.
fn put(places: &mut BTreeMap<usize, usize>, (address, bytes): (usize, usize)) {
    let below = places.range(..address + bytes).next_back();
    let clear = below.is_none_or(|(&start, &length)| start + length <= address);
    assert!(clear, "{address:#x} overlaps {below:x?} on the host");
    places.insert(address, bytes);
}

/// [`hot::alloc`] as a result.
pub fn step_alloc(step: u64, bytes: usize, stream: u64) -> Result<usize, Status> {
    let mut address: *mut c_void = std::ptr::null_mut();
    // SAFETY: a local pointer, valid for the write.
    match unsafe { hot::alloc(step, &raw mut address, bytes, stream) } {
        Status::Ok => Ok(address as usize),
        status => Err(status),
    }
}

/// [`slow::alloc_within`] as a result.
pub fn step_alloc_within(
    step: u64,
    bytes: usize,
    births: u64,
    stream: u64,
) -> Result<usize, Status> {
    let mut address: *mut c_void = std::ptr::null_mut();
    // SAFETY: a local pointer, valid for the write.
    match unsafe { slow::alloc_within(step, &raw mut address, bytes, births, stream) } {
        Status::Ok => Ok(address as usize),
        status => Err(status),
    }
}

/// [`hot::free`].
pub fn step_free(step: u64, address: usize, stream: u64) -> Status {
    // SAFETY: any address is answered with an error, not a fault; the buffer is given up.
    unsafe { hot::free(step, address as *mut c_void, stream) }
}

/// Plays a step with marks; `random` decides when the device works.
pub fn play(rig: &Rig, ops: &[Op], by: By<'_>, random: &mut Random) {
    let mut live: HashMap<u32, (usize, usize, u64)> = HashMap::new();
    let mut places: BTreeMap<usize, usize> = BTreeMap::new();
    for op in ops {
        match *op {
            Op::Alloc(id, bytes, lane) => {
                by.dynamic(rig, &mut places, random);
                let address = by.alloc(rig, bytes, lane);
                put(&mut places, (address, bytes));
                let value = random.bits();
                rig.mark((address, bytes), value, lane);
                live.insert(id, (address, bytes, value));
            }
            Op::Free(id, lane) => {
                let (address, bytes, value) = live.remove(&id).expect("live");
                rig.look((address, bytes), value, lane);
                by.free(rig, address, lane);
                places.remove(&address);
            }
            Op::Fence(from, to) => by.fence(rig, from, to),
        }
        rig.work(random);
    }
    by.end_dynamic(rig, &mut places);
    assert!(live.is_empty(), "a step frees what it has");
}

/// A random step of about `count` buffers on `lanes` lanes, some hundred bytes to some hundred
/// KiB; with fences if there are several lanes.
pub fn random_step(random: &mut Random, count: u32, lanes: usize) -> Vec<Op> {
    let mut ops = Vec::new();
    let mut live: Vec<(u32, usize)> = Vec::new();
    let mut next = 0;
    while next < count || !live.is_empty() {
        let grow = next < count && (live.len() < 4 || random.one_in(2));
        if lanes > 1 && random.one_in(6) {
            let from = random.below(lanes);
            ops.push(Op::Fence(from, (from + 1 + random.below(lanes - 1)) % lanes));
        }
        if grow {
            let lane = random.below(lanes);
            ops.push(Op::Alloc(next, random.size_between(16, 400_000), lane));
            live.push((next, lane));
            next += 1;
        } else {
            let (id, lane) = live.swap_remove(random.below(live.len()));
            ops.push(Op::Free(id, lane));
        }
    }
    ops
}

/// Records a step played by the pool; the recording's number.
pub fn record(rig: &Rig, ops: &[Op], random: &mut Random) -> u64 {
    let recording = record::begin(rig.pool.handle(), None).expect("none is open");
    play(rig, ops, By::Pool(recording), random);
    record::end(recording).expect("it is open");
    recording
}
