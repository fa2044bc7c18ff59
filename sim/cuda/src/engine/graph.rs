//! Graphs that a capture made, and their runs.
