//! Looking functions up: by name, version and flags; absent ones; names of errors.

mod common;
use common::{Sim, row, symbol};
use forebay_simcuda::entry::Needs;
use std::collections::BTreeSet;
use std::ffi::{CStr, CString, c_void};
use std::ptr::null_mut;

const H: &str = "H: cuda.h";

/// Code, address and status of a look-up.
fn look(name: &str, version: i32, flags: u64) -> (u32, *mut c_void, u32) {
    let name = CString::new(name).expect("no zero byte");
    let (mut address, mut status) = (8 as *mut c_void, 9);
    let code =
        cu!(cuGetProcAddress_v2(name.as_ptr(), &raw mut address, version, flags, &raw mut status));
    (code, address, status)
}

#[test]
fn a_name_and_a_version_find_a_form() {
    let _sim = Sim::start("");
    assert_eq!(look("cuCtxDestroy", 12000, 0), (0, symbol("cuCtxDestroy_v2"), 0));
    assert_eq!(look("cuCtxDestroy", 4000, 0), (0, symbol("cuCtxDestroy_v2"), 0));
    assert_eq!(look("cuCtxDestroy", 3020, 0), (0, symbol("cuCtxDestroy"), 0));
    assert_eq!(look("cuCtxCreate", 12050, 0), (0, symbol("cuCtxCreate_v4"), 0));
    assert_eq!(look("cuCtxCreate", 12040, 0), (0, symbol("cuCtxCreate_v3"), 0));
    assert_eq!(look("cuCtxCreate", 11030, 1), (0, symbol("cuCtxCreate_v2"), 0));
    row("cuGetProcAddress: the newest form that is no newer than the version asked for", H);
    assert_eq!(look("cuGetProcAddress", 11030, 0), (0, symbol("cuGetProcAddress"), 0));
    assert_eq!(look("cuGetProcAddress", 12000, 0), (0, symbol("cuGetProcAddress_v2"), 0));
    row("cuGetProcAddress of itself: 11030 the first form, 12000 the second", "P: HAMi-core");
    // There is no per-thread form of it, so the plain one is found.
    assert_eq!(look("cuCtxGetDevice", 12000, 2), (0, symbol("cuCtxGetDevice"), 0));
    row("per-thread flag without a per-thread form: the plain one", H);
}

#[test]
fn what_is_not_found_says_why() {
    let _sim = Sim::start("");
    assert_eq!(look("cuNothing", 12000, 0), (0, null_mut(), 1));
    assert_eq!(look("cuCtxDestroy_v2", 12000, 0), (0, null_mut(), 1));
    assert_eq!(look("cuCtxGetId", 11080, 0), (0, null_mut(), 2));
    row("cuGetProcAddress_v2 without a result: success, a null pointer, status 1 or 2", H);
    row("cuGetProcAddress takes the name without its version", H);
    let mut address = 8 as *mut c_void;
    let ask = |name: &CStr, address: *mut *mut c_void| {
        cu!(cuGetProcAddress(name.as_ptr(), address, 12000, 0))
    };
    assert_eq!(ask(c"cuNothing", &raw mut address), 500);
    assert!(address.is_null());
    assert_eq!(ask(c"cuInit", &raw mut address), 0);
    assert_eq!(address, symbol("cuInit"));
    row("the first cuGetProcAddress without a result: 500", "assumption");
    assert_eq!(ask(c"cuInit", null_mut()), 1);
    assert_eq!(look("cuInit", 12080, 3).0, 1);
    assert_eq!(look("cuInit", 12080, 4).0, 1);
    assert_eq!(look("", 12080, 0).0, 1);
    assert_eq!(look("cuInit", 12090, 0).0, 1);
    row("cuGetProcAddress: a version newer than the driver's: 1", "H: CUDA 13.4 documentation");
    let no_status = null_mut();
    let name = c"cuInit".as_ptr();
    assert_eq!(cu!(cuGetProcAddress_v2(name, &raw mut address, 12000, 0, no_status)), 0);
    assert_eq!(
        cu!(cuGetProcAddress_v2(std::ptr::null(), &raw mut address, 12000, 0, no_status)),
        1
    );
}

