//! What comes as it was recorded: an address for the next birth, the end of the next free.
//!
//! Owns no state. A hit is: thread, epoch, runner, handle, owner, pool, then one entry of a list
//! compared with what is asked. No lock, no clock, no log. Everything else goes to [`slow`], called
//! last so that a hit saves no registers. Promises the rules of [`runner`]: hot state is touched
//! inside `enter` by the step's own thread.

use super::runner::{self, Hot, LIVE, NOT_LIVE};
use super::slow;
use crate::error::Status;
use crate::plan::recording::LANES_MAX;
use crate::pool::cache;
use std::ffi::c_void;

impl Hot {
    /// The next birth's address, if this is what was recorded and all that was due is free; else
    /// 0, and nothing has changed.
    ///
    /// # Safety
    /// The caller is the step's owner; the lists are those of an open step.
    #[inline(always)]
    unsafe fn serve(&mut self, bytes: u64, stream: u64) -> usize {
        if self.cursor >= self.until {
            return 0;
        }
        // SAFETY: `until` is at most the number of births, and there is a state for each.
        unsafe {
            let birth = &*self.births.add(self.cursor);
            let owed = self.owed + birth.deaths as isize;
            let lane = birth.lane as usize & (LANES_MAX - 1);
            if birth.bytes != bytes || self.streams[lane] != stream || owed != 0 {
                return 0;
            }
            *self.states.add(self.cursor) = LIVE;
            self.cursor += 1;
            self.owed = 0;
            self.live += 1;
            self.served += 1;
            self.base + birth.offset as usize
        }
    }

    /// Ends the buffer that is expected to be freed next, if it is this one and in time. False:
    /// nothing has changed.
    ///
    /// # Safety
    /// As [`Hot::serve`].
    #[inline(always)]
    unsafe fn end(&mut self, address: usize, stream: u64) -> bool {
        if self.free_at >= self.free_end {
            return false;
        }
        // SAFETY: `free_end` is the number of frees; an ordinal in it has a state.
        unsafe {
            let free = &*self.frees.add(self.free_at);
            let state = self.states.add(free.ordinal as usize);
            let lane = free.lane as usize & (LANES_MAX - 1);
            if self.base + free.offset as usize != address
                || free.due as usize != self.cursor
                || self.streams[lane] != stream
                || *state != LIVE
            {
                return false;
            }
            *state = NOT_LIVE;
            self.free_at += 1;
            self.owed -= 1;
            self.live -= 1;
            true
        }
    }
}

/// `forebay_step_alloc`.
///
/// # Safety
/// `out` is null or valid for a pointer's write.
#[inline(always)]
pub unsafe fn alloc(step: u64, out: *mut *mut c_void, bytes: usize, stream: u64) -> Status {
    let thread = cache::current();
    // SAFETY: `thread` is this thread's; the runner is never unmapped; hot state is touched inside
    // `enter` by the owner; `out` as promised.
    unsafe {
        // A birth of the pool's has 0 bytes in the list: no request may match it.
        if !out.is_null() && bytes != 0 && cache::enter(thread) {
            let mut address = 0;
            let runner = runner::find(step);
            if !runner.is_null()
                && (*runner).is_owners(step, (*thread).serial)
                && (*runner).pool_lives()
            {
                address = (*(*runner).hot.get()).serve(bytes as u64, stream);
            }
            cache::leave(thread);
            if address != 0 {
                *out = address as *mut c_void;
                return Status::Ok;
            }
        }
        slow::alloc(step, out, bytes, stream)
    }
}

/// `forebay_step_free`.
///
/// # Safety
/// The caller gives the buffer up; any address is answered with an error, not a fault.
#[inline(always)]
pub unsafe fn free(step: u64, address: *mut c_void, stream: u64) -> Status {
    let thread = cache::current();
    // SAFETY: as in `alloc`.
    unsafe {
        if cache::enter(thread) {
            let mut ended = false;
            let runner = runner::find(step);
            if !runner.is_null()
                && (*runner).is_owners(step, (*thread).serial)
                && (*runner).pool_lives()
            {
                ended = (*(*runner).hot.get()).end(address as usize, stream);
            }
            cache::leave(thread);
            if ended {
                return Status::Ok;
            }
        }
        slow::free(step, address, stream)
    }
}
