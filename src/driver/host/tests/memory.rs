//! Memory: contents, access, capacity, holes, wrong use, limits.

use super::*;

#[test]
fn a_page_keeps_its_contents_when_it_moves() {
    let driver = device();
    let (base, pages) = mapped(&driver, 2);
    let other = driver.reserve(2 * GRANULE).expect("address space");
    assert_eq!(base % GRANULE, 0);
    assert_eq!(other % GRANULE, 0);
    write(base, 11);
    write(base + GRANULE - 1, 12);
    write(base + GRANULE, 21);
    driver.unmap(base, 2 * GRANULE).expect("one call for both mappings");
    driver.map(other + GRANULE, GRANULE, pages[0]).expect("free");
    driver.map(other, GRANULE, pages[1]).expect("free");
    driver.set_access(other, 2 * GRANULE, &[]).expect("mapped");
    assert_eq!(read(other), 21);
    assert_eq!(read(other + GRANULE), 11);
    assert_eq!(read(other + 2 * GRANULE - 1), 12);
    assert!(!sys::readable(base));
    assert!(!sys::readable(base + GRANULE));
}

#[test]
fn memory_is_inaccessible_until_access_is_set_and_after_unmap() {
    let driver = device();
    let base = driver.reserve(2 * GRANULE).expect("address space");
    let page = driver.create(GRANULE).expect("memory");
    assert!(!sys::readable(base));
    driver.map(base, GRANULE, page).expect("free");
    assert!(!sys::readable(base));
    driver.set_access(base, GRANULE, &[]).expect("mapped");
    assert!(sys::readable(base));
    assert!(sys::readable(base + GRANULE - 1));
    assert!(!sys::readable(base + GRANULE));
    driver.unmap(base, GRANULE).expect("mapped");
    assert!(!sys::readable(base));
}

#[test]
fn capacity_counts_pages_and_plain_allocations_together() {
    let options = HostOptions { total_bytes: 3 * GRANULE, ..HostOptions::default() };
    let driver = HostDriver::new(options).expect("a device");
    let page = driver.create(2 * GRANULE).expect("memory");
    let plain = driver.alloc_plain(GRANULE - 100).expect("memory, rounded up");
    assert_eq!(driver.memory_info(), Ok((0, 3 * GRANULE)));
    assert_eq!(code(driver.create(GRANULE)), Code::OutOfMemory);
    assert_eq!(code(driver.alloc_plain(1)), Code::OutOfMemory);
    assert_eq!(code(driver.alloc_plain(usize::MAX)), Code::OutOfMemory);
    assert_eq!(code(driver.create(1 << 63)), Code::OutOfMemory);
    write(plain + GRANULE - 101, 5);
    driver.free_plain(plain).expect("ours");
    assert!(!sys::readable(plain));
    let small = driver.create(GRANULE).expect("room again");
    driver.release(page).expect("ours");
    driver.release(small).expect("ours");
    assert!(driver.census().is_clean());
}

#[test]
fn released_pages_give_their_memory_back() {
    let driver = device();
    let (base, pages) = mapped(&driver, 3);
    for i in 0..3 {
        for at in (0..GRANULE).step_by(4096) {
            write(base + i * GRANULE + at, 1);
        }
    }
    assert_eq!(driver.memory.held_bytes(), 3 * GRANULE);
    driver.unmap(base, GRANULE).expect("mapped");
    assert_eq!(driver.memory.held_bytes(), 3 * GRANULE);
    driver.release(pages[0]).expect("ours");
    assert_eq!(driver.memory.held_bytes(), 2 * GRANULE);
    // Released while mapped: the memory lives until its mapping goes.
    driver.release(pages[1]).expect("ours");
    assert_eq!(driver.memory.held_bytes(), 2 * GRANULE);
    assert_eq!(read(base + GRANULE), 1);
    assert_eq!(driver.census().pages, 2);
    assert_eq!(code(driver.release(pages[1])), Code::InvalidHandle);
    driver.unmap(base + GRANULE, 2 * GRANULE).expect("two mappings");
    assert_eq!(driver.memory.held_bytes(), GRANULE);
    assert_eq!(driver.census().pages, 1);
}

#[test]
fn wrong_use_of_memory_is_refused_and_changes_nothing() {
    const G: usize = GRANULE;
    let (invalid, handle, space) = (Code::InvalidValue, Code::InvalidHandle, Code::NoAddressSpace);
    let driver = device();
    let (base, _pages) = mapped(&driver, 2);
    let spare = driver.create(G).expect("memory");
    let long = driver.create(2 * G).expect("memory");
    let room = driver.reserve(2 * G).expect("address space");
    let (none, wild) = (PageHandle(0), PageHandle(99));
    write(base, 77);
    let before = driver.census();
    let refused = |what: &str, result: DriverResult<()>, expected: Code| {
        assert_eq!(code(result), expected, "{what}");
        assert_eq!(driver.census(), before, "{what}");
    };
    refused("nothing", driver.reserve(0).map(drop), invalid);
    refused("odd", driver.reserve(G + 1).map(drop), invalid);
    refused("huge", driver.reserve(1 << 62).map(drop), space);
    refused("whole", driver.reserve(usize::MAX - G + 1).map(drop), space);
    refused("nothing", driver.create(0).map(drop), invalid);
    refused("odd", driver.create(4096).map(drop), invalid);
    refused("nothing", driver.alloc_plain(0).map(drop), invalid);
    refused("not plain", driver.free_plain(base), invalid);
    refused("already mapped", driver.map(base, G, spare), invalid);
    refused("past the end", driver.map(room + G, 2 * G, long), invalid);
    refused("not reserved", driver.map(room - G, G, spare), invalid);
    refused("not aligned", driver.map(room + 4096, G, spare), invalid);
    refused("part of a page", driver.map(room, G, long), invalid);
    refused("no page", driver.map(room, G, none), handle);
    refused("no page", driver.map(room, G, wild), handle);
    refused("no page", driver.release(wild), handle);
    refused("not mapped", driver.unmap(room, G), invalid);
    refused("past the mapping", driver.unmap(base + G, 2 * G), invalid);
    refused("no end", driver.unmap(base, usize::MAX - G + 1), invalid);
    refused("not mapped", driver.set_access(room, G, &[]), invalid);
    refused("mapped", driver.unreserve(base, 2 * G), invalid);
    refused("first half", driver.unreserve(room, G), invalid);
    refused("second half", driver.unreserve(room + G, G), invalid);
    assert_eq!(read(base), 77);
}

