//! What happens under faults, on any device.

use super::common::MIB;
use super::retire;
use super::stage::{Scenario, Stage};
use forebay::abi::{PoolT, streams};
use forebay::config::{DebugChecks, FreeMode, Move};
use forebay::driver::Call;
use forebay::error::Status;
use forebay::pool::hot::SYNC_STREAM;
use forebay::pool::{buffers, registry};
use std::time::Duration;

const SMALL_DEVICE: (usize, usize) = (8 * MIB, 64 << 10);
pub const LARGE_DEVICE: (usize, usize) = (16 * MIB, 512 << 10);
pub const GRANULE: usize = LARGE_DEVICE.1;

fn open(stage: &mut Stage) {
    stage.open().expect("no fault yet");
}

pub const CREATE: Scenario = Scenario {
    name: "create",
    device: SMALL_DEVICE,
    tune: |settings| settings.reserve = 512 << 10,
    prepare: |_| {},
    act: |stage| {
        if stage.open().is_ok() {
            let reserved = stage.pool().stats().expect("alive").mapped_bytes;
            assert_eq!(reserved, 512 << 10, "a pool that was made has its reservoir");
        }
    },
    kinds: &[
        Call::Reserve,
        Call::Create,
        Call::Map,
        Call::SetAccess,
        Call::Unmap,
        Call::Release,
        Call::Unreserve,
    ],
};

pub const SMALL: Scenario = Scenario {
    name: "small",
    device: SMALL_DEVICE,
    tune: |_| {},
    prepare: open,
    act: |stage| {
        for i in 0..60usize {
            stage.alloc(1 + (i * 7919) % 40_000, 0);
        }
        stage.free_every_second();
        for i in 0..30usize {
            stage.alloc(1 + (i * 4001) % 40_000, 0);
        }
    },
    kinds: &[Call::StreamCheck, Call::Create, Call::Map, Call::SetAccess, Call::Unmap],
};

pub const LARGE: Scenario = Scenario {
    name: "large",
    device: LARGE_DEVICE,
    tune: |settings| settings.limit = 12 * MIB as u64,
    prepare: open,
    act: |stage| {
        for bytes in [300 << 10, 3 * MIB, MIB + 1, 2 * MIB] {
            stage.alloc(bytes, 0);
        }
        stage.free_every_second();
        for bytes in [4 * MIB, 5 * MIB, 700 << 10] {
            stage.alloc(bytes, 0);
        }
    },
    kinds: &[Call::StreamCheck, Call::Create, Call::Map, Call::SetAccess, Call::EventRecord],
};

/// Blocks of one granule, every second one freed: no two free granules touch.
pub fn checkerboard(stage: &mut Stage) {
    open(stage);
    for _ in 0..24 {
        assert!(stage.alloc(GRANULE, 0));
    }
    stage.free_every_second();
    assert_eq!(stage.live.len(), 12);
}

pub const GATHER: Scenario = Scenario {
    name: "gather",
    device: LARGE_DEVICE,
    tune: |settings| settings.limit = (24 * GRANULE) as u64,
    prepare: checkerboard,
    act: |stage| {
        stage.alloc(3 * GRANULE, 0);
        stage.alloc(5 * GRANULE, 0);
    },
    kinds: &[
        Call::Unmap,
        Call::Map,
        Call::SetAccess,
        Call::EventCreate,
        Call::EventRecord,
        Call::EventQuery,
    ],
};

pub const GATHER_WHEN_IDLE: Scenario = Scenario {
    name: "gather when idle",
    tune: |settings| {
        settings.limit = (24 * GRANULE) as u64;
        settings.moves = Move::Idle;
    },
    ..GATHER
};

pub const TRIM: Scenario = Scenario {
    name: "trim",
    device: LARGE_DEVICE,
    tune: |_| {},
    prepare: checkerboard,
    act: |stage| {
        let before = stage.pool().stats().expect("alive").mapped_bytes;
        if let Ok(released) = stage.pool().trim((18 * GRANULE) as u64) {
            let after = stage.pool().stats().expect("alive").mapped_bytes;
            assert_eq!(before - after, released);
        }
        let limit = stage.pool().stats().expect("alive").limit_bytes;
        if stage.pool().set_limits(Some((14 * GRANULE) as u64), None).is_err() {
            assert_eq!(stage.pool().stats().expect("alive").limit_bytes, limit);
        }
        let again = stage.pool().set_limits(Some(limit), None);
        again.expect("raising a limit needs no driver call");
    },
    kinds: &[Call::Unmap, Call::Release, Call::EventCreate, Call::EventRecord, Call::EventQuery],
};

