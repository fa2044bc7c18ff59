//! Steps run by their plans, on the host backend: recorded, planned, bound, run; what goes another
//! way; lanes and fences on late streams, with a canary; wrong use.
//!
//! Random tests print their seed and run again from it (`FOREBAY_TEST_SEED`). Cost: seconds.

#[path = "step/astray.rs"]
mod astray;
#[path = "step/bad_input.rs"]
mod bad_input;
#[path = "step/bindings.rs"]
mod bindings;
#[path = "common/children.rs"]
mod children;
#[path = "common/device.rs"]
mod common;
#[path = "step/edges.rs"]
mod edges;
#[path = "step/lanes.rs"]
mod lanes;
#[path = "step/model.rs"]
mod model;
#[path = "step/recorded.rs"]
mod recorded;
#[path = "step/relearnt.rs"]
mod relearnt;
