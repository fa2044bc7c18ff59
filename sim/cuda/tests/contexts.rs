//! Contexts: who is current, what a destroyed one answers, what a context keeps.

mod common;
use common::{Sim, row};
use std::ptr::null_mut;

const H: &str = "H: cuda.h";
const PROBE: &str = "I: lupinemachines/lupine, probed on driver 590.48.01";

fn create(device: i32) -> u64 {
    let mut context = 0;
    assert_eq!(cu!(cuCtxCreate_v2(&raw mut context, 0, device)), 0);
    context
}

fn current() -> u64 {
    let mut context = 1;
    assert_eq!(cu!(cuCtxGetCurrent(&raw mut context)), 0);
    context
}

fn current_device() -> Result<i32, u32> {
    let mut device = -1;
    match cu!(cuCtxGetDevice(&raw mut device)) {
        0 => Ok(device),
        code => Err(code),
    }
}

#[test]
fn init_comes_first() {
    let _sim = Sim::configured("");
    let (mut count, mut context, mut version) = (0, 7, 0);
    assert_eq!(cu!(cuDeviceGetCount(&raw mut count)), 3);
    assert_eq!(cu!(cuCtxGetCurrent(&raw mut context)), 3);
    assert_eq!(cu!(cuDriverGetVersion(&raw mut version)), 0);
    assert_eq!(version, 12080);
    assert_eq!(cu!(cuInit(1)), 1);
    assert_eq!(cu!(cuDeviceGetCount(&raw mut count)), 3);
    assert_eq!(cu!(cuInit(0)), 0);
    assert_eq!(cu!(cuInit(0)), 0);
    assert_eq!(cu!(cuDeviceGetCount(&raw mut count)), 0);
    assert_eq!(count, 1);
    row("before cuInit: 3", H);
    row("cuCtxGetCurrent before cuInit: 3", PROBE);
    row("cuInit: flags must be 0, else 1", H);
    row("cuDriverGetVersion may come before cuInit", H);
}

#[test]
fn contexts_are_a_stack_of_each_thread() {
    let sim = Sim::start("devices = 2");
    assert_eq!(current(), 0);
    assert_eq!(current_device(), Err(201));
    let mut popped = 0;
    assert_eq!(cu!(cuCtxPopCurrent_v2(&raw mut popped)), 201);
    let (a, b) = (create(0), create(1));
    assert_eq!(sim.live("contexts"), 2);
    assert_eq!((current(), current_device()), (b, Ok(1)));
    std::thread::spawn(move || {
        assert_eq!(current(), 0);
        assert_eq!(cu!(cuCtxSetCurrent(a)), 0);
        assert_eq!(current_device(), Ok(0));
    })
    .join()
    .expect("the thread");
    assert_eq!(current(), b);
    assert_eq!(cu!(cuCtxPopCurrent_v2(&raw mut popped)), 0);
    assert_eq!((popped, current(), current_device()), (b, a, Ok(0)));
    assert_eq!(cu!(cuCtxPushCurrent_v2(b)), 0);
    assert_eq!(cu!(cuCtxSetCurrent(a)), 0);
    assert_eq!(current(), a);
    assert_eq!(cu!(cuCtxSetCurrent(0)), 0);
    assert_eq!(current(), a, "0 pops one");
    assert_eq!(cu!(cuCtxSetCurrent(0)), 0);
    assert_eq!(cu!(cuCtxSetCurrent(0)), 0);
    assert_eq!((current(), current_device()), (0, Err(201)));
    assert_eq!(cu!(cuCtxPushCurrent_v2(0)), 1);
    assert_eq!(cu!(cuCtxPushCurrent_v2(12345)), 201);
    row("cuCtxCreate pushes; Pop gives back; Pop of an empty stack: 201", H);
    row("cuCtxSetCurrent replaces the top; NULL pops it; no-op on an empty stack", H);
    row("no current context: 201", H);
}

