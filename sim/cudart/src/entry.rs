//! The wrapper of every exported function, and the macro that exports them.
//!
//! Promises that no panic leaves the library, that a failed call is the thread's last error, and
//! that a body is run with the caller's promise about its pointers, as the header has it.

use crate::state;
use crate::types::*;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs a body and keeps its error as the thread's last one.
pub fn enter(run: impl FnOnce() -> Answer) -> Code {
    let answer = catch_unwind(AssertUnwindSafe(run)).unwrap_or(Err(ERROR_UNKNOWN));
    match answer {
        Ok(()) => SUCCESS,
        Err(code) => {
            state::fail(code);
            code
        }
    }
}

/// Exports functions. `pair` exports two, the second with the thread's own default stream for
/// handle 0; the body has the word for that as its first name.
macro_rules! export {
    () => {};
    ($(#[$doc:meta])* fn $name:ident($($arg:ident: $kind:ty),* $(,)?) $body:block $($rest:tt)*) => {
        $(#[$doc])*
        ///
        /// # Safety
        ///
        /// Pointers are null or point to what the runtime's header asks for.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($arg: $kind),*) -> $crate::types::Code {
            #[allow(unused_unsafe, reason = "some bodies need none")]
            // SAFETY: the caller's promise.
            $crate::entry::enter(|| unsafe { $body })
        }
        $crate::entry::export! { $($rest)* }
    };
    ($(#[$doc:meta])* pair $own:ident fn $name:ident, $other:ident(
        $($arg:ident: $kind:ty),* $(,)?
    ) $body:block $($rest:tt)*) => {
        $(#[$doc])*
        ///
        /// # Safety
        ///
        /// Pointers are null or point to what the runtime's header asks for.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($arg: $kind),*) -> $crate::types::Code {
            let $own = false;
            #[allow(unused_unsafe, reason = "some bodies need none")]
            // SAFETY: the caller's promise.
            $crate::entry::enter(|| unsafe { $body })
        }

        $(#[$doc])*
        /// Handle 0 is the thread's own default stream.
        ///
        /// # Safety
        ///
        /// Pointers are null or point to what the runtime's header asks for.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $other($($arg: $kind),*) -> $crate::types::Code {
            let $own = true;
            #[allow(unused_unsafe, reason = "some bodies need none")]
            // SAFETY: the caller's promise.
            $crate::entry::enter(|| unsafe { $body })
        }
        $crate::entry::export! { $($rest)* }
    };
}
pub(crate) use export;

/// A place that must be there: 1 for a null pointer.
pub fn place<T>(to: *mut T) -> Result<*mut T, Code> {
    if to.is_null() { Err(ERROR_INVALID_VALUE) } else { Ok(to) }
}
