//! Memory between processes: shareable descriptors, legacy handles, ranges for others, forks.
//!
//! The other process is this program again, told its part by a variable. It answers a line for
//! each line that it is sent, and ends when its input does.

mod common;
mod vm;

use common::{Sim, row};
use forebay_simcuda::exports::CUipcMemHandle;
use forebay_simcuda::types::CUmemAllocationProp;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixDatagram;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::ptr::null_mut;
use vm::*;

const ROLE: &str = "SIMCUDA_TEST_ROLE";
const FD: &str = "SIMCUDA_TEST_FD";

/// Another process of this program.
struct Other {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Other {
    /// Starts one in a role, with a descriptor that it inherits.
    fn start(role: &str, fd: Option<RawFd>) -> Other {
        let mut command = Command::new(std::env::current_exe().expect("a path"));
        command.args(["other_process", "--exact", "--nocapture"]).env(ROLE, role.to_uppercase());
        if let Some(fd) = fd {
            // SAFETY: a descriptor of this test; it is to stay open in the child.
            assert_eq!(unsafe { libc::fcntl(fd, libc::F_SETFD, 0) }, 0);
            command.env(FD, fd.to_string());
        }
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("a process");
        let input = child.stdin.take();
        let output = BufReader::new(child.stdout.take().expect("a pipe"));
        Other { child, input, output }
    }

    /// Its next answer, without what the test harness prints.
    fn hear(&mut self) -> String {
        let mut line = String::new();
        loop {
            line.clear();
            assert!(self.output.read_line(&mut line).expect("a line") > 0, "the child ended");
            if let Some(answer) = line.split("say: ").nth(1) {
                return answer.trim().to_owned();
            }
        }
    }

    /// Sends a line and hears the answer.
    fn ask(&mut self, line: &str) -> String {
        writeln!(self.input.as_mut().expect("open"), "{line}").expect("a pipe");
        self.hear()
    }

    fn kill(&mut self) {
        self.child.kill().expect("SIGKILL");
        self.child.wait().expect("its end");
    }

    fn end(mut self) {
        self.input = None;
        assert!(self.child.wait().expect("its end").success());
    }
}

fn say(text: impl std::fmt::Display) {
    println!("say: {text}");
}

fn lines() -> impl Iterator<Item = String> {
    std::io::stdin().lock().lines().map(|line| line.expect("a line"))
}

#[test]
fn other_process() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let fd: RawFd = std::env::var(FD).ok().and_then(|fd| fd.parse().ok()).unwrap_or(-1);
    match role.as_str() {
        "EXPORTER" => exporter(fd),
        "IMPORTER" => importer(fd),
        "IPC" => ipc_exporter(),
        "FAULT" => fault(),
        other => panic!("no part {other}"),
    }
}

/// Makes 4 MiB of 0x5A, exports them over the socket, then does as told.
fn exporter(socket: RawFd) {
    let sim = Sim::start("memory = 64MiB");
    sim.primary(0);
    let handle = try_create(2 * G, &exportable(0)).expect("memory");
    let at = reserve(2 * G);
    assert_eq!(map(at, 2 * G, handle), 0);
    assert_eq!(access(at, 2 * G, 0, RW), 0);
    fill(at, 2 * G, 0x5A);
    let fd = export(handle).expect("a descriptor");
    // SAFETY: the socket was inherited for this.
    let socket = UnixDatagram::from(unsafe { OwnedFd::from_raw_fd(socket) });
    send_fd(&socket, fd);
    drop_fd(fd);
    say("sent");
    for line in lines() {
        match line.as_str() {
            "release" => {
                assert_eq!(release(handle), 0);
                unmapped(at, 2 * G);
                say(free_bytes());
            }
            "free" => say(free_bytes()),
            "byte" => say(peek(at).expect("mapped")),
            other => panic!("{other}"),
        }
    }
}

