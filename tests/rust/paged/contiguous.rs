//! Contiguous addresses: what a sequence sees, what the tail costs, whose pages are whose.

use crate::device::{self, Watched, check_books};
use crate::{MIB, llama, small};
use forebay::driver::host::HostOptions;
use forebay::driver::{Call, Driver, StreamHandle};
use forebay::error::Status;
use forebay::kv::{Content, Geometry, KvError, NO_FENCE, Order, Seq};
use forebay::paged::MemoryError;
use forebay::paged::contiguous::{ContiguousConfig, ContiguousKv, ContiguousStats, Side};
use forebay::pool::Pool;
use std::sync::Arc;

const PAGE: u64 = 2 * MIB as u64;

fn config(geometry: Geometry) -> ContiguousConfig {
    ContiguousConfig {
        groups: vec![geometry],
        max_sequences: 4,
        max_tokens: 4096,
        ahead_tokens: 0,
        keep_pages: 0,
    }
}

fn open(pages: usize, config: ContiguousConfig) -> (Arc<Watched>, Pool, ContiguousKv) {
    let (driver, pool) = device::small_pool(pages * PAGE as usize);
    let kv = ContiguousKv::new(&pool, config).expect("it makes sense");
    (driver, pool, kv)
}

fn ensure(kv: &ContiguousKv, seq: Seq, tokens: u32) {
    let (done, result) = kv.ensure(&[(seq, tokens)]);
    result.expect("it fits");
    assert_eq!(done, 1);
}

/// The reference's figures: layers together, 32 tokens a page, 2 maps a growth, 4 MiB of tail at
/// worst; a range a layer, 1,024 tokens, 64 maps, 128 MiB.
#[test]
fn the_tail_of_llama_costs_what_the_formula_says() {
    for (order, per_page, ranges) in [(Order::BlockOuter, 32, 2), (Order::LayerOuter, 1024, 64)] {
        let (driver, pool, kv) = open(320, config(llama(order)));
        assert_eq!(kv.tokens_per_page(0), Ok(per_page));
        let seq = kv.open().expect("room");
        let token_bytes = 128 * 1024u64;
        let mut worst = 0;
        for tokens in [1, 31, 32, 33, 64, 1023, 1024, 1025] {
            let maps = driver.count(Call::Map);
            let before = kv.usage(seq).expect("open").mapped;
            ensure(&kv, seq, tokens);
            let usage = kv.usage(seq).expect("open");
            let pages = u64::from(tokens).div_ceil(per_page) * ranges;
            assert_eq!(usage.mapped, pages * PAGE, "{order:?} {tokens}");
            assert_eq!(usage.used, u64::from(tokens) * token_bytes);
            assert_eq!(usage.waste(), pages * PAGE - u64::from(tokens) * token_bytes);
            assert_eq!((driver.count(Call::Map) - maps) * PAGE, usage.mapped - before);
            worst = worst.max(usage.waste());
        }
        // One token more than fills the pages is the worst: all but one token of each last page.
        let limit = ranges * PAGE;
        assert_eq!(limit, if order == Order::BlockOuter { 4 << 20 } else { 128 << 20 });
        assert_eq!(worst, limit - token_bytes, "{order:?}");
        assert_eq!(check_books(&driver, &pool).region_bytes, kv.usage(seq).expect("open").mapped);
        drop(kv);
        device::end(&driver, pool, &[]);
    }
}

/// As a kernel that knows no blocks reads it: one pointer, constant strides.
fn at(side: Side, token: u32, layer: u32, head: u32) -> usize {
    side.address
        + (u64::from(token) * side.token_stride
            + u64::from(layer) * side.layer_stride
            + u64::from(head) * side.head_stride) as usize
}

