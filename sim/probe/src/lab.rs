//! The bench that rules work at: the driver, the device, and the steps that many rules take.
//!
//! Owns what a rule builds on: memory, streams, events, kernels, a gate that keeps a stream busy.
//! Promises that a step which a rule merely builds on ends the rule with its name and code when
//! it is refused. Gives nothing back: a rule's process ends with it.

use crate::cuda::{Access, Driver, Location, Properties};
use crate::rule::{Stage, Stop};
use std::ffi::{CStr, c_void};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Read and write.
pub const RW: u32 = 3;
/// Read.
pub const R: u32 = 1;
/// The kernels' text.
const KERNELS: &str = concat!(include_str!("kernels.ptx"), "\0");

/// The bench.
pub struct Lab {
    /// The driver.
    pub cuda: Driver,
    /// Whether it is simulated.
    pub simulated: bool,
    /// The first device.
    pub device: i32,
    /// Its primary context; 0 where a rule starts without one.
    pub context: u64,
    /// The mapping unit.
    pub granule: usize,
    module: OnceLock<u64>,
}

/// Properties of pinned memory of a device.
pub fn properties(device: i32) -> Properties {
    Properties { kind: 1, location: Location { kind: 1, id: device }, ..Properties::default() }
}

/// One device's wish for access.
pub fn wish(device: i32, flags: u32) -> Access {
    Access { location: Location { kind: 1, id: device }, flags }
}

/// Codes, apart by spaces.
pub fn codes(list: &[u32]) -> String {
    list.iter().map(u32::to_string).collect::<Vec<_>>().join(" ")
}

/// A word for whether something holds.
pub fn yes(holds: bool) -> &'static str {
    if holds { "yes" } else { "no" }
}

impl Lab {
    /// Makes the bench ready for a stage.
    ///
    /// # Errors
    /// The first call that was refused.
    pub fn new(cuda: Driver, stage: Stage) -> Result<Lab, Stop> {
        let simulated = cuda.is_simulated();
        let module = OnceLock::new();
        let mut lab = Lab { cuda, simulated, device: 0, context: 0, granule: 2 << 20, module };
        if stage == Stage::Bare {
            return Ok(lab);
        }
        lab.need("cuInit", lab.cuda.cuInit(0))?;
        let code = lab.cuda.cuDeviceGet(&raw mut lab.device, 0);
        lab.need("cuDeviceGet", code)?;
        let of = properties(lab.device);
        let code = lab.cuda.cuMemGetAllocationGranularity(&raw mut lab.granule, &of, 0);
        if code != 0 || lab.granule == 0 {
            lab.granule = 2 << 20;
        }
        if stage == Stage::Context {
            lab.context = lab.primary(lab.device)?;
            lab.need("cuCtxSetCurrent", lab.cuda.cuCtxSetCurrent(lab.context))?;
        }
        Ok(lab)
    }

    /// Tells a figure that belongs to the answer and is judged by nobody.
    pub fn note(&self, text: &str) {
        crate::run::note(text);
    }

    /// Ends the rule unless the code is 0.
    pub fn need(&self, call: &str, code: u32) -> Result<(), Stop> {
        match code {
            0 => Ok(()),
            crate::cuda::ABSENT => Err(Stop::Skip(format!("the driver has no {call}"))),
            _ => Err(Stop::Setup(format!("{call}: {}", self.cuda.error(code)))),
        }
    }

    /// Ends the rule as not applicable unless the condition holds.
    pub fn ask(&self, holds: bool, lack: &str) -> Result<(), Stop> {
        if holds { Ok(()) } else { Err(Stop::Skip(lack.to_owned())) }
    }

    /// Ends the rule as not applicable on a driver older than CUDA 12.5, which brought events over
    /// a whole context.
    pub fn context_events(&self) -> Result<(), Stop> {
        let mut version = 0;
        self.need("cuDriverGetVersion", self.cuda.cuDriverGetVersion(&raw mut version))?;
        self.ask(version >= 12_050, "the driver is older than CUDA 12.5")
    }

    /// An attribute of the device; 0 for one that it does not know.
    pub fn attribute(&self, attribute: u32) -> i32 {
        let mut value = 0;
        let code = self.cuda.cuDeviceGetAttribute(&raw mut value, attribute, self.device);
        if code == 0 { value } else { 0 }
    }

    /// The second device, which can reach the first one's memory.
    pub fn peer(&self) -> Result<i32, Stop> {
        let (mut count, mut can) = (0, 0);
        self.need("cuDeviceGetCount", self.cuda.cuDeviceGetCount(&raw mut count))?;
        self.ask(count > 1, "one device only")?;
        let code = self.cuda.cuDeviceCanAccessPeer(&raw mut can, 1, 0);
        self.need("cuDeviceCanAccessPeer", code)?;
        self.ask(can == 1, "no peer access between devices 0 and 1")?;
        Ok(1)
    }

