//! Devices that read a pool's memory, after its pages have moved too.

use super::cuda::Sim;
use super::machine::{Device, Kind};
use super::{MIB, common, no_misuse, on_sim};
use forebay::error::Status;
use forebay::pool::capture;
use forebay::pool::hot::SYNC_STREAM;

/// Runs the scenario if it is one of these.
pub fn run(name: &str) -> bool {
    match name {
        "peers read" => peers_read(),
        "a ninth peer" => ninth(),
        "freed under a peer" => freed_under_a_peer(),
        "a fence is not moved" => fence_not_moved(),
        "a peer captures" => a_peer_captures(),
        "a peer fails" => a_peer_fails(),
        "fewer peers than asked for" => fewer(),
        _ => return false,
    }
    true
}

/// Device 0 with a small pool, and all others with room for checks.
fn machine() -> (Device, Vec<Device>) {
    let sim = Sim::open();
    sim.ok("cuInit", &[0]);
    let count = sim.get("cuDeviceGetCount", &[]);
    let first = Device::open(0, 0, |settings| {
        settings.keeper = false;
        settings.limit = 98 * MIB as u64;
    });
    (first, (1..count).map(|d| Device::open(d, 1000, |_| {})).collect())
}

/// What `device` may do at an address: 3 is all, 0 nothing.
fn access(device: usize, address: usize) -> usize {
    let location = [1u32, device as u32];
    Sim::open().get("cuMemGetAccess", &[location.as_ptr() as usize, address])
}

/// Every reader looks at every block in a stream of its own.
fn all_read(readers: &[Device], blocks: &[(usize, usize, u8)]) {
    let mut random = common::Random(common::seed(1));
    let mut checks = Vec::new();
    for reader in readers {
        let stream = reader.stream(Kind::NonBlocking);
        for &(address, bytes, value) in blocks {
            for _ in 0..2 {
                let check = reader.check((address, bytes), value, stream, random.bits());
                checks.push((reader, check.expect("there is room")));
            }
        }
        reader.destroy_stream(stream, true);
    }
    readers.iter().for_each(Device::synchronize);
    for (reader, check) in checks {
        assert!(reader.held(check), "a peer read something else");
    }
}

/// Half of the memory is there before the peers come, half after; then pages move.
fn peers_read() {
    let (first, others) = machine();
    let stream = first.stream(Kind::NonBlocking);
    let mut blocks = Vec::new();
    let fresh = |value: u8, bytes: usize| {
        let block = first.pool.alloc(bytes, stream).expect("fits");
        first.fill(block, value, bytes, stream);
        (block, bytes, value)
    };
    blocks.extend((0..24).map(|i| fresh(i, 2 * MIB)));
    for peer in 1..=others.len() as u32 {
        first.pool.enable_peer(peer).expect("it can");
    }
    blocks.extend((24..48).map(|i| fresh(i, 2 * MIB)));
    blocks.push(fresh(99, 1000));
    first.synchronize();
    all_read(&others, &blocks);
    for i in (0..24).rev() {
        first.pool.dealloc(blocks.swap_remove(i * 2).0, stream).expect("live");
    }
    blocks.push(fresh(77, 40 * MIB));
    assert!(first.pool.stats().expect("alive").pages_moved >= 19);
    first.synchronize();
    all_read(&others, &blocks);
    // One less: it loses all, old and new; the others read on.
    first.pool.disable_peer(1).expect("a peer");
    assert!(first.pool.disable_peer(1).is_err(), "a peer no more");
    for &(address, ..) in &blocks {
        assert_eq!((access(0, address), access(1, address)), (3, 0));
    }
    all_read(&others[1..], &blocks);
    for (block, ..) in blocks {
        first.pool.dealloc(block, stream).expect("live");
    }
    first.destroy_stream(stream, true);
    first.end();
    others.into_iter().for_each(Device::end);
    no_misuse();
    let sim = Sim::open();
    for what in ["device_bytes", "mappings", "physical", "reservations"] {
        assert_eq!(sim.live(what), 0, "{what}");
    }
}

