//! The book of lanes: sequences, fences in flight, joins, captures.
//!
//! Owns every event of a pool. A lane's frees carry its open sequence; a fence covers
//! all of them and opens the next. Fences settle in order. See the room's page for
//! the invariants.

mod settle;

use super::{CLEAN, JOIN, LANES_MAX, LaneId, Stamp};
use crate::driver::{Driver, DriverResult, EventHandle, Scope, StreamHandle};
use std::collections::{BTreeMap, HashMap, VecDeque};

/// A join's number: a count, and in these many low bits the lane of its first part.
const JOIN_SHIFT: u32 = 16;

/// What orders a lane's frees.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LaneKind {
    /// One stream.
    Stream(StreamHandle),
    /// All work of the device (`cudaFree`'s meaning).
    Sync,
    /// An open or released-later graph capture: its stamps pass at release only.
    Capture(StreamHandle),
    /// The number is unused; waiting to serve again.
    Unused,
}

/// A point recorded on the device.
#[derive(Debug)]
struct Fence {
    seq: u64,
    /// One event, or one a known stream where the device has no context events.
    events: Vec<EventHandle>,
    /// What must have passed as well: streams that had ended when it was recorded, unfinished.
    after: Vec<Stamp>,
}

/// Fences that a lane has in flight at most; a further one moves the newest.
const FENCES_KEPT: usize = 16;

#[derive(Debug)]
struct Lane {
    kind: LaneKind,
    key: u64,
    /// The sequence that frees get now.
    open: u64,
    /// Everything up to this sequence has passed.
    passed: u64,
    /// Bytes and count freed under the open sequence.
    dirty_bytes: u64,
    dirty_count: u64,
    fences: VecDeque<Fence>,
    /// Retired: the number is reused once the last fence has passed.
    retired: bool,
    /// What the lane's stream has been made to wait for: another lane, up to a sequence.
    awaited: Vec<(LaneId, u64)>,
}

/// All lanes of one pool.
#[derive(Debug)]
pub struct Lanes {
    lanes: Vec<Lane>,
    by_key: HashMap<u64, LaneId>,
    spare: Vec<LaneId>,
    events: Vec<EventHandle>,
    /// Empty lists for fences to come.
    lists: Vec<Vec<EventHandle>>,
    joins: BTreeMap<u64, Vec<Stamp>>,
    next_join: u64,
    open_captures: u32,
    context_events: bool,
    /// Whether a lane may take what another freed once that has passed.
    opportunistic: bool,
    /// Test hook: every stamp counts as passed at once.
    ignore_stamps: bool,
    /// Fences recorded in all.
    pub fences_recorded: u64,
}

impl Lanes {
    /// No lanes yet. `context_events`: whether one event can mark the whole device.
    pub fn new(context_events: bool) -> Lanes {
        let clean = Lane::new(LaneKind::Unused, 0);
        Lanes {
            lanes: vec![clean],
            by_key: HashMap::new(),
            spare: Vec::new(),
            events: Vec::new(),
            lists: Vec::new(),
            joins: BTreeMap::new(),
            next_join: 1,
            open_captures: 0,
            context_events,
            opportunistic: true,
            ignore_stamps: false,
            fences_recorded: 0,
        }
    }

    /// The lane behind `key`, if it has one.
    pub fn find(&self, key: u64) -> Option<LaneId> {
        self.by_key.get(&key).copied()
    }

    /// A new lane for `key`; `None` when all numbers are taken.
    pub fn open(&mut self, key: u64, kind: LaneKind) -> Option<LaneId> {
        debug_assert!(!self.by_key.contains_key(&key), "one lane a key");
        let id = match self.spare.pop() {
            Some(id) => id,
            None if self.lanes.len() < LANES_MAX => {
                self.lanes.push(Lane::new(LaneKind::Unused, 0));
                (self.lanes.len() - 1) as LaneId
            }
            None => return None,
        };
        let lane = &mut self.lanes[id as usize];
        debug_assert!(lane.fences.is_empty() && lane.dirty_count == 0);
        lane.kind = kind;
        lane.key = key;
        lane.retired = false;
        // Another stream: it has waited for nothing yet.
        lane.awaited.clear();
        self.by_key.insert(key, id);
        Some(id)
    }

    /// The numbers of all lanes in use, retired ones included.
    pub fn ids(&self) -> Vec<LaneId> {
        let used = |&id: &LaneId| self.lanes[id as usize].kind != LaneKind::Unused;
        (1..self.lanes.len() as LaneId).filter(used).collect()
    }

