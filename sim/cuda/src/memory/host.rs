//! Host memory that devices can reach: pinned, registered, managed.
//!
//! Owns the list of such ranges (in [`Plain`](super::plain::Plain)). Pinned and managed memory is anonymous memory of
//! this process, filled with poison; it is not locked, since the simulation has no hardware
//! that would miss it. Every device may access all of it. Registered memory stays the
//! program's. Cost: O(log n), a system call, the poison.

use super::os::{self, HOST_PAGE};
use super::refused::Refused;
use super::space::Space;
use super::{GoneWhat, Range};
use crate::types::*;

/// What kind of host memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HostKind {
    /// From `cuMemHostAlloc` or `cuMemAllocHost`.
    Pinned,
    /// The program's own, registered.
    Registered,
    /// From `cuMemAllocManaged`.
    Managed,
}

/// One range of it.
#[derive(Debug)]
pub struct HostBlock {
    /// Its length in bytes, as asked for.
    pub len: u64,
    /// What kind.
    pub kind: HostKind,
    /// The flags it was made with.
    pub flags: u32,
    /// The context that it was made in.
    pub context: u64,
    /// The device of that context.
    pub device: u32,
    /// Its number for `CU_POINTER_ATTRIBUTE_BUFFER_ID`.
    pub id: u64,
    /// `CU_POINTER_ATTRIBUTE_SYNC_MEMOPS`.
    pub sync_memops: bool,
    /// Bytes mapped for it here, if it is ours.
    pub mapped: Option<u64>,
    /// The call that made it.
    pub call: u64,
}

/// `CU_MEMHOSTREGISTER_READ_ONLY`.
pub const READ_ONLY: u32 = 8;
/// All flags of `cuMemHostAlloc`: portable, device-mapped, write-combined.
const ALLOC_FLAGS: u32 = 7;
/// All flags of `cuMemHostRegister`: portable, device-mapped, I/O memory, read-only.
const REGISTER_FLAGS: u32 = 15;

/// Who asks, for a block's record.
#[derive(Clone, Copy, Debug)]
pub struct Asker {
    /// The current context.
    pub context: u64,
    /// Its device.
    pub device: u32,
}

impl Space {
    /// Pinned or managed memory.
    ///
    /// # Errors
    /// 1 for no bytes and for unknown flags, 2 when the host has no room.
    pub fn host_alloc(
        &mut self,
        who: Asker,
        len: u64,
        kind: HostKind,
        flags: u32,
    ) -> Result<u64, Refused> {
        let good = match kind {
            HostKind::Managed => matches!(flags, 1 | 2),
            _ => flags & !ALLOC_FLAGS == 0,
        };
        if len == 0 || !good {
            return Err(Refused::invalid(format!("{len} bytes with flags {flags}")));
        }
        let full = || Refused::new(CUDA_ERROR_OUT_OF_MEMORY, format!("{len} bytes of host memory"));
        let bytes = len.checked_next_multiple_of(HOST_PAGE).ok_or_else(full)?;
        if bytes > os::host_memory() {
            return Err(full());
        }
        let at = os::reserve(bytes, HOST_PAGE, 0).map_err(|error| match error {
            os::HostError::Memory => full(),
            other => other.into(),
        })?;
        if let Err(error) = os::map_anonymous(at, bytes) {
            os::unmap(at, bytes);
            return Err(error.into());
        }
        if let Some(byte) = self.config.poison {
            os::fill(at, bytes, byte);
        }
        self.insert_host(at, who, len, kind, flags, Some(bytes));
        Ok(at)
    }

    fn insert_host(
        &mut self,
        at: u64,
        who: Asker,
        len: u64,
        kind: HostKind,
        flags: u32,
        mapped: Option<u64>,
    ) {
        let Asker { context, device } = who;
        let id = super::page::number();
        let call = self.call;
        let block =
            HostBlock { len, kind, flags, context, device, id, sync_memops: false, mapped, call };
        self.plain.host.insert(at, block);
    }

