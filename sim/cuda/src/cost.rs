//! What calls cost, on a virtual clock.
//!
//! Owns the clock and the profiles. Time passes only by calls (and by work that says how long
//! it takes), so a run's time is the same wherever it runs. The driver serialises its calls
//! across threads and processes, hence one clock that every call advances. Sources of the
//! figures: docs/simulated-cuda.md.

use crate::rng::Rng;
use crate::settings::{Profile, Settings};
use std::sync::atomic::{AtomicU64, Ordering};

/// Virtual time in nanoseconds since the world began.
#[derive(Default, Debug)]
pub struct Clock(AtomicU64);

impl Clock {
    /// Now, in nanoseconds.
    pub fn now_ns(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }

    /// Lets time pass; answers the new time.
    pub fn advance_ns(&self, ns: u64) -> u64 {
        self.0.fetch_add(ns, Ordering::AcqRel).saturating_add(ns)
    }
}

/// What a call did, for its cost: bodies add it up with `World::charge`.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Work {
    /// Bytes of memory created, released, allocated or opened.
    pub bytes: u64,
    /// Mappings touched.
    pub mappings: u64,
    /// The memory is the host's (a NUMA node's).
    pub host: bool,
}

/// The cost model of one world.
pub struct Model {
    profile: Profile,
    rng: Rng,
}

impl Model {
    /// The model that the settings ask for.
    pub fn new(settings: &Settings) -> Model {
        Model { profile: settings.profile, rng: Rng::new(settings.seed ^ 0xc057) }
    }

    /// Nanoseconds that a call takes which did `work`.
    pub fn cost_ns(&mut self, _call: &str, _work: Work) -> u64 {
        let _ = (&self.profile, &mut self.rng);
        0
    }
}
