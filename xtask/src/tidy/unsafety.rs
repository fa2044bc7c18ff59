//! Unsafe code: only in files that are named here, each with the reason.
//!
//! Owns the list. Clippy checks that each block has its `SAFETY` comment; this check keeps the
//! blocks where a reader expects them. Tests, benches and examples call C functions
//! and are not held to the list.

use super::{Source, Violation, is_product, lex};
use proc_macro2::{TokenStream, TokenTree};
use std::path::Path;

/// A file, or a folder (ending in `/`), and why it needs unsafe code.
const ALLOWED: &[(&str, &str)] = &[
    ("src/driver/host/", "system calls: memfd, mmap, mprotect, copies between raw addresses"),
    ("src/driver/mod.rs", "the type of a callback that a driver makes"),
    ("src/cust.rs", "cust's slices over a pool's block"),
    ("src/driver/cuda/context.rs", "the CUDA driver: contexts and capture modes"),
    ("src/driver/cuda/library.rs", "the loader: libcuda and its symbols"),
    ("src/driver/cuda/memory.rs", "the CUDA driver: memory"),
    ("src/driver/cuda/newer.rs", "types of the CUDA driver's entry points"),
    ("src/driver/cuda/open.rs", "the CUDA driver: devices and their attributes"),
    ("src/driver/cuda/peers.rs", "the CUDA driver: events in peers' contexts"),
    ("src/driver/cuda/pinned.rs", "the CPU's writes to page-locked host memory"),
    ("src/driver/cuda/streams.rs", "the CUDA driver: streams, events, graphs"),
    ("src/driver/cuda/table.rs", "the CUDA driver's entry points"),
    ("src/driver/segments/tests.rs", "tests write the host's memory"),
    ("src/abi/", "raw pointers from C"),
    ("src/base/sync.rs", "cells shared between threads"),
    ("src/base/raw.rs", "metadata arrays in mapped memory"),
    ("src/base/tls.rs", "the thread's own pointer"),
    ("src/paged/copies.rs", "copies between blocks of the region"),
    ("src/paged/tables.rs", "copies to an array that the caller vouches for"),
    ("src/paged/staging.rs", "the CPU's writes to pinned staging buffers"),
    ("src/pool/cache/model.rs", "the model of the stop protocol shares a plain cell on purpose"),
    ("src/pool/arena.rs", "memory for caches, wiped in a forked child"),
    ("src/pool/settle/tests.rs", "tests look into a thread's cache"),
    ("src/pool/cache.rs", "a thread's magazines, reached through its own pointer"),
    ("src/pool/events.rs", "a copy between addresses that the caller vouches for"),
    ("src/pool/hot.rs", "the hot path: magazines and live marks without a lock"),
    ("src/pool/mod.rs", "calls into the hot path with its own locals"),
    ("src/pool/copier.rs", "bytes of page-locked memory, moved by the CPU"),
    ("src/pool/core.rs", "the list of caches crosses threads with its lock"),
    ("src/pool/control.rs", "the owner's unmap callback, a C function pointer"),
    ("src/pool/keeper.rs", "the thread's signal mask"),
    ("src/pool/ladder.rs", "the owner's out-of-memory callback; caches checked under the lock"),
    ("src/pool/registry.rs", "other threads' caches, once their owners are stopped"),
    ("src/pool/schedules.rs", "the schedules' own caches"),
    ("src/pool/slow.rs", "this thread's cache, and the caller's out pointer"),
    ("src/pool/slow/tests.rs", "a cache taken away by hand"),
    ("src/pool/slots/tests.rs", "a look at the calling thread's own cache"),
    ("src/pool/stats.rs", "counters in other threads' caches"),
    ("src/pool/world.rs", "the word that tells a fork; exit hooks of the C library"),
    ("src/step/binding.rs", "the hot state of a step, while none is open or by its owner"),
    ("src/step/hot.rs", "the hot path of a step: its lists without a lock"),
    ("src/step/runner.rs", "a step's hot state, shared by the rule of owners"),
    ("src/step/slow.rs", "the hot state of the caller's own step, and the out pointer"),
    ("src/torch/mod.rs", "calls into the hot path with its own locals"),
    ("src/torch/private.rs", "PyTorch's filter of streams, a C function pointer"),
    ("src/torch/watch.rs", "the recorder's function, a C function pointer"),
    ("src/logging.rs", "the owner's log callback, a C function pointer"),
    ("cli/src/cpu_time.rs", "the thread's clock"),
    ("cli/src/program/privileges.rs", "the process's user, and a file's capabilities"),
    ("bindings/preload/src/background.rs", "a new thread's signal mask"),
    ("bindings/preload/src/count.rs", "counters of threads that ended; a C function"),
    ("bindings/preload/src/hooks/", "CUDA's C functions, called and answered"),
    ("bindings/preload/src/ipc/", "sockets and descriptors; the pool's C ABI; the CUDA driver"),
    ("bindings/preload/src/loader.rs", "the loader: names, handles, objects"),
    ("bindings/preload/src/lookup.rs", "dlsym and cuGetProcAddress"),
    ("bindings/preload/src/open.rs", "dlopen"),
    ("bindings/preload/src/place.rs", "the CUDA driver: contexts; the pool's C ABI"),
    ("bindings/preload/src/pool.rs", "the pool's C ABI, opened by the loader"),
    ("bindings/preload/src/settings.rs", "the C library's environment"),
    ("bindings/preload/src/sizes.rs", "a table in mapped memory"),
    ("bindings/preload/src/trace/", "the trace's file and its lock, the exit handler"),
    (
        "sim/cuda/src/memory/os.rs",
        "system calls: reservations, mappings, memory files, range locks",
    ),
    ("sim/cuda/src/abi/", "CUDA's C functions: places and texts of the caller"),
    ("sim/cuda/src/control.rs", "the simulation's C functions: texts and a buffer of the caller"),
    ("sim/cuda/src/engine/bytes.rs", "what queued work reads and writes"),
    ("sim/cuda/src/engine/graphmem.rs", "poison in a graph's block"),
    ("sim/cuda/src/engine/host.rs", "the program's own functions, called in stream order"),
    ("sim/cuda/src/engine/order.rs", "poison in a pool's block"),
    ("sim/cuda/src/engine/tests.rs", "host functions of the tests"),
    ("sim/cuda/src/engine/tests/", "host functions of the tests"),
    ("sim/cuda/src/entry.rs", "addresses of exported functions cross threads"),
    ("sim/cuda/src/world.rs", "the process's number and its exit handler"),
    ("sim/cudart/src/", "CUDA's C functions: places of the caller, and the driver's functions"),
    ("sim/probe/src/cuda.rs", "the driver's C functions, found by name"),
    ("sim/probe/src/lab.rs", "pinned memory that a kernel waits for"),
    ("sim/probe/src/machine.rs", "a name that the driver wrote"),
    ("sim/probe/src/rules/", "callbacks, forks and pinned memory that rules look at"),
    ("sim/probe/src/run.rs", "a line from an exit handler; a child's process group"),
    ("sim/probe/src/safety.rs", "the library's C functions, and memory that copies write to"),
];

