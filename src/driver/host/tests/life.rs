//! The device's life: leaks, drop, fork, and the kernel's limit on mappings.

use super::*;

#[test]
fn the_census_returns_to_clean() {
    let driver = device();
    assert!(driver.census().is_clean());
    let (base, pages) = mapped(&driver, 3);
    let plain = driver.alloc_plain(10).expect("memory");
    let stream = driver.stream_create().expect("a stream");
    let event = driver.event_create().expect("an event");
    let expected = Census {
        pages: 3,
        page_bytes: 3 * GRANULE,
        mappings: 3,
        locked_bytes: 0,
        reservations: 1,
        reserved_bytes: 3 * GRANULE,
        plain_allocs: 1,
        plain_bytes: sys::page_size(),
        streams: 1,
        events: 1,
        fds: 1,
        ..Census::default()
    };
    assert_eq!(driver.census(), expected);
    driver.fill(base, 1, GRANULE, stream).expect("queued");
    driver.fill(plain, 1, 10, stream).expect("queued");
    driver.free_plain(plain).expect("waits for the work that uses it");
    driver.unmap(base, 3 * GRANULE).expect("mapped");
    pages.into_iter().for_each(|page| driver.release(page).expect("ours"));
    driver.unreserve(base, 3 * GRANULE).expect("empty");
    driver.stream_destroy(stream).expect("live");
    driver.event_destroy(event).expect("live");
    assert!(driver.census().is_clean(), "{:?}", driver.census());
}

/// Runs `check` in a forked child, where no other test's thread maps or unmaps; true when
/// it ended with true.
fn holds_in_a_child(check: impl FnOnce() -> bool + std::panic::UnwindSafe) -> bool {
    // SAFETY: the child runs `check` on its only thread and leaves by `_exit`.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "fork");
    if child == 0 {
        let held = std::panic::catch_unwind(check).unwrap_or(false);
        // SAFETY: ends the child at once; nothing of the parent's is flushed or run.
        unsafe { libc::_exit(i32::from(!held)) };
    }
    let mut status = 0;
    // SAFETY: `status` is writable; the child is ours.
    let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
    (waited, status) == (child, 0)
}

#[test]
fn a_drop_frees_what_is_left_and_discards_held_work() {
    assert!(holds_in_a_child(|| {
        let driver = device();
        let (base, _pages) = mapped(&driver, 2);
        let plain = driver.alloc_plain(10).expect("memory");
        driver.hold(DEFAULT_STREAM).expect("live");
        driver.fill(base, 1, 1, DEFAULT_STREAM).expect("queued");
        let threads = || std::fs::read_dir("/proc/self/task").expect("procfs").count();
        let (with, there) = (threads(), [base, base + GRANULE, plain].map(sys::readable));
        drop(driver);
        let gone = [base, base + GRANULE, plain].map(sys::readable);
        (with, threads(), there, gone) == (2, 1, [true; 3], [false; 3])
    }));
}

#[test]
fn a_forked_child_may_drop_its_parents_device() {
    let driver = device();
    driver.hold(DEFAULT_STREAM).expect("live");
    driver.spin(DEFAULT_STREAM, 1).expect("queued, which starts a worker");
    let driver = std::panic::AssertUnwindSafe(driver);
    let parent = std::process::id();
    assert!(holds_in_a_child(|| {
        // SAFETY: the child's copy is dropped once, here; the parent's is another one.
        drop(unsafe { std::ptr::read(&raw const *driver) });
        std::process::id() != parent
    }));
    driver.unhold(DEFAULT_STREAM).expect("live");
    driver.quiesce();
}

#[test]
fn the_kernels_limit_on_mappings_has_its_own_name() {
    let text = std::fs::read_to_string("/proc/sys/vm/max_map_count").expect("procfs");
    let limit: usize = text.trim().parse().expect("a number");
    if limit > 100_000 {
        eprintln!("skipped: this machine allows {limit} mappings");
        return;
    }
    // The kernel lets the count pass the limit by one or not, as the numbers fall.
    for extra in [1, 3, 4] {
        let held = holds_in_a_child(|| map_to_the_limit(limit, extra));
        assert!(held, "with {extra} other mappings");
    }
}

/// Maps every second granule until the kernel refuses; true when that went as it should.
fn map_to_the_limit(limit: usize, extra: usize) -> bool {
    let _others = sys::Apart::new(extra).expect("few mappings yet");
    let options = HostOptions { granularity: 4096, ..HostOptions::default() };
    let driver = HostDriver::new(options).expect("a device");
    let base = driver.reserve(limit * 2 * 4096).expect("address space");
    for i in 0..limit {
        let page = driver.create(4096).expect("memory");
        let at = base + i * 8192;
        driver.map(at, 4096, page).expect("the kernel is not asked yet");
        let before = driver.census();
        let Err(error) = driver.set_access(at, 4096, &[]) else {
            continue;
        };
        assert_eq!(error.code, Code::MappingLimit);
        assert_eq!(driver.census(), before);
        assert!(!sys::readable(at) && i > limit / 4, "refused after {i} mappings");
        // What is mapped can go, from anywhere, and then there is room again.
        driver.unmap(base + i / 2 * 8192, 4096).expect("a mapping less");
        driver.unmap(base, 4096).expect("a mapping less");
        driver.set_access(at, 4096, &[]).expect("there is room");
        assert!(sys::readable(at));
        return (1..i / 2).all(|i| driver.unmap(base + i * 8192, 4096).is_ok());
    }
    false
}

#[test]
fn memory_that_cannot_be_locked_is_used_all_the_same() {
    assert!(holds_in_a_child(|| {
        let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: `none` is a live local; the child is alone and gives rights up only.
        let limited = unsafe {
            let limited = libc::setrlimit(libc::RLIMIT_MEMLOCK, &raw const none) == 0;
            // The superuser may lock beyond any limit.
            limited && (libc::geteuid() != 0 || libc::setuid(65534) == 0)
        };
        let options = HostOptions { pinned: true, ..HostOptions::default() };
        let driver = HostDriver::new(options).expect("a device");
        let (base, _pages) = mapped(&driver, 2);
        write(base, 4);
        limited && read(base) == 4 && driver.census().locked_bytes == 0
    }));
}
