//! `forebay plan`: figures, files, pictures, and what is said of wrong input.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use flate2::Compression;
use flate2::write::GzEncoder;
use forebay::plan::{Buffer, Options, Plan, csv, solve};
use forebay_cli::{instance, picture};
use serde_json::Value;
use std::io::Write;

/// MiniMalloc's first example: 12 units at the most, 4 each.
const FIVE: &str = "id,lower,upper,size\nb1,0,3,4\nb2,3,9,4\nb3,0,9,4\nb4,9,21,4\nb5,0,21,4\n";
/// Two steps; in step 1 an older buffer dies and one outlives it.
const TRACE: &str = "step,ev,id,bytes,stream,op\n0,a,0,1000,0,x\n1,a,1,64,0,x\n1,a,2,32,0,x\n\
    1,f,0,,,\n1,f,1,64,0,\n1,a,1,16,0,x\n1,f,2,,,\n1,f,1,,,\n1,a,9,8,0,x\n2,f,9,,,\n";

fn forebay(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_forebay"));
    command.arg("plan").args(args).output().expect("the command starts")
}

fn out(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).expect("UTF-8")
}

fn err(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).expect("UTF-8")
}

fn path(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name)
}

fn file(name: &str, bytes: impl AsRef<[u8]>) -> String {
    let path = path(name);
    std::fs::write(&path, bytes).expect("the target folder is writable");
    path.to_str().expect("UTF-8").to_owned()
}

#[test]
fn one_object_and_nothing_else() {
    let five = file("plan-five.csv", FIVE);
    let done = forebay(&[&five, "--json", "--seed", "7"]);
    assert_eq!(err(&done), "");
    assert!(done.status.success());
    let json: Value = serde_json::from_str(&out(&done)).expect("one JSON object");
    assert_eq!(json["file"], five);
    assert_eq!(json["buffers"], 5);
    assert_eq!(json["height_bytes"], 12);
    assert_eq!(json["bound_bytes"], 12);
    assert_eq!(json["gap_bytes"], 0);
    assert_eq!(json["capacity_bytes"], Value::Null);
    assert_eq!(json["seed"], 7);
    for number in ["seconds", "cpu_seconds", "peak_memory_bytes"] {
        assert!(json[number].as_f64() > Some(0.0), "{number} of {json}");
    }
}

#[test]
fn figures_for_people() {
    let five = file("plan-people.csv", FIVE);
    let done = forebay(&[&five, "--capacity", "16"]);
    assert!(done.status.success());
    let text = out(&done).split_whitespace().collect::<Vec<_>>().join(" ");
    for words in ["buffers 5 height 12 bytes bound 12 bytes gap 0 bytes", "height / bound 1.00000"]
    {
        assert!(text.contains(words), "{words:?} is not in {text}");
    }
}

#[test]
fn a_plan_in_files_is_the_plan() {
    let five = file("plan-out.csv", FIVE);
    let (kept, table) = (path("five.plan"), path("five-offsets.csv"));
    let text = |path: &Path| path.to_str().expect("UTF-8").to_owned();
    assert!(forebay(&[&five, "--out", &text(&kept)]).status.success());
    assert!(forebay(&[&five, "--out", &text(&table)]).status.success());
    let plan = Plan::from_bytes(&std::fs::read(&kept).expect("written")).expect("sound");
    assert_eq!((plan.height(), plan.buffers().len()), (12, 5));
    let written = std::fs::read_to_string(&table).expect("written");
    assert!(written.starts_with("id,lower,upper,size,offset\nb1,0,3,4,"), "{written}");
    // Every offset of the table, taken as a fixed one, is a plan again: the same.
    let fixed = csv::read(&written).expect("a table that can be read");
    assert!(fixed.buffers.iter().all(|b| b.fixed.is_some()));
    let again = solve(&fixed.buffers, &Options::default()).expect("no two overlap");
    assert_eq!(again.offsets(), plan.offsets());
    assert_eq!(forebay(&[&five, "--out", "/no/such/folder/x.plan"]).status.code(), Some(1));
}

