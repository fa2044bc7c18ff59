//! Streams and events: lateness, order, marks, waits, wrong use.

use std::sync::mpsc;
use std::thread;

use super::*;

#[test]
fn work_runs_late_and_in_its_streams_order() {
    let driver = device();
    let (base, _pages) = mapped(&driver, 1);
    write(base, 1);
    let stream = driver.stream_create().expect("a stream");
    driver.hold(stream).expect("live");
    driver.fill(base, 7, 1, stream).expect("queued");
    driver.copy(base + 1, base, 1, stream).expect("queued");
    driver.fill(base, 9, 1, stream).expect("queued");
    let event = driver.event_create().expect("an event");
    driver.event_record(event, Scope::Stream(stream)).expect("live");
    thread::sleep(Duration::from_millis(2));
    assert_eq!((read(base), read(base + 1)), (1, 0), "nothing runs while held");
    assert_eq!(driver.event_query(event), Ok(false));
    assert_eq!(driver.outstanding(), 3);
    driver.unhold(stream).expect("live");
    driver.event_synchronize(event).expect("an event");
    assert_eq!(driver.event_query(event), Ok(true));
    assert_eq!((read(base), read(base + 1)), (9, 7));
}

#[test]
fn queueing_starts_few_workers_and_none_before_work() {
    let driver = device();
    let streams: Vec<_> = (0..9).map(|_| driver.stream_create().expect("a stream")).collect();
    let event = driver.event_create().expect("an event");
    driver.event_record(event, Scope::Context).expect("an event");
    assert_eq!(driver.streams.workers(), 0);
    for &stream in &streams {
        driver.spin(stream, 1_000_000).expect("queued");
    }
    driver.quiesce();
    assert_eq!(driver.outstanding(), 0);
    assert!((1..=4).contains(&driver.streams.workers()));
}

#[test]
fn a_stream_waits_for_another_ones_event() {
    let driver = device();
    let (base, _pages) = mapped(&driver, 1);
    let (first, second) =
        (driver.stream_create().expect("a stream"), driver.stream_create().expect("a stream"));
    let event = driver.event_create().expect("an event");
    driver.hold(first).expect("live");
    driver.fill(base, 3, 1, first).expect("queued");
    driver.event_record(event, Scope::Stream(first)).expect("live");
    driver.fill(base, 4, 1, first).expect("queued after the mark");
    driver.stream_wait(second, event).expect("live");
    driver.copy(base + 1, base, 1, second).expect("queued");
    thread::sleep(Duration::from_millis(2));
    assert_eq!(read(base + 1), 0, "the second stream waits");
    driver.unhold(first).expect("live");
    driver.stream_synchronize(second).expect("live");
    assert!([3, 4].contains(&read(base + 1)));
    driver.stream_synchronize(first).expect("live");
    assert_eq!(read(base), 4);
}

#[test]
fn a_context_event_covers_all_streams_and_only_earlier_work() {
    let driver = deferred();
    let (base, _pages) = mapped(&driver, 1);
    let streams: Vec<_> = (0..3).map(|_| driver.stream_create().expect("a stream")).collect();
    let event = driver.event_create().expect("an event");
    assert_eq!(driver.event_query(event), Ok(true), "never recorded");
    for (i, &stream) in streams.iter().enumerate() {
        driver.fill(base + i, 1, 1, stream).expect("queued");
    }
    driver.event_record(event, Scope::Context).expect("supported");
    driver.fill(base, 2, 1, streams[0]).expect("queued after the mark");
    driver.stream_synchronize(streams[0]).expect("live");
    driver.stream_synchronize(streams[2]).expect("live");
    assert_eq!(driver.event_query(event), Ok(false), "the second stream is late");
    assert_eq!([read(base), read(base + 1), read(base + 2)], [2, 0, 1]);
    driver.fill(base, 5, 1, streams[0]).expect("queued after the mark");
    driver.event_synchronize(event).expect("an event");
    assert_eq!([read(base), read(base + 1)], [2, 1], "only what the mark needs has run");
    assert_eq!(driver.event_query(event), Ok(true));
    assert_eq!(driver.run_all(), 1);
    assert_eq!(read(base), 5);
}

