//! Copies and fills: kinds, rows, peers, and when they happen.

use crate::common::*;

#[test]
fn the_kind_of_a_copy_is_checked() {
    let mut turn = turn();
    turn.misuses();
    let device = device_words(&[1, 2, 3]);
    let mut host = [0u32; 3];
    let at = host.as_mut_ptr() as u64;
    assert_eq!(cudaMemcpy(at, device, 12, 4), 0);
    assert_eq!(host, [1, 2, 3]);
    assert_eq!(cudaMemcpy(at, device, 12, 5), 21);
    assert_eq!(cudaMemcpy(device, at, 12, 3), 1, "the host is no device");
    assert_eq!(cudaMemcpy(at, at, 12, 1), 1);
    assert_eq!(cudaMemcpy(at, at, 12, 2), 1);
    assert_eq!(cudaMemcpyAsync(at, at, 12, 1, 0), 1);
    assert_eq!(cudaMemcpyAsync(at, device, 12, 9, 0), 21);
    assert_eq!(cudaMemcpy(device, at, 0, 1), 0);
    let mut other = [0u32; 3];
    assert_eq!(cudaMemcpy(other.as_mut_ptr() as u64, at, 12, 0), 0);
    assert_eq!(other, host);
    assert_eq!(cudaFree(device), 0);
}

#[test]
fn rows_keep_their_pitch() {
    let _turn = turn();
    let (mut at, mut pitch) = (0, 0);
    assert_eq!(cudaMallocPitch(&mut at, &mut pitch, 8, 3), 0);
    assert_eq!(cudaMemset2D(at, pitch, 7, 8, 3), 0);
    let rows = [1u32, 2, 3, 4];
    assert_eq!(cudaMemcpy2D(at, pitch, rows.as_ptr() as u64, 8, 8, 2, 1), 0);
    let mut back = [0u32; 6];
    let to = back.as_mut_ptr() as u64;
    assert_eq!(cudaMemcpy2DAsync(to, 8, at, pitch, 8, 3, 2, 0), 0);
    assert_eq!(cudaStreamSynchronize(0), 0);
    assert_eq!(back, [1, 2, 3, 4, 0x0707_0707, 0x0707_0707]);
    assert_eq!(cudaMemset2DAsync(at, pitch, 9, 4, 2, 0), 0);
    assert_eq!(cudaMemcpy2D(to, 8, at, pitch, 8, 3, 2), 0);
    assert_eq!(back, [0x0909_0909, 2, 0x0909_0909, 4, 0x0707_0707, 0x0707_0707]);
    assert_eq!(cudaMemcpy2D(to, 4, at, pitch, 8, 3, 2), 12);
    assert_eq!(cudaMemcpy2D(to, 8, at, pitch, 8, 3, 9), 21);
    assert_eq!(cudaMemcpy2D(to, 8, at, pitch, 0, 3, 2), 0);
    assert_eq!(cudaFree(at), 0);
}

#[test]
fn two_devices_exchange_memory() {
    let _turn = turn();
    let here = device_words(&[5, 6, 7, 8]);
    assert_eq!(cudaDeviceSynchronize(), 0);
    assert_eq!(cudaSetDevice(1), 0);
    let there = device_words(&[0; 4]);
    assert_eq!(cudaMemcpyPeer(there, 1, here, 0, 16), 0);
    assert_eq!(cudaDeviceSynchronize(), 0);
    assert_eq!(words_of(there, 4), [5, 6, 7, 8]);
    let stream = stream();
    assert_eq!(cudaMemset(there, 1, 8), 0);
    assert_eq!(cudaDeviceSynchronize(), 0);
    assert_eq!(cudaMemcpyPeerAsync(here, 0, there, 1, 16, stream), 0);
    assert_eq!(cudaStreamSynchronize(stream), 0);
    assert_eq!(cudaMemcpyPeer(there, 2, here, 0, 16), 101);
    assert_eq!(cudaStreamDestroy(stream), 0);
    assert_eq!(cudaFree(there), 0);
    assert_eq!(cudaSetDevice(0), 0);
    assert_eq!(words_of(here, 4), [0x0101_0101, 0x0101_0101, 7, 8]);
    assert_eq!(cudaFree(here), 0);
}

#[test]
fn an_asynchronous_copy_is_done_when_its_stream_is() {
    let _turn = turn();
    let (stream, out) = (stream(), pinned(4));
    let device = device_words(&[9; 4]);
    assert_eq!(cudaDeviceSynchronize(), 0);
    assert_eq!(cudaMemsetAsync(device, 3, 8, stream), 0);
    assert_eq!(cudaMemcpyAsync(out.as_mut_ptr() as u64, device, 16, 2, stream), 0);
    assert_eq!(cudaStreamQuery(stream), 600, "queued work runs late");
    assert_eq!(out, [0; 4]);
    assert_eq!(cudaStreamSynchronize(stream), 0);
    assert_eq!(out, [0x0303_0303, 0x0303_0303, 9, 9]);
    assert_eq!(cudaStreamDestroy(stream), 0);
    assert_eq!(cudaFree(device), 0);
    assert_eq!(cudaFreeHost(out.as_mut_ptr().cast()), 0);
}
