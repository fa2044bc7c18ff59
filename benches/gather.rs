//! What room costs: requests out of a checkerboard, and all of a capped pool's limit.
//!
//! A device of 1 GiB of host memory. Driver calls are counted, fences included; times are
//! medians, printed without a target: they are the host's, not a GPU's. `--json` prints
//! `{"rows":[...]}`; `--quick` takes fewer rounds. Cost: some seconds.

#[path = "../tests/rust/common/device.rs"]
mod common;
#[path = "../tests/rust/common/rounds.rs"]
mod rounds;

use common::MIB;
use forebay::driver::Driver;
use rounds::{GRANULE, Gathered};
use std::fmt::Write as _;
use std::sync::Arc;

const DEVICE_BYTES: usize = 1 << 30;

/// One measured figure; a target is the most it may be.
struct Row {
    name: String,
    value: f64,
    unit: &'static str,
    target: Option<f64>,
}

fn main() {
    let quick = std::env::args().any(|arg| arg == "--quick");
    let json = std::env::args().any(|arg| arg == "--json");
    let mut rows = Vec::new();
    for bytes in [4 * MIB, 64 * MIB, 512 * MIB] {
        checkerboard(bytes, if quick { 1 } else { 5 }, &mut rows);
    }
    let mut bytes = GRANULE;
    while bytes <= DEVICE_BYTES {
        capped(bytes, if quick { 1 } else { 3 }, &mut rows);
        bytes *= 2;
    }
    print!("{}", if json { as_json(&rows) } else { as_table(&rows) });
}

fn checkerboard(bytes: usize, times: usize, rows: &mut Vec<Row>) {
    let (driver, pool) = common::small_pool(DEVICE_BYTES);
    rounds::warm_up(&pool).expect("an empty pool");
    let mut runs: Vec<Gathered> = (0..times)
        .map(|_| rounds::checkerboard(&driver, &pool, bytes).expect("idle pages suffice"))
        .collect();
    common::end(&driver, pool, &[]);
    runs.sort_by_key(|run| run.ns);
    let (most, median) = (runs.iter().max_by_key(|run| run.calls), runs[runs.len() / 2]);
    let most = most.expect("at least one run");
    let name = |what| format!("gather/checkerboard/{}MiB/{what}", bytes / MIB);
    let calls = most.calls as f64;
    let target = Some(most.most() as f64);
    rows.push(Row { name: name("calls"), value: calls, unit: "calls", target });
    rows.push(Row { name: name("pages"), value: most.pages as f64, unit: "pages", target: None });
    rows.push(Row { name: name("runs"), value: most.runs as f64, unit: "runs", target: None });
    rows.push(Row { name: name("time"), value: median.ns as f64, unit: "ns", target: None });
}

/// The bytes of the limit that could not be had in blocks of `bytes`, in the worst of some
/// histories, while other threads sleep with full magazines.
fn capped(bytes: usize, times: usize, rows: &mut Vec<Row>) {
    let mut missing = 0;
    for seed in 0..times as u64 {
        let (driver, pool) = common::small_pool(DEVICE_BYTES);
        let pool = Arc::new(pool);
        let streams: Vec<u64> =
            (0..4).map(|_| driver.stream_create().expect("a stream").0).collect();
        let past = (seed + bytes as u64, 20_000);
        let got = rounds::take_capped(&pool, &streams, past, bytes).expect("a live pool");
        missing = missing.max(DEVICE_BYTES - got);
        let pool = Arc::into_inner(pool).expect("the sleepers are gone");
        common::end(&driver, pool, &streams);
    }
    rows.push(Row {
        name: format!("gather/capped/{}MiB/missing", bytes / MIB),
        value: missing as f64,
        unit: "bytes",
        target: Some(0.0),
    });
}

fn as_json(rows: &[Row]) -> String {
    let mut text = String::from("{\"rows\":[");
    for (i, row) in rows.iter().enumerate() {
        let comma = if i > 0 { "," } else { "" };
        let (target, met) = match row.target {
            Some(most) => (most.to_string(), (row.value <= most).to_string()),
            None => ("null".to_owned(), "null".to_owned()),
        };
        write!(
            text,
            "{comma}{{\"name\":\"{}\",\"value\":{},\"unit\":\"{}\",\"target\":{target},\
             \"met\":{met},\"peers\":{{}}}}",
            row.name, row.value, row.unit
        )
        .expect("strings take text");
    }
    text.push_str("]}\n");
    text
}

fn as_table(rows: &[Row]) -> String {
    let mut text = String::new();
    for row in rows {
        let judged = row.target.map_or(String::new(), |most| {
            let met = if row.value <= most { "met" } else { "MISSED" };
            format!("at most {most}  {met}")
        });
        writeln!(text, "{:42} {:>12} {:6} {judged}", row.name, row.value, row.unit)
            .expect("strings take text");
    }
    text
}
