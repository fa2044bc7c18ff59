//! Address space, row by row: reservations, their hints, their end.

mod common;
mod vm;

use common::{Sim, row};
use std::ptr::null_mut;
use vm::*;

const H: &str = "cuda.h 12.9, section CUDA_VA";
const T: &str = "ROCm hip-tests, virtualMemoryManagement";

#[test]
fn address_reserve() {
    let sim = Sim::start("");
    let ask = |size: usize, align: usize, hint: u64, flags: u64| {
        let mut at = 0;
        let code = cu!(cuMemAddressReserve(&raw mut at, size, align, hint, flags));
        (code, at)
    };
    for (size, align) in [(4096, 0), (G, 0), (G, 2), (G, 4096), (3 * G, 64 << 20)] {
        let (code, at) = ask(size, align, 0, 0);
        assert_eq!(code, 0, "{size} {align}");
        assert_eq!(at % align.max(G) as u64, 0);
        assert_eq!(unreserve(at, size), 0);
    }
    row("cuMemAddressReserve: host pages, alignment 0 or a power of two from 2 on", T);
    assert_eq!(ask(0, 0, 0, 0).0, 2);
    assert_eq!(ask(G + 1, 0, 0, 0).0, 2);
    assert_eq!(ask(G - 1, 0, 0, 0).0, 2);
    assert_eq!(ask(G, 3, 0, 0).0, 2);
    row("cuMemAddressReserve: size 0, no host pages, or alignment 3 is 2", T);
    assert_eq!(ask(G, 0, 0, 1).0, 1);
    assert_eq!(ask(G, 0, 4097, 0).0, 1);
    let to: *mut u64 = null_mut();
    assert_eq!(cu!(cuMemAddressReserve(to, G, 0, 0, 0)), 1);
    row("cuMemAddressReserve: flags, no place for the answer are 1", H);
    row("cuMemAddressReserve: a hint off a host page is 1", "assumption");

    let hint = 0x1f0_0000_0000u64;
    let (code, at) = ask(4 * G, 0, hint, 0);
    assert_eq!((code, at), (0, hint));
    let (code, other) = ask(4 * G, 0, hint + G as u64, 0);
    assert_eq!(code, 0);
    assert!(other + 4 * G as u64 <= hint || other >= hint + 4 * G as u64);
    row("cuMemAddressReserve: a free hint is taken, another one ignored", H);
    assert_eq!(unreserve(at, 4 * G), 0);
    assert_eq!(unreserve(other, 4 * G), 0);
    assert_eq!(sim.live("reservations"), 0);
    assert_eq!(sim.live("reserved_bytes"), 0);
}

#[test]
fn reservations_of_terabytes_cost_no_memory() {
    let sim = Sim::start("");
    let size = 2 << 40;
    let all: Vec<u64> = (0..8).map(|_| reserve(size)).collect();
    assert_eq!(sim.live("reserved_bytes"), 16 << 40);
    for at in all {
        assert_eq!(peek(at), None);
        assert_eq!(unreserve(at, size), 0);
    }
}

#[test]
fn address_free() {
    let mut sim = Sim::start("");
    let at = reserve(2 * G);
    assert_eq!(unreserve(0, 2 * G), 1);
    assert_eq!(unreserve(at, 0), 1);
    assert_eq!(unreserve(at, G), 1);
    assert_eq!(unreserve(at, 3 * G), 1);
    assert_eq!(unreserve(at + G as u64, G), 1);
    row("cuMemAddressFree: null, size 0, a part, or another start is 1", "cuda.h; hip-tests");
    let handle = create(G);
    assert_eq!(map(at, G, handle), 0);
    assert_eq!(unreserve(at, 2 * G), 1);
    row("cuMemAddressFree: still mapped is 1", "assumption");
    assert_eq!(unmap(at, G), 0);
    assert_eq!(unreserve(at, 2 * G), 0);
    assert_eq!(unreserve(at, 2 * G), 1);
    sim.expect_misuse("use of a freed reservation");
    assert_eq!(map(at, G, handle), 1);
    sim.expect_misuse("use of a freed reservation");
    assert_eq!(release(handle), 0);
}
