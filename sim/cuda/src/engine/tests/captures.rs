//! Captures, graphs and user objects, in the engine alone.

use super::*;
use crate::engine::capture::{MODE_GLOBAL, MODE_RELAXED, MODE_THREAD_LOCAL, STATUS_INVALIDATED};

fn captured_pair(rig: &Rig) -> (Uid, Uid, u64) {
    let (a, b) = (rig.stream(NON_BLOCKING), rig.stream(NON_BLOCKING));
    (a, b, rig.event())
}

#[test]
fn a_capture_with_a_fork_becomes_a_graph_that_runs_again_and_again() {
    for seed in 0..20 {
        let rig = Rig::new(seed);
        let (a, b, event) = captured_pair(&rig);
        rig.engine.begin_capture(a, MODE_GLOBAL).unwrap();
        rig.queue(a, 1);
        rig.engine.record(event, a, 0).unwrap();
        rig.engine.stream_wait(b, event, 0).unwrap();
        rig.queue(a, 2);
        rig.queue(b, 3);
        rig.engine.record(event, b, 0).unwrap();
        rig.engine.stream_wait(a, event, 0).unwrap();
        rig.queue(a, 4);
        let graph = rig.engine.end_capture(a).unwrap();
        assert!(rig.log.lock().unwrap().is_empty(), "captured work ran");
        assert_eq!(rig.engine.graph_nodes(graph).unwrap().len(), 4);
        assert_eq!(rig.engine.graph_edges(graph).unwrap().len(), 4);
        let exec = rig.engine.instantiate(graph, 0).unwrap();
        rig.engine.destroy_graph(graph).unwrap();
        rig.queue(b, 0);
        rig.engine.launch_graph(exec, b).unwrap();
        rig.engine.launch_graph(exec, a).unwrap();
        rig.engine.destroy_exec(exec).unwrap();
        rig.queue(b, 5);
        let order = rig.drain();
        assert_eq!(order.len(), 10);
        assert!(position(&order, 0) < position(&order, 1));
        let firsts: Vec<usize> = (1..=4).map(|m| position(&order, m)).collect();
        assert!(firsts[0] < firsts[1].min(firsts[2]) && firsts[3] > firsts[1].max(firsts[2]));
        assert!(position(&order, 5) > firsts[3]);
        let second = order.iter().rposition(|m| *m == 1).unwrap();
        assert!(second > firsts[3], "two launches of one executable graph overlap: {order:?}");
    }
}

#[test]
fn an_unjoined_fork_a_wrong_stream_and_a_wrong_thread_have_their_own_codes() {
    let rig = Rig::new(1);
    let (a, b, event) = captured_pair(&rig);
    assert_eq!(rig.engine.end_capture(a), Err(code::ILLEGAL_STATE));
    rig.engine.begin_capture(a, MODE_GLOBAL).unwrap();
    assert_eq!(rig.engine.begin_capture(a, MODE_GLOBAL), Err(code::ILLEGAL_STATE));
    rig.engine.record(event, a, 0).unwrap();
    rig.engine.stream_wait(b, event, 0).unwrap();
    rig.queue(b, 1);
    assert_eq!(rig.engine.end_capture(a), Err(code::CAPTURE_UNJOINED));
    assert_eq!(rig.engine.capture_info(b).unwrap().status, 0, "ending frees all its streams");
    rig.engine.begin_capture(a, MODE_THREAD_LOCAL).unwrap();
    let other = std::thread::scope(|s| s.spawn(|| rig.engine.end_capture(a)).join().unwrap());
    assert_eq!(other, Err(code::CAPTURE_WRONG_THREAD));
    rig.engine.end_capture(a).unwrap();
    rig.engine.begin_capture(a, MODE_RELAXED).unwrap();
    let other = std::thread::scope(|s| s.spawn(|| rig.engine.end_capture(a)).join().unwrap());
    assert!(other.is_ok());
    rig.engine.begin_capture(a, MODE_GLOBAL).unwrap();
    rig.engine.record(event, a, 0).unwrap();
    rig.engine.stream_wait(b, event, 0).unwrap();
    assert_eq!(rig.engine.end_capture(b), Err(code::CAPTURE_UNMATCHED));
    assert_eq!(rig.engine.end_capture(a), Err(code::CAPTURE_INVALIDATED));
    assert_eq!(rig.engine.begin_capture(rig.uid(LEGACY), 0), Err(code::CAPTURE_UNSUPPORTED));
    assert_eq!(rig.engine.begin_capture(a, 3), Err(code::INVALID_VALUE));
    assert_eq!(rig.count("graphs"), 2, "only the two captures that ended well");
}

