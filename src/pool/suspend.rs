//! Suspend and resume: the memory of tags goes back to the device, their addresses stay.
//!
//! Owns the steps. **Suspend**: the tags are refused to everybody (*falling*); all work of the
//! device so far is awaited; contents go to host memory in chunks ([`super::copier`]), or are
//! dropped; the granules are unmapped and their pages given back to the device. **Resume**: all
//! pages first, then mappings, then contents. Promises:
//!
//! - a failed suspend leaves everything as it was, a failed resume everything asleep, contents
//!   kept;
//! - other tags' blocks are in use all the while: no lock is held while the device is awaited or
//!   contents are copied;
//! - an exported or pinned block refuses the suspend, and is named;
//! - pages that the driver would not unmap or take back are counted ([`Report::stuck_bytes`]),
//!   serve nobody and are tried again; so is what it would not give back of the copies.
//!
//! One case is between the two: an unmap fails after others worked, and mapping those again fails
//! too. Then the suspend goes through, and the pages still mapped are among those that are stuck.
//!
//! The caller sees to it that nothing on the device uses the blocks from the suspend on: no kernel,
//! no copy, no launch of a graph that does. Cost: the copies of live bytes, an unmap or a map a row
//! of granules, a call a page.

use super::copier::{Contents, Copier, CopyFailure};
use super::core::{Core, Extent, note};
use super::tagged::{Away, Sleeper, State, asleep};
use super::wipes::Place;
use super::{Pool, Shared, control, keeper, registry, report};
use crate::base::units::{QUANTUM_SHIFT, human};
use crate::config::Move;
use crate::driver::DriverResult;
use crate::error::{Error, Result, Status};
use crate::heap::{IdleRun, Part};
use crate::slab::marks::{Descriptor, SPECIAL};
use std::collections::BTreeMap;

/// What becomes of contents.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Level {
    /// Kept in host memory.
    Offload,
    /// Dropped: after the resume they are undefined.
    Discard,
}

/// What a suspend or a resume did, in bytes.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct Report {
    /// Given back to the device, or taken from it again.
    pub device_bytes: u64,
    /// Contents of the tags in host memory afterwards.
    pub host_bytes: u64,
    /// Live blocks of the tags that stay on the device: allocated before the tag was declared.
    pub kept_bytes: u64,
    /// Pages that should have gone and that the driver keeps, for now.
    pub stuck_bytes: u64,
    /// Device memory that a failed resume lacks.
    pub missing_bytes: u64,
    /// Blocks of the tags that are asleep afterwards (suspend) or were before (resume).
    pub blocks: u64,
}

/// A stretch of a tag's memory whose contents matter.
#[derive(Clone, Copy, Debug)]
struct Stretch {
    tag: u8,
    off: u32,
    address: usize,
    bytes: usize,
}

/// How often a suspend looks whether all is done that may use the blocks.
const LOOKS: u32 = 16;

fn busy(message: String) -> Error {
    Error::new(Status::Busy, message)
}

pub(super) fn capture_open() -> Error {
    busy("a graph capture is open: end it before memory is suspended or resumed".to_owned())
}

impl Core {
    /// Checks that tags may go from one state to another. Answers those that are not there yet.
    pub(super) fn check_tags(&self, tags: &[u8], from: State) -> Result<Vec<u8>> {
        self.check_context()?;
        let mut found = Vec::new();
        for &tag in tags {
            if !self.tagged.has(tag) {
                return Err(Error::new(
                    Status::InvalidArgument,
                    format!(
                        "the tag {tag} (\"{}\") is not suspendable: declare it before its blocks \
                         are allocated",
                        report::tag_name(tag)
                    ),
                ));
            }
            match self.tagged.state(tag) {
                State::Falling | State::Waking => return Err(asleep(tag)),
                state if state == from && !found.contains(&tag) => found.push(tag),
                _ => {}
            }
        }
        Ok(found)
    }

    fn begin_suspend(&mut self, tags: &[u8]) -> Result<Vec<u8>> {
        let found = self.check_tags(tags, State::Awake)?;
        if self.lanes.open_captures() > 0 {
            return Err(capture_open());
        }
        self.refuse_held(&found)?;
        for tag in &found {
            self.tagged.set(*tag, State::Falling);
        }
        Ok(found)
    }

    /// Drops the kept contents of tags that are asleep.
    fn drop_saved(&mut self, tags: &[u8]) {
        let asleep = |sleeper: &&mut Sleeper| sleeper.state == State::Asleep;
        let named = self.tagged.tags.iter_mut().filter(|(tag, _)| tags.contains(tag));
        for sleeper in named.map(|(_, sleeper)| sleeper).filter(asleep) {
            sleeper.saved.clear();
            sleeper.away.host = 0;
        }
    }

