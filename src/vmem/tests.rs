//! Tests of address space and pages: every driver call failed in turn over the host device.

use super::*;
use crate::driver::faulty::{CallSet, Fault, FaultyDriver, Times};
use crate::driver::host::{HostDriver, HostOptions};
use crate::driver::{Call, StreamHandle};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU8, Ordering};

const GRANULE: usize = 64 << 10;
const DEFAULT_STREAM: StreamHandle = StreamHandle(0);

/// The room over a small host device, and what a test believes of it.
struct Bench {
    vmem: Vmem,
    driver: Arc<FaultyDriver<HostDriver>>,
    /// The byte in each granule that is mapped and not stranded.
    contents: BTreeMap<u32, u8>,
    stranded: Vec<u32>,
    next: u8,
}

impl Bench {
    fn with(options: HostOptions) -> Bench {
        let host = HostDriver::new(options).expect("a device");
        let driver = Arc::new(FaultyDriver::new(Arc::new(host)));
        Bench {
            vmem: Vmem::new(Arc::clone(&driver) as Arc<dyn Driver>),
            driver,
            contents: BTreeMap::new(),
            stranded: Vec::new(),
            next: 1,
        }
    }

    fn options() -> HostOptions {
        HostOptions { granularity: GRANULE, total_bytes: 64 * GRANULE, ..HostOptions::default() }
    }

    fn new() -> Bench {
        Bench::with(Bench::options())
    }

    /// A bench with one space of `granules`.
    fn spaced(granules: usize) -> Bench {
        let mut bench = Bench::new();
        let space = bench.vmem.add_space(granules * GRANULE, GRANULE).expect("address space");
        assert_eq!((space.first, space.bytes), (0, granules * GRANULE));
        bench
    }

    fn fail(&self, calls: &[Call], nth: u64) {
        self.driver.fail(Fault::once(CallSet::of(calls), nth));
    }

    /// Maps; on success writes a byte of its own into each granule.
    fn map(&mut self, first: u32, len: u32) -> Result<(), MapFailure> {
        let answer = self.vmem.map(first, len);
        match &answer {
            Ok(()) => {
                for g in first..first + len {
                    let address = self.vmem.address(g);
                    let filled = self.driver.fill(address, self.next, GRANULE, DEFAULT_STREAM);
                    filled.expect("accessible");
                    self.contents.insert(g, self.next);
                    self.next += 1;
                }
                self.driver.stream_synchronize(DEFAULT_STREAM).expect("no fault");
            }
            Err(failure) => {
                if let Some((first, len)) = failure.stranded {
                    self.stranded.extend(first..first + len);
                }
            }
        }
        self.check();
        answer
    }

    fn unmap(&mut self, first: u32, len: u32) -> DriverResult<()> {
        let answer = self.vmem.unmap(first, len);
        if answer.is_ok() {
            (first..first + len).for_each(|g| {
                self.contents.remove(&g);
            });
        }
        self.check();
        answer
    }

    fn recover(&mut self) {
        let mut freed = self.vmem.recover(true);
        freed.sort_unstable();
        self.stranded.sort_unstable();
        assert_eq!(freed, self.stranded, "all come back once the faults stop");
        self.stranded.clear();
        assert_eq!(self.vmem.stuck(), 0);
        self.check();
    }

    /// The room, the device and the test's belief agree; live memory holds what it held.
    fn check(&self) {
        let census = self.driver.inner().census();
        assert_eq!(census.pages, self.vmem.pages(), "no page is lost");
        assert_eq!(census.mappings, self.vmem.mapped_pages());
        assert_eq!(census.reservations, self.vmem.spaces().len());
        assert_eq!(self.vmem.mapped_pages(), self.contents.len() + self.stranded.len());
        assert!(self.vmem.stuck() >= self.stranded.len());
        for (&g, &byte) in &self.contents {
            let address = self.vmem.address(g);
            for at in [address, address + GRANULE - 1] {
                assert_eq!(self.read(at), byte, "granule {g} holds its own page");
            }
        }
    }

