//! Streams that are destroyed with frees pending, and whose handles come back; streams that spin.
//!
//! The simulated driver gives a dead stream's handle to a later stream on purpose. In the stepped
//! mode queued work runs only when something waits for it or a test lets it run, so what must not
//! be reused is known.

use super::machine::{Device, Kind};
use super::{MIB, common, no_misuse, on_sim, on_sim_with};
use forebay::driver::{Scope, StreamHandle};
use forebay::error::Status;
use forebay::pool::hot::SYNC_STREAM;
use forebay::pool::registry;

/// Runs the scenario if it is one of these.
pub fn run(name: &str) -> bool {
    match name {
        "handle comes back, told" => assert_eq!(successions(true), 0, "corrupt blocks"),
        "handle comes back, untold" => assert!(successions(false) > 0, "nobody noticed"),
        "untold destruction is told" => untold_destruction(),
        "a kernel spins" => spins(Device::spin_until),
        "a stream waits for a value" => spins(Device::wait_for_value),
        "a kernel spins, streams wait" => spins_with_waits(),
        _ => return false,
    }
    true
}

/// Lengths that take each way: small slot, large slot, extent, several granules.
const LENGTHS: [usize; 4] = [1024, 200 << 10, MIB, 5 * MIB];

/// A new stream with the handle of one that was destroyed; others made on the way are ended.
fn heir(device: &Device, of: u64) -> u64 {
    let mut others = Vec::new();
    let found = (0..10_000).map(|_| device.stream(Kind::NonBlocking)).find(|&stream| {
        others.push(stream);
        stream == of
    });
    for other in others.into_iter().filter(|&other| other != of) {
        device.destroy_stream(other, true);
    }
    found.expect("the simulated driver gives handles again")
}

/// A stream is destroyed behind a queued look at a block that it freed, and its handle's next
/// stream allocates and writes. Answers how many looks found something else.
fn successions(told: bool) -> usize {
    let rounds = 40;
    let device = Device::open(0, rounds * 8, |settings| settings.keeper = false);
    let mut random = common::Random(common::seed(5));
    let mut checks = Vec::new();
    for round in 0..rounds {
        let bytes = LENGTHS[round % LENGTHS.len()];
        let old = device.stream(Kind::NonBlocking);
        let block = device.pool.alloc(bytes, old).expect("fits");
        device.fill(block, 0x11, bytes, old);
        checks.extend(device.check((block, bytes), 0x11, old, random.bits()));
        device.pool.dealloc(block, old).expect("live");
        device.destroy_stream(old, told);
        let new = heir(&device, old);
        let next = device.pool.alloc(bytes, new).expect("fits");
        assert_eq!(next == block, !told, "{bytes} bytes: the old stream's block");
        device.fill(next, 0x22, bytes, new);
        checks.extend(device.check((next, bytes), 0x22, new, random.bits()));
        while device.sim.call("forebay_sim_step", &[1 + random.below(3)]) > 0 {}
        device.pool.dealloc(next, new).expect("live");
        device.destroy_stream(new, true);
    }
    device.synchronize();
    let failed = checks.iter().filter(|check| !device.held(**check)).count();
    device.end();
    no_misuse();
    failed
}

#[test]
fn a_handle_that_comes_back_takes_nothing_from_the_stream_before() {
    for seed in ["1", "2", "3"] {
        on_sim("handle comes back, told", &[("SCHEDULE", "stepped"), ("SEED", seed)]);
        // Documented misuse, which shows that the test sees what it looks for.
        on_sim("handle comes back, untold", &[("SCHEDULE", "stepped"), ("SEED", seed)]);
    }
}

fn untold_destruction() {
    let device = Device::open(0, 0, |settings| settings.keeper = false);
    let told = |error: forebay::error::Error| {
        assert_eq!(error.status(), Status::InvalidStream, "{error}");
        assert!(error.message().contains("call forebay_stream_retire"), "{error}");
    };
    for bytes in LENGTHS {
        let old = device.stream(Kind::NonBlocking);
        let kept = device.pool.alloc(bytes, old).expect("fits");
        let block = device.pool.alloc(bytes, old).expect("fits");
        device.pool.dealloc(block, old).expect("live");
        device.destroy_stream(old, false);
        let new = heir(&device, old);
        told(device.pool.alloc(bytes, new).expect_err("another stream's lane"));
        told(device.pool.record_use(kept, new).expect_err("another stream's lane"));
        told(device.pool.dealloc(kept, new).expect_err("another stream's lane"));
        // Told of late, the handle serves again.
        device.synchronize();
        registry::retire_stream(new).expect("known");
        let again = device.pool.alloc(bytes, new).expect("a lane of its own");
        device.pool.dealloc(again, new).expect("live");
        device.pool.dealloc(kept, new).expect("live");
        device.destroy_stream(new, true);
    }
    device.end();
    no_misuse();
}

#[test]
fn a_stream_destroyed_untold_is_named_when_streams_are_checked() {
    on_sim_with("untold destruction is told", &[], &[("FOREBAY_DEBUG", "streams")]);
}

