//! Bound tables: what reaches the device is what the cache says, by deltas, and staging is never
//! written while a copy from it is in flight.

use crate::device::{self, Random, seed};
use crate::{MIB, bind, host_pool, memory, sequence, small};
use forebay::driver::faulty::{CallSet, Fault};
use forebay::driver::host::{HostDriver, HostOptions};
use forebay::driver::{Call, Driver, StreamHandle};
use forebay::error::Status;
use forebay::kv::{self, Csr, Delta, KvCache, KvError, NO_FENCE, Open, Order, Seq, Tokens};
use forebay::paged::tables::{Staging, Synced, Table};
use forebay::paged::{KvMemory, MemoryError};
use forebay::pool::Pool;
use std::mem::MaybeUninit;
use std::sync::Arc;

const ROWS: u32 = 8;
const STRIDE: u32 = 12;

/// A device whose queued work runs when the test says.
fn late() -> (Arc<HostDriver>, Pool, u64) {
    let options = HostOptions { total_bytes: 32 * MIB, deferred: true, ..Default::default() };
    let (driver, pool, streams) = host_pool(options, 1);
    (driver, pool, streams[0])
}

fn table(pool: &Pool) -> Table {
    let bytes = (ROWS * STRIDE) as usize * 4;
    let address = pool.alloc(bytes, 0).expect("it fits");
    // SAFETY: the block is the test's own, in memory that the CPU may write.
    unsafe { (address as *mut u8).write_bytes(0xa5, bytes) };
    let (rows, stride) = (ROWS, STRIDE);
    Table { group: 0, address, rows, stride, staging_bytes: 128, staging_buffers: 5 }
}

fn read(table: &Table) -> Vec<i32> {
    let entries = (table.rows * table.stride) as usize;
    // SAFETY: as in `table`; no copy is in flight.
    unsafe { std::slice::from_raw_parts(table.address as *const i32, entries) }.to_vec()
}

/// What the table is to hold.
fn expected(cache: &KvCache, seqs: &[Seq]) -> Vec<i32> {
    let mut rows = vec![0; (ROWS * STRIDE) as usize];
    for (row, &seq) in rows.chunks_exact_mut(STRIDE as usize).zip(seqs) {
        if cache.len(seq).expect("open") > 0 {
            let mut csr = Csr::default();
            cache.csr(0, &[seq], &mut csr).expect("it holds tokens");
            row[..csr.indices.len()].copy_from_slice(&csr.indices);
        }
    }
    rows
}

