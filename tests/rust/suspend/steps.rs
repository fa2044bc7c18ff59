//! What one suspend and one resume do.

use super::*;
use forebay::config::DebugChecks;
use forebay::driver::{Call, StreamHandle};
use forebay::pool::capture;

#[test]
fn memory_goes_back_to_the_device_and_comes_back_as_it_was() {
    let mut g = Ground::new(64, 1, |_| {});
    let (kv, plain) = (g.tags[0], 1);
    let other = g.alloc(plain, 3 * GRANULE, 0).expect("room");
    let blocks: Vec<Block> = [300, 5000, 40_000, GRANULE, 5 * GRANULE + 9, 1 << 20]
        .iter()
        .map(|&bytes| g.alloc(kv, bytes, 0).expect("room"))
        .collect();
    let (before, held) = (g.stats(), device_bytes(&g.driver));
    let told = g.suspend(&[kv]);
    let asleep = g.stats();
    assert_eq!(told.device_bytes, (held - device_bytes(&g.driver)) as u64);
    assert_eq!((told.kept_bytes, told.stuck_bytes, told.blocks), (0, 0, 6));
    // All that is left is the other block's.
    assert!(device_bytes(&g.driver) <= 4 * GRANULE, "{asleep:?}");
    assert_eq!(asleep.live_bytes, 3 * GRANULE as u64);
    assert_eq!(asleep.suspended_bytes, before.live_bytes - 3 * GRANULE as u64);
    assert_eq!((asleep.live_blocks, asleep.suspended_host_bytes), (7, told.host_bytes));
    assert!(told.host_bytes >= asleep.suspended_bytes);
    assert_eq!(g.pool.tag_bytes().expect("alive")[usize::from(kv)].0, asleep.suspended_bytes);
    other.check();

    let back = g.resume(&[kv]);
    assert_eq!((back.device_bytes, back.blocks), (told.device_bytes, 6));
    let after = g.stats();
    assert_eq!((after.live_bytes, after.suspended_bytes), (before.live_bytes, 0));
    assert_eq!(after.suspended_host_bytes, 0);
    blocks.iter().chain([&other]).for_each(|block| block.check());
    blocks.into_iter().chain([other]).for_each(|block| g.free(block));
    g.end(&[]);
}

#[test]
fn discarded_contents_cost_no_host_memory_and_no_copy() {
    let mut g = Ground::new(64, 1, |_| {});
    let kv = g.tags[0];
    let block = g.alloc(kv, 4 * GRANULE, 0).expect("room");
    g.driver.reset_counts();
    let told = g.pool.suspend(&[kv], Level::Discard).expect("nothing in the way");
    assert_eq!((told.device_bytes, told.host_bytes), (4 * GRANULE as u64, 0));
    assert_eq!(g.resume(&[kv]).device_bytes, 4 * GRANULE as u64);
    assert_eq!((g.driver.count(Call::Copy), g.driver.count(Call::HostAlloc)), (0, 0));
    // The memory is there, whatever is in it.
    Block::new(block.address, block.bytes, 0, 99).check();
    g.free(block);
    g.end(&[]);
}

#[test]
fn an_offloaded_tag_may_be_discarded_afterwards() {
    let mut g = Ground::new(64, 1, |_| {});
    let kv = g.tags[0];
    let block = g.alloc(kv, 4 * GRANULE, 0).expect("room");
    assert_eq!(g.suspend(&[kv]).host_bytes, 4 * GRANULE as u64);
    let told = g.pool.suspend(&[kv], Level::Discard).expect("asleep already");
    assert_eq!((told.device_bytes, told.host_bytes), (0, 0));
    assert_eq!(g.stats().suspended_host_bytes, 0);
    g.resume(&[kv]);
    assert_eq!(g.resume(&[kv]).device_bytes, 0, "awake already");
    g.free(block);
    g.end(&[]);
}

