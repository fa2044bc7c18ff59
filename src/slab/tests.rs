//! Tests of slabs.
