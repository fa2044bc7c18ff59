//! Group `cuda`: the pool on the simulated CUDA driver.
//!
//! Three sources: the bench program `benches/cuda.rs` (calls by the simulation's own count, and
//! modelled time), the C harness of group `pool` with the simulated driver behind the shipped
//! library (nanoseconds, fences included), and `forebay replay --backend cuda` (what moves after
//! the first third at 1.10 times the peak). No figure here is a GPU's.

use super::pool::process::{Ended, Programs};
use super::{Row, gather, number, rows_from_json, traces};
use crate::test::stage_sim;
use crate::{Outcome, proc, programs};
use std::path::Path;

/// Rows of the harness: its name, the door, nanoseconds a pair at most.
const HOT: [(&str, &str, f64); 2] = [("hot-10k", "pool", 22.0), ("sync-4k-1", "malloc", 50.0)];
const PROCESSES: usize = 5;

/// Measures all; `quick` runs shorter loads and the repository's own traces only.
pub fn run(quick: bool) -> Outcome<Vec<Row>> {
    let library = stage_sim()?;
    let mut rows = hot(&library)?;
    let mut cargo = proc::cargo();
    cargo.args(["bench", "--quiet", "--bench", "cuda", "--", "--json"]);
    cargo
        .args(quick.then_some("--quick"))
        .env("FOREBAY_SIMULATED_DRIVER", library.join("libcuda.so.1"));
    rows.extend(rows_from_json(gather::object(&proc::capture(&mut cargo)?))?);
    let forebay = programs::build_command()?;
    for (name, trace) in traces::traces(quick) {
        rows.extend(replays(&forebay, &library, &name, &trace)?);
    }
    Ok(rows)
}

/// The least of several processes, through `dlopen`, defaults on.
fn hot(library: &Path) -> Outcome<Vec<Row>> {
    let programs = Programs::build()?;
    let mut rows = Vec::new();
    for (row, door, most) in HOT {
        let mut least = f64::INFINITY;
        for round in 0..PROCESSES {
            let on = Some(library);
            match programs.run_on(&format!("{row}@{door}"), round, on) {
                Ended::Measured(lines) => {
                    least = lines.iter().fold(least, |least, (_, ns, _)| least.min(*ns));
                }
                Ended::Uncertified(said) | Ended::Failed(said) => return Err(said),
            }
        }
        let name = if door == "malloc" { "sync lane" } else { "one stream" };
        rows.push(Row::new(format!("cuda/hot pair/{name}"), least, "ns", Some(most)));
    }
    Ok(rows)
}

/// One trace at 1.10 times its peak of live bytes: what moves once it is warm, and the calls.
fn replays(forebay: &Path, library: &Path, name: &str, trace: &Path) -> Outcome<Vec<Row>> {
    let on = Some(library);
    let plain = traces::replay(forebay, trace, &[], on)?;
    let ample = format!("{}", (number(&plain, "peak_live_bytes")? * traces::AMPLE) as u64);
    let tight = traces::replay(forebay, trace, &["--device-bytes", &ample], on)?;
    let row = |what: &str, value: f64, unit: &str, target: Option<f64>| {
        Row::new(format!("cuda/replay/{name}/{what}"), value, unit, target)
    };
    let mut rows = vec![
        row(
            "pages moved at 1.10x",
            number(&tight, "pages_moved_after_first_third")?,
            "pages",
            Some(0.0),
        ),
        row("leaked", number(&tight, "leaked_bytes")?, "bytes", Some(0.0)),
    ];
    let kinds = tight.get("driver_calls_by_kind").and_then(serde_json::Value::as_object);
    for (kind, count) in kinds.ok_or("no driver_calls_by_kind in the JSON")? {
        if let Some(count) = count.as_f64().filter(|c| *c > 0.0) {
            rows.push(row(kind, count, "calls", None));
        }
    }
    Ok(rows)
}
