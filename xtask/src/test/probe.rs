//! Group `probe`: the probe of the driver's rules, asked of the simulated driver.
//!
//! Owns the proof that the simulation keeps every rule that the probe would ask a GPU for: a row
//! that differs is a failed check. The settings are those of `cargo xtask gpu --simulated`.

use super::{Options, stage_sim};
use crate::report::Tally;
use crate::{Outcome, proc};
use serde_json::Value;

/// Two devices for the rules about peers; a small budget, so that its end is reached.
const SETTINGS: &[(&str, &str)] = &[
    ("FOREBAY_SIM_DEVICES", "2"),
    ("FOREBAY_SIM_MEMORY", "2GiB"),
    ("FOREBAY_SIM_POISON", "none"),
    ("FOREBAY_SIM_MAPPINGS", "20000"),
    ("FOREBAY_SIM_CPU_ACCESS", "0"),
];

/// Runs the group.
pub fn run(_options: Options) -> Tally {
    let mut tally = Tally::default();
    match ask() {
        Ok(answers) => count(&answers, &mut tally),
        Err(why) => tally.check("probe::rules", Err(why)),
    }
    tally
}

/// Builds and runs the probe; its JSON.
fn ask() -> Outcome<Value> {
    let mut build = proc::cargo();
    proc::run(build.args(["build", "--package", "forebay_probe", "--bins"]))?;
    let sim = stage_sim()?;
    let out = proc::target_dir().join("xtask-probe").join("rules.json");
    proc::write(&out, "")?;
    let mut probe = proc::program(proc::target_dir().join("debug/forebay_probe"));
    probe.args(["rules", "--json"]).arg(&out).env("LD_LIBRARY_PATH", sim);
    for (name, value) in SETTINGS {
        probe.env(name, value);
    }
    proc::run(&mut probe)?;
    serde_json::from_str(&proc::read(&out)?).map_err(|e| format!("{}: {e}", out.display()))
}

/// One check a rule; those that agree are counted without a line each.
fn count(answers: &Value, tally: &mut Tally) {
    let rules = answers["rules"].as_array().map(Vec::as_slice).unwrap_or_default();
    for rule in rules {
        let name = format!("probe::{}", rule["rule"].as_str().unwrap_or("?"));
        match rule["outcome"].as_str() {
            Some("agrees") => tally.passed += 1,
            Some("skipped") => tally.skip(&name, rule["observed"].as_str().unwrap_or("")),
            _ => {
                let why = format!("expected {}, observed {}", rule["expected"], rule["observed"]);
                tally.check(&name, Err(why));
            }
        }
    }
    if answers["simulated"] != true || rules.is_empty() {
        tally.check("probe::simulated", Err("it asked another driver, or nothing".into()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn answers_are_counted() {
        let mut tally = Tally::default();
        let answers = json!({ "simulated": true, "rules": [
            { "rule": "a", "outcome": "agrees" },
            { "rule": "b", "outcome": "differs", "expected": "1", "observed": "2" },
            { "rule": "c", "outcome": "skipped", "observed": "one device" },
            { "rule": "d", "outcome": "broken" },
        ]});
        count(&answers, &mut tally);
        assert_eq!(tally, Tally { passed: 1, failed: 2, skipped: 1 });
        let mut tally = Tally::default();
        count(&json!({ "simulated": false, "rules": [] }), &mut tally);
        assert_eq!(tally.failed, 1);
    }
}
