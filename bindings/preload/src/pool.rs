//! The way to the pool: `libforebay.so.0`, through its C ABI.
//!
//! Owns the table of its functions, filled once, at the first CUDA allocation: from the library
//! that the process has loaded already, else from the one beside this file, else from the loader's
//! path. So a process has one pool. Where it cannot be opened, or is of another version, one line
//! says so and everything passes through. Cost: opening takes some milliseconds; then a load.

use crate::cuda::{self, Result};
use crate::loader;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

/// The version of `forebay.h` that this file was written for.
const ABI_VERSION: u32 = 1;
const SONAME: &CStr = c"libforebay.so.0";

/// `forebay_status`.
pub type Status = i32;
pub const OK: Status = 0;
pub const INVALID_ARGUMENT: Status = 1;
pub const OUT_OF_MEMORY: Status = 2;
pub const NOT_OWNED: Status = 3;
pub const DOUBLE_FREE: Status = 4;
pub const FORKED: Status = 6;
pub const SHUT_DOWN: Status = 7;
pub const DRIVER: Status = 10;
pub const INVALID_STREAM: Status = 13;
pub const UNSUPPORTED: Status = 14;
pub const BUSY: Status = 15;
pub const STALE_POINTER: Status = 17;
pub const TOO_MANY_PEERS: Status = 18;
pub const CONTEXT_LOST: Status = 19;

/// The leading part of `forebay_pool_options`; the library fills and reads all of it.
#[repr(C)]
pub struct Options {
    struct_size: usize,
    device: c_int,
    rest: [u64; 63],
}

/// `forebay_export`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Export {
    struct_size: usize,
    pub id: u64,
    pub bytes: u64,
    pub page_bytes: u64,
    pub offset: u64,
    pub count: u64,
}

impl Export {
    /// What another process says of its export.
    pub fn of(bytes: u64, page_bytes: u64, offset: u64, count: u64) -> Self {
        Self { struct_size: size_of::<Self>(), id: 0, bytes, page_bytes, offset, count }
    }

    /// A place for the pool to fill.
    pub fn empty() -> Self {
        Self::of(0, 0, 0, 0)
    }
}

macro_rules! table {
    ($($field:ident: $name:literal = $type:ty;)*) => {
        /// The pool's functions, each as `forebay.h` declares it.
        #[derive(Clone, Copy)]
        pub struct Api {
            $(pub $field: $type,)*
        }

        fn fill(handle: *mut c_void) -> std::result::Result<Api, String> {
            Ok(Api {$(
                $field: {
                    let found = loader::symbol(handle, $name);
                    if found == 0 {
                        return Err(format!("it lacks {}", $name.to_string_lossy()));
                    }
                    // SAFETY: forebay.h gives the function of this name this type; the version
                    // is compared before any but `abi_version` is called.
                    unsafe { std::mem::transmute::<usize, $type>(found) }
                },
            )*})
        }
    };
}

