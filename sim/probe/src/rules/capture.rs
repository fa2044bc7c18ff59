//! Stream capture: which calls are legal, by the capture's mode, the thread and its own mode.
//!
//! A row of the table is one call in nine scenes: made by the capturing thread, by another thread
//! of default mode, by the capturing thread after an exchange to RELAXED; each in a capture of
//! mode GLOBAL, THREAD_LOCAL and RELAXED. `900!` is a call that answered 900 and left the capture
//! invalid, `0` one that did no harm.

use crate::cuda::{LEGACY, NON_BLOCKING};
use crate::lab::{Lab, RW, codes};
use crate::rule::Source::{Assumed, Header, Issue, Product, Tests};
use crate::rule::{Rule, Seen, Stop, rule};
use std::ptr::null_mut;

const SAFE: &str = "own 0 0 0, other 0 0 0, relaxed 0 0 0";
const UNSAFE: &str = "own 900! 900! 0, other 900! 0 0, relaxed 0 0 0";
const NEVER: &str = "own 900! 900! 900!, other 900! 900! 900!, relaxed 900! 900! 900!";
const CAPTURED: &str = "own 907! 907! 907!, other 907! 907! 907!, relaxed 907! 907! 907!";
const ISOLATION: &str = "own 905! 905! 905!, other 905! 905! 905!, relaxed 905! 905! 905!";

