//! Bad input: each gets its own error, with a sentence, and leaves everything as it was.
//!
//! The tables here go through the C functions with the handle of a pool of the test's own;
//! what needs the default pool runs in a process of its own (room `process`).

#[path = "common/device.rs"]
mod common;
#[path = "bad_input/process.rs"]
mod process;

use common::{Block, MIB, Watched};
use forebay::abi::alloc::{
    forebay_alloc, forebay_alloc_aligned, forebay_dealloc, forebay_free, forebay_owns,
    forebay_usable_size,
};
use forebay::abi::info::{
    Stats, forebay_pool_leaks, forebay_pool_report_json, forebay_pool_stats, forebay_tag_bytes,
    forebay_tag_create, forebay_tag_set,
};
use forebay::abi::pools::{
    forebay_pool_create, forebay_pool_default, forebay_pool_destroy, forebay_pool_options_init,
    forebay_pool_trim, forebay_set_on_unmap, forebay_set_oom_callback,
};
use forebay::abi::streams::{
    forebay_capture_begin, forebay_capture_end, forebay_capture_release, forebay_pin,
    forebay_record_use, forebay_stream_create, forebay_stream_destroy, forebay_stream_fill,
    forebay_stream_synchronize, forebay_unpin,
};
use forebay::abi::{PoolT, StreamT, forebay_last_error};
use forebay::driver::Driver;
use forebay::error::Status;
use forebay::pool::{Pool, stats};
use std::ffi::{CStr, c_void};
use std::ptr::{null, null_mut};
use std::sync::Arc;

/// This thread's last error as text.
fn last_error() -> String {
    // SAFETY: the library answers a C string that is valid until the next failing call.
    let text = unsafe { CStr::from_ptr(forebay_last_error()) };
    text.to_string_lossy().into_owned()
}

/// The call must give `wanted`, and say something about it that contains `says`.
#[track_caller]
fn refused(status: Status, wanted: Status, says: &str) {
    assert_eq!(status, wanted, "{}", last_error());
    assert!(last_error().contains(says), "{:?} does not say {says:?}", last_error());
}

/// A pool with some live blocks, which must stay as they are.
struct Ground {
    driver: Arc<Watched>,
    pool: Pool,
    handle: PoolT,
    stream: u64,
    blocks: Vec<Block>,
    before: stats::Stats,
}

impl Ground {
    fn new() -> Ground {
        let (driver, pool) = common::small_pool(64 * MIB);
        let stream = driver.stream_create().expect("a stream").0;
        let block = |bytes: usize, seed| {
            Block::new(pool.alloc(bytes, stream).expect("fits"), bytes, stream, seed)
        };
        let blocks = vec![block(1000, 1), block(100_000, 2), block(MIB, 3), block(5 * MIB, 4)];
        let handle = pool.handle() as PoolT;
        let before = pool.stats().expect("alive");
        Ground { driver, pool, handle, stream, blocks, before }
    }

    fn stream(&self) -> StreamT {
        self.stream as StreamT
    }

    /// All is as it was, but for the count of refused allocations.
    #[track_caller]
    fn unchanged(&self) {
        self.blocks.iter().for_each(|b| b.check());
        let now = self.pool.stats().expect("alive");
        let refused = now.out_of_memory;
        assert_eq!(now, stats::Stats { out_of_memory: refused, ..self.before });
        common::check_books(&self.driver, &self.pool);
    }

    fn end(self) {
        self.unchanged();
        self.blocks.iter().for_each(|b| self.pool.dealloc(b.address, b.stream).expect("live"));
        common::end(&self.driver, self.pool, &[self.stream]);
    }
}

/// Somewhere for results; what is there must not be read as an address on failure.
fn out() -> *mut c_void {
    16 as *mut c_void
}

#[test]
fn no_bytes_are_an_address_of_null() {
    let ground = Ground::new();
    let mut ptr = out();
    // SAFETY: a local pointer receives the result; NULL may be freed.
    unsafe {
        assert_eq!(forebay_alloc(ground.handle, &raw mut ptr, 0, ground.stream()), Status::Ok);
        assert!(ptr.is_null());
        ptr = out();
        let aligned = forebay_alloc_aligned(ground.handle, &raw mut ptr, 0, 4096, ground.stream());
        assert_eq!(aligned, Status::Ok);
        assert!(ptr.is_null());
        assert_eq!(forebay_dealloc(ground.handle, ptr, ground.stream()), Status::Ok);
        assert_eq!(forebay_free(ptr), Status::Ok);
    }
    ground.end();
}