/// Imports the inherited descriptor, checks for 0x5A, writes 0x77.
fn importer(fd: RawFd) {
    let sim = Sim::start("memory = 64MiB");
    sim.primary(0);
    let all = free_bytes();
    let handle = import(fd).expect("a handle");
    drop_fd(fd);
    let mut of = CUmemAllocationProp::default();
    assert_eq!(cu!(cuMemGetAllocationPropertiesFromHandle(&raw mut of, handle)), 0);
    let mut made_with = exportable(0);
    made_with.allocFlags.gpuDirectRDMACapable = 1;
    assert_eq!(of, made_with);
    assert_eq!(free_bytes(), all - 2 * G);
    let at = reserve(2 * G);
    assert_eq!(map(at, 3 * G, handle), 1);
    assert_eq!(map(at, 2 * G, handle), 0);
    assert_eq!(peek(at), None);
    assert_eq!(access(at, 2 * G, 0, RW), 0);
    assert!(holds(at, 2 * G, 0x5A));
    fill(at, 2 * G, 0x77);
    say("written");
    for line in lines() {
        assert_eq!(line, "release");
        assert_eq!(release(handle), 0);
        unmapped(at, 2 * G);
        assert_eq!(free_bytes(), all);
        say("released");
    }
}

/// Makes 3000 bytes of 0x21 behind another block, says its legacy handle, then frees if told.
fn ipc_exporter() {
    let mut sim = Sim::start("memory = 64MiB\ndevices = 2");
    sim.primary(1);
    let mut at = [0u64; 2];
    for place in &mut at {
        assert_eq!(cu!(cuMemAlloc_v2(&raw mut *place, 3000)), 0);
    }
    fill(at[1], 3000, 0x21);
    let mut handle = CUipcMemHandle { reserved: [0; 64] };
    assert_eq!(cu!(cuIpcGetMemHandle(&raw mut handle, at[1] + 512)), 1);
    assert_eq!(cu!(cuIpcGetMemHandle(&raw mut handle, at[1])), 0);
    let hex: Vec<String> = handle.reserved.iter().map(|b| format!("{b:02x}")).collect();
    say(hex.concat());
    for line in lines() {
        match line.as_str() {
            "byte" => say(peek(at[1]).expect("mapped")),
            "free" => {
                assert_eq!(cu!(cuMemFree_v2(at[1])), 0);
                let misuse = sim.misuse();
                misuse.iter().for_each(|kind| sim.expect_misuse(kind));
                say(misuse.join(","));
            }
            "close" => {
                assert_eq!(cu!(cuMemFree_v2(at[0])), 0);
                say(free_bytes());
            }
            other => panic!("{other}"),
        }
    }
}

/// Touches device memory before access is given; must not come back.
fn fault() {
    let _sim = Sim::start("");
    let (at, handle) = (reserve(G), create(G));
    assert_eq!(map(at, G, handle), 0);
    say("now");
    // SAFETY: it is not safe: the address is reserved and faults, which is what is shown.
    let byte = unsafe { std::ptr::read_volatile(at as *const u8) };
    say(byte);
}

fn export(handle: u64) -> Result<RawFd, u32> {
    let mut fd = -1i32;
    match cu!(cuMemExportToShareableHandle((&raw mut fd).cast(), handle, 1, 0)) {
        0 => Ok(fd),
        code => Err(code),
    }
}

fn import(fd: RawFd) -> Result<u64, u32> {
    let mut handle = 0;
    match cu!(cuMemImportFromShareableHandle(&raw mut handle, fd as usize as *mut _, 1)) {
        0 => Ok(handle),
        code => Err(code),
    }
}

fn drop_fd(fd: RawFd) {
    // SAFETY: a descriptor that the test was given and uses no more.
    assert_eq!(unsafe { libc::close(fd) }, 0);
}

/// Room for a control message with one descriptor, aligned as it must be.
type Control = [u64; 8];

fn message(data: &mut libc::iovec, control: &mut Control) -> libc::msghdr {
    // SAFETY: plain numbers and null pointers.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = data;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    // SAFETY: arithmetic on a number.
    message.msg_controllen = unsafe { libc::CMSG_SPACE(4) } as usize;
    message
}

