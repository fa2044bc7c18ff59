//! Traces: recorded allocations and frees, read into a compact list of events.
//!
//! Owns the event list and the checks that make it replayable: every free names a live
//! block, no block is allocated twice, sizes are 1 byte to [`SIZE_MAX`], and live bytes
//! never pass [`SIZE_MAX`]. Reads two formats, told apart by the header line: the alloc
//! CSV (`step,ev,id,bytes,stream,op`, or `ts_us` for `step`) and the CSV that RMM's
//! logging resource adaptor writes (`Thread,Time,Action,Pointer,Size,Stream`); either may
//! be gzipped. Must not panic, whatever the bytes are, and must not hold the text: memory
//! is 16 bytes an event. Cost: about 100 ns a line.

mod alloc_csv;
mod build;
mod lines;
mod rmm_csv;

pub(crate) use lines::Lines;

use std::fmt;
use std::io::Read;
use std::path::Path;

/// The largest size of one request, and of all live bytes together: 2^48 bytes.
pub const SIZE_MAX: u64 = 1 << 48;
/// The most events one trace may hold (4 GiB of memory for the list).
pub const EVENTS_MAX: usize = 1 << 28;
/// The most streams one trace may name.
pub const STREAMS_MAX: usize = 1024;

/// One event of a trace: an allocation or a free.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Event {
    bytes: u64,
    id: u32,
    stream: u32,
}

/// What an [`Event`] does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Allocates that many bytes, never 0.
    Alloc(u64),
    /// Frees the block of the same id.
    Free,
}

impl Event {
    /// An allocation of `bytes` (not 0) under `id`.
    pub fn alloc(id: u32, bytes: u64, stream: u32) -> Event {
        debug_assert!(bytes != 0, "a size of 0 marks a free");
        Event { bytes, id, stream }
    }

    /// The free of the block under `id`.
    pub fn free(id: u32, stream: u32) -> Event {
        Event { bytes: 0, id, stream }
    }

    /// What the event does.
    #[inline]
    pub fn kind(self) -> Kind {
        if self.bytes == 0 { Kind::Free } else { Kind::Alloc(self.bytes) }
    }

    /// The block's dense number: below [`Trace::ids`], given again after its free.
    #[inline]
    pub fn id(self) -> u32 {
        self.id
    }

    /// The stream's dense number: below [`Trace::streams`].
    #[inline]
    pub fn stream(self) -> u32 {
        self.stream
    }
}

/// A checked trace. Can be shared between threads.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Trace {
    /// Where it came from, for people.
    pub name: String,
    /// The events in order.
    pub events: Vec<Event>,
    /// How many ids are in use at most: one more than the largest.
    pub ids: u32,
    /// How many streams the events name: one more than the largest number; at least 1.
    pub streams: u32,
    /// The peak of live requested bytes.
    pub peak_live_bytes: u64,
    /// Bytes never freed by the trace itself.
    pub left_bytes: u64,
    /// Requests that had failed when the trace was recorded, left out of the events.
    pub failed_requests: u64,
}

/// Why a trace cannot be read, and where.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TraceError {
    /// The trace's name, as given by the caller (a path, mostly).
    pub name: String,
    /// The line, from 1; 0 when no line was reached.
    pub line: u64,
    /// What is accepted there.
    pub expected: String,
    /// What was there instead.
    pub found: String,
}

impl fmt::Display for TraceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.name)?;
        if self.line != 0 {
            write!(f, ":{}", self.line)?;
        }
        write!(f, ": expected {}, found {}", self.expected, self.found)
    }
}

impl std::error::Error for TraceError {}

/// Whether a file that begins with `line` is an alloc CSV.
pub(crate) fn alloc_header(line: &str) -> bool {
    line == alloc_csv::HEADER_STEP
}

/// What is wrong with a line; the reader adds the name and the line number.
#[derive(Debug)]
pub(crate) struct Complaint {
    expected: String,
    found: String,
}

impl fmt::Display for Complaint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "expected {}, found {}", self.expected, self.found)
    }
}

impl Complaint {
    fn new(expected: impl Into<String>, found: impl Into<String>) -> Complaint {
        Complaint { expected: expected.into(), found: found.into() }
    }

    /// A complaint that quotes the text it found, shortened to 60 characters.
    fn quoting(expected: impl Into<String>, text: &str) -> Complaint {
        let mut found: String = text.chars().take(60).flat_map(char::escape_debug).collect();
        if text.chars().nth(60).is_some() {
            found.push_str("...");
        }
        Complaint::new(expected, format!("\"{found}\""))
    }

    fn at(self, name: &str, line: u64) -> TraceError {
        TraceError { name: name.to_string(), line, expected: self.expected, found: self.found }
    }
}

/// Reads the trace in a file, plain or gzipped.
pub fn parse_file(path: &Path) -> Result<Trace, TraceError> {
    let name = path.display().to_string();
    match std::fs::File::open(path) {
        Ok(file) => parse_reader(&name, file),
        Err(error) => Err(Complaint::new("a readable file", format!("\"{error}\"")).at(&name, 0)),
    }
}

/// Reads a trace from memory, plain or gzipped. Never panics.
pub fn parse_bytes(name: &str, bytes: &[u8]) -> Result<Trace, TraceError> {
    parse_reader(name, bytes)
}

/// Reads a trace from any source, plain or gzipped.
pub fn parse_reader<R: Read>(name: &str, source: R) -> Result<Trace, TraceError> {
    let mut lines = match lines::Lines::open(source) {
        Ok(lines) => lines,
        Err(complaint) => return Err(complaint.at(name, 0)),
    };
    match parse_lines(&mut lines) {
        Ok(builder) => Ok(builder.finish(name)),
        Err(complaint) => Err(complaint.at(name, lines.number())),
    }
}

fn parse_lines<R: Read>(lines: &mut lines::Lines<R>) -> Result<build::Builder, Complaint> {
    let row = match lines.next_line()? {
        Some(alloc_csv::HEADER_STEP | alloc_csv::HEADER_TIME) => alloc_csv::row,
        Some(rmm_csv::HEADER) => rmm_csv::row,
        Some(other) => return Err(Complaint::quoting(headers(), other)),
        None => return Err(Complaint::new(headers(), "an empty file")),
    };
    let mut builder = build::Builder::default();
    while let Some(line) = lines.next_line()? {
        if !line.is_empty() {
            row(&mut builder, line)?;
        }
    }
    Ok(builder)
}

fn headers() -> String {
    format!(
        "a header line (\"{}\", \"{}\" or \"{}\")",
        alloc_csv::HEADER_STEP,
        alloc_csv::HEADER_TIME,
        rmm_csv::HEADER
    )
}

/// Splits a row into exactly six fields.
fn six_fields<'a>(line: &'a str, columns: &str) -> Result<[&'a str; 6], Complaint> {
    let mut fields = [""; 6];
    let mut count = 0;
    for field in line.split(',') {
        if let Some(place) = fields.get_mut(count) {
            *place = field;
        }
        count += 1;
    }
    if count == 6 {
        return Ok(fields);
    }
    let expected = format!("six fields ({columns})");
    Err(Complaint { found: format!("{count} in {}", Complaint::quoting("", line).found), expected })
}

/// A decimal number, without sign or spaces.
fn decimal(text: &str, what: &str) -> Result<u64, Complaint> {
    let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    match text.parse() {
        Ok(value) if digits => Ok(value),
        _ => Err(Complaint::quoting(format!("{what}, a decimal number"), text)),
    }
}
