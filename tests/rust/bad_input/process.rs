//! Bad input to the default pool and to pools made from options: in a process of its own, since
//! these follow the environment.

use super::common::{self, MIB};
use super::{last_error, out, refused};
use forebay::abi::alloc::{
    forebay_alloc, forebay_dealloc, forebay_free, forebay_free_async, forebay_malloc,
    forebay_malloc_async, forebay_mem_info, forebay_owns,
};
use forebay::abi::host::{
    forebay_buffers_acquire, forebay_buffers_create, forebay_buffers_destroy,
    forebay_buffers_release, forebay_host_alloc, forebay_host_free,
};
use forebay::abi::info::{Stats, forebay_pool_stats};
use forebay::abi::pools::{
    PoolOptions, forebay_pool_create, forebay_pool_default, forebay_pool_destroy,
    forebay_pool_options_init, forebay_pool_set_limits, forebay_pool_trim,
    forebay_set_oom_callback, forebay_shutdown,
};
use forebay::abi::streams::{
    forebay_capture_begin, forebay_pin, forebay_record_use, forebay_stream_synchronize,
};
use forebay::abi::{PoolT, StreamT};
use forebay::error::Status;
use std::ffi::c_void;
use std::process::Command;
use std::ptr::null_mut;

/// Runs [`child_process`] in a child with exactly these `FOREBAY_*` variables.
fn child(scenario: &str, vars: &[(&str, &str)]) {
    let mut command = Command::new(std::env::current_exe().expect("this program's path"));
    command.args(["process::child_process", "--exact", "--nocapture", "--test-threads=1"]);
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("FOREBAY_") {
            command.env_remove(name);
        }
    }
    command.envs(vars.iter().copied()).env("FOREBAY_TEST_CHILD", scenario);
    let output = command.output().expect("a child process");
    let told = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{scenario}: {output:?}");
    assert!(told.contains("scenario done"), "{scenario}: {output:?}");
}

const HOST: [(&str, &str); 2] = [("FOREBAY_BACKEND", "host"), ("FOREBAY_LIMIT", "64M")];

#[test]
fn the_default_pool() {
    child("default-pool", &HOST);
}

#[test]
fn options_of_pools() {
    child("options", &HOST);
}

#[test]
fn sets_of_buffers() {
    child("buffers", &HOST);
}

#[test]
fn no_backend() {
    child("no-backend", &[]);
    child("no-backend", &[("FOREBAY_BACKEND", "cuda")]);
}

#[test]
fn a_pool_used_after_its_end() {
    child("ended-pool", &HOST);
}

#[test]
fn after_shutdown() {
    child("shutdown", &HOST);
}

/// The scenarios. Does nothing in the parent.
#[test]
fn child_process() {
    let Ok(scenario) = std::env::var("FOREBAY_TEST_CHILD") else { return };
    match scenario.as_str() {
        "default-pool" => default_pool(),
        "options" => options(),
        "buffers" => buffers(),
        "no-backend" => without_backend(),
        "ended-pool" => ended_pool(),
        "shutdown" => shutdown(),
        other => panic!("no scenario {other}"),
    }
    println!("scenario done");
}

/// The default pool's accounts: live blocks and bytes, allocations, frees, bytes held.
fn accounts() -> [u64; 5] {
    let mut stats = Stats { struct_size: size_of::<Stats>(), ..Stats::default() };
    // SAFETY: a local structure of the size that it states.
    assert_eq!(unsafe { forebay_pool_stats(null_mut(), &raw mut stats) }, Status::Ok);
    let s = stats;
    [s.live_blocks, s.live_bytes, s.allocs, s.frees, s.mapped_bytes]
}