#[test]
fn impossible_sizes() {
    let ground = Ground::new();
    for bytes in [65 * MIB, 1 << 39, (1 << 40) - 1, 1 << 40, 1 << 63, usize::MAX - 1, usize::MAX] {
        let mut ptr = out();
        // SAFETY: a local pointer receives the result.
        let status = unsafe { forebay_alloc(ground.handle, &raw mut ptr, bytes, ground.stream()) };
        refused(status, Status::OutOfMemory, &format!("{bytes} bytes"));
        assert!(ptr.is_null(), "a failed call writes NULL");
        // SAFETY: as above.
        let status = unsafe {
            forebay_alloc_aligned(ground.handle, &raw mut ptr, bytes, 2 * MIB, ground.stream())
        };
        refused(status, Status::OutOfMemory, &format!("{bytes} bytes"));
        ground.unchanged();
    }
    ground.end();
}

#[test]
fn impossible_alignments() {
    let ground = Ground::new();
    for align in [0, 3, 6, 255, 257, 3 * MIB, 4 * MIB, 1 << 30, 1 << 63, usize::MAX] {
        let mut ptr = out();
        // SAFETY: a local pointer receives the result.
        let status = unsafe {
            forebay_alloc_aligned(ground.handle, &raw mut ptr, 4096, align, ground.stream())
        };
        refused(status, Status::InvalidArgument, "alignment");
        assert!(ptr.is_null(), "a failed call writes NULL");
        ground.unchanged();
    }
    let rust = ground.pool.alloc_aligned(4096, 1 << 30, 0).expect_err("more than a granule");
    assert_eq!(rust.status(), Status::InvalidArgument);
    ground.end();
}

#[test]
fn null_where_a_result_goes() {
    let ground = Ground::new();
    let (pool, stream) = (ground.handle, ground.stream());
    let block = ground.blocks[0].address as *mut c_void;
    let mut number = 0u64;
    // SAFETY: NULL is what these calls must refuse; other pointers are locals or live blocks.
    let answers = unsafe {
        [
            forebay_alloc(pool, null_mut(), 4096, stream),
            forebay_alloc(pool, null_mut(), 16 * MIB, stream),
            forebay_alloc(pool, null_mut(), 0, stream),
            forebay_alloc_aligned(pool, null_mut(), 4096, 256, stream),
            forebay_usable_size(block, null_mut()),
            forebay_usable_size(null(), &raw mut number as *mut usize),
            forebay_pool_create(null_mut(), null()),
            forebay_pool_options_init(null_mut()),
            forebay_pool_default(0, null_mut()),
            forebay_pool_stats(pool, null_mut()),
            forebay_pool_report_json(pool, null_mut(), 10, null_mut()),
            forebay_pool_leaks(pool, None, null_mut()),
            forebay_tag_create(null(), &raw mut number as *mut u32),
            forebay_tag_create(c"a name".as_ptr(), null_mut()),
            forebay_tag_bytes(pool, 1, null_mut()),
            forebay_capture_begin(stream, null_mut()),
            forebay_stream_create(pool, null_mut()),
            forebay_record_use(pool, null_mut(), stream),
            forebay_pin(null_mut()),
            forebay_unpin(null_mut()),
        ]
    };
    for (i, status) in answers.into_iter().enumerate() {
        assert_eq!(status, Status::InvalidArgument, "call {i}");
    }
    assert!(last_error().contains("NULL"), "{}", last_error());
    assert!(!forebay_owns(null()));
    assert_eq!(number, 0);
    ground.end();
}

