//! Virtual memory: granularity, reservations, physical memory, mappings, and how long each lives.

use crate::cuda::{Location, Properties};
use crate::lab::{Lab, RW, codes, properties, yes};
use crate::rule::Source::{Assumed, Header, Issue, Product, Tests};
use crate::rule::{Rule, Seen, rule};
use std::ptr::{null, null_mut};

/// The rules of this file.
pub const RULES: &[Rule] = &[
    rule("granularity: minimum; recommended", Product, "2097152 2097152", granularity)
        .without_context(),
    rule("granularity: option 2", Tests, "1", |lab| Ok(grain(lab, &properties(0), 2).to_string()))
        .without_context(),
    rule("granularity: no place for the answer", Tests, "1", |lab| {
        Ok(lab.cuda.cuMemGetAllocationGranularity(null_mut(), &properties(0), 0).to_string())
    })
    .without_context(),
    rule("granularity: device -1; device 77; type 9; location type 99", Tests, "0 0 0 0", odd)
        .without_context(),
    rule("granularity: null properties", Tests, "crashed", |lab| {
        let mut size = 0;
        Ok(lab.cuda.cuMemGetAllocationGranularity(&raw mut size, null(), 0).to_string())
    })
    .without_context()
    .simulated("1"),
    rule(
        "reserve: alignment 0; 2; 4096; 64 MiB, and the address is aligned",
        Tests,
        "0 0 0 0 yes",
        alignments,
    )
    .without_context(),
    rule("reserve: 4096 bytes, one host page", Tests, "0", |lab| Ok(reserve(lab, 4096, 0, 0, 0)))
        .without_context(),
    rule("reserve: size 0", Tests, "2", |lab| Ok(reserve(lab, 0, 0, 0, 0))).without_context(),
    rule("reserve: granule + 1 byte; granule - 1 byte", Tests, "2 2", |lab| {
        let g = lab.granule;
        Ok(format!("{} {}", reserve(lab, g + 1, 0, 0, 0), reserve(lab, g - 1, 0, 0, 0)))
    })
    .without_context(),
    rule("reserve: alignment 3", Tests, "2", |lab| Ok(reserve(lab, lab.granule, 3, 0, 0)))
        .without_context(),
    rule("reserve: no place for the answer", Tests, "1", |lab| {
        Ok(lab.cuda.cuMemAddressReserve(null_mut(), lab.granule, 0, 0, 0).to_string())
    })
    .without_context(),
    rule("reserve: flags 1", Header, "1", |lab| Ok(reserve(lab, lab.granule, 0, 0, 1)))
        .without_context(),
    rule("reserve: a hint off a host page", Header, "1", |lab| {
        Ok(reserve(lab, lab.granule, 0, 4097, 0))
    })
    .without_context(),
    rule("reserve: a free hint is taken; a taken one is ignored", Header, "taken other", hints)
        .without_context(),
    rule("reserve: 1 TiB sixteen times", Header, "16", |lab| terabytes(lab, 1 << 40, 16))
        .without_context(),
    rule("reserve: 256 TiB in one piece", Issue, "2", |lab| Ok(reserve(lab, 1 << 48, 0, 0, 0)))
        .without_context(),
    rule("reserve: 1 TiB pieces until refused", Issue, "refused with 2", exhaust).without_context(),
    rule("address free: null; size 0", Tests, "1 1", |lab| {
        let at = lab.reserve(lab.granule)?;
        Ok(codes(&[lab.cuda.cuMemAddressFree(0, lab.granule), lab.cuda.cuMemAddressFree(at, 0)]))
    })
    .without_context(),
    rule("address free: the first half; too long; the second half", Header, "1 1 1", |lab| {
        let g = lab.granule;
        let at = lab.reserve(2 * g)?;
        let free = |at, size| lab.cuda.cuMemAddressFree(at, size);
        Ok(codes(&[free(at, g), free(at, 3 * g), free(at + g as u64, g)]))
    })
    .without_context(),
    rule("address free: still mapped; after the unmap", Assumed, "1 0", |lab| {
        let at = lab.granules(1, 0)?;
        let mapped = lab.cuda.cuMemAddressFree(at, lab.granule);
        lab.need("cuMemUnmap", lab.cuda.cuMemUnmap(at, lab.granule))?;
        Ok(codes(&[mapped, lab.cuda.cuMemAddressFree(at, lab.granule)]))
    })
    .without_context(),
    rule("address free: twice", Assumed, "0 1", |lab| {
        let at = lab.reserve(lab.granule)?;
        let free = || lab.cuda.cuMemAddressFree(at, lab.granule);
        Ok(codes(&[free(), free()]))
    })
    .without_context(),
    rule("create: no place for the answer; null properties", Tests, "1 1", |lab| {
        let mut handle = 0;
        let of = properties(0);
        let place = lab.cuda.cuMemCreate(null_mut(), lab.granule, &of, 0);
        Ok(codes(&[place, lab.cuda.cuMemCreate(&raw mut handle, lab.granule, null(), 0)]))
    })
    .without_context(),
    rule("create: size 0; granule + 1; half a granule; flags 1", Tests, "1 1 1 1", |lab| {
        let of = properties(0);
        let sized = |bytes| lab.try_create(bytes, &of);
        let mut handle = 0;
        let flags = lab.cuda.cuMemCreate(&raw mut handle, lab.granule, &of, 1);
        Ok(codes(&[sized(0), sized(lab.granule + 1), sized(lab.granule / 2), flags]))
    })
    .without_context(),
    rule("create: type 0; type 2; location type 9", Tests, "1 1 1", |lab| {
        let of = properties(0);
        let at = Location { kind: 9, id: 0 };
        Ok(made(
            lab,
            &[
                Properties { kind: 0, ..of },
                Properties { kind: 2, ..of },
                Properties { location: at, ..of },
            ],
        ))
    })
    .without_context(),
    rule("create: device -1; device 77", Tests, "1 1 or 101 101", |lab| {
        Ok(made(lab, &[properties(-1), properties(77)]))
    })
    .without_context(),
    rule("create: HOST location before CUDA 13", Header, "1", |lab| {
        let mut version = 0;
        lab.need("cuDriverGetVersion", lab.cuda.cuDriverGetVersion(&raw mut version))?;
        lab.ask(version < 13_000, "the driver is of CUDA 13 or later")?;
        Ok(made(lab, &[located(2)]))
    })
    .without_context(),
    rule("create: HOST_NUMA_CURRENT location", Header, "1", |lab| Ok(made(lab, &[located(4)])))
        .without_context(),
    rule("create: HOST_NUMA location, where the device supports it", Product, "0 or 800", |lab| {
        lab.ask(lab.attribute(141) == 1, "attribute 141 is 0")?;
        Ok(made(lab, &[located(3)]))
    })
    .without_context(),
    rule("create: fabric handles without an IMEX channel", Issue, "800 or 801", |lab| {
        lab.ask(
            lab.simulated
                || !std::path::Path::new("/dev/nvidia-caps-imex-channels/channel0").exists(),
            "an IMEX channel is there",
        )?;
        Ok(made(lab, &[Properties { handle_types: 8, ..properties(0) }]))
    })
    .without_context(),
    rule("create: Windows handle types", Assumed, "801 801", |lab| {
        let of = |types| Properties { handle_types: types, ..properties(0) };
        Ok(made(lab, &[of(2), of(4)]))
    })
    .without_context(),
    rule("create: an unknown handle type", Tests, "1", |lab| {
        Ok(made(lab, &[Properties { handle_types: 16, ..properties(0) }]))
    })
    .without_context(),
    rule("create: until the device is full", Header, "2", full).alone(),
    rule("release: handle 0", Tests, "1", |lab| Ok(lab.cuda.cuMemRelease(0).to_string()))
        .without_context(),
    rule("release: a handle twice (undefined)", Header, "0 1 or crashed", |lab| {
        let handle = lab.create(lab.granule)?;
        Ok(codes(&[lab.cuda.cuMemRelease(handle), lab.cuda.cuMemRelease(handle)]))
    })
    .without_context()
    .simulated("0 1"),
    rule("release: right after the map; contents stay", Tests, "0 7", |lab| {
        let at = lab.reserve(lab.granule)?;
        let handle = lab.create(lab.granule)?;
        lab.need("cuMemMap", lab.map(at, lab.granule, handle))?;
        let released = lab.cuda.cuMemRelease(handle);
        lab.need("cuMemSetAccess", lab.open(at, lab.granule, RW))?;
        lab.need("cuMemcpyHtoD", lab.put(at, &7u32.to_ne_bytes()))?;
        Ok(format!("{released} {}", told(lab.word(at))))
    }),
    rule("memory is free only once handle and mapping are gone", Header, "held held free", held)
        .alone(),
    rule("memory released before its unmap is free after it", Header, "held free", kept).alone(),
];

