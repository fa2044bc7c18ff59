//! Looking functions up, and the names of errors.

use crate::lab::{Lab, codes, yes};
use crate::rule::Source::{Assumed, Header, Product};
use crate::rule::{Rule, Seen, Stop, rule};
use std::ffi::{CStr, c_void};
use std::ptr::null_mut;

/// The rules of this file.
pub const RULES: &[Rule] = &[
    rule("symbols: an unknown name: code, null pointer, status", Header, "0 yes 1", |lab| {
        let (code, found, status) = find(lab, c"cuNoSuchFunction", 12_000);
        Ok(format!("{code} {} {status}", yes(found.is_null())))
    })
    .without_context(),
    rule("symbols: cuCtxRecordEvent asked for as of 11.0: status", Header, "0 yes 2", |lab| {
        lab.context_events()?;
        let (code, found, status) = find(lab, c"cuCtxRecordEvent", 11_000);
        Ok(format!("{code} {} {status}", yes(found.is_null())))
    })
    .without_context(),
    rule("symbols: a name with its version", Header, "0 yes 1", |lab| {
        let (code, found, status) = find(lab, c"cuMemAlloc_v2", 12_000);
        Ok(format!("{code} {} {status}", yes(found.is_null())))
    })
    .without_context(),
    rule("symbols: may come before cuInit", Product, "0 yes", |lab| {
        let (code, found, _) = find(lab, c"cuInit", 12_000);
        Ok(format!("{code} {}", yes(!found.is_null())))
    })
    .before_init(),
    rule("symbols: a version newer than the driver's", Header, "1", |lab| {
        let mut version = 0;
        lab.need("cuDriverGetVersion", lab.cuda.cuDriverGetVersion(&raw mut version))?;
        Ok(find(lab, c"cuMemAlloc", version + 1000).0.to_string())
    })
    .without_context(),
    rule("symbols: null name; empty name; no place", Header, "1 1 1", |lab| {
        let (mut to, mut status) = (null_mut(), 0);
        let ask = |name, to| lab.cuda.cuGetProcAddress_v2(name, to, 12_000, 0, &raw mut status);
        let mut ask = ask;
        let null = ask(std::ptr::null(), &raw mut to);
        let empty = ask(c"".as_ptr(), &raw mut to);
        Ok(codes(&[null, empty, ask(c"cuInit".as_ptr(), null_mut())]))
    })
    .without_context(),
    rule("symbols: the form without a status, an unknown name", Assumed, "500", |lab| {
        let mut to = null_mut();
        let name = c"cuNoSuchFunction".as_ptr();
        Ok(lab.cuda.cuGetProcAddress(name, &raw mut to, 11_080, 0).to_string())
    })
    .without_context(),
    rule(
        "symbols: per-thread flag gives another function for streams",
        Header,
        "other same",
        per_thread,
    )
    .without_context(),
    rule("symbols: what the CUDA backend needs is all there", Product, "all", |lab| {
        let lacks: Vec<_> =
            lab.cuda.lacks().into_iter().filter(|name| !OPTIONAL.contains(name)).collect();
        Ok(if lacks.is_empty() { "all".to_owned() } else { lacks.join(" ") })
    })
    .without_context(),
    rule("error names: code 700; code 9999", Header, "CUDA_ERROR_ILLEGAL_ADDRESS, 1", |lab| {
        let mut text = std::ptr::null();
        lab.need("cuGetErrorName", lab.cuda.cuGetErrorName(700, &raw mut text))?;
        if text.is_null() {
            return Err(Stop::Setup("no text".to_owned()));
        }
        // SAFETY: the driver's own text.
        let name = unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned();
        Ok(format!("{name}, {}", lab.cuda.cuGetErrorName(9999, &raw mut text)))
    })
    .without_context(),
];

/// Functions that a driver of CUDA 12.0 need not have.
const OPTIONAL: &[&str] = &["cuCtxRecordEvent", "cuCtxWaitEvent"];

fn find(lab: &Lab, name: &CStr, version: i32) -> (u32, *mut c_void, u32) {
    find_with(lab, name, version, 0)
}

fn find_with(lab: &Lab, name: &CStr, version: i32, flags: u64) -> (u32, *mut c_void, u32) {
    let (mut to, mut status) = (null_mut(), 99);
    let name = name.as_ptr();
    let code = lab.cuda.cuGetProcAddress_v2(name, &raw mut to, version, flags, &raw mut status);
    (code, to, status)
}

fn per_thread(lab: &Lab) -> Seen {
    let mut said = Vec::new();
    for name in [c"cuStreamSynchronize", c"cuMemAlloc"] {
        let (legacy, own) = (find_with(lab, name, 12_000, 1), find_with(lab, name, 12_000, 2));
        lab.need("cuGetProcAddress_v2", legacy.0 | own.0)?;
        said.push(if legacy.1 == own.1 { "same" } else { "other" });
    }
    Ok(said.join(" "))
}