#[test]
fn null_where_it_is_allowed() {
    let ground = Ground::new();
    // SAFETY: these results may be NULL.
    unsafe {
        assert_eq!(forebay_pool_trim(ground.handle, 64 * MIB, null_mut()), Status::Ok);
        assert_eq!(forebay_pool_report_json(ground.handle, null_mut(), 0, null_mut()), Status::Ok);
        assert_eq!(forebay_set_on_unmap(ground.handle, None, null_mut()), Status::Ok);
        assert_eq!(forebay_set_oom_callback(ground.handle, None, null_mut()), Status::Ok);
    }
    ground.end();
}

#[test]
fn handles_that_name_no_pool() {
    let ground = Ground::new();
    let forged = [1, 4096, ground.handle as u64 + 8, 0xffff << 48, u64::MAX];
    for handle in forged {
        let handle = handle as PoolT;
        let mut ptr = out();
        // SAFETY: a local pointer receives the result.
        let status = unsafe { forebay_alloc(handle, &raw mut ptr, 4096, null_mut()) };
        refused(status, Status::InvalidPool, "names no pool");
        refused(forebay_pool_destroy(handle), Status::InvalidPool, "names no pool");
    }
    refused(forebay_pool_destroy(null_mut()), Status::InvalidPool, "names no pool");
    ground.end();
}

#[test]
fn streams_of_nobody() {
    let ground = Ground::new();
    let gone = ground.driver.stream_create().expect("a stream").0;
    assert_eq!(forebay_stream_destroy(ground.handle, gone as StreamT), Status::Ok);
    let block = ground.blocks[1].address as *mut c_void;
    for stream in [gone, 0x1234_5678, (1 << 48) + 5, u64::MAX] {
        let stream = stream as StreamT;
        let mut ptr = out();
        // SAFETY: a local pointer receives the result; the block stays live: the frees fail.
        unsafe {
            for bytes in [4096, 4 * MIB] {
                let status = forebay_alloc(ground.handle, &raw mut ptr, bytes, stream);
                refused(status, Status::InvalidStream, "stream");
                assert!(ptr.is_null());
            }
            refused(forebay_dealloc(ground.handle, block, stream), Status::InvalidStream, "stream");
            let filled = forebay_stream_fill(ground.handle, block, 0, 16, stream);
            assert_eq!(filled, Status::InvalidStream);
        }
        refused(forebay_record_use(ground.handle, block, stream), Status::InvalidStream, "stream");
        assert_eq!(forebay_stream_synchronize(ground.handle, stream), Status::InvalidStream);
        assert_eq!(forebay_stream_destroy(ground.handle, stream), Status::InvalidStream);
        ground.unchanged();
    }
    ground.end();
}

#[test]
fn frees_of_what_is_not_a_live_block() {
    let mut ground = Ground::new();
    let freed: Vec<usize> = [700, 90_000, 3 * MIB]
        .into_iter()
        .map(|bytes| ground.pool.alloc(bytes, ground.stream).expect("fits"))
        .collect();
    freed.iter().for_each(|&b| ground.pool.dealloc(b, ground.stream).expect("live"));
    // The frees above count; the wrong ones must not.
    ground.before = ground.pool.stats().expect("alive");
    let local = 0u64;
    let mut wrong = vec![(std::ptr::from_ref(&local) as usize, Status::NotOwned)];
    wrong.push((8, Status::NotOwned));
    wrong.push((usize::MAX, Status::NotOwned));
    wrong.extend(freed.iter().map(|&address| (address, Status::DoubleFree)));
    for block in &ground.blocks {
        for offset in [1, 8, 255, block.bytes / 2, block.bytes - 1] {
            wrong.push((block.address + offset, Status::InteriorPointer));
        }
    }
    let far = ground.blocks[3].address + 60 * MIB;
    wrong.push((far, Status::DoubleFree));
    for (address, status) in wrong {
        let ptr = address as *mut c_void;
        let mut size = 0;
        // SAFETY: wrong addresses must be refused, whatever they are.
        unsafe {
            let hex = format!("{address:#x}");
            refused(forebay_dealloc(ground.handle, ptr, ground.stream()), status, &hex);
            refused(forebay_free(ptr), status, &hex);
            refused(forebay_usable_size(ptr, &raw mut size), status, &hex);
        }
        refused(forebay_record_use(ground.handle, ptr, ground.stream()), status, "");
        refused(forebay_pin(ptr), status, "");
        refused(forebay_unpin(ptr), status, "");
        ground.unchanged();
    }
    ground.end();
}

