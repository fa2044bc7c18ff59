//! `forebay_probe`: asks the CUDA driver at hand what it really does.
//!
//! Owns three questions: the driver's rules (`rules`), what its calls cost (`latency`), and
//! whether a pool behind the C ABI keeps streams apart (`streams`). Knows the driver only through
//! `libcuda.so.1` as the loader finds it, needs no network and no other program, and writes one
//! JSON file if asked. Exit status 0 when the question was answered, whatever the answer; 1 when
//! the probe itself failed; with `--strict` also when an answer differs from what is expected.

mod collect;
mod cuda;
mod lab;
mod latency;
mod machine;
mod report;
mod rule;
mod rules;
mod run;
mod safety;

use cuda::Driver;
use lab::Lab;
use rule::Stage;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

const USAGE: &str = "\
forebay_probe rules [--strict] [--only TEXT] [--jobs N] [--limit SECONDS]
forebay_probe latency
forebay_probe streams --library LIBFOREBAY [--seconds N] [--seed N]
forebay_probe machine
forebay_probe collect --from DIR
forebay_probe list
Each takes --driver LIBCUDA and --json FILE.";

/// What a question comes to.
type Done = Result<bool, String>;

/// Words of the command line.
pub struct Words(Vec<String>);

impl Words {
    fn flag(&mut self, name: &str) -> bool {
        let before = self.0.len();
        self.0.retain(|word| word != name);
        self.0.len() != before
    }

    fn value(&mut self, name: &str) -> Result<Option<String>, String> {
        let Some(at) = self.0.iter().position(|word| word == name) else { return Ok(None) };
        self.0.remove(at);
        if at >= self.0.len() {
            return Err(format!("{name} needs a value\n{USAGE}"));
        }
        Ok(Some(self.0.remove(at)))
    }

    fn number(&mut self, name: &str, default: u64) -> Result<u64, String> {
        let Some(text) = self.value(name)? else { return Ok(default) };
        text.parse().map_err(|_| format!("{name} {text}: not a number\n{USAGE}"))
    }

    fn finish(self) -> Result<(), String> {
        match self.0.first() {
            None => Ok(()),
            Some(word) => Err(format!("unexpected {word:?}\n{USAGE}")),
        }
    }
}

fn main() -> ExitCode {
    let mut words: Vec<String> = std::env::args().skip(1).collect();
    let question = if words.is_empty() { String::new() } else { words.remove(0) };
    let done = answer(&question, Words(words));
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(why) => {
            eprintln!("forebay_probe: {why}");
            ExitCode::FAILURE
        }
    }
}

fn answer(question: &str, mut words: Words) -> Done {
    let driver = words.value("--driver")?.map(PathBuf::from);
    let json = words.value("--json")?.map(PathBuf::from);
    match question {
        "rules" => ask_rules(words, driver, json.as_deref()),
        "rule" => one_rule(words, driver.as_deref()),
        "importer" => importer(words, driver.as_deref(), rules::import_and_answer),
        "weigher" => importer(words, driver.as_deref(), rules::import_and_weigh),
        "latency" => {
            words.finish()?;
            let lab = bench(driver.as_deref())?;
            let rows = latency::measure(&lab);
            report::latency(&machine::Machine::of(&lab), &rows, json.as_deref())
        }
        "machine" => {
            words.finish()?;
            let machine = machine::Machine::of(&bench(driver.as_deref())?);
            println!("{}", machine.line());
            report::write(&machine.json(), json.as_deref())?;
            Ok(true)
        }
        "collect" => collect::run(words, json.as_deref()),
        "streams" => safety::run(words, driver.as_deref(), json.as_deref()),
        "list" => {
            words.finish()?;
            for rule in rules::all() {
                println!("{} | {} | {}", rule.name, rule.source.mark(), rule.expected);
            }
            Ok(true)
        }
        _ => Err(USAGE.to_owned()),
    }
}

/// An open driver with a current context.
fn bench(driver: Option<&Path>) -> Result<Lab, String> {
    let cuda = Driver::open(driver)?;
    Lab::new(cuda, Stage::Context).map_err(rule::Stop::why)
}

fn ask_rules(mut words: Words, driver: Option<PathBuf>, json: Option<&Path>) -> Done {
    let strict = words.flag("--strict");
    let only = words.value("--only")?.unwrap_or_default();
    let limit = Duration::from_secs(words.number("--limit", 20)?);
    let asked = words.number("--jobs", 0)?;
    words.finish()?;
    // This context keeps the device awake, so that each rule's own start is short.
    let lab = bench(driver.as_deref())?;
    let machine = machine::Machine::of(&lab);
    let jobs = match (asked, machine.exclusive) {
        (_, true) => {
            return Err("the device allows one process at a time: set it to DEFAULT".into());
        }
        (0, _) => std::thread::available_parallelism().map_or(2, |n| n.get().clamp(2, 6)),
        (n, _) => n as usize,
    };
    let list: Vec<_> = rules::all().into_iter().filter(|r| r.name.contains(&only)).collect();
    let options = run::Options { driver, jobs, limit, simulated: lab.simulated };
    let answers = run::run(&list, &options);
    report::rules(&machine, &answers, json, strict)
}

fn one_rule(words: Words, driver: Option<&Path>) -> Done {
    let name = words.0.join(" ");
    let rule = rules::all().into_iter().find(|rule| rule.name == name);
    run::child(rule.ok_or_else(|| format!("no rule {name:?}"))?, driver);
    Ok(true)
}

/// The other process of the rules about shared memory.
fn importer(words: Words, driver: Option<&Path>, ask: fn(&Lab, i32, usize) -> rule::Seen) -> Done {
    let [fd, bytes] = &words.0[..] else { return Err(USAGE.to_owned()) };
    let number = |text: &String| text.parse::<usize>().map_err(|e| format!("{text}: {e}"));
    let (fd, bytes) = (number(fd)?, number(bytes)?);
    let lab = bench(driver)?;
    match ask(&lab, fd as i32, bytes) {
        Ok(text) => println!("{text}"),
        Err(stop) => println!("{}", stop.why()),
    }
    Ok(true)
}
