//! Exports of any block, and exports and imports in parts.

use crate::common::{self, MIB};
use crate::{GRANULE, borrowed, read, write};
use forebay::abi::{PoolT, share as abi};
use forebay::driver::Call;
use forebay::driver::faulty::{CallSet, Fault};
use forebay::error::Status;
use forebay::pool::hot::SYNC_STREAM;
use forebay::pool::share::close_export;
use forebay::pool::window;
use std::os::fd::{AsFd, BorrowedFd};

/// All descriptors of an export, made two at a time.
fn all_pages(window: &window::Window) -> Vec<std::os::fd::OwnedFd> {
    let firsts = (0..window.count).step_by(2);
    let part = |first| window::pages(window.id, first, 2.min(window.count - first)).expect("open");
    firsts.flat_map(part).collect()
}

#[test]
fn any_block_is_exported_with_its_place_in_the_pages() {
    let (driver, pool) = common::small_pool(32 * MIB);
    let slot = pool.alloc(4096, 0).expect("fits");
    let next = pool.alloc(4096, 0).expect("fits");
    let extent = pool.alloc(3 * MIB, 0).expect("fits");
    for (block, bytes, value) in [(slot, 4096, 1), (next, 4096, 2), (extent, 3 * MIB, 3)] {
        write(block, value);
        write(block + bytes - 1, value + 10);
        let window = pool.open_export(block).expect("live");
        assert_eq!((window.block_bytes, window.page_bytes), (bytes, GRANULE));
        assert_eq!(window.offset, block % GRANULE);
        assert_eq!(window.count, (window.offset + bytes).div_ceil(GRANULE));
        let fds = all_pages(&window);
        let import = pool.import(&borrowed(&fds)).expect("own pages do as well");
        assert_eq!(read(import + window.offset), value);
        assert_eq!(read(import + window.offset + bytes - 1), value + 10);
        pool.dealloc(import, 0).expect("live");
        close_export(window.id).expect("open");
    }
    assert_eq!(pool.open_export(slot + 256).expect_err("inside").status(), Status::InteriorPointer);
    for block in [slot, next, extent] {
        pool.dealloc(block, 0).expect("live");
    }
    assert_eq!(pool.open_export(slot).expect_err("freed").status(), Status::DoubleFree);
    common::end(&driver, pool, &[]);
}

/// A slot that is freed while it is exported is nobody's until the export is closed; so is an
/// extent that shares its pages.
#[test]
fn a_freed_block_is_kept_until_its_export_is_closed() {
    for (bytes, stream) in
        [(4096, 0), (4096, SYNC_STREAM), (MIB, 0), (MIB, SYNC_STREAM), (256 << 10, 0)]
    {
        let (driver, pool) = common::small_pool(16 * MIB);
        let block = pool.alloc(bytes, stream).expect("fits");
        let first = pool.open_export(block).expect("live");
        let second = pool.open_export(block).expect("again");
        write(block, 7);
        pool.dealloc(block, stream).expect("live");
        let twice = pool.dealloc(block, stream).expect_err("freed");
        assert_eq!(twice.status(), Status::DoubleFree);
        close_export(first.id).expect("open");
        let mut blocks = Vec::new();
        while let Ok(other) = pool.alloc(bytes, stream) {
            assert_ne!(other, block, "{bytes} bytes: exported still");
            write(other, 1);
            blocks.push(other);
        }
        assert_eq!(read(block), 7);
        let moved = pool.stats().expect("alive").pages_moved;
        close_export(second.id).expect("open");
        let again = pool.alloc(bytes, stream).expect("there is room again");
        assert_eq!(again, block, "{bytes} bytes: the last place that is left");
        assert_eq!(pool.stats().expect("alive").pages_moved, moved);
        blocks.push(again);
        for block in blocks {
            pool.dealloc(block, stream).expect("live");
        }
        common::end(&driver, pool, &[]);
    }
}

