//! Bindings: plans of one plan block, and the step that is open.
//!
//! Owns plan blocks, plans under signatures, the points at which the last step's lanes ended, and
//! the totals. Promises: one step at a time; a step that fails to begin has changed nothing but
//! waits that were queued; plans do not change while a step is open. The plan that was run longest
//! ago goes when there would be more than the limit. Lock: the binding's own, outside the pool's
//! core; it is not held while the pool allocates, which may call the pool's owner.

use super::block::PlanBlock;
use super::follow::Run;
use super::record::read;
use super::runner::{self, Hot, NOT_LIVE, Runner};
use super::script::Script;
use super::totals::Totals;
use crate::base::handles::Handles;
use crate::driver::StreamHandle;
use crate::error::{Error, Result, Status};
use crate::plan::recording::LANES_MAX;
use crate::plan::{Options, Plan};
use crate::pool::evict::Evictable;
use crate::pool::order::stream_name;
use crate::pool::{Pool, Shared, control, registry};
use crate::stream::Stamp;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The most plans that a binding may keep.
pub const PLANS_MAX: usize = 4096;

/// A plan of a binding.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) signature: u64,
    pub(super) script: Script,
    pub(super) states: Box<[u8]>,
    /// When it was last run, by the binding's count of steps.
    used: u64,
    /// The next step is recorded, and planned anew.
    learns: bool,
}

impl Entry {
    /// Whether there is a plan: a step that is only to be learnt has none.
    fn is_planned(&self) -> bool {
        self.script.lanes > 0
    }
}

/// All that the lock guards.
#[derive(Debug)]
pub(super) struct State {
    pub(super) block: PlanBlock,
    pub(super) entries: Vec<Entry>,
    plans_max: usize,
    /// Whether the plan block grows with its plans.
    grows: bool,
    pub(super) run: Option<Run>,
    /// A step is about to open: the plan block is being taken.
    beginning: bool,
    /// Where the last step's lanes ended, and captures that held some of it.
    last: Vec<Stamp>,
    /// Captures of the open step's streams that had ended when it began.
    over: Vec<u64>,
    /// A lane of the last step ended where its stream was known no more.
    lost_track: bool,
    replan_percent: u32,
    begun: u64,
    ended: bool,
    pub(super) totals: Totals,
}

/// A plan block of a pool and the plans that share it. See the room's words.
#[derive(Debug)]
pub struct Binding {
    runner: &'static Runner,
    pub(super) pool: Pool,
    shared: &'static Shared,
    /// The plan that it was made for, by number; 0: none.
    plan: u64,
    state: Mutex<State>,
}

static BINDINGS: Handles<Binding> = Handles::new("binding");

fn bad(text: impl Into<Box<str>>) -> Error {
    Error::new(Status::InvalidArgument, text)
}

fn busy(text: &str) -> Error {
    Error::new(Status::Busy, text)
}

/// What a binding is made with.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    /// Bytes of the plan block; plans that need more are refused. 0: it grows with them.
    pub bytes: u64,
    /// The plan block begins at a multiple of this.
    pub alignment: u64,
    /// Plans kept at most.
    pub plans_max: usize,
    /// When more than this share of a step's allocations fell back, the next step of its signature
    /// is recorded and planned anew; 0: never.
    pub replan_percent: u32,
}

