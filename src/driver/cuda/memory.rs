//! Memory of the device: pages and their addresses, plain allocations, exported pages.
//!
//! Owns which properties pages are made with, and the rungs by which they are given up where the
//! platform refuses them: the flag for GPUDirect RDMA (refused by WSL2), handles for other
//! processes (refused in containers). Promises the contract of [`crate::driver`]; a refused
//! property is announced once and never asked for again. Cost: that of the driver's calls.

use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::PoisonError;
use std::sync::atomic::{AtomicBool, Ordering};

use cust_raw::{
    CUmemAccess_flags as Access, CUmemAccessDesc, CUmemAllocationHandleType, CUmemAllocationProp,
    CUmemAllocationType, CUmemLocation, CUmemLocationType,
};

use super::codes;
use super::context::Inside;
use super::newer::RawResult;
use super::table::MISSING;
use super::{CudaDriver, Fallback};
use crate::driver::{
    Call, Code, Driver, DriverError, DriverResult, ImportedPage, PEERS_MAX, PageHandle,
};

/// What pages are made with, as far as the platform lets us.
#[derive(Debug)]
pub(super) struct Properties {
    /// `gpuDirectRDMACapable`: network cards may be given these addresses.
    rdma: AtomicBool,
    /// A file descriptor can be made of a page.
    shareable: AtomicBool,
}

/// The two properties at one moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Asked {
    rdma: bool,
    shareable: bool,
}

impl Properties {
    pub(super) fn new(rdma: bool, shareable: bool) -> Properties {
        Properties { rdma: AtomicBool::new(rdma), shareable: AtomicBool::new(shareable) }
    }

    fn now(&self) -> Asked {
        Asked {
            rdma: self.rdma.load(Ordering::Relaxed),
            shareable: self.shareable.load(Ordering::Relaxed),
        }
    }
}

/// Memory of a device, in the driver's words.
fn described(device: i32, asked: Asked) -> CUmemAllocationProp {
    // SAFETY: integers, a null pointer, and enums whose number 0 is a variant.
    let mut what: CUmemAllocationProp = unsafe { std::mem::zeroed() };
    what.type_ = CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
    what.location = of_device(device);
    what.allocFlags.gpuDirectRDMACapable = u8::from(asked.rdma);
    if asked.shareable {
        what.requestedHandleTypes =
            CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    }
    what
}

fn right(device: i32, flags: Access) -> CUmemAccessDesc {
    CUmemAccessDesc { location: of_device(device), flags }
}

/// The numbers of the bits that are set.
pub(super) fn devices_of(mut set: u64) -> impl Iterator<Item = i32> {
    std::iter::from_fn(move || {
        (set != 0).then(|| {
            let lowest = set.trailing_zeros();
            set &= set - 1;
            lowest as i32
        })
    })
}

fn of_device(device: i32) -> CUmemLocation {
    CUmemLocation { type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id: device }
}

const FD: u32 = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR as u32;

impl CudaDriver {
    /// The mapping unit; `Err` with the driver's number where there is no such memory.
    pub(super) fn granularity(api: &super::Api, device: i32) -> Result<usize, RawResult> {
        let what = described(device, Asked { rdma: false, shareable: false });
        let mut bytes = 0;
        // 0 is CU_MEM_ALLOC_GRANULARITY_MINIMUM.
        // SAFETY: locals to read and fill.
        let result = unsafe { api.mem_get_granularity(&raw mut bytes, &raw const what, 0) };
        if result == codes::SUCCESS { Ok(bytes) } else { Err(result) }
    }

    pub(super) fn reserve_addresses(&self, bytes: usize) -> DriverResult<usize> {
        let call = Call::Reserve;
        let inside = self.contexts.enter(call, true)?;
        let mut address = 0;
        let align = self.info.granularity;
        // SAFETY: a local to fill; no hint.
        inside.check(call, unsafe {
            self.api.mem_address_reserve(&raw mut address, bytes, align, 0, 0)
        })?;
        Ok(address as usize)
    }

    pub(super) fn free_addresses(&self, address: usize, bytes: usize) -> DriverResult<()> {
        let call = Call::Unreserve;
        let inside = self.contexts.enter(call, true)?;
        // SAFETY: CUDA checks both numbers against its reservations.
        inside.check(call, unsafe { self.api.mem_address_free(address as u64, bytes) })
    }

