//! What queued work does with bytes: copies, fills, loads and stores.
//!
//! Owns the only raw reads and writes of the engine. Promises to touch nothing but the ranges it
//! is given. It must not decide whether they may be touched: the item that calls has had its
//! ranges checked, and holds the memory map still. Cost: the bytes, and one translation for each
//! 2 MiB.

use super::{Range, View};

/// Addresses are translated for each piece of this length that they are aligned to.
const PIECE: u64 = 2 << 20;

/// One side of a copy.
#[derive(Clone, Debug)]
pub enum Side {
    /// Memory that devices reach, by the address programs use.
    Mapped(u64),
    /// Pageable host memory of the program.
    Pageable(u64),
    /// Bytes taken from pageable memory when the copy was queued.
    Staged(std::sync::Arc<Vec<u8>>),
}

/// Rows of a copy or a fill; one row for plain ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rows {
    /// Bytes in a row.
    pub width: u64,
    /// Number of rows.
    pub height: u64,
}

impl Rows {
    /// One row.
    pub fn one(width: u64) -> Rows {
        Rows { width, height: 1 }
    }

    /// The ranges that the rows cover from `start`, rows apart by `pitch`; rows without gaps
    /// make one.
    pub fn ranges(self, start: u64, pitch: u64, device: i32, copy: bool) -> Vec<Range> {
        let of = |start, len| Range { start, len, device, copy };
        if self.width == 0 || self.height == 0 {
            return Vec::new();
        }
        if self.height == 1 || pitch == self.width {
            return vec![of(start, self.width * self.height)];
        }
        (0..self.height).map(|row| of(start + row * pitch, self.width)).collect()
    }
}

/// Bytes from `at` to the end of the piece it lies in.
fn rest(at: u64) -> u64 {
    PIECE - at % PIECE
}

impl Side {
    fn piece(&self, offset: u64) -> u64 {
        match self {
            Side::Mapped(start) => rest(start + offset),
            Side::Pageable(_) | Side::Staged(_) => u64::MAX,
        }
    }

    fn address(&self, offset: u64, view: View<'_>) -> u64 {
        match self {
            Side::Mapped(start) => view(start + offset),
            Side::Pageable(start) => start + offset,
            Side::Staged(bytes) => bytes.as_ptr() as u64 + offset,
        }
    }
}

/// Takes rows of pageable memory into a buffer without gaps.
///
/// # Safety
///
/// The rows are readable.
pub unsafe fn stage(start: u64, pitch: u64, rows: Rows) -> Vec<u8> {
    let mut bytes = Vec::with_capacity((rows.width * rows.height) as usize);
    for row in 0..rows.height {
        let at = (start + row * pitch) as *const u8;
        // SAFETY: the caller's promise.
        bytes.extend_from_slice(unsafe { std::slice::from_raw_parts(at, rows.width as usize) });
    }
    bytes
}

/// Copies rows. Sides that lie in each other are copied as if by way of a buffer, piece by piece.
///
/// # Safety
///
/// The rows of `from` are readable and those of `to` writable, by the view's addresses, until
/// this returns; `to` is not staged; a staged `from` holds all the rows.
pub unsafe fn copy(view: View<'_>, to: (&Side, u64), from: (&Side, u64), rows: Rows) {
    for row in 0..rows.height {
        let mut done = 0;
        while done < rows.width {
            let (to_at, from_at) = (row * to.1 + done, row * from.1 + done);
            let len = (rows.width - done).min(to.0.piece(to_at)).min(from.0.piece(from_at));
            let target = to.0.address(to_at, view) as *mut u8;
            let source = from.0.address(from_at, view) as *const u8;
            // SAFETY: within one piece of each side, which the caller says may be touched.
            unsafe { std::ptr::copy(source, target, len as usize) };
            done += len;
        }
    }
}