    /// The default stream and every stream that has a lane.
    pub fn streams(&self) -> Vec<StreamHandle> {
        let scopes = self.known_streams().into_iter();
        scopes.filter_map(|s| if let Scope::Stream(s) = s { Some(s) } else { None }).collect()
    }

    /// The stream whose order `lane`'s frees follow; the default stream for the sync lane.
    pub fn stream_of(&self, lane: LaneId) -> StreamHandle {
        match self.lanes[lane as usize].kind {
            LaneKind::Stream(stream) | LaneKind::Capture(stream) => stream,
            LaneKind::Sync | LaneKind::Unused => StreamHandle(0),
        }
    }

    /// What orders `lane`.
    pub fn kind(&self, lane: LaneId) -> LaneKind {
        self.lanes[lane as usize].kind
    }

    /// Whether lanes may take what others freed, once it has passed. Otherwise such memory
    /// changes lanes only by moving its pages.
    pub fn set_opportunistic(&mut self, on: bool) {
        self.opportunistic = on;
    }

    /// Whether a piece with this stamp is everyone's from now on.
    pub fn cleans(&self, stamp: Stamp) -> bool {
        stamp.lane == CLEAN || (self.opportunistic && self.passed(stamp))
    }

    /// Makes every stamp count as passed: memory is then reused too early. For the tests that
    /// must find the corruption; never set otherwise.
    pub fn ignore_stamps(&mut self) {
        self.ignore_stamps = true;
    }

    /// How many lanes serve a stream, a capture or the sync meaning now.
    pub fn active(&self) -> usize {
        self.by_key.len()
    }

    /// Whether `lane` belongs to a capture (its memory is its graph's until release).
    pub fn is_capture(&self, lane: LaneId) -> bool {
        matches!(self.lanes[lane as usize].kind, LaneKind::Capture(_))
    }

    /// How many captures are open now: while any is, no fence is recorded.
    pub fn open_captures(&self) -> u32 {
        self.open_captures
    }

    /// The stamp for something of `bytes` freed on `lane` now.
    #[inline]
    pub fn stamp(&mut self, lane: LaneId, bytes: u64) -> Stamp {
        let l = &mut self.lanes[lane as usize];
        if l.retired || l.kind == LaneKind::Unused {
            // Its stream does nothing any more: the last fence covers this too. (Or a use named
            // the lane before it ended, and that fence has passed.)
            return Stamp { lane, seq: l.open - 1 };
        }
        l.dirty_bytes += bytes;
        l.dirty_count += 1;
        Stamp { lane, seq: l.open }
    }

    /// Bytes and count freed on `lane` since its last fence.
    pub fn dirty(&self, lane: LaneId) -> (u64, u64) {
        let l = &self.lanes[lane as usize];
        (l.dirty_bytes, l.dirty_count)
    }

    /// A stamp that passes when all of `stamps` have. The first is of the lane that frees: where
    /// memory stays with its lane, it is that one's.
    pub fn join(&mut self, stamps: &[Stamp]) -> Stamp {
        let mut open: Vec<Stamp> = Vec::new();
        for &stamp in stamps {
            if self.passed(stamp) {
                continue;
            }
            let parts = if stamp.lane == JOIN {
                self.joins.get(&stamp.seq).cloned().unwrap_or_default()
            } else {
                vec![stamp]
            };
            for part in parts {
                match open.iter_mut().find(|s| s.lane == part.lane) {
                    Some(s) => s.seq = s.seq.max(part.seq),
                    None => open.push(part),
                }
            }
        }
        match open.len() {
            0 if self.opportunistic => Stamp::CLEAN,
            0 => stamps.first().copied().unwrap_or(Stamp::CLEAN),
            1 => open[0],
            _ => {
                // Its owner's lane is in the number, and so outlives the list of parts.
                let number = self.next_join << JOIN_SHIFT | u64::from(open[0].lane);
                self.next_join += 1;
                self.joins.insert(number, open);
                Stamp { lane: JOIN, seq: number }
            }
        }
    }

    /// Whether the host has seen everything behind `stamp` done.
    #[inline]
    pub fn passed(&self, stamp: Stamp) -> bool {
        if self.ignore_stamps {
            return true;
        }
        match stamp.lane {
            CLEAN => true,
            JOIN => self.join_passed(stamp.seq),
            lane => stamp.seq <= self.lanes[lane as usize].passed,
        }
    }

