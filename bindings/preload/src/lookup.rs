//! The ways in: names, and the two functions by which programs look them up.
//!
//! Owns the table of functions that this library stands before, `dlsym` and `cuGetProcAddress`.
//! Promises: a name is replaced only where the driver has it; a version of `cuGetProcAddress` that
//! has another form than the one known here is the driver's; `RTLD_NEXT`, excluded callers and all
//! other names are answered by the real `dlsym`, which sees its true caller, as the hook jumps to
//! it. No allocation, lock or output happens in `dlsym` for names that do not begin with `cu`.
//! Cost: a few ns for other names.

use crate::cuda::{self, NOT_FOUND, Result, SUCCESS};
use crate::hooks::{
    capture, context, ipc, memory, other, pool_access, query, stream, stream_memory,
};
use crate::loader::{self, REAL_DLSYM};
use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::atomic::{AtomicUsize, Ordering};

/// A function that this library stands before.
pub struct Hook {
    /// The driver's exported name.
    pub symbol: &'static CStr,
    /// What `cuGetProcAddress` calls it.
    asked: &'static CStr,
    /// The CUDA version that brought this form.
    since: c_int,
    /// Whether its default stream is the thread's own.
    per_thread: bool,
    function: Function,
    real: AtomicUsize,
}

/// A function's address.
struct Function(*const ());

// SAFETY: the address of code; nothing is read or written through it.
unsafe impl Sync for Function {}

macro_rules! hooks {
    ($($entry:ident = $symbol:literal, $asked:literal, $since:literal, $function:path;)*) => {
        /// The rows of [`HOOKS`] by name.
        #[derive(Clone, Copy, PartialEq, Eq)]
        #[repr(usize)]
        pub enum Entry { $($entry,)* }

        /// How many rows there are.
        pub const HOOKS_COUNT: usize = [$($symbol),*].len();

        /// Every function that this library stands before.
        pub static HOOKS: [Hook; HOOKS_COUNT] = [$(Hook {
            symbol: $symbol,
            asked: $asked,
            since: $since,
            per_thread: is_per_thread($symbol),
            function: Function($function as *const ()),
            real: AtomicUsize::new(0),
        },)*];
    };
}

const fn is_per_thread(symbol: &CStr) -> bool {
    let name = symbol.to_bytes();
    let end = b"_ptsz";
    let mut at = 0;
    while at < end.len() {
        if name[name.len() - end.len() + at] != end[at] {
            return false;
        }
        at += 1;
    }
    true
}

