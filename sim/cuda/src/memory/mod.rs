//! Memory: the address map, pages, mappings, plain allocations, what may be touched by whom.
//!
//! Owns one lock, below the world's and the engine's. Writers change the map; the engine holds
//! a [`View`] while a piece of work runs, so an unmap waits for what runs now and never for what
//! is queued. Promises that work is told before it touches anything whether a device may
//! ([`View::check`]), that what is not mapped faults, and that every refusal has its reason in
//! words. It must not know streams or contexts beyond their numbers.
//!
//! | module | holds |
//! |---|---|
//! | [`os`] | system calls |
//! | [`page`] | devices' memory files, physical allocations, handles |
//! | [`space`] | reservations and all state under the lock |
//! | [`vmm`] | mappings, access rights, the mapping budget |
//! | [`plain`], [`host`] | `cuMemAlloc` and its like; pinned, registered, managed memory |
//! | [`graph`] | memory of graphs' allocation nodes |
//! | [`share`] | shareable descriptors, legacy IPC |
//! | [`touch`] | who may touch what; what an address is |
//!
//! Cost: an ordered look-up a range for a check; a system call or two for a change.

pub mod graph;
pub mod host;
pub mod os;
pub mod page;
pub mod plain;
pub mod refused;
pub mod share;
pub mod space;
pub mod touch;
pub mod vmm;

use crate::misuse;
use crate::settings::Settings;
use page::Limits;
use plain::Kind;
use refused::{Refused, Why};
use space::Space;
use std::fmt;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

pub use touch::{Denied, View};

/// Most devices of a world.
pub const DEVICES_MAX: usize = 16;

/// What the memory of a world is like.
#[derive(Clone, Debug)]
pub struct Config {
    /// Devices, up to [`DEVICES_MAX`].
    pub devices: u32,
    /// Bytes of memory of each device.
    pub memory: u64,
    /// The mapping unit in bytes.
    pub granule: u64,
    /// Bytes of address space for reservations and plain memory.
    pub address_space: u64,
    /// Mappings that a device's budget allows.
    pub mappings: u64,
    /// Devices besides its own that a mapping may be open to.
    pub peers_max: usize,
    /// What fresh memory is filled with; none leaves it as the host gives it, 0.
    pub poison: Option<u8>,
    /// Whether the CPU may touch device memory that some device may access.
    pub cpu_access: bool,
    /// The code that opening RDMA-capable memory answers, if it is refused.
    pub refuse_rdma: Option<u32>,
    /// The code that opening memory to another device answers, if it is refused.
    pub refuse_peer: Option<u32>,
    /// The driver's version: from 13000 on memory may lie in the host without a node.
    pub version: u32,
}

impl Config {
    fn of(settings: &Settings) -> Config {
        let refused = |feature: &str| settings.refuse.get(feature).copied();
        Config {
            devices: settings.devices,
            memory: settings.memory,
            granule: settings.granularity,
            address_space: settings.address_space,
            mappings: settings.mappings,
            peers_max: settings.peers as usize,
            poison: settings.poison,
            cpu_access: settings.cpu_access,
            refuse_rdma: refused("rdma"),
            refuse_peer: refused("peer"),
            version: settings.version,
        }
    }

    fn limits(&self) -> Limits {
        Limits {
            devices: self.devices,
            memory: self.memory,
            granule: self.granule,
            poison: self.poison,
        }
    }
}

/// A range of addresses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Range {
    /// The first address.
    pub start: u64,
    /// Its length in bytes.
    pub len: u64,
}

impl Range {
    /// The first address behind it; none if that would be past all addresses.
    pub fn end(self) -> Option<u64> {
        self.start.checked_add(self.len)
    }

    /// Whether two ranges have an address in common.
    pub fn overlaps(self, other: Range) -> bool {
        let before = |a: Range, b: Range| a.start.saturating_add(a.len) <= b.start;
        !before(self, other) && !before(other, self)
    }
}

impl fmt::Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{:#x}, {:#x})", self.start, self.start.saturating_add(self.len))
    }
}

/// What a range was before it ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GoneWhat {
    /// A mapping.
    Mapping,
    /// A reservation.
    Reservation,
    /// Plain or host memory.
    Allocation,
    /// A registration of host memory.
    Registration,
}

/// A range that ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Gone {
    /// The range.
    pub range: Range,
    /// What it was.
    pub what: GoneWhat,
    /// The call that ended it, counted from the world's beginning.
    pub call: u64,
}

impl fmt::Display for Gone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let done = match self.what {
            GoneWhat::Mapping => "unmapped",
            GoneWhat::Reservation => "given back as a reservation",
            GoneWhat::Allocation => "freed",
            GoneWhat::Registration => "unregistered",
        };
        write!(f, "was {done} by call {}", self.call)
    }
}

/// All memory of one world.
#[derive(Debug)]
pub struct Memory {
    space: RwLock<Space>,
}

impl Memory {
    /// Memory as the settings describe it.
    ///
    /// # Errors
    /// The host refuses the files for it, in words.
    pub fn new(settings: &Settings) -> Result<Arc<Memory>, String> {
        Memory::with(Config::of(settings)).map(Arc::new)
    }

    /// Memory as a configuration describes it.
    ///
    /// # Errors
    /// The host refuses the files for it, in words.
    pub fn with(config: Config) -> Result<Memory, String> {
        assert!(config.devices as usize <= DEVICES_MAX);
        assert!(config.granule.is_power_of_two() && config.granule >= os::HOST_PAGE);
        let space = Space::new(config).map_err(|error| Refused::from(error).text)?;
        Ok(Memory { space: RwLock::new(space) })
    }

