//! `cargo xtask bench`: the groups, their rows as a table, and as JSON.
//!
//! Owns the form of a row, which outside readers rely on: `{"rows":[{"name","value","unit",
//! "target","met","peers":{}}]}`. Measures nothing itself; groups do. A target that is
//! missed is printed and written, and does not fail the command: whoever reads the rows
//! judges them on a machine they know.

mod cuda;
mod gather;
mod kv;
mod peers;
mod plan;
mod plan_run;
mod pool;
mod preload;
mod torch;
mod traces;

use crate::args::Args;
use crate::{Outcome, proc};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::Path;

/// The command's form.
pub const USAGE: &str = "bench [pool|traces|gather|plan|plan-run|cuda|preload|kv|peers|torch] \
                         [--quick] [--json FILE] [--write]";

/// One measured figure.
#[derive(Clone, PartialEq, Debug)]
pub struct Row {
    /// What was measured; group first, e.g. `pool/hot/4KiB`.
    pub name: String,
    /// The figure.
    pub value: f64,
    /// Its unit, e.g. `ns`; `x` for a ratio.
    pub unit: String,
    /// The figure must be at most this, if there is a target.
    pub target: Option<f64>,
    /// Whether it is.
    pub met: Option<bool>,
    /// The same figure for others, measured in the same run.
    pub peers: BTreeMap<String, f64>,
}

impl Row {
    /// A row; with a target it says whether `value` is at most that.
    pub fn new(name: impl Into<String>, value: f64, unit: &str, target: Option<f64>) -> Row {
        let met = target.map(|most| value <= most);
        let (name, unit) = (name.into(), unit.to_owned());
        Row { name, value, unit, target, met, peers: BTreeMap::new() }
    }

    fn to_json(&self) -> Value {
        json!({
            "name": self.name,
            "value": self.value,
            "unit": self.unit,
            "target": self.target,
            "met": self.met,
            "peers": self.peers,
        })
    }

    fn from_json(value: &Value) -> Outcome<Row> {
        let bad = |what: &str| format!("a bench row without {what}: {value}");
        let peers = value.get("peers").and_then(Value::as_object).cloned().unwrap_or_default();
        Ok(Row {
            name: value["name"].as_str().ok_or_else(|| bad("a name"))?.to_owned(),
            value: value["value"].as_f64().ok_or_else(|| bad("a value"))?,
            unit: value["unit"].as_str().ok_or_else(|| bad("a unit"))?.to_owned(),
            target: value["target"].as_f64(),
            met: value["met"].as_bool(),
            peers: peers.iter().filter_map(|(k, v)| Some((k.clone(), v.as_f64()?))).collect(),
        })
    }
}

/// All rows as the JSON object that outside readers know.
pub fn rows_to_json(rows: &[Row]) -> Value {
    json!({ "rows": rows.iter().map(Row::to_json).collect::<Vec<_>>() })
}

/// The rows of such an object.
pub fn rows_from_json(text: &str) -> Outcome<Vec<Row>> {
    let value: Value = serde_json::from_str(text).map_err(|e| format!("not JSON: {e}"))?;
    let rows = value.get("rows").and_then(Value::as_array).ok_or("no \"rows\" in the JSON")?;
    rows.iter().map(Row::from_json).collect()
}

