//! Random calls, held against a model in which each sequence has its own copy of all its tokens.
//! A device of arrays is written and copied as the cache says; what is read back through the tables
//! must be the model's. As keys and values are, what a token leaves there is made of all tokens up
//! to it. A block that work still reads by the fences must not be written.

mod verify;

use super::super::*;
use std::cell::RefCell;
use std::collections::HashMap;

struct Rng(u64);

impl Rng {
    fn below(&mut self, most: usize) -> usize {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        ((self.0 >> 33) as usize) % most
    }

    fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }
}

struct Live {
    seq: Seq,
    salt: u64,
    tokens: Vec<i32>,
    committed: usize,
    /// Each group's blocks at the front that are gone.
    gone: Vec<usize>,
}

impl Live {
    /// What the device holds of each token.
    fn values(&self) -> Vec<i32> {
        let mut all = self.salt as u32 + 1;
        let next = |&token: &i32| {
            all = (all ^ token as u32).wrapping_mul(0x0100_0193).rotate_left(5);
            all as i32
        };
        self.tokens.iter().map(next).collect()
    }
}

/// What the tests are to have met.
#[derive(Clone, Copy, Debug, Default)]
struct Met {
    refused: usize,
    /// Tokens found.
    hits: usize,
    /// The same where groups with a window are beside those of full attention.
    hybrid: usize,
    /// Hits there that leave blocks at the front of a window out, and that copy a beginning.
    cut: usize,
    copied: usize,
    /// Rollbacks and forks that tokens of a hit's front were missing for.
    missing: usize,
}

impl std::ops::AddAssign for Met {
    fn add_assign(&mut self, other: Met) {
        self.refused += other.refused;
        self.hits += other.hits;
        self.hybrid += other.hybrid;
        self.cut += other.cut;
        self.copied += other.copied;
        self.missing += other.missing;
    }
}

/// A copy that was made, and what was read for it.
type Copied = (CopyJob, Vec<i32>);

struct World {
    rng: Rng,
    cache: KvCache,
    groups: Vec<Group>,
    prefixes: bool,
    /// Each group's blocks: their tokens, or all tokens of a state.
    device: Vec<Vec<Vec<i32>>>,
    /// The fence that the last reader of a block ends by.
    busy: Vec<Vec<u64>>,
    fence: u64,
    passed: u64,
    live: Vec<Live>,
    copies: Vec<(Copies, Vec<Copied>)>,
    /// Rows as they were told.
    rows: RefCell<HashMap<(usize, Seq), Vec<i32>>>,
    /// Sequences that ended: prompts begin as they did.
    ended: Vec<(u64, Vec<i32>)>,
    met: Met,
}

/// The groups of a cache with prefixes: one or two of full attention, and sometimes one or two with
/// a window.
fn with_prefixes(rng: &mut Rng, per_block: u32, blocks: u32) -> Vec<Group> {
    let full = 1 + rng.below(2);
    let windows = if rng.chance(60) { 1 + rng.below(2) } else { 0 };
    let mut groups: Vec<Group> = (0..full + windows)
        .map(|at| {
            let window = match rng.below(5) {
                _ if at < full => 0,
                0 => 1,
                1 => 1000,
                _ => 1 + rng.below(9) as u32,
            };
            let few = at >= full && rng.chance(30);
            let blocks = if few { 3 + rng.below(10) as u32 } else { blocks };
            Group { geometry: geometry(Content::Attention { window }, per_block), blocks }
        })
        .collect();
    let turn = rng.below(groups.len());
    groups.rotate_left(turn);
    groups
}

fn geometry(content: Content, block_tokens: u32) -> Geometry {
    let value_size = u32::from(matches!(content, Content::Attention { .. }));
    let (element, order) = (Element::Bf16, Order::BlockOuter);
    Geometry { layers: 1, heads: 1, key_size: 1, value_size, block_tokens, element, content, order }
}