#[test]
fn a_kernel_of_constant_strides_reads_what_was_written_while_the_sequence_grew() {
    for order in [Order::BlockOuter, Order::LayerOuter] {
        let geometry = Geometry { key_size: 64, value_size: 32, ..small(order) };
        let (driver, pool, kv) = open(64, config(geometry));
        let seqs = [kv.open().expect("room"), kv.open().expect("room")];
        let value = |seq: usize, token, layer, head, side| {
            (seq * 1_000_000 + side * 500_000) as u64 + u64::from(token * 100 + layer * 10 + head)
        };
        let each = |f: &mut dyn FnMut(u32, u32)| {
            (0..geometry.layers).for_each(|l| (0..geometry.heads).for_each(|h| f(l, h)));
        };
        let first = kv.view(seqs[0], 0).expect("open");
        let (key, value_side) = (first.keys, first.values.expect("attention"));
        let strides = |side: Side| (side.token_stride, side.layer_stride, side.head_stride);
        match order {
            Order::BlockOuter => {
                assert_eq!(strides(key), (3 * 256, 256, 128));
                assert_eq!(strides(value_side), (3 * 128, 128, 64));
            }
            // 4,096 tokens of a layer's keys are 1 MiB, of its values half of that.
            Order::LayerOuter => {
                assert_eq!(strides(key), (256, PAGE, 128));
                assert_eq!(strides(value_side), (128, PAGE, 64));
            }
        }
        let mut tokens = 0;
        for grown in [1, 7, 500, 3000, 4096] {
            for (nth, &seq) in seqs.iter().enumerate() {
                ensure(&kv, seq, grown);
                let view = kv.view(seq, 0).expect("open");
                let sides = [view.keys, view.values.expect("attention")];
                for token in tokens..grown {
                    for (which, side) in sides.into_iter().enumerate() {
                        each(&mut |layer, head| {
                            let to = at(side, token, layer, head) as *mut u64;
                            // SAFETY: the token has memory, a head's elements are 64 bytes or more.
                            unsafe { to.write(value(nth, token, layer, head, which)) };
                        });
                    }
                }
            }
            tokens = grown;
        }
        assert_eq!(kv.view(seqs[0], 0).expect("open"), first, "addresses do not move");
        for (nth, &seq) in seqs.iter().enumerate() {
            let view = kv.view(seq, 0).expect("open");
            for (which, side) in [view.keys, view.values.expect("it has")].into_iter().enumerate() {
                for token in 0..tokens {
                    each(&mut |layer, head| {
                        // SAFETY: as above.
                        let found = unsafe { (at(side, token, layer, head) as *const u64).read() };
                        assert_eq!(found, value(nth, token, layer, head, which), "{order:?}");
                    });
                }
            }
        }
        drop(kv);
        device::end(&driver, pool, &[]);
    }
}

#[test]
fn latent_vectors_have_one_side_and_states_do_not_grow() {
    let latent = Geometry { content: Content::Latent, value_size: 0, ..small(Order::BlockOuter) };
    let state = Geometry { content: Content::State { bytes: 1 << 20 }, ..small(Order::LayerOuter) };
    let two = ContiguousConfig { groups: vec![latent, state], ..config(latent) };
    let (driver, pool, kv) = open(64, two);
    let seq = kv.open().expect("room");
    ensure(&kv, seq, 1);
    let view = kv.view(seq, 0).expect("open");
    assert_eq!((view.values, view.keys.token_stride), (None, 3 * 2 * 256 * 2));
    let view = kv.view(seq, 1).expect("open");
    assert_eq!((view.values, view.keys.token_stride), (None, 0));
    assert_eq!(view.keys.layer_stride, PAGE, "a range a layer");
    let before = kv.usage(seq).expect("open").mapped;
    assert_eq!(before, 4 * PAGE);
    ensure(&kv, seq, 600);
    assert_eq!(kv.usage(seq).expect("open").mapped, before, "600 tokens fit in the page");
    assert!(matches!(kv.truncate(seq, 1, NO_FENCE), Err(MemoryError::Kv(KvError::Unsupported(_)))));
    drop(kv);
    device::end(&driver, pool, &[]);
}

#[test]
fn an_ended_sequences_pages_wait_for_its_fence() {
    for fenced in [true, false] {
        let (driver, pool, kv) = open(64, config(llama(Order::BlockOuter)));
        let stream = driver.stream_create().expect("a stream").0;
        let handle = StreamHandle(stream);
        let seq = kv.open().expect("room");
        ensure(&kv, seq, 32);
        let keys = kv.view(seq, 0).expect("open").keys.address;
        driver.inner().hold(handle).expect("a stream");
        if fenced {
            driver.fill(keys, 1, MIB, handle).expect("a stream");
        }
        let fence = if fenced { kv.fence(&[stream]).expect("a stream") } else { NO_FENCE };
        kv.free(&[seq], fence).expect("open");
        kv.poll().expect("no fault");
        let stats = kv.stats();
        assert_eq!((stats.leaving, stats.leaving_pages), if fenced { (1, 2) } else { (0, 0) });
        assert_eq!(pool.stats().expect("alive").region_bytes, stats.leaving_pages * PAGE);
        let next = kv.open().expect("room");
        let reused = kv.view(next, 0).expect("open").keys.address == keys;
        assert_eq!(reused, !fenced, "the range is another's only after the fence");
        driver.inner().unhold(handle).expect("a stream");
        driver.inner().quiesce();
        kv.poll().expect("no fault");
        assert_eq!(kv.stats().leaving, 0);
        assert_eq!(pool.stats().expect("alive").region_bytes, 0);
        drop(kv);
        device::end(&driver, pool, &[stream]);
    }
}

