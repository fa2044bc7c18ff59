//! The script of faults: which calls fail or stall, when, and with what.
//!
//! Owns the language, one statement a line or between semicolons:
//!
//! ```text
//! fail CALL with CODE [#N | from #N] [once | always]
//! lose CALL with CODE [#N | from #N] [once | always]
//! stall CALL TIME [#N | from #N] [once | always]
//! ```
//!
//! `CALL` is a function's name, with or without its version's ending, or `any`. `#N` counts the
//! calls that the statement names, from 1, since the script was set; `any` counts all calls but
//! those that a program may make before `cuInit`. `#N` means that one alone, `from #N` that one
//! and what follows. Without either, `fail` means the first call and `stall` all of them; `once`
//! and `always` say otherwise. `CODE` is a number or a name such as `CUDA_ERROR_OUT_OF_MEMORY`;
//! `TIME` is a number with `us`, `ms` or `s`. Words may come in any order after the call; what
//! starts with `# ` or `//` is a comment. A failed call does nothing else. At a call that
//! is lost the current context fails for good: the code sticks, as after a fault of its work. A
//! stalled call takes longer on the virtual clock, and in truth where delays are real.

use crate::results::RESULTS;

/// What is accepted, for messages.
pub const FORM: &str = "accepted is: fail CALL|any with CODE [#N | from #N] [once | always], \
     or: lose (the same), or: stall CALL|any TIME [#N | from #N] [once | always]";

/// What a statement does to a call.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Effect {
    Fail(u32),
    Lose(u32),
    Stall(u64),
}

#[derive(Clone, PartialEq, Debug)]
struct Statement {
    /// The call's name; `any` is empty.
    call: String,
    effect: Effect,
    /// The first call that is meant, counted from 1.
    first: u64,
    /// Only that one, even if the statement holds for ever.
    exactly: bool,
    always: bool,
    seen: u64,
    spent: bool,
}

/// A script, with what it has counted.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Script {
    statements: Vec<Statement>,
}

/// What the script says of one call.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Verdict {
    /// The code to answer, if it fails.
    pub fail: Option<u32>,
    /// The code that sticks to the current context from now on.
    pub lose: Option<u32>,
    /// Nanoseconds that it takes longer.
    pub stall_ns: u64,
}

impl Script {
    /// Reads a script; the error names the line and what is accepted.
    pub fn parse(text: &str) -> Result<Script, String> {
        let mut statements = Vec::new();
        for (i, line) in text.lines().enumerate() {
            for part in line.split(';').map(str::trim) {
                if part.is_empty() || part.starts_with("//") || part.starts_with("# ") {
                    continue;
                }
                let told = |why: String| format!("line {}: {part:?}: {why}; {FORM}", i + 1);
                statements.push(statement(part).map_err(told)?);
            }
        }
        Ok(Script { statements })
    }

    /// Adds the statements of another script.
    pub fn extend(&mut self, more: Script) {
        self.statements.extend(more.statements);
    }

    /// Counts one call by both of its names and says what becomes of it.
    pub fn consult(&mut self, name: &str, asked: &str, counts_as_any: bool) -> Verdict {
        let mut verdict = Verdict::default();
        for s in &mut self.statements {
            let meant =
                if s.call.is_empty() { counts_as_any } else { s.call == name || s.call == asked };
            if !meant {
                continue;
            }
            s.seen += 1;
            let now = if s.exactly { s.seen == s.first } else { s.seen >= s.first };
            if !now || s.spent {
                continue;
            }
            s.spent = !s.always;
            match s.effect {
                Effect::Fail(code) => verdict.fail = verdict.fail.or(Some(code)),
                Effect::Lose(code) => verdict.lose = verdict.lose.or(Some(code)),
                Effect::Stall(ns) => verdict.stall_ns = verdict.stall_ns.saturating_add(ns),
            }
        }
        verdict
    }
}

fn statement(text: &str) -> Result<Statement, String> {
    let mut words = text.split_whitespace().peekable();
    let verb = words.next().unwrap_or_default();
    let fails = match verb {
        "fail" | "lose" => true,
        "stall" => false,
        _ => return Err(format!("no statement starts with {verb:?}")),
    };
    let call = words.next().ok_or("no call is named")?;
    let mut effect = None;
    let mut first = None;
    let mut always = None;
    let mut from = false;
    while let Some(word) = words.next() {
        let again = match word {
            "with" if fails => {
                let code = words.next().ok_or("no code follows \"with\"")?;
                let code = code_of(code)?;
                let kind = if verb == "fail" { Effect::Fail } else { Effect::Lose };
                effect.replace(kind(code)).is_some()
            }
            "once" | "always" => always.replace(word == "always").is_some(),
            "from" => {
                from = true;
                let at = words.next().ok_or("no #N follows \"from\"")?;
                first.replace(ordinal(at).ok_or_else(|| format!("{at:?} is no #N"))?).is_some()
            }
            _ if word.starts_with('#') => {
                first.replace(ordinal(word).ok_or_else(|| format!("{word:?} is no #N"))?).is_some()
            }
            _ => match duration(word) {
                Some(ns) if !fails => effect.replace(Effect::Stall(ns)).is_some(),
                _ => return Err(format!("{word:?} is not understood")),
            },
        };
        if again {
            return Err(format!("{word:?} comes a second time"));
        }
    }
    let effect =
        effect.ok_or(if fails { "\"with CODE\" is missing" } else { "no time is given" })?;
    if from && always.is_none() {
        return Err("\"from #N\" says \"once\" or \"always\"".to_owned());
    }
    let exactly = first.is_some() && !from;
    if exactly && always == Some(true) {
        return Err("\"#N always\" is once or \"from #N\"".to_owned());
    }
    Ok(Statement {
        call: if call == "any" { String::new() } else { call_name(call)? },
        effect,
        first: first.unwrap_or(1),
        exactly,
        // An ordinal alone means one call, whatever the verb.
        always: always.unwrap_or(!fails && !exactly),
        seen: 0,
        spent: false,
    })
}