/// The rules of this file.
pub const RULES: &[Rule] = &[
    rule("capture: cuMemAlloc", Tests, UNSAFE, |lab| {
        scenes(lab, |lab, _| {
            let mut at = 0;
            lab.cuda.cuMemAlloc(&raw mut at, 16)
        })
    }),
    rule("capture: cuMemFree", Assumed, UNSAFE, |lab| {
        scenes(lab, |lab, s| lab.cuda.cuMemFree(s.block))
    }),
    rule("capture: cuMemAddressReserve", Assumed, UNSAFE, |lab| {
        scenes(lab, |lab, _| {
            let mut at = 0;
            lab.cuda.cuMemAddressReserve(&raw mut at, lab.granule, 0, 0, 0)
        })
    }),
    rule("capture: cuMemAddressFree", Assumed, UNSAFE, |lab| {
        scenes(lab, |lab, s| lab.cuda.cuMemAddressFree(s.reserved, lab.granule))
    }),
    rule("capture: cuMemCreate", Assumed, UNSAFE, |lab| {
        scenes(lab, |lab, _| {
            let mut handle = 0;
            let of = crate::lab::properties(lab.device);
            lab.cuda.cuMemCreate(&raw mut handle, lab.granule, &of, 0)
        })
    }),
    rule("capture: cuMemRelease", Assumed, UNSAFE, |lab| {
        scenes(lab, |lab, s| lab.cuda.cuMemRelease(s.handle))
    }),
    rule("capture: cuMemMap", Assumed, UNSAFE, |lab| {
        scenes(lab, |lab, s| lab.map(s.reserved, lab.granule, s.handle))
    }),
    rule("capture: cuMemSetAccess", Assumed, UNSAFE, |lab| {
        scenes(lab, |lab, s| lab.open(s.mapped, lab.granule, RW))
    }),
    rule("capture: cuMemUnmap", Assumed, UNSAFE, |lab| {
        scenes(lab, |lab, s| lab.cuda.cuMemUnmap(s.mapped, lab.granule))
    }),
    rule("capture: cuMemGetInfo", Assumed, SAFE, |lab| {
        scenes(lab, |lab, _| {
            let (mut free, mut total) = (0, 0);
            lab.cuda.cuMemGetInfo(&raw mut free, &raw mut total)
        })
    }),
    rule("capture: cuMemGetAccess", Assumed, SAFE, |lab| {
        scenes(lab, |lab, s| lab.rights(s.mapped).err().unwrap_or(0))
    }),
    rule("capture: cuMemHostAlloc", Product, UNSAFE, |lab| {
        scenes(lab, |lab, _| {
            let mut at = null_mut();
            lab.cuda.cuMemHostAlloc(&raw mut at, 4096, 0)
        })
    }),
    rule("capture: cuStreamQuery of another stream", Tests, UNSAFE, |lab| {
        scenes(lab, |lab, s| lab.cuda.cuStreamQuery(s.other))
    }),
    rule("capture: cuStreamSynchronize of another stream", Tests, UNSAFE, |lab| {
        scenes(lab, |lab, s| lab.wait(s.other))
    }),
    rule("capture: cuEventQuery of an event recorded outside", Product, UNSAFE, |lab| {
        scenes(lab, |lab, s| lab.cuda.cuEventQuery(s.outside))
    }),
    rule("capture: cuEventSynchronize of an event recorded outside", Assumed, UNSAFE, |lab| {
        scenes(lab, |lab, s| lab.cuda.cuEventSynchronize(s.outside))
    }),
    rule(
        "capture: cuMemsetD8 on the legacy stream, non-blocking capture",
        Assumed,
        UNSAFE,
        |lab| scenes(lab, |lab, s| lab.cuda.cuMemsetD8(s.cell, 1, 4)),
    ),
    rule(
        "capture: cuMemcpyHtoD on the legacy stream, non-blocking capture",
        Assumed,
        UNSAFE,
        |lab| scenes(lab, |lab, s| lab.put(s.cell, &[1; 4])),
    ),
    rule("capture: cuMemPoolGetAttribute", Issue, UNSAFE, |lab| {
        lab.ask(lab.attribute(115) == 1, "memory pools are not supported")?;
        scenes(lab, |lab, _| {
            let (mut pool, mut value) = (0, 0u64);
            let code = lab.cuda.cuDeviceGetDefaultMemPool(&raw mut pool, lab.device);
            code | lab.cuda.cuMemPoolGetAttribute(pool, 4, (&raw mut value).cast())
        })
    }),
    rule("capture: cuStreamSynchronize of the captured stream", Tests, NEVER, |lab| {
        scenes(lab, |lab, s| lab.wait(s.captured))
    }),
    rule("capture: cuStreamQuery of the captured stream", Tests, NEVER, |lab| {
        scenes(lab, |lab, s| lab.cuda.cuStreamQuery(s.captured))
    }),
    rule("capture: cuCtxSynchronize", Tests, NEVER, |lab| {
        scenes(lab, |lab, _| lab.cuda.cuCtxSynchronize())
    }),
    rule("capture: cuEventQuery of an event recorded in it", Tests, CAPTURED, |lab| {
        scenes(lab, |lab, s| lab.cuda.cuEventQuery(s.inside))
    }),
    rule("capture: cuEventSynchronize of an event recorded in it", Tests, CAPTURED, |lab| {
        scenes(lab, |lab, s| lab.cuda.cuEventSynchronize(s.inside))
    }),
    rule("capture: cuCtxRecordEvent", Header, NEVER, |lab| {
        lab.context_events()?;
        scenes(lab, |lab, s| lab.cuda.cuCtxRecordEvent(lab.context, s.blank))
    }),
    rule("capture: cuCtxWaitEvent", Header, NEVER, |lab| {
        lab.context_events()?;
        scenes(lab, |lab, s| lab.cuda.cuCtxWaitEvent(lab.context, s.outside))
    }),
    rule("capture: cuStreamAddCallback in the captured stream", Header, NEVER, |lab| {
        scenes(lab, |lab, s| lab.cuda.cuStreamAddCallback(s.captured, Some(nothing), null_mut(), 0))
    }),
    rule("capture: cuStreamWaitEvent for an event recorded outside", Header, ISOLATION, |lab| {
        scenes(lab, |lab, s| lab.cuda.cuStreamWaitEvent(s.captured, s.outside, 0))
    }),
    rule("capture: cuEventQuery of an event never recorded", Tests, SAFE, |lab| {
        scenes(lab, |lab, s| lab.cuda.cuEventQuery(s.blank))
    }),
    rule("capture: a fill in the captured stream", Header, SAFE, |lab| {
        scenes(lab, |lab, s| lab.cuda.cuMemsetD32Async(s.cell, 1, 1, s.captured))
    }),
    rule("capture: a fill in another stream", Tests, SAFE, |lab| {
        scenes(lab, |lab, s| lab.cuda.cuMemsetD32Async(s.cell, 1, 1, s.other))
    }),
    rule("capture: cuEventRecord in another stream", Header, SAFE, |lab| {
        scenes(lab, |lab, s| lab.cuda.cuEventRecord(s.blank, s.other))
    }),
    rule("capture: a fill in the legacy stream, non-blocking capture", Header, SAFE, |lab| {
        scenes(lab, |lab, s| lab.cuda.cuMemsetD32Async(s.cell, 1, 1, LEGACY))
    }),
    rule("capture: cuStreamGetId of the captured stream", Assumed, SAFE, |lab| {
        scenes(lab, |lab, s| {
            let mut id = 0;
            lab.cuda.cuStreamGetId(s.captured, &raw mut id)
        })
    }),
    rule("capture: cuStreamIsCapturing of the captured stream", Header, SAFE, |lab| {
        scenes(lab, |lab, s| {
            let mut state = 0;
            lab.cuda.cuStreamIsCapturing(s.captured, &raw mut state)
        })
    }),
    rule(
        "blocking capture: a fill in the legacy stream; the capture; its end",
        Tests,
        "906 2 901",
        beside_blocking,
    ),
    rule("blocking capture: is the legacy stream capturing; the capture", Header, "906 1", |lab| {
        let stream = lab.stream(0)?;
        lab.need("cuStreamBeginCapture", begin(lab, stream, 0))?;
        let mut state = 0;
        let code = lab.cuda.cuStreamIsCapturing(LEGACY, &raw mut state);
        Ok(codes(&[code, status(lab, stream)]))
    }),
    rule("begin: the legacy stream; mode 3; a captured stream", Tests, "900 1 401", |lab| {
        let stream = lab.stream(NON_BLOCKING)?;
        let (legacy, mode) = (begin(lab, LEGACY, 0), begin(lab, stream, 3));
        lab.need("cuStreamBeginCapture", begin(lab, stream, 0))?;
        Ok(codes(&[legacy, mode, begin(lab, stream, 0)]))
    }),
    rule("end: not captured; from another thread, GLOBAL; RELAXED", Header, "401 908 0", |lab| {
        let stream = lab.stream(NON_BLOCKING)?;
        let none = end(lab, stream);
        let mut said = vec![none];
        for mode in [0, 2] {
            lab.need("cuStreamBeginCapture", begin(lab, stream, mode))?;
            said.push(elsewhere(lab, || end(lab, stream)));
            if mode == 0 {
                end(lab, stream);
            }
        }
        Ok(codes(&said))
    }),
    rule("exchange of the mode: 3; to RELAXED gives the old one", Header, "1 0 0", |lab| {
        let mut mode = 3;
        let bad = lab.cuda.cuThreadExchangeStreamCaptureMode(&raw mut mode);
        mode = 2;
        let good = lab.cuda.cuThreadExchangeStreamCaptureMode(&raw mut mode);
        Ok(codes(&[bad, good, mode]))
    }),
    rule(
        "a fork that is not joined; ended in the forked stream, then in its own",
        Header,
        "904 903 901",
        forks,
    ),
    rule("a wait for another capture's event; both ends", Header, "902 901 901", merged),
    rule("an event of a capture that has ended: query; recorded again", Assumed, "907 0", |lab| {
        let (stream, event) = (lab.stream(NON_BLOCKING)?, lab.event()?);
        lab.need("cuStreamBeginCapture", begin(lab, stream, 0))?;
        lab.need("cuEventRecord", lab.cuda.cuEventRecord(event, stream))?;
        lab.need("cuStreamEndCapture", end(lab, stream))?;
        let captured = lab.cuda.cuEventQuery(event);
        lab.need("cuEventRecord", lab.cuda.cuEventRecord(event, stream))?;
        Ok(codes(&[captured, lab.cuda.cuEventSynchronize(event)]))
    }),
    rule(
        "an invalid capture: fill; record; begin; end; fill after it",
        Header,
        "901 901 401 901 0",
        invalid,
    ),
    rule("destroying a captured stream; an unsafe call after it", Assumed, "0 0", |lab| {
        let stream = lab.stream(NON_BLOCKING)?;
        lab.need("cuStreamBeginCapture", begin(lab, stream, 0))?;
        let gone = lab.cuda.cuStreamDestroy(stream);
        let mut at = 0;
        Ok(codes(&[gone, lab.cuda.cuMemAlloc(&raw mut at, 16)]))
    }),
    rule("a capture ended in another thread stays open for its own", Assumed, "908 1 0", |lab| {
        let stream = lab.stream(NON_BLOCKING)?;
        lab.need("cuStreamBeginCapture", begin(lab, stream, 0))?;
        let wrong = elsewhere(lab, || end(lab, stream));
        let state = status(lab, stream);
        Ok(codes(&[wrong, state, end(lab, stream)]))
    }),
    rule("capture: cuModuleLoadData", Assumed, UNSAFE, |lab| {
        scenes(lab, |lab, _| lab.load_module())
    }),
    rule("a captured graph writes only when launched", Header, "0 5", |lab| {
        let (stream, cell) = (lab.stream(NON_BLOCKING)?, lab.plain(16)?);
        let (mut graph, mut exec) = (0, 0);
        lab.need("cuMemcpyHtoD", lab.put(cell, &[0; 16]))?;
        lab.need("cuStreamBeginCapture", begin(lab, stream, 2))?;
        let fill = lab.cuda.cuMemsetD32Async(cell, 5, 1, stream);
        lab.need("cuMemsetD32Async", fill)?;
        lab.need("cuStreamEndCapture", lab.cuda.cuStreamEndCapture(stream, &raw mut graph))?;
        let before = super::vmm::told(lab.word(cell));
        lab.need("cuGraphInstantiate", lab.cuda.cuGraphInstantiate(&raw mut exec, graph, 0))?;
        lab.need("cuGraphLaunch", lab.cuda.cuGraphLaunch(exec, stream))?;
        lab.need("cuStreamSynchronize", lab.wait(stream))?;
        Ok(format!("{before} {}", super::vmm::told(lab.word(cell))))
    }),
];

