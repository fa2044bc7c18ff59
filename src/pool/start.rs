//! A pool's beginning: its core over a driver, address space reserved, reservoir filled.
//!
//! Promises: what fails is undone, and what the driver does not take back then is kept and
//! retried (`devices`). Cost: a reservation, the tables' address space, the reservoir's pages.

use super::Settings;
use super::core::{Core, DriverRef, Totals};
use super::devices::give_back;
use super::hot::SYNC_STREAM;
use super::world::no_memory;
use crate::base::units::QUANTUM;
use crate::driver::fuse::Fuse;
use crate::driver::{Code, DeviceInfo, Driver};
use crate::error::{Error, Result, Status};
use crate::heap::Heap;
use crate::slab::depot::Budget;
use crate::slab::marks::Marks;
use crate::slab::slabs::Slabs;
use crate::stream::{LaneKind, Lanes};
use crate::vmem::Vmem;
use std::collections::HashMap;
use std::sync::Arc;

/// The most address space of a first reservation: round numbers are 32 bits of 256 B.
const FIRST_MAX: usize = 512 << 30;

/// A core that no pool serves yet: address space reserved, reservoir filled.
pub(super) fn new_core(driver: Arc<dyn Driver>, settings: Settings) -> Result<Core> {
    let device = driver.device().clone();
    let granule = device.granularity;
    if !granule.is_power_of_two() || !(QUANTUM..=QUANTUM << 15).contains(&granule) {
        return Err(Error::new(
            Status::Unsupported,
            format!("a mapping granularity of {granule} bytes is not supported"),
        ));
    }
    let fuse = Arc::new(Fuse::new(driver));
    let driver: Arc<dyn Driver> = Arc::clone(&fuse) as Arc<dyn Driver>;
    let mut vmem = Vmem::new(Arc::clone(&driver));
    vmem.overwrite(settings.overwrites_with());
    let covered = first_space(&*driver, &mut vmem, settings.limit)?;
    core_over(fuse, vmem, &device, covered, settings)
}

/// Makes the first reservation. Answers how many bytes of addresses the tables are to cover.
fn first_space(driver: &dyn Driver, vmem: &mut Vmem, limit: u64) -> Result<usize> {
    let granule = vmem.granule();
    // By the device, not the limit: the limit may be raised later.
    let size = driver.device().total_bytes.max(granule);
    let wanted = (size.saturating_mul(2)).clamp(granule, FIRST_MAX).next_multiple_of(granule);
    let backed = driver.backed_reservations();
    let first = match backed {
        // It costs memory: no more than the pool may hold.
        Some(segment) => segment.min(limit as usize / granule * granule).max(granule),
        None => wanted,
    };
    let space = vmem.add_space(first, granule).map_err(|e| match e.code {
        Code::ContextLost => super::loss::lost(),
        _ => {
            let text = format!("no address space could be reserved: {e}");
            Error::new(if backed.is_some() { Status::OutOfMemory } else { Status::Driver }, text)
        }
    })?;
    Ok(if backed.is_some() { wanted } else { space.bytes * 2 })
}

/// A core over a first reservation, with tables for `covered` bytes of addresses.
fn core_over(
    fuse: Arc<Fuse>,
    vmem: Vmem,
    device: &DeviceInfo,
    covered: usize,
    settings: Settings,
) -> Result<Core> {
    let space = vmem.spaces()[0];
    let granule = device.granularity;
    let Some(marks) = Marks::new(covered / QUANTUM) else {
        give_back(vmem);
        return Err(no_memory());
    };
    let mut heap = Heap::new((granule / QUANTUM) as u32);
    heap.add_space((space.bytes / granule) as u32);
    let mut lanes = Lanes::new(device.context_events);
    lanes.set_opportunistic(settings.reuse.opportunistic);
    let sync = lanes.open(SYNC_STREAM, LaneKind::Sync).ok_or_else(no_memory)?;
    debug_assert_eq!(sync, crate::stream::SYNC);
    let orphans = lanes.open(u64::MAX, LaneKind::Sync).ok_or_else(no_memory)?;
    let reserve = settings.reserve;
    // An eighth is for quarantine.
    let budget = Arc::new(Budget::new(settings.cache / 8 * 7));
    let mut core = Core {
        id: 0,
        driver: DriverRef(Arc::clone(&fuse) as Arc<dyn Driver>),
        fuse,
        settings,
        vmem,
        heap,
        slabs: Slabs::default(),
        marks,
        lanes,
        depots: Vec::new(),
        budget,
        pending: Vec::new(),
        pending_bytes: 0,
        caches: Vec::new(),
        sync,
        orphans,
        retired: Vec::new(),
        side: HashMap::new(),
        stream_ids: HashMap::new(),
        foreign_captures: Vec::new(),
        totals: Totals::default(),
        captures: HashMap::new(),
        shares: super::share::Shares::default(),
        unwiped: Vec::new(),
        demand: super::ahead::Demand::default(),
        tagged: super::tagged::Tagged::default(),
        misses: 1 << 32,
        flushed_at: 0,
        pressed_at: 0,
        idle_since: None,
        ending: false,
        recorder: None,
    };
    if let Err(refusal) = core.prefill(reserve) {
        give_back(core.vmem);
        core.fuse.is_blown().then(super::loss::lost).map_or(Ok(()), Err)?;
        return Err(Error::new(
            Status::OutOfMemory,
            format!("the reservoir of {reserve} bytes could not be filled: {refusal:?}"),
        ));
    }
    Ok(core)
}
