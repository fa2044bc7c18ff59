//! Places and processes: the repository's folders, and running other programs in them.
//!
//! Owns how a program is started (from the repository root, host backend asked for) and how
//! its failure is told. Promises that a run with a time limit ends with its whole process
//! group. Must not interpret what a program prints; callers do.

use crate::Outcome;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::time::Duration;

/// The repository's root.
pub fn root() -> PathBuf {
    let manifest = std::env::var_os("CARGO_MANIFEST_DIR")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
    manifest.parent().map_or_else(|| PathBuf::from("."), Path::to_path_buf)
}

/// Cargo's target folder, as an absolute path.
pub fn target_dir() -> PathBuf {
    match std::env::var_os("CARGO_TARGET_DIR") {
        Some(dir) => root().join(dir),
        None => root().join("target"),
    }
}

/// A program that starts in the repository root with the host backend.
pub fn program(name: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = Command::new(name);
    command.current_dir(root()).env("FOREBAY_BACKEND", "host");
    command
}

/// Cargo, the one that runs this program.
pub fn cargo() -> Command {
    let name = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = program(name);
    command.env("CARGO_TARGET_DIR", target_dir());
    command
}

/// The command as it could be typed.
pub fn describe(command: &Command) -> String {
    let mut text = command.get_program().to_string_lossy().into_owned();
    for arg in command.get_args() {
        text.push(' ');
        text.push_str(&arg.to_string_lossy());
    }
    text
}

/// Runs to the end with this terminal; an error unless the exit status is 0.
pub fn run(command: &mut Command) -> Outcome<()> {
    let status = command.status().map_err(|e| format!("{}: {e}", describe(command)))?;
    ended_well(command, status)
}

/// Runs to the end and gives what was printed; both outputs go into the error.
pub fn capture(command: &mut Command) -> Outcome<String> {
    let out =
        command.stdin(Stdio::null()).output().map_err(|e| format!("{}: {e}", describe(command)))?;
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    ended_well(command, out.status)
        .map_err(|e| format!("{e}\n{text}{}", String::from_utf8_lossy(&out.stderr)))?;
    Ok(text)
}

fn ended_well(command: &Command, status: ExitStatus) -> Outcome<()> {
    if status.success() { Ok(()) } else { Err(format!("{}: {status}", describe(command))) }
}

/// How a streamed run ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// Exit status 0.
    Success,
    /// Any other exit status.
    Failure,
    /// Killed at the time limit.
    TimedOut,
}

/// Runs to the end, echoes each line of standard output and shows it to `on_line`. After
/// `limit` the program and all it started are killed.
pub fn stream(
    command: &mut Command,
    limit: Option<Duration>,
    mut on_line: impl FnMut(&str),
) -> Outcome<End> {
    if limit.is_some() {
        command.process_group(0);
    }
    let mut child = command
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|e| format!("{}: {e}", describe(command)))?;
    let group = child.id();
    let (ended, end) = mpsc::channel::<()>();
    let watch = limit.map(|limit| std::thread::spawn(move || kill_after(group, limit, &end)));
    if let Some(out) = child.stdout.take() {
        for line in BufReader::new(out).split(b'\n') {
            let Ok(line) = line else { break };
            let line = String::from_utf8_lossy(&line);
            println!("{line}");
            on_line(&line);
        }
    }
    let status = child.wait().map_err(|e| format!("{}: {e}", describe(command)))?;
    drop(ended);
    let timed_out = watch.is_some_and(|thread| thread.join().unwrap_or(false));
    Ok(match (timed_out, status.success()) {
        (true, _) => End::TimedOut,
        (false, true) => End::Success,
        (false, false) => End::Failure,
    })
}

/// Kills the process group unless the run ends first; true when it had to.
fn kill_after(group: u32, limit: Duration, end: &mpsc::Receiver<()>) -> bool {
    if end.recv_timeout(limit) != Err(mpsc::RecvTimeoutError::Timeout) {
        return false;
    }
    let killed = Command::new("kill").args(["-KILL", "--", &format!("-{group}")]).status();
    killed.is_ok_and(|status| status.success())
}

/// Where a program lies on `PATH`, if anywhere.
pub fn on_path(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|dir| dir.join(name)).find(|file| file.is_file())
}

/// Every file under `dir` (relative to the root, sorted) whose extension is in `extensions`;
/// build output and hidden folders are left out. A missing folder has no files.
pub fn files(dir: &str, extensions: &[&str]) -> Vec<PathBuf> {
    let root = root();
    let mut found = Vec::new();
    walk(&root.join(dir), extensions, &mut found);
    let mut found: Vec<PathBuf> = found
        .into_iter()
        .map(|p| p.strip_prefix(&root).map(Path::to_path_buf).unwrap_or(p))
        .collect();
    found.sort();
    found
}

fn walk(dir: &Path, extensions: &[&str], found: &mut Vec<PathBuf>) {
    let Ok(entries) = std::fs::read_dir(dir) else {
        return;
    };
    for entry in entries.flatten() {
        let path = entry.path();
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if path.is_symlink() || name.starts_with('.') {
            continue;
        }
        if path.is_dir() {
            let skip = ["target", "corpus", "artifacts", "__pycache__"].contains(&name.as_ref());
            if !skip {
                walk(&path, extensions, found);
            }
        } else if extensions.iter().any(|e| path.extension().is_some_and(|x| x == *e)) {
            found.push(path);
        }
    }
}

/// The text of a file, named from the root.
pub fn read(path: impl AsRef<Path>) -> Outcome<String> {
    let path = path.as_ref();
    std::fs::read_to_string(root().join(path)).map_err(|e| format!("{}: {e}", path.display()))
}

/// Writes a file and makes its folder; the path is named from the root.
pub fn write(path: impl AsRef<Path>, text: &str) -> Outcome<()> {
    let full = root().join(path.as_ref());
    let told = |e: std::io::Error| format!("{}: {e}", full.display());
    if let Some(dir) = full.parent() {
        std::fs::create_dir_all(dir).map_err(told)?;
    }
    std::fs::write(&full, text).map_err(told)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_over_its_limit_is_ended_with_what_it_started() {
        let mut shell = program("sh");
        shell.args(["-c", "sleep 600 & sleep 600"]);
        let end = stream(&mut shell, Some(Duration::from_millis(50)), |_| ());
        assert_eq!(end, Ok(End::TimedOut));
    }

    #[test]
    fn lines_and_exit_status_are_seen() {
        let mut lines = Vec::new();
        let mut shell = program("sh");
        shell.args(["-c", "echo one; echo two; exit 3"]);
        assert_eq!(stream(&mut shell, None, |l| lines.push(l.to_owned())), Ok(End::Failure));
        assert_eq!(lines, ["one", "two"]);
        let said = capture(program("sh").args(["-c", "echo why >&2; exit 1"]));
        assert!(said.is_err_and(|text| text.contains("why")));
    }
}
