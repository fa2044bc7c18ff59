//! Static planning: buffers with known lifetimes get offsets once, and every later step uses them.
//!
//! # Words
//!
//! - **buffer**: a size that is wanted from its **birth** up to, and without, its **death**.
//!   Times are any numbers that grow: steps, event numbers, nanoseconds.
//! - **plan**: an offset for each buffer, such that no two that live at once overlap.
//!   Its **height** is the highest end: what must be reserved.
//! - **clique**: a largest set of buffers that all live at one moment. Its **load** is the sum
//!   of their sizes. The largest load is a lower **bound** of every height.
//! - **fixed offset**: one that the caller gives, and that the plan keeps.
//! - **optimality gap**: height less bound; 0 means that no plan is lower.
//! - **effort**: the unit of budgets: one buffer placed, one segment raised, or one clique looked
//!   at; about a microsecond's work. It counts the same on every machine.
//!
//! # What happens
//!
//! [`buffer`] checks the input; [`prepare`] renumbers lifetimes as ranges of cliques; [`bounds`]
//! gives the bound; [`skyline`] packs by a key (with [`kdtree`] as its index), [`minimise`] tries
//! keys; [`exact`] searches under a capacity with proof; [`portfolio`] lets several searchers work
//! side by side; [`verify`] looks at every answer once more, from the caller's own input, before it
//! is given. [`recording`] plans a step of several lanes, by the order that [`order`] finds, and
//! [`sharing`] checks it; [`fences`] says which fences such a plan needs, by the [`work`] that they
//! order.
//! [`file`](mod@file) keeps plans in bytes; [`csv`] reads instances; [`handles`] keeps plans for C
//! programs.
//!
//! # Promises
//!
//! Every plan given has passed the verifier. "Infeasible" is said only when it is proven; else it
//! is "not found within the budget". Without a time budget and without [`Options::racing`] the
//! result depends on input, seed, searchers and effort alone, not on threads or timing (on one
//! build: floating point functions differ between platforms). Pure: no device, no
//! pool, and no state between calls but that of [`handles`]. No panic for any input; thread-safe.
//!
//! Cost: preparation, one packing and verification are O(n log n) each (18,692 buffers: some
//! 25 ms in all). Memory: about 200 bytes a buffer, and up to 50 bytes times n squared for the
//! exact search, which is used up to [`exact::BUFFERS_MAX`] buffers.

pub mod bounds;
pub mod buffer;
pub mod csv;
pub mod exact;
mod fences;
pub mod file;
mod fnv;
pub mod handles;
pub mod kdtree;
pub mod minimise;
mod order;
pub mod portfolio;
pub mod prepare;
mod random;
pub mod recording;
pub mod restart;
mod sharing;
pub mod skyline;
mod solve;
pub mod verify;
mod work;

pub use buffer::Buffer;
pub use recording::Recording;
pub use solve::{Options, Plan, Progress, solve, solve_with};

/// What one more alignment step gives: the first multiple of `align` (a power of two) at or
/// above `at`. Sizes are checked so that nothing here overflows.
#[inline]
fn align_up(at: u64, align: u64) -> u64 {
    (at + align - 1) & !(align - 1)
}
