//! How long a search goes on before it starts anew.
//!
//! Luby, Sinclair and Zuckerman's sequence ("Optimal speedup of Las Vegas algorithms", 1993): 1 1
//! 2 1 1 2 4 ..., which loses at most a logarithm against the best fixed limit, whatever the
//! distribution of run lengths. Owns no state.

/// Failures that a search may have in its shortest start.
const FAILURES: u64 = 150;

/// How many failures start number `start` (from 0) may have.
pub(super) fn failures(start: u64) -> u64 {
    FAILURES * luby(start + 1)
}

/// Element `i` (from 1) of the sequence.
fn luby(i: u64) -> u64 {
    let (mut i, mut block) = (i, 1);
    loop {
        while block < i {
            block = 2 * block + 1;
        }
        if block == i {
            return block.div_ceil(2);
        }
        // `i` lies in the second half, which begins the sequence again.
        i -= block / 2;
        block = 1;
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_sequence_begins_as_published() {
        let first: Vec<u64> = (1..=15).map(super::luby).collect();
        assert_eq!(first, [1, 1, 2, 1, 1, 2, 4, 1, 1, 2, 1, 1, 2, 4, 8]);
    }
}