#[test]
fn a_context_ends_with_its_last_use() {
    let sim = Sim::start("devices = 2");
    let (mut attached, mut primary) = (0, 0);
    assert_eq!(cu!(cuCtxAttach(&raw mut attached, 0)), 201);
    let context = create(1);
    assert_eq!(cu!(cuCtxAttach(&raw mut attached, 1)), 1);
    assert_eq!(cu!(cuCtxAttach(null_mut(), 0)), 1);
    assert_eq!(cu!(cuCtxAttach(&raw mut attached, 0)), 0);
    assert_eq!(attached, context);
    assert_eq!(cu!(cuCtxDetach(context)), 0);
    assert_eq!((current(), current_device()), (context, Ok(1)));
    let other = create(0);
    assert_eq!(cu!(cuCtxDetach(context)), 201, "it is not current");
    assert_eq!(cu!(cuCtxDetach(other)), 0);
    assert_eq!((current(), sim.live("contexts")), (context, 1));
    assert_eq!(cu!(cuCtxDetach(context)), 0);
    assert_eq!((current(), sim.live("contexts")), (0, 0));
    row("cuCtxAttach takes a use of the current context, cuCtxDetach gives one back", H);
    row("the last cuCtxDetach destroys the context and pops it", H);
    assert_eq!(cu!(cuDevicePrimaryCtxRetain(&raw mut primary, 0)), 0);
    assert_eq!(cu!(cuCtxSetCurrent(primary)), 0);
    assert_eq!(cu!(cuCtxAttach(&raw mut attached, 0)), 201);
    assert_eq!(cu!(cuCtxDetach(primary)), 201);
    assert_eq!(cu!(cuDevicePrimaryCtxRelease_v2(0)), 0);
}

#[test]
fn a_destroyed_context_answers_709_where_it_is_current() {
    let mut sim = Sim::start("devices = 2");
    let context = create(1);
    assert_eq!(cu!(cuCtxPushCurrent_v2(context)), 0);
    assert_eq!(cu!(cuCtxDestroy_v2(context)), 0);
    assert_eq!(sim.live("contexts"), 0);
    assert_eq!(current(), context, "popped once: it lay there twice");
    assert_eq!(current_device(), Err(709));
    assert_eq!(cu!(cuCtxSynchronize()), 709);
    row("cuCtxDestroy pops the context if it is current to the calling thread", H);
    row("a destroyed context that is still current: 709", H);
    assert_eq!(cu!(cuCtxDestroy_v2(0)), 1);
    sim.expect_misuse("use of a destroyed context");
    assert_eq!(cu!(cuCtxSetCurrent(context)), 201);
    assert_eq!(cu!(cuCtxDestroy_v2(context)), 201);
    row("the handle of a destroyed context: 201, and misuse", "assumption");
}

#[test]
fn a_destroyed_context_stays_current_to_other_threads() {
    let _sim = Sim::start("");
    let context = create(0);
    let (to_main, from_thread) = std::sync::mpsc::channel();
    let (to_thread, from_main) = std::sync::mpsc::channel::<()>();
    let thread = std::thread::spawn(move || {
        assert_eq!(cu!(cuCtxSetCurrent(context)), 0);
        to_main.send(()).expect("send");
        from_main.recv().expect("receive");
        assert_eq!(current(), context);
        assert_eq!(current_device(), Err(709));
    });
    from_thread.recv().expect("receive");
    assert_eq!(cu!(cuCtxDestroy_v2(context)), 0);
    assert_eq!(current(), 0);
    to_thread.send(()).expect("send");
    thread.join().expect("the thread");
    row("a destroyed context remains current to other threads, which get 709", H);
}

fn state(device: i32) -> (u32, i32) {
    let (mut flags, mut active) = (9, 9);
    let code = cu!(cuDevicePrimaryCtxGetState(device, &raw mut flags, &raw mut active));
    assert_eq!(code, 0);
    (flags, active)
}

#[test]
fn primary_contexts_are_counted() {
    let sim = Sim::start("devices = 2");
    let mut context = 0;
    assert_eq!(cu!(cuDevicePrimaryCtxRelease_v2(0)), 201);
    row("releasing a primary context that is not retained: 201", H);
    assert_eq!(state(0), (0, 0));
    assert_eq!(cu!(cuDevicePrimaryCtxSetFlags_v2(0, 4)), 0);
    assert_eq!(cu!(cuDevicePrimaryCtxRetain(&raw mut context, 0)), 0);
    assert_eq!(current(), 0, "retain does not push");
    row("retaining a primary context does not make it current", H);
    let mut again = 0;
    assert_eq!(cu!(cuDevicePrimaryCtxRetain(&raw mut again, 0)), 0);
    assert_eq!(context, again);
    assert_eq!(state(0), (4, 1));
    assert_eq!(cu!(cuCtxSetCurrent(context)), 0);
    assert_eq!(cu!(cuDevicePrimaryCtxRelease_v2(0)), 0);
    assert_eq!((state(0), sim.live("contexts")), ((4, 1), 1));
    assert_eq!(cu!(cuDevicePrimaryCtxRelease_v2(0)), 0);
    assert_eq!((state(0), sim.live("contexts")), ((4, 0), 0));
    assert_eq!(current(), context, "a release never pops");
    assert_eq!(current_device(), Err(709));
    assert_eq!(cu!(cuDevicePrimaryCtxRelease_v2(0)), 201);
    assert_eq!(cu!(cuDevicePrimaryCtxRetain(&raw mut again, 0)), 0);
    assert_eq!((again, current_device()), (context, Ok(0)));
    row("the last release makes a primary context inactive and pops it nowhere: 709", H);
    row("a primary context keeps its handle", PROBE);
    assert_eq!(cu!(cuCtxDestroy_v2(context)), 201);
    row("cuCtxDestroy on a primary context: 201", "assumption");
    assert_eq!(cu!(cuDevicePrimaryCtxRetain(&raw mut again, 2)), 101);
    assert_eq!(cu!(cuDevicePrimaryCtxRetain(null_mut(), 0)), 1);
}