fn call_name(text: &str) -> Result<String, String> {
    let known = crate::entry::calls().any(|c| c.name == text || c.asked == text);
    if known { Ok(text.to_owned()) } else { Err(format!("the driver has no call {text:?}")) }
}

fn ordinal(text: &str) -> Option<u64> {
    text.strip_prefix('#')?.parse().ok().filter(|n| *n > 0)
}

fn code_of(text: &str) -> Result<u32, String> {
    let named = RESULTS.iter().find(|r| r.1.to_bytes() == text.as_bytes()).map(|r| r.0);
    match named.or_else(|| text.parse().ok()) {
        Some(0) => Err("a call that fails cannot answer 0".to_owned()),
        Some(code) => Ok(code),
        None => Err(format!("{text:?} is no code")),
    }
}

fn duration(text: &str) -> Option<u64> {
    for (unit, ns) in [("us", 1e3), ("ms", 1e6), ("s", 1e9)] {
        if let Some(count) = text.strip_suffix(unit)
            && let Ok(count) = count.parse::<f64>()
        {
            return (count.is_finite() && count >= 0.0).then_some((count * ns) as u64);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Codes that `n` calls of cuInit's table row get; 0 where none fails.
    fn codes(script: &str, n: usize) -> Vec<u32> {
        let mut script = Script::parse(script).expect("a script");
        (0..n).map(|_| script.consult("cuInit", "cuInit", true).fail.unwrap_or(0)).collect()
    }

    #[test]
    fn statements_mean_what_they_say() {
        assert_eq!(codes("fail cuInit with 2", 3), [2, 0, 0]);
        assert_eq!(codes("fail cuInit #2 once with 2", 3), [0, 2, 0]);
        assert_eq!(codes("fail cuInit always with CUDA_ERROR_UNKNOWN", 3), [999, 999, 999]);
        assert_eq!(codes("fail cuInit always with 2 from #3", 5), [0, 0, 2, 2, 2]);
        assert_eq!(codes("fail cuInit from #2 once with 4", 4), [0, 4, 0, 0]);
        assert_eq!(codes("fail any #2 with 7; fail cuInit #3 with 8", 4), [0, 7, 8, 0]);
        assert_eq!(codes("fail any with 7\n// a comment\nfail any #1 with 8", 2), [7, 0]);
        assert_eq!(codes("fail cuDeviceGet with 2", 2), [0, 0]);
        assert_eq!(codes("", 1), [0]);
    }

    #[test]
    fn stalls_add_up_and_hold_for_ever() {
        let text = "stall cuInit 2ms; stall any 10us #2; stall cuInit 1s once";
        let mut script = Script::parse(text).expect("a script");
        let mut next = || script.consult("cuInit", "cuInit", true).stall_ns;
        assert_eq!([next(), next(), next()], [1_002_000_000, 2_010_000, 2_000_000]);
    }

    #[test]
    fn a_context_can_be_lost() {
        let mut script = Script::parse("lose cuInit #2 with 700").expect("a script");
        let mut next = || script.consult("cuInit", "cuInit", true);
        assert_eq!(next(), Verdict::default());
        assert_eq!(next(), Verdict { lose: Some(700), ..Verdict::default() });
        assert_eq!(next(), Verdict::default());
    }

    #[test]
    fn any_leaves_out_what_may_come_before_init() {
        let mut script = Script::parse("fail any #1 with 2").expect("a script");
        assert_eq!(script.consult("cuGetErrorName", "cuGetErrorName", false).fail, None);
        assert_eq!(script.consult("cuDeviceGet", "cuDeviceGet", true).fail, Some(2));
    }

    #[test]
    fn either_name_of_a_call_will_do() {
        for name in ["cuCtxDestroy", "cuCtxDestroy_v2"] {
            let mut script = Script::parse(&format!("fail {name} with 2")).expect("a script");
            assert_eq!(script.consult("cuCtxDestroy_v2", "cuCtxDestroy", true).fail, Some(2));
        }
    }

    #[test]
    fn a_malformed_statement_names_its_line_and_the_form() {
        for (text, line, why) in [
            ("fail", 1, "no call"),
            ("fail cuInit", 1, "with CODE"),
            ("fail cuInit with 0", 1, "cannot answer 0"),
            ("fail cuInit with two", 1, "no code"),
            ("fail cuInit with 2\nfail cuNothing with 2", 2, "no call \"cuNothing\""),
            ("fail cuInit #0 with 2", 1, "#N"),
            ("fail cuInit #x with 2", 1, "#N"),
            ("fail cuInit #2 always with 2", 1, "always"),
            ("fail cuInit from #2 with 2", 1, "says \"once\" or \"always\""),
            ("fail cuInit with 2 with 3", 1, "second time"),
            ("fail cuInit 2ms with 2", 1, "not understood"),
            ("stall cuInit", 1, "no time"),
            ("stall cuInit with 2", 1, "not understood"),
            ("stall cuInit -1ms", 1, "not understood"),
            ("break cuInit", 1, "no statement"),
        ] {
            let told = Script::parse(text).expect_err(text);
            assert!(told.contains(&format!("line {line}:")), "{text}: {told}");
            assert!(told.contains(why), "{text}: {told}");
            assert!(told.contains("accepted is: fail CALL"), "{text}: {told}");
        }
    }
}
