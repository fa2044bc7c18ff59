//! Tests of streams' waits for each other, and of how few queries tell what has passed.

use super::{Book, TWO};
use crate::driver::{Call, StreamHandle};
use crate::stream::Stamp;

#[test]
fn a_stream_waits_for_what_is_behind_a_stamp() {
    let mut book = Book::new();
    let (a, b, c) = (book.stream(1), book.stream(2), book.stream(3));
    let by_a = book.lanes.stamp(a, 1);
    let wait = |book: &mut Book, stamp| {
        book.lanes.wait_in(&book.driver, (b, TWO), stamp).expect("no fault")
    };
    assert!(!book.lanes.takeable(by_a, b));
    assert!(wait(&mut book, by_a), "the open sequence is fenced first");
    let event = book.fake.last_record();
    assert_eq!(book.fake.waits(), [(TWO, event)]);
    assert!(!book.lanes.passed(by_a), "a stream's wait is not the host's");
    assert!(book.lanes.takeable(by_a, b) && !book.lanes.takeable(by_a, c), "nor another stream's");
    assert!(wait(&mut book, by_a) && wait(&mut book, Stamp::CLEAN), "it waits already");
    assert_eq!(book.fake.waits().len(), 1);

    // What is freed later is behind another fence.
    let later = book.lanes.stamp(a, 1);
    assert!(!book.lanes.takeable(later, b));
    let (by_b, by_c) = (book.lanes.stamp(b, 1), book.lanes.stamp(c, 1));
    let join = book.lanes.join(&[by_a, by_b, by_c]);
    assert!(!book.lanes.takeable(join, b));
    assert!(wait(&mut book, join));
    let second = book.fake.last_record();
    assert_eq!(book.fake.waits()[1..], [(TWO, second)], "its own part and an old one need none");
    assert!(book.lanes.takeable(join, b));

    let (graph, _) = book.lanes.capture_begin(4, StreamHandle(4)).expect("a number");
    let by_graph = book.lanes.stamp(graph, 1);
    assert!(!wait(&mut book, by_graph), "no fence can be recorded");
    book.lanes.capture_end(4, None);
    book.close();
}

#[test]
fn a_number_that_serves_another_stream_has_waited_for_nothing() {
    let mut book = Book::new();
    let (a, b) = (book.stream(1), book.stream(2));
    let by_a = book.lanes.stamp(a, 1);
    assert!(book.lanes.wait_in(&book.driver, (b, TWO), by_a).expect("no fault"));
    assert!(book.lanes.retire(&book.driver, b).expect("no fault"));
    book.fake.pass(book.fake.last_record());
    book.settle();
    book.lanes.reuse(b);
    assert_eq!(book.stream(2), b, "the same number and handle");
    assert!(!book.lanes.takeable(by_a, b));
    book.fake.pass_all();
    book.settle();
    book.close();
}

#[test]
fn few_queries_tell_of_many_fences() {
    for passed in 0..=10u64 {
        let mut book = Book::new();
        let a = book.stream(1);
        let mut stamps = Vec::new();
        let mut events = Vec::new();
        for _ in 0..10 {
            stamps.push(book.lanes.stamp(a, 1));
            assert!(book.record(a));
            events.push(book.fake.last_record());
        }
        events[..passed as usize].iter().for_each(|&event| book.fake.pass(event));
        let before = book.driver.count(Call::EventQuery);
        assert_eq!(book.settle(), passed > 0);
        let queries = book.driver.count(Call::EventQuery) - before;
        let told: Vec<bool> = stamps.iter().map(|&stamp| book.lanes.passed(stamp)).collect();
        assert_eq!(told.iter().filter(|&&t| t).count() as u64, passed);
        assert!(told.is_sorted_by(|a, b| a >= b), "the oldest first: {told:?}");
        let most = match passed {
            0 => 1,
            10 => 2,
            _ => 6,
        };
        assert!(queries <= most, "{queries} queries where {passed} of 10 have passed");
        book.fake.pass_all();
        book.settle();
        book.close();
    }
}

#[test]
fn a_fence_over_known_streams_waits_for_those_that_ended_unfinished() {
    let mut book = Book::with(false);
    let sync = book.sync();
    let (a, b) = (book.stream(1), book.stream(2));
    let freed = book.lanes.stamp(sync, 1);
    assert!(book.lanes.retire(&book.driver, a).expect("no fault"));
    let last_of_a = book.fake.last_record();
    assert!(book.record(sync), "the default stream and the second: the first is gone");
    for (event, _) in book.fake.records() {
        if event != last_of_a {
            book.fake.pass(event);
        }
    }
    book.settle();
    assert!(!book.lanes.passed(freed), "its work is not done");
    let waited = book.lanes.wait_in(&book.driver, (b, TWO), freed).expect("no fault");
    assert!(!waited && book.fake.waits().is_empty(), "and there is no stream to wait for");
    book.fake.pass(last_of_a);
    book.settle();
    book.settle();
    assert!(book.lanes.passed(freed));
    book.close();
}

#[test]
fn where_fences_are_not_in_order_a_wait_stands_for_its_own_fence_alone() {
    let mut book = Book::with(false);
    let sync = book.sync();
    let (_, b) = (book.stream(1), book.stream(2));
    let stamps: Vec<Stamp> = (0..4)
        .map(|_| {
            let stamp = book.lanes.stamp(sync, 1);
            assert!(book.record(sync));
            stamp
        })
        .collect();
    assert!(book.lanes.wait_in(&book.driver, (b, TWO), stamps[1]).expect("no fault"));
    // The default stream and both known ones, of the second fence and no later one.
    let records = book.fake.records();
    let second: Vec<_> = records[3..6].iter().map(|&(event, _)| (TWO, event)).collect();
    assert_eq!(book.fake.waits(), second);
    assert!(stamps.iter().all(|&stamp| !book.lanes.takeable(stamp, b)));
    book.fake.pass_all();
    book.settle();
    book.close();
}

#[test]
fn fences_that_nobody_asks_for_are_bounded() {
    let mut book = Book::new();
    let a = book.stream(1);
    let mut last = None;
    for _ in 0..100 {
        last = Some(book.lanes.stamp(a, 1));
        assert!(book.record(a));
    }
    assert_eq!(book.fake.live_events(), 16);
    assert_eq!(book.driver.count(Call::EventQuery), 0);
    let last = last.expect("freed");
    let newest = book.fake.last_record();
    let older: Vec<_> = book.fake.records().into_iter().map(|(event, _)| event).collect();
    older.iter().filter(|&&event| event != newest).for_each(|&event| book.fake.pass(event));
    book.settle();
    assert!(!book.lanes.passed(last), "the newest covers it");
    book.fake.pass(newest);
    book.settle();
    assert!(book.lanes.passed(last));
    book.close();
}
