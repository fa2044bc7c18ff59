//! The fuzz targets' bodies over seeded random bytes, where no nightly toolchain is.
//!
//! The trace reader's body is run by the command's own tests. The canary's body has a planted
//! fault that must be found here too. Cost: a few seconds.

#[path = "common/mod.rs"]
mod common;
#[path = "../../fuzz/src/config.rs"]
mod config;
#[path = "../../fuzz/src/ops.rs"]
mod ops;

use common::Random;

/// Random bytes, `most` at most.
fn bytes(rng: &mut Random, most: usize) -> Vec<u8> {
    (0..rng.below(most)).map(|_| rng.bits() as u8).collect()
}

#[test]
fn operations_agree_with_the_model() {
    let first = common::seed(1);
    for seed in first..first + 300 {
        println!("seed {seed} (set FOREBAY_TEST_SEED to run it again)");
        ops::play(&bytes(&mut Random(seed), 4000));
    }
}

#[test]
fn canary_a_planted_fault_is_found() {
    let found = (0..300).any(|seed| {
        let input = bytes(&mut Random(seed), 8000);
        std::panic::catch_unwind(|| ops::play_with_a_fault(&input)).is_err()
    });
    assert!(found, "a block that was freed and is thought live went unnoticed");
}

#[test]
fn any_values_make_usable_settings() {
    // Words that settings are made of, so that some values mean something.
    const WORDS: [&str; 16] = [
        "1",
        "0",
        "512M",
        "20GiB",
        "80%",
        "101%",
        "-1",
        "full",
        "host",
        "cuda",
        "idle",
        "poison",
        "guard,",
        "1e9",
        " ",
        "18446744073709551616",
    ];
    let mut rng = Random(common::seed(2));
    for _ in 0..20_000 {
        let mut input = Vec::new();
        for _ in 0..rng.below(12) {
            input.push(rng.bits() as u8);
            match rng.below(3) {
                0 => input.extend(bytes(&mut rng, 8)),
                _ => input.extend(WORDS[rng.below(WORDS.len())].bytes()),
            }
            input.push(b'\n');
        }
        config::read(&input);
    }
}
