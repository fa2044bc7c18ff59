//! Forebay: a pool of device memory that programs use in place of `cudaMalloc`.
//!
//! # Words
//!
//! Each means one thing, here, in the header, in messages and in the documentation.
//!
//! - **granule**: the device's mapping unit, 2 MiB on every NVIDIA part seen; always asked of
//!   the driver. Memory is mapped and unmapped in whole granules of address space.
//! - **page**: one piece of physical memory, a granule long. A page has no address; it is
//!   mapped at a granule, or nowhere.
//! - **reservation**: address space without memory behind it. A pool begins with one, sized by
//!   need, and adds another when that is full.
//! - **quantum**: 16 KiB, the heap's unit of length and place. A granule may hold pieces of
//!   several blocks.
//! - **block**: a stretch of the heap in use: a slab or an extent. In the C API also what a
//!   caller was given, slot or extent.
//! - **slab**: a block cut into equal **slots** of one **size class**; slots go up to 256 KiB.
//! - **extent**: a larger allocation, a block of its own.
//! - **lane**: one stream's order of events. What a lane freed it may reuse at once; another
//!   lane gets it behind a fence. The *sync lane* stands for `cudaFree`'s meaning: all work of
//!   the device. A graph capture has a lane of its own.
//! - **fence**: an event recorded behind frees; it tells when they have really happened on the
//!   device.
//! - **stamp**: what a free piece still waits for: a lane and a point in it, or several. A
//!   piece that waits for nothing is **clean**. A stamp has **passed** once the host has seen
//!   its fence done.
//! - **magazine**: a thread's small stack of ready slots for one lane and class. **depot**: a
//!   lane's full magazines, swapped whole. A **round** is a slot as it lies in them.
//! - **live mark**: one byte a slot, kept out of band: 0, or the tag of the block that is live.
//! - **quarantine**: slots freed with `cudaFree`'s meaning that wait for their fence.
//! - **stock**: pages at hand: created, and mapped nowhere. Idle pages join it by gather.
//! - **pin**: a promise that a block's pages do not move.
//! - **run**: adjacent free pieces that have memory. **gap**: free address space that has none.
//!   **hole**: adjacent runs and gaps.
//! - **ground**: granules that the blocks of one suspendable tag have to themselves.
//! - **suspended**: a tag whose ground has no memory now; its blocks keep their addresses.
//!   **resume** brings it back.
//! - **region**: address space that others than the heap fill with the pool's pages: the blocks of
//!   a KV cache.
//! - **plan block**: the block, in the heap's sense, that the plans of a binding share: the
//!   addresses of a planned step lie in it.
//! - **gather**: idle pages are unmapped where they are and mapped where a request needs them.
//! - **revoke**: other threads' caches are stopped and emptied, before a request fails.
//!
//! States of granules and pages: **idle**, no quantum belongs to a block; **movable**, idle,
//! every stamp in it passed, unpinned, no capture open; **pinned**; **stranded**, mapped where
//! it should not be, because undoing a failed step failed too. **trapped** bytes are clean and
//! lie in granules that are not idle: the one waste that a pool that cannot move blocks has.
//!
//! # Floors
//!
//! A room uses only rooms on lower floors; `cargo xtask tidy` checks it.
//!
//! | floor | rooms |
//! |---|---|
//! | 9 | [`abi`]: the C functions |
//! | 8 | [`paged`]: memory behind the KV cache |
//! | 7 | [`kv`]: paged KV cache; [`plan`]: static plans; [`torch`]: PyTorch's hooks; `cust` |
//! | 6 | [`pool`]: the composition, hot path, ladder, keeper |
//! | 5 | [`slab`]: size classes, slabs, live marks, depots |
//! | 4 | [`heap`]: blocks, runs, holes, placement |
//! | 3 | [`vmem`]: reservations and pages; [`stream`]: lanes, stamps, fences; [`logging`] |
//! | 2 | [`driver`]: the trait, its contract, its backends (CUDA, host memory); [`config`] |
//! | 1 | [`base`]: units, locks, tables, the thread's slot |
//! | 0 | [`error`]: status numbers, the last message |
//!
//! # Where to start reading
//!
//! [`driver`] for the contract with the machine, [`pool::hot`] for what an allocation usually
//! costs, [`pool::slow`] and [`pool::grow`] for what it may cost, [`stream`] for the rule that
//! keeps memory safe. `docs/architecture.md` tells an allocation's and a free's journey.
//!
//! # Example
//!
//! A pool over 64 MiB of host memory; [`pool::Pool::default_pool`] is the one that the
//! environment configures.
//!
//! ```
//! use forebay::config::Config;
//! use forebay::driver::host::{HostDriver, HostOptions};
//! use forebay::pool::{Pool, Settings};
//! use std::sync::Arc;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let device = 64 << 20;
//! let driver = HostDriver::new(HostOptions { total_bytes: device, ..HostOptions::default() })?;
//! let settings = Settings::resolve(&Config::default(), device as u64, true);
//! let pool = Pool::with_driver(Arc::new(driver), settings)?;
//!
//! let stream = 0;
//! let buffer = pool.buffer(1 << 20, stream)?;
//! assert_eq!(pool.stats()?.live_bytes, 1 << 20);
//! drop(buffer);
//! assert_eq!(pool.stats()?.live_bytes, 0);
//! # Ok(())
//! # }
//! ```
pub mod abi;
pub mod base;
pub mod config;
#[cfg(feature = "cust")]
pub mod cust;
pub mod driver;
pub mod error;
pub mod heap;
pub mod kv;
pub mod logging;
pub mod paged;
pub mod plan;
pub mod pool;
pub mod slab;
pub mod step;
pub mod stream;
pub mod torch;
pub mod vmem;