    /// The map to look at: nothing is unmapped while it is held. Never take it twice in a thread.
    pub fn view(&self) -> View<'_> {
        View::new(self.read())
    }

    fn read(&self) -> RwLockReadGuard<'_, Space> {
        self.space.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Space> {
        self.space.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the map on behalf of call number `call` (for what is said of it later). Waits for
    /// work that runs. A refusal is recorded as misuse if it is one, and becomes its code.
    ///
    /// # Errors
    /// The code of the refusal.
    pub fn change<R>(
        &self,
        call: u64,
        body: impl FnOnce(&mut Space) -> Result<R, Refused>,
    ) -> Result<R, u32> {
        let done = {
            let mut space = self.write();
            space.call = call;
            body(&mut space)
        };
        done.map_err(|refused| tell(&refused))
    }

    /// Looks at the map; a refusal is told as in [`Memory::change`].
    ///
    /// # Errors
    /// The code of the refusal.
    pub fn ask<R>(&self, body: impl FnOnce(&Space) -> Result<R, Refused>) -> Result<R, u32> {
        let done = body(&self.read());
        done.map_err(|refused| tell(&refused))
    }

    /// Whether a device may read (or write) a range now.
    ///
    /// # Errors
    /// The first part that it may not, and why.
    pub fn check(&self, device: u32, range: Range, write: bool) -> Result<(), Denied> {
        self.view().check(device, range, write)
    }

    /// Says whether a device may access another's plain memory, after peer access was enabled or
    /// disabled between contexts of the two.
    pub fn set_peer(&self, accessor: u32, owner: u32, may: bool) {
        let mut space = self.write();
        let row = space.plain.peers.get_mut(accessor as usize);
        if let Some(pair) = row.and_then(|row| row.get_mut(owner as usize)) {
            *pair = may;
        }
    }

    /// Says what a device may do with a pool's memory, as `CU_MEM_ACCESS_FLAGS_*`.
    pub fn set_pool_access(&self, pool: u64, device: u32, flags: u8) {
        self.write().plain.pool_access.insert((pool, device), flags);
    }

    /// Live counts for the report: reservations, handles, mappings, allocations, exported fds.
    pub fn counts(&self) -> Vec<(&'static str, u64)> {
        let mut space = self.write();
        space.pages.reap();
        let (handles, references) = space.pages.live_handles();
        let (physical, lingering, used) = space.pages.totals();
        let of_kind = |wanted: fn(Kind) -> bool| {
            space.plain.blocks.values().filter(|b| wanted(b.kind)).count() as u64
        };
        let (_, host_mappings) = os::mappings_of_process();
        vec![
            ("reservations", space.reservations.len() as u64),
            ("reserved_bytes", space.reserved),
            ("handles", handles),
            ("handle_references", references),
            ("physical", physical),
            ("mappings", space.mappings.len() as u64),
            ("allocations", of_kind(|k| k == Kind::Alloc)),
            ("pool_allocations", of_kind(|k| matches!(k, Kind::Pool(_)))),
            ("graph_allocations", of_kind(|k| matches!(k, Kind::Graph(_)))),
            ("opened_allocations", of_kind(|k| k == Kind::Ipc)),
            ("host_allocations", space.plain.host.len() as u64),
            ("exported_fds", space.pages.exported()),
            ("exported_only", lingering),
            ("device_bytes", used),
            ("resident_bytes", space.pages.resident()),
            ("unpoisoned_bytes", space.pages.unpoisoned),
            ("aliased_handles", space.pages.aliased()),
            ("host_mappings", host_mappings),
        ]
    }

    /// A context is gone: its plain allocations go with it. Handles from `cuMemCreate` stay.
    /// What it leaves is in the list of misuse.
    pub fn context_destroyed(&self, context: u64) {
        let (plain, host) = {
            let mut space = self.write();
            let own = |b: &plain::Block| b.context == context && b.kind == Kind::Alloc;
            let plain = space.free_of(own);
            let opened: Vec<u64> = space.opened_in(context);
            for at in opened {
                while space.ipc_close(at).is_ok() {}
            }
            (plain, space.host_free_of(context))
        };
        for (what, left) in [("memory", plain), ("host memory", host)] {
            for (at, len, call) in left {
                let text = format!("{what} of {len} bytes at {at:#x}, from call {call}");
                misuse::record("leak at context destroy", text);
            }
        }
    }

    /// Records what is still there as misuse, at the process's end: handles, mappings,
    /// reservations, plain and host memory.
    pub fn record_leaks(&self) {
        let space = self.read();
        for (handle, len, refs) in space.pages.held() {
            let text = format!("handle {handle:#x} of {len} bytes, {refs} references");
            misuse::record("leak at exit", text);
        }
        let told = |what: &str, at: u64, len: u64, call: u64| {
            let text = format!("{what} {}, from call {call}", Range { start: at, len });
            misuse::record("leak at exit", text);
        };
        space.mappings.iter().for_each(|(at, m)| told("mapping", *at, m.len, m.call));
        space.reservations.iter().for_each(|(at, r)| told("reservation", *at, r.len, r.call));
        space.plain.blocks.iter().for_each(|(at, b)| told("memory", *at, b.len, b.call));
        space.plain.host.iter().for_each(|(at, b)| told("host memory", *at, b.len, b.call));
    }
}

/// Records a refusal that is misuse or the host's limit; answers its code.
fn tell(refused: &Refused) -> u32 {
    match refused.why {
        Why::Rule => {}
        Why::Misuse(kind) => misuse::record(kind, &*refused.text),
        Why::Host(error) => {
            misuse::record(misuse::HOST_LIMIT, format!("{}: {}", error.name(), refused.text));
        }
    }
    refused.code
}
