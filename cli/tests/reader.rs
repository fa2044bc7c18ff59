//! The trace reader: both formats, and every malformed line by its number.

use std::fmt::Write as _;
use std::io::Write as _;

use forebay_cli::trace::{Event, SIZE_MAX, STREAMS_MAX, Trace, parse_bytes, parse_file};

const STEP: &str = "step,ev,id,bytes,stream,op\n";
const RMM: &str = "Thread,Time,Action,Pointer,Size,Stream\n";

fn read(text: &str) -> Trace {
    parse_bytes("t", text.as_bytes()).expect("a sound trace")
}

/// The error of a trace made of `header` and `rows`, as text.
fn refused(header: &str, rows: &str) -> String {
    let text = format!("{header}{rows}");
    parse_bytes("t.csv", text.as_bytes()).expect_err("must be refused").to_string()
}

fn gzip(text: &str) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(text.as_bytes()).expect("memory takes all");
    encoder.finish().expect("memory takes all")
}

#[test]
fn alloc_csv_becomes_dense_events() {
    let rows = "0,a,70,4096,0,weight\n0,a,9,512,3,\r\n1,f,70,,,\n\n1,a,70,100,0,x\n1,f,9,512,0,\n";
    let trace = read(&format!("{STEP}{rows}"));
    assert_eq!(
        trace.events,
        [
            Event::alloc(0, 4096, 0),
            Event::alloc(1, 512, 1),
            Event::free(0, 0),
            Event::alloc(0, 100, 0),
            Event::free(1, 0),
        ]
    );
    assert_eq!((trace.ids, trace.streams), (2, 2));
    assert_eq!((trace.peak_live_bytes, trace.left_bytes), (4608, 100));
    assert_eq!(trace.failed_requests, 0);
}

#[test]
fn timed_header_gzip_and_missing_last_line_end_are_read() {
    let text = "ts_us,ev,id,bytes,stream,op\n17,a,0,25165824,0,\n125,f,0,,,";
    let plain = read(text);
    assert_eq!(plain.events, [Event::alloc(0, 25_165_824, 0), Event::free(0, 0)]);
    assert_eq!(parse_bytes("t", &gzip(text)), Ok(plain));
}

#[test]
fn rmm_log_becomes_events_and_failures_are_counted() {
    let rows = "1979932,14:21:19.998533,allocate,0x30a000000,256,0x2\n\
        1979932,14:21:20.000000,allocate failure,(nil),99999,0x2\n\
        1979932,14:21:20.100000,allocate,0x0,0,0x2\n\
        1980043,14:21:32.661875,free,0x30a000000,256,0x1\n\
        1980043,14:21:33.661875,allocate,0x30a000000,512,0\n\
        1980043,14:21:34.661875,deallocate,30a000000,512,0\n";
    let trace = read(&format!("{RMM}{rows}"));
    assert_eq!(
        trace.events,
        [Event::alloc(0, 256, 0), Event::free(0, 1), Event::alloc(0, 512, 2), Event::free(0, 2),]
    );
    assert_eq!((trace.streams, trace.failed_requests, trace.peak_live_bytes), (3, 1, 512));
}

#[test]
fn a_header_alone_is_an_empty_trace() {
    let trace = read(STEP);
    assert_eq!((trace.events.len(), trace.ids, trace.streams), (0, 0, 1));
}

#[test]
fn wrong_headers_are_line_1() {
    assert!(refused("", "").ends_with("found an empty file"), "{}", refused("", ""));
    let text = refused("id,lower,upper,size\n", "1,2,3,4\n");
    assert!(text.starts_with("t.csv:1: expected a header line (\"step,"), "{text}");
    assert!(text.ends_with("found \"id,lower,upper,size\""), "{text}");
}

#[test]
fn malformed_alloc_rows_name_the_line_and_what_was_expected() {
    let fine = "0,a,0,64,0,\n";
    let cases = [
        ("0,a,1,64,0\n", "six fields (step,ev,id,bytes,stream,op), found 5 in \"0,a,1,64,0\""),
        ("x,a,1,64,0,\n", "a step or time, a decimal number, found \"x\""),
        ("0,b,1,64,0,\n", "an event, \"a\" or \"f\", found \"b\""),
        ("0,a,-1,64,0,\n", "an id, a decimal number, found \"-1\""),
        ("0,a,1,+64,0,\n", "a size in bytes, a decimal number, found \"+64\""),
        ("0,a,1,,0,\n", "a size in bytes, a decimal number, found \"\""),
        ("0,a,1,64,s0,\n", "a stream, a decimal number, found \"s0\""),
        ("0,a,1,0,0,\n", "an allocation size from 1 to 281474976710656 bytes, found 0"),
        (
            "0,a,1,281474976710657,0,\n",
            "an allocation size from 1 to 281474976710656 bytes, found 281474976710657",
        ),
        ("0,a,1,281474976710656,0,\n", "at most 281474976710656 live bytes, found 281474976710720"),
        ("0,a,0,64,0,\n", "a block that is not live yet, found a second allocation of id 0"),
        ("0,f,7,,,\n", "the free of a live block, found a free of id 7, which is not live"),
        ("0,f,0,65,,\n", "64 bytes, the size id 0 was allocated with, found 65"),
        ("0,f,0,,z,\n", "a stream, a decimal number, found \"z\""),
    ];
    for (row, expected) in cases {
        assert_eq!(
            refused(STEP, &format!("{fine}{row}0,f,0,,,\n")),
            format!("t.csv:3: expected {expected}")
        );
    }
    // The second free of an id is a free of a block that is not live.
    let twice = refused(STEP, &format!("{fine}0,f,0,,,\n0,f,0,,,\n"));
    assert!(twice.starts_with("t.csv:4: expected the free of a live block"), "{twice}");
}

