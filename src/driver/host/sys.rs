//! The system calls of the host backend, one thin function each.
//!
//! Owns nothing: it turns libc calls into `Result`s with the error number. Promises that
//! each function is one system call and has no other effect. It must not keep state or
//! choose policy; `memory` does both. Cost: the call itself.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr;

/// A system call's error number.
pub(super) type Errno = i32;

fn errno() -> Errno {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)
}

fn check(result: libc::c_int) -> Result<(), Errno> {
    if result == 0 { Ok(()) } else { Err(errno()) }
}

fn address_of(result: *mut libc::c_void) -> Result<usize, Errno> {
    if result == libc::MAP_FAILED { Err(errno()) } else { Ok(result.expose_provenance()) }
}

fn pointer(address: usize) -> *mut libc::c_void {
    ptr::with_exposed_provenance_mut(address)
}

/// The CPU's page size in bytes.
pub(super) fn page_size() -> usize {
    // SAFETY: sysconf reads a constant and touches no memory of ours.
    let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(size).unwrap_or(4096)
}

/// The name of a device's memory file.
const FILE_NAME: &std::ffi::CStr = c"forebay-device";

/// An empty, close-on-exec memory file.
pub(super) fn memory_file() -> Result<OwnedFd, Errno> {
    // SAFETY: the name is a NUL-terminated constant.
    let fd = unsafe { libc::memfd_create(FILE_NAME.as_ptr(), libc::MFD_CLOEXEC) };
    if fd < 0 {
        return Err(errno());
    }
    // SAFETY: `fd` is open, was made just above, and nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Sets the file's length. Memory is taken only where it is touched.
pub(super) fn set_length(file: &OwnedFd, bytes: usize) -> Result<(), Errno> {
    let length = libc::off_t::try_from(bytes).map_err(|_| libc::EFBIG)?;
    // SAFETY: `file` is an open descriptor that we own.
    check(unsafe { libc::ftruncate(file.as_raw_fd(), length) })
}

/// Opens the same file once more: a descriptor with a position and marks of its own.
pub(super) fn open_again(file: &impl AsFd) -> Result<OwnedFd, Errno> {
    let path = format!("/proc/self/fd/{}", file.as_fd().as_raw_fd());
    let file = std::fs::File::options().read(true).write(true).open(path);
    file.map(OwnedFd::from).map_err(|error| error.raw_os_error().unwrap_or(libc::EIO))
}

/// Whether a descriptor is of some device's memory file, in whichever process it was made.
pub(super) fn is_memory_file(fd: BorrowedFd<'_>) -> bool {
    let link = std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd()));
    let name = format!("/memfd:{}", FILE_NAME.to_string_lossy());
    link.is_ok_and(|link| link.to_string_lossy().starts_with(&name))
}

/// Sets a descriptor's position.
pub(super) fn set_position(file: &OwnedFd, offset: usize) -> Result<(), Errno> {
    let offset = libc::off_t::try_from(offset).map_err(|_| libc::EFBIG)?;
    // SAFETY: `file` is an open descriptor that we own; the call takes no pointers.
    let result = unsafe { libc::lseek(file.as_raw_fd(), offset, libc::SEEK_SET) };
    if result < 0 { Err(errno()) } else { Ok(()) }
}

/// A descriptor's position.
pub(super) fn position(fd: BorrowedFd<'_>) -> Result<usize, Errno> {
    // SAFETY: `fd` is open for as long as it is borrowed; the call takes no pointers.
    let result = unsafe { libc::lseek(fd.as_raw_fd(), 0, libc::SEEK_CUR) };
    usize::try_from(result).map_err(|_| errno())
}

/// A file's length.
pub(super) fn length(fd: BorrowedFd<'_>) -> Result<usize, Errno> {
    // SAFETY: an all-zero `stat` is a valid value of that plain C struct.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: `stat` is writable and of the type that fstat fills.
    check(unsafe { libc::fstat(fd.as_raw_fd(), &raw mut stat) })?;
    usize::try_from(stat.st_size).map_err(|_| libc::EIO)
}

