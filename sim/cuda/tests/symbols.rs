//! Looking functions up: by name, version and flags; absent ones; names of errors.

mod common;
use common::{Sim, row, symbol};
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