    /// A byte of device memory, copied out by the device.
    fn read(&self, address: usize) -> u8 {
        let byte = AtomicU8::new(0);
        let to = byte.as_ptr().expose_provenance();
        self.driver.copy(to, address, 1, DEFAULT_STREAM).expect("no fault");
        self.driver.stream_synchronize(DEFAULT_STREAM).expect("no fault");
        byte.load(Ordering::Relaxed)
    }

    /// Closes, without faults, and looks that nothing is left.
    fn close(mut self) {
        self.vmem.close().expect("no fault");
        assert!(self.driver.inner().census().is_clean(), "{:?}", self.driver.inner().census());
        assert_eq!((self.vmem.pages(), self.vmem.stuck()), (0, 0));
    }
}

#[test]
fn pages_go_from_stock_to_granules_and_back() {
    let mut bench = Bench::spaced(8);
    bench.vmem.fill_stock(3).expect("memory");
    bench.vmem.fill_stock(2).expect("already there");
    assert_eq!((bench.vmem.stock(), bench.vmem.pages()), (3, 3));
    bench.map(2, 3).expect("no fault");
    assert_eq!((bench.vmem.stock(), bench.vmem.mapped_pages()), (0, 3));
    assert_eq!(bench.driver.count(Call::SetAccess), 1, "one for the whole run");
    bench.unmap(2, 3).expect("no fault");
    assert_eq!(bench.driver.count(Call::Unmap), 1, "one for adjacent mappings");
    assert_eq!(bench.vmem.release(2), Ok(2));
    assert_eq!(bench.vmem.release(9), Ok(1), "as many as there are");
    let calls = bench.vmem.calls();
    let expected =
        Calls { created: 3, released: 3, maps: 3, unmaps: 1, set_access: 1, reserves: 1 };
    assert_eq!(calls, expected);
    assert_eq!(calls.total(), 12);
    bench.close();
}

#[test]
fn granules_are_numbered_across_spaces() {
    let mut bench = Bench::spaced(4);
    let low = bench.vmem.spaces()[0];
    let high = bench.vmem.add_space(2 * GRANULE, GRANULE).expect("address space");
    assert_eq!(high.first, 4);
    assert_eq!(bench.vmem.address(3), low.base + 3 * GRANULE);
    assert_eq!(bench.vmem.address(4), high.base);
    assert_eq!(bench.vmem.address(5), high.base + GRANULE);
    for (address, space) in [
        (low.base, Some(low)),
        (low.base + 4 * GRANULE - 1, Some(low)),
        (low.base + 4 * GRANULE, None),
        (low.base - 1, None),
        (high.base + 2 * GRANULE - 1, Some(high)),
        (0, None),
        (usize::MAX, None),
    ] {
        assert_eq!(bench.vmem.find(address).copied(), space);
    }
    bench.vmem.fill_stock(2).expect("memory");
    bench.map(3, 1).expect("no fault");
    bench.map(4, 1).expect("no fault");
    bench.close();
}

#[test]
fn refused_address_space_is_halved_down_to_the_least() {
    // (wanted, least, refusals, answer) in granules.
    for (wanted, least, refusals, answer) in [
        (16, 4, 0, Some(16)),
        (16, 4, 1, Some(8)),
        (16, 4, 2, Some(4)),
        (16, 4, 3, None),
        (5, 2, 1, Some(3)),
        (5, 2, 2, Some(2)),
        (5, 2, 3, None),
        (7, 6, 1, Some(6)),
        (1, 1, 1, None),
    ] {
        let mut bench = Bench::new();
        (1..=refusals).for_each(|nth| bench.fail(&[Call::Reserve], nth));
        let space = bench.vmem.add_space(wanted * GRANULE, least * GRANULE);
        match answer {
            Some(granules) => assert_eq!(space.expect("room").bytes, granules * GRANULE),
            None => assert_eq!(space.expect_err("none").code, Code::NoAddressSpace),
        }
        bench.check();
        bench.driver.clear_faults();
        bench.close();
    }
}

