//! What the processes printed, by row.
//!
//! Owns the two figures of a row: the least over the processes of each process's least
//! repetition, and the median over the processes of each one's median. Must not judge.

use std::collections::BTreeMap;

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

    /// How many processes gave a figure for `request` (`ROW@DOOR`). A row may print several
    /// lines, whose names add to its own.
    pub fn runs(&self, request: &str) -> usize {
        let names = ["@", "-on@", "-p999@"].map(|joint| request.replacen('@', joint, 1));
        names.iter().filter_map(|name| self.by_name.get(name)).map(Vec::len).max().unwrap_or(0)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_of_all_and_the_median_of_medians() {
        let mut samples = Samples::default();
        for (least, median) in [(12.0, 14.0), (10.0, 13.0), (11.0, 19.0)] {
            samples.add(vec![("hot@pool".to_string(), least, median)]);
        }
        assert_eq!(samples.least("hot@pool"), Some(10.0));
        assert_eq!(samples.median("hot@pool"), Some(14.0));
        assert_eq!(samples.least("cold@pool"), None);
    }
}