#[test]
fn a_step_of_a_trace() {
    let mut gz = GzEncoder::new(Vec::new(), Compression::fast());
    gz.write_all(TRACE.as_bytes()).expect("memory");
    let trace = file("plan-trace.csv.gz", gz.finish().expect("memory"));
    let read = instance::read_file(Path::new(&trace), Some(1)).expect("sound");
    // Times are events of the step; the id that is given twice makes two buffers.
    let expected = [Buffer::new(0, 0, 3, 64), Buffer::new(1, 1, 5, 32), Buffer::new(2, 4, 6, 16)];
    assert_eq!(read.buffers, expected);
    assert_eq!(read.notes, ["left out: 1 born before the step, 1 that outlive it"]);
    let done = forebay(&[&trace, "--step", "1", "--alignment", "64", "--json"]);
    let json: Value = serde_json::from_str(&out(&done)).expect("JSON");
    assert_eq!((&json["buffers"], &json["height_bytes"]), (&3.into(), &96.into()));

    let none = forebay(&[&trace]);
    assert_eq!(none.status.code(), Some(1));
    assert!(err(&none).contains("say which with --step N"), "{}", err(&none));
    let far = forebay(&[&trace, "--step", "77"]);
    assert!(err(&far).contains("no event of step 77"), "{}", err(&far));
    let five = file("plan-no-step.csv", FIVE);
    assert!(err(&forebay(&[&five, "--step", "1"])).contains("--step is for traces"));
}

#[test]
fn what_cannot_be_planned_is_said() {
    let five = file("plan-tight.csv", FIVE);
    let tight = forebay(&[&five, "--capacity", "11"]);
    assert_eq!(tight.status.code(), Some(1));
    assert_eq!(out(&tight), "");
    let text = format!(
        "forebay: {five}: no plan takes 11 bytes or less: the buffers that live at 0 come to 12\n"
    );
    // The first moment of the largest load is named.
    assert!(err(&tight).starts_with(&text[..text.len() - 20]), "{}", err(&tight));
    for (name, bytes, part) in [
        ("plan-bad1.csv", "id,lower,upper,size\n0,5,5,1\n", "line 2: buffer 0 lives from 5 to 5"),
        ("plan-bad2.csv", "id,lower,upper,size\n0,5,6,1\n0,5,6,1\n", "id 0 is given to two"),
        ("plan-bad3.csv", "hello\n", "a header is expected"),
        ("plan-bad4.csv", "", "an empty file"),
    ] {
        let done = forebay(&[&file(name, bytes)]);
        assert_eq!(done.status.code(), Some(1), "{name}");
        assert!(err(&done).contains(part), "{} does not say {part:?}", err(&done));
    }
    assert_eq!(forebay(&["/no/such/file"]).status.code(), Some(1));
    for wrong in [
        ["--alignment", "3"],
        ["--time", "0"],
        ["--time", "-1"],
        ["--capacity", "80%"],
        ["--searchers", "0"],
    ] {
        let done = forebay(&[&five, wrong[0], wrong[1]]);
        assert_eq!(done.status.code(), Some(2), "{wrong:?}");
    }
}

/// Many slivers: the picture stays small, whole and readable as XML.
#[test]
fn a_picture_of_any_plan_is_small() {
    let five = file("plan-picture.csv", FIVE);
    let svg = path("five & <five>.svg");
    assert!(forebay(&[&five, "--svg", svg.to_str().expect("UTF-8")]).status.success());
    let text = std::fs::read_to_string(&svg).expect("written");
    assert!(text.starts_with("<svg ") && text.ends_with("</svg>\n"));
    assert!(text.contains("5 buffers, height 12 bytes, bound 12 (dashed), gap 0"), "{text}");

    let mut random = 9u64;
    let mut next = |end: u64| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (random >> 33) % end
    };
    let many: Vec<Buffer> = (0..20_000)
        .map(|id| {
            let birth = next(100_000);
            Buffer::new(id, birth, birth + 1 + next(400), 1 << next(12))
        })
        .collect();
    let effort = Options { effort: 1, ..Options::default() };
    let plan = solve(&many, &effort).expect("a plan");
    let text = picture::svg(&plan, "a & <b>", None);
    assert!(text.len() < picture::BYTES_MAX, "{} bytes", text.len());
    assert!(text.len() > 50_000, "{} bytes: too little to see anything", text.len());
    assert!(text.contains(">a &amp; &lt;b&gt;</text>"));
    assert!(!text.contains("NaN") && !text.contains("inf"));
    let empty = solve(&[], &effort).expect("an empty plan");
    assert!(picture::svg(&empty, "", None).contains("0 buffers"));
}

