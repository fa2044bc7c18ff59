//! What calls cost, on a virtual clock.
//!
//! Owns the clock and the profiles. Time passes only by calls (and by work that says how long it
//! takes), so a run's time is the same wherever it runs. The driver serialises its calls across
//! threads and processes, hence one clock that every call advances.
//!
//! A call costs its fixed part, plus a part a mapping and a part a MiB. With `variation` the
//! fixed part is drawn from the A100's measured quantiles (scaled for other profiles), and
//! opening access or unmapping stalls now and then for about 2 ms. Sources of the figures:
//! docs/simulated-cuda.md.

use crate::rng::Rng;
use crate::settings::{Profile, Settings};
use std::collections::BTreeMap;
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
    /// Bytes of memory created, released, allocated, opened or unmapped.
    pub bytes: u64,
    /// Mappings touched.
    pub mappings: u64,
    /// The memory is the host's.
    pub host: bool,
}

/// Microseconds of one kind of step.
#[derive(Clone, Copy, Default, PartialEq, Debug)]
struct Rate {
    fixed: f64,
    per_mib: f64,
    /// For each mapping after the first.
    per_mapping: f64,
}

const fn rate(fixed: f64, per_mib: f64, per_mapping: f64) -> Rate {
    Rate { fixed, per_mib, per_mapping }
}

/// The steps that calls are made of.
#[derive(Clone, Copy, Debug)]
struct Rates {
    reserve: Rate,
    create: Rate,
    map: Rate,
    access: Rate,
    unmap: Rate,
    release: Rate,
    unreserve: Rate,
}

const A100: Rates = Rates {
    reserve: rate(19.0, 0.0, 0.0),
    create: rate(193.0, 0.0, 0.0),
    map: rate(1.5, 0.0, 0.0),
    access: rate(36.0, 0.0, 2.0),
    unmap: rate(26.0, 0.0, 26.0),
    release: rate(23.0, 0.37, 0.0),
    unreserve: rate(1.0, 0.0, 0.0),
};

const LAPTOP: Rates = Rates {
    reserve: rate(10.0, 0.0, 0.0),
    create: rate(71.0, 0.0, 0.0),
    map: rate(3.4, 0.0, 0.0),
    access: rate(91.0, 0.036, 2.0),
    unmap: rate(37.0, 0.0, 37.0),
    release: rate(26.0, 0.37, 0.0),
    unreserve: rate(10.0, 0.0, 0.0),
};

/// The laptop's memory of a NUMA node, and host memory under every profile but `none`.
const HOST: Rates = Rates {
    reserve: rate(10.0, 0.0, 0.0),
    create: rate(101.0, 115.0, 0.0),
    map: rate(5.9, 0.0, 0.0),
    access: rate(98.0, 8.8, 2.0),
    unmap: rate(57.0, 1.2, 57.0),
    release: rate(0.0, 23.0, 0.0),
    unreserve: rate(10.0, 0.0, 0.0),
};

const VATTN: Rates = Rates {
    reserve: rate(2.0, 0.0, 0.0),
    create: rate(29.0, 0.0, 0.0),
    map: rate(2.0, 0.0, 0.0),
    access: rate(38.0, 0.0, 2.0),
    unmap: rate(34.0, 0.0, 34.0),
    release: rate(23.0, 0.0, 0.0),
    unreserve: rate(1.0, 0.0, 0.0),
};

/// What `cuMemGetInfo` costs.
const GET_INFO_US: f64 = 6.0;
/// What `cuMemAllocManaged` costs; its pages come with their first touch.
const MANAGED_US: f64 = 60.0;
/// How long a stall lasts.
const STALL_US: f64 = 2000.0;
/// Calls further apart than this count as spaced.
const SPACED_NS: u64 = 20_000_000;

/// Quantiles of a step's cost over its average, on the A100: at 0, 0.5, 0.9, 0.99, 1.
type Quantiles = [f64; 5];
const CREATE_SPREAD: Quantiles = [0.02, 1.009, 1.754, 1.971, 2.550];
const ACCESS_SPREAD: Quantiles = [0.711, 0.972, 1.167, 1.500, 4.696];
const UNMAP_SPREAD: Quantiles = [0.808, 0.975, 1.053, 1.522, 4.916];
const NO_SPREAD: Quantiles = [1.0; 5];

/// A draw from quantiles, straight between them.
fn draw(rng: &mut Rng, quantiles: &Quantiles) -> f64 {
    const AT: [f64; 5] = [0.0, 0.5, 0.9, 0.99, 1.0];
    let u = rng.unit();
    let i = AT.iter().rposition(|at| *at <= u).unwrap_or(0).min(3);
    let part = (u - AT[i]) / (AT[i + 1] - AT[i]);
    quantiles[i] + part * (quantiles[i + 1] - quantiles[i])
}

