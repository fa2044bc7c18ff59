//! Plain memory: device, host and managed allocations, and how virtual memory differs from them.

use crate::cuda::IpcHandle;
use crate::lab::{Lab, RW, codes, yes};
use crate::rule::Source::{Assumed, Header, Issue, Product};
use crate::rule::{Rule, Seen, rule};
use std::ffi::c_void;
use std::ptr::null_mut;

/// The rules of this file.
pub const RULES: &[Rule] = &[
    rule("alloc: 0 bytes; no place for the answer", Header, "1 1", |lab| {
        let mut at = 0;
        let none = lab.cuda.cuMemAlloc(&raw mut at, 0);
        Ok(codes(&[none, lab.cuda.cuMemAlloc(null_mut(), 16)]))
    }),
    rule("alloc: without a context", Header, "201", |lab| {
        let mut at = 0;
        Ok(lab.cuda.cuMemAlloc(&raw mut at, 16).to_string())
    })
    .without_context(),
    rule("alloc: more than the device has", Header, "2", |lab| {
        let mut at = 0;
        Ok(lab.cuda.cuMemAlloc(&raw mut at, 1 << 45).to_string())
    }),
    rule("alloc: addresses are multiples of 256", Header, "yes", |lab| {
        let mut all = 0;
        for bytes in [1, 100, 256, 4097, 1 << 20, 3 << 20] {
            all |= lab.plain(bytes)?;
        }
        Ok(yes(all % 256 == 0).to_owned())
    }),
    rule("alloc: two of 4 KiB share 2 MiB", Assumed, "yes", |lab| {
        let (first, second) = (lab.plain(4096)?, lab.plain(4096)?);
        Ok(yes(first.abs_diff(second) < 2 << 20).to_owned())
    }),
    rule("free: null", Issue, "0", |lab| Ok(lab.cuda.cuMemFree(0).to_string())),
    rule("free: twice; inside a block; host memory", Header, "1 1 1", |lab| {
        let (at, other) = (lab.plain(4 << 20)?, lab.plain(4 << 20)?);
        lab.need("cuMemFree", lab.cuda.cuMemFree(at))?;
        let word = 0u32;
        let host = lab.cuda.cuMemFree((&raw const word) as u64);
        Ok(codes(&[lab.cuda.cuMemFree(at), lab.cuda.cuMemFree(other + 4096), host]))
    }),
    rule("free of virtual memory", Header, "1", |lab| {
        let at = lab.granules(1, RW)?;
        Ok(lab.cuda.cuMemFree(at).to_string())
    }),
    rule("free waits for a busy stream", Header, "waited", free_in_flight),
    rule("pitched: element 3; element 4, rows at a multiple of 512", Header, "1 0 512", |lab| {
        let (mut at, mut pitch) = (0, 0);
        let bad = lab.cuda.cuMemAllocPitch(&raw mut at, &raw mut pitch, 100, 10, 3);
        let good = lab.cuda.cuMemAllocPitch(&raw mut at, &raw mut pitch, 100, 10, 4);
        Ok(format!("{} {pitch}", codes(&[bad, good])))
    }),
    rule("free bytes fall by an allocation's size and rise again", Header, "yes yes", |lab| {
        const BYTES: usize = 512 << 20;
        let before = lab.free_bytes()?;
        let at = lab.plain(BYTES)?;
        let during = lab.free_bytes()?;
        lab.need("cuMemFree", lab.cuda.cuMemFree(at))?;
        let after = lab.free_bytes()?;
        let near = |a: usize, b: usize| a.abs_diff(b) < BYTES / 4;
        Ok(format!("{} {}", yes(near(before, during + BYTES)), yes(near(before, after))))
    })
    .alone(),
    rule("host alloc: 0 bytes; flags 16; no place for the answer", Header, "1 1 1", |lab| {
        let mut at = null_mut();
        let none = lab.cuda.cuMemHostAlloc(&raw mut at, 0, 0);
        let flags = lab.cuda.cuMemHostAlloc(&raw mut at, 4096, 16);
        Ok(codes(&[none, flags, lab.cuda.cuMemHostAlloc(null_mut(), 4096, 0)]))
    }),
    rule("host alloc: devices reach it at the same address; flags 1", Header, "same 1", |lab| {
        let at = lab.pinned(4096)?.cast();
        let mut found = 0;
        let get = |to, flags| lab.cuda.cuMemHostGetDevicePointer(to, at, flags);
        lab.need("cuMemHostGetDevicePointer", get(&raw mut found, 0))?;
        let same = if found == at as u64 { "same" } else { "other" };
        Ok(format!("{same} {}", get(&raw mut found, 1)))
    }),
    rule("host alloc: flags 0 come back as mapped", Assumed, "2", |lab| {
        let mut at = null_mut();
        lab.need("cuMemHostAlloc", lab.cuda.cuMemHostAlloc(&raw mut at, 4096, 0))?;
        let mut flags = 99;
        let code = lab.cuda.cuMemHostGetFlags(&raw mut flags, at);
        lab.need("cuMemHostGetFlags", code)?;
        Ok(flags.to_string())
    }),
    rule("host free: null; twice", Issue, "0 0 1", |lab| {
        let at = lab.pinned(4096)?.cast();
        let free = |at| lab.cuda.cuMemFreeHost(at);
        Ok(codes(&[free(null_mut()), free(at), free(at)]))
    }),
    rule(
        "host register: null; 0 bytes; twice; unregister; once more",
        Header,
        "1 1 0 712 0 713",
        register,
    ),
    rule("managed: flags 0; host and device see one memory", Header, "1 6", |lab| {
        let mut at = 0;
        let bad = lab.cuda.cuMemAllocManaged(&raw mut at, 4096, 0);
        let code = lab.cuda.cuMemAllocManaged(&raw mut at, 4096, 1);
        lab.need("cuMemAllocManaged", code)?;
        lab.need("cuMemsetD8", lab.cuda.cuMemsetD8(at, 6, 16))?;
        lab.need("cuCtxSynchronize", lab.cuda.cuCtxSynchronize())?;
        // SAFETY: managed memory, which the host may read while the device is idle.
        Ok(format!("{bad} {}", unsafe { (at as *const u8).read_volatile() }))
    }),
    rule(
        "address range of virtual memory is the mapping",
        Header,
        "mapping or refused with 500",
        |lab| {
            let at = lab.granules(2, RW)?;
            let g = lab.granule;
            Ok(range(lab, at + g as u64 + 4321, at + g as u64, g))
        },
    ),
    rule(
        "address range of a reservation without memory",
        Issue,
        "refused with 500 or refused with 1",
        |lab| {
            let at = lab.reserve(lab.granule)?;
            Ok(range(lab, at, at, lab.granule))
        },
    ),
    rule("address range of plain memory, inside it", Header, "mapping", |lab| {
        let at = lab.plain(4 << 20)?;
        Ok(range(lab, at + 4321, at, 4 << 20))
    }),
    rule("stream-ordered alloc of 0 bytes", Assumed, "1 or 0", |lab| {
        lab.ask(lab.attribute(115) == 1, "memory pools are not supported")?;
        let (stream, mut at) = (lab.stream(1)?, 0);
        Ok(lab.cuda.cuMemAllocAsync(&raw mut at, 0, stream).to_string())
    })
    .simulated("1"),
    rule("mappings of one memory until one is refused", Issue, "access refused with 2", budget)
        .seconds(60)
        .alone(),
    rule("legacy IPC handle of virtual memory", Header, "1", |lab| {
        let at = lab.granules(1, RW)?;
        let mut handle: IpcHandle = [0; 64];
        Ok(lab.cuda.cuIpcGetMemHandle(&raw mut handle, at).to_string())
    }),
    rule("legacy IPC handle opened in its own process", Assumed, "201", |lab| {
        let at = lab.plain(4 << 20)?;
        let mut handle: IpcHandle = [0; 64];
        lab.need("cuIpcGetMemHandle", lab.cuda.cuIpcGetMemHandle(&raw mut handle, at))?;
        let mut found = 0;
        Ok(lab.cuda.cuIpcOpenMemHandle(&raw mut found, handle, 1).to_string())
    }),
    rule("stream-ordered alloc and free; a plain free of such memory", Product, "0 0 0", |lab| {
        lab.ask(lab.attribute(115) == 1, "memory pools are not supported")?;
        let stream = lab.stream(1)?;
        let mut at = 0;
        let alloc = |at: &mut u64| lab.cuda.cuMemAllocAsync(at, 4096, stream);
        lab.need("cuMemAllocAsync", alloc(&mut at))?;
        let queued = lab.cuda.cuMemFreeAsync(at, stream);
        lab.need("cuMemAllocAsync", alloc(&mut at))?;
        let plain = lab.cuda.cuMemFree(at);
        Ok(codes(&[queued, plain, lab.wait(stream)]))
    }),
];