#[test]
fn peers_read_what_moved() {
    for devices in ["2", "3", "5", "8"] {
        on_sim("peers read", &[("DEVICES", devices)]);
    }
}

fn ninth() {
    let (first, others) = machine();
    let block = first.pool.alloc(5 * MIB, 0).expect("fits");
    first.fill(block, 3, 5 * MIB, 0);
    for peer in 1..=8 {
        first.pool.enable_peer(peer).expect("up to eight");
    }
    let before = first.sim.total_calls();
    let error = first.pool.enable_peer(9).expect_err("a ninth");
    assert_eq!(error.status(), Status::TooManyPeers, "{error}");
    assert!(error.message().contains('8') && error.message().contains("disable one"), "{error}");
    assert_eq!(first.sim.total_calls(), before, "refused before any call");
    assert_eq!(first.pool.peers().expect("alive"), [1, 2, 3, 4, 5, 6, 7, 8]);
    first.synchronize();
    all_read(&others[..8], &[(block, 5 * MIB, 3)]);
    first.pool.disable_peer(4).expect("a peer");
    first.pool.enable_peer(9).expect("the eighth now");
    all_read(&others[8..], &[(block, 5 * MIB, 3)]);
    first.pool.dealloc(block, 0).expect("live");
    first.end();
    others.into_iter().for_each(Device::end);
    no_misuse();
}

#[test]
fn a_ninth_peer_is_refused_with_advice() {
    on_sim("a ninth peer", &[("DEVICES", "10")]);
}

/// A machine whose driver allows three peers only: its refusal undoes the whole change.
fn fewer() {
    let (first, others) = machine();
    let blocks: Vec<(usize, usize, u8)> =
        (0..6).map(|i| (first.pool.alloc(3 * MIB, 0).expect("fits"), 3 * MIB, i)).collect();
    for &(block, bytes, value) in &blocks {
        first.fill(block, value, bytes, 0);
    }
    for peer in 1..=3 {
        first.pool.enable_peer(peer).expect("up to three");
    }
    let error = first.pool.enable_peer(4).expect_err("the driver allows three");
    assert_eq!(error.status(), Status::TooManyPeers, "{error}");
    assert_eq!(first.pool.peers().expect("alive"), [1, 2, 3]);
    let after = first.pool.alloc(40 * MIB, 0).expect("memory can still be mapped");
    for address in blocks.iter().map(|b| b.0).chain([after]) {
        assert_eq!([0, 1, 2, 3, 4].map(|d| access(d, address)), [3, 3, 3, 3, 0]);
    }
    first.synchronize();
    all_read(&others[..3], &blocks);
    for address in blocks.iter().map(|b| b.0).chain([after]) {
        first.pool.dealloc(address, 0).expect("live");
    }
    first.end();
    others.into_iter().for_each(Device::end);
    no_misuse();
}

#[test]
fn a_peer_that_the_driver_refuses_changes_nothing() {
    on_sim("fewer peers than asked for", &[("DEVICES", "5"), ("PEERS", "3")]);
}

/// Takes all that the pool gives, in blocks of `bytes`: whether any overlaps the one at `address`.
fn gets(device: &Device, (address, bytes): (usize, usize), lane: u64) -> bool {
    let mut taken = Vec::new();
    while let Ok(block) = device.pool.alloc(bytes, lane) {
        taken.push(block);
    }
    for &block in &taken {
        device.pool.dealloc(block, lane).expect("live");
    }
    taken.into_iter().any(|block| block < address + bytes && address < block + bytes)
}

