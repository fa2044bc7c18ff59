//! Single rules of the cache, each by the smallest case that shows it.

use super::super::*;

const BT: usize = 4;

pub(super) fn config(blocks: u32) -> Config {
    let geometry = Geometry {
        layers: 2,
        heads: 1,
        key_size: 8,
        value_size: 8,
        block_tokens: BT as u32,
        element: Element::F16,
        content: Content::Attention { window: 0 },
        order: Order::BlockOuter,
    };
    Config::new(geometry, blocks)
}

pub(super) fn cache(blocks: u32) -> KvCache {
    KvCache::new(config(blocks)).expect("it makes sense")
}

pub(super) fn open(cache: &KvCache) -> Seq {
    cache.open(Open::default()).expect("there is room")
}

/// A sequence of these tokens, all committed.
pub(super) fn filled(cache: &KvCache, tokens: &[i32]) -> Seq {
    let seq = open(cache);
    cache.append(seq, Tokens::Known(tokens)).expect("blocks");
    cache.commit(seq, tokens.len() as u32, NO_FENCE).expect("they are there");
    seq
}

pub(super) fn counts(cache: &KvCache) -> (u32, u32, u32, u32) {
    let Counts { used, free, cached, quarantined, .. } = cache.stats().groups[0].counts;
    (used, free, cached, quarantined)
}

pub(super) fn row(cache: &KvCache, seq: Seq) -> Vec<i32> {
    let mut row = vec![0; 16];
    cache.row(0, seq, &mut row, true).expect("it is open");
    row.into_iter().take_while(|&block| block != 0).collect()
}

pub(super) fn numbers(range: std::ops::Range<i32>) -> Vec<i32> {
    range.collect()
}

#[test]
fn an_ended_sequence_is_stale_everywhere() {
    let cache = cache(8);
    let seq = filled(&cache, &[1, 2, 3]);
    cache.free(&[seq], NO_FENCE).expect("open");
    let again = open(&cache);
    assert_ne!(seq, again);
    for gone in [seq, Seq::from_raw(0), Seq::from_raw(u64::MAX)] {
        assert_eq!(cache.len(gone), Err(KvError::Stale));
        assert_eq!(cache.append(gone, Tokens::Count(1)), Err(KvError::Stale));
        assert_eq!(cache.reserve(gone, 1), Err(KvError::Stale));
        assert_eq!(cache.commit(gone, 0, NO_FENCE), Err(KvError::Stale));
        assert_eq!(cache.rollback(gone, 0, NO_FENCE), Err(KvError::Stale));
        assert_eq!(cache.trim(gone, None, NO_FENCE), Err(KvError::Stale));
        assert_eq!(cache.fork(gone, 0, &mut [again]), Err(KvError::Stale));
        assert_eq!(cache.free(&[again, gone], NO_FENCE), Err(KvError::Stale));
        assert_eq!(cache.find_prefix(gone, &[1]).err(), Some(KvError::Stale));
        assert_eq!(cache.row(0, gone, &mut [0; 4], true), Err(KvError::Stale));
    }
    assert_eq!(cache.len(again), Ok(0), "the other one was not freed");
    assert!(matches!(cache.free(&[again, again], NO_FENCE), Err(KvError::OutOfRange(_))));
    assert_eq!(cache.len(again), Ok(0));
}

#[test]
fn numbers_that_are_not_there_are_refused() {
    let cache = cache(8);
    let seq = filled(&cache, &numbers(0..6));
    let refused = |answer: Result<()>| assert!(matches!(answer, Err(KvError::OutOfRange(_))));
    let mut out = [Seq::from_raw(0); 2];
    refused(cache.fork(seq, 7, &mut out));
    refused(cache.rollback(seq, 7, NO_FENCE));
    refused(cache.commit(seq, 7, NO_FENCE));
    refused(cache.commit(seq, 5, NO_FENCE));
    refused(cache.slots(0, seq, 5, &mut [0; 2]));
    refused(cache.slots(1, seq, 0, &mut [0; 1]));
    refused(cache.csr(1, &[seq], &mut Csr::default()));
    refused(cache.csr(0, &[open(&cache)], &mut Csr::default()));
    refused(cache.row(0, seq, &mut [0; 1], true).map(drop));
    refused(cache.row(3, seq, &mut [0; 9], true).map(drop));
    refused(cache.copied(Copies::from_raw(9), NO_FENCE));
    refused(cache.open(Open { salt: 0, priority: 8 }).map(drop));
    assert!(matches!(cache.find_prefix(seq, &[1]), Err(KvError::Unsupported(_))));
    assert!(matches!(cache.trim(seq, Some(1), NO_FENCE), Err(KvError::Unsupported(_))));
    cache.check().expect("the accounts");
}

