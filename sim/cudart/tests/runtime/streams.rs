//! Streams, events, and functions of the program in their order.

use crate::common::*;
use std::ffi::c_void;
use std::sync::Mutex;

#[test]
fn a_stream_is_what_it_was_made_as() {
    let _turn = turn();
    let (mut stream, mut flags, mut priority) = (0, 0, 0);
    assert_eq!(cudaStreamCreateWithPriority(&mut stream, 1, -1), 0);
    assert_eq!((cudaStreamGetFlags(stream, &mut flags), flags), (0, 1));
    assert_eq!((cudaStreamGetPriority(stream, &mut priority), priority), (0, -1));
    assert_eq!(cudaStreamQuery(stream), 0);
    assert_eq!(cudaStreamDestroy(stream), 0);
    assert_eq!(cudaStreamCreateWithFlags(&mut stream, 8), 1);
}

#[test]
fn events_order_streams_and_tell_time() {
    let _turn = turn();
    let (first, second, out) = (stream(), stream(), pinned(1));
    let device = device_words(&[1]);
    assert_eq!(cudaDeviceSynchronize(), 0);
    let (mut start, mut end, mut ms) = (0, 0, -1.0);
    assert_eq!(cudaEventCreate(&mut start), 0);
    assert_eq!(cudaEventCreate(&mut end), 0);
    assert_eq!(cudaEventRecord(start, first), 0);
    assert_eq!(cudaMemsetAsync(device, 2, 4, first), 0);
    assert_eq!(cudaEventRecord(end, first), 0);
    assert_eq!(cudaEventQuery(end), 600);
    assert_eq!(cudaStreamWaitEvent(second, end, 0), 0);
    assert_eq!(cudaMemcpyAsync(out.as_mut_ptr() as u64, device, 4, 2, second), 0);
    assert_eq!(cudaStreamSynchronize(second), 0);
    assert_eq!(out, [0x0202_0202]);
    assert_eq!(cudaEventQuery(end), 0);
    assert_eq!(cudaEventElapsedTime(&mut ms, start, end), 0);
    assert!(ms >= 0.0, "{ms}");
    for event in [start, end] {
        assert_eq!(cudaEventDestroy(event), 0);
    }
    let mut silent = 0;
    assert_eq!(cudaEventCreateWithFlags(&mut silent, 2), 0);
    assert_eq!(cudaEventRecord(silent, first), 0);
    assert_eq!(cudaEventSynchronize(silent), 0);
    assert_eq!(cudaEventElapsedTime(&mut ms, silent, silent), 400, "it tells no time");
    assert_eq!(cudaEventDestroy(silent), 0);
    for stream in [first, second] {
        assert_eq!(cudaStreamDestroy(stream), 0);
    }
    assert_eq!(cudaFree(device), 0);
    assert_eq!(cudaFreeHost(out.as_mut_ptr().cast()), 0);
}

static CALLED: Mutex<Vec<(usize, i32)>> = Mutex::new(Vec::new());

unsafe extern "C" fn called(data: *mut c_void) {
    CALLED.lock().expect("not poisoned").push((data as usize, 0));
}

unsafe extern "C" fn called_back(_stream: u64, status: i32, data: *mut c_void) {
    CALLED.lock().expect("not poisoned").push((data as usize, status));
}

#[test]
fn functions_are_called_in_the_streams_order() {
    let _turn = turn();
    CALLED.lock().expect("not poisoned").clear();
    let stream = stream();
    let data = |n: usize| n as *mut c_void;
    assert_eq!(cudaLaunchHostFunc(stream, Some(called), data(1)), 0);
    let back = called_back as unsafe extern "C" fn(u64, i32, *mut c_void) as *const c_void;
    assert_eq!(cudaStreamAddCallback(stream, back, data(2), 0), 0);
    assert_eq!(cudaLaunchHostFunc(stream, Some(called), data(3)), 0);
    assert_eq!(cudaStreamSynchronize(stream), 0);
    assert_eq!(*CALLED.lock().expect("not poisoned"), [(1, 0), (2, 0), (3, 0)]);
    assert_eq!(cudaStreamDestroy(stream), 0);
}

#[test]
fn the_threads_own_stream_is_not_the_legacy_one() {
    let _turn = turn();
    let device = device_words(&[0]);
    assert_eq!(cudaDeviceSynchronize(), 0);
    assert_eq!(cudaMemsetAsync_ptsz(device, 1, 4, 0), 0);
    assert_eq!(cudaStreamQuery(2), 600, "handle 2 names the thread's own stream");
    assert_eq!(cudaStreamSynchronize_ptsz(0), 0);
    assert_eq!(cudaStreamQuery_ptsz(0), 0);
    assert_eq!(words_of(device, 1), [0x0101_0101]);
    assert_eq!(cudaFree(device), 0);
}