/// Makes a binding without plans; its number. The plan block is taken now.
///
/// # Errors
/// [`Status::InvalidArgument`] for limits out of range; as of an allocation.
pub fn create(pool: u64, setup: Setup, plan: u64) -> Result<u64> {
    if setup.plans_max == 0 || setup.plans_max > PLANS_MAX {
        return Err(bad(format!("{} plans: 1 to {PLANS_MAX} are accepted", setup.plans_max)));
    }
    if setup.replan_percent > 100 {
        return Err(bad(format!("{} % is no share: 0 to 100 are accepted", setup.replan_percent)));
    }
    let most = crate::pool::slow::ALIGN_MAX as u64;
    if !setup.alignment.is_power_of_two() || setup.alignment > most {
        return Err(bad(format!("alignment {}: a power of two up to 2 MiB", setup.alignment)));
    }
    let pool = Pool::from_handle(pool)?;
    let shared = registry::pool(pool.id())?;
    let mut block = PlanBlock { address: 0, bytes: setup.bytes, alignment: setup.alignment };
    if block.missing() {
        block.address = PlanBlock::take(&pool, block.bytes, block.alignment)?;
    }
    let runner = runner::take().inspect_err(|_| drop(block.give(&pool)))?;
    let state = State {
        block,
        entries: Vec::new(),
        plans_max: setup.plans_max,
        grows: setup.bytes == 0,
        run: None,
        beginning: false,
        last: Vec::new(),
        over: Vec::new(),
        lost_track: false,
        replan_percent: setup.replan_percent,
        begun: 0,
        ended: false,
        totals: Totals::default(),
    };
    let binding = Arc::new(Binding { runner, pool, shared, plan, state: Mutex::new(state) });
    let owner: std::sync::Weak<dyn Evictable> = Arc::downgrade(&binding) as _;
    binding.pool.add_evictable(owner)?;
    BINDINGS.keep(binding)
}

/// Binds one plan to a pool, under signature 0; the binding's number.
///
/// # Errors
/// As [`create`]; [`Status::Busy`] when the plan is bound to this pool already.
pub fn bind(number: u64, plan: &Plan, pool: u64) -> Result<u64> {
    let id = Pool::from_handle(pool)?.id();
    let twice = |b: &Binding| b.plan == number && b.pool.id() == id && b.shared_lives();
    if BINDINGS.any(twice)? {
        return Err(busy("the plan is bound to this pool already; run it by that binding"));
    }
    let setup = Setup {
        bytes: plan.height(),
        alignment: plan.alignment(),
        plans_max: 1,
        replan_percent: 0,
    };
    let made = create(pool, setup, number)?;
    match get(made).and_then(|binding| binding.add(0, plan)) {
        Ok(()) => Ok(made),
        Err(error) => {
            unbind(made)?;
            Err(error)
        }
    }
}

/// The binding with this number.
///
/// # Errors
/// As [`Handles::get`].
pub fn get(number: u64) -> Result<Arc<Binding>> {
    crate::pool::world::check_world()?;
    BINDINGS.get(number)
}

/// Ends a binding: its plan block goes back behind all work queued so far.
///
/// # Errors
/// [`Status::Busy`] while a step is open, or while a graph that was captured from one may run
/// again; as [`Handles::get`].
pub fn unbind(number: u64) -> Result<()> {
    let binding = get(number)?;
    let mut state = binding.lock();
    if state.run.is_some() || state.beginning {
        return Err(busy("a step of the binding is open; end it first"));
    }
    if binding.captured(&state)? {
        return Err(busy("a graph was captured from a step; release its capture first"));
    }
    state.block.give(&binding.pool)?;
    state.ended = true;
    drop(state);
    BINDINGS.let_go(number).map(drop)
}

impl Binding {
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn shared_lives(&self) -> bool {
        self.shared.id.load(Ordering::Relaxed) == self.pool.id()
    }

    /// Whether a graph may still use the plan block.
    fn captured(&self, state: &State) -> Result<bool> {
        match self.pool.any_captured(&state.last) {
            Err(error) if error.status() == Status::InvalidPool => Ok(false),
            other => other,
        }
    }

    /// Adds a plan under a signature, or puts it in the place of the one there.
    ///
    /// # Errors
    /// [`Status::Busy`] while a step is open; [`Status::InvalidArgument`] when the plan takes more
    /// bytes than the plan block has, or another alignment.
    pub fn add(&self, signature: u64, plan: &Plan) -> Result<()> {
        let mut state = self.lock();
        if state.run.is_some() || state.beginning {
            return Err(busy("a step of the binding is open; plans change between steps"));
        }
        let script = Script::new(plan)?;
        state.fit(&self.pool, plan)?;
        state.put(signature, script);
        Ok(())
    }

    /// Has the next step of this signature recorded, and planned at its end; where there is no plan
    /// yet, the pool serves that step.
    ///
    /// # Errors
    /// [`Status::Busy`] while a step is open.
    pub fn learn(&self, signature: u64) -> Result<()> {
        let mut state = self.lock();
        if state.run.is_some() || state.beginning {
            return Err(busy("a step of the binding is open; plans change between steps"));
        }
        if state.find(signature).is_none() {
            // No plan goes before there is another in its place.
            state.put(signature, Script::empty());
        }
        if let Some(at) = state.find(signature) {
            state.entries[at].learns = true;
        }
        Ok(())
    }

