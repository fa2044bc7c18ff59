//! Copies: between host and device, within and between devices, in rows; at once and queued.
//!
//! What returns when, as NVIDIA's "API synchronization behavior" has it. Synchronous: from
//! pageable host memory to a device once the bytes are staged, behind the stream's earlier work,
//! while the device may still be to get them; between devices at once; all else when done.
//! Asynchronous: to pageable host memory, and from host to host, when done; from pageable memory
//! once staged; all else at once. A range that may not be touched answers 1 at the call, and
//! makes the context fail if it is so when the queued work runs.

use super::stream::{pair, stream};
use crate::call;
use crate::engine::bytes::{self, Rows, Side};
use crate::engine::guard::{self, Place};
use crate::engine::stream::Info;
use crate::engine::{Action, Body, Kind, Work};
use crate::entry::{Call, Wait, enter_waiting};
use crate::types::*;
use crate::world::World;
use std::ffi::c_void;
use std::sync::Arc;

/// This file's part of the table of calls.
pub(super) static CALLS: &[Call] = &[
    call!(cuMemcpy, 4000),
    call!(cuMemcpy_ptds, "cuMemcpy", 7000).per_thread(),
    call!(cuMemcpyHtoD_v2, "cuMemcpyHtoD", 3020),
    call!(cuMemcpyHtoD_v2_ptds, "cuMemcpyHtoD", 7000).per_thread(),
    call!(cuMemcpyDtoH_v2, "cuMemcpyDtoH", 3020),
    call!(cuMemcpyDtoH_v2_ptds, "cuMemcpyDtoH", 7000).per_thread(),
    call!(cuMemcpyDtoD_v2, "cuMemcpyDtoD", 3020),
    call!(cuMemcpyDtoD_v2_ptds, "cuMemcpyDtoD", 7000).per_thread(),
    call!(cuMemcpyPeer, 4000),
    call!(cuMemcpyPeer_ptds, "cuMemcpyPeer", 7000).per_thread(),
    call!(cuMemcpy2D_v2, "cuMemcpy2D", 3020),
    call!(cuMemcpy2D_v2_ptds, "cuMemcpy2D", 7000).per_thread(),
    call!(cuMemcpy2DUnaligned_v2, "cuMemcpy2DUnaligned", 3020),
    call!(cuMemcpy2DUnaligned_v2_ptds, "cuMemcpy2DUnaligned", 7000).per_thread(),
    call!(cuMemcpyAsync, 4000),
    call!(cuMemcpyAsync_ptsz, "cuMemcpyAsync", 7000).per_thread(),
    call!(cuMemcpyHtoDAsync_v2, "cuMemcpyHtoDAsync", 3020),
    call!(cuMemcpyHtoDAsync_v2_ptsz, "cuMemcpyHtoDAsync", 7000).per_thread(),
    call!(cuMemcpyDtoHAsync_v2, "cuMemcpyDtoHAsync", 3020),
    call!(cuMemcpyDtoHAsync_v2_ptsz, "cuMemcpyDtoHAsync", 7000).per_thread(),
    call!(cuMemcpyDtoDAsync_v2, "cuMemcpyDtoDAsync", 3020),
    call!(cuMemcpyDtoDAsync_v2_ptsz, "cuMemcpyDtoDAsync", 7000).per_thread(),
    call!(cuMemcpyPeerAsync, 4000),
    call!(cuMemcpyPeerAsync_ptsz, "cuMemcpyPeerAsync", 7000).per_thread(),
    call!(cuMemcpy2DAsync_v2, "cuMemcpy2DAsync", 3020),
    call!(cuMemcpy2DAsync_v2_ptsz, "cuMemcpy2DAsync", 7000).per_thread(),
];

/// Bytes that a copy moves in a microsecond of virtual time: 20 GB/s, a guess at PCIe 4.
const BYTES_PER_US: f64 = 20_000.0;
/// `CU_MEMORYTYPE_HOST`.
const TYPE_HOST: u32 = 1;
/// `CU_MEMORYTYPE_DEVICE`.
const TYPE_DEVICE: u32 = 2;
/// `CU_MEMORYTYPE_UNIFIED`.
const TYPE_UNIFIED: u32 = 4;

/// One end of a copy, as the caller has it.
#[derive(Clone, Copy)]
struct End {
    at: u64,
    pitch: u64,
    /// It must be memory that devices reach.
    mapped: bool,
    /// The device that touches it; none for the stream's.
    device: Option<i32>,
}

