//! The trace reader on any bytes.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| forebay_fuzz::trace::read(bytes));