#[test]
fn only_a_lack_of_address_space_is_met_by_halving() {
    let mut bench = Bench::new();
    let fault = Fault::once(CallSet::of(&[Call::Reserve]), 1).with_code(Code::Other(1));
    bench.driver.fail(fault);
    let error = bench.vmem.add_space(16 * GRANULE, GRANULE).expect_err("the fault");
    assert_eq!(error.code, Code::Other(1));
    assert_eq!(bench.driver.count(Call::Reserve), 1);
    bench.close();
}

#[test]
fn a_full_device_leaves_the_pages_made_so_far() {
    let mut bench = Bench::with(HostOptions { total_bytes: 4 * GRANULE, ..Bench::options() });
    let error = bench.vmem.fill_stock(9).expect_err("4 pages are all");
    assert_eq!((error.call, error.code), (Call::Create, Code::OutOfMemory));
    assert_eq!(bench.vmem.stock(), 4);
    bench.close();
}

#[test]
fn a_run_that_meets_the_limit_on_mappings_is_undone() {
    let options = HostOptions { mapping_budget: Some(3), ..Bench::options() };
    let mut bench = Bench::with(options);
    bench.vmem.add_space(8 * GRANULE, GRANULE).expect("address space");
    bench.vmem.fill_stock(5).expect("memory");
    bench.map(0, 1).expect("one of three");
    let failure = bench.map(2, 3).expect_err("four of three");
    assert_eq!((failure.error.code, failure.stranded), (Code::MappingLimit, None));
    assert_eq!((bench.vmem.stock(), bench.vmem.mapped_pages()), (4, 1));
    bench.map(2, 2).expect("three of three");
    bench.close();
}

#[test]
fn each_failing_call_of_a_map_is_undone() {
    // Four maps and one set-access.
    for nth in 1..=5 {
        let mut bench = Bench::spaced(8);
        bench.vmem.fill_stock(5).expect("memory");
        bench.map(7, 1).expect("no fault");
        bench.fail(&[Call::Map, Call::SetAccess], nth);
        let failure = bench.map(1, 4).expect_err("the fault");
        assert_eq!(failure.stranded, None);
        assert_eq!((bench.vmem.stock(), bench.vmem.mapped_pages()), (4, 1));
        bench.map(1, 4).expect("the next try works");
        bench.close();
    }
}

#[test]
fn a_failed_undo_names_the_stranded_and_recovers_them() {
    // When map number n fails, n - 1 pages are mapped; when set-access fails, all four.
    for (nth, left) in [(1, None), (2, Some((1, 1))), (4, Some((1, 3))), (5, Some((1, 4)))] {
        let mut bench = Bench::spaced(8);
        bench.vmem.fill_stock(6).expect("memory");
        bench.map(7, 1).expect("no fault");
        bench.fail(&[Call::Map, Call::SetAccess], nth);
        bench.driver.fail(Fault::from_then_on(CallSet::of(&[Call::Unmap]), 1));
        let failure = bench.map(1, 4).expect_err("the fault");
        assert_eq!(failure.stranded, left);
        assert_ne!(failure.error.call, Call::Unmap, "the first error is the cause");
        let stuck = left.map_or(0, |(_, len)| len as usize);
        assert_eq!(bench.vmem.stuck(), stuck);
        assert_eq!(bench.vmem.recover(true), [0u32; 0], "the fault is still there");
        assert_eq!(bench.vmem.stuck(), stuck);
        bench.driver.clear_faults();
        bench.recover();
        bench.map(1, 4).expect("as if nothing had been");
        bench.close();
    }
}

