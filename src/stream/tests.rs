//! Tests of the book of lanes, over a driver whose events a test passes by hand.

pub(crate) mod fake;
mod waits;

use super::lanes::LaneKind;
use super::*;
use crate::driver::faulty::{CallSet, Fault, FaultyDriver};
use crate::driver::{Call, Code, Driver, Scope, StreamHandle};
use fake::FakeDriver;
use std::sync::Arc;

/// A book, its driver, and the fake inside the driver.
struct Book {
    lanes: Lanes,
    driver: FaultyDriver<FakeDriver>,
    fake: Arc<FakeDriver>,
}

impl Book {
    fn with(context_events: bool) -> Book {
        let fake = Arc::new(FakeDriver::new());
        let driver = FaultyDriver::new(Arc::clone(&fake));
        Book { lanes: Lanes::new(context_events), driver, fake }
    }

    fn new() -> Book {
        Book::with(true)
    }

    /// The lane of stream `number`, whose key is the number too.
    fn stream(&mut self, number: u64) -> LaneId {
        let kind = LaneKind::Stream(StreamHandle(number));
        self.lanes.open(number, kind).expect("a free number")
    }

    fn sync(&mut self) -> LaneId {
        self.lanes.open(u64::MAX, LaneKind::Sync).expect("a free number")
    }

    fn record(&mut self, lane: LaneId) -> bool {
        self.lanes.record(&self.driver, lane).expect("no fault")
    }

    fn settle(&mut self) -> bool {
        self.lanes.settle(&self.driver).expect("no fault")
    }

    /// Fences what `lane` freed and lets it pass.
    fn finish(&mut self, lane: LaneId) {
        assert!(self.record(lane));
        self.fake.pass_all();
        self.settle();
    }

    /// Scopes of all marks so far.
    fn scopes(&self) -> Vec<Scope> {
        self.fake.records().into_iter().map(|(_, scope)| scope).collect()
    }

    /// The book gives all events back, and none is left behind.
    fn close(mut self) {
        self.lanes.close(&self.driver).expect("no fault");
        assert_eq!(self.fake.live_events(), 0);
    }
}

const ONE: StreamHandle = StreamHandle(1);
const TWO: StreamHandle = StreamHandle(2);

#[test]
fn stamps_pass_only_after_their_fence() {
    let mut book = Book::new();
    let a = book.stream(1);
    let first = book.lanes.stamp(a, 100);
    assert_eq!(book.lanes.dirty(a), (100, 1));
    book.fake.pass_all();
    assert!(!book.settle(), "nothing is recorded yet");
    assert!(!book.lanes.passed(first));
    assert!(book.lanes.unsettled() && !book.lanes.in_flight());

    assert!(book.record(a));
    assert_eq!(book.scopes(), [Scope::Stream(ONE)]);
    assert_eq!(book.lanes.dirty(a), (0, 0));
    let second = book.lanes.stamp(a, 50);
    assert!(second.seq > first.seq, "a fence opens the next sequence");
    assert!(!book.settle() && !book.lanes.passed(first));
    assert!(book.lanes.in_flight());

    book.fake.pass_all();
    assert!(book.settle());
    assert!(book.lanes.passed(first));
    assert!(!book.lanes.passed(second), "freed after the fence");
    book.finish(a);
    assert!(book.lanes.passed(second) && !book.lanes.unsettled());
    assert_eq!(book.lanes.fences_recorded, 2);
    book.close();
}

#[test]
fn a_fence_covers_all_frees_before_it_in_one_event() {
    let mut book = Book::new();
    let a = book.stream(1);
    let stamps: Vec<Stamp> = (0..10).map(|_| book.lanes.stamp(a, 1)).collect();
    assert!(book.record(a));
    assert!(book.record(a), "nothing freed since: nothing to do");
    assert_eq!(book.driver.count(Call::EventRecord), 1);
    book.fake.pass_all();
    book.settle();
    assert!(stamps.iter().all(|&s| book.lanes.passed(s)));
    // Its event serves again.
    book.lanes.stamp(a, 1);
    book.finish(a);
    assert_eq!(book.driver.count(Call::EventCreate), 1);
    book.close();
}

