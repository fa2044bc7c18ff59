//! Random sequences against a naive model: one cell a quantum, every answer by a full scan.
//!
//! A failing sequence is printed shrunk, and its seed is kept beside the sources and tried
//! first in later runs.

use super::*;
use proptest::prelude::*;

/// Most quanta of all spaces together.
const QUANTA_MAX: u32 = 40 * PER;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Cell {
    Unbacked,
    Stranded,
    Live(NodeId),
    Free(Stamp),
}

/// One step of a sequence. Numbers choose among what is there, modulo how much that is.
#[derive(Clone, Debug)]
enum Step {
    AddSpace { granules: u32 },
    Take { quanta: u32, align: u32, lane: usize },
    Free { which: usize, stamp: usize },
    Grow { quanta: u32, align: u32, lane: usize },
    Unback { which: usize, len: u32 },
    Strand { which: usize, len: u32 },
    Unstrand { which: usize },
    Record { lane: usize },
    Pass { which: usize },
}

fn step() -> impl Strategy<Value = Step> {
    let quanta = prop_oneof![4 => 1..6u32, 2 => 1..24u32, 1 => 1..60u32];
    let place = (quanta, 0..5u32, any::<usize>());
    let align = |bits: u32| 1 << bits.saturating_sub(1);
    prop_oneof![
        1 => (1..6u32).prop_map(|granules| Step::AddSpace { granules }),
        8 => place.clone().prop_map(move |(quanta, bits, lane)| {
            Step::Take { quanta, align: align(bits), lane }
        }),
        10 => any::<(usize, usize)>().prop_map(|(which, stamp)| Step::Free { which, stamp }),
        6 => place.prop_map(move |(quanta, bits, lane)| {
            Step::Grow { quanta, align: align(bits), lane }
        }),
        2 => (any::<usize>(), 1..4u32).prop_map(|(which, len)| Step::Unback { which, len }),
        1 => (any::<usize>(), 1..4u32).prop_map(|(which, len)| Step::Strand { which, len }),
        1 => any::<usize>().prop_map(|which| Step::Unstrand { which }),
        3 => any::<usize>().prop_map(|lane| Step::Record { lane }),
        3 => any::<usize>().prop_map(|which| Step::Pass { which }),
    ]
}

/// The heap and the model side by side.
struct Pair {
    bench: Bench,
    cells: Vec<Cell>,
    /// First and one past the last quantum of each space.
    spaces: Vec<(u32, u32)>,
    live: Vec<NodeId>,
    lanes: Vec<LaneId>,
    /// Frees may name the sync lane and joins, not just one stream.
    many: bool,
}

impl Pair {
    fn new(many: bool) -> Pair {
        let mut bench = Bench::new(PER);
        let mut lanes = vec![bench.lane(1)];
        if many {
            lanes.push(bench.lane(2));
            lanes.push(bench.lanes.open(9, LaneKind::Sync).expect("a free number"));
        }
        Pair { bench, cells: Vec::new(), spaces: Vec::new(), live: Vec::new(), lanes, many }
    }

    fn lane_of(&self, number: usize) -> LaneId {
        self.lanes[number % self.lanes.len()]
    }

    fn takeable(&self, cell: Cell, lane: LaneId) -> bool {
        matches!(cell, Cell::Free(stamp) if self.bench.lanes.takeable(stamp, lane))
    }

    /// Maximal rows inside one space whose cells all satisfy `is`.
    fn rows(&self, is: impl Fn(Cell) -> bool) -> Vec<(u32, u32)> {
        let mut rows: Vec<(u32, u32)> = Vec::new();
        for &(start, end) in &self.spaces {
            let mut open: Option<u32> = None;
            for q in start..end {
                match (is(self.cells[q as usize]), open) {
                    (true, None) => open = Some(q),
                    (false, Some(first)) => {
                        rows.push((first, q));
                        open = None;
                    }
                    _ => {}
                }
            }
            rows.extend(open.map(|first| (first, end)));
        }
        rows
    }

    /// For each run: its length, first quantum, and the lowest place that would do.
    fn places(&self, quanta: u32, align: u32, lane: LaneId) -> Vec<(u32, u32, Option<u32>)> {
        let fits = |start: u32, end: u32| {
            (start..end).find(|&at| {
                at.is_multiple_of(align)
                    && at + quanta <= end
                    && (at..at + quanta).all(|q| self.takeable(self.cells[q as usize], lane))
            })
        };
        let runs = self.rows(|cell| matches!(cell, Cell::Free(_)));
        runs.into_iter().map(|(start, end)| (end - start, start, fits(start, end))).collect()
    }

