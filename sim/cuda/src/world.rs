//! The world: settings, devices, contexts, each thread's stack of current contexts.
//!
//! Owns all state that the world's lock guards, and the ends of it: a new world when it is
//! configured anew, code 3 in a forked child, code 4 once exit handlers run. A world's number
//! (its generation) tells threads that their stacks belong to an older one.

use crate::cost::{self, Clock, Model, Work};
use crate::engine::Engine;
use crate::entry::{Call, Needs};
use crate::journal::Journal;
use crate::memory::Memory;
use crate::misuse;
use crate::results::*;
use crate::settings::{Settings, UNKNOWN_CODE};
use crate::symbols;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// What is known of a context outside the world's lock: streams keep it.
#[derive(Debug)]
pub struct ContextState {
    /// Its handle.
    pub id: u64,
    /// Its device.
    pub device: i32,
    /// Whether it is the device's primary context.
    pub primary: bool,
    /// The flags it was made with.
    pub flags: AtomicU32,
    /// A number that no other context of the process has, for `cuCtxGetId`.
    pub unique: u64,
    /// The error that sticks, or 0.
    sticky: AtomicU32,
    destroyed: AtomicBool,
}

impl ContextState {
    /// The error that sticks, or 0.
    pub fn sticky(&self) -> CUresult {
        self.sticky.load(Ordering::Acquire)
    }

    /// Makes an error stick; the first one stays.
    pub fn fail(&self, code: CUresult) {
        let _ = self.sticky.compare_exchange(0, code, Ordering::AcqRel, Ordering::Acquire);
    }

    /// Whether it was destroyed.
    pub fn is_destroyed(&self) -> bool {
        self.destroyed.load(Ordering::Acquire)
    }
}

/// A context's own settings, as `cuCtxSetLimit` and its like keep them.
pub struct Context {
    /// What streams share.
    pub state: Arc<ContextState>,
    /// Limits by `CU_LIMIT_*`.
    pub limits: BTreeMap<u32, u64>,
    /// Devices' contexts that it may reach.
    pub peers: Vec<u64>,
    /// The API version that it was made with.
    pub api_version: u32,
    /// The preferred cache configuration.
    pub cache_config: u32,
    /// Uses that `cuCtxDetach` gives back.
    pub uses: u32,
}

/// A device.
pub struct Device {
    /// Its place in the list.
    pub ordinal: i32,
    /// Flags for its primary context.
    pub primary_flags: u32,
    /// How often its primary context is retained.
    pub primary_refs: u32,
}

/// All that the world's lock guards.
pub struct World {
    /// The world's number.
    pub generation: u64,
    /// What it was made from.
    pub settings: Settings,
    /// Why the settings could not be read; `cuInit` answers 1 then.
    pub settings_error: Option<String>,
    /// Whether `cuInit` has succeeded.
    pub initialised: bool,
    /// Its devices.
    pub devices: Vec<Device>,
    /// Live contexts by handle.
    pub contexts: BTreeMap<u64, Context>,
    /// Virtual time.
    pub clock: Arc<Clock>,
    /// Memory.
    pub memory: Arc<Memory>,
    /// Streams and their work.
    pub engine: Arc<Engine>,
    /// Calls by name.
    pub counts: BTreeMap<&'static str, u64>,
    /// The process that it was made in.
    process: i32,
    /// Destroyed contexts, by handle.
    destroyed: BTreeMap<u64, Arc<ContextState>>,
    next_context: u64,
    journal: Journal,
    model: Model,
    work: Work,
}

/// What a context takes to be made under the handle of one that was reset: some way below what a
/// driver needs, tens of milliseconds, so that who looks less often than that is found out.
const ANEW: Duration = Duration::from_millis(20);

static WORLD: Mutex<Option<World>> = Mutex::new(None);
static OWNER: AtomicI32 = AtomicI32::new(0);
static EXITING: AtomicBool = AtomicBool::new(false);
static GENERATIONS: AtomicU64 = AtomicU64::new(0);
static CONTEXTS: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// The world that the stack belongs to, and the stack; the current context is last.
    /// Never dropped: exit hooks of a thread may still call the driver, after the language's
    /// own thread-locals are gone. A thread leaves its few bytes behind.
    static STACK: ManuallyDrop<RefCell<(u64, Vec<u64>)>> =
        const { ManuallyDrop::new(RefCell::new((0, Vec::new()))) };
}

