//! An export makes no more descriptors than there is room for, whoever frees the block meanwhile.

use crate::GRANULE;
use crate::common::{self, MIB};
use forebay::abi::share as abi;
use forebay::error::Status;
use std::os::fd::{FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

/// What lies behind the caller's room.
const CANARY: i32 = -77;

/// Ends the other thread also when a check fails.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// The block at one address has one page, then three, then one; there is room for one.
#[test]
fn a_block_that_grows_meanwhile_is_refused() {
    let (driver, pool) = common::small_pool(64 * MIB);
    let first = pool.alloc_aligned(GRANULE, GRANULE, 0).expect("fits");
    let (done, started) = (AtomicBool::new(false), AtomicBool::new(false));
    let (mut made, mut refused) = (0, 0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut block = first;
            let mut pages = 1;
            while !done.load(Ordering::Acquire) {
                pool.dealloc(block, 0).expect("live");
                pages = 4 - pages;
                block = pool.alloc_aligned(pages * GRANULE, GRANULE, 0).expect("fits");
                started.store(true, Ordering::Release);
            }
            pool.dealloc(block, 0).expect("live");
        });
        let _end = End(&done);
        while !started.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
        for round in 0..3_000_000 {
            if round > 30_000 && made > 0 && refused > 0 {
                break;
            }
            let mut export =
                abi::Export { struct_size: size_of::<abi::Export>(), ..Default::default() };
            let mut fds = [CANARY; 4];
            let ptr = first as *const _;
            // SAFETY: a list with room for more than is told, and a description.
            let status =
                unsafe { abi::forebay_export_fd(ptr, fds.as_mut_ptr(), 1, &raw mut export) };
            let behind = fds[1..].iter().all(|&fd| fd == CANARY);
            if status == Status::Ok {
                made += 1;
                // SAFETY: made for this caller, who closes it.
                drop(unsafe { OwnedFd::from_raw_fd(fds[0]) });
                assert_eq!(abi::forebay_export_close(export.id), Status::Ok);
                assert!(behind, "descriptors were written behind the room");
                assert_eq!((export.count, export.bytes), (1, GRANULE as u64));
            } else {
                refused += 1;
                assert_eq!(fds, [CANARY; 4], "{status:?}");
            }
        }
    });
    assert!(made > 0 && refused > 0, "{made} made, {refused} refused: both should be met");
    common::end(&driver, pool, &[]);
}