    fn become_live(&mut self, node: NodeId, quanta: u32) {
        let (off, len, kind) = self.bench.heap.block(node);
        assert_eq!((len, kind), (quanta, Kind::Live));
        for q in off..off + len {
            let cell = &mut self.cells[q as usize];
            assert!(matches!(cell, Cell::Free(_)), "blocks never overlap: {cell:?}");
            *cell = Cell::Live(node);
        }
        self.live.push(node);
    }

    fn take(&mut self, quanta: u32, align: u32, lane: LaneId) -> bool {
        let places = self.places(quanta, align, lane);
        let shortest = places.iter().filter(|p| p.2.is_some()).map(|p| p.0).min();
        let got = self.bench.heap.take(quanta, align, lane, &self.bench.lanes, Effort::Full);
        assert_eq!(got.is_some(), shortest.is_some(), "a place is found when there is one");
        let (Some(node), Some(shortest)) = (got, shortest) else { return false };
        let off = self.bench.heap.block(node).0;
        let equals: Vec<_> = places.iter().filter(|p| p.0 == shortest).collect();
        assert!(equals.iter().any(|p| p.2 == Some(off)), "{off} in one of {equals:?}");
        // The lowest run of a length is looked at first, so it is taken when it does.
        if let Some(lowest) = equals[0].2 {
            assert_eq!(off, lowest, "the lowest of equal runs, at its low end");
        }
        self.become_live(node, quanta);
        true
    }

    /// The stamp that choice number `choice` stands for.
    fn stamp(&mut self, choice: usize) -> Stamp {
        let lanes = &mut self.bench.lanes;
        let kinds = if self.many { 6 } else { 3 };
        match choice % kinds {
            0 => Stamp::CLEAN,
            1 | 2 => lanes.stamp(self.lanes[0], 1),
            3 => lanes.stamp(self.lanes[1], 1),
            4 => lanes.stamp(self.lanes[2], 1),
            _ => {
                let parts = [lanes.stamp(self.lanes[0], 1), lanes.stamp(self.lanes[1], 1)];
                lanes.join(&parts)
            }
        }
    }

    fn free(&mut self, which: usize, choice: usize) {
        if self.live.is_empty() {
            return;
        }
        let node = self.live.swap_remove(which % self.live.len());
        let stamp = self.stamp(choice);
        let (off, len, _) = self.bench.heap.block(node);
        self.bench.heap.free(node, stamp, &self.bench.lanes);
        self.cells[off as usize..(off + len) as usize].fill(Cell::Free(stamp));
        let (low, high) = *self.spaces.iter().find(|s| s.0 <= off && off < s.1).expect("inside");
        if off > low {
            self.meet(off - 1, off);
        }
        if off + len < high {
            self.meet(off + len - 1, off + len);
        }
    }

    /// The rule for two neighbouring pieces, one of them just freed.
    fn meet(&mut self, lower: u32, upper: u32) {
        let of = |pair: &Pair, at: u32| match pair.cells[at as usize] {
            Cell::Free(stamp) => Some(stamp),
            _ => None,
        };
        let (Some(mut a), Some(mut b)) = (of(self, lower), of(self, upper)) else { return };
        if a.lane != b.lane {
            for (at, stamp) in [(lower, &mut a), (upper, &mut b)] {
                if self.bench.lanes.passed(*stamp) {
                    self.restamp(at, Stamp::CLEAN);
                    *stamp = Stamp::CLEAN;
                }
            }
        }
        if let Some(merged) = a.merged(b) {
            self.restamp(lower, merged);
            self.restamp(upper, merged);
        }
    }

    /// Gives the whole piece around a quantum another stamp.
    fn restamp(&mut self, at: u32, stamp: Stamp) {
        let old = self.cells[at as usize];
        let space = *self.spaces.iter().find(|s| s.0 <= at && at < s.1).expect("inside");
        let same = |q: u32| self.cells[q as usize] == old;
        let start = (space.0..at).rev().take_while(|&q| same(q)).last().unwrap_or(at);
        let end = (at..space.1).take_while(|&q| same(q)).last().expect("itself") + 1;
        self.cells[start as usize..end as usize].fill(Cell::Free(stamp));
    }

