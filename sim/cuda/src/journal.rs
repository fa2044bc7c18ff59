//! The journal: one JSON line a call, with the virtual time at its end.
//!
//! Written at once and unbuffered, so that a program that dies leaves what it did. Its
//! words: `n` the call's number, `t_us` the virtual time, `call`, `args`, `result`.

use std::fmt::Write as _;
use std::fs::File;
use std::io::Write as _;

/// An open journal, or none.
#[derive(Default)]
pub struct Journal {
    file: Option<File>,
    lines: u64,
}

impl Journal {
    /// Opens the file anew; without a name nothing is written.
    pub fn open(path: Option<&str>) -> Result<Journal, String> {
        let file = match path {
            Some(path) => Some(File::create(path).map_err(|e| format!("journal: {path}: {e}"))?),
            None => None,
        };
        Ok(Journal { file, lines: 0 })
    }

    /// Whether lines are written at all.
    pub fn is_open(&self) -> bool {
        self.file.is_some()
    }

    /// Writes one line. A full disk loses lines and fails no call.
    pub fn write(&mut self, call: &str, args: &str, result: u32, time_ns: u64) {
        self.lines += 1;
        let Some(file) = &mut self.file else { return };
        let line = format!(
            "{{\"n\":{},\"t_us\":{}.{:03},\"call\":{},\"args\":{},\"result\":{result}}}\n",
            self.lines,
            time_ns / 1000,
            time_ns % 1000,
            quote(call),
            quote(args),
        );
        let _ = file.write_all(line.as_bytes());
    }
}

/// A JSON string.
pub fn quote(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            c if u32::from(c) < 0x20 => {
                let _ = write!(out, "\\u{:04x}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out.push('"');
    out
}