/// The cost model of one world.
pub struct Model {
    profile: Profile,
    costs: BTreeMap<String, f64>,
    variation: bool,
    rng: Rng,
    /// When a call last opened access or unmapped.
    changed_ns: Option<u64>,
    /// Bytes that the last release or free gave back.
    freed: u64,
}

impl Model {
    /// The model that the settings ask for.
    pub fn new(settings: &Settings) -> Model {
        Model {
            profile: settings.profile,
            costs: settings.costs.clone(),
            variation: settings.variation,
            rng: Rng::new(settings.seed ^ 0xC057),
            changed_ns: None,
            freed: 0,
        }
    }

    /// Nanoseconds that a call takes, begun at `now_ns`, which did `work`. `call` is the name
    /// without its version.
    pub fn cost_ns(&mut self, call: &str, work: Work, now_ns: u64) -> u64 {
        let us = match self.costs.get(call) {
            Some(us) => *us,
            None => self.profile_us(call, work) + self.stall_us(call, work, now_ns),
        };
        (us * 1000.0).round() as u64
    }

    fn profile_us(&mut self, call: &str, work: Work) -> f64 {
        let rates = match self.profile {
            Profile::None => return 0.0,
            _ if work.host || is_host_call(call) => HOST,
            Profile::A100 => A100,
            Profile::Laptop => LAPTOP,
            Profile::Vattn => VATTN,
        };
        match call {
            "cuMemAddressReserve" => rates.reserve.fixed,
            "cuMemAddressFree" => rates.unreserve.fixed,
            "cuMemCreate" => self.step(rates.create, work, &CREATE_SPREAD),
            "cuMemMap" => self.step(rates.map, work, &NO_SPREAD),
            "cuMemSetAccess" => self.step(rates.access, work, &ACCESS_SPREAD),
            "cuMemUnmap" => self.step(rates.unmap, work, &UNMAP_SPREAD),
            "cuMemRelease" => self.step(rates.release, work, &NO_SPREAD),
            "cuMemAlloc" | "cuMemAllocPitch" | "cuMemAllocHost" | "cuMemHostAlloc" => {
                self.step(rates.create, work, &CREATE_SPREAD)
                    + self.step(rates.map, work, &NO_SPREAD)
                    + self.step(rates.access, work, &ACCESS_SPREAD)
            }
            "cuMemFree" | "cuMemFreeHost" => {
                self.step(rates.unmap, work, &UNMAP_SPREAD)
                    + self.step(rates.release, work, &NO_SPREAD)
            }
            "cuMemAllocManaged" => MANAGED_US,
            "cuMemGetInfo" => GET_INFO_US,
            _ => 0.0,
        }
    }

    fn step(&mut self, rate: Rate, work: Work, spread: &Quantiles) -> f64 {
        let scale = if self.variation { draw(&mut self.rng, spread) } else { 1.0 };
        let mib = work.bytes as f64 / (1 << 20) as f64;
        let more = work.mappings.saturating_sub(1) as f64;
        rate.fixed * scale + rate.per_mib * mib + rate.per_mapping * more
    }

    /// What a call stalls for: after a large free, back to back, or by itself.
    fn stall_us(&mut self, call: &str, work: Work, now_ns: u64) -> f64 {
        let changes = matches!(call, "cuMemSetAccess" | "cuMemUnmap");
        if matches!(call, "cuMemRelease" | "cuMemFree") {
            self.freed = work.bytes;
        }
        if !changes || !self.variation || self.profile == Profile::None {
            return 0.0;
        }
        let close = self.changed_ns.is_some_and(|at| now_ns.saturating_sub(at) < SPACED_NS);
        let chance = match self.freed {
            freed if freed >= 4 << 30 => 0.52,
            freed if freed >= 2 << 30 => 0.68,
            _ if close => 0.39,
            _ => 0.17,
        };
        self.freed = 0;
        self.changed_ns = Some(now_ns);
        if self.rng.unit() < chance { STALL_US } else { 0.0 }
    }
}

fn is_host_call(call: &str) -> bool {
    matches!(call, "cuMemAllocHost" | "cuMemHostAlloc" | "cuMemFreeHost")
}