#[test]
fn fences_of_a_lane_settle_in_order() {
    let mut book = Book::new();
    let a = book.stream(1);
    let first = book.lanes.stamp(a, 1);
    book.record(a);
    let early = book.fake.last_record();
    let second = book.lanes.stamp(a, 1);
    book.record(a);
    book.fake.pass(book.fake.last_record());
    assert!(!book.settle(), "the later fence alone passes nothing");
    assert!(!book.lanes.passed(first) && !book.lanes.passed(second));
    book.fake.pass(early);
    assert!(book.settle());
    assert!(book.lanes.passed(first) && book.lanes.passed(second));
    book.close();
}

#[test]
fn a_lane_takes_its_own_frees_at_once_and_others_after_their_fence() {
    let mut book = Book::new();
    let (a, b, sync) = (book.stream(1), book.stream(2), book.sync());
    let by_a = book.lanes.stamp(a, 1);
    let by_sync = book.lanes.stamp(sync, 1);
    for lane in [a, b, sync] {
        assert!(book.lanes.takeable(Stamp::CLEAN, lane));
    }
    assert!(book.lanes.takeable(by_a, a));
    assert!(!book.lanes.takeable(by_a, b) && !book.lanes.takeable(by_a, sync));
    assert!(!book.lanes.takeable(by_sync, sync), "the sync lane orders nothing by itself");
    assert!(!book.lanes.takeable(by_sync, a));
    book.lanes.record_all(&book.driver).expect("no fault");
    book.fake.pass_all();
    book.settle();
    for stamp in [by_a, by_sync] {
        for lane in [a, b, sync] {
            assert!(book.lanes.takeable(stamp, lane));
        }
    }
    book.close();
}

#[test]
fn without_opportunity_passed_memory_stays_with_its_lane() {
    let mut book = Book::new();
    let (a, b) = (book.stream(1), book.stream(2));
    book.lanes.set_opportunistic(false);
    let stamp = book.lanes.stamp(a, 1);
    book.finish(a);
    assert!(book.lanes.passed(stamp) && !book.lanes.cleans(stamp));
    assert!(book.lanes.takeable(stamp, a) && !book.lanes.takeable(stamp, b));
    assert!(book.lanes.takeable(Stamp::CLEAN, b) && book.lanes.cleans(Stamp::CLEAN));
    book.lanes.set_opportunistic(true);
    assert!(book.lanes.takeable(stamp, b) && book.lanes.cleans(stamp));
    book.close();
}

#[test]
fn without_opportunity_a_join_stays_with_the_lane_that_freed() {
    let mut book = Book::new();
    let (a, b, c) = (book.stream(1), book.stream(2), book.stream(3));
    book.lanes.set_opportunistic(false);
    let join = |book: &mut Book| {
        let parts = [book.lanes.stamp(b, 1), book.lanes.stamp(a, 1)];
        book.lanes.join(&parts)
    };
    let stamp = join(&mut book);
    let takers = |book: &Book| [a, b, c].map(|lane| book.lanes.takeable(stamp, lane));
    assert_eq!(takers(&book), [false, false, false], "each waits for the other");
    book.finish(a);
    assert_eq!(takers(&book), [false, true, false], "its own work is all that is left");
    book.finish(b);
    assert!(book.lanes.passed(stamp) && !book.lanes.cleans(stamp));
    assert_eq!(takers(&book), [false, true, false], "passed, and the list of parts is gone");
    // So it is when a join is made of what has passed already.
    let parts = [book.lanes.stamp(b, 1), book.lanes.stamp(a, 1)];
    book.finish(a);
    book.finish(b);
    let late = book.lanes.join(&parts);
    assert_eq!(late.lane, b);
    assert!(book.lanes.takeable(late, b) && !book.lanes.takeable(late, a));
    book.lanes.set_opportunistic(true);
    assert_eq!(takers(&book), [true, true, true]);
    book.close();
}