#[test]
fn configurations_without_sense_are_refused() {
    let refused = |change: fn(&mut Config)| {
        let mut config = config(8);
        change(&mut config);
        assert!(matches!(KvCache::new(config), Err(KvError::Config(_))));
    };
    refused(|config| config.groups.clear());
    refused(|config| config.groups[0].blocks = 1);
    refused(|config| config.groups[0].blocks = u32::MAX);
    let endless = Config { events: usize::MAX, ..config(8) };
    assert_eq!(KvCache::new(endless).err(), Some(KvError::NoMemory));
    refused(|config| config.max_sequences = 0);
    refused(|config| config.max_blocks = 0);
    refused(|config| config.groups[0].geometry.content = Content::Attention { window: 8 });
    refused(|config| {
        config.groups.push(config.groups[0]);
        config.groups[1].geometry.block_tokens = 8;
    });
}

#[test]
fn too_few_blocks_are_an_answer_and_change_nothing() {
    let cache = cache(4);
    let seq = filled(&cache, &numbers(0..9));
    let other = open(&cache);
    let before = cache.stats();
    let short = Shortage { group: 0, need: 1, free: 0, evictable: 0, quarantined: 0 };
    assert_eq!(cache.append(other, Tokens::Count(1)), Err(KvError::NoBlocks(short)));
    let batch = [(seq, 3), (other, 1), (seq, 1)];
    let batch = batch.map(|(seq, count)| Append { seq, tokens: Tokens::Count(count) });
    let (done, error) = cache.append_all(&batch);
    assert_eq!((done, error), (1, Err(KvError::NoBlocks(short))));
    assert_eq!(cache.len(seq), Ok(12));
    assert_eq!(cache.stats().groups, before.groups);
    cache.free(&[seq], 5).expect("open");
    let short = Shortage { quarantined: 3, ..short };
    assert_eq!(cache.append(other, Tokens::Count(1)), Err(KvError::NoBlocks(short)));
    cache.pass(5);
    cache.append(other, Tokens::Count(1)).expect("the fence has passed");
}

#[test]
fn all_groups_get_blocks_or_none() {
    let mut config = config(8);
    config.groups.push(Group { blocks: 3, ..config.groups[0] });
    let cache = KvCache::new(config).expect("it makes sense");
    let seq = open(&cache);
    let before = cache.stats();
    let refused = cache.append(seq, Tokens::Count(9)).expect_err("the second has two");
    assert!(matches!(refused, KvError::NoBlocks(Shortage { group: 1, need: 3, free: 2, .. })));
    assert_eq!(cache.stats(), before);
}

#[test]
fn a_sequence_grows_to_its_limit_and_no_further() {
    let mut config = config(64);
    config.max_blocks = 2;
    let cache = KvCache::new(config).expect("it makes sense");
    let seq = filled(&cache, &numbers(0..8));
    let refused = cache.append(seq, Tokens::Count(1));
    assert_eq!(refused, Err(KvError::TooLong { blocks: 3, most: 2 }));
    assert!(matches!(cache.append(seq, Tokens::Count(u32::MAX)), Err(KvError::OutOfRange(_))));
    let long = open(&cache);
    assert_eq!(cache.find_prefix(long, &numbers(0..12)).expect("empty").tokens, 8);
}