impl World {
    fn new(seed: u64) -> World {
        let mut rng = Rng(seed);
        let prefixes = rng.chance(70);
        let per_block = 1 + rng.below(4) as u32;
        let blocks = 3 + rng.below(40) as u32;
        let count = if prefixes { 0 } else { 1 + rng.below(2) };
        let mut groups: Vec<Group> = (0..count)
            .map(|at| {
                let content = match rng.below(3) {
                    0 if at > 0 => Content::State { bytes: 8 },
                    1 => Content::Attention { window: 1 + rng.below(7) as u32 },
                    _ => Content::Latent,
                };
                let per_block = 1 + rng.below(4) as u32;
                Group { geometry: geometry(content, per_block), blocks }
            })
            .collect();
        if prefixes {
            groups = with_prefixes(&mut rng, per_block, blocks);
        }
        let config = Config {
            groups: groups.clone(),
            max_sequences: 1 + rng.below(12) as u32,
            max_blocks: 2 + rng.below(20) as u32,
            prefixes,
            policy: [Policy::Lru, Policy::PriorityLru, Policy::SegmentedLru][rng.below(3)],
            hashing: [Hashing::Xxh3, Hashing::Sha256, Hashing::Blake3([3; 32]), Hashing::Poor]
                [rng.below(4)],
            dedupe: rng.chance(50),
            partial: rng.chance(50),
            watermark: rng.below(3) as u32,
            events: 16,
        };
        let cache = KvCache::new(config).expect("it makes sense");
        let device = groups.iter().map(|g| vec![Vec::new(); g.blocks as usize]).collect();
        let busy = groups.iter().map(|g| vec![0; g.blocks as usize]).collect();
        World {
            rng,
            cache,
            groups,
            prefixes,
            device,
            busy,
            fence: 0,
            passed: 0,
            live: Vec::new(),
            copies: Vec::new(),
            rows: RefCell::default(),
            ended: Vec::new(),
            met: Met::default(),
        }
    }

    fn is_hybrid(&self) -> bool {
        self.prefixes && self.groups.iter().any(|group| group.geometry.window() > 0)
    }

    fn after(&mut self) -> u64 {
        if self.rng.chance(50) {
            return NO_FENCE;
        }
        self.fence += 1;
        self.fence
    }

    /// A sequence's row, of which what changes is told.
    fn blocks_of(&self, group: usize, seq: Seq) -> Vec<u32> {
        let mut rows = self.rows.borrow_mut();
        let row = rows.entry((group, seq)).or_insert_with(|| vec![0; 64]);
        self.cache.row(group as u32, seq, row, false).expect("it is there");
        row.iter().map(|&block| block as u32).collect()
    }

    /// Runs a call that gives blocks of a sequence back behind `after`: work reads them until then.
    fn giving_back<R>(&mut self, seq: Seq, after: u64, call: impl FnOnce(&KvCache) -> R) -> R {
        let rows = |world: &World| -> Vec<Vec<u32>> {
            let open = world.cache.len(seq).is_ok();
            let of = |group| if open { world.blocks_of(group, seq) } else { Vec::new() };
            (0..world.groups.len()).map(of).collect()
        };
        let before = rows(self);
        let answer = call(&self.cache);
        for (group, (before, now)) in before.iter().zip(rows(self)).enumerate() {
            for &block in before.iter().filter(|block| **block != 0 && !now.contains(block)) {
                let busy = &mut self.busy[group][block as usize];
                *busy = (*busy).max(after);
            }
        }
        answer
    }

    /// The device does the copies that the cache wants.
    fn copy(&mut self) {
        let mut jobs = Vec::new();
        let Some(batch) = self.cache.take_copies(&mut jobs) else { return };
        let mut read = Vec::new();
        for job in jobs {
            let group = job.group as usize;
            assert!(self.busy[group][job.to as usize] <= self.passed, "{job:?} is read");
            self.below_end(group, job.to);
            let mut what = self.device[group][job.from as usize].clone();
            if job.tokens > 0 {
                assert!(what.len() >= job.tokens as usize, "{job:?} of {what:?}");
                what.truncate(job.tokens as usize);
            }
            self.device[group][job.to as usize] = what.clone();
            read.push((job, what));
        }
        self.copies.push((batch, read));
    }

    fn acknowledge(&mut self) {
        if self.copies.is_empty() {
            return;
        }
        let at = self.rng.below(self.copies.len());
        let (batch, read) = self.copies.swap_remove(at);
        for (job, what) in read {
            let now = &self.device[job.group as usize][job.from as usize];
            assert!(now.starts_with(&what), "{job:?}: the source was written meanwhile");
        }
        self.cache.copied(batch, NO_FENCE).expect("it is outstanding");
    }

    /// A block that is handed out lies below the end.
    fn below_end(&self, group: usize, block: u32) {
        let open = self.cache.bounds(group as u32).expect("it is there").open;
        assert!(block < open, "block {block} of {open} was given out");
    }

