//! Random programs: what an operation is, and how likely each is.

use proptest::prelude::*;
use std::ops::Range;

/// Where a block is freed.
#[derive(Clone, Copy, Debug)]
pub enum Free {
    /// On the stream it was allocated on.
    Own,
    /// On the stream of this number; the last number is the sync lane.
    On(usize),
}

/// One operation. `pick` chooses among the live blocks, `stream` among the streams.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "each names the call it makes")]
pub enum Op {
    Alloc { bytes: usize, align: usize, stream: usize },
    Free { pick: usize, how: Free },
    RecordUse { pick: usize, stream: usize },
    Pin { pick: usize },
    Unpin { pick: usize },
    Trim { keep: u64 },
    SetLimit { bytes: u64 },
    Retire { stream: usize },
    Tag { number: usize },
    Work { stream: usize },
    Run { seed: u64 },
    FreeTwice,
    Interior { pick: usize, offset: usize },
    Foreign { offset: usize },
}

const STREAMS: usize = super::STREAMS;
const MIB: usize = super::MIB;

/// Sizes of every range: slots of all classes, small and large extents, the edges between.
fn bytes() -> impl Strategy<Value = usize> {
    prop_oneof![
        6 => 1usize..=4096,
        6 => 4097usize..=256 << 10,
        4 => (256 << 10) + 1..=4 * MIB,
        1 => 4 * MIB..=40 * MIB,
        2 => prop::sample::select(vec![
            1, 255, 256, 257, 4096, 4097, (256 << 10) - 1, 256 << 10, (256 << 10) + 1,
            2 * MIB - 1, 2 * MIB, 2 * MIB + 1, 8 * MIB,
        ]),
    ]
}

fn align() -> impl Strategy<Value = usize> {
    prop_oneof![
        6 => Just(0usize),
        1 => (0u32..=21).prop_map(|log| 1usize << log),
    ]
}

fn how() -> impl Strategy<Value = Free> {
    prop_oneof![3 => Just(Free::Own), 2 => (0..=STREAMS).prop_map(Free::On)]
}

fn op(sizes: impl Strategy<Value = usize> + 'static) -> impl Strategy<Value = Op> {
    let pick = any::<usize>;
    let stream = || 0..STREAMS;
    prop_oneof![
        30 => (sizes, align(), 0..=STREAMS)
            .prop_map(|(bytes, align, stream)| Op::Alloc { bytes, align, stream }),
        24 => (pick(), how()).prop_map(|(pick, how)| Op::Free { pick, how }),
        4 => (pick(), stream()).prop_map(|(pick, stream)| Op::RecordUse { pick, stream }),
        2 => pick().prop_map(|pick| Op::Pin { pick }),
        2 => pick().prop_map(|pick| Op::Unpin { pick }),
        1 => (0..=64 * MIB as u64).prop_map(|keep| Op::Trim { keep }),
        1 => (2 * MIB as u64..=64 * MIB as u64).prop_map(|bytes| Op::SetLimit { bytes }),
        1 => stream().prop_map(|stream| Op::Retire { stream }),
        2 => (0usize..4).prop_map(|number| Op::Tag { number }),
        8 => stream().prop_map(|stream| Op::Work { stream }),
        10 => any::<u64>().prop_map(|seed| Op::Run { seed }),
        2 => Just(Op::FreeTwice),
        2 => (pick(), any::<usize>())
            .prop_map(|(pick, offset)| Op::Interior { pick, offset }),
        1 => (0usize..1 << 20).prop_map(|offset| Op::Foreign { offset }),
    ]
}

/// Programs of every kind.
pub fn anything(length: Range<usize>) -> impl Strategy<Value = Vec<Op>> {
    prop::collection::vec(op(bytes()), length)
}

/// Programs that fill the device: gathers, refusals and late fences are the rule.
pub fn crowded(length: Range<usize>) -> impl Strategy<Value = Vec<Op>> {
    let sizes = prop_oneof![
        2 => 1usize..=256 << 10,
        6 => (256 << 10) + 1..=6 * MIB,
        1 => 6 * MIB..=24 * MIB,
    ];
    prop::collection::vec(op(sizes), length)
}
