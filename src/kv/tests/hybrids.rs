//! Prefixes where groups with a window are beside one of full attention, each rule by the smallest
//! case that shows it. Blocks have four tokens; group 0 is of full attention, group 1 has a window.

use super::super::*;
use super::rules::{config, numbers, open};

/// A cache of `blocks` blocks in group 0 and `few` in group 1, whose window is `window`.
fn configured(window: u32, blocks: u32, few: u32) -> Config {
    let mut config = config(blocks);
    let mut second = Group { blocks: few, ..config.groups[0] };
    second.geometry.content = Content::Attention { window };
    config.groups.push(second);
    config.partial = false;
    config
}

fn hybrid(window: u32, blocks: u32, few: u32) -> KvCache {
    KvCache::new(configured(window, blocks, few)).expect("it makes sense")
}

fn filled(cache: &KvCache, tokens: &[i32]) -> Seq {
    let seq = open(cache);
    append(cache, seq, tokens);
    seq
}

/// Appends and commits.
fn append(cache: &KvCache, seq: Seq, tokens: &[i32]) {
    cache.append(seq, Tokens::Known(tokens)).expect("blocks");
    cache.commit(seq, cache.len(seq).expect("open"), NO_FENCE).expect("they are there");
}

fn found(cache: &KvCache, prompt: &[i32]) -> (Seq, u32) {
    let seq = open(cache);
    let found = cache.find_prefix(seq, prompt).expect("it is empty");
    cache.check().expect("the accounts");
    (seq, found.tokens)
}

/// How many tokens of a prompt are found; nothing of it is kept.
fn finds(cache: &KvCache, prompt: &[i32]) -> u32 {
    let (seq, tokens) = found(cache, prompt);
    cache.free(&[seq], NO_FENCE).expect("open");
    tokens
}

/// A sequence's entries in a group, the null blocks at the front included.
fn row(cache: &KvCache, group: u32, seq: Seq) -> Vec<u32> {
    let mut row = [0; 16];
    cache.row(group, seq, &mut row, true).expect("it is open");
    let len = row.iter().rposition(|&block| block != 0).map_or(0, |last| last + 1);
    row[..len].iter().map(|&block| block as u32).collect()
}

fn counts(cache: &KvCache, group: usize) -> (u32, u32, u32, u32) {
    let Counts { used, free, cached, quarantined, .. } = cache.stats().groups[group].counts;
    (used, free, cached, quarantined)
}

#[test]
fn what_does_not_go_with_prefixes_is_refused() {
    let refused = |content, what: &str| {
        let mut config = configured(4, 8, 8);
        config.groups[0].geometry.content = content;
        let error = KvCache::new(config).expect_err("it makes no sense");
        assert!(matches!(error, KvError::Config(_)) && error.to_string().contains(what), "{error}");
    };
    refused(Content::Attention { window: 4 }, "full attention");
    refused(Content::State { bytes: 8 }, "state");
    let mut config = configured(4, 8, 8);
    config.groups[1].geometry.block_tokens = 8;
    assert!(matches!(KvCache::new(config), Err(KvError::Config(_))));
    let mut config = configured(4, 8, 8);
    config.groups[0].geometry.content = Content::Latent;
    config.groups[0].geometry.value_size = 0;
    config.groups.rotate_left(1);
    assert!(KvCache::new(config).is_ok(), "the window's group may be the first");
}

#[test]
fn a_hit_gives_a_window_the_blocks_that_the_next_token_sees() {
    // (window, blocks of 4 that are seen before the 16th token)
    for (window, seen) in [(1, 0), (2, 1), (5, 1), (6, 2), (9, 2), (10, 3), (17, 4), (99, 4)] {
        let cache = hybrid(window, 16, 16);
        let first = filled(&cache, &numbers(0..17));
        let (second, tokens) = found(&cache, &numbers(0..16));
        assert_eq!(tokens, 16, "window {window}");
        let all = row(&cache, 1, first);
        let mut expected = vec![0; 4 - seen];
        expected.extend(&all[4 - seen..4]);
        expected.truncate(if seen == 0 { 0 } else { 4 });
        assert_eq!(row(&cache, 1, second), expected, "window {window}");
        assert_eq!(row(&cache, 0, second), row(&cache, 0, first)[..4]);
        append(&cache, second, &[99]);
        let mut csr = Csr::default();
        cache.csr(1, &[second], &mut csr).expect("it holds tokens");
        assert_eq!((csr.indices.len(), &csr.last_page_len[..]), (seen + 1, &[1][..]));
        let trimmed = 4 * (4 - seen) as u32;
        assert!(trimmed == 0 || cache.slots(1, second, trimmed - 1, &mut [0]).is_err());
        cache.slots(1, second, trimmed, &mut [0]).expect("it is there");
        cache.check().expect("the accounts");
    }
}

