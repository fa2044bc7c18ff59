//! Blocks of other processes that are mapped here.
//!
//! Owns the list of them, with how often each is open. Promises: a handle that is open has one
//! address, from any thread; a mapping outlives the process that made the memory; no lock is held
//! while the pool, the driver or the other process is called. Descriptors come a few at a time and
//! are closed at once, so none stays open, whatever is mapped.

use super::handle::Handle;
use super::link::{self, Link};
use super::socket::{self, Failure};
use super::{inside, requests};
use crate::cuda::{Device, Handle as Context};
use crate::pool::{self, Api, Export};
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// A block that is mapped.
struct Import {
    /// Where the block begins, in the first page.
    address: usize,
    bytes: usize,
    /// Length of all its pages.
    mapped: usize,
    /// Whose it is, and where it is mapped.
    id: Id,
    context: Context,
    /// The device whose memory it is.
    owner: Device,
    /// How often it is open.
    references: u64,
    link: Arc<Link>,
}

/// The exporting process's number, its block's key, the device of the context here.
type Id = (u64, u64, Device);

enum State {
    /// A thread is about it.
    Arriving,
    /// Mapped; the first page's address.
    There(usize),
}

#[derive(Default)]
struct Imports {
    by_id: HashMap<Id, State>,
    by_page: BTreeMap<usize, Import>,
}

static IMPORTS: Mutex<Option<Imports>> = Mutex::new(None);
static ARRIVED: Condvar = Condvar::new();

fn lock() -> MutexGuard<'static, Option<Imports>> {
    IMPORTS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Why a block was not opened.
pub enum Refusal {
    /// The process or its block is gone.
    Gone,
    /// The pool's status, and its sentence.
    Pool(pool::Status, String),
    /// All else, in words.
    Other(String),
}

impl From<Failure> for Refusal {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Closed => Self::Gone,
            Failure::Late => Self::Other("its process does not answer".to_owned()),
            Failure::Other(why) => Self::Other(why),
        }
    }
}

/// Where a block is to be mapped.
#[derive(Clone, Copy)]
pub struct Target<'a> {
    /// The pool's functions.
    pub api: &'a Api,
    /// The pool of the current context.
    pub pool: usize,
    /// That context.
    pub context: Context,
    /// Its device.
    pub device: Device,
    /// The device whose memory the block is.
    pub owner: Device,
}

/// The block's address here: the one it has, if it is open.
///
/// # Errors
/// As of [`Refusal`].
pub fn open(handle: &Handle, target: Target<'_>) -> Result<usize, Refusal> {
    let id = (handle.nonce, handle.key, target.device);
    let mut guard = lock();
    loop {
        let imports = guard.get_or_insert_default();
        match imports.by_id.get(&id) {
            Some(&State::There(page)) => {
                let import = imports.by_page.get_mut(&page).ok_or(Refusal::Gone)?;
                import.references += 1;
                return Ok(import.address);
            }
            Some(State::Arriving) => {
                guard = ARRIVED.wait(guard).unwrap_or_else(PoisonError::into_inner);
            }
            None => {
                imports.by_id.insert(id, State::Arriving);
                break;
            }
        }
    }
    drop(guard);
    let result = fetch(handle, target);
    let mut guard = lock();
    let imports = guard.get_or_insert_default();
    let address = match result {
        Ok((page, export, link)) => {
            let address = page + export.offset as usize;
            let bytes = handle.bytes as usize;
            let Target { context, owner, .. } = target;
            let mapped = export.bytes as usize;
            let import = Import { address, bytes, mapped, id, context, owner, references: 1, link };
            imports.by_page.insert(page, import);
            crate::sizes::note(address, bytes);
            imports.by_id.insert(id, State::There(page));
            super::mark(page);
            Ok(address)
        }
        Err(refusal) => {
            imports.by_id.remove(&id);
            Err(refusal)
        }
    };
    drop(guard);
    ARRIVED.notify_all();
    address
}