#[test]
fn first_tokens_leave_the_watermark_to_others() {
    let mut config = config(6);
    config.watermark = 2;
    let cache = KvCache::new(config).expect("it makes sense");
    let running = filled(&cache, &numbers(0..12));
    let waiting = open(&cache);
    assert!(matches!(cache.append(waiting, Tokens::Count(1)), Err(KvError::NoBlocks(_))));
    let hit = open(&cache);
    assert_eq!(cache.find_prefix(hit, &numbers(0..4)).expect("empty").tokens, 4);
    assert!(matches!(cache.append(hit, Tokens::Count(1)), Err(KvError::NoBlocks(_))));
    cache.append(running, Tokens::Count(8)).expect("it runs already");
}

#[test]
fn a_prefix_is_shared_and_its_tail_copied() {
    let cache = cache(16);
    let first = filled(&cache, &numbers(0..12));
    let second = open(&cache);
    let prompt = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 99, 98];
    let found = cache.find_prefix(second, &prompt).expect("empty");
    assert_eq!(found, Match { tokens: 10, shared: 8 });
    assert_eq!(row(&cache, second)[..2], row(&cache, first)[..2]);
    let mut jobs = Vec::new();
    let batch = cache.take_copies(&mut jobs).expect("one");
    let (from, to) = (row(&cache, first)[2] as u32, row(&cache, second)[2] as u32);
    assert_eq!(jobs, [CopyJob { group: 0, from, to, tokens: 2 }]);
    // Both ends stay while the copy may run, whatever becomes of the sequences.
    cache.free(&[first, second], NO_FENCE).expect("open");
    cache.check().expect("the accounts");
    assert_eq!(counts(&cache).0, 4, "the ends, and what the source continues");
    cache.copied(batch, NO_FENCE).expect("outstanding");
    assert_eq!(counts(&cache), (0, 12, 3, 0));
}

#[test]
fn tenants_share_nothing() {
    for hashing in [Hashing::Xxh3, Hashing::Poor] {
        let cache = KvCache::new(Config { hashing, ..config(16) }).expect("it makes sense");
        filled(&cache, &numbers(0..8));
        let other = cache.open(Open { salt: 1, priority: 0 }).expect("room");
        assert_eq!(cache.find_prefix(other, &numbers(0..8)), Ok(Match::default()));
    }
}

#[test]
fn a_fork_costs_no_block_until_it_writes() {
    let cache = cache(8);
    let seq = filled(&cache, &numbers(0..6));
    let mut forks = [Seq::from_raw(0); 2];
    cache.fork(seq, 6, &mut forks).expect("room");
    assert_eq!(counts(&cache).0, 2);
    cache.append(seq, Tokens::Known(&[7])).expect("a block");
    cache.append(forks[0], Tokens::Known(&[8])).expect("a block");
    cache.append(forks[1], Tokens::Known(&[9])).expect("no block: nobody else holds it");
    let mut jobs = Vec::new();
    let batch = cache.take_copies(&mut jobs).expect("copies");
    // The copies hold the old tail as well, so the last fork has to copy too.
    assert_eq!(jobs.len(), 3);
    assert!(jobs.iter().all(|job| job.tokens == 2));
    cache.copied(batch, NO_FENCE).expect("outstanding");
    assert_eq!(counts(&cache).0, 4);
    cache.check().expect("the accounts");
}

#[test]
fn what_somebody_else_still_reads_is_not_written() {
    let cache = cache(8);
    let seq = filled(&cache, &numbers(0..6));
    let mut fork = [Seq::from_raw(0)];
    cache.fork(seq, 5, &mut fork).expect("room");
    cache.free(&[seq], 9).expect("open");
    let before = row(&cache, fork[0]);
    cache.append(fork[0], Tokens::Known(&[50])).expect("a block");
    let after = row(&cache, fork[0]);
    assert_eq!(before[0], after[0]);
    assert_ne!(before[1], after[1], "work up to fence 9 may read the sixth token there");
}

