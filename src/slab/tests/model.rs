//! Random sequences against a naive model: a list of slabs, each a list of slots.

use super::*;
use crate::slab::class::INFO;
use proptest::prelude::*;

/// Slabs begin at multiples of this many quanta.
const PLACE: u32 = 16;
const PLACES: u32 = 24;
const LANES: [LaneId; 3] = [1, 2, 5];
/// Slots of 256 B, 4 KiB, 20 KiB, 64 KiB and 256 KiB.
const SIZES: [usize; 5] = [256, 4 << 10, 20 << 10, 64 << 10, 256 << 10];

#[derive(Clone, Debug)]
enum Step {
    Open { place: u32, lane: usize, class: usize },
    Take { lane: usize, class: usize, want: usize },
    Give { which: usize },
    Adopt { from: usize, to: usize, class: usize },
    Reassign { from: usize, to: usize },
}

fn step() -> impl Strategy<Value = Step> {
    let (lane, class) = (0..LANES.len(), 0..SIZES.len());
    prop_oneof![
        3 => (0..PLACES, lane.clone(), class.clone())
            .prop_map(|(place, lane, class)| Step::Open { place, lane, class }),
        6 => (lane.clone(), class.clone(), 1..80usize)
            .prop_map(|(lane, class, want)| Step::Take { lane, class, want }),
        20 => any::<usize>().prop_map(|which| Step::Give { which }),
        1 => (lane.clone(), lane.clone(), class)
            .prop_map(|(from, to, class)| Step::Adopt { from, to, class }),
        1 => (lane.clone(), lane).prop_map(|(from, to)| Step::Reassign { from, to }),
    ]
}

struct Naive {
    id: SlabId,
    off: u32,
    quanta: u32,
    lane: LaneId,
    class: usize,
    first_mark: u32,
    /// Whether each slot is in the slab.
    slots: Vec<bool>,
}

impl Naive {
    fn free(&self) -> usize {
        self.slots.iter().filter(|&&inside| inside).count()
    }

    fn round(&self, slot: usize) -> Round {
        let unit = self.off * 64 + slot as u32 * INFO[self.class].units;
        Round::new(unit, self.first_mark + slot as u32)
    }
}

struct Pair {
    bench: Bench,
    /// By address.
    slabs: Vec<Naive>,
    out: Vec<Round>,
}

impl Pair {
    fn lowest(&mut self, lane: LaneId, class: usize) -> Option<&mut Naive> {
        self.slabs.iter_mut().find(|s| s.lane == lane && s.class == class && s.free() > 0)
    }

    fn open(&mut self, place: u32, lane: LaneId, class: usize) {
        let off = place * PLACE;
        if self.slabs.iter().any(|s| s.off == off) {
            return;
        }
        let (wanted, least) = self.bench.slabs.wanted(lane, class);
        assert!(least <= wanted && least as usize * QUANTUM >= slot_bytes(class));
        let quanta = wanted.min(PLACE).max(least);
        let id = self.bench.open(off, quanta, lane, class);
        let first_mark = self.bench.slabs.slab(id).marks;
        assert!(first_mark.is_multiple_of(128));
        let slots = vec![true; quanta as usize * QUANTUM / slot_bytes(class)];
        for s in &self.slabs {
            let (low, high) = if s.first_mark < first_mark {
                (s.first_mark + s.slots.len() as u32, first_mark)
            } else {
                (first_mark + slots.len() as u32, s.first_mark)
            };
            assert!(low < high, "ranges of marks lie apart, a spare between them");
        }
        let at = self.slabs.partition_point(|s| s.off < off);
        self.slabs.insert(at, Naive { id, off, quanta, lane, class, first_mark, slots });
    }

    fn take(&mut self, lane: LaneId, class: usize, want: usize) {
        let rounds = self.bench.take(lane, class, want);
        let mut expected = Vec::new();
        if let Some(slab) = self.lowest(lane, class) {
            let first = slab.slots.iter().position(|&inside| inside).expect("partial");
            let word_end = (first / 64 * 64 + 64).min(slab.slots.len());
            for slot in first..word_end {
                if slab.slots[slot] && expected.len() < want {
                    slab.slots[slot] = false;
                    expected.push(slab.round(slot));
                }
            }
        }
        assert_eq!(rounds, expected);
        self.out.extend(rounds);
    }

