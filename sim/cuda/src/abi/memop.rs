//! Stream memory operations: a stream waits for a value in memory, or writes one.
//!
//! Order made this way is not visible to CUDA: only the value counts. A wait that nothing
//! satisfies holds its stream up for ever, as on a device.

use super::stream::{pair, stream};
use crate::call;
use crate::engine::bytes;
use crate::engine::guard;
use crate::engine::stream::Info;
use crate::engine::{Action, Kind, Range, Test, Work};
use crate::entry::{Call, enter};
use crate::types::*;
use crate::world::World;
use std::sync::Arc;

/// This file's part of the table of calls.
pub(super) static CALLS: &[Call] = &[
    call!(cuStreamWaitValue32, 8000),
    call!(cuStreamWaitValue32_ptsz, "cuStreamWaitValue32", 8000).per_thread(),
    call!(cuStreamWaitValue32_v2, "cuStreamWaitValue32", 11070),
    call!(cuStreamWaitValue32_v2_ptsz, "cuStreamWaitValue32", 11070).per_thread(),
    call!(cuStreamWaitValue64, 9000),
    call!(cuStreamWaitValue64_ptsz, "cuStreamWaitValue64", 9000).per_thread(),
    call!(cuStreamWaitValue64_v2, "cuStreamWaitValue64", 11070),
    call!(cuStreamWaitValue64_v2_ptsz, "cuStreamWaitValue64", 11070).per_thread(),
    call!(cuStreamWriteValue32, 8000),
    call!(cuStreamWriteValue32_ptsz, "cuStreamWriteValue32", 8000).per_thread(),
    call!(cuStreamWriteValue32_v2, "cuStreamWriteValue32", 11070),
    call!(cuStreamWriteValue32_v2_ptsz, "cuStreamWriteValue32", 11070).per_thread(),
    call!(cuStreamWriteValue64, 9000),
    call!(cuStreamWriteValue64_ptsz, "cuStreamWriteValue64", 9000).per_thread(),
    call!(cuStreamWriteValue64_v2, "cuStreamWriteValue64", 11070),
    call!(cuStreamWriteValue64_v2_ptsz, "cuStreamWriteValue64", 11070).per_thread(),
    call!(cuStreamBatchMemOp, 8000),
    call!(cuStreamBatchMemOp_ptsz, "cuStreamBatchMemOp", 8000).per_thread(),
    call!(cuStreamBatchMemOp_v2, "cuStreamBatchMemOp", 11070),
    call!(cuStreamBatchMemOp_v2_ptsz, "cuStreamBatchMemOp", 11070).per_thread(),
];

/// `CU_STREAM_WAIT_VALUE_FLUSH`: needs hardware that this device does not have.
const WAIT_FLUSH: u32 = 1 << 30;
/// `CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER`.
const NO_BARRIER: u32 = 1;
/// Most operations of one batch, of `cuda.h`.
const BATCH_MAX: u32 = 256;

/// One operation.
#[derive(Clone, Copy)]
enum Op {
    Wait { at: u64, value: u64, width: u64, flags: u32 },
    Write { at: u64, value: u64, width: u64, flags: u32 },
    Barrier,
}

/// Whether a wait is satisfied by what is in memory: cyclic greater-or-equal (0), equal (1), any
/// bit in common (2), any bit in neither (3).
fn satisfied(found: u64, value: u64, width: u64, condition: u32) -> bool {
    let mask = if width == 4 { u64::from(u32::MAX) } else { u64::MAX };
    match condition {
        0 if width == 4 => (found as u32).wrapping_sub(value as u32) as i32 >= 0,
        0 => found.wrapping_sub(value) as i64 >= 0,
        1 => found == value & mask,
        2 => found & value & mask != 0,
        _ => !(found | value) & mask != 0,
    }
}

