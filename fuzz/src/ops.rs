//! The C ABI: any stream of operations on a small pool agrees with a plain model.
//!
//! Every operation is four bytes: what, which block, two for a size. The device is 16 MiB
//! and deferred, so nothing happens that the bytes do not say. Wrong use is among the operations
//! and must be answered with its own error. After the last operation the accounts are checked,
//! all is freed, and the device must be empty.

use forebay::abi::alloc::{forebay_alloc, forebay_alloc_aligned, forebay_dealloc};
use forebay::abi::streams::forebay_record_use;
use forebay::config::Config;
use forebay::driver::host::{HostDriver, HostOptions};
use forebay::driver::{Driver, StreamHandle};
use forebay::error::Status;
use forebay::pool::hot::SYNC_STREAM;
use forebay::pool::{Pool, Settings};
use std::collections::BTreeMap;
use std::ffi::c_void;
use std::sync::Arc;

const DEVICE: usize = 16 << 20;
const LANES: usize = 4;

struct Run {
    driver: Arc<HostDriver>,
    pool: Pool,
    lanes: [u64; LANES],
    /// Live blocks: address, bytes asked for.
    live: BTreeMap<usize, usize>,
    /// Addresses freed lately.
    gone: Vec<usize>,
    /// The canary's fault: some frees are forgotten.
    planted: bool,
}

/// Plays `bytes` as operations.
pub fn play(bytes: &[u8]) {
    run(bytes, false);
}

/// [`play`] with a planted fault in the model: it must be found. A block of a multiple of 16
/// bytes that is freed on the second stream is thought to be live still.
pub fn play_with_a_fault(bytes: &[u8]) {
    run(bytes, true);
}

fn run(bytes: &[u8], planted: bool) {
    let mut run = Run::new(planted);
    for op in bytes.chunks_exact(4).take(2000) {
        run.operation(op[0], usize::from(op[1]), usize::from(u16::from_le_bytes([op[2], op[3]])));
    }
    run.end();
}

impl Run {
    fn new(planted: bool) -> Run {
        let options = HostOptions { total_bytes: DEVICE, deferred: true, ..HostOptions::default() };
        let driver = Arc::new(HostDriver::new(options).expect("a host device"));
        let mut settings = Settings::resolve(&Config::default(), DEVICE as u64, true);
        settings.keeper = false;
        settings.oom_wait = std::time::Duration::ZERO;
        let pool = Pool::with_driver(driver.clone() as Arc<dyn Driver>, settings).expect("a pool");
        let stream = || driver.stream_create().expect("a stream").0;
        let lanes = [0, stream(), stream(), SYNC_STREAM];
        Run { driver, pool, lanes, live: BTreeMap::new(), gone: Vec::new(), planted }
    }

    fn handle(&self) -> *mut forebay::abi::Pool {
        self.pool.handle() as *mut _
    }

    fn operation(&mut self, what: u8, which: usize, size: usize) {
        let lane = self.lanes[usize::from(what >> 6)];
        match what & 15 {
            0..=3 => self.alloc(size, 0, lane),
            4 => self.alloc(size << (which % 8), 0, lane),
            5 => self.alloc(size, 1 << (which % 24), lane),
            6..=9 => self.free(which, lane),
            10 => self.use_elsewhere(which, lane),
            11 => self.wrong(which, size, lane),
            12 => self.work(which, lane),
            13 => {
                self.driver.step(size as u64);
            }
            14 => {
                self.pool.trim((size << 10) as u64).expect("a trim");
            }
            _ => self.accounts(),
        }
    }

    fn alloc(&mut self, bytes: usize, align: usize, stream: u64) {
        let mut address: *mut c_void = std::ptr::null_mut();
        let (handle, stream) = (self.handle(), stream as *mut c_void);
        // SAFETY: `address` is a local pointer.
        let status = unsafe {
            match align {
                0 => forebay_alloc(handle, &raw mut address, bytes, stream),
                _ => forebay_alloc_aligned(handle, &raw mut address, bytes, align, stream),
            }
        };
        let address = address as usize;
        match status {
            Status::Ok if bytes == 0 => assert_eq!(address, 0, "size 0"),
            Status::Ok => self.check_new(address, bytes, align),
            Status::OutOfMemory => assert_eq!(address, 0),
            Status::InvalidArgument => assert!(align > 2 << 20, "alignment {align} is fine"),
            other => panic!("{other:?} for {bytes} bytes at {align}"),
        }
    }