    /// Makes a page with as many of the wanted properties as the platform grants.
    pub(super) fn create_page(&self, bytes: usize) -> DriverResult<PageHandle> {
        let _inside = self.contexts.enter(Call::Create, true)?;
        let asked = self.properties.now();
        let refused = match self.create_with(bytes, asked) {
            Ok(page) => return Ok(page),
            Err(refused) => refused,
        };
        let fewer = match refused {
            codes::UNKNOWN if asked.rdma => Asked { rdma: false, ..asked },
            codes::NOT_PERMITTED | codes::NOT_SUPPORTED if asked.shareable => {
                Asked { shareable: false, ..asked }
            }
            codes::NOT_PERMITTED | codes::NOT_SUPPORTED if asked.rdma => {
                Asked { rdma: false, ..asked }
            }
            _ => return Err(self.failed(Call::Create, refused)),
        };
        let page = match self.create_with(bytes, fewer) {
            Ok(page) => page,
            Err(codes::UNKNOWN | codes::NOT_PERMITTED | codes::NOT_SUPPORTED) => {
                // Perhaps both are refused.
                let none = Asked { rdma: false, shareable: false };
                let page = self.create_with(bytes, none);
                let page = page.map_err(|_| self.failed(Call::Create, refused))?;
                self.give_up(asked, none, refused);
                return Ok(page);
            }
            Err(other) => return Err(self.failed(Call::Create, other)),
        };
        self.give_up(asked, fewer, refused);
        Ok(page)
    }

    fn create_with(&self, bytes: usize, asked: Asked) -> Result<PageHandle, RawResult> {
        let what = described(self.device, asked);
        let mut page = 0;
        // SAFETY: locals to read and fill.
        let result = unsafe { self.api.mem_create(&raw mut page, bytes, &raw const what, 0) };
        if result == codes::SUCCESS { Ok(PageHandle(page)) } else { Err(result) }
    }

    /// Remembers which properties the platform refused.
    fn give_up(&self, before: Asked, after: Asked, why: RawResult) {
        if before.rdma && !after.rdma && self.properties.rdma.swap(false, Ordering::Relaxed) {
            self.announce(Fallback::Rdma(why));
        }
        if before.shareable
            && !after.shareable
            && self.properties.shareable.swap(false, Ordering::Relaxed)
        {
            self.announce(Fallback::Shareable(why));
        }
    }

    /// Gives the RDMA flag up, where it is asked for: opening access was refused with it.
    pub(super) fn give_up_rdma(&self, why: RawResult) -> bool {
        let asked = self.properties.now();
        self.give_up(asked, Asked { rdma: false, ..asked }, why);
        asked.rdma
    }

    /// Whether pages are made with the RDMA flag now.
    pub fn makes_rdma_pages(&self) -> bool {
        self.properties.now().rdma
    }

    /// Whether pages made now can be exported.
    pub fn makes_shareable_pages(&self) -> bool {
        self.properties.now().shareable
    }

    pub(super) fn release_page(&self, page: PageHandle) -> DriverResult<()> {
        let call = Call::Release;
        let inside = self.contexts.enter(call, true)?;
        self.release_refused();
        // SAFETY: the pool releases what `create_page` or `import_page` gave, once.
        inside.check(call, unsafe { self.api.mem_release(page.0) })
    }

    /// Tries again to let imported pages go that are not used. The context has been entered.
    fn release_refused(&self) {
        let mut held = self.refused_pages.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: pages that `import_page` kept to itself, each released once.
        held.retain(|&page| unsafe { self.api.mem_release(page) } != codes::SUCCESS);
    }

    /// Maps pages side by side; how many were mapped before the one that failed. The context is
    /// entered once.
    pub(super) fn map_pages(
        &self,
        address: usize,
        page_bytes: usize,
        pages: &[PageHandle],
    ) -> Result<(), (usize, DriverError)> {
        let inside = self.contexts.enter(Call::Map, true).map_err(|error| (0, error))?;
        for (done, page) in pages.iter().enumerate() {
            let at = address.wrapping_add(done * page_bytes) as u64;
            // SAFETY: CUDA checks the range; the page is the pool's.
            let result = unsafe { self.api.mem_map(at, page_bytes, 0, page.0, 0) };
            self.budget_check(&inside, Call::Map, result).map_err(|error| (done, error))?;
        }
        Ok(())
    }

    pub(super) fn unmap_pages(&self, address: usize, bytes: usize) -> DriverResult<()> {
        let inside = self.contexts.enter(Call::Unmap, true)?;
        // SAFETY: CUDA checks the range; the pool has seen the fences of its users pass.
        inside.check(Call::Unmap, unsafe { self.api.mem_unmap(address as u64, bytes) })
    }

