//! The ground floor: units, checked arithmetic, locks, mapped tables, thread slots.
//!
//! Owns nothing of the pool's; everything here would serve any allocator. `unsafe` is
//! confined to [`sync`], [`raw`] and [`tls`].

pub mod handles;
pub mod raw;
pub mod sync;
pub mod tls;
pub mod units;