hooks! {
    GetProcAddress = c"cuGetProcAddress", c"cuGetProcAddress", 11030, cuGetProcAddress;
    GetProcAddress2 = c"cuGetProcAddress_v2", c"cuGetProcAddress", 12000, cuGetProcAddress_v2;
    MemAlloc = c"cuMemAlloc_v2", c"cuMemAlloc", 3020, memory::cuMemAlloc_v2;
    MemFree = c"cuMemFree_v2", c"cuMemFree", 3020, memory::cuMemFree_v2;
    MemAllocPitch = c"cuMemAllocPitch_v2", c"cuMemAllocPitch", 3020, memory::cuMemAllocPitch_v2;
    MemAllocAsync = c"cuMemAllocAsync", c"cuMemAllocAsync", 11020, stream_memory::cuMemAllocAsync;
    MemAllocAsyncPt =
        c"cuMemAllocAsync_ptsz", c"cuMemAllocAsync", 11020, stream_memory::cuMemAllocAsync_ptsz;
    MemFreeAsync = c"cuMemFreeAsync", c"cuMemFreeAsync", 11020, stream_memory::cuMemFreeAsync;
    MemFreeAsyncPt =
        c"cuMemFreeAsync_ptsz", c"cuMemFreeAsync", 11020, stream_memory::cuMemFreeAsync_ptsz;
    MemAllocFromPool = c"cuMemAllocFromPoolAsync", c"cuMemAllocFromPoolAsync", 11020,
        stream_memory::cuMemAllocFromPoolAsync;
    MemAllocFromPoolPt = c"cuMemAllocFromPoolAsync_ptsz", c"cuMemAllocFromPoolAsync", 11020,
        stream_memory::cuMemAllocFromPoolAsync_ptsz;
    DeviceSetMemPool = c"cuDeviceSetMemPool", c"cuDeviceSetMemPool", 11020,
        stream_memory::cuDeviceSetMemPool;
    MemPoolSetAccess = c"cuMemPoolSetAccess", c"cuMemPoolSetAccess", 11020,
        pool_access::cuMemPoolSetAccess;
    MemAllocManaged = c"cuMemAllocManaged", c"cuMemAllocManaged", 6000, other::cuMemAllocManaged;
    MemAllocHost = c"cuMemAllocHost_v2", c"cuMemAllocHost", 3020, other::cuMemAllocHost_v2;
    MemHostAlloc = c"cuMemHostAlloc", c"cuMemHostAlloc", 2020, other::cuMemHostAlloc;
    MemCreate = c"cuMemCreate", c"cuMemCreate", 10020, other::cuMemCreate;
    ArrayCreate = c"cuArrayCreate_v2", c"cuArrayCreate", 3020, other::cuArrayCreate_v2;
    Array3dCreate = c"cuArray3DCreate_v2", c"cuArray3DCreate", 3020, other::cuArray3DCreate_v2;
    MipmappedArrayCreate = c"cuMipmappedArrayCreate", c"cuMipmappedArrayCreate", 5000,
        other::cuMipmappedArrayCreate;
    MemGetInfo = c"cuMemGetInfo_v2", c"cuMemGetInfo", 3020, query::cuMemGetInfo_v2;
    MemGetAddressRange = c"cuMemGetAddressRange_v2", c"cuMemGetAddressRange", 3020,
        query::cuMemGetAddressRange_v2;
    PointerGetAttribute = c"cuPointerGetAttribute", c"cuPointerGetAttribute", 4000,
        query::cuPointerGetAttribute;
    PointerGetAttributes = c"cuPointerGetAttributes", c"cuPointerGetAttributes", 7000,
        query::cuPointerGetAttributes;
    PointerSetAttribute = c"cuPointerSetAttribute", c"cuPointerSetAttribute", 6000,
        query::cuPointerSetAttribute;
    RetainHandle = c"cuMemRetainAllocationHandle", c"cuMemRetainAllocationHandle", 11000,
        query::cuMemRetainAllocationHandle;
    HandleForRange = c"cuMemGetHandleForAddressRange", c"cuMemGetHandleForAddressRange", 11070,
        query::cuMemGetHandleForAddressRange;
    IpcGetMemHandle = c"cuIpcGetMemHandle", c"cuIpcGetMemHandle", 4010, ipc::cuIpcGetMemHandle;
    IpcOpenMemHandle1 = c"cuIpcOpenMemHandle", c"cuIpcOpenMemHandle", 4010, ipc::cuIpcOpenMemHandle;
    IpcOpenMemHandle = c"cuIpcOpenMemHandle_v2", c"cuIpcOpenMemHandle", 11000,
        ipc::cuIpcOpenMemHandle_v2;
    IpcCloseMemHandle = c"cuIpcCloseMemHandle", c"cuIpcCloseMemHandle", 4010,
        ipc::cuIpcCloseMemHandle;
    CtxCreate2 = c"cuCtxCreate_v2", c"cuCtxCreate", 3020, context::cuCtxCreate_v2;
    CtxCreate3 = c"cuCtxCreate_v3", c"cuCtxCreate", 11040, context::cuCtxCreate_v3;
    CtxCreate4 = c"cuCtxCreate_v4", c"cuCtxCreate", 12050, context::cuCtxCreate_v4;
    CtxDestroy = c"cuCtxDestroy_v2", c"cuCtxDestroy", 4000, context::cuCtxDestroy_v2;
    CtxSetCurrent = c"cuCtxSetCurrent", c"cuCtxSetCurrent", 4000, context::cuCtxSetCurrent;
    CtxPush = c"cuCtxPushCurrent_v2", c"cuCtxPushCurrent", 4000, context::cuCtxPushCurrent_v2;
    CtxPop = c"cuCtxPopCurrent_v2", c"cuCtxPopCurrent", 4000, context::cuCtxPopCurrent_v2;
    CtxAttach = c"cuCtxAttach", c"cuCtxAttach", 2000, context::cuCtxAttach;
    CtxDetach = c"cuCtxDetach", c"cuCtxDetach", 2000, context::cuCtxDetach;
    PrimaryRetain = c"cuDevicePrimaryCtxRetain", c"cuDevicePrimaryCtxRetain", 7000,
        context::cuDevicePrimaryCtxRetain;
    PrimaryRelease1 = c"cuDevicePrimaryCtxRelease", c"cuDevicePrimaryCtxRelease", 7000,
        context::cuDevicePrimaryCtxRelease;
    PrimaryRelease = c"cuDevicePrimaryCtxRelease_v2", c"cuDevicePrimaryCtxRelease", 11000,
        context::cuDevicePrimaryCtxRelease_v2;
    PrimaryReset1 = c"cuDevicePrimaryCtxReset", c"cuDevicePrimaryCtxReset", 7000,
        context::cuDevicePrimaryCtxReset;
    PrimaryReset = c"cuDevicePrimaryCtxReset_v2", c"cuDevicePrimaryCtxReset", 11000,
        context::cuDevicePrimaryCtxReset_v2;
    EnablePeer = c"cuCtxEnablePeerAccess", c"cuCtxEnablePeerAccess", 4000,
        context::cuCtxEnablePeerAccess;
    DisablePeer = c"cuCtxDisablePeerAccess", c"cuCtxDisablePeerAccess", 4000,
        context::cuCtxDisablePeerAccess;
    StreamCreate = c"cuStreamCreate", c"cuStreamCreate", 2000, stream::cuStreamCreate;
    StreamCreatePriority = c"cuStreamCreateWithPriority", c"cuStreamCreateWithPriority", 5050,
        stream::cuStreamCreateWithPriority;
    StreamDestroy = c"cuStreamDestroy_v2", c"cuStreamDestroy", 4000, stream::cuStreamDestroy_v2;
    BeginCapture1 = c"cuStreamBeginCapture", c"cuStreamBeginCapture", 10000,
        capture::cuStreamBeginCapture;
    BeginCapture1Pt = c"cuStreamBeginCapture_ptsz", c"cuStreamBeginCapture", 10000,
        capture::cuStreamBeginCapture_ptsz;
    BeginCapture = c"cuStreamBeginCapture_v2", c"cuStreamBeginCapture", 10010,
        capture::cuStreamBeginCapture_v2;
    BeginCapturePt = c"cuStreamBeginCapture_v2_ptsz", c"cuStreamBeginCapture", 10010,
        capture::cuStreamBeginCapture_v2_ptsz;
    BeginCaptureTo = c"cuStreamBeginCaptureToGraph", c"cuStreamBeginCaptureToGraph", 12030,
        capture::cuStreamBeginCaptureToGraph;
    BeginCaptureToPt = c"cuStreamBeginCaptureToGraph_ptsz", c"cuStreamBeginCaptureToGraph", 12030,
        capture::cuStreamBeginCaptureToGraph_ptsz;
    EndCapture = c"cuStreamEndCapture", c"cuStreamEndCapture", 10000, capture::cuStreamEndCapture;
    EndCapturePt = c"cuStreamEndCapture_ptsz", c"cuStreamEndCapture", 10000,
        capture::cuStreamEndCapture_ptsz;
}