    /// Leaves one more fence of a plan out, by its place among those that are issued: a step may
    /// corrupt then. For tests. Whether there was one.
    #[doc(hidden)]
    pub fn forget_fence(&self, signature: u64, place: usize) -> bool {
        let mut state = self.lock();
        let Some(at) = state.find(signature) else { return false };
        let script = &mut state.entries[at].script;
        let mut waits = std::mem::take(&mut script.waits).into_vec();
        let there = place < waits.len();
        if there {
            waits.remove(place);
        }
        script.waits = waits.into();
        there
    }

    /// What it has done so far. Exact while no step is open.
    pub fn totals(&self) -> Totals {
        let state = self.lock();
        let plan_block_bytes = if state.block.address == 0 { 0 } else { state.block.bytes };
        let plans = state.entries.iter().filter(|entry| entry.is_planned()).count() as u64;
        Totals { plan_block_bytes, plans, ..state.totals }
    }

    /// Begins a step on these streams, one for each lane of the plan; its handle. The calling
    /// thread alone may use it.
    ///
    /// # Errors
    /// [`Status::Busy`]: a step is open, or a capture forbids a wait that is needed;
    /// [`Status::NotFound`]: no plan has the signature; [`Status::InvalidArgument`]: another number
    /// of streams, or one twice; [`Status::InvalidStream`]; as of an allocation, where the
    /// plan block was given up.
    pub fn begin(self: &Arc<Self>, signature: u64, streams: &[u64]) -> Result<u64> {
        // SAFETY: this thread's own cache, whose serial never changes.
        let thread = unsafe { (*registry::enrol()?).serial };
        let mut state = self.lock();
        let at = self.check_begin(&state, signature, streams)?;
        if state.block.missing() {
            let (bytes, alignment) = (state.block.bytes, state.block.alignment);
            state.beginning = true;
            drop(state);
            let taken = PlanBlock::take(&self.pool, bytes, alignment);
            state = self.lock();
            state.beginning = false;
            // Clean memory: nobody's work is behind it.
            state.block.address = taken?;
            state.last.clear();
            state.lost_track = false;
        }
        self.order(&mut state, streams)?;
        state.over = self.pool.captures_over(streams)?;
        state.begun += 1;
        let (begun, base) = (state.begun, state.block.address);
        let entry = &mut state.entries[at];
        entry.used = begun;
        entry.states.fill(NOT_LIVE);
        let learns = std::mem::take(&mut entry.learns);
        let run = Run::new(at, streams.len(), learns);
        // SAFETY: no step is open and the lock is held, so nobody else touches the hot state.
        let hot = unsafe { &mut *self.runner.hot.get() };
        *hot = Hot::new();
        hot.base = base;
        hot.streams[..streams.len()].copy_from_slice(streams);
        hot.free_end = entry.script.frees.len();
        run.refresh(hot, entry);
        state.run = Some(run);
        let handle = self.runner.next_handle();
        let here = std::ptr::from_ref(self.shared).cast_mut();
        self.runner.shared.store(here, Ordering::Relaxed);
        self.runner.pool.store(self.pool.id(), Ordering::Relaxed);
        self.runner.owner.store(thread, Ordering::Relaxed);
        *self.runner.binding.lock().unwrap_or_else(PoisonError::into_inner) =
            Some(Arc::clone(self));
        self.runner.handle.store(handle, Ordering::Release);
        Ok(handle)
    }

