//! `dlopen`, so that plugins loaded with `RTLD_DEEPBIND` can be served.
//!
//! Such a plugin finds the names of its own libraries first, `dlsym` of the C library among
//! them, and with it the driver past this library. `FOREBAY_DEEPBIND=serve` takes the flag off;
//! by default nothing is changed. Promises that the real `dlopen` sees the caller's own return
//! address, by which it finds the caller's search path and namespace. It must not load, keep or
//! judge libraries. Cost: two loads a call.

use std::ffi::{c_char, c_int, c_void};
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};

use crate::{loader, settings};

/// The real `dlopen`. Read by the naked hook, after [`kept_flags`] has set it.
static REAL_DLOPEN: AtomicUsize = AtomicUsize::new(0);

/// What is taken off the flags: [`UNKNOWN`], [`NOTHING`] or [`DEEPBIND`].
static TAKEN_OFF: AtomicU8 = AtomicU8::new(UNKNOWN);
const UNKNOWN: u8 = 0;
const NOTHING: u8 = 1;
const DEEPBIND: u8 = 2;

/// `dlopen` for every program that this library is loaded into.
///
/// # Safety
/// As of `dlopen`.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlopen(name: *const c_char, flags: c_int) -> *mut c_void {
    std::arch::naked_asm!(
        "endbr64",
        "push rdi",
        "mov edi, esi",
        "call {flags}",
        "pop rdi",
        "mov esi, eax",
        "mov rax, [rip + {real}]",
        "jmp rax",
        flags = sym kept_flags,
        real = sym REAL_DLOPEN,
    )
}

/// See the form for x86-64.
///
/// # Safety
/// As of `dlopen`.
#[cfg(target_arch = "aarch64")]
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlopen(name: *const c_char, flags: c_int) -> *mut c_void {
    std::arch::naked_asm!(
        "bti c",
        "stp x29, x30, [sp, #-32]!",
        "str x0, [sp, #16]",
        "mov x29, sp",
        "mov w0, w1",
        "bl {flags}",
        "mov w1, w0",
        "ldr x0, [sp, #16]",
        "ldp x29, x30, [sp], #32",
        "adrp x16, {real}",
        "ldr x16, [x16, #:lo12:{real}]",
        "br x16",
        flags = sym kept_flags,
        real = sym REAL_DLOPEN,
    )
}

/// The flags that the real `dlopen` is given; makes that one known.
extern "C" fn kept_flags(flags: c_int) -> c_int {
    if REAL_DLOPEN.load(Ordering::Relaxed) == 0 {
        // By the real `dlsym`, called from here: RTLD_NEXT is relative to this library. Another
        // library's hook would make it relative to that one, which may lie before this.
        let found = loader::symbol(libc::RTLD_NEXT, c"dlopen");
        // A C library without it would not have loaded this one; the jump leads somewhere anyway.
        let ours = dlopen as *const () as usize;
        let known = if found == 0 || found == ours { none as *const () as usize } else { found };
        REAL_DLOPEN.store(known, Ordering::Relaxed);
    }
    if flags & libc::RTLD_DEEPBIND == 0 {
        return flags;
    }
    let mut taken_off = TAKEN_OFF.load(Ordering::Relaxed);
    if taken_off == UNKNOWN {
        taken_off = if settings::serves_deepbind() { DEEPBIND } else { NOTHING };
        TAKEN_OFF.store(taken_off, Ordering::Relaxed);
    }
    if taken_off == DEEPBIND { flags & !libc::RTLD_DEEPBIND } else { flags }
}

/// In the real one's place where there is none.
unsafe extern "C" fn none(_name: *const c_char, _flags: c_int) -> *mut c_void {
    std::ptr::null_mut()
}