/// What the word that a kernel spins on becomes: a fill of bytes.
const GO: u32 = 0x0101_0101;

/// Holds a stream up until the word at an address has a value.
type Until = fn(&Device, usize, u32, u64);

/// A kernel on stream `a` ends only once stream `b` has written a word, and memory that `a` frees
/// behind the kernel is wanted on `b`. Answers the word and the freed block.
fn spin(device: &Device, until: Until, a: u64, b: u64, bytes: usize) -> (usize, usize) {
    let word = device.pool.alloc(4096, b).expect("fits");
    device.fill(word, 0, 4096, b);
    device.synchronize();
    let block = device.pool.alloc(bytes, a).expect("fits");
    until(device, word, GO, a);
    device.fill(block, 7, bytes, a);
    device.pool.dealloc(block, a).expect("live");
    (word, block)
}

fn spins(until: Until) {
    let bytes = 6 * MIB;
    let patience = std::time::Duration::from_millis(20);
    let device = Device::open(0, 4, |settings| {
        settings.keeper = false;
        settings.limit = 16 * MIB as u64;
        settings.oom_wait = patience;
    });
    let (a, b) = (device.stream(Kind::NonBlocking), device.stream(Kind::Blocking));
    let (word, block) = spin(&device, until, a, b, bytes);
    // There is other memory: no wait for anything.
    let other = device.pool.alloc(bytes, b).expect("fits beside");
    assert!(other >= block + bytes || block >= other + bytes, "{other:#x} and {block:#x}");
    device.fill(other, 9, bytes, b);
    // There is none: the wait for fences has an end, whoever asks.
    for by in [b, 0, SYNC_STREAM] {
        let error = device.pool.alloc(bytes, by).expect_err("only behind the kernel");
        assert_eq!(error.status(), Status::OutOfMemory, "{error}");
    }
    device.pool.trim(0).expect("does not wait for the kernel");
    device.pool.dealloc(other, SYNC_STREAM).expect("does not wait for the kernel");
    device.fill(word, 1, 4096, b);
    device.synchronize();
    let both = device.pool.alloc(bytes * 2, b).expect("the kernel has ended");
    device.pool.dealloc(both, b).expect("live");
    device.pool.dealloc(word, b).expect("live");
    for stream in [a, b] {
        device.destroy_stream(stream, true);
    }
    device.end();
    no_misuse();
}

#[test]
fn a_spinning_kernel_does_not_stop_the_stream_that_ends_it() {
    on_sim("a kernel spins", &[]);
    on_sim("a kernel spins", &[("SCHEDULE", "eager")]);
    on_sim("a kernel spins", &[("CONTEXT_EVENTS", "0")]);
}

/// The same where no kernel runs: the stream itself waits.
#[test]
fn a_wait_for_a_value_does_not_stop_the_stream_that_writes_it() {
    on_sim("a stream waits for a value", &[]);
    on_sim("a stream waits for a value", &[("SCHEDULE", "eager")]);
    on_sim("a stream waits for a value", &[("CONTEXT_EVENTS", "0")]);
}

/// With internal dependencies on, the pool makes `b` wait for `a`, which waits for `b`: this is
/// why they are off by default.
fn spins_with_waits() {
    let bytes = 6 * MIB;
    let device = Device::open(0, 4, |settings| {
        settings.keeper = false;
        settings.limit = 10 * MIB as u64;
    });
    let (a, b) = (device.stream(Kind::NonBlocking), device.stream(Kind::NonBlocking));
    let (word, block) = spin(&device, Device::spin_until, a, b, bytes);
    let taken = device.pool.alloc(bytes, b).expect("behind the kernel");
    assert_eq!(taken, block, "there is no other memory");
    device.fill(word, 1, 4096, b);
    let event = device.driver.event_create().expect("an event");
    device.driver.event_record(event, Scope::Stream(StreamHandle(b))).expect("live");
    while device.sim.call("forebay_sim_step", &[100]) > 0 {}
    assert!(!device.driver.event_query(event).expect("live"), "each waits for the other");
    // SAFETY: the word lives; the simulation lets the CPU write device memory, and the kernel
    // that reads it runs in `forebay_sim_step` only.
    unsafe { (word as *mut u32).write(GO) };
    while device.sim.call("forebay_sim_step", &[100]) > 0 {}
    assert!(device.driver.event_query(event).expect("live"));
    device.driver.event_destroy(event).expect("live");
    for block in [taken, word] {
        device.pool.dealloc(block, b).expect("live");
    }
    for stream in [a, b] {
        device.destroy_stream(stream, true);
    }
    device.end();
    no_misuse();
}

#[test]
fn with_internal_dependencies_a_spinning_kernel_can_deadlock() {
    let reuse = "follow_event_dependencies,opportunistic,internal_dependencies";
    let stepped = [("SCHEDULE", "stepped")];
    on_sim_with("a kernel spins, streams wait", &stepped, &[("FOREBAY_REUSE", reuse)]);
}