/// Allocations, uses and frees over several lanes, with work queued so that fences are late.
fn lanes(stage: &mut Stage) {
    let streams = stage.streams.clone();
    for round in 0..2 {
        for (i, &stream) in streams.iter().enumerate() {
            for bytes in [1000, 60_000, 600 << 10] {
                if stage.alloc(bytes + 100 * i, stream) {
                    stage.driver.busy(stream);
                }
            }
            stage.alloc(2000 + 500 * round, SYNC_STREAM);
        }
        for k in 0..stage.live.len() / 2 {
            let block = stage.live[k];
            let other = streams[(k + round) % streams.len()];
            let used = stage.pool().record_use(block.address, other);
            match (k + round) % 4 {
                0 if used.is_ok() => stage.free(k, other),
                1 => stage.free(k, SYNC_STREAM),
                2 if block.stream != SYNC_STREAM => stage.free(k, block.stream),
                _ => false,
            };
        }
        stage.driver.step(round as u64);
    }
    retire(streams[0]);
    stage.driver.run_all();
    stage.alloc(3 * MIB, streams[1]);
    stage.alloc(2 * MIB, SYNC_STREAM);
}

pub fn open_with_streams(stage: &mut Stage) {
    open(stage);
    stage.add_streams(3);
}

pub const ASYNC: Scenario = Scenario {
    name: "async",
    device: SMALL_DEVICE,
    tune: |settings| settings.cache = 256 << 10,
    prepare: open_with_streams,
    act: lanes,
    kinds: &[Call::StreamCheck, Call::EventCreate, Call::EventRecord, Call::EventQuery],
};

/// Frees that wait for the device, wiped memory, and what operators ask.
fn questions(stage: &mut Stage) {
    let stream = stage.streams[0];
    for bytes in [5000, 400 << 10, 6000, 500 << 10] {
        stage.alloc(bytes, stream);
    }
    stage.driver.busy(stream);
    for _ in 0..stage.live.len() {
        stage.free(0, SYNC_STREAM);
        stage.driver.run_all();
    }
    let answered = stage.pool().memory_info();
    if let Ok((free, total)) = answered {
        assert!(free <= total && total == SMALL_DEVICE.0);
    }
}

pub const QUESTIONS: Scenario = Scenario {
    name: "questions",
    device: SMALL_DEVICE,
    tune: |settings| {
        settings.free = FreeMode::Sync;
        settings.debug = DebugChecks { poison: true, ..DebugChecks::default() };
    },
    prepare: open_with_streams,
    act: questions,
    kinds: &[Call::MemoryInfo, Call::EventSynchronize, Call::Fill],
};

/// A set of buffers handed from stream to stream, and the driver's own streams.
fn set_of_buffers(stage: &mut Stage) {
    let (a, b) = (stage.streams[0], stage.streams[1]);
    if let Ok(set) = buffers::create(stage.pool().handle(), 20_000, 3) {
        for (by, then) in [(a, b), (b, a), (a, 0)] {
            if let Ok(buffer) = buffers::acquire(set, by) {
                stage.driver.busy(by);
                // A stream that fails its check leaves the buffer out; 0 may fail as well.
                while buffers::release(set, buffer, by).is_err() {
                    stage.driver.clear_faults();
                }
            }
            if let Ok(buffer) = buffers::acquire(set, then) {
                while buffers::release(set, buffer, then).is_err() {
                    stage.driver.clear_faults();
                }
            }
        }
        if buffers::destroy(set).is_err() {
            stage.driver.clear_faults();
            buffers::destroy(set).expect("all buffers are in and no fault is left");
        }
    } else {
        // What the failed set holds is given up as far as the driver let it.
        stage.foreign_blocks = stage.pool().stats().expect("alive").live_blocks;
        assert_eq!(stage.foreign_blocks, 0, "a set that could not be made holds nothing");
    }
}