/// The runtime's functions that this library stands before; counted behind [`HOOKS`].
pub const RUNTIME: [&CStr; 6] = [
    c"cudaMalloc",
    c"cudaFree",
    c"cudaMallocAsync",
    c"cudaMallocAsync_ptsz",
    c"cudaFreeAsync",
    c"cudaFreeAsync_ptsz",
];

/// How many names are counted.
pub const NAMES_COUNT: usize = HOOKS_COUNT + RUNTIME.len();

/// The names that are counted, in the counters' order.
pub fn names() -> impl Iterator<Item = &'static CStr> {
    HOOKS.iter().map(|hook| hook.symbol).chain(RUNTIME)
}

/// The driver's own function; 0 where it has none.
pub fn real(entry: Entry) -> usize {
    let Some(hook) = HOOKS.get(entry as usize) else { return 0 };
    real_of(hook)
}

fn real_of(hook: &Hook) -> usize {
    let known = hook.real.load(Ordering::Relaxed);
    if known != 0 {
        return known;
    }
    let handle = loader::driver(true);
    if handle.is_null() {
        return 0;
    }
    let found = loader::symbol(handle, hook.symbol);
    hook.real.store(found, Ordering::Relaxed);
    found
}

// ---- dlsym ---------------------------------------------------------------------------------

