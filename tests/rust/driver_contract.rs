//! The driver's written contract as tests, over every backend that runs without a GPU.
//!
//! Each check takes a `&dyn Driver` with a fresh device and leaves it as it found it, so a
//! new backend only joins the list in [`on_every_backend`]. The CUDA backend runs on the simulated
//! driver, mapped and on plain segments. What a backend says it cannot do is not asked of it:
//! memory of backed reservations does not move, and CUDA cannot tell stale handles.

#[path = "common/cuda.rs"]
mod cuda;

use std::sync::{Arc, Mutex, Once, PoisonError};
use std::thread;

use forebay::driver::faulty::FaultyDriver;
use forebay::driver::host::{HostDriver, HostOptions};
use forebay::driver::segments::SegmentDriver;
use forebay::driver::{Code, Driver, DriverResult, PageHandle, Scope, StreamHandle};

const DEVICE_BYTES: usize = 64 << 20;

/// Runs a check on each backend and asks the device afterwards whether anything is left.
fn on_every_backend(check: fn(&dyn Driver)) {
    let device = |deferred| {
        let options = HostOptions { total_bytes: DEVICE_BYTES, deferred, ..HostOptions::default() };
        Arc::new(HostDriver::new(options).expect("a device"))
    };
    let (plain, deferred, wrapped) = (device(false), device(true), device(false));
    let under = device(false);
    let faulty = FaultyDriver::new(Arc::clone(&wrapped));
    check(&*plain);
    check(&*deferred);
    check(&faulty);
    check(&SegmentDriver::new(Arc::clone(&under), 4 << 20));
    assert!(faulty.total() > 0, "the wrapper saw the calls");
    for device in [plain, deferred, wrapped, under] {
        device.quiesce();
        assert!(device.census().is_clean(), "left behind: {:?}", device.census());
    }
    on_cuda(check);
}

/// Runs a check on the CUDA backend over the simulated driver, mapped and in plain segments.
fn on_cuda(check: fn(&dyn Driver)) {
    static TURN: Mutex<()> = Mutex::new(());
    static BEGUN: Once = Once::new();
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let sim = cuda::Sim::open();
    BEGUN.call_once(|| {
        sim.configure(&format!("memory = {DEVICE_BYTES}"));
        sim.ok("cuInit", &[0]);
    });
    let opened = forebay::driver::cuda::open(Some(cuda::library()), 0).expect("a device");
    assert_eq!(opened.device().fallbacks(), [], "the simulated driver refuses nothing");
    check(&*opened.driver());
    check(&SegmentDriver::new(Arc::clone(opened.device()), 4 << 20));
    drop(opened);
    sim.assert_no_misuse();
    sim.assert_nothing_left();
}

/// Whether destroyed handles are told; CUDA leaves their use undefined.
fn tells_stale_handles(driver: &dyn Driver) -> bool {
    driver.backend() != "cuda"
}

fn code<T: std::fmt::Debug>(result: DriverResult<T>) -> Code {
    result.expect_err("the contract forbids this").code
}

/// Reads device memory that is mapped, accessible and free of queued work.
fn read(driver: &dyn Driver, address: usize) -> u8 {
    if driver.device().host_accessible {
        // SAFETY: the checks call this on accessible ranges of theirs only, after waiting.
        return unsafe { std::ptr::with_exposed_provenance::<u8>(address).read_volatile() };
    }
    // CUDA copies to host addresses as well.
    let mut byte = Box::new(0u8);
    let at = (&raw mut *byte).expose_provenance();
    driver.copy(at, address, 1, StreamHandle(0)).expect("queued");
    driver.stream_synchronize(StreamHandle(0)).expect("always there");
    // SAFETY: the box is alive; the copy is done.
    unsafe { (&raw const *byte).read_volatile() }
}

/// Reserves, maps and opens `count` granules.
fn open(driver: &dyn Driver, count: usize) -> usize {
    let granule = driver.device().granularity;
    let base = driver.reserve(count * granule).expect("address space");
    for i in 0..count {
        let page = driver.create(granule).expect("memory");
        driver.map(base + i * granule, granule, page).expect("a free range");
        // The mapping keeps the page alive.
        driver.release(page).expect("ours");
    }
    driver.set_access(base, count * granule, &[]).expect("mapped");
    base
}

fn close(driver: &dyn Driver, base: usize, count: usize) {
    let bytes = count * driver.device().granularity;
    driver.unmap(base, bytes).expect("whole mappings");
    driver.unreserve(base, bytes).expect("nothing is mapped");
}