#[test]
fn a_reset_ends_all_and_keeps_the_count() {
    let sim = Sim::start("");
    let context = sim.primary(0);
    let mut version = 0;
    assert_eq!(cu!(cuDevicePrimaryCtxReset_v2(0)), 0);
    assert_eq!((state(0), current()), ((0, 0), context));
    assert_eq!(current_device(), Err(709));
    assert_eq!(cu!(cuCtxGetApiVersion(context, &raw mut version)), 0);
    assert_eq!(version, 3020);
    assert_eq!(cu!(cuCtxSetCurrent(context)), 0);
    assert_eq!(current_device(), Err(709));
    let mut again = 0;
    assert_eq!(cu!(cuDevicePrimaryCtxRetain(&raw mut again, 0)), 0);
    assert_eq!((again, current_device()), (context, Ok(0)));
    row("after a reset: not active, still current, 709 until it is retained again", PROBE);
    assert_eq!(cu!(cuDevicePrimaryCtxRelease_v2(0)), 0);
    assert_eq!(state(0).1, 1);
    assert_eq!(cu!(cuDevicePrimaryCtxRelease_v2(0)), 0);
    assert_eq!(state(0).1, 0);
    row("a reset does not release: retains stay counted", H);
}

#[test]
fn flags_name_one_way_to_wait() {
    let _sim = Sim::start("");
    let mut context = 0;
    for flags in [3, 5, 6, 0x100] {
        assert_eq!(cu!(cuCtxCreate_v2(&raw mut context, flags, 0)), 1, "{flags}");
        assert_eq!(cu!(cuDevicePrimaryCtxSetFlags_v2(0, flags)), 1, "{flags}");
    }
    assert_eq!(cu!(cuCtxCreate_v2(&raw mut context, 0x0C, 0)), 0);
    let mut flags = 0;
    assert_eq!(cu!(cuCtxGetFlags(&raw mut flags)), 0);
    assert_eq!(flags, 0x0C);
    assert_eq!(cu!(cuCtxSetFlags(1)), 0);
    assert_eq!(cu!(cuCtxGetFlags(&raw mut flags)), 0);
    assert_eq!(flags, 1);
    assert_eq!(cu!(cuCtxCreate_v2(&raw mut context, 0, 1)), 101);
    assert_eq!(cu!(cuCtxCreate_v2(null_mut(), 0, 0)), 1);
    assert_eq!(cu!(cuCtxCreate_v3(&raw mut context, 8 as *const _, 1, 0, 0)), 224);
    assert_eq!(cu!(cuCtxCreate_v3(&raw mut context, std::ptr::null(), 0, 0, 0)), 0);
    assert_eq!(cu!(cuCtxCreate_v4(&raw mut context, std::ptr::null(), 0, 0)), 0);
    row("context flags: at most one of spin, yield, blocking; unknown bits: 1", H);
}

#[test]
fn a_context_has_a_number_of_its_own() {
    let _sim = Sim::start("");
    let (a, b) = (create(0), create(0));
    let (mut of_a, mut of_b, mut of_current) = (0, 0, 0);
    assert_eq!(cu!(cuCtxGetId(a, &raw mut of_a)), 0);
    assert_eq!(cu!(cuCtxGetId(b, &raw mut of_b)), 0);
    assert_eq!(cu!(cuCtxGetId(0, &raw mut of_current)), 0);
    assert_ne!(of_a, of_b);
    assert_eq!(of_current, of_b);
    assert_eq!(cu!(cuCtxGetId(99, &raw mut of_a)), 201);
    assert_eq!(cu!(cuCtxGetId(0, null_mut())), 1);
    row("cuCtxGetId: unique for the life of the program; NULL asks for the current one", H);
    let mut version = 0;
    assert_eq!(cu!(cuCtxGetApiVersion(a, &raw mut version)), 0);
    assert_eq!(version, 3020);
    assert_eq!(cu!(cuCtxSetCurrent(0)), 0);
    assert_eq!(cu!(cuCtxSetCurrent(0)), 0);
    assert_eq!(cu!(cuCtxGetApiVersion(0, &raw mut version)), 201);
    assert_eq!(cu!(cuCtxGetId(0, &raw mut of_a)), 201);
}

