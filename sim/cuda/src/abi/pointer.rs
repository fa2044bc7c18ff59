//! What is known of a pointer.
//!
//! Answers come from the memory map at this moment. Booleans and small numbers are written as
//! four bytes, all else as eight.

use super::device::place;
use crate::call;
use crate::entry::{Call, enter};
use crate::memory::host::HostKind;
use crate::memory::plain::Kind;
use crate::memory::refused::Refused;
use crate::memory::space::Space;
use crate::memory::touch::Spot;
use crate::memory::{Range, page};
use crate::types::*;
use crate::world::World;
use std::ffi::c_void;

/// This file's part of the table of calls.
pub(super) static CALLS: &[Call] = &[
    call!(cuPointerGetAttribute, 4000).without_context(),
    call!(cuPointerSetAttribute, 6000).without_context(),
    call!(cuPointerGetAttributes, 7000).without_context(),
];

const CONTEXT: u32 = 1;
const MEMORY_TYPE: u32 = 2;
const DEVICE_POINTER: u32 = 3;
const HOST_POINTER: u32 = 4;
const P2P_TOKENS: u32 = 5;
const SYNC_MEMOPS: u32 = 6;
const BUFFER_ID: u32 = 7;
const IS_MANAGED: u32 = 8;
const DEVICE_ORDINAL: u32 = 9;
const IS_LEGACY_CUDA_IPC_CAPABLE: u32 = 10;
const RANGE_START_ADDR: u32 = 11;
const RANGE_SIZE: u32 = 12;
const MAPPED: u32 = 13;
const ALLOWED_HANDLE_TYPES: u32 = 14;
const IS_GPU_DIRECT_RDMA_CAPABLE: u32 = 15;
const ACCESS_FLAGS: u32 = 16;
const MEMPOOL_HANDLE: u32 = 17;
const MAPPING_SIZE: u32 = 18;
const MAPPING_BASE_ADDR: u32 = 19;
const MEMORY_BLOCK_ID: u32 = 20;
const IS_HW_DECOMPRESS_CAPABLE: u32 = 21;

const MEMORYTYPE_HOST: u32 = 1;
const MEMORYTYPE_DEVICE: u32 = 2;

/// An answer, as wide as it is written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Value {
    Small(u32),
    Large(u64),
    /// `CUDA_POINTER_ATTRIBUTE_P2P_TOKENS`: 8 and 4 bytes.
    Tokens(u64, u32),
}

impl Value {
    /// Zeros as wide as an attribute is; none for a number that is no attribute.
    fn zero(attribute: u32) -> Option<Value> {
        Some(match attribute {
            CONTEXT | DEVICE_POINTER | HOST_POINTER | BUFFER_ID | RANGE_START_ADDR | RANGE_SIZE
            | MEMPOOL_HANDLE | MAPPING_SIZE | MAPPING_BASE_ADDR | MEMORY_BLOCK_ID => {
                Value::Large(0)
            }
            P2P_TOKENS => Value::Tokens(0, 0),
            MEMORY_TYPE
            | SYNC_MEMOPS
            | IS_MANAGED
            | DEVICE_ORDINAL
            | IS_LEGACY_CUDA_IPC_CAPABLE
            | MAPPED
            | ALLOWED_HANDLE_TYPES
            | IS_GPU_DIRECT_RDMA_CAPABLE
            | ACCESS_FLAGS
            | IS_HW_DECOMPRESS_CAPABLE => Value::Small(0),
            _ => return None,
        })
    }

    /// Writes it.
    ///
    /// # Safety
    ///
    /// `to` is a place as wide as the attribute's type.
    unsafe fn write(self, to: *mut c_void) {
        // SAFETY: wide enough by the caller's promise; alignment is not asked for.
        unsafe {
            match self {
                Value::Small(value) => to.cast::<u32>().write_unaligned(value),
                Value::Large(value) => to.cast::<u64>().write_unaligned(value),
                Value::Tokens(first, second) => {
                    to.cast::<u64>().write_unaligned(first);
                    to.cast::<u64>().add(1).cast::<u32>().write_unaligned(second);
                }
            }
        }
    }
}