pub const BUFFERS: Scenario = Scenario {
    name: "buffers",
    device: SMALL_DEVICE,
    tune: |_| {},
    prepare: open_with_streams,
    act: set_of_buffers,
    kinds: &[Call::StreamCheck, Call::EventCreate, Call::EventRecord, Call::StreamWait],
};

/// Streams as C programs make and use them.
fn plain_streams(stage: &mut Stage) {
    let pool = stage.pool().handle() as PoolT;
    let mut stream = std::ptr::null_mut();
    // SAFETY: a local pointer receives the stream.
    let made = unsafe { streams::forebay_stream_create(pool, &raw mut stream) };
    if made != Status::Ok {
        assert!(stream.is_null(), "a failed call writes NULL");
        return;
    }
    if stage.alloc(8000, stream as u64) {
        let block = *stage.live.last().expect("just made");
        let to = block.address as *mut std::ffi::c_void;
        // SAFETY: both ranges lie in the live block; the copy changes nothing.
        let copied = unsafe { streams::forebay_stream_copy(pool, to, to, 4000, stream) };
        assert_ne!(copied, Status::Internal);
        stage.driver.run_all();
        assert_ne!(streams::forebay_stream_synchronize(pool, stream), Status::Internal);
        let last = stage.live.len() - 1;
        stage.live[last].stream = 0;
        stage.free(last, 0);
    }
    while streams::forebay_stream_destroy(pool, stream) != Status::Ok {
        stage.driver.clear_faults();
    }
    stage.driver.run_all();
}

pub const STREAMS: Scenario = Scenario {
    name: "streams",
    device: SMALL_DEVICE,
    tune: |_| {},
    prepare: open,
    act: plain_streams,
    kinds: &[Call::StreamCreate, Call::StreamDestroy, Call::StreamSynchronize, Call::Copy],
};

pub const DESTROY: Scenario = Scenario {
    name: "destroy",
    device: LARGE_DEVICE,
    tune: |_| {},
    prepare: |stage| {
        checkerboard(stage);
        stage.pool().trim((20 * GRANULE) as u64).expect("no fault yet");
        while !stage.live.is_empty() {
            assert!(stage.free(0, 0));
        }
    },
    act: |stage| {
        let id = stage.pool.take().expect("alive").into_handle() >> 48;
        if let Err(error) = registry::destroy(id) {
            assert_eq!(error.status(), Status::Driver, "{error}");
            assert!(registry::pool(id).is_ok(), "it still exists");
            let call = registry::pool(id).and_then(|p| p.with_core(id, |core| core.stats()));
            let refused = call.expect_err("a pool half gone takes no call");
            assert_eq!(refused.status(), Status::InvalidPool);
            stage.driver.clear_faults();
            registry::destroy(id).expect("the end may be repeated");
        }
        let gone = registry::destroy(id).expect_err("it is gone");
        assert_eq!(gone.status(), Status::InvalidPool);
        stage.driver.run_all();
        assert!(stage.driver.is_clean());
    },
    kinds: &[Call::EventDestroy, Call::Unmap, Call::Release, Call::Unreserve],
};

pub const MORE_SPACE: Scenario = Scenario {
    name: "more space",
    device: LARGE_DEVICE,
    tune: |_| {},
    prepare: |stage| {
        // The first reservations are refused, so that the pool starts with a quarter.
        stage.driver.refuse_two_reservations();
        open(stage);
        stage.driver.clear_faults();
        let reserved = stage.pool().stats().expect("alive").reserved_address_bytes;
        assert_eq!(reserved, 8 * MIB as u64);
    },
    act: |stage| {
        for _ in 0..5 {
            stage.alloc(3 * MIB, 0);
        }
        for _ in 0..3 {
            stage.alloc(100_000, 0);
        }
        stage.free_every_second();
    },
    kinds: &[Call::Reserve, Call::Create, Call::Map, Call::SetAccess],
};

pub const LITTLE_MEMORY: Scenario = Scenario {
    name: "late frees, patient",
    tune: |settings| {
        settings.cache = 128 << 10;
        settings.oom_wait = Duration::from_millis(1);
        settings.limit = 4 * MIB as u64;
    },
    ..ASYNC
};
