//! Peers' access, exports to and imports from other processes.

#[path = "common/device.rs"]
mod common;
#[path = "sharing/room.rs"]
mod room;
#[path = "sharing/windows.rs"]
mod windows;

use common::{MIB, check_books};
use forebay::abi::{PoolT, alloc, share as abi};
use forebay::config::DebugChecks;
use forebay::driver::faulty::{CallSet, Fault};
use forebay::driver::host::HostOptions;
use forebay::driver::{Call, Driver, StreamHandle};
use forebay::error::Status;
use forebay::pool::hot::SYNC_STREAM;
use forebay::pool::share::close_export;
use std::ffi::c_void;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::Arc;

const GRANULE: usize = 2 * MIB;

fn peered(total_bytes: usize) -> Arc<common::Watched> {
    common::device(HostOptions { total_bytes, peer_devices: 12, ..HostOptions::default() })
}

fn write(address: usize, value: u8) {
    // SAFETY: the tests write live blocks of their own, on a device that the CPU reaches.
    unsafe { (address as *mut u8).write_volatile(value) };
}

fn read(address: usize) -> u8 {
    // SAFETY: as for `write`.
    unsafe { (address as *const u8).read_volatile() }
}

// ---- peers -------------------------------------------------------------------------------

#[test]
fn a_peer_reads_what_was_there_what_comes_later_and_what_was_gathered() {
    let driver = peered(16 * MIB);
    let pool = common::pool(&driver, common::settings(&driver));
    let early = pool.alloc(GRANULE, 0).expect("fits");
    write(early, 1);
    pool.enable_peer(3).expect("a device");
    assert_eq!(driver.inner().read_as_peer(3, early, 1), Ok(vec![1]));
    let mut blocks: Vec<usize> = (0..7).map(|_| pool.alloc(GRANULE, 0).expect("fits")).collect();
    blocks.push(early);
    for i in (0..8).step_by(2) {
        pool.dealloc(blocks[i], 0).expect("live");
    }
    let before = driver.count(Call::SetAccess);
    let gathered = pool.alloc(3 * GRANULE, 0).expect("idle pages suffice");
    assert!(pool.stats().expect("alive").pages_moved > 0, "the block is made of moved pages");
    assert_eq!(driver.count(Call::SetAccess) - before, 1, "the peers come with the same call");
    write(gathered + 5 * MIB, 7);
    assert_eq!(driver.inner().read_as_peer(3, gathered + 5 * MIB, 1), Ok(vec![7]));
    driver.inner().read_as_peer(2, gathered, 1).expect_err("2 is no peer");
    pool.disable_peer(3).expect("a peer");
    driver.inner().read_as_peer(3, gathered, 1).expect_err("no more");
    assert_eq!(read(gathered + 5 * MIB), 7, "the own device's access stays");
    let gone = pool.disable_peer(3).expect_err("no peer any more");
    assert_eq!(gone.status(), Status::InvalidArgument);
    check_books(&driver, &pool);
    pool.dealloc(gathered, 0).expect("live");
    for i in (1..8).step_by(2) {
        pool.dealloc(blocks[i], 0).expect("live");
    }
    common::end(&driver, pool, &[]);
}

#[test]
fn a_ninth_peer_is_one_clear_error_and_changes_nothing() {
    let driver = peered(16 * MIB);
    let pool = common::pool(&driver, common::settings(&driver));
    let block = pool.alloc(GRANULE, 0).expect("fits");
    let handle = pool.handle() as PoolT;
    for device in 1..=8 {
        assert_eq!(abi::forebay_pool_enable_peer(handle, device), Status::Ok);
    }
    assert_eq!(abi::forebay_pool_enable_peer(handle, 4), Status::Ok, "again is fine");
    let calls = driver.total();
    assert_eq!(abi::forebay_pool_enable_peer(handle, 9), Status::TooManyPeers);
    let asked = driver.count(Call::CanAccessPeer);
    assert_eq!(driver.total() - calls, 1, "the only call asks whether 9 is there ({asked})");
    let ninth = pool.enable_peer(9).expect_err("eight are the most");
    assert!(ninth.message().contains("disable one first"), "{ninth}");
    assert_eq!(pool.peers().expect("alive"), [1, 2, 3, 4, 5, 6, 7, 8]);
    assert_eq!(abi::forebay_pool_enable_peer(handle, 13), Status::Unsupported);
    assert_eq!(abi::forebay_pool_enable_peer(handle, 0), Status::Unsupported, "the own one");
    assert_eq!(abi::forebay_pool_enable_peer(handle, -1), Status::InvalidArgument);
    assert_eq!(abi::forebay_pool_disable_peer(handle, 2), Status::Ok);
    assert_eq!(abi::forebay_pool_enable_peer(handle, 9), Status::Ok);
    let here = driver.inner().peers_of(block, GRANULE).expect("mapped");
    assert_eq!(here, [1, 3, 4, 5, 6, 7, 8, 9]);
    pool.dealloc(block, 0).expect("live");
    common::end(&driver, pool, &[]);
}

