//! The figures of one replay, as JSON and as text.
//!
//! Owns the names of the fields, which programs rely on. Must not measure anything. Cost:
//! once a run.

use serde_json::{Map, Value, json};

use super::{Watch, warmup_events};
use crate::target::TargetStats;

/// What a replay showed. Bytes, unless a name says otherwise.
#[derive(Clone, PartialEq, Debug)]
pub struct Outcome {
    /// Events played, over all threads.
    pub events: u64,
    /// Threads that played.
    pub threads: u64,
    /// The peak of live requested bytes: exact with one thread, sampled with several.
    pub peak_live_bytes: u64,
    /// CPU time of all threads in the target's calls and the loop around them, in ns.
    pub cpu_ns: u64,
    /// The part of `cpu_ns` after the first third of the events.
    pub warm_cpu_ns: u64,
    /// Sampled figures.
    pub watch: Watch,
    /// The target's figures after the first third of the events.
    pub warm: TargetStats,
    /// The target's figures after the last event.
    pub end: TargetStats,
    /// Bytes that the trace itself never freed (the replay frees them at the end).
    pub left_bytes: u64,
    /// Bytes still live in the target after everything was freed.
    pub leaked_bytes: u64,
}

impl Outcome {
    /// CPU nanoseconds an event; 0 for a trace without events.
    pub fn ns_per_event(&self) -> f64 {
        if self.events == 0 { 0.0 } else { self.cpu_ns as f64 / self.events as f64 }
    }

    /// CPU nanoseconds an event of the last two thirds; 0 without such events. Where a trace
    /// takes no memory from the driver any more, this is the allocator's own time.
    pub fn ns_per_event_after_warmup(&self) -> f64 {
        let threads = self.threads.max(1);
        let events = (self.events / threads) as usize;
        let rest = (events - warmup_events(events)) as u64 * threads;
        if rest == 0 { 0.0 } else { self.warm_cpu_ns as f64 / rest as f64 }
    }

    /// Peak mapped over peak live bytes; 1 for a trace without allocations.
    pub fn ratio(&self) -> f64 {
        if self.peak_live_bytes == 0 {
            return 1.0;
        }
        self.end.peak_mapped_bytes as f64 / self.peak_live_bytes as f64
    }

    /// Driver calls in the last two thirds of the events.
    pub fn calls_after_warmup(&self) -> u64 {
        self.end.calls.total().saturating_sub(self.warm.calls.total())
    }

    /// Pages moved in the last two thirds of the events.
    pub fn moved_after_warmup(&self) -> u64 {
        self.end.pages_moved.saturating_sub(self.warm.pages_moved)
    }

    /// One JSON object.
    pub fn json(&self, trace: &str, device_bytes: u64, smallest: Option<u64>) -> Value {
        let kinds = self.end.calls.by_kind().map(|(name, n)| (name.to_string(), json!(n)));
        let mut object = json!({
            "trace": trace,
            "device_bytes": device_bytes,
            "events": self.events,
            "threads": self.threads,
            "peak_live_bytes": self.peak_live_bytes,
            "peak_mapped_bytes": self.end.peak_mapped_bytes,
            "trapped_peak_bytes": self.watch.trapped_peak_bytes,
            "trapped_mean_bytes": self.watch.trapped_mean_bytes(),
            "driver_calls": self.end.calls.total(),
            "driver_calls_by_kind": Value::Object(kinds.collect::<Map<_, _>>()),
            "driver_calls_after_warmup": self.calls_after_warmup(),
            "pages_moved": self.end.pages_moved,
            "pages_moved_after_first_third": self.moved_after_warmup(),
            "ns_per_event": hundredths(self.ns_per_event()),
            "ns_per_event_after_warmup": hundredths(self.ns_per_event_after_warmup()),
            "left_by_trace_bytes": self.left_bytes,
            "leaked_bytes": self.leaked_bytes,
        });
        if let (Some(bytes), Some(fields)) = (smallest, object.as_object_mut()) {
            fields.insert("smallest_device_bytes".to_string(), json!(bytes));
        }
        object
    }
}

fn hundredths(value: f64) -> f64 {
    (value * 100.0).round() / 100.0
}
