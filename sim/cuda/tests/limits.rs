//! Limits: the device's memory, the mapping budget, peers, addresses, descriptors, and the
//! limits of the machine that simulates.

mod common;
mod vm;

use common::{Sim, row};
use forebay_simcuda::memory::{Config, Memory, Range, page::Place, plain::Kind};
use vm::*;

#[test]
fn a_full_device() {
    let sim = Sim::start("memory = 16MiB\ndevices = 2");
    sim.primary(0);
    let mut handles: Vec<u64> = (0..8).map(|_| create(G)).collect();
    assert_eq!(free_bytes(), 0);
    assert_eq!(try_create(G, &prop(0)), Err(2));
    let elsewhere = try_create(16 << 20, &prop(1)).expect("another device");
    row("cuMemCreate: a full device is 2; others are not touched", "cuda.h");
    assert_eq!(release(handles.pop().expect("eight")), 0);
    assert_eq!(try_create(2 * G, &prop(0)), Err(2));
    handles.push(create(G));
    let mut at = 0;
    assert_eq!(cu!(cuMemAlloc_v2(&raw mut at, 1)), 2);
    for handle in handles.into_iter().chain([elsewhere]) {
        assert_eq!(release(handle), 0);
    }
    assert_eq!(free_bytes(), 16 << 20);
    assert_eq!(try_create(18 << 20, &prop(0)), Err(2));
    assert_eq!(try_create(usize::MAX - G + 1, &prop(0)), Err(2));
}

#[test]
fn the_address_space_ends() {
    let sim = Sim::start("address_space = 1GiB");
    let first = reserve(512 << 20);
    let second = reserve(512 << 20);
    assert_eq!(try_reserve(4096), Err(2));
    row("cuMemAddressReserve: no address space left is 2", "pytorch PR#192269");
    assert_eq!(unreserve(first, 512 << 20), 0);
    let third = reserve(256 << 20);
    for (at, size) in [(second, 512 << 20), (third, 256 << 20)] {
        assert_eq!(unreserve(at, size), 0);
    }
    drop(sim);
    let sim = Sim::start("");
    let mut all = Vec::new();
    let size = 8 << 40;
    while let Ok(at) = try_reserve(size) {
        all.push(at);
        assert!(all.len() <= 16, "the host has 128 TiB at most");
    }
    assert_eq!(try_reserve(size), Err(2));
    row("the host's own address space is less than 128 TiB: 2 as well", "x86-64 Linux");
    for at in all {
        assert_eq!(unreserve(at, size), 0);
    }
    assert_eq!(sim.live("reservations"), 0);
}

/// Reserves `n` granules and maps them one by one.
fn mapped_apart(n: u64) -> u64 {
    let at = reserve(n as usize * G);
    for i in 0..n {
        let handle = create(G);
        assert_eq!(map(at + i * G as u64, G, handle), 0);
        assert_eq!(release(handle), 0);
    }
    at
}

#[test]
fn the_mapping_budget_ends_in_set_access() {
    let sim = Sim::start("mappings = 10\npoison = none\nmemory = 1GiB");
    let at = mapped_apart(12);
    let g = G as u64;
    assert_eq!(access(at, 12 * G, 0, RW), 2);
    row("mapping budget: its end is 2 in cuMemSetAccess, not in cuMemMap", "pytorch#188008");
    assert_eq!((rights(at + 9 * g), rights(at + 10 * g)), (Ok(3), Ok(0)));
    assert!(peek(at + 9 * g).is_some() && peek(at + 10 * g).is_none());
    row("mapping budget: what came before its end has been opened", "assumption");
    assert_eq!(access(at + 10 * g, G, 0, RW), 2);
    assert_eq!(access(at, 10 * G, 0, R), 0);
    assert_eq!(access(at, 3 * G, 0, 0), 0);
    assert_eq!(access(at + 10 * g, 2 * G, 0, RW), 0);
    assert_eq!(access(at, G, 0, RW), 0);
    assert_eq!(access(at + g, G, 0, RW), 2);
    assert_eq!(unmap(at + 5 * g, G), 0);
    assert_eq!(access(at + g, G, 0, RW), 0);
    row("mapping budget: taking access away or unmapping gives room", "assumption");
    assert_eq!(unmap(at, 5 * G), 0);
    assert_eq!(unmap(at + 6 * g, 6 * G), 0);
    assert_eq!(unreserve(at, 12 * G), 0);
    assert_eq!(sim.live("physical"), 0);
}