    /// Whether a step may begin; the place of its plan.
    fn check_begin(&self, state: &State, signature: u64, streams: &[u64]) -> Result<usize> {
        if state.ended {
            return Err(bad("the binding has ended"));
        }
        if !self.shared_lives() {
            return Err(crate::pool::invalid_pool());
        }
        if self.shared.lost.load(Ordering::Relaxed) {
            return Err(crate::pool::loss::lost());
        }
        if state.run.is_some() || state.beginning {
            return Err(busy("a step of this binding is open; end it before another begins"));
        }
        let at = state.find(signature).ok_or_else(|| {
            let text = format!("the binding has no plan for the signature {signature:#x}");
            Error::new(Status::NotFound, text)
        })?;
        let lanes = state.entries[at].script.lanes;
        if streams.is_empty() || streams.len() > LANES_MAX || lanes > 0 && streams.len() != lanes {
            let wants = if lanes == 0 { "1 to 64".to_owned() } else { lanes.to_string() };
            return Err(bad(format!("{} streams; the plan has {wants} lanes", streams.len())));
        }
        for (i, stream) in streams.iter().enumerate() {
            if streams[..i].iter().any(|s| stream_name(*s) == stream_name(*stream)) {
                return Err(bad(format!("stream {stream:#x} is named for two lanes")));
            }
        }
        if streams.len() > 1 && self.pool.captures_open()? {
            return Err(busy("a graph capture is open: a step of several lanes needs fences"));
        }
        Ok(at)
    }

    /// Makes every lane wait for all lanes of the step before; waits for the device where a stream
    /// of that is gone untold.
    fn order(&self, state: &mut State, streams: &[u64]) -> Result<()> {
        let in_order = |last: &[Stamp]| {
            // Also tells a stream that is none.
            streams.iter().try_for_each(|&stream| self.pool.wait_for_points(stream, last))
        };
        if !state.lost_track {
            let ordered = in_order(&state.last);
            if !ordered.as_ref().is_err_and(|error| error.status() == Status::InvalidStream) {
                return ordered;
            }
            let driver = self.pool.driver()?;
            for &stream in streams {
                let checked = driver.stream_check(StreamHandle(stream_name(stream)));
                // It is one of these, then: nothing is to be waited for.
                checked.map_err(control::driver_error)?;
            }
            state.lost_track = true;
        }
        if !control::synchronize(self.shared, self.pool.id())? {
            return Err(busy("a graph capture is open, and an earlier step is to be awaited"));
        }
        state.lost_track = false;
        // A graph that has the plan block's addresses may run again.
        let captured = |point: &Stamp| self.pool.any_captured(&[*point]).unwrap_or(true);
        state.last.retain(captured);
        in_order(&state.last)
    }

    /// Ends the open step. `all`: planned buffers that are live are given up; so they are when the
    /// pool or its context is gone, where no free of them counts.
    pub(super) fn end(&self, all: bool) -> Result<()> {
        let all = all || !self.runner.pool_lives();
        let mut state = self.lock();
        // SAFETY: the caller is the step's owner.
        let hot = unsafe { &mut *self.runner.hot.get() };
        let Some(mut run) = state.run.take() else {
            return Err(bad("the step has ended"));
        };
        if !all && hot.live + run.gaps.len() > 0 {
            let text = format!(
                "{} buffers of the step are live in its plan block; free them first",
                hot.live + run.gaps.len()
            );
            state.run = Some(run);
            return Err(busy(&text));
        }
        self.runner.handle.store(0, Ordering::Release);
        self.runner.owner.store(0, Ordering::Relaxed);
        let State { entries, totals, .. } = &mut *state;
        let entry = &mut entries[run.entry];
        run.undo(entry);
        run.tally.served += hot.served;
        run.tally.missing += run.left_over(hot, entry);
        run.tally.fences_left_out += run.left_out(entry);
        run.tally.steps = 1;
        totals.add(&run.tally);
        let streams: Vec<u64> = hot.streams[..run.lanes].to_vec();
        self.mark_end(&mut state, &streams);
        let replanned = self.learn_from(&mut state, &mut run, &streams);
        *self.runner.binding.lock().unwrap_or_else(PoisonError::into_inner) = None;
        replanned
    }

    /// Keeps the points at which the lanes are now, and those of captures that held some of the
    /// step: their graphs have addresses of the plan block.
    fn mark_end(&self, state: &mut State, streams: &[u64]) {
        state.last = self.pool.captures_since(streams, &state.over).unwrap_or_default();
        for &stream in streams {
            match self.pool.point(stream) {
                Ok(point) if state.last.contains(&point) => {}
                Ok(point) => state.last.push(point),
                // Its pool or context is gone, and the memory with it; or its stream is.
                Err(_) => state.lost_track = true,
            }
        }
    }

