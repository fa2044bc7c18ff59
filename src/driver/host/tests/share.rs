//! Access by other devices, and pages that travel as descriptors.

use super::*;
use std::ffi::c_void;
use std::os::fd::AsFd;

#[test]
fn access_is_what_the_last_call_named() {
    let driver = HostDriver::new(HostOptions { peer_devices: 12, ..HostOptions::default() });
    let driver = driver.expect("a device");
    let (base, _pages) = mapped(&driver, 3);
    write(base + GRANULE, 7);
    assert_eq!(driver.peers_of(base, 3 * GRANULE), Some(vec![]));
    driver.set_access(base, 2 * GRANULE, &[3, 1]).expect("mapped");
    assert_eq!(driver.peers_of(base + 5, 2 * GRANULE - 5), Some(vec![3, 1]));
    assert_eq!(driver.peers_of(base, 3 * GRANULE), Some(vec![]), "the third has none");
    assert_eq!(driver.read_as_peer(3, base + GRANULE, 1), Ok(vec![7]));
    let refused = driver.read_as_peer(2, base + GRANULE, 1).expect_err("no access");
    assert_eq!(refused.code, Code::InvalidValue);
    driver.set_access(base, 3 * GRANULE, &[1]).expect("mapped");
    assert_eq!(driver.peers_of(base, 3 * GRANULE), Some(vec![1]), "3 was left out");
    let nine: Vec<u32> = (1..=9).collect();
    assert_eq!(code(driver.set_access(base, GRANULE, &nine)), Code::TooManyPeers);
    assert_eq!(code(driver.set_access(base, GRANULE, &[13])), Code::InvalidValue);
    assert_eq!(driver.peers_of(base, GRANULE), Some(vec![1]), "failures change nothing");
    driver.set_access(base, GRANULE, &nine[..8]).expect("eight are allowed");
    driver.unmap(base, GRANULE).expect("whole");
    assert_eq!(driver.peers_of(base, GRANULE), None);
    assert_eq!([0, 1, 12, 13].map(|n| driver.can_access_peer(n)), [false, true, true, false]);
    assert!(!device().can_access_peer(1), "by default there is no other device");
}

#[test]
fn an_imported_page_is_the_same_memory() {
    let (here, there) = (device(), device());
    let (base, pages) = mapped(&here, 2);
    write(base + GRANULE, 41);
    let fd = here.export(pages[1]).expect("a page");
    let page = there.import(fd.as_fd(), GRANULE).expect("a descriptor of a page").page;
    drop(fd);
    let census = there.census();
    assert_eq!((census.pages, census.page_bytes), (0, 0), "the memory is the other's");
    assert_eq!((census.imported_pages, census.imported_bytes, census.fds), (1, GRANULE, 2));
    let at = there.reserve(GRANULE).expect("address space");
    there.map(at, GRANULE, page).expect("free");
    there.set_access(at, GRANULE, &[]).expect("mapped");
    assert_eq!(read(at), 41);
    write(at, 42);
    assert_eq!(read(base + GRANULE), 42);
    there.release(page).expect("still mapped");
    there.unmap(at, GRANULE).expect("whole");
    there.unreserve(at, GRANULE).expect("empty");
    assert!(there.census().is_clean(), "{:?}", there.census());
}

#[test]
fn exported_memory_is_not_used_again_while_anyone_holds_it() {
    let (here, there) = (device(), device());
    let (base, pages) = mapped(&here, 1);
    write(base, 9);
    let fd = here.export(pages[0]).expect("a page");
    here.unmap(base, GRANULE).expect("whole");
    here.release(pages[0]).expect("ours");
    let census = here.census();
    assert_eq!((census.pages, census.lent_pages, census.page_bytes), (0, 1, GRANULE));
    let next = here.create(GRANULE).expect("memory");
    here.map(base, GRANULE, next).expect("free");
    here.set_access(base, GRANULE, &[]).expect("mapped");
    write(base, 10);
    // The descriptor is enough to hold it, then a page, then a mapping.
    let page = there.import(fd.as_fd(), GRANULE).expect("still there").page;
    drop(fd);
    let at = there.reserve(GRANULE).expect("address space");
    there.map(at, GRANULE, page).expect("free");
    there.set_access(at, GRANULE, &[]).expect("mapped");
    there.release(page).expect("still mapped");
    assert_eq!((read(at), here.census().lent_pages), (9, 1));
    there.unmap(at, GRANULE).expect("whole");
    let census = here.census();
    assert_eq!((census.lent_pages, census.page_bytes), (0, GRANULE), "it came back");
}

#[test]
fn only_descriptors_of_pages_are_imported() {
    let driver = device();
    let refused = |fd: &dyn AsFd, bytes| code(driver.import(fd.as_fd(), bytes));
    let file = std::fs::File::open("/proc/self/exe").expect("this program");
    assert_eq!(refused(&file, GRANULE), Code::InvalidHandle);
    let plain = sys::memory_file().expect("a file");
    assert_eq!(refused(&plain, GRANULE), Code::InvalidHandle, "empty");
    sys::set_length(&plain, 4 * GRANULE).expect("room");
    assert_eq!(refused(&plain, GRANULE), Code::InvalidHandle, "marked by nobody");
    let page = driver.create(GRANULE).expect("memory");
    let fd = driver.export(page).expect("a page");
    assert_eq!(refused(&fd, 100), Code::InvalidValue);
    assert_eq!(refused(&fd, 1 << 40), Code::InvalidHandle, "longer than the file");
    driver.release(page).expect("ours");
    assert_eq!(code(driver.export(page)), Code::InvalidHandle);
}

#[test]
fn graphs_call_back_once() {
    unsafe extern "C" fn count(word: *mut c_void) {
        // SAFETY: the test gave the address of its own counter.
        unsafe { *word.cast::<u32>() += 1 };
    }
    let driver = device();
    let mut counter = 0u32;
    let word = (&raw mut counter).expose_provenance();
    driver.on_graph_release(5, count, word).expect("always");
    driver.on_graph_release(6, count, word).expect("always");
    assert_eq!((driver.end_graph(5), driver.end_graph(5), counter), (1, 0, 1));
    driver.set_capturing(DEFAULT_STREAM, true);
    assert!(driver.stream_capturing(DEFAULT_STREAM));
    driver.set_capturing(DEFAULT_STREAM, false);
    assert!(!driver.stream_capturing(DEFAULT_STREAM));
}