/// What a call may need.
struct Scene {
    captured: u64,
    /// A non-blocking stream that is not captured.
    other: u64,
    /// Recorded before the capture, and passed.
    outside: u64,
    /// Recorded in the capture.
    inside: u64,
    /// Never recorded.
    blank: u64,
    cell: u64,
    /// A plain block that nothing uses.
    block: u64,
    /// A reserved granule without memory.
    reserved: u64,
    /// Memory of a granule, not mapped.
    handle: u64,
    /// A mapped granule.
    mapped: u64,
}

impl Scene {
    fn new(lab: &Lab) -> Result<Scene, Stop> {
        let s = Scene {
            captured: lab.stream(NON_BLOCKING)?,
            other: lab.stream(NON_BLOCKING)?,
            outside: lab.event()?,
            inside: lab.event()?,
            blank: lab.event()?,
            cell: lab.plain(64)?,
            block: lab.plain(4 << 20)?,
            reserved: lab.reserve(lab.granule)?,
            handle: lab.create(lab.granule)?,
            mapped: lab.granules(1, RW)?,
        };
        lab.need("cuEventRecord", lab.cuda.cuEventRecord(s.outside, s.other))?;
        lab.need("cuEventSynchronize", lab.cuda.cuEventSynchronize(s.outside))?;
        Ok(s)
    }
}

