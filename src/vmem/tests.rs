//! Tests of address space and pages.