/// `cudaFree`'s meaning takes in what peers still do with the memory.
fn freed_under_a_peer() {
    let sim = Sim::open();
    sim.ok("cuInit", &[0]);
    let first = Device::open(0, 0, |settings| {
        settings.keeper = false;
        settings.limit = 12 * MIB as u64;
        settings.oom_wait = std::time::Duration::from_millis(1);
    });
    let reader = Device::open(1, 100, |_| {});
    first.pool.enable_peer(1).expect("it can");
    let stream = reader.stream(Kind::NonBlocking);
    // All fences that there may be are recorded and pass.
    let settle = || {
        for _ in 0..3 {
            first.pool.trim(0).expect("a trim");
            first.synchronize();
            reader.synchronize();
        }
    };
    for bytes in [1024, 200 << 10, MIB, 5 * MIB] {
        for lane in [SYNC_STREAM, 0] {
            let block = first.pool.alloc(bytes, lane).expect("fits");
            first.fill(block, 0x33, bytes, 0);
            first.synchronize();
            let check = reader.check((block, bytes), 0x33, stream, 0).expect("there is room");
            first.pool.dealloc(block, SYNC_STREAM).expect("live");
            first.pool.stats().expect("alive");
            first.pool.trim(0).expect("a trim");
            // The own device's part of each fence passes, and nothing of it waits for the peer.
            first.synchronize();
            for by in [SYNC_STREAM, 0] {
                assert!(!gets(&first, (block, bytes), by), "{bytes} B: the peer reads it");
            }
            reader.synchronize();
            assert!(reader.held(check));
            settle();
            let got = gets(&first, (block, bytes), SYNC_STREAM) | gets(&first, (block, bytes), 0);
            assert!(got, "{bytes} B: all work is done");
            settle();
        }
    }
    reader.destroy_stream(stream, true);
    first.end();
    reader.end();
    no_misuse();
}

#[test]
fn a_free_with_cuda_free_s_meaning_waits_for_peers() {
    on_sim("freed under a peer", &[("DEVICES", "2"), ("SCHEDULE", "stepped")]);
}

/// The newest fence cannot be moved in the peer's context: it covers there what it did before.
fn fence_not_moved() {
    let sim = Sim::open();
    sim.ok("cuInit", &[0]);
    let first = Device::open(0, 0, |settings| {
        settings.keeper = false;
        settings.limit = 12 * MIB as u64;
        settings.oom_wait = std::time::Duration::from_millis(1);
    });
    let reader = Device::open(1, 1, |_| {});
    first.pool.enable_peer(1).expect("it can");
    let words: Vec<usize> = [&first, &reader]
        .map(|device| {
            device.enter();
            let word = sim.get("cuMemAlloc_v2", &[4096]);
            device.fill(word, 0, 4096, 0);
            device.synchronize();
            word
        })
        .to_vec();
    let streams = [&first, &reader].map(|device| device.stream(Kind::NonBlocking));
    // SAFETY: the simulation lets the CPU write device memory; the kernels wait for it.
    let let_go = |device: usize| unsafe { (words[device] as *mut u32).write_volatile(1) };
    let bytes = 5 * MIB;
    let block = first.pool.alloc(bytes, 0).expect("fits");
    // Between it and what is freed later, which else became one piece with it.
    let between = first.pool.alloc(300 << 10, 0).expect("fits");
    first.fill(block, 0x33, bytes, 0);
    first.synchronize();
    first.spin_until(words[0], 1, streams[0]);
    // As many fences in flight as a lane has; then the newest is moved.
    let fence = || {
        let other = first.pool.alloc(300 << 10, SYNC_STREAM).expect("fits");
        first.pool.dealloc(other, SYNC_STREAM).expect("live");
        let before = first.pool.stats().expect("alive").fences_recorded;
        first.pool.trim(0).expect("a trim");
        first.pool.stats().expect("alive").fences_recorded - before
    };
    (0..15).for_each(|_| assert_eq!(fence(), 1));
    reader.spin_until(words[1], 1, streams[1]);
    let check = reader.check((block, bytes), 0x33, streams[1], 0).expect("there is room");
    first.pool.dealloc(block, SYNC_STREAM).expect("live");
    assert_eq!(fence(), 1, "covers the block");
    for nth in [1, 2] {
        sim.script(&format!("fail cuCtxRecordEvent with 999 from #{nth} always"));
        assert_eq!(fence(), 0, "not moved");
        sim.script("");
    }
    let_go(0);
    first.synchronize();
    for _ in 0..50 {
        first.pool.stats().expect("settles");
    }
    assert!(!gets(&first, (block, bytes), SYNC_STREAM), "the peer reads it");
    let_go(1);
    reader.synchronize();
    assert!(reader.held(check));
    first.pool.dealloc(between, 0).expect("live");
    for (device, stream, word) in [(&first, streams[0], words[0]), (&reader, streams[1], words[1])]
    {
        device.destroy_stream(stream, true);
        sim.ok("cuMemFree_v2", &[word]);
    }
    first.end();
    reader.end();
    no_misuse();
}

