//! The scheduler: which queue's head runs next, and who runs it.
//!
//! Owns the choices. Promises that an entry runs only when it is its queue's head and all points
//! it waits for are passed; that a wait runs what it needs, so it ends unless what it needs can
//! never run; and that, in the late mode, a stream that got work is held back for a random number
//! of turns unless somebody waits for it. It must not hold the engine's lock while an entry runs.
//! Cost: a turn is O(streams); a wait is O(entries it needs) once, then turns.

use std::collections::BTreeMap;
use std::sync::MutexGuard;
use std::time::{Duration, Instant};

use super::{Action, Code, Context, Engine, Point, Schedule, State, Uid, View, Work, code};

/// How long a turn lets a host function finish before it goes on without it. Keeps the order of
/// other streams' work from depending on how fast that function is.
const HOST_GRACE: Duration = Duration::from_millis(20);
/// How long a waiter sleeps when nothing can run: a value in memory may come from the host.
const POLL: Duration = Duration::from_millis(1);
/// A wait for which nothing could run for this long is reported, once.
const STALL: Duration = Duration::from_secs(10);
/// One turn in this many runs something nobody waits for, while somebody waits.
const STRAY: u64 = 8;
/// One call in this many runs something in the late mode.
const CALL: u64 = 3;

enum Outcome {
    Done,
    NotYet,
    Fault(String),
}

impl Engine {
    /// To be called at the end of each call of the driver, with no lock held: lets time pass.
    pub fn tick(&self) {
        let mut state = self.lock();
        state.calls += 1;
        match state.options.mode {
            Schedule::Stepped => {}
            Schedule::Eager => drop(self.run_ready(state, u64::MAX)),
            Schedule::Late => {
                if state.driving || state.queues.is_empty() {
                    return;
                }
                for queue in state.queues.values_mut() {
                    queue.hold = queue.hold.saturating_sub(1);
                }
                if state.rng.below(CALL) == 0
                    && let Some(uid) = state.choose_held_out()
                {
                    drop(self.run_head(state, uid));
                }
            }
        }
    }

    /// Runs up to `turns` ready entries, whatever is held back; gives how many ran.
    pub fn step(&self, turns: u32) -> u32 {
        let mut state = self.lock();
        state.calls += 1;
        let before = state.progress;
        let state = self.run_ready(state, u64::from(turns));
        u32::try_from(state.progress - before).unwrap_or(u32::MAX)
    }

