//! `libforebay_preload.so`: the pool behind the device allocations of an unchanged CUDA program.
//!
//! `LD_PRELOAD` puts this library before all others. It stands between a program (or NVIDIA's
//! runtime inside it) and `libcuda`: `dlsym`, `cuGetProcAddress` and the driver's exported names
//! lead here. What the pool can do it does; the rest is the driver's own call, unchanged.
//!
//! This is a front. The pool is `libforebay.so.0`, opened through its C ABI at the first CUDA
//! allocation ([`pool`]); without it, everything passes through.
//!
//! Promises:
//! - nothing happens at load: no constructor, no thread, no output; a process that never calls CUDA
//!   only pays for its own `dlsym` look-ups ([`lookup`]);
//! - `dlopen` is the real one, told of one flag less only where that is asked for ([`open`]);
//! - exact names only are replaced, never for `RTLD_NEXT`, and never for the driver, for Forebay or
//!   for another copy of this library ([`loader`]);
//! - memory that the pool does not know goes to the driver; memory of an ended context goes to
//!   nobody ([`place`]);
//! - no call panics or exits, and no lock is held while the driver or the pool is called, save the
//!   tables' own while a device's pool is made or ends, which a thread in it does not meet again.
//!
//! Must not link CUDA, nor anything of the pool but its C ABI. Cost of a hit over the pool's own:
//! a thread-local, two loads, a store for the length that was asked for, a counter.

mod background;
mod count;
mod cuda;
mod hooks;
mod ipc;
mod loader;
mod lookup;
mod open;
mod place;
mod pool;
mod settings;
mod sizes;
mod thread;
mod trace;
