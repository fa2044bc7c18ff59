//! Group `kv`: what the bookkeeping of a paged KV cache costs, by `benches/kv.rs`, and how much of
//! its memory holds tokens under real requests, by `benches/kv_traces.rs`. The second needs the
//! requests, in the folder `traces` beside that of `FOREBAY_TRACES`.

use super::{Row, gather, rows_from_json};
use crate::{Outcome, proc};
use std::path::PathBuf;

/// Measures all; `quick` runs fewer rounds, and an eighth of the requests.
pub fn run(quick: bool) -> Outcome<Vec<Row>> {
    let mut rows = bench("kv", &[], quick)?;
    let traces = std::env::var_os("FOREBAY_TRACES").map(PathBuf::from).unwrap_or_default();
    let requests = traces.join("../traces");
    if requests.join("mooncake_conversation_trace.jsonl.gz").is_file() {
        let folder = requests.display().to_string();
        rows.extend(bench("kv_traces", &["--traces", &folder], quick)?);
    } else {
        println!("  skipped: requests of real services (beside the folder of FOREBAY_TRACES)");
    }
    Ok(rows)
}

fn bench(name: &str, more: &[&str], quick: bool) -> Outcome<Vec<Row>> {
    let mut cargo = proc::cargo();
    cargo.args(["bench", "--quiet", "--bench", name, "--", "--json"]).args(more);
    cargo.args(quick.then_some("--quick"));
    rows_from_json(gather::object(&proc::capture(&mut cargo)?))
}