    /// Plans the step anew if it was recorded; else has the next one recorded if this went too far
    /// another way.
    fn learn_from(&self, state: &mut State, run: &mut Run, streams: &[u64]) -> Result<()> {
        let Some(log) = run.log.take() else {
            let percent = u64::from(state.replan_percent);
            let asked = run.tally.served + run.tally.by_pool + run.tally.fallbacks;
            let astray = run.tally.fallbacks + run.tally.missing;
            state.entries[run.entry].learns = percent > 0 && astray * 100 > percent * asked;
            return Ok(());
        };
        let named = streams.iter().map(|stream| stream_name(*stream)).collect();
        let mut step = read(&log, named)?.step;
        // Those were issued before births, where the program may rely on them before frees.
        step.keeps_fences |= run.reissued;
        let plan = step.plan(&Options::default())?;
        let script = Script::new(&plan)?;
        state.fit(&self.pool, &plan)?;
        let entry = &mut state.entries[run.entry];
        entry.states = vec![NOT_LIVE; script.len()].into();
        entry.script = script;
        let signature = entry.signature;
        state.make_room(true, signature);
        state.totals.replanned += 1;
        Ok(())
    }
}

impl State {
    /// Makes the plan block long enough for a plan, where it may grow.
    fn fit(&mut self, pool: &Pool, plan: &Plan) -> Result<()> {
        let (bytes, alignment) = (plan.height(), plan.alignment());
        if bytes <= self.block.bytes && alignment <= self.block.alignment {
            return Ok(());
        }
        if !self.grows {
            return Err(bad(format!(
                "the plan takes {bytes} bytes at a multiple of {alignment}; the plan block has {} \
                 at a multiple of {}",
                self.block.bytes, self.block.alignment
            )));
        }
        if pool.any_captured(&self.last)? {
            return Err(busy("a graph was captured from a step; release its capture first"));
        }
        // The next step takes it anew.
        self.block.give(pool)?;
        self.block.bytes = bytes.max(self.block.bytes);
        self.block.alignment = alignment.max(self.block.alignment);
        Ok(())
    }

    fn find(&self, signature: u64) -> Option<usize> {
        self.entries.iter().position(|entry| entry.signature == signature)
    }

    fn put(&mut self, signature: u64, script: Script) {
        let states = vec![NOT_LIVE; script.len()].into();
        let entry = Entry { signature, script, states, used: self.begun, learns: false };
        if let Some(at) = self.find(signature) {
            let planned = entry.is_planned();
            self.entries[at] = entry;
            self.make_room(planned, signature);
            return;
        }
        let planned = entry.is_planned();
        self.entries.push(entry);
        self.make_room(planned, signature);
    }

    /// Lets the plans go that were run longest ago, while there are more than the limit; or else
    /// what is to be learnt and has no plan yet, while there is more than that of it. The one of
    /// this signature stays.
    fn make_room(&mut self, planned: bool, signature: u64) {
        let alike = |entry: &&Entry| entry.is_planned() == planned;
        while self.entries.iter().filter(alike).count() > self.plans_max {
            let others = (0..self.entries.len()).filter(|&at| {
                let entry = &self.entries[at];
                alike(&entry) && entry.signature != signature
            });
            let Some(oldest) = others.min_by_key(|&at| self.entries[at].used) else { break };
            self.entries.swap_remove(oldest);
        }
    }
}

impl Evictable for Binding {
    fn evict(&self) -> bool {
        let Ok(mut state) = self.state.try_lock() else { return false };
        let in_use = state.run.is_some() || state.beginning || state.block.address == 0;
        if in_use || self.captured(&state).unwrap_or(true) {
            return false;
        }
        let given = state.block.give(&self.pool);
        if let Err(error) = given {
            tracing::warn!(%error, "a plan block could not be given up");
            return false;
        }
        state.totals.given_up += 1;
        tracing::info!(bytes = state.block.bytes, "an idle plan block was given up for memory");
        true
    }
}

impl Drop for Binding {
    fn drop(&mut self) {
        runner::give(self.runner);
    }
}
