//! `forebay demo`: a real model's trace through the pool, beside two simpler allocators.
//!
//! Owns the built-in trace (so that the binary shows this anywhere) and the sentences below
//! the table, whose every number comes from the runs. The pool gets a device 1.10 times as
//! large as the peak of live bytes; the others get all they take. Cost: seconds.

use super::{Failure, say, table};
use crate::args::DemoArgs;
use crate::baseline::direct::Direct;
use crate::baseline::size_class::SizeClass;
use crate::device;
use crate::progress::Progress;
use crate::replay::{self, Options, Outcome};
use crate::target::Target;
use crate::target_forebay::ForebayTarget;
use crate::trace::{self, Trace};

const BUILT_IN: &[u8] =
    include_bytes!("../../../tests/traces/llama3_70b_tp8_contbatch_chunk256.csv.gz");
const BUILT_IN_NAME: &str = "llama3_70b_tp8_contbatch_chunk256";
const BUILT_IN_WHAT: &str = "one of eight GPUs serving Llama-3-70B, up to 32 requests at once \
    (two of its 80 layers)";

struct Results {
    forebay: Outcome,
    direct: Outcome,
    classes: Outcome,
    device_bytes: u64,
}

/// Runs the command.
pub fn run(args: &DemoArgs) -> Result<bool, Failure> {
    let config = device::configured(Some(args.backend.into()))?;
    let trace = match &args.trace {
        Some(path) => trace::parse_file(path),
        None => trace::parse_bytes(BUILT_IN_NAME, BUILT_IN),
    }
    .map_err(|error| error.to_string())?;
    let page = forebay::driver::host::DEFAULT_GRANULARITY as u64;
    let device_bytes = (trace.peak_live_bytes / 10 * 11).max(1).next_multiple_of(page);
    let mut pool = ForebayTarget::open(&config, Some(device_bytes), trace.streams)
        .map_err(|error| error.to_string())?;
    say(format!("Trace: {}", trace.name))?;
    if args.trace.is_none() {
        say(format!("       {BUILT_IN_WHAT}"))?;
    }
    let forebay = play(args, &trace, "forebay", &mut pool)?;
    drop(pool);
    let ample = device::ample_bytes(trace.peak_live_bytes);
    let driver = device::open(&config, Some(ample)).map_err(|error| error.to_string())?;
    let direct = play(args, &trace, "one driver allocation a request", &mut Direct::new(driver))?;
    let classes = play(args, &trace, "size-class cache", &mut SizeClass::new())?;
    report(&trace, &Results { forebay, direct, classes, device_bytes })?;
    Ok(true)
}

fn play<T: Target>(
    args: &DemoArgs,
    trace: &Trace,
    label: &str,
    target: &mut T,
) -> Result<Outcome, String> {
    let mut progress = Progress::new(!args.no_progress, label, trace.events.len() as u64);
    replay::run(trace, target, Options::default(), &mut progress)
        .map_err(|error| format!("{label}: {error}"))
}

fn report(trace: &Trace, results: &Results) -> Result<(), Failure> {
    let columns = [
        ("forebay", &results.forebay),
        ("driver, each request", &results.direct),
        ("size-class cache", &results.classes),
    ];
    say("")?;
    for line in table::side_by_side(&columns) {
        say(line)?;
    }
    say("")?;
    say("The second column's time is that of this backend's driver (on a GPU, cudaMalloc and")?;
    say("cudaFree take tens of microseconds and more); the third is an account without memory.")?;
    say("")?;
    for line in conclusion(trace, results) {
        say(line)?;
    }
    Ok(())
}

/// What the figures show, in two lines.
fn conclusion(trace: &Trace, results: &Results) -> [String; 2] {
    let Results { forebay, direct, classes, device_bytes } = results;
    let ratio = *device_bytes as f64 / trace.peak_live_bytes.max(1) as f64;
    let memory = format!(
        "Memory: forebay finished on a device of {} ({ratio:.2} x peak live), with at most {} \
         trapped; the size-class cache took {} ({:.2} x).",
        table::mib(*device_bytes),
        table::mib(forebay.watch.trapped_peak_bytes),
        table::mib(classes.end.peak_mapped_bytes),
        classes.ratio(),
    );
    let calls = format!(
        "Driver: {} calls after the warm-up (the first third of the events), {} pages moved; one \
         allocation a request makes {} calls.",
        table::count(forebay.calls_after_warmup()),
        table::count(forebay.moved_after_warmup()),
        table::count(direct.calls_after_warmup()),
    );
    [memory, calls]
}
