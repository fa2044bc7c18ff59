//! What the pool is compared with: [`direct`], one driver allocation a request, and
//! [`size_class`], a cache whose classes never share memory.
//!
//! Both are targets like the pool and report the same figures by the same definitions.

pub mod direct;
pub mod size_class;