#[test]
fn equal_blocks_become_one_when_committed() {
    let cache = cache(16);
    let first = open(&cache);
    let second = open(&cache);
    for seq in [first, second] {
        cache.append(seq, Tokens::Known(&numbers(0..9))).expect("blocks");
    }
    let mut known = vec![0; 4];
    cache.row(0, second, &mut known, true).expect("open");
    cache.commit_all(&[(first, 9), (second, 9)], 3).expect("there");
    assert_eq!(counts(&cache), (4, 9, 0, 2), "the duplicates wait for the fence");
    let delta = cache.row(0, second, &mut known, false).expect("open");
    assert_eq!(delta, Delta { from: 0, to: 3 });
    assert_eq!(known[..2], row(&cache, first)[..2]);
    assert_eq!(known[..3], row(&cache, second)[..]);
}

#[test]
fn deltas_tell_what_changed_and_no_more() {
    let mut config = config(16);
    config.dedupe = false;
    let cache = KvCache::new(config).expect("it makes sense");
    let seq = open(&cache);
    let mut row = vec![77; 6];
    assert_eq!(cache.row(0, seq, &mut row, true), Ok(Delta { from: 0, to: 6 }));
    assert_eq!(row, [0; 6]);
    let mut step = |cache: &KvCache, delta: (u32, u32)| {
        let (from, to) = delta;
        assert_eq!(cache.row(0, seq, &mut row, false), Ok(Delta { from, to }));
        let mut whole = vec![55; 6];
        assert_eq!(cache.row(0, seq, &mut whole, true), Ok(Delta { from: 0, to: 6 }));
        assert_eq!(row, whole);
    };
    cache.append(seq, Tokens::Count(9)).expect("blocks");
    step(&cache, (0, 3));
    cache.append(seq, Tokens::Count(3)).expect("no block");
    step(&cache, (3, 3));
    cache.append(seq, Tokens::Count(1)).expect("a block");
    step(&cache, (3, 4));
    cache.rollback(seq, 7, NO_FENCE).expect("there");
    step(&cache, (2, 4));
    let mut fork = [Seq::from_raw(0)];
    cache.fork(seq, 6, &mut fork).expect("room");
    cache.append(seq, Tokens::Count(1)).expect("a copy");
    step(&cache, (1, 2));
}

#[test]
fn several_rows_lie_in_one_array() {
    let cache = cache(16);
    let seqs = [filled(&cache, &[1]), filled(&cache, &numbers(9..15))];
    let mut array = vec![0; 8];
    let mut deltas = Vec::new();
    cache.rows(0, &seqs, &mut array, 4, &mut deltas).expect("they fit");
    assert_eq!(array, [1, 0, 0, 0, 2, 3, 0, 0]);
    assert_eq!(deltas, [Delta { from: 0, to: 1 }, Delta { from: 0, to: 2 }]);
    assert!(cache.rows(0, &seqs, &mut array, 5, &mut deltas).is_err());
    let mut csr = Csr::default();
    cache.csr(0, &seqs, &mut csr).expect("they hold tokens");
    assert_eq!(csr.indptr, [0, 1, 3]);
    assert_eq!(csr.indices, [1, 2, 3]);
    assert_eq!(csr.last_page_len, [1, 2]);
    let mut slots = [0; 3];
    cache.slots(0, seqs[1], 3, &mut slots).expect("they are there");
    assert_eq!(slots, [11, 12, 13]);
}

#[test]
fn blocks_behind_a_window_go_back() {
    let mut config = config(16);
    config.prefixes = false;
    config.groups[0].geometry.content = Content::Attention { window: 6 };
    let cache = KvCache::new(config).expect("it makes sense");
    let seq = open(&cache);
    cache.append(seq, Tokens::Count(13)).expect("blocks");
    cache.trim(seq, None, NO_FENCE).expect("open");
    // The fourteenth token sees tokens 8 to 13: the first two blocks are seen by none.
    assert_eq!(counts(&cache).0, 2);
    let mut row = [9; 5];
    cache.row(0, seq, &mut row, true).expect("open");
    assert_eq!(row[..2], [0, 0]);
    assert!(cache.slots(0, seq, 7, &mut [0]).is_err());
    cache.slots(0, seq, 8, &mut [0; 5]).expect("they are there");
    let mut fork = [Seq::from_raw(0)];
    assert!(cache.fork(seq, 12, &mut fork).is_err(), "its next token sees tokens that are gone");
    cache.fork(seq, 13, &mut fork).expect("all is there");
    assert!(cache.rollback(seq, 1, NO_FENCE).is_err());
    cache.check().expect("the accounts");
}