#[test]
fn blocks_trimmed_out_of_a_window_are_prefixes_until_they_are_given_up() {
    // Window 5 sees one block of 4 before.
    let cache = hybrid(5, 32, 7);
    let first = filled(&cache, &numbers(0..24));
    assert_eq!(counts(&cache, 1), (6, 0, 0, 0));
    cache.trim(first, None, 3).expect("open");
    assert_eq!(counts(&cache, 1), (1, 0, 0, 5), "they wait for the fence");
    assert_eq!(finds(&cache, &numbers(0..8)), 8, "and can be hit");
    cache.pass(3);
    assert_eq!(counts(&cache, 1), (1, 0, 5, 0));
    assert_eq!(finds(&cache, &numbers(0..12)), 12);
    // Four of the five that nobody uses are taken; the one that was hit last stays.
    let other = open(&cache);
    cache.append(other, Tokens::Count(16)).expect("they can be given up");
    assert_eq!(counts(&cache, 1), (5, 0, 1, 0));
    assert_eq!(finds(&cache, &numbers(0..24)), 24, "what the sequence itself holds is there");
    assert_eq!(finds(&cache, &numbers(0..23)), 12, "before that is what is left");
    assert_eq!(finds(&cache, &numbers(0..11)), 0, "the full group's blocks alone are no hit");
}

#[test]
fn a_hit_needs_all_blocks_that_the_window_shows() {
    // Window 9 sees two blocks before.
    let cache = hybrid(9, 32, 32);
    let first = filled(&cache, &numbers(0..24));
    let blocks = row(&cache, 1, first);
    assert_eq!(cache.evict_blocks(1, &[blocks[3]]), Ok(1));
    cache.check().expect("the accounts");
    assert_eq!(finds(&cache, &numbers(0..24)), 24, "blocks 4 and 5 are there");
    assert_eq!(finds(&cache, &numbers(0..23)), 12, "behind blocks 3 and 4 it is not");
    assert_eq!(finds(&cache, &numbers(0..16)), 12);
    assert_eq!(cache.evict_blocks(1, &[blocks[0]]), Ok(1));
    assert_eq!(finds(&cache, &numbers(0..16)), 12, "blocks 1 and 2 are there");
    assert_eq!(finds(&cache, &numbers(0..11)), 0, "short prefixes need all that there is");
}

#[test]
fn what_lies_behind_the_hit_is_not_held() {
    let cache = hybrid(5, 32, 32);
    let first = filled(&cache, &numbers(0..16));
    let blocks = row(&cache, 1, first);
    cache.evict_blocks(1, &blocks[2..]).expect("they are there");
    cache.free(&[first], NO_FENCE).expect("open");
    let (_, tokens) = found(&cache, &numbers(0..16));
    assert_eq!(tokens, 8);
    assert_eq!(counts(&cache, 0), (2, 27, 2, 0));
    assert_eq!(counts(&cache, 1), (1, 29, 1, 0));
}

#[test]
fn companions_go_with_their_anchor() {
    let cache = hybrid(5, 8, 32);
    let first = filled(&cache, &numbers(0..12));
    cache.free(&[first], NO_FENCE).expect("open");
    assert_eq!((counts(&cache, 0), counts(&cache, 1)), ((0, 4, 3, 0), (0, 28, 3, 0)));
    // Six blocks: two of the three are given up, the last ones first.
    let other = open(&cache);
    append(&cache, other, &numbers(100..124));
    assert_eq!((counts(&cache, 0).2, counts(&cache, 1).2), (1, 1));
    cache.check().expect("the accounts");
    assert_eq!(finds(&cache, &numbers(0..12)), 4);
    // The anchors' numbers serve other tokens now, whose companions are others.
    assert_eq!(finds(&cache, &numbers(100..124)), 24);
    // An anchor that is in use is forgotten too; its companion stays the sequence's.
    let last = row(&cache, 0, other)[5];
    assert_eq!(cache.evict_blocks(0, &[last]), Ok(1));
    assert_eq!(counts(&cache, 1), (6, 24, 1, 0));
    cache.check().expect("the accounts");
    cache.free(&[other], 5).expect("open");
    assert_eq!(counts(&cache, 1), (0, 24, 1, 6));
    cache.pass(5);
    assert_eq!(counts(&cache, 1), (0, 25, 6, 0), "one was no prefix's any more");
}