    #[cold]
    fn join_passed(&self, number: u64) -> bool {
        // A join that is gone has passed: `settle` drops no other.
        self.joins.get(&number).is_none_or(|parts| parts.iter().all(|&p| self.passed(p)))
    }

    /// Whether lane `by` may take a piece with this stamp without more ado: it has passed,
    /// only `by`'s own earlier work is behind it, or its stream has been made to wait for it
    /// ([`Lanes::wait_in`]). The sync lane takes passed pieces only.
    #[inline]
    pub fn takeable(&self, stamp: Stamp, by: LaneId) -> bool {
        if stamp.lane == by && by != CLEAN {
            return self.orders_itself(by) || self.passed(stamp);
        }
        if stamp.lane == JOIN {
            return self.join_takeable(stamp.seq, by);
        }
        self.cleans(stamp) || self.has_awaited(stamp, by)
    }

    /// Whether the stream of `by` waits for what `stamp` stands for before any later work.
    #[inline]
    fn has_awaited(&self, stamp: Stamp, by: LaneId) -> bool {
        let awaited = &self.lanes[by as usize].awaited;
        awaited.iter().any(|&(lane, seq)| lane == stamp.lane && stamp.seq <= seq)
    }

    fn orders_itself(&self, lane: LaneId) -> bool {
        matches!(self.lanes[lane as usize].kind, LaneKind::Stream(_) | LaneKind::Capture(_))
    }

    #[cold]
    fn join_takeable(&self, number: u64, by: LaneId) -> bool {
        let owner = (number & ((1 << JOIN_SHIFT) - 1)) as LaneId;
        if !self.opportunistic && by != owner {
            return false;
        }
        let own = |p: Stamp| p.lane == by && self.orders_itself(by);
        let free = |&p: &Stamp| own(p) || self.passed(p) || self.has_awaited(p, by);
        self.joins.get(&number).is_none_or(|parts| parts.iter().all(free))
    }

    /// Records a fence over all that `lane` freed so far. Nothing to do: no call. While a
    /// capture is open, and for capture lanes, nothing is recorded. Answers whether a fence
    /// now covers everything `lane` freed.
    pub fn record(&mut self, driver: &dyn Driver, lane: LaneId) -> DriverResult<bool> {
        let l = &self.lanes[lane as usize];
        if l.dirty_count == 0 {
            return Ok(true);
        }
        let kind = l.kind;
        if self.open_captures > 0 || !matches!(kind, LaneKind::Stream(_) | LaneKind::Sync) {
            return Ok(false);
        }
        if self.lanes[lane as usize].fences.len() >= FENCES_KEPT && self.in_order(lane) {
            return self.move_newest(driver, lane).map(|()| true);
        }
        let mut events = self.lists.pop().unwrap_or_default();
        let marked = match kind {
            LaneKind::Stream(stream) => self.mark(driver, Scope::Stream(stream), &mut events),
            _ if self.context_events => self.mark(driver, Scope::Context, &mut events),
            _ => {
                let mut scopes = self.known_streams().into_iter();
                scopes.try_for_each(|scope| self.mark(driver, scope, &mut events))
            }
        };
        if let Err(error) = marked {
            // The events go back unrecorded in effect: nobody waits for their marks.
            self.events.append(&mut events);
            self.lists.push(events);
            return Err(error);
        }
        let after = if self.in_order(lane) { Vec::new() } else { self.ended_unfinished() };
        let l = &mut self.lanes[lane as usize];
        l.fences.push_back(Fence { seq: l.open, events, after });
        l.open += 1;
        l.dirty_bytes = 0;
        l.dirty_count = 0;
        self.fences_recorded += 1;
        Ok(true)
    }

    /// Records the newest fence of a lane again, so that it covers what was freed since: nobody has
    /// asked for a while, and each further fence would cost another event.
    fn move_newest(&mut self, driver: &dyn Driver, lane: LaneId) -> DriverResult<()> {
        let scope = match self.lanes[lane as usize].kind {
            LaneKind::Stream(stream) => Scope::Stream(stream),
            _ => Scope::Context,
        };
        let l = &mut self.lanes[lane as usize];
        let Some(newest) = l.fences.back_mut() else { return Ok(()) };
        for &event in &newest.events {
            driver.event_record(event, scope)?;
        }
        newest.seq = l.open;
        l.open += 1;
        l.dirty_bytes = 0;
        l.dirty_count = 0;
        self.fences_recorded += 1;
        Ok(())
    }