/// Sleeps as long as a call takes, while it holds the lock that processes share, if there is
/// one. A lock file that cannot be opened is a misuse entry, and the sleep goes on without.
pub fn sleep(ns: u64, host_lock: Option<&str>) {
    let lock = host_lock.and_then(|path| {
        let options = std::fs::OpenOptions::new().create(true).append(true).open(path);
        match options.and_then(|file| file.lock().map(|()| file)) {
            Ok(file) => Some(file),
            Err(e) => {
                crate::misuse::record(crate::misuse::HOST_LIMIT, format!("host_lock: {path}: {e}"));
                None
            }
        }
    });
    std::thread::sleep(std::time::Duration::from_nanos(ns));
    drop(lock);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model(text: &str) -> Model {
        Model::new(&Settings::from_text(text).expect("settings"))
    }

    fn work(mappings: u64, mib: u64) -> Work {
        Work { bytes: mib << 20, mappings, host: false }
    }

    #[test]
    fn a_run_of_1024_pages_costs_its_sum() {
        let sum = |profile: &str| {
            let mut model = model(&format!("profile = {profile}"));
            let mut ns = model.cost_ns("cuMemAddressReserve", work(0, 2048), 0);
            for _ in 0..1024 {
                ns += model.cost_ns("cuMemCreate", work(0, 2), ns);
                ns += model.cost_ns("cuMemMap", work(1, 2), ns);
            }
            ns + model.cost_ns("cuMemSetAccess", work(1024, 2048), ns)
        };
        // 19 + 1024 * (193 + 1.5) + 36 + 1023 * 2 microseconds
        assert_eq!(sum("a100"), 201_269_000);
        // 2 + 1024 * (29 + 2) + 38 + 1023 * 2
        assert_eq!(sum("vattn"), 33_830_000);
        // 10 + 1024 * (71 + 3.4) + 91 + 0.036 * 2048 + 1023 * 2
        assert_eq!(sum("laptop"), 78_406_328);
        assert_eq!(sum("none"), 0);
    }

    #[test]
    fn plain_memory_is_the_sum_of_its_steps() {
        let mut model = model("profile = laptop");
        // 71 + 3.4 + 91 + 0.036 * 2, then 37 + 26 + 0.37 * 2
        assert_eq!(model.cost_ns("cuMemAlloc", work(1, 2), 0), 165_472);
        assert_eq!(model.cost_ns("cuMemFree", work(1, 2), 0), 63_740);
        // 101 + 115 * 2 + 5.9 + 98 + 8.8 * 2
        assert_eq!(model.cost_ns("cuMemHostAlloc", work(1, 2), 0), 452_500);
        assert_eq!(model.cost_ns("cuMemGetInfo", work(0, 0), 0), 6000);
        assert_eq!(model.cost_ns("cuCtxGetCurrent", work(0, 0), 0), 0);
    }

    #[test]
    fn costs_of_the_settings_come_first() {
        let mut settings = Settings::from_text("profile = a100").expect("settings");
        settings.costs.insert("cuMemMap".to_owned(), 7.5);
        let mut model = Model::new(&settings);
        assert_eq!(model.cost_ns("cuMemMap", work(1, 2), 0), 7500);
        assert_eq!(model.cost_ns("cuMemCreate", work(0, 2), 0), 193_000);
    }

    #[test]
    fn variation_has_the_measured_average_and_replays() {
        let average = |seed: u64| {
            let mut model = model(&format!("profile = a100\nvariation = 1\nseed = {seed}"));
            let sum: u64 = (0..20_000).map(|_| model.cost_ns("cuMemCreate", work(0, 2), 0)).sum();
            sum as f64 / 20_000.0 / 1000.0
        };
        let first = average(3);
        assert_eq!(first.to_bits(), average(3).to_bits());
        assert!((first - 193.3).abs() < 5.0, "average {first}, seed 3");
        assert_ne!(first.to_bits(), average(4).to_bits());
    }

    #[test]
    fn stalls_come_as_often_as_measured() {
        let share = |gap_ns: u64, freed: u64| {
            let mut model = model("profile = vattn\nvariation = 1\nseed = 11");
            let mut now = 0;
            let mut stalls = 0;
            for _ in 0..10_000 {
                if freed > 0 {
                    model.cost_ns("cuMemRelease", Work { bytes: freed, ..Work::default() }, now);
                }
                stalls += u64::from(model.cost_ns("cuMemUnmap", work(1, 2), now) > 1_900_000);
                now += gap_ns;
            }
            stalls as f64 / 10_000.0
        };
        let close = |a: f64, b: f64| (a - b).abs() < 0.02;
        assert!(close(share(30_000_000, 0), 0.17), "spaced");
        assert!(close(share(1000, 0), 0.39), "back to back");
        assert!(close(share(1000, 2 << 30), 0.68), "after 2 GiB");
        assert!(close(share(1000, 4 << 30), 0.52), "after 4 GiB");
    }
}