/// What an attribute of an address is.
///
/// # Errors
/// 1 for an address that is not known and for an attribute that it does not have.
fn attribute(
    space: &Space,
    attribute: u32,
    at: u64,
    device: Option<u32>,
) -> Result<Value, Refused> {
    let small = |value: u32| Ok(Value::Small(value));
    let large = |value: u64| Ok(Value::Large(value));
    let none = || Err(Refused::invalid(format!("attribute {attribute} of {at:#x}")));
    let Some(spot) = space.spot(at) else {
        // A reservation without memory has a range and nothing else.
        let Some((start, reservation)) = space.reservation_of(Range { start: at, len: 1 }) else {
            return none();
        };
        return match attribute {
            RANGE_START_ADDR => large(start),
            RANGE_SIZE => large(reservation.len),
            MAPPED => small(0),
            _ => none(),
        };
    };
    let about = About::of(space, &spot, at);
    match attribute {
        CONTEXT => large(about.context),
        MEMORY_TYPE => small(about.memory_type),
        DEVICE_POINTER => match device {
            Some(device) if space.rights(device, &spot) == 0 => none(),
            _ => large(at),
        },
        HOST_POINTER if about.on_host => large(at),
        P2P_TOKENS if about.legacy => Ok(Value::Tokens(about.id, 1)),
        SYNC_MEMOPS => small(u32::from(about.sync_memops)),
        BUFFER_ID => large(about.id),
        IS_MANAGED => small(u32::from(about.managed)),
        DEVICE_ORDINAL => small(about.device),
        IS_LEGACY_CUDA_IPC_CAPABLE => small(u32::from(about.legacy)),
        RANGE_START_ADDR => large(about.range.start),
        RANGE_SIZE => large(about.range.len),
        MAPPED => small(1),
        ALLOWED_HANDLE_TYPES => small(about.handle_types),
        IS_GPU_DIRECT_RDMA_CAPABLE => small(u32::from(about.rdma)),
        ACCESS_FLAGS => small(device.map_or(0, |d| u32::from(space.rights(d, &spot)))),
        MEMPOOL_HANDLE => large(about.pool),
        MAPPING_SIZE => large(about.mapping.len),
        MAPPING_BASE_ADDR => large(about.mapping.start),
        MEMORY_BLOCK_ID => large(about.block_id),
        IS_HW_DECOMPRESS_CAPABLE => small(0),
        _ => none(),
    }
}

/// What the attributes of one address say.
struct About {
    context: u64,
    memory_type: u32,
    device: u32,
    on_host: bool,
    managed: bool,
    legacy: bool,
    rdma: bool,
    sync_memops: bool,
    handle_types: u32,
    pool: u64,
    id: page::PhysId,
    block_id: u64,
    /// The reservation, or the allocation.
    range: Range,
    mapping: Range,
}

impl About {
    fn of(space: &Space, spot: &Spot<'_>, at: u64) -> About {
        let memory = space.memory_of(spot);
        let prop = memory.map(|m| m.1).unwrap_or_default();
        let on_host = memory.is_none_or(|m| m.0.device().is_none());
        let device = memory.and_then(|m| m.0.device()).unwrap_or(0);
        let mut about = About {
            context: 0,
            memory_type: if on_host { MEMORYTYPE_HOST } else { MEMORYTYPE_DEVICE },
            device,
            on_host,
            managed: false,
            legacy: false,
            rdma: prop.allocFlags.gpuDirectRDMACapable != 0,
            sync_memops: false,
            handle_types: prop.requestedHandleTypes,
            pool: 0,
            id: 0,
            block_id: memory.map_or(0, |m| m.2),
            range: Range { start: at, len: 0 },
            mapping: Range { start: at, len: 0 },
        };
        match spot {
            Spot::Mapped(start, mapping) => {
                about.mapping = Range { start: *start, len: mapping.len };
                let reserved = space.reservations.get(&mapping.reservation);
                let len = reserved.map_or(mapping.len, |r| r.len);
                about.range = Range { start: mapping.reservation, len };
                about.id = mapping.id;
                about.sync_memops = mapping.sync_memops;
            }
            Spot::Plain(start, block) => {
                about.range = Range { start: *start, len: block.len };
                about.mapping = about.range;
                about.context = block.context;
                about.id = block.id;
                about.legacy = block.kind == Kind::Alloc;
                about.rdma = block.kind == Kind::Alloc;
                about.sync_memops = block.sync_memops;
                if let Kind::Pool(pool) = block.kind {
                    about.pool = pool;
                }
            }
            Spot::Host(start, block) => {
                about.range = Range { start: *start, len: block.len };
                about.mapping = about.range;
                about.context = block.context;
                about.device = block.device;
                about.id = block.id;
                about.block_id = block.id;
                about.managed = block.kind == HostKind::Managed;
                about.sync_memops = block.sync_memops;
                if about.managed {
                    about.memory_type = MEMORYTYPE_DEVICE;
                }
            }
        }
        about
    }
}

