//! What is known of a pointer: attributes of virtual, plain and host memory.

use crate::cuda::Properties;
use crate::lab::{Lab, RW, codes, properties, yes};
use crate::rule::Source::{Assumed, Header};
use crate::rule::{Rule, rule};

const CONTEXT: u32 = 1;
const MEMORY_TYPE: u32 = 2;
const DEVICE_POINTER: u32 = 3;
const SYNC_MEMOPS: u32 = 6;
const BUFFER_ID: u32 = 7;
const IS_MANAGED: u32 = 8;
const DEVICE_ORDINAL: u32 = 9;
const LEGACY_IPC: u32 = 10;
const RANGE_START: u32 = 11;
const RANGE_SIZE: u32 = 12;
const MAPPED: u32 = 13;
const HANDLE_TYPES: u32 = 14;
const RDMA: u32 = 15;
const ACCESS_FLAGS: u32 = 16;
const MEMPOOL: u32 = 17;
const MAPPING_SIZE: u32 = 18;
const MAPPING_BASE: u32 = 19;
const BLOCK_ID: u32 = 20;

/// The rules of this file.
pub const RULES: &[Rule] = &[
    rule("attributes of virtual memory: type device, ordinal 0, mapped", Header, "2 0 1", |lab| {
        let at = lab.granules(1, RW)?;
        Ok(list(lab, at, &[MEMORY_TYPE, DEVICE_ORDINAL, MAPPED]))
    }),
    rule(
        "attributes of virtual memory: no context, no legacy IPC, no pool",
        Header,
        "0 0 0",
        |lab| {
            let at = lab.granules(1, RW)?;
            Ok(list(lab, at, &[CONTEXT, LEGACY_IPC, MEMPOOL]))
        },
    ),
    rule(
        "attributes of virtual memory: range is the reservation",
        Header,
        "start, 4 granules",
        |lab| {
            let (at, from) = second_of_four(lab)?;
            Ok(place(lab, at, from, RANGE_START, RANGE_SIZE))
        },
    ),
    rule(
        "attributes of virtual memory: mapping is the mapping",
        Header,
        "start, 1 granules",
        |lab| {
            let (at, from) = second_of_four(lab)?;
            Ok(place(lab, at, from + lab.granule as u64, MAPPING_BASE, MAPPING_SIZE))
        },
    ),
    rule(
        "attributes of a reservation without memory: range and mapped",
        Header,
        "start, 1 granules, 0",
        |lab| {
            let at = lab.reserve(lab.granule)?;
            let range = place(lab, at, at, RANGE_START, RANGE_SIZE);
            Ok(format!("{range}, {}", list(lab, at, &[MAPPED])))
        },
    ),
    rule(
        "attributes of a reservation without memory: memory type",
        Assumed,
        "refused with 1",
        |lab| {
            let at = lab.reserve(lab.granule)?;
            Ok(list(lab, at, &[MEMORY_TYPE]))
        },
    ),
    rule("attributes: access flags none, read, read and write", Header, "0 1 3", |lab| {
        let mut said = Vec::new();
        let at = lab.granules(1, 0)?;
        for flags in [0, 1, 3] {
            lab.need("cuMemSetAccess", lab.open(at, lab.granule, flags))?;
            said.push(list(lab, at, &[ACCESS_FLAGS]));
        }
        Ok(said.join(" "))
    }),
    rule(
        "attributes: device pointer without access; with access",
        Header,
        "refused with 1, same",
        |lab| {
            let at = lab.granules(1, 0)?;
            let before = list(lab, at, &[DEVICE_POINTER]);
            lab.need("cuMemSetAccess", lab.open(at, lab.granule, RW))?;
            let same = ask(lab, at, DEVICE_POINTER) == Ok(at);
            Ok(format!("{before}, {}", if same { "same" } else { "other" }))
        },
    ),
    rule("attributes: handle types as created", Header, "1", |lab| {
        lab.ask(lab.attribute(103) == 1, "attribute 103 is 0")?;
        let of = Properties { handle_types: 1, ..properties(lab.device) };
        Ok(list(lab, mapped(lab, &of)?, &[HANDLE_TYPES]))
    }),
    rule("attributes: RDMA capable as created", Header, "0 1", |lab| {
        lab.ask(lab.attribute(110) == 1, "attribute 110 is 0")?;
        let plain = mapped(lab, &properties(lab.device))?;
        let capable = mapped(lab, &Properties { rdma: 1, ..properties(lab.device) })?;
        Ok(format!("{} {}", list(lab, plain, &[RDMA]), list(lab, capable, &[RDMA])))
    }),
    rule("attributes: one block id for two addresses of one memory", Header, "yes", |lab| {
        let (at, g) = (lab.reserve(2 * lab.granule)?, lab.granule);
        let handle = lab.create(g)?;
        let other = at + g as u64;
        lab.need("cuMemMap", lab.map(at, g, handle))?;
        lab.need("cuMemMap", lab.map(other, g, handle))?;
        lab.need("cuMemSetAccess", lab.open(at, 2 * g, RW))?;
        let (first, second) = (ask(lab, at, BLOCK_ID), ask(lab, other, BLOCK_ID));
        Ok(yes(first == second && first.is_ok()).to_owned())
    }),
    rule("attributes: a buffer id is not used again", Header, "yes", |lab| {
        let mut ids = Vec::new();
        for _ in 0..4 {
            let at = lab.plain(4 << 20)?;
            ids.push(ask(lab, at, BUFFER_ID));
            lab.need("cuMemFree", lab.cuda.cuMemFree(at))?;
        }
        ids.sort_unstable();
        ids.dedup();
        Ok(yes(ids.len() == 4).to_owned())
    }),
    rule("attributes of plain memory: own context, legacy IPC, mapped", Header, "yes 1 1", |lab| {
        let at = lab.plain(4 << 20)?;
        let own = ask(lab, at, CONTEXT) == Ok(lab.context);
        Ok(format!("{} {}", yes(own), list(lab, at, &[LEGACY_IPC, MAPPED])))
    }),
    rule("attributes of pinned host memory: type host", Header, "1", |lab| {
        let at = lab.pinned(4096)? as u64;
        Ok(list(lab, at, &[MEMORY_TYPE]))
    }),
    rule("attributes: an unknown pointer; attribute 999; no place", Header, "1 1 1", |lab| {
        let (word, mut to) = (0u32, 0u64);
        let at = (&raw const word) as u64;
        let own = lab.plain(16)?;
        let get =
            |attribute, at| lab.cuda.cuPointerGetAttribute((&raw mut to).cast(), attribute, at);
        let (mut get, null) = (get, std::ptr::null_mut());
        let list = [get(MEMORY_TYPE, at), get(999, own)];
        let none = lab.cuda.cuPointerGetAttribute(null, MEMORY_TYPE, own);
        Ok(codes(&[list[0], list[1], none]))
    }),
    rule("attributes in one call: an unknown pointer gives zeros", Header, "0 0 0", |lab| {
        let word = 0u32;
        let (mut kind, mut size) = (99u64, 99u64);
        let places = [(&raw mut kind).cast(), (&raw mut size).cast()];
        let asked = [MEMORY_TYPE, RANGE_SIZE];
        kind = 0;
        let at = (&raw const word) as u64;
        let code = lab.cuda.cuPointerGetAttributes(2, asked.as_ptr(), places.as_ptr(), at);
        // SAFETY: written by the driver through the places above.
        let (kind, size) =
            unsafe { ((&raw const kind).read_volatile(), (&raw const size).read_volatile()) };
        Ok(format!("{code} {kind} {size}"))
    }),
    rule("attributes of managed memory: type device; managed", Assumed, "2 1", |lab| {
        let mut at = 0;
        let code = lab.cuda.cuMemAllocManaged(&raw mut at, 4096, 1);
        lab.need("cuMemAllocManaged", code)?;
        Ok(list(lab, at, &[MEMORY_TYPE, IS_MANAGED]))
    }),
    rule("attributes: a truth value is written as so many bytes", Assumed, "4 or 1", |lab| {
        let (at, mut value) = (lab.plain(16)?, [0xEEu8; 8]);
        let to = value.as_mut_ptr().cast();
        let code = lab.cuda.cuPointerGetAttribute(to, IS_MANAGED, at);
        lab.need("cuPointerGetAttribute", code)?;
        Ok(value.iter().filter(|byte| **byte != 0xEE).count().to_string())
    })
    .simulated("4"),
    rule("set attribute: SYNC_MEMOPS; range size", Header, "0 1", |lab| {
        let (at, value) = (lab.plain(16)?, 1u32);
        let set = |which| lab.cuda.cuPointerSetAttribute((&raw const value).cast(), which, at);
        Ok(codes(&[set(SYNC_MEMOPS), set(RANGE_SIZE)]))
    }),
];

