//! Sockets between processes of one user: where they lie, who is at the other end, and messages
//! that carry descriptors.
//!
//! Owns the folder's rules and the list of this library's descriptors. Promises:
//! - a socket lies in a folder that its user alone can enter, and both ends check whose process
//!   the other is;
//! - every descriptor closes when a program is executed, and in a child made by `fork`, which
//!   neither keeps a connection alive nor speaks on it;
//! - every wait of a program's thread ends after [`WAIT`].
//!
//! Cost: a request and its answer take two system calls at each end.

use std::ffi::{CString, OsString, c_int, c_void};
use std::mem::{size_of, zeroed};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicI32, AtomicPtr, Ordering};
use std::time::Duration;

/// How long an answer is waited for.
pub const WAIT: Duration = Duration::from_secs(10);
/// The most descriptors in one message.
pub const DESCRIPTORS_MAX: usize = 64;
/// Words of a message: its number, its kind or status, then what these need.
pub const WORDS: usize = 8;
/// A message.
pub type Message = [u64; WORDS];

/// Why a message did not come or go.
#[derive(Debug)]
pub enum Failure {
    /// The other end has closed.
    Closed,
    /// It has not answered in time.
    Late,
    /// All else, in words.
    Other(String),
}

fn last() -> std::io::Error {
    std::io::Error::last_os_error()
}

// ---- descriptors -----------------------------------------------------------------------------

/// A place in the list of descriptors.
struct Entry {
    fd: AtomicI32,
    next: *const Entry,
}

/// Every place that was ever made; none is freed.
static ENTRIES: AtomicPtr<Entry> = AtomicPtr::new(std::ptr::null_mut());

fn entries() -> impl Iterator<Item = &'static Entry> {
    // SAFETY: null or an entry that is never freed; `next` is set before an entry is listed.
    let mut at = unsafe { ENTRIES.load(Ordering::Acquire).cast_const().as_ref() };
    std::iter::from_fn(move || {
        let entry = at?;
        // SAFETY: as above.
        at = unsafe { entry.next.as_ref() };
        Some(entry)
    })
}

/// In a forked child: closes what is the parent's. Only loads, stores and `close`.
extern "C" fn close_all() {
    for entry in entries() {
        let fd = entry.fd.swap(-1, Ordering::Relaxed);
        if fd >= 0 {
            // SAFETY: a descriptor of this library's.
            unsafe { libc::close(fd) };
        }
    }
}

/// A descriptor of this library's that is closed with it, and in children.
#[derive(Debug)]
pub struct Descriptor {
    fd: c_int,
    entry: &'static Entry,
}

impl std::fmt::Debug for Entry {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.fd.fmt(to)
    }
}

// SAFETY: `next` is not written once an entry is listed, and entries are never freed.
unsafe impl Sync for Entry {}

impl Descriptor {
    /// Takes a descriptor over.
    pub fn new(fd: c_int) -> Self {
        static AT_FORK: std::sync::Once = std::sync::Once::new();
        // SAFETY: the hook stays loaded, and does what a child may do.
        AT_FORK.call_once(|| unsafe {
            libc::pthread_atfork(None, None, Some(close_all));
        });
        let order = Ordering::AcqRel;
        let free =
            |entry: &&Entry| entry.fd.compare_exchange(-1, fd, order, Ordering::Acquire).is_ok();
        if let Some(entry) = entries().find(free) {
            return Self { fd, entry };
        }
        let new = Box::into_raw(Box::new(Entry { fd: AtomicI32::new(fd), next: std::ptr::null() }));
        let mut first = ENTRIES.load(Ordering::Acquire);
        loop {
            // SAFETY: just made, and not listed.
            unsafe { (*new).next = first };
            match ENTRIES.compare_exchange(first, new, order, Ordering::Acquire) {
                // SAFETY: never freed from here on.
                Ok(_) => return Self { fd, entry: unsafe { &*new } },
                Err(now) => first = now,
            }
        }
    }

    /// Its number.
    pub fn number(&self) -> c_int {
        self.fd
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        // Out of the list first: a child must not close what comes under this number next. In a
        // child it is closed already.
        if self.entry.fd.compare_exchange(self.fd, -1, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        {
            // SAFETY: this value's own.
            unsafe { libc::close(self.fd) };
        }
    }
}

/// How many descriptors a message may have at present: at most [`DESCRIPTORS_MAX`], and half of
/// those that the process may still open, which the program and the driver need too.
pub fn room() -> usize {
    /// From here on nobody counts.
    const PLENTY: u64 = 1 << 16;
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: a local to fill.
    let asked = unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) };
    if asked != 0 || limit.rlim_cur >= PLENTY {
        return DESCRIPTORS_MAX;
    }
    let open = std::fs::read_dir("/proc/self/fd").map_or(0, |entries| entries.count());
    let left = (limit.rlim_cur as usize).saturating_sub(open);
    (left / 2).clamp(1, DESCRIPTORS_MAX)
}

