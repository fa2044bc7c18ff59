//! System calls behind the simulated memory: address ranges, memory files, range locks.
//!
//! Owns no state. Promises that a failure is an error value that names the host's limit when one
//! was reached, and that ranges given to [`clear`] or [`map`] stay reserved: they are replaced,
//! never freed in between. Memory mapped here is not inherited by a forked child.
//! Cost: one or two system calls each; 1 to 3 us.

use std::fs::File;
use std::io::{Error, Seek, SeekFrom};
use std::os::fd::{AsRawFd, FromRawFd, RawFd};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::ptr::null_mut;

/// The host's page, the unit of reservations: 4 KiB on every host this runs on.
pub const HOST_PAGE: u64 = 4096;

/// Why the host refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HostError {
    /// `vm.max_map_count` is reached: the process has as many mappings as Linux allows.
    MappingLimit,
    /// `RLIMIT_NOFILE` is reached.
    FileLimit,
    /// No address range or memory of that length.
    Memory,
    /// Anything else, by `errno`.
    Other(i32),
}

impl HostError {
    /// The limit's name in reports.
    pub fn name(self) -> &'static str {
        match self {
            HostError::MappingLimit => "host_mapping_limit",
            HostError::FileLimit => "host_file_limit",
            HostError::Memory => "host_memory",
            HostError::Other(_) => "host_error",
        }
    }

    /// The last error of this thread, of a call about mappings.
    fn of_mapping() -> HostError {
        let code = Error::last_os_error().raw_os_error().unwrap_or(0);
        match code {
            libc::ENOMEM if near_mapping_limit() => HostError::MappingLimit,
            libc::ENOMEM => HostError::Memory,
            other => HostError::Other(other),
        }
    }
}

impl From<Error> for HostError {
    fn from(error: Error) -> HostError {
        match error.raw_os_error().unwrap_or(0) {
            libc::EMFILE | libc::ENFILE => HostError::FileLimit,
            libc::ENOMEM | libc::ENOSPC => HostError::Memory,
            other => HostError::Other(other),
        }
    }
}

/// The kernel's limit on mappings of a process, and how many this one has.
pub fn mappings_of_process() -> (u64, u64) {
    let limit = std::fs::read_to_string("/proc/sys/vm/max_map_count")
        .ok()
        .and_then(|text| text.trim().parse().ok())
        .unwrap_or(65_530);
    let maps = std::fs::read("/proc/self/maps").unwrap_or_default();
    (limit, maps.iter().filter(|byte| **byte == b'\n').count() as u64)
}

/// Whether the process is so near the limit on mappings that splitting one is refused.
fn near_mapping_limit() -> bool {
    let (limit, count) = mappings_of_process();
    count + 4 >= limit
}

/// What the CPU may do with a range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rights {
    /// Touching faults.
    None,
    /// Reading only.
    Read,
    /// Reading and writing.
    ReadWrite,
}

impl Rights {
    fn bits(self) -> i32 {
        match self {
            Rights::None => libc::PROT_NONE,
            Rights::Read => libc::PROT_READ,
            Rights::ReadWrite => libc::PROT_READ | libc::PROT_WRITE,
        }
    }
}

const NOTHING: i32 = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;

/// Reserves `len` bytes of address space, aligned to `align` (a power of two, at least a host
/// page), at `hint` if that is not 0 and free. Touching them faults.
///
/// # Errors
/// The host's.
pub fn reserve(len: u64, align: u64, hint: u64) -> Result<u64, HostError> {
    assert!(len > 0 && align.is_power_of_two() && align >= HOST_PAGE);
    if hint != 0 && hint.is_multiple_of(align) {
        let flags = NOTHING | libc::MAP_FIXED_NOREPLACE;
        // SAFETY: NOREPLACE maps over nothing that exists; the range is new.
        let at = unsafe { libc::mmap(ptr(hint), len as usize, libc::PROT_NONE, flags, -1, 0) };
        if at == ptr(hint) {
            return Ok(hint);
        }
        if at != libc::MAP_FAILED {
            // A kernel that does not know the flag took it for a hint.
            unmap(at as u64, len);
        }
    }
    let whole = len.checked_add(align).ok_or(HostError::Memory)?;
    // SAFETY: the kernel picks a range that nothing uses.
    let at = unsafe { libc::mmap(null_mut(), whole as usize, libc::PROT_NONE, NOTHING, -1, 0) };
    if at == libc::MAP_FAILED {
        return Err(HostError::of_mapping());
    }
    let start = (at as u64).next_multiple_of(align);
    unmap(at as u64, start - at as u64);
    unmap(start + len, at as u64 + whole - (start + len));
    Ok(start)
}

/// Gives a range back to the host. The caller owns it and nothing uses it any more.
pub fn unmap(at: u64, len: u64) {
    if len > 0 {
        // SAFETY: the range came from `reserve` and belongs to the caller (this function's
        // contract), so no other mapping is hit.
        let result = unsafe { libc::munmap(ptr(at), len as usize) };
        debug_assert_eq!(result, 0);
    }
}

