//! Runs the allocators' programs and keeps what they say.
//!
//! Owns the order: times first, one process at a time and every allocator's in turn; then what is
//! exact, on all CPUs at once. Promises that what failed is told with its output. Must not judge.

use super::super::pool::samples::Samples;
use super::programs::Programs;
use super::{ALLOCATORS, Allocator, Load};
use crate::Outcome;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The device of everything but the search: larger than any load.
const AMPLE: &str = "512GiB";
/// The device's unit, in bytes.
const GRANULE: u64 = 2 << 20;
/// Where the search for the smallest device ends, over peak live bytes.
const STEP: f64 = 0.0006;
/// Devices larger than so many times the peak are not tried.
const MOST: u64 = 8;

/// Calls that take, move or give back memory.
const MEMORY: [&str; 9] = [
    "cuMemAlloc",
    "cuMemFree",
    "cuMemCreate",
    "cuMemRelease",
    "cuMemMap",
    "cuMemUnmap",
    "cuMemSetAccess",
    "cuMemAddressReserve",
    "cuMemAddressFree",
];
/// Calls that record, look at or wait for events, or wait for streams and devices.
const FENCES: [&str; 7] = [
    "cuEventRecord",
    "cuEventQuery",
    "cuEventSynchronize",
    "cuStreamWaitEvent",
    "cuStreamSynchronize",
    "cuCtxSynchronize",
    "cuCtxRecordEvent",
];

/// A load or a trace that is played once.
pub struct Played {
    /// Its name in the rows.
    pub name: String,
    /// What the programs call it.
    pub what: String,
    /// Whether it is a trace, for which the smallest device is searched.
    pub trace: bool,
}

impl Played {
    /// A synthetic load.
    pub fn load(name: &str, what: &str) -> Played {
        Played { name: name.to_owned(), what: what.to_owned(), trace: false }
    }
}

/// What one allocator took for one load.
#[derive(Clone, Copy, Default, PartialEq, Debug)]
pub struct Usage {
    /// Peak of live requested bytes.
    pub live: f64,
    /// Peak of bytes taken from the device.
    pub taken: f64,
    /// Calls for memory.
    pub calls: f64,
    /// Calls about events and waits.
    pub fences: f64,
    /// Modelled milliseconds in the driver.
    pub driver_ms: f64,
}

/// All figures. Keys are what [`key`] makes.
#[derive(Default)]
pub struct Figures {
    /// Nanoseconds an operation.
    pub times: Samples,
    /// Memory and calls.
    pub usage: BTreeMap<String, Usage>,
    /// Bytes of the smallest device.
    pub smallest: BTreeMap<String, f64>,
    /// Allocators that cannot be had, and why.
    pub skipped: BTreeMap<String, String>,
    /// Keys without a figure, and why.
    pub failed: BTreeMap<String, String>,
}

/// An allocator's name and a load's.
pub fn key(allocator: &str, load: &str) -> String {
    format!("{allocator}@{load}")
}

/// Times every load for every allocator that has it, `rounds` processes each, in turn.
pub fn times(programs: &Programs, loads: &[Load], rounds: usize, to: &mut Figures) {
    for round in 0..rounds {
        eprintln!("round {} of {rounds}", round + 1);
        for load in loads {
            for one in ALLOCATORS.iter().filter(|a| load.is_for(a)) {
                let key = key(one.name, load.name);
                if to.skipped.contains_key(one.name) || to.failed.contains_key(&key) {
                    continue;
                }
                let given = Given { device: AMPLE, round, event_ns: load.event_ns };
                let said = programs.run(one, "time", load.what, given);
                match said.and_then(|text| time_of(&text)) {
                    Ok((least, median)) => to.times.add(vec![(key, least, median)]),
                    Err(why) => fail(to, key, why),
                }
            }
        }
    }
}

fn fail(to: &mut Figures, key: String, why: String) {
    println!("{key}: no figure: {}", why.trim());
    to.failed.insert(key, why);
}