/// The world's lock, held.
pub struct Locked(MutexGuard<'static, Option<World>>);

impl Deref for Locked {
    type Target = World;
    fn deref(&self) -> &World {
        match &*self.0 {
            Some(world) => world,
            None => unreachable!("lock() makes a world before it answers"),
        }
    }
}

impl DerefMut for Locked {
    fn deref_mut(&mut self) -> &mut World {
        match &mut *self.0 {
            Some(world) => world,
            None => unreachable!("lock() makes a world before it answers"),
        }
    }
}

fn pid() -> i32 {
    // SAFETY: getpid has no preconditions.
    unsafe { libc::getpid() }
}

/// Whether this is a child of the process that called `cuInit`.
pub fn is_forked() -> bool {
    let owner = OWNER.load(Ordering::Acquire);
    owner != 0 && owner != pid()
}

/// Why no call may go on: 3 in a child of the process that called `cuInit`, 4 once exit
/// handlers run. `harmless` calls (names of errors, versions) go on.
pub fn closed(harmless: bool) -> Option<CUresult> {
    if harmless {
        return None;
    }
    if is_forked() {
        return Some(CUDA_ERROR_NOT_INITIALIZED);
    }
    EXITING.load(Ordering::Acquire).then_some(CUDA_ERROR_DEINITIALIZED)
}

/// Whether this process may still use the world: neither a forked child nor at its end.
pub fn is_open() -> bool {
    closed(false).is_none()
}

/// Takes the world's lock; makes a world from the variables if there is none yet.
pub fn lock() -> Locked {
    let mut guard = WORLD.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(old) = guard.take_if(|world| world.process != pid()) {
        // A child of a process that had not called `cuInit` yet: it begins anew with the same
        // settings. The old world's threads do not exist here, so nothing of it is ended.
        *guard = Some(World::with(match &old.settings_error {
            Some(why) => Err(why.clone()),
            None => Ok(old.settings.of_child(pid())),
        }));
        std::mem::forget(old);
    }
    if guard.is_none() {
        let variables = std::env::vars_os().filter_map(|(name, value)| {
            Some((name.into_string().ok()?, value.to_string_lossy().into_owned()))
        });
        *guard = Some(World::with(Settings::from_variables(variables)));
    }
    Locked(guard)
}

/// Ends the world and begins another; the error is also what `cuInit` will refuse with.
pub fn configure(settings: Result<Settings, String>) -> Result<(), String> {
    let mut guard = WORLD.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(old) = guard.take() {
        old.engine.stop();
    }
    misuse::clear();
    let world = World::with(settings);
    let told = world.settings_error.clone();
    *guard = Some(world);
    told.map_or(Ok(()), Err)
}

extern "C" fn at_exit() {
    let owner = OWNER.load(Ordering::Acquire);
    if owner != pid() || EXITING.swap(true, Ordering::AcqRel) {
        return;
    }
    crate::control::write_report_at_exit();
}

/// From `cuInit` on the process owns the driver, until its exit handlers run.
fn own() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    OWNER.store(pid(), Ordering::Release);
    ONCE.call_once(|| {
        // SAFETY: the handler is a function of this library, which is never unloaded.
        unsafe { libc::atexit(at_exit) };
    });
}

impl World {
    fn with(settings: Result<Settings, String>) -> World {
        let (settings, mut error) = match settings {
            Ok(settings) => (settings, None),
            Err(why) => (Settings::default(), Some(why)),
        };
        let path = settings.journal.as_deref().map(named);
        let journal = Journal::open(path.as_deref()).unwrap_or_else(|why| {
            error.get_or_insert(why);
            Journal::default()
        });
        let clock = Arc::new(Clock::default());
        let memory = Memory::new(&settings).or_else(|why| {
            error.get_or_insert(why);
            Memory::new(&Settings::default())
        });
        let memory = match memory {
            Ok(memory) => memory,
            Err(why) => panic!("no memory even with default settings: {why}"),
        };
        let engine = Engine::new(&settings, memory.clone(), clock.clone());
        let devices = (0..settings.devices as i32)
            .map(|ordinal| Device { ordinal, primary_flags: 0, primary_refs: 0 })
            .collect();
        World {
            generation: GENERATIONS.fetch_add(1, Ordering::Relaxed) + 1,
            model: Model::new(&settings),
            settings,
            settings_error: error,
            initialised: false,
            devices,
            contexts: BTreeMap::new(),
            clock,
            memory,
            engine,
            counts: BTreeMap::new(),
            process: pid(),
            destroyed: BTreeMap::new(),
            next_context: 0,
            journal,
            work: Work::default(),
        }
    }

