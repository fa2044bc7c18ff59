//! What a trace is replayed through: the pool, or a comparator.
//!
//! Owns the trait [`Target`] and the figures every target reports, so that one replay and
//! one table serve all. Must not know any target. Cost: none, targets are not boxed.

use std::fmt;

use forebay::driver::Call;

/// How many kinds of driver call there are.
pub const KINDS: usize = Call::ALL.len();

/// A request that failed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TargetError {
    /// Whether the device was too small for it (and a larger one may do).
    pub oom: bool,
    /// The sentence that explains it.
    pub text: String,
}

impl TargetError {
    /// An error that is not about memory.
    pub fn other(text: impl Into<String>) -> TargetError {
        TargetError { oom: false, text: text.into() }
    }
}

impl fmt::Display for TargetError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for TargetError {}

/// Driver calls by kind, in the order of [`Call::ALL`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Calls([u64; KINDS]);

impl Calls {
    /// Adds `count` calls of one kind.
    #[inline]
    pub fn add(&mut self, call: Call, count: u64) {
        self.0[call as usize] += count;
    }

    /// The calls of one kind.
    pub fn of(&self, call: Call) -> u64 {
        self.0[call as usize]
    }

    /// All calls.
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    /// Each kind with its calls, kinds never called left out.
    pub fn by_kind(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        Call::ALL.iter().map(|&call| (call.name(), self.of(call))).filter(|&(_, count)| count != 0)
    }
}

/// A target's figures at one moment. Bytes, unless a name says otherwise.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TargetStats {
    /// Live blocks, rounded as the target rounds them.
    pub live_bytes: u64,
    /// Live blocks as they were requested.
    pub requested_bytes: u64,
    /// Memory taken from the device now.
    pub mapped_bytes: u64,
    /// Free memory in granules that a live block still occupies.
    pub trapped_bytes: u64,
    /// The peak of `mapped_bytes`, exact (not sampled).
    pub peak_mapped_bytes: u64,
    /// Driver calls so far.
    pub calls: Calls,
    /// Pages unmapped in one place and mapped in another, so far.
    pub pages_moved: u64,
    /// Live blocks, as a count.
    pub live_blocks: u64,
}

/// One thread's way into an allocator. Streams are a trace's dense numbers.
pub trait Target {
    /// Allocates `bytes` (not 0) for use on `stream`.
    fn alloc(&mut self, bytes: u64, stream: u32) -> Result<u64, TargetError>;

    /// Frees the live block at `address`, last used on `stream`.
    fn free(&mut self, address: u64, stream: u32) -> Result<(), TargetError>;

    /// Writes the whole block, in the order of `stream`. For targets without memory an error.
    fn touch(&mut self, address: u64, bytes: u64, stream: u32) -> Result<(), TargetError>;

    /// The figures of the allocator as a whole, all threads.
    fn stats(&self) -> TargetStats;
}

/// A target that several threads can use at once, each by a handle of its own.
pub trait SharedTarget: Target + Send + Sized {
    /// Another handle, for another thread, with streams of its own.
    fn share(&self) -> Result<Self, TargetError>;
}
