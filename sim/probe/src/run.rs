//! Running rules: each in a process of its own, with a time limit.
//!
//! Owns both ends: the parent starts this program once for each rule and judges what came back;
//! the child makes the bench, asks, and prints one line. A child that dies by a signal is the
//! outcome `crashed`, one that is killed at its limit is `timed out`; neither ends the run.
//! Cost: one start of the driver a rule.

use crate::cuda::Driver;
use crate::lab::Lab;
use crate::rule::{Rule, Seen, Stop};
use std::io::{Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// What a line of a child begins with.
const MARK: &str = "probe: ";
/// What a line with a figure begins with.
const NOTE: &str = "note: ";

/// How a rule ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// Observed as expected.
    Agrees,
    /// Observed otherwise.
    Differs,
    /// Not applicable here.
    Skipped,
    /// The probe itself failed: nothing is known of the rule.
    Broken,
}

/// A rule with what came of it.
pub struct Answer {
    /// The rule.
    pub rule: &'static Rule,
    /// How it ended.
    pub outcome: Outcome,
    /// What was observed, or why nothing was.
    pub observed: String,
    /// Figures that belong to it.
    pub note: String,
    /// Seconds from start to end.
    pub seconds: f64,
}

/// How to run.
pub struct Options {
    /// The driver, if not as the loader finds it.
    pub driver: Option<PathBuf>,
    /// Rules at once.
    pub jobs: usize,
    /// A rule's time limit.
    pub limit: Duration,
    /// Whether the driver is simulated.
    pub simulated: bool,
}

/// The child: asks one rule and prints what was seen. Never returns an error to the shell, since
/// the exit status belongs to the driver's behaviour.
pub fn child(rule: &Rule, driver: Option<&Path>) {
    let seen = Driver::open(driver)
        .map_err(Stop::Setup)
        .and_then(|cuda| Lab::new(cuda, rule.stage))
        .and_then(|lab| {
            let lab = Box::leak(Box::new(lab));
            (rule.run)(lab)
        });
    say(&seen);
}

/// Prints what was seen, for the parent.
pub fn say(seen: &Seen) {
    let (word, text) = match seen {
        Ok(text) => ("seen", text),
        Err(Stop::Skip(why)) => ("skip", why),
        Err(Stop::Setup(why)) => ("setup", why),
    };
    // The parent takes a line that cannot be written for a child that said nothing.
    let _ = writeln!(std::io::stdout(), "{MARK}{word} {text}");
}

/// Prints a figure beside what was seen.
pub fn note(text: &str) {
    // As above; nothing is judged by it.
    let _ = writeln!(std::io::stdout(), "{NOTE}{text}");
}

/// Prints what was seen from an exit handler, without buffers that may be gone.
pub fn say_last(text: &str) {
    let line = format!("{MARK}seen {text}\n");
    // SAFETY: the line's own bytes, to this process's standard output.
    unsafe { libc::write(1, line.as_ptr().cast(), line.len()) };
}

/// What a child printed, if anything.
fn parse(text: &str) -> Option<(&str, &str)> {
    let line = text.lines().rev().find_map(|line| line.strip_prefix(MARK))?;
    line.split_once(' ')
}

