//! Programs that run with more rights than their caller's: the loader takes no library from the
//! caller there.

use super::Refusal;
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

/// Refuses a program that the kernel would start in the loader's secure mode.
pub(super) fn check(file: &Path) -> Result<(), Refusal> {
    // SAFETY: both only read the process's numbers.
    let (user, group) = unsafe { (libc::geteuid(), libc::getegid()) };
    judge(file, user, group)
}

/// The same for a caller with these numbers.
pub(super) fn judge(file: &Path, user: u32, group: u32) -> Result<(), Refusal> {
    let refuse = |why: &str| {
        let text = format!("{}: {why}, so the loader ignores LD_PRELOAD", file.display());
        Err(Refusal::Unreachable(text))
    };
    let Ok(meta) = file.metadata() else { return Ok(()) };
    let mode = meta.permissions().mode();
    if mode & 0o4000 != 0 && meta.uid() != user {
        return refuse("it is a set-user-ID program");
    }
    if mode & 0o2010 == 0o2010 && meta.gid() != group {
        return refuse("it is a set-group-ID program");
    }
    if user != 0 && has_capabilities(file) {
        return refuse("it has file capabilities");
    }
    Ok(())
}

fn has_capabilities(file: &Path) -> bool {
    let Ok(path) = CString::new(file.as_os_str().as_bytes()) else { return false };
    let name = c"security.capability";
    // SAFETY: two NUL-ended strings; a length of 0 asks for the size and writes nothing.
    unsafe { libc::getxattr(path.as_ptr(), name.as_ptr(), std::ptr::null_mut(), 0) > 0 }
}
