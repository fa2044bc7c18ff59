//! What calls cost: each measured alone, in microseconds, many times.
//!
//! Owns the list of calls and their settings. Promises that a call is timed by itself, that what
//! it needs is made before and given back afterwards, and that a call which is refused is told
//! with its code and not timed. The device is idle all the while.

use crate::cuda::NON_BLOCKING;
use crate::lab::{Lab, RW, properties};
use crate::rule::Stop;
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// A row ends early after this, once it has `RUNS_MIN` times.
const ROW_MAX: Duration = Duration::from_secs(1);
const RUNS_MIN: usize = 5;

/// One call's times.
pub struct Row {
    /// The call and its setting.
    pub name: String,
    /// Microseconds, sorted.
    pub times_us: Vec<f64>,
    /// Why there are no times.
    pub problem: Option<String>,
}

impl Row {
    /// A quantile, 0 to 1; 0 if there are no times.
    pub fn quantile(&self, part: f64) -> f64 {
        let last = self.times_us.len().saturating_sub(1);
        self.times_us.get((last as f64 * part).round() as usize).copied().unwrap_or(0.0)
    }

    /// As JSON.
    pub fn json(&self) -> Value {
        json!({
            "call": self.name,
            "runs": self.times_us.len(),
            "median_us": self.quantile(0.5),
            "p10_us": self.quantile(0.1),
            "p90_us": self.quantile(0.9),
            "p99_us": self.quantile(0.99),
            "max_us": self.quantile(1.0),
            "problem": self.problem,
        })
    }
}

/// Collects rows.
struct Table<'a> {
    lab: &'a Lab,
    rows: Vec<Row>,
}

/// Times of one call, or its refusal.
struct Watch<'a> {
    lab: &'a Lab,
    name: &'static str,
    times_us: Vec<f64>,
}

impl Watch<'_> {
    /// Times one call.
    fn time(&mut self, call: impl FnOnce() -> u32) -> Result<(), Stop> {
        let start = Instant::now();
        let code = call();
        let took = start.elapsed();
        self.lab.need(self.name, code)?;
        self.times_us.push(took.as_nanos() as f64 / 1000.0);
        Ok(())
    }
}

impl Table<'_> {
    /// Measures one call: `runs` times after one that does not count.
    fn row(
        &mut self,
        name: &'static str,
        runs: usize,
        mut once: impl FnMut(&Lab, &mut Watch<'_>) -> Result<(), Stop>,
    ) {
        let mut watch = Watch { lab: self.lab, name, times_us: Vec::with_capacity(runs + 1) };
        let mut problem = None;
        let start = Instant::now();
        for _ in 0..=runs {
            if start.elapsed() > ROW_MAX && watch.times_us.len() > RUNS_MIN {
                break;
            }
            if let Err(Stop::Skip(why) | Stop::Setup(why)) = once(self.lab, &mut watch) {
                problem = Some(why);
                break;
            }
        }
        let mut times_us = watch.times_us;
        if !times_us.is_empty() {
            times_us.remove(0);
        }
        times_us.sort_by(f64::total_cmp);
        self.rows.push(Row { name: name.to_owned(), times_us, problem });
    }
}

/// Measures all.
pub fn measure(lab: &Lab) -> Vec<Row> {
    let mut table = Table { lab, rows: Vec::new() };
    address_space(&mut table);
    pages(&mut table);
    runs_of_pages(&mut table);
    plain(&mut table);
    order(&mut table);
    table.rows
}

fn address_space(t: &mut Table<'_>) {
    t.row("cuMemAddressReserve 1 GiB", 200, |lab, watch| {
        let mut at = 0;
        watch.time(|| lab.cuda.cuMemAddressReserve(&raw mut at, 1 << 30, 0, 0, 0))?;
        lab.need("cuMemAddressFree", lab.cuda.cuMemAddressFree(at, 1 << 30))
    });
    t.row("cuMemAddressFree 1 GiB", 200, |lab, watch| {
        let at = lab.reserve(1 << 30)?;
        watch.time(|| lab.cuda.cuMemAddressFree(at, 1 << 30))
    });
    t.row("cuMemGetInfo", 1000, |lab, watch| {
        let (mut free, mut total) = (0, 0);
        watch.time(|| lab.cuda.cuMemGetInfo(&raw mut free, &raw mut total))
    });
    t.row("cuMemGetAllocationGranularity", 1000, |lab, watch| {
        let (mut size, of) = (0, properties(lab.device));
        watch.time(|| lab.cuda.cuMemGetAllocationGranularity(&raw mut size, &of, 0))
    });
}