/// Gets a block from its process and maps it: the first page's address.
fn fetch(handle: &Handle, target: Target<'_>) -> Result<(usize, Export, Arc<Link>), Refusal> {
    let link = link::to(handle)?;
    let opened = match link.ask(requests::OPEN, handle.key, [0; 2]) {
        Ok((answer, fds)) => {
            socket::close(&fds);
            described(&answer, handle)
        }
        Err(failure) => Err(failure.into()),
    };
    let result = opened.and_then(|export| {
        let page = map(handle, &export, &link, target)?;
        Ok((page, export))
    });
    match result {
        Ok((page, export)) => Ok((page, export, link)),
        Err(refusal) => {
            // Also after a late answer: the exporter has, or will have, noted that it is held.
            if !matches!(refusal, Refusal::Gone) {
                tell_closed(&link, handle.key);
            }
            link::let_go(link);
            Err(refusal)
        }
    }
}

fn tell_closed(link: &Link, key: u64) {
    if let Ok((_, fds)) = link.ask(requests::CLOSE, key, [0; 2]) {
        socket::close(&fds);
    }
}

fn described(answer: &socket::Message, handle: &Handle) -> Result<Export, Refusal> {
    let &[_, status, bytes, page_bytes, offset, count, ..] = answer;
    if status != requests::DONE {
        return Err(refused(status));
    }
    let export = Export::of(bytes, page_bytes, offset, count);
    // The pool compares the rest.
    if handle.bytes == 0 || offset.checked_add(handle.bytes).is_none_or(|end| end > bytes) {
        return Err(Refusal::Other("the handle's length is not its block's".to_owned()));
    }
    Ok(export)
}

fn refused(status: u64) -> Refusal {
    match status {
        requests::GONE => Refusal::Gone,
        requests::UNSUPPORTED => Refusal::Other("its device shares no memory".to_owned()),
        requests::NO_DESCRIPTORS => {
            Refusal::Other("its process may open no more descriptors (RLIMIT_NOFILE)".to_owned())
        }
        _ => Refusal::Other("its process refuses".to_owned()),
    }
}

fn map(
    handle: &Handle,
    export: &Export,
    link: &Link,
    target: Target<'_>,
) -> Result<usize, Refusal> {
    let mut id = 0;
    let api = target.api;
    // SAFETY: locals to read and fill.
    let begun = inside(|| unsafe { (api.import_open)(target.pool, export, &raw mut id) });
    checked(api, begun)?;
    let mut page = 0;
    let mapped = take_pages(api, id, handle.key, export.count, link).and_then(|()| {
        // SAFETY: a local to fill.
        checked(api, inside(|| unsafe { (api.import_map)(id, &raw mut page) }))
    });
    if mapped.is_err() {
        // SAFETY: a number; one that has ended is refused.
        inside(|| unsafe { (api.import_cancel)(id) });
    }
    mapped.map(|()| page)
}

fn checked(api: &Api, status: pool::Status) -> Result<(), Refusal> {
    match status {
        pool::OK => Ok(()),
        status => Err(Refusal::Pool(status, api.why())),
    }
}

/// Brings all pages of a block, as many at a time as both processes may have descriptors for.
fn take_pages(api: &Api, id: u64, key: u64, pages: u64, link: &Link) -> Result<(), Refusal> {
    let mut first = 0;
    while first < pages {
        let wanted = (socket::room() as u64).min(pages - first);
        let (answer, fds) = link.ask(requests::PAGES, key, [first, wanted])?;
        // Fewer than were sent: this process may have no more, and the driver needs some as well.
        let sent = answer[2].min(wanted);
        let (of_use, beyond) = match fds.len() as u64 {
            came if came < sent => fds.split_at(fds.len().div_ceil(2)),
            _ => fds.split_at(fds.len()),
        };
        socket::close(beyond);
        let came = of_use.len() as u64;
        let result = if answer[1] != requests::DONE {
            Err(refused(answer[1]))
        } else if came == 0 {
            Err(Refusal::Other("this process may open no more descriptors".to_owned()))
        } else {
            // SAFETY: so many descriptors, which are open.
            checked(
                api,
                inside(|| unsafe { (api.import_pages)(id, of_use.as_ptr(), of_use.len()) }),
            )
        };
        socket::close(of_use);
        result?;
        first += came;
    }
    Ok(())
}

