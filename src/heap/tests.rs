//! Tests of the heap.