/// Closes descriptors that came or were made, and were used.
pub fn close(fds: &[c_int]) {
    for &fd in fds {
        // SAFETY: the caller's own.
        unsafe { libc::close(fd) };
    }
}

// ---- the folder ------------------------------------------------------------------------------

/// The folders that a socket may lie in, the preferred one first.
pub fn folders() -> Vec<PathBuf> {
    // SAFETY: `getenv` answers NULL or NUL-terminated text, copied at once.
    let runtime = unsafe {
        let text = libc::getenv(c"XDG_RUNTIME_DIR".as_ptr());
        (!text.is_null()).then(|| std::ffi::CStr::from_ptr(text).to_bytes().to_vec())
    };
    let runtime = runtime.map(|text| PathBuf::from(OsString::from_vec(text)));
    let own = runtime.filter(|path| path.is_absolute()).map(|path| path.join("forebay"));
    // SAFETY: no arguments.
    let user = unsafe { libc::geteuid() };
    own.into_iter().chain([PathBuf::from(format!("/tmp/forebay-{user}"))]).collect()
}

fn c_path(path: &Path) -> Result<CString, String> {
    CString::new(path.as_os_str().as_bytes()).map_err(|_| "a path with a NUL".to_owned())
}

/// Whether nobody but this user can enter a folder, or put another in its place.
///
/// # Errors
/// What is wrong with it; `None`: it does not exist.
pub fn check_folder(path: &Path) -> Result<(), Option<String>> {
    let name = c_path(path).map_err(Some)?;
    // SAFETY: all zeros is a valid `stat`.
    let mut stat: libc::stat = unsafe { zeroed() };
    // SAFETY: NUL-terminated; a local to fill.
    if unsafe { libc::lstat(name.as_ptr(), &raw mut stat) } != 0 {
        let error = last();
        return match error.raw_os_error() {
            Some(libc::ENOENT | libc::ENOTDIR) => Err(None),
            _ => Err(Some(format!("{}: {error}", path.display()))),
        };
    }
    // SAFETY: no arguments.
    let user = unsafe { libc::geteuid() };
    let wrong = if stat.st_mode & libc::S_IFMT != libc::S_IFDIR {
        "is no folder"
    } else if stat.st_uid != user {
        "belongs to another user"
    } else if stat.st_mode & 0o077 != 0 {
        "is open to other users (chmod 700)"
    } else {
        return Ok(());
    };
    Err(Some(format!("{} {wrong}", path.display())))
}

/// The folder for this process's socket, made where it is missing.
///
/// # Errors
/// Why there is none.
pub fn own_folder() -> Result<PathBuf, String> {
    let mut why = String::new();
    for folder in folders() {
        let name = c_path(&folder)?;
        // SAFETY: NUL-terminated.
        if unsafe { libc::mkdir(name.as_ptr(), 0o700) } != 0 {
            let error = last();
            if error.raw_os_error() != Some(libc::EEXIST) {
                why = format!("{}: {error}", folder.display());
                continue;
            }
        }
        return match check_folder(&folder) {
            Ok(()) => Ok(folder),
            Err(wrong) => Err(wrong.unwrap_or(why)),
        };
    }
    Err(why)
}

/// The name of a process's socket.
pub fn name_of(process: u32, nonce: u64) -> String {
    format!("{process}-{nonce:016x}.sock")
}

/// Removes sockets of processes that have ended.
pub fn remove_stale(folder: &Path) {
    let Ok(entries) = std::fs::read_dir(folder) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let process = name.to_str().and_then(|name| {
            let (process, rest) = name.split_once('-')?;
            rest.ends_with(".sock").then(|| process.parse::<libc::pid_t>().ok()).flatten()
        });
        let Some(process) = process.filter(|&process| process > 0) else { continue };
        // SAFETY: signal 0 only asks.
        let gone =
            unsafe { libc::kill(process, 0) } != 0 && last().raw_os_error() == Some(libc::ESRCH);
        // Behind another table of processes the number says nothing; nobody listens at a dead
        // one's.
        if gone && matches!(connect(&entry.path()), Err(Failure::Closed)) {
            let _gone_already = std::fs::remove_file(entry.path());
        }
    }
}

