//! A model of threads that swap full magazines through a locked depot.

use crate::base::sync::SpinLock;
use crate::slab::Round;
use crate::slab::class::slot_bytes;
use crate::slab::depot::{Depot, Full, ROUNDS_MAX};
use loom::sync::Arc;

const CLASS: usize = 3;

fn full(numbers: &[u32]) -> Full {
    let mut rounds = Box::new([Round::new(0, 0); ROUNDS_MAX]);
    for (round, &n) in rounds.iter_mut().zip(numbers) {
        *round = Round::new(n, n);
    }
    Full::new(rounds, numbers.len() as u32)
}

/// Hands in a full magazine, then takes one, as a thread does whose cache ran over and dry.
fn swap(depot: &SpinLock<Depot>, mine: Full) -> Vec<Round> {
    depot.lock().push(CLASS, mine);
    let got = depot.lock().pop(CLASS);
    got.map_or_else(Vec::new, |full| full.rounds().to_vec())
}

/// All rounds that left the depot and all that are still in it, by number.
fn numbers(out: Vec<Round>, depot: &mut Depot) -> Vec<u32> {
    let kept: usize = depot.bytes() as usize / slot_bytes(CLASS);
    let inside: Vec<Round> = depot.drain().iter().flat_map(|f| f.rounds().to_vec()).collect();
    assert_eq!(inside.len(), kept, "the depot's bytes are those of its rounds");
    let mut all: Vec<u32> = out.iter().chain(&inside).map(|round| round.unit()).collect();
    all.sort_unstable();
    all
}

#[test]
fn loom_depot_loses_and_doubles_no_round() {
    loom::model(|| {
        let depot = Arc::new(SpinLock::new(Depot::default()));
        let other = {
            let depot = Arc::clone(&depot);
            loom::thread::spawn(move || swap(&depot, full(&[1, 2])))
        };
        let mut out = swap(&depot, full(&[3, 4, 5]));
        assert!(!out.is_empty(), "as many magazines went in as came out");
        out.extend(other.join().expect("no panic"));
        assert_eq!(numbers(out, &mut depot.lock()), [1, 2, 3, 4, 5]);
    });
}

#[test]
fn loom_depot_drained_while_threads_swap() {
    loom::model(|| {
        let depot = Arc::new(SpinLock::new(Depot::default()));
        depot.lock().push(CLASS, full(&[6]));
        let other = {
            let depot = Arc::clone(&depot);
            loom::thread::spawn(move || swap(&depot, full(&[1, 2])))
        };
        let taken: Vec<Round> =
            depot.lock().drain().iter().flat_map(|f| f.rounds().to_vec()).collect();
        let mut out = other.join().expect("no panic");
        out.extend(taken);
        assert_eq!(numbers(out, &mut depot.lock()), [1, 2, 6]);
    });
}
