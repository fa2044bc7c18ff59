//! Tests of the book of lanes.
