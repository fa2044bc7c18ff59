//! The README says what is true: its examples are those that are compiled, its links lead
//! somewhere, and what it tells of the backends is what the library answers.

use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: impl AsRef<Path>) -> String {
    let path = root().join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// What stands between ```` ```language ```` and the next fence, one text a block.
fn blocks(text: &str, language: &str) -> Vec<String> {
    let fence = format!("```{language}");
    let mut found = Vec::new();
    let mut open: Option<String> = None;
    for line in text.lines() {
        match open.as_mut() {
            Some(_) if line == "```" => found.extend(open.take()),
            Some(block) => {
                block.push_str(line);
                block.push('\n');
            }
            None if line == fence => open = Some(String::new()),
            None => {}
        }
    }
    assert!(open.is_none(), "a fence stays open");
    found
}

#[test]
fn the_c_example_is_the_program_that_the_harness_builds() {
    assert_eq!(blocks(&read("README.md"), "c"), [read("tests/c/readme_example.c")]);
}

#[test]
fn the_cpp_example_is_part_of_a_program_that_the_harness_builds() {
    let program = read("tests/consumer/main.cpp");
    let quoted = blocks(&read("README.md"), "cpp");
    assert_eq!(quoted.len(), 1);
    assert!(quoted[0].lines().count() >= 3);
    assert!(program.contains(&quoted[0]), "not in tests/consumer/main.cpp:\n{}", quoted[0]);
}

/// The crate page's example runs as a test of the documentation; rustdoc hides lines that
/// begin with `# `.
#[test]
fn the_rust_example_is_the_one_of_the_crate_page() {
    let page: String = read("src/lib.rs")
        .lines()
        .filter_map(|line| line.strip_prefix("//!"))
        .map(|line| format!("{}\n", line.strip_prefix(' ').unwrap_or(line)))
        .collect();
    let shown: Vec<String> = blocks(&page, "")
        .iter()
        .map(|block| block.lines().filter(|l| !l.starts_with("# ")).map(|l| format!("{l}\n")))
        .map(Iterator::collect)
        .collect();
    assert_eq!(blocks(&read("README.md"), "rust"), shown);
}

/// Targets of `[text](target)` in a page, anchors and addresses of the web left out.
fn links(text: &str) -> Vec<String> {
    let ends = text.match_indices("](").map(|(at, _)| &text[at + 2..]);
    ends.filter_map(|rest| rest.split(')').next())
        .filter(|target| !target.contains("://") && !target.starts_with('#'))
        .map(|target| target.split('#').next().unwrap_or(target).to_owned())
        .collect()
}

#[test]
fn links_lead_to_files() {
    let mut pages = vec![PathBuf::from("README.md"), "CHANGELOG.md".into()];
    for entry in std::fs::read_dir(root().join("docs")).expect("docs/") {
        let name = entry.expect("readable").file_name();
        if Path::new(&name).extension().is_some_and(|e| e == "md") {
            pages.push(Path::new("docs").join(name));
        }
    }
    let mut seen = 0;
    for page in pages {
        let folder = page.parent().unwrap_or(Path::new(""));
        for target in links(&read(&page)) {
            let there = root().join(folder).join(&target).exists();
            assert!(there, "{}: {target} is not there", page.display());
            seen += 1;
        }
    }
    assert!(seen >= 10, "{seen} links found");
}

#[test]
fn links_are_found() {
    let text = "[a](x.md) and [b](docs/y.md#part), [c](https://example.org), [d](#here)";
    assert_eq!(links(text), ["x.md", "docs/y.md"]);
}

#[test]
fn backends_answer_as_the_readme_says() {
    use forebay::config::{Backend, Config};
    use forebay::error::Status;
    use forebay::pool::devices::open_driver;
    let config = |backend| Config { backend, ..Config::default() };
    for backend in [Backend::Auto, Backend::Cuda] {
        let Err(error) = open_driver(&config(backend)) else { panic!("{backend:?} opened") };
        assert_eq!(error.status(), Status::NoDriver);
        assert!(error.message().contains("FOREBAY_BACKEND"), "{error}");
    }
    let host = open_driver(&config(Backend::Host)).expect("host memory is always there");
    assert_eq!(host.backend(), "host");
}