type Group = (&'static str, fn(bool) -> Outcome<Vec<Row>>);
const GROUPS: &[Group] = &[
    ("pool", pool::run),
    ("traces", traces::run),
    ("gather", gather::run),
    ("plan", plan::run),
    ("plan-run", plan_run::run),
    ("cuda", cuda::run),
    ("preload", preload::run),
    ("kv", kv::run),
    ("peers", peers::run),
    ("torch", torch::run),
];

/// The environment of a program that is to find the simulated CUDA driver in `folder`: devices
/// larger than any trace, whose fresh memory is not filled, since nothing reads it.
pub fn on_simulated(folder: &Path) -> [(&'static str, OsString); 3] {
    [
        ("LD_LIBRARY_PATH", folder.into()),
        ("FOREBAY_SIM_MEMORY", "512GiB".into()),
        ("FOREBAY_SIM_POISON", "none".into()),
    ]
}

/// Runs one group or all; `--write` puts the tables of `peers` into its page. A group that cannot
/// run fails the command after the others ran.
pub fn run(mut args: Args) -> Outcome<()> {
    let quick = args.flag("--quick");
    let write = args.flag("--write");
    let json = args.value("--json")?;
    let wanted = args.rest()?;
    if let Some(unknown) = wanted.iter().find(|w| !GROUPS.iter().any(|(name, _)| name == w)) {
        return Err(format!("no bench group {unknown:?}: {USAGE}"));
    }
    let mut rows = Vec::new();
    let mut failed = Vec::new();
    for (name, measure) in GROUPS {
        if !wanted.is_empty() && !wanted.iter().any(|w| w == name) {
            continue;
        }
        println!("bench {name}");
        match measure(quick) {
            Ok(measured) => {
                print!("{}", table(&measured));
                if write && *name == "peers" {
                    let quick = if quick { " --quick" } else { "" };
                    peers::write(&measured, &format!("cargo xtask bench peers{quick} --write"))?;
                }
                rows.extend(measured);
            }
            Err(why) => failed.push(format!("{name}: {why}")),
        }
    }
    if let Some(file) = json {
        let here = std::env::current_dir().map_err(|e| e.to_string())?.join(file);
        proc::write(here, &format!("{:#}\n", rows_to_json(&rows)))?;
    }
    let judged = rows.iter().filter(|r| r.met.is_some()).count();
    let met = rows.iter().filter(|r| r.met == Some(true)).count();
    println!("{} rows, {met} of {judged} targets met", rows.len());
    if failed.is_empty() { Ok(()) } else { Err(failed.join("; ")) }
}

/// The rows for people.
fn table(rows: &[Row]) -> String {
    let width = rows.iter().map(|r| r.name.chars().count()).max().unwrap_or(0);
    let mut text = String::new();
    for row in rows {
        let target = row.target.map_or(String::new(), |t| format!("<= {}", figure(t)));
        let met = match row.met {
            Some(true) => "met",
            Some(false) => "MISSED",
            None => "",
        };
        let value = format!("{} {}", figure(row.value), row.unit);
        let mut line = format!("  {:width$}  {value:>18}  {target:>12}  {met:6}", row.name);
        for (peer, theirs) in &row.peers {
            line.push_str(&format!("  {peer} {}", figure(*theirs)));
            if row.value > 0.0 {
                line.push_str(&format!(" ({:.2}x)", theirs / row.value));
            }
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

/// A figure with as many digits as it needs.
fn figure(value: f64) -> String {
    if value == value.trunc() && value.abs() < 1e15 {
        format!("{value:.0}")
    } else if value.abs() < 10.0 {
        format!("{value:.4}")
    } else {
        format!("{value:.1}")
    }
}

/// A number out of a JSON object.
fn number(object: &Map<String, Value>, key: &str) -> Outcome<f64> {
    object.get(key).and_then(Value::as_f64).ok_or_else(|| format!("no number {key:?} in the JSON"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_have_the_fixed_form_and_come_back_the_same() {
        let mut row = Row::new("pool/hot", 13.5, "ns", Some(20.0));
        row.peers.insert("mimalloc".into(), 12.0);
        let bare = Row::new("traces/x/peak", 3.0, "x", None);
        let json = rows_to_json(&[row.clone(), bare.clone()]);
        assert_eq!(
            json["rows"][0],
            json!({"name": "pool/hot", "value": 13.5, "unit": "ns", "target": 20.0,
                "met": true, "peers": {"mimalloc": 12.0}})
        );
        let keys: Vec<&String> = json["rows"][1].as_object().expect("an object").keys().collect();
        assert_eq!(keys, ["met", "name", "peers", "target", "unit", "value"]);
        assert_eq!(json["rows"][1]["met"], Value::Null);
        assert_eq!(rows_from_json(&json.to_string()), Ok(vec![row, bare]));
    }

    #[test]
    fn a_missed_target_is_told() {
        let row = Row::new("a", 21.0, "ns", Some(20.0));
        assert_eq!(row.met, Some(false));
        assert!(table(&[row]).contains("MISSED"));
        assert!(rows_from_json("{\"rows\":[{\"name\":\"a\"}]}").is_err());
        assert!(rows_from_json("{}").is_err());
    }
}