impl End {
    /// An address of any kind.
    fn any(at: u64) -> End {
        End { at, pitch: 0, mapped: false, device: None }
    }

    /// An address that must be a device's.
    fn device(at: u64) -> End {
        End { at, pitch: 0, mapped: true, device: None }
    }
}

/// A copy, with what the addresses were found to be.
struct Plan {
    name: &'static str,
    to: End,
    to_place: Place,
    from: End,
    from_place: Place,
    rows: Rows,
    info: Info,
    between: Option<[u64; 2]>,
}

/// What the caller asked for.
#[derive(Clone, Copy)]
struct Ask {
    to: End,
    from: End,
    rows: Rows,
    /// Contexts whose work, earlier and later, it is serialized with, besides the stream's.
    between: Option<[u64; 2]>,
}

impl Plan {
    /// Finds out what the addresses are; 1 if one is null, or may not be touched.
    fn new(name: &'static str, world: &World, info: Info, ask: Ask) -> Result<Plan, CUresult> {
        let Ask { to, from, rows, between } = ask;
        let plan = Plan {
            name,
            to,
            to_place: guard::place(&world.memory, to.at),
            from,
            from_place: guard::place(&world.memory, from.at),
            rows,
            info,
            between,
        };
        let wrong = |end: End, place| end.at == 0 || (end.mapped && place == Place::Pageable);
        if wrong(to, plan.to_place) || wrong(from, plan.from_place) {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let work = plan.work(plan.source());
        match guard::accessible(&world.memory, &work.reads, &work.writes) {
            true => Ok(plan),
            false => Err(CUDA_ERROR_INVALID_VALUE),
        }
    }

    fn side(end: End, place: Place) -> Side {
        match place {
            Place::Pageable => Side::Pageable(end.at),
            Place::Device | Place::Pinned => Side::Mapped(end.at),
        }
    }

    /// The source where it lies.
    fn source(&self) -> (Side, u64) {
        (Plan::side(self.from, self.from_place), self.from.pitch)
    }

    /// The source taken out of pageable memory now.
    ///
    /// # Safety
    ///
    /// The source's rows are readable.
    unsafe fn staged(&self) -> (Side, u64) {
        // SAFETY: the caller's promise.
        let bytes = unsafe { bytes::stage(self.from.at, self.from.pitch, self.rows) };
        (Side::Staged(Arc::new(bytes)), self.rows.width)
    }

    /// The queued work, with a source as [`Plan::source`] or [`Plan::staged`] gives it.
    fn work(&self, from: (Side, u64)) -> Work {
        let ranges = |end: End| {
            let device = end.device.unwrap_or(self.info.device);
            self.rows.ranges(end.at, end.pitch, device, true)
        };
        let reads = match from.0 {
            Side::Mapped(_) => ranges(self.from),
            Side::Pageable(_) | Side::Staged(_) => Vec::new(),
        };
        let to = (Plan::side(self.to, self.to_place), self.to.pitch);
        let writes = match to.0 {
            Side::Mapped(_) => ranges(self.to),
            Side::Pageable(_) | Side::Staged(_) => Vec::new(),
        };
        let rows = self.rows;
        let body: Body = Arc::new(move |view| {
            // SAFETY: the engine has checked the mapped ranges and holds the map still; for
            // pageable memory the program promised, by asking for the copy, that it stays
            // readable or writable until the copy is done.
            unsafe { bytes::copy(view, (&to.0, to.1), (&from.0, from.1), rows) };
            Ok(())
        });
        Work { label: self.name, kind: Kind::Memcpy, reads, writes, body }
    }

    fn cost_us(&self) -> f64 {
        1.0 + (self.rows.width * self.rows.height) as f64 / BYTES_PER_US
    }

    /// Queues the copy; what waits for it, if `wait`.
    fn queue(&self, world: &World, from: (Side, u64), wait: bool) -> Result<Wait, CUresult> {
        let action = Action::Work(self.work(from));
        let (uid, own, cost) = (self.info.uid, self.info.context, self.cost_us());
        let point = match self.between {
            Some([a, b]) => Some(world.engine.submit_between(uid, action, cost, &[own, a, b])?),
            None => world.engine.submit(uid, action, cost)?,
        };
        Ok(match point {
            Some(point) if wait => world.engine.wait_points(self.info.context, vec![point]),
            _ => Wait::nothing(),
        })
    }

    fn host_only(&self) -> bool {
        self.to_place != Place::Device && self.from_place != Place::Device
    }
}

/// A synchronous copy on the default stream.
fn copy_now(name: &'static str, own: bool, ask: Ask) -> CUresult {
    enter_waiting(
        name,
        || words(ask),
        |world| {
            let info = stream(world, 0, own)?;
            world.engine.synchronous(info.uid)?;
            if ask.rows.width == 0 || ask.rows.height == 0 {
                return Ok(Wait::nothing());
            }
            let plan = Plan::new(name, world, info, ask)?;
            let staged = plan.from_place == Place::Pageable && plan.to_place == Place::Device;
            if !staged {
                let between = plan.from_place == Place::Device && plan.to_place == Place::Device;
                return plan.queue(world, plan.source(), !between);
            }
            let before = world.engine.wait_points(info.context, world.engine.tail(info.uid));
            Ok(before.then(move |world| {
                // SAFETY: the program gave readable memory; it waits in this very call.
                let bytes = unsafe { plan.staged() };
                plan.queue(world, bytes, false).map(|_| ())
            }))
        },
    )
}

/// An asynchronous copy.
fn copy_later(name: &'static str, own: bool, handle: CUstream, ask: Ask) -> CUresult {
    let args = || format!("{}, stream={handle:#x}", words(ask));
    enter_waiting(name, args, |world| {
        let info = stream(world, handle, own)?;
        if ask.rows.width == 0 || ask.rows.height == 0 {
            return Ok(Wait::nothing());
        }
        let plan = Plan::new(name, world, info, ask)?;
        if world.engine.is_captured(info.uid)? {
            return plan.queue(world, plan.source(), false);
        }
        if plan.from_place == Place::Pageable && plan.to_place == Place::Device {
            // SAFETY: the program gave readable memory; it waits in this very call.
            let bytes = unsafe { plan.staged() };
            return plan.queue(world, bytes, false);
        }
        let wait = plan.to_place == Place::Pageable || plan.host_only();
        plan.queue(world, plan.source(), wait)
    })
}

fn words(ask: Ask) -> String {
    let Ask { to, from, rows, .. } = ask;
    format!("to={:#x}, from={:#x}, bytes={}x{}", to.at, from.at, rows.width, rows.height)
}

fn plain(to: End, from: End, bytes: usize) -> Ask {
    Ask { to, from, rows: Rows::one(bytes as u64), between: None }
}

unsafe fn any(name: &'static str, own: bool, to: u64, from: u64, bytes: usize) -> CUresult {
    copy_now(name, own, plain(End::any(to), End::any(from), bytes))
}

pair! {
    /// Copies between any two addresses.
    cuMemcpy, cuMemcpy_ptds, any(to: CUdeviceptr, from: CUdeviceptr, bytes: usize)
}

unsafe fn upload(
    name: &'static str,
    own: bool,
    to: u64,
    from: *const c_void,
    bytes: usize,
) -> CUresult {
    copy_now(name, own, plain(End::device(to), End::any(from as u64), bytes))
}

pair! {
    /// Copies from the host to a device.
    cuMemcpyHtoD_v2, cuMemcpyHtoD_v2_ptds,
    upload(to: CUdeviceptr, from: *const c_void, bytes: usize)
}

unsafe fn download(
    name: &'static str,
    own: bool,
    to: *mut c_void,
    from: u64,
    bytes: usize,
) -> CUresult {
    copy_now(name, own, plain(End::any(to as u64), End::device(from), bytes))
}

pair! {
    /// Copies from a device to the host.
    cuMemcpyDtoH_v2, cuMemcpyDtoH_v2_ptds,
    download(to: *mut c_void, from: CUdeviceptr, bytes: usize)
}

unsafe fn within(name: &'static str, own: bool, to: u64, from: u64, bytes: usize) -> CUresult {
    copy_now(name, own, plain(End::device(to), End::device(from), bytes))
}

pair! {
    /// Copies between device addresses; the host does not wait.
    cuMemcpyDtoD_v2, cuMemcpyDtoD_v2_ptds,
    within(to: CUdeviceptr, from: CUdeviceptr, bytes: usize)
}

unsafe fn any_later(
    name: &'static str,
    own: bool,
    to: u64,
    from: u64,
    bytes: usize,
    stream: CUstream,
) -> CUresult {
    copy_later(name, own, stream, plain(End::any(to), End::any(from), bytes))
}

pair! {
    /// Queues a copy between any two addresses.
    cuMemcpyAsync, cuMemcpyAsync_ptsz,
    any_later(to: CUdeviceptr, from: CUdeviceptr, bytes: usize, stream: CUstream)
}

unsafe fn upload_later(
    name: &'static str,
    own: bool,
    to: u64,
    from: *const c_void,
    bytes: usize,
    stream: CUstream,
) -> CUresult {
    copy_later(name, own, stream, plain(End::device(to), End::any(from as u64), bytes))
}

pair! {
    /// Queues a copy from the host to a device.
    cuMemcpyHtoDAsync_v2, cuMemcpyHtoDAsync_v2_ptsz,
    upload_later(to: CUdeviceptr, from: *const c_void, bytes: usize, stream: CUstream)
}

unsafe fn download_later(
    name: &'static str,
    own: bool,
    to: *mut c_void,
    from: u64,
    bytes: usize,
    stream: CUstream,
) -> CUresult {
    copy_later(name, own, stream, plain(End::any(to as u64), End::device(from), bytes))
}

pair! {
    /// Queues a copy from a device to the host.
    cuMemcpyDtoHAsync_v2, cuMemcpyDtoHAsync_v2_ptsz,
    download_later(to: *mut c_void, from: CUdeviceptr, bytes: usize, stream: CUstream)
}

unsafe fn within_later(
    name: &'static str,
    own: bool,
    to: u64,
    from: u64,
    bytes: usize,
    stream: CUstream,
) -> CUresult {
    copy_later(name, own, stream, plain(End::device(to), End::device(from), bytes))
}

pair! {
    /// Queues a copy between device addresses.
    cuMemcpyDtoDAsync_v2, cuMemcpyDtoDAsync_v2_ptsz,
    within_later(to: CUdeviceptr, from: CUdeviceptr, bytes: usize, stream: CUstream)
}

/// Two contexts' ends: 201 if one is not live.
fn between(to: u64, to_context: u64, from: u64, from_context: u64) -> Result<(End, End), CUresult> {
    let mut world = crate::world::lock();
    let to_device = world.context(to_context)?.state.device;
    let from_device = world.context(from_context)?.state.device;
    let end = |at, device| End { device: Some(device), ..End::device(at) };
    Ok((end(to, to_device), end(from, from_device)))
}

unsafe fn peer(
    name: &'static str,
    own: bool,
    to: CUdeviceptr,
    to_context: CUcontext,
    from: CUdeviceptr,
    from_context: CUcontext,
    bytes: usize,
) -> CUresult {
    match between(to, to_context, from, from_context) {
        Ok((to, from)) => {
            let between = Some([to_context, from_context]);
            copy_now(name, own, Ask { between, ..plain(to, from, bytes) })
        }
        Err(code) => crate::entry::enter(name, String::new, |_| Err(code)),
    }
}

pair! {
    /// Copies from one context's memory to another's: behind all work of both and of the current
    /// context, and before all that these are given later.
    cuMemcpyPeer, cuMemcpyPeer_ptds,
    peer(
        to: CUdeviceptr,
        to_context: CUcontext,
        from: CUdeviceptr,
        from_context: CUcontext,
        bytes: usize,
    )
}

#[expect(clippy::too_many_arguments, reason = "cuda.h's arguments and two more")]
unsafe fn peer_later(
    name: &'static str,
    own: bool,
    to: CUdeviceptr,
    to_context: CUcontext,
    from: CUdeviceptr,
    from_context: CUcontext,
    bytes: usize,
    stream: CUstream,
) -> CUresult {
    match between(to, to_context, from, from_context) {
        Ok((to, from)) => copy_later(name, own, stream, plain(to, from, bytes)),
        Err(code) => crate::entry::enter(name, String::new, |_| Err(code)),
    }
}

pair! {
    /// Queues a copy from one context's memory to another's, in the order of its stream alone.
    cuMemcpyPeerAsync, cuMemcpyPeerAsync_ptsz,
    peer_later(
        to: CUdeviceptr,
        to_context: CUcontext,
        from: CUdeviceptr,
        from_context: CUcontext,
        bytes: usize,
        stream: CUstream,
    )
}

/// `CUDA_MEMCPY2D`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Copy2D {
    /// Bytes before the first one in each row of the source.
    pub src_x: usize,
    /// Rows before the first one of the source.
    pub src_y: usize,
    /// What the source is: host 1, device 2, array 3, unified 4.
    pub src_type: u32,
    /// The source, if it is the host's.
    pub src_host: *const c_void,
    /// The source, if it is a device's or unified.
    pub src_device: CUdeviceptr,
    /// The source, if it is an array; there are none here.
    pub src_array: u64,
    /// Bytes from row to row of the source; 0 for rows without gaps.
    pub src_pitch: usize,
    /// Bytes before the first one in each row of the target.
    pub dst_x: usize,
    /// Rows before the first one of the target.
    pub dst_y: usize,
    /// What the target is.
    pub dst_type: u32,
    /// The target, if it is the host's.
    pub dst_host: *mut c_void,
    /// The target, if it is a device's or unified.
    pub dst_device: CUdeviceptr,
    /// The target, if it is an array.
    pub dst_array: u64,
    /// Bytes from row to row of the target.
    pub dst_pitch: usize,
    /// Bytes in a row.
    pub width: usize,
    /// Rows.
    pub height: usize,
}

