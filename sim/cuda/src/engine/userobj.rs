//! User objects: a reference count with a destructor, for things that graphs use.
//!
//! Owns the count. Promises that the destructor runs exactly once, on the engine's own thread,
//! after the last reference has gone: the program's own, those of graphs, and those of executable
//! graphs, which last until the last launch is done. It must not run the destructor on the
//! thread that lets go. Cost: one atomic operation.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use super::host::{HostFn, HostThread};
use super::{Code, Engine, code};

/// `CU_USER_OBJECT_NO_DESTRUCTOR_SYNC`: the only flag, and required.
const NO_DESTRUCTOR_SYNC: u32 = 1;
/// `CU_GRAPH_USER_OBJECT_MOVE`.
const MOVE: u32 = 1;
const HANDLE_BASE: u64 = 0x7355_0000_0000;
const HANDLE_STEP: u64 = 0x40;

/// One user object.
pub struct UserObject {
    refs: AtomicI64,
    destroy: HostFn,
    data: usize,
    host: Arc<HostThread>,
}

impl UserObject {
    /// Whether references are left.
    pub fn alive(&self) -> bool {
        self.refs.load(Ordering::Relaxed) > 0
    }

    fn retain(&self, count: u32) {
        self.refs.fetch_add(i64::from(count), Ordering::Relaxed);
    }

    fn release(&self, count: u32) {
        let before = self.refs.fetch_sub(i64::from(count), Ordering::AcqRel);
        if before > 0 && before <= i64::from(count) {
            self.host.destructor(self.destroy, self.data);
        }
    }
}

/// References that a graph holds. Given back when it is dropped.
pub(crate) struct Held {
    object: Arc<UserObject>,
    handle: u64,
    count: u32,
}

impl Clone for Held {
    fn clone(&self) -> Held {
        self.object.retain(self.count);
        Held { object: Arc::clone(&self.object), handle: self.handle, count: self.count }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.object.release(self.count);
    }
}

fn counted(count: u32) -> Result<(), Code> {
    match count == 0 || count > i32::MAX as u32 {
        true => Err(code::INVALID_VALUE),
        false => Ok(()),
    }
}

impl Engine {
    /// Makes a user object with `refs` references that the program owns.
    pub fn create_user_object(
        &self,
        data: usize,
        destroy: HostFn,
        refs: u32,
        flags: u32,
    ) -> Result<u64, Code> {
        counted(refs)?;
        if flags != NO_DESTRUCTOR_SYNC {
            return Err(code::INVALID_VALUE);
        }
        let mut state = self.lock();
        let handle = HANDLE_BASE + state.fresh() * HANDLE_STEP;
        let host = Arc::clone(&self.host);
        let object = UserObject { refs: AtomicI64::new(i64::from(refs)), destroy, data, host };
        state.user_objects.retain(|_, o| o.alive());
        state.user_objects.insert(handle, Arc::new(object));
        Ok(handle)
    }

    fn user_object(&self, handle: u64) -> Result<Arc<UserObject>, Code> {
        let found = self.lock().user_objects.get(&handle).filter(|o| o.alive()).cloned();
        if found.is_none() {
            self.report(
                "a user object that is not there",
                format!("user object {handle:#x} used without a reference"),
            );
        }
        found.ok_or(code::INVALID_VALUE)
    }

    /// Adds references that the program owns.
    pub fn retain_user_object(&self, handle: u64, count: u32) -> Result<(), Code> {
        counted(count)?;
        self.user_object(handle)?.retain(count);
        Ok(())
    }

    /// Gives back references that the program owns.
    pub fn release_user_object(&self, handle: u64, count: u32) -> Result<(), Code> {
        counted(count)?;
        self.user_object(handle)?.release(count);
        Ok(())
    }

    /// Gives a graph references: new ones, or with `CU_GRAPH_USER_OBJECT_MOVE` the program's.
    /// Also allowed on a graph that a capture is filling.
    pub fn graph_retain(
        &self,
        graph: u64,
        handle: u64,
        count: u32,
        flags: u32,
    ) -> Result<(), Code> {
        counted(count)?;
        if flags & !MOVE != 0 {
            return Err(code::INVALID_VALUE);
        }
        let object = self.user_object(handle)?;
        let mut state = self.lock();
        let graph = state.graphs.get_mut(&graph).ok_or(code::INVALID_VALUE)?;
        if flags & MOVE == 0 {
            object.retain(count);
        }
        graph.held.push(Held { object, handle, count });
        Ok(())
    }

    /// Takes references from a graph.
    pub fn graph_release(&self, graph: u64, handle: u64, count: u32) -> Result<(), Code> {
        counted(count)?;
        let mut state = self.lock();
        let graph = state.graphs.get_mut(&graph).ok_or(code::INVALID_VALUE)?;
        let mine = |h: &&mut Held| h.handle == handle;
        let owned: u64 = graph.held.iter_mut().filter(mine).map(|h| u64::from(h.count)).sum();
        if owned < u64::from(count) {
            return Err(code::INVALID_VALUE);
        }
        let mut left = count;
        for held in graph.held.iter_mut().filter(mine) {
            let part = left.min(held.count);
            held.object.release(part);
            held.count -= part;
            left -= part;
        }
        graph.held.retain(|h| h.count > 0);
        Ok(())
    }
}