    /// Whether each fence of a lane covers all that those before it cover. Not so where a fence is
    /// one event a known stream: streams become unknown.
    fn in_order(&self, lane: LaneId) -> bool {
        self.context_events || matches!(self.lanes[lane as usize].kind, LaneKind::Stream(_))
    }

    /// The last fences of streams that have ended with work in flight.
    fn ended_unfinished(&self) -> Vec<Stamp> {
        let lanes = (0..).zip(&self.lanes).filter(|(_, l)| l.retired);
        lanes.filter_map(|(lane, l)| Some(Stamp { lane, seq: l.fences.back()?.seq })).collect()
    }

    /// Records an event at `scope` and keeps it in `events`.
    fn mark(
        &mut self,
        driver: &dyn Driver,
        scope: Scope,
        events: &mut Vec<EventHandle>,
    ) -> DriverResult<()> {
        let event = match self.events.pop() {
            Some(event) => event,
            None => driver.event_create()?,
        };
        events.push(event);
        driver.event_record(event, scope)
    }

    /// The default stream and every stream that has a lane.
    fn known_streams(&self) -> Vec<Scope> {
        let mut scopes = vec![Scope::Stream(StreamHandle(0))];
        for lane in &self.lanes {
            if let LaneKind::Stream(stream) = lane.kind
                && stream.0 != 0
                && !lane.retired
            {
                scopes.push(Scope::Stream(stream));
            }
        }
        scopes
    }

    /// An event for the caller's own use; give it back with [`Lanes::give_event`].
    pub fn event(&mut self, driver: &dyn Driver) -> DriverResult<EventHandle> {
        match self.events.pop() {
            Some(event) => Ok(event),
            None => driver.event_create(),
        }
    }

    /// Takes an event back; it serves again, or goes back to the driver with the others.
    pub fn give_event(&mut self, event: EventHandle) {
        self.events.push(event);
    }

    /// Records a fence on every lane that has freed something since its last. Where that fails, say
    /// for a stream destroyed untold, the others get theirs; the first error is answered.
    pub fn record_all(&mut self, driver: &dyn Driver) -> DriverResult<()> {
        let mut recorded = Ok(());
        driver.together(&mut || {
            let all = (1..self.lanes.len() as LaneId).map(|lane| self.record(driver, lane));
            recorded = all.map(|one| one.map(drop)).reduce(Result::and).unwrap_or(Ok(()));
        });
        recorded
    }

    /// Whether some fence is in flight.
    pub fn in_flight(&self) -> bool {
        self.lanes.iter().any(|l| !l.fences.is_empty())
    }

    /// Whether something freed is behind no passed fence yet.
    pub fn unsettled(&self) -> bool {
        self.lanes.iter().any(|l| !l.fences.is_empty() || l.dirty_count > 0)
    }

    /// Makes later work of `by`, which is the lane of `stream`, wait for what `stamp` stands for.
    /// False: some of it has no fence that can be waited for. One wait covers all that the other
    /// lane freed before its fence: `by` may take that too from now on.
    pub fn wait_in(
        &mut self,
        driver: &dyn Driver,
        (by, stream): (LaneId, StreamHandle),
        stamp: Stamp,
    ) -> DriverResult<bool> {
        let parts = match stamp.lane {
            JOIN => self.joins.get(&stamp.seq).cloned().unwrap_or_default(),
            _ => vec![stamp],
        };
        for part in parts {
            let own = part.lane == by && self.orders_itself(by);
            if own || self.passed(part) || self.has_awaited(part, by) {
                continue;
            }
            if part.seq == self.lanes[part.lane as usize].open && !self.record(driver, part.lane)? {
                return Ok(false);
            }
            let fences = &self.lanes[part.lane as usize].fences;
            let Some(first) = fences.iter().position(|f| f.seq >= part.seq) else {
                return Ok(false);
            };
            let in_order = self.in_order(part.lane);
            // A wait for the oldest fence that suffices is soonest over, one for the newest
            // gives most: this one gives half of what the other lane has freed, at least.
            let fence = &fences[if in_order { first.max(fences.len() / 2) } else { first }];
            if !fence.after.iter().all(|&stamp| self.passed(stamp)) {
                return Ok(false);
            }
            let seq = fence.seq;
            for &event in &fence.events {
                driver.stream_wait(stream, event)?;
            }
            if !in_order {
                // It says nothing of what was freed before the fence before it.
                continue;
            }
            let awaited = &mut self.lanes[by as usize].awaited;
            match awaited.iter_mut().find(|(lane, _)| *lane == part.lane) {
                Some(known) => known.1 = seq,
                None => awaited.push((part.lane, seq)),
            }
        }
        Ok(true)
    }