    /// Opens a range to this device and to `peers`, and closes it to every other device that
    /// was given access to anything before; in one call.
    pub(super) fn open_range(
        &self,
        address: usize,
        bytes: usize,
        peers: &[u32],
    ) -> DriverResult<()> {
        let call = Call::SetAccess;
        if peers.len() > PEERS_MAX {
            return Err(DriverError { call, code: Code::TooManyPeers });
        }
        let wanted = peers.iter().try_fold(0u64, |set, &peer| {
            let bit = 1u64.checked_shl(peer)?;
            (self.reachable & bit != 0).then_some(set | bit)
        });
        let Some(wanted) = wanted else {
            return Err(DriverError { call, code: Code::InvalidValue });
        };
        let before = self.opened.fetch_or(wanted, Ordering::Relaxed);
        let mut rights = Vec::with_capacity(1 + PEERS_MAX);
        rights.push(right(self.device, Access::CU_MEM_ACCESS_FLAGS_PROT_READWRITE));
        for peer in devices_of(wanted) {
            rights.push(right(peer, Access::CU_MEM_ACCESS_FLAGS_PROT_READWRITE));
        }
        for peer in devices_of(before & !wanted) {
            rights.push(right(peer, Access::CU_MEM_ACCESS_FLAGS_PROT_NONE));
        }
        let inside = self.contexts.enter(call, true)?;
        // SAFETY: CUDA checks the range; the list is a local.
        let result = unsafe {
            self.api.mem_set_access(address as u64, bytes, rights.as_ptr(), rights.len())
        };
        self.budget_check(&inside, call, result)
    }

    /// Opens imported pages of the device `owner`'s to this device, and to `owner` if it reaches
    /// this one's memory: a place that it could not reach is none to be told of.
    pub(super) fn open_imported(
        &self,
        address: usize,
        bytes: usize,
        owner: u32,
    ) -> DriverResult<()> {
        let call = Call::SetAccess;
        let Ok(other) = i32::try_from(owner) else {
            return Err(DriverError { call, code: Code::InvalidValue });
        };
        let mut rights = vec![right(self.device, Access::CU_MEM_ACCESS_FLAGS_PROT_READWRITE)];
        if self.can_access_peer(owner) {
            rights.push(right(other, Access::CU_MEM_ACCESS_FLAGS_PROT_READWRITE));
        }
        let inside = self.contexts.enter(call, true)?;
        // SAFETY: CUDA checks the range; the list is a local.
        let result = unsafe {
            self.api.mem_set_access(address as u64, bytes, rights.as_ptr(), rights.len())
        };
        self.budget_check(&inside, call, result)
    }

    /// CUDA says "out of memory" for a spent budget of mappings and for page tables without
    /// memory alike: the device's free memory tells them apart.
    fn budget_check(&self, inside: &Inside<'_>, call: Call, result: RawResult) -> DriverResult<()> {
        let error = match inside.check(call, result) {
            Err(error) => error,
            Ok(()) => return Ok(()),
        };
        if error.code == Code::MappingLimit {
            let (mut free, mut total) = (0, 0);
            // SAFETY: locals to fill; the caller is inside the context.
            let asked = unsafe { self.api.mem_get_info(&raw mut free, &raw mut total) };
            if asked == codes::SUCCESS && free < self.info.granularity {
                return Err(DriverError { call, code: Code::OutOfMemory });
            }
        }
        if matches!(error.code, Code::Other(_)) {
            return Err(self.failed(call, result));
        }
        Err(error)
    }

