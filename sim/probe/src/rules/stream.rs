//! Streams and events: order, waiting, handles; what the host may do meanwhile.

use super::vmm::told;
use crate::cuda::{LEGACY, NON_BLOCKING, PER_THREAD};
use crate::lab::{Lab, codes, until, yes};
use crate::rule::Source::{Assumed, Header, Product};
use crate::rule::{Rule, Seen, Stop, rule};
use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

/// The rules of this file.
pub const RULES: &[Rule] = &[
    rule("stream: flags 2; no place; destroy of handle 0", Header, "1 1 400 or 1 1 1", |lab| {
        let mut stream = 0;
        let flags = lab.cuda.cuStreamCreate(&raw mut stream, 2);
        let none = lab.cuda.cuStreamCreate(null_mut(), 0);
        Ok(codes(&[flags, none, lab.cuda.cuStreamDestroy(0)]))
    })
    .simulated("1 1 400"),
    rule("stream: priorities are clamped: 99; -99", Header, "yes yes", priorities),
    rule("stream: a busy one: query; after its end", Header, "600 0", |lab| {
        let stream = lab.stream(NON_BLOCKING)?;
        let gate = lab.gate(stream)?;
        let busy = lab.cuda.cuStreamQuery(stream);
        gate.open();
        Ok(codes(&[busy, until(600, || lab.cuda.cuStreamQuery(stream))]))
    }),
    rule("stream: a destroyed handle is used by a later stream", Product, "yes", |lab| {
        let mut seen = std::collections::BTreeSet::new();
        for _ in 0..16 {
            let stream = lab.stream(NON_BLOCKING)?;
            if !seen.insert(stream) {
                return Ok("yes".to_owned());
            }
            lab.need("cuStreamDestroy", lab.cuda.cuStreamDestroy(stream))?;
        }
        Ok("no".to_owned())
    }),
    rule("stream: ids differ though handles return", Header, "yes", |lab| {
        let mut seen = std::collections::BTreeSet::new();
        for _ in 0..16 {
            let (stream, mut id) = (lab.stream(NON_BLOCKING)?, 0);
            lab.need("cuStreamGetId", lab.cuda.cuStreamGetId(stream, &raw mut id))?;
            seen.insert(id);
            lab.need("cuStreamDestroy", lab.cuda.cuStreamDestroy(stream))?;
        }
        Ok(yes(seen.len() == 16).to_owned())
    }),
    rule("stream: use after destroy (undefined): query", Assumed, "400 or crashed or 709", |lab| {
        let stream = lab.stream(NON_BLOCKING)?;
        lab.need("cuStreamDestroy", lab.cuda.cuStreamDestroy(stream))?;
        Ok(lab.cuda.cuStreamQuery(stream).to_string())
    })
    .simulated("400"),
    rule("stream: destroy while busy returns; its work completes", Header, "0 0 busy, 5", destroy),
    rule("order: two streams have none", Header, "5", |lab| {
        let (busy, free) = (lab.stream(NON_BLOCKING)?, lab.stream(NON_BLOCKING)?);
        let cell = lab.plain(16)?;
        let gate = lab.gate(busy)?;
        lab.need("cuMemsetD32Async", set(lab, cell, 5, free))?;
        let done = until(600, || lab.cuda.cuStreamQuery(free));
        lab.need("cuStreamQuery", done)?;
        gate.open();
        Ok(told(lab.word(cell)))
    }),
    rule("order: legacy work waits for a blocking stream", Header, "600 0", |lab| {
        ordered(lab, 0, LEGACY)
    }),
    rule("order: a blocking stream waits for legacy work", Header, "600 0", |lab| {
        let stream = lab.stream(0)?;
        behind(lab, LEGACY, stream)
    }),
    rule("order: legacy work does not wait for a non-blocking stream", Header, "0 0", |lab| {
        ordered(lab, NON_BLOCKING, LEGACY)
    }),
    rule("order: the per-thread stream waits for legacy work", Header, "600 0", |lab| {
        behind(lab, LEGACY, PER_THREAD)
    }),
    rule("order: handle 0 is the legacy stream", Header, "600 0", |lab| ordered(lab, 0, 0)),
    rule("order: a wait for an event holds the stream up", Header, "600 0 5", |lab| {
        let (busy, other) = (lab.stream(NON_BLOCKING)?, lab.stream(NON_BLOCKING)?);
        let (cell, event) = (lab.plain(16)?, lab.event()?);
        let gate = lab.gate(busy)?;
        lab.need("cuEventRecord", lab.cuda.cuEventRecord(event, busy))?;
        lab.need("cuStreamWaitEvent", lab.cuda.cuStreamWaitEvent(other, event, 0))?;
        lab.need("cuMemsetD32Async", set(lab, cell, 5, other))?;
        let held = still(lab, other);
        gate.open();
        let done = until(600, || lab.cuda.cuStreamQuery(other));
        Ok(format!("{held} {done} {}", told(lab.word(cell))))
    }),
    rule(
        "order: a destroyed event still holds those up who wait for it",
        Header,
        "0 600 0",
        destroyed_event,
    ),
    rule(
        "order: a wait takes the mark at the call; a later record moves nothing",
        Header,
        "0 600",
        moved_mark,
    ),
    rule(
        "query of the legacy stream takes busy blocking streams in, not others",
        Assumed,
        "600 0",
        |lab| {
            let mut said = Vec::new();
            for flags in [0, NON_BLOCKING] {
                let gate = lab.gate(lab.stream(flags)?)?;
                said.push(still(lab, LEGACY));
                gate.open();
            }
            Ok(codes(&said))
        },
    ),
    rule("write value: an address off four bytes", Assumed, "1", |lab| {
        let (stream, word) = (lab.stream(NON_BLOCKING)?, lab.pinned(64)?);
        Ok(lab.cuda.cuStreamWriteValue32(stream, word as u64 + 2, 1, 0).to_string())
    }),
    rule("event: flags 8; interprocess with timing", Header, "1 1", |lab| {
        let mut event = 0;
        let mut create = |flags| lab.cuda.cuEventCreate(&raw mut event, flags);
        Ok(codes(&[create(8), create(4)]))
    }),
    rule("event: never recorded: query; synchronize; elapsed time", Header, "0 0 400", |lab| {
        let (mut event, mut ms) = (0, 0.0);
        lab.need("cuEventCreate", lab.cuda.cuEventCreate(&raw mut event, 0))?;
        let query = lab.cuda.cuEventQuery(event);
        let wait = lab.cuda.cuEventSynchronize(event);
        Ok(codes(&[query, wait, lab.cuda.cuEventElapsedTime(&raw mut ms, event, event)]))
    }),
    rule(
        "event: recorded behind a gate: query; elapsed time; after the gate",
        Header,
        "600 600 0",
        |lab| {
            let (mut event, mut ms) = (0, 0.0);
            lab.need("cuEventCreate", lab.cuda.cuEventCreate(&raw mut event, 0))?;
            let stream = lab.stream(NON_BLOCKING)?;
            let gate = lab.gate(stream)?;
            lab.need("cuEventRecord", lab.cuda.cuEventRecord(event, stream))?;
            let busy = lab.cuda.cuEventQuery(event);
            let time = lab.cuda.cuEventElapsedTime(&raw mut ms, event, event);
            gate.open();
            Ok(codes(&[busy, time, until(600, || lab.cuda.cuEventQuery(event))]))
        },
    ),
    rule("event: elapsed time without timing", Header, "400", |lab| {
        let (event, stream, mut ms) = (lab.event()?, lab.stream(NON_BLOCKING)?, 0.0);
        lab.need("cuEventRecord", lab.cuda.cuEventRecord(event, stream))?;
        lab.need("cuEventSynchronize", lab.cuda.cuEventSynchronize(event))?;
        Ok(lab.cuda.cuEventElapsedTime(&raw mut ms, event, event).to_string())
    }),
    rule(
        "event: recorded in a stream of another context; awaited there",
        Header,
        "400 0",
        foreign_event,
    ),
    rule("event: recorded over a context covers a busy stream", Header, "600 0", |lab| {
        lab.context_events()?;
        let (stream, event) = (lab.stream(NON_BLOCKING)?, lab.event()?);
        let gate = lab.gate(stream)?;
        let code = lab.cuda.cuCtxRecordEvent(lab.context, event);
        if code != 0 {
            gate.open();
        }
        lab.need("cuCtxRecordEvent", code)?;
        let busy = lab.cuda.cuEventQuery(event);
        gate.open();
        Ok(codes(&[busy, until(600, || lab.cuda.cuEventQuery(event))]))
    }),
    rule(
        "event: recorded over a context: a stream made later is not covered",
        Assumed,
        "0",
        |lab| {
            lab.context_events()?;
            let event = lab.event()?;
            let code = lab.cuda.cuCtxRecordEvent(lab.context, event);
            lab.need("cuCtxRecordEvent", code)?;
            let later = lab.stream(NON_BLOCKING)?;
            let gate = lab.gate(later)?;
            let passed = until(600, || lab.cuda.cuEventQuery(event));
            gate.open();
            Ok(passed.to_string())
        },
    ),
    rule("event: a context's wait holds a stream's later work up", Header, "600 0", context_waits),
    rule("host function: runs behind earlier work, before later work", Header, "in order", |lab| {
        host_order(lab)
    }),
    rule("host function: a call from it; null function", Header, "800 1", from_host_function),
    rule("wait value: holds a stream until the host writes", Header, "600 0", |lab| {
        let (stream, word) = (lab.stream(NON_BLOCKING)?, lab.pinned(64)?);
        let code = lab.cuda.cuStreamWaitValue32(stream, word as u64, 1, 1);
        lab.need("cuStreamWaitValue32", code)?;
        let busy = still(lab, stream);
        // SAFETY: pinned memory of this process.
        unsafe { word.write_volatile(1) };
        Ok(codes(&[busy, until(600, || lab.cuda.cuStreamQuery(stream))]))
    }),
    rule("wait value: an address off four bytes", Header, "1", |lab| {
        let (stream, word) = (lab.stream(NON_BLOCKING)?, lab.pinned(64)?);
        Ok(lab.cuda.cuStreamWaitValue32(stream, word as u64 + 2, 1, 0).to_string())
    }),
    rule("a pageable copy from the host may be overwritten at once", Header, "4", |lab| {
        let (stream, cell) = (lab.stream(NON_BLOCKING)?, lab.plain(4096)?);
        let gate = lab.gate(stream)?;
        let opener = gate.open_after(std::time::Duration::from_millis(200));
        let mut words = [4u32; 1024];
        let code = lab.cuda.cuMemcpyHtoDAsync(cell, words.as_ptr().cast(), 4096, stream);
        words.fill(9);
        // A thread that cannot be joined has panicked, which no code there does.
        let _ = opener.join();
        lab.need("cuMemcpyHtoDAsync", code)?;
        lab.need("cuStreamSynchronize", lab.wait(stream))?;
        Ok(told(lab.word(cell + 4092)))
    }),
    rule(
        "graph: a user object's destructor runs after graph and launches",
        Header,
        "0 0 1",
        user_object,
    ),
];

