//! What interposers ask of a pool: the block around an address, the accounts of one pool, known
//! streams.
//!
//! Promises: nothing changes but that a noted stream gets its lane. None is hot: each takes the
//! core's lock once; an address deep inside an extent costs a look at each quantum before it.

use super::core::Core;
use super::{HANDLE_SHIFT, Pool};
use crate::base::sync::atomic::Ordering;
use crate::base::units::{QUANTUM, QUANTUM_SHIFT, UNIT_SHIFT};
use crate::error::{Error, Result, Status};
use crate::slab::class::{slot_bytes, slot_of};
use crate::slab::marks::Descriptor;

impl Core {
    /// First address and length of the live block that an address lies in.
    fn block_around(&self, address: usize) -> Option<(usize, usize)> {
        let (quantum, inside) = self.quantum(address)?;
        if let Descriptor::Slab { marks, index, class, .. } = self.marks.get(quantum) {
            let in_slab = (index as usize) << QUANTUM_SHIFT | inside;
            let (slot, _) = slot_of(class, (in_slab >> UNIT_SHIFT) as u32);
            let start = slot as usize * slot_bytes(class);
            // What is left over at a slab's end is no slot: it would end in another block.
            let last = quantum - index + ((start + slot_bytes(class) - 1) >> QUANTUM_SHIFT) as u32;
            let whole = last < self.marks.quanta() as u32
                && matches!(self.marks.get(last), Descriptor::Slab { marks: m, .. } if m == marks);
            let live = whole && self.marks.mark(marks + slot).load(Ordering::Relaxed) != 0;
            return live.then(|| (address - (in_slab - start), slot_bytes(class)));
        }
        if let Some(import) = self.imported_at(address) {
            return Some(import);
        }
        // Only an extent's first quantum has a descriptor.
        let mut first = quantum;
        while matches!(self.marks.get(first), Descriptor::None) {
            first = first.checked_sub(1)?;
        }
        let Descriptor::Extent { node } = self.marks.get(first) else { return None };
        let bytes = self.heap.block(node).1 as usize * QUANTUM;
        let offset = (quantum - first) as usize * QUANTUM + inside;
        (offset < bytes).then(|| (address - offset, bytes))
    }
}

impl Pool {
    /// First address and usable length of the live block that `address` lies in.
    ///
    /// # Errors
    /// [`Status::DoubleFree`] when no live block is there.
    pub fn block_around(&self, address: usize) -> Result<(usize, usize)> {
        self.with_core(|core| core.block_around(address))?.ok_or_else(|| {
            Error::new(Status::DoubleFree, format!("no live block holds the address {address:#x}"))
        })
    }

    /// Makes a stream known to the pool before it allocates: where the device has no event over a
    /// whole context, a free with `cudaFree`'s meaning waits for known streams.
    pub fn note_stream(&self, stream: u64) -> Result<()> {
        self.with_core(|core| core.lane((self.id << HANDLE_SHIFT) ^ stream, stream).map(|_| ()))?
    }
}