#[test]
fn the_raw_level_holds_registers_and_finds() {
    let cache = cache(6);
    let digest = |n: u8| [n; 32];
    let mut ids = [0; 3];
    cache.take_blocks(0, &mut ids).expect("blocks");
    assert_eq!(ids, [1, 2, 3]);
    cache.register_blocks(0, &[(1, digest(1)), (2, digest(2))]).expect("held");
    assert!(cache.register_blocks(0, &[(1, digest(3))]).is_err(), "it has a hash");
    cache.release_blocks(0, &[3, 2, 1], NO_FENCE).expect("held");
    assert!(cache.release_blocks(0, &[3], NO_FENCE).is_err(), "nobody holds it");
    assert!(cache.hold_blocks(0, &[1, 3]).is_err(), "3 is free");
    assert_eq!(counts(&cache), (0, 3, 2, 0));
    let mut seen = [0; 2];
    assert_eq!(cache.peek_blocks(0, &[digest(2), digest(9)], &mut seen), Ok(1));
    assert_eq!((seen[0], counts(&cache)), (2, (0, 3, 2, 0)));
    cache.hold_blocks(0, &[2]).expect("registered");
    assert_eq!(counts(&cache), (1, 3, 1, 0));
    cache.release_blocks(0, &[2], NO_FENCE).expect("held");
    let mut found = [0; 3];
    let sought = [digest(1), digest(9), digest(2)];
    assert_eq!(cache.find_blocks(0, &sought, &mut found), Ok(1));
    assert_eq!(found[0], 1);
    cache.hold_blocks(0, &[1, 0]).expect("held");
    assert!(cache.release_blocks(0, &[1, 1, 1], NO_FENCE).is_err(), "held twice");
    cache.release_blocks(0, &[1, 1, 0], NO_FENCE).expect("held twice");
    let mut all = [0; 5];
    cache.take_blocks(0, &mut all).expect("all prefixes are given up");
    assert!(matches!(cache.take_blocks(0, &mut [0]), Err(KvError::NoBlocks(_))));
    assert_eq!(cache.find_blocks(0, &[digest(1)], &mut found), Ok(0));
    assert!(cache.take_blocks(1, &mut [0]).is_err());
    assert!(cache.hold_blocks(0, &[6]).is_err());
    cache.check().expect("the accounts");
    assert_eq!(cache.into_leaks().raw_references, 5);
}

#[test]
fn the_raw_level_and_sequences_keep_apart() {
    let cache = cache(8);
    let seq = filled(&cache, &numbers(0..4));
    let block = row(&cache, seq)[0] as u32;
    assert!(cache.hold_blocks(0, &[block]).is_err());
    assert!(cache.release_blocks(0, &[block], NO_FENCE).is_err());
    assert!(cache.register_blocks(0, &[(block, [1; 32])]).is_err());
    assert_eq!(cache.evict_blocks(0, &[block]), Ok(1), "it is only made unknown");
    assert_eq!(cache.find_prefix(open(&cache), &numbers(0..4)).expect("empty").tokens, 0);
    cache.append(seq, Tokens::Known(&numbers(4..8))).expect("a block");
    cache.commit(seq, 8, NO_FENCE).expect("there");
    cache.check().expect("what continues an unknown block is not registered");
}

#[test]
fn the_end_names_what_is_left() {
    let cache = cache(8);
    let seq = filled(&cache, &numbers(0..6));
    let mut fork = [Seq::from_raw(0)];
    cache.fork(seq, 6, &mut fork).expect("room");
    cache.append(fork[0], Tokens::Count(2)).expect("a copy");
    let leaks = cache.into_leaks();
    assert_eq!(leaks.sequences, [(seq, 6), (fork[0], 8)]);
    assert_eq!((leaks.copies, leaks.raw_references), (1, 0));
    assert!(!leaks.is_empty());
}

