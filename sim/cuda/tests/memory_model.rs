//! Random sequences of memory calls against a naive model.
//!
//! The model keeps plain lists and counts everything anew at each question: codes of all
//! calls, free bytes, rights, contents. Arguments are mostly good and often a little wrong. The
//! seed is printed; `SIMCUDA_SEED` replays it, `SIMCUDA_STEPS` sets the length.

mod common;
mod vm;

use common::Sim;
use std::os::fd::RawFd;
use vm::*;

/// The granularity of this test: small, so that contents are cheap.
const UNIT: u64 = 64 << 10;
/// Device memory in units.
const UNITS: u64 = 96;
/// The mapping budget.
const BUDGET: u64 = 14;
/// Address space in units.
const ADDRESSES: u64 = 700;

struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    fn pick<T: Copy>(&mut self, list: &[T]) -> Option<T> {
        if list.is_empty() { None } else { Some(list[self.below(list.len() as u64) as usize]) }
    }
}

/// Physical memory: a byte a unit stands for its contents.
#[derive(Clone)]
struct Phys {
    contents: Vec<u8>,
    exportable: bool,
}

#[derive(Clone, Copy)]
struct Handle {
    id: u64,
    phys: usize,
    refs: u64,
}

#[derive(Clone, Copy)]
struct Mapping {
    at: u64,
    units: u64,
    handle: u64,
    flags: u32,
}

#[derive(Default)]
struct Model {
    phys: Vec<Phys>,
    handles: Vec<Handle>,
    /// Handles that ended, to be used wrongly.
    dead: Vec<u64>,
    reservations: Vec<(u64, u64)>,
    mappings: Vec<Mapping>,
    exports: Vec<(RawFd, usize)>,
    /// Plain memory: address and units, and its byte.
    plain: Vec<(u64, u64, u8)>,
}

impl Model {
    fn handle(&self, id: u64) -> Option<&Handle> {
        self.handles.iter().find(|h| h.id == id)
    }

    fn phys_of(&self, mapping: &Mapping) -> usize {
        self.handle(mapping.handle).expect("a mapping keeps its handle").phys
    }

    fn is_alive(&self, phys: usize) -> bool {
        let named = |h: &Handle| {
            h.phys == phys && (h.refs > 0 || self.mappings.iter().any(|m| m.handle == h.id))
        };
        self.handles.iter().any(named) || self.exports.iter().any(|e| e.1 == phys)
    }

    fn used(&self) -> u64 {
        let held = self.handles.iter().map(|h| h.phys).chain(self.exports.iter().map(|e| e.1));
        let mut alive: Vec<usize> = held.filter(|p| self.is_alive(*p)).collect();
        alive.sort_unstable();
        alive.dedup();
        let virt: u64 = alive.into_iter().map(|p| self.phys[p].contents.len() as u64).sum();
        virt + self.plain.iter().map(|p| p.1).sum::<u64>()
    }

    fn addresses(&self) -> u64 {
        let plain: u64 = self.plain.iter().map(|p| p.1).sum();
        plain + self.reservations.iter().map(|r| r.1).sum::<u64>()
    }

    /// Drops handles that nothing keeps.
    fn settle(&mut self) {
        let mappings = &self.mappings;
        let kept = |h: &Handle| h.refs > 0 || mappings.iter().any(|m| m.handle == h.id);
        self.dead.extend(self.handles.iter().filter(|h| !kept(h)).map(|h| h.id));
        self.handles.retain(kept);
    }

    fn reservation_of(&self, at: u64, units: u64) -> Option<(u64, u64)> {
        let end = at + units * UNIT;
        self.reservations.iter().copied().find(|(a, u)| *a <= at && end <= a + u * UNIT)
    }

    fn overlaps(&self, at: u64, units: u64) -> bool {
        let end = at + units * UNIT;
        self.mappings.iter().any(|m| m.at < end && at < m.at + m.units * UNIT)
    }

    /// Indices of the mappings that a range consists of, in order.
    fn tiles(&self, at: u64, bytes: u64) -> Option<Vec<usize>> {
        let home = self.reservation_of(at, bytes.div_ceil(UNIT))?;
        let mut cursor = at;
        let mut found = Vec::new();
        while cursor < at + bytes {
            let i = self.mappings.iter().position(|m| m.at == cursor)?;
            found.push(i);
            cursor += self.mappings[i].units * UNIT;
        }
        let inside = cursor <= home.0 + home.1 * UNIT;
        (cursor == at + bytes && bytes > 0 && inside).then_some(found)
    }

