//! The life of processes, threads, pools and streams around the pool.
//!
//! What could grow is counted in a process of its own: this program again, with
//! `FOREBAY_TEST_CHILD` naming the scenario. Nothing may grow with the number of threads or
//! pools that came and went. Cost: some seconds each; the soak 10 s, 60 s with
//! `FOREBAY_TEST_FULL=1`.

#[path = "common/mod.rs"]
mod common;
#[path = "common/soak.rs"]
mod soak;

use common::{child, mappings, open_files, resident_bytes};
use forebay::driver::host::HostOptions;
use forebay::driver::{Driver, StreamHandle};
use forebay::error::Status;
use forebay::pool::Pool;
use std::process::Output;
use std::sync::mpsc;

const MIB: usize = 1 << 20;
const HOST: (&str, &str) = ("FOREBAY_BACKEND", "host");

fn small_device() -> HostOptions {
    HostOptions { total_bytes: 256 * MIB, ..HostOptions::default() }
}

/// The bodies of child processes; does nothing in any other.
#[test]
fn child_process() {
    match common::scenario().as_deref() {
        Some("fork_after_use") => fork_after_use(),
        Some("fork_before_use") => fork_before_use(),
        Some("fork_with_kv") => fork_with_kv(),
        Some("live_at_exit") => live_at_exit(),
        Some("many_threads") => many_threads(),
        Some("many_pools") => many_pools(),
        Some("soak") => soak_body(),
        Some("keeper_refused") => keeper_refused(),
        Some("shutdown_race") => shutdown_race(),
        _ => return,
    }
    println!("scenario done");
}

/// Runs a scenario, which must end well; answers its standard error.
fn ends_well(name: &str, vars: &[(&str, &str)]) -> String {
    let output: Output = child("child_process", name, vars);
    let told = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && told.contains("scenario done"), "{name}: {output:?}");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

// ---- fork --------------------------------------------------------------------------------

/// Forks, runs `body` in the child, which exits with its handlers run; answers its code.
fn forked(body: impl FnOnce() -> i32) -> i32 {
    // SAFETY: the child runs `body` and exits; it uses no lock of this program's other threads.
    match unsafe { libc::fork() } {
        // SAFETY: ends the child; exit handlers run, as in a program that returns from main.
        0 => unsafe { libc::exit(body()) },
        -1 => panic!("fork failed"),
        pid => {
            let mut status = 0;
            // SAFETY: waits for the child just made; `status` is a local.
            let waited = unsafe { libc::waitpid(pid, &raw mut status, 0) };
            assert_eq!(waited, pid);
            assert!(libc::WIFEXITED(status), "the child died: status {status:#x}");
            libc::WEXITSTATUS(status)
        }
    }
}

fn fork_after_use() {
    let pool = Pool::default_pool().expect("the host backend");
    let small = pool.alloc(1000, 0).expect("fits");
    let large = pool.alloc(4 * MIB, 0).expect("fits");
    let code = forked(|| {
        let refused = |result: Result<Status, forebay::error::Error>| {
            result.is_err_and(|e| e.status() == Status::Forked)
        };
        let answers = [
            refused(pool.alloc(1000, 0).map(|_| Status::Ok)),
            refused(pool.alloc(4 * MIB, 0).map(|_| Status::Ok)),
            refused(pool.dealloc(small, 0).map(|()| Status::Ok)),
            refused(pool.dealloc(large, 0).map(|()| Status::Ok)),
            refused(pool.stats().map(|_| Status::Ok)),
            refused(Pool::default_pool().map(|_| Status::Ok)),
        ];
        answers.iter().position(|ok| !ok).map_or(0, |i| i as i32 + 1)
    });
    assert_eq!(code, 0, "answer {code} of the child was not FORKED");
    // The parent goes on as before.
    pool.dealloc(small, 0).expect("live in the parent");
    assert_eq!(pool.stats().expect("alive").live_blocks, 1);
}

#[test]
fn a_child_forked_after_first_use_gets_errors_and_reports_no_leak() {
    let told = ends_well("fork_after_use", &[HOST, ("FOREBAY_LEAKS", "summary")]);
    // The parent's own leak is reported, once; the child's copy of it is not.
    assert_eq!(told.matches("leak report at exit: 1 block").count(), 1, "{told}");
    assert_eq!(told.matches("leak report").count(), 1, "{told}");
}

