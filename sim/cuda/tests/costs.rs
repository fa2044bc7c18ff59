//! What calls cost, end to end: virtual time of the report against sums by hand.

mod common;
use common::Sim;
use forebay_simcuda::types::{CUmemAccessDesc, CUmemAllocationProp, CUmemLocation};

const PAGE: usize = 2 << 20;

fn device(id: i32) -> CUmemLocation {
    CUmemLocation { type_: 1, id }
}

/// Reserves, creates, maps page by page, opens all at once; the handles go at once, the rest
/// at the end. Virtual microseconds of both halves.
fn run_of_pages(settings: &str, pages: usize, at_once: bool) -> (f64, f64) {
    let sim = Sim::start(settings);
    let (mut base, mut handles) = (0, vec![0u64; pages]);
    let prop = CUmemAllocationProp { type_: 1, location: device(0), ..Default::default() };
    let access = CUmemAccessDesc { location: device(0), flags: 3 };
    let length = pages * PAGE;
    assert_eq!(cu!(cuMemAddressReserve(&raw mut base, length, 0, 0, 0)), 0);
    for (i, handle) in handles.iter_mut().enumerate() {
        assert_eq!(cu!(cuMemCreate(handle, PAGE, &raw const prop, 0)), 0);
        let at = base + (i * PAGE) as u64;
        assert_eq!(cu!(cuMemMap(at, PAGE, 0, *handle, 0)), 0);
        if !at_once {
            assert_eq!(cu!(cuMemSetAccess(at, PAGE, &raw const access, 1)), 0);
        }
    }
    if at_once {
        assert_eq!(cu!(cuMemSetAccess(base, length, &raw const access, 1)), 0);
    }
    let up = sim.time_us();
    assert_eq!(cu!(cuMemUnmap(base, length)), 0);
    for handle in handles {
        assert_eq!(cu!(cuMemRelease(handle)), 0);
    }
    assert_eq!(cu!(cuMemAddressFree(base, length)), 0);
    (up, sim.time_us() - up)
}

#[test]
fn a_run_of_1024_pages_costs_its_sum() {
    let memory = "memory = 3GiB\npoison = none";
    let (up, down) = run_of_pages(&format!("profile = a100\n{memory}"), 1024, true);
    assert_eq!(up, 19.0 + 1024.0 * (193.0 + 1.5) + 36.0 + 1023.0 * 2.0);
    let releases = (1024.0 * (23.0 + 0.37 * 2.0) * 1000.0_f64).round() / 1000.0;
    assert!((down - (1024.0 * 26.0 + releases + 1.0)).abs() < 0.001, "{down}");
    let (up, down) = run_of_pages(&format!("profile = vattn\n{memory}"), 1024, true);
    assert_eq!(up, 2.0 + 1024.0 * (29.0 + 2.0) + 38.0 + 1023.0 * 2.0);
    assert_eq!(down, 1024.0 * (34.0 + 23.0) + 1.0);
}

#[test]
fn access_page_by_page_costs_more_than_at_once() {
    let settings = "profile = vattn\nmemory = 1GiB\npoison = none";
    let (at_once, _) = run_of_pages(settings, 256, true);
    let (each, _) = run_of_pages(settings, 256, false);
    assert_eq!(each - at_once, 256.0 * 38.0 - (38.0 + 255.0 * 2.0));
}

#[test]
fn plain_memory_costs_its_steps() {
    let sim = Sim::start("profile = laptop\npoison = none");
    sim.primary(0);
    let mut at = 0;
    assert_eq!(sim.time_us(), 0.0);
    assert_eq!(cu!(cuMemAlloc_v2(&raw mut at, PAGE)), 0);
    assert_eq!(sim.time_us(), 165.472);
    assert_eq!(cu!(cuMemFree_v2(at)), 0);
    assert_eq!(sim.time_us(), 229.212);
    let (mut free, mut total) = (0, 0);
    let before = sim.time_us();
    assert_eq!(cu!(cuMemGetInfo_v2(&raw mut free, &raw mut total)), 0);
    assert!((sim.time_us() - before - 6.0).abs() < 0.001);
}

#[test]
fn a_call_that_fails_costs_its_fixed_part() {
    let sim = Sim::start("profile = a100\nmemory = 64MiB\nfaults = fail cuMemMap with 2");
    let mut handle = 0;
    let prop = CUmemAllocationProp { type_: 1, location: device(0), ..Default::default() };
    assert_eq!(cu!(cuMemCreate(&raw mut handle, PAGE * 64, &raw const prop, 0)), 2);
    assert_eq!(sim.time_us(), 193.0);
    assert_eq!(cu!(cuMemMap(PAGE as u64, PAGE, 0, 1, 0)), 2);
    assert_eq!(sim.time_us(), 194.5);
}
