//! Group `kv`: what the bookkeeping of a paged KV cache costs, by `benches/kv.rs`.

use super::{Row, gather, rows_from_json};
use crate::{Outcome, proc};

/// Measures all; `quick` runs fewer rounds.
pub fn run(quick: bool) -> Outcome<Vec<Row>> {
    let mut cargo = proc::cargo();
    cargo.args(["bench", "--quiet", "--bench", "kv", "--", "--json"]);
    cargo.args(quick.then_some("--quick"));
    rows_from_json(gather::object(&proc::capture(&mut cargo)?))
}
