//! The C ABI against a model with a planted fault: must find it.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| forebay_fuzz::ops::play_with_a_fault(bytes));
