//! What users of other caches have reported, one class a test, with where it was reported.

use super::super::*;
use super::rules::{cache, config, counts, filled, numbers, open, row};

/// A block is given out while work still reads it: corrupted text under load
/// (vllm#45704, vllm#31210, TensorRT-LLM#8813, TensorRT-LLM#12933).
#[test]
fn a_block_is_not_given_out_while_work_reads_it() {
    let cache = cache(4);
    let seq = filled(&cache, &numbers(0..12));
    let blocks = row(&cache, seq);
    cache.reset_prefixes();
    cache.free(&[seq], 9).expect("open");
    let next = open(&cache);
    for passed in 0..9 {
        cache.pass(passed);
        assert!(matches!(cache.append(next, Tokens::Count(1)), Err(KvError::NoBlocks(_))));
    }
    cache.pass(9);
    cache.append(next, Tokens::Count(1)).expect("it has passed");
    assert!(blocks.contains(&row(&cache, next)[0]));
}

/// Hits are pinned and never let go, until nothing is left to hit or to use
/// (LMCache#1034, LMCache#987, LMCache#2017, vllm#46283, xllm#828).
#[test]
fn nothing_stays_pinned_after_its_sequence() {
    let cache = cache(9);
    let tokens = numbers(0..13);
    let first = filled(&cache, &tokens);
    cache.free(&[first], NO_FENCE).expect("open");
    for _ in 0..100 {
        let seq = open(&cache);
        assert_eq!(cache.find_prefix(seq, &tokens[..12]).expect("empty").shared, 12);
        // The request is given up before anything of it was computed.
        cache.free(&[seq], NO_FENCE).expect("open");
    }
    assert_eq!(counts(&cache), (0, 5, 3, 0));
    let seq = open(&cache);
    cache.append(seq, Tokens::Count(32)).expect("all can be had");
    cache.check().expect("sound");
}

/// Free, evictable and used blocks do not sum up, or go below nothing: double frees
/// (sglang#6888, sglang#11970, TensorRT-LLM#11879).
#[test]
fn freeing_twice_changes_no_account() {
    let cache = cache(9);
    let seq = filled(&cache, &numbers(0..10));
    let fork = &mut [seq];
    cache.fork(seq, 10, fork).expect("room");
    cache.free(&[seq], NO_FENCE).expect("open");
    let before = counts(&cache);
    for _ in 0..3 {
        assert_eq!(cache.free(&[seq], NO_FENCE), Err(KvError::Stale));
        assert!(cache.free(&[fork[0], fork[0]], NO_FENCE).is_err());
    }
    assert_eq!(counts(&cache), before);
    let (used, free, cached, quarantined) = before;
    assert_eq!(used + free + cached + quarantined + 1, 9);
    cache.check().expect("sound");
}

/// A request fails for want of space in a row although enough is free
/// (llama.cpp#9201, llama.cpp#17527, llama.cpp#23720, LMCache#1285).
#[test]
fn scattered_blocks_are_as_good_as_a_row() {
    let cache = KvCache::new(Config { prefixes: false, ..config(41) }).expect("it makes sense");
    let seqs: Vec<Seq> = (0..40)
        .map(|_| {
            let seq = open(&cache);
            cache.append(seq, Tokens::Count(4)).expect("a block");
            seq
        })
        .collect();
    let odd: Vec<Seq> = seqs.iter().copied().skip(1).step_by(2).collect();
    cache.free(&odd, NO_FENCE).expect("open");
    let long = open(&cache);
    cache.append(long, Tokens::Count(64)).expect("20 blocks are free, 16 are needed");
    assert_eq!(row(&cache, long).len(), 16);
}

/// Eviction calls back into the cache, and what it was about to give up is gone
/// (TensorRT-LLM#17926, sglang#24869): here whole chains go within one call, and a hit that is
/// being given keeps its blocks although the same call evicts.
#[test]
fn giving_up_chains_does_not_disturb_the_call_that_needs_them() {
    let cache = cache(65);
    for salt in 0..4 {
        let seq = cache.open(Open { salt, priority: 0 }).expect("room");
        cache.append(seq, Tokens::Known(&numbers(0..64))).expect("blocks");
        cache.commit(seq, 64, NO_FENCE).expect("there");
        cache.free(&[seq], NO_FENCE).expect("open");
    }
    assert_eq!(counts(&cache), (0, 0, 64, 0));
    let seq = cache.open(Open { salt: 2, priority: 0 }).expect("room");
    assert_eq!(cache.find_prefix(seq, &numbers(0..60)).expect("empty").shared, 60);
    let hit = row(&cache, seq);
    cache.append(seq, Tokens::Count(196)).expect("49 more blocks are evicted for it");
    assert_eq!(row_of(&cache, seq, 64)[..15], hit[..]);
    assert_eq!(counts(&cache), (64, 0, 0, 0));
    cache.check().expect("sound");
}