fn default_pool() {
    let mut ptr = out();
    // SAFETY: locals receive results; wrong addresses must be refused.
    unsafe {
        assert_eq!(forebay_malloc(&raw mut ptr, 3000), Status::Ok);
        let block = ptr;
        let before = accounts();
        refused(forebay_malloc(null_mut(), 100), Status::InvalidArgument, "NULL");
        refused(forebay_malloc(null_mut(), 0), Status::InvalidArgument, "NULL");
        let status = forebay_malloc_async(null_mut(), 100, null_mut());
        refused(status, Status::InvalidArgument, "NULL");
        refused(forebay_malloc(&raw mut ptr, 1 << 63), Status::OutOfMemory, "bytes");
        assert!(ptr.is_null());
        refused(forebay_malloc(&raw mut ptr, 65 << 20), Status::OutOfMemory, "limit 67108864");
        assert_eq!(forebay_malloc(&raw mut ptr, 0), Status::Ok);
        assert!(ptr.is_null());
        assert_eq!(forebay_free(null_mut()), Status::Ok);
        let unknown = 0x5555 as StreamT;
        let status = forebay_malloc_async(&raw mut ptr, 100, unknown);
        refused(status, Status::InvalidStream, "stream");
        refused(forebay_free_async(block, unknown), Status::InvalidStream, "stream");
        let inside = block.cast::<u8>().add(256).cast::<c_void>();
        refused(forebay_free(inside), Status::InteriorPointer, "inside");
        let mut capture = 3;
        let status = forebay_capture_begin(unknown, &raw mut capture);
        refused(status, Status::InvalidStream, "stream");
        assert_eq!(capture, 3, "a failed call writes nothing");
        assert_eq!(forebay_mem_info(null_mut(), null_mut()), Status::Ok);
        refused(forebay_host_alloc(null_mut(), 100), Status::InvalidArgument, "NULL");
        refused(forebay_host_free(block), Status::NotOwned, "");
        assert_eq!(accounts(), before, "nothing changed");
        assert_eq!(forebay_free(block), Status::Ok);
        refused(forebay_free(block), Status::DoubleFree, "freed before");
        let mut pool: PoolT = null_mut();
        refused(forebay_pool_default(3, &raw mut pool), Status::InvalidArgument, "device 0");
        assert_eq!(forebay_pool_default(0, &raw mut pool), Status::Ok);
        refused(forebay_pool_destroy(pool), Status::InvalidArgument, "default pool");
        assert_eq!(forebay_malloc(&raw mut ptr, 100), Status::Ok, "the pool lives on");
        assert_eq!(forebay_free(ptr), Status::Ok);
    }
}

fn options() {
    let mut good = std::mem::MaybeUninit::<PoolOptions>::uninit();
    // SAFETY: the call fills the structure when it answers OK.
    let good = unsafe {
        assert_eq!(forebay_pool_options_init(good.as_mut_ptr()), Status::Ok);
        good.assume_init()
    };
    let wrong = [
        (PoolOptions { struct_size: 0, ..good }, "struct_size"),
        (PoolOptions { struct_size: 8, ..good }, "struct_size"),
        (PoolOptions { flags: 1, ..good }, "flags"),
        (PoolOptions { limit: 65 << 20, ..good }, "limit"),
        (PoolOptions { headroom: u64::MAX, ..good }, "headroom"),
        (PoolOptions { limit: 16 << 20, soft_limit: 17 << 20, ..good }, "soft_limit"),
        (PoolOptions { limit: 16 << 20, reserve: 17 << 20, ..good }, "reserve"),
        (PoolOptions { device: 7, ..good }, "device 7"),
        (PoolOptions { device: -1, ..good }, "device -1"),
    ];
    for (options, says) in wrong {
        let mut pool = 16 as PoolT;
        // SAFETY: a local receives the handle; the options are a local structure.
        let status = unsafe { forebay_pool_create(&raw mut pool, &raw const options) };
        refused(status, Status::InvalidArgument, says);
        assert!(pool.is_null(), "a failed call writes NULL");
    }
    let mut pool: PoolT = null_mut();
    // SAFETY: as above.
    let made = unsafe { forebay_pool_create(&raw mut pool, &raw const good) };
    assert_eq!(made, Status::Ok, "{}", last_error());
    assert_eq!(forebay_pool_destroy(pool), Status::Ok);
}

