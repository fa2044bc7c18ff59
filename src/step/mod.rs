//! Running a step by its plan: addresses in recorded order, out of one block of a pool.
//!
//! # Words
//!
//! - **step**: what a program does again and again: the same buffers in the same order. It is
//!   **recorded** once (room `pool::record`), planned (room `plan`), and then run by its plan.
//! - **lane**: one stream of a step, numbered from 0; a step names its streams when it begins.
//! - **binding**: a block of a pool, the **plan block**, and the plans that share it, each under a
//!   **signature**: a number for the shapes that a plan is for. A binding has one step open at
//!   a time.
//! - **ordinal**: the number of a birth in a step, from 0. A buffer is **due** at the ordinal
//!   before which it was freed when it was recorded.
//! - **fallback**: an allocation that the pool served because the plan could not.
//!
//! # What happens
//!
//! [`record`] makes a recorded step of a pool's log; [`script`] makes a plan a list of births and
//! frees; [`block`] takes the plan block and gives it back; [`binding`] owns it and the plans,
//! begins and ends steps; [`hot`] serves what comes as it was recorded; [`slow`] all else:
//! [`follow`] finds the place again after what was not recorded, [`gaps`] serves what is not
//! planned out of bytes that the plan leaves free.
//!
//! # Promises
//!
//! - A planned address is handed out only when no live buffer of the step has bytes of it, and each
//!   lane that used these bytes in this step is ordered before: as the plan's verifier proved for
//!   what goes as recorded, and as is checked buffer by buffer for what does not. Whatever does
//!   not fit is the pool's: a step never fails for going another way, and never corrupts where uses
//!   by other lanes are told or fenced before the free.
//! - Each lane of a step waits for all lanes of the step before, whatever plan that had. Recorded
//!   fences that reuse needs are issued again before the next birth; all of them from where a step
//!   goes another way, and where it is learnt anew.
//! - No driver call is made in a step of one lane that goes as recorded, and none between two such
//!   steps on one stream.
//! - The plan block is exactly as long as the highest plan was when it was bound, and is given up
//!   when the pool is short of memory and no step is open; the next step takes another.
//! - A step belongs to the thread that began it: calls of others are errors.
//!
//! Captures: a step may be captured whole, as the first of its binding on a stream that captures,
//! where it has one lane. The plan block is then the graph's until the capture is released: no
//! other step begins, and it is not given up. With several lanes a step is refused while a capture
//! is open, as the pool records no fence then.
//!
//! Must not move or free what is in use; must not wait for the device, but where a stream of an
//! earlier step is gone untold. Cost: an allocation or free as recorded is O(1), some ns, no lock;
//! another takes a lock and is O(log n), or O(n) while frees are late or bytes are shared with
//! what is not planned. Memory: some 70 bytes a buffer.

pub mod binding;
mod block;
mod follow;
mod gaps;
pub mod hot;
pub mod record;
mod runner;
mod script;
pub mod slow;
pub mod totals;

pub use binding::Binding;
pub use totals::Totals;