/// Runs rules, those that must be alone last; answers in the order given.
pub fn run(rules: &[&'static Rule], options: &Options) -> Vec<Answer> {
    let (alone, together): (Vec<_>, Vec<_>) = (0..rules.len()).partition(|i| rules[*i].alone);
    let answers: Mutex<Vec<Option<Answer>>> = Mutex::new(rules.iter().map(|_| None).collect());
    let next = AtomicUsize::new(0);
    let work = |list: &[usize]| {
        while let Some(at) = list.get(next.fetch_add(1, Ordering::Relaxed)) {
            let answer = ask(rules[*at], options);
            if let Ok(mut answers) = answers.lock() {
                answers[*at] = Some(answer);
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..options.jobs.max(1) {
            scope.spawn(|| work(&together));
        }
    });
    next.store(0, Ordering::Relaxed);
    work(&alone);
    answers.into_inner().unwrap_or_default().into_iter().flatten().collect()
}

/// Asks one rule in a child.
fn ask(rule: &'static Rule, options: &Options) -> Answer {
    let start = Instant::now();
    let (outcome, observed, note) = match start_child(rule, options) {
        Err(why) => (Outcome::Broken, why, String::new()),
        Ok(End { text, how }) => {
            let (outcome, observed) = judge(rule, &text, how, options.simulated);
            let notes: Vec<&str> = text.lines().filter_map(|l| l.strip_prefix(NOTE)).collect();
            (outcome, observed, notes.join("; "))
        }
    };
    Answer { rule, outcome, observed, note, seconds: start.elapsed().as_secs_f64() }
}

/// How a child ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum How {
    Exited(i32),
    Signal(i32),
    TimedOut,
}

struct End {
    text: String,
    how: How,
}

fn judge(rule: &Rule, text: &str, how: How, simulated: bool) -> (Outcome, String) {
    let observed = match (how, parse(text)) {
        (How::TimedOut, None) => "timed out".to_owned(),
        (How::Signal(number), None) => {
            let observed = if rule.agrees("crashed", simulated) {
                "crashed".to_owned()
            } else {
                format!("crashed (signal {number})")
            };
            let outcome =
                if rule.agrees("crashed", simulated) { Outcome::Agrees } else { Outcome::Differs };
            return (outcome, observed);
        }
        (How::Exited(status), None) => {
            return (Outcome::Broken, format!("said nothing, exit status {status}"));
        }
        (_, Some(("seen", text))) => text.to_owned(),
        (_, Some(("skip", why))) => return (Outcome::Skipped, why.to_owned()),
        (_, Some((_, why))) => return (Outcome::Differs, format!("refused on the way: {why}")),
    };
    // What was seen counts even if the driver hangs or dies when the process ends.
    let outcome =
        if rule.agrees(&observed, simulated) { Outcome::Agrees } else { Outcome::Differs };
    (outcome, observed)
}

fn start_child(rule: &Rule, options: &Options) -> Result<End, String> {
    let exe = std::env::current_exe().map_err(|e| e.to_string())?;
    let mut command = Command::new(exe);
    command.args(["rule", rule.name]);
    if let Some(driver) = &options.driver {
        command.arg("--driver").arg(driver);
    }
    // Kernels are loaded at once: loading later may wait for a busy device.
    command.env("CUDA_MODULE_LOADING", "EAGER");
    // Crashes of children are expected: the simulation's list of misuse goes nowhere.
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    // A group of its own, so that what it started ends with it and closes the pipe.
    command.process_group(0);
    let mut child = command.spawn().map_err(|e| e.to_string())?;
    let out = child.stdout.take();
    let reader = std::thread::spawn(move || {
        let mut text = String::new();
        if let Some(mut out) = out {
            // What cannot be read is as if it had not been said.
            let _ = out.read_to_string(&mut text);
        }
        text
    });
    let end = Instant::now() + options.limit.max(Duration::from_secs(rule.seconds_min));
    let how = loop {
        match child.try_wait().map_err(|e| e.to_string())? {
            Some(status) => {
                break match status.signal() {
                    Some(number) => How::Signal(number),
                    None => How::Exited(status.code().unwrap_or(-1)),
                };
            }
            None if Instant::now() > end => {
                end_group(child.id());
                child.wait().map_err(|e| e.to_string())?;
                break How::TimedOut;
            }
            None => std::thread::sleep(Duration::from_millis(5)),
        }
    };
    end_group(child.id());
    Ok(End { text: reader.join().unwrap_or_default(), how })
}

/// Ends what is left of a child's process group.
fn end_group(leader: u32) {
    // SAFETY: the group that this program made for its child; a group that is gone is no error.
    unsafe { libc::kill(-(leader as i32), libc::SIGKILL) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rule::{Source, rule};

    #[test]
    fn what_children_leave_is_judged() {
        let r = rule("x", Source::Header, "1 or 2", |_| Ok(String::new()));
        let crash = rule("y", Source::Tests, "crashed", |_| Ok(String::new()));
        let said = |text: &str, how| judge(&r, text, how, false);
        assert_eq!(said("noise\nprobe: seen 2\n", How::Exited(0)), (Outcome::Agrees, "2".into()));
        assert_eq!(said("probe: seen 3\n", How::Exited(0)).0, Outcome::Differs);
        assert_eq!(said("probe: seen 2\n", How::Signal(11)).0, Outcome::Agrees);
        assert_eq!(said("", How::Signal(11)).0, Outcome::Differs);
        assert_eq!(judge(&crash, "", How::Signal(11), false).0, Outcome::Agrees);
        assert_eq!(said("", How::TimedOut), (Outcome::Differs, "timed out".into()));
        assert_eq!(said("", How::Exited(0)).0, Outcome::Broken);
        assert_eq!(said("probe: skip one device\n", How::Exited(0)).0, Outcome::Skipped);
        assert_eq!(said("probe: setup cuInit: 3\n", How::Exited(0)).0, Outcome::Differs);
    }
}