    /// Plans and makes it so, when no run does.
    fn grow(&mut self, quanta: u32, align: u32, lane: LaneId) {
        if self.take(quanta, align, lane) {
            return;
        }
        let holes = self.rows(|cell| cell == Cell::Unbacked || self.takeable(cell, lane));
        let mut best: Option<(u32, u32)> = None;
        for &(start, end) in &holes {
            for at in (start..end).filter(|at| at.is_multiple_of(align) && at + quanta <= end) {
                let key = (self.unbacked(at, quanta).len() as u32, end - start);
                best = Some(best.map_or(key, |b| b.min(key)));
            }
        }
        let plan = self.bench.heap.plan(quanta, align, lane, &self.bench.lanes);
        assert_eq!(plan.is_some(), best.is_some(), "a plan is made when there is a place");
        let (Some(plan), Some((missing, length))) = (plan, best) else { return };
        let hole = holes.iter().find(|h| h.0 <= plan.start && plan.start + quanta <= h.1);
        let hole = hole.expect("the plan lies in one hole");
        assert!(plan.start.is_multiple_of(align));
        let granules = self.unbacked(plan.start, quanta);
        assert_eq!(granules.len() as u32, plan.missing);
        if align == 1 {
            assert_eq!((plan.missing, hole.1 - hole.0), (missing, length), "fewest, shortest");
        }
        let mut backed = Vec::new();
        for row in self.bench.heap.missing(plan.start, quanta) {
            self.bench.heap.back(row.granule, row.len);
            backed.extend(row.granule..row.granule + row.len);
            self.fill(row, Cell::Free(Stamp::CLEAN));
        }
        assert_eq!(backed, granules, "exactly what is missing");
        let node = self.bench.heap.take_at(plan.start, quanta);
        assert_eq!(self.bench.heap.block(node).0, plan.start);
        self.become_live(node, quanta);
    }

    /// Granules without memory that a place touches.
    fn unbacked(&self, start: u32, quanta: u32) -> Vec<u32> {
        let granules = start / PER..(start + quanta).div_ceil(PER);
        granules.filter(|g| self.cells[(g * PER) as usize] == Cell::Unbacked).collect()
    }

    fn fill(&mut self, row: IdleRun, cell: Cell) {
        let (start, end) = (row.granule * PER, (row.granule + row.len) * PER);
        self.cells[start as usize..end as usize].fill(cell);
    }

    /// Rows of granules inside one space all of whose cells satisfy `is`.
    fn granule_rows(&self, is: impl Fn(Cell) -> bool) -> Vec<IdleRun> {
        let mut rows: Vec<IdleRun> = Vec::new();
        for (start, end) in self.rows(is) {
            let (first, last) = (start.div_ceil(PER), end / PER);
            if first < last {
                rows.push(IdleRun { granule: first, len: last - first });
            }
        }
        rows
    }

    fn idle_rows(&self) -> Vec<IdleRun> {
        self.granule_rows(|c| matches!(c, Cell::Free(stamp) if self.bench.lanes.passed(stamp)))
    }

    fn play(&mut self, step: &Step) {
        let pick = |rows: Vec<IdleRun>, which: usize, len: u32| {
            let row = *rows.get(which % rows.len().max(1))?;
            let len = len.min(row.len);
            let granule = row.granule + which as u32 % (row.len - len + 1);
            Some(IdleRun { granule, len })
        };
        match *step {
            Step::AddSpace { granules } => self.add_space(granules),
            Step::Take { quanta, align, lane } => {
                self.take(quanta, align, self.lane_of(lane));
            }
            Step::Free { which, stamp } => self.free(which, stamp),
            Step::Grow { quanta, align, lane } => self.grow(quanta, align, self.lane_of(lane)),
            Step::Unback { which, len } => {
                if let Some(row) = pick(self.idle_rows(), which, len) {
                    self.bench.heap.unback(row.granule, row.len);
                    self.fill(row, Cell::Unbacked);
                }
            }
            Step::Strand { which, len } => {
                if let Some(row) = pick(self.granule_rows(|c| c == Cell::Unbacked), which, len) {
                    self.bench.heap.strand(row.granule, row.len);
                    self.fill(row, Cell::Stranded);
                }
            }
            Step::Unstrand { which } => {
                if let Some(row) = pick(self.granule_rows(|c| c == Cell::Stranded), which, 1) {
                    self.bench.heap.unstrand(row.granule);
                    self.fill(row, Cell::Unbacked);
                }
            }
            Step::Record { lane } => {
                let lane = self.lane_of(lane);
                let recorded = self.bench.lanes.record(&self.bench.fake, lane);
                assert_eq!(recorded, Ok(true));
            }
            Step::Pass { which } => {
                let records = self.bench.fake.records();
                if let Some(&(event, _)) = records.get(which % records.len().max(1)) {
                    self.bench.fake.pass(event);
                    self.bench.lanes.settle(&self.bench.fake).expect("no fault");
                }
            }
        }
    }