#[test]
fn reservations_cost_three_quarters_of_a_mapping() {
    // 100 units: n mappings with a reservation each take n + 0.744979 (n - 1).
    let _sim = Sim::start("mappings = 100\npoison = none\nmemory = 1GiB");
    let mut all = Vec::new();
    loop {
        let at = mapped_apart(1);
        all.push(at);
        match access(at, G, 0, RW) {
            0 => {}
            code => {
                assert_eq!(code, 2);
                break;
            }
        }
    }
    assert_eq!(all.len() - 1, 57);
    row("mapping budget: a reservation each costs 1.745 units", "299,949 of 523,404 on an H100");
    all.into_iter().for_each(|at| unmapped(at, G));
}

#[test]
fn the_published_budget_with_one_and_two_contexts() {
    // The figures of the report, by the same arithmetic and without half a million mappings.
    let fits = |n: u64, reservations: u64| {
        n * 1_000_000 + (reservations - 1) * 744_979 <= 523_404 * 1_000_000
    };
    assert!(fits(523_404, 1) && !fits(523_405, 1));
    assert!(fits(299_949, 299_949) && !fits(299_950, 299_950));
    let two = 523_404u64 * 426_468 / 1_000_000;
    assert_eq!(two, 111_629 + 111_586);

    let sim = Sim::start("mappings = 100\npoison = none\nmemory = 1GiB");
    sim.primary(0);
    let mut other = 0;
    assert_eq!(cu!(cuCtxCreate_v2(&raw mut other, 0, 0)), 0);
    let at = mapped_apart(50);
    assert_eq!(access(at, 50 * G, 0, RW), 2);
    let open = (0..50).filter(|i| rights(at + i * G as u64) == Ok(3)).count();
    assert_eq!(open, 42);
    row("mapping budget: two contexts of a device share 43 %", "assumption");
    unmapped(at, 50 * G);
}

#[test]
fn peers_of_a_mapping() {
    let _sim = Sim::start("devices = 5\npeers = 3");
    let at = mapped(G);
    for device in 1..4 {
        assert_eq!(access(at, G, device, R), 0);
    }
    assert_eq!(access(at, G, 4, R), 711);
    let wishes = [desc(1, 0), desc(4, RW)];
    assert_eq!(cu!(cuMemSetAccess(at, G, wishes.as_ptr(), 2)), 0);
    unmapped(at, G);
}

fn config(devices: u32) -> Config {
    Config {
        devices,
        memory: 64 << 20,
        granule: G as u64,
        address_space: 1 << 40,
        mappings: 1000,
        peers_max: 8,
        poison: Some(0xA5),
        cpu_access: true,
        refuse_rdma: None,
        refuse_peer: None,
        version: 12_080,
    }
}

#[test]
fn eight_peers_and_no_more() {
    let memory = Memory::with(config(10)).expect("memory");
    let at = memory.change(1, |s| s.reserve(G as u64, 0, 0, 0)).expect("addresses");
    let range = Range { start: at, len: G as u64 };
    memory
        .change(2, |s| {
            let handle = s.create(Place::Device(3), G as u64, prop(3))?;
            s.map(at, G as u64, 0, handle, 0)
        })
        .expect("mapping");
    let set = |device, flags| memory.change(3, |s| s.set_access(range, &[desc(device, flags)]));
    for device in 0..9 {
        assert_eq!(set(device, RW), Ok(1));
    }
    assert_eq!(set(9, RW), Err(711));
    assert!(memory.check(9, range, false).is_err());
    assert!(memory.check(8, range, true).is_ok());
    assert_eq!(set(0, 0), Ok(1));
    assert_eq!(set(9, R), Ok(1));
    assert!(memory.check(9, range, false).is_ok() && memory.check(9, range, true).is_err());
    row("cuMemSetAccess: eight peers besides the memory's device, the ninth is 711", "ggml");
}