    fn check_new(&mut self, address: usize, bytes: usize, align: usize) {
        assert!(address.is_multiple_of(align.max(256)), "{address:#x} for alignment {align}");
        if let Some((&before, &len)) = self.live.range(..=address).next_back() {
            assert!(before + len <= address, "{address:#x} lies in {before:#x} of {len}");
        }
        if let Some((&after, _)) = self.live.range(address..).next() {
            assert!(address + bytes <= after, "{address:#x} of {bytes} reaches {after:#x}");
        }
        self.live.insert(address, bytes);
    }

    fn pick(&self, which: usize) -> Option<usize> {
        let place = which.checked_rem(self.live.len())?;
        self.live.keys().nth(place).copied()
    }

    fn dealloc(&self, address: usize, stream: u64) -> Status {
        // SAFETY: any address is answered with an error, not a fault.
        unsafe { forebay_dealloc(self.handle(), address as *mut c_void, stream as *mut c_void) }
    }

    fn free(&mut self, which: usize, stream: u64) {
        let Some(address) = self.pick(which) else { return };
        assert_eq!(self.dealloc(address, stream), Status::Ok, "{address:#x} is live");
        let bytes = self.live.remove(&address).expect("picked among the live");
        if self.planted && bytes.is_multiple_of(16) && stream == self.lanes[1] {
            self.live.insert(address, bytes);
        }
        self.gone.push(address);
    }

    fn use_elsewhere(&mut self, which: usize, stream: u64) {
        let Some(address) = self.pick(which) else { return };
        let (block, stream) = (address as *mut c_void, stream as *mut c_void);
        let status = forebay_record_use(self.handle(), block, stream);
        assert_eq!(status, Status::Ok, "{address:#x} is live");
    }

    /// Wrong use: each has its own error and changes nothing.
    fn wrong(&mut self, which: usize, size: usize, stream: u64) {
        if let Some(address) = self.pick(which) {
            let inside = address + 1 + size % self.live[&address].max(2).next_multiple_of(256);
            if !self.live.contains_key(&inside) && inside < address + self.live[&address] {
                assert_eq!(self.dealloc(inside, stream), Status::InteriorPointer, "{inside:#x}");
            }
        }
        assert_eq!(self.dealloc(0x1000 + size, stream), Status::NotOwned);
        if let Some(&address) = self.gone.get(which) {
            let now = self.live.range(..=address).next_back();
            let covered = now.is_some_and(|(&start, &bytes)| address < start + bytes);
            if !covered {
                let status = self.dealloc(address, stream);
                // The place may lie in another block's rounded part by now.
                let told = matches!(status, Status::DoubleFree | Status::InteriorPointer);
                assert!(told, "{status:?} for {address:#x}, freed before");
            }
        }
        if self.gone.len() > 64 {
            self.gone.drain(..32);
        }
    }

    /// Queues work on a live block, in the order of a stream that will free it or is told.
    fn work(&mut self, which: usize, stream: u64) {
        let Some(address) = self.pick(which) else { return };
        let stream = if stream == SYNC_STREAM { 0 } else { stream };
        self.use_elsewhere(which, stream);
        let bytes = self.live[&address];
        self.driver.fill(address, 1, bytes, StreamHandle(stream)).expect("a live stream");
    }

    fn accounts(&self) {
        let stats = self.pool.stats().expect("alive");
        assert_eq!(stats.sum(), stats.mapped_bytes, "{stats:?}");
        assert_eq!(stats.live_blocks, self.live.len() as u64, "{stats:?}");
        let asked: usize = self.live.values().sum();
        assert!(stats.live_bytes >= asked as u64, "{stats:?}");
        assert!(stats.mapped_bytes <= DEVICE as u64, "{stats:?}");
        self.pool.with_core(|core| core.check()).expect("alive");
    }

    fn end(mut self) {
        self.accounts();
        while self.pick(0).is_some() {
            self.free(0, self.lanes[0]);
        }
        self.driver.run_all();
        self.accounts();
        self.pool.trim(0).expect("a trim");
        let stats = self.pool.stats().expect("alive");
        assert_eq!(stats.mapped_bytes, 0, "{stats:?}");
        let Run { driver, pool, lanes, .. } = self;
        drop(pool);
        for stream in &lanes[1..3] {
            driver.stream_destroy(StreamHandle(*stream)).expect("it exists");
        }
        assert!(driver.census().is_clean(), "{:?}", driver.census());
    }
}