#[test]
fn readers_of_the_figures_see_one_moment() {
    let cache = cache(64);
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut seen = 0;
            // The writer may be done before this thread runs at all.
            loop {
                let (used, free, cached, quarantined) = counts(&cache);
                assert_eq!(1 + used + free + cached + quarantined, 64);
                seen += 1;
                if stop.load(std::sync::atomic::Ordering::Relaxed) {
                    return seen;
                }
            }
        });
        for turn in 0..20_000 {
            let seq = filled(&cache, &numbers(turn..turn + 30));
            cache.free(&[seq], turn as u64 + 1).expect("open");
            cache.pass(turn as u64 + 1);
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        assert!(reader.join().expect("no reading failed") > 0);
    });
}

#[test]
fn a_duplicate_that_a_fork_shares_stays() {
    let cache = cache(16);
    let first = filled(&cache, &numbers(0..4));
    let second = open(&cache);
    cache.append(second, Tokens::Known(&numbers(0..8))).expect("blocks");
    let mut fork = [Seq::from_raw(0)];
    cache.fork(second, 8, &mut fork).expect("room");
    cache.commit(second, 8, NO_FENCE).expect("there");
    cache.free(&[first, second], NO_FENCE).expect("open");
    cache.check().expect("the fork holds what its blocks continue");
    cache.commit(fork[0], 8, NO_FENCE).expect("there");
    assert_eq!(counts(&cache), (2, 13, 0, 0), "alone, it takes the registered one");
    cache.check().expect("the accounts");
}

#[test]
fn blocks_that_take_the_place_of_others_can_be_hit() {
    let cache = cache(16);
    let first = filled(&cache, &numbers(0..8));
    let mut fork = [Seq::from_raw(0)];
    cache.fork(first, 4, &mut fork).expect("room");
    cache.rollback(first, 4, NO_FENCE).expect("there");
    for (seq, start) in [(first, 20), (fork[0], 30)] {
        cache.append(seq, Tokens::Known(&numbers(start..start + 4))).expect("a block");
        cache.commit(seq, 8, NO_FENCE).expect("there");
        let prompt = [numbers(0..4), numbers(start..start + 4)].concat();
        assert_eq!(cache.find_prefix(open(&cache), &prompt).expect("empty").tokens, 8);
    }
}

#[test]
fn a_tail_is_copied_once() {
    let cache = cache(16);
    filled(&cache, &numbers(0..12));
    let seq = open(&cache);
    let prompt = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 99];
    assert_eq!(cache.find_prefix(seq, &prompt).expect("empty").tokens, 10);
    let mut jobs = Vec::new();
    let batch = cache.take_copies(&mut jobs).expect("the beginning of the third block");
    let whole = row(&cache, seq);
    cache.append(seq, Tokens::Known(&[99])).expect("it fits");
    cache.copied(batch, 7).expect("outstanding");
    cache.append(seq, Tokens::Known(&[98])).expect("it fits");
    assert_eq!(row(&cache, seq), whole, "the copy is the sequence's own from the beginning");
    assert!(cache.take_copies(&mut jobs).is_none());
    cache.rollback(seq, 12, NO_FENCE).expect("there");
    assert_eq!(counts(&cache).3, 1, "the copy into it ends by the seventh fence");
    cache.pass(7);
    assert_eq!(counts(&cache).3, 0);
    cache.check().expect("the accounts");
}

#[test]
fn what_is_reserved_is_there() {
    let cache = cache(4);
    let first = filled(&cache, &[1, 2]);
    let mut fork = [Seq::from_raw(0)];
    cache.fork(first, 2, &mut fork).expect("room");
    cache.reserve(fork[0], 4).expect("a copy of the tail, and a block");
    assert!(matches!(cache.append(open(&cache), Tokens::Count(4)), Err(KvError::NoBlocks(_))));
    cache.append(fork[0], Tokens::Count(4)).expect("reserved");
}

