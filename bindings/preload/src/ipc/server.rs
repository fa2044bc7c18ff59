//! The thread that hands exported blocks to other processes.
//!
//! It starts with the first handle. Owns the socket that it listens at, a connection for each
//! importing process, and what that one holds. Every request has one answer, and the thread waits
//! for nobody: an importer that does not take its answers loses its connection. Descriptors are
//! made for a message and closed when it is sent.
//!
//! What an importer holds is let go when its connection has closed and the process is gone (its
//! work on the device has ended then), or [`GRACE`] later: it executes another program.
//!
//! Cost: one thread, asleep; a descriptor for each importing process, and one to listen.

use super::socket::{self, DESCRIPTORS_MAX, Descriptor, Failure, Message};
use super::{exports, inside, random, requests};
use crate::background;
use crate::pool::{self, Export};
use std::collections::HashMap;
use std::ffi::{CString, c_int};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long a process is waited for whose connection has closed.
const GRACE: Duration = Duration::from_secs(10);
/// How long no connection is accepted after one could not be.
const PAUSE: Duration = Duration::from_millis(100);
/// The most importing processes.
const PEERS_MAX: usize = 4096;

/// Who this process is to others.
#[derive(Clone, Copy)]
pub struct Identity {
    /// Its number.
    pub process: u32,
    /// The number that it drew.
    pub nonce: u64,
}

static SERVING: Mutex<Option<Identity>> = Mutex::new(None);
/// The socket's path, for the hook at exit; null: none. Leaked.
static SOCKET: AtomicPtr<(libc::pid_t, CString)> = AtomicPtr::new(std::ptr::null_mut());

/// This process's identity, if it has begun to serve.
pub fn identity() -> Option<Identity> {
    *SERVING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Starts to serve, unless that is done.
///
/// # Errors
/// Why it cannot.
pub fn begin() -> Result<Identity, String> {
    let mut serving = SERVING.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(identity) = *serving {
        return Ok(identity);
    }
    let nonce = random().ok_or("no random numbers")?;
    let process = std::process::id();
    let folder = socket::own_folder()?;
    socket::remove_stale(&folder);
    let path = folder.join(socket::name_of(process, nonce));
    let listener = socket::listen(&path)?;
    if let Err(why) = start(listener) {
        let _gone_already = std::fs::remove_file(&path);
        return Err(why);
    }
    remove_at_exit(path);
    let identity = Identity { process, nonce };
    *serving = Some(identity);
    Ok(identity)
}

fn start(listener: Descriptor) -> Result<(), String> {
    let run = move || Server::new(listener).run();
    background::start("forebay-ipc", run).map_err(|error| format!("no thread: {error}"))
}

fn remove_at_exit(path: PathBuf) {
    let Ok(name) = CString::new(path.as_os_str().as_bytes()) else { return };
    // SAFETY: no arguments.
    let process = unsafe { libc::getpid() };
    SOCKET.store(Box::into_raw(Box::new((process, name))), Ordering::Release);
    // SAFETY: the hook stays loaded and does not unwind. Refused: the file is found to be stale.
    unsafe { libc::atexit(remove_socket) };
}

extern "C" fn remove_socket() {
    // SAFETY: null or leaked.
    if let Some((process, name)) = unsafe { SOCKET.load(Ordering::Acquire).as_ref() } {
        // SAFETY: no arguments; NUL-terminated. A child's exit is not its parent's.
        unsafe {
            if *process == libc::getpid() {
                libc::unlink(name.as_ptr());
            }
        }
    }
}

/// An importing process.
struct Peer {
    socket: Descriptor,
    process: libc::pid_t,
    /// How often it holds which key.
    held: HashMap<u64, u64>,
}

/// One whose connection has closed.
struct Leaving {
    /// Becomes readable when the process is gone.
    process: Option<Descriptor>,
    until: Instant,
    held: HashMap<u64, u64>,
}

struct Server {
    listener: Descriptor,
    peers: Vec<Peer>,
    leaving: Vec<Leaving>,
    paused_until: Option<Instant>,
}

impl Server {
    fn new(listener: Descriptor) -> Self {
        Self { listener, peers: Vec::new(), leaving: Vec::new(), paused_until: None }
    }

    fn run(mut self) {
        loop {
            let ready = self.wait();
            let now = Instant::now();
            self.paused_until = self.paused_until.filter(|&until| until > now);
            let is_ready = |fd: &Descriptor| ready.contains(&fd.number());
            let gone = |leaving: &mut Leaving| {
                leaving.until <= now || leaving.process.as_ref().is_none_or(is_ready)
            };
            for leaving in self.leaving.extract_if(.., gone) {
                leaving.held.into_iter().for_each(|(key, times)| exports::release(key, times));
            }
            let mut closed = Vec::new();
            for (i, peer) in self.peers.iter_mut().enumerate().filter(|(_, p)| is_ready(&p.socket))
            {
                if !peer.answer() {
                    closed.push(i);
                }
            }
            for i in closed.into_iter().rev() {
                let peer = self.peers.swap_remove(i);
                self.leave(peer, now);
            }
            if is_ready(&self.listener) {
                self.accept(now);
            }
        }
    }

    /// Waits for something to do; the descriptors that are ready.
    fn wait(&self) -> Vec<c_int> {
        let paused = self.paused_until.is_some() || self.peers.len() >= PEERS_MAX;
        let leaving = self.leaving.iter().filter_map(|leaving| leaving.process.as_ref());
        let mut fds: Vec<libc::pollfd> = (self.peers.iter().map(|peer| &peer.socket))
            .chain(leaving)
            .chain((!paused).then_some(&self.listener))
            .map(|fd| libc::pollfd { fd: fd.number(), events: libc::POLLIN, revents: 0 })
            .collect();
        let next = self.leaving.iter().map(|leaving| leaving.until).chain(self.paused_until).min();
        let wait = next.map_or(-1, |at| {
            let left = at.saturating_duration_since(Instant::now()).as_millis() + 1;
            c_int::try_from(left).unwrap_or(c_int::MAX)
        });
        // SAFETY: a list of this length. Interrupted or refused: nothing is ready.
        let count = unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, wait) };
        if count <= 0 {
            return Vec::new();
        }
        fds.iter().filter(|fd| fd.revents != 0).map(|fd| fd.fd).collect()
    }

    fn accept(&mut self, now: Instant) {
        let flags = libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        let none = std::ptr::null_mut();
        // SAFETY: an own socket; the address is not asked for.
        let fd = unsafe { libc::accept4(self.listener.number(), none, none.cast(), flags) };
        if fd < 0 {
            self.paused_until = Some(now + PAUSE);
            return;
        }
        let socket = Descriptor::new(fd);
        if socket::is_own_user(&socket) {
            let process = socket::peer(&socket).map_or(0, |(process, _)| process);
            self.peers.push(Peer { socket, process, held: HashMap::new() });
        }
    }

    /// A connection has closed: what it holds is let go once its process is gone.
    fn leave(&mut self, peer: Peer, now: Instant) {
        if peer.held.is_empty() {
            return;
        }
        // SAFETY: numbers only. Process 0, or one that is gone already, has none.
        let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, peer.process, 0) };
        let process = c_int::try_from(fd).ok().filter(|&fd| fd >= 0).map(Descriptor::new);
        if process.is_none() {
            peer.held.into_iter().for_each(|(key, times)| exports::release(key, times));
            return;
        }
        self.leaving.push(Leaving { process, until: now + GRACE, held: peer.held });
    }
}