/// One attribute, or the code.
fn ask(lab: &Lab, at: u64, attribute: u32) -> Result<u64, u32> {
    let mut value = 0u64;
    match lab.cuda.cuPointerGetAttribute((&raw mut value).cast(), attribute, at) {
        0 => Ok(value),
        code => Err(code),
    }
}

/// Several, each a number or `refused with` the code.
fn list(lab: &Lab, at: u64, attributes: &[u32]) -> String {
    let one = |a: &u32| match ask(lab, at, *a) {
        Ok(value) => value.to_string(),
        Err(code) => format!("refused with {code}"),
    };
    attributes.iter().map(one).collect::<Vec<_>>().join(" ")
}

/// A start and a size, told against what they might be.
fn place(lab: &Lab, at: u64, start: u64, base: u32, size: u32) -> String {
    match (ask(lab, at, base), ask(lab, at, size)) {
        (Ok(found), Ok(size)) => {
            let from = if found == start { "start" } else { "elsewhere" };
            format!("{from}, {} granules", size / lab.granule as u64)
        }
        (from, size) => format!("{from:?} {size:?}"),
    }
}

/// An address in the second of four reserved granules, of which the first three are mapped.
fn second_of_four(lab: &Lab) -> Result<(u64, u64), crate::rule::Stop> {
    let (g, from) = (lab.granule, lab.reserve(4 * lab.granule)?);
    for i in 0..3 {
        let handle = lab.create(g)?;
        lab.need("cuMemMap", lab.map(from + (i * g) as u64, g, handle))?;
    }
    lab.need("cuMemSetAccess", lab.open(from, 3 * g, RW))?;
    Ok((from + g as u64 + 4321, from))
}

fn mapped(lab: &Lab, of: &Properties) -> Result<u64, crate::rule::Stop> {
    let (at, handle) = (lab.reserve(lab.granule)?, lab.create_of(lab.granule, of)?);
    lab.need("cuMemMap", lab.map(at, lab.granule, handle))?;
    lab.need("cuMemSetAccess", lab.open(at, lab.granule, RW))?;
    Ok(at)
}