#[test]
fn who_may_touch_what_is_told_with_its_reason() {
    let memory = Memory::with(config(2)).expect("memory");
    let g = G as u64;
    let at = memory.change(10, |s| s.reserve(4 * g, 0, 0, 0)).expect("addresses");
    let two = Range { start: at, len: 2 * g };
    let told =
        |device, range, write| memory.check(device, range, write).expect_err("denied").to_string();
    assert!(told(0, two, false).contains("nothing is mapped there"));
    let handle = memory.change(11, |s| s.create(Place::Device(0), 2 * g, prop(0))).expect("memory");
    memory.change(12, |s| s.map(at, 2 * g, 0, handle, 0)).expect("mapping");
    assert!(told(0, two, false).contains("no access"));
    memory.change(13, |s| s.set_access(two, &[desc(0, R)])).expect("access");
    assert_eq!(memory.check(0, two, false), Ok(()));
    assert!(told(0, two, true).contains("read only"));
    assert!(told(1, two, false).contains("device 1"));
    let past = Range { start: at + g, len: 2 * g };
    let denied = memory.check(0, past, false).expect_err("half of it is not mapped");
    assert_eq!(denied.range, Range { start: at + 2 * g, len: g });
    row("a copy over several mappings is one range; a part unmapped denies it", "hip-tests Vmm2*");
    memory.change(77, |s| s.unmap(two)).expect("unmap");
    assert!(told(0, two, false).contains("unmapped by call 77"));

    let plain = memory.change(80, |s| s.alloc(0, 5, 1000, Kind::Alloc)).expect("memory");
    let bytes = |len| Range { start: plain, len };
    assert_eq!(memory.check(0, bytes(1000), true), Ok(()));
    assert!(memory.check(0, bytes(1001), true).is_err());
    assert!(memory.check(1, bytes(10), false).is_err());
    memory.set_peer(1, 0, true);
    assert_eq!(memory.check(1, bytes(10), true), Ok(()));
    row("peer access by context opens plain memory and no virtual memory", "PyTorch, ggml");
    memory.change(81, |s| s.free(plain)).expect("free");
    assert!(told(0, bytes(1), false).contains("freed by call 81"));
    let pool = memory.change(82, |s| s.alloc(0, 0, 1000, Kind::Pool(9))).expect("memory");
    let bytes = Range { start: pool, len: 1000 };
    assert!(memory.check(1, bytes, false).is_err());
    memory.set_pool_access(9, 1, 1);
    assert!(memory.check(1, bytes, false).is_ok() && memory.check(1, bytes, true).is_err());
}

#[test]
fn aliases_in_one_piece_of_work_are_a_hazard() {
    let memory = Memory::with(config(1)).expect("memory");
    let g = G as u64;
    let at = memory.change(1, |s| s.reserve(4 * g, 0, 0, 0)).expect("addresses");
    memory
        .change(2, |s| {
            let handle = s.create(Place::Device(0), g, prop(0))?;
            s.map(at, g, 0, handle, 0)?;
            s.map(at + 2 * g, g, 0, handle, 0)
        })
        .expect("mappings");
    let part = |start, len| Range { start, len };
    let view = memory.view();
    let hazard = |reads: &[Range], writes: &[Range]| view.alias_hazard(reads, writes).is_some();
    assert!(hazard(&[part(at, 100)], &[part(at + 2 * g + 50, 10)]));
    assert!(hazard(&[], &[part(at, 100), part(at + 2 * g, 1)]));
    assert!(!hazard(&[part(at, 100)], &[part(at + 2 * g + 100, 10)]));
    assert!(!hazard(&[part(at, 100)], &[part(at, 100)]));
    assert!(!hazard(&[part(at, 100), part(at + 2 * g, 100)], &[]));
    row("aliases: one piece of work that writes by one and touches another is told", "CUDA guide");
}

#[test]
fn a_shadow_serves_the_engine_while_the_cpu_is_kept_out() {
    let memory = Memory::with(Config { cpu_access: false, ..config(1) }).expect("memory");
    let g = G as u64;
    let at = memory.change(1, |s| s.reserve(2 * g, 0, 0, 0)).expect("addresses");
    memory
        .change(2, |s| {
            let handle = s.create(Place::Device(0), g, prop(0))?;
            s.map(at + g, g, 0, handle, 0)?;
            s.set_access(Range { start: at + g, len: g }, &[desc(0, RW)])
        })
        .expect("mapping");
    let plain = memory.change(3, |s| s.alloc(0, 1, 1000, Kind::Alloc)).expect("memory");
    for address in [at + g, at + 2 * g - 1, plain, plain + 999] {
        assert_eq!(peek(address), None);
        let inner = memory.view().host_address(address);
        assert_ne!(inner, address);
        assert_eq!(peek(inner), Some(0xA5));
        assert!(poke(inner, 1));
    }
    assert_eq!(peek(memory.view().host_address(at)), None);
}