#[test]
fn limits_are_kept_and_clamped() {
    let _sim = Sim::start("");
    let mut value = 0;
    assert_eq!(cu!(cuCtxGetLimit(&raw mut value, 0)), 201);
    create(0);
    let mut get = |limit| match cu!(cuCtxGetLimit(&raw mut value, limit)) {
        0 => Ok(value),
        code => Err(code),
    };
    assert_eq!((get(0), get(1), get(2)), (Ok(1024), Ok(1 << 20), Ok(8 << 20)));
    assert_eq!((get(3), get(10)), (Err(215), Err(215)));
    assert_eq!(cu!(cuCtxSetLimit(0, 4096)), 0);
    assert_eq!(cu!(cuCtxSetLimit(5, 4096)), 0);
    assert_eq!(cu!(cuCtxSetLimit(7, 1)), 215);
    assert_eq!(cu!(cuCtxSetLimit(77, 1)), 215);
    assert_eq!((get(0), get(5)), (Ok(4096), Ok(128)));
    row("CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH from capability 9.0 on: 215", H);
    let (mut least, mut greatest) = (9, 9);
    assert_eq!(cu!(cuCtxGetStreamPriorityRange(&raw mut least, &raw mut greatest)), 0);
    assert_eq!((least, greatest), (0, -5));
    assert_eq!(cu!(cuCtxGetStreamPriorityRange(null_mut(), null_mut())), 0);
    let mut config = 9;
    assert_eq!(cu!(cuCtxSetCacheConfig(2)), 0);
    assert_eq!(cu!(cuCtxSetCacheConfig(4)), 1);
    assert_eq!(cu!(cuCtxGetCacheConfig(&raw mut config)), 0);
    assert_eq!(config, 2);
}

#[test]
fn peers_are_enabled_one_way_and_once() {
    let _sim = Sim::start("devices = 2");
    let (own, same, other) = (create(0), create(0), create(1));
    assert_eq!(cu!(cuCtxSetCurrent(own)), 0);
    assert_eq!(cu!(cuCtxEnablePeerAccess(own, 0)), 201);
    assert_eq!(cu!(cuCtxEnablePeerAccess(same, 0)), 217);
    assert_eq!(cu!(cuCtxEnablePeerAccess(other, 1)), 1);
    assert_eq!(cu!(cuCtxEnablePeerAccess(77, 0)), 201);
    assert_eq!(cu!(cuCtxDisablePeerAccess(other)), 705);
    assert_eq!(cu!(cuCtxEnablePeerAccess(other, 0)), 0);
    assert_eq!(cu!(cuCtxEnablePeerAccess(other, 0)), 704);
    assert_eq!(cu!(cuCtxSetCurrent(other)), 0);
    assert_eq!(cu!(cuCtxDisablePeerAccess(own)), 705);
    assert_eq!(cu!(cuCtxSetCurrent(own)), 0);
    assert_eq!(cu!(cuCtxDisablePeerAccess(other)), 0);
    assert_eq!(cu!(cuCtxDisablePeerAccess(other)), 705);
    assert_eq!(cu!(cuCtxEnablePeerAccess(other, 0)), 0);
    assert_eq!(cu!(cuCtxDestroy_v2(other)), 0);
    row("cuCtxEnablePeerAccess: itself 201, same device 217, twice 704, flags 1", H);
    row("cuCtxDisablePeerAccess: not enabled 705", H);
}

#[test]
fn peers_may_be_lacking_or_refused() {
    let seen = |settings: &str| {
        let _sim = Sim::start(settings);
        let (other, _own) = (create(1), create(0));
        let (mut can, mut reach) = (9, 9);
        assert_eq!(cu!(cuDeviceCanAccessPeer(&raw mut can, 0, 1)), 0);
        assert_eq!(cu!(cuDeviceGetP2PAttribute(&raw mut reach, 2, 0, 1)), 0);
        (can, reach, cu!(cuCtxEnablePeerAccess(other, 0)))
    };
    assert_eq!(seen("devices = 2"), (1, 1, 0));
    assert_eq!(seen("devices = 2\nrefuse = peer=711"), (1, 1, 711));
    assert_eq!(seen("devices = 2\nlacks = peer"), (0, 0, 217));
    row("cuCtxEnablePeerAccess where cuDeviceCanAccessPeer says no: 217", H);
}

