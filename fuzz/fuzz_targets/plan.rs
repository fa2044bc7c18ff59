//! The readers of plans and instances on any bytes.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| forebay_fuzz::plan::read(bytes));