    /// The host block around an address.
    pub fn host_at(&self, at: u64) -> Option<(u64, &HostBlock)> {
        let (start, block) = self.plain.host.range(..=at).next_back()?;
        (at < start + block.len).then_some((*start, block))
    }

    /// `cuMemFreeHost`, and `cuMemFree` of managed memory.
    ///
    /// # Errors
    /// 1; all but a null pointer are misuse.
    pub fn host_free(&mut self, at: u64, kind: HostKind) -> Result<(), Refused> {
        if at == 0 {
            return Err(Refused::invalid("no pointer"));
        }
        match self.plain.host.get(&at) {
            Some(block) if block.kind == kind => {}
            Some(block) => {
                let text = format!("{at:#x} is {:?}, not {kind:?}", block.kind);
                return Err(wrong("free of the wrong kind of host memory", text));
            }
            None => return Err(self.unknown_host(at)),
        }
        if let Some(block) = self.plain.host.remove(&at) {
            self.went(Range { start: at, len: block.len }, GoneWhat::Allocation);
            if let Some(bytes) = block.mapped {
                os::unmap(at, bytes);
            }
        }
        Ok(())
    }

    fn unknown_host(&self, at: u64) -> Refused {
        match self.last_freed(at) {
            Some(gone) => wrong("double free", format!("host memory {at:#x} {gone}")),
            None => {
                let text = format!("host memory {at:#x} was never given out");
                wrong("free of a foreign pointer", text)
            }
        }
    }

    /// `cuMemHostRegister`.
    ///
    /// # Errors
    /// 1 for no range, unknown flags and memory that this process does not have; 712 when a part
    /// of it is registered or pinned already.
    pub fn register(&mut self, who: Asker, range: Range, flags: u32) -> Result<(), Refused> {
        let Some(end) = range.end().filter(|_| range.start != 0 && range.len != 0) else {
            return Err(Refused::invalid(format!("{range} is no range")));
        };
        if flags & !REGISTER_FLAGS != 0 {
            return Err(Refused::invalid(format!("flags {flags}")));
        }
        let before = self.plain.host.range(..end).next_back();
        if let Some((start, block)) = before.filter(|(s, b)| *s + b.len > range.start) {
            let text = format!("{range}: {start:#x} is {:?} already", block.kind);
            return Err(Refused::new(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, text));
        }
        let one = Range { start: range.start, len: 1 };
        if self.reservation_of(one).is_some() || self.plain.chunk_at(range.start).is_some() {
            return Err(Refused::invalid(format!("{range} is device memory")));
        }
        if !os::is_mapped(range.start, range.len) {
            return Err(Refused::invalid(format!("{range} is not in this process")));
        }
        self.insert_host(range.start, who, range.len, HostKind::Registered, flags, None);
        Ok(())
    }

    /// `cuMemHostUnregister`.
    ///
    /// # Errors
    /// 713 when no registered range starts there, 1 for a null pointer.
    pub fn unregister(&mut self, at: u64) -> Result<(), Refused> {
        if at == 0 {
            return Err(Refused::invalid("no pointer"));
        }
        match self.plain.host.get(&at) {
            Some(block) if block.kind == HostKind::Registered => {}
            _ => {
                let text = format!("{at:#x} is not registered");
                return Err(Refused::new(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, text));
            }
        }
        if let Some(block) = self.plain.host.remove(&at) {
            self.went(Range { start: at, len: block.len }, GoneWhat::Registration);
        }
        Ok(())
    }

    /// Frees what a context leaves; answers the blocks, for the list of leaks.
    pub fn host_free_of(&mut self, context: u64) -> Vec<(u64, u64, u64)> {
        let found = self.plain.host.iter().filter(|(_, block)| block.context == context);
        let left: Vec<_> = found.map(|(at, b)| (*at, b.len, b.call)).collect();
        for (at, ..) in &left {
            if let Some(bytes) = self.plain.host.remove(at).and_then(|b| b.mapped) {
                os::unmap(*at, bytes);
            }
        }
        left
    }
}

fn wrong(kind: &'static str, text: String) -> Refused {
    Refused::misuse(CUDA_ERROR_INVALID_VALUE, kind, text)
}
