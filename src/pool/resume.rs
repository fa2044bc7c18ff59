//! Resume: the memory of suspended tags comes back, at the same addresses.
//!
//! Owns the steps: all pages are there first, created or taken from idle memory as for an
//! allocation; then all rows are mapped, open to the pool's present peers; then contents are copied
//! back. Promises that whatever fails leaves the tags asleep with their contents kept, and no page
//! held for them: those that could not be unmapped again are stuck, and tried again by whoever
//! recovers. Must not hold a lock while contents are copied.
//!
//! Cost: a call a page, a map and an access call a row, the copies of what was kept.

use super::copier::{Contents, Copier};
use super::core::Core;
use super::ladder::{self, Refusal};
use super::suspend::{Report, capture_open, copy_error, end_copier};
use super::tagged::{Away, State};
use super::{Pool, Shared, keeper, registry, report};
use crate::base::units::{QUANTUM_SHIFT, human};
use crate::driver::{Call, Code, DriverError};
use crate::error::{Error, Result, Status};
use crate::heap::IdleRun;

/// Why pages of an earlier try are still mapped: the driver's own number is gone by now.
const UNDONE: Code = Code::Other(999);

impl Core {
    fn begin_resume(&mut self, tags: &[u8]) -> Result<Vec<u8>> {
        let found = self.check_tags(tags, State::Asleep)?;
        if self.lanes.open_captures() > 0 {
            return Err(capture_open());
        }
        if found.is_empty() {
            return Ok(found);
        }
        self.recover();
        for &tag in &found {
            self.sweep_tag(tag);
        }
        let stuck = found.iter().find(|tag| !self.tagged.tags[tag].stuck.is_empty());
        if let Some(tag) = stuck {
            if !self.may_unmap_now().unwrap_or(false) {
                return Err(Error::new(
                    Status::Busy,
                    format!(
                        "pages of the tag \"{}\" that an earlier try left mapped may be unmapped \
                         only while the device does no work (FOREBAY_MOVE); synchronize it and \
                         resume the tag again",
                        report::tag_name(*tag)
                    ),
                ));
            }
            return Err(Error::new(
                Status::Driver,
                format!(
                    "the driver still keeps pages of the tag \"{}\" mapped that it was to unmap; \
                     it stays suspended, resume it again later",
                    report::tag_name(*tag)
                ),
            ));
        }
        for tag in &found {
            self.tagged.set(*tag, State::Waking);
        }
        Ok(found)
    }

    /// Maps pages at all of the tags' granules, or at none. Answers how many.
    fn back_rows(&mut self, tags: &[u8]) -> std::result::Result<u32, Refusal> {
        if tags.iter().any(|tag| !self.tagged.tags[tag].stuck.is_empty()) {
            // An earlier try could not be undone.
            return Err(Refusal::Driver(DriverError { call: Call::Unmap, code: UNDONE }));
        }
        let rows = self.tag_rows(tags);
        let need: u32 = rows.iter().map(|row| row.len).sum();
        self.ready(need as usize, (0, 0))?;
        for (i, row) in rows.iter().enumerate() {
            let Err(failure) = self.vmem.map(row.granule, row.len) else { continue };
            self.take_down(&rows[..i]);
            self.note_stuck(tags);
            return Err(Refusal::Driver(failure.error));
        }
        for &tag in tags {
            self.heap.set_asleep(tag, false);
        }
        Ok(need)
    }

    /// Notes which of the tags' granules are mapped though they should not be.
    fn note_stuck(&mut self, tags: &[u8]) {
        for &tag in tags {
            let rows = self.heap.ground_rows(tag).into_iter();
            let granules = rows.flat_map(|row| row.granule..row.granule + row.len);
            let stuck: Vec<u32> = granules.filter(|&g| self.vmem.is_stranded(g)).collect();
            if !stuck.is_empty() {
                keeper::poke(self.id);
            }
            if let Some(sleeper) = self.tagged.tags.get_mut(&tag) {
                sleeper.stuck = stuck;
            }
        }
    }

    /// The contents to bring back: taken from the tags, by address.
    fn take_saved(&mut self, tags: &[u8]) -> Vec<(u8, u32, usize, Contents)> {
        let mut found = Vec::new();
        let per = self.heap.per_granule();
        for &tag in tags {
            let Some(sleeper) = self.tagged.tags.get_mut(&tag) else { continue };
            for (off, contents) in std::mem::take(&mut sleeper.saved) {
                let last = off + (contents.len() >> QUANTUM_SHIFT) as u32 - 1;
                // A graph's memory may have been freed meanwhile, graph and all.
                if (off / per..=last / per).all(|granule| self.heap.is_ground(tag, granule)) {
                    found.push((tag, off, self.address(off), contents));
                }
            }
        }
        found
    }