fn send_fd(socket: &UnixDatagram, fd: RawFd) {
    let mut byte = [1u8];
    let mut data = libc::iovec { iov_base: byte.as_mut_ptr().cast(), iov_len: 1 };
    let mut control: Control = [0; 8];
    let message = message(&mut data, &mut control);
    // SAFETY: the control buffer has room for a header and one descriptor.
    unsafe {
        let header = libc::CMSG_FIRSTHDR(&message);
        (*header).cmsg_level = libc::SOL_SOCKET;
        (*header).cmsg_type = libc::SCM_RIGHTS;
        (*header).cmsg_len = libc::CMSG_LEN(4) as usize;
        libc::CMSG_DATA(header).cast::<i32>().write_unaligned(fd);
        assert_eq!(libc::sendmsg(socket.as_raw_fd(), &message, 0), 1);
    }
}

fn receive_fd(socket: &UnixDatagram) -> RawFd {
    let mut byte = [0u8];
    let mut data = libc::iovec { iov_base: byte.as_mut_ptr().cast(), iov_len: 1 };
    let mut control: Control = [0; 8];
    let mut message = message(&mut data, &mut control);
    // SAFETY: the kernel writes within the buffers; a header with a descriptor is there then.
    unsafe {
        assert_eq!(libc::recvmsg(socket.as_raw_fd(), &mut message, 0), 1);
        let header = libc::CMSG_FIRSTHDR(&message);
        assert!(!header.is_null(), "no descriptor came");
        libc::CMSG_DATA(header).cast::<i32>().read_unaligned()
    }
}

/// An exporting process, and the descriptor that it sent.
fn exporting() -> (Other, RawFd) {
    let (mine, its) = UnixDatagram::pair().expect("sockets");
    let mut other = Other::start("exporter", Some(its.as_raw_fd()));
    assert_eq!(other.hear(), "sent");
    (other, receive_fd(&mine))
}

#[test]
fn export_checks_its_arguments() {
    let mut sim = Sim::start("");
    let handle = try_create(G, &exportable(0)).expect("memory");
    let closed = create(G);
    let mut fd = 9i32;
    let mut ask = |handle, handle_type, flags| {
        cu!(cuMemExportToShareableHandle((&raw mut fd).cast(), handle, handle_type, flags))
    };
    assert_eq!(ask(handle, 1, 1), 1);
    assert_eq!(ask(0, 1, 0), 1);
    assert_eq!(ask(closed, 1, 0), 1);
    assert_eq!(ask(handle, 0, 0), 1);
    assert_eq!(ask(handle, 16, 0), 1);
    let to = null_mut();
    assert_eq!(cu!(cuMemExportToShareableHandle(to, handle, 1, 0)), 1);
    row("cuMemExport: null, flags, a type not asked for at create are 1", "hip-tests; cuda.h");
    assert_eq!((ask(handle, 2, 0), ask(handle, 4, 0), ask(handle, 8, 0)), (801, 801, 800));
    row("cuMemExport: Windows types are 801, fabric without IMEX is 800", "cuda.h; mscclpp#467");
    assert_eq!(fd, 9);
    let mut got = 0;
    let pipe = std::io::pipe().expect("a pipe");
    let file = File::open("/proc/self/exe").expect("a file");
    for bad in [-1, 900, pipe.0.as_raw_fd(), file.as_raw_fd()] {
        assert_eq!(import(bad), Err(1), "{bad}");
    }
    let import_as = |got: *mut u64, handle_type| {
        cu!(cuMemImportFromShareableHandle(got, 3 as *mut _, handle_type))
    };
    assert_eq!((import_as(&mut got, 8), import_as(&mut got, 2)), (800, 801));
    assert_eq!((import_as(&mut got, 0), import_as(null_mut(), 1)), (1, 1));
    row("cuMemImport: no shareable descriptor, null, unknown types are 1", "assumption");
    assert_eq!((release(handle), release(closed)), (0, 0));
    assert_eq!(cu!(cuMemExportToShareableHandle((&raw mut fd).cast(), handle, 1, 0)), 1);
    sim.expect_misuse("use of a released handle");
}

