//! A rule of the driver: what is asked, what is expected, where that is known from.
//!
//! Owns the form of a row and the judgement. An observation is a text of few words, mostly
//! result codes in the order of the calls; an expectation is such a text, or several that are
//! all right, apart by `" or "`. Judging costs nothing.

use crate::lab::Lab;

/// Where a rule is known from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Source {
    /// `cuda.h` or NVIDIA's documentation.
    Header,
    /// Tests of others that hold on NVIDIA's driver (ROCm's hip-tests).
    Tests,
    /// Code in production that relies on it.
    Product,
    /// Reports of users.
    Issue,
    /// No source: assumed.
    Assumed,
}

impl Source {
    /// The mark in tables.
    pub fn mark(self) -> &'static str {
        match self {
            Source::Header => "H",
            Source::Tests => "T",
            Source::Product => "P",
            Source::Issue => "I",
            Source::Assumed => "assumed",
        }
    }
}

/// What must be there before a rule runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stage {
    /// An open driver, `cuInit` not called.
    Bare,
    /// `cuInit` called, no context.
    Init,
    /// The primary context of device 0, current.
    Context,
}

/// Why a rule said nothing.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Stop {
    /// The machine lacks what the rule is about.
    Skip(String),
    /// A call that the rule builds on was refused.
    Setup(String),
}

impl Stop {
    /// The reason alone.
    pub fn why(self) -> String {
        match self {
            Stop::Skip(why) | Stop::Setup(why) => why,
        }
    }
}

/// What was seen.
pub type Seen = Result<String, Stop>;

/// One rule.
pub struct Rule {
    /// What is asked, unique.
    pub name: &'static str,
    /// Where it is known from.
    pub source: Source,
    /// What is expected.
    pub expected: &'static str,
    /// What the simulated driver does instead, where it differs on purpose.
    pub simulated: Option<&'static str>,
    /// What must be there before.
    pub stage: Stage,
    /// It looks at what other processes change, such as free memory.
    pub alone: bool,
    /// Seconds that it is given at least.
    pub seconds_min: u64,
    /// Asks.
    pub run: fn(&Lab) -> Seen,
}

/// A rule that starts with a current context.
pub const fn rule(
    name: &'static str,
    source: Source,
    expected: &'static str,
    run: fn(&Lab) -> Seen,
) -> Rule {
    Rule {
        name,
        source,
        expected,
        simulated: None,
        stage: Stage::Context,
        alone: false,
        seconds_min: 0,
        run,
    }
}

impl Rule {
    /// Starts after `cuInit`, without a context.
    pub const fn without_context(mut self) -> Rule {
        self.stage = Stage::Init;
        self
    }

    /// Starts before `cuInit`.
    pub const fn before_init(mut self) -> Rule {
        self.stage = Stage::Bare;
        self
    }

    /// Runs while no other rule does.
    pub const fn alone(mut self) -> Rule {
        self.alone = true;
        self
    }

    /// Is given so many seconds at least.
    pub const fn seconds(mut self, seconds: u64) -> Rule {
        self.seconds_min = seconds;
        self
    }

    /// The simulated driver answers this, on purpose.
    pub const fn simulated(mut self, answer: &'static str) -> Rule {
        self.simulated = Some(answer);
        self
    }

    /// What is expected of a driver.
    pub fn expectation(&self, simulated: bool) -> &'static str {
        self.simulated.filter(|_| simulated).unwrap_or(self.expected)
    }

    /// Whether an observation is as expected.
    pub fn agrees(&self, observed: &str, simulated: bool) -> bool {
        self.expectation(simulated).split(" or ").any(|text| text == observed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_expectation_may_have_several_forms() {
        let r = rule("x", Source::Tests, "1 2 or crashed", |_| Ok(String::new())).simulated("7");
        assert!(r.agrees("1 2", false) && r.agrees("crashed", false));
        assert!(!r.agrees("1", false) && !r.agrees("7", false) && !r.agrees("", false));
        assert!(r.agrees("7", true) && !r.agrees("crashed", true));
    }
}
