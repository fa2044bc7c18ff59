//! Memory shared through descriptors: exported, imported, by this process and by another.

use crate::cuda::Properties;
use crate::lab::{Lab, RW, codes, properties, yes};
use crate::rule::Source::{Assumed, Header, Issue, Tests};
use crate::rule::{Rule, Seen, Stop, rule};
use std::ffi::c_void;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::ptr::null_mut;

/// `CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR`.
const DESCRIPTOR: u32 = 1;

/// The rules of this file.
pub const RULES: &[Rule] = &[
    rule("export: no place; flags 1; memory created without the type", Tests, "1 1 1", |lab| {
        let handle = exportable(lab)?;
        let plain = lab.create(lab.granule)?;
        let mut fd = -1i32;
        let to = (&raw mut fd).cast::<c_void>();
        let export = |to, handle, flags| {
            lab.cuda.cuMemExportToShareableHandle(to, handle, DESCRIPTOR, flags)
        };
        Ok(codes(&[export(null_mut(), handle, 0), export(to, handle, 1), export(to, plain, 0)]))
    })
    .without_context(),
    rule(
        "export: as a type that was not asked for: Windows; fabric",
        Assumed,
        "801 800 or 801 801 or 801 1 or 1 1",
        |lab| {
            let handle = exportable(lab)?;
            let mut room = [0u64; 16];
            let to = room.as_mut_ptr().cast::<c_void>();
            let export = |kind| lab.cuda.cuMemExportToShareableHandle(to, handle, kind, 0);
            Ok(codes(&[export(2), export(8)]))
        },
    )
    .without_context(),
    rule("export: until descriptors end", Assumed, "304 or 2 or 999", |lab| {
        let handle = exportable(lab)?;
        let few = libc::rlimit { rlim_cur: 128, rlim_max: 128 };
        // SAFETY: a limit of this process, which ends with the rule.
        let set = unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const few) };
        lab.need("setrlimit", set as u32)?;
        for _ in 0..256 {
            let mut fd = -1i32;
            let to = (&raw mut fd).cast::<c_void>();
            match lab.cuda.cuMemExportToShareableHandle(to, handle, DESCRIPTOR, 0) {
                0 => {}
                code => return Ok(code.to_string()),
            }
        }
        Ok("never refused".to_owned())
    })
    .without_context()
    .simulated("304"),
    rule("export: each gives a descriptor of its own", Header, "yes", |lab| {
        let handle = exportable(lab)?;
        let (first, second) = (export(lab, handle)?, export(lab, handle)?);
        Ok(yes(first.as_raw_fd() != second.as_raw_fd()).to_owned())
    })
    .without_context(),
    rule(
        "import: /dev/null; descriptor -1; no place; type 2",
        Assumed,
        "1 1 1 801 or 1 1 1 1 or 999 1 1 801 or 999 1 1 1",
        |lab| {
            let null = std::fs::File::open("/dev/null")
                .map_err(|e| Stop::Setup(format!("/dev/null: {e}")))?;
            let fd = export(lab, exportable(lab)?)?;
            let mut handle = 0;
            let from = |fd: i32| fd as usize as *mut c_void;
            let import = |to, fd, kind| lab.cuda.cuMemImportFromShareableHandle(to, from(fd), kind);
            let foreign = import(&raw mut handle, null.as_raw_fd(), DESCRIPTOR);
            let none = import(&raw mut handle, -1, DESCRIPTOR);
            let place = import(null_mut(), fd.as_raw_fd(), DESCRIPTOR);
            Ok(codes(&[foreign, none, place, import(&raw mut handle, fd.as_raw_fd(), 2)]))
        },
    )
    .without_context()
    .simulated("1 1 1 801"),
    rule("import in the same process: one memory by two handles", Header, "0 61", |lab| {
        let (at, handle) = filled(lab, 61)?;
        let fd = export(lab, handle)?;
        let (code, imported) = import(lab, &fd);
        lab.need("cuMemImportFromShareableHandle", code)?;
        drop(fd);
        let other = lab.reserve(lab.granule)?;
        lab.need("cuMemMap", lab.map(other, lab.granule, imported))?;
        lab.need("cuMemSetAccess", lab.open(other, lab.granule, RW))?;
        lab.need("cuMemUnmap", lab.cuda.cuMemUnmap(at, lab.granule))?;
        lab.need("cuMemRelease", lab.cuda.cuMemRelease(handle))?;
        Ok(format!("{code} {}", super::vmm::told(lab.word(other))))
    }),
    rule("another process imports, reads 61 and writes 62", Header, "read 61, seen 62", |lab| {
        let (at, handle) = filled(lab, 61)?;
        let fd = export(lab, handle)?;
        let told = importer(&fd, "importer", lab.granule)?;
        Ok(format!("read {told}, seen {}", super::vmm::told(lab.word(at))))
    }),
    rule(
        "another process imports 256 MiB: taken for it; the import takes more",
        Assumed,
        "taken no",
        |lab| {
            let of = of_device(lab)?;
            let handle = lab.create_of(PIECE, &of)?;
            importer(&export(lab, handle)?, "weigher", PIECE)
        },
    )
    .alone()
    // Each process has a device of its own there, which only the import makes fuller.
    .simulated("taken yes"),
    rule("memory lives while an open descriptor is all that is left", Header, "held free", |lab| {
        let before = lab.free_bytes()?;
        let of = of_device(lab)?;
        let handle = lab.create_of(PIECE, &of)?;
        let fd = export(lab, handle)?;
        lab.need("cuMemRelease", lab.cuda.cuMemRelease(handle))?;
        let held = lab.free_bytes()? + PIECE / 2 < before;
        drop(fd);
        let free = lab.free_bytes()? + PIECE / 2 > before;
        let words = [if held { "held" } else { "free" }, if free { "free" } else { "held" }];
        Ok(words.join(" "))
    })
    .alone(),
    rule("dma-buf of virtual memory: a whole mapping; a byte; unmapped", Issue, "0 1 1", dma_buf),
];

