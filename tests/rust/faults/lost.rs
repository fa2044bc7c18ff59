//! What every pool promises once its context is gone, on any device.

use super::common::{Block, MIB};
use forebay::error::Status;
use forebay::pool::hot::SYNC_STREAM;
use forebay::pool::{Pool, hot};

/// What a pool does once its context is gone.
pub fn check_lost(pool: &Pool, streams: &[u64], live: &[Block]) {
    for &block in live {
        block.check();
    }
    for stream in streams.iter().copied().chain([0, SYNC_STREAM]) {
        for bytes in [100, 4096, 300 << 10, 4 * MIB] {
            let refused = pool.alloc(bytes, stream).expect_err("the memory is gone");
            assert_eq!(refused.status(), Status::ContextLost, "{refused}");
            assert!(refused.message().contains("destroy the pool"), "{refused}");
        }
    }
    for block in live {
        pool.dealloc(block.address, block.stream).expect("a silent success");
        // SAFETY: nothing is at the address any more; it is answered all the same.
        let freed = unsafe { hot::free(block.address as *mut std::ffi::c_void) };
        assert!(matches!(freed, Status::Ok | Status::NoDriver), "{freed:?}");
    }
    let stats = pool.stats().expect("the accounts stay");
    assert_eq!(stats.sum(), stats.mapped_bytes, "{stats:?}");
    pool.report_json().expect("and the report");
    for error in [
        pool.trim(0).expect_err("nothing can be given back"),
        pool.enable_peer(1).expect_err("nothing is there to open"),
        pool.memory_info().expect_err("nobody to ask"),
    ] {
        assert_eq!(error.status(), Status::ContextLost, "{error}");
    }
}
