//! Stream-ordered memory, and where device-wide budgets end.
//!
//! Owns the questions about memory pools beyond a single call, and about the budget of mappings
//! with room made and with a second context. Cost: seconds where a device or a budget is filled.

use crate::cuda::{IpcHandle, NON_BLOCKING};
use crate::lab::{Lab, RW, codes, properties, yes};
use crate::rule::Source::Assumed;
use crate::rule::{Rule, Seen, Stop, rule};

/// The rules of this file.
pub const RULES: &[Rule] = &[
    rule("stream-ordered: another stream behind a free not done", Assumed, "same", foreign_reuse)
        .alone(),
    rule(
        "stream-ordered: in use by the call, behind a busy stream; freed too",
        Assumed,
        "yes yes",
        counted,
    ),
    rule("stream-ordered: what a pool holds in vain makes room; then full", Assumed, "0 2", full)
        .seconds(30)
        .alone(),
    rule("mappings: at the budget's end, one unmapped gives room for one", Assumed, "2 0", room)
        .seconds(60)
        .alone(),
    rule("mappings: two contexts share 38 to 48 % of the budget", Assumed, "yes", two_contexts)
        .seconds(60)
        .alone(),
    rule("legacy IPC handle of a process that is gone", Assumed, "205 or 1 or 201", gone)
        .before_init()
        .simulated("205"),
];

/// A pool's bytes in use now.
const USED: u32 = 7;
/// Bytes that a pool keeps when somebody waits.
const THRESHOLD: u32 = 4;
/// Long enough for memory of its own.
const PIECE: usize = 64 << 20;

fn pool(lab: &Lab) -> Result<u64, Stop> {
    lab.ask(lab.attribute(115) == 1, "memory pools are not supported")?;
    let mut pool = 0;
    let code = lab.cuda.cuDeviceGetDefaultMemPool(&raw mut pool, lab.device);
    lab.need("cuDeviceGetDefaultMemPool", code)?;
    Ok(pool)
}

fn used(lab: &Lab, pool: u64) -> Result<u64, Stop> {
    let mut bytes = 0u64;
    let code = lab.cuda.cuMemPoolGetAttribute(pool, USED, (&raw mut bytes).cast());
    lab.need("cuMemPoolGetAttribute", code)?;
    Ok(bytes)
}

fn alloc(lab: &Lab, bytes: usize, stream: u64) -> Result<u64, Stop> {
    let mut at = 0;
    lab.need("cuMemAllocAsync", lab.cuda.cuMemAllocAsync(&raw mut at, bytes, stream))?;
    Ok(at)
}

/// Frees behind a gate and allocates as much in another stream.
fn foreign_reuse(lab: &Lab) -> Seen {
    pool(lab)?;
    let (busy, other) = (lab.stream(NON_BLOCKING)?, lab.stream(NON_BLOCKING)?);
    let first = alloc(lab, PIECE, busy)?;
    lab.need("cuStreamSynchronize", lab.wait(busy))?;
    let gate = lab.gate(busy)?;
    lab.need("cuMemFreeAsync", lab.cuda.cuMemFreeAsync(first, busy))?;
    let second = alloc(lab, PIECE, other)?;
    gate.open();
    lab.need("cuStreamSynchronize", lab.wait(other))?;
    Ok(if first == second { "same" } else { "other" }.to_owned())
}

/// Allocates and frees behind a gate; what the pool says is in use.
fn counted(lab: &Lab) -> Seen {
    let pool = pool(lab)?;
    let busy = lab.stream(NON_BLOCKING)?;
    let gate = lab.gate(busy)?;
    let before = used(lab, pool)?;
    let at = alloc(lab, PIECE, busy)?;
    let during = used(lab, pool)?;
    lab.need("cuMemFreeAsync", lab.cuda.cuMemFreeAsync(at, busy))?;
    let after = used(lab, pool)?;
    gate.open();
    Ok(format!("{} {}", yes(during >= before + PIECE as u64), yes(after == before)))
}

/// Keeps half of the device in a pool, then asks for three quarters twice.
fn full(lab: &Lab) -> Seen {
    let pool = pool(lab)?;
    let stream = lab.stream(NON_BLOCKING)?;
    let mut all = u64::MAX;
    let code = lab.cuda.cuMemPoolSetAttribute(pool, THRESHOLD, (&raw mut all).cast());
    lab.need("cuMemPoolSetAttribute", code)?;
    let free = lab.free_bytes()?;
    for _ in 0..2 {
        let half = alloc(lab, free / 2, stream)?;
        lab.need("cuMemFreeAsync", lab.cuda.cuMemFreeAsync(half, stream))?;
        lab.need("cuStreamSynchronize", lab.wait(stream))?;
    }
    let mut at = 0;
    let most = |at: &mut u64| lab.cuda.cuMemAllocAsync(at, free / 4 * 3, stream);
    Ok(codes(&[most(&mut at), most(&mut at)]))
}