#[test]
fn a_descriptor_keeps_memory_alive() {
    let sim = Sim::start("memory = 64MiB");
    sim.primary(0);
    let all = free_bytes();
    let handle = try_create(G, &exportable(0)).expect("memory");
    let fd = export(handle).expect("a descriptor");
    let again = import(fd).expect("a handle");
    assert_ne!(again, handle);
    assert_eq!(free_bytes(), all - G);
    let at = reserve(2 * G);
    assert_eq!(map(at, G, handle), 0);
    assert_eq!(map(at + G as u64, G, again), 0);
    assert_eq!(access(at, 2 * G, 0, RW), 0);
    fill(at, G, 5);
    assert!(holds(at, 2 * G, 5));
    row("cuMemImport: another handle of the same memory, counted once", "cuda.h");
    assert_eq!((release(handle), release(again), unmap(at, 2 * G)), (0, 0, 0));
    assert_eq!(free_bytes(), all - G);
    assert_eq!((sim.live("exported_only"), sim.live("exported_fds")), (1, 1));
    let third = import(fd).expect("a handle");
    assert_eq!(sim.live("exported_only"), 0);
    assert_eq!(map(at, G, third), 0);
    assert_eq!(access(at, G, 0, R), 0);
    assert!(holds(at, G, 5));
    assert_eq!((release(third), unmap(at, G)), (0, 0));
    drop_fd(fd);
    assert_eq!(free_bytes(), all);
    row("memory lives while a descriptor of it is open, and no longer", "cuda.h, cuMemRelease");
    assert_eq!(sim.live("physical"), 0);
    assert_eq!(unreserve(at, 2 * G), 0);
}

#[test]
fn an_importer_sees_and_writes_the_memory() {
    let sim = Sim::start("memory = 64MiB");
    sim.primary(0);
    let all = free_bytes();
    let mut of = exportable(0);
    of.allocFlags.gpuDirectRDMACapable = 1;
    let handle = try_create(2 * G, &of).expect("memory");
    let at = reserve(2 * G);
    assert_eq!(map(at, 2 * G, handle), 0);
    assert_eq!(access(at, 2 * G, 0, RW), 0);
    fill(at, 2 * G, 0x5A);
    let fd = export(handle).expect("a descriptor");
    let mut other = Other::start("importer", Some(fd));
    assert_eq!(other.hear(), "written");
    assert!(holds(at, 2 * G, 0x77));
    row("an importer in another process shares the pages and the properties", "cuda.h; PyTorch");
    drop_fd(fd);
    assert_eq!(release(handle), 0);
    unmapped(at, 2 * G);
    assert_eq!(free_bytes(), all - 2 * G);
    assert_eq!(other.ask("release"), "released");
    assert_eq!(free_bytes(), all);
    row("the exporter's memory is free once the importer released it", "cuda.h, cuMemRelease");
    other.end();
}

#[test]
fn memory_outlives_a_killed_exporter() {
    let sim = Sim::start("memory = 64MiB");
    sim.primary(0);
    let all = free_bytes();
    let (mut other, fd) = exporting();
    let handle = import(fd).expect("a handle");
    drop_fd(fd);
    other.kill();
    let at = reserve(2 * G);
    assert_eq!(map(at, 2 * G, handle), 0);
    assert_eq!(access(at, 2 * G, 0, RW), 0);
    assert!(holds(at, 2 * G, 0x5A));
    fill(at, 2 * G, 1);
    assert!(holds(at, 2 * G, 1));
    row("SIGKILL of the exporter: the importer's memory stays", "IMEX test on GB200, 580.173.02");
    assert_eq!(release(handle), 0);
    unmapped(at, 2 * G);
    assert_eq!(free_bytes(), all);
    assert_eq!(sim.live("physical"), 0);
    // A descriptor in flight keeps the memory of a killed exporter as well.
    let (mut other, fd) = exporting();
    other.kill();
    let handle = import(fd).expect("a handle");
    let twice = import(fd).expect("a handle");
    assert_eq!(free_bytes(), all - 2 * G);
    drop_fd(fd);
    assert_eq!(map(at, 2 * G, handle), 1, "given back above");
    assert_eq!((release(handle), release(twice)), (0, 0));
    assert_eq!(free_bytes(), all);
    let mut sim = sim;
    sim.expect_misuse("use of a freed reservation");
}

