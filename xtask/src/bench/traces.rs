//! Group `traces`: real models' allocation traces through the pool.
//!
//! Runs `forebay replay` on each trace: on an ample device, at 1.10 times the peak of live
//! bytes, and in search of the smallest device that finishes. Times are the minimum of
//! three runs on the ample device: once with everything (on a short trace mostly the driver's
//! own, page by page) and once after the first third. Owns the targets.
//! Traces: the repository's own, and those of `FOREBAY_TRACES` where that is set.

use super::{Row, number};
use crate::{Outcome, proc, programs};
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Smallest device over peak live bytes.
const SMALLEST_DEVICE: f64 = 1.02;
/// The device on which no page may move after the first third, over peak live bytes.
pub const AMPLE: f64 = 1.10;
/// Nanoseconds an event.
const EVENT_NS: f64 = 150.0;

/// The replay's figures that are times.
const TIMES: [&str; 2] = ["ns_per_event", "ns_per_event_after_warmup"];

/// Measures every trace; `quick` takes only the repository's own.
pub fn run(quick: bool) -> Outcome<Vec<Row>> {
    let traces = traces(quick);
    if traces.is_empty() {
        return Err("no traces in tests/traces or FOREBAY_TRACES".to_owned());
    }
    let forebay = programs::build_command()?;
    let mut rows = Vec::new();
    for (name, trace) in traces {
        println!("  {name}");
        rows.extend(measure(&forebay, &name, &trace)?);
    }
    Ok(rows)
}

/// Name and file of each trace, sorted by name; the same name is taken once.
pub fn traces(quick: bool) -> BTreeMap<String, PathBuf> {
    let mut dirs = vec!["tests/traces".to_owned()];
    if let (false, Ok(dir)) = (quick, std::env::var("FOREBAY_TRACES")) {
        dirs.push(dir);
    }
    let files = dirs.iter().flat_map(|dir| proc::files(dir, &["csv", "gz"]));
    files.filter_map(|file| Some((trace_name(&file)?, proc::root().join(file)))).collect()
}

/// The file's name without `.csv` or `.csv.gz`; nothing for other files.
fn trace_name(file: &Path) -> Option<String> {
    let name = file.file_name()?.to_str()?;
    Some(name.strip_suffix(".csv.gz").or_else(|| name.strip_suffix(".csv"))?.to_owned())
}

fn measure(forebay: &Path, name: &str, trace: &Path) -> Outcome<Vec<Row>> {
    let mut plain = replay(forebay, trace, &[], None)?;
    let peak_live = number(&plain, "peak_live_bytes")?;
    let ample = format!("{}", (peak_live * AMPLE) as u64);
    let tight = replay(forebay, trace, &["--device-bytes", &ample], None)?;
    let least = replay(forebay, trace, &["--smallest-device"], None)?;
    let again = replay(forebay, trace, &[], None)?;
    // Three runs on the ample device; the least disturbed one tells the time.
    for field in TIMES {
        let mut best = number(&plain, field)?;
        for run in [&least, &again] {
            best = best.min(number(run, field)?);
        }
        plain.insert(field.to_owned(), best.into());
    }
    rows(name, &plain, &tight, &least)
}

/// What one replay printed; on the simulated CUDA driver in a folder, if one is given, else on
/// host memory.
pub fn replay(
    forebay: &Path,
    trace: &Path,
    more: &[&str],
    simulated: Option<&Path>,
) -> Outcome<Map<String, Value>> {
    let mut command = proc::program(forebay);
    let backend = if simulated.is_some() { "cuda" } else { "host" };
    command.arg("replay").arg(trace).args(["--backend", backend, "--json"]).args(more);
    command.envs(simulated.into_iter().flat_map(super::on_simulated));
    let said = proc::capture(&mut command)?;
    match serde_json::from_str(&said) {
        Ok(Value::Object(object)) => Ok(object),
        _ => Err(format!("{}: not one JSON object:\n{said}", proc::describe(&command))),
    }
}