#[test]
fn a_change_of_peers_that_fails_is_undone_or_retried() {
    let driver = peered(32 * MIB);
    let pool = common::pool(&driver, common::settings(&driver));
    let blocks: Vec<usize> = (0..8).map(|_| pool.alloc(GRANULE, 0).expect("fits")).collect();
    // Gaps between them: several rows, several calls.
    for i in [1, 3, 5] {
        pool.dealloc(blocks[i], 0).expect("live");
    }
    pool.trim(0).expect("idle pages go");
    let live: Vec<usize> = [0, 2, 4, 6, 7].map(|i| blocks[i]).to_vec();
    let peers = |block: usize| driver.inner().peers_of(block, GRANULE).expect("mapped");
    pool.enable_peer(1).expect("a device");
    driver.fail(Fault::once(CallSet::of(&[Call::SetAccess]), 3));
    let refused = pool.enable_peer(2).expect_err("the third row fails");
    assert_eq!(refused.status(), Status::MappingLimit, "{refused}");
    for &block in &live {
        assert_eq!(peers(block), [1], "{block:#x}");
    }
    driver.clear_faults();
    // Now undoing fails as well: rows may lack the peer until that is retried.
    driver.fail(Fault::from_then_on(CallSet::of(&[Call::SetAccess]), 3));
    pool.disable_peer(1).expect_err("the third row fails, and so does the way back");
    assert_eq!(pool.peers().expect("alive"), [1]);
    assert_eq!(peers(live[0]), [], "what could not be undone");
    driver.clear_faults();
    assert!(!pool.with_core(|core| core.recover()).expect("alive"));
    for &block in &live {
        assert_eq!(peers(block), [1], "{block:#x}");
        pool.dealloc(block, 0).expect("live");
    }
    common::end(&driver, pool, &[]);
}

// ---- exports and imports -------------------------------------------------------------------

fn borrowed(fds: &[OwnedFd]) -> Vec<BorrowedFd<'_>> {
    fds.iter().map(AsFd::as_fd).collect()
}

#[test]
fn an_import_is_the_exported_memory_and_is_freed_like_a_block() {
    let (driver, pool) = common::small_pool(32 * MIB);
    let (other, importer) = common::small_pool(16 * MIB);
    let block = pool.alloc(3 * GRANULE, 0).expect("fits");
    write(block + 2 * GRANULE + 77, 11);
    let export = pool.export(block).expect("whole pages");
    assert_eq!((export.bytes, export.page_bytes, export.fds.len()), (3 * GRANULE, GRANULE, 3));
    let import = importer.import(&borrowed(&export.fds)).expect("pages of a host device");
    drop(export.fds);
    assert_eq!(read(import + 2 * GRANULE + 77), 11);
    write(import, 12);
    assert_eq!(read(block), 12);
    assert_eq!(importer.usable_size(import).expect("live"), 3 * GRANULE);
    let stats = check_books(&other, &importer);
    assert_eq!((stats.live_bytes, stats.other_bytes), (0, 6 << 20), "{stats:?}");
    assert_eq!(importer.leaks().expect("alive").len(), 1, "an import not freed is a leak");
    // All of the limit can be had beside it.
    let all = importer.alloc(16 * MIB, 0).expect("imports are not the pool's own");
    importer.dealloc(all, 0).expect("live");
    let inside = importer.dealloc(import + GRANULE, 0).expect_err("inside");
    assert_eq!(inside.status(), Status::InteriorPointer);
    // SAFETY: the import is the test's own and given up.
    assert_eq!(unsafe { alloc::forebay_free(import as *mut c_void) }, Status::Ok);
    let twice = importer.dealloc(import, 0).expect_err("freed");
    assert_eq!(twice.status(), Status::DoubleFree);
    let stats = check_books(&other, &importer);
    assert_eq!((stats.other_bytes, other.inner().census().imported_pages), (0, 0), "{stats:?}");
    assert_eq!(read(block + 2 * GRANULE + 77), 11, "the exporter's memory is untouched");
    close_export(export.id).expect("open");
    let closed = close_export(export.id).expect_err("closed");
    assert_eq!(closed.status(), Status::InvalidArgument);
    pool.dealloc(block, 0).expect("live");
    common::end(&other, importer, &[]);
    common::end(&driver, pool, &[]);
}