    fn add_space(&mut self, granules: u32) {
        let start = self.cells.len() as u32;
        let end = start + granules * PER;
        if end > QUANTA_MAX {
            return;
        }
        assert_eq!(self.bench.heap.add_space(granules), start / PER);
        self.cells.resize(end as usize, Cell::Unbacked);
        self.spaces.push((start, end));
    }

    /// Everything the heap says of itself against the cells.
    fn check(&self) {
        let heap = &self.bench.heap;
        heap.check();
        let mut cells = Vec::new();
        let mut node = heap.nodes.first;
        while node != NIL {
            let n = &heap.nodes[node];
            let cell = match n.kind {
                Kind::Gap => Cell::Unbacked,
                Kind::Stranded => Cell::Stranded,
                Kind::Live => Cell::Live(node),
                Kind::Guard | Kind::Foreign | Kind::Border => unreachable!("the model keeps none"),
                Kind::Free | Kind::Wall => Cell::Free(heap.nodes.stamp(node)),
            };
            cells.extend(std::iter::repeat_n(cell, n.len as usize));
            node = n.next;
        }
        assert_eq!(cells, self.cells);
        self.check_counts();
        for &lane in &self.lanes {
            self.check_account(lane);
        }
        let mut idle = heap.idle_runs(&self.bench.lanes, |_| true);
        idle.sort_unstable_by_key(|row| row.granule);
        assert_eq!(idle, self.idle_rows());
        for q in (0..cells.len()).step_by(7) {
            assert_eq!(heap.live_at(q as u32), matches!(cells[q], Cell::Live(_)));
        }
    }

    fn check_counts(&self) {
        let granules = || self.cells.chunks(PER as usize);
        let is_live = |cell: &Cell| matches!(cell, Cell::Live(_));
        let backed = |g: &&[Cell]| !matches!(g[0], Cell::Unbacked | Cell::Stranded);
        let live: usize = self.cells.iter().filter(|&cell| is_live(cell)).count();
        let idle = granules().filter(|g| backed(g) && !g.iter().any(is_live)).count();
        let counts = Counts {
            live_quanta: live as u64,
            backed_granules: granules().filter(backed).count() as u64,
            idle_granules: idle as u64,
            stranded_granules: granules().filter(|g| g[0] == Cell::Stranded).count() as u64,
            asleep_quanta: 0,
        };
        assert_eq!(self.bench.heap.counts(), counts);
        let held = (counts.backed_granules - counts.idle_granules) * u64::from(PER);
        assert_eq!(self.bench.heap.trapped_quanta(), held - counts.live_quanta);
    }

    fn check_account(&self, lane: LaneId) {
        let lanes = &self.bench.lanes;
        let clean = |cell: &Cell| matches!(cell, Cell::Free(stamp) if lanes.passed(*stamp));
        let free = self.cells.iter().filter(|c| matches!(c, Cell::Free(_))).count();
        let cleans = self.cells.iter().filter(|&c| clean(c)).count();
        let whole = self.cells.chunks(PER as usize).filter(|g| g.iter().all(clean)).count();
        let idle = whole * PER as usize;
        let rows = self.rows(|cell| self.takeable(cell, lane));
        let account = Account {
            pending: (free - cleans) as u64,
            trapped: (cleans - idle) as u64,
            idle: idle as u64,
            largest: rows.iter().map(|row| row.1 - row.0).max().unwrap_or(0),
        };
        assert_eq!(self.bench.heap.account(lanes, lane), account);
    }
}

fn replay(many: bool, steps: &[Step]) {
    let mut pair = Pair::new(many);
    pair.add_space(4);
    for step in steps {
        pair.play(step);
        pair.check();
    }
}

fn config() -> ProptestConfig {
    if cfg!(miri) {
        // Under Miri no file may be opened; the sequence is printed all the same.
        return ProptestConfig { cases: 1, failure_persistence: None, ..Default::default() };
    }
    ProptestConfig::with_cases(1024)
}

/// Steps a sequence.
const STEPS: usize = if cfg!(miri) { 20 } else { 120 };

proptest! {
    #![proptest_config(config())]

    #[test]
    fn one_lane_agrees_with_the_model(steps in prop::collection::vec(step(), 1..STEPS)) {
        replay(false, &steps);
    }

    #[test]
    fn many_lanes_agree_with_the_model(steps in prop::collection::vec(step(), 1..STEPS)) {
        replay(true, &steps);
    }
}