/// Mappings kept back from the kernel's limit: given up so that an unmap, which may have to split
/// what is left, works when no other mapping can be made.
#[derive(Debug)]
pub struct Spare {
    at: u64,
}

/// Host pages of a spare, each a mapping of its own.
const SPARE_PAGES: u64 = 16;

impl Spare {
    /// Takes as many mappings as an unmap may need, and more.
    ///
    /// # Errors
    /// The host's.
    pub fn take() -> Result<Spare, HostError> {
        let spare = Spare { at: reserve(SPARE_PAGES * HOST_PAGE, HOST_PAGE, 0)? };
        for page in (0..SPARE_PAGES).step_by(2) {
            protect(spare.at + page * HOST_PAGE, HOST_PAGE, Rights::Read)?;
        }
        Ok(spare)
    }
}

impl Drop for Spare {
    fn drop(&mut self) {
        unmap(self.at, SPARE_PAGES * HOST_PAGE);
    }
}

/// Maps `len` bytes of a file over a reserved range of the caller's.
///
/// # Errors
/// The host's; the range is then as before.
pub fn map(at: u64, len: u64, file: &File, offset: u64, rights: Rights) -> Result<(), HostError> {
    let flags = libc::MAP_SHARED | libc::MAP_FIXED;
    let (fd, bits) = (file.as_raw_fd(), rights.bits());
    // SAFETY: the range is a reservation of the caller's, which it may replace.
    let got = unsafe { libc::mmap(ptr(at), len as usize, bits, flags, fd, offset as i64) };
    if got == libc::MAP_FAILED {
        return Err(HostError::of_mapping());
    }
    // SAFETY: advice for the mapping just made: a forked child does not get it.
    unsafe { libc::madvise(ptr(at), len as usize, libc::MADV_DONTFORK) };
    Ok(())
}

/// Anonymous memory that the CPU may use, over a reserved range of the caller's.
///
/// # Errors
/// The host's; the range is then as before.
pub fn map_anonymous(at: u64, len: u64) -> Result<(), HostError> {
    let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED;
    let bits = Rights::ReadWrite.bits();
    // SAFETY: the range is a reservation of the caller's, which it may replace.
    let got = unsafe { libc::mmap(ptr(at), len as usize, bits, flags, -1, 0) };
    if got == libc::MAP_FAILED {
        return Err(HostError::of_mapping());
    }
    // SAFETY: as in `map`.
    unsafe { libc::madvise(ptr(at), len as usize, libc::MADV_DONTFORK) };
    Ok(())
}

/// Fills anonymous memory of the caller's with a byte.
pub fn fill(at: u64, len: u64, byte: u8) {
    // SAFETY: the caller has just mapped the range for reading and writing and has not given its
    // address to anyone yet.
    unsafe { std::ptr::write_bytes(ptr(at).cast::<u8>(), byte, len as usize) };
}

/// Turns a range back into a bare reservation.
///
/// # Errors
/// The host's; the range is then as before.
pub fn clear(at: u64, len: u64) -> Result<(), HostError> {
    let flags = NOTHING | libc::MAP_FIXED;
    // SAFETY: the range is the caller's; what was mapped there is not used any more.
    let got = unsafe { libc::mmap(ptr(at), len as usize, libc::PROT_NONE, flags, -1, 0) };
    if got == libc::MAP_FAILED { Err(HostError::of_mapping()) } else { Ok(()) }
}

/// Sets what the CPU may do with a range of the caller's.
///
/// # Errors
/// The host's; part of the range may have been changed.
pub fn protect(at: u64, len: u64, rights: Rights) -> Result<(), HostError> {
    // SAFETY: rights of a range that the caller owns; no memory is read or written.
    let result = unsafe { libc::mprotect(ptr(at), len as usize, rights.bits()) };
    if result != 0 { Err(HostError::of_mapping()) } else { Ok(()) }
}

/// Whether the whole range is mapped in this process (readable or not).
pub fn is_mapped(at: u64, len: u64) -> bool {
    let start = at - at % HOST_PAGE;
    let pages = (at + len - start).div_ceil(HOST_PAGE);
    let mut seen = vec![0u8; pages.min(4096) as usize];
    let mut page = 0;
    while page < pages {
        let count = (pages - page).min(seen.len() as u64);
        let (from, bytes) = (start + page * HOST_PAGE, count * HOST_PAGE);
        // SAFETY: mincore reads no memory of the range; `seen` has a byte for each page.
        if unsafe { libc::mincore(ptr(from), bytes as usize, seen.as_mut_ptr()) } != 0 {
            return false;
        }
        page += count;
    }
    true
}

fn ptr(at: u64) -> *mut libc::c_void {
    at as *mut libc::c_void
}