fn grain(lab: &Lab, of: &Properties, option: u32) -> u32 {
    let mut size = 0;
    lab.cuda.cuMemGetAllocationGranularity(&raw mut size, of, option)
}

fn granularity(lab: &Lab) -> Seen {
    let mut sizes = [0; 2];
    for (option, size) in sizes.iter_mut().enumerate() {
        let of = properties(lab.device);
        let code = lab.cuda.cuMemGetAllocationGranularity(&raw mut *size, &of, option as u32);
        lab.need("cuMemGetAllocationGranularity", code)?;
    }
    Ok(format!("{} {}", sizes[0], sizes[1]))
}

fn odd(lab: &Lab) -> Seen {
    let nowhere = Location { kind: 99, id: 0 };
    let list = [
        properties(-1),
        properties(77),
        Properties { kind: 9, ..properties(0) },
        Properties { location: nowhere, ..properties(0) },
    ];
    Ok(codes(&list.map(|of| grain(lab, &of, 0))))
}

fn reserve(lab: &Lab, size: usize, alignment: usize, hint: u64, flags: u64) -> String {
    let mut at = 0;
    lab.cuda.cuMemAddressReserve(&raw mut at, size, alignment, hint, flags).to_string()
}

fn alignments(lab: &Lab) -> Seen {
    let mut list = Vec::new();
    let mut aligned = true;
    for alignment in [0, 2, 4096, 64 << 20] {
        let mut at = 0;
        list.push(lab.cuda.cuMemAddressReserve(&raw mut at, lab.granule, alignment, 0, 0));
        aligned &= at % (alignment.max(lab.granule) as u64) == 0;
    }
    Ok(format!("{} {}", codes(&list), yes(aligned)))
}