    /// Writes the tokens behind `from` where the tables say.
    fn write(&mut self, at: usize, from: usize) {
        let (seq, tokens) = (self.live[at].seq, self.live[at].values());
        for group in 0..self.groups.len() {
            let geometry = self.groups[group].geometry;
            let row = self.blocks_of(group, seq);
            for (token, &value) in tokens.iter().enumerate().skip(from) {
                let (block, place) = match geometry.is_state() {
                    true => (row[0], token),
                    false => {
                        let per_block = geometry.block_tokens as usize;
                        (row[token / per_block], token % per_block)
                    }
                };
                assert_ne!(block, 0, "the null block is written");
                assert!(self.busy[group][block as usize] <= self.passed, "block {block} is read");
                let held = &mut self.device[group][block as usize];
                held.truncate(place);
                assert_eq!(held.len(), place, "token {token} of group {group}");
                held.push(value);
            }
        }
    }

    fn resize(&mut self) {
        let group = self.rng.below(self.groups.len());
        let most = self.groups[group].blocks;
        let some = self.rng.below(most as usize + 2) as u32;
        let blocks = if self.rng.chance(50) { most } else { some };
        let before = self.cache.bounds(group as u32).expect("it is there");
        match self.cache.resize(group as u32, blocks) {
            Ok(bounds) => {
                assert_eq!(bounds.open, blocks);
                assert!(bounds.needed <= before.needed.max(blocks));
            }
            Err(error) => {
                assert!(blocks < 2 || blocks > self.groups[group].blocks, "{error}");
                assert_eq!(self.cache.bounds(group as u32), Ok(before));
            }
        }
    }

    fn fresh(&mut self, most: usize) -> Vec<i32> {
        let count = self.rng.below(most + 1);
        (0..count).map(|_| self.rng.below(2) as i32).collect()
    }

    fn step(&mut self) {
        let live = self.live.len();
        let at = if live > 0 { self.rng.below(live) } else { 0 };
        match self.rng.below(100) {
            0..15 => self.open(),
            _ if live == 0 => {}
            15..21 if self.is_hybrid() => self.trim(at),
            21..23 if self.is_hybrid() => self.resize(),
            15..46 => self.append(at),
            46..60 => self.commit(at),
            60..67 => self.rollback(at),
            67..74 => self.fork(at),
            74..79 => self.trim(at),
            79..85 => self.acknowledge(),
            85..90 => {
                let now = self.fence.saturating_sub(self.rng.below(2) as u64);
                self.passed = self.passed.max(now);
                self.cache.pass(self.passed);
            }
            90..91 => self.cache.reset_prefixes(),
            91..92 => self.resize(),
            _ => self.free(at),
        }
        self.copy();
    }

    fn commit(&mut self, at: usize) {
        let found = &mut self.live[at];
        let to = found.committed + self.rng.below(found.tokens.len() - found.committed + 1);
        found.committed = to;
        let seq = found.seq;
        let after = self.after();
        let before: Vec<_> = (0..self.groups.len()).map(|g| self.blocks_of(g, seq)).collect();
        self.giving_back(seq, after, |cache| cache.commit(seq, to as u32, after))
            .expect("it grows");
        for (group, before) in before.iter().enumerate() {
            for (old, new) in before.iter().zip(self.blocks_of(group, seq)) {
                let device = &self.device[group];
                assert_eq!(device[*old as usize], device[new as usize], "a duplicate");
            }
        }
    }

    /// A prompt and its salt: new, or one that begins as a sequence that ended.
    fn prompt(&mut self) -> (u64, Vec<i32>) {
        if self.ended.is_empty() || self.rng.chance(40) {
            return (self.rng.below(2) as u64, self.fresh(20));
        }
        let at = self.rng.below(self.ended.len());
        let (salt, mut tokens) = self.ended[at].clone();
        if self.rng.chance(50) {
            tokens.truncate(self.rng.below(tokens.len() + 1));
        }
        tokens.extend(self.fresh(6));
        (salt, tokens)
    }