#[test]
fn look_ups_come_before_init() {
    let _sim = Sim::configured("");
    assert_eq!(look("cuInit", 12000, 0), (0, symbol("cuInit"), 0));
    row("cuGetProcAddress may come before cuInit", "P: nvshare");
}

#[test]
fn an_older_driver_lacks_what_is_newer() {
    let _sim = Sim::start("version = 11020");
    let (mut version, mut id) = (0, 0);
    assert_eq!(cu!(cuDriverGetVersion(&raw mut version)), 0);
    assert_eq!(version, 11020);
    assert_eq!(cu!(cuCtxGetId(0, &raw mut id)), 801);
    assert_eq!(look("cuInit", 11020, 0).0, 801);
    let mut address = null_mut();
    let name = c"cuInit".as_ptr();
    assert_eq!(cu!(cuGetProcAddress(name, &raw mut address, 11020, 0)), 801);
    drop(_sim);
    let _sim = Sim::start("version = 12000");
    assert_eq!(look("cuCtxGetId", 12000, 0), (0, symbol("cuCtxGetId"), 0));
    assert_eq!(look("cuCtxSetFlags", 12000, 0), (0, null_mut(), 1));
    assert_eq!(look("cuCtxCreate", 12000, 0), (0, symbol("cuCtxCreate_v3"), 0));
}

#[test]
fn a_driver_may_lack_a_function() {
    let _sim = Sim::start("without = cuCtxGetId, cuCtxCreate_v3");
    let mut id = 0;
    assert_eq!(look("cuCtxGetId", 12000, 0), (0, null_mut(), 1));
    assert_eq!(cu!(cuCtxGetId(0, &raw mut id)), 801);
    assert_eq!(look("cuCtxCreate", 12000, 0), (0, symbol("cuCtxCreate_v2"), 0));
}

/// Names of the functions that the library's file exports.
fn exported() -> BTreeSet<String> {
    let file = std::fs::read(common::library_path()).expect("the library");
    assert_eq!(&file[..6], b"\x7fELF\x02\x01", "a 64-bit little-endian ELF file");
    let number = |at: usize, bytes: usize| {
        file[at..at + bytes].iter().rev().fold(0, |n, byte| n << 8 | usize::from(*byte))
    };
    let (table, size, count) = (number(0x28, 8), number(0x3A, 2), number(0x3C, 2));
    let section = |i: usize| table + i * size;
    const DYNAMIC_SYMBOLS: usize = 11;
    let symbols = (0..count).map(section).find(|s| number(s + 4, 4) == DYNAMIC_SYMBOLS);
    let symbols = symbols.expect("a table of dynamic symbols");
    let names = number(section(number(symbols + 0x28, 4)) + 0x18, 8);
    let (start, length) = (number(symbols + 0x18, 8), number(symbols + 0x20, 8));
    (start..start + length)
        .step_by(24)
        .filter(|at| number(at + 4, 1) & 15 == 2 && number(at + 6, 2) != 0)
        .map(|at| {
            let name = &file[names + number(at, 4)..];
            let end = name.iter().position(|byte| *byte == 0).expect("a zero byte");
            String::from_utf8(name[..end].to_vec()).expect("UTF-8")
        })
        .collect()
}

#[test]
fn the_table_has_every_exported_function() {
    let mut exported = exported();
    exported.retain(|name| !name.starts_with("forebay_sim_"));
    let table: BTreeSet<String> =
        forebay_simcuda::entry::calls().map(|c| c.name.to_owned()).collect();
    assert_eq!(exported.difference(&table).collect::<Vec<_>>(), Vec::<&String>::new());
    assert_eq!(table.difference(&exported).collect::<Vec<_>>(), Vec::<&String>::new());
}