/// A new memory file of `len` bytes, all holes.
///
/// # Errors
/// The host's.
pub fn memory_file(name: &std::ffi::CStr, len: u64) -> Result<File, HostError> {
    // SAFETY: the name is a C string; the call keeps no reference to it.
    let fd = unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC) };
    if fd < 0 {
        return Err(Error::last_os_error().into());
    }
    // SAFETY: a fresh descriptor that nothing else owns.
    let file = unsafe { File::from_raw_fd(fd) };
    file.set_len(len)?;
    Ok(file)
}

/// Opens what a descriptor of this process refers to once more: another open file description,
/// with a position and locks of its own.
///
/// # Errors
/// The host's, also when the number names no open file.
pub fn reopen(fd: RawFd) -> Result<File, HostError> {
    open_path(&format!("/proc/self/fd/{fd}"))
}

/// Opens a memory file by a path under `/proc`.
///
/// # Errors
/// The host's.
pub fn open_path(path: &str) -> Result<File, HostError> {
    Ok(File::options().read(true).write(true).open(path)?)
}

/// Device and inode: the same for every description of a file, in every process.
///
/// # Errors
/// The host's.
pub fn identity(file: &File) -> Result<(u64, u64), HostError> {
    let data = file.metadata()?;
    Ok((data.dev(), data.ino()))
}

/// Bytes of memory that a file takes, holes not counted.
pub fn resident(file: &File) -> u64 {
    file.metadata().map_or(0, |data| data.blocks() * 512)
}

/// Sets a description's position, which carries the place of an exported range.
///
/// # Errors
/// The host's.
pub fn set_position(mut file: &File, to: u64) -> Result<(), HostError> {
    file.seek(SeekFrom::Start(to))?;
    Ok(())
}

/// The position of the description behind a descriptor of this process.
///
/// # Errors
/// The host's; -1 and pipes have no position.
pub fn position(fd: RawFd) -> Result<u64, HostError> {
    // SAFETY: a number, which need not name an open file; the position stays as it is.
    let at = unsafe { libc::lseek(fd, 0, libc::SEEK_CUR) };
    u64::try_from(at).map_err(|_| Error::last_os_error().into())
}

/// Makes the pages of a range of a file holes again.
pub fn punch(file: &File, offset: u64, len: u64) {
    let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    // SAFETY: a descriptor of ours and numbers.
    let result = unsafe { libc::fallocate(file.as_raw_fd(), mode, offset as i64, len as i64) };
    debug_assert_eq!(result, 0);
}

/// Writes `byte` over a range of a file.
///
/// # Errors
/// The host's, when it has no memory for it.
pub fn fill_file(file: &File, offset: u64, len: u64, byte: u8) -> Result<(), HostError> {
    let block = vec![byte; len.min(1 << 20) as usize];
    let mut done = 0;
    while done < len {
        let count = (len - done).min(block.len() as u64);
        file.write_all_at(&block[..count as usize], offset + done)?;
        done += count;
    }
    Ok(())
}

/// What is done with a lock on a range. Such locks belong to the open file description: they end
/// with its last descriptor or mapping in any process, also when a process is killed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RangeLock {
    /// Share the range.
    Take,
    /// Let it go.
    Drop,
}

/// Takes or drops a description's share in a range of its file.
///
/// # Errors
/// The host's.
pub fn lock(file: &File, offset: u64, len: u64, what: RangeLock) -> Result<(), HostError> {
    let kind = if what == RangeLock::Take { libc::F_RDLCK } else { libc::F_UNLCK };
    let mut range = flock(kind, offset, len);
    // SAFETY: a descriptor of ours and a record on this stack.
    let result = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw mut range) };
    if result != 0 { Err(Error::last_os_error().into()) } else { Ok(()) }
}

/// Whether any other description has a share in the range.
pub fn is_shared(file: &File, offset: u64, len: u64) -> bool {
    let mut range = flock(libc::F_WRLCK, offset, len);
    // SAFETY: as in `lock`; the kernel writes the first conflicting lock into the record.
    let result = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_GETLK, &raw mut range) };
    result == 0 && range.l_type != libc::F_UNLCK as i16
}

fn flock(kind: i32, offset: u64, len: u64) -> libc::flock {
    // SAFETY: the record is plain numbers; all zero is a valid value.
    let mut range: libc::flock = unsafe { std::mem::zeroed() };
    range.l_type = kind as i16;
    range.l_whence = libc::SEEK_SET as i16;
    range.l_start = offset as i64;
    range.l_len = len as i64;
    range
}

/// Device and inode behind a descriptor of this process, if it names an open file.
pub fn identity_of(fd: RawFd) -> Option<(u64, u64)> {
    // SAFETY: the record is plain numbers; fstat fills it or fails.
    let mut data: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: a number, which need not name an open file, and a record on this stack.
    let result = unsafe { libc::fstat(fd, &raw mut data) };
    (result == 0).then_some((data.st_dev, data.st_ino))
}

/// Physical memory of the host, in bytes.
pub fn host_memory() -> u64 {
    // SAFETY: sysconf takes a number.
    let pages = unsafe { libc::sysconf(libc::_SC_PHYS_PAGES) };
    u64::try_from(pages).unwrap_or(0) * HOST_PAGE
}