impl Op {
    /// The queued entry: 1 for bad flags, an address that is not aligned or not accessible.
    fn action(self, name: &'static str, world: &World, info: Info) -> Result<Action, CUresult> {
        let (at, width, write) = match self {
            Op::Wait { at, width, .. } => (at, width, false),
            Op::Write { at, width, .. } => (at, width, true),
            Op::Barrier => return Ok(Action::Mark(Kind::BatchMemOp)),
        };
        let range = Range { start: at, len: width, device: info.device, copy: false };
        let (reads, writes) = if write { (vec![], vec![range]) } else { (vec![range], vec![]) };
        if at % width != 0 || !guard::accessible(&world.memory, &reads, &writes) {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let work = |body| Work { label: name, kind: Kind::BatchMemOp, reads, writes, body };
        match self {
            Op::Wait { flags, .. } if flags & WAIT_FLUSH != 0 => Err(CUDA_ERROR_NOT_SUPPORTED),
            Op::Wait { value, flags, .. } if flags <= 3 => {
                // SAFETY: the engine has checked the range and holds the map still; aligned.
                let load =
                    move |view: crate::engine::View<'_>| unsafe { bytes::load(view, at, width) };
                let test: Test = Arc::new(move |view| satisfied(load(view), value, width, flags));
                Ok(Action::Until(work(Arc::new(|_| Ok(()))), test))
            }
            Op::Write { value, flags, .. } if flags <= NO_BARRIER => {
                Ok(Action::Work(work(Arc::new(move |view| {
                    // SAFETY: as above.
                    unsafe { bytes::store(view, at, width, value) };
                    Ok(())
                }))))
            }
            _ => Err(CUDA_ERROR_INVALID_VALUE),
        }
    }
}

fn queue(name: &'static str, own: bool, handle: CUstream, ops: Vec<Op>) -> CUresult {
    let args = || format!("stream={handle:#x}, operations={}", ops.len());
    enter(name, args, |world| {
        let info = stream(world, handle, own)?;
        let actions: Result<Vec<Action>, CUresult> =
            ops.iter().map(|op| op.action(name, world, info)).collect();
        for action in actions? {
            world.engine.submit(info.uid, action, 0.5)?;
        }
        Ok(())
    })
}

macro_rules! value_op {
    ($body:ident, $op:ident, $value:ty, $width:literal) => {
        unsafe fn $body(
            name: &'static str,
            own: bool,
            stream: CUstream,
            at: u64,
            value: $value,
            flags: u32,
        ) -> CUresult {
            let value = u64::from(value);
            queue(name, own, stream, vec![Op::$op { at, value, width: $width, flags }])
        }
    };
}

value_op!(wait_32, Wait, u32, 4);
value_op!(wait_64, Wait, u64, 8);
value_op!(write_32, Write, u32, 4);
value_op!(write_64, Write, u64, 8);

pair! {
    /// The stream waits until a word compares as asked.
    cuStreamWaitValue32, cuStreamWaitValue32_ptsz,
    wait_32(stream: CUstream, at: CUdeviceptr, value: u32, flags: u32)
}
pair! {
    /// The stream waits until a word compares as asked.
    cuStreamWaitValue32_v2, cuStreamWaitValue32_v2_ptsz,
    wait_32(stream: CUstream, at: CUdeviceptr, value: u32, flags: u32)
}
pair! {
    /// The stream waits until a double word compares as asked.
    cuStreamWaitValue64, cuStreamWaitValue64_ptsz,
    wait_64(stream: CUstream, at: CUdeviceptr, value: u64, flags: u32)
}
pair! {
    /// The stream waits until a double word compares as asked.
    cuStreamWaitValue64_v2, cuStreamWaitValue64_v2_ptsz,
    wait_64(stream: CUstream, at: CUdeviceptr, value: u64, flags: u32)
}
pair! {
    /// The stream writes a word.
    cuStreamWriteValue32, cuStreamWriteValue32_ptsz,
    write_32(stream: CUstream, at: CUdeviceptr, value: u32, flags: u32)
}
pair! {
    /// The stream writes a word.
    cuStreamWriteValue32_v2, cuStreamWriteValue32_v2_ptsz,
    write_32(stream: CUstream, at: CUdeviceptr, value: u32, flags: u32)
}
pair! {
    /// The stream writes a double word.
    cuStreamWriteValue64, cuStreamWriteValue64_ptsz,
    write_64(stream: CUstream, at: CUdeviceptr, value: u64, flags: u32)
}
pair! {
    /// The stream writes a double word.
    cuStreamWriteValue64_v2, cuStreamWriteValue64_v2_ptsz,
    write_64(stream: CUstream, at: CUdeviceptr, value: u64, flags: u32)
}

/// `CUstreamBatchMemOpParams`: the members that all operations share; the rest is padding.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct BatchOp {
    /// Wait 1 and 4, write 2 and 5, flush 3, barrier 6.
    pub operation: u32,
    /// Flags of a flush or a barrier.
    pub own_flags: u32,
    /// The address.
    pub address: CUdeviceptr,
    /// The value; the lower half for words.
    pub value: u64,
    /// Flags of a wait or a write.
    pub flags: u32,
    /// Padding.
    pub rest: u32,
    /// The driver's own.
    pub alias: [u64; 2],
}

