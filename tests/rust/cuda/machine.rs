//! One device of the simulated machine as a program uses it: a pool, streams of all kinds,
//! kernels, and queued checks of contents whose results are read at the end.
//!
//! Owns a pool and what the program made beside it. Promises that [`Device::end`] fails when
//! something is left. Every check counts: results are compared one by one.

use super::cuda::Sim;
use forebay::config::Config;
use forebay::driver::{Driver, StreamHandle};
use forebay::pool::{Pool, Settings, devices, registry};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// What a stream is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The legacy default stream.
    Legacy,
    /// Ordered with the legacy stream.
    Blocking,
    /// Ordered with nothing.
    NonBlocking,
    /// Non-blocking, with a priority.
    Priority,
}

/// A device, its pool, and where checks write.
pub struct Device {
    pub sim: Sim,
    pub context: usize,
    pub pool: Pool,
    pub driver: Arc<dyn Driver>,
    ordinal: usize,
    module: usize,
    checksum: usize,
    spin: usize,
    results: usize,
    places: usize,
    next: AtomicUsize,
}

/// A check that was queued: where its result comes, and what that must be.
#[derive(Clone, Copy, Debug)]
pub struct Check {
    place: usize,
    expected: u64,
}

/// A kernel that runs until this is dropped.
pub struct Busy {
    word: usize,
}

impl Drop for Busy {
    fn drop(&mut self) {
        // SAFETY: the simulation lets the CPU write device memory, and the word lives as long as
        // the kernel that waits for it.
        unsafe { (self.word as *mut u32).write_volatile(1) };
    }
}

/// Longest part of a block that one check reads.
const WINDOW: usize = 64 << 10;

impl Device {
    /// Opens device `ordinal` with a pool of its own and room for `places` checks.
    pub fn open(ordinal: usize, places: usize, tune: impl FnOnce(&mut Settings)) -> Device {
        let sim = Sim::open();
        let mut config = Config::from_env().expect("well-formed");
        config.device = ordinal as i32;
        forebay::logging::init(&config);
        let driver = devices::open_cuda(&config).expect("a device").driver();
        let context = sim.get("cuDevicePrimaryCtxRetain", &[ordinal]);
        sim.ok("cuCtxSetCurrent", &[context]);
        let mut settings = Settings::resolve(&config, driver.device().total_bytes as u64, false);
        tune(&mut settings);
        let pool = Pool::with_driver(Arc::clone(&driver), settings).expect("a pool");
        let module = sim.get("cuModuleLoadData", &[c"checksum_u64 spin_until".as_ptr() as usize]);
        let function = |name: &std::ffi::CStr| {
            sim.get("cuModuleGetFunction", &[module, name.as_ptr() as usize])
        };
        let (checksum, spin) = (function(c"checksum_u64"), function(c"spin_until"));
        let results = sim.get("cuMemAlloc_v2", &[places.max(1) * 8]);
        let next = AtomicUsize::new(0);
        Device {
            sim,
            context,
            pool,
            driver,
            ordinal,
            module,
            checksum,
            spin,
            results,
            places,
            next,
        }
    }

    /// Makes the device's context current on this thread.
    pub fn enter(&self) {
        self.sim.ok("cuCtxSetCurrent", &[self.context]);
    }

    /// A stream of a kind; the legacy one exists.
    pub fn stream(&self, kind: Kind) -> u64 {
        self.enter();
        let stream = match kind {
            Kind::Legacy => 0,
            Kind::Blocking => self.sim.get("cuStreamCreate", &[0]),
            Kind::NonBlocking => self.sim.get("cuStreamCreate", &[1]),
            Kind::Priority => {
                self.sim.get("cuStreamCreateWithPriority", &[1, -1i32 as u32 as usize])
            }
        };
        stream as u64
    }

    /// Destroys a stream whose work may still be queued; told to the pools before, or not.
    pub fn destroy_stream(&self, stream: u64, told: bool) {
        if told {
            registry::retire_stream(stream).expect("no capture is open");
        }
        self.enter();
        self.sim.ok("cuStreamDestroy_v2", &[stream as usize]);
    }

    /// Queues a fill.
    pub fn fill(&self, address: usize, value: u8, bytes: usize, stream: u64) {
        self.driver.fill(address, value, bytes, StreamHandle(stream)).expect("queued");
    }

    /// Queues a check that a part of a block, chosen by `at`, holds `value`; the whole of it where
    /// it is short. Answers nothing for a block shorter than a word, or when no place is left.
    pub fn check(
        &self,
        (address, bytes): (usize, usize),
        value: u8,
        stream: u64,
        at: u64,
    ) -> Option<Check> {
        let words = bytes / 8;
        let count = words.min(WINDOW / 8);
        let place = self.next.fetch_add(1, Ordering::Relaxed);
        if count == 0 || place >= self.places {
            return None;
        }
        let first = address + (at % (words - count + 1) as u64) as usize * 8;
        let to = self.results + place * 8;
        let count = count as u64;
        let mut words = [first as u64, count, to as u64];
        self.enter();
        assert_eq!(self.sim.launch(self.checksum, stream as usize, &mut words), 0, "launch");
        let word = u64::from_ne_bytes([value; 8]);
        let expected = word.wrapping_mul(count * (count + 1) / 2);
        Some(Check { place, expected })
    }

    /// Whether a check, which has run, found what it must.
    pub fn held(&self, check: Check) -> bool {
        // SAFETY: a place among the results, which live until `end`; the simulation lets the CPU
        // read device memory.
        let found = unsafe { ((self.results + check.place * 8) as *const u64).read() };
        found == check.expected
    }

    /// Queues a kernel that ends once the word at `address` is `value`.
    pub fn spin_until(&self, address: usize, value: u32, stream: u64) {
        self.enter();
        let mut words = [address as u64, u64::from(value)];
        assert_eq!(self.sim.launch(self.spin, stream as usize, &mut words), 0, "launch");
    }

    /// Makes a stream wait until the word at `address` is `value`.
    pub fn wait_for_value(&self, address: usize, value: u32, stream: u64) {
        const EQUAL: usize = 1;
        self.enter();
        let args = [stream as usize, address, value as usize, EQUAL];
        self.sim.ok("cuStreamWaitValue32_v2", &args);
    }

    /// A kernel on `stream` that runs until the answer is dropped: by a test that fails, too, whose
    /// end would otherwise wait for it. `word` is device memory that nobody else writes.
    pub fn busy(&self, word: usize, stream: u64) -> Busy {
        self.fill(word, 0, 4, stream);
        // Else it could come behind the drop's write.
        self.sim.ok("cuStreamSynchronize", &[stream as usize]);
        self.spin_until(word, 1, stream);
        Busy { word }
    }

    /// Waits for all work of the device.
    pub fn synchronize(&self) {
        self.enter();
        self.sim.ok("cuCtxSynchronize", &[]);
    }

    /// Ends the pool and gives everything back. Streams are the caller's.
    pub fn end(self) {
        self.synchronize();
        let id = self.pool.id();
        // The handle keeps the drop from ending it a second time.
        let _ = self.pool.into_handle();
        registry::destroy(id).expect("no fault is armed");
        self.sim.ok("cuModuleUnload", &[self.module]);
        self.sim.ok("cuMemFree_v2", &[self.results]);
        self.sim.ok("cuCtxSetCurrent", &[0]);
        self.sim.ok("cuDevicePrimaryCtxRelease_v2", &[self.ordinal]);
    }
}
