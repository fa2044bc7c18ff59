//! Memory nodes of graphs, and what a device holds for graphs.
//!
//! What the documentation leaves open: nodes are made in the caller's current context (201 without
//! one).

use super::device::place;
use super::mempool::PoolProps;
use super::vmm::change;
use crate::call;
use crate::engine::Kind;
use crate::engine::graphmem::{Reserved, Wish};
use crate::entry::{Call, enter};
use crate::types::*;
use crate::world::World;
use std::ffi::c_void;

/// This file's part of the table of calls.
pub(super) static CALLS: &[Call] = &[
    call!(cuGraphAddMemAllocNode, 11040),
    call!(cuGraphMemAllocNodeGetParams, 11040).without_context(),
    call!(cuGraphAddMemFreeNode, 11040),
    call!(cuGraphMemFreeNodeGetParams, 11040).without_context(),
    call!(cuDeviceGetGraphMemAttribute, 11040).without_context(),
    call!(cuDeviceSetGraphMemAttribute, 11040).without_context(),
    call!(cuDeviceGraphMemTrim, 11040).without_context().unsafe_in_capture(),
];

/// `CUDA_MEM_ALLOC_NODE_PARAMS`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct AllocParams {
    /// Where the memory lies; neither shared nor limited.
    pub pool: PoolProps,
    /// Rights of devices, its own besides.
    pub access: *const CUmemAccessDesc,
    /// How many of them.
    pub access_count: usize,
    /// Bytes.
    pub bytes: usize,
    /// Written: the address.
    pub dptr: CUdeviceptr,
}

const _: () = assert!(size_of::<AllocParams>() == 120);

/// A node's dependencies.
///
/// # Safety
///
/// `deps` is null or `count` handles.
unsafe fn dependencies(deps: *const CUgraphNode, count: usize) -> Result<Vec<u64>, CUresult> {
    match (deps.is_null(), count) {
        (_, 0) => Ok(Vec::new()),
        (true, _) => Err(CUDA_ERROR_INVALID_VALUE),
        // SAFETY: not null; the caller's promise.
        (false, _) => Ok(unsafe { std::slice::from_raw_parts(deps, count) }.to_vec()),
    }
}

/// The rights that parameters ask for, by device.
///
/// # Safety
///
/// `access` of the parameters is null or as many descriptions as they say.
unsafe fn rights(world: &mut World, params: &AllocParams) -> Result<Vec<(u32, u8)>, CUresult> {
    if params.access_count == 0 {
        return Ok(Vec::new());
    }
    if params.access.is_null() {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    // SAFETY: not null; the caller's promise.
    let wishes = unsafe { std::slice::from_raw_parts(params.access, params.access_count) };
    let known = |wish: &CUmemAccessDesc, world: &mut World| {
        wish.location.type_ == CU_MEM_LOCATION_TYPE_DEVICE
            && world.device(wish.location.id).is_ok()
            && wish.flags <= CU_MEM_ACCESS_FLAGS_PROT_READWRITE
    };
    let mut all = Vec::new();
    for wish in wishes {
        if !known(wish, world) {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        all.push((wish.location.id as u32, wish.flags as u8));
    }
    Ok(all)
}

/// Adds an allocation node: its address is fixed from now on.
///
/// # Safety
///
/// `node` is null or a place; `deps` is null or `count` handles; `params` is null or parameters.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGraphAddMemAllocNode(
    node: *mut CUgraphNode,
    graph: CUgraph,
    deps: *const CUgraphNode,
    count: usize,
    params: *mut AllocParams,
) -> CUresult {
    enter(
        "cuGraphAddMemAllocNode",
        || format!("graph={graph:#x}, count={count}"),
        |world| {
            let (to, params) = (place(node)?, place(params)?);
            // SAFETY: not null; CUDA asks the caller for the structure.
            let wished = unsafe { *params };
            let pool = wished.pool;
            if pool.alloc_type != CU_MEM_ALLOCATION_TYPE_PINNED
                || pool.handle_types != 0
                || pool.location.type_ != CU_MEM_LOCATION_TYPE_DEVICE
                || world.device(pool.location.id).is_err()
            {
                return Err(CUDA_ERROR_INVALID_VALUE);
            }
            // SAFETY: the caller's promise.
            let (access, deps) = unsafe { (rights(world, &wished)?, dependencies(deps, count)?) };
            let context = world.current_context()?.id;
            let device = pool.location.id;
            let wish = Wish { graph, deps, context, device };
            let len = wished.bytes as u64;
            let reserve = || {
                let at = change(world, |s| s.graph_reserve(device as u32, context, len, &access))?;
                Ok(Reserved { at, len, device })
            };
            let (made, at) = world.engine.add_alloc_node(wish, reserve)?;
            // SAFETY: not null; CUDA asks the caller for writable places.
            unsafe {
                *to = made;
                (*params).dptr = at;
            }
            Ok(())
        },
    )
}

/// An allocation node's parameters; those of captured calls say where the memory lies, too.
///
/// # Safety
///
/// `params` is null or a place for parameters.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGraphMemAllocNodeGetParams(
    node: CUgraphNode,
    params: *mut AllocParams,
) -> CUresult {
    enter(
        "cuGraphMemAllocNodeGetParams",
        || format!("node={node:#x}"),
        |world| {
            let to = place(params)?;
            let at = world.engine.memory_of_node(node, Kind::MemAlloc)?;
            let (device, len) = world.memory.ask(|s| s.freeable(at).map(|b| (b.device, b.len)))?;
            let location = CUmemLocation { type_: CU_MEM_LOCATION_TYPE_DEVICE, id: device as i32 };
            let pool = PoolProps {
                alloc_type: CU_MEM_ALLOCATION_TYPE_PINNED,
                handle_types: 0,
                location,
                security: std::ptr::null(),
                max_size: 0,
                usage: 0,
                reserved: [0; 54],
            };
            let access = std::ptr::null();
            let found =
                AllocParams { pool, access, access_count: 0, bytes: len as usize, dptr: at };
            // SAFETY: not null; CUDA asks the caller for a writable place.
            unsafe { *to = found };
            Ok(())
        },
    )
}

