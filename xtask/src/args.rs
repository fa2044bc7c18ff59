//! Command-line words: flags, flags with a value, and the rest.
//!
//! Owns the parsing of what follows `cargo xtask COMMAND`. Promises that a flag nobody asked
//! for is an error and not silently dropped. Knows no command.

use crate::Outcome;

/// The words after the command's name.
pub struct Args {
    words: Vec<String>,
}

impl Args {
    /// Wraps the words in the order they were typed.
    pub fn new(words: Vec<String>) -> Args {
        Args { words }
    }

    /// Takes a flag such as `--check`; true when it was there.
    pub fn flag(&mut self, name: &str) -> bool {
        let before = self.words.len();
        self.words.retain(|w| w != name);
        self.words.len() != before
    }

    /// Takes `NAME VALUE` or `NAME=VALUE`. An error when the value is missing.
    pub fn value(&mut self, name: &str) -> Outcome<Option<String>> {
        let prefix = format!("{name}=");
        if let Some(i) = self.words.iter().position(|w| w.starts_with(&prefix)) {
            return Ok(Some(self.words.remove(i)[prefix.len()..].to_owned()));
        }
        let Some(i) = self.words.iter().position(|w| w == name) else {
            return Ok(None);
        };
        if i + 1 >= self.words.len() {
            return Err(format!("{name} needs a value"));
        }
        self.words.remove(i);
        Ok(Some(self.words.remove(i)))
    }

    /// Takes `NAME SECONDS` as a whole number of seconds.
    pub fn seconds(&mut self, name: &str, default: u64) -> Outcome<u64> {
        match self.value(name)? {
            None => Ok(default),
            Some(text) => {
                text.parse().map_err(|_| format!("{name} {text}: not a whole number of seconds"))
            }
        }
    }

    /// What is left, when all of it are plain words; a flag left over is an error.
    pub fn rest(self) -> Outcome<Vec<String>> {
        match self.words.iter().find(|w| w.starts_with('-')) {
            Some(flag) => Err(format!("unknown flag {flag}; see cargo xtask --help")),
            None => Ok(self.words),
        }
    }

    /// What is left, flags and all, for a program that parses them itself.
    pub fn pass_on(self) -> Vec<String> {
        self.words
    }

    /// Ends the parsing; any word left over is an error.
    pub fn finish(self) -> Outcome<()> {
        match self.rest()?.first() {
            Some(word) => Err(format!("unexpected {word:?}; see cargo xtask --help")),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(words: &[&str]) -> Args {
        Args::new(words.iter().map(|w| w.to_string()).collect())
    }

    #[test]
    fn flags_values_and_the_rest() {
        let mut a = args(&["traces", "--quick", "--json", "out.json", "--seconds=7"]);
        assert!(a.flag("--quick"));
        assert!(!a.flag("--quick"));
        assert_eq!(a.value("--json"), Ok(Some("out.json".into())));
        assert_eq!(a.seconds("--seconds", 60), Ok(7));
        assert_eq!(a.seconds("--seconds", 60), Ok(60));
        assert_eq!(a.rest(), Ok(vec!["traces".to_string()]));
    }

    #[test]
    fn what_nobody_takes_is_an_error() {
        assert!(args(&["--colour"]).rest().is_err());
        assert!(args(&["extra"]).finish().is_err());
        assert!(args(&["--json"]).value("--json").is_err());
        assert!(args(&["--seconds", "soon"]).seconds("--seconds", 1).is_err());
    }
}