/// `ns LEAST MEDIAN`.
fn time_of(text: &str) -> Outcome<(f64, f64)> {
    let words: Vec<&str> = text.split_whitespace().collect();
    let number = |word: &str| word.parse().ok().filter(|n: &f64| n.is_finite());
    match words[..] {
        ["ns", least, median] => number(least).zip(number(median)),
        _ => None,
    }
    .ok_or_else(|| format!("not a line of figures: {text}"))
}

/// What a process is given besides its words.
#[derive(Clone, Copy)]
pub struct Given<'a> {
    /// The simulated device's memory.
    pub device: &'a str,
    /// From which loads are drawn.
    pub round: usize,
    /// What an event costs while timed.
    pub event_ns: u32,
}

impl Given<'_> {
    /// For what is exact, and the same in every round.
    fn once(device: &str) -> Given<'_> {
        Given { device, round: 0, event_ns: 0 }
    }
}

/// What is played once: memory and calls of every load, the smallest device of every trace.
pub fn memory(programs: &Programs, played: &[Played], to: &mut Figures) {
    let mut work: Vec<(&Allocator, &Played)> = Vec::new();
    for load in played {
        let able = |a: &&Allocator| a.asked.usage || (a.asked.fits && load.trace);
        let there = |a: &&Allocator| !to.skipped.contains_key(a.name);
        work.extend(ALLOCATORS.iter().filter(able).filter(there).map(|a| (a, load)));
    }
    let next = AtomicUsize::new(0);
    let done = Mutex::new(to);
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..cpus {
            scope.spawn(|| {
                while let Some((one, load)) = work.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let found = play_once(programs, one, load);
                    let mut to = done.lock().unwrap_or_else(|e| e.into_inner());
                    keep(&mut to, key(one.name, &load.name), found);
                }
            });
        }
    });
}

/// What one allocator took for one load, and the smallest device, where it was asked for them.
type Once = (Option<Outcome<Usage>>, Option<Outcome<f64>>);

fn play_once(programs: &Programs, one: &Allocator, load: &Played) -> Once {
    let usage = one.asked.usage.then(|| {
        programs.run(one, "use", &load.what, Given::once(AMPLE)).and_then(|text| usage_of(&text))
    });
    let smallest = (one.asked.fits && load.trace).then(|| {
        let peak = programs.peak(&load.name)?;
        let guess = match &usage {
            Some(Ok(usage)) => usage.taken as u64,
            Some(Err(why)) => return Err(why.clone()),
            None => peak + peak / 4,
        };
        search(peak, guess, |bytes| {
            let said = programs.run(one, "fits", &load.what, Given::once(&bytes.to_string()))?;
            match said.trim() {
                "fits" => Ok(true),
                "full" => Ok(false),
                other => Err(format!("neither fits nor full: {other}")),
            }
        })
    });
    (usage, smallest)
}

fn keep(to: &mut Figures, key: String, (usage, smallest): Once) {
    match usage {
        Some(Ok(usage)) => drop(to.usage.insert(key.clone(), usage)),
        Some(Err(why)) => fail(to, format!("{key}/memory"), why),
        None => (),
    }
    match smallest {
        Some(Ok(bytes)) => drop(to.smallest.insert(key, bytes)),
        Some(Err(why)) => fail(to, format!("{key}/smallest device"), why),
        None => (),
    }
}

/// The line `use PEAK_LIVE PEAK_TAKEN`, then the driver's report.
fn usage_of(text: &str) -> Outcome<Usage> {
    let bad = || format!("not figures and a report: {text}");
    let (first, report) = text.split_once('\n').ok_or_else(bad)?;
    let words: Vec<&str> = first.split_whitespace().collect();
    let ["use", live, taken] = words[..] else { return Err(bad()) };
    let report: Value = serde_json::from_str(report).map_err(|e| format!("{e}: {text}"))?;
    if report["misuse"].as_array().is_none_or(|all| !all.is_empty()) {
        return Err(format!("the simulated driver saw misuse: {}", report["misuse"]));
    }
    let calls = report["calls"].as_object().ok_or_else(bad)?;
    if taken == "0" {
        return Err("it took no memory from the device".to_owned());
    }
    Ok(Usage {
        live: live.parse().map_err(|_| bad())?,
        taken: taken.parse().map_err(|_| bad())?,
        calls: count(calls, &MEMORY),
        fences: count(calls, &FENCES),
        driver_ms: report["time_us"].as_f64().ok_or_else(bad)? / 1000.0,
    })
}

