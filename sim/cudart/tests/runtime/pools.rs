//! Memory in stream order, and pools.

use crate::common::*;

const THRESHOLD: u32 = 4;
const RESERVED: u32 = 5;
const USED: u32 = 7;

fn attribute(pool: u64, which: u32) -> u64 {
    let mut value = 0;
    assert_eq!(cudaMemPoolGetAttribute(pool, which, &mut value), 0);
    value
}

#[test]
fn a_devices_pool_counts_what_it_gives() {
    let _turn = turn();
    let (mut pool, mut current) = (0, 0);
    assert_eq!(cudaDeviceGetDefaultMemPool(&mut pool, 0), 0);
    assert_eq!(cudaDeviceGetMemPool(&mut current, 0), 0);
    assert_eq!(pool, current);
    let (stream, mut at) = (stream(), 0);
    let before = attribute(pool, USED);
    assert_eq!(cudaMallocAsync(&mut at, 8192, stream), 0);
    assert_eq!(attribute(pool, USED), before + 8192);
    assert_eq!(cudaMemsetAsync(at, 5, 8192, stream), 0);
    assert_eq!(cudaFreeAsync(at, stream), 0);
    assert_eq!(cudaStreamSynchronize(stream), 0);
    assert_eq!(attribute(pool, USED), before);
    assert_eq!(cudaMallocAsync(&mut at, 8192, stream), 0);
    assert_eq!(cudaStreamSynchronize(stream), 0);
    assert_eq!(cudaFree(at), 0, "memory in stream order may be freed at once");
    assert_eq!(cudaStreamDestroy(stream), 0);
}

#[test]
fn a_pool_of_ones_own_is_kept_and_trimmed() {
    let _turn = turn();
    let props = PoolProps::of(0);
    let (mut pool, mut at, mut default, mut current) = (0, 0, 0, 0);
    assert_eq!(cudaMemPoolCreate(&mut pool, &props), 0);
    let mut keep = u64::MAX;
    assert_eq!(cudaMemPoolSetAttribute(pool, THRESHOLD, &mut keep), 0);
    assert_eq!(attribute(pool, THRESHOLD), u64::MAX);
    let stream = stream();
    assert_eq!(cudaMallocFromPoolAsync(&mut at, 1 << 20, pool, stream), 0);
    assert_eq!(cudaFreeAsync(at, stream), 0);
    assert_eq!(cudaStreamSynchronize(stream), 0);
    assert!(attribute(pool, RESERVED) >= 1 << 20);
    assert_eq!(cudaMemPoolTrimTo(pool, 0), 0);
    assert_eq!(attribute(pool, RESERVED), 0);
    assert_eq!(cudaDeviceGetDefaultMemPool(&mut default, 0), 0);
    assert_eq!(cudaDeviceSetMemPool(0, pool), 0);
    assert_eq!((cudaDeviceGetMemPool(&mut current, 0), current), (0, pool));
    assert_eq!(cudaDeviceSetMemPool(0, default), 0);
    assert_eq!(cudaMemPoolDestroy(pool), 0);
    assert_eq!(cudaStreamDestroy(stream), 0);
}
