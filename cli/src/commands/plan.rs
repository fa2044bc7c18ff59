//! `forebay plan`: offsets for buffers whose lifetimes are known.
//!
//! Owns the way from a file to a plan, its figures, its picture and its files. An instance that
//! cannot be planned fails the command with the planner's sentence. Must not touch a device.
//! Cost: the planner's, within the budget asked for.

use std::path::Path;
use std::time::{Duration, Instant};

use forebay::plan::{self, Buffer, Options, Plan};
use serde_json::json;

use super::{Failure, say, table};
use crate::args::{Colour, PlanArgs};
use crate::cpu_time::thread_cpu_ns;
use crate::instance::{self, Instance};
use crate::picture;
use crate::progress::Progress;

/// Runs the command.
pub fn run(args: &PlanArgs) -> Result<bool, Failure> {
    let mut instance = instance::read_file(&args.file, args.step)?;
    for buffer in &mut instance.buffers {
        buffer.alignment = buffer.alignment.max(args.alignment);
    }
    let name = args.file.display().to_string();
    let options = Options {
        capacity: args.capacity,
        seed: args.seed,
        effort: if args.time.is_some() { u64::MAX } else { args.effort },
        time: args.time.map(Duration::from_secs_f64),
        searchers: args.searchers,
        ..Options::default()
    };
    if args.colour == Colour::Tag && instance.tags.is_empty() {
        return Err(Failure::Message(format!(
            "{name}: it has no tags to colour by: a table has them in a column tag, an alloc CSV \
             in its column op; leave --colour out for sizes"
        )));
    }
    let (start, cpu) = (Instant::now(), thread_cpu_ns());
    let plan = solve(args, &instance.buffers, &options)
        .map_err(|error| format!("{name}: {}", error.message()))?;
    let seconds = start.elapsed().as_secs_f64();
    let cpu_seconds = (thread_cpu_ns() - cpu) as f64 / 1e9;
    if let Some(path) = &args.svg {
        let tags = (args.colour == Colour::Tag).then_some(instance.tags.as_slice());
        write(path, picture::svg(&plan, &name, tags).as_bytes())?;
    }
    if let Some(path) = &args.out {
        match path.extension().is_some_and(|ending| ending == "csv") {
            true => write(path, table_of(&plan, &instance).as_bytes())?,
            false => write(path, &plan.to_bytes())?,
        }
    }
    if args.json {
        say(json!({
            "file": name,
            "buffers": plan.buffers().len(),
            "height_bytes": plan.height(),
            "bound_bytes": plan.bound(),
            "gap_bytes": plan.gap(),
            "capacity_bytes": args.capacity,
            "seed": args.seed,
            "seconds": seconds,
            "cpu_seconds": cpu_seconds,
            "peak_memory_bytes": peak_memory_bytes(),
        }))?;
    } else {
        report(&name, &plan, &instance, seconds)?;
    }
    Ok(true)
}

fn solve(args: &PlanArgs, buffers: &[Buffer], options: &Options) -> forebay::error::Result<Plan> {
    // The line counts tenths of a second, or thousands of effort.
    let total = match options.time {
        Some(time) => time.as_millis() as u64 / 100,
        None => options.effort / 1000,
    };
    let mut progress = Progress::new(!args.no_progress && !args.json, "plan", total);
    plan::solve_with(buffers, options, &mut |state| {
        let done = match options.time {
            Some(_) => state.elapsed.as_millis() as u64 / 100,
            None => state.effort / 1000,
        };
        progress.update(done.min(total), || match state.height {
            Some(height) => format!("{height} of {} bytes", state.bound),
            None => format!("bound {} bytes", state.bound),
        });
        true
    })
}

fn report(name: &str, plan: &Plan, instance: &Instance, seconds: f64) -> Result<(), Failure> {
    say(name)?;
    let over = match plan.bound() {
        0 => 1.0,
        bound => plan.height() as f64 / bound as f64,
    };
    let row = |label: &str, value: String| vec![label.to_owned(), value];
    let bytes = |bytes: u64| format!("{} bytes", table::count(bytes));
    let rows = [
        row("buffers", table::count(plan.buffers().len() as u64)),
        row("height", bytes(plan.height())),
        row("bound", bytes(plan.bound())),
        row("gap", bytes(plan.gap())),
        row("height / bound", format!("{over:.5}")),
        row("seconds", format!("{seconds:.3}")),
    ];
    for line in table::lay_out(&rows) {
        say(format!("  {line}"))?;
    }
    for note in &instance.notes {
        say(format!("  {note}"))?;
    }
    Ok(())
}

/// The plan in MiniMalloc's form, a column more where alignments differ from 1.
fn table_of(plan: &Plan, instance: &Instance) -> String {
    let aligned = plan.alignment() > 1;
    let mut text = String::from("id,lower,upper,size,");
    text.push_str(if aligned { "alignment,offset\n" } else { "offset\n" });
    for (i, (b, offset)) in plan.buffers().iter().zip(plan.offsets()).enumerate() {
        let id = instance.names.get(i).cloned().unwrap_or_else(|| b.id.to_string());
        let Buffer { birth, death, size, alignment, .. } = *b;
        match aligned {
            true => text.push_str(&format!("{id},{birth},{death},{size},{alignment},{offset}\n")),
            false => text.push_str(&format!("{id},{birth},{death},{size},{offset}\n")),
        }
    }
    text
}

fn write(path: &Path, bytes: &[u8]) -> Result<(), Failure> {
    std::fs::write(path, bytes)
        .map_err(|error| Failure::Message(format!("{}: {error}", path.display())))
}

/// The most memory that this process has had; 0 where the kernel does not say.
fn peak_memory_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|rest| rest.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}