    /// What open mappings take of the budget, in millionths.
    fn spent(&self) -> u64 {
        let open = self.mappings.iter().filter(|m| m.flags != 0);
        let homes = open.clone().map(|m| self.reservation_of(m.at, m.units).expect("reserved").0);
        let mut homes: Vec<u64> = homes.collect();
        homes.sort_unstable();
        homes.dedup();
        open.count() as u64 * 1_000_000 + (homes.len() as u64).saturating_sub(1) * 744_979
    }
}

/// One run.
struct Run {
    rng: Rng,
    model: Model,
    codes: std::collections::BTreeMap<(&'static str, u32), u64>,
}

impl Run {
    fn count(&mut self, call: &'static str, code: u32) {
        *self.codes.entry((call, code)).or_default() += 1;
    }

    fn step(&mut self) {
        match self.rng.below(100) {
            0..8 => self.reserve(),
            8..12 => self.unreserve(),
            12..27 => self.create(),
            27..40 => self.release(),
            40..60 => self.map(),
            60..69 => self.unmap(),
            69..83 => self.set_access(),
            83..88 => self.write(),
            88..91 => self.retain(),
            91..94 => self.export_or_import(),
            94..96 => self.close(),
            96..98 => self.alloc(),
            _ => self.free(),
        }
    }

    fn reserve(&mut self) {
        let units = 1 + self.rng.below(40);
        let wanted = if self.model.addresses() + units > ADDRESSES { Err(2) } else { Ok(()) };
        let got = try_reserve((units * UNIT) as usize);
        assert_eq!(got.map(|_| ()), wanted);
        self.count("reserve", got.err().unwrap_or(0));
        if let Ok(at) = got {
            let end = at + units * UNIT;
            assert!(at % UNIT == 0);
            let clash = self.model.reservations.iter().any(|(a, u)| *a < end && at < a + u * UNIT);
            assert!(!clash, "a reservation over another");
            self.model.reservations.push((at, units));
        }
    }

    fn unreserve(&mut self) {
        let Some((at, units)) = self.rng.pick(&self.model.reservations) else { return };
        let asked = if self.rng.chance(20) { units + 1 } else { units };
        let busy = self.model.overlaps(at, units);
        let wanted = if asked != units || busy { 1 } else { 0 };
        let got = unreserve(at, (asked * UNIT) as usize);
        assert_eq!(got, wanted);
        self.count("unreserve", got);
        if got == 0 {
            self.model.reservations.retain(|r| r.0 != at);
        }
    }

    fn create(&mut self) {
        let units = 1 + self.rng.below(6);
        let exportable_too = self.rng.chance(40);
        let of = if exportable_too { exportable(0) } else { prop(0) };
        let wanted = if self.model.used() + units > UNITS { Err(2) } else { Ok(()) };
        let got = try_create((units * UNIT) as usize, &of);
        assert_eq!(got.map(|_| ()), wanted);
        self.count("create", got.err().unwrap_or(0));
        if let Ok(id) = got {
            assert!(self.model.handle(id).is_none() && !self.model.dead.contains(&id));
            let contents = vec![0xA5; units as usize];
            self.model.phys.push(Phys { contents, exportable: exportable_too });
            self.model.handles.push(Handle { id, phys: self.model.phys.len() - 1, refs: 1 });
        }
    }

    /// A handle that is good, kept by mappings alone, or ended.
    fn some_handle(&mut self) -> Option<u64> {
        if self.rng.chance(3) {
            return self.rng.pick(&self.model.dead);
        }
        self.rng.pick(&self.model.handles).map(|h| h.id)
    }

    fn release(&mut self) {
        let Some(id) = self.some_handle() else { return };
        let good = self.model.handle(id).is_some_and(|h| h.refs > 0);
        let got = release(id);
        assert_eq!(got, if good { 0 } else { 1 });
        self.count("release", got);
        if let Some(h) = self.model.handles.iter_mut().find(|h| h.id == id && h.refs > 0) {
            h.refs -= 1;
        }
        self.model.settle();
    }

    fn map(&mut self) {
        let Some(id) = self.some_handle() else { return };
        let Some((base, length)) = self.rng.pick(&self.model.reservations) else { return };
        let handle = self.model.handle(id).copied().filter(|h| h.refs > 0);
        let whole = handle.map_or(1, |h| self.model.phys[h.phys].contents.len() as u64);
        let units = if self.rng.chance(70) { whole } else { 1 + self.rng.below(7) };
        let at = base + self.rng.below(length) * UNIT;
        let good = handle.is_some()
            && units <= whole
            && self.model.reservation_of(at, units).is_some()
            && !self.model.overlaps(at, units);
        let got = map(at, (units * UNIT) as usize, id);
        assert_eq!(got, if good { 0 } else { 1 });
        self.count("map", got);
        if good {
            self.model.mappings.push(Mapping { at, units, handle: id, flags: 0 });
            assert_eq!(peek(at), None);
        }
    }