#[test]
fn captures_do_not_merge_nor_depend_on_what_is_outside() {
    let rig = Rig::new(1);
    let (a, b, event) = captured_pair(&rig);
    let outside = rig.event();
    rig.engine.record(outside, b, 0).unwrap();
    rig.engine.begin_capture(a, MODE_GLOBAL).unwrap();
    rig.engine.begin_capture(b, MODE_GLOBAL).unwrap();
    rig.engine.record(event, a, 0).unwrap();
    assert_eq!(rig.engine.stream_wait(b, event, 0), Err(code::CAPTURE_MERGE));
    for uid in [a, b] {
        assert_eq!(rig.engine.capture_info(uid).unwrap().status, STATUS_INVALIDATED);
        assert_eq!(rig.engine.submit(uid, rig.item(1), 0.0).err(), Some(code::CAPTURE_INVALIDATED));
        assert_eq!(rig.engine.end_capture(uid), Err(code::CAPTURE_INVALIDATED));
    }
    rig.engine.begin_capture(a, MODE_GLOBAL).unwrap();
    assert_eq!(rig.engine.stream_wait(a, outside, 0), Err(code::CAPTURE_ISOLATION));
    assert_eq!(rig.engine.end_capture(a), Err(code::CAPTURE_INVALIDATED));
    // The event's capture has ended.
    assert_eq!(rig.engine.stream_wait(b, event, 0), Err(code::CAPTURED_EVENT));
    rig.engine.begin_capture(a, MODE_GLOBAL).unwrap();
    rig.engine.stream_wait(a, outside, event::EXTERNAL).unwrap();
    rig.engine.record(event, a, event::EXTERNAL).unwrap();
    let graph = rig.engine.end_capture(a).unwrap();
    assert_eq!(rig.engine.graph_nodes(graph).unwrap().len(), 2);
    assert_eq!(rig.engine.stream_wait(a, outside, event::EXTERNAL), Err(1));
}

#[test]
fn the_legacy_stream_is_unusable_while_a_blocking_stream_is_captured() {
    let rig = Rig::new(1);
    let (a, legacy) = (rig.stream(0), rig.uid(LEGACY));
    rig.engine.begin_capture(a, MODE_RELAXED).unwrap();
    assert_eq!(rig.engine.capture_info(legacy), Err(code::CAPTURE_IMPLICIT));
    assert_eq!(rig.engine.capture_info(a).unwrap().status, 1, "asking harms nothing");
    let refused = rig.engine.submit(legacy, rig.item(1), 0.0).err();
    assert_eq!(refused, Some(code::CAPTURE_IMPLICIT));
    assert_eq!(rig.engine.end_capture(a), Err(code::CAPTURE_INVALIDATED));
    let free = rig.stream(NON_BLOCKING);
    rig.engine.begin_capture(free, MODE_RELAXED).unwrap();
    rig.queue(legacy, 1);
    rig.engine.end_capture(free).unwrap();
    assert_eq!(rig.drain(), [1]);
}

unsafe extern "C" fn destroyed(data: *mut c_void) {
    // SAFETY: the data is a leaked counter, as in `note_call`.
    unsafe { note_call(data) }
}

#[test]
fn a_user_object_dies_with_the_last_launch_of_the_last_executable_graph() {
    let rig = Rig::with(Options { mode: Schedule::Stepped, ..Options::default() });
    let a = rig.stream(NON_BLOCKING);
    let (count, data) = counter();
    let object = rig.engine.create_user_object(data, destroyed, 1, 1).unwrap();
    rig.engine.begin_capture(a, MODE_GLOBAL).unwrap();
    rig.queue(a, 1);
    let filling = rig.engine.capture_info(a).unwrap().graph;
    rig.engine.graph_retain(filling, object, 1, 1).unwrap();
    let graph = rig.engine.end_capture(a).unwrap();
    assert_eq!(graph, filling);
    let exec = rig.engine.instantiate(graph, 0).unwrap();
    rig.engine.destroy_graph(graph).unwrap();
    rig.engine.launch_graph(exec, a).unwrap();
    rig.engine.destroy_exec(exec).unwrap();
    assert_eq!(rig.count("user_objects"), 1, "the launch is still under way");
    assert_eq!(count.load(Ordering::SeqCst), 0);
    rig.drain();
    assert_eq!(rig.count("user_objects"), 0);
    while count.load(Ordering::SeqCst) == 0 {
        std::thread::yield_now();
    }
    assert_eq!(rig.engine.retain_user_object(object, 1), Err(code::INVALID_VALUE));
    assert_eq!(rig.misuse.lock().unwrap().len(), 1);
}