    /// Refuses where a block of the tags is exported or pinned.
    fn refuse_held(&self, tags: &[u8]) -> Result<()> {
        let lent = self
            .shares
            .lent
            .iter()
            .find(|(_, lent)| tags.contains(&self.ground_of_place(lent.place)));
        if let Some((address, lent)) = lent {
            let name = report::tag_name(self.ground_of_place(lent.place));
            return Err(busy(format!(
                "the block at {address:#x} (tag \"{name}\") is exported: other processes use its \
                 pages; close the export before the tag is suspended"
            )));
        }
        let mut pinned = self.side.iter().filter(|(_, side)| side.pins > 0);
        if let Some((address, _)) = pinned.find(|(a, _)| tags.contains(&self.ground_at(**a))) {
            let name = report::tag_name(self.ground_at(*address));
            return Err(busy(format!(
                "the block at {address:#x} (tag \"{name}\") is pinned: its pages are registered \
                 elsewhere, or promised not to move; unpin it before the tag is suspended"
            )));
        }
        Ok(())
    }

    /// Whether nothing that was freed before still waits for work of the device. Fences are
    /// recorded and looked at; `Ok(false)`: after the device was awaited, look again.
    fn users_done(&mut self, tags: &[u8]) -> Result<bool> {
        if self.lanes.open_captures() > 0 {
            return Err(capture_open());
        }
        let driver = std::sync::Arc::clone(&self.driver.0);
        self.lanes.settle(&*driver).map_err(control::driver_error)?;
        self.settle();
        let mut done = true;
        for &tag in tags {
            self.heap.each_part(tag, &self.lanes, |_, _, part| {
                done &= !matches!(part, Part::Piece(stamp) if self.lanes.awaits_stream(stamp));
            });
        }
        for batch in self.pending.iter().filter(|batch| self.lanes.awaits_stream(batch.stamp)) {
            let own = |&round| tags.contains(&self.ground_of_place(Place::Slot(round)));
            done &= !batch.rounds.iter().any(own);
        }
        let unwiped =
            |held: &super::wipes::Unwiped| tags.contains(&self.ground_of_place(held.place));
        done &= !self.unwiped.iter().any(unwiped);
        if !done {
            // One lane's failure, say of a stream destroyed untold, is not all others'.
            note(self.lanes.record_all(&*driver), "a fence could not be recorded");
        }
        Ok(done)
    }

    /// What of the tags' memory is in use or may be.
    fn stretches(&self, tags: &[u8]) -> Vec<Stretch> {
        let mut found = Vec::new();
        for &tag in tags {
            self.heap.each_part(tag, &self.lanes, |off, len, _| {
                let bytes = (len as usize) << QUANTUM_SHIFT;
                found.push(Stretch { tag, off, address: self.address(off), bytes });
            });
        }
        found
    }

    /// The tags' granules, as rows that lie in one space each.
    pub(super) fn tag_rows(&self, tags: &[u8]) -> Vec<IdleRun> {
        let mut rows = Vec::new();
        for row in tags.iter().flat_map(|&tag| self.heap.ground_rows(tag)) {
            let (mut first, end) = (row.granule, row.granule + row.len);
            while first < end {
                let stop = self.vmem.space_end(first).min(end);
                rows.push(IdleRun { granule: first, len: stop - first });
                first = stop;
            }
        }
        rows
    }

    /// Takes the tags' memory away. Answers the bytes that went back to the device and those of
    /// unmapped pages that it would not take; `None`: work of the device is under way, and pages
    /// may go only while there is none.
    fn put_to_sleep(&mut self, tags: &[u8], saved: &mut Saved) -> Result<Option<(u64, u64)>> {
        if self.lanes.open_captures() > 0 {
            return Err(capture_open());
        }
        if !self.may_unmap_now().map_err(control::driver_error)? {
            return Ok(None);
        }
        let (rows, stock) = (self.tag_rows(tags), self.vmem.stock());
        self.unmap_rows(&rows)?;
        for &tag in tags {
            self.heap.set_asleep(tag, true);
            let stuck = |granule: &u32| self.vmem.is_mapped(*granule);
            let granules = self.heap.ground_rows(tag).into_iter();
            let stuck =
                granules.flat_map(|row| row.granule..row.granule + row.len).filter(stuck).collect();
            let contents = saved.remove(&tag).unwrap_or_default();
            let mut away = self.away_of(tag);
            away.host = contents.values().map(|bytes| bytes.len() as u64).sum();
            if let Some(sleeper) = self.tagged.tags.get_mut(&tag) {
                (sleeper.saved, sleeper.away, sleeper.stuck) = (contents, away, stuck);
            }
            self.tagged.set(tag, State::Asleep);
            self.finish_late(tag);
            self.sweep_tag(tag);
        }
        let fresh = self.vmem.stock().saturating_sub(stock);
        let released = self.give_up_pages(fresh);
        let bytes = |pages: usize| pages as u64 * self.vmem.granule() as u64;
        Ok(Some((bytes(released), bytes(fresh - released))))
    }

