//! Tables and JSON of what was found.
//!
//! Owns their form. A row that agrees is one line of the JSON and counted in the table; a row that
//! differs is printed in full, since it is what a reader came for.

use crate::latency::Row;
use crate::machine::Machine;
use crate::run::{Answer, Outcome};
use serde_json::{Value, json};
use std::path::Path;

/// Writes a JSON value, if a file was asked for.
///
/// # Errors
/// The file and what was wrong with it.
pub fn write(value: &Value, file: Option<&Path>) -> Result<(), String> {
    let Some(file) = file else { return Ok(()) };
    let text = serde_json::to_string_pretty(value).map_err(|e| e.to_string())?;
    std::fs::write(file, text + "\n").map_err(|e| format!("{}: {e}", file.display()))
}

fn word(outcome: &Outcome) -> &'static str {
    match outcome {
        Outcome::Agrees => "agrees",
        Outcome::Differs => "differs",
        Outcome::Skipped => "skipped",
        Outcome::Broken => "broken",
    }
}

/// Prints and writes what became of the rules. False when the probe broke, or, if `strict`, when
/// something differs.
///
/// # Errors
/// The JSON file cannot be written.
pub fn rules(
    machine: &Machine,
    answers: &[Answer],
    file: Option<&Path>,
    strict: bool,
) -> Result<bool, String> {
    let count = |which: Outcome| answers.iter().filter(|a| a.outcome == which).count();
    let (agree, differ) = (count(Outcome::Agrees), count(Outcome::Differs));
    let (skipped, broken) = (count(Outcome::Skipped), count(Outcome::Broken));
    println!("{}", machine.line());
    for answer in answers.iter().filter(|a| a.outcome != Outcome::Agrees) {
        let expected = answer.rule.expectation(machine.simulated);
        println!(
            "\n{} [{}] {}",
            word(&answer.outcome),
            answer.rule.source.mark(),
            answer.rule.name
        );
        match answer.outcome {
            Outcome::Skipped => println!("  because: {}", answer.observed),
            _ => println!("  expected: {expected}\n  observed: {}", answer.observed),
        }
        if !answer.note.is_empty() {
            println!("  note: {}", answer.note);
        }
    }
    println!("\n{:10} {:>7} {:>8} {:>8} {:>7}", "source", "agrees", "differs", "skipped", "broken");
    for mark in ["H", "T", "P", "I", "assumed"] {
        let of = |which: Outcome| {
            let mine = answers.iter().filter(|a| a.rule.source.mark() == mark);
            mine.filter(|a| a.outcome == which).count()
        };
        println!(
            "{mark:10} {:>7} {:>8} {:>8} {:>7}",
            of(Outcome::Agrees),
            of(Outcome::Differs),
            of(Outcome::Skipped),
            of(Outcome::Broken),
        );
    }
    println!(
        "{} rules: {agree} agree, {differ} differ, {skipped} skipped, {broken} broken",
        answers.len()
    );
    let rows: Vec<Value> = answers.iter().map(|answer| row(answer, machine.simulated)).collect();
    let value = json!({
        "machine": machine.json(),
        "simulated": machine.simulated,
        "agree": agree,
        "differ": differ,
        "skipped": skipped,
        "broken": broken,
        "rules": rows,
    });
    write(&value, file)?;
    Ok(broken == 0 && !answers.is_empty() && (!strict || differ == 0))
}

fn row(answer: &Answer, simulated: bool) -> Value {
    json!({
        "rule": answer.rule.name,
        "source": answer.rule.source.mark(),
        "expected": answer.rule.expectation(simulated),
        "of_a_gpu": answer.rule.expected,
        "observed": answer.observed,
        "note": answer.note,
        "outcome": word(&answer.outcome),
        "seconds": (answer.seconds * 1000.0).round() / 1000.0,
    })
}

/// Prints and writes what calls cost.
///
/// # Errors
/// The JSON file cannot be written.
pub fn latency(machine: &Machine, rows: &[Row], file: Option<&Path>) -> Result<bool, String> {
    println!("{}", machine.line());
    println!(
        "{:40} {:>6} {:>9} {:>9} {:>9} {:>9} {:>9}",
        "call (microseconds)", "runs", "median", "p10", "p90", "p99", "max"
    );
    for row in rows {
        if let Some(why) = &row.problem {
            println!("{:40} {why}", row.name);
            continue;
        }
        let q = |part| row.quantile(part);
        println!(
            "{:40} {:>6} {:>9.2} {:>9.2} {:>9.2} {:>9.2} {:>9.2}",
            row.name,
            row.times_us.len(),
            q(0.5),
            q(0.1),
            q(0.9),
            q(0.99),
            q(1.0),
        );
    }
    let list: Vec<Value> = rows.iter().map(Row::json).collect();
    let value = json!({
        "machine": machine.json(),
        "simulated": machine.simulated,
        "calls": list,
    });
    write(&value, file)?;
    Ok(rows.iter().any(|row| !row.times_us.is_empty()))
}