fn fork_before_use() {
    let code = forked(|| {
        let Ok(pool) = Pool::default_pool() else { return 1 };
        let Ok(block) = pool.alloc(3 * MIB, 0) else { return 2 };
        i32::from(pool.dealloc(block, 0).is_err()) * 3
    });
    assert_eq!(code, 0, "the child could not use its own pool");
    let pool = Pool::default_pool().expect("the host backend");
    pool.dealloc(pool.alloc(100, 0).expect("fits"), 0).expect("live");
}

#[test]
fn a_fork_before_first_use_works_in_both() {
    assert_eq!(ends_well("fork_before_use", &[HOST, ("FOREBAY_LEAKS", "summary")]), "");
}

/// A KV cache's memory in a forked child: refused, and its end makes no driver call.
fn fork_with_kv() {
    use forebay::kv::{self, NO_FENCE, Order};
    use forebay::paged::contiguous::{ContiguousConfig, ContiguousKv};
    use forebay::paged::tables::Table;
    use forebay::paged::{KvMemory, MemoryConfig, Result};
    let pool = Pool::default_pool().expect("the host backend");
    let content = kv::Content::Attention { window: 0 };
    let (element, order) = (kv::Element::Bf16, Order::BlockOuter);
    let (layers, heads, key_size, value_size, block_tokens) = (32, 8, 128, 128, 16);
    let geometry =
        kv::Geometry { layers, heads, key_size, value_size, block_tokens, element, content, order };
    let config = MemoryConfig { kv: kv::Config::new(geometry, 100), initial: vec![4] };
    let memory = KvMemory::new(&pool, config).expect("memory");
    let address = pool.alloc(4096, 0).expect("fits");
    let (rows, stride, staging_bytes, staging_buffers) = (1, 8, 0, 0);
    let table = Table { group: 0, address, rows, stride, staging_bytes, staging_buffers };
    // SAFETY: a block of the pool's that is the test's own and outlives the binding.
    unsafe { memory.bind_table(table).expect("a group") };
    memory.sync_table(0, &[], 0).expect("all of it");
    memory.fence(&[0]).expect("a stream");
    let groups = vec![geometry];
    let (max_sequences, max_tokens, ahead_tokens, keep_pages) = (2, 100, 0, 0);
    let config = ContiguousConfig { groups, max_sequences, max_tokens, ahead_tokens, keep_pages };
    let ranges = ContiguousKv::new(&pool, config).expect("it makes sense");
    let seq = ranges.open().expect("room");
    ranges.ensure(&[(seq, 10)]).1.expect("fits");
    let code = forked(move || {
        fn refused<T>(answer: Result<T>) -> bool {
            answer.is_err_and(|error| error.status() == Status::Forked)
        }
        let answers = [
            refused(memory.resize(0, 8)),
            refused(memory.backed(0)),
            refused(memory.fence(&[0])),
            refused(memory.fence_at(1)),
            refused(memory.reach(1)),
            refused(memory.poll()),
            refused(memory.run_copies(0)),
            refused(memory.sync_table(0, &[], 0)),
            refused(memory.unbind_table(0)),
            refused(ranges.open()),
            refused(ranges.ensure(&[(seq, 20)]).1),
            refused(ranges.truncate(seq, 1, NO_FENCE)),
            refused(ranges.free(&[seq], NO_FENCE)),
            refused(ranges.poll()),
        ];
        drop((memory, ranges));
        answers.iter().position(|ok| !ok).map_or(0, |i| i as i32 + 1)
    });
    assert_eq!(code, 0, "answer {code} of the child was not FORKED");
    // What the parent had moved into the closure ended here.
    assert_eq!(pool.stats().expect("alive").region_bytes, 0);
    pool.dealloc(address, 0).expect("live in the parent");
}

#[test]
fn a_child_forked_beside_a_kv_cache_gets_errors() {
    ends_well("fork_with_kv", &[HOST]);
}

// ---- exit --------------------------------------------------------------------------------

fn live_at_exit() {
    let pool = Pool::default_pool().expect("the host backend");
    pool.alloc(1000, 0).expect("fits");
    let other = std::thread::spawn(move || pool.alloc(2 * MIB, 0).expect("fits"));
    other.join().expect("no panic");
}

#[test]
fn exit_with_live_allocations_is_quiet_unless_asked() {
    assert_eq!(ends_well("live_at_exit", &[HOST]), "");
    let told = ends_well("live_at_exit", &[HOST, ("FOREBAY_LEAKS", "summary")]);
    assert!(told.contains("leak report at exit: 2 blocks"), "{told}");
}

// ---- threads -----------------------------------------------------------------------------