#[test]
fn exported_pages_neither_move_nor_serve_others_until_the_export_is_closed() {
    let driver = common::plain_device(8 * MIB);
    let pool = common::pool(&driver, common::settings(&driver));
    let blocks: Vec<usize> = (0..4).map(|_| pool.alloc(GRANULE, 0).expect("fits")).collect();
    write(blocks[0], 21);
    let (one, two) =
        (pool.export(blocks[0]).expect("whole"), pool.export(blocks[0]).expect("again"));
    assert_ne!(one.id, two.id);
    drop((one.fds, two.fds));
    pool.dealloc(blocks[0], 0).expect("a free never waits for importers");
    pool.dealloc(blocks[2], 0).expect("live");
    let stats = check_books(&driver, &pool);
    assert_eq!((stats.live_blocks, stats.other_bytes), (2, GRANULE as u64), "{stats:?}");
    assert_eq!(pool.leaks().expect("alive").len(), 2, "what is freed leaks no more");
    let twice = pool.dealloc(blocks[0], 0).expect_err("freed");
    assert_eq!(twice.status(), Status::DoubleFree, "{twice}");
    pool.export(blocks[0]).expect_err("freed");
    pool.alloc(2 * GRANULE, 0).expect_err("the exported page may not be moved");
    pool.trim(0).expect("the other idle page may go");
    assert_eq!(read(blocks[0]), 21, "importers still see it");
    close_export(one.id).expect("open");
    pool.alloc(2 * GRANULE, 0).expect_err("one export is still open");
    close_export(two.id).expect("open");
    assert_eq!(check_books(&driver, &pool).other_bytes, 0);
    let gathered = pool.alloc(2 * GRANULE, 0).expect("both pages are free now");
    for block in [blocks[1], blocks[3], gathered] {
        pool.dealloc(block, 0).expect("live");
    }
    common::end(&driver, pool, &[]);
}

#[test]
fn an_exported_block_is_wiped_when_its_export_is_closed() {
    let driver = common::plain_device(8 * MIB);
    let (other, importer) = common::small_pool(8 * MIB);
    let mut settings = common::settings(&driver);
    settings.scrub = true;
    let pool = common::pool(&driver, settings);
    for how in [0, SYNC_STREAM] {
        let block = pool.alloc(GRANULE, how).expect("fits");
        write(block, 21);
        let export = pool.export(block).expect("whole");
        let import = importer.import(&borrowed(&export.fds)).expect("pages");
        pool.dealloc(block, how).expect("a free never waits for importers");
        pool.stats().expect("settles");
        driver.synchronize().expect("alive");
        assert_eq!(read(import), 21, "kept as it is while the export is open");
        importer.dealloc(import, 0).expect("live");
        close_export(export.id).expect("open");
        drop(export.fds);
        let all = pool.alloc(8 * MIB, 0).expect("nothing is held back");
        driver.synchronize().expect("alive");
        assert_eq!(read(block), 0, "cleared before its next owner");
        pool.dealloc(all, 0).expect("live");
        check_books(&driver, &pool);
    }
    common::end(&other, importer, &[]);
    common::end(&driver, pool, &[]);
}

#[test]
fn memory_of_other_processes_is_not_free() {
    let (driver, pool) = common::small_pool(32 * MIB);
    let other = common::plain_device(32 * MIB);
    let importer = common::pool(&other, common::settings(&other));
    let neighbour = common::pool(&other, common::settings(&other));
    let taken = neighbour.alloc(20 * MIB, 0).expect("fits");
    let block = pool.alloc(3 * GRANULE, 0).expect("fits");
    let export = pool.export(block).expect("whole pages");
    let import = importer.import(&borrowed(&export.fds)).expect("pages of a host device");
    assert_eq!(importer.memory_info().expect("alive"), (12 * MIB, 32 * MIB));
    let own = importer.alloc(2 * MIB, 0).expect("fits");
    assert_eq!(importer.memory_info().expect("alive"), (10 * MIB, 32 * MIB));
    // A block that is freed while its export is open is still the importer's.
    pool.dealloc(block, 0).expect("live");
    assert_eq!(pool.memory_info().expect("alive"), (26 * MIB, 32 * MIB));
    close_export(export.id).expect("open");
    drop(export.fds);
    importer.dealloc(import, 0).expect("live");
    importer.dealloc(own, 0).expect("live");
    neighbour.dealloc(taken, 0).expect("live");
    assert_eq!(pool.memory_info().expect("alive"), (32 * MIB, 32 * MIB));
    drop(neighbour);
    common::end(&other, importer, &[]);
    common::end(&driver, pool, &[]);
}

