//! The alloc CSV: `step,ev,id,bytes,stream,op`, with `ts_us` for `step` in timed traces.
//!
//! `ev` is `a` (allocate `bytes` under `id`) or `f` (free `id`); on frees `bytes` and
//! `stream` may be empty, `op` is free text without commas. Owns nothing; must not keep
//! state between rows. Cost: one split a row.

use super::build::{Builder, Name};
use super::{Complaint, decimal, six_fields};

/// The header of traces ordered by program step.
pub(super) const HEADER_STEP: &str = "step,ev,id,bytes,stream,op";
/// The header of traces with microseconds.
pub(super) const HEADER_TIME: &str = "ts_us,ev,id,bytes,stream,op";

/// Reads one row.
pub(super) fn row(builder: &mut Builder, line: &str) -> Result<(), Complaint> {
    let [when, event, id, bytes, stream, _op] = six_fields(line, HEADER_STEP)?;
    decimal(when, "a step or time")?;
    match event {
        "a" => {
            let name = Name::Id(decimal(id, "an id")?);
            let bytes = decimal(bytes, "a size in bytes")?;
            decimal(stream, "a stream")?;
            builder.alloc(name, bytes, stream)
        }
        "f" => {
            let name = Name::Id(decimal(id, "an id")?);
            let bytes = given(bytes).map(|text| decimal(text, "a size in bytes")).transpose()?;
            if let Some(text) = given(stream) {
                decimal(text, "a stream")?;
            }
            builder.free(name, bytes, given(stream))
        }
        other => Err(Complaint::quoting("an event, \"a\" or \"f\"", other)),
    }
}

fn given(text: &str) -> Option<&str> {
    (!text.is_empty()).then_some(text)
}