    /// `cuInit`: the settings are as they must be, and the process owns the driver.
    pub fn initialise(&mut self) -> Result<(), CUresult> {
        if let Some(why) = &self.settings_error {
            eprintln!("simulated CUDA: {why}");
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        if let Some(code) = self.refused("init") {
            return Err(code);
        }
        self.initialised = true;
        own();
        Ok(())
    }

    /// The code that a feature is refused with, if it is.
    pub fn refused(&self, feature: &str) -> Option<CUresult> {
        self.settings.refuse.get(feature).copied()
    }

    /// Whether the devices advertise a feature.
    pub fn has(&self, feature: &str) -> bool {
        !self.settings.lacks.iter().any(|f| f == feature)
    }

    /// Adds to what the call does, for its cost.
    pub fn charge(&mut self, mappings: u64, bytes: u64) {
        self.work.mappings += mappings;
        self.work.bytes += bytes;
    }

    /// Says that the call works on host memory, for its cost.
    pub fn charge_host(&mut self) {
        self.work.host = true;
    }

    /// What was charged so far, taken away: a call is about to let the lock go.
    pub fn take_work(&mut self) -> Work {
        std::mem::take(&mut self.work)
    }

    /// Puts back what [`take_work`](World::take_work) took.
    pub fn put_work(&mut self, work: Work) {
        self.work = work;
    }

    /// What comes before every body.
    pub fn begin(&mut self, call: &'static Call, stall_ns: &mut u64) -> Result<(), CUresult> {
        *self.counts.entry(call.name).or_default() += 1;
        self.work = Work::default();
        if call.needs != Needs::Nothing && !self.initialised {
            return Err(CUDA_ERROR_NOT_INITIALIZED);
        }
        let verdict =
            self.settings.faults.consult(call.name, call.asked, call.needs != Needs::Nothing);
        *stall_ns = verdict.stall_ns;
        if let (Some(code), Ok(state)) = (verdict.lose, self.current_context()) {
            state.fail(code);
        }
        if let Some(code) = verdict.fail {
            return Err(code);
        }
        if !symbols::has(&self.settings, call) {
            return Err(CUDA_ERROR_NOT_SUPPORTED);
        }
        if self.settings.unknown.iter().any(|n| n == call.name || n == call.asked) {
            return Err(UNKNOWN_CODE);
        }
        if call.needs == Needs::Context || call.sticky {
            match self.current_context() {
                Ok(state) if call.sticky && state.sticky() != 0 => return Err(state.sticky()),
                Err(code) if call.needs == Needs::Context => return Err(code),
                _ => {}
            }
        }
        if call.unsafe_in_capture {
            self.engine.check_capture()?;
        }
        Ok(())
    }

    /// What follows every body: time, journal, the answer.
    pub fn end(
        &mut self,
        call: &'static Call,
        args: impl FnOnce() -> String,
        done: Result<(), CUresult>,
        stall_ns: u64,
    ) -> CUresult {
        let code = done.err().unwrap_or(CUDA_SUCCESS);
        let ns =
            self.model.cost_ns(call.asked, self.work, self.clock.now_ns()).saturating_add(stall_ns);
        let now = self.clock.advance_ns(ns);
        if self.settings.real_delays && ns > 0 {
            cost::sleep(ns, self.settings.host_lock.as_deref());
        }
        if self.journal.is_open() {
            let args = args();
            self.journal.write(call.name, &args, code, now);
        }
        code
    }

    /// The device of an ordinal: else 101.
    pub fn device(&mut self, ordinal: i32) -> Result<&mut Device, CUresult> {
        usize::try_from(ordinal)
            .ok()
            .and_then(|i| self.devices.get_mut(i))
            .ok_or(CUDA_ERROR_INVALID_DEVICE)
    }

    /// The current context of this thread: 201 without one, 709 when it was destroyed.
    pub fn current_context(&self) -> Result<Arc<ContextState>, CUresult> {
        let id = self.stack(|stack| stack.last().copied()).unwrap_or(0);
        match self.contexts.get(&id) {
            Some(context) => Ok(context.state.clone()),
            None if self.destroyed.contains_key(&id) || self.is_idle_primary(id) => {
                Err(CUDA_ERROR_CONTEXT_IS_DESTROYED)
            }
            None => Err(CUDA_ERROR_INVALID_CONTEXT),
        }
    }

    /// A live context by handle: else 201. To pass the handle of a destroyed one is misuse,
    /// since the real driver may read what is no longer there.
    pub fn context(&mut self, id: u64) -> Result<&mut Context, CUresult> {
        if let Some(old) = self.destroyed.get(&id).filter(|old| !old.primary) {
            let story = format!("context {id:#x} of device {} was destroyed before", old.device);
            misuse::record(misuse::DESTROYED_CONTEXT, story);
        }
        self.contexts.get_mut(&id).ok_or(CUDA_ERROR_INVALID_CONTEXT)
    }

    /// Whether a handle is that of a primary context which is not active now.
    pub fn is_idle_primary(&self, id: u64) -> bool {
        let known = self.devices.iter().any(|d| self.primary_id(d.ordinal) == id);
        known && !self.contexts.contains_key(&id)
    }

    /// Whether a context may become current: a live one, or a primary one that will answer
    /// 709 until it is active again.
    pub fn may_be_current(&mut self, id: u64) -> Result<(), CUresult> {
        if self.is_idle_primary(id) { Ok(()) } else { self.context(id).map(drop) }
    }

    /// This thread's stack of contexts, the current one last.
    pub fn stack<R: Default>(&self, see: impl FnOnce(&mut Vec<u64>) -> R) -> R {
        let seen = STACK.try_with(|cell| {
            let mut cell = cell.borrow_mut();
            if cell.0 != self.generation {
                *cell = (self.generation, Vec::new());
            }
            see(&mut cell.1)
        });
        seen.unwrap_or_default()
    }

    /// The handle of a device's primary context, active or not: it stays the same.
    pub fn primary_id(&self, ordinal: i32) -> u64 {
        handle(self.generation, 1 + ordinal as u64)
    }

    /// Tells memory which devices reach which: those with a context that has a peer there.
    pub fn refresh_peers(&self) {
        let device = |id: &u64| self.contexts.get(id).map(|c| c.state.device);
        let pairs: Vec<(i32, i32)> = self
            .contexts
            .values()
            .flat_map(|c| c.peers.iter().filter_map(|p| Some((c.state.device, device(p)?))))
            .collect();
        for accessor in 0..self.devices.len() as i32 {
            for owner in (0..self.devices.len() as i32).filter(|owner| *owner != accessor) {
                let may = pairs.contains(&(accessor, owner));
                self.memory.set_peer(accessor as u32, owner as u32, may);
            }
        }
    }

    /// Makes a context; not yet current anywhere. Under the handle of one that ended it takes
    /// [`ANEW`], asleep.
    pub fn create_context(&mut self, device: i32, primary: bool, flags: u32) -> u64 {
        let id = if primary {
            self.primary_id(device)
        } else {
            self.next_context += 1;
            handle(self.generation, 0x100 + self.next_context)
        };
        if self.destroyed.remove(&id).is_some() {
            std::thread::sleep(ANEW);
        }
        let state = Arc::new(ContextState {
            id,
            device,
            primary,
            flags: AtomicU32::new(flags),
            unique: CONTEXTS.fetch_add(1, Ordering::Relaxed) + 1,
            sticky: AtomicU32::new(0),
            destroyed: AtomicBool::new(false),
        });
        self.engine.context_created(&state);
        let context = Context {
            state,
            limits: BTreeMap::new(),
            peers: Vec::new(),
            api_version: 3020,
            cache_config: 0,
            uses: 1,
        };
        self.contexts.insert(id, context);
        id
    }

    /// Ends a context: its streams, events and plain memory go; what `cuMemCreate` made stays.
    pub fn destroy_context(&mut self, id: u64) {
        let Some(context) = self.contexts.remove(&id) else { return };
        context.state.destroyed.store(true, Ordering::Release);
        self.engine.context_destroyed(id);
        self.memory.context_destroyed(id);
        for other in self.contexts.values_mut() {
            other.peers.retain(|peer| *peer != id);
        }
        self.destroyed.insert(id, context.state);
        self.refresh_peers();
    }
}

/// A file's name with `%p` made the process's number.
pub fn named(path: &str) -> String {
    path.replace("%p", &pid().to_string())
}

/// A context's handle: no address of anything, told apart between worlds.
fn handle(generation: u64, number: u64) -> u64 {
    0x5C00_0000_0000_0000 | (generation << 24) | (number << 4)
}
