//! Two lanes alternating 64 KiB pieces in one granule while pages move: no corruption; with
//! stamps ignored, corruption or a fault of the device.

use crate::common::{self, Findings, Random};
use forebay::driver::host::{HostDriver, HostOptions};
use forebay::driver::{Driver, StreamHandle};
use forebay::error::Status;
use forebay::pool::Pool;
use std::collections::HashMap;
use std::sync::Arc;

const MIB: usize = 1 << 20;
const PIECE: usize = 64 << 10;
const GRANULE: usize = 2 * MIB;

struct Block {
    address: usize,
    bytes: usize,
    value: u8,
}

struct Run {
    driver: Arc<HostDriver>,
    pool: Pool,
    rng: Random,
    findings: &'static Findings,
    streams: Vec<u64>,
    /// By stream: two of small pieces, one of large blocks.
    blocks: [Vec<Block>; 3],
    refused: u64,
}

impl Run {
    fn new(seed: u64) -> Run {
        println!("seed {seed} (set FOREBAY_TEST_SEED to run it again)");
        let options =
            HostOptions { total_bytes: 6 * GRANULE, deferred: true, ..HostOptions::default() };
        let (driver, pool) = common::pool(options, |settings| {
            settings.keeper = false;
            settings.oom_wait = std::time::Duration::ZERO;
        });
        let streams = common::streams(&driver, 3);
        let findings = Findings::new();
        let blocks = [Vec::new(), Vec::new(), Vec::new()];
        Run { driver, pool, rng: Random(seed), findings, streams, blocks, refused: 0 }
    }

    fn alloc(&mut self, lane: usize, bytes: usize) {
        let stream = self.streams[lane];
        match self.pool.alloc(bytes, stream) {
            Ok(address) => {
                let value = self.rng.bits() as u8;
                let filled = self.driver.fill(address, value, bytes, StreamHandle(stream));
                filled.expect("a live stream");
                self.blocks[lane].push(Block { address, bytes, value });
            }
            Err(error) => {
                assert_eq!(error.status(), Status::OutOfMemory, "{error}");
                self.refused += 1;
                for lane in 0..3 {
                    self.free_some(lane, 3);
                }
            }
        }
    }

    /// Frees one block in `part` of a lane's, each with its last look still queued.
    fn free_some(&mut self, lane: usize, part: usize) {
        for _ in 0..self.blocks[lane].len().div_ceil(part) {
            let at = self.rng.below(self.blocks[lane].len());
            let block = self.blocks[lane].swap_remove(at);
            let range = (block.address, block.bytes);
            self.findings.queue(&self.driver, self.streams[lane], range, block.value);
            self.pool.dealloc(block.address, self.streams[lane]).expect("a live block");
        }
    }

    /// Granules that hold live pieces of both lanes.
    fn shared_granules(&self) -> usize {
        let mut granules: HashMap<usize, u8> = HashMap::new();
        for (lane, blocks) in self.blocks.iter().take(2).enumerate() {
            for block in blocks {
                *granules.entry(block.address / GRANULE).or_default() |= 1 << lane;
            }
        }
        granules.values().filter(|&&lanes| lanes == 3).count()
    }

    fn step(&mut self, most: usize) {
        for _ in 0..self.rng.below(most) {
            self.driver.step(self.rng.bits());
        }
    }

    /// One round: pieces in turn, some freed, now and then a block that needs several granules.
    fn round(&mut self) {
        for i in 0..32 {
            self.alloc(i % 2, PIECE);
            self.step(3);
        }
        for lane in 0..2 {
            self.free_some(lane, 3);
            self.step(8);
        }
        if self.rng.one_in(2) {
            self.free_some(2, 2);
            self.step(80);
            let granules = 1 + self.rng.below(3);
            self.alloc(2, granules * GRANULE);
        }
        if self.rng.one_in(5) {
            // Everything small goes, so that whole granules become idle and may move.
            self.free_some(0, 1);
            self.free_some(1, 1);
            self.step(64);
        }
        if self.driver.outstanding() > 300 {
            self.driver.run_all();
        }
    }

    fn end(mut self) -> u64 {
        for lane in 0..3 {
            self.free_some(lane, 1);
        }
        self.driver.run_all();
        self.pool.with_core(|core| core.check()).expect("alive");
        let stats = self.pool.stats().expect("alive");
        assert_eq!(stats.live_bytes, 0, "{stats:?}");
        assert_eq!(stats.sum(), stats.mapped_bytes, "{stats:?}");
        stats.pages_moved
    }
}

#[test]
fn two_lanes_alternating_in_one_granule_while_pages_move() {
    let first = common::seed(100);
    let rounds = if cfg!(sanitize_thread) { 60 } else { 1000 };
    let (mut together, mut moved, mut refused) = (0, 0, 0);
    for seed in first..first + 4 {
        let mut run = Run::new(seed);
        for _ in 0..rounds {
            run.round();
            together += run.shared_granules();
        }
        let findings = run.findings;
        refused += run.refused;
        moved += run.end();
        assert_eq!(findings.corrupt(), 0, "seed {seed}: corrupt of {}", findings.checked());
        assert!(findings.checked() > 16 * rounds / 2);
    }
    println!("{together} shared granules, {moved} pages moved, {refused} requests refused");
    if cfg!(sanitize_thread) {
        return;
    }
    assert!(together > 1000, "both lanes held pieces of one granule {together} times");
    assert!(moved > 8, "{moved} pages moved");
}

/// Run in a process of its own: a page that moves under queued work is a fault.
pub fn stamps_ignored() {
    let mut run = Run::new(common::seed(100));
    run.pool.with_core(|core| core.ignore_stamps()).expect("alive");
    for _ in 0..1500 {
        run.round();
        if run.findings.corrupt() > 0 {
            println!("corruption found");
            return;
        }
    }
    println!("no corruption found");
}

#[test]
fn canary_two_lanes_with_stamps_ignored_find_corruption() {
    use std::os::unix::process::ExitStatusExt;
    let output = common::child("child_process", "lanes_ignored", &[]);
    let told = String::from_utf8_lossy(&output.stdout);
    let fault = output.status.signal().is_some_and(|s| s == libc::SIGSEGV || s == libc::SIGBUS);
    assert!(told.contains("\ncorruption found") || fault, "{output:?}");
}
