//! What a program without Forebay finds out about it: whether an address is its pool's.

use std::ffi::{CStr, c_char, c_int, c_void};

unsafe extern "C" {
    fn dlopen(name: *const c_char, mode: c_int) -> *mut c_void;
    fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void;
}

/// `RTLD_NOW` and `RTLD_NOLOAD`.
const LOADED: c_int = 2 | 4;

type Range = unsafe extern "C" fn(*const c_void, *mut *mut c_void, *mut usize) -> c_int;

/// `length` if the address begins a block of the preloaded library's pool that has room for so
/// many bytes, 0 if the memory is the driver's. An address inside a block is an error.
pub fn served(address: u64, length: usize) -> usize {
    let name: &CStr = c"libforebay.so.0";
    // SAFETY: NUL-terminated; nothing is loaded.
    let library = unsafe { dlopen(name.as_ptr(), LOADED) };
    if library.is_null() {
        return 0;
    }
    let (mut base, mut there) = (std::ptr::null_mut(), 0);
    // SAFETY: the library's function of this name has this type; any address may be asked about.
    let status = unsafe {
        let found = dlsym(library, c"forebay_block_range".as_ptr());
        assert!(!found.is_null());
        std::mem::transmute::<*mut c_void, Range>(found)(
            std::ptr::without_provenance(address as usize),
            &raw mut base,
            &raw mut there,
        )
    };
    if status != 0 {
        return 0;
    }
    assert_eq!(base.addr() as u64, address);
    assert!(there >= length, "{there} bytes, not {length}");
    length
}
