//! One JSON of a run's steps, and the tables that a reader sees first.
//!
//! Owns the join of what `run.sh` leaves in a folder: `steps`, a line a step (name, state,
//! seconds, reason, apart by tabs), `NAME.json` where a step wrote one, `NAME.log` with what it
//! printed, `facts` (a key and a value a line). A step's JSON that cannot be read is told in its
//! place and spoils nothing else. Asks no driver.

use crate::Words;
use crate::report;
use serde_json::{Map, Value, json};
use std::path::{Path, PathBuf};

/// Last lines of a failed step's output that go into the JSON.
const LOG_LINES: usize = 40;

/// A step, as `run.sh` told it.
struct Step {
    name: String,
    state: String,
    seconds: u64,
    reason: String,
}

impl Step {
    fn parse(line: &str) -> Option<Step> {
        let mut parts = line.split('\t');
        let (name, state) = (parts.next()?.to_owned(), parts.next()?.to_owned());
        let seconds = parts.next()?.parse().ok()?;
        Some(Step { name, state, seconds, reason: parts.next().unwrap_or_default().to_owned() })
    }

    fn json(&self, from: &Path) -> Value {
        let mut object = Map::new();
        object.insert("step".into(), json!(self.name));
        object.insert("state".into(), json!(self.state));
        object.insert("seconds".into(), json!(self.seconds));
        if !self.reason.is_empty() {
            object.insert("reason".into(), json!(self.reason));
        }
        if let Some(result) = result(&from.join(format!("{}.json", self.name))) {
            object.insert("result".into(), result);
        }
        if self.state == "failed" {
            let log = std::fs::read(from.join(format!("{}.log", self.name))).unwrap_or_default();
            let log = String::from_utf8_lossy(&log);
            let lines: Vec<&str> = log.lines().collect();
            let last = &lines[lines.len().saturating_sub(LOG_LINES)..];
            object.insert("output".into(), json!(last));
        }
        Value::Object(object)
    }
}

/// A JSON file, or a list of the JSON values on its lines; none where there is no file.
fn result(file: &Path) -> Option<Value> {
    let bytes = std::fs::read(file).ok()?;
    let text = String::from_utf8_lossy(&bytes);
    if let Ok(value) = serde_json::from_str(&text) {
        return Some(value);
    }
    let lines: Result<Vec<Value>, _> = text.lines().map(serde_json::from_str).collect();
    Some(lines.map_or_else(|e| json!({ "unreadable": e.to_string() }), Value::Array))
}

/// The facts, one a line.
fn facts(from: &Path) -> Map<String, Value> {
    let text = std::fs::read_to_string(from.join("facts")).unwrap_or_default();
    let pairs = text.lines().filter_map(|line| line.split_once('\t'));
    pairs.map(|(key, value)| (key.to_owned(), json!(value))).collect()
}

/// Joins a folder; false when a step failed.
///
/// # Errors
/// The folder has no steps, or the JSON cannot be written.
pub fn run(mut words: Words, file: Option<&Path>) -> Result<bool, String> {
    let from = words.value("--from")?.map(PathBuf::from).ok_or("collect needs --from DIR")?;
    words.finish()?;
    let text = std::fs::read_to_string(from.join("steps"))
        .map_err(|e| format!("{}: {e}", from.join("steps").display()))?;
    let steps: Vec<Step> = text.lines().filter_map(Step::parse).collect();
    let machine = result(&from.join("machine.json")).unwrap_or(Value::Null);
    let simulated = machine["simulated"].as_bool().unwrap_or(false);
    let count = |state: &str| steps.iter().filter(|step| step.state == state).count();
    let (ok, failed, skipped) = (count("ok"), count("failed"), count("skipped"));
    println!("\n{:24} {:8} {:>7}  reason", "step", "state", "seconds");
    for step in &steps {
        println!("{:24} {:8} {:>7}  {}", step.name, step.state, step.seconds, step.reason);
    }
    println!("{ok} ok, {failed} failed, {skipped} skipped");
    let value = json!({
        "simulated": simulated,
        "facts": facts(&from),
        "device": machine,
        "ok": ok,
        "failed": failed,
        "skipped": skipped,
        "steps": steps.iter().map(|step| step.json(&from)).collect::<Vec<_>>(),
    });
    report::write(&value, file)?;
    if simulated {
        println!("SIMULATED: none of this ran on a GPU");
    }
    Ok(failed == 0 && ok > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_read_and_joined_with_what_they_wrote() {
        let dir = std::env::temp_dir().join(format!("forebay-collect-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let put = |name: &str, text: &str| std::fs::write(dir.join(name), text).unwrap();
        put("steps", "a\tok\t3\t\nb\tfailed\t2\texit status 1\nc\tskipped\t0\tno time\nrubbish\n");
        put("a.json", "{\"x\": 1}\n{\"x\": 2}\n");
        put("b.json", "{\"x\": ");
        put("b.log", "one\ntwo\n");
        put("facts", "date\ttoday\n");
        put("machine.json", "{\"simulated\": true}");
        let out = dir.join("out.json");
        let words = Words(vec!["--from".into(), dir.display().to_string()]);
        assert_eq!(run(words, Some(&out)), Ok(false));
        let value = result(&out).unwrap();
        std::fs::remove_dir_all(&dir).unwrap();
        assert_eq!(value["simulated"], json!(true));
        assert_eq!(
            (&value["ok"], &value["failed"], &value["skipped"]),
            (&json!(1), &json!(1), &json!(1))
        );
        assert_eq!(value["facts"]["date"], json!("today"));
        assert_eq!(value["steps"][0]["result"], json!([{"x": 1}, {"x": 2}]));
        assert!(value["steps"][1]["result"]["unreadable"].is_string());
        assert_eq!(value["steps"][1]["output"], json!(["one", "two"]));
        assert_eq!(value["steps"].as_array().unwrap().len(), 3);
    }
}