fn sync(memory: &KvMemory, driver: &HostDriver, seqs: &[Seq], stream: u64) -> Synced {
    loop {
        match memory.sync_table(0, seqs, stream) {
            Ok(synced) => return synced,
            Err(MemoryError::Again(_)) => _ = driver.step(0),
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn a_step_sends_what_has_changed() {
    let (driver, pool, stream) = late();
    let memory = memory(&pool, small(Order::BlockOuter), 60, 60);
    let (cache, table) = (memory.cache(), table(&pool));
    bind(&memory, table).expect("a group");
    let seqs = [sequence(cache, 7), sequence(cache, 1)];
    // At first all of it: 96 entries in three buffers of 32.
    let first = memory.sync_table(0, &seqs, stream).expect("no fault");
    assert_eq!(first, Synced { entries: 96, copies: 3 });
    driver.run_all();
    assert_eq!(read(&table), expected(cache, &seqs));
    assert_eq!(memory.sync_table(0, &seqs, stream).expect("no fault"), Synced::default());
    cache.append(seqs[0], Tokens::Count(1)).expect("it fits in the block");
    assert_eq!(memory.sync_table(0, &seqs, stream).expect("no fault"), Synced::default());
    cache.append(seqs[0], Tokens::Count(1)).expect("a block");
    let one = memory.sync_table(0, &seqs, stream).expect("no fault");
    assert_eq!(one, Synced { entries: 1, copies: 1 });
    driver.run_all();
    assert_eq!(read(&table), expected(cache, &seqs));
    memory.unbind_table(0).expect("bound");
}

#[test]
fn rows_follow_their_sequences() {
    let (driver, pool, stream) = late();
    let memory = memory(&pool, small(Order::BlockOuter), 60, 60);
    let (cache, table) = (memory.cache(), table(&pool));
    bind(&memory, table).expect("a group");
    let (a, b, c) = (sequence(cache, 17), sequence(cache, 5), sequence(cache, 9));
    let empty = cache.open(Open::default()).expect("room");
    let steps: [&[Seq]; 9] =
        [&[a, b, c], &[c, b, a], &[a], &[b, a], &[c, empty, b], &[b, b], &[b], &[], &[a, b, c]];
    for seqs in steps {
        sync(&memory, &driver, seqs, stream);
        for &seq in seqs {
            cache.append(seq, Tokens::Count(3)).expect("blocks");
        }
        sync(&memory, &driver, seqs, stream);
        driver.run_all();
        assert_eq!(read(&table), expected(cache, seqs), "{seqs:?}");
    }
    // A handle whose slot another sequence has is another owner.
    cache.free(&[a], NO_FENCE).expect("open");
    let next = sequence(cache, 2);
    sync(&memory, &driver, &[next, b], stream);
    driver.run_all();
    assert_eq!(read(&table), expected(cache, &[next, b]));
}

#[test]
fn staging_in_flight_is_not_written_and_the_call_says_again() {
    let (driver, pool, stream) = late();
    let memory = memory(&pool, small(Order::BlockOuter), 60, 60);
    let (cache, table) = (memory.cache(), table(&pool));
    bind(&memory, table).expect("a group");
    let seqs = [sequence(cache, 1)];
    memory.sync_table(0, &seqs, stream).expect("three buffers");
    let mut sent = vec![expected(cache, &seqs)];
    for in_flight in [4, 5] {
        cache.append(seqs[0], Tokens::Count(4)).expect("a block");
        memory.sync_table(0, &seqs, stream).expect("another buffer");
        sent.push(expected(cache, &seqs));
        let staging = memory.staging(0).expect("bound");
        assert_eq!(staging, Staging { buffers: in_flight, in_flight });
    }
    cache.append(seqs[0], Tokens::Count(4)).expect("a block");
    let refused = memory.sync_table(0, &seqs, stream);
    assert!(matches!(refused, Err(MemoryError::Again(_))), "{refused:?}");
    // All that was queued arrives as it was when it was queued: three copies, then one each.
    for (step, expected) in sent.iter().enumerate() {
        for _ in 0..if step == 0 { 3 } else { 1 } {
            driver.step(0).expect("a copy");
        }
        assert_eq!(&read(&table), expected, "step {step}");
    }
    // The change that was refused is not lost.
    let last = memory.sync_table(0, &seqs, stream).expect("all buffers are free");
    assert_eq!(last, Synced { entries: 1, copies: 1 });
    driver.run_all();
    assert_eq!(read(&table), expected(cache, &seqs));
    assert_eq!(memory.staging(0).expect("bound").buffers, 5, "no more were made");
}

/// A buffer whose copies are queued and whose event could not be recorded is in flight.
#[test]
fn staging_without_an_event_is_not_written() {
    let options = HostOptions { total_bytes: 32 * MIB, deferred: true, ..Default::default() };
    let driver = device::device(options);
    let pool = device::pool(&driver, device::settings(&driver));
    let stream = driver.stream_create().expect("a stream").0;
    let memory = memory(&pool, small(Order::BlockOuter), 60, 60);
    let (cache, table) = (memory.cache(), table(&pool));
    bind(&memory, Table { staging_bytes: 384, staging_buffers: 2, ..table }).expect("a group");
    let seqs = [sequence(cache, 1)];
    driver.fail(Fault::from_then_on(CallSet::of(&[Call::EventRecord]), 1));
    memory.sync_table(0, &seqs, stream).expect_err("no event");
    cache.append(seqs[0], Tokens::Count(4)).expect("a block");
    memory.sync_table(0, &seqs, stream).expect_err("no event");
    assert_eq!(memory.staging(0).expect("bound"), Staging { buffers: 2, in_flight: 2 });
    let refused = memory.sync_table(0, &seqs, stream);
    assert!(matches!(refused, Err(MemoryError::Again(_))), "{refused:?}");
    driver.clear_faults();
    let refused = memory.sync_table(0, &seqs, stream);
    assert!(matches!(refused, Err(MemoryError::Again(_))), "they have events now: {refused:?}");
    driver.inner().run_all();
    memory.sync_table(0, &seqs, stream).expect("both are free");
    driver.inner().run_all();
    assert_eq!(read(&table), expected(cache, &seqs));
    drop(memory);
    pool.dealloc(table.address, 0).expect("live");
    device::end(&driver, pool, &[stream]);
}

/// A stream that is none, or is gone, costs no staging buffer for good.
#[test]
fn staging_comes_back_from_streams_that_are_gone() {
    let driver = device::device(HostOptions { total_bytes: 32 * MIB, ..Default::default() });
    let pool = device::pool(&driver, device::settings(&driver));
    let memory = memory(&pool, small(Order::BlockOuter), 60, 60);
    let (cache, table) = (memory.cache(), table(&pool));
    bind(&memory, Table { staging_bytes: 384, staging_buffers: 2, ..table }).expect("a group");
    let seqs = [sequence(cache, 1)];
    // A refused copy reads no buffer.
    for _ in 0..5 {
        let refused = memory.sync_table(0, &seqs, 0xdead_0000).expect_err("no stream");
        assert_eq!(refused.status(), Status::InvalidStream, "{refused}");
        let staging = memory.staging(0).expect("bound");
        assert_eq!(staging, Staging { buffers: 1, in_flight: 0 });
    }
    // Of copies that are queued no event tells, once their stream is gone: the device is waited
    // for.
    driver.fail(Fault::from_then_on(CallSet::of(&[Call::EventRecord]), 1));
    let gone = [0, 1].map(|_| driver.stream_create().expect("a stream").0);
    for stream in gone {
        memory.sync_table(0, &seqs, stream).expect_err("no event");
    }
    driver.clear_faults();
    assert_eq!(memory.staging(0).expect("bound"), Staging { buffers: 2, in_flight: 2 });
    for stream in gone {
        driver.stream_destroy(StreamHandle(stream)).expect("a stream");
    }
    let stream = driver.stream_create().expect("a stream").0;
    for _ in 0..3 {
        memory.sync_table(0, &seqs, stream).expect("one of two is free");
        driver.inner().quiesce();
        assert_eq!(read(&table), expected(cache, &seqs));
        cache.append(seqs[0], Tokens::Count(4)).expect("a block");
    }
    assert_eq!(memory.staging(0).expect("bound").buffers, 2);
    drop(memory);
    pool.dealloc(table.address, 0).expect("live");
    device::end(&driver, pool, &[stream]);
}

/// What C gives to be written may hold nothing yet; Miri tells if it were read.
#[test]
fn arrays_need_not_hold_numbers_before() {
    let cache = KvCache::new(kv::Config::new(small(Order::BlockOuter), 9)).expect("it makes sense");
    let seq = sequence(&cache, 6);
    let mut slots = [const { MaybeUninit::<i64>::uninit() }; 3];
    cache.slots(0, seq, 3, &mut slots).expect("they are there");
    let mut row = [const { MaybeUninit::<i32>::uninit() }; 4];
    assert_eq!(cache.row(0, seq, &mut row, true).expect("it fits"), Delta { from: 0, to: 4 });
    // SAFETY: the calls have written all of both.
    let (slots, row) = unsafe { (slots.map(|s| s.assume_init()), row.map(|e| e.assume_init())) };
    let (first, second) = (i64::from(row[0]), i64::from(row[1]));
    assert_eq!(slots, [first * 4 + 3, second * 4, second * 4 + 1]);
    assert!(first != second && row[2..] == [0, 0], "{row:?}");
}

#[test]
fn random_steps_leave_the_table_as_the_cache_says() {
    let seed = seed(3);
    for seed in seed..seed + 20 {
        let (driver, pool, stream) = late();
        let memory = memory(&pool, small(Order::BlockOuter), 60, 60);
        let (cache, table) = (memory.cache(), table(&pool));
        bind(&memory, table).expect("a group");
        let mut rng = Random(seed);
        let mut live: Vec<Seq> = Vec::new();
        for _ in 0..200 {
            if live.len() < ROWS as usize && rng.below(3) == 0 {
                live.push(cache.open(Open::default()).expect("room"));
            }
            for &seq in &live {
                let tokens = rng.below(6) as u32;
                match cache.append(seq, Tokens::Count(tokens)) {
                    Ok(()) | Err(KvError::NoBlocks(_)) => {}
                    Err(error) => panic!("{error}"),
                }
                let len = cache.len(seq).expect("open");
                if len > STRIDE * 4 - 6 || rng.below(8) == 0 {
                    cache.rollback(seq, len / 2, NO_FENCE).expect("it holds them");
                }
            }
            if !live.is_empty() && rng.below(4) == 0 {
                let gone = live.swap_remove(rng.below(live.len()));
                cache.free(&[gone], NO_FENCE).expect("open");
            }
            if live.len() > 1 && rng.below(4) == 0 {
                let (one, other) = (rng.below(live.len()), rng.below(live.len()));
                live.swap(one, other);
            }
            sync(&memory, &driver, &live, stream);
            if rng.below(2) == 0 {
                driver.run_all();
                assert_eq!(read(&table), expected(cache, &live), "seed {seed}");
            }
        }
    }
}