table! {
    abi_version: c"forebay_abi_version" = unsafe extern "C" fn() -> u32;
    malloc: c"forebay_malloc" = unsafe extern "C" fn(*mut usize, usize) -> Status;
    pool_malloc: c"forebay_pool_malloc" = unsafe extern "C" fn(usize, *mut usize, usize) -> Status;
    alloc: c"forebay_alloc" = unsafe extern "C" fn(usize, *mut usize, usize, usize) -> Status;
    free: c"forebay_free" = unsafe extern "C" fn(usize) -> Status;
    dealloc: c"forebay_dealloc" = unsafe extern "C" fn(usize, usize, usize) -> Status;
    pool_of: c"forebay_pool_of" = unsafe extern "C" fn(usize, *mut usize) -> Status;
    block_range: c"forebay_block_range" =
        unsafe extern "C" fn(usize, *mut usize, *mut usize) -> Status;
    pool_default: c"forebay_pool_default" = unsafe extern "C" fn(c_int, *mut usize) -> Status;
    options_init: c"forebay_pool_options_init" = unsafe extern "C" fn(*mut Options) -> Status;
    pool_create: c"forebay_pool_create" =
        unsafe extern "C" fn(*mut usize, *const Options) -> Status;
    pool_trim: c"forebay_pool_trim" = unsafe extern "C" fn(usize, usize, *mut usize) -> Status;
    mem_info: c"forebay_pool_mem_info" =
        unsafe extern "C" fn(usize, *mut usize, *mut usize) -> Status;
    device_reset: c"forebay_device_reset" = unsafe extern "C" fn(c_int) -> Status;
    enable_peer: c"forebay_pool_enable_peer" = unsafe extern "C" fn(usize, c_int) -> Status;
    disable_peer: c"forebay_pool_disable_peer" = unsafe extern "C" fn(usize, c_int) -> Status;
    pin: c"forebay_pin" = unsafe extern "C" fn(usize) -> Status;
    unpin: c"forebay_unpin" = unsafe extern "C" fn(usize) -> Status;
    stream_note: c"forebay_stream_note" = unsafe extern "C" fn(usize, usize) -> Status;
    stream_retire: c"forebay_stream_retire" = unsafe extern "C" fn(usize) -> Status;
    stream_create: c"forebay_stream_create" = unsafe extern "C" fn(usize, *mut usize) -> Status;
    stream_destroy: c"forebay_stream_destroy" = unsafe extern "C" fn(usize, usize) -> Status;
    capture_begin: c"forebay_capture_begin" = unsafe extern "C" fn(usize, *mut u64) -> Status;
    capture_end: c"forebay_capture_end" = unsafe extern "C" fn(u64) -> Status;
    capture_graph_gone: c"forebay_capture_graph_gone" = unsafe extern "C" fn(usize);
    malloc_aligned: c"forebay_pool_malloc_aligned" =
        unsafe extern "C" fn(usize, *mut usize, usize, usize) -> Status;
    alloc_aligned: c"forebay_alloc_aligned" =
        unsafe extern "C" fn(usize, *mut usize, usize, usize, usize) -> Status;
    export_open: c"forebay_export_open" = unsafe extern "C" fn(usize, *mut Export) -> Status;
    export_pages: c"forebay_export_pages" =
        unsafe extern "C" fn(u64, usize, *mut c_int, usize) -> Status;
    export_close: c"forebay_export_close" = unsafe extern "C" fn(u64) -> Status;
    import_open: c"forebay_import_open" =
        unsafe extern "C" fn(usize, *const Export, *mut u64) -> Status;
    import_pages: c"forebay_import_pages" =
        unsafe extern "C" fn(u64, *const c_int, usize) -> Status;
    import_map: c"forebay_import_map" = unsafe extern "C" fn(u64, *mut usize) -> Status;
    import_cancel: c"forebay_import_cancel" = unsafe extern "C" fn(u64) -> Status;
    last_error: c"forebay_last_error" = unsafe extern "C" fn() -> *const c_char;
}

/// The table in use; null before the first allocation and where the pool cannot be opened.
static API: AtomicPtr<Api> = AtomicPtr::new(std::ptr::null_mut());

/// The pool's functions, if it is open.
#[inline(always)]
pub fn api() -> Option<&'static Api> {
    // SAFETY: null or leaked by `open`.
    unsafe { API.load(Ordering::Acquire).as_ref() }
}

/// The pool's functions, opened at the first call.
pub fn open() -> Option<&'static Api> {
    static TRIED: OnceLock<bool> = OnceLock::new();
    TRIED.get_or_init(|| match load() {
        Ok(api) => {
            API.store(Box::into_raw(Box::new(api)), Ordering::Release);
            true
        }
        Err(why) => {
            static SAID: AtomicBool = AtomicBool::new(false);
            let text = format!("{why}: allocations are the driver's own");
            loader::say_once(&SAID, &text);
            false
        }
    });
    api()
}

