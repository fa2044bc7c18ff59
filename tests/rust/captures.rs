//! Graph captures: what enters a capture's memory and what leaves it.
//!
//! A process of its own: captures concern the default pool too.

use forebay::driver::StreamHandle;
use forebay::pool::{Pool, capture};

const MIB: usize = 1 << 20;

fn host() -> (Pool, u64) {
    // SAFETY: each test runs before anything else of this process reads the environment.
    unsafe { std::env::set_var("FOREBAY_BACKEND", "host") };
    let pool = Pool::default_pool().expect("the host backend");
    let stream = pool.driver().expect("alive").stream_create().expect("a stream").0;
    (pool, stream)
}

/// Blocks that lived before the capture and are freed inside it do not become graph memory
/// that leaves with an ordinary free; what the capture allocated stays its own until release.
#[test]
fn memory_of_a_capture_goes_to_nobody_until_its_release() {
    let (pool, stream) = host();
    let driver = pool.driver().expect("alive");
    for bytes in [4096, 100_000, 3 * MIB] {
        let before: Vec<usize> = (0..8).map(|_| pool.alloc(bytes, stream).expect("fits")).collect();
        let number = capture::begin(stream).expect("a stream of the device");
        for &block in &before {
            pool.dealloc(block, stream).expect("live");
        }
        let inside: Vec<usize> = (0..8).map(|_| pool.alloc(bytes, stream).expect("fits")).collect();
        // A pool made now knows of the open capture.
        let late = Pool::with_driver(
            pool.driver().expect("alive"),
            forebay::pool::Settings::resolve(
                &forebay::config::Config::default(),
                64 * MIB as u64,
                true,
            ),
        )
        .expect("a pool");
        let captured_late = late.alloc(bytes, stream).expect("fits");
        capture::end(number).expect("open");
        for &block in &inside {
            pool.dealloc(block, stream).expect("live");
        }
        late.dealloc(captured_late, stream).expect("live");
        driver.stream_synchronize(StreamHandle(stream)).expect("a stream");
        let after: Vec<usize> = (0..32).map(|_| pool.alloc(bytes, stream).expect("fits")).collect();
        for block in &inside {
            assert!(!after.contains(block), "the graph may still write {block:#x}");
        }
        assert_ne!(late.alloc(bytes, stream).expect("fits"), captured_late);
        for block in after {
            pool.dealloc(block, stream).expect("live");
        }
        capture::release(number).expect("ended");
        let stats = pool.stats().expect("alive");
        assert_eq!(stats.sum(), stats.mapped_bytes, "{stats:?}");
        assert_eq!(stats.live_blocks, 0);
        drop(late);
    }
}