/// Calls with nothing but null pointers and zeros.
fn call_with_zeros(name: &str) -> u32 {
    type Any = unsafe extern "C" fn(u64, u64, u64, u64, u64, u64, u64, u64, u64, u64) -> u32;
    // SAFETY: a C function takes what it needs of the integers that it is given.
    unsafe {
        let function = std::mem::transmute::<*mut c_void, Any>(symbol(name));
        function(0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
    }
}

#[test]
fn no_call_follows_a_null_pointer() {
    for call in forebay_simcuda::entry::calls() {
        let mut sim = Sim::start("version = 13000\nmemory = 64MiB");
        sim.forgive_misuse();
        sim.primary(0);
        let before = sim.calls(call.name);
        let code = call_with_zeros(call.name);
        assert!(code < 1000, "{}: {code}", call.name);
        assert_eq!(sim.calls(call.name), before + 1, "{}", call.name);
    }
}

#[test]
fn every_call_is_counted_under_its_own_name_and_bears_nulls() {
    // Before cuInit nothing is looked at; what may come before it refuses null pointers.
    for call in forebay_simcuda::entry::calls().filter(|c| c.name != "cuInit") {
        let sim = Sim::configured("version = 13000");
        let code = call_with_zeros(call.name);
        match call.needs {
            Needs::Nothing => assert!([0, 1, 500].contains(&code), "{}: {code}", call.name),
            _ => assert_eq!(code, 3, "{}", call.name),
        }
        assert_eq!(sim.calls(call.name), 1, "{}", call.name);
    }
    row("null pointers are refused: 1", H);
}

#[test]
fn every_call_of_the_table_is_exported() {
    let _sim = Sim::start("version = 13000");
    let mut found = 0;
    for call in forebay_simcuda::entry::calls() {
        let address = symbol(call.name);
        assert!(!address.is_null(), "{}", call.name);
        let flags = if call.per_thread { 2 } else { 1 };
        let looked = look(call.asked, call.since as i32, flags);
        assert_eq!(looked, (0, address, 0), "{} at {}", call.name, call.since);
        found += 1;
    }
    assert!(found > 50, "{found} calls");
}

#[test]
fn no_export_table_is_ever_given() {
    let _sim = Sim::start("");
    let mut table = std::ptr::null();
    for first in 0..=255u8 {
        let id = forebay_simcuda::types::CUuuid { bytes: [first; 16] };
        assert_eq!(cu!(cuGetExportTable(&raw mut table, &raw const id)), 500);
        assert!(table.is_null());
    }
    assert_eq!(cu!(cuGetExportTable(null_mut(), std::ptr::null())), 500);
    row("cuGetExportTable: always 500", "decision");
}

#[test]
fn errors_have_names() {
    let _sim = Sim::configured("");
    let mut text = std::ptr::null();
    for (code, name, sentence) in [
        (0, c"CUDA_SUCCESS", c"no error"),
        (2, c"CUDA_ERROR_OUT_OF_MEMORY", c"out of memory"),
        (700, c"CUDA_ERROR_ILLEGAL_ADDRESS", c"an illegal memory access was encountered"),
        (999, c"CUDA_ERROR_UNKNOWN", c"unknown error"),
    ] {
        assert_eq!(cu!(cuGetErrorName(code, &raw mut text)), 0);
        // SAFETY: a text of the library, ended by a zero byte.
        assert_eq!(unsafe { CStr::from_ptr(text) }, name);
        assert_eq!(cu!(cuGetErrorString(code, &raw mut text)), 0);
        // SAFETY: as above.
        assert_eq!(unsafe { CStr::from_ptr(text) }, sentence);
    }
    assert_eq!(cu!(cuGetErrorName(9999, &raw mut text)), 1);
    assert!(text.is_null());
    text = c"x".as_ptr();
    assert_eq!(cu!(cuGetErrorString(9999, &raw mut text)), 1);
    assert!(text.is_null());
    assert_eq!(cu!(cuGetErrorName(0, null_mut())), 1);
    row("cuGetErrorName of an unknown code: 1 and a null pointer", H);
}