#[test]
fn ignored_stamps_count_as_passed() {
    let mut book = Book::new();
    let (a, b) = (book.stream(1), book.stream(2));
    let stamp = book.lanes.stamp(a, 1);
    assert!(!book.lanes.takeable(stamp, b));
    book.lanes.ignore_stamps();
    assert!(book.lanes.passed(stamp) && book.lanes.takeable(stamp, b));
}

#[test]
fn a_join_passes_when_all_its_parts_have() {
    let mut book = Book::new();
    let (a, b, c) = (book.stream(1), book.stream(2), book.stream(3));
    let (by_a, by_b) = (book.lanes.stamp(a, 1), book.lanes.stamp(b, 1));
    let join = book.lanes.join(&[by_a, by_b, by_a]);
    assert_eq!(join.lane, JOIN);
    assert!(!book.lanes.passed(join));
    assert!(!book.lanes.takeable(join, a) && !book.lanes.takeable(join, c));

    book.finish(a);
    assert!(!book.lanes.passed(join), "b's part is open");
    assert!(book.lanes.takeable(join, b), "only b's own work is left");
    assert!(!book.lanes.takeable(join, a) && !book.lanes.takeable(join, c));

    book.finish(b);
    // The last settle dropped it.
    assert!(book.lanes.passed(join) && book.lanes.takeable(join, c));
    book.lanes.stamp(a, 1);
    book.lanes.stamp(b, 1);
    assert!(book.lanes.passed(join), "a dropped join stays passed");
    let other = (book.lanes.stamp(a, 1), book.lanes.stamp(b, 1));
    let other = book.lanes.join(&[other.0, other.1]);
    assert!(other.seq > join.seq, "numbers of joins are not used again");
    book.close();
}

#[test]
fn joins_are_as_small_as_can_be() {
    let mut book = Book::new();
    let (a, b, c) = (book.stream(1), book.stream(2), book.stream(3));
    assert_eq!(book.lanes.join(&[]), Stamp::CLEAN);
    assert_eq!(book.lanes.join(&[Stamp::CLEAN, Stamp::CLEAN]), Stamp::CLEAN);
    let done = book.lanes.stamp(a, 1);
    book.finish(a);
    let by_b = book.lanes.stamp(b, 1);
    book.record(b);
    let later_b = book.lanes.stamp(b, 1);
    assert_eq!(book.lanes.join(&[done, by_b]), by_b, "one lane is left");
    assert_eq!(book.lanes.join(&[later_b, by_b]), later_b, "the larger sequence counts");

    // A join of a join and a third lane waits for all three.
    let by_c = book.lanes.stamp(c, 1);
    let inner = book.lanes.join(&[by_b, by_c]);
    let by_a = book.lanes.stamp(a, 1);
    let outer = book.lanes.join(&[inner, by_a, Stamp::CLEAN]);
    book.finish(a);
    book.finish(b);
    assert!(!book.lanes.passed(outer) && !book.lanes.passed(inner));
    book.finish(c);
    assert!(book.lanes.passed(outer) && book.lanes.passed(inner));
    assert_eq!(book.lanes.join(&[inner, outer]), Stamp::CLEAN);
    book.close();
}

#[test]
fn stamps_merge_by_lane() {
    let s = |lane, seq| Stamp { lane, seq };
    assert_eq!(s(3, 5).merged(s(3, 9)), Some(s(3, 9)));
    assert_eq!(s(3, 9).merged(s(3, 5)), Some(s(3, 9)));
    assert_eq!(s(3, 5).merged(s(4, 5)), None);
    assert_eq!(s(3, 5).merged(Stamp::CLEAN), None);
    assert_eq!(Stamp::CLEAN.merged(Stamp::CLEAN), Some(Stamp::CLEAN));
    assert_eq!(s(JOIN, 5).merged(s(JOIN, 5)), Some(s(JOIN, 5)));
    assert_eq!(s(JOIN, 5).merged(s(JOIN, 9)), None, "numbers of joins are not sequences");
}

