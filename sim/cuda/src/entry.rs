//! The one wrapper that every exported function runs in, and the table of calls.
//!
//! Owns what is alike in all calls: refused after a fork and after exit, refused before
//! `cuInit`, the script of faults, the need for a context and its sticky error, the rules
//! of stream capture, the virtual clock, the journal. A body runs under the world's lock; a
//! panic in it becomes code 999 and an entry in the list of misuse, never an unwinding
//! through C.

use crate::abi::TABLES;
use crate::engine::host::in_callback;
use crate::misuse;
use crate::results::*;
use crate::world::{self, World};
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::OnceLock;

/// An exported function's address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Address(pub *const ());

// SAFETY: the address of a function of this library, which is never unloaded; nothing is read
// through it here.
unsafe impl Sync for Address {}

/// What must be there before a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Needs {
    /// Nothing: it may come before `cuInit`.
    Nothing,
    /// `cuInit`, but no context.
    Init,
    /// A current context.
    Context,
}

/// One row of the table of calls.
#[derive(Clone, Copy, Debug)]
pub struct Call {
    /// The exported name, such as `cuMemAlloc_v2`.
    pub name: &'static str,
    /// The name that `cuGetProcAddress` is asked for, such as `cuMemAlloc`.
    pub asked: &'static str,
    /// The CUDA version in which this form came, such as 3020.
    pub since: u32,
    /// The form for per-thread default streams, ending in `_ptsz` or `_ptds`.
    pub per_thread: bool,
    /// What must be there before.
    pub needs: Needs,
    /// Refused while a capture forbids unsafe calls.
    pub unsafe_in_capture: bool,
    /// Answers the context's sticky error.
    pub sticky: bool,
    /// The function.
    pub address: Address,
}

impl Call {
    /// A call that needs a context, answers its sticky error, and is legal during captures.
    pub const fn new(
        name: &'static str,
        asked: &'static str,
        since: u32,
        address: *const (),
    ) -> Call {
        Call {
            name,
            asked,
            since,
            per_thread: false,
            needs: Needs::Context,
            unsafe_in_capture: false,
            sticky: true,
            address: Address(address),
        }
    }

    /// Needs `cuInit` but no context, and so answers no context's error.
    pub const fn without_context(mut self) -> Call {
        self.needs = Needs::Init;
        self.sticky = false;
        self
    }

    /// May come before `cuInit`.
    pub const fn before_init(mut self) -> Call {
        self.needs = Needs::Nothing;
        self.sticky = false;
        self
    }

    /// Answers the current context's sticky error, if there is a current context.
    pub const fn answers_sticky(mut self) -> Call {
        self.sticky = true;
        self
    }

    /// Does not answer the context's sticky error.
    pub const fn not_sticky(mut self) -> Call {
        self.sticky = false;
        self
    }

    /// Refused while a capture forbids unsafe calls.
    pub const fn unsafe_in_capture(mut self) -> Call {
        self.unsafe_in_capture = true;
        self
    }

    /// The form for per-thread default streams.
    pub const fn per_thread(mut self) -> Call {
        self.per_thread = true;
        self
    }
}

/// A row for a function in scope: `call!(cuInit, 2000)`, or with the name that
/// `cuGetProcAddress` is asked for: `call!(cuMemAlloc_v2, "cuMemAlloc", 3020)`.
#[macro_export]
macro_rules! call {
    ($function:ident, $since:literal) => {
        $crate::call!($function, stringify!($function), $since)
    };
    ($function:ident, $asked:expr, $since:literal) => {
        $crate::entry::Call::new(stringify!($function), $asked, $since, $function as *const ())
    };
}

/// All rows.
pub fn calls() -> impl Iterator<Item = &'static Call> {
    TABLES.iter().flat_map(|table| table.iter())
}

/// The row of an exported name.
pub fn find(name: &str) -> Option<&'static Call> {
    static INDEX: OnceLock<HashMap<&'static str, &'static Call>> = OnceLock::new();
    INDEX.get_or_init(|| calls().map(|c| (c.name, c)).collect()).get(name).copied()
}

/// Waits, with no lock of the world held.
pub type Until = Box<dyn FnOnce() -> Result<(), CUresult>>;
/// Ends the call under the world's lock.
pub type After = Box<dyn FnOnce(&mut World) -> Result<(), CUresult>>;

/// What a call waits for, and what it does afterwards.
pub struct Wait {
    until: Option<Until>,
    after: Option<After>,
}

impl Wait {
    /// Waits for nothing.
    pub fn nothing() -> Wait {
        Wait { until: None, after: None }
    }

    /// Waits with `until`.
    pub fn on(until: impl FnOnce() -> Result<(), CUresult> + 'static) -> Wait {
        Wait { until: Some(Box::new(until)), after: None }
    }

    /// Then does `after` under the world's lock, if the wait went well.
    pub fn then(
        mut self,
        after: impl FnOnce(&mut World) -> Result<(), CUresult> + 'static,
    ) -> Wait {
        self.after = match self.after.take() {
            None => Some(Box::new(after)),
            Some(first) => Some(Box::new(move |world| first(world).and_then(|()| after(world)))),
        };
        self
    }

    /// Goes on with `after` even if what was waited for failed.
    pub fn even_if_failed(mut self) -> Wait {
        if let Some(until) = self.until.take() {
            self.until = Some(Box::new(move || {
                let _ = until();
                Ok(())
            }));
        }
        self
    }