#[test]
fn a_page_that_cannot_be_released_is_kept_for_later() {
    let mut bench = Bench::spaced(2);
    bench.vmem.fill_stock(3).expect("memory");
    bench.fail(&[Call::Release], 2);
    assert_eq!(bench.vmem.release(3).map_err(|e| e.call), Err(Call::Release));
    assert_eq!((bench.vmem.stock(), bench.vmem.stuck(), bench.vmem.pages()), (1, 1, 2));
    bench.check();
    assert_eq!(bench.vmem.recover(true), [0u32; 0], "it held no granule");
    assert_eq!((bench.vmem.stuck(), bench.vmem.pages()), (0, 1));
    bench.close();
}

#[test]
fn pins_are_counted() {
    let mut bench = Bench::spaced(8);
    let vmem = &mut bench.vmem;
    vmem.pin(2, 5, true);
    vmem.pin(4, 6, true);
    let pinned = |vmem: &Vmem| (0..8).filter(|&g| vmem.is_pinned(g)).collect::<Vec<_>>();
    assert_eq!(pinned(vmem), [2, 3, 4, 5]);
    vmem.pin(2, 5, false);
    assert_eq!(pinned(vmem), [4, 5]);
    assert!(vmem.any_pinned());
    vmem.pin(4, 6, false);
    assert_eq!(pinned(vmem), [0u32; 0]);
    assert!(!vmem.any_pinned());
    // More pins on one granule than there are bytes in it.
    (0..70_000).for_each(|_| vmem.pin(0, 1, true));
    (0..69_999).for_each(|_| vmem.pin(0, 1, false));
    assert!(vmem.is_pinned(0));
    vmem.pin(0, 1, false);
    assert!(!vmem.any_pinned());
    bench.close();
}

/// One step of the long scenario.
#[derive(Clone, Copy)]
enum Step {
    Space(usize),
    Stock(usize),
    Map(u32, u32),
    Unmap(u32, u32),
    Release(usize),
}

const SCENARIO: &[Step] = &[
    Step::Space(6),
    Step::Stock(4),
    Step::Map(1, 3),
    Step::Map(5, 1),
    Step::Space(4),
    Step::Stock(3),
    Step::Map(6, 3),
    Step::Unmap(2, 2),
    Step::Map(0, 1),
    Step::Release(1),
    Step::Unmap(6, 3),
    Step::Stock(4),
    Step::Map(6, 4),
    Step::Unmap(0, 2),
    Step::Release(2),
    Step::Map(2, 1),
];

impl Bench {
    /// Does a step if its precondition holds. A failing one must change nothing else.
    fn play(&mut self, step: Step) {
        let granules = self.vmem.spaces().iter().map(|s| s.bytes / GRANULE).sum::<usize>();
        let is_free = |g: u32| !self.contents.contains_key(&g) && !self.stranded.contains(&g);
        match step {
            Step::Space(count) => {
                let spaces = self.vmem.spaces().len();
                let added = self.vmem.add_space(count * GRANULE, count * GRANULE).is_ok();
                assert_eq!(self.vmem.spaces().len(), spaces + usize::from(added));
            }
            Step::Stock(count) => {
                let had = self.vmem.stock();
                let filled = self.vmem.fill_stock(count).is_ok();
                assert!(self.vmem.stock() >= had);
                assert_eq!(self.vmem.stock() >= count, filled);
            }
            Step::Map(first, len) => {
                let fits = (first + len) as usize <= granules && (first..first + len).all(is_free);
                let stock = self.vmem.stock();
                if fits && stock >= len as usize {
                    let before = self.contents.clone();
                    if let Err(failure) = self.map(first, len) {
                        assert_eq!(self.contents, before);
                        let stranded = failure.stranded.map_or(0, |(_, len)| len as usize);
                        assert_eq!(self.vmem.stock(), stock - stranded);
                    }
                }
            }
            Step::Unmap(first, len) => {
                if (first..first + len).all(|g| self.contents.contains_key(&g)) {
                    let before = (self.vmem.stock(), self.vmem.mapped_pages());
                    if self.unmap(first, len).is_err() {
                        assert_eq!((self.vmem.stock(), self.vmem.mapped_pages()), before);
                    }
                }
            }
            Step::Release(count) => {
                let pages = self.vmem.pages();
                let wanted = count.min(self.vmem.stock());
                match self.vmem.release(count) {
                    Ok(released) => {
                        assert_eq!((released, self.vmem.pages()), (wanted, pages - wanted));
                    }
                    Err(_) => assert!(self.vmem.stuck() > 0),
                }
            }
        }
        self.check();
    }
}