const _: () = assert!(size_of::<BatchOp>() == 48);

unsafe fn batch(
    name: &'static str,
    own: bool,
    stream: CUstream,
    count: u32,
    operations: *const BatchOp,
    flags: u32,
) -> CUresult {
    if count > BATCH_MAX || flags != 0 || (count > 0 && operations.is_null()) {
        return enter(name, String::new, |_| Err(CUDA_ERROR_INVALID_VALUE));
    }
    let mut ops = Vec::new();
    for i in 0..count as usize {
        // SAFETY: CUDA asks the caller for `count` readable structures.
        let op = unsafe { *operations.add(i) };
        let (at, value, flags) = (op.address, op.value, op.flags);
        let word = value & u64::from(u32::MAX);
        ops.push(match op.operation {
            1 => Op::Wait { at, value: word, width: 4, flags },
            2 => Op::Write { at, value: word, width: 4, flags },
            4 => Op::Wait { at, value, width: 8, flags },
            5 => Op::Write { at, value, width: 8, flags },
            6 => Op::Barrier,
            3 => return enter(name, String::new, |_| Err(CUDA_ERROR_NOT_SUPPORTED)),
            _ => return enter(name, String::new, |_| Err(CUDA_ERROR_INVALID_VALUE)),
        });
    }
    queue(name, own, stream, ops)
}

pair! {
    /// Queues several operations in their order.
    cuStreamBatchMemOp, cuStreamBatchMemOp_ptsz,
    batch(stream: CUstream, count: u32, operations: *const BatchOp, flags: u32)
}
pair! {
    /// Queues several operations in their order.
    cuStreamBatchMemOp_v2, cuStreamBatchMemOp_v2_ptsz,
    batch(stream: CUstream, count: u32, operations: *const BatchOp, flags: u32)
}

#[cfg(test)]
mod tests {
    use super::satisfied;

    #[test]
    fn conditions_are_those_of_the_header() {
        // Geq is cyclic.
        assert!(satisfied(5, 5, 4, 0) && satisfied(1, u64::from(u32::MAX), 4, 0));
        assert!(!satisfied(4, 5, 4, 0) && satisfied(0, u64::MAX, 8, 0));
        assert!(satisfied(7, 7, 4, 1) && !satisfied(7, 8, 4, 1));
        assert!(satisfied(6, 2, 4, 2) && !satisfied(4, 2, 4, 2));
        assert!(satisfied(1, 2, 4, 3) && !satisfied(u64::from(u32::MAX), 0, 4, 3));
        assert!(satisfied(u64::from(u32::MAX), 0, 8, 3));
    }
}