fn range_lock(kind: libc::c_int, offset: usize, bytes: usize) -> Result<libc::flock, Errno> {
    // SAFETY: an all-zero `flock` is a valid value of that plain C struct.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = kind as libc::c_short;
    lock.l_whence = libc::SEEK_SET as libc::c_short;
    lock.l_start = libc::off_t::try_from(offset).map_err(|_| libc::EFBIG)?;
    lock.l_len = libc::off_t::try_from(bytes).map_err(|_| libc::EFBIG)?;
    Ok(lock)
}

/// Marks a range as used by this opening of the file, until its last descriptor and mapping go.
pub(super) fn mark(file: &OwnedFd, offset: usize, bytes: usize) -> Result<(), Errno> {
    let lock = range_lock(libc::F_RDLCK, offset, bytes)?;
    // SAFETY: `lock` is a live local of the type that the command reads.
    check(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw const lock) })
}

/// Whether another opening of the file has a mark in a range. True where that cannot be told.
pub(super) fn is_marked(file: &OwnedFd, offset: usize, bytes: usize) -> bool {
    let Ok(mut lock) = range_lock(libc::F_WRLCK, offset, bytes) else { return true };
    // SAFETY: `lock` is a live local of the type that the command reads and writes.
    let asked = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_GETLK, &raw mut lock) };
    asked != 0 || libc::c_int::from(lock.l_type) != libc::F_UNLCK
}

/// Gives the memory behind a range of the file back; it reads as zeros afterwards.
pub(super) fn punch(file: &OwnedFd, offset: usize, bytes: usize) -> Result<(), Errno> {
    let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    let start = libc::off_t::try_from(offset).map_err(|_| libc::EFBIG)?;
    let length = libc::off_t::try_from(bytes).map_err(|_| libc::EFBIG)?;
    // SAFETY: `file` is an open descriptor that we own; the call takes no pointers.
    check(unsafe { libc::fallocate(file.as_raw_fd(), mode, start, length) })
}

/// Bytes of memory that the file holds now.
#[cfg(test)]
pub(super) fn held_bytes(file: &OwnedFd) -> usize {
    // SAFETY: an all-zero `stat` is a valid value of that plain C struct.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: `stat` is writable and of the type that fstat fills.
    check(unsafe { libc::fstat(file.as_raw_fd(), &raw mut stat) }).expect("fstat of our own file");
    usize::try_from(stat.st_blocks).expect("not negative") * 512
}

/// Whether this process can read the byte at `address`, learnt without a fault.
#[cfg(test)]
pub(super) fn readable(address: usize) -> bool {
    let mut byte = 0u8;
    let to = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
    let from = libc::iovec { iov_base: pointer(address), iov_len: 1 };
    // SAFETY: `to` names one writable byte; a bad `from` makes the call fail, not fault.
    unsafe { libc::process_vm_readv(libc::getpid(), &raw const to, 1, &raw const from, 1, 0) == 1 }
}

/// New address space without memory behind it, at an address of the kernel's choice.
pub(super) fn reserve(bytes: usize) -> Result<usize, Errno> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: without MAP_FIXED the kernel picks a free range: no mapping is replaced.
    address_of(unsafe { libc::mmap(ptr::null_mut(), bytes, libc::PROT_NONE, flags, -1, 0) })
}

/// New private memory, readable and writable, zeroed, taken only where it is touched.
pub(super) fn allocate(bytes: usize) -> Result<usize, Errno> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    let access = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: without MAP_FIXED the kernel picks a free range: no mapping is replaced.
    address_of(unsafe { libc::mmap(ptr::null_mut(), bytes, access, flags, -1, 0) })
}

/// Puts a range of the file at `address`, readable and writable, in place of what was there.
///
/// # Safety
/// `[address, address + bytes)` lies in address space of the caller's own [`reserve`], and
/// no Rust reference points into it.
pub(super) unsafe fn map_file(
    address: usize,
    bytes: usize,
    file: &OwnedFd,
    offset: usize,
) -> Result<(), Errno> {
    let flags = libc::MAP_SHARED | libc::MAP_FIXED | libc::MAP_NORESERVE;
    let offset = libc::off_t::try_from(offset).map_err(|_| libc::EFBIG)?;
    let (at, file) = (pointer(address), file.as_raw_fd());
    let access = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: MAP_FIXED replaces only the range that the caller vouches for.
    address_of(unsafe { libc::mmap(at, bytes, access, flags, file, offset) }).map(drop)
}

