//! What people read: leaks, out-of-memory reports, the JSON report; debug records.
//!
//! Owns the records of watched blocks (call site, time) and the names of tags. Never on the
//! hot path: blocks are watched only when configured, and then every operation is slow.

use super::core::Core;
use super::ladder::Refusal;
use super::{Pool, registry};
use crate::base::units::human;
use crate::config::Leaks;
use crate::error::{Error, Result, Status};
use crate::slab::marks::SPECIAL;
use std::fmt::Write;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

/// What is known of a watched block.
#[derive(Debug)]
pub struct Record {
    /// Requested bytes.
    pub bytes: usize,
    /// When it was allocated.
    pub at: Instant,
    /// Where, when call sites are kept.
    pub backtrace: Option<backtrace::Backtrace>,
}

/// One live block, as leak reports show it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leak {
    /// Its address.
    pub address: usize,
    /// Requested bytes, or the slot's length where the request is not known.
    pub bytes: usize,
    /// Its tag.
    pub tag: u8,
    /// Whether its memory is taken away now.
    pub suspended: bool,
    /// Its age in ms; 0 when blocks are not watched.
    pub age_ms: u64,
    /// Where it was allocated; empty when call sites are not kept.
    pub site: String,
}

static TAGS: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// The number for a tag's name, 2 to 127; the same name has one number.
pub fn tag_create(name: &str) -> Result<u8> {
    let mut tags = TAGS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(i) = tags.iter().position(|t| t == name) {
        return Ok(i as u8 + 2);
    }
    if name.is_empty() || name.len() > 64 {
        return Err(Error::new(Status::InvalidArgument, "a tag's name has 1 to 64 bytes"));
    }
    if tags.len() + 2 >= usize::from(SPECIAL) {
        return Err(Error::new(Status::InvalidArgument, "all 126 tags are taken"));
    }
    tags.push(name.to_owned());
    Ok(tags.len() as u8 + 1)
}

/// Whether a number is a tag's.
pub fn tag_exists(tag: u32) -> bool {
    let tags = TAGS.lock().unwrap_or_else(PoisonError::into_inner);
    tag == 1 || (2..tags.len() as u32 + 2).contains(&tag)
}

/// A tag's name.
pub fn tag_name(tag: u8) -> String {
    let tags = TAGS.lock().unwrap_or_else(PoisonError::into_inner);
    match tag & !SPECIAL {
        0 | 1 => "untagged".to_owned(),
        t => tags.get(usize::from(t) - 2).cloned().unwrap_or_else(|| format!("tag {t}")),
    }
}

impl Core {
    /// Keeps a record of a new block.
    pub fn watch(&mut self, address: usize, bytes: usize) {
        if self.mark_special(address).is_err() {
            return;
        }
        let backtrace = self.settings.backtrace.then(backtrace::Backtrace::new_unresolved);
        let record = Record { bytes, at: Instant::now(), backtrace };
        self.side.entry(address).or_default().record = Some(record);
    }

    /// Every live block.
    pub fn leaks(&self) -> Vec<Leak> {
        let mut leaks = Vec::new();
        self.each_block(|address, rounded, requested, tag| {
            let record = self.side.get(&address).and_then(|s| s.record.as_ref());
            leaks.push(Leak {
                address,
                bytes: record.map(|r| r.bytes).or(requested).unwrap_or(rounded),
                tag: tag & !SPECIAL,
                suspended: self.heap.is_asleep(self.ground_at(address)),
                age_ms: record.map_or(0, |r| r.at.elapsed().as_millis() as u64),
                site: record.and_then(|r| r.backtrace.as_ref()).map_or(String::new(), site),
            });
        });
        self.each_import(|address, bytes| {
            let site = "imported".to_owned();
            leaks.push(Leak { address, bytes, tag: 1, suspended: false, age_ms: 0, site });
        });
        leaks.sort_by_key(|l| l.address);
        leaks
    }
}

