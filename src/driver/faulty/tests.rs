//! Tests of the fault-injecting driver over the host device.

use super::*;
use crate::driver::host::{HostDriver, HostOptions};

const GRANULE: usize = 2 << 20;

fn faulty() -> FaultyDriver<HostDriver> {
    FaultyDriver::new(Arc::new(HostDriver::new(HostOptions::default()).expect("a device")))
}

#[test]
fn a_set_holds_its_kinds_only() {
    let held = Call::ALL.iter().filter(|call| CallSet::MEMORY.contains(**call)).count();
    assert_eq!(held, 9);
    assert!(Call::ALL.iter().all(|call| CallSet::ALL.contains(*call)));
    assert!(!CallSet::of(&[Call::Map]).contains(Call::Unmap));
    for (i, call) in Call::ALL.iter().enumerate() {
        assert_eq!(*call as usize, i, "counters are indexed by the number");
    }
}

#[test]
fn fails_the_nth_call_of_a_kind_once_and_never_reaches_the_device() {
    let driver = faulty();
    driver.fail(Fault::once(CallSet::of(&[Call::Create]), 3));
    let results: Vec<bool> = (0..5).map(|_| driver.create(GRANULE).is_ok()).collect();
    assert_eq!(results, [true, true, false, true, true]);
    assert_eq!(driver.count(Call::Create), 5);
    assert_eq!(driver.injected(), 1);
    assert_eq!(driver.inner().census().pages, 4);
}

#[test]
fn fails_from_then_on_until_cleared() {
    let driver = faulty();
    let code = Code::Other(7);
    driver.fail(Fault::from_then_on(CallSet::MEMORY, 2).with_code(code));
    let page = driver.create(GRANULE).expect("the first call is let through");
    assert_eq!(driver.memory_info(), Ok((8 << 30) - GRANULE).map(|free| (free, 8 << 30)));
    assert_eq!(driver.release(page), Err(DriverError { call: Call::Release, code }));
    assert_eq!(driver.reserve(GRANULE), Err(DriverError { call: Call::Reserve, code }));
    assert_eq!(driver.inner().census().pages, 1);
    driver.clear_faults();
    assert_eq!(driver.release(page), Ok(()));
    assert_eq!(driver.total(), 5);
    assert_eq!(driver.count_of(CallSet::MEMORY), 4);
    assert!(driver.inner().census().is_clean());
    driver.reset_counts();
    assert_eq!((driver.total(), driver.injected()), (0, 0));
}

#[test]
fn default_codes_are_what_the_pool_acts_on() {
    let driver = faulty();
    driver.fail(Fault::from_then_on(CallSet::ALL, 0));
    let code = |result: DriverResult<usize>| result.expect_err("all calls fail").code;
    assert_eq!(code(driver.reserve(GRANULE)), Code::NoAddressSpace);
    assert_eq!(code(driver.alloc_plain(1)), Code::OutOfMemory);
    assert_eq!(driver.map(0, 0, PageHandle(0)).map_err(|e| e.code), Err(Code::MappingLimit));
    assert_eq!(driver.stream_create().map_err(|e| e.code), Err(Code::Other(999)));
    assert_eq!(driver.injected(), 4);
}

#[test]
fn each_page_of_a_run_is_a_call() {
    let driver = faulty();
    let pages: Vec<PageHandle> = (0..5).map(|_| driver.create(GRANULE).expect("memory")).collect();
    let base = driver.reserve(5 * GRANULE).expect("address space");
    driver.map_run(base, GRANULE, &pages).expect("free");
    assert_eq!(driver.count(Call::Map), 5);
    // Occupied: the first page is tried, and no other.
    assert_eq!(driver.map_run(base, GRANULE, &pages).map_err(|(done, _)| done), Err(0));
    assert_eq!(driver.count(Call::Map), 6);
    driver.unmap(base, 5 * GRANULE).expect("mapped");
    driver.fail(Fault::once(CallSet::of(&[Call::Map]), 3).with_code(Code::Other(7)));
    driver.start_journal(9);
    let error = DriverError { call: Call::Map, code: Code::Other(7) };
    assert_eq!(driver.map_run(base, GRANULE, &pages), Err((2, error)));
    assert_eq!((driver.count(Call::Map), driver.injected()), (9, 1));
    assert_eq!(driver.inner().census().mappings, 2);
    let at = |i: usize| (base + i * GRANULE) as u64;
    let seen: Vec<_> = driver.stop_journal().iter().map(|e| (e.args[0], e.result)).collect();
    assert_eq!(seen, [(at(0), Ok(0)), (at(1), Ok(0)), (at(2), Err(Code::Other(7)))]);
    // The fault is spent: the rest, page by page still, since the script is there.
    driver.map_run(base + 2 * GRANULE, GRANULE, &pages[2..]).expect("free");
    assert_eq!(driver.count(Call::Map), 12);
}

#[test]
fn the_first_of_several_faults_decides() {
    let driver = faulty();
    driver.fail(Fault::once(CallSet::of(&[Call::Create]), 2).with_code(Code::Other(1)));
    driver.fail(Fault::from_then_on(CallSet::MEMORY, 2).with_code(Code::Other(2)));
    assert!(driver.create(GRANULE).is_ok());
    let codes: Vec<Code> =
        (0..2).map(|_| driver.create(GRANULE).expect_err("fails").code).collect();
    assert_eq!(codes, [Code::Other(1), Code::Other(2)]);
}

#[test]
fn the_journal_keeps_calls_arguments_and_results() {
    let shared: Arc<dyn Driver> =
        Arc::new(HostDriver::new(HostOptions::default()).expect("a device"));
    let driver: FaultyDriver<dyn Driver> = FaultyDriver::new(shared);
    driver.stream_check(StreamHandle(0)).expect("not journaled");
    driver.start_journal(3);
    let page = driver.create(GRANULE).expect("room");
    driver.fail(Fault::once(CallSet::of(&[Call::Release]), 1));
    driver.release(page).expect_err("scripted");
    driver.release(page).expect("the fault is spent");
    driver.create(GRANULE).expect("room");
    assert_eq!(
        driver.journal_text(),
        "{\"call\":\"create\",\"args\":[2097152,0,0,0],\"ok\":1}\n\
         {\"call\":\"release\",\"args\":[1,0,0,0],\"error\":\"Other(999)\"}\n\
         {\"call\":\"release\",\"args\":[1,0,0,0],\"ok\":0}\n"
    );
    assert_eq!(driver.journal_lost(), 1);
    let entries = driver.stop_journal();
    assert_eq!(entries.len(), 3);
    assert_eq!(entries[1].result, Err(Code::Other(999)));
    driver.create(GRANULE).expect("room");
    assert_eq!(driver.journal_text(), "");
}
