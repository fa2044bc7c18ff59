//! Planning instances out of files: a table of lifetimes, or one step of a trace.
//!
//! Takes the table that [`forebay::plan::csv`] reads and the alloc CSV of [`crate::trace`], told
//! apart by the header, plain or gzipped. Of a trace's step come the buffers that are born and die
//! in it; times are event numbers. Must not panic, whatever the bytes are. Cost: one pass.

use std::collections::HashMap;
use std::path::Path;

use forebay::plan::{Buffer, csv};

use crate::trace::Lines;
use crate::trace::alloc_header;

/// An instance, and what is to be said of how it was read.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Instance {
    /// The buffers.
    pub buffers: Vec<Buffer>,
    /// What they are called where ids are words; else empty.
    pub names: Vec<String>,
    /// The buffers' tags: a table's column, or what a trace says of each allocation. Empty where
    /// the file has none.
    pub tags: Vec<String>,
    /// Remarks for the user: what was left out.
    pub notes: Vec<String>,
}

/// Reads the instance in a file; of a trace, its step number `step`.
///
/// # Errors
/// A sentence that names the file, mostly the line, and what is accepted.
pub fn read_file(path: &Path, step: Option<u64>) -> Result<Instance, String> {
    let name = path.display();
    let file = std::fs::File::open(path).map_err(|e| format!("{name}: cannot be read: {e}"))?;
    read(file, step).map_err(|why| format!("{name}: {why}"))
}

/// Reads an instance from any source.
///
/// # Errors
/// As [`read_file`], without the file's name.
pub fn read<R: std::io::Read>(source: R, step: Option<u64>) -> Result<Instance, String> {
    let mut lines = Lines::open(source).map_err(|complaint| complaint.to_string())?;
    let mut text = String::new();
    loop {
        let number = lines.number() + 1;
        match lines.next_line() {
            Ok(None) => break,
            Ok(Some(line)) if number == 1 && alloc_header(line) => {
                return of_trace(lines, step);
            }
            Ok(Some(line)) => {
                text.push_str(line);
                text.push('\n');
            }
            Err(complaint) => return Err(format!("line {number}: {complaint}")),
        }
    }
    if step.is_some() {
        return Err("--step is for traces (step,ev,id,bytes,stream,op); leave it out".to_owned());
    }
    let read = csv::read(&text).map_err(|error| error.message().to_owned())?;
    let mut notes = Vec::new();
    if read.left_out > 0 {
        notes.push(format!("{} of size 0 left out: they need no place", read.left_out));
    }
    Ok(Instance { buffers: read.buffers, names: read.names, tags: read.tags, notes })
}

/// What is known of a trace's step so far.
#[derive(Default)]
struct Step {
    events: u64,
    /// Live buffers born in it: birth, bytes and tag, by id.
    live: HashMap<u64, (u64, u64, String)>,
    buffers: Vec<Buffer>,
    tags: Vec<String>,
    /// Frees of what was born before.
    older: usize,
}

fn of_trace<R: std::io::Read>(mut lines: Lines<R>, step: Option<u64>) -> Result<Instance, String> {
    let wanted = step.ok_or("a trace holds many steps: say which with --step N")?;
    let mut state = Step::default();
    let (mut first, mut last) = (None, 0);
    loop {
        let number = lines.number() + 1;
        let at_line = |why: String| format!("line {number}: {why}");
        match lines.next_line() {
            Ok(None) => break,
            Ok(Some("")) => {}
            Ok(Some(line)) => {
                let at = state.event(line, wanted).map_err(at_line)?;
                first.get_or_insert(at);
                last = at;
                if at > wanted {
                    break;
                }
            }
            Err(complaint) => return Err(at_line(complaint.to_string())),
        }
    }
    if state.events == 0 {
        let first = first.unwrap_or(0);
        return Err(format!(
            "it has no event of step {wanted}: its steps begin at {first}, and \
                            the last one looked at is {last}"
        ));
    }
    let mut notes = Vec::new();
    if state.older > 0 || !state.live.is_empty() {
        let (older, live) = (state.older, state.live.len());
        notes.push(format!("left out: {older} born before the step, {live} that outlive it"));
    }
    if state.tags.iter().all(String::is_empty) {
        state.tags.clear();
    }
    Ok(Instance { buffers: state.buffers, names: Vec::new(), tags: state.tags, notes })
}

impl Step {
    /// Takes a row; the step that it is of.
    fn event(&mut self, line: &str, wanted: u64) -> Result<u64, String> {
        let fields: Vec<&str> = line.split(',').collect();
        let [step, event, id, bytes, ..] = fields[..] else {
            return Err(format!("{} fields; six are expected", fields.len()));
        };
        let step = number(step, "a step")?;
        if step != wanted {
            return Ok(step);
        }
        let id = number(id, "an id")?;
        let time = self.events;
        self.events += 1;
        match event {
            "a" => {
                let tag = fields.get(5).copied().unwrap_or("").to_owned();
                let born = (time, number(bytes, "a size in bytes")?, tag);
                if self.live.insert(id, born).is_some() {
                    return Err(format!("id {id} is allocated while it is live"));
                }
            }
            "f" => match self.live.remove(&id) {
                None => self.older += 1,
                Some((_, 0, _)) => {}
                Some((birth, size, tag)) => {
                    let place = self.buffers.len() as u64;
                    self.tags.push(tag);
                    self.buffers.push(Buffer::new(place, birth, time, size));
                }
            },
            other => return Err(format!("an event, a or f, is expected; not {other:?}")),
        }
        Ok(step)
    }
}

fn number(text: &str, what: &str) -> Result<u64, String> {
    text.parse().map_err(|_| format!("{what} is expected, a decimal number; not {text:?}"))
}
