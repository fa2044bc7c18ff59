//! Connections to exporting processes: one each, shared by all threads and all handles.
//!
//! Owns the list of them. A connection lives while something of its process is mapped here. A
//! request is one message and its answer, under the connection's lock. Promises that a connection
//! is not closed while something is held over it, even when an answer is late: the exporter would
//! take back what is in use. Late answers are told by their numbers and thrown away.

use super::handle::Handle;
use super::socket::{self, Descriptor, Failure, Message};
use std::collections::HashMap;
use std::ffi::c_int;
use std::sync::{Arc, Mutex, PoisonError};

/// A connection.
pub struct Link {
    process: u32,
    nonce: u64,
    line: Mutex<Line>,
}

struct Line {
    socket: Option<Descriptor>,
    /// Of the last request.
    number: u64,
}

/// By process and its number.
type Links = HashMap<(u32, u64), Arc<Link>>;

static LINKS: Mutex<Option<Links>> = Mutex::new(None);

fn with<R>(f: impl FnOnce(&mut Links) -> R) -> R {
    f(LINKS.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_default())
}

/// The connection to the process that a handle names, made if there is none.
///
/// # Errors
/// [`Failure::Closed`] where the process is gone.
pub fn to(handle: &Handle) -> Result<Arc<Link>, Failure> {
    let (process, nonce) = (handle.process, handle.nonce);
    let link = with(|links| {
        let fresh = || {
            let line = Mutex::new(Line { socket: None, number: 0 });
            Arc::new(Link { process, nonce, line })
        };
        Arc::clone(links.entry((process, nonce)).or_insert_with(fresh))
    });
    let mut line = link.line.lock().unwrap_or_else(PoisonError::into_inner);
    if line.socket.is_none() {
        match find(process, nonce) {
            Ok(socket) => line.socket = Some(socket),
            Err(failure) => {
                drop(line);
                let_go(link);
                return Err(failure);
            }
        }
    }
    drop(line);
    Ok(link)
}

/// Forgets a connection that nothing is held over any more.
pub fn let_go(link: Arc<Link>) {
    with(|links| {
        // The list's and this one: nobody else gets one while the list is locked.
        if Arc::strong_count(&link) == 2 {
            links.remove(&(link.process, link.nonce));
        }
    });
}

/// Connects to a process's socket, in whichever of the folders it lies.
fn find(process: u32, nonce: u64) -> Result<Descriptor, Failure> {
    let name = socket::name_of(process, nonce);
    for folder in socket::folders() {
        match socket::check_folder(&folder) {
            Ok(()) => {}
            Err(None) => continue,
            Err(Some(wrong)) => return Err(Failure::Other(wrong)),
        }
        match socket::connect(&folder.join(&name)) {
            Ok(socket) if socket::is_own_user(&socket) => return Ok(socket),
            Ok(_) => {
                let why = format!("the socket of process {process} is another user's");
                return Err(Failure::Other(why));
            }
            Err(Failure::Closed) => {}
            Err(failure) => return Err(failure),
        }
    }
    Err(Failure::Closed)
}

impl Link {
    /// Sends a request and waits for its answer; its descriptors are the caller's to close.
    ///
    /// # Errors
    /// [`Failure::Closed`]: the process is gone, and with it what it held for this one.
    /// [`Failure::Late`]: it does not answer; it will have got the request.
    pub fn ask(
        &self,
        kind: u64,
        key: u64,
        more: [u64; 2],
    ) -> Result<(Message, Vec<c_int>), Failure> {
        let mut line = self.line.lock().unwrap_or_else(PoisonError::into_inner);
        line.number += 1;
        let number = line.number;
        let Some(socket) = &line.socket else { return Err(Failure::Closed) };
        let result = exchange(socket, number, kind, key, more);
        if matches!(result, Err(Failure::Closed)) {
            line.socket = None;
        }
        result
    }
}

fn exchange(
    socket: &Descriptor,
    number: u64,
    kind: u64,
    key: u64,
    [first, count]: [u64; 2],
) -> Result<(Message, Vec<c_int>), Failure> {
    socket::send(socket, &[number, kind, key, first, count, 0, 0, 0], &[], 0)?;
    loop {
        let (answer, fds) = socket::receive(socket, 0)?;
        if answer[0] == number {
            return Ok((answer, fds));
        }
        socket::close(&fds);
    }
}