#[test]
fn a_mapping_is_not_cut_nor_covered_and_a_released_page_not_mapped() {
    let driver = device();
    let room = driver.reserve(2 * GRANULE).expect("address space");
    let spare = driver.create(GRANULE).expect("memory");
    let long = driver.create(2 * GRANULE).expect("memory");
    driver.map(room, 2 * GRANULE, long).expect("free");
    assert_eq!(code(driver.unmap(room, GRANULE)), Code::InvalidValue);
    let second = room + GRANULE;
    assert_eq!(code(driver.unmap(second, GRANULE)), Code::InvalidValue);
    let over = driver.map(second, GRANULE, spare);
    assert_eq!(code(over), Code::InvalidValue);
    driver.unmap(room, 2 * GRANULE).expect("the whole mapping");
    driver.map(second, GRANULE, spare).expect("free now");
    driver.release(spare).expect("ours");
    let again = driver.map(room, GRANULE, spare);
    assert_eq!(code(again), Code::InvalidHandle);
}

#[test]
fn options_that_make_no_device_are_refused() {
    let with = |total_bytes, granularity| {
        HostDriver::new(HostOptions { total_bytes, granularity, ..HostOptions::default() })
    };
    assert_eq!(code(with(GRANULE - 1, GRANULE).map(drop)), Code::InvalidValue);
    assert_eq!(code(with(1 << 30, 3 << 20).map(drop)), Code::InvalidValue);
    assert_eq!(code(with(1 << 30, 64).map(drop)), Code::InvalidValue);
    assert_eq!(code(with(1 << 30, 0).map(drop)), Code::InvalidValue);
    let small = with(1 << 20, 64 << 10).expect("64 KiB granules");
    assert_eq!(small.reserve(64 << 10).map(|a| a % (64 << 10)), Ok(0));
}

#[test]
fn a_mapping_budget_is_an_error_of_its_own() {
    let options = HostOptions { mapping_budget: Some(2), ..HostOptions::default() };
    let driver = HostDriver::new(options).expect("a device");
    let (base, _pages) = mapped(&driver, 2);
    let room = driver.reserve(GRANULE).expect("address space");
    let page = driver.create(GRANULE).expect("memory");
    assert_eq!(code(driver.map(room, GRANULE, page)), Code::MappingLimit);
    driver.unmap(base, GRANULE).expect("mapped");
    driver.map(room, GRANULE, page).expect("within the budget again");
}

/// Whether the kernel says that the mapping at `address` is locked.
fn is_locked(address: usize) -> bool {
    let maps = std::fs::read_to_string("/proc/self/smaps").expect("procfs");
    let mut inside = false;
    for line in maps.lines() {
        let head = line.split(' ').next().unwrap_or("");
        if let Some((start, end)) = head.split_once('-') {
            let parse = |text| usize::from_str_radix(text, 16).expect("an address");
            inside = (parse(start)..parse(end)).contains(&address);
        } else if inside && head == "VmFlags:" {
            return line.split(' ').any(|flag| flag == "lo");
        }
    }
    false
}

#[test]
fn pinned_memory_is_locked_or_counted_as_not_locked() {
    let options = HostOptions { pinned: true, ..HostOptions::default() };
    let driver = HostDriver::new(options).expect("a device");
    let (base, _pages) = mapped(&driver, 1);
    let locked = driver.census().locked_bytes;
    assert_eq!(locked, if is_locked(base) { GRANULE } else { 0 });
    driver.set_access(base, GRANULE, &[]).expect("again changes nothing");
    assert_eq!(driver.census().locked_bytes, locked);
    driver.unmap(base, GRANULE).expect("mapped");
    assert_eq!(driver.census().locked_bytes, 0);
    assert!(!is_locked(base));
}

#[test]
fn a_range_with_a_gap_is_not_unmapped() {
    let driver = device();
    let base = driver.reserve(4 * GRANULE).expect("address space");
    let short = driver.create(GRANULE).expect("memory");
    let long = driver.create(2 * GRANULE).expect("memory");
    driver.map(base, GRANULE, short).expect("free");
    driver.map(base + 2 * GRANULE, 2 * GRANULE, long).expect("free");
    let before = driver.census();
    // As long as both mappings together, which lie apart.
    assert_eq!(code(driver.unmap(base, 3 * GRANULE)), Code::InvalidValue);
    assert_eq!(code(driver.unmap(base, 4 * GRANULE)), Code::InvalidValue);
    assert_eq!(code(driver.set_access(base, 3 * GRANULE, &[])), Code::InvalidValue);
    assert_eq!(driver.census(), before);
}
