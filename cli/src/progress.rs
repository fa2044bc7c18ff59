//! A progress line on a terminal.
//!
//! Owns one line of standard error while it is shown; promises at most ten redraws a second and
//! a clean line afterwards. Must not print anything where standard error is no terminal.
//! Cost: a clock reading an update.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

const REDRAW: Duration = Duration::from_millis(100);
const BAR: usize = 30;

/// A progress line; dropping it clears the line.
#[derive(Debug)]
pub struct Progress {
    shown: Option<Shown>,
}

#[derive(Debug)]
struct Shown {
    label: String,
    total: u64,
    last: Option<Instant>,
}

impl Progress {
    /// Shows progress towards `total`, if `wanted` and standard error is a terminal.
    pub fn new(wanted: bool, label: &str, total: u64) -> Progress {
        let shown = wanted && std::io::stderr().is_terminal();
        let fresh = || Shown { label: label.to_string(), total, last: None };
        Progress { shown: shown.then(fresh) }
    }

    /// Shows nothing.
    pub fn hidden() -> Progress {
        Progress { shown: None }
    }

    /// Redraws if the last time is long enough ago.
    pub fn update(&mut self, done: u64, note: impl FnOnce() -> String) {
        let Some(shown) = &mut self.shown else { return };
        if shown.last.is_some_and(|last| last.elapsed() < REDRAW) {
            return;
        }
        shown.last = Some(Instant::now());
        let line = bar(&shown.label, done, shown.total, &note());
        let mut out = std::io::stderr().lock();
        // A terminal that is gone is no reason to stop the work.
        let _ = write!(out, "\r{line}\x1b[K").and_then(|()| out.flush());
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.shown.as_ref().is_some_and(|shown| shown.last.is_some()) {
            let mut out = std::io::stderr().lock();
            let _ = write!(out, "\r\x1b[K").and_then(|()| out.flush());
        }
    }
}

fn bar(label: &str, done: u64, total: u64, note: &str) -> String {
    let share = if total == 0 { 1.0 } else { done as f64 / total as f64 };
    let share = share.clamp(0.0, 1.0);
    let filled = (share * BAR as f64) as usize;
    let (full, rest) = ("#".repeat(filled), ".".repeat(BAR - filled));
    format!("{label} [{full}{rest}] {:3.0} % {note}", share * 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bar_stays_inside_its_width() {
        let empty = ".".repeat(BAR);
        let full = "#".repeat(BAR);
        assert_eq!(bar("t", 0, 10, "n"), format!("t [{empty}]   0 % n"));
        assert_eq!(bar("t", 10, 10, ""), format!("t [{full}] 100 % "));
        assert_eq!(bar("t", 11, 10, ""), format!("t [{full}] 100 % "));
        assert_eq!(bar("t", 0, 0, ""), format!("t [{full}] 100 % "));
    }

    #[test]
    fn hidden_progress_asks_for_no_note() {
        Progress::hidden().update(1, || unreachable!("never drawn"));
    }
}