    /// A device's primary context, retained.
    pub fn primary(&self, device: i32) -> Result<u64, Stop> {
        let mut context = 0;
        let code = self.cuda.cuDevicePrimaryCtxRetain(&raw mut context, device);
        self.need("cuDevicePrimaryCtxRetain", code)?;
        Ok(context)
    }

    /// Reserves address space.
    pub fn reserve(&self, bytes: usize) -> Result<u64, Stop> {
        let mut at = 0;
        let code = self.cuda.cuMemAddressReserve(&raw mut at, bytes, 0, 0, 0);
        self.need("cuMemAddressReserve", code)?;
        Ok(at)
    }

    /// Creates memory of the device.
    pub fn create(&self, bytes: usize) -> Result<u64, Stop> {
        self.create_of(bytes, &properties(self.device))
    }

    /// Creates memory with these properties.
    pub fn create_of(&self, bytes: usize, of: &Properties) -> Result<u64, Stop> {
        let mut handle = 0;
        let code = self.cuda.cuMemCreate(&raw mut handle, bytes, of, 0);
        self.need("cuMemCreate", code)?;
        Ok(handle)
    }

    /// Tries to create memory; the code alone.
    pub fn try_create(&self, bytes: usize, of: &Properties) -> u32 {
        let mut handle = 0;
        self.cuda.cuMemCreate(&raw mut handle, bytes, of, 0)
    }

    /// Maps memory from its start.
    pub fn map(&self, at: u64, bytes: usize, handle: u64) -> u32 {
        self.cuda.cuMemMap(at, bytes, 0, handle, 0)
    }

    /// Sets the device's own access.
    pub fn open(&self, at: u64, bytes: usize, flags: u32) -> u32 {
        self.cuda.cuMemSetAccess(at, bytes, &wish(self.device, flags), 1)
    }

    /// The device's access at an address, or the code.
    pub fn rights(&self, at: u64) -> Result<u64, u32> {
        let mut flags = 9;
        let location = Location { kind: 1, id: self.device };
        match self.cuda.cuMemGetAccess(&raw mut flags, &location, at) {
            0 => Ok(flags),
            code => Err(code),
        }
    }

    /// A reservation with `count` granules mapped side by side, each memory of its own.
    pub fn granules(&self, count: usize, access: u32) -> Result<u64, Stop> {
        let at = self.reserve(count * self.granule)?;
        for i in 0..count {
            let handle = self.create(self.granule)?;
            let place = at + (i * self.granule) as u64;
            self.need("cuMemMap", self.map(place, self.granule, handle))?;
            self.need("cuMemRelease", self.cuda.cuMemRelease(handle))?;
        }
        if access != 0 {
            self.need("cuMemSetAccess", self.open(at, count * self.granule, access))?;
        }
        Ok(at)
    }

    /// Plain device memory.
    pub fn plain(&self, bytes: usize) -> Result<u64, Stop> {
        let mut at = 0;
        self.need("cuMemAlloc", self.cuda.cuMemAlloc(&raw mut at, bytes))?;
        Ok(at)
    }

    /// Pinned host memory that devices reach by the same address, zeroed.
    pub fn pinned(&self, bytes: usize) -> Result<*mut u32, Stop> {
        let mut at = std::ptr::null_mut();
        self.need("cuMemHostAlloc", self.cuda.cuMemHostAlloc(&raw mut at, bytes, 2))?;
        // SAFETY: the driver gave that many bytes of host memory.
        unsafe { at.cast::<u8>().write_bytes(0, bytes) };
        Ok(at.cast())
    }

    /// Free bytes of the device.
    pub fn free_bytes(&self) -> Result<usize, Stop> {
        let (mut free, mut total) = (0, 0);
        self.need("cuMemGetInfo", self.cuda.cuMemGetInfo(&raw mut free, &raw mut total))?;
        Ok(free)
    }

    /// A stream.
    pub fn stream(&self, flags: u32) -> Result<u64, Stop> {
        let mut stream = 0;
        self.need("cuStreamCreate", self.cuda.cuStreamCreate(&raw mut stream, flags))?;
        Ok(stream)
    }

    /// An event without timing.
    pub fn event(&self) -> Result<u64, Stop> {
        let mut event = 0;
        let code = self.cuda.cuEventCreate(&raw mut event, crate::cuda::NO_TIMING);
        self.need("cuEventCreate", code)?;
        Ok(event)
    }

    /// Waits for a stream; the code.
    pub fn wait(&self, stream: u64) -> u32 {
        self.cuda.cuStreamSynchronize(stream)
    }