/// What the naked hook is told: jump to the real `dlsym`, or answer so.
const JUMP: usize = 0;
/// The answer NULL.
const NOTHING: usize = 1;

/// `dlsym` for every program that this library is loaded into. A jump keeps the caller's return
/// address, by which the real one knows what `RTLD_NEXT` is relative to.
///
/// # Safety
/// As of `dlsym`.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void {
    std::arch::naked_asm!(
        "endbr64",
        "push rdi",
        "push rsi",
        "sub rsp, 8",
        "mov rdx, [rsp + 24]",
        "call {resolve}",
        "add rsp, 8",
        "pop rsi",
        "pop rdi",
        "cmp rax, {nothing}",
        "je 2f",
        "test rax, rax",
        "jne 3f",
        "mov rax, [rip + {real}]",
        "jmp rax",
        "2:",
        "xor eax, eax",
        "3:",
        "ret",
        resolve = sym resolve,
        nothing = const NOTHING,
        real = sym REAL_DLSYM,
    )
}

/// See the form for x86-64.
///
/// # Safety
/// As of `dlsym`.
#[cfg(target_arch = "aarch64")]
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void {
    std::arch::naked_asm!(
        "bti c",
        "stp x29, x30, [sp, #-32]!",
        "stp x0, x1, [sp, #16]",
        "mov x29, sp",
        "mov x2, x30",
        "bl {resolve}",
        "mov x9, x0",
        "ldp x0, x1, [sp, #16]",
        "ldp x29, x30, [sp], #32",
        "cmp x9, #{nothing}",
        "b.eq 2f",
        "cbnz x9, 3f",
        // By x16 a jump may land where a call may, also with branch targets enforced.
        "adrp x16, {real}",
        "ldr x16, [x16, #:lo12:{real}]",
        "br x16",
        "2:",
        "mov x9, #0",
        "3:",
        "mov x0, x9",
        "ret",
        resolve = sym resolve,
        nothing = const NOTHING,
        real = sym REAL_DLSYM,
    )
}

/// What `dlsym` is to do. Called on the caller's stack for every look-up of the process, also
/// before this library's own parts are relocated: only what the C library gives is used.
unsafe extern "C" fn resolve(handle: *mut c_void, name: *const c_char, caller: usize) -> usize {
    let Some(dlsym) = loader::real_dlsym() else { return NOTHING };
    // SAFETY: NUL-terminated, as the caller of `dlsym` promised; a byte is read only if those
    // before it are not the end.
    let ours = unsafe {
        !name.is_null()
            && *name == b'c' as c_char
            && *name.add(1) == b'u' as c_char
            && ((*name.add(2) as u8).is_ascii_uppercase() || *name.add(2) == b'd' as c_char)
    };
    if !ours || handle == libc::RTLD_NEXT {
        return JUMP;
    }
    // SAFETY: as above.
    let name = unsafe { CStr::from_ptr(name) };
    if RUNTIME.contains(&name) {
        // SAFETY: the caller's handle and name.
        let there = unsafe { dlsym(handle, name.as_ptr()) } as usize;
        // Ours, found in the global scope: without us the runtime's is there only if it is next.
        let nothing = loader::is_own(there) && loader::symbol(libc::RTLD_NEXT, name) == 0;
        return if nothing { NOTHING } else { JUMP };
    }
    let Some(hook) = HOOKS.iter().find(|hook| hook.symbol == name) else { return JUMP };
    let own = hook.function.0 as usize;
    if loader::is_excluded(caller) {
        // In the global scope the name is ours: such a caller means the driver's.
        return if handle == libc::RTLD_DEFAULT { found(real_of(hook)) } else { JUMP };
    }
    // SAFETY: the caller's handle and name.
    let there = unsafe { dlsym(handle, name.as_ptr()) } as usize;
    if there == own || loader::is_own(there) {
        // Ours, found in the global scope: the driver's name is there only if the driver is, or
        // as another library's. Asked for last, a name that is not there leaves `dlerror` a text.
        if loader::driver(false).is_null() {
            return found(loader::symbol(libc::RTLD_NEXT, name));
        }
        return if real_of(hook) == 0 { NOTHING } else { own };
    }
    // Others' functions of this name, a wrapper's or a stub's, stay theirs.
    if there != 0 && loader::is_driver(there) { own } else { JUMP }
}

