//! Blocks of this process that other processes may open.
//!
//! Owns the list of them: a block enters it with its first handle and leaves it when it has been
//! freed and nobody holds it. Until then its pages stay where they are and nobody else gets them
//! (`forebay_export_open`). Promises that a block has one handle for its life, that a block that is
//! freed is opened no more, and that no lock is held while the pool is called.

use super::handle::Handle;
use super::{inside, random, unmarked};
use crate::cuda::Device;
use crate::pool::{self, Api, Export, Status};
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A block that has a handle.
struct Exported {
    base: usize,
    handle: Handle,
    device: Device,
    export: Export,
    /// How often importers hold it.
    holders: u64,
    /// The program has freed it.
    freed: bool,
}

#[derive(Default)]
struct Exports {
    by_key: HashMap<u64, Exported>,
    /// Keys of blocks that are not freed.
    by_base: HashMap<usize, u64>,
}

static EXPORTS: Mutex<Option<Exports>> = Mutex::new(None);

fn with<R>(f: impl FnOnce(&mut Exports) -> R) -> R {
    let mut exports: MutexGuard<'_, _> = EXPORTS.lock().unwrap_or_else(PoisonError::into_inner);
    f(exports.get_or_insert_default())
}

fn close(id: u64) {
    let Some(api) = pool::api() else { return };
    // SAFETY: a number. Of a pool that has ended nothing is left to close.
    inside(|| unsafe { (api.export_close)(id) });
}

/// The handle of the block at `base`, if it has one.
pub fn known(base: usize) -> Option<Handle> {
    with(|exports| {
        let key = exports.by_base.get(&base)?;
        exports.by_key.get(key).map(|exported| exported.handle)
    })
}

/// Gives the block at `base` a handle: that of `fresh` with a key of its own. `accept` looks at the
/// export first.
///
/// # Errors
/// The pool's status.
pub fn enter(
    api: &Api,
    base: usize,
    device: Device,
    fresh: Handle,
    accept: impl FnOnce(&Export) -> Result<(), Status>,
) -> Result<Handle, Status> {
    let mut export = Export::empty();
    // SAFETY: the start of a live block; a local to fill.
    let status = inside(|| unsafe { (api.export_open)(base, &raw mut export) });
    if status != pool::OK {
        return Err(status);
    }
    let Some(key) = random().filter(|_| accept(&export).is_ok()) else {
        close(export.id);
        return Err(pool::UNSUPPORTED);
    };
    let handle = Handle { key, ..fresh };
    let won = with(|exports| {
        if let Some(first) = exports.by_base.get(&base).and_then(|key| exports.by_key.get(key)) {
            return Err(first.handle);
        }
        let entered = Exported { base, handle, device, export, holders: 0, freed: false };
        exports.by_base.insert(base, key);
        exports.by_key.insert(key, entered);
        super::mark(base);
        Ok(())
    });
    match won {
        Ok(()) => Ok(handle),
        // Another thread was first.
        Err(first) => {
            close(export.id);
            Ok(first)
        }
    }
}

/// The program has freed the block at `base`.
pub fn freed(base: usize) {
    let closed = with(|exports| {
        let key = exports.by_base.remove(&base)?;
        let exported = exports.by_key.get_mut(&key)?;
        exported.freed = true;
        if exported.holders > 0 {
            return None;
        }
        let id = exported.export.id;
        exports.by_key.remove(&key);
        Some(id)
    });
    if let Some(id) = closed {
        unmarked(base);
        close(id);
    }
}

/// An importer takes hold of a block; what its pages are like. Nothing: it is freed, or never was.
pub fn hold(key: u64) -> Option<Export> {
    with(|exports| {
        let exported = exports.by_key.get_mut(&key).filter(|exported| !exported.freed)?;
        exported.holders += 1;
        Some(exported.export)
    })
}

/// The export behind a key.
pub fn of(key: u64) -> Option<Export> {
    with(|exports| exports.by_key.get(&key).map(|exported| exported.export))
}

/// An importer lets a block go, `times` over.
pub fn release(key: u64, times: u64) {
    let closed = with(|exports| {
        let exported = exports.by_key.get_mut(&key)?;
        exported.holders = exported.holders.saturating_sub(times);
        if exported.holders > 0 || !exported.freed {
            return None;
        }
        let gone = (exported.base, exported.export.id);
        exports.by_key.remove(&key);
        Some(gone)
    });
    if let Some((base, id)) = closed {
        unmarked(base);
        close(id);
    }
}

/// The device's pool is about to end, and its exports with it.
pub fn device_ends(device: Device) {
    let gone = with(|exports| {
        let keys = exports.by_key.iter().filter(|(_, e)| e.device == device).map(|(&key, _)| key);
        let keys: Vec<u64> = keys.collect();
        keys.iter().filter_map(|key| exports.by_key.remove(key)).collect::<Vec<_>>()
    });
    for exported in gone {
        with(|exports| {
            if exports.by_base.get(&exported.base) == Some(&exported.handle.key) {
                exports.by_base.remove(&exported.base);
            }
        });
        unmarked(exported.base);
        close(exported.export.id);
    }
}
