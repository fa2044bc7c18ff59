//! Mappings and access: what may be mapped, opened and unmapped, and what is reached afterwards.

use super::vmm::told;
use crate::cuda::{Access, Location, NON_BLOCKING};
use crate::lab::{Lab, R, RW, codes, properties, wish, yes};
use crate::rule::Source::{Assumed, Header, Issue, Product, Tests};
use crate::rule::{Rule, Seen, Stop, rule};
use std::ptr::{null, null_mut};

/// The rules of this file.
pub const RULES: &[Rule] = &[
    rule("map: null; size 0; granule + 1; off a granule", Tests, "1 1 1 1", |lab| {
        let (at, handle, g) = scene(lab)?;
        let odd = lab.map(at, g + 1, handle);
        Ok(codes(&[
            lab.map(0, g, handle),
            lab.map(at, 0, handle),
            odd,
            lab.map(at + 4096, g, handle),
        ]))
    })
    .without_context(),
    rule("map: offset of a granule; flags 1; handle 0", Header, "1 1 1", |lab| {
        let (at, handle, g) = scene(lab)?;
        let offset = lab.cuda.cuMemMap(at, g, g, handle, 0);
        Ok(codes(&[offset, lab.cuda.cuMemMap(at, g, 0, handle, 1), lab.map(at, g, 0)]))
    })
    .without_context(),
    rule(
        "map: longer than the memory; past the reservation; not reserved",
        Header,
        "1 1 1",
        |lab| {
            let (at, handle, g) = scene(lab)?;
            let past = lab.map(at + 3 * g as u64, 2 * g, handle);
            Ok(codes(&[lab.map(at, 3 * g, handle), past, lab.map(at + (64 << 30), g, handle)]))
        },
    )
    .without_context(),
    rule("map: where something is mapped already, wholly and in part", Header, "0 1 1", |lab| {
        let (at, handle, g) = scene(lab)?;
        let first = lab.map(at + g as u64, 2 * g, handle);
        Ok(codes(&[first, lab.map(at + g as u64, g, handle), lab.map(at, 2 * g, handle)]))
    })
    .without_context(),
    rule("map: a prefix of the memory", Tests, "0", |lab| {
        let (at, handle, g) = scene(lab)?;
        Ok(lab.map(at, g, handle).to_string())
    })
    .without_context(),
    rule("map: one handle at two addresses shows one memory", Tests, "0 0 77", alias),
    rule("map: several mappings with a gap in one reservation", Tests, "0 0 0", |lab| {
        let (at, handle, g) = scene(lab)?;
        let (first, second) = (lab.map(at, g, handle), lab.map(at + 3 * g as u64, g, handle));
        Ok(codes(&[first, second, lab.open(at + 3 * g as u64, g, RW)]))
    })
    .without_context(),
    rule("map: a context is not needed, nor for access and unmap", Header, "0 0 0", |lab| {
        let (at, handle, g) = scene(lab)?;
        let mapped = lab.map(at, 2 * g, handle);
        Ok(codes(&[mapped, lab.open(at, 2 * g, RW), lab.cuda.cuMemUnmap(at, 2 * g)]))
    })
    .without_context(),
    rule("no access yet: cuMemGetAccess; a copy from the host", Tests, "rights 0, copy 1", |lab| {
        let at = lab.granules(1, 0)?;
        Ok(format!("rights {}, copy {}", rights(lab, at), lab.put(at, &[1; 4])))
    }),
    rule("read access only: a copy to it; a copy from it", Tests, "1 0", |lab| {
        let at = lab.granules(1, R)?;
        Ok(codes(&[lab.put(at, &[1; 4]), lab.word(at).err().unwrap_or(0)]))
    }),
    rule("access withdrawn: a copy to it", Header, "0 1", |lab| {
        let at = lab.granules(1, RW)?;
        let withdrawn = lab.open(at, lab.granule, 0);
        Ok(codes(&[withdrawn, lab.put(at, &[1; 4])]))
    }),
    rule("no access: a kernel's store, the context's error after it", Header, "0 700 700", |lab| {
        let at = lab.granules(1, 0)?;
        store(lab, at)
    }),
    rule("a reservation without memory: a kernel's store", Header, "0 700 700", |lab| {
        let at = lab.reserve(lab.granule)?;
        store(lab, at)
    }),
    rule("a reservation without memory: a queued fill", Assumed, "1", |lab| {
        let at = lab.reserve(lab.granule)?;
        let stream = lab.stream(NON_BLOCKING)?;
        Ok(lab.cuda.cuMemsetD8Async(at, 1, 16, stream).to_string())
    }),
    rule("no access: a queued fill", Assumed, "1", |lab| {
        let (at, stream) = (lab.granules(1, 0)?, lab.stream(NON_BLOCKING)?);
        Ok(lab.cuda.cuMemsetD8Async(at, 1, 16, stream).to_string())
    }),
    rule("access: null; size 0; no descriptions; count 0", Tests, "1 1 1 1", |lab| {
        let at = lab.granules(2, 0)?;
        let size = 2 * lab.granule;
        let bare = lab.cuda.cuMemSetAccess(at, size, null(), 1);
        let none = lab.cuda.cuMemSetAccess(at, size, &wish(0, RW), 0);
        Ok(codes(&[lab.open(0, size, RW), lab.open(at, 0, RW), bare, none]))
    })
    .without_context(),
    rule("access: a byte more; a byte less; half a mapping", Header, "1 1 1", |lab| {
        let (at, handle, g) = scene(lab)?;
        lab.need("cuMemMap", lab.map(at, 2 * g, handle))?;
        let size = 2 * g;
        Ok(codes(&[lab.open(at, size + 1, RW), lab.open(at, size - 1, RW), lab.open(at, g, RW)]))
    })
    .without_context(),
    rule(
        "access: device 77; device -1; flags 2; flags 4; location type 9",
        Tests,
        "1 1 1 1 1",
        bad_wishes,
    )
    .without_context(),
    rule("access: host location for a device's memory", Header, "1", |lab| {
        let at = lab.granules(1, 0)?;
        let host = Access { location: Location { kind: 3, id: 0 }, flags: RW };
        Ok(lab.cuda.cuMemSetAccess(at, lab.granule, &host, 1).to_string())
    })
    .without_context(),
    rule("access: nothing mapped; a gap at the end", Header, "1 1", |lab| {
        let at = lab.reserve(2 * lab.granule)?;
        let none = lab.open(at, lab.granule, RW);
        let handle = lab.create(lab.granule)?;
        lab.need("cuMemMap", lab.map(at, lab.granule, handle))?;
        Ok(codes(&[none, lab.open(at, 2 * lab.granule, RW)]))
    })
    .without_context(),
    rule("access: one call over eight mappings, one copy over all", Product, "0 0 yes", span),
    rule(
        "access: a part of the mappings in the row; the others keep theirs",
        Header,
        "3 1 3",
        |lab| {
            let at = lab.granules(3, RW)?;
            let g = lab.granule as u64;
            lab.need("cuMemSetAccess", lab.open(at + g, lab.granule, R))?;
            let list = [rights(lab, at), rights(lab, at + g), rights(lab, at + 2 * g)];
            Ok(list.join(" "))
        },
    )
    .without_context(),
    rule("access: a second device too; the first keeps its own", Tests, "0 3 1", |lab| {
        let peer = lab.peer()?;
        let at = lab.granules(1, RW)?;
        let code = lab.cuda.cuMemSetAccess(at, lab.granule, &wish(peer, R), 1);
        let mut flags = 9;
        let other = Location { kind: 1, id: peer };
        lab.need("cuMemGetAccess", lab.cuda.cuMemGetAccess(&raw mut flags, &other, at))?;
        Ok(format!("{code} {} {flags}", rights(lab, at)))
    }),
    rule("access: over two adjacent reservations; the unmap of both", Assumed, "1 1", adjacent)
        .without_context(),
    rule("a copy over a mapping and a hole", Header, "1", |lab| {
        let at = lab.granules(1, RW)?;
        let two = vec![1u8; 2 * lab.granule];
        Ok(lab.put(at, &two).to_string())
    }),
    rule("unmap: null; size 0; half a mapping; from its middle", Tests, "1 1 1 1", |lab| {
        let (at, handle, g) = scene(lab)?;
        lab.need("cuMemMap", lab.map(at, 2 * g, handle))?;
        let unmap = |at, size| lab.cuda.cuMemUnmap(at, size);
        Ok(codes(&[unmap(0, 2 * g), unmap(at, 0), unmap(at, g), unmap(at + g as u64, g)]))
    })
    .without_context(),
    rule("unmap: nothing mapped; a mapping and a hole; twice", Issue, "1 1 0 1", |lab| {
        let (at, handle, g) = scene(lab)?;
        let unmap = |size| lab.cuda.cuMemUnmap(at, size);
        let none = unmap(g);
        lab.need("cuMemMap", lab.map(at, g, handle))?;
        Ok(codes(&[none, unmap(2 * g), unmap(g), unmap(g)]))
    })
    .without_context(),
    rule("unmap: three adjacent whole mappings in one call", Product, "0", |lab| {
        let at = lab.granules(3, RW)?;
        Ok(lab.cuda.cuMemUnmap(at, 3 * lab.granule).to_string())
    })
    .without_context(),
    rule("unmap: adjacent mappings of which the last is cut", Header, "1", |lab| {
        let (at, handle, g) = scene(lab)?;
        lab.need("cuMemMap", lab.map(at, g, handle))?;
        lab.need("cuMemMap", lab.map(at + g as u64, 2 * g, handle))?;
        Ok(lab.cuda.cuMemUnmap(at, 2 * g).to_string())
    })
    .without_context(),
    rule(
        "unmap: mapped again there is no access until granted, contents stay",
        Header,
        "rights 0, copy 1, granted 5",
        again,
    ),
    rule("unmap does not wait for a busy stream", Product, "returned while busy", unmap_in_flight),
    rule(
        "get access: null flags; null location; past the mapping; device 77",
        Tests,
        "1 1 1 1",
        |lab| {
            let at = lab.granules(1, RW)?;
            let (own, far) = (Location { kind: 1, id: 0 }, Location { kind: 1, id: 77 });
            let mut flags = 0;
            let get = |to, of, at| lab.cuda.cuMemGetAccess(to, of, at);
            let past = at + lab.granule as u64;
            let null_flags = get(null_mut(), &own, at);
            let null_place = get(&raw mut flags, null(), at);
            let outside = get(&raw mut flags, &own, past);
            Ok(codes(&[null_flags, null_place, outside, get(&raw mut flags, &far, at)]))
        },
    )
    .without_context(),
    rule("get access: the last byte of a mapping", Header, "3", |lab| {
        let at = lab.granules(1, RW)?;
        Ok(rights(lab, at + lab.granule as u64 - 1))
    })
    .without_context(),
    rule(
        "retain: inside a mapping the same handle, released once more",
        Header,
        "same 0 0",
        |lab| {
            let (at, handle, g) = scene(lab)?;
            lab.need("cuMemMap", lab.map(at, 2 * g, handle))?;
            let (code, found) = retain(lab, at + g as u64 + 17);
            lab.need("cuMemRetainAllocationHandle", code)?;
            let same = if found == handle { "same" } else { "other" };
            let release = || lab.cuda.cuMemRelease(handle);
            Ok(format!("{same} {} {}", release(), release()))
        },
    )
    .without_context(),
    rule("retain: no place; null address; unmapped address", Tests, "1 1 1", |lab| {
        let at = lab.granules(1, RW)?;
        let place = lab.cuda.cuMemRetainAllocationHandle(null_mut(), at as *mut _);
        lab.need("cuMemUnmap", lab.cuda.cuMemUnmap(at, lab.granule))?;
        Ok(codes(&[place, retain(lab, 0).0, retain(lab, at).0]))
    })
    .without_context(),
    rule("properties of a handle: as created; no place; handle 0", Header, "same 1 1", |lab| {
        let handle = lab.create(lab.granule)?;
        let mut found = properties(77);
        let of = |to, handle| lab.cuda.cuMemGetAllocationPropertiesFromHandle(to, handle);
        lab.need("cuMemGetAllocationPropertiesFromHandle", of(&raw mut found, handle))?;
        let same = found.kind == 1 && found.location == properties(0).location;
        let same = if same { "same" } else { "other" };
        Ok(format!("{same} {} {}", of(null_mut(), handle), of(&raw mut found, 0)))
    })
    .without_context(),
];