fn range(lab: &Lab, at: u64, start: u64, length: usize) -> String {
    let (mut base, mut size) = (0, 0);
    match lab.cuda.cuMemGetAddressRange(&raw mut base, &raw mut size, at) {
        0 if (base, size) == (start, length) => "mapping".to_owned(),
        0 => format!("{} bytes from {} before it", size, at.wrapping_sub(base)),
        code => format!("refused with {code}"),
    }
}

fn register(lab: &Lab) -> Seen {
    let memory = vec![0u8; 3 << 20];
    let at = memory.as_ptr() as usize;
    let page = (at.next_multiple_of(4096)) as *mut c_void;
    let put = |at, bytes| lab.cuda.cuMemHostRegister(at, bytes, 0);
    let list = [
        put(null_mut(), 4096),
        put(page, 0),
        put(page, 1 << 20),
        put(page, 1 << 20),
        lab.cuda.cuMemHostUnregister(page),
        lab.cuda.cuMemHostUnregister(page),
    ];
    Ok(codes(&list))
}

/// Frees memory while a stream that does not use it is busy.
fn free_in_flight(lab: &Lab) -> Seen {
    let stream = lab.stream(crate::cuda::NON_BLOCKING)?;
    let at = lab.plain(4 << 20)?;
    let gate = lab.gate(stream)?;
    let opener = gate.open_after(std::time::Duration::from_millis(500));
    let code = lab.cuda.cuMemFree(at);
    let busy = lab.cuda.cuStreamQuery(stream);
    // A thread that cannot be joined has panicked, which no code there does.
    let _ = opener.join();
    lab.need("cuMemFree", code)?;
    Ok(if busy == 600 { "returned while busy" } else { "waited" }.to_owned())
}

/// Maps one granule at more and more addresses, opened in rows of 4096, up to a million.
fn budget(lab: &Lab) -> Seen {
    const ROW: usize = 4096;
    if lab.simulated {
        let small = std::env::var_os("FOREBAY_SIM_MAPPINGS").is_some();
        lab.ask(small, "the host's mappings end before the simulated budget")?;
    }
    let handle = lab.create(lab.granule)?;
    let mut opened = 0;
    for _ in 0..256 {
        let at = lab.reserve(ROW * lab.granule)?;
        for i in 0..ROW {
            let code = lab.map(at + (i * lab.granule) as u64, lab.granule, handle);
            if code != 0 {
                lab.note(&format!("{} mappings", opened + i));
                return Ok(format!("map refused with {code}"));
            }
        }
        let code = lab.open(at, ROW * lab.granule, RW);
        if code != 0 {
            let inside = |i: &usize| lab.rights(at + (i * lab.granule) as u64) == Ok(u64::from(RW));
            opened += (0..ROW).take_while(inside).count();
            lab.note(&format!("{opened} mappings were open"));
            return Ok(format!("access refused with {code}"));
        }
        opened += ROW;
    }
    lab.note(&format!("{opened} mappings were open"));
    Ok("never refused".to_owned())
}
