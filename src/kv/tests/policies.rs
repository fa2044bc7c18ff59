//! What is given up, in what order, and what is told of it.

use super::super::*;
use super::rules::{cache, config, counts, filled, numbers, open};

#[test]
fn what_continues_a_prefix_goes_first() {
    for policy in [Policy::Lru, Policy::PriorityLru, Policy::SegmentedLru] {
        let mut config = config(8);
        config.policy = policy;
        let cache = KvCache::new(config).expect("it makes sense");
        let seq = filled(&cache, &numbers(0..28));
        cache.free(&[seq], NO_FENCE).expect("open");
        assert_eq!(counts(&cache), (0, 0, 7, 0));
        let other = open(&cache);
        cache.append(other, Tokens::Count(8)).expect("two are given up");
        let again = open(&cache);
        assert_eq!(cache.find_prefix(again, &numbers(0..28)).expect("empty").tokens, 20);
        cache.check().expect("the accounts");
    }
}

#[test]
fn the_longest_unused_prefix_goes_first() {
    let cache = cache(4);
    for start in [0, 100, 200] {
        let seq = filled(&cache, &numbers(start..start + 4));
        cache.free(&[seq], NO_FENCE).expect("open");
    }
    let used = open(&cache);
    assert_eq!(cache.find_prefix(used, &numbers(0..4)).expect("empty").tokens, 4);
    cache.free(&[used], NO_FENCE).expect("open");
    let other = open(&cache);
    cache.append(other, Tokens::Count(1)).expect("one is given up");
    let found = [0, 100, 200].map(|start| {
        let seq = open(&cache);
        cache.find_prefix(seq, &numbers(start..start + 4)).expect("empty").tokens
    });
    assert_eq!(found, [4, 0, 4]);
}

#[test]
fn low_priorities_go_first() {
    let mut config = config(4);
    config.policy = Policy::PriorityLru;
    let cache = KvCache::new(config).expect("it makes sense");
    for (start, priority) in [(0, 5), (100, 1), (200, 5)] {
        let seq = cache.open(Open { salt: 0, priority }).expect("room");
        cache.append(seq, Tokens::Known(&numbers(start..start + 4))).expect("blocks");
        cache.commit(seq, 4, NO_FENCE).expect("there");
        cache.free(&[seq], NO_FENCE).expect("open");
    }
    cache.append(open(&cache), Tokens::Count(1)).expect("one is given up");
    let found = [0, 100, 200].map(|start| {
        let seq = open(&cache);
        cache.find_prefix(seq, &numbers(start..start + 4)).expect("empty").tokens
    });
    assert_eq!(found, [4, 0, 4]);
}

#[test]
fn prefixes_that_were_hit_outlive_a_scan() {
    let mut config = config(11);
    config.policy = Policy::SegmentedLru;
    let cache = KvCache::new(config).expect("it makes sense");
    let hot = filled(&cache, &numbers(0..4));
    let again = open(&cache);
    cache.find_prefix(again, &numbers(0..4)).expect("empty");
    cache.free(&[hot, again], NO_FENCE).expect("open");
    for start in 1..40 {
        let once = filled(&cache, &numbers(start * 100..start * 100 + 4));
        cache.free(&[once], NO_FENCE).expect("open");
    }
    let seq = open(&cache);
    assert_eq!(cache.find_prefix(seq, &numbers(0..4)).expect("empty").tokens, 4);
}

#[test]
fn a_prefix_of_low_priority_goes_after_what_continues_it_all_the_same() {
    let mut config = config(4);
    config.policy = Policy::PriorityLru;
    let cache = KvCache::new(config).expect("it makes sense");
    let [low, high] = [1, 6].map(|priority| {
        let seq = cache.open(Open { salt: 0, priority }).expect("room");
        cache.append(seq, Tokens::Known(&numbers(0..4))).expect("a block");
        seq
    });
    cache.commit_all(&[(low, 4), (high, 4)], NO_FENCE).expect("there");
    cache.append(high, Tokens::Known(&numbers(4..8))).expect("a block");
    cache.commit(high, 8, NO_FENCE).expect("there");
    cache.free(&[high, low], NO_FENCE).expect("open");
    cache.append(open(&cache), Tokens::Count(8)).expect("one is given up");
    cache.check().expect("the accounts");
    assert_eq!(cache.find_prefix(open(&cache), &numbers(0..8)).expect("empty").tokens, 4);
}

#[test]
fn at_most_four_fifths_are_protected() {
    let cache = KvCache::new(Config { policy: Policy::SegmentedLru, ..config(11) }).expect("sense");
    let once = |start: i32, hit: bool| {
        let seq = filled(&cache, &numbers(start..start + 4));
        let again = open(&cache);
        if hit {
            assert_eq!(
                cache.find_prefix(again, &numbers(start..start + 4)).expect("empty").tokens,
                4
            );
        }
        cache.free(&[seq, again], NO_FENCE).expect("open");
    };
    (0..9).for_each(|at| once(100 * at, true));
    once(5000, false);
    cache.append(open(&cache), Tokens::Count(1)).expect("one is given up");
    let there = |start: i32| {
        cache.find_prefix(open(&cache), &numbers(start..start + 4)).expect("empty").tokens == 4
    };
    assert!(!there(0), "the ninth of eleven blocks that were hit is not protected");
    assert!(there(5000) && there(100));
}

#[test]
fn a_duplicate_hands_its_priority_on() {
    let config = Config { policy: Policy::PriorityLru, ..config(4) };
    let cache = KvCache::new(config).expect("it makes sense");
    let prefix = |start: i32, priorities: &[u8]| {
        let open = |&priority: &u8| cache.open(Open { salt: 0, priority }).expect("room");
        let seqs: Vec<Seq> = priorities.iter().map(open).collect();
        for &seq in &seqs {
            cache.append(seq, Tokens::Known(&numbers(start..start + 4))).expect("a block");
        }
        seqs.iter().for_each(|&seq| cache.commit(seq, 4, NO_FENCE).expect("there"));
        cache.free(&seqs, NO_FENCE).expect("open");
    };
    prefix(0, &[0, 7]);
    prefix(100, &[1]);
    cache.append(open(&cache), Tokens::Count(8)).expect("one is given up");
    assert_eq!(cache.find_prefix(open(&cache), &numbers(0..4)).expect("empty").tokens, 4);
}

#[test]
fn events_tell_what_can_be_hit() {
    let mut config = config(4);
    (config.events, config.hashing) = (8, Hashing::Sha256);
    let cache = KvCache::new(config).expect("it makes sense");
    let seq = filled(&cache, &numbers(0..8));
    let root = Hashing::Sha256.root(0);
    let first = Hashing::Sha256.link(&root, &numbers(0..4));
    let second = Hashing::Sha256.link(&first, &numbers(4..8));
    let mut events = Vec::new();
    assert_eq!(cache.take_events(9, &mut events), 0);
    let stored = |block, digest| Event::Stored { group: 0, block, digest };
    assert_eq!(events, [stored(1, first), stored(2, second)]);
    cache.free(&[seq], NO_FENCE).expect("open");
    cache.append(open(&cache), Tokens::Count(5)).expect("one is given up");
    cache.reset_prefixes();
    events.clear();
    cache.take_events(9, &mut events);
    let removed = Event::Removed { group: 0, block: 2, digest: second };
    assert_eq!(events, [removed, Event::Cleared { group: 0 }]);
}
