//! Contents on their way to host memory and back, in chunks, two at a time.
//!
//! Owns two ways, each a stream and a piece of page-locked memory: while the device copies one
//! chunk the CPU moves the other between the page-locked piece and where contents are kept, which
//! is pageable: memory kept for long must not be lost to the rest of the machine. Promises that
//! neither piece nor stream goes before its last copy is seen done; what the driver does not take
//! back stays here and is tried again by [`Copier::close`]. Knows nothing of blocks or pools.
//!
//! Used with no lock held: it waits for the device. Cost: the slower of the two copies; two streams
//! and two pieces of up to [`CHUNK`] while it lives.

use crate::driver::{Code, Driver, DriverError, DriverResult, EventHandle, Scope, StreamHandle};
use std::sync::Arc;

/// Bytes that one copy moves: long enough for the bus, short enough to overlap.
pub const CHUNK: usize = 8 << 20;

/// Why contents could not be copied.
#[derive(Debug)]
pub enum CopyFailure {
    /// The driver's error.
    Driver(DriverError),
    /// The host has no memory for so many bytes.
    NoHostMemory(usize),
}

impl From<DriverError> for CopyFailure {
    fn from(error: DriverError) -> CopyFailure {
        CopyFailure::Driver(error)
    }
}

/// Contents in host memory.
#[derive(Debug)]
pub struct Contents {
    bytes: Vec<u8>,
    /// Whether they are overwritten before the memory goes back.
    scrub: bool,
}

impl Contents {
    fn clear(&mut self) {
        if self.scrub {
            self.bytes.fill(0);
            // Nobody reads them again: without this the fill might be left out.
            std::hint::black_box(&mut self.bytes);
        }
    }
}

impl std::ops::Deref for Contents {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Contents {
    fn drop(&mut self) {
        self.clear();
    }
}

/// A piece of host memory that copies go through.
#[derive(Debug)]
enum Piece {
    /// Page-locked, the driver's.
    Locked(usize),
    /// Where the driver has none.
    Own(Vec<u8>),
}

impl Piece {
    /// One of the process's own memory.
    fn own(bytes: usize) -> Result<Piece, CopyFailure> {
        let mut piece = Vec::new();
        piece.try_reserve_exact(bytes).map_err(|_| CopyFailure::NoHostMemory(bytes))?;
        piece.resize(bytes, 0);
        Ok(Piece::Own(piece))
    }

    fn address(&mut self) -> usize {
        match self {
            Piece::Locked(address) => *address,
            Piece::Own(bytes) => bytes.as_mut_ptr().expose_provenance(),
        }
    }
}

#[derive(Debug)]
struct Way {
    stream: StreamHandle,
    piece: Option<Piece>,
    /// Whether a copy may be under way.
    busy: bool,
    /// Recorded behind it, where it is looked at rather than awaited.
    behind: Option<EventHandle>,
    /// Whether that has been recorded.
    recorded: bool,
    /// What the copy under way brings: which part, and how many bytes of it.
    brings: Option<(usize, usize)>,
}

/// See the room's page.
pub struct Copier {
    driver: Arc<dyn Driver>,
    ways: Vec<Way>,
    chunk: usize,
    scrub: bool,
}

impl std::fmt::Debug for Copier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Copier").field("ways", &self.ways).finish_non_exhaustive()
    }
}

/// Chunks of parts, in order: which part, where in it, how many bytes.
fn chunks(lengths: &[usize], chunk: usize) -> impl Iterator<Item = (usize, usize, usize)> {
    lengths.iter().enumerate().flat_map(move |(part, &length)| {
        (0..length).step_by(chunk).map(move |at| (part, at, chunk.min(length - at)))
    })
}

impl Copier {
    /// One without ways yet, for parts of at most `longest` bytes. `scrub`: contents and pieces are
    /// overwritten before they go.
    pub fn new(driver: Arc<dyn Driver>, longest: usize, scrub: bool) -> Copier {
        Copier { driver, ways: Vec::new(), chunk: longest.clamp(1, CHUNK), scrub }
    }

    fn open(&mut self) -> Result<(), CopyFailure> {
        while self.ways.len() < 2 {
            let stream = self.driver.stream_create()?;
            let (busy, recorded) = (false, false);
            let (piece, behind, brings) = (None, None, None);
            self.ways.push(Way { stream, piece, busy, behind, recorded, brings });
        }
        for way in &mut self.ways {
            way.piece = Some(match self.driver.host_alloc(self.chunk) {
                Ok(address) => Piece::Locked(address),
                // Slower, but there.
                Err(DriverError { code: Code::NotSupported | Code::OutOfMemory, .. }) => {
                    Piece::own(self.chunk)?
                }
                Err(error) => return Err(error.into()),
            });
        }
        Ok(())
    }

    /// Copies parts of the device's memory, address and length, each to bytes of the host's.
    pub fn save(&mut self, parts: &[(usize, usize)]) -> Result<Vec<Contents>, CopyFailure> {
        self.open()?;
        let mut kept: Vec<Contents> = Vec::with_capacity(parts.len());
        for &(_, bytes) in parts {
            let mut part = Vec::new();
            part.try_reserve_exact(bytes).map_err(|_| CopyFailure::NoHostMemory(bytes))?;
            kept.push(Contents { bytes: part, scrub: self.scrub });
        }
        let lengths: Vec<usize> = parts.iter().map(|&(_, bytes)| bytes).collect();
        let mut turn = 0;
        for (part, at, bytes) in chunks(&lengths, self.chunk) {
            self.bring(turn, &mut kept)?;
            let way = &mut self.ways[turn];
            let piece = way.piece.as_mut().expect("opened above").address();
            way.busy = true;
            self.driver.copy(piece, parts[part].0 + at, bytes, way.stream)?;
            way.brings = Some((part, bytes));
            turn = 1 - turn;
        }
        self.bring(turn, &mut kept)?;
        self.bring(1 - turn, &mut kept)?;
        Ok(kept)
    }