fn begin(lab: &Lab, stream: u64, mode: u32) -> u32 {
    lab.cuda.cuStreamBeginCapture(stream, mode)
}

fn end(lab: &Lab, stream: u64) -> u32 {
    let mut graph = 0;
    lab.cuda.cuStreamEndCapture(stream, &raw mut graph)
}

fn status(lab: &Lab, stream: u64) -> u32 {
    let mut state = 99;
    match lab.cuda.cuStreamIsCapturing(stream, &raw mut state) {
        0 => state,
        code => code,
    }
}

fn exchange(lab: &Lab, mode: u32) -> u32 {
    let mut mode = mode;
    lab.cuda.cuThreadExchangeStreamCaptureMode(&raw mut mode)
}

/// Runs on another thread with the same context.
fn elsewhere(lab: &Lab, ask: impl FnOnce() -> u32 + Send) -> u32 {
    let run = || match lab.cuda.cuCtxSetCurrent(lab.context) {
        0 => ask(),
        code => code,
    };
    std::thread::scope(|scope| scope.spawn(run).join().unwrap_or(u32::MAX))
}

/// One call in nine scenes.
fn scenes(lab: &Lab, call: fn(&Lab, &Scene) -> u32) -> Seen {
    let mut said = Vec::new();
    for who in ["own", "other", "relaxed"] {
        let mut row = vec![who.to_owned()];
        for mode in 0..3 {
            let scene = Scene::new(lab)?;
            lab.need("cuStreamBeginCapture", begin(lab, scene.captured, mode))?;
            lab.need("cuEventRecord", lab.cuda.cuEventRecord(scene.inside, scene.captured))?;
            let code = match who {
                "own" => call(lab, &scene),
                "other" => elsewhere(lab, || call(lab, &scene)),
                _ => {
                    lab.need("cuThreadExchangeStreamCaptureMode", exchange(lab, 2))?;
                    let code = call(lab, &scene);
                    lab.need("cuThreadExchangeStreamCaptureMode", exchange(lab, 0))?;
                    code
                }
            };
            let harm = if status(lab, scene.captured) == 1 { "" } else { "!" };
            end(lab, scene.captured);
            row.push(format!("{code}{harm}"));
        }
        said.push(row.join(" "));
    }
    Ok(said.join(", "))
}