    /// Writes bytes from the host; the code.
    pub fn put(&self, at: u64, bytes: &[u8]) -> u32 {
        self.cuda.cuMemcpyHtoD(at, bytes.as_ptr().cast(), bytes.len())
    }

    /// Reads one word; the code if that is refused.
    pub fn word(&self, at: u64) -> Result<u32, u32> {
        let mut word = 0u32;
        match self.cuda.cuMemcpyDtoH((&raw mut word).cast(), at, 4) {
            0 => Ok(word),
            code => Err(code),
        }
    }

    /// Loads the kernels once more; the code.
    pub fn load_module(&self) -> u32 {
        let mut module = 0;
        self.cuda.cuModuleLoadData(&raw mut module, KERNELS.as_ptr().cast())
    }

    fn function(&self, name: &CStr) -> Result<u64, Stop> {
        if self.module.get().is_none() {
            let mut module = 0;
            let code = self.cuda.cuModuleLoadData(&raw mut module, KERNELS.as_ptr().cast());
            self.need("cuModuleLoadData", code)?;
            // The cell was empty, and only this thread has the bench.
            let _ = self.module.set(module);
        }
        let module = self.module.get().copied().unwrap_or(0);
        let mut function = 0;
        let code = self.cuda.cuModuleGetFunction(&raw mut function, module, name.as_ptr());
        self.need("cuModuleGetFunction", code)?;
        Ok(function)
    }

    fn launch(&self, name: &CStr, stream: u64, arguments: &mut [*mut c_void]) -> Result<u32, Stop> {
        let function = self.function(name)?;
        let places = arguments.as_mut_ptr();
        let none = std::ptr::null_mut();
        Ok(self.cuda.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, places, none))
    }

    /// Queues a kernel that writes `count` words; the launch's code.
    pub fn fill(&self, at: u64, value: u32, count: u64, stream: u64) -> Result<u32, Stop> {
        let (mut at, mut value, mut count) = (at, value, count);
        let mut arguments = [place(&mut at), place(&mut value), place(&mut count)];
        self.launch(c"fill_u32", stream, &mut arguments)
    }

    /// Queues a kernel that ends when a word in pinned memory is `value`.
    pub fn spin(&self, at: *const u32, value: u32, stream: u64) -> Result<u32, Stop> {
        let (mut at, mut value) = (at as u64, value);
        self.launch(c"spin_until", stream, &mut [place(&mut at), place(&mut value)])
    }

    /// A gate that keeps a stream busy until it is opened. All that later steps launch has been
    /// loaded before, since loading may wait for the device.
    pub fn gate(&self, stream: u64) -> Result<Gate, Stop> {
        let words = self.pinned(64)?;
        // SAFETY: 64 bytes of pinned memory.
        let (open, scratch) = unsafe { (words, words.add(8)) };
        let warm = self.stream(crate::cuda::NON_BLOCKING)?;
        self.need("cuLaunchKernel", self.spin(open, 0, warm)?)?;
        self.need("cuLaunchKernel", self.fill(scratch as u64, 0, 1, warm)?)?;
        let cell = self.plain(16)?;
        self.need("cuMemsetD32Async", self.cuda.cuMemsetD32Async(cell, 0, 4, warm))?;
        self.need("cuStreamSynchronize", self.wait(warm))?;
        self.need("cuStreamDestroy", self.cuda.cuStreamDestroy(warm))?;
        self.need("cuLaunchKernel", self.spin(open, 1, stream)?)?;
        Ok(Gate { open })
    }
}

/// A kernel's argument.
fn place<T>(value: &mut T) -> *mut c_void {
    (&raw mut *value).cast()
}

/// A word that a kernel waits for.
pub struct Gate {
    open: *mut u32,
}

// SAFETY: the word is pinned memory that lives as long as the process, and is written with one
// volatile store.
unsafe impl Send for Gate {}

impl Gate {
    /// Lets the stream go on.
    pub fn open(&self) {
        // SAFETY: the gate's word, written by the host alone.
        unsafe { self.open.write_volatile(1) };
    }

    /// Lets the stream go on after a while, from a thread of its own.
    pub fn open_after(self, delay: Duration) -> std::thread::JoinHandle<()> {
        std::thread::spawn(move || {
            std::thread::sleep(delay);
            self.open();
        })
    }
}

/// Asks until the answer is no longer `while_it_is`, for two seconds at most; the last answer.
pub fn until(while_it_is: u32, mut ask: impl FnMut() -> u32) -> u32 {
    let end = Instant::now() + Duration::from_secs(2);
    loop {
        let answer = ask();
        if answer != while_it_is || Instant::now() > end {
            return answer;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}