fn found(address: usize) -> usize {
    if address == 0 { NOTHING } else { address }
}

// ---- cuGetProcAddress ----------------------------------------------------------------------

type Get1 = unsafe extern "C" fn(*const c_char, *mut usize, c_int, u64) -> Result;
type Get2 = unsafe extern "C" fn(*const c_char, *mut usize, c_int, u64, *mut c_int) -> Result;

/// The row for what was asked, if it is of a form known here.
fn row(name: &CStr, version: c_int, flags: u64) -> Option<&'static Hook> {
    let per_thread = flags & cuda::PROC_PER_THREAD != 0;
    let best = |per_thread| {
        HOOKS
            .iter()
            .filter(|h| h.asked == name && h.since <= version && h.per_thread == per_thread)
            .max_by_key(|h| h.since)
    };
    if per_thread { best(true).or_else(|| best(false)) } else { best(false) }
}

/// Puts our function in the place of the one found, if that is the form known here.
///
/// # Safety
/// As of `cuGetProcAddress`, which has just answered into `to`.
unsafe fn replace(name: *const c_char, to: *mut usize, version: c_int, flags: u64) {
    // SAFETY: the driver has read the name and written the place.
    let (name, there) = unsafe { (CStr::from_ptr(name), *to) };
    let Some(hook) = row(name, version, flags).filter(|_| there != 0) else { return };
    if is_known_form(hook, there, flags) {
        // SAFETY: as above.
        unsafe { *to = hook.function.0 as usize };
    }
}

/// Whether the driver's answer is the function that it gives for the row's own version: a newer
/// version may have another form.
fn is_known_form(hook: &Hook, there: usize, flags: u64) -> bool {
    ask(hook.asked, hook.since, flags) == there
}

/// What the driver's own `cuGetProcAddress` finds; 0: nothing.
pub fn ask(name: &CStr, version: c_int, flags: u64) -> usize {
    let mut found = 0;
    let second = real(Entry::GetProcAddress2);
    let first = real(Entry::GetProcAddress);
    // SAFETY: the driver's functions of these names have these types; locals to fill.
    unsafe {
        if second != 0 {
            let mut status = 0;
            let get = std::mem::transmute::<usize, Get2>(second);
            let (name, status) = (name.as_ptr(), &raw mut status);
            if get(name, &raw mut found, version, flags, status) == SUCCESS {
                return found;
            }
        }
        // A driver before 12.0, which may have the second form's name and not the form.
        if first == 0 {
            return 0;
        }
        let get = std::mem::transmute::<usize, Get1>(first);
        if get(name.as_ptr(), &raw mut found, version, flags) == SUCCESS { found } else { 0 }
    }
}

/// `cuGetProcAddress` of CUDA 11.3.
///
/// # Safety
/// As of the driver's.
#[unsafe(no_mangle)]
#[allow(non_snake_case, reason = "CUDA's name")]
pub unsafe extern "C" fn cuGetProcAddress(
    name: *const c_char,
    to: *mut usize,
    version: c_int,
    flags: u64,
) -> Result {
    let real = real(Entry::GetProcAddress);
    if real == 0 {
        return NOT_FOUND;
    }
    // SAFETY: as the caller promised; the driver checks its arguments.
    unsafe {
        let result = std::mem::transmute::<usize, Get1>(real)(name, to, version, flags);
        if result == SUCCESS {
            replace(name, to, version, flags);
        }
        result
    }
}

/// `cuGetProcAddress` of CUDA 12.0, which says why a name was not found.
///
/// # Safety
/// As of the driver's.
#[unsafe(no_mangle)]
#[allow(non_snake_case, reason = "CUDA's name")]
pub unsafe extern "C" fn cuGetProcAddress_v2(
    name: *const c_char,
    to: *mut usize,
    version: c_int,
    flags: u64,
    status: *mut c_int,
) -> Result {
    let real = real(Entry::GetProcAddress2);
    if real == 0 {
        return NOT_FOUND;
    }
    // SAFETY: as the caller promised; the driver checks its arguments.
    unsafe {
        let result = std::mem::transmute::<usize, Get2>(real)(name, to, version, flags, status);
        if result == SUCCESS {
            replace(name, to, version, flags);
        }
        result
    }
}