/// One end of a copy in rows: its start, or none for arrays and unknown types.
fn end_2d(kind: u32, host: u64, device: u64, pitch: u64, x: u64, y: u64) -> Option<End> {
    let (base, mapped) = match kind {
        TYPE_HOST => (host, false),
        TYPE_DEVICE => (device, true),
        TYPE_UNIFIED => (device, false),
        _ => return None,
    };
    if base == 0 {
        return None;
    }
    let at = y.checked_mul(pitch)?.checked_add(x)?.checked_add(base)?;
    Some(End { at, pitch, mapped, device: None })
}

/// What the structure asks for: 1 for arrays, null addresses and rows that overlap.
///
/// # Safety
///
/// `copy` is null or points to the structure.
unsafe fn ask_2d(copy: *const Copy2D) -> Result<Ask, CUresult> {
    if copy.is_null() {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    // SAFETY: not null; the caller's promise.
    let c = unsafe { *copy };
    let rows = Rows { width: c.width as u64, height: c.height as u64 };
    let pitch = |p: usize| if p == 0 { c.width as u64 } else { p as u64 };
    let (src_pitch, dst_pitch) = (pitch(c.src_pitch), pitch(c.dst_pitch));
    let fits = |pitch: u64, x: usize| x as u64 + rows.width <= pitch;
    let (x, y) = (c.src_x as u64, c.src_y as u64);
    let from = end_2d(c.src_type, c.src_host as u64, c.src_device, src_pitch, x, y);
    let (x, y) = (c.dst_x as u64, c.dst_y as u64);
    let to = end_2d(c.dst_type, c.dst_host as u64, c.dst_device, dst_pitch, x, y);
    match (to, from) {
        (Some(to), Some(from)) if fits(src_pitch, c.src_x) && fits(dst_pitch, c.dst_x) => {
            Ok(Ask { to, from, rows, between: None })
        }
        _ => Err(CUDA_ERROR_INVALID_VALUE),
    }
}

unsafe fn rows_now(name: &'static str, own: bool, copy: *const Copy2D) -> CUresult {
    // SAFETY: the caller's promise.
    match unsafe { ask_2d(copy) } {
        Ok(ask) => copy_now(name, own, ask),
        Err(code) => crate::entry::enter(name, String::new, |_| Err(code)),
    }
}

pair! {
    /// Copies rows.
    cuMemcpy2D_v2, cuMemcpy2D_v2_ptds, rows_now(copy: *const Copy2D)
}

pair! {
    /// Copies rows of any pitch.
    cuMemcpy2DUnaligned_v2, cuMemcpy2DUnaligned_v2_ptds, rows_now(copy: *const Copy2D)
}

unsafe fn rows_later(
    name: &'static str,
    own: bool,
    copy: *const Copy2D,
    stream: CUstream,
) -> CUresult {
    // SAFETY: the caller's promise.
    match unsafe { ask_2d(copy) } {
        Ok(ask) => copy_later(name, own, stream, ask),
        Err(code) => crate::entry::enter(name, String::new, |_| Err(code)),
    }
}

pair! {
    /// Queues a copy of rows.
    cuMemcpy2DAsync_v2, cuMemcpy2DAsync_v2_ptsz,
    rows_later(copy: *const Copy2D, stream: CUstream)
}