#[test]
fn pages_behind_tokens_taken_back_wait_for_the_fence() {
    let (driver, pool, kv) = open(64, config(llama(Order::BlockOuter)));
    let seq = kv.open().expect("room");
    ensure(&kv, seq, 100);
    let fence = kv.fence_at(1).expect("alive");
    kv.truncate(seq, 33, fence).expect("it holds them");
    kv.poll().expect("no fault");
    assert_eq!(kv.usage(seq).expect("open").mapped, 8 * PAGE);
    kv.reach(1).expect("alive");
    kv.poll().expect("no fault");
    let usage = kv.usage(seq).expect("open");
    assert_eq!((usage.tokens, usage.mapped), (33, 4 * PAGE));
    ensure(&kv, seq, 100);
    assert_eq!(kv.usage(seq).expect("open").mapped, 8 * PAGE);
    drop(kv);
    device::end(&driver, pool, &[]);
}

#[test]
fn kept_pages_serve_the_next_sequence_without_a_call() {
    let kept = ContiguousConfig { keep_pages: 6, ..config(llama(Order::BlockOuter)) };
    let (driver, pool, kv) = open(64, kept);
    let seqs = [kv.open().expect("room"), kv.open().expect("room")];
    seqs.iter().for_each(|&seq| ensure(&kv, seq, 64));
    kv.free(&seqs, NO_FENCE).expect("open");
    kv.poll().expect("no fault");
    // Of eight pages the range that ended first gives its four.
    let expected = ContiguousStats { kept_pages: 4, ..Default::default() };
    assert_eq!(kv.stats(), expected);
    let calls = driver.total();
    let next = kv.open().expect("room");
    ensure(&kv, next, 64);
    assert_eq!(driver.total(), calls, "all was there");
    kv.free(&[next], NO_FENCE).expect("open");
    kv.poll().expect("no fault");
    assert_eq!(kv.release_kept(), Ok(4));
    assert_eq!(pool.stats().expect("alive").region_bytes, 0);
    drop(kv);
    device::end(&driver, pool, &[]);
}

#[test]
fn kept_pages_are_taken_before_a_request_fails() {
    let kept = ContiguousConfig { keep_pages: 100, ..config(llama(Order::BlockOuter)) };
    let (driver, pool, kv) = open(64, kept);
    pool.set_limits(Some(8 * PAGE), None).expect("no fault");
    let seqs = [0, 1, 2].map(|_| kv.open().expect("room"));
    ensure(&kv, seqs[0], 64);
    kv.free(&[seqs[0]], NO_FENCE).expect("open");
    ensure(&kv, seqs[1], 64);
    kv.poll().expect("no fault");
    assert_eq!(kv.stats().kept_pages, 4);
    ensure(&kv, seqs[2], 40);
    assert_eq!(kv.stats().kept_pages, 0);
    let (done, refused) = kv.ensure(&[(seqs[2], 64), (seqs[1], 65)]);
    assert_eq!((done, refused.expect_err("8 pages").status()), (1, Status::OutOfMemory));
    assert_eq!(kv.usage(seqs[1]).expect("open").tokens, 64, "unchanged");
    check_books(&driver, &pool);
    drop(kv);
    device::end(&driver, pool, &[]);
}