/// Four reserved granules, and memory of two.
fn scene(lab: &Lab) -> Result<(u64, u64, usize), Stop> {
    Ok((lab.reserve(4 * lab.granule)?, lab.create(2 * lab.granule)?, lab.granule))
}

fn rights(lab: &Lab, at: u64) -> String {
    lab.rights(at).map_or_else(|code| format!("refused with {code}"), |flags| flags.to_string())
}

fn retain(lab: &Lab, at: u64) -> (u32, u64) {
    let mut found = 0;
    (lab.cuda.cuMemRetainAllocationHandle(&raw mut found, at as *mut _), found)
}

fn alias(lab: &Lab) -> Seen {
    let (at, handle, g) = scene(lab)?;
    let other = at + 2 * g as u64;
    let list = [lab.map(at, g, handle), lab.map(other, g, handle)];
    lab.need("cuMemSetAccess", lab.open(at, g, RW))?;
    lab.need("cuMemSetAccess", lab.open(other, g, RW))?;
    lab.need("cuMemcpyHtoD", lab.put(at, &77u32.to_ne_bytes()))?;
    Ok(format!("{} {}", codes(&list), told(lab.word(other))))
}

/// A kernel's store: the launch, and the context's answer twice.
fn store(lab: &Lab, at: u64) -> Seen {
    let stream = lab.stream(NON_BLOCKING)?;
    let launched = lab.fill(at, 1, 1, stream)?;
    Ok(codes(&[launched, lab.wait(stream), lab.cuda.cuCtxSynchronize()]))
}

