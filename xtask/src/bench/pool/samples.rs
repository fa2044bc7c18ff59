//! What the processes printed, by row, and the table made of it.
//!
//! Owns the two figures of a row: the least over the processes of each process's least
//! repetition, and the median over the processes of each one's median. Must not judge.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::super::Row;

/// The figures of every row so far: (least, median) of each process.
#[derive(Default)]
pub struct Samples {
    by_name: BTreeMap<String, Vec<(f64, f64)>>,
}

impl Samples {
    /// Adds the lines of one process: name, least, median.
    pub fn add(&mut self, lines: Vec<(String, f64, f64)>) {
        for (name, least, median) in lines {
            self.by_name.entry(name).or_default().push((least, median));
        }
    }

    /// The least of all processes; none where the row never ran.
    pub fn least(&self, name: &str) -> Option<f64> {
        let all = self.by_name.get(name)?;
        all.iter().map(|(least, _)| *least).reduce(f64::min)
    }

    /// The median of the processes' medians; none where the row never ran.
    pub fn median(&self, name: &str) -> Option<f64> {
        let mut all: Vec<f64> = self.by_name.get(name)?.iter().map(|(_, m)| *m).collect();
        all.sort_by(f64::total_cmp);
        all.get(all.len() / 2).copied()
    }
}

/// One more row for each row that has a median, without a target.
pub fn median_rows(rows: &[Row], samples: &Samples) -> Vec<Row> {
    let median = |row: &Row| {
        samples.median(&row.name).map(|value| Row {
            name: format!("{} median", row.name),
            value,
            unit: row.unit,
            target: None,
            met: None,
            peers: Vec::new(),
        })
    };
    rows.iter().filter_map(median).collect()
}

/// The table: least, median, target, verdict, and each peer with ours as a part of it.
pub fn table(rows: &[Row], samples: &Samples) -> String {
    let mut text = String::new();
    let _ = writeln!(
        text,
        "{:<28}{:>10}{:>10}{:>9}  {:<7}peers (ours / theirs)",
        "row", "least", "median", "target", ""
    );
    for row in rows {
        let median = samples
            .median(&row.name)
            .map_or("-".to_string(), |m| format!("{m:.1}"));
        let target = row.target.map_or("-".to_string(), |t| format!("{t}"));
        let verdict = match row.met {
            Some(true) => "ok",
            Some(false) => "MISSED",
            None => "",
        };
        let value = match row.unit {
            "x" => format!("{:.3} x", row.value),
            _ => format!("{:.1}", row.value),
        };
        let _ = write!(
            text,
            "{:<28}{value:>10}{median:>10}{target:>9}  {verdict:<7}",
            row.name
        );
        for (peer, theirs) in &row.peers {
            let _ = write!(text, "{peer} {theirs:.1} ({:.2})  ", row.value / theirs);
        }
        text.truncate(text.trim_end().len());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_shows_both_figures_and_the_ratio() {
        let mut samples = Samples::default();
        for (least, median) in [(12.0, 14.0), (10.0, 13.0), (11.0, 19.0)] {
            samples.add(vec![("hot@pool".to_string(), least, median)]);
        }
        assert_eq!(samples.least("hot@pool"), Some(10.0));
        assert_eq!(samples.median("hot@pool"), Some(14.0));
        assert_eq!(samples.least("cold@pool"), None);
        let row = Row {
            name: "hot@pool".to_string(),
            value: 10.0,
            unit: "ns",
            target: Some(20.0),
            met: Some(true),
            peers: vec![("glibc".to_string(), 40.0)],
        };
        let text = table(&[row], &samples);
        let line = text.lines().nth(1).unwrap_or_default();
        let words: Vec<&str> = line.split_whitespace().collect();
        assert_eq!(
            words,
            [
                "hot@pool", "10.0", "14.0", "20", "ok", "glibc", "40.0", "(0.25)"
            ]
        );
    }
}