    pub(super) fn export_page(&self, page: PageHandle) -> DriverResult<OwnedFd> {
        let call = Call::Export;
        let inside = self.contexts.enter(call, true)?;
        let mut fd: i32 = -1;
        let out = (&raw mut fd).cast();
        // SAFETY: for this kind of handle CUDA writes an int.
        let exported = inside.check(call, unsafe { self.api.mem_export(out, page.0, FD, 0) });
        exported.map_err(|error| match error.code {
            // The page was made after the property was given up.
            Code::InvalidValue if !self.makes_shareable_pages() => {
                DriverError { call, code: Code::NotSupported }
            }
            _ => error,
        })?;
        // SAFETY: the descriptor is new and ours.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }

    pub(super) fn import_page(&self, fd: BorrowedFd<'_>) -> DriverResult<ImportedPage> {
        let call = Call::Import;
        let inside = self.contexts.enter(call, true)?;
        let mut page = 0;
        // CUDA takes the number in place of a pointer.
        let number = std::ptr::without_provenance_mut(fd.as_raw_fd() as usize);
        // SAFETY: a local to fill; an open descriptor.
        let result = unsafe { self.api.mem_import(&raw mut page, number, FD) };
        match inside.check(call, result) {
            Ok(()) => {}
            // The one argument that can be wrong is the descriptor.
            Err(error) if error.code == Code::InvalidValue => {
                return Err(DriverError { call, code: Code::InvalidHandle });
            }
            Err(error) => return Err(error),
        }
        let imported = |owner| Ok(ImportedPage { page: PageHandle(page), owner });
        match self.owner_of(&inside, call, page) {
            Ok(owner) if owner == self.device => imported(None),
            Ok(owner) if self.reaches(owner) => imported(u32::try_from(owner).ok()),
            Ok(owner) => {
                let mut held = self.refused_pages.lock().unwrap_or_else(PoisonError::into_inner);
                held.push(page);
                drop(held);
                self.release_refused();
                let code = if owner < 0 { Code::InvalidHandle } else { Code::NotSupported };
                Err(DriverError { call, code })
            }
            // SAFETY: the page that was just imported, which nobody knows yet.
            Err(error) => match unsafe { self.api.mem_release(page) } {
                codes::SUCCESS => Err(error),
                // Neither told nor let go: the pool has it, and lets it go when it can.
                _ => imported(None),
            },
        }
    }

    /// Whether this device may be given access to another's memory.
    fn reaches(&self, owner: i32) -> bool {
        let mut yes = 0;
        // SAFETY: a local to fill; CUDA checks the number.
        let asked = unsafe { self.api.device_can_access_peer(&raw mut yes, self.device, owner) };
        owner >= 0 && asked == codes::SUCCESS && yes != 0
    }

    /// The device whose memory a page is; -1: no device's. One whose place this driver cannot tell
    /// passes for an own one.
    fn owner_of(&self, inside: &Inside<'_>, call: Call, page: u64) -> DriverResult<i32> {
        let mut what = std::mem::MaybeUninit::<CUmemAllocationProp>::zeroed();
        // SAFETY: a local to fill; a page of ours.
        let result = unsafe { self.api.mem_get_properties(what.as_mut_ptr(), page) };
        if matches!(result, MISSING | codes::NOT_SUPPORTED) {
            return Ok(self.device);
        }
        inside.check(call, result)?;
        // SAFETY: zeroed, then filled by CUDA. Kinds of places are read as the numbers they are:
        // a newer driver has some that the crate's enum lacks.
        let (kind, id) = unsafe {
            let place = &raw const (*what.as_ptr()).location;
            ((&raw const (*place).type_).cast::<u32>().read(), (&raw const (*place).id).read())
        };
        let of_device = kind == CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE as u32;
        Ok(if of_device { id } else { -1 })
    }

    pub(super) fn free_and_total(&self) -> DriverResult<(usize, usize)> {
        let call = Call::MemoryInfo;
        let inside = self.contexts.enter(call, true)?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: locals to fill.
        inside.check(call, unsafe { self.api.mem_get_info(&raw mut free, &raw mut total) })?;
        Ok((free, total))
    }

    pub(super) fn allocate_plain(&self, bytes: usize) -> DriverResult<usize> {
        let call = Call::AllocPlain;
        let inside = self.contexts.enter(call, true)?;
        let mut address = 0;
        // SAFETY: a local to fill.
        inside.check(call, unsafe { self.api.mem_alloc(&raw mut address, bytes) })?;
        Ok(address as usize)
    }

    pub(super) fn release_plain(&self, address: usize) -> DriverResult<()> {
        let call = Call::FreePlain;
        if address == 0 {
            return Err(DriverError { call, code: Code::InvalidValue });
        }
        let inside = self.contexts.enter(call, true)?;
        // SAFETY: CUDA checks the address; the caller has no use for it any more.
        inside.check(call, unsafe { self.api.mem_free(address as u64) })
    }

    /// Page-locked host memory that all contexts can copy from and to, and whose device address
    /// is its own.
    pub(super) fn allocate_host(&self, call: Call, bytes: usize) -> DriverResult<usize> {
        const PORTABLE: u32 = 1;
        const DEVICE_MAP: u32 = 2;
        let inside = self.contexts.enter(call, true)?;
        let mut address = std::ptr::null_mut();
        let flags = PORTABLE | DEVICE_MAP;
        // SAFETY: a local to fill.
        inside.check(call, unsafe { self.api.mem_host_alloc(&raw mut address, bytes, flags) })?;
        Ok(address.expose_provenance())
    }

    pub(super) fn release_host(&self, call: Call, address: usize) -> DriverResult<()> {
        let inside = self.contexts.enter(call, true)?;
        let address = std::ptr::with_exposed_provenance_mut(address);
        // SAFETY: CUDA checks the address; the caller has no use for it any more.
        inside.check(call, unsafe { self.api.mem_free_host(address) })
    }
}
