//! Threads of this library's own in a program that knows nothing of them.
//!
//! Promises that no signal of the program's is delivered to such a thread: it is blocked before
//! the thread begins. The caller's own mask is as it was afterwards. Cost: what a thread costs.

use std::thread::Builder;

/// The stack of such a thread: nothing that runs in one nests deep.
const STACK_BYTES: usize = 256 << 10;

/// Starts a thread of this name, which is never joined; the system's word where it has none.
pub fn start(name: &str, run: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
    let builder = Builder::new().name(name.to_owned()).stack_size(STACK_BYTES);
    // SAFETY: all zeros is a valid set; sets of this frame; this thread's own mask is put back.
    unsafe {
        let (mut all, mut before): (libc::sigset_t, libc::sigset_t) = std::mem::zeroed();
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
        let started = builder.spawn(run);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, std::ptr::null_mut());
        started.map(drop)
    }
}