/// The key's entries of a picture: colour, tag and how many buffers.
fn key(picture: &str) -> Vec<&str> {
    let line = picture.lines().find(|line| line.contains("colours are tags:"));
    line.map_or(Vec::new(), |line| line.split("<tspan fill=\"").skip(1).collect())
}

#[test]
fn a_picture_has_its_colours_by_tag_if_asked() {
    let table = "id,lower,upper,size,tag\na,0,9,64,weights\nb,0,3,8,\nz,1,1,0,gone\n\
                 c,3,9,8,weights\nd,2,4,8,a<b\n";
    let svg = path("plan-tags.svg");
    let to = svg.to_str().expect("UTF-8");
    let drawn = |file: &str, more: &[&str]| {
        let done = forebay(&[&[file, "--svg", to, "--colour", "tag"], more].concat());
        assert!(done.status.success(), "{}", err(&done));
        std::fs::read_to_string(&svg).expect("written")
    };
    let text = drawn(&file("plan-tags.csv", table), &[]);
    assert_eq!(
        key(&text),
        [
            "#4e79a7\">\u{25a0}</tspan> weights (2) ",
            "#f28e2b\">\u{25a0}</tspan> (none) (1) ",
            "#59a14f\">\u{25a0}</tspan> a&lt;b (1)</text>"
        ]
    );
    // Each colour is drawn, the others' and the sizes' are not.
    let drawn_in = |colour: &str| text.contains(&format!("<path fill=\"{colour}\""));
    assert!(["#4e79a7", "#f28e2b", "#59a14f"].iter().all(|colour| drawn_in(colour)));
    assert!(!drawn_in("#b07aa1") && !drawn_in("#dbe9f6") && !drawn_in("#9c3a1e"));
    // Of a trace the column op.
    let trace = "step,ev,id,bytes,stream,op\n1,a,1,64,0,x\n1,a,2,32,0,y\n1,f,2,,,\n1,f,1,,,q\n";
    let text = drawn(&file("plan-tags-trace.csv", trace), &["--step", "1"]);
    assert!(key(&text)[0].contains(" x (1)") && key(&text)[1].contains(" y (1)"), "{text}");

    // By size otherwise; without tags, or a picture, it is said.
    let five = file("plan-no-tags.csv", FIVE);
    for colour in [&[][..], &["--colour", "size"]] {
        assert!(forebay(&[&[&*five, "--svg", to], colour].concat()).status.success());
        let text = std::fs::read_to_string(&svg).expect("written");
        assert!(text.contains("the darker, the larger") && key(&text).is_empty());
    }
    let none = forebay(&[&five, "--svg", to, "--colour", "tag"]);
    assert_eq!(none.status.code(), Some(1));
    assert!(err(&none).contains("it has no tags to colour by"), "{}", err(&none));
    assert_eq!(forebay(&[&five, "--colour", "tag"]).status.code(), Some(2), "no picture");
}

#[test]
fn a_picture_with_many_tags_is_small() {
    let many: Vec<Buffer> =
        (0..20_000).map(|id| Buffer::new(id, id, id + 1 + id % 400, 1 + id % 97)).collect();
    let plan = solve(&many, &Options { effort: 1, ..Options::default() }).expect("a plan");
    let tags: Vec<String> = (0..20_000).map(|i| "t".repeat(1 + i % 3000)).collect();
    let text = picture::svg(&plan, "many", Some(&tags));
    assert!(text.len() < picture::BYTES_MAX, "{} bytes", text.len());
    assert_eq!(key(&text).len(), 8);
    assert!(key(&text)[7].contains("2993 others"), "{}", key(&text)[7]);
}