fn buffers() {
    let mut set = null_mut();
    let mut buffer = out();
    // SAFETY: locals receive results; wrong handles and addresses must be refused.
    unsafe {
        for (bytes, count) in [(0, 1), (1, 0), (0, 0), (1, usize::MAX)] {
            let status = forebay_buffers_create(null_mut(), bytes, count, &raw mut set);
            refused(status, Status::InvalidArgument, "buffers");
            assert!(set.is_null());
        }
        let before = accounts();
        let status = forebay_buffers_create(null_mut(), 10 << 20, 7, &raw mut set);
        refused(status, Status::OutOfMemory, "bytes");
        let after = accounts();
        assert_eq!(after[..2], before[..2], "a set that could not be made holds nothing");
        let status = forebay_buffers_create(null_mut(), 4096, 2, null_mut());
        refused(status, Status::InvalidArgument, "NULL");
        assert_eq!(forebay_buffers_create(null_mut(), 4096, 2, &raw mut set), Status::Ok);
        let status = forebay_buffers_acquire(set, null_mut(), null_mut());
        refused(status, Status::InvalidArgument, "NULL");
        let status = forebay_buffers_acquire(set, 0x5555 as StreamT, &raw mut buffer);
        refused(status, Status::InvalidStream, "stream");
        assert_eq!(forebay_buffers_acquire(set, null_mut(), &raw mut buffer), Status::Ok);
        let (first, mut second) = (buffer, null_mut());
        refused(forebay_buffers_destroy(set), Status::Busy, "1 buffers");
        assert_eq!(forebay_buffers_acquire(set, null_mut(), &raw mut second), Status::Ok);
        let status = forebay_buffers_acquire(set, null_mut(), &raw mut buffer);
        refused(status, Status::OutOfMemory, "all 2 buffers");
        assert!(buffer.is_null());
        assert_eq!(forebay_buffers_release(set, first, null_mut()), Status::Ok);
        refused(forebay_buffers_release(set, first, null_mut()), Status::DoubleFree, "");
        assert_eq!(forebay_buffers_release(set, second, null_mut()), Status::Ok);
        assert_eq!(forebay_buffers_destroy(set), Status::Ok);
        refused(forebay_buffers_destroy(set), Status::InvalidArgument, "no buffer set");
        let status = forebay_buffers_acquire(set, null_mut(), &raw mut buffer);
        refused(status, Status::InvalidArgument, "no buffer set");
    }
}

fn without_backend() {
    let mut ptr = out();
    let mut pool = 16 as PoolT;
    // SAFETY: locals receive the results.
    unsafe {
        refused(forebay_malloc(&raw mut ptr, 100), Status::NoDriver, "FOREBAY_BACKEND");
        assert!(ptr.is_null());
        let status = forebay_pool_create(&raw mut pool, std::ptr::null());
        refused(status, Status::NoDriver, "FOREBAY_BACKEND");
        assert!(pool.is_null());
        refused(forebay_host_alloc(&raw mut ptr, 100), Status::NoDriver, "FOREBAY_BACKEND");
    }
}

fn shutdown() {
    let mut ptr = out();
    // SAFETY: locals receive the results.
    unsafe {
        assert_eq!(forebay_malloc(&raw mut ptr, 5000), Status::Ok);
        let block = ptr;
        assert_eq!(forebay_shutdown(), Status::Ok);
        assert_eq!(forebay_shutdown(), Status::Ok, "twice is fine");
        refused(forebay_malloc(&raw mut ptr, 5000), Status::ShutDown, "shutdown");
        assert!(ptr.is_null());
        assert_eq!(forebay_free(block), Status::Ok, "frees succeed silently");
        let mut pool: PoolT = null_mut();
        let status = forebay_pool_create(&raw mut pool, std::ptr::null());
        refused(status, Status::ShutDown, "shutdown");
    }
}

/// Stale addresses are looked at here, so no other test's pool may get that range meanwhile.
fn ended_pool() {
    let (driver, pool) = common::small_pool(64 * MIB);
    let live = pool.alloc(4096, 0).expect("fits") as *mut c_void;
    let handle = pool.into_handle() as PoolT;
    assert_eq!(forebay_pool_destroy(handle), Status::Ok, "with a live block: reported, freed");
    assert!(driver.inner().census().is_clean());
    let mut ptr = out();
    let mut stats = Stats { struct_size: size_of::<Stats>(), ..Stats::default() };
    // SAFETY: locals receive the results; stale handles and addresses must be refused.
    let answers = unsafe {
        [
            forebay_alloc(handle, &raw mut ptr, 4096, null_mut()),
            forebay_alloc(handle, &raw mut ptr, 4 * MIB, null_mut()),
            forebay_dealloc(handle, live, null_mut()),
            forebay_pool_stats(handle, &raw mut stats),
            forebay_pool_trim(handle, 0, null_mut()),
            forebay_pool_set_limits(handle, 1 << 25, 0),
            forebay_set_oom_callback(handle, None, null_mut()),
            forebay_record_use(handle, live, null_mut()),
            forebay_stream_synchronize(handle, null_mut()),
            forebay_pool_destroy(handle),
        ]
    };
    for (i, status) in answers.into_iter().enumerate() {
        assert_eq!(status, Status::InvalidPool, "call {i}: {}", last_error());
    }
    assert!(last_error().contains("destroyed"), "{}", last_error());
    assert!(ptr.is_null());
    // SAFETY: a stale address must be refused.
    refused(unsafe { forebay_free(live) }, Status::StalePointer, "destroyed");
    refused(forebay_pin(live), Status::StalePointer, "destroyed");
    assert!(!forebay_owns(live));
    assert!(driver.inner().census().is_clean());
}