/// What lies around an address: the block's start and length. Nothing: no other process's.
pub fn find(address: usize) -> Option<(usize, usize)> {
    let guard = lock();
    let (_, import) = guard.as_ref()?.by_page.range(..=address).next_back()?;
    let inside = address.checked_sub(import.address)? < import.bytes;
    inside.then_some((import.address, import.bytes))
}

/// Whether an address lies on the pages of a block that is mapped here.
pub fn covers(address: usize) -> bool {
    let guard = lock();
    let found = guard.as_ref().and_then(|i| i.by_page.range(..=address).next_back());
    found.is_some_and(|(page, import)| address - page < import.mapped)
}

/// Whether an address is the first page's of a block that is mapped: the pool would free it.
pub fn is_page(address: usize) -> bool {
    lock().as_ref().is_some_and(|imports| imports.by_page.contains_key(&address))
}

/// Closes a block once. `wait` is called with its context, and the device whose memory it is,
/// before the last close unmaps it.
///
/// # Errors
/// What `wait` answers; the block stays open then. `None`: no block is open at the address.
pub fn close<E>(
    api: &Api,
    address: usize,
    wait: impl FnOnce(Context, Device) -> Result<(), E>,
) -> Result<(), Option<E>> {
    let (context, owner) = match last_of(address).ok_or(None)? {
        Some(last) => last,
        None => return Ok(()),
    };
    wait(context, owner).map_err(Some)?;
    let mut guard = lock();
    let imports = guard.get_or_insert_default();
    let page = page_of(imports, address).ok_or(None)?;
    let import = imports.by_page.get_mut(&page).ok_or(None)?;
    import.references -= 1;
    if import.references > 0 {
        return Ok(());
    }
    let Some(import) = imports.by_page.remove(&page) else { return Ok(()) };
    imports.by_id.remove(&import.id);
    drop(guard);
    super::unmarked(page);
    // SAFETY: the first page's address, as the pool gave it; the device has been waited for.
    inside(|| unsafe { (api.free)(page) });
    tell_closed(&import.link, import.id.1);
    link::let_go(import.link);
    Ok(())
}

/// Takes a reference off a block that has more; else answers where its last is, and whose it is.
fn last_of(address: usize) -> Option<Option<(Context, Device)>> {
    let mut guard = lock();
    let imports = guard.as_mut()?;
    let page = page_of(imports, address)?;
    let import = imports.by_page.get_mut(&page)?;
    if import.references > 1 {
        import.references -= 1;
        return Some(None);
    }
    Some(Some((import.context, import.owner)))
}

fn page_of(imports: &Imports, address: usize) -> Option<usize> {
    let (&page, import) = imports.by_page.range(..=address).next_back()?;
    (import.address == address).then_some(page)
}

/// The device's pool has ended, and with it what was mapped there.
pub fn device_ended(device: Device) {
    let gone: Vec<(usize, Import)> = {
        let mut guard = lock();
        let Some(imports) = guard.as_mut() else { return };
        let gone: Vec<_> =
            imports.by_page.extract_if(.., |_, import| import.id.2 == device).collect();
        for (_, import) in &gone {
            imports.by_id.remove(&import.id);
        }
        gone
    };
    for (page, import) in gone {
        super::unmarked(page);
        tell_closed(&import.link, import.id.1);
        link::let_go(import.link);
    }
}