#[test]
fn contents_longer_than_a_chunk_go_through_two_pieces_in_turn() {
    let mut g = Ground::new(800, 1, |_| {});
    let kv = g.tags[0];
    let sizes = [21 << 20, (8 << 20) + GRANULE, 700 << 10];
    let blocks = sizes.map(|bytes| g.alloc(kv, bytes, 0).expect("room"));
    g.driver.reset_counts();
    g.suspend(&[kv]);
    assert_eq!((g.driver.count(Call::Copy), g.driver.count(Call::HostAlloc)), (6, 2));
    assert_eq!(g.driver.inner().census().host_allocs, 0, "given back at once");
    g.resume(&[kv]);
    blocks.iter().for_each(|block| block.check());
    blocks.into_iter().for_each(|block| g.free(block));
    g.end(&[]);
}

#[test]
fn the_memory_of_a_sleeper_serves_other_tags() {
    let mut g = Ground::new(32, 2, |_| {});
    let (a, b) = (g.tags[0], g.tags[1]);
    let first = g.alloc(a, 20 * GRANULE, 0).expect("room");
    let (status, _) = told(g.alloc(b, 20 * GRANULE, 0).map(drop));
    assert_eq!(status, Status::OutOfMemory);
    g.suspend(&[a]);
    let second = g.alloc(b, 20 * GRANULE, 0).expect("there is room now");
    // And the other way round.
    let mut report = Report::default();
    let (status, text) = told(g.pool.resume(&[a], &mut report));
    assert_eq!((status, report.missing_bytes), (Status::OutOfMemory, 8 * GRANULE as u64));
    assert!(has(&text, &["524288 bytes missing"]), "{text}");
    assert_eq!((report.host_bytes, report.blocks), (20 * GRANULE as u64, 1));
    second.check();
    assert!(g.pool.is_suspended(a).expect("alive"));
    assert_eq!(device_bytes(&g.driver), 20 * GRANULE, "no page is held for it");
    g.suspend(&[b]);
    g.resume(&[a]);
    first.check();
    g.stats();
    g.free(first);
    g.resume(&[b]);
    second.check();
    g.free(second);
    g.end(&[]);
}

#[test]
fn idle_memory_of_the_pool_is_used_for_a_resume_at_the_limit() {
    let mut g = Ground::new(64, 1, |settings| settings.limit = (24 * GRANULE) as u64);
    let kv = g.tags[0];
    let block = g.alloc(kv, 16 * GRANULE, 0).expect("room");
    g.suspend(&[kv]);
    let gone = g.alloc(1, 24 * GRANULE, 0).expect("room");
    g.free(gone);
    assert_eq!(g.stats().mapped_bytes, 24 * GRANULE as u64, "idle");
    g.resume(&[kv]);
    block.check();
    assert_eq!(g.stats().mapped_bytes, 24 * GRANULE as u64);
    g.free(block);
    g.end(&[]);
}

#[test]
fn what_is_freed_asleep_is_gone_with_its_contents() {
    let mut g = Ground::new(64, 1, |_| {});
    let kv = g.tags[0];
    let sizes = [300, 300, 40_000, 3 * GRANULE, 2 * GRANULE + 5000, 9 * GRANULE];
    let mut blocks: Vec<Block> =
        sizes.iter().map(|&bytes| g.alloc(kv, bytes, 0).expect("room")).collect();
    let told = g.suspend(&[kv]);
    for i in [5, 3, 0] {
        let block = blocks.swap_remove(i);
        g.free(block);
        let (status, _) = super::told(g.pool.dealloc(block.address, 0));
        assert_eq!(status, Status::DoubleFree);
        g.stats();
    }
    let left = g.stats();
    assert_eq!(left.live_blocks, 3);
    assert!(left.suspended_host_bytes <= told.host_bytes - 12 * GRANULE as u64);
    let back = g.resume(&[kv]);
    assert!(back.device_bytes <= told.device_bytes - 12 * GRANULE as u64, "{back:?}");
    blocks.iter().for_each(|block| block.check());
    g.suspend(&[kv]);
    blocks.into_iter().for_each(|block| g.free(block));
    let none = g.stats();
    assert_eq!((none.suspended_bytes, none.suspended_host_bytes, none.live_blocks), (0, 0, 0));
    assert_eq!(g.resume(&[kv]).device_bytes, 0, "nothing is left");
    g.end(&[]);
}