// ---- sockets ---------------------------------------------------------------------------------

fn address(path: &Path) -> Result<(libc::sockaddr_un, libc::socklen_t), String> {
    // SAFETY: all zeros is a valid address.
    let mut address: libc::sockaddr_un = unsafe { zeroed() };
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    let bytes = path.as_os_str().as_bytes();
    if bytes.len() >= address.sun_path.len() {
        return Err(format!("{}: too long for a socket's path", path.display()));
    }
    for (to, &from) in address.sun_path.iter_mut().zip(bytes) {
        *to = from as libc::c_char;
    }
    Ok((address, size_of::<libc::sockaddr_un>() as libc::socklen_t))
}

fn socket() -> Result<Descriptor, String> {
    // SAFETY: numbers only.
    let fd = unsafe { libc::socket(libc::AF_UNIX, libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC, 0) };
    if fd < 0 { Err(format!("no socket: {}", last())) } else { Ok(Descriptor::new(fd)) }
}

/// A socket that listens at a path.
///
/// # Errors
/// Why it does not.
pub fn listen(path: &Path) -> Result<Descriptor, String> {
    let told = || format!("{}: {}", path.display(), last());
    let socket = socket()?;
    let (address, length) = address(path)?;
    // SAFETY: an address of this length; an own socket.
    unsafe {
        if libc::bind(socket.number(), (&raw const address).cast(), length) != 0 {
            return Err(told());
        }
        if libc::listen(socket.number(), 128) != 0 {
            let why = told();
            let _gone_already = std::fs::remove_file(path);
            return Err(why);
        }
        let flags = libc::fcntl(socket.number(), libc::F_GETFL);
        libc::fcntl(socket.number(), libc::F_SETFL, flags | libc::O_NONBLOCK);
    }
    Ok(socket)
}

/// A connection to the socket at a path.
///
/// # Errors
/// [`Failure::Closed`] where nobody listens.
pub fn connect(path: &Path) -> Result<Descriptor, Failure> {
    let socket = socket().map_err(Failure::Other)?;
    let (address, length) = address(path).map_err(Failure::Other)?;
    let wait = libc::timeval { tv_sec: WAIT.as_secs() as libc::time_t, tv_usec: 0 };
    for option in [libc::SO_SNDTIMEO, libc::SO_RCVTIMEO] {
        let size = size_of::<libc::timeval>() as libc::socklen_t;
        let value = (&raw const wait).cast();
        // SAFETY: a value of the option's type.
        let set =
            unsafe { libc::setsockopt(socket.number(), libc::SOL_SOCKET, option, value, size) };
        if set != 0 {
            return Err(Failure::Other(format!("a socket without a time limit: {}", last())));
        }
    }
    loop {
        // SAFETY: an address of this length; an own socket.
        let done =
            unsafe { libc::connect(socket.number(), (&raw const address).cast(), length) } == 0;
        if done {
            return Ok(socket);
        }
        let error = last();
        return Err(match error.raw_os_error() {
            Some(libc::EINTR) => continue,
            Some(libc::ENOENT | libc::ECONNREFUSED) => Failure::Closed,
            Some(libc::EAGAIN) => Failure::Late,
            _ => Failure::Other(format!("{}: {error}", path.display())),
        });
    }
}

/// The process at the other end, and its user; process 0: not one that can be seen from here.
pub fn peer(socket: &Descriptor) -> Option<(libc::pid_t, libc::uid_t)> {
    let mut who = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut size = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: a local of the option's type.
    let asked = unsafe {
        libc::getsockopt(
            socket.number(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut who).cast(),
            &raw mut size,
        )
    };
    (asked == 0).then_some((who.pid, who.uid))
}

/// Whether the process at the other end is this user's.
pub fn is_own_user(socket: &Descriptor) -> bool {
    // SAFETY: no arguments.
    let user = unsafe { libc::geteuid() };
    peer(socket).is_some_and(|(_, uid)| uid == user)
}

/// Room for the descriptors of a message, aligned as its header asks.
#[repr(C, align(8))]
struct Control([u8; 512]);

const _: () = {
    // SAFETY: a computation.
    let need = unsafe { libc::CMSG_SPACE((DESCRIPTORS_MAX * size_of::<c_int>()) as u32) };
    assert!(need as usize <= size_of::<Control>());
};

