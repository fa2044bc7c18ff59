//! The C ABI against a model with a planted fault: must find it.
//!
//! Each input has a thread of its own: its caches go back when it ends, and are no leak.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| forebay_fuzz::ops::play_with_a_fault(bytes));
        thread.join().expect("a panic has ended the process already");
    });
});
