//! The static planner against what needs no trust: all pairs, all offsets.
//!
//! Random instances print their seed and run again from it (`FOREBAY_TEST_SEED`). Cost: some
//! seconds.

#[path = "plan/bad_input.rs"]
mod bad_input;
#[path = "plan/cuts.rs"]
mod cuts;
#[path = "plan/determinism.rs"]
mod determinism;
#[path = "plan/exhaustive.rs"]
mod exhaustive;
#[path = "plan/files.rs"]
mod files;
#[path = "plan/oracle.rs"]
mod oracle;
#[path = "common/random.rs"]
mod random;
#[path = "plan/shapes.rs"]
mod shapes;
#[path = "plan/verifier.rs"]
mod verifier;