    fn open(&mut self) {
        let (salt, prompt) = self.prompt();
        let priority = self.rng.below(8) as u8;
        let seq = match self.cache.open(Open { salt, priority }) {
            Err(KvError::TooManySequences) => return self.met.refused += 1,
            opened => opened.expect("the priority is one"),
        };
        let found = self.cache.find_prefix(seq, &prompt).expect("it is empty");
        let tokens = prompt[..found.tokens as usize].to_vec();
        assert!(self.prefixes || tokens.is_empty());
        for group in 0..self.groups.len() {
            let row = self.blocks_of(group, seq);
            row.into_iter().for_each(|block| self.below_end(group, block));
        }
        let committed = tokens.len();
        let gone = self.groups.iter().map(|group| {
            // What a token behind the whole blocks sees is there, and no block before.
            let Geometry { block_tokens, .. } = group.geometry;
            let seen = (group.geometry.window() as usize).saturating_sub(1);
            let before = (found.shared as usize).saturating_sub(seen);
            if group.geometry.window() > 0 { before / block_tokens as usize } else { 0 }
        });
        let gone: Vec<usize> = gone.collect();
        self.met.hits += tokens.len();
        if self.is_hybrid() {
            self.met.hybrid += tokens.len();
            self.met.cut += usize::from(gone.iter().any(|&gone| gone > 0));
            self.met.copied += usize::from(found.tokens > found.shared);
        }
        self.live.push(Live { seq, salt, tokens, committed, gone });
        self.copy();
        self.grow(self.live.len() - 1, &prompt[committed..]);
    }

    fn append(&mut self, at: usize) {
        let tokens = self.fresh(6);
        if self.rng.chance(20) {
            let seq = self.live[at].seq;
            let _ = self.cache.reserve(seq, self.rng.below(6) as u32);
        }
        self.grow(at, &tokens);
    }

    fn grow(&mut self, at: usize, tokens: &[i32]) {
        let seq = self.live[at].seq;
        let known = self.rng.chance(95);
        let what = if known { Tokens::Known(tokens) } else { Tokens::Count(tokens.len() as u32) };
        let before = self.cache.stats();
        match self.cache.append(seq, what) {
            Ok(()) => {
                self.copy();
                let from = self.live[at].tokens.len();
                self.live[at].tokens.extend_from_slice(tokens);
                self.write(at, from);
            }
            Err(KvError::NoBlocks(short)) => {
                assert_eq!(self.cache.stats(), before, "a refused append changes nothing");
                assert!(short.need > 0);
                self.met.refused += 1;
            }
            Err(KvError::TooLong { blocks, most }) => {
                assert_eq!(self.cache.stats(), before, "a refused append changes nothing");
                assert!(blocks > most);
            }
            Err(other) => panic!("{other}"),
        }
    }

    /// Whether all that a token behind the first `len` sees is there.
    fn sees(&self, at: usize, len: usize) -> bool {
        self.groups.iter().zip(&self.live[at].gone).all(|(group, &gone)| {
            let Geometry { block_tokens, .. } = group.geometry;
            let seen = (group.geometry.window() as usize).saturating_sub(1);
            gone == 0 || len.saturating_sub(seen) >= gone * block_tokens as usize
        })
    }

    fn rollback(&mut self, at: usize) {
        let count = self.rng.below(self.live[at].tokens.len() + 2);
        let after = self.after();
        let seq = self.live[at].seq;
        let kept = self.live[at].tokens.len().checked_sub(count);
        let done = self.giving_back(seq, after, |cache| cache.rollback(seq, count as u32, after));
        match done {
            Ok(()) => {
                let kept = kept.expect("there were so many");
                assert!(count == 0 || self.sees(at, kept));
                let found = &mut self.live[at];
                found.tokens.truncate(kept);
                found.committed = found.committed.min(kept);
                for (gone, group) in found.gone.iter_mut().zip(&self.groups) {
                    *gone = (*gone).min(group.geometry.blocks_for(kept as u32) as usize);
                }
            }
            Err(KvError::OutOfRange(_)) => {
                assert!(kept.is_none_or(|kept| !self.sees(at, kept)));
                self.met.missing += usize::from(kept.is_some() && self.is_hybrid());
            }
            Err(KvError::Unsupported(_)) => {
                assert!(self.groups.iter().any(|group| group.geometry.is_state()));
            }
            Err(other) => panic!("{other}"),
        }
    }