fn bad_wishes(lab: &Lab) -> Seen {
    let at = lab.granules(1, 0)?;
    let set = |one: Access| lab.cuda.cuMemSetAccess(at, lab.granule, &one, 1);
    let nowhere = Access { location: Location { kind: 9, id: 0 }, flags: RW };
    let list = [wish(77, RW), wish(-1, RW), wish(0, 2), wish(0, 4), nowhere];
    Ok(codes(&list.map(set)))
}

fn span(lab: &Lab) -> Seen {
    let at = lab.granules(8, 0)?;
    let size = 8 * lab.granule;
    let opened = lab.open(at, size, RW);
    let bytes: Vec<u8> = (0..size).map(|i| (i / 4096) as u8).collect();
    let copied = lab.put(at, &bytes);
    let mut back = vec![0u8; size];
    let code = lab.cuda.cuMemcpyDtoH(back.as_mut_ptr().cast(), at, size);
    lab.need("cuMemcpyDtoH", code)?;
    Ok(format!("{opened} {copied} {}", yes(back == bytes)))
}

fn adjacent(lab: &Lab) -> Seen {
    let hint = 0x2f0_0000_0000u64;
    let g = lab.granule;
    for i in 0..2 {
        let (mut at, wanted) = (0, hint + (i * g) as u64);
        let code = lab.cuda.cuMemAddressReserve(&raw mut at, g, 0, wanted, 0);
        lab.need("cuMemAddressReserve", code)?;
        lab.ask(at == wanted, "the hint was not taken")?;
        let handle = lab.create(g)?;
        lab.need("cuMemMap", lab.map(at, g, handle))?;
    }
    Ok(codes(&[lab.open(hint, 2 * g, RW), lab.cuda.cuMemUnmap(hint, 2 * g)]))
}