/// Adds a free node.
///
/// # Safety
///
/// `node` is null or a place; `deps` is null or `count` handles.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGraphAddMemFreeNode(
    node: *mut CUgraphNode,
    graph: CUgraph,
    deps: *const CUgraphNode,
    count: usize,
    dptr: CUdeviceptr,
) -> CUresult {
    enter(
        "cuGraphAddMemFreeNode",
        || format!("graph={graph:#x}, count={count}, dptr={dptr:#x}"),
        |world| {
            let to = place(node)?;
            // SAFETY: the caller's promise.
            let deps = unsafe { dependencies(deps, count)? };
            let context = world.current_context()?;
            let wish = Wish { graph, deps, context: context.id, device: context.device };
            let made = world.engine.add_free_node(wish, dptr)?;
            // SAFETY: not null; CUDA asks the caller for a writable place.
            unsafe { *to = made };
            Ok(())
        },
    )
}

/// The address that a free node frees.
///
/// # Safety
///
/// `dptr` is null or a place for an address.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGraphMemFreeNodeGetParams(
    node: CUgraphNode,
    dptr: *mut CUdeviceptr,
) -> CUresult {
    enter(
        "cuGraphMemFreeNodeGetParams",
        || format!("node={node:#x}"),
        |world| {
            let to = place(dptr)?;
            // SAFETY: not null; CUDA asks the caller for a writable place.
            unsafe { *to = world.engine.memory_of_node(node, Kind::MemFree)? };
            Ok(())
        },
    )
}

/// An attribute of a device's graph memory, 64 bits.
///
/// # Safety
///
/// `value` is null or a place for 64 bits.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetGraphMemAttribute(
    device: CUdevice,
    attribute: u32,
    value: *mut c_void,
) -> CUresult {
    enter(
        "cuDeviceGetGraphMemAttribute",
        || format!("device={device}, attribute={attribute}"),
        |world| {
            let to = place(value)?.cast::<u64>();
            world.device(device)?;
            // SAFETY: not null; CUDA asks the caller for a writable place.
            unsafe { *to = world.engine.graph_memory_get(device, attribute)? };
            Ok(())
        },
    )
}

/// Resets a high-water mark of a device's graph memory.
///
/// # Safety
///
/// `value` is null or holds 64 bits.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceSetGraphMemAttribute(
    device: CUdevice,
    attribute: u32,
    value: *mut c_void,
) -> CUresult {
    enter(
        "cuDeviceSetGraphMemAttribute",
        || format!("device={device}, attribute={attribute}"),
        |world| {
            let at = place(value)?.cast::<u64>();
            world.device(device)?;
            // SAFETY: not null; CUDA asks the caller for a value.
            world.engine.graph_memory_set(device, attribute, unsafe { *at })
        },
    )
}

/// Gives back memory that is held for graphs which neither run nor are to run.
#[unsafe(no_mangle)]
pub extern "C" fn cuDeviceGraphMemTrim(device: CUdevice) -> CUresult {
    enter(
        "cuDeviceGraphMemTrim",
        || format!("device={device}"),
        |world| {
            world.device(device)?;
            world.engine.graph_trim(device);
            Ok(())
        },
    )
}
