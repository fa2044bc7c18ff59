//! Looking functions up, and the names of errors.

use crate::call;
use crate::entry::{Call, enter};
use crate::symbols::{Found, search};
use crate::types::*;
use std::ffi::{CStr, c_char, c_void};

/// This file's part of the table of calls.
pub(super) static CALLS: &[Call] = &[
    call!(cuGetProcAddress, 11030).before_init(),
    call!(cuGetProcAddress_v2, "cuGetProcAddress", 12000).before_init(),
    call!(cuGetExportTable, 3000).before_init(),
    call!(cuGetErrorName, 6000).before_init(),
    call!(cuGetErrorString, 6000).before_init(),
];

const LEGACY_STREAM: u64 = 1;
const PER_THREAD_DEFAULT_STREAM: u64 = 2;
/// `CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND`.
const SYMBOL_NOT_FOUND: u32 = 1;
/// `CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT`.
const VERSION_NOT_SUFFICIENT: u32 = 2;

/// The common part: finds and writes, and says what became of it.
unsafe fn look_up(
    name: &'static str,
    symbol: *const c_char,
    function: *mut *mut c_void,
    version: i32,
    flags: u64,
    status: *mut u32,
) -> CUresult {
    let text = if symbol.is_null() {
        None
    } else {
        // SAFETY: not null; CUDA asks the caller for a string that ends in a zero byte.
        unsafe { CStr::from_ptr(symbol) }.to_str().ok()
    };
    let args = || format!("symbol={text:?}, version={version}, flags={flags}");
    enter(name, args, |world| {
        let asked = text.filter(|t| !t.is_empty()).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        let known = flags <= (LEGACY_STREAM | PER_THREAD_DEFAULT_STREAM) && flags != 3;
        let version = u32::try_from(version).unwrap_or(0);
        let newer = version > world.settings.version;
        if function.is_null() || !known || version == 0 || newer {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let found = search(&world.settings, asked, version, flags & PER_THREAD_DEFAULT_STREAM != 0);
        let (address, said) = match found {
            Found::Function(address) => (address.cast_mut().cast(), 0),
            Found::NoSymbol => (std::ptr::null_mut(), SYMBOL_NOT_FOUND),
            Found::TooNew => (std::ptr::null_mut(), VERSION_NOT_SUFFICIENT),
        };
        // SAFETY: checked for null; CUDA asks the caller for writable places.
        unsafe {
            *function = address;
            if !status.is_null() {
                *status = said;
            }
        }
        // The first form has nowhere else to say it.
        let silent = said != 0 && name == "cuGetProcAddress";
        if silent { Err(CUDA_ERROR_NOT_FOUND) } else { Ok(()) }
    })
}

/// Finds a function by name, version and flags: 500 when there is none.
///
/// # Safety
///
/// As `cuda.h` has it: a string that ends in a zero byte, a place for the address.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetProcAddress(
    symbol: *const c_char,
    function: *mut *mut c_void,
    version: i32,
    flags: u64,
) -> CUresult {
    let status = std::ptr::null_mut();
    // SAFETY: the caller's promise.
    unsafe { look_up("cuGetProcAddress", symbol, function, version, flags, status) }
}

/// Finds a function by name, version and flags. Succeeds with a null pointer when there is
/// none, and says in `status` why; 1 for a version newer than the driver's.
///
/// # Safety
///
/// As `cuda.h` has it: a string that ends in a zero byte, places for the address and (or null)
/// the status.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetProcAddress_v2(
    symbol: *const c_char,
    function: *mut *mut c_void,
    version: i32,
    flags: u64,
    status: *mut u32,
) -> CUresult {
    // SAFETY: the caller's promise.
    unsafe { look_up("cuGetProcAddress_v2", symbol, function, version, flags, status) }
}

/// Always 500: this driver has no undocumented tables.
///
/// # Safety
///
/// None of the pointers is followed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetExportTable(
    _table: *mut *const c_void,
    _id: *const CUuuid,
) -> CUresult {
    enter("cuGetExportTable", String::new, |_| Err(CUDA_ERROR_NOT_FOUND))
}

unsafe fn error_text(
    name: &'static str,
    code: CUresult,
    text: *mut *const c_char,
    of: fn(&(CUresult, &'static CStr, &'static CStr)) -> &'static CStr,
) -> CUresult {
    enter(
        name,
        || format!("error={code}"),
        |_| {
            if text.is_null() {
                return Err(CUDA_ERROR_INVALID_VALUE);
            }
            let row = row(code);
            // SAFETY: not null; CUDA asks the caller for a writable place.
            unsafe { *text = row.map_or(std::ptr::null(), |row| of(row).as_ptr()) };
            row.map(drop).ok_or(CUDA_ERROR_INVALID_VALUE)
        },
    )
}

/// The name of a result code: 1 and a null pointer for one that is not known.
///
/// # Safety
///
/// `text` is null or a place for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetErrorName(code: CUresult, text: *mut *const c_char) -> CUresult {
    // SAFETY: the caller's promise.
    unsafe { error_text("cuGetErrorName", code, text, |row| row.1) }
}

/// A sentence for a result code: 1 and a null pointer for one that is not known.
///
/// # Safety
///
/// `text` is null or a place for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetErrorString(code: CUresult, text: *mut *const c_char) -> CUresult {
    // SAFETY: the caller's promise.
    unsafe { error_text("cuGetErrorString", code, text, |row| row.2) }
}
