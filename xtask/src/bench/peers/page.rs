//! The rows as tables of `docs/benchmarks.md`.
//!
//! Owns the part of that page between its two marks, and writes nothing else of it. Everything
//! there comes from the rows, the clock and the machine.

use super::{ALLOCATORS, OURS};
use crate::bench::pool::process;
use crate::bench::{Row, figure};
use crate::{Outcome, proc};

const PAGE: &str = "docs/benchmarks.md";
const BEGIN: &str = "<!-- peers: written by the command below -->";
const END: &str = "<!-- peers: end -->";

/// Replaces the part between the marks by the tables of these rows.
pub fn write(rows: &[Row], command: &str) -> Outcome<()> {
    let date = proc::capture(proc::program("date").args(["-u", "+%Y-%m-%d"]))?;
    let head = format!("`{command}`, {}, {}.", date.trim(), process::machine());
    let page = proc::read(PAGE)?;
    proc::write(PAGE, &replaced(&page, &tables(&head, rows))?)
}

fn replaced(page: &str, tables: &str) -> Outcome<String> {
    let parts = page.split_once(BEGIN).and_then(|(before, rest)| {
        let (_, after) = rest.split_once(END)?;
        Some(format!("{before}{BEGIN}\n\n{tables}\n{END}{after}"))
    });
    parts.ok_or_else(|| format!("{PAGE} has no part between {BEGIN:?} and {END:?}"))
}

/// A kind of rows, the table's title, and what makes a cell of a figure.
const TABLES: &[(&str, &str)] = &[
    ("footprint", "Peak of memory taken from the device, over peak live bytes"),
    ("smallest device", "Smallest device, over peak live bytes"),
    ("driver calls", "Calls that take, map or give back memory"),
    ("fence calls", "Calls about events, and waits"),
    ("driver time", "Modelled time in the driver, ms"),
];

fn tables(head: &str, rows: &[Row]) -> String {
    let mut text = format!("{head}\n");
    let time = |load: &str| rows.iter().find(|r| r.name == format!("peers/time median/{load}"));
    let cell = |row: &Row, name: &str| {
        let least = of(row, name)?;
        let load = row.name.rsplit('/').next()?;
        let median = time(load).and_then(|row| of(row, name)).map_or("-".to_owned(), short);
        Some(format!("{} / {median}", short(least)))
    };
    text += &table("Nanoseconds an operation, least / median", "time", rows, cell);
    for (kind, title) in TABLES {
        text += &table(title, kind, rows, |row, name| of(row, name).map(short));
    }
    text += "\nTargets:\n\n| what | figure | at most | |\n|---|---|---|---|\n";
    for row in rows.iter().filter(|r| r.target.is_some()) {
        let name = row.name.strip_prefix("peers/").unwrap_or(&row.name);
        let met = if row.met == Some(true) { "met" } else { "**missed**" };
        let (value, unit) = (short(row.value), &row.unit);
        let most = row.target.map_or(String::new(), figure);
        text += &format!("| {name} | {value} {unit} | {most} | {met} |\n");
    }
    text
}

/// One kind of rows: an allocator a line, a load a column. Nothing where there are no such rows.
fn table(
    title: &str,
    kind: &str,
    rows: &[Row],
    cell: impl Fn(&Row, &str) -> Option<String>,
) -> String {
    let prefix = format!("peers/{kind}/");
    let columns: Vec<(&str, &Row)> =
        rows.iter().filter_map(|r| Some((r.name.strip_prefix(&prefix)?, r))).collect();
    if columns.is_empty() {
        return String::new();
    }
    let names: Vec<&str> = columns.iter().map(|(name, _)| *name).collect();
    let mut text = format!("\n{title}:\n\n| | {} |\n|---|", names.join(" | "));
    text += &"---|".repeat(columns.len());
    text.push('\n');
    for one in ALLOCATORS {
        let cells: Vec<Option<String>> =
            columns.iter().map(|(_, row)| cell(row, one.name)).collect();
        if cells.iter().all(Option::is_none) {
            continue;
        }
        let cells: Vec<String> =
            cells.into_iter().map(|c| c.unwrap_or_else(|| "-".to_owned())).collect();
        text += &format!("| {} | {} |\n", one.name, cells.join(" | "));
    }
    text
}

/// An allocator's figure in a row.
fn of(row: &Row, name: &str) -> Option<f64> {
    let value = if name == OURS { Some(row.value) } else { row.peers.get(name).copied() };
    value.filter(|v| v.is_finite())
}

/// A figure short enough for a cell.
fn short(value: f64) -> String {
    match value.abs() {
        _ if value.is_nan() => "-".to_owned(),
        v if v == v.trunc() || v >= 100.0 => format!("{value:.0}"),
        v if v >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.3}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(name: &str, value: f64, peers: &[(&str, f64)], target: Option<f64>) -> Row {
        let mut row = Row::new(name, value, "x", target);
        row.peers = peers.iter().map(|(name, v)| ((*name).to_owned(), *v)).collect();
        row
    }

    #[test]
    fn the_part_between_the_marks_is_replaced_and_no_other() {
        let page = format!("before\n{BEGIN}\nold\n{END}\nafter\n");
        let new = replaced(&page, "new\n").expect("marks");
        assert_eq!(new, format!("before\n{BEGIN}\n\nnew\n\n{END}\nafter\n"));
        assert_eq!(replaced(&new, "new\n"), Ok(new.clone()));
        assert!(replaced("no marks", "new").is_err());
        let own = proc::read(PAGE).expect("the page");
        assert!(own.contains(BEGIN) && own.contains(END));
    }

    #[test]
    fn an_allocator_is_a_line_and_a_load_a_column() {
        let rows = [
            row("peers/time/hot", 6.25, &[("torch", 240.4)], None),
            row("peers/time median/hot", 7.0, &[("torch", 300.0)], None),
            row("peers/footprint/a", 1.05, &[], None),
            row("peers/hot: time over torch's", 0.026, &[], Some(0.05)),
            row("peers/skipped/cub: why", f64::NAN, &[], Some(0.0)),
        ];
        let text = tables("head", &rows);
        assert!(text.starts_with("head\n"));
        for line in [
            "| | hot |",
            "| forebay | 6.250 / 7 |",
            "| torch | 240 / 300 |",
            "| | a |",
            "| forebay | 1.050 |",
            "| hot: time over torch's | 0.026 x | 0.0500 | met |",
            "| skipped/cub: why | - x | 0 | **missed** |",
        ] {
            assert!(text.lines().any(|l| l == line), "{line}\n{text}");
        }
        assert!(!text.contains("rmm-pool") && !text.contains("Smallest"));
    }
}