const PIECE: usize = 256 << 20;

fn of_device(lab: &Lab) -> Result<Properties, Stop> {
    lab.ask(lab.attribute(103) == 1, "attribute 103 is 0: no descriptors")?;
    Ok(Properties { handle_types: DESCRIPTOR, ..properties(lab.device) })
}

fn exportable(lab: &Lab) -> Result<u64, Stop> {
    let of = of_device(lab)?;
    lab.create_of(lab.granule, &of)
}

/// Exportable memory, mapped, with one word in it.
fn filled(lab: &Lab, word: u32) -> Result<(u64, u64), Stop> {
    let (at, handle) = (lab.reserve(lab.granule)?, exportable(lab)?);
    lab.need("cuMemMap", lab.map(at, lab.granule, handle))?;
    lab.need("cuMemSetAccess", lab.open(at, lab.granule, RW))?;
    lab.need("cuMemcpyHtoD", lab.put(at, &word.to_ne_bytes()))?;
    lab.need("cuCtxSynchronize", lab.cuda.cuCtxSynchronize())?;
    Ok((at, handle))
}

fn export(lab: &Lab, handle: u64) -> Result<OwnedFd, Stop> {
    let mut fd = -1i32;
    let to = (&raw mut fd).cast::<c_void>();
    let code = lab.cuda.cuMemExportToShareableHandle(to, handle, DESCRIPTOR, 0);
    lab.need("cuMemExportToShareableHandle", code)?;
    if fd < 0 {
        return Err(Stop::Setup(format!("exported as descriptor {fd}")));
    }
    // SAFETY: a new descriptor, which the driver gave this process to close.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn import(lab: &Lab, fd: &OwnedFd) -> (u32, u64) {
    let mut handle = 0;
    let from = fd.as_raw_fd() as usize as *mut c_void;
    (lab.cuda.cuMemImportFromShareableHandle(&raw mut handle, from, DESCRIPTOR), handle)
}

