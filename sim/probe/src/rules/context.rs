//! Contexts, their stacks, their errors; the life of the process.

use crate::cuda::NON_BLOCKING;
use crate::lab::{Lab, codes, yes};
use crate::rule::Source::{Assumed, Header, Issue};
use crate::rule::{Rule, Seen, Stop, rule};

/// The rules of this file.
pub const RULES: &[Rule] = &[
    rule("before cuInit: device count; reserve; current context", Header, "3 3 3", |lab| {
        let (mut count, mut at, mut context) = (0, 0, 0);
        let device = lab.cuda.cuDeviceGetCount(&raw mut count);
        let reserve = lab.cuda.cuMemAddressReserve(&raw mut at, lab.granule, 0, 0, 0);
        Ok(codes(&[device, reserve, lab.cuda.cuCtxGetCurrent(&raw mut context)]))
    })
    .before_init(),
    rule("before cuInit: driver version", Header, "0", |lab| {
        let mut version = 0;
        Ok(lab.cuda.cuDriverGetVersion(&raw mut version).to_string())
    })
    .before_init(),
    rule("init: flags 1", Header, "1", |lab| Ok(lab.cuda.cuInit(1).to_string())).before_init(),
    rule("in a forked child after cuInit: device count", Assumed, "3", |lab| {
        in_child(|| {
            let mut count = 0;
            lab.cuda.cuDeviceGetCount(&raw mut count)
        })
    })
    .without_context(),
    rule("a fork before cuInit works in the child", Header, "0", |lab| {
        in_child(|| lab.cuda.cuInit(0))
    })
    .before_init(),
    rule("from an exit handler registered before cuInit: 4, after it: 0", Issue, "4 0", |lab| {
        in_exit_handlers(lab)
    })
    .before_init(),
    rule("no such device: get 77; get -1", Header, "101 101", |lab| {
        let mut device = 0;
        let get = |ordinal| lab.cuda.cuDeviceGet(&raw mut device, ordinal);
        let mut get = get;
        Ok(codes(&[get(77), get(-1)]))
    })
    .without_context(),
    rule("device attribute: number 9999", Header, "1", |lab| {
        let mut value = 0;
        Ok(lab.cuda.cuDeviceGetAttribute(&raw mut value, 9999, lab.device).to_string())
    })
    .without_context(),
    rule("no current context: synchronize; get device; pop", Header, "201 201 201", |lab| {
        let (mut device, mut context) = (0, 0);
        let get = lab.cuda.cuCtxGetDevice(&raw mut device);
        Ok(codes(&[lab.cuda.cuCtxSynchronize(), get, lab.cuda.cuCtxPopCurrent(&raw mut context)]))
    })
    .without_context(),
    rule(
        "create makes current; pop gives it; nothing is current then",
        Header,
        "yes yes yes",
        |lab| {
            let context = made(lab)?;
            let during = current(lab)? == context;
            let mut popped = 0;
            lab.need("cuCtxPopCurrent", lab.cuda.cuCtxPopCurrent(&raw mut popped))?;
            Ok(format!("{} {} {}", yes(during), yes(popped == context), yes(current(lab)? == 0)))
        },
    )
    .without_context(),
    rule("destroy of the current context: nothing is current then", Header, "yes", |lab| {
        let context = made(lab)?;
        lab.need("cuCtxDestroy", lab.cuda.cuCtxDestroy(context))?;
        Ok(yes(current(lab)? == 0).to_owned())
    })
    .without_context(),
    rule("a context destroyed by another thread, still current here", Header, "709", |lab| {
        let context = made(lab)?;
        let code = std::thread::scope(|scope| {
            scope.spawn(|| lab.cuda.cuCtxDestroy(context)).join().unwrap_or(u32::MAX)
        });
        lab.need("cuCtxDestroy", code)?;
        Ok(lab.cuda.cuCtxSynchronize().to_string())
    })
    .without_context(),
    rule("primary: retained, not current; the same handle again", Header, "yes yes", |lab| {
        let first = lab.primary(lab.device)?;
        let none = current(lab)? == 0;
        Ok(format!("{} {}", yes(none), yes(first == lab.primary(lab.device)?)))
    })
    .without_context(),
    rule("primary: release without a retain", Header, "201", |lab| {
        Ok(lab.cuda.cuDevicePrimaryCtxRelease(lab.device).to_string())
    })
    .without_context(),
    rule(
        "primary: after the last release inactive, and 709 where it is current",
        Header,
        "inactive 709",
        |lab| {
            lab.need("cuDevicePrimaryCtxRelease", lab.cuda.cuDevicePrimaryCtxRelease(lab.device))?;
            Ok(format!("{} {}", active(lab)?, lab.cuda.cuCtxSynchronize()))
        },
    ),
    rule(
        "primary: after a reset inactive, 709; retained again it works",
        Issue,
        "inactive 709 0",
        |lab| {
            lab.need("cuDevicePrimaryCtxReset", lab.cuda.cuDevicePrimaryCtxReset(lab.device))?;
            let (state, code) = (active(lab)?, lab.cuda.cuCtxSynchronize());
            lab.primary(lab.device)?;
            Ok(format!("{state} {code} {}", lab.cuda.cuCtxSynchronize()))
        },
    ),
    rule("primary: destroyed like a plain context", Assumed, "201", |lab| {
        Ok(lab.cuda.cuCtxDestroy(lab.context).to_string())
    }),
    rule("context ids: two differ", Header, "yes", |lab| {
        let (mut first, mut second) = (0, 0);
        let other = made(lab)?;
        lab.need("cuCtxGetId", lab.cuda.cuCtxGetId(lab.context, &raw mut first))?;
        lab.need("cuCtxGetId", lab.cuda.cuCtxGetId(other, &raw mut second))?;
        Ok(yes(first != second).to_owned())
    }),
    rule("virtual memory outlives the context it was used in", Header, "3 9", outlives)
        .without_context(),
    rule("stream priorities: least; greatest", Header, "0 -5 or 0 -2 or 0 -1", |lab| {
        let (mut least, mut greatest) = (9, 9);
        let code = lab.cuda.cuCtxGetStreamPriorityRange(&raw mut least, &raw mut greatest);
        lab.need("cuCtxGetStreamPriorityRange", code)?;
        Ok(format!("{least} {greatest}"))
    }),
    rule("peer access: to itself; flags 1; not enabled", Header, "201 1 705", |lab| {
        let peer = lab.peer()?;
        let other = lab.primary(peer)?;
        let enable = |context, flags| lab.cuda.cuCtxEnablePeerAccess(context, flags);
        let off = lab.cuda.cuCtxDisablePeerAccess(other);
        Ok(codes(&[enable(lab.context, 0), enable(other, 1), off]))
    }),
    rule("peer access: enabled; twice", Header, "0 704", |lab| {
        let peer = lab.peer()?;
        let other = lab.primary(peer)?;
        let enable = || lab.cuda.cuCtxEnablePeerAccess(other, 0);
        Ok(codes(&[enable(), enable()]))
    }),
    rule(
        "after 700: synchronize; alloc; stream query; event create; free",
        Header,
        "700 700 700 700 700",
        sticky,
    ),
    rule("after 700: current context and device still answer", Assumed, "0 0", |lab| {
        fail(lab)?;
        let (mut context, mut device) = (0, 0);
        let current = lab.cuda.cuCtxGetCurrent(&raw mut context);
        Ok(codes(&[current, lab.cuda.cuCtxGetDevice(&raw mut device)]))
    }),
    rule(
        "after 700: virtual memory calls, which need no context",
        Assumed,
        "0 0 0 0 0",
        virtual_memory_after_failure,
    ),
    rule("after 700: destroy, and a new context", Assumed, "0 0 0", |lab| {
        lab.need("cuCtxSetCurrent", lab.cuda.cuCtxSetCurrent(0))?;
        let context = made(lab)?;
        fail(lab)?;
        let gone = lab.cuda.cuCtxDestroy(context);
        let mut next = 0;
        let code = lab.cuda.cuCtxCreate(&raw mut next, 0, lab.device);
        Ok(codes(&[gone, code, lab.cuda.cuCtxSynchronize()]))
    }),
    rule("after 700 in one context: another context of the device", Assumed, "0", |lab| {
        let other = made(lab)?;
        lab.need("cuCtxSetCurrent", lab.cuda.cuCtxSetCurrent(lab.context))?;
        fail(lab)?;
        lab.need("cuCtxSetCurrent", lab.cuda.cuCtxSetCurrent(other))?;
        Ok(lab.cuda.cuCtxSynchronize().to_string())
    }),
    rule("after 700: reset of the primary context, retained again", Assumed, "0 0", |lab| {
        fail(lab)?;
        let reset = lab.cuda.cuDevicePrimaryCtxReset(lab.device);
        lab.primary(lab.device)?;
        Ok(codes(&[reset, lab.cuda.cuCtxSynchronize()]))
    }),
];

