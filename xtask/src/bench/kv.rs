//! Group `kv`: what the bookkeeping of a paged KV cache costs, by `benches/kv.rs`, beside NVIDIA's
//! block manager and vLLM's (`BlockPool`, and `KVCacheManager` above it), by `benches/kv_peers`;
//! what memory behind it costs; and how much of that holds tokens under real requests, by
//! `benches/kv_traces.rs`. The last needs the requests, in the folder `traces` beside that of
//! `FOREBAY_TRACES`.

use super::{Row, gather, rows_from_json};
use crate::programs::real_requests;
use crate::{Outcome, proc};
use serde_json::{Map, Value};

/// Measures all; `quick` runs fewer rounds, and an eighth of the requests.
pub fn run(quick: bool) -> Outcome<Vec<Row>> {
    let peers = [("kvbm-logical", kvbm as Peer), ("vllm", vllm), ("vllm-manager", vllm_manager)];
    let peers = peers.map(|(name, peer)| {
        let figures = peer(quick).unwrap_or_else(|why| {
            println!("  skipped: {name}: {why}");
            Map::new()
        });
        (name, figures)
    });
    let mut rows = bench("kv", &[], quick)?;
    for row in &mut rows {
        let load = row.name.trim_start_matches("kv/");
        let found = peers
            .iter()
            .filter_map(|(name, figures)| Some(((*name).to_owned(), figures.get(load)?.as_f64()?)));
        row.peers = found.collect();
    }
    if let Some(folder) = real_requests("mooncake_conversation_trace.jsonl.gz") {
        let folder = folder.display().to_string();
        rows.extend(bench("kv_traces", &["--traces", &folder], quick)?);
    } else {
        println!("  skipped: requests of real services (beside the folder of FOREBAY_TRACES)");
    }
    Ok(rows)
}

/// What a peer takes for each load, in the unit of the cache's own row.
type Peer = fn(bool) -> Outcome<Map<String, Value>>;

/// NVIDIA's block manager, from crates.io.
fn kvbm(quick: bool) -> Outcome<Map<String, Value>> {
    let target = proc::target_dir().join("kv-peers");
    let mut cargo = proc::cargo();
    cargo.args([
        "build",
        "--release",
        "--locked",
        "--manifest-path",
        "benches/kv_peers/Cargo.toml",
    ]);
    proc::run(cargo.arg("--target-dir").arg(&target))?;
    let mut program = proc::program(target.join("release/forebay-bench-kv-peers"));
    object(&proc::capture(program.args(quick.then_some("--quick")))?)
}

/// vLLM's own `BlockPool`, out of the source of its release.
fn vllm(quick: bool) -> Outcome<Map<String, Value>> {
    python("benches/kv_peers/vllm_pool.py", quick)
}

/// Its `KVCacheManager` above that, what its scheduler calls.
fn vllm_manager(quick: bool) -> Outcome<Map<String, Value>> {
    python("benches/kv_peers/vllm_manager.py", quick)
}

fn python(script: &str, quick: bool) -> Outcome<Map<String, Value>> {
    let mut python = proc::program("python3");
    python.arg(script).arg(proc::target_dir().join("vllm-source"));
    python.current_dir(proc::root()).env("PYTHONDONTWRITEBYTECODE", "1");
    object(&proc::capture(python.args(quick.then_some("--quick")))?)
}

fn object(text: &str) -> Outcome<Map<String, Value>> {
    match serde_json::from_str(text) {
        Ok(Value::Object(object)) => Ok(object),
        _ => Err(format!("not one JSON object:\n{text}")),
    }
}

fn bench(name: &str, more: &[&str], quick: bool) -> Outcome<Vec<Row>> {
    let mut cargo = proc::cargo();
    cargo.args(["bench", "--quiet", "--bench", name, "--", "--json"]).args(more);
    cargo.args(quick.then_some("--quick"));
    rows_from_json(gather::object(&proc::capture(&mut cargo)?))
}