/// The first frames outside Forebay, resolved.
fn site(backtrace: &backtrace::Backtrace) -> String {
    let mut backtrace = backtrace.clone();
    backtrace.resolve();
    let mut text = String::new();
    let mut kept = 0;
    for symbol in backtrace.frames().iter().flat_map(backtrace::BacktraceFrame::symbols) {
        let Some(name) = symbol.name().map(|n| n.to_string()) else { continue };
        let ours = ["forebay", "backtrace::", "std::", "core::", "<"];
        if kept == 0 && ours.iter().any(|prefix| name.starts_with(prefix)) {
            continue;
        }
        if kept > 0 {
            text.push_str(" < ");
        }
        text.push_str(&name);
        if let (Some(file), Some(line)) = (symbol.filename(), symbol.lineno()) {
            let file = file.file_name().map(|f| f.to_string_lossy().into_owned());
            write!(text, " ({}:{line})", file.unwrap_or_default()).expect("strings take text");
        }
        kept += 1;
        if kept == 6 {
            break;
        }
    }
    text
}

/// Prints the leak report of a pool to standard error, and logs its summary.
pub fn print_leaks(id: u64, how: Leaks, when: &str) {
    let leaks = registry::pool(id).and_then(|p| p.with_core(id, |core| core.leaks()));
    let Ok(leaks) = leaks else { return };
    if leaks.is_empty() {
        return;
    }
    let bytes: u64 = leaks.iter().map(|l| l.bytes as u64).sum();
    let blocks = leaks.len();
    let plural = if blocks == 1 { "" } else { "s" };
    let head = format!(
        "leak report at {when}: {blocks} block{plural}, {bytes} bytes ({}) live in pool {id}",
        human(bytes)
    );
    tracing::warn!("{head}");
    if how == Leaks::Off {
        return;
    }
    let mut text = format!("forebay: {head}\n");
    let mut tags: std::collections::BTreeMap<(u8, bool), (u64, u64)> = Default::default();
    for leak in &leaks {
        let entry = tags.entry((leak.tag, leak.suspended)).or_default();
        entry.0 += leak.bytes as u64;
        entry.1 += 1;
    }
    let asleep = |suspended: bool| if suspended { ", suspended" } else { "" };
    for ((tag, suspended), (bytes, count)) in tags {
        let (name, asleep) = (tag_name(tag), asleep(suspended));
        writeln!(text, "forebay:   {name}: {count} x, {}{asleep}", human(bytes))
            .expect("strings take text");
    }
    if how == Leaks::Full {
        for leak in leaks.iter().take(1000) {
            let site = if leak.site.is_empty() {
                "set FOREBAY_BACKTRACE=1 for call sites"
            } else {
                &leak.site
            };
            writeln!(
                text,
                "forebay:   {:#x}: {} bytes, {}{}, {} ms old, {site}",
                leak.address,
                leak.bytes,
                tag_name(leak.tag),
                asleep(leak.suspended),
                leak.age_ms
            )
            .expect("strings take text");
        }
    }
    eprint!("{text}");
}

/// Why an allocation failed, in one paragraph.
pub fn out_of_memory(core: &mut Core, bytes: usize, refusal: Refusal) -> String {
    let stats = core.stats();
    let mut text = format!(
        "out of memory: {bytes} bytes requested; limit {}, held {}, live {}, cached {}, \
         pending {}, trapped {}, idle {}; largest free row {}",
        stats.limit_bytes,
        stats.mapped_bytes,
        stats.live_bytes,
        stats.cached_bytes,
        stats.pending_bytes,
        stats.trapped_bytes,
        stats.idle_bytes,
        stats.largest_bytes
    );
    if stats.region_bytes > 0 {
        write!(text, "; regions hold {}", stats.region_bytes).expect("strings take text");
    }
    let mut tags: Vec<(usize, (u64, u64))> = core.tag_bytes().into_iter().enumerate().collect();
    tags.retain(|(_, (bytes, _))| *bytes > 0);
    tags.sort_by_key(|(_, (bytes, _))| std::cmp::Reverse(*bytes));
    for (i, (tag, (bytes, _))) in tags.iter().take(3).enumerate() {
        let lead = if i == 0 { "; most live: " } else { ", " };
        write!(text, "{lead}{} {}", tag_name(*tag as u8), human(*bytes))
            .expect("strings take text");
    }
    text.push_str(&match refusal {
        Refusal::Short { missing } if core.lanes.open_captures() > 0 => {
            format!("; {missing} bytes missing, and an open graph capture holds back all moves")
        }
        Refusal::Short { missing } if core.vmem.any_pinned() => {
            format!("; {missing} bytes missing, and pinned blocks hold their granules")
        }
        Refusal::Short { missing } => format!("; {missing} bytes missing"),
        Refusal::AddressSpace => {
            "; no address range is long enough, or the tables of slots are full".to_owned()
        }
        Refusal::Driver(error) => format!("; {error}"),
        Refusal::Stale | Refusal::Capturing(_) | Refusal::Reused(_) | Refusal::Asleep(_) => {
            String::new()
        }
    });
    text
}

