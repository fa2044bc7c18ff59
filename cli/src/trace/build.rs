//! The builder: turns rows into events and keeps the trace consistent.
//!
//! Owns the map of live blocks by the trace's own names; promises dense ids (the lowest
//! number of ids, reused last in first out, so that a replay's table stays small) and dense
//! stream numbers. Must not know any file format. Cost: one hash look-up an event.

use std::collections::HashMap;

use super::{Complaint, EVENTS_MAX, Event, SIZE_MAX, STREAMS_MAX, Trace};

/// How a format writes the name of a block in messages.
#[derive(Clone, Copy)]
pub(super) enum Name {
    /// A decimal id.
    Id(u64),
    /// An address.
    Pointer(u64),
}

impl Name {
    fn key(self) -> u64 {
        match self {
            Name::Id(value) | Name::Pointer(value) => value,
        }
    }

    fn text(self) -> String {
        match self {
            Name::Id(value) => format!("id {value}"),
            Name::Pointer(value) => format!("pointer {value:#x}"),
        }
    }
}

struct Live {
    bytes: u64,
    id: u32,
    stream: u32,
}

/// Builds a [`Trace`] row by row.
#[derive(Default)]
pub(super) struct Builder {
    events: Vec<Event>,
    live: HashMap<u64, Live>,
    free_ids: Vec<u32>,
    ids: u32,
    streams: HashMap<Box<str>, u32>,
    live_bytes: u64,
    peak_live_bytes: u64,
    failed_requests: u64,
}

impl Builder {
    /// Adds an allocation of `bytes` on the stream of that name.
    pub(super) fn alloc(&mut self, name: Name, bytes: u64, stream: &str) -> Result<(), Complaint> {
        if bytes == 0 || bytes > SIZE_MAX {
            let expected = format!("an allocation size from 1 to {SIZE_MAX} bytes");
            return Err(Complaint::new(expected, bytes.to_string()));
        }
        if self.live.contains_key(&name.key()) {
            return Err(Complaint::new(
                "a block that is not live yet",
                format!("a second allocation of {}", name.text()),
            ));
        }
        // Neither term is above SIZE_MAX, so the sum fits.
        let live_bytes = self.live_bytes + bytes;
        if live_bytes > SIZE_MAX {
            let expected = format!("at most {SIZE_MAX} live bytes");
            return Err(Complaint::new(expected, live_bytes.to_string()));
        }
        let stream = self.stream(stream)?;
        let id = match self.free_ids.pop() {
            Some(id) => id,
            None => {
                self.ids += 1;
                self.ids - 1
            }
        };
        self.push(Event::alloc(id, bytes, stream))?;
        self.live.insert(name.key(), Live { bytes, id, stream });
        self.live_bytes = live_bytes;
        self.peak_live_bytes = self.peak_live_bytes.max(live_bytes);
        Ok(())
    }

    /// Adds a free. `bytes` and `stream` may be left out: then they are the allocation's.
    pub(super) fn free(
        &mut self,
        name: Name,
        bytes: Option<u64>,
        stream: Option<&str>,
    ) -> Result<(), Complaint> {
        let Some(live) = self.live.remove(&name.key()) else {
            return Err(Complaint::new(
                "the free of a live block",
                format!("a free of {}, which is not live", name.text()),
            ));
        };
        if let Some(bytes) = bytes
            && bytes != live.bytes
        {
            return Err(Complaint::new(
                format!("{} bytes, the size {} was allocated with", live.bytes, name.text()),
                bytes.to_string(),
            ));
        }
        let stream = match stream {
            Some(stream) => self.stream(stream)?,
            None => live.stream,
        };
        self.push(Event::free(live.id, stream))?;
        self.free_ids.push(live.id);
        self.live_bytes -= live.bytes;
        Ok(())
    }

    /// Notes a request that had failed when the trace was recorded.
    pub(super) fn failed(&mut self) {
        self.failed_requests += 1;
    }

    /// The finished trace.
    pub(super) fn finish(self, name: &str) -> Trace {
        Trace {
            name: name.to_string(),
            events: self.events,
            ids: self.ids,
            streams: u32::try_from(self.streams.len()).unwrap_or(u32::MAX).max(1),
            peak_live_bytes: self.peak_live_bytes,
            left_bytes: self.live_bytes,
            failed_requests: self.failed_requests,
        }
    }

    fn push(&mut self, event: Event) -> Result<(), Complaint> {
        if self.events.len() >= EVENTS_MAX {
            return Err(Complaint::new(format!("at most {EVENTS_MAX} events"), "more"));
        }
        self.events.push(event);
        Ok(())
    }

    fn stream(&mut self, name: &str) -> Result<u32, Complaint> {
        if let Some(&number) = self.streams.get(name) {
            return Ok(number);
        }
        let count = self.streams.len();
        let number = match u32::try_from(count) {
            Ok(number) if count < STREAMS_MAX => number,
            _ => {
                let expected = format!("at most {STREAMS_MAX} streams");
                return Err(Complaint::quoting(expected, name));
            }
        };
        self.streams.insert(name.into(), number);
        Ok(number)
    }
}