    fn fork(&mut self, at: usize) {
        let len = self.live[at].tokens.len();
        let tokens = if self.rng.chance(50) { len } else { self.rng.below(len + 2) };
        let mut out = vec![Seq::from_raw(0); self.rng.below(4)];
        let before = self.cache.stats();
        match self.cache.fork(self.live[at].seq, tokens as u32, &mut out) {
            Ok(()) => {
                assert!(tokens == len || self.sees(at, tokens));
                for seq in out {
                    let from = &self.live[at];
                    let live = Live {
                        seq,
                        salt: from.salt,
                        tokens: from.tokens[..tokens].to_vec(),
                        committed: from.committed.min(tokens),
                        gone: from.gone.clone(),
                    };
                    self.live.push(live);
                }
            }
            Err(error) => {
                assert_eq!(self.cache.stats(), before, "a refused fork changes nothing");
                match error {
                    KvError::OutOfRange(_) => {
                        assert!(tokens > len || !self.sees(at, tokens));
                        self.met.missing += usize::from(tokens <= len && self.is_hybrid());
                    }
                    KvError::TooManySequences | KvError::NoBlocks(_) => self.met.refused += 1,
                    KvError::Unsupported(_) => assert!(tokens < len),
                    other => panic!("{other}"),
                }
            }
        }
    }

    fn trim(&mut self, at: usize) {
        let keep = (!self.prefixes && self.rng.chance(30)).then(|| self.rng.below(10) as u32);
        let after = self.after();
        let seq = self.live[at].seq;
        let done = self.giving_back(seq, after, |cache| cache.trim(seq, keep, after));
        done.expect("nothing forbids it");
        let found = &mut self.live[at];
        for (gone, group) in found.gone.iter_mut().zip(&self.groups) {
            let least = match (keep, group.geometry.window()) {
                _ if group.geometry.is_state() => continue,
                (Some(keep), _) => keep as usize,
                (None, 0) => continue,
                (None, window) => window as usize - 1,
            };
            let per_block = group.geometry.block_tokens as usize;
            *gone = (*gone).max(found.tokens.len().saturating_sub(least) / per_block);
        }
    }

    fn free(&mut self, at: usize) {
        let after = self.after();
        let gone = self.live.swap_remove(at);
        if self.ended.len() < 8 {
            self.ended.push((gone.salt, gone.tokens.clone()));
        } else {
            let at = self.rng.below(8);
            self.ended[at] = (gone.salt, gone.tokens.clone());
        }
        self.giving_back(gone.seq, after, |cache| cache.free(&[gone.seq], after)).expect("open");
        assert_eq!(self.cache.len(gone.seq), Err(KvError::Stale));
        self.rows.borrow_mut().retain(|(_, seq), _| *seq != gone.seq);
    }

    fn end(mut self) {
        while !self.live.is_empty() {
            self.free(0);
        }
        while !self.copies.is_empty() {
            self.acknowledge();
        }
        self.passed = u64::MAX;
        self.cache.pass(u64::MAX);
        self.verify();
        for group in self.cache.stats().groups {
            assert_eq!(group.counts.used + group.counts.quarantined, 0);
        }
        for group in self.cache.stats().groups {
            assert_eq!(group.draining, 0, "nothing is held");
        }
        self.cache.reset_prefixes();
        for group in self.cache.stats().groups {
            assert_eq!(group.counts.free + 1, group.counts.total);
        }
        self.cache.check().expect("the accounts");
        assert!(self.cache.into_leaks().is_empty());
    }
}

/// `FOREBAY_SEED` replays one; `FOREBAY_STEPS` makes each longer.
#[test]
fn the_cache_agrees_with_a_naive_model() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse().ok());
    let steps = number("FOREBAY_STEPS").unwrap_or(300);
    let seeds = match number("FOREBAY_SEED") {
        Some(seed) => seed..seed + 1,
        None => 1..400,
    };
    let mut met = Met::default();
    for seed in seeds.clone() {
        let run = std::panic::AssertUnwindSafe(|| {
            let mut world = World::new(seed);
            for _ in 0..steps {
                world.step();
                world.verify();
            }
            let met = world.met;
            world.end();
            met
        });
        met += std::panic::catch_unwind(run).unwrap_or_else(|panic| {
            eprintln!("FOREBAY_SEED={seed} FOREBAY_STEPS={steps} replays this");
            std::panic::resume_unwind(panic)
        });
    }
    let enough = met.refused > 1000 && met.hits > 2000 && met.hybrid > 1000;
    let kinds = met.cut > 100 && met.copied > 30 && met.missing > 100;
    assert!(seeds.count() == 1 || (enough && kinds), "{met:?}");
}
