//! One pointer per thread, read in two instructions.
//!
//! Owns the slot that holds a thread's cache. Its first value is the address of
//! [`FIRST`], a block of zeros, so that readers need no null test. On x86-64 Linux the slot is
//! an initial-exec thread-local read by inline assembly: 2 to 4 ns a pair less than
//! `thread_local!`, whose access in a shared library is a call. Elsewhere (and under Miri, loom
//! and sanitizers) it is `thread_local!`. Initial-exec in a library that is loaded with `dlopen`
//! uses 8 bytes of glibc's surplus.

/// How many zeroed bytes stand behind a thread's first pointer.
pub const FIRST_BYTES: usize = 512;

/// What every thread's slot points to at first. Written only in fields that are atomics.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct First(std::cell::UnsafeCell<[u8; FIRST_BYTES]>);

// SAFETY: the block is read as zeros and written only through atomics (the busy word).
unsafe impl Sync for First {}

/// The block of zeros.
pub static FIRST: First = First(std::cell::UnsafeCell::new([0; FIRST_BYTES]));

#[cfg(all(
    target_arch = "x86_64",
    target_os = "linux",
    target_env = "gnu",
    not(any(miri, loom, sanitize_thread))
))]
mod imp {
    use super::FIRST;

    std::arch::global_asm!(
        ".pushsection .tdata.forebay_slot,\"awT\",@progbits",
        ".p2align 3",
        ".hidden forebay_tls_slot",
        ".globl forebay_tls_slot",
        ".type forebay_tls_slot,@object",
        "forebay_tls_slot: .quad {first}",
        ".size forebay_tls_slot, 8",
        ".popsection",
        first = sym FIRST
    );

    #[inline(always)]
    pub fn get() -> *mut u8 {
        let slot: *mut u8;
        // SAFETY: reads this thread's own 8-byte slot, placed by the linker in the static
        // thread-local block; no memory is written and no flag changes.
        unsafe {
            std::arch::asm!(
                "mov {slot}, qword ptr [rip + forebay_tls_slot@GOTTPOFF]",
                "mov {slot}, qword ptr fs:[{slot}]",
                slot = out(reg) slot,
                options(nostack, preserves_flags, readonly)
            );
        }
        slot
    }

    pub fn set(value: *mut u8) {
        // SAFETY: writes this thread's own slot; `get` is the only other access.
        unsafe {
            std::arch::asm!(
                "mov {slot}, qword ptr [rip + forebay_tls_slot@GOTTPOFF]",
                "mov qword ptr fs:[{slot}], {value}",
                slot = out(reg) _,
                value = in(reg) value,
                options(nostack, preserves_flags)
            );
        }
    }
}

#[cfg(not(all(
    target_arch = "x86_64",
    target_os = "linux",
    target_env = "gnu",
    not(any(miri, loom, sanitize_thread))
)))]
mod imp {
    use super::FIRST;
    use std::cell::Cell;

    thread_local! {
        static SLOT: Cell<*mut u8> = const { Cell::new(std::ptr::null_mut()) };
    }

    #[inline(always)]
    pub fn get() -> *mut u8 {
        let slot = SLOT.with(Cell::get);
        if slot.is_null() { (&raw const FIRST).cast_mut().cast() } else { slot }
    }

    pub fn set(value: *mut u8) {
        SLOT.with(|slot| slot.set(value));
    }
}

/// This thread's pointer: the address of [`FIRST`] until [`set`].
#[inline(always)]
pub fn get() -> *mut u8 {
    imp::get()
}

/// Sets this thread's pointer.
pub fn set(value: *mut u8) {
    imp::set(value);
}

/// The pointer every thread starts with.
#[inline(always)]
pub fn first() -> *mut u8 {
    (&raw const FIRST).cast_mut().cast()
}

#[cfg(test)]
mod tests {
    #[test]
    fn each_thread_has_its_own_slot() {
        let mine = super::get();
        std::thread::spawn(|| {
            assert_eq!(super::get(), super::first());
            let mut value = 0u8;
            super::set(&raw mut value);
            assert_eq!(super::get(), &raw mut value);
            super::set(super::first());
        })
        .join()
        .expect("no panic");
        assert_eq!(super::get(), mine);
    }
}
