//! Sequences: their handles, and the block tables that they own.
//!
//! Owns the slots of all sequences. Promises that a handle is answered only as long as its
//! sequence is open: a slot's generation changes when it ends. A sequence owns one reference to
//! each block in its tables, and nothing else does on its behalf.

use super::error::{KvError, Result};

/// A sequence's handle. Copies are one sequence; after it was freed all are stale.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Seq(u64);

impl Seq {
    /// The handle as a number, never 0.
    pub const fn raw(self) -> u64 {
        self.0
    }

    /// A handle of a number; any number may be tried, one that is no handle is stale.
    pub const fn from_raw(raw: u64) -> Seq {
        Seq(raw)
    }

    fn new(generation: u32, slot: usize) -> Seq {
        Seq(u64::from(generation) << 32 | slot as u64)
    }
}

/// What a sequence is opened with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Open {
    /// Prefixes are shared only between sequences of one salt: one a tenant.
    pub salt: u64,
    /// How long its prefixes are kept under [`super::Policy::PriorityLru`]; at most
    /// [`super::PRIORITY_MAX`].
    pub priority: u8,
}

/// A sequence's blocks in one group.
#[derive(Debug, Default)]
pub(super) struct Table {
    pub blocks: Vec<u32>,
    /// Blocks at the front that were trimmed: the null block stands there.
    pub trimmed: u32,
    /// The first row entry that a reader may not know yet, and the entries that it knows.
    pub changed: u32,
    pub told: u32,
}

/// One sequence.
#[derive(Debug, Default)]
pub(super) struct Sequence {
    generation: u32,
    pub open: bool,
    /// Tokens that it has room for and holds.
    pub len: u32,
    /// Of these, tokens whose keys and values are computed.
    pub committed: u32,
    /// Full blocks at the front that were looked at for registration.
    pub sealed: u32,
    /// Whether anything was appended yet; what a hit brings is not.
    pub begun: bool,
    /// Whether all its tokens are known and its blocks hang together in the index so far.
    pub hashed: bool,
    pub salt: u64,
    pub priority: u8,
    pub tables: Vec<Table>,
}

/// All sequences.
#[derive(Debug)]
pub(super) struct Sequences {
    slots: Vec<Sequence>,
    closed: Vec<u32>,
    most: u32,
    groups: usize,
}

impl Sequences {
    pub(super) fn new(most: u32, groups: usize) -> Sequences {
        Sequences { slots: Vec::new(), closed: Vec::new(), most, groups }
    }

    /// Sequences that may still be opened.
    pub(super) fn room(&self) -> u32 {
        self.closed.len() as u32 + (self.most - self.slots.len() as u32)
    }

    /// Open sequences.
    pub(super) fn count(&self) -> u32 {
        (self.slots.len() - self.closed.len()) as u32
    }

    pub(super) fn open(&mut self, open: Open, hashed: bool) -> Result<Seq> {
        let slot = match self.closed.pop() {
            Some(slot) => slot as usize,
            None if self.slots.len() < self.most as usize => {
                let tables = (0..self.groups).map(|_| Table::default()).collect();
                self.slots.push(Sequence { tables, ..Sequence::default() });
                self.slots.len() - 1
            }
            None => return Err(KvError::TooManySequences),
        };
        let found = &mut self.slots[slot];
        // Generations are odd while open, so that 0 is no handle.
        found.generation = found.generation.wrapping_add(1) | 1;
        (found.open, found.begun, found.hashed) = (true, false, hashed);
        (found.len, found.committed, found.sealed) = (0, 0, 0);
        (found.salt, found.priority) = (open.salt, open.priority);
        for table in &mut found.tables {
            table.blocks.clear();
            (table.trimmed, table.changed, table.told) = (0, 0, 0);
        }
        Ok(Seq::new(found.generation, slot))
    }

    /// Ends a sequence whose blocks were given back.
    pub(super) fn close(&mut self, seq: Seq) {
        let slot = seq.0 as u32;
        self.slots[slot as usize].open = false;
        self.slots[slot as usize].generation = self.slots[slot as usize].generation.wrapping_add(1);
        self.closed.push(slot);
    }

    #[inline]
    fn slot(&self, seq: Seq) -> Result<usize> {
        let slot = seq.0 as u32 as usize;
        match self.slots.get(slot) {
            Some(found) if found.open && found.generation == (seq.0 >> 32) as u32 => Ok(slot),
            _ => Err(KvError::Stale),
        }
    }

    #[inline]
    pub(super) fn get(&self, seq: Seq) -> Result<&Sequence> {
        Ok(&self.slots[self.slot(seq)?])
    }

    #[inline]
    pub(super) fn get_mut(&mut self, seq: Seq) -> Result<&mut Sequence> {
        let slot = self.slot(seq)?;
        Ok(&mut self.slots[slot])
    }

    /// All open sequences.
    pub(super) fn iter(&self) -> impl Iterator<Item = (Seq, &Sequence)> {
        let open = self.slots.iter().enumerate().filter(|(_, found)| found.open);
        open.map(|(slot, found)| (Seq::new(found.generation, slot), found))
    }
}

/// `Ok` if no sequence is named twice. Cost: a sort where there are many.
pub(super) fn distinct(seqs: impl ExactSizeIterator<Item = Seq> + Clone) -> Result<()> {
    const FEW: usize = 16;
    let twice = if seqs.len() <= FEW {
        let mut rest = seqs.clone();
        seqs.into_iter().any(|seq| {
            rest.next();
            rest.clone().any(|other| other == seq)
        })
    } else {
        let mut sorted: Vec<u64> = seqs.map(Seq::raw).collect();
        sorted.sort_unstable();
        sorted.windows(2).any(|pair| pair[0] == pair[1])
    };
    if twice { Err(KvError::OutOfRange("a sequence is named twice")) } else { Ok(()) }
}