fn row_of(cache: &KvCache, seq: Seq, entries: usize) -> Vec<i32> {
    let mut row = vec![0; entries];
    cache.row(0, seq, &mut row, true).expect("it is open");
    row
}

/// Running out is a crash, an assertion or a stop of the whole service
/// (vllm#8219, vllm#5578, TensorRT-LLM#1687, TensorRT-LLM#699, LMCache#1330).
#[test]
fn running_out_is_an_answer_with_figures() {
    let cache = cache(6);
    let first = filled(&cache, &numbers(0..8));
    let second = filled(&cache, &numbers(100..108));
    cache.free(&[second], NO_FENCE).expect("open");
    let third = open(&cache);
    let refused = cache.append(third, Tokens::Count(17));
    let expected = Shortage { group: 0, need: 5, free: 1, evictable: 2, quarantined: 0 };
    assert_eq!(refused, Err(KvError::NoBlocks(expected)));
    // Nothing was given up for the call that was refused, and smaller ones go on.
    assert_eq!(counts(&cache), (2, 1, 2, 0));
    cache.append(third, Tokens::Count(12)).expect("three can be had");
    cache.append(first, Tokens::Count(4)).expect_err("none is left");
    cache.free(&[third], NO_FENCE).expect("open");
    cache.append(first, Tokens::Count(4)).expect("now they are");
}

/// A pinned table that is still being sent is written anew (TensorRT-LLM#15546): here a row tells
/// which entries changed, and changes no others, so that a ring of copies is possible.
#[test]
fn a_row_that_did_not_change_is_not_written() {
    let cache = cache(9);
    let seq = filled(&cache, &numbers(0..10));
    let mut sent = vec![-1; 16];
    cache.row(0, seq, &mut sent, true).expect("it is open");
    let mut other = vec![-7; 16];
    cache.append(seq, Tokens::Count(1)).expect("the block has room");
    let delta = cache.row(0, seq, &mut other, false).expect("it is open");
    assert_eq!((delta.from, delta.to), (3, 3));
    assert_eq!(other, vec![-7; 16]);
    cache.append(seq, Tokens::Count(2)).expect("a block");
    let delta = cache.row(0, seq, &mut other, false).expect("it is open");
    assert_eq!((delta.from, delta.to), (3, 4));
    assert!(other[3] > 0 && other.iter().filter(|&&entry| entry == -7).count() == 15);
}

/// The step's bookkeeping is a call a block, and takes longer than the step
/// (vllm#4536, kvcached#299, LMCache#4797): a step over many sequences is three calls here, and
/// figures are read without waiting for one of them.
#[test]
fn a_step_is_a_call_whatever_its_sequences() {
    let cache = cache(600);
    let seqs: Vec<Seq> = (0..256).map(|_| open(&cache)).collect();
    let batch: Vec<Append<'_>> =
        seqs.iter().map(|&seq| Append { seq, tokens: Tokens::Known(&[7, 8, 9, 10]) }).collect();
    assert_eq!(cache.append_all(&batch), (256, Ok(())));
    let commits: Vec<(Seq, u32)> = seqs.iter().map(|&seq| (seq, 4)).collect();
    cache.commit_all(&commits, NO_FENCE).expect("there");
    let mut deltas = Vec::new();
    let mut rows = vec![0; 256 * 4];
    cache.rows(0, &seqs, &mut rows, 4, &mut deltas).expect("they fit");
    assert_eq!(deltas.len(), 256);
    // All had the same tokens: one block is left of all.
    assert!(rows.chunks(4).all(|row| row[0] == rows[0] && row[1] == 0));
    assert_eq!(cache.stats().groups[0].counts.used, 1);
}

/// A wrong answer is served because two prompts were taken for one (vllm#9918, and the reason why
/// TensorRT-LLM's documentation wants a cryptographic digest): with a hash that is the same for
/// nearly all blocks, tokens decide.
#[test]
fn equal_hashes_are_not_equal_prompts() {
    let cache = KvCache::new(Config { hashing: Hashing::Poor, ..config(33) }).expect("sense");
    let first = filled(&cache, &numbers(0..12));
    let second = filled(&cache, &numbers(50..62));
    let third = open(&cache);
    assert_eq!(cache.find_prefix(third, &numbers(50..61)).expect("empty").shared, 8);
    assert_eq!(row(&cache, third)[..2], row(&cache, second)[..2]);
    assert_ne!(row(&cache, first)[..2], row(&cache, second)[..2]);
    let fourth = open(&cache);
    let mixed: Vec<i32> = (0..4).chain(54..58).chain([1]).collect();
    assert_eq!(cache.find_prefix(fourth, &mixed).expect("empty").shared, 4);
}