#[test]
fn small_blocks_of_several_streams_keep_to_the_tags_granules() {
    let mut g = Ground::new(300, 2, |_| {});
    let streams = streams(&g.driver, 3);
    let mut blocks = Vec::new();
    for i in 0..240usize {
        let tag = [g.tags[0], g.tags[1], 1][i % 3];
        let stream = streams[i / 3 % 3];
        blocks.push((tag, g.alloc(tag, 100 + i * 37 % 9000, stream).expect("room")));
    }
    // Every second one goes, on another stream, and comes again.
    for i in (0..240).step_by(2) {
        let (tag, block) = blocks[i];
        g.pool.dealloc(block.address, streams[(i + 1) % 3]).expect("live");
        blocks[i] = (tag, g.alloc(tag, block.bytes, block.stream).expect("room"));
    }
    for (at, &(tag, a)) in blocks.iter().enumerate() {
        a.check();
        for &(other, b) in &blocks[..at] {
            let near = a.address / GRANULE == b.address / GRANULE;
            assert!(!near || tag == other, "{a:x?} and {b:x?} share a granule");
        }
    }
    g.suspend(&g.tags.clone());
    blocks.iter().filter(|(tag, _)| *tag == 1).for_each(|(_, block)| block.check());
    g.resume(&g.tags.clone());
    blocks.iter().for_each(|(_, block)| block.check());
    blocks.into_iter().for_each(|(_, block)| g.free(block));
    g.driver.inner().run_all();
    g.stats();
    g.end(&streams);
}

#[test]
fn a_threads_caches_keep_no_slot_of_a_suspendable_tag() {
    let mut g = Ground::new(128, 1, |_| {});
    let kv = g.tags[0];
    // Magazines of the class, with room in them.
    for _ in 0..8 {
        let blocks: Vec<Block> = (0..64).map(|_| g.alloc(1, 1000, 0).expect("room")).collect();
        blocks.into_iter().for_each(|block| g.free(block));
    }
    let _taken: Vec<Block> = (0..64).map(|_| g.alloc(1, 1000, 0).expect("room")).collect();
    let mut own: Vec<Block> = (0..17).map(|_| g.alloc(kv, 1000, 0).expect("room")).collect();
    let kept = own.pop().expect("some");
    let granule = kept.address / GRANULE;
    assert!(own.iter().all(|block| block.address / GRANULE == granule));
    own.into_iter().for_each(|block| g.free(block));
    for _ in 0..64 {
        let block = g.alloc(1, 1000, 0).expect("room");
        assert_ne!(block.address / GRANULE, granule, "a slot of the tag's is another's");
    }
    kept.check();
    g.end(&[]);
}

#[test]
fn work_queued_before_is_awaited() {
    let mut g = Ground::new(64, 1, |_| {});
    let streams = streams(&g.driver, 2);
    let kv = g.tags[0];
    let block = g.alloc(kv, 2 * GRANULE, streams[0]).expect("room");
    // A fill that has not run, on one stream, and a freed block that another still uses.
    let gone = g.alloc(kv, 3 * GRANULE, streams[1]).expect("room");
    let stream = |i: usize| StreamHandle(streams[i]);
    g.driver.fill(block.address, 0x5a, block.bytes, stream(0)).expect("queued");
    g.driver.fill(gone.address, 0x33, gone.bytes, stream(1)).expect("queued");
    g.free(gone);
    g.suspend(&[kv]);
    g.stats();
    g.resume(&[kv]);
    // SAFETY: a live block of that many bytes, mapped.
    let bytes = unsafe { std::slice::from_raw_parts(block.address as *const u8, block.bytes) };
    assert!(bytes.iter().all(|&byte| byte == 0x5a));
    g.free(block);
    g.end(&streams);
}