/// Fills rows with a pattern of 1, 2 or 4 bytes.
///
/// # Safety
///
/// The rows are writable, by the view's addresses, until this returns; `start`, `pitch` and the
/// rows' width are multiples of the pattern's length.
pub unsafe fn fill(view: View<'_>, start: u64, pitch: u64, rows: Rows, pattern: &[u8]) {
    for row in 0..rows.height {
        let first = start + row * pitch;
        let mut done = 0;
        while done < rows.width {
            let at = first + done;
            let len = (rows.width - done).min(rest(at));
            let target = view(at) as *mut u8;
            // SAFETY: within one piece, which the caller says may be written.
            let bytes = unsafe { std::slice::from_raw_parts_mut(target, len as usize) };
            match pattern {
                [byte] => bytes.fill(*byte),
                _ => bytes.chunks_mut(pattern.len()).for_each(|c| c.copy_from_slice(pattern)),
            }
            done += len;
        }
    }
}

/// Reads `width` bytes (4 or 8) as a number.
///
/// # Safety
///
/// They are readable by the view's address, which is a multiple of `width`.
pub unsafe fn load(view: View<'_>, at: u64, width: u64) -> u64 {
    let at = view(at);
    // SAFETY: the caller's promise; volatile, since the host may write at the same time.
    unsafe {
        match width {
            4 => u64::from(std::ptr::read_volatile(at as *const u32)),
            _ => std::ptr::read_volatile(at as *const u64),
        }
    }
}

/// Writes `width` bytes (4 or 8) of a number.
///
/// # Safety
///
/// They are writable by the view's address, which is a multiple of `width`.
pub unsafe fn store(view: View<'_>, at: u64, width: u64, value: u64) {
    let at = view(at);
    // SAFETY: the caller's promise; volatile, since the host may read at the same time.
    unsafe {
        match width {
            4 => std::ptr::write_volatile(at as *mut u32, value as u32),
            _ => std::ptr::write_volatile(at as *mut u64, value),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_without_gaps_are_one_range() {
        let starts = |rows: Rows, pitch| -> Vec<(u64, u64)> {
            rows.ranges(100, pitch, 0, false).iter().map(|r| (r.start, r.len)).collect()
        };
        assert_eq!(starts(Rows::one(8), 0), [(100, 8)]);
        assert_eq!(starts(Rows { width: 8, height: 3 }, 8), [(100, 24)]);
        assert_eq!(starts(Rows { width: 8, height: 2 }, 16), [(100, 8), (116, 8)]);
        assert_eq!(starts(Rows { width: 0, height: 2 }, 16), []);
    }

    #[test]
    fn copies_and_fills_keep_to_their_rows() {
        let mut cells = [0u8; 32];
        let at = cells.as_mut_ptr() as u64;
        let rows = Rows { width: 2, height: 3 };
        // SAFETY: the rows lie in the array, which nothing else borrows.
        unsafe { fill(&|at| at, at, 4, rows, &[7, 8]) };
        assert_eq!(cells[..12], [7, 8, 0, 0, 7, 8, 0, 0, 7, 8, 0, 0]);
        // SAFETY: as above.
        let bytes = unsafe { stage(at, 4, rows) };
        assert_eq!(bytes, [7, 8, 7, 8, 7, 8]);
        let staged = Side::Staged(bytes.into());
        // SAFETY: as above.
        unsafe { copy(&|at| at, (&Side::Mapped(at + 16), 5), (&staged, 2), rows) };
        assert_eq!(cells[16..28], [7, 8, 0, 0, 0, 7, 8, 0, 0, 0, 7, 8]);
        // SAFETY: as above; eight bytes at a multiple of eight from the array's start.
        unsafe {
            let aligned = at.next_multiple_of(8);
            store(&|at| at, aligned, 8, 0x0102_0304_0506_0708);
            assert_eq!(load(&|at| at, aligned, 4), 0x0506_0708);
            assert_eq!(load(&|at| at, aligned, 8), 0x0102_0304_0506_0708);
        }
    }
}