#[test]
fn an_import_stays_mapped_until_queued_work_is_done() {
    let options = HostOptions { total_bytes: 16 * MIB, deferred: true, ..HostOptions::default() };
    let (driver, other) = (common::device(options.clone()), common::device(options));
    let pool = common::pool(&driver, common::settings(&driver));
    let mut settings = common::settings(&other);
    settings.debug = DebugChecks { poison: true, ..DebugChecks::default() };
    let importer = common::pool(&other, settings);
    let block = pool.alloc(GRANULE, 0).expect("fits");
    let export = pool.export(block).expect("whole");
    let streams: Vec<u64> = (0..2).map(|_| other.stream_create().expect("a stream").0).collect();
    for how in [streams[0], SYNC_STREAM] {
        let import = importer.import(&borrowed(&export.fds)).expect("pages");
        other.fill(import, 5, MIB, StreamHandle(streams[0])).expect("queued");
        other.fill(import + MIB, 6, MIB, StreamHandle(streams[1])).expect("queued");
        importer.record_use(import, streams[1]).expect("live");
        importer.dealloc(import, how).expect("live");
        assert_eq!(other.inner().census().imported_pages, 1, "work is queued on it");
        while other.inner().outstanding() > 0 {
            other.inner().step(1);
            importer.stats().expect("settles");
        }
        importer.stats().expect("settles");
        assert_eq!(other.inner().census().imported_pages, 0);
        assert_eq!((read(block), read(block + MIB)), (5, 6), "written, and not poisoned");
    }
    close_export(export.id).expect("open");
    pool.dealloc(block, 0).expect("live");
    drop(export.fds);
    common::end(&other, importer, &streams);
    common::end(&driver, pool, &[]);
}

#[test]
fn what_cannot_be_exported_or_imported_says_what_to_do() {
    let (driver, pool) = common::small_pool(32 * MIB);
    let refused = |address: usize| {
        let error = pool.export(address).expect_err("not whole pages");
        assert_eq!(error.status(), Status::InvalidArgument);
        error.message().to_owned()
    };
    let (small, odd) = (pool.alloc(4096, 0).expect("fits"), pool.alloc(3 * MIB, 0).expect("fits"));
    assert!(refused(small).contains("allocate a multiple of 2097152 bytes"), "{}", refused(small));
    assert!(refused(odd).contains("alignment of 2097152"), "{}", refused(odd));
    assert_eq!(pool.export(odd + 4096).expect_err("inside").status(), Status::InteriorPointer);
    let aligned = pool.alloc_aligned(GRANULE, GRANULE, 0).expect("fits");
    let export = pool.export(aligned).expect("as the message says");
    let file = std::fs::File::open("/proc/self/exe").expect("this program");
    let foreign = pool.import(&[export.fds[0].as_fd(), file.as_fd()]).expect_err("not ours");
    assert_eq!(foreign.status(), Status::InvalidArgument);
    assert!(foreign.message().contains("descriptor 1 of 2"), "{foreign}");
    assert_eq!(driver.inner().census().imported_pages, 0, "all or nothing");
    let import = pool.import(&borrowed(&export.fds)).expect("one's own pages do as well");
    assert!(pool.export(import).expect_err("another's").message().contains("imported"));
    for block in [small, odd, aligned, import] {
        pool.dealloc(block, 0).expect("live");
    }
    close_export(export.id).expect("open");
    drop(export.fds);
    common::end(&driver, pool, &[]);
}