    /// Waits for both, this one first.
    pub fn and(self, other: Wait) -> Wait {
        let until = match (self.until, other.until) {
            (Some(a), Some(b)) => Some(Box::new(move || a().and_then(|()| b())) as Until),
            (a, b) => a.or(b),
        };
        let after = match (self.after, other.after) {
            (Some(a), Some(b)) => {
                Some(Box::new(move |w: &mut World| a(w).and_then(|()| b(w))) as After)
            }
            (a, b) => a.or(b),
        };
        Wait { until, after }
    }
}

/// Runs a call that waits for nothing. `name` is the exported name; `args` is asked only when
/// someone reads it.
pub fn enter(
    name: &'static str,
    args: impl FnOnce() -> String,
    body: impl FnOnce(&mut World) -> Result<(), CUresult>,
) -> CUresult {
    enter_waiting(name, args, |world| body(world).map(|()| Wait::nothing()))
}

/// Runs a call that waits for queued work: the body says what for, the wait itself holds no
/// lock of the world, and what follows holds it again.
pub fn enter_waiting(
    name: &'static str,
    args: impl FnOnce() -> String,
    body: impl FnOnce(&mut World) -> Result<Wait, CUresult>,
) -> CUresult {
    let Some(call) = find(name) else {
        misuse::record(misuse::MISTAKE, format!("{name} is not in the table of calls"));
        return CUDA_ERROR_UNKNOWN;
    };
    if let Some(code) = world::closed(call.needs == Needs::Nothing && name != "cuInit") {
        return code;
    }
    if call.needs != Needs::Nothing && in_callback() {
        let text = format!("{name} from a host function, a stream callback or a destructor");
        misuse::record("call where none is allowed", text);
        return CUDA_ERROR_NOT_PERMITTED;
    }
    let result = catch_unwind(AssertUnwindSafe(|| {
        let code = run(call, args, body);
        let engine = world::lock().engine.clone();
        engine.tick();
        code
    }));
    result.unwrap_or_else(|panic| {
        let text = panic
            .downcast_ref::<String>()
            .map(String::as_str)
            .or_else(|| panic.downcast_ref::<&str>().copied())
            .unwrap_or("a panic without words");
        misuse::record(misuse::MISTAKE, format!("{name}: {text}"));
        CUDA_ERROR_UNKNOWN
    })
}

fn run(
    call: &'static Call,
    args: impl FnOnce() -> String,
    body: impl FnOnce(&mut World) -> Result<Wait, CUresult>,
) -> CUresult {
    let mut guard = world::lock();
    let generation = guard.generation;
    let mut stall_ns = 0;
    let answer = guard.begin(call, &mut stall_ns).and_then(|()| body(&mut guard));
    let done = match answer {
        Ok(Wait { until: None, after }) => after.map_or(Ok(()), |after| after(&mut guard)),
        Ok(Wait { until: Some(until), after }) => {
            let work = guard.take_work();
            drop(guard);
            let waited = until();
            guard = world::lock();
            guard.put_work(work);
            if guard.generation == generation {
                waited.and_then(|()| after.map_or(Ok(()), |after| after(&mut guard)))
            } else {
                Err(CUDA_ERROR_CONTEXT_IS_DESTROYED)
            }
        }
        Err(code) => Err(code),
    };
    guard.end(call, args, done, stall_ns)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recorded(kind: &str, part: &str) -> bool {
        misuse::all().0.iter().any(|m| m.kind == kind && m.text.contains(part))
    }

    #[test]
    fn a_panic_is_code_999_and_the_world_goes_on() {
        let code = enter("cuDriverGetVersion", String::new, |_| panic!("on purpose"));
        assert_eq!(code, CUDA_ERROR_UNKNOWN);
        assert!(recorded(misuse::MISTAKE, "cuDriverGetVersion: on purpose"));
        let code = enter_waiting("cuDriverGetVersion", String::new, |_| {
            Ok(Wait::on(|| Ok(())).then(|_| panic!("afterwards")))
        });
        assert_eq!(code, CUDA_ERROR_UNKNOWN);
        assert_eq!(enter("cuDriverGetVersion", String::new, |_| Ok(())), CUDA_SUCCESS);
    }

    #[test]
    fn a_call_without_a_row_is_a_mistake_of_the_simulation() {
        assert_eq!(enter("cuNothing", String::new, |_| Ok(())), CUDA_ERROR_UNKNOWN);
        assert!(recorded(misuse::MISTAKE, "cuNothing is not in the table"));
    }

    #[test]
    fn waits_come_in_order_and_stop_at_the_first_failure() {
        let (say, heard) = std::sync::mpsc::channel();
        let step = |name: &'static str, result: Result<(), CUresult>| {
            let say = say.clone();
            move || {
                say.send(name).expect("a listener");
                result
            }
        };
        let after = |name: &'static str| {
            let step = step(name, Ok(()));
            move |_: &mut World| step()
        };
        let run = |wait: Wait| {
            let code = enter_waiting("cuDriverGetVersion", String::new, |_| Ok(wait));
            (code, heard.try_iter().collect::<Vec<_>>())
        };
        let both = Wait::on(step("a", Ok(()))).then(after("c")).and(Wait::on(step("b", Ok(()))));
        assert_eq!(run(both.then(after("d"))), (0, vec!["a", "b", "c", "d"]));
        let fails = Wait::on(step("a", Err(700))).and(Wait::on(step("b", Ok(()))));
        assert_eq!(run(fails.then(after("c"))), (700, vec!["a"]));
        let quiet = Wait::on(step("a", Err(700))).even_if_failed().then(after("b"));
        assert_eq!(run(quiet), (0, vec!["a", "b"]));
        assert_eq!(run(Wait::nothing().then(after("a"))), (0, vec!["a"]));
    }
}