#[test]
fn nothing_is_unmapped_under_work_that_runs() {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    let memory = Arc::new(Memory::with(config(1)).expect("memory"));
    let g = G as u64;
    let at = memory.change(1, |s| s.reserve(g, 0, 0, 0)).expect("addresses");
    let range = Range { start: at, len: g };
    memory
        .change(2, |s| {
            let handle = s.create(Place::Device(0), g, prop(0))?;
            s.map(at, g, 0, handle, 0)?;
            s.set_access(range, &[desc(0, RW)])
        })
        .expect("mapping");
    let gone = Arc::new(AtomicBool::new(false));
    let view = memory.view();
    let (theirs, flag) = (Arc::clone(&memory), Arc::clone(&gone));
    let other = std::thread::spawn(move || {
        theirs.change(3, |s| s.unmap(range)).expect("unmap");
        flag.store(true, Ordering::SeqCst);
    });
    for byte in 0..200 {
        assert_eq!(view.check(0, range, true), Ok(()));
        fill(at, G, byte);
        assert!(!gone.load(Ordering::SeqCst));
    }
    drop(view);
    other.join().expect("the other thread");
    assert!(memory.check(0, range, false).is_err());
    row("an unmap waits for work that runs, not for work that is queued", "open kernel modules");
}

#[test]
fn what_is_left_at_the_end_is_told() {
    let memory = Memory::with(config(1)).expect("memory");
    let g = G as u64;
    let at = memory.change(41, |s| s.reserve(2 * g, 0, 0, 0)).expect("addresses");
    memory
        .change(42, |s| {
            let handle = s.create(Place::Device(0), g, prop(0))?;
            s.map(at, g, 0, handle, 0)
        })
        .expect("mapping");
    let plain = memory.change(43, |s| s.alloc(0, 5, 1000, Kind::Alloc)).expect("memory");
    memory.record_leaks();
    let told = forebay_simcuda::misuse::all().0;
    let mut texts: Vec<&str> =
        told.iter().filter(|m| m.kind == "leak at exit").map(|m| &*m.text).collect();
    assert_eq!(texts.len(), 4, "{texts:?}");
    for (what, call) in [("handle", ""), ("mapping", "42"), ("reservation", "41"), ("memory", "43")]
    {
        let i = texts.iter().position(|t| t.starts_with(what) && t.ends_with(call));
        texts.remove(i.unwrap_or_else(|| panic!("no {what} in {texts:?}")));
    }
    memory.context_destroyed(5);
    assert!(memory.check(0, Range { start: plain, len: 1 }, false).is_err());
    let leaks = |m: &forebay_simcuda::misuse::Misuse| m.kind == "leak at context destroy";
    assert_eq!(forebay_simcuda::misuse::all().0.iter().filter(|m| leaks(m)).count(), 1);
    forebay_simcuda::misuse::clear();
}

#[test]
fn memory_that_is_given_back_goes_back_to_the_machine() {
    let sim = Sim::start("memory = 256MiB");
    sim.primary(0);
    // One allocation of each kind first: exportable memory keeps a page of records.
    let round = || {
        let closed = create(8 * G);
        let open = try_create(8 * G, &exportable(0)).expect("memory");
        let mut plain = 0;
        assert_eq!(cu!(cuMemAlloc_v2(&raw mut plain, 8 * G)), 0);
        let most = sim.live("resident_bytes");
        assert_eq!((release(closed), release(open), cu!(cuMemFree_v2(plain))), (0, 0, 0));
        (most, sim.live("resident_bytes"))
    };
    let (most, least) = round();
    assert!(most >= 24 * G as u64 && least < G as u64, "{most} {least}");
    assert_eq!(round(), (most, least));
}

#[test]
fn worlds_leave_nothing_in_the_process() {
    let count = || {
        let files = std::fs::read_dir("/proc/self/fd").expect("descriptors").count();
        (files, forebay_simcuda::memory::os::mappings_of_process().1)
    };
    let leave_much_behind = || {
        let sim = Sim::start("memory = 256MiB\ndevices = 3");
        sim.primary(0);
        for i in 0..20 {
            let at = mapped(2 * G);
            assert!(poke(at, i));
            let mut plain = 0;
            assert_eq!(cu!(cuMemAlloc_v2(&raw mut plain, 100)), 0);
            let mut pinned = std::ptr::null_mut();
            assert_eq!(cu!(cuMemAllocHost_v2(&raw mut pinned, 5000)), 0);
        }
    };
    leave_much_behind();
    let before = count();
    (0..10).for_each(|_| leave_much_behind());
    let after = count();
    assert!(after.0 <= before.0 + 2 && after.1 <= before.1 + 20, "{before:?} {after:?}");
}

