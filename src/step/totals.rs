//! What a binding has counted: each figure is named here, and added up by this list.
//!
//! Owns the list of figures and their meaning. A step counts in one of its own, which its end adds
//! to the binding's. Cost: a word a figure.

/// The figures out of one list: fields, and how a step's are added.
macro_rules! totals {
    ($($(#[$doc:meta])+ $name:ident,)+) => {
        /// What a binding has done so far.
        #[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
        pub struct Totals {
            $($(#[$doc])+ pub $name: u64,)+
        }

        impl Totals {
            /// Adds what a step has counted. It leaves what is no count at 0.
            pub(super) fn add(&mut self, step: &Totals) {
                $(self.$name += step.$name;)+
            }
        }
    };
}

totals! {
    /// Steps that have ended.
    steps,
    /// Allocations that a plan served.
    served,
    /// Allocations that the pool served as recorded: of buffers that outlive the step.
    by_pool,
    /// Allocations that the pool served because they were not as recorded, or their bytes were
    /// in use.
    fallbacks,
    /// Recorded allocations that did not come.
    missing,
    /// Frees of planned buffers later than recorded, or on another lane.
    late,
    /// Allocations that were not planned and were served out of bytes that the plan leaves free.
    gaps_served,
    /// Those that the pool served: no gap was long enough, or the lifetime not known.
    gaps_missed,
    /// Recorded fences that were issued again.
    fences,
    /// Times that the plan block was given up for memory.
    given_up,
    /// Plans that were made anew after a step had gone another way.
    replanned,
    /// Bytes of the plan block, and 0 while it is given up. No count.
    plan_block_bytes,
    /// Plans kept. No count.
    plans,
    /// Recorded fences that were left out: no reuse of bytes needs them.
    fences_left_out,
}