    /// Takes what a way has brought.
    fn bring(&mut self, way: usize, kept: &mut [Contents]) -> DriverResult<()> {
        self.await_way(way)?;
        let way = &mut self.ways[way];
        let Some((part, bytes)) = way.brings.take() else { return Ok(()) };
        let from = way.piece.as_mut().expect("it brought something").address();
        let from = std::ptr::with_exposed_provenance::<u8>(from);
        // SAFETY: the piece is at least a chunk long and this copier's; the copy into it is done,
        // as just awaited, so that all of these bytes are written and nobody writes them now.
        kept[part].bytes.extend_from_slice(unsafe { std::slice::from_raw_parts(from, bytes) });
        Ok(())
    }

    /// Copies bytes of the host's to parts of the device's memory, by address. All has arrived on
    /// return.
    pub fn restore(&mut self, parts: &[(usize, &[u8])]) -> Result<(), CopyFailure> {
        self.open()?;
        let lengths: Vec<usize> = parts.iter().map(|(_, bytes)| bytes.len()).collect();
        let mut turn = 0;
        for (part, at, bytes) in chunks(&lengths, self.chunk) {
            self.await_way(turn)?;
            let (address, contents) = parts[part];
            let way = &mut self.ways[turn];
            let piece = way.piece.as_mut().expect("opened above").address();
            let to = std::ptr::with_exposed_provenance_mut::<u8>(piece);
            // SAFETY: the piece is at least a chunk long and this copier's; the copy out of it is
            // done, as just awaited. The contents are the caller's and lie elsewhere.
            unsafe { std::ptr::copy_nonoverlapping(contents[at..].as_ptr(), to, bytes) };
            way.busy = true;
            self.driver.copy(address + at, piece, bytes, way.stream)?;
            turn = 1 - turn;
        }
        self.await_way(turn)?;
        self.await_way(1 - turn)?;
        Ok(())
    }

    fn await_way(&mut self, way: usize) -> DriverResult<()> {
        let way = &mut self.ways[way];
        if way.busy {
            self.driver.stream_synchronize(way.stream)?;
            way.busy = false;
        }
        Ok(())
    }

    /// Whether a copy may still be under way.
    pub fn is_busy(&self) -> bool {
        self.ways.iter().any(|way| way.busy)
    }

    /// The same without a wait. False: a copy is under way, or may be.
    pub fn close_if_done(&mut self) -> DriverResult<bool> {
        for way in self.ways.iter_mut().filter(|way| way.busy) {
            let event = match way.behind {
                Some(event) => event,
                None => *way.behind.insert(self.driver.event_create()?),
            };
            if !way.recorded {
                self.driver.event_record(event, Scope::Stream(way.stream))?;
                way.recorded = true;
            }
            if !self.driver.event_query(event)? {
                return Ok(false);
            }
            way.busy = false;
        }
        self.close().map(|()| true)
    }

    /// Gives everything back, once no copy is under way. May be repeated after a failure, and then
    /// goes on where it stopped.
    pub fn close(&mut self) -> DriverResult<()> {
        while let Some(last) = self.ways.len().checked_sub(1) {
            self.await_way(last)?;
            let way = &mut self.ways[last];
            if let Some(event) = way.behind {
                self.driver.event_destroy(event)?;
                way.behind = None;
            }
            if let Some(piece) = way.piece.as_mut().filter(|_| self.scrub) {
                let to = std::ptr::with_exposed_provenance_mut::<u8>(piece.address());
                // SAFETY: the piece is a chunk long and this copier's, and no copy is under way.
                unsafe { std::ptr::write_bytes(to, 0, self.chunk) };
                std::hint::black_box(to);
            }
            if let Some(Piece::Locked(address)) = way.piece {
                self.driver.host_free(address)?;
            }
            way.piece = None;
            self.driver.stream_destroy(way.stream)?;
            self.ways.pop();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::host::{HostDriver, HostOptions};

    /// Where neither the driver nor the process has memory for a piece, the copy fails and nothing
    /// else does.
    #[test]
    fn a_piece_that_the_host_has_no_memory_for_is_an_error() {
        const NO_MEMORY: usize = 1 << 62;
        let options = HostOptions { total_bytes: 1 << 22, ..HostOptions::default() };
        let driver = Arc::new(HostDriver::new(options).expect("a host device"));
        let memory = driver.host_alloc(4096).expect("memory");
        let mut copier = Copier::new(Arc::clone(&driver) as Arc<dyn Driver>, 4096, true);
        copier.chunk = NO_MEMORY;
        let refused = copier.save(&[(memory, 4096)]).expect_err("no such piece");
        assert!(matches!(refused, CopyFailure::NoHostMemory(NO_MEMORY)), "{refused:?}");
        let refused = copier.restore(&[(memory, &[0; 4096])]).expect_err("no such piece");
        assert!(matches!(refused, CopyFailure::NoHostMemory(NO_MEMORY)), "{refused:?}");
        copier.close().expect("nothing is under way");
        driver.host_free(memory).expect("memory");
        assert!(driver.census().is_clean());
    }
}