    /// All as it was before the resume: contents kept, pages back to the device. `mapped`: the rows
    /// have been mapped.
    fn fall_back(
        &mut self,
        tags: &[u8],
        saved: Vec<(u8, u32, usize, Contents)>,
        mapped: bool,
        stock: usize,
    ) {
        for (tag, off, _, contents) in saved {
            if let Some(sleeper) = self.tagged.tags.get_mut(&tag) {
                sleeper.saved.insert(off, contents);
            }
        }
        let filled = self.vmem.stock();
        if mapped {
            self.take_down(&self.tag_rows(tags));
            tags.iter().for_each(|&tag| self.heap.set_asleep(tag, true));
        }
        self.note_stuck(tags);
        for &tag in tags {
            if let Some(sleeper) = self.tagged.tags.get_mut(&tag) {
                sleeper.away.host = sleeper.saved.values().map(|bytes| bytes.len() as u64).sum();
            }
            self.tagged.set(tag, State::Asleep);
            self.finish_late(tag);
            self.sweep_tag(tag);
        }
        // Those that were just unmapped have contents in them, wherever they came from.
        let now = self.vmem.stock();
        self.give_up_pages(now.saturating_sub(stock.min(filled)));
    }

    /// Unmaps rows that a resume has mapped. Nothing is unmapped under a copy, while a capture is
    /// open or, unless pages may move at any time, while the device works: whoever recovers does it
    /// then.
    fn take_down(&mut self, rows: &[IdleRun]) {
        let now = !self.tagged.is_copying()
            && self.lanes.open_captures() == 0
            && self.may_unmap_now().unwrap_or(false);
        for &row in rows {
            if !now {
                (row.granule..row.granule + row.len).for_each(|g| self.vmem.strand(g));
            } else if self.vmem.unmap(row.granule, row.len).is_err() {
                self.unmap_or_strand(row);
            }
        }
    }

    fn wake(&mut self, tags: &[u8]) {
        for &tag in tags {
            if let Some(sleeper) = self.tagged.tags.get_mut(&tag) {
                sleeper.away = Away::default();
                sleeper.saved.clear();
            }
            self.tagged.set(tag, State::Awake);
            self.finish_late(tag);
            self.sweep_tag(tag);
        }
    }
}

impl Pool {
    /// Brings the memory of tags back, at the same addresses, with the contents that were kept. All
    /// of the tags or none; one that is awake stays so. Climbs the steps that an allocation does
    /// when memory is short. Waits for the copies.
    ///
    /// # Errors
    /// `OutOfMemory` says how many bytes were missing, and so does `report`; `InvalidArgument`,
    /// `Busy` and the driver's as for [`Pool::suspend`]. Everything is asleep still, contents kept.
    pub fn resume(&self, tags: &[u8], report: &mut Report) -> Result<()> {
        *report = Report::default();
        let (id, shared) = (self.id(), registry::pool(self.id())?);
        let waking = shared.with_core(id, |core| core.begin_resume(tags))??;
        if waking.is_empty() {
            *report = shared.with_core(id, |core| core.report_of(tags, 0))?;
            return Ok(());
        }
        let before = shared.with_core(id, |core| core.report_of(&waking, 0))?;
        let back = bring_back(shared, id, &waking, &mut report.missing_bytes);
        let missing_bytes = report.missing_bytes;
        *report = match back {
            Ok(device_bytes) => Report { host_bytes: 0, device_bytes, ..before },
            Err(_) => shared.with_core(id, |core| core.report_of(&waking, 0))?,
        };
        report.missing_bytes = missing_bytes;
        back.map(|bytes| tracing::info!(id, taken = %human(bytes), "tags resumed"))
    }
}

/// Pages, mappings, contents; on failure everything is asleep again.
fn bring_back(shared: &'static Shared, id: u64, tags: &[u8], missing: &mut u64) -> Result<u64> {
    let (need, stock, granule) = shared.with_core(id, |core| {
        let need: u32 = core.tag_rows(tags).iter().map(|row| row.len).sum();
        (need, core.vmem.stock(), core.vmem.granule())
    })?;
    let bytes = need as usize * granule;
    let backed = ladder::climb(shared, id, bytes, |core, _fit| {
        core.back_rows(tags).inspect_err(|refusal| {
            if let Refusal::Short { missing: short } = refusal {
                *missing = *short;
            }
        })
    });
    match backed {
        Ok(Some(_)) => *missing = 0,
        Ok(None) => return Err(super::invalid_pool()),
        Err(error) => {
            if *missing == 0 && error.status() == Status::OutOfMemory {
                *missing = bytes as u64;
            }
            shared.with_core(id, |core| core.fall_back(tags, Vec::new(), false, stock))?;
            return Err(error);
        }
    }
    let (saved, driver) = shared
        .with_core(id, |core| (core.take_saved(tags), std::sync::Arc::clone(core.driver())))?;
    let scrub = shared.with_core(id, |core| core.settings.scrub)?;
    let longest = saved.iter().map(|(.., contents)| contents.len()).max();
    if let Some(longest) = longest {
        let mut copier = Copier::new(driver, longest, scrub);
        let parts: Vec<(usize, &[u8])> =
            saved.iter().map(|(_, _, address, contents)| (*address, &contents[..])).collect();
        let copied = copier.restore(&parts);
        end_copier(shared, id, copier);
        if let Err(failure) = copied {
            shared.with_core(id, |core| core.fall_back(tags, saved, true, stock))?;
            return Err(copy_error(failure));
        }
    }
    shared.with_core(id, |core| core.wake(tags))?;
    Ok(bytes as u64)
}