/// The rows of one trace, from what its three replays printed.
fn rows(
    name: &str,
    plain: &Map<String, Value>,
    tight: &Map<String, Value>,
    least: &Map<String, Value>,
) -> Outcome<Vec<Row>> {
    const MIB: f64 = 1024.0 * 1024.0;
    let row = |what: &str, value: f64, unit: &str, target: Option<f64>| {
        Row::new(format!("traces/{name}/{what}"), value, unit, target)
    };
    let peak = number(plain, "peak_live_bytes")?;
    let smallest = number(least, "smallest_device_bytes")? / peak;
    let mapped = number(plain, "peak_mapped_bytes")? / peak;
    let mut rows = vec![
        row("smallest device", smallest, "x peak live", Some(SMALLEST_DEVICE)),
        row(
            "pages moved at 1.10x",
            number(tight, "pages_moved_after_first_third")?,
            "pages",
            Some(0.0),
        ),
        row("peak mapped", mapped, "x peak live", None),
        row("trapped mean", number(plain, "trapped_mean_bytes")? / MIB, "MiB", None),
        row("trapped max", number(plain, "trapped_peak_bytes")? / MIB, "MiB", None),
        row("time per event", number(plain, "ns_per_event")?, "ns", Some(EVENT_NS)),
        row(
            "time per event after the first third",
            number(plain, "ns_per_event_after_warmup")?,
            "ns",
            Some(EVENT_NS),
        ),
        row("leaked", number(plain, "leaked_bytes")?, "bytes", Some(0.0)),
        row("driver calls", number(plain, "driver_calls")?, "calls", None),
    ];
    let kinds = plain.get("driver_calls_by_kind").and_then(Value::as_object);
    for (kind, count) in kinds.ok_or("no driver_calls_by_kind in the JSON")? {
        if let Some(count) = count.as_f64().filter(|c| *c > 0.0) {
            rows.push(row(&format!("driver calls/{kind}"), count, "calls", None));
        }
    }
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn object(value: Value) -> Map<String, Value> {
        value.as_object().expect("an object").clone()
    }

    #[test]
    fn three_replays_make_the_rows() {
        let plain = object(json!({
            "events": 10, "peak_live_bytes": 1000, "peak_mapped_bytes": 1200,
            "trapped_mean_bytes": 1048576, "trapped_peak_bytes": 2097152, "driver_calls": 7,
            "ns_per_event": 151.0, "ns_per_event_after_warmup": 50.0, "leaked_bytes": 0,
            "driver_calls_by_kind": {"create": 4, "map": 3, "unmap": 0}
        }));
        let tight = object(json!({"pages_moved_after_first_third": 2}));
        let least = object(json!({"smallest_device_bytes": 1010}));
        let rows = rows("x", &plain, &tight, &least).expect("complete");
        let find = |what: &str| {
            let name = format!("traces/x/{what}");
            let row = rows.iter().find(|r| r.name == name).expect("there");
            (row.value, row.met)
        };
        assert_eq!(find("smallest device"), (1.01, Some(true)));
        assert_eq!(find("pages moved at 1.10x"), (2.0, Some(false)));
        assert_eq!(find("peak mapped"), (1.2, None));
        assert_eq!(find("trapped max"), (2.0, None));
        assert_eq!(find("time per event"), (151.0, Some(false)));
        assert_eq!(find("driver calls/create"), (4.0, None));
        assert_eq!(find("time per event after the first third"), (50.0, Some(true)));
        assert_eq!(rows.len(), 11);
    }

    #[test]
    fn trace_names_lose_their_endings() {
        assert_eq!(trace_name(Path::new("a/b.csv.gz")), Some("b".into()));
        assert_eq!(trace_name(Path::new("b.csv")), Some("b".into()));
        assert_eq!(trace_name(Path::new("b.json.gz")), None);
    }
}