/// The five calls of one piece of memory; which of them is timed.
fn piece(t: &mut Table<'_>, name: &'static str, granules: usize, runs: usize, timed: usize) {
    let at = match t.lab.reserve(granules * t.lab.granule) {
        Ok(at) => at,
        Err(_) => return t.row(name, 0, |_, _| Err(Stop::Skip("no address space".into()))),
    };
    t.row(name, runs, |lab, watch| {
        let bytes = granules * lab.granule;
        let of = properties(lab.device);
        let mut handle = 0;
        let mut step = |number: usize, call: &mut dyn FnMut() -> u32| match number == timed {
            true => watch.time(call),
            false => lab.need("a step", call()),
        };
        step(0, &mut || lab.cuda.cuMemCreate(&raw mut handle, bytes, &of, 0))?;
        step(1, &mut || lab.map(at, bytes, handle))?;
        step(2, &mut || lab.open(at, bytes, RW))?;
        step(3, &mut || lab.cuda.cuMemUnmap(at, bytes))?;
        step(4, &mut || lab.cuda.cuMemRelease(handle))
    });
}

fn pages(t: &mut Table<'_>) {
    let small = [
        "cuMemCreate 1 granule",
        "cuMemMap 1 granule",
        "cuMemSetAccess 1 granule",
        "cuMemUnmap 1 granule",
        "cuMemRelease 1 granule",
    ];
    let large = [
        "cuMemCreate 256 granules",
        "cuMemMap 256 granules",
        "cuMemSetAccess 256 granules, 1 mapping",
        "cuMemUnmap 256 granules, 1 mapping",
        "cuMemRelease 256 granules",
    ];
    for (timed, name) in small.into_iter().enumerate() {
        piece(t, name, 1, 400, timed);
    }
    for (timed, name) in large.into_iter().enumerate() {
        piece(t, name, 256, 40, timed);
    }
}

/// Access and unmap over a row of mappings of one granule each.
fn runs_of_pages(t: &mut Table<'_>) {
    let names = [
        (16, 100, "cuMemSetAccess 16 mappings", "cuMemUnmap 16 mappings"),
        (256, 20, "cuMemSetAccess 256 mappings", "cuMemUnmap 256 mappings"),
    ];
    for (count, runs, access, unmap) in names {
        for (name, of_access) in [(access, true), (unmap, false)] {
            t.row(name, runs, |lab, watch| {
                let bytes = count * lab.granule;
                let at = lab.granules(count, if of_access { 0 } else { RW })?;
                let remove = || lab.cuda.cuMemUnmap(at, bytes);
                if of_access {
                    watch.time(|| lab.open(at, bytes, RW))?;
                    lab.need("cuMemUnmap", remove())?;
                } else {
                    watch.time(remove)?;
                }
                lab.need("cuMemAddressFree", lab.cuda.cuMemAddressFree(at, bytes))
            });
        }
    }
}

fn plain(t: &mut Table<'_>) {
    let sizes = [
        (64 << 10, 400, "cuMemAlloc 64 KiB", "cuMemFree 64 KiB"),
        (2 << 20, 400, "cuMemAlloc 2 MiB", "cuMemFree 2 MiB"),
        (64 << 20, 100, "cuMemAlloc 64 MiB", "cuMemFree 64 MiB"),
        (1 << 30, 30, "cuMemAlloc 1 GiB", "cuMemFree 1 GiB"),
    ];
    for (bytes, runs, alloc, free) in sizes {
        t.row(alloc, runs, |lab, watch| {
            let mut at = 0;
            watch.time(|| lab.cuda.cuMemAlloc(&raw mut at, bytes))?;
            lab.need("cuMemFree", lab.cuda.cuMemFree(at))
        });
        t.row(free, runs, |lab, watch| {
            let at = lab.plain(bytes)?;
            watch.time(|| lab.cuda.cuMemFree(at))
        });
    }
    let stream = t.lab.stream(NON_BLOCKING).unwrap_or(0);
    t.row("cuMemAllocAsync 2 MiB", 400, |lab, watch| {
        let mut at = 0;
        watch.time(|| lab.cuda.cuMemAllocAsync(&raw mut at, 2 << 20, stream))?;
        lab.need("cuMemFreeAsync", lab.cuda.cuMemFreeAsync(at, stream))?;
        lab.need("cuStreamSynchronize", lab.wait(stream))
    });
    t.row("cuMemFreeAsync 2 MiB", 400, |lab, watch| {
        let mut at = 0;
        let code = lab.cuda.cuMemAllocAsync(&raw mut at, 2 << 20, stream);
        lab.need("cuMemAllocAsync", code)?;
        watch.time(|| lab.cuda.cuMemFreeAsync(at, stream))?;
        lab.need("cuStreamSynchronize", lab.wait(stream))
    });
    t.row("cuMemHostAlloc 2 MiB", 100, |lab, watch| {
        let mut at = std::ptr::null_mut();
        watch.time(|| lab.cuda.cuMemHostAlloc(&raw mut at, 2 << 20, 0))?;
        lab.need("cuMemFreeHost", lab.cuda.cuMemFreeHost(at))
    });
}