impl Peer {
    /// Takes a request and answers it. False: the connection is to be closed.
    fn answer(&mut self) -> bool {
        let request = match socket::receive(&self.socket, libc::MSG_DONTWAIT) {
            Ok((request, fds)) => {
                socket::close(&fds);
                request
            }
            Err(Failure::Late) => return true,
            Err(_) => return false,
        };
        let [number, kind, key, first, count, ..] = request;
        let mut answer = [number, requests::REFUSED, 0, 0, 0, 0, 0, 0];
        match kind {
            requests::OPEN => {
                if let Some(export) = exports::hold(key) {
                    *self.held.entry(key).or_default() += 1;
                    answer = opened(number, &export);
                } else {
                    answer[1] = requests::GONE;
                }
            }
            requests::PAGES => return self.send_pages(&mut answer, key, first, count),
            requests::CLOSE => answer[1] = self.close(key),
            _ => {}
        }
        self.send(&answer, &[])
    }

    fn send(&self, answer: &Message, fds: &[c_int]) -> bool {
        match socket::send(&self.socket, answer, fds, libc::MSG_DONTWAIT) {
            Ok(()) => true,
            // Too many descriptors are under way in messages: the importer asks again.
            Err(Failure::Other(_)) if !fds.is_empty() => {
                let mut answer = *answer;
                answer[1] = requests::NO_DESCRIPTORS;
                self.send(&answer, &[])
            }
            Err(_) => false,
        }
    }

    fn close(&mut self, key: u64) -> u64 {
        let Some(times) = self.held.get_mut(&key) else { return requests::REFUSED };
        *times -= 1;
        if *times == 0 {
            self.held.remove(&key);
        }
        exports::release(key, 1);
        requests::DONE
    }

    /// Answers with descriptors of as many pages as asked for and possible now.
    fn send_pages(&self, answer: &mut Message, key: u64, first: u64, count: u64) -> bool {
        let (Some(export), Some(api)) = (exports::of(key), pool::api()) else {
            answer[1] = requests::GONE;
            return self.send(answer, &[]);
        };
        let (Ok(first), true) = (usize::try_from(first), self.held.contains_key(&key)) else {
            return self.send(answer, &[]);
        };
        let mut count = count.clamp(1, socket::room() as u64) as usize;
        let mut fds = [-1; DESCRIPTORS_MAX];
        let status = loop {
            let to = fds.as_mut_ptr();
            // SAFETY: room for `count` descriptors.
            let status = inside(|| unsafe { (api.export_pages)(export.id, first, to, count) });
            if status != pool::DRIVER || count == 1 {
                break status;
            }
            // This process may not have so many.
            count /= 2;
        };
        if status != pool::OK {
            answer[1] = match status {
                pool::DRIVER => requests::NO_DESCRIPTORS,
                pool::UNSUPPORTED => requests::UNSUPPORTED,
                _ => requests::REFUSED,
            };
            return self.send(answer, &[]);
        }
        let fds = &fds[..count];
        answer[1] = requests::DONE;
        answer[2] = count as u64;
        let sent = self.send(answer, fds);
        socket::close(fds);
        sent
    }
}

fn opened(number: u64, export: &Export) -> Message {
    let &Export { bytes, page_bytes, offset, count, .. } = export;
    [number, requests::DONE, bytes, page_bytes, offset, count, 0, 0]
}
