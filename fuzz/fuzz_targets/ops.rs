//! The C ABI against a model.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| forebay_fuzz::ops::play(bytes));