#[test]
fn forgetting_all_prefixes_frees_companions() {
    let cache = hybrid(5, 16, 16);
    let first = filled(&cache, &numbers(0..12));
    cache.trim(first, None, NO_FENCE).expect("open");
    assert_eq!(counts(&cache, 1), (1, 12, 2, 0));
    cache.reset_prefixes();
    assert_eq!(counts(&cache, 1), (1, 14, 0, 0));
    cache.check().expect("the accounts");
    assert_eq!(finds(&cache, &numbers(0..12)), 0);
    let second = filled(&cache, &numbers(0..12));
    assert_eq!(finds(&cache, &numbers(0..12)), 12);
    cache.free(&[first, second], NO_FENCE).expect("open");
    cache.check().expect("the accounts");
}

#[test]
fn what_was_trimmed_before_it_was_committed_is_no_prefix() {
    let cache = hybrid(5, 16, 16);
    let seq = open(&cache);
    cache.append(seq, Tokens::Known(&numbers(0..16))).expect("blocks");
    cache.commit(seq, 4, NO_FENCE).expect("there");
    cache.trim(seq, None, NO_FENCE).expect("open");
    assert_eq!(counts(&cache, 1), (1, 13, 1, 0));
    cache.commit(seq, 16, NO_FENCE).expect("there");
    let found = [4, 8, 12, 16].map(|end| finds(&cache, &numbers(0..end)));
    assert_eq!(found, [4, 4, 4, 16]);
}

#[test]
fn tenants_share_no_windows() {
    for hashing in [Hashing::Xxh3, Hashing::Poor] {
        let cache = KvCache::new(Config { hashing, ..configured(5, 16, 16) }).expect("sense");
        filled(&cache, &numbers(0..8));
        let other = cache.open(Open { salt: 1, priority: 0 }).expect("room");
        assert_eq!(cache.find_prefix(other, &numbers(0..8)), Ok(Match::default()));
        append(&cache, other, &numbers(0..8));
        let third = cache.open(Open { salt: 1, priority: 0 }).expect("room");
        assert_eq!(cache.find_prefix(third, &numbers(0..8)).expect("empty").tokens, 8);
        assert_eq!(row(&cache, 1, third)[1], row(&cache, 1, other)[1]);
        cache.check().expect("the accounts");
    }
}

#[test]
fn equal_hashes_are_not_equal_windows() {
    let cache = KvCache::new(Config { hashing: Hashing::Poor, ..configured(5, 32, 32) });
    let cache = cache.expect("it makes sense");
    let [first, second] = [0, 50].map(|start| filled(&cache, &numbers(start..start + 12)));
    let (third, tokens) = found(&cache, &numbers(50..62));
    assert_eq!((tokens, row(&cache, 1, third)[2]), (12, row(&cache, 1, second)[2]));
    assert_ne!(row(&cache, 1, first)[2], row(&cache, 1, second)[2]);
}

#[test]
fn equal_blocks_of_a_window_become_one() {
    let cache = hybrid(5, 32, 32);
    let [first, second] = [(); 2].map(|()| {
        let seq = open(&cache);
        cache.append(seq, Tokens::Known(&numbers(0..9))).expect("blocks");
        seq
    });
    let mut known = vec![0; 4];
    cache.row(1, second, &mut known, true).expect("open");
    cache.commit_all(&[(first, 9), (second, 9)], 3).expect("there");
    assert_eq!(counts(&cache, 1), (4, 25, 0, 2), "the duplicates wait for the fence");
    let delta = cache.row(1, second, &mut known, false).expect("open");
    assert_eq!(delta, Delta { from: 0, to: 3 });
    assert_eq!(row(&cache, 1, second)[..2], row(&cache, 1, first)[..2]);
    cache.check().expect("the accounts");
}