    /// A range that mostly consists of whole mappings.
    fn some_range(&mut self) -> Option<(u64, u64)> {
        let first = self.rng.pick(&self.model.mappings)?;
        let mut end = first.at + first.units * UNIT;
        while self.rng.chance(60) {
            let Some(next) = self.model.mappings.iter().find(|m| m.at == end) else { break };
            end += next.units * UNIT;
        }
        let bytes = end - first.at;
        Some(match self.rng.below(20) {
            0 => (first.at, bytes + UNIT),
            1 => (first.at, bytes - UNIT),
            2 => (first.at + UNIT, bytes),
            3 => (first.at, bytes + 1),
            _ => (first.at, bytes),
        })
    }

    fn unmap(&mut self) {
        let Some((at, bytes)) = self.some_range() else { return };
        let tiles = self.model.tiles(at, bytes);
        let got = unmap(at, bytes as usize);
        assert_eq!(got, if tiles.is_some() { 0 } else { 1 });
        self.count("unmap", got);
        if tiles.is_some() {
            self.model.mappings.retain(|m| m.at < at || m.at >= at + bytes);
            self.model.settle();
            assert_eq!(peek(at), None);
        }
    }

    fn set_access(&mut self) {
        let Some((at, bytes)) = self.some_range() else { return };
        let flags = self.rng.pick(&[0, R, RW, RW, RW, 2]).expect("flags");
        let tiles = self.model.tiles(at, bytes).filter(|_| flags != 2);
        let mut wanted = if tiles.is_some() { 0 } else { 1 };
        for i in tiles.unwrap_or_default() {
            let before = self.model.mappings[i].flags;
            self.model.mappings[i].flags = flags;
            if before == 0 && flags != 0 && self.model.spent() > BUDGET * 1_000_000 {
                self.model.mappings[i].flags = 0;
                wanted = 2;
                break;
            }
        }
        let got = access(at, bytes as usize, 0, flags);
        assert_eq!(got, wanted);
        self.count("set_access", got);
    }

    fn write(&mut self) {
        let Some(mapping) = self.rng.pick(&self.model.mappings) else { return };
        let (unit, byte) = (self.rng.below(mapping.units), self.rng.below(256) as u8);
        let at = mapping.at + unit * UNIT;
        let may = mapping.flags == RW;
        assert_eq!(poke(at, byte), may);
        assert_eq!(poke(at + UNIT - 1, byte), may);
        self.count("write", u32::from(!may));
        if may {
            let phys = self.model.phys_of(&mapping);
            self.model.phys[phys].contents[unit as usize] = byte;
        }
    }

    fn retain(&mut self) {
        let Some(mapping) = self.rng.pick(&self.model.mappings) else { return };
        let at = mapping.at + self.rng.below(mapping.units * UNIT);
        let mut id = 0;
        assert_eq!(cu!(cuMemRetainAllocationHandle(&raw mut id, at as *mut _)), 0);
        assert_eq!(id, mapping.handle);
        let handle = self.model.handles.iter_mut().find(|h| h.id == id).expect("kept");
        handle.refs += 1;
    }

    fn export_or_import(&mut self) {
        if self.rng.chance(50) {
            let Some((fd, phys)) = self.rng.pick(&self.model.exports) else { return };
            let mut id = 0;
            let place = fd as usize as *mut _;
            assert_eq!(cu!(cuMemImportFromShareableHandle(&raw mut id, place, 1)), 0);
            assert!(self.model.handle(id).is_none());
            self.model.handles.push(Handle { id, phys, refs: 1 });
            self.count("import", 0);
            return;
        }
        let Some(handle) = self.rng.pick(&self.model.handles) else { return };
        if handle.refs == 0 || self.model.exports.len() > 50 {
            return;
        }
        let mut fd = -1i32;
        let place = (&raw mut fd).cast();
        let got = cu!(cuMemExportToShareableHandle(place, handle.id, 1, 0));
        assert_eq!(got, if self.model.phys[handle.phys].exportable { 0 } else { 1 });
        self.count("export", got);
        if got == 0 {
            self.model.exports.push((fd, handle.phys));
        }
    }

    fn close(&mut self) {
        let Some((fd, _)) = self.rng.pick(&self.model.exports) else { return };
        // SAFETY: a descriptor that this run was given.
        assert_eq!(unsafe { libc::close(fd) }, 0);
        self.model.exports.retain(|e| e.0 != fd);
    }

