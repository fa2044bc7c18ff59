//! A limit's bytes can be had: out of a checkerboard, and after any history, also while other
//! threads sleep with full magazines.

use super::common::{self, MIB};
use super::rounds::{self, GRANULE};
use std::sync::Arc;

#[test]
fn a_checkerboard_serves_requests_of_every_length() {
    let (driver, pool) = common::small_pool(128 * MIB);
    rounds::warm_up(&pool).expect("an empty pool");
    for bytes in [4 * MIB, 16 * MIB, 64 * MIB] {
        let gathered = rounds::checkerboard(&driver, &pool, bytes).expect("idle pages suffice");
        println!("{bytes} bytes: {gathered:?}, at most {}", gathered.most());
        assert!(gathered.pages >= 1 && gathered.pages <= (bytes / GRANULE) as u64);
        assert!(gathered.calls <= gathered.most(), "{bytes} bytes: {gathered:?}");
        common::check_books(&driver, &pool);
    }
    common::end(&driver, pool, &[]);
}

#[test]
fn a_capped_pool_hands_out_its_limit_in_blocks_of_any_power_of_two() {
    const LIMIT: usize = 64 * MIB;
    let seed = common::seed(21);
    for round in 0..3 {
        let driver = common::plain_device(128 * MIB);
        let mut settings = common::settings(&driver);
        settings.limit = LIMIT as u64;
        // Enough for every sleeper.
        settings.cache = LIMIT as u64 / 4;
        let pool = Arc::new(common::pool(&driver, settings));
        let streams: Vec<u64> = (0..3)
            .map(|_| forebay::driver::Driver::stream_create(&*driver).expect("one").0)
            .collect();
        let mut bytes = GRANULE;
        while bytes <= LIMIT {
            let past = (seed + round + bytes as u64, 400);
            let got = rounds::take_capped(&pool, &streams, past, bytes).expect("alive");
            assert_eq!(got, LIMIT, "of {bytes} bytes");
            common::check_books(&driver, &pool);
            bytes *= 2;
        }
        let pool = Arc::into_inner(pool).expect("the sleepers are gone");
        common::end(&driver, pool, &streams);
    }
}
