//! The rows of the group, out of its figures.
//!
//! Owns their names: `peers/WHAT/LOAD`, ours as the value and the others' beside it. A ratio that
//! is judged is ours over theirs, so that a target is the most it may be. Without a figure the
//! value is not a number, and a target is missed.

use super::play::{Figures, Played, Usage, key};
use super::{ALLOCATORS, Load, OURS, SMALLEST_POINTS, TIMES};
use crate::bench::Row;

/// All rows.
pub fn rows(loads: &[Load], played: &[Played], figures: &Figures) -> Vec<Row> {
    let mut rows = Vec::new();
    for load in loads.iter().map(|l| l.name) {
        let least = |name: &str| figures.times.least(&key(name, load));
        let median = |name: &str| figures.times.median(&key(name, load));
        rows.push(beside(format!("peers/time/{load}"), "ns", least));
        rows.push(beside(format!("peers/time median/{load}"), "ns", median));
    }
    for load in played {
        let of = |field: fn(&Usage) -> f64| {
            move |name: &str| figures.usage.get(&key(name, &load.name)).map(field)
        };
        let row = |what: &str, unit: &str, field: fn(&Usage) -> f64| {
            beside(format!("peers/{what}/{}", load.name), unit, of(field))
        };
        rows.push(row("footprint", "x peak live", |u| u.taken / u.live));
        rows.push(row("driver calls", "calls", |u| u.calls));
        rows.push(row("fence calls", "calls", |u| u.fences));
        rows.push(row("driver time", "ms", |u| u.driver_ms));
    }
    for load in played.iter().filter(|p| p.trace) {
        rows.push(smallest(load, figures));
    }
    rows.extend(judged(loads, figures));
    rows.extend(judged_devices(&rows));
    let skipped = figures.skipped.iter().map(|(name, why)| (name, why.lines().next()));
    rows.extend(skipped.map(|(name, why)| {
        Row::new(format!("peers/skipped/{name}: {}", why.unwrap_or("")), f64::NAN, "", Some(0.0))
    }));
    rows
}

/// Ours, with every other allocator's figure beside it.
fn beside(name: String, unit: &str, figure: impl Fn(&str) -> Option<f64>) -> Row {
    let mut row = Row::new(name, figure(OURS).unwrap_or(f64::NAN), unit, None);
    let others = ALLOCATORS.iter().filter(|a| a.name != OURS);
    row.peers = others.filter_map(|a| Some((a.name.to_owned(), figure(a.name)?))).collect();
    row
}

/// The smallest device over peak live bytes. The peak is the trace's, the same for all.
fn smallest(load: &Played, figures: &Figures) -> Row {
    let live = figures.usage.get(&key(OURS, &load.name)).map_or(f64::NAN, |u| u.live);
    beside(format!("peers/smallest device/{}", load.name), "x peak live", |name| {
        figures.smallest.get(&key(name, &load.name)).map(|bytes| bytes / live)
    })
}

/// Our times over those that they are judged by.
fn judged(loads: &[Load], figures: &Figures) -> Vec<Row> {
    let mut rows = Vec::new();
    for (load, peer, most) in TIMES {
        if !loads.iter().any(|l| l.name == *load) {
            continue;
        }
        let ours = figures.times.least(&key(OURS, load));
        let theirs = figures.times.least(&key(peer, load));
        let ratio = ours.zip(theirs).map_or(f64::NAN, |(ours, theirs)| ours / theirs);
        let name = format!("peers/{load}: time over {peer}'s");
        rows.push(Row::new(name, ratio, "x", Some(*most)));
    }
    rows
}