    fn alloc(&mut self) {
        let units = 1 + self.rng.below(5);
        let full = self.model.used() + units > UNITS || self.model.addresses() + units > ADDRESSES;
        let mut at = 0;
        let got = cu!(cuMemAlloc_v2(&raw mut at, (units * UNIT) as usize));
        assert_eq!(got, if full { 2 } else { 0 });
        self.count("alloc", got);
        if got == 0 {
            let byte = self.rng.below(256) as u8;
            assert_eq!((peek(at), peek(at + units * UNIT - 1)), (Some(0xA5), Some(0xA5)));
            assert!(poke(at, byte) && poke(at + units * UNIT - 1, byte));
            self.model.plain.push((at, units, byte));
        }
    }

    fn free(&mut self) {
        let Some((at, units, byte)) = self.rng.pick(&self.model.plain) else { return };
        assert_eq!((peek(at), peek(at + units * UNIT - 1)), (Some(byte), Some(byte)));
        assert_eq!(cu!(cuMemFree_v2(at)), 0);
        self.model.plain.retain(|p| p.0 != at);
        self.count("free", 0);
    }

    /// All that can be asked, compared.
    fn compare(&self, sim: &Sim) {
        let model = &self.model;
        assert_eq!(free_bytes() as u64, (UNITS - model.used()) * UNIT);
        for mapping in &model.mappings {
            assert_eq!(rights(mapping.at), Ok(u64::from(mapping.flags)));
            let contents = &model.phys[model.phys_of(mapping)].contents;
            for unit in 0..mapping.units {
                let at = mapping.at + unit * UNIT;
                let byte = (mapping.flags != 0).then(|| contents[unit as usize]);
                assert_eq!((peek(at), peek(at + UNIT - 1)), (byte, byte));
            }
        }
        let alive = (0..model.phys.len()).filter(|p| model.is_alive(*p)).count();
        let references: u64 = model.handles.iter().map(|h| h.refs).sum();
        for (name, count) in [
            ("mappings", model.mappings.len() as u64),
            ("reservations", model.reservations.len() as u64),
            ("reserved_bytes", model.addresses() * UNIT),
            ("handles", model.handles.iter().filter(|h| h.refs > 0).count() as u64),
            ("handle_references", references),
            ("physical", (alive + model.plain.len()) as u64),
            ("allocations", model.plain.len() as u64),
            ("exported_fds", model.exports.len() as u64),
        ] {
            assert_eq!(sim.live(name), count, "{name}");
        }
    }

    /// Ends everything that is left.
    fn end(&mut self) {
        while !self.model.exports.is_empty() {
            self.close();
        }
        while !self.model.plain.is_empty() {
            self.free();
        }
        for mapping in std::mem::take(&mut self.model.mappings) {
            assert_eq!(unmap(mapping.at, (mapping.units * UNIT) as usize), 0);
        }
        for handle in std::mem::take(&mut self.model.handles) {
            (0..handle.refs).for_each(|_| assert_eq!(release(handle.id), 0));
        }
        for (at, units) in std::mem::take(&mut self.model.reservations) {
            assert_eq!(unreserve(at, (units * UNIT) as usize), 0);
        }
    }
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|text| text.parse().ok())
}

#[test]
fn random_sequences_agree_with_a_naive_model() {
    let steps = number("SIMCUDA_STEPS").unwrap_or(100_000);
    let seed = number("SIMCUDA_SEED").unwrap_or_else(|| {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        now.map_or(1, |now| now.as_nanos() as u64)
    });
    println!("SIMCUDA_SEED={seed} SIMCUDA_STEPS={steps}");
    let mut sim = Sim::start(&format!(
        "granularity = {UNIT}\nmemory = {}\nmappings = {BUDGET}\naddress_space = {}",
        UNITS * UNIT,
        ADDRESSES * UNIT
    ));
    sim.primary(0);
    let mut run = Run { rng: Rng(seed), model: Model::default(), codes: Default::default() };
    for step in 0..steps {
        run.step();
        assert_eq!(free_bytes() as u64, (UNITS - run.model.used()) * UNIT, "step {step}");
        if step % 500 == 0 {
            run.compare(&sim);
            // The model keeps only what is alive and may be asked for.
            let recent = run.model.dead.len().saturating_sub(100);
            run.model.dead.drain(..recent);
        }
    }
    run.compare(&sim);
    run.end();
    for ((call, code), count) in &run.codes {
        println!("{call}: {code}: {count}");
    }
    for name in ["mappings", "reservations", "handles", "physical", "device_bytes"] {
        assert_eq!(sim.live(name), 0, "{name}");
    }
    assert_eq!(free_bytes() as u64, UNITS * UNIT);
    for kind in sim.misuse() {
        let provoked = ["use of a released handle", "use after unmap"];
        assert!(provoked.contains(&kind.as_str()), "{kind}");
        sim.expect_misuse(&kind);
    }
    drop(sim);
    // A new world has no list of misuse to print at the end.
    drop(Sim::configured(""));
}