#[test]
fn threads_work_on_their_own_reservations() {
    let sim = Sim::start("memory = 256MiB\ngranularity = 64KiB");
    let unit = 64 << 10;
    let threads: Vec<_> = (0..4u8)
        .map(|n| {
            std::thread::spawn(move || {
                for round in 0..300 {
                    let at = reserve(4 * unit);
                    let handle = create(2 * unit);
                    let there = at + (round % 3) * unit as u64;
                    assert_eq!(map(there, 2 * unit, handle), 0);
                    assert_eq!(release(handle), 0);
                    assert_eq!(access(there, 2 * unit, 0, RW), 0);
                    fill(there, 2 * unit, n);
                    assert!(holds(there, 2 * unit, n));
                    assert_eq!(unmap(there, 2 * unit), 0);
                    assert_eq!(unreserve(at, 4 * unit), 0);
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|t| t.join().expect("a thread"));
    assert_eq!(sim.live("physical") + sim.live("mappings") + sim.live("reservations"), 0);
}

/// Runs `body` with a lower limit on descriptors.
fn with_few_files(limit: u64, body: impl FnOnce()) {
    let mut old = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the record is this function's own.
    assert_eq!(unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut old) }, 0);
    let low = libc::rlimit { rlim_cur: limit, rlim_max: old.rlim_max };
    // SAFETY: as above.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &low) }, 0);
    body();
    // SAFETY: as above.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &old) }, 0);
}

#[test]
fn descriptors_end() {
    let mut sim = Sim::start("memory = 1GiB\npoison = none");
    let many: Vec<u64> = (0..200).map(|_| try_create(G, &exportable(0)).expect("memory")).collect();
    let export = |handle| {
        let mut fd = -1i32;
        let code = cu!(cuMemExportToShareableHandle((&raw mut fd).cast(), handle, 1, 0));
        (code, fd)
    };
    let mut fds = Vec::new();
    with_few_files(100, || {
        let last = many.iter().map(|handle| export(*handle)).find(|(code, fd)| {
            fds.push(*fd);
            *code != 0
        });
        assert_eq!(last, Some((304, -1)));
    });
    assert!(sim.report()["misuse"][0]["text"].as_str().is_some_and(|t| t.contains("NOFILE")));
    sim.expect_misuse("limit of the host");
    fds.pop();
    assert!(fds.len() > 50 && fds.len() < 100);
    assert_eq!(sim.live("exported_fds"), fds.len() as u64);
    row("cuMemExportToShareableHandle: one descriptor each; RLIMIT_NOFILE is 304", "assumption");
    for fd in fds {
        // SAFETY: descriptors that this test was given.
        assert_eq!(unsafe { libc::close(fd) }, 0);
    }
    assert_eq!(sim.live("exported_fds"), 0);
    assert_eq!(export(many[0]).0, 0);
    many.into_iter().for_each(|handle| assert_eq!(release(handle), 0));
    assert_eq!(sim.live("exported_only"), 1);
}

#[test]
fn the_hosts_mappings_end_with_a_name() {
    let mut sim = Sim::start("memory = 1TiB\npoison = none\nmappings = 1000000");
    let limit = forebay_simcuda::memory::os::mappings_of_process().0;
    if limit > 300_000 {
        println!("skipped: vm.max_map_count is {limit}, which takes too long to reach");
        return;
    }
    let g = G as u64;
    // Every other granule, so that the kernel can join no two mappings.
    let n = limit;
    let at = reserve(2 * n as usize * G);
    let handle = create(G);
    let mut done = 0;
    let code = loop {
        match map(at + 2 * done * g, G, handle) {
            0 => done += 1,
            code => break code,
        }
        assert!(done <= n, "more mappings than the host allows");
    };
    assert_eq!(code, 304);
    let text = sim.report()["misuse"][0]["text"].to_string();
    assert!(text.contains("host_mapping_limit: vm.max_map_count"), "{text}");
    sim.expect_misuse("limit of the host");
    assert!(done > limit / 4);
    assert_eq!(sim.live("mappings"), done);
    row("the host's limit on mappings is 304 and has its own name", "vm.max_map_count");
    for i in (0..done).rev() {
        assert_eq!(unmap(at + 2 * i * g, G), 0, "{i} of {done}");
    }
    assert_eq!(map(at, G, handle), 0);
    assert_eq!(access(at, G, 0, RW), 0);
    assert!(poke(at, 1));
    assert_eq!(unmap(at, G), 0);
    assert_eq!(release(handle), 0);
    assert_eq!(unreserve(at, 2 * n as usize * G), 0);
    assert_eq!(sim.live("mappings") + sim.live("physical"), 0);
}

#[test]
fn thousands_of_mappings_in_a_row_are_one_for_the_host() {
    let sim = Sim::start("memory = 64GiB\npoison = none");
    let before = sim.live("host_mappings");
    let at = mapped_apart(20_000);
    assert_eq!(access(at, 20_000 * G, 0, RW), 0);
    assert!(sim.live("host_mappings") < before + 100);
    assert!(poke(at + 19_999 * G as u64, 1));
    unmapped(at, 20_000 * G);
}