#[test]
fn the_c_functions_check_what_they_are_given() {
    let (driver, pool) = common::small_pool(16 * MIB);
    let block = pool.alloc(2 * GRANULE, 0).expect("fits");
    let ptr = block as *mut c_void;
    let mut export = abi::Export { struct_size: size_of::<abi::Export>(), ..Default::default() };
    let mut fds = [-1i32; 4];
    // SAFETY: locals receive what the calls write; sizes are as stated.
    let call = |fds: *mut i32, capacity, export: *mut abi::Export| unsafe {
        abi::forebay_export_fd(ptr, fds, capacity, export)
    };
    assert_eq!(call(std::ptr::null_mut(), 0, &raw mut export), Status::Ok);
    assert_eq!((export.id, export.count, export.bytes), (0, 2, 2 * GRANULE as u64));
    assert_eq!(call(fds.as_mut_ptr(), 1, &raw mut export), Status::InvalidArgument);
    assert_eq!(call(std::ptr::null_mut(), 2, &raw mut export), Status::InvalidArgument);
    assert_eq!(call(fds.as_mut_ptr(), 4, std::ptr::null_mut()), Status::InvalidArgument);
    let mut short = abi::Export { struct_size: 8, ..Default::default() };
    assert_eq!(call(fds.as_mut_ptr(), 4, &raw mut short), Status::InvalidArgument);
    assert_eq!(fds, [-1; 4], "nothing was exported so far");
    assert_eq!(call(fds.as_mut_ptr(), 4, &raw mut export), Status::Ok);
    assert!(fds[0] >= 0 && fds[1] >= 0 && fds[2] == -1 && export.id != 0, "{fds:?} {export:?}");
    // SAFETY: the call made the first two for us.
    let ours = unsafe { [OwnedFd::from_raw_fd(fds[0]), OwnedFd::from_raw_fd(fds[1])] };
    let handle = pool.handle() as PoolT;
    let mut to = std::ptr::null_mut();
    // SAFETY: as above; the descriptors are open.
    let mut import = |fds: &[i32], export: &abi::Export| unsafe {
        abi::forebay_import_fd(handle, fds.as_ptr(), export, &raw mut to)
    };
    let numbers = [ours[0].as_raw_fd(), ours[1].as_raw_fd()];
    for wrong in [
        abi::Export { count: 0, ..export },
        abi::Export { count: 3, ..export },
        abi::Export { bytes: 5, ..export },
        abi::Export { offset: GRANULE as u64, ..export },
        abi::Export { count: 4, page_bytes: MIB as u64, ..export },
        abi::Export { count: u64::MAX, ..export },
        abi::Export { struct_size: 3, ..export },
    ] {
        assert_eq!(import(&numbers, &wrong), Status::InvalidArgument, "{wrong:?}");
    }
    assert_eq!(import(&[numbers[0], -1], &export), Status::InvalidArgument);
    assert_eq!(import(&numbers, &export), Status::Ok);
    write(block + GRANULE, 9);
    assert_eq!(read(to as usize + GRANULE), 9);
    pool.dealloc(to as usize, 0).expect("live");
    assert_eq!(abi::forebay_export_close(export.id), Status::Ok);
    assert_eq!(abi::forebay_export_close(export.id), Status::InvalidArgument);
    assert_eq!(abi::forebay_export_close(0), Status::InvalidArgument);
    drop(ours);
    pool.dealloc(block, 0).expect("live");
    common::end(&driver, pool, &[]);
}

/// The importing process: fork makes one that has the descriptors and none of the pool.
#[test]
fn another_process_maps_the_memory_and_outlives_the_exporter() {
    let output = child("exporter", "another_process_maps_the_memory_and_outlives_the_exporter");
    let Some(output) = output else {
        return importing_process();
    };
    assert!(output.status.success(), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stdout).contains("saw 33 and wrote 44"), "{output:?}");
}

/// Runs this test again in a process that inherits an exported page as descriptor 3; `None` in
/// that process.
fn child(name: &str, test: &str) -> Option<std::process::Output> {
    use std::os::unix::process::CommandExt;
    if std::env::var_os("FOREBAY_TEST_CHILD").is_some_and(|v| v == name) {
        return None;
    }
    let (driver, pool) = common::small_pool(16 * MIB);
    let block = pool.alloc(GRANULE, 0).expect("fits");
    write(block, 33);
    let export = pool.export(block).expect("whole");
    let fd = export.fds[0].as_raw_fd();
    let mut command = std::process::Command::new(std::env::current_exe().expect("this program"));
    command.args([test, "--exact", "--nocapture"]).env("FOREBAY_TEST_CHILD", name);
    // SAFETY: dup2 is async-signal-safe; the copy at 3 is not close-on-exec.
    unsafe {
        command.pre_exec(move || match libc::dup2(fd, 3) {
            3 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        });
    }
    let output = command.output().expect("a child process");
    assert_eq!(read(block), 44, "the child wrote the same memory");
    close_export(export.id).expect("open");
    drop(export.fds);
    pool.dealloc(block, 0).expect("live");
    common::end(&driver, pool, &[]);
    Some(output)
}

fn importing_process() {
    // SAFETY: the parent left the page's descriptor there.
    let fd = unsafe { OwnedFd::from_raw_fd(3) };
    let (driver, pool) = common::small_pool(8 * MIB);
    let import = pool.import(&[fd.as_fd()]).expect("a page of the parent's");
    drop(fd);
    let seen = read(import);
    write(import, 44);
    pool.dealloc(import, 0).expect("live");
    common::end(&driver, pool, &[]);
    println!("saw {seen} and wrote 44");
}