/// Turns a range back into reserved address space, whatever was mapped there.
///
/// # Safety
/// As for [`map_file`].
pub(super) unsafe fn cover(address: usize, bytes: usize) -> Result<(), Errno> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED;
    let at = pointer(address);
    // SAFETY: MAP_FIXED replaces only the range that the caller vouches for.
    address_of(unsafe { libc::mmap(at, bytes, libc::PROT_NONE, flags, -1, 0) }).map(drop)
}

/// Gives a range of addresses back to the kernel.
///
/// # Safety
/// The whole range came from [`reserve`] or [`allocate`], and nobody uses it any more.
pub(super) unsafe fn free(address: usize, bytes: usize) -> Result<(), Errno> {
    // SAFETY: the caller vouches for the range.
    check(unsafe { libc::munmap(pointer(address), bytes) })
}

/// Neighbouring pages that the kernel counts as one mapping each. They hold no memory.
pub(super) struct Apart {
    address: usize,
    bytes: usize,
}

impl Apart {
    /// Makes `count` mappings, an odd number. Shared memory, since that of one call never
    /// merges with another's; every second page is readable, so that neighbours differ.
    pub(super) fn new(count: usize) -> Result<Apart, Errno> {
        let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let (page, none) = (page_size(), libc::PROT_NONE);
        let bytes = count * page;
        // SAFETY: without MAP_FIXED the kernel picks a free range: no mapping is replaced.
        let mapped = unsafe { libc::mmap(ptr::null_mut(), bytes, none, flags, -1, 0) };
        let apart = Apart { address: address_of(mapped)?, bytes };
        for at in (page..bytes).step_by(2 * page) {
            // SAFETY: the page lies in the range just mapped, which nobody else knows.
            check(unsafe { libc::mprotect(pointer(apart.address + at), page, libc::PROT_READ) })?;
        }
        Ok(apart)
    }
}

impl Drop for Apart {
    fn drop(&mut self) {
        // SAFETY: the range is ours alone and nobody has its address.
        let freed = unsafe { free(self.address, self.bytes) };
        debug_assert_eq!(freed, Ok(()), "whole mappings can always go");
    }
}

/// Pins an accessible range in memory.
///
/// # Safety
/// The range is mapped by the caller.
pub(super) unsafe fn lock(address: usize, bytes: usize) -> Result<(), Errno> {
    // SAFETY: mlock changes residency only, never contents or access.
    check(unsafe { libc::mlock(pointer(address), bytes) })
}

/// Undoes [`lock`].
///
/// # Safety
/// The range is mapped by the caller.
pub(super) unsafe fn unlock(address: usize, bytes: usize) -> Result<(), Errno> {
    // SAFETY: munlock changes residency only, never contents or access.
    check(unsafe { libc::munlock(pointer(address), bytes) })
}

/// Keeps the program's signal handlers off the calling thread. Faults still arrive.
pub(super) fn block_signals() {
    // SAFETY: an all-zero `sigset_t` is a valid value of that plain C type.
    let mut set: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: `set` is a live local; the calls only edit it and this thread's mask.
    unsafe {
        libc::sigfillset(&raw mut set);
        for fault in [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL] {
            libc::sigdelset(&raw mut set, fault);
        }
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const set, ptr::null_mut());
    }
}

/// Copies bytes between two ranges, which may overlap.
///
/// # Safety
/// Both ranges are accessible for the whole call, and whoever else touches them is ordered
/// against it.
pub(super) unsafe fn copy_bytes(to: usize, from: usize, bytes: usize) {
    let (to, from) = (pointer(to).cast::<u8>(), pointer(from).cast::<u8>());
    // SAFETY: the caller vouches for both ranges; `copy` allows overlap.
    unsafe { ptr::copy(from.cast_const(), to, bytes) }
}

/// Fills a range with one value.
///
/// # Safety
/// As for [`copy_bytes`].
pub(super) unsafe fn fill_bytes(to: usize, value: u8, bytes: usize) {
    // SAFETY: the caller vouches for the range.
    unsafe { ptr::write_bytes(pointer(to).cast::<u8>(), value, bytes) }
}
