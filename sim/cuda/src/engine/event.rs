//! Events: marks in streams, and their times.