#[test]
fn an_error_sticks_to_its_context() {
    let sim = Sim::start("devices = 2");
    let (other, own) = (create(1), create(0));
    assert_eq!(cu!(cuCtxSynchronize()), 0);
    sim.script("lose cuCtxSynchronize with 700");
    let (mut flags, mut least) = (0, 0);
    assert_eq!(cu!(cuCtxSynchronize()), 700);
    assert_eq!(cu!(cuCtxSynchronize()), 700);
    assert_eq!(cu!(cuCtxGetFlags(&raw mut flags)), 700);
    assert_eq!(cu!(cuCtxEnablePeerAccess(other, 0)), 700);
    assert_eq!(cu!(cuCtxGetStreamPriorityRange(&raw mut least, &raw mut least)), 700);
    row("an illegal access sticks: later calls in that context answer 700", H);
    assert_eq!(current_device(), Ok(0));
    assert_eq!(current(), own);
    row("cuCtxGetCurrent and cuCtxGetDevice still answer in a failed context", "assumption");
    assert_eq!(cu!(cuCtxSetCurrent(other)), 0);
    assert_eq!(cu!(cuCtxSynchronize()), 0);
    row("an error sticks to one context, another one goes on", "assumption");
    sim.script("lose any with 719 from #2 always");
    assert_eq!(cu!(cuCtxSynchronize()), 0);
    assert_eq!(cu!(cuCtxSynchronize()), 719);
    sim.script("");
    assert_eq!(cu!(cuCtxDestroy_v2(own)), 0);
    assert_eq!(cu!(cuCtxSetCurrent(create(0))), 0);
    assert_eq!(cu!(cuCtxSynchronize()), 0);
    row("a failed context can be destroyed, and a new one works", "assumption");
}

#[test]
fn the_first_error_stays() {
    let sim = Sim::start("");
    create(0);
    sim.script("lose cuCtxSynchronize with 700 #1\nlose cuCtxSynchronize with 719 #2");
    assert_eq!(cu!(cuCtxSynchronize()), 700);
    assert_eq!(cu!(cuCtxSynchronize()), 700);
}

#[test]
fn a_reset_clears_a_primary_contexts_error() {
    let sim = Sim::start("faults = lose cuCtxSynchronize with 700");
    sim.primary(0);
    assert_eq!(cu!(cuCtxSynchronize()), 700);
    assert_eq!(cu!(cuDevicePrimaryCtxReset_v2(0)), 0);
    let mut context = 0;
    assert_eq!(cu!(cuDevicePrimaryCtxRetain(&raw mut context, 0)), 0);
    assert_eq!(cu!(cuCtxSynchronize()), 0);
    row("a reset of the primary context clears its error", "assumption");
}

#[test]
fn threads_make_and_destroy_contexts_at_once() {
    let sim = Sim::start("devices = 2");
    let threads: Vec<_> = (0..4)
        .map(|thread| {
            std::thread::spawn(move || {
                let mut last = 0;
                for round in 0..100 {
                    let context = create((thread + round) % 2);
                    assert!(context != last && current() == context);
                    assert_eq!(cu!(cuCtxSynchronize()), 0);
                    assert_eq!(cu!(cuCtxDestroy_v2(context)), 0);
                    assert_eq!(current(), 0);
                    last = context;
                }
            })
        })
        .collect();
    for thread in threads {
        thread.join().expect("the thread");
    }
    assert_eq!((sim.live("contexts"), sim.calls("cuCtxDestroy_v2")), (0, 400));
}

#[test]
fn a_thread_that_ends_may_still_call() {
    let _sim = Sim::start("");
    let context = create(0);
    static SEEN: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
    /// Runs after the thread's own thread-locals are gone.
    extern "C" fn last(_: *mut std::ffi::c_void) {
        let before = current();
        assert_eq!(cu!(cuCtxPushCurrent_v2(before)), 0);
        let device = current_device().map_or(1000, |device| device as u64);
        SEEN.store(before + device, std::sync::atomic::Ordering::SeqCst);
    }
    let mut key = 0;
    // SAFETY: a key of this process with a destructor that lives as long as the program.
    assert_eq!(unsafe { libc::pthread_key_create(&raw mut key, Some(last)) }, 0);
    std::thread::spawn(move || {
        // SAFETY: the key exists; the value is never followed.
        assert_eq!(unsafe { libc::pthread_setspecific(key, 8 as *const _) }, 0);
        assert_eq!(cu!(cuCtxSetCurrent(context)), 0);
    })
    .join()
    .expect("the thread");
    assert_eq!(SEEN.load(std::sync::atomic::Ordering::SeqCst), context);
}