#[test]
fn a_block_of_another_pool() {
    let (ground, other) = (Ground::new(), Ground::new());
    let block = other.blocks[0].address as *mut c_void;
    // SAFETY: the block stays live: the free fails.
    let status = unsafe { forebay_dealloc(ground.handle, block, null_mut()) };
    refused(status, Status::NotOwned, "not this pool's");
    ground.end();
    other.end();
}

#[test]
fn unpinning_what_is_not_pinned() {
    let ground = Ground::new();
    let block = ground.blocks[2].address as *mut c_void;
    refused(forebay_unpin(block), Status::InvalidArgument, "not pinned");
    assert_eq!((forebay_pin(block), forebay_unpin(block)), (Status::Ok, Status::Ok));
    refused(forebay_unpin(block), Status::InvalidArgument, "not pinned");
    ground.end();
}

#[test]
fn captures_and_tags_that_were_never_made() {
    let ground = Ground::new();
    refused(forebay_capture_end(77), Status::InvalidArgument, "77");
    refused(forebay_capture_release(77), Status::InvalidArgument, "77");
    let mut before = 9;
    for tag in [0, 120, 127, 128, u32::MAX] {
        let mut bytes = 5u64;
        // SAFETY: locals receive the results.
        unsafe {
            refused(forebay_tag_set(tag, &raw mut before), Status::InvalidArgument, "tag");
            let status = forebay_tag_bytes(ground.handle, tag, &raw mut bytes);
            refused(status, Status::InvalidArgument, "tag");
        }
        assert_eq!((before, bytes), (9, 5), "a failed call writes nothing");
    }
    let long = "x".repeat(65) + "\0";
    for name in [c"".as_ptr(), long.as_ptr().cast(), c"\xff\xfe".as_ptr()] {
        // SAFETY: a NUL-ended name and a local for the result.
        let status = unsafe { forebay_tag_create(name, &raw mut before) };
        refused(status, Status::InvalidArgument, "tag");
    }
    ground.end();
}

#[test]
fn a_stats_structure_of_no_known_size() {
    let ground = Ground::new();
    for size in [0, 1, 8, usize::MAX] {
        let mut stats = Stats { struct_size: size, ..Stats::default() };
        // SAFETY: a local structure, which must not be written.
        let status = unsafe { forebay_pool_stats(ground.handle, &raw mut stats) };
        refused(status, Status::InvalidArgument, "struct_size");
        assert_eq!((stats.live_bytes, stats.mapped_bytes), (0, 0));
    }
    ground.end();
}

/// Whether this process can read the byte at `address`, learnt without a fault.
fn readable(address: usize) -> bool {
    let mut byte = 0u8;
    let to = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
    let from = libc::iovec { iov_base: address as *mut c_void, iov_len: 1 };
    // SAFETY: `to` names one writable byte; a bad `from` makes the call fail, not fault.
    unsafe { libc::process_vm_readv(libc::getpid(), &raw const to, 1, &raw const from, 1, 0) == 1 }
}

#[test]
fn with_guards_nothing_can_be_reached_behind_an_extent() {
    let driver = common::plain_device(64 * MIB);
    let mut settings = common::settings(&driver);
    settings.debug.guard = true;
    let pool = common::pool(&driver, settings);
    // Whole granules too: several, so that the next one could lie right behind.
    for bytes in [MIB, 2 * MIB, 3 * MIB, 4 * MIB] {
        let blocks: Vec<usize> = (0..3).map(|_| pool.alloc(bytes, 0).expect("fits")).collect();
        for &block in &blocks {
            assert!(readable(block) && readable(block + bytes - 1), "{bytes} bytes at {block:#x}");
            assert!(!readable(block + bytes), "behind {bytes} bytes at {block:#x}");
            assert!(!readable(block + bytes + 2 * MIB - 1), "{bytes} bytes at {block:#x}");
        }
        blocks.iter().for_each(|&block| pool.dealloc(block, 0).expect("live"));
    }
    common::end(&driver, pool, &[]);
}