    /// Whether rows may be unmapped as far as the device is concerned (`FOREBAY_MOVE`).
    pub(super) fn may_unmap_now(&mut self) -> DriverResult<bool> {
        let ask = self.settings.moves != Move::Always && self.driver.0.device().context_events;
        Ok(!ask || self.device_idle()?)
    }

    /// Gives pages of the end of the stock back to the device; those that it does not take serve
    /// nobody, as contents of a tag may be in them, and are retried. Answers how many it took.
    pub(super) fn give_up_pages(&mut self, count: usize) -> usize {
        let (released, refused) = self.vmem.give_up(count);
        if let Some(error) = refused {
            tracing::warn!(%error, pages = count - released, "a tag's pages are still held");
            keeper::poke(self.id);
        }
        released
    }

    /// Unmaps all rows; their pages are the last of the stock then. What fails after others worked
    /// is undone by mapping the same pages at the same granules again; where that fails too, rows
    /// that cannot be unmapped are stranded.
    fn unmap_rows(&mut self, rows: &[IdleRun]) -> Result<()> {
        for (i, row) in rows.iter().enumerate() {
            let bytes = row.len as usize * self.vmem.granule();
            control::tell_unmapped(self.id, self.vmem.address(row.granule), bytes);
            let Err(error) = self.vmem.unmap(row.granule, row.len) else { continue };
            let undone = rows[..i].iter().rev().try_for_each(|row| {
                // From the end of the stock, in order: each page goes where it was.
                self.vmem.map(row.granule, row.len).map_err(|failure| failure.error)
            });
            let Err(second) = undone else { return Err(control::driver_error(error)) };
            tracing::error!(%error, %second, "pages of a suspended tag could not be unmapped");
            rows.iter().for_each(|&row| self.unmap_or_strand(row));
            keeper::poke(self.id);
            return Ok(());
        }
        Ok(())
    }

    /// Unmaps what is mapped of a row, granule by granule; strands what cannot be.
    pub(super) fn unmap_or_strand(&mut self, row: IdleRun) {
        for granule in row.granule..row.granule + row.len {
            let mapped = self.vmem.is_mapped(granule) && !self.vmem.is_stranded(granule);
            if mapped && self.vmem.unmap(granule, 1).is_err() {
                self.vmem.strand(granule);
            }
        }
    }

    /// A tag's live bytes, as the accounts have them.
    fn away_of(&self, tag: u8) -> Away {
        let mut away = Away::default();
        self.heap.each_part(tag, &self.lanes, |off, len, part| {
            let Part::Block(node) = part else { return };
            if let Some((bytes, blocks)) = self.slab_live(node) {
                away.slots += bytes;
                away.blocks += blocks;
            } else if matches!(self.marks.get(off), Descriptor::Extent { .. }) {
                away.extents += u64::from(len) << QUANTUM_SHIFT;
                away.requested += Extent::from_word(self.heap.word(node)).bytes as u64;
                away.blocks += 1;
            }
        });
        away
    }

    fn stay_awake(&mut self, tags: &[u8]) {
        for &tag in tags {
            self.tagged.set(tag, State::Awake);
            self.finish_late(tag);
            // A graph may have gone meanwhile.
            self.sweep_tag(tag);
        }
    }

    /// The report of tags as they are now.
    pub(super) fn report_of(&self, tags: &[u8], device_bytes: u64) -> Report {
        let mut report = Report { device_bytes, ..Report::default() };
        for (_, sleeper) in self.tagged.tags.iter().filter(|(tag, _)| tags.contains(tag)) {
            report.host_bytes += sleeper.away.host;
            report.stuck_bytes += sleeper.stuck.len() as u64 * self.vmem.granule() as u64;
            report.blocks += sleeper.away.blocks;
        }
        self.each_block(|address, bytes, _, mark| {
            let tag = mark & !SPECIAL;
            if tags.contains(&tag) && self.ground_at(address) != tag {
                report.kept_bytes += bytes as u64;
            }
        });
        report
    }

    /// Keeps a copier whose end the driver refused.
    fn keep_copier(&mut self, copier: Copier) {
        self.tagged.copiers.push(copier);
        keeper::poke(self.id);
    }
}

