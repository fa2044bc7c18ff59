//! A thousand cycles at random, about half of them with a fault at some driver call. One suspend in
//! four drops contents, and some blocks are used by another stream.

use super::*;
use forebay::driver::Call;
use forebay::driver::StreamHandle;
use forebay::driver::faulty::{CallSet, Fault, Times};

/// Device granules: three tags that are awake at once hardly fit.
const GRANULES: usize = 96;

struct Play {
    g: Ground,
    random: common::Random,
    streams: Vec<u64>,
    /// Live blocks, each with its tag.
    live: Vec<(u8, Block)>,
    /// Tags that are asleep without contents.
    dropped: Vec<u8>,
    faulted: u64,
    failed: u64,
}

impl Play {
    fn asleep(&self, tag: u8) -> bool {
        tag != 1 && self.g.pool.is_suspended(tag).expect("alive")
    }

    fn tag(&mut self) -> u8 {
        match self.random.below(self.g.tags.len() + 1) {
            0 => 1,
            i => self.g.tags[i - 1],
        }
    }

    /// A block comes or goes, awake or asleep.
    fn stir(&mut self) {
        let stream = self.streams[self.random.below(self.streams.len())];
        if self.random.one_in(2) && !self.live.is_empty() {
            let (_, block) = self.live.swap_remove(self.random.below(self.live.len()));
            if self.random.one_in(3) {
                let user = self.streams[self.random.below(self.streams.len())];
                self.g.pool.record_use(block.address, user).expect("live");
            }
            self.g.pool.dealloc(block.address, stream).expect("live");
            return;
        }
        let tag = self.tag();
        let bytes = match self.random.one_in(3) {
            true => self.random.size_to(19),
            false => self.random.size_to(14),
        };
        let asleep = self.asleep(tag);
        match self.g.alloc(tag, bytes, stream) {
            Ok(block) => {
                assert!(!asleep, "a tag that is asleep has no memory to give");
                self.live.push((tag, block));
            }
            Err(error) if asleep => assert_eq!(error.status(), Status::Busy, "{error}"),
            Err(error) => {
                assert_eq!(error.status(), Status::OutOfMemory, "{error}");
                self.g.driver.inner().run_all();
                if let Some((_, block)) = self.live.pop() {
                    self.g.free(block);
                }
            }
        }
    }

    /// Arms a fault at one of the next calls, and now and then another besides.
    fn arm(&mut self) {
        let nth = 1 + self.random.below(16) as u64;
        let times = if self.random.one_in(3) { Times::FromThenOn } else { Times::Once };
        self.g.driver.fail(Fault { calls: CallSet::ALL, nth, times, code: None });
        if self.random.one_in(3) {
            let kinds = [
                Call::Unmap,
                Call::Map,
                Call::SetAccess,
                Call::Release,
                Call::StreamSynchronize,
                Call::HostFree,
                Call::Create,
            ];
            let kind = kinds[self.random.below(kinds.len())];
            self.g.driver.fail(Fault::from_then_on(CallSet::of(&[kind]), 1));
        }
    }

    /// Some tags go to sleep or wake, with a fault three times in four. All or none of them.
    fn turn(&mut self) {
        let all = self.g.tags.clone();
        let first = all[self.random.below(all.len())];
        let wake = self.asleep(first);
        let more = self.random.one_in(2);
        let tags: Vec<u8> = all
            .into_iter()
            .filter(|&tag| tag == first || more && self.asleep(tag) == wake)
            .collect();
        let before = self.g.driver.injected();
        if !self.random.one_in(4) {
            self.arm();
        }
        let mut report = Report::default();
        let level = if self.random.one_in(4) { Level::Discard } else { Level::Offload };
        let done = match wake {
            true => self.g.pool.resume(&tags, &mut report),
            false => self.g.pool.suspend(&tags, level).map(|_| ()),
        };
        self.g.driver.clear_faults();
        let injected = self.g.driver.injected() > before;
        self.faulted += u64::from(injected);
        self.failed += u64::from(done.is_err());
        if let Err(error) = &done {
            let short = wake && error.status() == Status::OutOfMemory;
            assert!(injected || short, "without a fault: {error}");
            assert!(injected || report.missing_bytes > 0, "{report:?}");
        }
        for &tag in &tags {
            assert_eq!(self.asleep(tag), wake != done.is_ok(), "tag {tag}: {done:?}");
            if !wake && level == Level::Discard && done.is_ok() {
                self.dropped.push(tag);
            }
            if wake && done.is_ok() && self.dropped.contains(&tag) {
                self.dropped.retain(|&dropped| dropped != tag);
                self.write_anew(tag);
            }
        }
    }

    /// Contents of a tag are undefined: new ones.
    fn write_anew(&mut self, tag: u8) {
        for (_, block) in self.live.iter_mut().filter(|(own, _)| *own == tag) {
            *block = Block::new(block.address, block.bytes, block.stream, self.random.bits());
        }
    }

    fn check(&self) {
        let stats = self.g.stats();
        assert_eq!(stats.live_blocks, self.live.len() as u64);
        let usable = |b: &Block| self.g.pool.usable_size(b.address).expect("live") as u64;
        let (mut awake, mut away) = (0, 0);
        for (tag, block) in &self.live {
            if self.asleep(*tag) {
                away += usable(block);
            } else {
                awake += usable(block);
                block.check();
            }
        }
        assert_eq!((stats.live_bytes, stats.suspended_bytes), (awake, away), "{stats:?}");
    }

    /// What was stuck comes back; nothing of the copies is left.
    fn settle(&self) {
        self.g.driver.inner().run_all();
        assert!(!self.g.pool.with_core(|core| core.recover()).expect("alive"));
        let census = self.g.driver.inner().census();
        assert_eq!((census.host_allocs, census.host_bytes, census.fds), (0, 0, 1));
        assert_eq!(census.streams, self.streams.len());
        assert!(census.events <= 200, "{census:?}");
        self.check();
    }
}

#[test]
fn a_thousand_cycles_with_faults_lose_nothing() {
    let seed = common::seed(20_261);
    let g = Ground::new(GRANULES, 3, |_| {});
    let streams = streams(&g.driver, 2);
    let random = common::Random(seed);
    let mut play =
        Play { g, random, streams, live: Vec::new(), dropped: Vec::new(), faulted: 0, failed: 0 };
    for _ in 0..1000 {
        for _ in 0..play.random.below(12) {
            play.stir();
            play.g.driver.inner().step(play.random.bits());
        }
        play.turn();
        play.check();
        play.settle();
    }
    println!("{} cycles had a fault, {} failed", play.faulted, play.failed);
    assert!(play.faulted > 300 && play.failed > 150 && play.failed < 900);
    // Every block can be freed, asleep or awake.
    let tags = play.g.tags.clone();
    play.g.pool.suspend(&tags[..2], Level::Offload).expect("no fault");
    for (_, block) in std::mem::take(&mut play.live) {
        play.g.pool.dealloc(block.address, 0).expect("live");
    }
    play.settle();
    let stats = play.g.stats();
    assert_eq!((stats.live_blocks, stats.suspended_bytes, stats.suspended_host_bytes), (0, 0, 0));
    for &stream in &play.streams {
        play.g.driver.stream_synchronize(StreamHandle(stream)).expect("a stream");
    }
    play.g.end(&play.streams);
}