/// Finds unsafe code outside the list, and lines of the list that nothing needs.
pub fn check(files: &[Source]) -> Vec<Violation> {
    let mut found = Vec::new();
    let mut needed = vec![false; ALLOWED.len()];
    for file in files.iter().filter(|f| is_product(&f.path)) {
        let Some(tokens) = lex(file, &mut found) else {
            continue;
        };
        let Some(line) = first_unsafe(tokens) else {
            continue;
        };
        match ALLOWED.iter().position(|(name, _)| covers(name, &file.path)) {
            Some(i) => needed[i] = true,
            None => {
                let message = format!("unsafe code in a file that {} does not name", file!());
                found.push(Violation::new(&file.path, line, message));
            }
        }
    }
    for ((name, _), _) in ALLOWED.iter().zip(&needed).filter(|(_, needed)| !**needed) {
        let message = format!("{name} holds no unsafe code: take it off the list");
        found.push(Violation::new(Path::new(file!()), 0, message));
    }
    found
}

fn covers(name: &str, path: &Path) -> bool {
    match name.strip_suffix('/') {
        Some(dir) => path.starts_with(dir),
        None => path == Path::new(name),
    }
}

/// The first line with the keyword, also inside macros.
fn first_unsafe(tokens: TokenStream) -> Option<usize> {
    tokens.into_iter().find_map(|token| match token {
        TokenTree::Ident(word) if word == "unsafe" => Some(word.span().start().line),
        TokenTree::Group(inside) => first_unsafe(inside.stream()),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::super::sample;
    use super::*;

    fn lines_in(path: &str, text: &str) -> Vec<usize> {
        let found = check(&[sample(path, text)]);
        found.iter().filter(|v| v.file == Path::new(path)).map(|v| v.line).collect()
    }

    #[test]
    fn unsafe_code_outside_the_list_is_found() {
        let text = "//! unsafe in words\nfn f() {\n    unsafe { g() }\n}\n";
        assert_eq!(lines_in("src/heap/holes.rs", text), [3]);
        assert_eq!(lines_in("src/heap/holes.rs", "m! { unsafe }"), [1]);
        assert_eq!(lines_in("src/driver/host/mod.rs", text), [0usize; 0]);
        assert_eq!(lines_in("tests/abi.rs", text), [0usize; 0]);
        assert_eq!(lines_in("src/heap/holes.rs", "// unsafe\n"), [0usize; 0]);
    }

    #[test]
    fn a_name_that_needs_no_unsafe_code_is_found() {
        let found = check(&[sample("src/base/tls.rs", "unsafe fn f() {}")]);
        assert_eq!(found.len(), ALLOWED.len() - 1);
        assert!(found.iter().all(|v| !v.message.contains("src/base/tls.rs")));
    }
}