#[test]
fn a_device_without_context_events_says_so() {
    let options = HostOptions { context_events: false, ..HostOptions::default() };
    let driver = HostDriver::new(options).expect("a device");
    let event = driver.event_create().expect("an event");
    assert_eq!(code(driver.event_record(event, Scope::Context)), Code::NotSupported);
    assert!(!driver.device().context_events);
    driver.event_record(event, Scope::Stream(DEFAULT_STREAM)).expect("streams have events");
}

/// Runs a fixed load to its end by `seed`; says which streams ran, in order.
fn run_order(seed: u64) -> Vec<StreamHandle> {
    let driver = deferred();
    let streams: Vec<_> = (0..4).map(|_| driver.stream_create().expect("a stream")).collect();
    for i in 0..24 {
        driver.spin(streams[i % 4], 0).expect("queued");
    }
    (seed..).map_while(|s| driver.step(s)).collect()
}

#[test]
fn deferred_work_runs_by_seed_alone() {
    let order = run_order(1);
    assert_eq!(order.len(), 24);
    assert_eq!(order, run_order(1));
    assert_ne!(order, run_order(1000));
    let driver = deferred();
    let (base, _pages) = mapped(&driver, 1);
    driver.fill(base, 6, 1, DEFAULT_STREAM).expect("queued");
    assert_eq!(driver.outstanding(), 1);
    assert_eq!(read(base), 0);
    assert_eq!(driver.step(0), Some(DEFAULT_STREAM));
    assert_eq!(read(base), 6);
    assert_eq!((driver.step(0), driver.streams.workers()), (None, 0));
}

#[test]
fn a_deferred_synchronize_follows_waits_through_streams() {
    let driver = deferred();
    let (base, _pages) = mapped(&driver, 1);
    let streams: Vec<_> = (0..4).map(|_| driver.stream_create().expect("a stream")).collect();
    write(base, 8);
    for i in 0..3 {
        driver.copy(base + i + 1, base + i, 1, streams[i]).expect("queued");
        let event = driver.event_create().expect("an event");
        driver.event_record(event, Scope::Stream(streams[i])).expect("live");
        driver.stream_wait(streams[i + 1], event).expect("live");
        driver.event_destroy(event).expect("the wait has the mark already");
    }
    driver.copy(base + 4, base + 3, 1, streams[3]).expect("queued");
    assert_eq!(driver.step(0), Some(streams[0]), "all others wait");
    driver.stream_synchronize(streams[3]).expect("live");
    assert_eq!(read(base + 4), 8);
    assert_eq!(driver.outstanding(), 0);
}

#[test]
fn a_deferred_synchronize_waits_for_a_held_stream() {
    let driver = deferred();
    let (base, _pages) = mapped(&driver, 1);
    driver.hold(DEFAULT_STREAM).expect("live");
    driver.fill(base, 2, 1, DEFAULT_STREAM).expect("queued");
    assert_eq!((driver.step(0), driver.run_all()), (None, 0));
    let (done, ended) = mpsc::channel();
    thread::scope(|scope| {
        scope.spawn(|| {
            driver.stream_synchronize(DEFAULT_STREAM).expect("live");
            done.send(read(base)).expect("the receiver waits");
        });
        assert!(ended.recv_timeout(Duration::from_millis(5)).is_err(), "held");
        driver.unhold(DEFAULT_STREAM).expect("live");
        assert_eq!(ended.recv(), Ok(2));
    });
}