    /// Whether a retired lane has nothing in flight any more.
    pub fn settled(&self, lane: LaneId) -> bool {
        let l = &self.lanes[lane as usize];
        l.retired && l.fences.is_empty()
    }

    /// Lets a retired, settled lane's number serve another stream. Nothing belongs to it now.
    pub fn reuse(&mut self, lane: LaneId) {
        debug_assert!(self.settled(lane));
        let l = &mut self.lanes[lane as usize];
        l.kind = LaneKind::Unused;
        l.retired = false;
        self.spare.push(lane);
    }

    /// Ends a stream's lane before its stream is destroyed: a last fence is recorded, the key
    /// is free for another stream, and the number too after [`Lanes::reuse`].
    ///
    /// When no fence can be recorded now (a capture is open, the driver fails) nothing
    /// changes and the answer is the error, or `false`.
    pub fn retire(&mut self, driver: &dyn Driver, lane: LaneId) -> DriverResult<bool> {
        // A fence in any case: slots free in this lane's order lie in its slabs uncounted.
        self.lanes[lane as usize].dirty_count += 1;
        let recorded = self.record(driver, lane);
        if !matches!(recorded, Ok(true)) {
            self.lanes[lane as usize].dirty_count -= 1;
            return recorded;
        }
        let l = &mut self.lanes[lane as usize];
        if self.by_key.get(&l.key) == Some(&lane) {
            self.by_key.remove(&l.key);
        }
        l.retired = true;
        Ok(true)
    }

    /// A capture begins: a lane of its own serves `key` until it ends. Answers the lane and
    /// the one that served before.
    pub fn capture_begin(
        &mut self,
        key: u64,
        stream: StreamHandle,
    ) -> Option<(LaneId, Option<LaneId>)> {
        let before = self.by_key.remove(&key);
        match self.open(key, LaneKind::Capture(stream)) {
            Some(lane) => {
                self.open_captures += 1;
                Some((lane, before))
            }
            None => {
                self.by_key.extend(before.map(|lane| (key, lane)));
                None
            }
        }
    }

    /// A capture has ended: fences may be recorded again, and `key` is `before`'s again. The
    /// capture's memory stays its own.
    pub fn capture_end(&mut self, key: u64, before: Option<LaneId>) {
        debug_assert!(self.open_captures > 0);
        self.open_captures -= 1;
        self.by_key.remove(&key);
        self.by_key.extend(before.map(|lane| (key, lane)));
    }

    /// A capture has begun on another device whose work this pool's fences take in.
    pub fn foreign_capture_begin(&mut self) {
        self.open_captures += 1;
    }

    /// That capture has ended.
    pub fn foreign_capture_end(&mut self) {
        debug_assert!(self.open_captures > 0);
        self.open_captures -= 1;
    }

    /// The graph of a capture is gone: what it freed passes with the next device-wide fence.
    /// The lane becomes a retired lane of the whole device.
    pub fn capture_release(&mut self, driver: &dyn Driver, lane: LaneId) -> DriverResult<bool> {
        debug_assert!(self.is_capture(lane));
        let before = self.lanes[lane as usize].kind;
        self.lanes[lane as usize].kind = LaneKind::Sync;
        match self.retire(driver, lane) {
            Ok(true) => Ok(true),
            other => {
                self.lanes[lane as usize].kind = before;
                other
            }
        }
    }

    /// Gives all events back to the driver. For the pool's end.
    pub fn close(&mut self, driver: &dyn Driver) -> DriverResult<()> {
        for lane in &mut self.lanes {
            for mut fence in lane.fences.drain(..) {
                self.events.append(&mut fence.events);
            }
        }
        while let Some(event) = self.events.pop() {
            if let Err(error) = driver.event_destroy(event) {
                self.events.push(event);
                return Err(error);
            }
        }
        Ok(())
    }
}

impl Lane {
    fn new(kind: LaneKind, key: u64) -> Lane {
        Lane {
            kind,
            key,
            open: 1,
            passed: 0,
            dirty_bytes: 0,
            dirty_count: 0,
            fences: VecDeque::new(),
            retired: false,
            awaited: Vec::new(),
        }
    }
}