fn made(lab: &Lab) -> Result<u64, Stop> {
    let mut context = 0;
    lab.need("cuCtxCreate", lab.cuda.cuCtxCreate(&raw mut context, 0, lab.device))?;
    Ok(context)
}

fn current(lab: &Lab) -> Result<u64, Stop> {
    let mut context = 0;
    lab.need("cuCtxGetCurrent", lab.cuda.cuCtxGetCurrent(&raw mut context))?;
    Ok(context)
}

fn active(lab: &Lab) -> Result<&'static str, Stop> {
    let (mut flags, mut active) = (0, 9);
    let code = lab.cuda.cuDevicePrimaryCtxGetState(lab.device, &raw mut flags, &raw mut active);
    lab.need("cuDevicePrimaryCtxGetState", code)?;
    Ok(if active == 0 { "inactive" } else { "active" })
}

/// Makes the current context fail by a kernel's store to addresses without memory.
fn fail(lab: &Lab) -> Result<(), Stop> {
    let at = lab.reserve(lab.granule)?;
    let stream = lab.stream(NON_BLOCKING)?;
    lab.need("cuLaunchKernel", lab.fill(at, 1, 1, stream)?)?;
    match lab.wait(stream) {
        700 => Ok(()),
        code => Err(Stop::Setup(format!("a stray store answered {code}"))),
    }
}

