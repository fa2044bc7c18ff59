//! The memory of the simulated driver, as the engine asks it.
//!
//! Owns the translation between the two rooms: nothing else of the engine knows memory's types.

use super::{MemoryCheck, Range, RangeFault, View};
use crate::memory::Memory;

impl MemoryCheck for Memory {
    fn guarded(
        &self,
        _reads: &[Range],
        _writes: &[Range],
        body: &mut dyn FnMut(View<'_>),
    ) -> Result<(), RangeFault> {
        body(&|at| at);
        Ok(())
    }
}
