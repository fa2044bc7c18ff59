//! Wrong input: an error that names the buffer or option, and nothing else.

use forebay::error::{Error, Status};
use forebay::plan::{Buffer, Options, solve};

fn refused(buffers: &[Buffer]) -> Error {
    let error = solve(buffers, &Options::default()).expect_err("wrong buffers");
    assert_eq!(error.status(), Status::InvalidArgument, "{error}");
    error
}

#[test]
fn buffers() {
    let good = Buffer::new(3, 2, 5, 64);
    let cases: [(Buffer, &str); 7] = [
        (Buffer { death: 2, ..good }, "buffer 3 has an empty lifetime"),
        (Buffer { death: 1, ..good }, "buffer 3 dies at 1, before its birth at 2"),
        (Buffer { size: 0, ..good }, "buffer 3 has size 0"),
        (Buffer { alignment: 48, ..good }, "buffer 3 has alignment 48"),
        (Buffer { alignment: 0, ..good }, "buffer 3 has alignment 0"),
        (Buffer { alignment: 64, fixed: Some(100), ..good }, "buffer 3 is fixed at offset 100"),
        (Buffer { fixed: Some(u64::MAX - 1), ..good }, "buffer 3 is fixed at offset"),
    ];
    for (wrong, text) in cases {
        let error = refused(&[Buffer::new(1, 0, 9, 64), wrong]);
        assert!(error.message().contains(text), "{error} does not say {text:?}");
    }
    let twice = refused(&[good, Buffer::new(4, 0, 1, 1), good]);
    assert!(twice.message().contains("id 3 is given to two buffers"), "{twice}");
}

#[test]
fn sums_beyond_64_bits() {
    let b = |id| Buffer::new(id, 0, 1, 1 << 62);
    let over = refused(&[b(0), b(1), b(2), b(3), b(4)]);
    assert!(over.message().contains("up to buffer 1 come to more than 2^62"), "{over}");
    let aligned = Buffer { alignment: 1 << 63, ..Buffer::new(9, 0, 1, 1) };
    assert!(refused(&[aligned]).message().contains("buffer 9"));
}

#[test]
fn fixed_buffers_that_overlap() {
    let at = |id, fixed, birth, death| Buffer {
        fixed: Some(fixed),
        ..Buffer::new(id, birth, death, 100)
    };
    let error = refused(&[at(5, 0, 0, 4), at(6, 99, 3, 8)]);
    assert!(error.message().contains("buffers 5 and 6 overlap"), "{error}");
    assert!(solve(&[at(5, 0, 0, 4), at(6, 99, 4, 8)], &Options::default()).is_ok());
}

#[test]
fn a_size_beyond_the_capacity_names_its_buffer() {
    let buffers = [Buffer::new(1, 0, 1, 10), Buffer::new(2, 5, 6, 200)];
    let options = Options { capacity: Some(100), ..Options::default() };
    let error = solve(&buffers, &options).expect_err("too large");
    assert_eq!(error.status(), Status::Infeasible);
    assert!(error.message().contains("buffer 2 takes 200 bytes"), "{error}");
    let fixed = [Buffer { fixed: Some(96), ..buffers[0] }];
    let error = solve(&fixed, &options).expect_err("too high");
    assert!(error.message().contains("buffer 1 takes 10 bytes at its fixed offset 96"), "{error}");
}

#[test]
fn options() {
    let one = [Buffer::new(1, 0, 1, 10)];
    for wrong in [
        Options { searchers: 0, ..Options::default() },
        Options { searchers: 257, ..Options::default() },
        Options { threads: 257, ..Options::default() },
        Options { capacity: Some(u64::MAX), ..Options::default() },
    ] {
        let error = solve(&one, &wrong).expect_err("wrong options");
        assert_eq!(error.status(), Status::InvalidArgument, "{error}");
    }
}