fn set(lab: &Lab, at: u64, value: u32, stream: u64) -> u32 {
    lab.cuda.cuMemsetD32Async(at, value, 1, stream)
}

/// The state of something that is perhaps held up: 600 if it is so for a fourth of a second.
fn held(ask: impl Fn() -> u32) -> u32 {
    for _ in 0..250 {
        let state = ask();
        if state != 600 {
            return state;
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    600
}

/// A stream's state, if it is perhaps held up.
fn still(lab: &Lab, stream: u64) -> u32 {
    held(|| lab.cuda.cuStreamQuery(stream))
}

/// A stream of these flags is busy; `later` gets work. Its state before and after the gate.
fn ordered(lab: &Lab, flags: u32, later: u64) -> Seen {
    let busy = lab.stream(flags)?;
    behind(lab, busy, later)
}

fn behind(lab: &Lab, busy: u64, later: u64) -> Seen {
    let (cell, event) = (lab.plain(16)?, lab.event()?);
    let gate = lab.gate(busy)?;
    lab.need("cuMemsetD32Async", set(lab, cell, 5, later))?;
    lab.need("cuEventRecord", lab.cuda.cuEventRecord(event, later))?;
    let held = held(|| lab.cuda.cuEventQuery(event));
    gate.open();
    Ok(codes(&[held, until(600, || lab.cuda.cuEventQuery(event))]))
}

fn priorities(lab: &Lab) -> Seen {
    let (mut least, mut greatest) = (0, 0);
    let code = lab.cuda.cuCtxGetStreamPriorityRange(&raw mut least, &raw mut greatest);
    lab.need("cuCtxGetStreamPriorityRange", code)?;
    let mut said = Vec::new();
    for (asked, bound) in [(99, least), (-99, greatest)] {
        let (mut stream, mut got) = (0, 77);
        let code = lab.cuda.cuStreamCreateWithPriority(&raw mut stream, NON_BLOCKING, asked);
        lab.need("cuStreamCreateWithPriority", code)?;
        lab.need("cuStreamGetPriority", lab.cuda.cuStreamGetPriority(stream, &raw mut got))?;
        said.push(yes(got == bound));
    }
    Ok(said.join(" "))
}

fn destroy(lab: &Lab) -> Seen {
    let (stream, cell, event) = (lab.stream(NON_BLOCKING)?, lab.plain(16)?, lab.event()?);
    let gate = lab.gate(stream)?;
    let queued = set(lab, cell, 5, stream);
    lab.need("cuEventRecord", lab.cuda.cuEventRecord(event, stream))?;
    let gone = lab.cuda.cuStreamDestroy(stream);
    let busy = if lab.cuda.cuEventQuery(event) == 600 { "busy" } else { "done" };
    gate.open();
    lab.need("cuEventSynchronize", lab.cuda.cuEventSynchronize(event))?;
    Ok(format!("{queued} {gone} {busy}, {}", told(lab.word(cell))))
}

fn destroyed_event(lab: &Lab) -> Seen {
    let (busy, other) = (lab.stream(NON_BLOCKING)?, lab.stream(NON_BLOCKING)?);
    let (cell, event) = (lab.plain(16)?, lab.event()?);
    let gate = lab.gate(busy)?;
    lab.need("cuEventRecord", lab.cuda.cuEventRecord(event, busy))?;
    lab.need("cuStreamWaitEvent", lab.cuda.cuStreamWaitEvent(other, event, 0))?;
    let gone = lab.cuda.cuEventDestroy(event);
    lab.need("cuMemsetD32Async", set(lab, cell, 5, other))?;
    let held = still(lab, other);
    gate.open();
    Ok(codes(&[gone, held, until(600, || lab.cuda.cuStreamQuery(other))]))
}

/// A stream waits for an event of an idle stream; then the event is recorded in a busy one.
fn moved_mark(lab: &Lab) -> Seen {
    let (idle, busy, other) =
        (lab.stream(NON_BLOCKING)?, lab.stream(NON_BLOCKING)?, lab.stream(NON_BLOCKING)?);
    let event = lab.event()?;
    lab.need("cuEventRecord", lab.cuda.cuEventRecord(event, idle))?;
    lab.need("cuStreamWaitEvent", lab.cuda.cuStreamWaitEvent(other, event, 0))?;
    let gate = lab.gate(busy)?;
    lab.need("cuEventRecord", lab.cuda.cuEventRecord(event, busy))?;
    let passed = until(600, || lab.cuda.cuStreamQuery(other));
    let event = lab.cuda.cuEventQuery(event);
    gate.open();
    Ok(codes(&[passed, event]))
}

fn foreign_event(lab: &Lab) -> Seen {
    let event = lab.event()?;
    let mut other = 0;
    lab.need("cuCtxCreate", lab.cuda.cuCtxCreate(&raw mut other, 0, lab.device))?;
    let stream = lab.stream(NON_BLOCKING)?;
    let record = lab.cuda.cuEventRecord(event, stream);
    Ok(codes(&[record, lab.cuda.cuStreamWaitEvent(stream, event, 0)]))
}

fn context_waits(lab: &Lab) -> Seen {
    lab.context_events()?;
    let (busy, other) = (lab.stream(NON_BLOCKING)?, lab.stream(NON_BLOCKING)?);
    let (cell, event) = (lab.plain(16)?, lab.event()?);
    let gate = lab.gate(busy)?;
    lab.need("cuEventRecord", lab.cuda.cuEventRecord(event, busy))?;
    let code = lab.cuda.cuCtxWaitEvent(lab.context, event);
    if code != 0 {
        gate.open();
    }
    lab.need("cuCtxWaitEvent", code)?;
    lab.need("cuMemsetD32Async", set(lab, cell, 5, other))?;
    let held = still(lab, other);
    gate.open();
    Ok(codes(&[held, until(600, || lab.cuda.cuStreamQuery(other))]))
}

/// What a host function saw: the first word of pinned memory, plus one.
static SEEN: AtomicU32 = AtomicU32::new(0);

unsafe extern "C" fn look(data: *mut c_void) {
    // SAFETY: the pinned word that was passed along.
    SEEN.store(unsafe { data.cast::<u32>().read_volatile() } + 1, SeqCst);
}

fn host_order(lab: &Lab) -> Seen {
    let (stream, word) = (lab.stream(NON_BLOCKING)?, lab.pinned(64)?);
    lab.need("cuMemsetD32Async", set(lab, word as u64, 5, stream))?;
    let code = lab.cuda.cuLaunchHostFunc(stream, Some(look), word.cast());
    lab.need("cuLaunchHostFunc", code)?;
    lab.need("cuMemsetD32Async", set(lab, word as u64, 8, stream))?;
    lab.need("cuStreamSynchronize", lab.wait(stream))?;
    Ok(match SEEN.load(SeqCst) {
        6 => "in order".to_owned(),
        0 => "not called".to_owned(),
        seen => format!("saw {}", seen - 1),
    })
}

unsafe extern "C" fn call(data: *mut c_void) {
    // SAFETY: the bench that was passed along, which outlives the wait for this function.
    let lab = unsafe { &*data.cast::<Lab>() };
    SEEN.store(lab.cuda.cuCtxSynchronize(), SeqCst);
}

fn from_host_function(lab: &Lab) -> Seen {
    let stream = lab.stream(NON_BLOCKING)?;
    let data = std::ptr::from_ref(lab).cast_mut().cast();
    lab.need("cuLaunchHostFunc", lab.cuda.cuLaunchHostFunc(stream, Some(call), data))?;
    lab.need("cuStreamSynchronize", lab.wait(stream))?;
    let null = lab.cuda.cuLaunchHostFunc(stream, None, null_mut());
    Ok(codes(&[SEEN.load(SeqCst), null]))
}

unsafe extern "C" fn ended(_: *mut c_void) {
    SEEN.fetch_add(1, SeqCst);
}

/// How often the destructor has run: with the graph, with the executable one, without both.
fn user_object(lab: &Lab) -> Seen {
    let (stream, cell) = (lab.stream(NON_BLOCKING)?, lab.plain(16)?);
    let (mut graph, mut exec, mut object) = (0, 0, 0);
    lab.need("cuStreamBeginCapture", lab.cuda.cuStreamBeginCapture(stream, 2))?;
    lab.need("cuMemsetD32Async", set(lab, cell, 5, stream))?;
    lab.need("cuStreamEndCapture", lab.cuda.cuStreamEndCapture(stream, &raw mut graph))?;
    let data = null_mut();
    let code = lab.cuda.cuUserObjectCreate(&raw mut object, data, Some(ended), 1, 1);
    lab.need("cuUserObjectCreate", code)?;
    let code = lab.cuda.cuGraphRetainUserObject(graph, object, 1, 1);
    lab.need("cuGraphRetainUserObject", code)?;
    let seen = || -> Result<u32, Stop> {
        std::thread::sleep(std::time::Duration::from_millis(100));
        Ok(SEEN.load(SeqCst))
    };
    let first = seen()?;
    lab.need("cuGraphInstantiate", lab.cuda.cuGraphInstantiate(&raw mut exec, graph, 0))?;
    lab.need("cuGraphDestroy", lab.cuda.cuGraphDestroy(graph))?;
    lab.need("cuGraphLaunch", lab.cuda.cuGraphLaunch(exec, stream))?;
    lab.need("cuStreamSynchronize", lab.wait(stream))?;
    let second = seen()?;
    lab.need("cuGraphExecDestroy", lab.cuda.cuGraphExecDestroy(exec))?;
    let third = until(0, || SEEN.load(SeqCst));
    Ok(codes(&[first, second, third]))
}
