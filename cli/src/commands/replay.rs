//! `forebay replay`: traces through the pool.
//!
//! Owns the choice of the device and the order of things: each trace is read, played on a
//! fresh pool, reported, and forgotten. A trace that fails does not keep the next one from
//! its turn. Must not touch memory unless asked. Cost: that of the replays.

use forebay::config::Config;

use super::{Failure, complain, say, table};
use crate::args::ReplayArgs;
use crate::device;
use crate::progress::Progress;
use crate::replay::{Options, Outcome, Search, run_threads, smallest_device};
use crate::target_forebay::ForebayTarget;
use crate::trace::{self, Trace};

/// Runs the command; `Ok(false)` when a trace failed (said on standard error).
pub fn run(args: &ReplayArgs) -> Result<bool, Failure> {
    if args.smallest_device && args.threads != 1 {
        let text = "--smallest-device plays with one thread; leave --threads out";
        return Err(Failure::Message(text.to_string()));
    }
    let config = device::configured(args.backend.map(Into::into))?;
    let mut all_well = true;
    for path in &args.traces {
        let played = trace::parse_file(path)
            .map_err(|error| error.to_string())
            .and_then(|trace| play(args, &config, &trace));
        match played {
            Ok(played) => report(args, &played)?,
            Err(text) => {
                complain(text);
                all_well = false;
            }
        }
    }
    Ok(all_well)
}

struct Played {
    name: String,
    device_bytes: u64,
    outcome: Outcome,
    smallest: Option<u64>,
}

fn play(args: &ReplayArgs, config: &Config, trace: &Trace) -> Result<Played, String> {
    let threads = u64::from(args.threads);
    let options = Options { touch: args.touch, stats_every: args.stats_every as usize };
    let events = trace.events.len() as u64;
    let one = args.device_bytes.or_else(|| device::replay_bytes(config, trace.peak_live_bytes));
    let wanted = match one.map(|bytes| bytes.checked_mul(threads)) {
        Some(None) => return Err(format!("{}: the device is too large", trace.name)),
        Some(bytes) => bytes,
        None => None,
    };
    let mut target = ForebayTarget::open(config, wanted, trace.streams)
        .map_err(|error| format!("{}: {error}", trace.name))?;
    let device_bytes = target.device_bytes();
    let page_bytes = target.page_bytes();
    let mut progress = Progress::new(!args.no_progress, "replay", events);
    let outcome = run_threads(trace, &mut target, threads as usize, options, &mut progress)
        .map_err(|error| error.to_string())?;
    drop(target);
    drop(progress);
    let mut smallest = None;
    if args.smallest_device {
        let mut progress = Progress::new(!args.no_progress, "smallest device", events);
        let peak_mapped_bytes = outcome.end.peak_mapped_bytes;
        let search = Search { page_bytes, peak_mapped_bytes, options };
        let open = |bytes| ForebayTarget::open(config, Some(bytes), trace.streams);
        let found = smallest_device(trace, search, open, &mut progress);
        smallest = Some(found.map_err(|error| error.to_string())?);
    }
    Ok(Played { name: trace.name.clone(), device_bytes, outcome, smallest })
}

fn report(args: &ReplayArgs, played: &Played) -> Result<(), Failure> {
    let Played { name, device_bytes, outcome, smallest } = played;
    if args.json {
        return say(outcome.json(name, *device_bytes, *smallest));
    }
    say(name)?;
    let mut rows = vec![vec!["device".to_string(), table::mib(*device_bytes)]];
    rows.extend(table::figures(outcome).into_iter().map(|(label, v)| vec![label.into(), v]));
    if let Some(bytes) = smallest {
        let ratio = *bytes as f64 / outcome.peak_live_bytes.max(1) as f64;
        rows.push(vec!["smallest device".into(), table::mib(*bytes)]);
        rows.push(vec!["  over peak live".into(), format!("{ratio:.4}")]);
    }
    for line in table::lay_out(&rows) {
        say(format!("  {line}"))?;
    }
    for (kind, calls) in outcome.end.calls.by_kind() {
        say(format!("  {kind}: {} calls", table::count(calls)))?;
    }
    Ok(())
}