    fn run_ready<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        turns: u64,
    ) -> MutexGuard<'a, State> {
        let goal = state.progress.saturating_add(turns);
        while state.progress < goal {
            if state.driving {
                state = self.sleep(state, HOST_GRACE);
                continue;
            }
            let Some(uid) = state.choose(&BTreeMap::new()) else { break };
            state = self.run_head(state, uid);
        }
        state
    }

    /// Blocks until all `points` are passed, running what they need. Afterwards gives the error
    /// that sticks to `context`, if any, else the greatest virtual time among the points.
    pub fn wait(&self, context: Context, points: &[Point]) -> Result<f64, Code> {
        let mut state = self.lock();
        state.calls += 1;
        let needed = state.needed(points);
        let mut graced = None;
        let mut stalled: Option<Instant> = None;
        let mut told = false;
        while points.iter().any(|p| !state.passed(*p)) {
            if state.driving {
                state = self.sleep(state, HOST_GRACE);
                continue;
            }
            if state.hosts_running > 0 && graced != Some(state.progress) {
                graced = Some(state.progress);
                state = self.sleep(state, HOST_GRACE);
                continue;
            }
            if let Some(uid) = state.choose(&needed) {
                let before = state.progress;
                state = self.run_head(state, uid);
                if state.progress != before {
                    stalled = None;
                }
                continue;
            }
            let since = *stalled.get_or_insert_with(Instant::now);
            if since.elapsed() > STALL && state.hosts_running == 0 && !told {
                told = true;
                let text = state.stall(points);
                drop(state);
                self.report("a wait that cannot end", text);
                state = self.lock();
            }
            state = self.sleep(state, POLL);
            state.calls += 1;
        }
        let at_us = points.iter().fold(0.0, |t: f64, p| p.at_us.max(t));
        let late_us = at_us - self.now_us();
        if late_us > 0.0 {
            self.clock.advance_ns((late_us * 1000.0) as u64);
        }
        match state.status(context) {
            Some(fault) => Err(fault),
            None => Ok(at_us),
        }
    }

    /// Runs the head of a queue with the lock released, and takes it off the queue if it is done.
    fn run_head<'a>(&'a self, mut state: MutexGuard<'a, State>, uid: Uid) -> MutexGuard<'a, State> {
        let Some(queue) = state.queues.get_mut(&uid) else { return state };
        let Some(entry) = queue.entries.front() else { return state };
        let (action, context, handle) = (entry.action.clone(), queue.context, queue.handle);
        queue.busy = true;
        let status = state.status(context);
        if let Action::Host(call) = action {
            state.hosts_running += 1;
            self.host.entry(self.me.clone(), uid, call, status.unwrap_or(0));
            return state;
        }
        state.driving = true;
        drop(state);
        let outcome = match status {
            Some(_) => Outcome::Done,
            None => self.execute(&action),
        };
        drop(action);
        let fault = match &outcome {
            Outcome::Fault(why) => {
                let text = format!("{why}; stream {handle:#x} (identity {uid})");
                self.report("queued work on memory it may not touch", text);
                true
            }
            _ => false,
        };
        let mut state = self.lock();
        state.driving = false;
        if fault {
            state.fail(context, code::ILLEGAL_ADDRESS);
        }
        match outcome {
            Outcome::NotYet => {
                let stamp = state.stamp();
                if let Some(queue) = state.queues.get_mut(&uid) {
                    queue.busy = false;
                    queue.tried = Some(stamp);
                }
            }
            _ => state.finish(uid),
        }
        self.announce();
        state
    }

    fn execute(&self, action: &Action) -> Outcome {
        match action {
            Action::Work(work) => self.run_work(work),
            Action::Until(work, test) => self.run_until(work, &**test),
            Action::Host(_) | Action::Mark(_) | Action::Join(_) => Outcome::Done,
        }
    }

    fn run_work(&self, work: &Work) -> Outcome {
        if let Some(why) = self.pool_denies(work) {
            return Outcome::Fault(why);
        }
        let mut told = Ok(());
        let mut body = |view: View<'_>| told = (work.body)(view);
        let checked = self.memory.guarded(&work.reads, &work.writes, &mut body);
        match (checked, told) {
            (Ok(()), Ok(())) => Outcome::Done,
            (Ok(()), Err(why)) => Outcome::Fault(format!("{}: {why}", work.label)),
            (Err(fault), _) => Outcome::Fault(describe(work, &fault)),
        }
    }

    fn pool_denies(&self, work: &Work) -> Option<String> {
        let ranges = || work.reads.iter().chain(&work.writes);
        let pools = self.pools();
        let why = ranges().find_map(|r| pools.denied(r));
        drop(pools);
        let graphs = self.graph_memory();
        let why = why.or_else(|| ranges().find_map(|r| graphs.denied(r)));
        why.map(|why| format!("{}: {why}", work.label))
    }

    fn run_until(&self, work: &Work, test: &(dyn Fn(View<'_>) -> bool + Send + Sync)) -> Outcome {
        if let Some(why) = self.pool_denies(work) {
            return Outcome::Fault(why);
        }
        let mut holds = false;
        let mut told = Ok(());
        let mut body = |view: View<'_>| {
            holds = test(view);
            if holds {
                told = (work.body)(view);
            }
        };
        let checked = self.memory.guarded(&work.reads, &work.writes, &mut body);
        match (checked, told) {
            (Err(fault), _) => Outcome::Fault(describe(work, &fault)),
            (Ok(()), Err(why)) => Outcome::Fault(format!("{}: {why}", work.label)),
            (Ok(()), Ok(())) if holds => Outcome::Done,
            (Ok(()), Ok(())) => Outcome::NotYet,
        }
    }

    /// The host thread has run the head of a queue.
    pub(super) fn host_done(&self, uid: Uid) {
        let mut state = self.lock();
        state.hosts_running = state.hosts_running.saturating_sub(1);
        state.finish(uid);
        drop(state);
        self.announce();
    }

    /// Starts the thread that acts when the program makes no calls; once.
    pub(super) fn start_idler(&self) {
        let mut state = self.lock();
        if state.idler || state.options.idle_ms == 0 || state.options.mode == Schedule::Stepped {
            return;
        }
        state.idler = true;
        let nap = Duration::from_millis(state.options.idle_ms);
        drop(state);
        let me = self.me.clone();
        let run = move || {
            let mut seen = 0;
            loop {
                std::thread::sleep(nap);
                let Some(engine) = me.upgrade() else { return };
                seen = engine.idle(seen);
            }
        };
        // Without this thread only calls of the program make work run; nothing else is lost.
        let _ = std::thread::Builder::new().name("simcuda-idle".into()).spawn(run);
    }

    /// Runs what is ready if no call was made since `seen` calls, until one is made.
    fn idle(&self, seen: u64) -> u64 {
        let mut state = self.lock();
        if state.calls != seen {
            return state.calls;
        }
        for queue in state.queues.values_mut() {
            queue.tried = None;
        }
        while state.calls == seen && !state.driving {
            let Some(uid) = state.choose(&BTreeMap::new()) else { break };
            state = self.run_head(state, uid);
        }
        state.calls
    }
}