/// What an exported block held is overwritten once nobody imports it, before its next owner.
#[test]
fn an_exported_block_is_scrubbed_when_its_export_is_closed() {
    for bytes in [4096, 2 * MIB + 4096] {
        let driver = common::plain_device(16 * MIB);
        let settings = forebay::pool::Settings { scrub: true, ..common::settings(&driver) };
        let pool = common::pool(&driver, settings);
        let block = pool.alloc(bytes, 0).expect("fits");
        let window = pool.open_export(block).expect("live");
        pool.dealloc(block, 0).expect("live");
        write(block, 0x77);
        close_export(window.id).expect("open");
        // Whoever gets the memory at last, when nothing else is left, finds none of it.
        let mut blocks = Vec::new();
        while let Ok(other) = pool.alloc(bytes, 0) {
            blocks.push(other);
        }
        driver.inner().run_all();
        assert!(blocks.contains(&block), "{bytes} bytes: it is handed out again");
        assert_eq!(read(block), 0, "{bytes} bytes: an importer's word is gone");
        for block in blocks {
            pool.dealloc(block, 0).expect("live");
        }
        common::end(&driver, pool, &[]);
    }
}

/// Pages of an open export stay where they are, whatever a gather would like.
#[test]
fn exported_pages_do_not_move() {
    let (driver, pool) = common::small_pool(16 * MIB);
    let blocks: Vec<usize> = (0..8).map(|_| pool.alloc(GRANULE, 0).expect("fits")).collect();
    let window = pool.open_export(blocks[2]).expect("live");
    for i in (0..8).step_by(2) {
        pool.dealloc(blocks[i], 0).expect("live");
    }
    write(blocks[2], 5);
    let big = pool.alloc(3 * GRANULE, 0).expect("three idle pages are left");
    assert_eq!(read(blocks[2]), 5, "mapped and untouched");
    pool.alloc(GRANULE, 0).expect_err("the fourth is exported");
    close_export(window.id).expect("open");
    let last = pool.alloc(GRANULE, 0).expect("it is free now");
    for block in [big, last].into_iter().chain((1..8).step_by(2).map(|i| blocks[i])) {
        pool.dealloc(block, 0).expect("live");
    }
    common::end(&driver, pool, &[]);
}

