//! The host backend.
