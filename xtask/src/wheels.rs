//! Wheels of others from PyPI that programs here are compiled against: RMM, CUDA's headers, CCCL,
//! ONNX Runtime.
//!
//! Owns the list of sites (`tests/clients/sites.txt`), each a folder below `target/wheels` with
//! the wheels of one section, pinned by version and checksum. Promises that nothing is fetched
//! again while the pins are the same. What is fetched is never copied from there.

use crate::{Outcome, proc, tools};
use std::path::PathBuf;

const SITES: &str = include_str!("../../tests/clients/sites.txt");
/// A section begins with this and its name.
const MARK: &str = "# site ";

/// Why wheels are not there.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Missing {
    /// The package index cannot be reached, or the pins are for another machine.
    Unreachable(String),
    /// The index is there, and yet they are not.
    Failed(String),
}

impl Missing {
    /// The reason, for people.
    pub fn why(&self) -> &str {
        match self {
            Missing::Unreachable(why) | Missing::Failed(why) => why,
        }
    }
}

/// The folder with the wheels of a section, fetched first where they are not there yet.
pub fn site(name: &str) -> Result<PathBuf, Missing> {
    if !cfg!(target_arch = "x86_64") {
        return Err(Missing::Unreachable("the pins are for x86-64".to_owned()));
    }
    let pins = section(SITES, name).ok_or_else(|| Missing::Failed(format!("no site {name}")))?;
    let folder = proc::target_dir().join("wheels").join(name);
    fetched(tools::install_pinned_with(&folder, &pins, &["--no-compile"], || Ok(())))?;
    Ok(folder)
}

/// Tells an index that cannot be reached from other failures of a fetch.
pub fn fetched(result: Outcome<()>) -> Result<(), Missing> {
    result.map_err(|why| match tools::index_answers() {
        Ok(()) => Missing::Failed(why),
        Err(index) => Missing::Unreachable(format!("the package index cannot be reached: {index}")),
    })
}

/// The lines between a section's mark and the next one.
fn section(text: &str, name: &str) -> Option<String> {
    let mut lines = text.lines().skip_while(|l| l.strip_prefix(MARK) != Some(name));
    lines.next()?;
    let pins: Vec<&str> = lines.take_while(|line| !line.starts_with(MARK)).collect();
    Some(pins.join("\n").trim_end().to_owned() + "\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_section_ends_where_the_next_begins() {
        let text = "# about\n# site one\na==1 \\\n  --hash=x\n\n# site two\nb==2 --hash=y\n";
        assert_eq!(section(text, "one"), Some("a==1 \\\n  --hash=x\n".to_owned()));
        assert_eq!(section(text, "two"), Some("b==2 --hash=y\n".to_owned()));
        assert_eq!(section(text, "three"), None);
    }

    #[test]
    fn every_pin_has_a_checksum() {
        let named: Vec<&str> = SITES.lines().filter_map(|l| l.strip_prefix(MARK)).collect();
        assert!(!named.is_empty());
        for name in named {
            let pins = section(SITES, name).expect("it is there");
            let pinned = pins.lines().filter(|line| line.contains("=="));
            assert!(pinned.count() > 0, "{name}");
            let mut lines = pins.lines().peekable();
            while let Some(line) = lines.next() {
                let next = lines.peek().copied().unwrap_or_default();
                assert!(!line.contains("==") || next.contains("--hash=sha256:"), "{line}");
            }
        }
    }
}