/// Ends a copier; what the driver does not take back is the pool's to retry.
pub(super) fn end_copier(shared: &'static Shared, id: u64, mut copier: Copier) {
    let closed: DriverResult<()> = copier.close();
    if let Err(error) = closed {
        tracing::warn!(%error, "what copied a tag's contents is still held");
        // A pool that ended meanwhile has nothing to retry it with: what is left goes with the
        // driver.
        let _ended = shared.with_core(id, |core| core.keep_copier(copier));
    }
}

pub(super) fn copy_error(failure: CopyFailure) -> Error {
    match failure {
        CopyFailure::Driver(error) => control::driver_error(error),
        CopyFailure::NoHostMemory(bytes) => Error::new(
            Status::OutOfMemory,
            format!(
                "the host has no memory for {bytes} bytes that contents need on their way: free \
                 host memory and try again; nothing is lost, and the device's memory is not short"
            ),
        ),
    }
}

/// Contents by tag and first quantum.
type Saved = BTreeMap<u8, BTreeMap<u32, Contents>>;

/// Awaits what may use the tags' blocks, keeps their contents, and takes their memory away. Answers
/// as [`Core::put_to_sleep`].
fn fall(shared: &'static Shared, id: u64, tags: &[u8], level: Level) -> Result<(u64, u64)> {
    let mut looks = 0;
    loop {
        if !control::synchronize(shared, id)? {
            return Err(capture_open());
        }
        if shared.with_core(id, |core| core.users_done(tags))?? {
            break;
        }
        looks += 1;
        if looks == LOOKS {
            return Err(busy(
                "work of the device still uses what was freed of the tags".to_owned(),
            ));
        }
    }
    let stretches = match level {
        Level::Offload => shared.with_core(id, |core| core.stretches(tags))?,
        Level::Discard => Vec::new(),
    };
    let mut saved = save(shared, id, &stretches)?;
    for _ in 0..LOOKS {
        if let Some(gone) = shared.with_core(id, |core| core.put_to_sleep(tags, &mut saved))?? {
            return Ok(gone);
        }
        if !control::synchronize(shared, id)? {
            return Err(capture_open());
        }
    }
    Err(busy(
        "the device never stood still, and pages may lose their place only then (FOREBAY_MOVE)"
            .to_owned(),
    ))
}

fn save(shared: &'static Shared, id: u64, stretches: &[Stretch]) -> Result<Saved> {
    let mut saved = Saved::new();
    let Some(longest) = stretches.iter().map(|stretch| stretch.bytes).max() else {
        return Ok(saved);
    };
    let (driver, scrub) =
        shared.with_core(id, |core| (std::sync::Arc::clone(core.driver()), core.settings.scrub))?;
    let mut copier = Copier::new(driver, longest, scrub);
    let parts: Vec<(usize, usize)> = stretches.iter().map(|s| (s.address, s.bytes)).collect();
    let kept = copier.save(&parts);
    end_copier(shared, id, copier);
    for (stretch, contents) in stretches.iter().zip(kept.map_err(copy_error)?) {
        saved.entry(stretch.tag).or_default().insert(stretch.off, contents);
    }
    Ok(saved)
}

impl Pool {
    /// Takes the memory of tags away: their blocks keep their addresses and nothing else. All of
    /// the tags or none. A tag that is asleep already stays so (its contents are dropped with
    /// [`Level::Discard`]). Nothing on the device may use the blocks from this call until the
    /// resume. Waits for the device.
    ///
    /// # Errors
    /// `InvalidArgument` for a tag that is not suspendable; `Busy` where a block is exported or
    /// pinned (it is named), while a capture is open, and while another thread suspends or resumes
    /// the tag; `OutOfMemory` where the host has no memory for the contents; the driver's. Nothing
    /// has changed then.
    pub fn suspend(&self, tags: &[u8], level: Level) -> Result<Report> {
        let (id, shared) = (self.id(), registry::pool(self.id())?);
        let falling = shared.with_core(id, |core| core.begin_suspend(tags))??;
        let (released, held) = match falling.is_empty() {
            true => (0, 0),
            false => match fall(shared, id, &falling, level) {
                Ok(gone) => gone,
                Err(error) => {
                    shared.with_core(id, |core| core.stay_awake(&falling))?;
                    return Err(error);
                }
            },
        };
        let mut report = shared.with_core(id, |core| {
            if level == Level::Discard {
                core.drop_saved(tags);
            }
            core.report_of(tags, released)
        })?;
        report.stuck_bytes += held;
        tracing::info!(id, released = %human(released), "tags suspended");
        Ok(report)
    }

    /// Whether a tag's memory is taken away now.
    pub fn is_suspended(&self, tag: u8) -> Result<bool> {
        self.with_core(|core| core.tagged.state(tag) == State::Asleep)
    }
}