#[test]
fn a_thread_that_ends_with_full_magazines_gives_them_back() {
    let (_driver, pool) = common::pool(small_device(), |settings| settings.keeper = false);
    let pool = &pool;
    let cached = std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let blocks: Vec<usize> =
                (0..60).map(|i| pool.alloc(256 << (i % 6), 0).expect("fits")).collect();
            for block in blocks {
                pool.dealloc(block, 0).expect("live");
            }
            pool.stats().expect("alive").cached_bytes
        });
        thread.join().expect("no panic")
    });
    let stats = pool.stats().expect("alive");
    assert!(cached > 0, "the thread had full magazines");
    assert_eq!((stats.cached_bytes, stats.live_bytes), (0, 0), "{stats:?}");
    assert_eq!((stats.allocs, stats.frees), (60, 60), "its counters are kept: {stats:?}");
    assert_eq!(stats.sum(), stats.mapped_bytes, "{stats:?}");
    pool.trim(0).expect("a trim");
    assert_eq!(pool.stats().expect("alive").mapped_bytes, 0);
}

#[test]
fn blocks_outlive_the_thread_that_made_them() {
    let (_driver, pool) = common::pool(small_device(), |_| ());
    let pool = &pool;
    let blocks: Vec<usize> = std::thread::scope(|scope| {
        let thread = scope
            .spawn(|| (0..100).map(|i| pool.alloc(1000 + i * 5000, 0).expect("fits")).collect());
        thread.join().expect("no panic")
    });
    assert_eq!(pool.stats().expect("alive").live_blocks, 100);
    for block in blocks {
        pool.dealloc(block, 0).expect("live");
    }
    assert_eq!(pool.stats().expect("alive").live_bytes, 0);
}

fn many_threads() {
    let pool = Pool::default_pool().expect("the host backend");
    let id = pool.id();
    let mut after_warm_up = (0, 0, 0);
    for i in 0..10_000usize {
        let thread = std::thread::spawn(move || {
            let pool = Pool::from_number(id).expect("alive");
            let blocks: Vec<usize> = (0..20)
                .map(|k| pool.alloc(100 + (i * 37 + k * 997) % 50_000, 0).expect("fits"))
                .collect();
            for block in blocks {
                pool.dealloc(block, 0).expect("live");
            }
        });
        thread.join().expect("no panic");
        if i == 999 {
            let mapped = pool.stats().expect("alive").mapped_bytes;
            after_warm_up = (mapped, resident_bytes(), mappings());
        }
    }
    let stats = pool.stats().expect("alive");
    assert_eq!(stats.live_bytes, 0);
    assert_eq!((stats.allocs, stats.frees), (200_000, 200_000));
    let (mapped, resident, maps) = after_warm_up;
    assert_eq!(stats.mapped_bytes, mapped, "mapped bytes grew with the number of threads");
    let grown = resident_bytes().saturating_sub(resident);
    assert!(grown < 2 * MIB as u64, "{grown} resident bytes more after 9,000 threads");
    assert!(mappings() <= maps + 8, "{} mappings after {maps}", mappings());
}

#[test]
fn ten_thousand_threads_one_after_another_leave_nothing() {
    ends_well("many_threads", &[HOST]);
}

/// Threads of this process by name.
fn threads_named(name: &str) -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").expect("Linux");
    let comm = |task: std::fs::DirEntry| std::fs::read_to_string(task.path().join("comm"));
    tasks.filter_map(|task| comm(task.ok()?).ok()).filter(|comm| comm.trim_end() == name).count()
}

/// Runs `f` while this process can map no more memory than a thread's stack needs.
fn without_room_for_a_thread(f: impl FnOnce()) {
    let status = std::fs::read_to_string("/proc/self/statm").expect("Linux");
    let pages: u64 = status.split(' ').next().and_then(|v| v.parse().ok()).expect("a number");
    let mut old = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the call fills a local of the right type.
    assert_eq!(unsafe { libc::getrlimit(libc::RLIMIT_AS, &raw mut old) }, 0);
    let tight = libc::rlimit { rlim_cur: pages * 4096 + MIB as u64, ..old };
    // SAFETY: the call reads a local of the right type.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_AS, &raw const tight) }, 0);
    f();
    // SAFETY: as above.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_AS, &raw const old) }, 0);
}

