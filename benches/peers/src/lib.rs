//! Peers of the pool behind plain C functions, so that the timing harness calls each alike.
//!
//! Owns one TLSF arena, made at the first call unless [`peer_tlsf_give`] came before. Promises
//! nothing about speed beyond adding one tail call to each peer. Must not be used by the product.
//! Cost: a call; the arena is address space until it is touched.
//!
//! mimalloc runs with its defaults. The TLSF takes no lock and is given all its memory at the
//! first call, which favours it: the figures are those of the bare algorithm on one thread.

use std::alloc::Layout;
use std::cell::UnsafeCell;
use std::ffi::c_void;
use std::ptr::NonNull;

use rlsf::Tlsf;

/// Address space of the arena in bytes. Every block carries a header inside it, so pages are
/// touched and memory is used as blocks are made.
const ARENA_BYTES: usize = 16 << 30;

/// What every block is aligned to, in bytes: what `malloc` promises (the pool promises 256).
const ALIGNMENT: usize = 16;

/// First-level lists: blocks up to 32 B << 30, more than the arena holds.
const FIRST_LEVEL: usize = 30;

/// Second-level lists: each doubling cut in 32.
const SECOND_LEVEL: usize = 32;

struct Arena {
    tlsf: UnsafeCell<Tlsf<'static, u32, u32, FIRST_LEVEL, SECOND_LEVEL>>,
    filled: UnsafeCell<bool>,
}

// SAFETY: the harness calls the TLSF from one thread only (it names no TLSF row of two threads);
// the callers of `peer_tlsf_alloc` and `peer_tlsf_free` uphold it.
unsafe impl Sync for Arena {}

static ARENA: Arena = Arena {
    tlsf: UnsafeCell::new(Tlsf::new()),
    filled: UnsafeCell::new(false),
};

/// Gives the arena its memory. False where the system refuses the address space.
#[cold]
fn fill(tlsf: &mut Tlsf<'static, u32, u32, FIRST_LEVEL, SECOND_LEVEL>) -> bool {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    let access = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a fresh anonymous mapping at an address of the kernel's choice.
    let start = unsafe { libc::mmap(std::ptr::null_mut(), ARENA_BYTES, access, flags, -1, 0) };
    if start == libc::MAP_FAILED {
        return false;
    }
    let Some(start) = NonNull::new(start.cast::<u8>()) else {
        return false;
    };
    // SAFETY: the mapping above is never unmapped and nobody else knows it.
    unsafe { tlsf.insert_free_block_ptr(NonNull::slice_from_raw_parts(start, ARENA_BYTES)) };
    true
}

/// mimalloc's allocation of `bytes`; null where it fails. Any thread may call it.
#[unsafe(no_mangle)]
pub extern "C" fn peer_mi_alloc(bytes: usize) -> *mut c_void {
    // SAFETY: any size is allowed.
    unsafe { libmimalloc_sys::mi_malloc(bytes) }
}

/// mimalloc's free. Any thread may call it.
///
/// # Safety
/// `ptr` came from [`peer_mi_alloc`] and is freed once.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn peer_mi_free(ptr: *mut c_void) {
    // SAFETY: the caller's promise is mimalloc's.
    unsafe { libmimalloc_sys::mi_free(ptr) }
}

/// Gives the TLSF its memory instead of an arena of its own: `bytes` from `start` on, before the
/// first allocation. False where it has some already, or cannot use this.
///
/// # Safety
/// The memory may be read and written, and is nobody else's for as long as the TLSF is used; one
/// thread at a time calls the TLSF.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn peer_tlsf_give(start: *mut c_void, bytes: usize) -> bool {
    // SAFETY: one thread at a time, by the caller's promise.
    let (tlsf, filled) = unsafe { (&mut *ARENA.tlsf.get(), &mut *ARENA.filled.get()) };
    let Some(start) = NonNull::new(start.cast::<u8>()) else {
        return false;
    };
    if std::mem::replace(filled, true) {
        return false;
    }
    let pool = NonNull::slice_from_raw_parts(start, bytes);
    // SAFETY: usable memory that nobody else uses, by the caller's promise.
    unsafe { tlsf.insert_free_block_ptr(pool) }.is_some()
}

/// The TLSF's allocation of `bytes`; null where the arena is full.
///
/// # Safety
/// One thread at a time calls the TLSF.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn peer_tlsf_alloc(bytes: usize) -> *mut c_void {
    // SAFETY: one thread at a time, by the caller's promise.
    let (tlsf, filled) = unsafe { (&mut *ARENA.tlsf.get(), &mut *ARENA.filled.get()) };
    if !*filled {
        *filled = fill(tlsf);
    }
    let Ok(layout) = Layout::from_size_align(bytes, ALIGNMENT) else {
        return std::ptr::null_mut();
    };
    tlsf.allocate(layout)
        .map_or(std::ptr::null_mut(), |block| block.as_ptr().cast())
}

/// The TLSF's free.
///
/// # Safety
/// `ptr` came from [`peer_tlsf_alloc`] and is freed once; one thread at a time calls the TLSF.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn peer_tlsf_free(ptr: *mut c_void) {
    let Some(block) = NonNull::new(ptr.cast::<u8>()) else {
        return;
    };
    // SAFETY: one thread at a time, and the block is live, by the caller's promise; it was made
    // with the same alignment.
    unsafe { (*ARENA.tlsf.get()).deallocate(block, ALIGNMENT) }
}