#[test]
fn a_retired_lane_is_settled_then_reused_with_its_past_behind_it() {
    let mut book = Book::new();
    let a = book.stream(1);
    let before = book.lanes.stamp(a, 1);
    assert!(book.lanes.retire(&book.driver, a).expect("no fault"));
    assert_eq!(book.lanes.find(1), None, "the key is free at once");
    assert_eq!(book.lanes.active(), 0);
    assert!(!book.lanes.settled(a) && !book.lanes.passed(before));
    let late = book.lanes.stamp(a, 1);
    assert!(!book.lanes.passed(late), "covered by the last fence, which is open");
    assert_eq!(book.lanes.dirty(a), (0, 0));

    // The handle may come back at once: it gets another number.
    let again = book.stream(1);
    assert_ne!(again, a);
    book.fake.pass_all();
    book.settle();
    assert!(book.lanes.passed(before) && book.lanes.passed(late) && book.lanes.settled(a));
    book.lanes.reuse(a);
    assert_eq!(book.lanes.kind(a), LaneKind::Unused);
    assert_eq!(book.lanes.ids(), [again]);
    let next = book.stream(7);
    assert_eq!(next, a, "the number serves again");
    let new = book.lanes.stamp(next, 1);
    assert!(book.lanes.passed(before) && book.lanes.passed(late));
    assert!(!book.lanes.passed(new) && new.seq > late.seq);
    book.close();
}

#[test]
fn retiring_records_a_fence_even_when_nothing_was_freed() {
    let mut book = Book::new();
    let a = book.stream(1);
    assert!(book.lanes.retire(&book.driver, a).expect("no fault"));
    assert_eq!(book.scopes(), [Scope::Stream(ONE)]);
    assert!(!book.lanes.settled(a));
    book.fake.pass_all();
    book.settle();
    assert!(book.lanes.settled(a));
    book.close();
}

#[test]
fn a_lane_that_cannot_be_retired_is_as_before() {
    let mut book = Book::new();
    let a = book.stream(1);
    let stamp = book.lanes.stamp(a, 8);
    book.driver.fail(Fault::from_then_on(CallSet::of(&[Call::EventRecord]), 1));
    let error = book.lanes.retire(&book.driver, a).expect_err("no fence, no end");
    assert_eq!(error.call, Call::EventRecord);
    book.driver.clear_faults();
    let (graph, _) = book.lanes.capture_begin(2, TWO).expect("a number");
    assert!(!book.lanes.retire(&book.driver, a).expect("no call is made"));
    assert_eq!(book.lanes.find(1), Some(a));
    assert_eq!(book.lanes.dirty(a), (8, 1));
    assert_eq!(book.lanes.stamp(a, 0), stamp, "still the same open sequence");
    book.lanes.capture_end(2, None);
    assert!(book.lanes.is_capture(graph));
    book.finish(a);
    assert!(book.lanes.passed(stamp));
    book.close();
}

#[test]
#[cfg_attr(miri, ignore = "makes 4,095 lanes: minutes under Miri")]
fn numbers_run_out_and_come_back() {
    let mut book = Book::new();
    let all: Vec<LaneId> = (1..LANES_MAX as u64).map(|key| book.stream(key)).collect();
    assert_eq!(all.len(), LANES_MAX - 1);
    assert!(!all.contains(&CLEAN) && !all.contains(&JOIN));
    let kind = LaneKind::Stream(StreamHandle(9999));
    assert_eq!(book.lanes.open(9999, kind), None);
    assert!(book.lanes.capture_begin(1, ONE).is_none(), "no number for a capture either");
    assert_eq!(book.lanes.find(1), Some(all[0]), "the stream keeps its lane");
    assert_eq!(book.lanes.open_captures(), 0);
    assert!(book.lanes.retire(&book.driver, all[5]).expect("no fault"));
    assert_eq!(book.lanes.open(9999, kind), None, "not before its fence");
    book.fake.pass_all();
    book.settle();
    book.lanes.reuse(all[5]);
    assert_eq!(book.lanes.open(9999, kind), Some(all[5]));
    book.close();
}