#[test]
fn an_import_in_parts_counts_its_pages() {
    let (driver, pool) = common::small_pool(32 * MIB);
    let block = pool.alloc(5 * GRANULE, 0).expect("fits");
    let opened = pool.open_export(block).expect("live");
    let fds = all_pages(&opened);
    let refused = |result: forebay::error::Result<()>| {
        let error = result.expect_err("wrong");
        assert_eq!(error.status(), Status::InvalidArgument);
        error.message().to_owned()
    };
    assert!(refused(window::pages(opened.id, 4, 2).map(drop)).contains("5 pages"));
    assert!(refused(window::pages(opened.id, usize::MAX, 2).map(drop)).contains("5 pages"));
    assert!(refused(pool.open_import(0).map(drop)).contains("not 0"));
    let import = pool.open_import(5).expect("a number");
    window::take_pages(import, &borrowed(&fds[..3])).expect("three of five");
    assert!(refused(window::finish_import(import).map(drop)).contains("3 of the import's 5"));
    assert!(refused(window::take_pages(import, &borrowed(&fds[..3]))).contains("2 more pages"));
    let file = std::fs::File::open("/proc/self/exe").expect("this program");
    let wrong: [BorrowedFd<'_>; 2] = [fds[3].as_fd(), file.as_fd()];
    assert!(refused(window::take_pages(import, &wrong)).contains("descriptor 1 of 2"));
    assert_eq!(driver.inner().census().imported_pages, 3, "none of the wrong two");
    window::take_pages(import, &borrowed(&fds[3..])).expect("the rest");
    let address = window::finish_import(import).expect("whole");
    assert!(refused(window::finish_import(import).map(drop)).contains("no open import"));
    for page in 0..5 {
        write(block + page * GRANULE, page as u8 + 1);
        assert_eq!(read(address + page * GRANULE), page as u8 + 1);
    }
    let left = pool.open_import(5).expect("a number");
    window::take_pages(left, &borrowed(&fds[..2])).expect("two of five");
    window::give_up_import(left).expect("open");
    refused(window::give_up_import(left));
    let forgotten = pool.open_import(5).expect("a number");
    window::take_pages(forgotten, &borrowed(&fds[..2])).expect("two of five");
    pool.dealloc(address, 0).expect("live");
    close_export(opened.id).expect("open");
    pool.dealloc(block, 0).expect("live");
    drop(fds);
    // The pool's end lets go what the forgotten import holds.
    common::end(&driver, pool, &[]);
    assert_eq!(driver.inner().census().imported_pages, 0);
}

/// Each driver call of an export and import in parts fails once.
#[test]
fn a_failed_call_leaves_nothing_behind() {
    for call in [Call::Export, Call::Import, Call::Map, Call::SetAccess] {
        let (driver, pool) = common::small_pool(32 * MIB);
        let block = pool.alloc(2 * GRANULE, 0).expect("fits");
        let window = pool.open_export(block).expect("live");
        let import = pool.open_import(2).expect("a number");
        let attempt = || {
            let fds = window::pages(window.id, 0, 2)?;
            window::take_pages(import, &borrowed(&fds))?;
            window::finish_import(import)
        };
        driver.fail(Fault::once(CallSet::of(&[call]), 1));
        let error = attempt().expect_err("a call fails");
        driver.clear_faults();
        let limited = [Call::Map, Call::SetAccess].contains(&call);
        let expected = if limited { Status::MappingLimit } else { Status::Driver };
        assert_eq!(error.status(), expected, "{call:?}: {error}");
        let _ = window::give_up_import(import);
        let census = driver.inner().census();
        assert_eq!(census.imported_pages, 0, "{call:?}");
        close_export(window.id).expect("open");
        pool.dealloc(block, 0).expect("live");
        common::end(&driver, pool, &[]);
    }
}

#[test]
fn the_c_functions_export_and_import_in_parts() {
    let (driver, pool) = common::small_pool(32 * MIB);
    let block = pool.alloc(3 * MIB, 0).expect("fits");
    let mut export = abi::Export { struct_size: size_of::<abi::Export>(), ..Default::default() };
    let mapped;
    // SAFETY: locals receive what the calls write; descriptors are closed by their owner below.
    unsafe {
        use std::os::fd::{FromRawFd, OwnedFd};
        let ptr = block as *const std::ffi::c_void;
        assert_eq!(abi::forebay_export_open(ptr, std::ptr::null_mut()), Status::InvalidArgument);
        assert_eq!(abi::forebay_export_open(ptr, &raw mut export), Status::Ok);
        assert_eq!(export.bytes, export.count * export.page_bytes);
        let (handle, mut id) = (pool.handle() as PoolT, 0);
        assert_eq!(abi::forebay_import_open(handle, &raw const export, &raw mut id), Status::Ok);
        for page in 0..export.count as usize {
            let mut fd = -1;
            assert_eq!(abi::forebay_export_pages(export.id, page, &raw mut fd, 1), Status::Ok);
            assert_eq!(abi::forebay_import_pages(id, &raw const fd, 1), Status::Ok);
            drop(OwnedFd::from_raw_fd(fd));
        }
        let mut first = std::ptr::null_mut();
        assert_eq!(abi::forebay_import_map(id, &raw mut first), Status::Ok);
        let address = first as usize;
        write(block + 3 * MIB - 1, 42);
        assert_eq!(read(first as usize + export.offset as usize + 3 * MIB - 1), 42);
        assert_eq!(abi::forebay_import_map(id, &raw mut first), Status::InvalidArgument);
        assert!(first.is_null());
        mapped = address;
        assert_eq!(abi::forebay_import_cancel(id), Status::InvalidArgument);
        assert_eq!(abi::forebay_import_pages(id, std::ptr::null(), 1), Status::InvalidArgument);
        let none = std::ptr::null_mut();
        assert_eq!(abi::forebay_export_pages(export.id, 0, none, 1), Status::InvalidArgument);
    }
    assert_eq!(abi::forebay_export_close(export.id), Status::Ok);
    pool.dealloc(block, 0).expect("live");
    pool.dealloc(mapped, 0).expect("the import");
    common::end(&driver, pool, &[]);
}