    fn give(&mut self, which: usize) {
        if self.out.is_empty() {
            return;
        }
        let round = self.out.swap_remove(which % self.out.len());
        let empty = self.bench.give(round);
        let at = self.slabs.partition_point(|s| s.off <= round.quantum()) - 1;
        let slab = &mut self.slabs[at];
        let slot = (round.mark() - slab.first_mark) as usize;
        assert_eq!(slab.round(slot), round);
        slab.slots[slot] = true;
        let all = slab.free() == slab.slots.len();
        assert_eq!(empty, all.then_some(slab.id), "told when, and only when, it is empty");
        if let Some(id) = empty {
            let slab = self.slabs.remove(at);
            let closed = self.bench.slabs.close(&mut self.bench.marks, id);
            assert_eq!(closed, (1000 + slab.off, slab.lane));
        }
    }

    fn play(&mut self, step: &Step) {
        match *step {
            Step::Open { place, lane, class } => {
                self.open(place, LANES[lane], class_of(SIZES[class]));
            }
            Step::Take { lane, class, want } => {
                self.take(LANES[lane], class_of(SIZES[class]), want);
            }
            Step::Give { which } => self.give(which),
            Step::Adopt { from, to, class } => {
                let (from, to, class) = (LANES[from], LANES[to], class_of(SIZES[class]));
                let adopted = self.bench.slabs.adopt(&self.bench.marks, from, to, class);
                let slab = self.lowest(from, class);
                assert_eq!(adopted, slab.is_some());
                slab.into_iter().for_each(|slab| slab.lane = to);
            }
            Step::Reassign { from, to } => {
                let (from, to) = (LANES[from], LANES[to]);
                self.bench.slabs.reassign(&self.bench.marks, from, to);
                self.slabs.iter_mut().filter(|s| s.lane == from).for_each(|s| s.lane = to);
            }
        }
    }

    fn check(&mut self) {
        let mut free_bytes = 0;
        let shapes: Vec<_> = self.bench.slabs.iter().map(|s| (s.off, s.lane, s.free)).collect();
        let own: Vec<_> = self.slabs.iter().map(|s| (s.off, s.lane, s.free() as u32)).collect();
        assert_eq!(shapes, own);
        let mut quantum = 0;
        for s in &self.slabs {
            let out = (s.slots.len() - s.free()) * slot_bytes(s.class);
            free_bytes += s.quanta as usize * QUANTUM - out;
            assert!((quantum..s.off).all(|q| self.bench.marks.get(q) == Descriptor::None));
            for index in 0..s.quanta {
                let (marks, lane, class) = (s.first_mark, s.lane, s.class);
                let descriptor = Descriptor::Slab { marks, lane, index, class };
                assert_eq!(self.bench.marks.get(s.off + index), descriptor);
                assert_eq!(self.bench.slabs.at(s.off + index), Some(s.id));
            }
            quantum = s.off + s.quanta;
            let above = self.slabs.iter().find(|above| above.off == quantum).map(|s| s.id);
            assert_eq!(self.bench.slabs.at(quantum), above);
        }
        assert_eq!(self.bench.slabs.free_bytes(), free_bytes as u64);
        for lane in LANES {
            let used = self.slabs.iter().any(|s| s.lane == lane);
            assert_eq!(self.bench.slabs.lane_in_use(lane), used);
            for size in SIZES {
                let class = class_of(size);
                let lowest = self.lowest(lane, class).map(|s| s.off);
                assert_eq!(self.bench.slabs.first_partial(lane, class), lowest);
                self.check_wanted(lane, class);
            }
        }
    }

    /// A sixteenth of the bytes out, 64 KiB to 2 MiB, in whole slots.
    fn check_wanted(&self, lane: LaneId, class: usize) {
        let slabs = self.slabs.iter().filter(|s| s.lane == lane && s.class == class);
        let out: usize = slabs.map(|s| s.slots.len() - s.free()).sum();
        let share = (out * slot_bytes(class) / 16).clamp(64 * KIB, 2 * MIB);
        let slots = (share / slot_bytes(class)).max(1);
        let wanted = (slots * slot_bytes(class)).div_ceil(QUANTUM) as u32;
        let least = slot_bytes(class).div_ceil(QUANTUM) as u32;
        assert_eq!(self.bench.slabs.wanted(lane, class), (wanted, least));
    }
}

fn config() -> ProptestConfig {
    if cfg!(miri) {
        // Under Miri no file may be opened; the sequence is printed all the same.
        return ProptestConfig { cases: 2, failure_persistence: None, ..Default::default() };
    }
    ProptestConfig::with_cases(256)
}

/// Steps a sequence.
const STEPS: usize = if cfg!(miri) { 16 } else { 150 };

proptest! {
    #![proptest_config(config())]

    #[test]
    fn slabs_agree_with_the_model(steps in prop::collection::vec(step(), 1..STEPS)) {
        let bench = Bench::new((PLACES * PLACE) as usize * 4);
        let mut pair = Pair { bench, slabs: Vec::new(), out: Vec::new() };
        for step in &steps {
            pair.play(step);
            pair.check();
        }
    }
}