/// How many calls have one of these names, with or without a version's ending.
fn count(calls: &Map<String, Value>, names: &[&str]) -> f64 {
    let plain = |name: &str| {
        let name = name.strip_suffix("_ptsz").unwrap_or(name);
        name.strip_suffix("_v2").unwrap_or(name).to_owned()
    };
    let wanted = calls.iter().filter(|(name, _)| names.contains(&plain(name).as_str()));
    // From 0: the sum of no floats is -0.
    wanted.filter_map(|(_, n)| n.as_f64()).fold(0.0, |sum, n| sum + n)
}

/// The smallest device in bytes that `fits`, to within [`STEP`] of `peak`, and a smaller one within
/// that step does not. Begins at `guess`, and goes up from there while that is too small.
fn search(peak: u64, guess: u64, mut fits: impl FnMut(u64) -> Outcome<bool>) -> Outcome<f64> {
    let least = peak.div_ceil(GRANULE).max(1);
    let step = ((peak as f64 * STEP) as u64 / GRANULE).max(1);
    let (mut low, mut high) = (least - 1, guess.div_ceil(GRANULE).max(least));
    while !fits(high * GRANULE)? {
        if high >= least * MOST {
            return Err(format!("not even on {MOST} times the peak of live bytes"));
        }
        low = high;
        high = (high + high.div_ceil(4)).min(least * MOST);
    }
    while high - low > step {
        let middle = low + (high - low) / 2;
        if fits(middle * GRANULE)? { high = middle } else { low = middle }
    }
    Ok((high * GRANULE) as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_search_finds_the_least_that_fits() {
        let peak = 1000 * GRANULE;
        for (needed, guess) in [(1000, 1000), (1003, 1400), (1400, 1010), (5000, 1000)] {
            let mut tried = 0;
            let found = search(peak, guess * GRANULE, |bytes| {
                tried += 1;
                Ok(bytes >= needed * GRANULE)
            });
            assert_eq!(found, Ok((needed * GRANULE) as f64), "{needed} from {guess}");
            assert!(tried < 25, "{tried}");
        }
        assert!(search(peak, peak, |_| Ok(false)).is_err_and(|why| why.contains("8 times")));
        assert_eq!(search(peak, peak, |_| Err("why".into())), Err("why".into()));
    }

    #[test]
    fn a_report_is_counted_by_kind() {
        let text = "use 1000 2000\n{\"calls\":{\"cuMemAlloc_v2\":3,\"cuMemFree_v2\":2,\
                    \"cuMemGetInfo_v2\":900,\"cuEventRecord\":5,\"cuEventQuery\":1},\
                    \"time_us\":4500.0,\"misuse\":[]}\n";
        let usage = usage_of(text).expect("figures");
        let wanted = Usage { live: 1000.0, taken: 2000.0, calls: 5.0, fences: 6.0, driver_ms: 4.5 };
        assert_eq!(usage, wanted);
        let misused = text.replace("[]", "[{\"kind\":\"k\",\"text\":\"t\"}]");
        assert!(usage_of(&misused).is_err_and(|why| why.contains("misuse")));
        assert!(usage_of("use 1 2").is_err());
        let none = text.replace("2000", "0");
        assert!(usage_of(&none).is_err_and(|why| why.contains("no memory")));
    }

    #[test]
    fn only_whole_lines_are_times() {
        assert_eq!(time_of("ns 12.5 13\n"), Ok((12.5, 13.0)));
        for bad in ["", "ns 1", "ns nan 2", "ms 1 2", "ns 1 2 3"] {
            assert!(time_of(bad).is_err(), "{bad}");
        }
    }
}
