//! The trace's file: rows of `ts_us,ev,id,bytes,stream,op`.
//!
//! Owns the file and the live blocks, by which the file stays one that can be replayed whatever was
//! lost: a free of a block whose allocation is not in the file is left out, and a block whose free
//! is not there is freed before its address is allocated again. Each is told: in `op`, behind the
//! function's name, and in the sum at exit. Whole rows are written at once. Cost: 200 ns a row.

use super::ring::Ring;
use crate::lookup;
use std::collections::HashMap;
use std::fmt::Write as _;
use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

const HEADER: &str = "ts_us,ev,id,bytes,stream,op\n";
/// Bytes of text that are written at once.
const CHUNK: usize = 64 << 10;
/// Rows of one go, after which others may have the lock.
const GO: usize = 8192;
/// Streams that a trace may name; those that come later share the last number.
const STREAMS_MAX: usize = 1024;

/// See the module.
pub struct Writer {
    file: Option<File>,
    path: PathBuf,
    names: Vec<&'static str>,
    live: HashMap<u64, u64>,
    streams: HashMap<u64, usize>,
    ids: u64,
    at_us: u64,
    rows: u64,
    /// Lost events that the file has told of.
    told: u64,
    unmatched: u64,
    failed: Option<String>,
    text: String,
}

impl Writer {
    /// Opens the file and writes its header. A file that another process writes, or that holds
    /// something, is left alone: the trace goes to its name with this process's number.
    pub fn open(path: &Path) -> Result<Writer, String> {
        let mut path = path.to_owned();
        let told = |path: &Path, e: std::io::Error| format!("{}: {e}", path.display());
        let open =
            |path: &Path| OpenOptions::new().write(true).create(true).truncate(false).open(path);
        let mut file = open(&path).map_err(|e| told(&path, e))?;
        if is_taken(&file) {
            path.as_mut_os_string().push(format!(".{}", std::process::id()));
            file = open(&path).map_err(|e| told(&path, e))?;
            file.set_len(0).map_err(|e| told(&path, e))?;
        }
        file.write_all(HEADER.as_bytes()).map_err(|e| told(&path, e))?;
        let names = lookup::names().map(|name| name.to_str().unwrap_or_default()).collect();
        Ok(Writer {
            file: Some(file),
            path,
            names,
            live: HashMap::new(),
            streams: HashMap::from([(0, 0)]),
            ids: 0,
            at_us: 0,
            rows: 0,
            told: 0,
            unmatched: 0,
            failed: None,
            text: String::with_capacity(CHUNK + 256),
        })
    }

    /// Writes what the ring has. Whether that was much.
    pub fn drain(&mut self, ring: &Ring) -> bool {
        let mut count = 0;
        while count < GO
            && let Some(event) = ring.take()
        {
            count += 1;
            // The order is the ring's; clocks of threads may differ by a little.
            self.at_us = self.at_us.max(event.at_us);
            let lost = ring.lost() - self.told;
            if event.bytes == 0 {
                self.free(event.address, event.stream, event.name, lost);
            } else {
                if self.live.contains_key(&event.address) {
                    self.free_unseen(event.address);
                }
                self.ids += 1;
                self.live.insert(event.address, self.ids);
                self.row(('a', self.ids), Some(event.bytes), event.stream, event.name, lost);
            }
            if self.text.len() >= CHUNK {
                self.write();
            }
        }
        self.write();
        count == GO
    }

    fn free(&mut self, address: u64, stream: u64, name: usize, lost: u64) {
        match self.live.remove(&address) {
            Some(id) => self.row(('f', id), None, stream, name, lost),
            None => self.unmatched += 1,
        }
    }

    /// A block that is gone, as its address is another's by now.
    fn free_unseen(&mut self, address: u64) {
        let Some(id) = self.live.remove(&address) else { return };
        let _always = writeln!(self.text, "{},f,{id},,,free not seen", self.at_us);
        self.rows += 1;
    }

    fn row(&mut self, event: (char, u64), bytes: Option<u64>, stream: u64, name: usize, lost: u64) {
        let next = self.streams.len().min(STREAMS_MAX - 1);
        let stream = *self.streams.entry(stream).or_insert(next);
        let name = self.names.get(name).copied().unwrap_or_default();
        let (kind, id) = event;
        let _always = write!(self.text, "{},{kind},{id},", self.at_us);
        if let Some(bytes) = bytes {
            let _always = write!(self.text, "{bytes}");
        }
        let _always = write!(self.text, ",{stream},{name}");
        if lost > 0 {
            let _always = write!(self.text, " ({lost} events lost before)");
            self.told += lost;
        }
        self.text.push('\n');
        self.rows += 1;
    }

    fn write(&mut self) {
        if let Some(file) = self.file.as_mut()
            && let Err(error) = file.write_all(self.text.as_bytes())
        {
            self.failed = Some(error.to_string());
            self.file = None;
        }
        self.text.clear();
    }

    /// What the file does not say by itself, for people; `None`: nothing.
    pub fn told_at_end(&self, ring: &Ring) -> Option<String> {
        let mut parts = Vec::new();
        if ring.lost() > 0 {
            parts.push(format!("{} of {} events lost", ring.lost(), ring.lost() + self.rows));
        }
        if self.unmatched > 0 {
            parts.push(format!("{} frees of memory that is not in it", self.unmatched));
        }
        if let Some(why) = &self.failed {
            parts.push(format!("not written to its end: {why}"));
        }
        (!parts.is_empty()).then(|| format!("trace {}: {}", self.path.display(), parts.join(", ")))
    }
}

/// Whether a file is another trace's: somebody writes it, or has. What it locks for itself it
/// keeps until the process ends.
fn is_taken(file: &File) -> bool {
    // SAFETY: an open descriptor; the call takes no pointer.
    let locked = unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } == 0;
    let busy = !locked && std::io::Error::last_os_error().kind() == std::io::ErrorKind::WouldBlock;
    busy || file.metadata().is_ok_and(|data| data.is_file() && data.len() > 0)
}