#[test]
fn a_windows_duplicate_goes_though_somebody_else_holds_it() {
    let cache = hybrid(5, 32, 32);
    let first = filled(&cache, &numbers(0..8));
    let second = filled(&cache, &numbers(0..6));
    let mut fork = [second];
    cache.fork(second, 6, &mut fork).expect("room");
    cache.append(second, Tokens::Known(&numbers(6..8))).expect("blocks");
    let mut jobs = Vec::new();
    let copied = cache.take_first_copies(1, &mut jobs).expect("one a group");
    cache.copied(copied, NO_FENCE).expect("outstanding");
    // The copy into the window's block is not made yet.
    cache.commit(second, 8, NO_FENCE).expect("there");
    assert_eq!(row(&cache, 0, second), row(&cache, 0, first));
    assert_eq!(row(&cache, 1, second), row(&cache, 1, first));
    cache.check().expect("the accounts");
    let copied = cache.take_copies(&mut jobs).expect("the window's");
    cache.copied(copied, NO_FENCE).expect("outstanding");
    assert_eq!(counts(&cache, 1), (3, 28, 0, 0), "two of the first, and the fork's tail");
    cache.check().expect("the accounts");
}

#[test]
fn a_prefix_computed_again_has_its_window_again() {
    let cache = hybrid(5, 32, 5);
    let first = filled(&cache, &numbers(0..12));
    cache.free(&[first], NO_FENCE).expect("open");
    let other = open(&cache);
    cache.append(other, Tokens::Count(16)).expect("all companions go");
    cache.free(&[other], NO_FENCE).expect("open");
    assert_eq!((counts(&cache, 0).2, counts(&cache, 1).2), (3, 0));
    assert_eq!(finds(&cache, &numbers(0..12)), 0);
    let again = filled(&cache, &numbers(0..12));
    assert_eq!(counts(&cache, 0).0, 3, "the blocks of full attention are those of before");
    assert_eq!(finds(&cache, &numbers(0..12)), 12);
    cache.free(&[again], NO_FENCE).expect("open");
    assert_eq!(finds(&cache, &numbers(0..12)), 12);
}

#[test]
fn forks_and_rollbacks_of_a_hit_need_what_their_next_token_sees() {
    // Window 6 sees two blocks of 4 where it begins inside one.
    let cache = hybrid(6, 32, 32);
    filled(&cache, &numbers(0..16));
    let (seq, tokens) = found(&cache, &numbers(0..16));
    assert_eq!((tokens, row(&cache, 1, seq)[..2] == [0, 0]), (16, true));
    append(&cache, seq, &numbers(50..53));
    let mut fork = [seq];
    // The 14th token sees the 9th to 13th, the 13th the 8th too, which is gone.
    assert_eq!(cache.fork(seq, 13, &mut fork), Ok(()));
    assert!(matches!(cache.fork(seq, 12, &mut [seq]), Err(KvError::OutOfRange(_))));
    assert_eq!(row(&cache, 1, fork[0]), row(&cache, 1, seq)[..4]);
    append(&cache, fork[0], &[77]);
    let mut jobs = Vec::new();
    let batch = cache.take_copies(&mut jobs).expect("a tail of each group");
    let ends = |group: u32| (row(&cache, group, seq)[3], row(&cache, group, fork[0])[3]);
    let job = |group: u32| {
        let (from, to) = ends(group);
        CopyJob { group, from, to, tokens: 1 }
    };
    assert_eq!(jobs, [job(0), job(1)]);
    cache.copied(batch, NO_FENCE).expect("outstanding");
    assert!(matches!(cache.rollback(seq, 7, NO_FENCE), Err(KvError::OutOfRange(_))));
    cache.rollback(seq, 6, NO_FENCE).expect("its next token sees what is there");
    append(&cache, seq, &numbers(60..63));
    cache.check().expect("the accounts");
    let prompt = [numbers(0..13), numbers(60..63)].concat();
    assert_eq!(finds(&cache, &prompt), 16, "what was written in its place is a prefix too");
    assert_eq!(finds(&cache, &numbers(0..16)), 16);
}