/// The current context's device, for attributes that depend on it.
fn current_device(world: &World) -> Option<u32> {
    world.current_context().ok().and_then(|state| u32::try_from(state.device).ok())
}

/// Whether an attribute asks for a current context.
fn needs_context(attribute: u32) -> bool {
    matches!(attribute, DEVICE_POINTER | ACCESS_FLAGS)
}

/// One attribute of a pointer: 1 for a pointer that the driver does not know.
///
/// # Safety
///
/// `data` is null or a place of the attribute's type.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuPointerGetAttribute(
    data: *mut c_void,
    asked: u32,
    ptr: CUdeviceptr,
) -> CUresult {
    enter(
        "cuPointerGetAttribute",
        || format!("attribute={asked}, ptr={ptr:#x}"),
        |world| {
            let to = place(data)?;
            Value::zero(asked).ok_or(CUDA_ERROR_INVALID_VALUE)?;
            if needs_context(asked) {
                world.current_context()?;
            }
            let device = current_device(world);
            let value = world.memory.ask(|space| attribute(space, asked, ptr, device))?;
            if asked == P2P_TOKENS {
                set_sync_memops(world, ptr, true)?;
            }
            // SAFETY: not null, and as wide as the attribute by the caller's promise.
            unsafe { value.write(to) };
            Ok(())
        },
    )
}

/// Several attributes of a pointer; all are 0 for a pointer that the driver does not know.
///
/// # Safety
///
/// `attributes` and `data` are null or `count` elements; each of `data` is a place of its
/// attribute's type.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuPointerGetAttributes(
    count: u32,
    attributes: *const u32,
    data: *const *mut c_void,
    ptr: CUdeviceptr,
) -> CUresult {
    enter(
        "cuPointerGetAttributes",
        || format!("count={count}, ptr={ptr:#x}"),
        |world| {
            if count == 0 || attributes.is_null() || data.is_null() {
                return Err(CUDA_ERROR_INVALID_VALUE);
            }
            // SAFETY: not null, and `count` elements by the caller's promise.
            let (attributes, data) = unsafe {
                (
                    std::slice::from_raw_parts(attributes, count as usize),
                    std::slice::from_raw_parts(data, count as usize),
                )
            };
            let device = current_device(world);
            let mut values = Vec::with_capacity(attributes.len());
            for (asked, to) in attributes.iter().zip(data) {
                let zero = Value::zero(*asked).ok_or(CUDA_ERROR_INVALID_VALUE)?;
                let found = world.memory.ask(|space| attribute(space, *asked, ptr, device));
                values.push((place(*to)?, found.unwrap_or(zero)));
            }
            for (to, value) in values {
                // SAFETY: not null, and as wide as the attribute by the caller's promise.
                unsafe { value.write(to) };
            }
            Ok(())
        },
    )
}

fn set_sync_memops(world: &World, ptr: u64, value: bool) -> Result<(), CUresult> {
    super::vmm::change(world, |space| {
        let place = if let Some((start, _)) = space.mapping_at(ptr) {
            space.mappings.get_mut(&start).map(|m| &mut m.sync_memops)
        } else if let Some((start, _)) = space.plain.block_at(ptr) {
            space.plain.blocks.get_mut(&start).map(|b| &mut b.sync_memops)
        } else if let Some((start, _)) = space.host_at(ptr) {
            space.plain.host.get_mut(&start).map(|b| &mut b.sync_memops)
        } else {
            None
        };
        match place {
            Some(place) => {
                *place = value;
                Ok(())
            }
            None => Err(Refused::invalid(format!("{ptr:#x} is not known"))),
        }
    })
}

/// Sets `SYNC_MEMOPS`, the one attribute that can be set.
///
/// # Safety
///
/// `value` is null or an unsigned int.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuPointerSetAttribute(
    value: *const c_void,
    asked: u32,
    ptr: CUdeviceptr,
) -> CUresult {
    enter(
        "cuPointerSetAttribute",
        || format!("attribute={asked}, ptr={ptr:#x}"),
        |world| {
            if value.is_null() || asked != SYNC_MEMOPS {
                return Err(CUDA_ERROR_INVALID_VALUE);
            }
            // SAFETY: not null, and an unsigned int by the caller's promise.
            let value = unsafe { value.cast::<u32>().read_unaligned() };
            set_sync_memops(world, ptr, value != 0)
        },
    )
}