#[test]
fn pages_are_mapped_ahead_as_far_as_there_is_room() {
    let ahead = ContiguousConfig { ahead_tokens: 64, ..config(llama(Order::BlockOuter)) };
    let (driver, pool, kv) = open(64, ahead);
    pool.set_limits(Some(8 * PAGE), None).expect("no fault");
    let seq = kv.open().expect("room");
    ensure(&kv, seq, 32);
    assert_eq!(kv.usage(seq).expect("open").mapped, 2 * PAGE);
    kv.poll().expect("no fault");
    assert_eq!((kv.usage(seq).expect("open").mapped, kv.stats().mapped_ahead), (6 * PAGE, 4));
    let maps = driver.count(Call::Map);
    ensure(&kv, seq, 96);
    assert_eq!(driver.count(Call::Map), maps, "it was there");
    let refusals = pool.stats().expect("alive").out_of_memory;
    kv.poll().expect("no room is no fault");
    assert_eq!(kv.stats().mapped_ahead, 4);
    assert_eq!(pool.stats().expect("alive").out_of_memory, refusals);
    drop(kv);
    device::end(&driver, pool, &[]);
}

#[test]
fn the_keeper_maps_ahead() {
    let options = HostOptions { total_bytes: 64 * PAGE as usize, ..Default::default() };
    let driver = device::device(options);
    let mut settings = device::settings(&driver);
    settings.keeper = true;
    let pool = device::pool(&driver, settings);
    let ahead = ContiguousConfig { ahead_tokens: 64, ..config(llama(Order::BlockOuter)) };
    let kv = ContiguousKv::new(&pool, ahead).expect("it makes sense");
    let seq = kv.open().expect("room");
    ensure(&kv, seq, 32);
    for _ in 0..3000 {
        if kv.stats().mapped_ahead == 4 {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    assert_eq!(kv.stats().mapped_ahead, 4);
    kv.free(&[seq], NO_FENCE).expect("open");
    for _ in 0..3000 {
        if kv.stats().leaving == 0 {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    assert_eq!(pool.stats().expect("alive").region_bytes, 0);
    drop(kv);
    device::end(&driver, pool, &[]);
}

#[test]
fn wrong_use_is_told() {
    let (driver, pool, kv) = open(64, config(llama(Order::BlockOuter)));
    let refused = |config: ContiguousConfig| {
        assert!(ContiguousKv::new(&pool, config).is_err());
    };
    let base = || config(llama(Order::BlockOuter));
    refused(ContiguousConfig { groups: Vec::new(), ..base() });
    refused(ContiguousConfig { max_sequences: 0, ..base() });
    refused(ContiguousConfig { max_tokens: 0, ..base() });
    refused(config(Geometry { layers: 0, ..llama(Order::BlockOuter) }));
    let huge = Geometry { heads: 1 << 20, key_size: 1 << 20, ..llama(Order::BlockOuter) };
    refused(ContiguousConfig { max_tokens: u32::MAX, ..config(huge) });

    let seqs: Vec<Seq> = (0..4).map(|_| kv.open().expect("room")).collect();
    assert!(matches!(kv.open(), Err(MemoryError::Again(_))));
    let stale = |answer: forebay::paged::Result<()>| {
        assert_eq!(answer, Err(MemoryError::Kv(KvError::Stale)));
    };
    let range = |answer: forebay::paged::Result<()>| {
        assert!(matches!(answer, Err(MemoryError::Kv(KvError::OutOfRange(_)))), "{answer:?}");
    };
    for gone in [Seq::from_raw(0), Seq::from_raw(u64::MAX), Seq::from_raw(seqs[0].raw() ^ 7)] {
        stale(kv.ensure(&[(gone, 1)]).1);
        stale(kv.truncate(gone, 0, NO_FENCE));
        stale(kv.free(&[seqs[0], gone], NO_FENCE));
        stale(kv.view(gone, 0).map(drop));
        stale(kv.usage(gone).map(drop));
    }
    ensure(&kv, seqs[0], 40);
    range(kv.ensure(&[(seqs[0], 39)]).1);
    range(kv.ensure(&[(seqs[0], 4097)]).1);
    range(kv.truncate(seqs[0], 41, NO_FENCE));
    range(kv.truncate(seqs[0], 1, 1));
    range(kv.free(&[seqs[0], seqs[0]], NO_FENCE));
    range(kv.free(&[seqs[0]], 99));
    assert!(kv.view(seqs[0], 1).is_err());
    assert_eq!(kv.usage(seqs[0]).expect("none was freed").tokens, 40);
    kv.free(&seqs, NO_FENCE).expect("open");
    stale(kv.ensure(&[(seqs[0], 50)]).1);
    drop(kv);
    device::end(&driver, pool, &[]);
}
