//! Figures as text: a table with one row a figure and one column a target.
//!
//! Owns labels and units; promises columns that line up. Must not compute figures. Cost:
//! once a command.

use crate::replay::Outcome;

/// Bytes in MiB, with one digit after the point.
pub(super) fn mib(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20))
}

/// A count in groups of three digits.
pub(super) fn count(value: u64) -> String {
    let digits = value.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at != 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// The figures of one outcome, each with its label.
pub(super) fn figures(outcome: &Outcome) -> Vec<(&'static str, String)> {
    let watch = &outcome.watch;
    vec![
        ("events", count(outcome.events)),
        ("peak live", mib(outcome.peak_live_bytes)),
        ("peak mapped", mib(outcome.end.peak_mapped_bytes)),
        ("mapped / live", format!("{:.3}", outcome.ratio())),
        ("trapped, peak", mib(watch.trapped_peak_bytes)),
        ("trapped, mean", mib(watch.trapped_mean_bytes())),
        ("driver calls", count(outcome.end.calls.total())),
        ("  after warm-up", count(outcome.calls_after_warmup())),
        ("pages moved", count(outcome.end.pages_moved)),
        ("  after warm-up", count(outcome.moved_after_warmup())),
        ("ns an event", format!("{:.1}", outcome.ns_per_event())),
        ("  after warm-up", format!("{:.1}", outcome.ns_per_event_after_warmup())),
        ("leaked", format!("{} bytes", count(outcome.leaked_bytes))),
    ]
}

/// Lays out outcomes side by side under their titles.
pub(super) fn side_by_side(columns: &[(&str, &Outcome)]) -> Vec<String> {
    let mut rows: Vec<Vec<String>> = vec![vec![String::new()]];
    for (at, (title, outcome)) in columns.iter().enumerate() {
        rows[0].push((*title).to_string());
        for (row, (label, value)) in figures(outcome).into_iter().enumerate() {
            if at == 0 {
                rows.push(vec![label.to_string()]);
            }
            rows[row + 1].push(value);
        }
    }
    lay_out(&rows)
}

/// First column left, the others right, two spaces apart.
pub(super) fn lay_out(rows: &[Vec<String>]) -> Vec<String> {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |at: usize| rows.iter().filter_map(|row| row.get(at)).map(|c| c.len()).max();
    let widths: Vec<usize> = (0..columns).map(|at| width(at).unwrap_or(0)).collect();
    let mut lines = Vec::new();
    for row in rows {
        let mut line = String::new();
        for (at, cell) in row.iter().enumerate() {
            let width = widths[at];
            if at == 0 {
                line.push_str(&format!("{cell:<width$}"));
            } else {
                line.push_str(&format!("  {cell:>width$}"));
            }
        }
        lines.push(line.trim_end().to_string());
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_grouped() {
        assert_eq!(count(0), "0");
        assert_eq!(count(999), "999");
        assert_eq!(count(1000), "1,000");
        assert_eq!(count(241_088), "241,088");
        assert_eq!(mib(3 << 19), "1.5 MiB");
    }

    #[test]
    fn columns_line_up() {
        let row = |cells: &[&str]| cells.iter().map(|c| (*c).to_string()).collect::<Vec<_>>();
        let lines = lay_out(&[row(&["", "a", "long"]), row(&["label", "100", "2"])]);
        assert_eq!(lines, ["         a  long", "label  100     2"]);
    }
}