fn again(lab: &Lab) -> Seen {
    let (at, handle, g) = scene(lab)?;
    lab.need("cuMemMap", lab.map(at, g, handle))?;
    lab.need("cuMemSetAccess", lab.open(at, g, RW))?;
    lab.need("cuMemcpyHtoD", lab.put(at, &5u32.to_ne_bytes()))?;
    // A copy from pageable memory may return before the device has the bytes.
    lab.need("cuCtxSynchronize", lab.cuda.cuCtxSynchronize())?;
    lab.need("cuMemUnmap", lab.cuda.cuMemUnmap(at, g))?;
    lab.need("cuMemMap", lab.map(at, g, handle))?;
    let (before, copy) = (rights(lab, at), lab.put(at, &[1; 4]));
    lab.need("cuMemSetAccess", lab.open(at, g, RW))?;
    Ok(format!("rights {before}, copy {copy}, granted {}", told(lab.word(at))))
}

/// Unmaps idle memory while a stream is busy with something else.
fn unmap_in_flight(lab: &Lab) -> Seen {
    let stream = lab.stream(NON_BLOCKING)?;
    let at = lab.granules(1, RW)?;
    let gate = lab.gate(stream)?;
    let opener = gate.open_after(std::time::Duration::from_millis(1500));
    let code = lab.cuda.cuMemUnmap(at, lab.granule);
    let busy = lab.cuda.cuStreamQuery(stream);
    // A thread that cannot be joined has panicked, which no code there does.
    let _ = opener.join();
    lab.need("cuMemUnmap", code)?;
    Ok(match busy {
        600 => "returned while busy".to_owned(),
        0 => "waited".to_owned(),
        code => format!("query {code}"),
    })
}