fn hints(lab: &Lab) -> Seen {
    let hint = 0x1f0_0000_0000u64;
    let mut said = Vec::new();
    for _ in 0..2 {
        let mut at = 0;
        let code = lab.cuda.cuMemAddressReserve(&raw mut at, lab.granule, 0, hint, 0);
        lab.need("cuMemAddressReserve", code)?;
        said.push(if at == hint { "taken" } else { "other" });
    }
    Ok(said.join(" "))
}

fn terabytes(lab: &Lab, size: usize, count: usize) -> Seen {
    for i in 0..count {
        let mut at = 0;
        if lab.cuda.cuMemAddressReserve(&raw mut at, size, 0, 0, 0) != 0 {
            return Ok(i.to_string());
        }
    }
    Ok(count.to_string())
}

fn exhaust(lab: &Lab) -> Seen {
    for _ in 0..1024 {
        let mut at = 0;
        let code = lab.cuda.cuMemAddressReserve(&raw mut at, 1 << 40, 0, 0, 0);
        if code != 0 {
            return Ok(format!("refused with {code}"));
        }
    }
    Ok("1024 TiB".to_owned())
}

fn located(kind: u32) -> Properties {
    Properties { location: Location { kind, id: 0 }, ..properties(0) }
}

fn made(lab: &Lab, list: &[Properties]) -> String {
    let list: Vec<u32> = list.iter().map(|of| lab.try_create(lab.granule, of)).collect();
    codes(&list)
}

/// A word read back, or the code.
pub fn told(word: Result<u32, u32>) -> String {
    match word {
        Ok(word) => word.to_string(),
        Err(code) => format!("refused with {code}"),
    }
}

fn full(lab: &Lab) -> Seen {
    // In pieces of 1 GiB, then of a granule; a device holds less than 64 TiB.
    for piece in [1 << 30, lab.granule] {
        for _ in 0..(64 << 10) {
            match lab.try_create(piece, &properties(lab.device)) {
                0 => {}
                code if piece == lab.granule => return Ok(code.to_string()),
                _ => break,
            }
        }
    }
    Ok("never full".to_owned())
}

/// Whether the device has about as much free as before.
fn state(lab: &Lab, before: usize) -> Result<&'static str, crate::rule::Stop> {
    let free = lab.free_bytes()?;
    Ok(if free + PIECE / 2 > before { "free" } else { "held" })
}

/// Large against what others on the device may take or give meanwhile.
const PIECE: usize = 256 << 20;

fn held(lab: &Lab) -> Seen {
    let before = lab.free_bytes()?;
    let at = lab.reserve(PIECE)?;
    let handle = lab.create(PIECE)?;
    lab.need("cuMemMap", lab.map(at, PIECE, handle))?;
    let mapped = state(lab, before)?;
    lab.need("cuMemUnmap", lab.cuda.cuMemUnmap(at, PIECE))?;
    let unmapped = state(lab, before)?;
    lab.need("cuMemRelease", lab.cuda.cuMemRelease(handle))?;
    Ok(format!("{mapped} {unmapped} {}", state(lab, before)?))
}

fn kept(lab: &Lab) -> Seen {
    let before = lab.free_bytes()?;
    let at = lab.reserve(PIECE)?;
    let handle = lab.create(PIECE)?;
    lab.need("cuMemMap", lab.map(at, PIECE, handle))?;
    lab.need("cuMemRelease", lab.cuda.cuMemRelease(handle))?;
    let released = state(lab, before)?;
    lab.need("cuMemUnmap", lab.cuda.cuMemUnmap(at, PIECE))?;
    Ok(format!("{released} {}", state(lab, before)?))
}
