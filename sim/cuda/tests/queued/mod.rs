//! What the tests of queued work share: streams, events, memory, kernels, captures.

#![allow(dead_code, reason = "each test program uses a part")]

use crate::common::{self, Sim};
use crate::cu;
use std::ffi::{CString, c_void};

/// `CU_STREAM_NON_BLOCKING`.
pub const NON_BLOCKING: u32 = 1;
/// `CU_STREAM_LEGACY`.
pub const LEGACY: u64 = 1;
/// `CU_STREAM_PER_THREAD`.
pub const PER_THREAD: u64 = 2;
/// Capture modes.
pub const MODES: [(u32, &str); 3] = [(0, "GLOBAL"), (1, "THREAD_LOCAL"), (2, "RELAXED")];

/// A world with a current primary context.
pub fn world(settings: &str) -> Sim {
    let sim = Sim::start(settings);
    sim.primary(0);
    sim
}

/// A stream.
pub fn stream(flags: u32) -> u64 {
    let mut stream = 0;
    assert_eq!(cu!(cuStreamCreate(&raw mut stream, flags)), 0, "cuStreamCreate");
    stream
}

/// An event without timing.
pub fn event() -> u64 {
    let mut event = 0;
    assert_eq!(cu!(cuEventCreate(&raw mut event, 2)), 0, "cuEventCreate");
    event
}

/// Device memory.
pub fn device(bytes: usize) -> u64 {
    let mut at = 0;
    assert_eq!(cu!(cuMemAlloc_v2(&raw mut at, bytes)), 0, "cuMemAlloc");
    at
}

/// Pinned host memory of 32-bit words.
pub fn pinned(words: usize) -> &'static mut [u32] {
    let mut at: *mut c_void = std::ptr::null_mut();
    assert_eq!(cu!(cuMemHostAlloc(&raw mut at, words * 4, 0)), 0, "cuMemHostAlloc");
    // SAFETY: the driver gave that much memory, which lives as long as the test's world.
    unsafe { std::slice::from_raw_parts_mut(at.cast::<u32>(), words) }
}

/// Puts words into device memory and waits.
pub fn put(at: u64, words: &[u32]) {
    let from = words.as_ptr().cast::<c_void>();
    assert_eq!(cu!(cuMemcpyHtoD_v2(at, from, words.len() * 4)), 0, "cuMemcpyHtoD");
    assert_eq!(cu!(cuCtxSynchronize()), 0);
}

/// Waits for all work, then gets words out of device memory.
pub fn get(at: u64, words: usize) -> Vec<u32> {
    assert_eq!(cu!(cuCtxSynchronize()), 0, "cuCtxSynchronize");
    let mut found = vec![0u32; words];
    let to = found.as_mut_ptr().cast::<c_void>();
    assert_eq!(cu!(cuMemcpyDtoH_v2(to, at, words * 4)), 0, "cuMemcpyDtoH");
    found
}

/// Queues a fill of words.
pub fn fill(at: u64, value: u32, words: usize, stream: u64) -> u32 {
    cu!(cuMemsetD32Async(at, value, words, stream))
}

/// Waits for a stream.
pub fn wait(stream: u64) -> u32 {
    cu!(cuStreamSynchronize(stream))
}

/// Begins a capture.
pub fn begin(stream: u64, mode: u32) -> u32 {
    cu!(cuStreamBeginCapture_v2(stream, mode))
}

/// Ends a capture.
pub fn end(stream: u64) -> (u32, u64) {
    let mut graph = 0;
    let code = cu!(cuStreamEndCapture(stream, &raw mut graph));
    (code, graph)
}

/// A stream's capture status.
pub fn status(stream: u64) -> u32 {
    let mut status = 9;
    assert_eq!(cu!(cuStreamIsCapturing(stream, &raw mut status)), 0, "cuStreamIsCapturing");
    status
}

/// A kernel by name.
pub fn kernel(name: &str) -> u64 {
    let image = CString::new(name).unwrap();
    let (mut module, mut function) = (0, 0);
    let text = image.as_ptr().cast::<c_void>();
    assert_eq!(cu!(cuModuleLoadData(&raw mut module, text)), 0, "cuModuleLoadData");
    let code = cu!(cuModuleGetFunction(&raw mut function, module, image.as_ptr()));
    assert_eq!(code, 0, "cuModuleGetFunction");
    function
}

/// Launches a kernel of one block.
pub fn launch(function: u64, stream: u64, arguments: &mut [*mut c_void]) -> u32 {
    let places = arguments.as_mut_ptr();
    let none: *mut *mut c_void = std::ptr::null_mut();
    cu!(cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, stream, places, none))
}

/// The place of an argument.
pub fn argument<T>(value: &mut T) -> *mut c_void {
    std::ptr::from_mut(value).cast()
}

/// `spin_until(at, value)` in a stream.
pub fn spin(stream: u64, at: u64, value: u32) -> u32 {
    let (mut at, mut value) = (at, value);
    let function = kernel("spin_until");
    launch(function, stream, &mut [argument(&mut at), argument(&mut value)])
}

/// The texts of all misuse so far.
pub fn misuse_texts() -> Vec<String> {
    let report = common::report();
    let list = report["misuse"].as_array().expect("a list").clone();
    list.iter().map(|m| m["text"].as_str().expect("a text").to_owned()).collect()
}