unsafe extern "C" fn nothing(_stream: u64, _status: u32, _data: *mut std::ffi::c_void) {}

fn beside_blocking(lab: &Lab) -> Seen {
    let (stream, cell) = (lab.stream(0)?, lab.plain(16)?);
    lab.need("cuStreamBeginCapture", begin(lab, stream, 0))?;
    let code = lab.cuda.cuMemsetD32Async(cell, 1, 1, LEGACY);
    let state = status(lab, stream);
    Ok(codes(&[code, state, end(lab, stream)]))
}

/// Begins a capture in the first stream and takes the second into it.
fn fork(lab: &Lab, a: u64, b: u64, cell: u64) -> Result<(), Stop> {
    let event = lab.event()?;
    lab.need("cuStreamBeginCapture", begin(lab, a, 0))?;
    lab.need("cuMemsetD32Async", lab.cuda.cuMemsetD32Async(cell, 1, 1, a))?;
    lab.need("cuEventRecord", lab.cuda.cuEventRecord(event, a))?;
    lab.need("cuStreamWaitEvent", lab.cuda.cuStreamWaitEvent(b, event, 0))?;
    lab.need("cuMemsetD32Async", lab.cuda.cuMemsetD32Async(cell, 2, 1, b))
}

fn forks(lab: &Lab) -> Seen {
    let (a, b, cell) = (lab.stream(NON_BLOCKING)?, lab.stream(NON_BLOCKING)?, lab.plain(16)?);
    fork(lab, a, b, cell)?;
    let unjoined = end(lab, a);
    fork(lab, a, b, cell)?;
    let unmatched = end(lab, b);
    Ok(codes(&[unjoined, unmatched, end(lab, a)]))
}

fn merged(lab: &Lab) -> Seen {
    let (a, b, event) = (lab.stream(NON_BLOCKING)?, lab.stream(NON_BLOCKING)?, lab.event()?);
    lab.need("cuStreamBeginCapture", begin(lab, a, 0))?;
    lab.need("cuStreamBeginCapture", begin(lab, b, 0))?;
    lab.need("cuEventRecord", lab.cuda.cuEventRecord(event, a))?;
    let wait = lab.cuda.cuStreamWaitEvent(b, event, 0);
    Ok(codes(&[wait, end(lab, a), end(lab, b)]))
}

fn invalid(lab: &Lab) -> Seen {
    let (stream, event, cell) = (lab.stream(NON_BLOCKING)?, lab.event()?, lab.plain(16)?);
    lab.need("cuStreamBeginCapture", begin(lab, stream, 2))?;
    let spoiled = lab.wait(stream);
    if spoiled != 900 {
        return Ok(format!("not spoiled: {spoiled}"));
    }
    let fill = || lab.cuda.cuMemsetD32Async(cell, 1, 1, stream);
    let (filled, record) = (fill(), lab.cuda.cuEventRecord(event, stream));
    let again = begin(lab, stream, 2);
    Ok(codes(&[filled, record, again, end(lab, stream), fill()]))
}
