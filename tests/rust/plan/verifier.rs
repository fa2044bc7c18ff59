//! The verifier against all pairs.

use crate::oracle::{self, Look};
use crate::random::{Random, seed};
use forebay::plan::{Buffer, verify};

#[test]
fn says_what_all_pairs_say() {
    let first = seed(1);
    let (mut good, mut wrong) = (0, 0);
    for seed in first..first + 20_000 {
        let mut rng = Random(seed);
        let look = Look {
            count: 1 + rng.below(6),
            times: 1 + rng.below(6),
            size_max: 4,
            align_power: rng.below(3),
            fixed_one_in: 4,
            fixed_max: 12,
        };
        let buffers = oracle::buffers(&mut rng, look);
        let offsets: Vec<u64> = buffers
            .iter()
            .map(|b| match b.fixed {
                Some(at) if !rng.one_in(20) => at,
                _ if rng.one_in(20) => rng.below(24) as u64,
                _ => rng.below(24) as u64 / b.alignment * b.alignment,
            })
            .collect();
        let said = verify::verify(&buffers, &offsets);
        let is_plan = oracle::is_plan(&buffers, &offsets);
        assert_eq!(said.is_ok(), is_plan, "seed {seed}: {said:?} for {buffers:?} {offsets:?}");
        if let Ok(height) = said {
            assert_eq!(height, oracle::height(&buffers, &offsets), "seed {seed}");
        }
        if is_plan { good += 1 } else { wrong += 1 }
    }
    assert!(good > 2000 && wrong > 2000, "{good} plans and {wrong} others: too one-sided");
}

#[test]
fn names_the_two_that_overlap() {
    let buffers = [Buffer::new(10, 0, 4, 8), Buffer::new(20, 2, 6, 8), Buffer::new(30, 4, 6, 8)];
    assert_eq!(verify::verify(&buffers, &[0, 8, 0]), Ok(16));
    let error = verify::verify(&buffers, &[0, 8, 1]).expect_err("an overlap");
    assert!(error.message().contains("buffers 20 and 30 overlap"), "{error}");
    let error = verify::verify(&buffers, &[0, 7, 16]).expect_err("an overlap");
    assert!(error.message().contains("buffers 10 and 20 overlap"), "{error}");
    let short = verify::verify(&buffers, &[0, 8]).expect_err("too few");
    assert!(short.message().contains("3 buffers, but 2 offsets"), "{short}");
    let high = verify::verify(&buffers, &[0, u64::MAX, 0]).expect_err("too high");
    assert!(high.message().contains("buffer 20 ends above"), "{high}");
}