#[test]
fn the_beginning_of_a_block_is_copied_in_all_groups() {
    let cache = KvCache::new(Config { partial: true, ..configured(5, 32, 32) }).expect("sense");
    let first = filled(&cache, &numbers(0..12));
    let seq = open(&cache);
    let prompt = [numbers(0..10), vec![99, 98]].concat();
    assert_eq!(cache.find_prefix(seq, &prompt), Ok(Match { tokens: 10, shared: 8 }));
    let mut jobs = Vec::new();
    let batch = cache.take_copies(&mut jobs).expect("one a group");
    let job = |group: u32| {
        let (from, to) = (row(&cache, group, first)[2], row(&cache, group, seq)[2]);
        CopyJob { group, from, to, tokens: 2 }
    };
    assert_eq!(jobs, [job(0), job(1)]);
    // Both ends stay; the source goes on being no prefix when its anchor is forgotten.
    cache.free(&[first, seq], NO_FENCE).expect("open");
    cache.reset_prefixes();
    cache.check().expect("the accounts");
    assert_eq!(counts(&cache, 1), (2, 29, 0, 0));
    cache.copied(batch, NO_FENCE).expect("outstanding");
    assert_eq!((counts(&cache, 0), counts(&cache, 1)), ((0, 31, 0, 0), (0, 31, 0, 0)));
}

#[test]
fn a_beginning_without_its_window_is_not_copied() {
    let cache = KvCache::new(Config { partial: true, ..configured(5, 32, 32) }).expect("sense");
    let first = filled(&cache, &numbers(0..12));
    let second = filled(&cache, &[numbers(0..9), numbers(50..53)].concat());
    let blocks = row(&cache, 1, first);
    cache.evict_blocks(1, &[blocks[2]]).expect("it is there");
    let (seq, tokens) = found(&cache, &numbers(0..11));
    assert_eq!(tokens, 9, "that of the other block, which shares less, is");
    let mut jobs = Vec::new();
    cache.take_copies(&mut jobs).map(|batch| cache.copied(batch, NO_FENCE));
    assert_eq!(jobs[1].from, row(&cache, 1, second)[2]);
    assert_eq!(row(&cache, 1, seq)[2], jobs[1].to);
}

#[test]
fn a_window_that_shrinks_gives_its_companions_up() {
    let cache = hybrid(5, 32, 12);
    let first = filled(&cache, &numbers(0..24));
    cache.trim(first, None, NO_FENCE).expect("open");
    assert_eq!(counts(&cache, 1), (1, 5, 5, 0));
    let bounds = cache.resize(1, 4).expect("there are so many");
    assert_eq!(bounds, Bounds { open: 4, needed: 7, draining: 1 });
    assert_eq!(counts(&cache, 1), (1, 0, 3, 0));
    // The one in use above the end is hit no more, and another takes its part.
    assert_eq!(finds(&cache, &numbers(0..24)), 12);
    let (second, tokens) = found(&cache, &numbers(0..12));
    assert_eq!(tokens, 12);
    append(&cache, second, &numbers(12..16));
    append(&cache, second, &numbers(16..20));
    cache.trim(second, None, NO_FENCE).expect("open");
    append(&cache, second, &numbers(20..24));
    cache.check().expect("the accounts");
    assert_eq!(finds(&cache, &numbers(0..24)), 24);
    cache.free(&[first], NO_FENCE).expect("open");
    assert_eq!(cache.bounds(1), Ok(Bounds { open: 4, needed: 4, draining: 0 }));
    // The anchors' group shrinks to nothing but what is in use.
    cache.free(&[second], NO_FENCE).expect("open");
    cache.resize(0, 3).expect("there are so many");
    assert_eq!(counts(&cache, 0).2, 2);
    let left = counts(&cache, 1).2;
    assert!(left <= 2, "{left} companions of two anchors");
    cache.check().expect("the accounts");
}

#[test]
fn events_tell_of_windows_too() {
    let mut config = configured(5, 8, 8);
    (config.events, config.hashing) = (16, Hashing::Sha256);
    let cache = KvCache::new(config).expect("it makes sense");
    let seq = filled(&cache, &numbers(0..4));
    let digest = Hashing::Sha256.link(&Hashing::Sha256.root(0), &numbers(0..4));
    cache.free(&[seq], NO_FENCE).expect("open");
    assert_eq!(cache.evict_blocks(0, &[1]), Ok(1));
    let mut events = Vec::new();
    assert_eq!(cache.take_events(9, &mut events), 0);
    let stored = |group| Event::Stored { group, block: 1, digest };
    let removed = |group| Event::Removed { group, block: 1, digest };
    assert_eq!(events, [stored(0), stored(1), removed(0), removed(1)]);
}