/// Starts this program once more to import so many bytes and answer a question; what it said.
fn importer(fd: &OwnedFd, question: &str, bytes: usize) -> Result<String, Stop> {
    let told = |e: std::io::Error| Stop::Setup(format!("the importer: {e}"));
    let exe = std::env::current_exe().map_err(told)?;
    let mut command = Command::new(exe);
    command.args([question, &fd.as_raw_fd().to_string(), &bytes.to_string()]);
    let kept = fd.as_raw_fd();
    let keep = move || {
        // SAFETY: an open descriptor, whose flag alone is changed, in the child.
        match unsafe { libc::fcntl(kept, libc::F_SETFD, 0) } {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        }
    };
    // SAFETY: the closure makes one system call and allocates nothing.
    unsafe { command.pre_exec(keep) };
    let out = command.stdin(Stdio::null()).stderr(Stdio::null()).output().map_err(told)?;
    let text = String::from_utf8_lossy(&out.stdout).trim().to_owned();
    if text.is_empty() { Ok(format!("nothing, {}", out.status)) } else { Ok(text) }
}

/// The other process: imports, reads a word, writes the next number.
pub fn import_and_answer(lab: &Lab, fd: i32, granule: usize) -> Seen {
    let mut handle = 0;
    let from = fd as usize as *mut c_void;
    let code = lab.cuda.cuMemImportFromShareableHandle(&raw mut handle, from, DESCRIPTOR);
    lab.need("cuMemImportFromShareableHandle", code)?;
    let at = lab.reserve(granule)?;
    lab.need("cuMemMap", lab.map(at, granule, handle))?;
    lab.need("cuMemSetAccess", lab.open(at, granule, RW))?;
    let word = match lab.word(at) {
        Ok(word) => word,
        Err(code) => return Ok(format!("refused with {code}")),
    };
    lab.need("cuMemcpyHtoD", lab.put(at, &(word + 1).to_ne_bytes()))?;
    lab.need("cuCtxSynchronize", lab.cuda.cuCtxSynchronize())?;
    Ok(word.to_string())
}

/// The other process: whether the imported memory is taken for it afterwards, and whether it was
/// the import that took it.
pub fn import_and_weigh(lab: &Lab, fd: i32, bytes: usize) -> Seen {
    let (mut before, mut after, mut total) = (0, 0, 0);
    let code = lab.cuda.cuMemGetInfo(&raw mut before, &raw mut total);
    lab.need("cuMemGetInfo", code)?;
    let mut handle = 0;
    let from = fd as usize as *mut c_void;
    let code = lab.cuda.cuMemImportFromShareableHandle(&raw mut handle, from, DESCRIPTOR);
    lab.need("cuMemImportFromShareableHandle", code)?;
    let at = lab.reserve(bytes)?;
    lab.need("cuMemMap", lab.map(at, bytes, handle))?;
    lab.need("cuMemSetAccess", lab.open(at, bytes, RW))?;
    lab.need("cuMemGetInfo", lab.cuda.cuMemGetInfo(&raw mut after, &raw mut total))?;
    let taken = if total - after >= bytes { "taken" } else { "free" };
    Ok(format!("{taken} {}", yes(before.saturating_sub(after) >= bytes / 2)))
}

fn dma_buf(lab: &Lab) -> Seen {
    lab.ask(lab.attribute(124) == 1, "attribute 124 is 0: no dma-buf")?;
    let at = lab.granules(1, RW)?;
    let get = |at, size| {
        let mut fd = -1i32;
        let to = (&raw mut fd).cast::<c_void>();
        lab.cuda.cuMemGetHandleForAddressRange(to, at, size, 1, 0)
    };
    let list = [get(at, lab.granule), get(at, 1)];
    let bare = lab.reserve(lab.granule)?;
    Ok(codes(&[list[0], list[1], get(bare, lab.granule)]))
}