#[test]
fn a_graphs_memory_comes_back_where_the_graph_expects_it() {
    let mut g = Ground::new(64, 1, |_| {});
    let streams = streams(&g.driver, 2);
    let kv = g.tags[0];
    let number = capture::begin(streams[0]).expect("no other is open");
    let kept = g.alloc(kv, 900, streams[0]).expect("room");
    let scratch = g.alloc(kv, 2 * GRANULE, streams[0]).expect("room");
    // Freed in the graph: it uses the memory again whenever it is launched.
    g.free(scratch);
    let (status, text) = told(g.pool.suspend(&[kv], Level::Offload));
    assert_eq!(status, Status::Busy);
    assert!(has(&text, &["capture"]), "{text}");
    capture::end(number).expect("open");
    let told = g.suspend(&[kv]);
    assert!(told.host_bytes > 2 * GRANULE as u64, "the graph's scratch is kept: {told:?}");
    // Nobody gets the graph's addresses meanwhile.
    let greedy = g.alloc(1, 40 * GRANULE, streams[1]).expect("room");
    let apart = |b: Block| {
        b.address + b.bytes <= scratch.address || scratch.address + scratch.bytes <= b.address
    };
    assert!(apart(greedy));
    g.free(greedy);
    g.driver.inner().run_all();
    g.resume(&[kv]);
    kept.check();
    scratch.check();
    // Freed asleep, the graph still there; then the graph goes.
    g.suspend(&[kv]);
    g.free(kept);
    g.stats();
    capture::release(number).expect("ended");
    g.driver.inner().run_all();
    g.stats();
    assert_eq!(g.resume(&[kv]).host_bytes, 0);
    let stats = g.stats();
    assert_eq!((stats.live_blocks, stats.suspended_bytes), (0, 0));
    g.end(&streams);
}

#[test]
fn peers_reach_what_has_come_back() {
    let mut g = Ground::new(64, 1, |_| {});
    let kv = g.tags[0];
    let block = g.alloc(kv, 3 * GRANULE, 0).expect("room");
    g.suspend(&[kv]);
    g.pool.enable_peer(2).expect("a peer");
    g.resume(&[kv]);
    assert_eq!(g.driver.inner().peers_of(block.address, block.bytes), Some(vec![2]));
    block.check();
    g.free(block);
    g.end(&[]);
}

#[test]
fn blocks_of_before_the_declaration_stay_and_are_counted() {
    let mut g = Ground::new(64, 0, |_| {});
    let late = tag(7);
    let early = g.alloc(late, 3 * GRANULE, 0).expect("room");
    let small = g.alloc(late, 700, 0).expect("room");
    g.pool.declare_suspendable(late).expect("a tag");
    let own = g.alloc(late, 2 * GRANULE, 0).expect("room");
    let told = g.suspend(&[late]);
    assert_eq!(told.device_bytes, 2 * GRANULE as u64);
    assert_eq!(told.kept_bytes, 3 * GRANULE as u64 + 768);
    early.check();
    small.check();
    g.resume(&[late]);
    [early, small, own].into_iter().for_each(|block| {
        block.check();
        g.free(block);
    });
    g.end(&[]);
}

#[test]
fn freed_memory_is_overwritten_before_its_next_owner_all_the_same() {
    let poison = |settings: &mut Settings| {
        settings.debug = DebugChecks { poison: true, ..DebugChecks::default() };
    };
    let mut g = Ground::new(64, 1, poison);
    let kv = g.tags[0];
    let kept = g.alloc(kv, 5000, 0).expect("room");
    for round in 0..3 {
        let gone = g.alloc(kv, 5000 + round * GRANULE, 0).expect("room");
        let awake = g.alloc(kv, 6000, 0).expect("room");
        g.suspend(&[kv]);
        g.free(gone);
        g.stats();
        g.resume(&[kv]);
        g.free(awake);
        g.driver.inner().run_all();
        g.stats();
        kept.check();
    }
    g.free(kept);
    g.driver.inner().run_all();
    g.end(&[]);
}

#[test]
fn a_pool_ends_with_its_sleepers_and_names_them() {
    let mut g = Ground::new(64, 2, |_| {});
    let (a, b) = (g.tags[0], g.tags[1]);
    let asleep = g.alloc(a, 3 * GRANULE, 0).expect("room");
    let small = g.alloc(a, 700, 0).expect("room");
    let awake = g.alloc(b, GRANULE, 0).expect("room");
    g.suspend(&[a]);
    let leaks = g.pool.leaks().expect("alive");
    let of = |block: Block| {
        let leak = leaks.iter().find(|leak| leak.address == block.address).expect("named");
        (leak.tag, leak.suspended)
    };
    assert_eq!(leaks.len(), 3);
    assert_eq!((of(asleep), of(small), of(awake)), ((a, true), (a, true), (b, false)));
    g.end(&[]);
}