#[test]
fn destroyed_streams_finish_their_work_and_handles_come_back() {
    let driver = deferred();
    let (base, _pages) = mapped(&driver, 1);
    let stream = driver.stream_create().expect("a stream");
    let event = driver.event_create().expect("an event");
    driver.hold(stream).expect("live");
    driver.fill(base, 4, 1, stream).expect("queued");
    driver.event_record(event, Scope::Stream(stream)).expect("live");
    driver.stream_destroy(stream).expect("live");
    assert_eq!(code(driver.stream_check(stream)), Code::InvalidHandle);
    assert_eq!(driver.census().streams, 1, "until its work is done");
    let other = driver.stream_create().expect("a stream");
    assert_ne!(other, stream, "still in use");
    assert_eq!(driver.event_query(event), Ok(false));
    driver.run_all();
    assert_eq!(driver.event_query(event), Ok(true));
    assert_eq!(read(base), 4);
    assert_eq!(driver.stream_create(), Ok(stream));
}

#[test]
fn wrong_use_of_streams_and_events_is_refused() {
    let driver = device();
    let (stream, event) =
        (driver.stream_create().expect("one"), driver.event_create().expect("one"));
    driver.stream_check(stream).expect("live");
    driver.stream_check(DEFAULT_STREAM).expect("always there");
    assert_eq!(code(driver.stream_destroy(DEFAULT_STREAM)), Code::InvalidValue);
    let bad = Code::InvalidHandle;
    for wrong in [1, 2, stream.0 + 1, stream.0 * 2, u64::MAX].map(StreamHandle) {
        assert_eq!(code(driver.stream_check(wrong)), bad);
        assert_eq!(code(driver.stream_synchronize(wrong)), bad);
        assert_eq!(code(driver.stream_destroy(wrong)), bad);
        assert_eq!(code(driver.stream_wait(wrong, event)), bad);
        assert_eq!(code(driver.event_record(event, Scope::Stream(wrong))), bad);
        assert_eq!(code(driver.fill(4096, 0, 1, wrong)), bad);
        assert_eq!(code(driver.spin(wrong, 1)), bad);
        assert_eq!(code(driver.hold(wrong)), bad);
    }
    for wrong in [0, event.0 + 1, u64::MAX].map(EventHandle) {
        assert_eq!(code(driver.event_record(wrong, Scope::Context)), bad);
        assert_eq!(code(driver.event_query(wrong)), bad);
        assert_eq!(code(driver.event_synchronize(wrong)), bad);
        assert_eq!(code(driver.event_destroy(wrong)), bad);
        assert_eq!(code(driver.stream_wait(stream, wrong)), bad);
    }
    assert_eq!(code(driver.fill(0, 0, 1, stream)), Code::InvalidValue);
    assert_eq!(code(driver.copy(4096, usize::MAX, 2, stream)), Code::InvalidValue);
    assert_eq!(driver.outstanding(), 0);
}

#[test]
fn many_threads_and_streams_keep_their_order() {
    const ROUNDS: usize = 500;
    let driver = device();
    let (base, _pages) = mapped(&driver, 4);
    thread::scope(|scope| {
        for i in 0..4 {
            let (driver, at) = (&driver, base + i * GRANULE);
            scope.spawn(move || {
                let stream = driver.stream_create().expect("a stream");
                let event = driver.event_create().expect("an event");
                for round in 1..=ROUNDS {
                    let value = (round % 251) as u8;
                    driver.fill(at, value, 64, stream).expect("queued");
                    driver.copy(at + 64, at, 64, stream).expect("queued");
                    driver.event_record(event, Scope::Stream(stream)).expect("live");
                    driver.fill(at, 255, 64, stream).expect("queued");
                    while driver.event_query(event) == Ok(false) {
                        thread::yield_now();
                    }
                    assert_eq!(read(at + 64), value);
                    assert_eq!(read(at + 127), value);
                }
                driver.stream_destroy(stream).expect("live");
                driver.event_destroy(event).expect("live");
            });
        }
    });
    driver.quiesce();
    let census = driver.census();
    assert_eq!((census.streams, census.events), (0, 0));
}