impl Pool {
    /// Every live block.
    pub fn leaks(&self) -> Result<Vec<Leak>> {
        self.with_core(|core| core.leaks())
    }

    /// The accounts, limits and tags as one JSON object.
    pub fn report_json(&self) -> Result<String> {
        let (stats, tags, backend) =
            self.with_core(|core| (core.stats(), core.tag_bytes(), core.driver().backend()))?;
        let mut text = String::from("{");
        let mut field = |name: &str, value: u64| {
            let comma = if text.len() > 1 { "," } else { "" };
            write!(text, "{comma}\"{name}\":{value}").expect("strings take text");
        };
        field("pool", self.id);
        for (name, value) in stats_fields(&stats) {
            field(name, value);
        }
        write!(text, ",\"backend\":\"{backend}\",\"tags\":{{").expect("strings take text");
        let live = tags.iter().enumerate().filter(|(_, (_, count))| *count > 0);
        for (i, (tag, (bytes, blocks))) in live.enumerate() {
            let comma = if i > 0 { "," } else { "" };
            write!(
                text,
                "{comma}\"{}\":{{\"bytes\":{bytes},\"blocks\":{blocks}}}",
                escaped(&tag_name(tag as u8))
            )
            .expect("strings take text");
        }
        text.push_str("}}");
        Ok(text)
    }
}

/// The accounts by name, in the header's order.
pub fn stats_fields(s: &super::stats::Stats) -> [(&'static str, u64); 31] {
    let calls = s.calls;
    [
        ("live_bytes", s.live_bytes),
        ("requested_bytes", s.requested_bytes),
        ("cached_bytes", s.cached_bytes),
        ("pending_bytes", s.pending_bytes),
        ("trapped_bytes", s.trapped_bytes),
        ("idle_bytes", s.idle_bytes),
        ("other_bytes", s.other_bytes),
        ("mapped_bytes", s.mapped_bytes),
        ("peak_live_bytes", s.peak_live_bytes),
        ("peak_mapped_bytes", s.peak_mapped_bytes),
        ("limit_bytes", s.limit_bytes),
        ("soft_limit_bytes", s.soft_limit_bytes),
        ("reserved_address_bytes", s.reserved_address_bytes),
        ("live_blocks", s.live_blocks),
        ("allocs", s.allocs),
        ("frees", s.frees),
        ("driver_calls", calls.total() + s.fences_recorded),
        ("pages_created", calls.created),
        ("pages_released", calls.released),
        ("pages_moved", s.pages_moved),
        ("map_calls", calls.maps),
        ("unmap_calls", calls.unmaps),
        ("set_access_calls", calls.set_access),
        ("gathers", s.gathers),
        ("fences_recorded", s.fences_recorded),
        ("oom_count", s.out_of_memory),
        ("stranded_pages", s.stranded_pages),
        ("unmapped_stock_bytes", s.stock_bytes),
        ("suspended_bytes", s.suspended_bytes),
        ("suspended_host_bytes", s.suspended_host_bytes),
        ("region_bytes", s.region_bytes),
    ]
}

fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            c if u32::from(c) < 0x20 => {
                write!(out, "\\u{:04x}", u32::from(c)).expect("strings take text");
            }
            c => out.push(c),
        }
    }
    out
}