#[test]
fn memory_outlives_the_exporters_release() {
    let sim = Sim::start("memory = 64MiB");
    sim.primary(0);
    let (mut other, fd) = exporting();
    let handle = import(fd).expect("a handle");
    drop_fd(fd);
    let total = 64 << 20;
    assert_eq!(other.ask("release"), (total - 2 * G).to_string());
    let at = reserve(2 * G);
    assert_eq!(map(at, 2 * G, handle), 0);
    assert_eq!(access(at, 2 * G, 0, RW), 0);
    assert!(holds(at, 2 * G, 0x5A));
    assert_eq!(release(handle), 0);
    assert_eq!(other.ask("free"), (total - 2 * G).to_string());
    row("the exporter's release: the importer's mapping keeps the memory", "IMEX test on GB200");
    unmapped(at, 2 * G);
    assert_eq!(other.ask("free"), total.to_string());
    other.end();
}

fn open(handle: CUipcMemHandle, flags: u32) -> Result<u64, u32> {
    let mut at = 0;
    match cu!(cuIpcOpenMemHandle_v2(&raw mut at, handle, flags)) {
        0 => Ok(at),
        code => Err(code),
    }
}

fn bytes_of(hex: &str) -> CUipcMemHandle {
    let mut reserved = [0; 64];
    for (i, byte) in reserved.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&hex[2 * i..2 * i + 2], 16).expect("hexadecimal");
    }
    CUipcMemHandle { reserved }
}

#[test]
fn legacy_handles() {
    let sim = Sim::start("memory = 64MiB\ndevices = 2");
    sim.primary(0);
    let mut other = Other::start("ipc", None);
    let handle = bytes_of(&other.hear());
    assert_eq!(open(handle, 0), Err(1));
    let mut bad = handle;
    bad.reserved[0] ^= 1;
    assert_eq!(open(bad, 1), Err(400));
    let at = open(handle, 1).expect("open");
    assert!(holds(at, 3000, 0x21));
    assert_eq!(open(handle, 1), Ok(at));
    assert!(poke(at, 0x22));
    assert_eq!(other.ask("byte"), 0x22.to_string());
    let mut device = -1i32;
    assert_eq!(cu!(cuPointerGetAttribute((&raw mut device).cast(), 9, at)), 0);
    assert_eq!(device, 1);
    let mut again = handle;
    assert_eq!(cu!(cuIpcGetMemHandle(&raw mut again, at)), 1);
    assert_eq!(cu!(cuMemFree_v2(at)), 1);
    row("cuIpcOpenMemHandle: the block itself, once more the same address, flags 1", "cuda.h");
    assert_eq!(cu!(cuIpcCloseMemHandle(at)), 0);
    assert_eq!(peek(at), Some(0x22));
    assert_eq!(other.ask("free"), "free of memory that another process has open");
    assert_eq!(peek(at), Some(0x22));
    row("cuMemFree while another process has it open: undefined; here misuse", "cuda.h");
    assert_eq!(open(handle, 1), Err(205));
    assert_eq!(cu!(cuIpcCloseMemHandle(at)), 0);
    assert_eq!(peek(at), None);
    assert_eq!(cu!(cuIpcCloseMemHandle(at)), 1);
    row("cuIpcCloseMemHandle: as often as it was opened", "cuda.h");
    assert_eq!(other.ask("close"), (64 << 20).to_string());
    other.end();
    assert_eq!(open(handle, 1), Err(205));
    row("cuIpcOpenMemHandle: a block or process that is gone is 205", "assumption");
    let mut sim = sim;
    sim.expect_misuse("free of memory of another process");
}