#[test]
fn pages_move_with_their_contents() {
    on_every_backend(|driver| {
        if driver.backed_reservations().is_some() {
            return;
        }
        let granule = driver.device().granularity;
        let page = driver.create(granule).expect("memory");
        let base = driver.reserve(4 * granule).expect("address space");
        for i in 0..4usize {
            let (at, last) = (base + i * granule, base + (i + 1) * granule - 1);
            driver.map(at, granule, page).expect("free");
            driver.set_access(at, granule, &[]).expect("mapped");
            if i > 0 {
                assert_eq!((read(driver, at), read(driver, last)), (i as u8, i as u8));
            }
            driver.fill(at, i as u8 + 1, granule, StreamHandle(0)).expect("queued");
            driver.stream_synchronize(StreamHandle(0)).expect("always there");
            driver.unmap(at, granule).expect("whole");
        }
        driver.release(page).expect("ours");
        driver.unreserve(base, 4 * granule).expect("empty");
    });
}

#[test]
fn memory_runs_out_and_comes_back() {
    on_every_backend(|driver| {
        let granule = driver.device().granularity;
        let total = driver.device().total_bytes;
        let before = driver.memory_info().expect("alive");
        assert!(before.0 <= total && before.1 == total, "{before:?}");
        let mut pages = Vec::new();
        let error = loop {
            match driver.create(granule) {
                Ok(page) => pages.push(page),
                Err(error) => break error,
            }
            assert!(pages.len() <= total / granule, "more pages than memory");
        };
        assert_eq!(error.code, Code::OutOfMemory);
        if driver.backed_reservations().is_none() {
            assert_eq!(pages.len(), before.0 / granule);
            assert!(driver.memory_info().expect("alive").0 < granule);
            assert_eq!(code(driver.alloc_plain(granule)), Code::OutOfMemory);
        }
        driver.release(pages.swap_remove(3)).expect("ours");
        let plain = driver.alloc_plain(granule).expect("a granule's room");
        if driver.backed_reservations().is_none() {
            assert_eq!(code(driver.create(granule)), Code::OutOfMemory);
        }
        driver.free_plain(plain).expect("ours");
        if tells_stale_handles(driver) {
            assert_eq!(code(driver.free_plain(plain)), Code::InvalidValue);
        }
        for page in pages {
            driver.release(page).expect("ours");
            if tells_stale_handles(driver) {
                assert_eq!(code(driver.release(page)), Code::InvalidHandle);
            }
        }
        assert_eq!(driver.memory_info(), Ok(before));
    });
}

#[test]
fn a_failed_call_changes_nothing_and_may_be_repeated() {
    on_every_backend(|driver| {
        let granule = driver.device().granularity;
        let base = open(driver, 2);
        let page = driver.create(granule).expect("memory");
        driver.fill(base, 9, 2 * granule, StreamHandle(0)).expect("queued");
        driver.stream_synchronize(StreamHandle(0)).expect("always there");
        for _ in 0..2 {
            assert_eq!(code(driver.map(base, granule, page)), Code::InvalidValue);
            assert_eq!(code(driver.unmap(base, 3 * granule)), Code::InvalidValue);
            assert_eq!(code(driver.unreserve(base, 2 * granule)), Code::InvalidValue);
        }
        assert_eq!((read(driver, base), read(driver, base + 2 * granule - 1)), (9, 9));
        driver.unmap(base, granule).expect("one of two");
        driver.map(base, granule, page).expect("free now");
        driver.release(page).expect("ours");
        close(driver, base, 2);
    });
}

#[test]
fn a_run_of_maps_puts_each_page_where_a_map_would() {
    on_every_backend(|driver| {
        const PAGES: usize = 6;
        let granule = driver.device().granularity;
        let base = driver.reserve(2 * PAGES * granule).expect("address space");
        let pages: Vec<_> = (0..PAGES).map(|_| driver.create(granule).expect("memory")).collect();
        driver.map_run(base, granule, &pages).expect("free");
        driver.set_access(base, PAGES * granule, &[]).expect("mapped");
        for i in 0..PAGES {
            driver.fill(base + i * granule, 1 + i as u8, granule, StreamHandle(0)).expect("queued");
        }
        driver.stream_synchronize(StreamHandle(0)).expect("always there");
        driver.unmap(base, PAGES * granule).expect("whole mappings");
        // In rows of one, two and three pages that were made one after another.
        let order = [4, 0, 1, 5, 2, 3];
        let moved: Vec<_> = order.iter().map(|&i| pages[i]).collect();
        let high = base + PAGES * granule;
        driver.map_run(high, granule, &moved).expect("free");
        driver.set_access(high, PAGES * granule, &[]).expect("mapped");
        for (place, &i) in order.iter().enumerate() {
            let at = high + place * granule;
            if driver.backed_reservations().is_none() {
                let seen = (read(driver, at), read(driver, at + granule - 1));
                assert_eq!(seen, (1 + i as u8, 1 + i as u8), "{place}");
            }
        }
        driver.map_run(base, granule, &[]).expect("nothing to do");
        driver.unmap(high, PAGES * granule).expect("whole mappings");
        pages.into_iter().for_each(|page| driver.release(page).expect("ours"));
        driver.unreserve(base, 2 * PAGES * granule).expect("empty");
    });
}