#[test]
fn nothing_is_recorded_while_a_capture_is_open() {
    let mut book = Book::new();
    let (a, sync) = (book.stream(1), book.sync());
    let (by_a, by_sync) = (book.lanes.stamp(a, 1), book.lanes.stamp(sync, 1));
    let (graph, before) = book.lanes.capture_begin(1, ONE).expect("a number");
    assert_eq!(before, Some(a));
    assert_eq!(book.lanes.find(1), Some(graph), "the capture serves the stream's key");
    assert!(book.lanes.is_capture(graph) && !book.lanes.is_capture(a));
    assert_eq!(book.lanes.open_captures(), 1);
    let by_graph = book.lanes.stamp(graph, 1);
    for lane in [a, sync, graph] {
        assert!(!book.record(lane));
    }
    book.lanes.record_all(&book.driver).expect("no call is made");
    assert_eq!(book.driver.total(), 0);
    assert!(book.lanes.takeable(by_graph, graph), "its own frees are its own");
    assert!(!book.lanes.takeable(by_a, graph) && !book.lanes.takeable(by_graph, a));

    book.lanes.capture_end(1, before);
    assert_eq!((book.lanes.find(1), book.lanes.open_captures()), (Some(a), 0));
    book.lanes.record_all(&book.driver).expect("no fault");
    book.fake.pass_all();
    book.settle();
    assert!(book.lanes.passed(by_a) && book.lanes.passed(by_sync));
    assert!(!book.lanes.passed(by_graph), "a graph's memory is its own until release");
    book.close();
}

#[test]
fn a_released_capture_passes_with_a_fence_over_the_device() {
    let mut book = Book::new();
    let (graph, before) = book.lanes.capture_begin(1, ONE).expect("a number");
    assert_eq!(before, None);
    let stamp = book.lanes.stamp(graph, 1);
    book.lanes.capture_end(1, before);
    assert_eq!(book.lanes.find(1), None);

    book.driver.fail(Fault::once(CallSet::of(&[Call::EventRecord]), 1));
    book.lanes.capture_release(&book.driver, graph).expect_err("the fault");
    assert!(book.lanes.is_capture(graph), "as before");
    assert_eq!(book.lanes.capture_release(&book.driver, graph), Ok(true));
    assert_eq!(book.scopes(), [Scope::Context]);
    assert!(!book.lanes.is_capture(graph));
    assert!(!book.settle() && !book.lanes.passed(stamp));
    book.fake.pass_all();
    assert!(book.settle());
    assert!(book.lanes.passed(stamp) && book.lanes.settled(graph));
    book.lanes.reuse(graph);
    assert_eq!(book.stream(5), graph);
    book.close();
}

#[test]
fn a_release_waits_for_other_captures() {
    let mut book = Book::new();
    let (graph, _) = book.lanes.capture_begin(1, ONE).expect("a number");
    book.lanes.capture_end(1, None);
    let (other, _) = book.lanes.capture_begin(2, TWO).expect("a number");
    assert_eq!(book.lanes.capture_release(&book.driver, graph), Ok(false));
    assert!(book.lanes.is_capture(graph) && book.lanes.is_capture(other));
    book.lanes.capture_end(2, None);
    assert_eq!(book.lanes.capture_release(&book.driver, graph), Ok(true));
    book.close();
}

#[test]
fn without_context_events_the_sync_lane_marks_every_known_stream() {
    let mut book = Book::with(false);
    let sync = book.sync();
    let (a, b) = (book.stream(1), book.stream(2));
    assert!(book.lanes.retire(&book.driver, a).expect("no fault"));
    let stamp = book.lanes.stamp(sync, 1);
    assert!(book.record(sync));
    let default = StreamHandle(0);
    assert_eq!(book.lanes.streams(), [default, TWO], "retired streams are gone");
    let marks = book.fake.records();
    let of_sync: Vec<Scope> = marks[1..].iter().map(|&(_, scope)| scope).collect();
    assert_eq!(of_sync, [Scope::Stream(default), Scope::Stream(TWO)]);
    book.fake.pass(marks[1].0);
    book.settle();
    assert!(!book.lanes.passed(stamp), "stream 2 is not done");
    book.fake.pass(marks[2].0);
    book.settle();
    assert!(!book.lanes.passed(stamp), "nor is the stream that ended");
    book.fake.pass(marks[0].0);
    book.settle();
    book.settle();
    assert!(book.lanes.passed(stamp));
    assert_eq!((book.lanes.stream_of(sync), book.lanes.stream_of(b)), (default, TWO));
    book.close();
}

