//! Stream safety on the host backend's late streams.
//!
//! Memory freed on one stream must not reach another before the work behind it is done, whatever
//! the pool does meanwhile. Every test here has a canary: the same with stamps ignored must
//! find the fault. Runs under ThreadSanitizer too, in a shorter form. Cost: 1 s to 30 s a test.

#[path = "streams/buffers.rs"]
mod buffers;
#[path = "common/mod.rs"]
mod common;
#[path = "streams/directed.rs"]
mod directed;
#[path = "streams/idle.rs"]
mod idle;
#[path = "streams/lanes.rs"]
mod lanes;
#[path = "streams/load.rs"]
mod load;
#[path = "streams/random.rs"]
mod random;

/// The body of child processes; does nothing in any other.
#[test]
fn child_process() {
    if common::scenario().as_deref() == Some("lanes_ignored") {
        lanes::stamps_ignored();
    }
}