#[test]
fn a_run_of_maps_stops_at_the_first_page_that_fails() {
    on_every_backend(|driver| {
        let granule = driver.device().granularity;
        let base = driver.reserve(6 * granule).expect("address space");
        let mut pages: Vec<_> = (0..6).map(|_| driver.create(granule).expect("memory")).collect();
        let long = driver.create(2 * granule).expect("memory");
        let failed = |at: usize, pages: &[PageHandle], expected: (usize, Code)| {
            let (done, error) = driver.map_run(at, granule, pages).expect_err("not the whole run");
            assert_eq!((done, error.code), expected);
            // What is said to be mapped is, and no more.
            if done > 0 {
                driver.unmap(at, done * granule).expect("whole mappings");
            }
            assert!(driver.unmap(at + done * granule, granule).is_err());
        };
        let (invalid, handle) = (Code::InvalidValue, Code::InvalidHandle);
        failed(base + 2 * granule, &pages, (4, invalid));
        failed(base + 1, &pages, (0, invalid));
        failed(base + 6 * granule, &pages, (0, invalid));
        let gone = pages.remove(3);
        driver.release(gone).expect("ours");
        // CUDA maps the beginning of a longer page.
        if tells_stale_handles(driver) {
            failed(base, &[pages[0], pages[1], long, pages[2]], (2, invalid));
            failed(base, &[pages[0], PageHandle(u64::MAX), pages[1]], (1, handle));
            failed(base, &[pages[0], pages[1], pages[2], gone, pages[3]], (3, handle));
        }
        driver.map(base + 3 * granule, granule, pages[4]).expect("free");
        let (done, error) = driver.map_run(base, granule, &pages[..4]).expect_err("one is taken");
        assert_eq!((done, error.code), (3, invalid));
        driver.unmap(base, 4 * granule).expect("three of the run and the one before");
        pages.push(long);
        pages.into_iter().for_each(|page| driver.release(page).expect("ours"));
        driver.unreserve(base, 6 * granule).expect("empty");
    });
}

#[test]
fn an_event_marks_the_work_before_it() {
    on_every_backend(|driver| {
        let base = open(driver, 1);
        let stream = driver.stream_create().expect("a stream");
        let event = driver.event_create().expect("an event");
        assert_eq!(driver.event_query(event), Ok(true), "never recorded");
        for round in 1..=50u8 {
            driver.fill(base, round, 4096, stream).expect("queued");
            driver.copy(base + 4096, base, 4096, stream).expect("queued");
            driver.event_record(event, Scope::Stream(stream)).expect("live");
            driver.fill(base, 255, 4096, stream).expect("queued");
            driver.event_synchronize(event).expect("live");
            assert_eq!(driver.event_query(event), Ok(true));
            assert_eq!((read(driver, base + 4096), read(driver, base + 8191)), (round, round));
        }
        driver.stream_synchronize(stream).expect("live");
        assert_eq!(read(driver, base), 255);
        driver.event_destroy(event).expect("live");
        driver.stream_destroy(stream).expect("live");
        if tells_stale_handles(driver) {
            assert_eq!(code(driver.event_query(event)), Code::InvalidHandle);
            assert_eq!(code(driver.stream_check(stream)), Code::InvalidHandle);
        }
        close(driver, base, 1);
    });
}

#[test]
fn waits_pass_values_along_a_chain_of_streams() {
    on_every_backend(|driver| {
        const LINKS: usize = 8;
        let base = open(driver, 1);
        let streams: Vec<_> = (0..LINKS).map(|_| driver.stream_create().expect("one")).collect();
        let event = driver.event_create().expect("an event");
        driver.fill(base, 42, 1, streams[0]).expect("queued");
        for i in 1..LINKS {
            driver.event_record(event, Scope::Stream(streams[i - 1])).expect("live");
            driver.stream_wait(streams[i], event).expect("live");
            driver.copy(base + i, base + i - 1, 1, streams[i]).expect("queued");
        }
        driver.event_record(event, Scope::Context).expect("supported");
        driver.event_synchronize(event).expect("live");
        assert!((0..LINKS).all(|i| read(driver, base + i) == 42));
        streams.into_iter().for_each(|stream| driver.stream_destroy(stream).expect("live"));
        driver.event_destroy(event).expect("live");
        close(driver, base, 1);
    });
}

#[test]
fn all_calls_may_come_from_several_threads() {
    on_every_backend(|driver| {
        thread::scope(|scope| {
            for value in 1..=4u8 {
                scope.spawn(move || {
                    let stream = driver.stream_create().expect("a stream");
                    for _ in 0..20 {
                        let base = open(driver, 2);
                        let bytes = 2 * driver.device().granularity;
                        driver.fill(base, value, bytes, stream).expect("queued");
                        driver.stream_synchronize(stream).expect("live");
                        assert_eq!(
                            (read(driver, base), read(driver, base + bytes - 1)),
                            (value, value)
                        );
                        close(driver, base, 2);
                    }
                    driver.stream_destroy(stream).expect("live");
                });
            }
        });
    });
}