#[test]
fn a_legacy_handle_is_for_others() {
    let sim = Sim::start("");
    sim.primary(0);
    let mut at = 0;
    assert_eq!(cu!(cuMemAlloc_v2(&raw mut at, 100)), 0);
    let mut handle = CUipcMemHandle { reserved: [0; 64] };
    assert_eq!(cu!(cuIpcGetMemHandle(&raw mut handle, at)), 0);
    assert_eq!(open(handle, 1), Err(201));
    row("cuIpcOpenMemHandle: in the process that made it 201", "assumption");
    assert_eq!(cu!(cuIpcGetMemHandle(null_mut(), at)), 1);
    assert_eq!(cu!(cuMemFree_v2(at)), 0);
    assert_eq!(cu!(cuIpcGetMemHandle(&raw mut handle, at)), 1);
    assert_eq!(sim.live("physical"), 0);
}

#[test]
fn ranges_for_network_cards() {
    let sim = Sim::start("memory = 64MiB\ndevices = 2");
    sim.primary(0);
    let all = free_bytes();
    let g = G as u64;
    let ask = |at: u64, size: usize, kind, flags| {
        let mut fd = -1i32;
        let to = (&raw mut fd).cast();
        match cu!(cuMemGetHandleForAddressRange(to, at, size, kind, flags)) {
            0 => Ok(fd),
            code => Err(code),
        }
    };
    let at = reserve(4 * G);
    for i in 0..3 {
        let handle = try_create(G, &prop(i32::from(i == 2))).expect("memory");
        assert_eq!(map(at + i * g, G, handle), 0);
        assert_eq!(release(handle), 0);
    }
    assert_eq!(ask(at, 2 * G, 2, 0), Err(1));
    assert_eq!(ask(at, 2 * G, 1, 2), Err(1));
    assert_eq!(ask(at + 1, 4096, 1, 0), Err(1));
    assert_eq!(ask(at, 0, 1, 0), Err(1));
    assert_eq!(ask(at, 3 * G, 1, 0), Err(1));
    assert_eq!(ask(at + 2 * g, 2 * G, 1, 0), Err(1));
    assert_eq!(ask(0x9000, 4096, 1, 0), Err(1));
    row("cuMemGetHandleForAddressRange: host pages, one device, all mapped, else 1", "cuda.h");
    let fd = ask(at + 4096, 2 * G - 4096, 1, 0).expect("a descriptor");
    assert_eq!(unmap(at, 3 * G), 0);
    assert_eq!(free_bytes(), all - 2 * G);
    drop_fd(fd);
    assert_eq!(free_bytes(), all);
    row("cuMemGetHandleForAddressRange: the descriptor keeps the memory", "as a dma-buf does");
    assert_eq!(unreserve(at, 4 * G), 0);
    let mut plain = 0;
    assert_eq!(cu!(cuMemAlloc_v2(&raw mut plain, 2 * G)), 0);
    drop_fd(ask(plain, 2 * G, 1, 0).expect("a descriptor"));
    assert_eq!(cu!(cuMemFree_v2(plain)), 0);
    assert_eq!(free_bytes(), all);
    drop(sim);
    let sim = Sim::start("refuse = dma_buf=801");
    sim.primary(0);
    let at = mapped(G);
    assert_eq!(ask(at, G, 1, 0), Err(801));
    row("cuMemGetHandleForAddressRange: 801 where dma-buf is not supported", "cuda.h");
    unmapped(at, G);
}

#[test]
fn touching_what_is_not_open_faults() {
    let mut other = Other::start("fault", None);
    assert_eq!(other.hear(), "now");
    let status = other.child.wait().expect("its end");
    assert_eq!(status.signal(), Some(libc::SIGSEGV));
    row("the CPU faults on memory without access", "as any unmapped address");
}

#[test]
fn a_forked_child_has_none_of_it() {
    let _sim = Sim::start("");
    let at = mapped(G);
    assert_eq!(peek(at), Some(0xA5));
    // SAFETY: the child makes two system calls, one call that is refused first thing, and ends.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let closed = release(1) == 3 && peek(at).is_none();
        // SAFETY: ends the child without running anything of the parent's.
        unsafe { libc::_exit(if closed { 0 } else { 1 }) };
    }
    let mut status = 0;
    // SAFETY: the child just made.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0);
    assert_eq!(peek(at), Some(0xA5));
    row("a forked child answers 3 and has no device memory", "recalled; nothing in cuda.h");
    unmapped(at, G);
}
