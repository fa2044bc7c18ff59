//! A CUDA runtime over whatever driver the process finds: `libcudart.so.12`, `libcudart.so.13`
//! and `libcudart_static.a` for programs that are tested on the simulated driver.
//!
//! It starts as NVIDIA's does: `dlopen("libcuda.so.1")`, `dlsym("cuGetProcAddress_v2")`, then every
//! driver function by the names, versions and flags that the real one asks for, so whatever stands
//! between a program and its driver meets the same questions. It never asks for an export table.
//! `cargo xtask` links this library twice, with `version.c`, a SONAME and a version node. Tests
//! only: never installed, never shipped.
//!
//! # Promises
//!
//! - Each thread has its current device and its last error. The primary context is retained by the
//!   first call that needs one.
//! - Rules of memory, streams and graphs are the driver's; nothing is answered here that the
//!   driver can be asked.
//! - A kernel does nothing, unless the driver knows one of its name, it is one of PyTorch's that
//!   fill or spin (`torch`), or a test gave it a body for the CPU (`control`). What is done is done
//!   in stream order.
//! - What is not built answers 801 and is listed in `not_built`.
//!
//! # Files
//!
//! | module | holds |
//! |---|---|
//! | `driver` | finding the driver, and the table of its functions |
//! | `state` | the thread's device and error, contexts, the process's end |
//! | `entry` | the wrapper of every exported function |
//! | `errors` | names and texts of errors |
//! | `device`, `properties`, `context` | devices and what is known of them |
//! | `memory`, `copy`, `pool`, `pointer`, `share` | memory |
//! | `stream`, `event`, `graph`, `graphmem` | order, and memory of graphs |
//! | `torch` | kernels of PyTorch that fill and spin |
//! | `module`, `launch`, `function` | kernels: registered, launched, asked about |
//! | `control` | `forebay_simcudart_*` |
#![allow(
    non_camel_case_types,
    non_snake_case,
    reason = "CUDA's own names for its functions and types"
)]

mod context;
mod control;
mod copy;
mod device;
mod driver;
mod entry;
mod errors;
mod event;
mod function;
mod graph;
mod graphmem;
mod launch;
mod memory;
mod module;
mod not_built;
mod pointer;
mod pool;
mod properties;
mod share;
mod state;
mod stream;
mod symbol;
mod torch;
mod types;