#[test]
fn a_batch_names_each_sequence_once() {
    let cache = cache(8);
    let seqs: Vec<Seq> = (0..20).map(|_| open(&cache)).collect();
    cache.append(seqs[0], Tokens::Known(&numbers(0..8))).expect("blocks");
    let twice = [(seqs[0], 8), (seqs[1], 0), (seqs[0], 8)];
    assert!(matches!(cache.commit_all(&twice, NO_FENCE), Err(KvError::OutOfRange(_))));
    assert_eq!(cache.find_prefix(seqs[2], &numbers(0..8)), Ok(Match::default()));
    let many = [&seqs[3..], &seqs[9..10]].concat();
    assert!(matches!(cache.free(&many, NO_FENCE), Err(KvError::OutOfRange(_))));
    cache.free(&seqs, NO_FENCE).expect("all are open");
}

#[test]
fn a_group_that_shrinks_gives_nothing_out_above_its_end_and_drains() {
    let cache = cache(12);
    let low = filled(&cache, &numbers(0..12));
    let high = filled(&cache, &numbers(100..112));
    assert_eq!(row(&cache, high), [4, 5, 6]);
    let shrunk = cache.resize(0, 5).expect("there are so many");
    assert_eq!(shrunk, Bounds { open: 5, needed: 7, draining: 2 });
    let stats = cache.stats().groups[0];
    assert_eq!((stats.closed, stats.draining, stats.counts.total), (5, 2, 7));
    let other = open(&cache);
    let short = Shortage { group: 0, need: 1, free: 0, evictable: 0, quarantined: 0 };
    assert_eq!(cache.append(other, Tokens::Count(1)), Err(KvError::NoBlocks(short)));
    // What is registered above the end is hit no more: else it would never be empty.
    assert_eq!(cache.find_prefix(other, &numbers(100..112)).expect("empty").tokens, 4);
    cache.free(&[high, other], 3).expect("open");
    assert_eq!(cache.bounds(0).expect("one").needed, 7, "the fence has not passed");
    cache.pass(3);
    assert_eq!(cache.bounds(0), Ok(Bounds { open: 5, needed: 5, draining: 0 }));
    assert_eq!(counts(&cache), (3, 0, 1, 0), "the prefix below the end stays");
    cache.check().expect("the accounts");
    cache.resize(0, 12).expect("as configured");
    assert_eq!(counts(&cache), (3, 7, 1, 0));
    cache.append(low, Tokens::Count(1)).expect("a block");
    assert_eq!(row(&cache, low), [1, 2, 3, 5]);
}

#[test]
fn a_group_that_shrinks_gives_up_what_continues_its_prefixes() {
    let cache = cache(8);
    // The second block's number is above that of what continues it.
    let seqs = [filled(&cache, &numbers(50..54)), filled(&cache, &numbers(60..64))];
    let long = filled(&cache, &numbers(0..4));
    cache.free(&[seqs[0]], NO_FENCE).expect("open");
    cache.evict_blocks(0, &[1]).expect("it is there");
    cache.append(long, Tokens::Known(&numbers(4..8))).expect("a block");
    cache.commit(long, 8, NO_FENCE).expect("there");
    assert_eq!(row(&cache, long), [3, 1]);
    cache.free(&[long], NO_FENCE).expect("open");
    assert_eq!(counts(&cache), (1, 4, 2, 0));
    let bounds = cache.resize(0, 3).expect("there are so many");
    assert_eq!(bounds, Bounds { open: 3, needed: 3, draining: 0 });
    assert_eq!(counts(&cache), (1, 1, 0, 0), "block 1 continued block 3");
    cache.check().expect("the accounts");
}

#[test]
fn lengths_that_a_group_cannot_have_are_refused() {
    let cache = cache(8);
    for blocks in [0, 1, 9, u32::MAX] {
        assert!(matches!(cache.resize(0, blocks), Err(KvError::OutOfRange(_))), "{blocks}");
    }
    assert!(matches!(cache.resize(1, 4), Err(KvError::OutOfRange(_))));
    assert!(matches!(cache.bounds(1), Err(KvError::OutOfRange(_))));
    assert_eq!(cache.bounds(0), Ok(Bounds { open: 8, needed: 8, draining: 0 }));
}