/// Sends a message with descriptors, which stay the caller's. `flags`: `MSG_DONTWAIT` or 0.
///
/// # Errors
/// As of [`Failure`].
pub fn send(
    socket: &Descriptor,
    message: &Message,
    fds: &[c_int],
    flags: c_int,
) -> Result<(), Failure> {
    let fds = &fds[..fds.len().min(DESCRIPTORS_MAX)];
    let mut control = Control([0; 512]);
    let mut part = libc::iovec {
        iov_base: message.as_ptr().cast_mut().cast::<c_void>(),
        iov_len: size_of::<Message>(),
    };
    // SAFETY: all zeros is a valid header.
    let mut header: libc::msghdr = unsafe { zeroed() };
    header.msg_iov = &raw mut part;
    header.msg_iovlen = 1;
    if !fds.is_empty() {
        let bytes = std::mem::size_of_val(fds);
        header.msg_control = (&raw mut control).cast();
        // SAFETY: the control has room for the most descriptors, as is asserted above.
        unsafe {
            header.msg_controllen = libc::CMSG_SPACE(bytes as u32) as _;
            let first = libc::CMSG_FIRSTHDR(&raw const header);
            (*first).cmsg_level = libc::SOL_SOCKET;
            (*first).cmsg_type = libc::SCM_RIGHTS;
            (*first).cmsg_len = libc::CMSG_LEN(bytes as u32) as _;
            let to = libc::CMSG_DATA(first);
            std::ptr::copy_nonoverlapping(fds.as_ptr().cast::<u8>(), to, bytes);
        }
    }
    loop {
        let flags = flags | libc::MSG_NOSIGNAL;
        // SAFETY: the header's parts are locals.
        if unsafe { libc::sendmsg(socket.number(), &raw const header, flags) } >= 0 {
            return Ok(());
        }
        let error = last();
        return Err(match error.raw_os_error() {
            Some(libc::EINTR) => continue,
            Some(libc::EPIPE | libc::ECONNRESET | libc::ENOTCONN) => Failure::Closed,
            Some(libc::EAGAIN) => Failure::Late,
            _ => Failure::Other(format!("a message was not sent: {error}")),
        });
    }
}

/// Receives a message and its descriptors, which are the caller's to close. Where the process may
/// not have so many, those come that it may have.
///
/// # Errors
/// As of [`Failure`]; descriptors that came are closed then.
pub fn receive(socket: &Descriptor, flags: c_int) -> Result<(Message, Vec<c_int>), Failure> {
    let mut message = Message::default();
    let mut control = Control([0; 512]);
    let mut part = libc::iovec {
        iov_base: (&raw mut message).cast::<c_void>(),
        iov_len: size_of::<Message>(),
    };
    // SAFETY: all zeros is a valid header.
    let mut header: libc::msghdr = unsafe { zeroed() };
    header.msg_iov = &raw mut part;
    header.msg_iovlen = 1;
    let came = loop {
        header.msg_control = (&raw mut control).cast();
        header.msg_controllen = size_of::<Control>() as _;
        let flags = flags | libc::MSG_CMSG_CLOEXEC;
        // SAFETY: the header's parts are locals.
        let came = unsafe { libc::recvmsg(socket.number(), &raw mut header, flags) };
        if came >= 0 {
            break came as usize;
        }
        let error = last();
        return Err(match error.raw_os_error() {
            Some(libc::EINTR) => continue,
            Some(libc::ECONNRESET | libc::ENOTCONN) => Failure::Closed,
            Some(libc::EAGAIN) => Failure::Late,
            _ => Failure::Other(format!("a message was not received: {error}")),
        });
    };
    let fds = descriptors(&header);
    if came == size_of::<Message>() && header.msg_flags & libc::MSG_TRUNC == 0 {
        return Ok((message, fds));
    }
    close(&fds);
    if came == 0 {
        return Err(Failure::Closed);
    }
    Err(Failure::Other(format!("a message of {came} bytes: another version of Forebay's")))
}

/// The descriptors of a message that has come.
fn descriptors(header: &libc::msghdr) -> Vec<c_int> {
    let mut fds = Vec::new();
    // SAFETY: the kernel has filled the header's control, and its length says how far.
    unsafe {
        let mut at = libc::CMSG_FIRSTHDR(header);
        while !at.is_null() {
            if (*at).cmsg_level == libc::SOL_SOCKET && (*at).cmsg_type == libc::SCM_RIGHTS {
                let bytes = (*at).cmsg_len as usize - libc::CMSG_LEN(0) as usize;
                let data = libc::CMSG_DATA(at).cast::<c_int>();
                for i in 0..bytes / size_of::<c_int>() {
                    fds.push(data.add(i).read_unaligned());
                }
            }
            at = libc::CMSG_NXTHDR(header, at);
        }
    }
    fds
}