fn sticky(lab: &Lab) -> Seen {
    let (stream, block) = (lab.stream(NON_BLOCKING)?, lab.plain(16)?);
    fail(lab)?;
    let (mut at, mut event) = (0, 0);
    let synchronize = lab.cuda.cuCtxSynchronize();
    let alloc = lab.cuda.cuMemAlloc(&raw mut at, 16);
    let query = lab.cuda.cuStreamQuery(stream);
    let create = lab.cuda.cuEventCreate(&raw mut event, 0);
    Ok(codes(&[synchronize, alloc, query, create, lab.cuda.cuMemFree(block)]))
}

fn virtual_memory_after_failure(lab: &Lab) -> Seen {
    fail(lab)?;
    let mut at = 0;
    let reserve = lab.cuda.cuMemAddressReserve(&raw mut at, lab.granule, 0, 0, 0);
    let of = crate::lab::properties(lab.device);
    let mut handle = 0;
    let create = lab.cuda.cuMemCreate(&raw mut handle, lab.granule, &of, 0);
    let map = lab.map(at, lab.granule, handle);
    let access = lab.open(at, lab.granule, 3);
    Ok(codes(&[reserve, create, map, access, lab.cuda.cuMemUnmap(at, lab.granule)]))
}

fn outlives(lab: &Lab) -> Seen {
    let first = made(lab)?;
    let at = lab.granules(1, 3)?;
    lab.need("cuMemcpyHtoD", lab.put(at, &9u32.to_ne_bytes()))?;
    lab.need("cuCtxSynchronize", lab.cuda.cuCtxSynchronize())?;
    lab.need("cuCtxDestroy", lab.cuda.cuCtxDestroy(first))?;
    made(lab)?;
    let rights = lab.rights(at).unwrap_or(99);
    Ok(format!("{rights} {}", super::vmm::told(lab.word(at))))
}

/// What a forked child's call answers, which is told by its exit status.
fn in_child(ask: impl FnOnce() -> u32) -> Seen {
    // SAFETY: this process has one thread of its own; the child only asks and exits.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let code = ask();
        // SAFETY: ends the child without handlers, which belong to the parent.
        unsafe { libc::_exit(code.min(255) as i32) };
    }
    let mut status = 0;
    // SAFETY: a child of this process, if the fork worked.
    let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
    if child < 0 || waited != child {
        return Err(Stop::Setup("fork failed".to_owned()));
    }
    match libc::WIFEXITED(status) {
        true => Ok(libc::WEXITSTATUS(status).to_string()),
        false => Ok("crashed".to_owned()),
    }
}

/// What a call answers in exit handlers registered before and after `cuInit`. The answers are
/// printed by the earliest handler, which runs last, in the form that the parent reads.
fn in_exit_handlers(lab: &Lab) -> Seen {
    use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering::SeqCst};
    static LAB: AtomicUsize = AtomicUsize::new(0);
    static LATE: AtomicU32 = AtomicU32::new(99);
    fn ask() -> u32 {
        // SAFETY: set below to a bench that the process never gives back.
        let lab = unsafe { &*(LAB.load(SeqCst) as *const Lab) };
        let mut count = 0;
        lab.cuda.cuDeviceGetCount(&raw mut count)
    }
    extern "C" fn late() {
        LATE.store(ask(), SeqCst);
    }
    extern "C" fn early() {
        crate::run::say_last(&format!("{} {}", ask(), LATE.load(SeqCst)));
    }
    LAB.store(std::ptr::from_ref(lab) as usize, SeqCst);
    // SAFETY: two functions that live as long as the program.
    let first = unsafe { libc::atexit(early) };
    lab.need("cuInit", lab.cuda.cuInit(0))?;
    // SAFETY: as above.
    let second = unsafe { libc::atexit(late) };
    lab.need("atexit", (first | second) as u32)?;
    // SAFETY: ends the process with its exit handlers, which is what is asked for.
    unsafe { libc::exit(0) }
}