/// Streams, events and the calls that a pool makes around its own.
fn order(t: &mut Table<'_>) {
    let (Ok(stream), Ok(event), Ok(cell)) =
        (t.lab.stream(NON_BLOCKING), t.lab.event(), t.lab.plain(4096))
    else {
        return t.row("streams and events", 0, |_, _| Err(Stop::Skip("no stream".into())));
    };
    t.row("cuEventRecord", 2000, |lab, watch| {
        watch.time(|| lab.cuda.cuEventRecord(event, stream))?;
        lab.need("cuStreamSynchronize", lab.wait(stream))
    });
    t.row("cuEventQuery, passed", 2000, |lab, watch| watch.time(|| lab.cuda.cuEventQuery(event)));
    t.row("cuEventSynchronize, passed", 2000, |lab, watch| {
        watch.time(|| lab.cuda.cuEventSynchronize(event))
    });
    t.row("cuCtxRecordEvent", 1000, |lab, watch| {
        watch.time(|| lab.cuda.cuCtxRecordEvent(lab.context, event))?;
        lab.need("cuCtxSynchronize", lab.cuda.cuCtxSynchronize())
    });
    t.row("cuStreamWaitEvent", 1000, |lab, watch| {
        watch.time(|| lab.cuda.cuStreamWaitEvent(stream, event, 0))?;
        lab.need("cuStreamSynchronize", lab.wait(stream))
    });
    t.row("cuStreamQuery, idle", 2000, |lab, watch| watch.time(|| lab.cuda.cuStreamQuery(stream)));
    t.row("cuStreamSynchronize, idle", 2000, |lab, watch| watch.time(|| lab.wait(stream)));
    t.row("cuCtxSynchronize, idle", 1000, |lab, watch| watch.time(|| lab.cuda.cuCtxSynchronize()));
    t.row("cuMemsetD32Async 4 KiB, queued", 1000, |lab, watch| {
        watch.time(|| lab.cuda.cuMemsetD32Async(cell, 1, 1024, stream))?;
        lab.need("cuStreamSynchronize", lab.wait(stream))
    });
    t.row("cuThreadExchangeStreamCaptureMode", 2000, |lab, watch| {
        let mut mode = 2;
        watch.time(|| lab.cuda.cuThreadExchangeStreamCaptureMode(&raw mut mode))?;
        lab.need("exchange", lab.cuda.cuThreadExchangeStreamCaptureMode(&raw mut mode))
    });
    t.row("cuPointerGetAttribute", 2000, |lab, watch| {
        let mut kind = 0u64;
        watch.time(|| lab.cuda.cuPointerGetAttribute((&raw mut kind).cast(), 2, cell))
    });
    t.row("cuStreamCreate and destroy", 200, |lab, watch| {
        let mut made = 0;
        watch.time(|| match lab.cuda.cuStreamCreate(&raw mut made, NON_BLOCKING) {
            0 => lab.cuda.cuStreamDestroy(made),
            code => code,
        })
    });
}

#[cfg(test)]
mod tests {
    use super::Row;

    #[test]
    fn quantiles_are_of_sorted_times() {
        let times_us = (1..=101).map(f64::from).collect();
        let row = Row { name: String::new(), times_us, problem: None };
        assert_eq!((row.quantile(0.0), row.quantile(0.5), row.quantile(1.0)), (1.0, 51.0, 101.0));
        let none = Row { name: String::new(), times_us: vec![], problem: None };
        assert_eq!(none.quantile(0.5), 0.0);
    }
}
