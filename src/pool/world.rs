//! The world: not begun, running, forked, shut down.
//!
//! Promises: nothing happens at load; a child forked after first use is told before any lock is
//! touched; threads' caches go back when they end; the leak report comes at exit if asked.
//! Cost of the check: two loads.

use super::cache;
use super::registry::live_pools;
use super::{keeper, registry, report};
use crate::base::raw;
use crate::base::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};
use crate::config::{Config, Leaks};
use crate::error::{Error, Result, Status};
use once_cell::sync::OnceCell;

/// A word that reads 1 in the process that began, 0 in a forked child; null before.
static WORLD: AtomicPtr<AtomicU32> = AtomicPtr::new(std::ptr::null_mut());
static SHUT_DOWN: AtomicBool = AtomicBool::new(false);
static EXIT_KEY: AtomicU64 = AtomicU64::new(u64::MAX);

/// Fails in a forked child, and after shutdown. Touches no lock.
pub fn check_world() -> Result<()> {
    let world = WORLD.load(Ordering::Acquire);
    // SAFETY: null or a word that is never unmapped.
    if !world.is_null() && unsafe { (*world).load(Ordering::Relaxed) } == 0 {
        return Err(Error::new(
            Status::Forked,
            "this process was forked after Forebay's first use: device memory belongs to the \
             parent; create it after the fork, or start the child with exec",
        ));
    }
    if SHUT_DOWN.load(Ordering::Acquire) {
        return Err(Error::new(Status::ShutDown, "forebay_shutdown was called"));
    }
    Ok(())
}

/// First use: the word that tells forks, the threads' exit hook, the report at exit.
pub fn begin() -> Result<()> {
    static BEGUN: OnceCell<()> = OnceCell::new();
    BEGUN
        .get_or_try_init(|| {
            let page = raw::wiped_on_fork(4096).ok_or_else(no_memory)?;
            let word = page.cast::<AtomicU32>();
            // SAFETY: the page is mapped, zeroed and aligned.
            unsafe { word.as_ref() }.store(1, Ordering::Relaxed);
            let mut key: libc::pthread_key_t = 0;
            // SAFETY: `key` is a local; the hook stays loaded (the library is never unloaded).
            if unsafe { libc::pthread_key_create(&raw mut key, Some(registry::thread_exit)) } != 0 {
                return Err(Error::new(
                    Status::Internal,
                    "no thread-exit key is left (PTHREAD_KEYS_MAX); the process uses them all",
                ));
            }
            EXIT_KEY.store(u64::from(key), Ordering::Release);
            // SAFETY: the handler stays loaded and never unwinds.
            if unsafe { libc::atexit(process_exit) } != 0 {
                tracing::warn!("atexit refused: no leak report will be printed at exit");
            }
            WORLD.store(word.as_ptr(), Ordering::Release);
            Ok(())
        })
        .map(|&()| ())
}

/// The error when the host has no memory left.
pub fn no_memory() -> Error {
    Error::new(Status::OutOfMemory, "the host has no memory left for Forebay's own tables")
}

/// The keeper stops before what was set up until now is torn down at exit.
pub fn park_at_exit() {
    // SAFETY: the handler stays loaded and never unwinds.
    if unsafe { libc::atexit(park_keeper) } != 0 {
        tracing::warn!("atexit refused: the keeper may run while the driver ends");
    }
}

extern "C" fn park_keeper() {
    if check_world().is_ok() && std::panic::catch_unwind(keeper::park).is_err() {
        eprintln!("forebay: the keeper could not be parked");
    }
}

extern "C" fn process_exit() {
    let result = std::panic::catch_unwind(|| {
        if check_world().is_err() {
            return;
        }
        keeper::park();
        let config = Config::from_env().unwrap_or_default();
        if config.leaks == Leaks::Off {
            return;
        }
        for id in live_pools() {
            report::print_leaks(id, config.leaks, "exit");
        }
    });
    if result.is_err() {
        eprintln!("forebay: the leak report failed");
    }
}

/// Ends all use: hot paths close, allocations fail, frees succeed silently.
pub fn shutdown() -> Result<()> {
    check_world()?;
    SHUT_DOWN.store(true, Ordering::Release);
    cache::EPOCH.fetch_add(1, Ordering::Release);
    keeper::park();
    Ok(())
}

/// The key whose hook runs at thread exit. Valid after [`begin`].
pub fn exit_key() -> libc::pthread_key_t {
    EXIT_KEY.load(Ordering::Acquire) as libc::pthread_key_t
}
