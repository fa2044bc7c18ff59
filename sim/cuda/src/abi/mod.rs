//! The exported functions: unpack, call, answer. No rule of CUDA lives here that a room below
//! could hold.
//!
//! Each file owns a group of `cu*` functions and its part of the table of calls, `CALLS`.
//! Null pointers are refused before anything is read through them. Names, argument
//! orders and structures are those of CUDA 12's `cuda.h`.

pub mod capture;
pub mod context;
pub mod copy;
pub mod device;
pub mod event;
pub mod init;
pub mod launch;
pub mod limits;
pub mod memory;
pub mod mempool;
pub mod pointer;
pub mod primary;
pub mod share;
pub mod stream;
pub mod symbols;
pub mod vmm;

use crate::entry::Call;

/// The parts of the table of calls, one a file.
pub static TABLES: &[&[Call]] = &[
    capture::CALLS,
    context::CALLS,
    copy::CALLS,
    device::CALLS,
    event::CALLS,
    init::CALLS,
    launch::CALLS,
    limits::CALLS,
    memory::CALLS,
    mempool::CALLS,
    pointer::CALLS,
    primary::CALLS,
    share::CALLS,
    stream::CALLS,
    symbols::CALLS,
    vmm::CALLS,
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    /// Names of exported functions as the sources have them, and names passed to `enter`.
    fn sources() -> (BTreeSet<String>, BTreeSet<String>) {
        let (mut exported, mut entered) = (BTreeSet::new(), BTreeSet::new());
        let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/src/abi");
        let word = |text: &str| {
            let end = |c: char| !c.is_alphanumeric() && c != '_';
            text.split(end).next().unwrap_or_default().to_owned()
        };
        for entry in std::fs::read_dir(dir).expect("the folder") {
            let path = entry.expect("an entry").path();
            let text = std::fs::read_to_string(&path).expect("a source file");
            if path.ends_with("mod.rs") {
                continue;
            }
            exported.extend(text.split("extern \"C\" fn ").skip(1).map(word));
            entered.extend(text.split("\"cu").skip(1).map(|rest| format!("cu{}", word(rest))));
        }
        exported.retain(|name| name.starts_with("cu"));
        (exported, entered)
    }

    #[test]
    fn the_table_has_every_exported_function_once() {
        let (exported, entered) = sources();
        let rows: Vec<&str> = crate::entry::calls().map(|c| c.name).collect();
        let names: BTreeSet<String> = rows.iter().map(|n| (*n).to_owned()).collect();
        assert_eq!(rows.len(), names.len(), "a call has two rows");
        assert_eq!(exported, names);
        for call in crate::entry::calls() {
            assert!(entered.contains(call.name), "{} is entered under another name", call.name);
            let plain = call.name.trim_end_matches("_ptsz").trim_end_matches("_ptds");
            assert_eq!(call.per_thread, plain != call.name, "{}", call.name);
            assert!(plain.starts_with(call.asked), "{} and {}", call.name, call.asked);
            assert!((2000..=13_050).contains(&call.since), "{}", call.name);
        }
    }
}