#[test]
fn malformed_rmm_rows_name_the_line_and_what_was_expected() {
    let cases = [
        ("1,2,alloc,0x10,1,0\n", "an action (\"allocate\", \"allocate failure\" or \"free\")"),
        ("1,2,allocate,zz,1,0\n", "a pointer in hexadecimal, found \"zz\""),
        ("1,2,allocate,0x0,1,0\n", "the address of a block, found \"0x0\""),
        ("1,2,allocate,0x10,0,0\n", "an allocation size from 1"),
        ("1,2,allocate,0x10,1,\n", "a stream, found \"\""),
        (",2,allocate,0x10,1,0\n", "a thread and a time"),
        ("1,2,free,0x10,1,0\n", "the free of a live block, found a free of pointer 0x10"),
    ];
    for (row, expected) in cases {
        let text = refused(RMM, row);
        assert!(text.starts_with(&format!("t.csv:2: expected {expected}")), "{text}");
    }
}

#[test]
fn bytes_that_are_no_text_are_named() {
    let mut bytes = STEP.as_bytes().to_vec();
    bytes.extend(b"0,a,\xff,1,0,\n");
    let error = parse_bytes("t.csv", &bytes).expect_err("not UTF-8");
    assert_eq!(error.to_string(), "t.csv:2: expected UTF-8 text, found byte 0xff at column 5");
}

#[test]
fn a_line_without_end_is_refused_early() {
    let text = refused(STEP, &"7".repeat(10_000));
    assert_eq!(text, "t.csv:2: expected a line of at most 4096 bytes, found a longer one");
}

#[test]
fn damaged_gzip_is_named() {
    let mut text = String::from(STEP);
    for id in 0..5000 {
        writeln!(text, "0,a,{id},{},0,", id * 7 % 1000 + 1).expect("memory");
    }
    let whole = gzip(&text);
    let cut = parse_bytes("t.gz", &whole[..whole.len() / 2]).expect_err("cut short");
    assert!(cut.line > 1, "{cut}");
    assert_eq!(cut.expected, "the rest of the gzip data");
    assert_eq!(cut.found, "the end of the file");
    let mut odd = whole.clone();
    let last = odd.len() - 6;
    odd[last] ^= 0x40;
    let error = parse_bytes("t.gz", &odd).expect_err("wrong checksum");
    assert_eq!(error.expected, "sound gzip data");
    let magic_only = parse_bytes("t.gz", &whole[..2]).expect_err("no header");
    assert_eq!(magic_only.line, 1);
}

#[test]
fn limits_hold() {
    let mut rows = String::new();
    for stream in 0..=STREAMS_MAX {
        writeln!(rows, "0,a,{stream},1,{stream},").expect("memory");
    }
    let text = refused(STEP, &rows);
    assert_eq!(text, "t.csv:1026: expected at most 1024 streams, found \"1024\"");
    let most = read(&format!("{STEP}0,a,0,{SIZE_MAX},0,\n"));
    assert_eq!(most.peak_live_bytes, SIZE_MAX);
}

#[test]
fn a_missing_file_is_named() {
    let error = parse_file("no/such/trace.csv".as_ref()).expect_err("not there");
    assert_eq!(error.line, 0);
    assert!(error.to_string().starts_with("no/such/trace.csv: expected a readable file"));
}

#[test]
fn no_prefix_of_a_trace_panics() {
    let text = format!("{STEP}0,a,0,64,0,w\n1,a,1,1,1,\u{e4}\n1,f,0,,,\n1,f,1,,,\n");
    let packed = gzip(&text);
    for end in 0..text.len() {
        drop(parse_bytes("t", &text.as_bytes()[..end]));
    }
    for end in 0..packed.len() {
        assert!(parse_bytes("t", &packed[..end]).is_err(), "cut at {end}");
    }
}
