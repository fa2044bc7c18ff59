//! Writes a trace as flat records, for programs that cannot read its formats.
//!
//! `flat_trace TRACE FILE`: the number of ids, then one record an event, `id: u32`, `0: u32` and
//! `bytes: u64` (0 for a free), all little endian. Streams are left out. Cost: one pass.

use forebay_cli::trace::{Kind, parse_file};
use std::io::{BufWriter, Write};
use std::path::Path;

fn main() -> Result<(), String> {
    let words: Vec<String> = std::env::args().collect();
    let [_, from, to] = &words[..] else {
        return Err("usage: flat_trace TRACE FILE".to_owned());
    };
    let trace = parse_file(Path::new(from)).map_err(|e| e.to_string())?;
    let told = |e: std::io::Error| format!("{to}: {e}");
    let mut file = BufWriter::new(std::fs::File::create(to).map_err(told)?);
    file.write_all(&u64::from(trace.ids).to_le_bytes()).map_err(told)?;
    for event in &trace.events {
        let bytes = match event.kind() {
            Kind::Alloc(bytes) => bytes,
            Kind::Free => 0,
        };
        let mut record = [0; 16];
        record[..4].copy_from_slice(&event.id().to_le_bytes());
        record[8..].copy_from_slice(&bytes.to_le_bytes());
        file.write_all(&record).map_err(told)?;
    }
    file.flush().map_err(told)
}
