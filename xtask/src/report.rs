//! Counts of checks, and the lines that report them.
//!
//! Owns the wording that scripts read: `check NAME ... ok`, `SKIPPED NAME: reason`, and the
//! closing line `N passed, N failed, N skipped`. A skipped check is never counted as passed.

use crate::Outcome;
use std::ops::AddAssign;

/// How many checks passed, failed and were skipped.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Tally {
    /// Ran, and found what they must.
    pub passed: usize,
    /// Ran and did not, or could not be built.
    pub failed: usize,
    /// Did not run.
    pub skipped: usize,
}

impl AddAssign for Tally {
    fn add_assign(&mut self, other: Tally) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
    }
}

impl Tally {
    /// Counts one check and prints its line.
    pub fn check(&mut self, name: &str, result: Outcome<()>) {
        match result {
            Ok(()) => {
                println!("check {name} ... ok");
                self.passed += 1;
            }
            Err(why) => {
                println!("check {name} ... FAILED: {why}");
                self.failed += 1;
            }
        }
    }

    /// Counts one check that cannot run here, and says why.
    pub fn skip(&mut self, name: &str, why: &str) {
        println!("SKIPPED {name}: {why}");
        self.skipped += 1;
    }

    /// The closing line.
    pub fn line(&self) -> String {
        format!("{} passed, {} failed, {} skipped", self.passed, self.failed, self.skipped)
    }

    /// Prints the closing line; an error when something failed.
    pub fn close(&self, what: &str) -> Outcome<()> {
        println!("{}", self.line());
        if self.failed == 0 { Ok(()) } else { Err(format!("{} {what} failed", self.failed)) }
    }

    /// Adds what one line of `cargo test` output says, if it is a summary line.
    pub fn add_cargo_line(&mut self, line: &str) {
        let Some(text) = line.trim_start().strip_prefix("test result: ") else {
            return;
        };
        for part in text.split(['.', ';']) {
            let mut words = part.split_whitespace();
            let Some(Ok(count)) = words.next().map(str::parse::<usize>) else {
                continue;
            };
            match words.next() {
                Some("passed") => self.passed += count,
                Some("failed") => self.failed += count,
                Some("ignored") => self.skipped += count,
                _ => {}
            }
        }
    }

    /// Adds what one line of `ctest` output says, if it tells how a test ended.
    pub fn add_ctest_line(&mut self, line: &str) {
        if !line.contains("Test ") || !line.contains('#') || !line.contains(" sec") {
            return;
        }
        if line.contains("   Passed ") {
            self.passed += 1;
        } else if line.contains("***Skipped") || line.contains("***Not Run (Disabled)") {
            self.skipped += 1;
        } else if line.contains("***") {
            self.failed += 1;
        }
    }

    /// Adds what one line of Python's `unittest` (verbose) says, if it tells how a test ended.
    pub fn add_unittest_line(&mut self, line: &str) {
        match line.rsplit_once(" ... ") {
            Some((_, "ok")) => self.passed += 1,
            Some((_, "FAIL" | "ERROR")) => self.failed += 1,
            Some((_, end)) if end.starts_with("skipped") => self.skipped += 1,
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cargo_summary_lines_are_added_up() {
        let mut tally = Tally::default();
        tally.add_cargo_line("test error::tests::numbers ... ok");
        tally.add_cargo_line(
            "test result: ok. 12 passed; 0 failed; 1 ignored; 0 measured; 3 filtered out; \
             finished in 0.01s",
        );
        tally.add_cargo_line(
            "test result: FAILED. 4 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out; \
             finished in 0.01s",
        );
        assert_eq!(tally, Tally { passed: 16, failed: 2, skipped: 1 });
        assert_eq!(tally.line(), "16 passed, 2 failed, 1 skipped");
        assert!(tally.close("tests").is_err());
    }

    #[test]
    fn unittest_lines_are_counted() {
        let mut tally = Tally::default();
        for line in [
            "test_a (t.A.test_a) ... ok",
            "test_b (t.A.test_b) ... FAIL",
            "test_c (t.A.test_c) ... ERROR",
            "test_d (t.A.test_d) ... skipped 'no GPU'",
            "Ran 4 tests in 0.497s",
        ] {
            tally.add_unittest_line(line);
        }
        assert_eq!(tally, Tally { passed: 1, failed: 2, skipped: 1 });
    }

    #[test]
    fn ctest_lines_are_counted() {
        let mut tally = Tally::default();
        for line in [
            "    Start 1: basic",
            "1/3 Test #1: basic ............................   Passed    0.01 sec",
            "2/3 Test #2: misuse ...........................***Failed    0.02 sec",
            "3/3 Test #3: gpu ..............................***Skipped   0.00 sec",
            "67% tests passed, 1 tests failed out of 3",
        ] {
            tally.add_ctest_line(line);
        }
        assert_eq!(tally, Tally { passed: 1, failed: 1, skipped: 1 });
    }
}