fn describe(work: &Work, fault: &super::RangeFault) -> String {
    let (start, end) = (fault.range.start, fault.range.start.wrapping_add(fault.range.len));
    let what = if fault.write { "writes" } else { "reads" };
    format!("{} {what} {start:#x}..{end:#x}: {}", work.label, fault.why)
}

impl State {
    /// Changes whenever an entry that was tried in vain may be tried again.
    fn stamp(&self) -> u64 {
        self.progress.wrapping_add(self.calls)
    }

    fn runnable(&self, uid: Uid) -> bool {
        let Some(queue) = self.queues.get(&uid) else { return false };
        let Some(entry) = queue.entries.front() else { return false };
        !queue.busy
            && queue.tried != Some(self.stamp())
            && entry.deps.iter().all(|d| self.passed(*d))
    }

    /// A runnable queue that is not held back.
    fn choose_held_out(&mut self) -> Option<Uid> {
        let free: Vec<Uid> = self
            .queues
            .iter()
            .filter(|(uid, q)| q.hold == 0 && self.runnable(**uid))
            .map(|(uid, _)| *uid)
            .collect();
        self.one_of(&free)
    }

    /// A runnable queue: mostly one that is needed, now and then one that is not held back; if
    /// none of these can run, any.
    fn choose(&mut self, needed: &BTreeMap<Uid, u64>) -> Option<Uid> {
        let (mut own, mut stray, mut held) = (Vec::new(), Vec::new(), Vec::new());
        for (uid, queue) in &self.queues {
            if !self.runnable(*uid) {
                continue;
            }
            match needed.get(uid) {
                Some(seq) if queue.done < *seq => own.push(*uid),
                _ if queue.hold == 0 => stray.push(*uid),
                _ => held.push(*uid),
            }
        }
        if own.is_empty() {
            stray.append(&mut held);
            return self.one_of(&stray);
        }
        let wander = !stray.is_empty() && self.rng.below(STRAY) == 0;
        self.one_of(if wander { &stray } else { &own })
    }

    fn one_of(&mut self, uids: &[Uid]) -> Option<Uid> {
        match uids.len() as u64 {
            0 => None,
            n => Some(uids[self.rng.below(n) as usize]),
        }
    }

    /// For each queue, up to where it must run for all `points` to be passed.
    pub(crate) fn needed(&self, points: &[Point]) -> BTreeMap<Uid, u64> {
        let mut needed: BTreeMap<Uid, u64> = BTreeMap::new();
        let mut open: Vec<Point> = points.iter().filter(|p| !self.passed(**p)).copied().collect();
        while let Some(point) = open.pop() {
            let known = needed.get(&point.uid).copied().unwrap_or(0);
            let Some(queue) = self.queues.get(&point.uid) else { continue };
            if known >= point.seq {
                continue;
            }
            needed.insert(point.uid, point.seq);
            let part = queue.entries.iter().filter(|e| e.seq > known && e.seq <= point.seq);
            open.extend(part.flat_map(|e| e.deps.iter()).filter(|d| !self.passed(**d)));
        }
        needed
    }

    /// Takes the head off a queue: it is done.
    fn finish(&mut self, uid: Uid) {
        self.progress += 1;
        let Some(queue) = self.queues.get_mut(&uid) else { return };
        queue.busy = false;
        queue.tried = None;
        if let Some(entry) = queue.entries.pop_front() {
            queue.done = entry.seq;
        }
        self.bury(uid);
    }

    fn stall(&self, points: &[Point]) -> String {
        let open: Vec<String> = self
            .needed(points)
            .keys()
            .filter_map(|uid| {
                let entry = self.queues.get(uid)?.entries.front()?;
                Some(format!("stream {uid}: {:?} (entry {})", entry.action.kind(), entry.seq))
            })
            .collect();
        format!("a wait makes no progress: nothing it needs can run ({})", open.join(", "))
    }
}