fn keeper_refused() {
    const SOFT: u64 = 16 * MIB as u64;
    let (_driver, pool) = common::pool(small_device(), |settings| settings.keeper = true);
    let block = pool.alloc(64 * MIB, 0).expect("fits");
    pool.dealloc(block, 0).expect("live");
    assert_eq!(threads_named("forebay-keeper"), 0, "nothing needs it yet");
    // Above the soft limit it is started; the system has no room for it.
    without_room_for_a_thread(|| pool.set_limits(None, Some(SOFT)).expect("below the hard one"));
    assert_eq!(threads_named("forebay-keeper"), 0, "a thread without a stack");
    pool.set_limits(None, Some(SOFT)).expect("as before");
    // Its own work shows that it runs.
    for _ in 0..20_000 {
        if pool.stats().expect("alive").mapped_bytes <= SOFT {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    panic!("the keeper does not trim: {:?}", pool.stats());
}

#[test]
fn a_keeper_that_could_not_start_is_started_later() {
    ends_well("keeper_refused", &[]);
}

fn shutdown_race() {
    let (_driver, pool) = common::pool(small_device(), |settings| settings.keeper = false);
    let number = pool.id();
    let (warm, warmed) = mpsc::channel();
    let (go, going) = mpsc::channel::<()>();
    let thread = std::thread::spawn(move || {
        let pool = Pool::from_number(number).expect("alive");
        let alloc = || pool.alloc(1000, 0).map_err(|e| e.status());
        let blocks: Vec<usize> = (0..8).map(|_| alloc().expect("fits")).collect();
        for block in blocks {
            pool.dealloc(block, 0).expect("live");
        }
        warm.send(()).expect("the test waits");
        going.recv().expect("the test goes on");
        (alloc(), alloc())
    });
    warmed.recv().expect("its magazine is full");
    // All hot paths are closed here, and nobody can enrol: the thread finds the world in order,
    // and waits. Then the world ends.
    let held = forebay::pool::registry::without_caches(
        number,
        |_| false,
        |_| {
            go.send(()).expect("the thread waits");
            std::thread::sleep(std::time::Duration::from_millis(200));
            forebay::pool::world::shutdown().expect("not shut down yet");
        },
    );
    held.expect("membarrier");
    let answers = thread.join().expect("no panic");
    assert_eq!(answers, (Err(Status::ShutDown), Err(Status::ShutDown)));
}

#[test]
fn a_thread_that_enrols_while_the_process_shuts_down_is_shut_out() {
    ends_well("shutdown_race", &[]);
}

// ---- pools -------------------------------------------------------------------------------

fn one_pool(round: usize) {
    let (driver, pool) = common::pool(small_device(), |_| ());
    let stream = driver.stream_create().expect("a stream").0;
    let small = pool.alloc(1 + round % 9000, stream).expect("fits");
    let large = pool.alloc(MIB + round, stream).expect("fits");
    pool.dealloc(small, stream).expect("live");
    if !round.is_multiple_of(2) {
        pool.dealloc(large, stream).expect("live");
    }
    drop(pool);
    driver.stream_destroy(StreamHandle(stream)).expect("it exists");
    assert!(driver.census().is_clean(), "round {round}: {:?}", driver.census());
}

fn many_pools() {
    let mut after_warm_up = (0, 0, 0);
    for round in 0..1000 {
        one_pool(round);
        if round == 199 {
            after_warm_up = (open_files(), mappings(), resident_bytes());
        }
    }
    let (files, maps, resident) = after_warm_up;
    assert_eq!(open_files(), files, "file descriptors grew with the number of pools");
    assert!(mappings() <= maps + 8, "{} mappings after {maps}", mappings());
    let grown = resident_bytes().saturating_sub(resident);
    assert!(grown < 4 * MIB as u64, "{grown} resident bytes more after 800 pools");
}

#[test]
fn a_thousand_pools_one_after_another_leave_nothing() {
    ends_well("many_pools", &[]);
}

/// Another thread, at work on `number`'s pool when told, with a warm cache before that.
fn with_warm_thread(
    number: u64,
    stream: u64,
    meanwhile: impl FnOnce(),
    then: impl FnOnce(&Pool, usize) + Send,
) {
    let (warm, warmed) = mpsc::channel();
    let (go, going) = mpsc::channel::<()>();
    std::thread::scope(|scope| {
        let thread = scope.spawn(move || {
            let pool = Pool::from_number(number).expect("alive");
            let kept = pool.alloc(1000, stream).expect("fits");
            for _ in 0..100 {
                let block = pool.alloc(1000, stream).expect("fits");
                pool.dealloc(block, stream).expect("live");
            }
            warm.send(()).expect("the test waits");
            going.recv().expect("the test goes on");
            then(&pool, kept);
        });
        warmed.recv().expect("the thread is warm");
        meanwhile();
        go.send(()).expect("the thread waits");
        thread.join().expect("no panic");
    });
}

#[test]
fn a_warm_cache_of_a_destroyed_pool_answers_invalid_pool() {
    let (_driver, pool) = common::pool(small_device(), |_| ());
    let number = pool.id();
    with_warm_thread(
        number,
        0,
        || drop(pool),
        |pool, kept| {
            for bytes in [1000, 100_000, 4 * MIB] {
                let error = pool.alloc(bytes, 0).expect_err("the pool is gone");
                assert_eq!(error.status(), Status::InvalidPool, "{error}");
            }
            let error = pool.dealloc(kept, 0).expect_err("the pool is gone");
            assert_eq!(error.status(), Status::InvalidPool, "{error}");
            let error = pool.stats().expect_err("the pool is gone");
            assert_eq!(error.status(), Status::InvalidPool, "{error}");
        },
    );
}

#[test]
fn a_warm_cache_of_a_destroyed_pool_does_not_reach_the_next_pool() {
    let (_driver, pool) = common::pool(small_device(), |_| ());
    let (_second_driver, second) = common::pool(small_device(), |_| ());
    let number = pool.id();
    let mut third = None;
    with_warm_thread(
        number,
        0,
        || {
            drop(pool);
            third = Some(common::pool(small_device(), |_| ()));
        },
        |pool, _| {
            let error = pool.alloc(1000, 0).expect_err("the pool is gone");
            assert_eq!(error.status(), Status::InvalidPool, "{error}");
        },
    );
    let (_driver, third) = third.expect("made meanwhile");
    assert_ne!(third.id(), number, "a number is not given again so soon");
    for pool in [&second, &third] {
        assert_eq!(pool.stats().expect("alive").allocs, 0);
    }
}

// ---- streams -----------------------------------------------------------------------------

#[test]
fn a_stream_is_retired_while_another_thread_s_cache_is_warm() {
    let (driver, pool) = common::pool(small_device(), |settings| settings.keeper = false);
    let stream = driver.stream_create().expect("a stream");
    let device = driver.clone();
    with_warm_thread(
        pool.id(),
        stream.0,
        || {
            forebay::pool::registry::retire_stream(stream.0).expect("known");
            device.stream_destroy(stream).expect("it exists");
        },
        |pool, kept| {
            let error = pool.alloc(1000, stream.0).expect_err("the stream is gone");
            assert_eq!(error.status(), Status::InvalidStream, "{error}");
            let error = pool.dealloc(kept, stream.0).expect_err("the stream is gone");
            assert_eq!(error.status(), Status::InvalidStream, "{error}");
            // Its block is freed on another stream.
            pool.dealloc(kept, 0).expect("live");
        },
    );
    assert_eq!(pool.stats().expect("alive").live_bytes, 0);
    // The handle comes back, as a stream with nothing behind it.
    let again = driver.stream_create().expect("a stream");
    assert_eq!(again, stream);
    let block = pool.alloc(1000, again.0).expect("a new lane");
    pool.dealloc(block, again.0).expect("live");
    pool.trim(0).expect("a trim");
    assert_eq!(pool.stats().expect("alive").mapped_bytes, 0);
}

#[test]
fn ten_thousand_streams_one_after_another_use_up_no_lane() {
    let (driver, pool) = common::pool(small_device(), |settings| settings.keeper = false);
    for round in 0..10_000usize {
        let stream = driver.stream_create().expect("a stream");
        let block = pool.alloc(1 + round * 13 % 60_000, stream.0).expect("a lane is left");
        driver.fill(block, 1, 1, stream).expect("a live stream");
        pool.dealloc(block, stream.0).expect("live");
        forebay::pool::registry::retire_stream(stream.0).expect("known");
        driver.stream_destroy(stream).expect("it exists");
        if round % 64 == 0 {
            // On a busy machine the device may fall behind: what waits for it is not a leak.
            driver.quiesce();
        }
    }
    driver.quiesce();
    let stats = pool.stats().expect("alive");
    assert_eq!(stats.live_bytes, 0);
    assert!(stats.mapped_bytes <= 32 * MIB as u64, "{stats:?}");
}

// ---- soak --------------------------------------------------------------------------------

/// In a process of its own: resident memory is the whole process's, other tests' included.
#[test]
fn memory_stays_flat_under_continuous_inference() {
    ends_well("soak", &[HOST]);
}

fn soak_body() {
    let seconds = if common::full() { 60 } else { 10 };
    let seed = common::seed(1);
    println!("seed {seed}");
    let options = soak::Options { seconds, seed, verbose: false };
    let summary = soak::run(options).unwrap_or_else(|why| panic!("seed {seed}: {why}"));
    assert!(summary.requests > 50, "{summary:?}");
    assert!(summary.operations > 10_000, "{summary:?}");
}
