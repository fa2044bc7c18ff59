//! RMM's logging CSV: `Thread,Time,Action,Pointer,Size,Stream`.
//!
//! `Action` is `allocate`, `allocate failure` or `free` (also written `deallocate`); `Pointer`
//! and `Stream` are addresses in hexadecimal. A failed request is counted, not replayed.
//! A request of 0 bytes that got no memory (a null pointer, or the free of one) asks
//! nothing of a pool and is passed over. Owns nothing; must not keep state between rows.
//! Cost: one split a row.

use super::build::{Builder, Name};
use super::{Complaint, decimal, six_fields};

/// The header line.
pub(super) const HEADER: &str = "Thread,Time,Action,Pointer,Size,Stream";

/// Reads one row.
pub(super) fn row(builder: &mut Builder, line: &str) -> Result<(), Complaint> {
    let [thread, time, action, pointer, size, stream] = six_fields(line, HEADER)?;
    if thread.is_empty() || time.is_empty() {
        return Err(Complaint::quoting("a thread and a time", line));
    }
    let bytes = decimal(size, "a size in bytes")?;
    if stream.is_empty() {
        return Err(Complaint::quoting("a stream", stream));
    }
    match action {
        "allocate" | "free" | "deallocate" => {
            let address = hexadecimal(pointer)?;
            if address == 0 && bytes == 0 {
                return Ok(());
            }
            if address == 0 {
                return Err(Complaint::quoting("the address of a block", pointer));
            }
            if action == "allocate" {
                builder.alloc(Name::Pointer(address), bytes, stream)
            } else {
                builder.free(Name::Pointer(address), Some(bytes), Some(stream))
            }
        }
        "allocate failure" => {
            builder.failed();
            Ok(())
        }
        other => Err(Complaint::quoting(
            "an action (\"allocate\", \"allocate failure\" or \"free\")",
            other,
        )),
    }
}

/// An address as C++ libraries print one: `0x7f12`, `7f12`, or `(nil)` for null.
fn hexadecimal(text: &str) -> Result<u64, Complaint> {
    if text == "(nil)" {
        return Ok(0);
    }
    let digits = text.strip_prefix("0x").unwrap_or(text);
    let hex = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_hexdigit());
    match u64::from_str_radix(digits, 16) {
        Ok(value) if hex => Ok(value),
        _ => Err(Complaint::quoting("a pointer in hexadecimal", text)),
    }
}