#[test]
fn a_fence_that_cannot_be_moved_covers_what_it_did() {
    on_sim("a fence is not moved", &[("DEVICES", "2")]);
}

/// Fences over a peer's work would end its captures: none is recorded while one is open there.
fn a_peer_captures() {
    let sim = Sim::open();
    sim.ok("cuInit", &[0]);
    let open = |ordinal| Device::open(ordinal, 0, |settings| settings.keeper = false);
    let [first, peer, third] = [0, 1, 2].map(open);
    let stream = peer.stream(Kind::NonBlocking);
    for (mode, peers) in [(0, false), (0, true), (1, true), (2, true)] {
        if peers {
            first.pool.enable_peer(1).expect("it can");
        }
        let number = capture::begin(stream).expect("a stream of the peer");
        sim.ok("cuStreamBeginCapture_v2", &[stream as usize, mode]);
        let busy = third.pool.enable_peer(1).expect_err("a capture is open");
        assert_eq!(busy.status(), Status::Busy, "{busy}");
        let recorded = || first.pool.stats().expect("alive").fences_recorded;
        let before = recorded();
        for device in [&first, &peer, &third] {
            let block = device.pool.alloc(20 * MIB, SYNC_STREAM).expect("fits");
            device.pool.dealloc(block, SYNC_STREAM).expect("live");
            device.pool.trim(0).expect("finds nothing or all");
        }
        assert_eq!(recorded() > before, !peers, "without peers it is no business of this one's");
        peer.enter();
        let mut graph = 0usize;
        sim.ok("cuStreamEndCapture", &[stream as usize, &raw mut graph as usize]);
        sim.ok("cuGraphDestroy", &[graph]);
        capture::end(number).expect("open");
        capture::release(number).expect("ended");
        let block = first.pool.alloc(20 * MIB, SYNC_STREAM).expect("fits");
        let before = recorded();
        first.pool.dealloc(block, SYNC_STREAM).expect("live");
        assert!(recorded() > before, "as ever");
    }
    peer.destroy_stream(stream, true);
    for device in [first, peer, third] {
        device.end();
    }
    no_misuse();
}

#[test]
fn a_peer_s_capture_is_not_disturbed() {
    on_sim("a peer captures", &[("DEVICES", "3")]);
}

/// A peer whose context fails, or is reset, is left out; the pool goes on.
fn a_peer_fails() {
    let sim = Sim::open();
    sim.ok("cuInit", &[0]);
    let open = |ordinal| Device::open(ordinal, 0, |settings| settings.keeper = false);
    let [first, reset, failing] = [0, 1, 2].map(open);
    for peer in [1, 2] {
        first.pool.enable_peer(peer).expect("it can");
    }
    let turn = || {
        let block = first.pool.alloc(20 * MIB, SYNC_STREAM).expect("fits");
        first.fill(block, 1, 20 * MIB, 0);
        first.pool.dealloc(block, SYNC_STREAM).expect("live");
        first.synchronize();
        assert!(first.pool.trim(0).expect("a trim") >= 20 * MIB as u64, "the fence has passed");
    };
    turn();
    drop(reset.pool);
    sim.ok("cuDevicePrimaryCtxReset_v2", &[1]);
    turn();
    // A kernel on memory that is not there.
    failing.spin_until(4096, 1, 0);
    failing.enter();
    assert_eq!(sim.call("cuCtxSynchronize", &[]), 700);
    for _ in 0..3 {
        turn();
    }
    first.end();
}

#[test]
fn a_peer_that_fails_takes_nobody_with_it() {
    let told = on_sim("a peer fails", &[("DEVICES", "3")]);
    assert_eq!(told.matches("fences leave it out").count(), 1, "{told}");
    assert!(told.contains("device=2"), "{told}");
}