fn load() -> std::result::Result<Api, String> {
    let open = |name: &CStr, mode| {
        // SAFETY: NUL-terminated; the library's load does nothing.
        unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL | mode) }
    };
    let mut handle = open(SONAME, libc::RTLD_NOLOAD);
    if handle.is_null()
        && let Some(beside) = beside()
    {
        handle = open(&beside, 0);
    }
    if handle.is_null() {
        handle = open(SONAME, 0);
    }
    if handle.is_null() {
        let soname = SONAME.to_string_lossy();
        return Err(format!("{soname} is neither beside the preload library nor on the path"));
    }
    let api = fill(handle).map_err(|why| format!("{} is of no use: {why}", named(handle)))?;
    // SAFETY: the function takes nothing.
    match unsafe { (api.abi_version)() } {
        ABI_VERSION => Ok(api),
        other => Err(format!("{} speaks ABI {other}, not {ABI_VERSION}", named(handle))),
    }
}

/// The library's path, if it can be told.
fn named(handle: *mut c_void) -> String {
    let inside = loader::symbol(handle, c"forebay_version");
    file_of(inside as *const c_void)
        .map_or(SONAME.to_string_lossy().into_owned(), |path| path.display().to_string())
}

/// `libforebay.so.0` in the folder of this library.
fn beside() -> Option<CString> {
    let own = file_of(beside as fn() -> Option<CString> as *const c_void)?;
    let path = std::fs::canonicalize(own).ok()?.with_file_name("libforebay.so.0");
    CString::new(path.as_os_str().as_bytes()).ok()
}

fn file_of(address: *const c_void) -> Option<PathBuf> {
    // SAFETY: all zeros is a valid `Dl_info`.
    let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: any address may be asked about; `info` is a local.
    if unsafe { libc::dladdr(address, &raw mut info) } == 0 || info.dli_fname.is_null() {
        return None;
    }
    // SAFETY: the loader's own text, copied at once.
    let text = unsafe { CStr::from_ptr(info.dli_fname) };
    Some(Path::new(std::ffi::OsStr::from_bytes(text.to_bytes())).to_path_buf())
}

impl Api {
    /// The sentence behind this thread's last error.
    pub fn why(&self) -> String {
        // SAFETY: static or thread-local text, copied at once.
        unsafe { CStr::from_ptr((self.last_error)()).to_string_lossy().into_owned() }
    }

    /// A new pool of a device: the default one, if the environment says that it is that device's.
    /// Answers its handle.
    pub fn make_pool(&self, device: c_int) -> std::result::Result<usize, Status> {
        let mut pool = 0;
        // SAFETY: a local to fill.
        match unsafe { (self.pool_default)(device, &raw mut pool) } {
            // The default pool serves fastest as NULL.
            OK => return Ok(0),
            INVALID_ARGUMENT => {}
            error => return Err(error),
        }
        let mut options = Options { struct_size: 0, device: 0, rest: [0; 63] };
        // SAFETY: locals, larger than what the library fills: its options are 144 bytes.
        unsafe {
            match (self.options_init)(&raw mut options) {
                OK => {}
                error => return Err(error),
            }
            options.device = device;
            match (self.pool_create)(&raw mut pool, &raw const options) {
                OK => Ok(pool),
                error => Err(error),
            }
        }
    }
}

/// There is no memory; or none that could be had, as the context has failed for good: that is what
/// CUDA would answer then.
#[cold]
fn out_of_memory() -> Result {
    match sticky_error() {
        cuda::SUCCESS => cuda::OUT_OF_MEMORY,
        error => error,
    }
}

/// What every call in the current context answers since it has failed; success while it has not.
#[cold]
pub fn sticky_error() -> Result {
    type Info = unsafe extern "C" fn(*mut usize, *mut usize) -> Result;
    let found = loader::symbol(loader::driver(true), c"cuMemGetInfo_v2");
    if found == 0 {
        return cuda::SUCCESS;
    }
    let (mut free, mut total) = (0, 0);
    // SAFETY: the driver's function of this name has this type; locals to fill.
    unsafe { std::mem::transmute::<usize, Info>(found)(&raw mut free, &raw mut total) }
}

/// What CUDA says for a status; `None`: the driver is asked instead.
pub fn as_cuda(status: Status) -> Option<Result> {
    match status {
        OK => Some(cuda::SUCCESS),
        OUT_OF_MEMORY => Some(out_of_memory()),
        FORKED => Some(cuda::NOT_INITIALIZED),
        SHUT_DOWN => Some(cuda::DEINITIALIZED),
        _ => None,
    }
}
