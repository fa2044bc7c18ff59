//! Tests of the simulated runtime as a program sees it: the shared library of CUDA 12, opened by
//! path, on the simulated driver with two devices.
//!
//! One file a group of functions. `FOREBAY_SIMULATED_RUNTIME` names the folder of the staged
//! libraries; `cargo xtask test cudart` sets it.

#![allow(non_snake_case, reason = "CUDA's own names for its functions")]

#[path = "../../../cuda/tests/common/child.rs"]
mod child;
mod common;
mod copies;
mod devices;
mod errors;
mod graphmem;
mod graphs;
mod kernels;
mod life;
mod memory;
mod pools;
mod shared;
mod streams;