#[test]
fn a_lane_without_a_fence_keeps_no_other_from_its() {
    let mut book = Book::with(true);
    let (a, b) = (book.stream(1), book.stream(2));
    let stamps = [book.lanes.stamp(a, 7), book.lanes.stamp(b, 7)];
    book.driver.fail(Fault::once(CallSet::of(&[Call::EventRecord]), 1));
    let error = book.lanes.record_all(&book.driver).expect_err("the fault");
    assert_eq!(error.call, Call::EventRecord);
    book.fake.pass_all();
    book.settle();
    assert_eq!(stamps.map(|stamp| book.lanes.passed(stamp)), [false, true]);
    book.close();
}

#[test]
fn a_failing_record_changes_nothing() {
    // Three known streams: up to three creates and three records.
    for nth in 1..=6 {
        let mut book = Book::with(false);
        let sync = book.sync();
        book.stream(1);
        book.stream(2);
        let stamp = book.lanes.stamp(sync, 7);
        let calls = CallSet::of(&[Call::EventCreate, Call::EventRecord]);
        book.driver.fail(Fault::once(calls, nth));
        let error = book.lanes.record(&book.driver, sync).expect_err("the fault");
        assert!(calls.contains(error.call));
        assert_eq!(book.lanes.dirty(sync), (7, 1));
        assert!(!book.lanes.in_flight());
        assert_eq!(book.lanes.fences_recorded, 0);
        assert_eq!(book.lanes.stamp(sync, 0), stamp, "the sequence is still open");
        book.fake.pass_all();
        assert!(!book.settle() && !book.lanes.passed(stamp));
        book.finish(sync);
        assert!(book.lanes.passed(stamp));
        assert_eq!(book.fake.live_events(), 3, "events of the failed try serve again");
        book.close();
    }
}

#[test]
fn a_failing_query_keeps_its_fence_and_lets_others_settle() {
    let mut book = Book::new();
    let (a, b) = (book.stream(1), book.stream(2));
    let (by_a, by_b) = (book.lanes.stamp(a, 1), book.lanes.stamp(b, 1));
    book.lanes.record_all(&book.driver).expect("no fault");
    book.fake.pass_all();
    book.driver.fail(Fault::once(CallSet::of(&[Call::EventQuery]), 1));
    let error = book.lanes.settle(&book.driver).expect_err("the fault");
    assert_eq!((error.call, error.code), (Call::EventQuery, Code::Other(999)));
    assert!(!book.lanes.passed(by_a) && book.lanes.passed(by_b));
    assert!(book.settle());
    assert!(book.lanes.passed(by_a));
    book.close();
}

#[test]
fn closing_gives_all_events_back_and_may_be_repeated() {
    let mut book = Book::new();
    let lanes = [book.stream(1), book.stream(2), book.sync()];
    for _ in 0..3 {
        for lane in lanes {
            book.lanes.stamp(lane, 1);
        }
        book.lanes.record_all(&book.driver).expect("no fault");
    }
    assert_eq!(book.fake.live_events(), 9);
    book.fake.pass_all();
    assert!(book.settle());
    book.driver.fail(Fault::once(CallSet::of(&[Call::EventDestroy]), 4));
    book.lanes.close(&book.driver).expect_err("the fault");
    assert_eq!(book.fake.live_events(), 6);
    book.close();
}

#[test]
fn the_fake_answers_as_the_contract_says() {
    let fake = FakeDriver::new();
    let event = fake.event_create().expect("an event");
    assert_eq!(fake.event_query(event), Ok(true), "never recorded: passed");
    fake.event_record(event, Scope::Context).expect("live");
    assert_eq!(fake.event_query(event), Ok(false));
    fake.pass(event);
    assert_eq!(fake.event_query(event), Ok(true));
    fake.event_destroy(event).expect("live");
    assert_eq!(fake.event_destroy(event).map_err(|e| e.code), Err(Code::InvalidHandle));
}