/// Maps one granule again and again in one reservation a row, until opening is refused. Answers
/// how many are open, and the place of the first that is not.
fn fill_budget(lab: &Lab) -> Result<(usize, u64), Stop> {
    const ROW: usize = 4096;
    if lab.simulated {
        let small = std::env::var_os("FOREBAY_SIM_MAPPINGS").is_some();
        lab.ask(small, "the host's mappings end before the simulated budget")?;
    }
    let handle = lab.create_of(lab.granule, &properties(lab.device))?;
    let mut opened = 0;
    for _ in 0..256 {
        let at = lab.reserve(ROW * lab.granule)?;
        for i in 0..ROW {
            let code = lab.map(at + (i * lab.granule) as u64, lab.granule, handle);
            lab.need("cuMemMap", code)?;
        }
        if lab.open(at, ROW * lab.granule, RW) != 0 {
            let place = |i: usize| at + (i * lab.granule) as u64;
            let is_open = |i: &usize| lab.rights(place(*i)) == Ok(u64::from(RW));
            let inside = (0..ROW).take_while(is_open).count();
            lab.ask(inside > 0, "the budget ended between two rows")?;
            lab.note(&format!("{} mappings were open", opened + inside));
            return Ok((opened + inside, place(inside)));
        }
        opened += ROW;
    }
    Err(Stop::Skip(format!("{opened} mappings were not refused")))
}

fn room(lab: &Lab) -> Seen {
    let (_, next) = fill_budget(lab)?;
    let refused = lab.open(next, lab.granule, RW);
    let last = next - lab.granule as u64;
    lab.need("cuMemUnmap", lab.cuda.cuMemUnmap(last, lab.granule))?;
    Ok(codes(&[refused, lab.open(next, lab.granule, RW)]))
}

fn two_contexts(lab: &Lab) -> Seen {
    let mut second = 0;
    let code = lab.cuda.cuCtxCreate(&raw mut second, 0, lab.device);
    lab.need("cuCtxCreate", code)?;
    let (opened, _) = fill_budget(lab)?;
    // What one context had on an H100 with driver 580.82, or has in the simulation.
    let small = std::env::var("FOREBAY_SIM_MAPPINGS").ok().filter(|_| lab.simulated);
    let whole = small.and_then(|text| text.parse().ok()).unwrap_or(523_404);
    Ok(yes((38..=48).contains(&(opened * 100 / whole))).to_owned())
}

/// A child makes a handle and ends; it is opened here.
fn gone(lab: &Lab) -> Seen {
    let mut ends = [0; 2];
    // SAFETY: a local for two descriptors.
    lab.need("pipe", unsafe { libc::pipe(ends.as_mut_ptr()) } as u32)?;
    // SAFETY: this process has one thread of its own; the child asks, tells and exits.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let made = start(lab).and_then(|()| lab.plain(4 << 20)).and_then(|at| {
            let mut handle: IpcHandle = [0; 64];
            lab.need("cuIpcGetMemHandle", lab.cuda.cuIpcGetMemHandle(&raw mut handle, at))?;
            Ok(handle)
        });
        if let Ok(handle) = made {
            // SAFETY: an open pipe and bytes of this process.
            unsafe { libc::write(ends[1], handle.as_ptr().cast(), handle.len()) };
        }
        // SAFETY: ends the child without handlers, which belong to the parent.
        unsafe { libc::_exit(i32::from(made.is_err())) };
    }
    let mut status = 0;
    // SAFETY: a child of this process, if the fork worked.
    let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
    if child < 0 || waited != child || status != 0 {
        return Err(Stop::Setup(format!("the exporting child ended with {status:#x}")));
    }
    let mut handle: IpcHandle = [0; 64];
    // SAFETY: an open pipe and room for the bytes.
    unsafe { libc::read(ends[0], handle.as_mut_ptr().cast(), handle.len()) };
    start(lab)?;
    let mut at = 0;
    Ok(lab.cuda.cuIpcOpenMemHandle(&raw mut at, handle, 1).to_string())
}

/// The primary context of device 0, current.
fn start(lab: &Lab) -> Result<(), Stop> {
    lab.need("cuInit", lab.cuda.cuInit(0))?;
    let context = lab.primary(0)?;
    lab.need("cuCtxSetCurrent", lab.cuda.cuCtxSetCurrent(context))
}