/// Our smallest device on each trace beside the best peer's, and on how many traces some peer
/// needs no more than we do: fewer than half, or we are not below all on most.
fn judged_devices(rows: &[Row]) -> Vec<Row> {
    let mut judged = Vec::new();
    let mut not_below = 0;
    let traces: Vec<&Row> =
        rows.iter().filter(|r| r.name.starts_with("peers/smallest device/")).collect();
    for row in &traces {
        let best = row.peers.values().copied().reduce(f64::min);
        let points = best.map_or(f64::NAN, |best| (row.value - best) * 100.0);
        let trace = row.name.rsplit('/').next().unwrap_or_default();
        let name = format!("peers/{trace}: smallest device less the best peer's");
        judged.push(Row::new(name, points, "points", Some(SMALLEST_POINTS)));
        // Also where a figure is missing: a comparison with it is false.
        if !matches!(points.partial_cmp(&0.0), Some(std::cmp::Ordering::Less)) {
            not_below += 1;
        }
    }
    if !traces.is_empty() {
        let most = (traces.len() - 1) / 2;
        let name = "peers/traces where a peer needs no more";
        judged.push(Row::new(name, f64::from(not_below), "traces", Some(most as f64)));
    }
    judged
}

#[cfg(test)]
mod tests {
    use super::super::{HOT, HOT_LOAD};
    use super::*;

    fn figures() -> Figures {
        let mut figures = Figures::default();
        for (name, ns) in [(OURS, 10.0), ("torch", 250.0), ("mimalloc", 5.0)] {
            figures.times.add(vec![(key(name, HOT), ns, ns + 1.0)]);
        }
        let usage = Usage { live: 100.0, taken: 110.0, calls: 7.0, fences: 2.0, driver_ms: 1.5 };
        for trace in ["a", "b"] {
            figures.usage.insert(key(OURS, trace), usage);
            figures.smallest.insert(key(OURS, trace), 101.0);
            figures.smallest.insert(key("torch", trace), if trace == "a" { 120.0 } else { 100.5 });
            figures.smallest.insert(key("tlsf", trace), 130.0);
        }
        figures.skipped.insert("cub".into(), "no index\nsecond line".into());
        figures
    }

    fn made() -> Vec<Row> {
        let trace = |name: &str| Played { name: name.into(), what: "x".into(), trace: true };
        rows(&[HOT_LOAD], &[trace("a"), trace("b")], &figures())
    }

    fn find(name: &str) -> Row {
        made().into_iter().find(|r| r.name == name).unwrap_or_else(|| panic!("no row {name}"))
    }

    #[test]
    fn times_stand_beside_each_other_and_are_judged_by_ratio() {
        let hot = find("peers/time/hot");
        assert_eq!((hot.value, hot.peers["torch"], hot.met), (10.0, 250.0, None));
        assert_eq!(find("peers/time median/hot").value, 11.0);
        let torch = find("peers/hot: time over torch's");
        assert_eq!((torch.value, torch.met), (0.04, Some(true)));
        let mimalloc = find("peers/hot: time over mimalloc's");
        assert_eq!((mimalloc.value, mimalloc.met), (2.0, Some(false)));
        // Not measured: never met.
        let fixed = find("peers/hot: time over rmm-fixed's");
        assert_eq!((fixed.value.is_nan(), fixed.met), (true, Some(false)));
    }

    #[test]
    fn devices_are_compared_with_the_best_peers() {
        assert_eq!(find("peers/footprint/a").value, 1.1);
        assert_eq!(find("peers/smallest device/a").value, 1.01);
        let a = find("peers/a: smallest device less the best peer's");
        assert!((a.value + 19.0).abs() < 1e-9 && a.met == Some(true), "{a:?}");
        let b = find("peers/b: smallest device less the best peer's");
        assert!((b.value - 0.5).abs() < 1e-9 && b.met == Some(false), "{b:?}");
        let most = find("peers/traces where a peer needs no more");
        assert_eq!((most.value, most.target, most.met), (1.0, Some(0.0), Some(false)));
    }

    #[test]
    fn what_cannot_be_had_is_a_row_that_is_not_met() {
        let skipped = find("peers/skipped/cub: no index");
        assert_eq!((skipped.value.is_nan(), skipped.met), (true, Some(false)));
    }
}