/// Plays all with one fault; then, without it, everything recovers, plays again and closes.
/// Answers whether the fault struck.
fn survive(nth: u64, times: Times) -> bool {
    let mut bench = Bench::new();
    bench.driver.fail(Fault { calls: CallSet::MEMORY, nth, times, code: None });
    SCENARIO.iter().for_each(|&step| bench.play(step));
    let struck = bench.driver.injected() > 0;
    bench.driver.clear_faults();
    bench.recover();
    SCENARIO.iter().for_each(|&step| bench.play(step));
    assert_eq!(bench.vmem.stuck(), 0);
    bench.close();
    struck
}

#[test]
fn every_call_of_a_long_scenario_fails_once() {
    let struck = (1..200).take_while(|&nth| survive(nth, Times::Once)).count();
    assert!(struck > 30 && struck < 150, "{struck} calls in all");
}

#[test]
fn every_call_of_a_long_scenario_fails_for_ever() {
    let struck = (1..200).take_while(|&nth| survive(nth, Times::FromThenOn)).count();
    assert!(struck > 30 && struck < 150, "{struck} calls in all");
}

/// Mapped runs in two spaces, stock, a stranded page and an unreleased one.
fn full_bench() -> Bench {
    let mut bench = Bench::spaced(6);
    bench.vmem.add_space(4 * GRANULE, GRANULE).expect("address space");
    bench.vmem.fill_stock(9).expect("memory");
    for (first, len) in [(0, 2), (3, 1), (5, 1), (6, 1)] {
        bench.map(first, len).expect("no fault");
    }
    bench.fail(&[Call::SetAccess], 1);
    bench.fail(&[Call::Unmap], 1);
    let failure = bench.map(8, 1).expect_err("the fault");
    assert_eq!(failure.stranded, Some((8, 1)));
    bench.fail(&[Call::Release], 1);
    bench.vmem.release(1).expect_err("the fault");
    assert_eq!((bench.vmem.stuck(), bench.vmem.stock()), (2, 2));
    bench.driver.clear_faults();
    bench.driver.reset_counts();
    bench
}

#[test]
fn closing_goes_on_after_each_failure() {
    let mut nth = 1;
    loop {
        let mut bench = full_bench();
        bench.driver.fail(Fault::once(CallSet::MEMORY, nth));
        let failed = bench.vmem.close().is_err();
        assert_eq!(failed, bench.driver.injected() > 0);
        let census = bench.driver.inner().census();
        assert_eq!(
            (census.pages, census.mappings),
            (bench.vmem.pages(), bench.vmem.mapped_pages())
        );
        bench.driver.clear_faults();
        bench.close();
        if !failed {
            break;
        }
        nth += 1;
    }
    // Four runs and the stranded page, eight pages, two spaces.
    assert!(nth > 12, "{nth}");
}

#[test]
fn closing_under_a_lasting_fault_may_be_tried_again_and_again() {
    for nth in 1..=12 {
        let mut bench = full_bench();
        bench.driver.fail(Fault::from_then_on(CallSet::MEMORY, nth));
        for _ in 0..3 {
            bench.vmem.close().expect_err("the fault");
        }
        bench.driver.clear_faults();
        bench.close();
    }
}

/// Nothing is made for a region that the driver refuses, however long it would be.
#[test]
fn a_region_that_is_refused_costs_the_call() {
    let mut bench = Bench::new();
    let refused = bench.vmem.add_region(1 << 62).expect_err("no address space is so long");
    assert_eq!((refused.call, refused.code), (Call::Reserve, Code::NoAddressSpace));
    assert_eq!((bench.driver.count(Call::Reserve), bench.vmem.reserved_bytes()), (1, 0));
}
