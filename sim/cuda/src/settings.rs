//! Settings: what the simulated machine is, from variables or from text.
//!
//! Owns the table of settings, their forms and their defaults. Each is a variable
//! `FOREBAY_SIM_NAME` and a line `name = value` of the text that `forebay_sim_configure` takes.
//! Nothing is guessed: an unknown name or a value of another form is an error that names the
//! line and what is accepted.

use crate::entry;
use crate::faults::Script;
use std::collections::BTreeMap;

/// Calls that are made to answer a code which no table knows answer this one.
pub const UNKNOWN_CODE: u32 = 9999;

/// What calls cost on the virtual clock.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Profile {
    /// Nothing.
    #[default]
    None,
    /// An A100, from published averages over 4096 calls of 2 MiB.
    A100,
    /// A laptop's RTX 4050, from fits over sizes.
    Laptop,
    /// The vAttention paper's table.
    Vattn,
}

/// When queued work runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Schedule {
    /// As late as the rules allow, in a random order between streams.
    #[default]
    Late,
    /// As soon as the worker gets to it.
    Eager,
    /// Only when something waits for it, or `forebay_sim_step` runs it.
    Stepped,
}

/// What `cuMemGetAddressRange` says of virtual memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum AddressRange {
    /// The mapping around the address.
    #[default]
    Mapping,
    /// 500, as one report has it.
    NotFound,
}

/// All settings.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Devices, 1 to 16.
    pub devices: u32,
    /// Bytes of memory of each device.
    pub memory: u64,
    /// Compute capability, major and minor.
    pub capability: (u32, u32),
    /// Costs of calls.
    pub profile: Profile,
    /// Costs in microseconds that replace the profile's, by call.
    pub costs: BTreeMap<String, f64>,
    /// Microseconds that opening access costs for each mapping after the first.
    pub access_per_mapping: f64,
    /// Whether costs spread and stalls happen as measured, by the seed.
    pub variation: bool,
    /// Whether costs are also slept, with the driver's lock held.
    pub real_delays: bool,
    /// A file that is locked while a cost is slept: the lock that processes share.
    pub host_lock: Option<String>,
    /// The seed of all that is drawn.
    pub seed: u64,
    /// When queued work runs.
    pub schedule: Schedule,
    /// The script of faults.
    pub faults: Script,
    /// Calls that answer [`UNKNOWN_CODE`].
    pub unknown: Vec<String>,
    /// A file for the journal, JSON lines.
    pub journal: Option<String>,
    /// A file for the report at exit.
    pub report: Option<String>,
    /// Whether memory that is not given back at exit is misuse.
    pub leaks: bool,
    /// The mapping budget.
    pub mappings: u64,
    /// Bytes of address space for reservations.
    pub address_space: u64,
    /// The driver's version, as `cuDriverGetVersion` says it.
    pub version: u32,
    /// Functions that this driver lacks.
    pub without: Vec<String>,
    /// The byte that fresh memory is filled with; none leaves it as it comes, untouched.
    pub poison: Option<u8>,
    /// The mapping unit in bytes.
    pub granularity: u64,
    /// Devices besides its own that a mapping may be open to.
    pub peers: u32,
    /// Whether the CPU may touch device memory that some device may access.
    pub cpu_access: bool,
    /// Features that the devices do not have and do not advertise.
    pub lacks: Vec<String>,
    /// Features that are refused where they are used, each with its code: those of `refuse`,
    /// which stay advertised, and with 801 those of `lacks`.
    pub refuse: BTreeMap<String, u32>,
    /// Whether the driver can record an event over a whole context.
    pub context_events: bool,
    /// Whether devices sit on a fabric that handles can be exported to.
    pub fabric: bool,
    /// What `cuMemGetAddressRange` says of virtual memory.
    pub address_range: AddressRange,
    /// Whether unmapping waits for all queued work of the device.
    pub unmap_waits: bool,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            devices: 1,
            memory: 4 << 30,
            capability: (9, 0),
            profile: Profile::None,
            costs: BTreeMap::new(),
            access_per_mapping: 2.0,
            variation: false,
            real_delays: false,
            host_lock: None,
            seed: 1,
            schedule: Schedule::Late,
            faults: Script::default(),
            unknown: Vec::new(),
            journal: None,
            report: None,
            leaks: false,
            mappings: 523_404,
            address_space: 128 << 40,
            version: 12_080,
            without: Vec::new(),
            poison: Some(0xA5),
            granularity: 2 << 20,
            peers: 8,
            cpu_access: true,
            lacks: Vec::new(),
            refuse: BTreeMap::new(),
            context_events: true,
            fabric: false,
            address_range: AddressRange::Mapping,
            unmap_waits: false,
        }
    }
}

/// One setting: its name, its default, what it accepts, and what it is for.
pub struct Setting {
    /// The name in text; the variable is `FOREBAY_SIM_` and this in capitals.
    pub name: &'static str,
    /// The default, as it would be written.
    pub default: &'static str,
    /// What is accepted.
    pub accepts: &'static str,
    /// What it is for.
    pub about: &'static str,
    set: fn(&mut Settings, &str) -> Option<Result<(), String>>,
}

/// Puts a parsed value in its place; `None` says that it is of another form.
macro_rules! settings {
    ($($name:literal, $default:literal, $accepts:literal, $about:literal, $set:expr;)*) => {
        /// The table of settings.
        pub static TABLE: &[Setting] = &[$(Setting {
            name: $name, default: $default, accepts: $accepts, about: $about, set: $set,
        }),*];
    };
}

/// Stores what a parser made of the text.
fn put<T>(place: &mut T, value: Option<T>) -> Option<Result<(), String>> {
    *place = value?;
    Some(Ok(()))
}

settings! {
    "devices", "1", "1 to 16", "devices of the machine",
        |s, t| put(&mut s.devices, t.parse().ok().filter(|n| (1..=16).contains(n)));
    "memory", "4GiB", "bytes, or a number with KiB, MiB, GiB or TiB", "memory of each device",
        |s, t| put(&mut s.memory, size(t).filter(|n| *n > 0));
    "capability", "9.0", "major.minor", "compute capability of each device",
        |s, t| put(&mut s.capability, pair(t));
    "profile", "none", "none, a100, laptop or vattn", "what calls cost on the virtual clock",
        |s, t| put(&mut s.profile, profile(t));
    "costs", "", "CALL=MICROSECONDS, comma separated", "costs that replace the profile's",
        |s, t| Some(costs(t).map(|costs| s.costs = costs));
    "access_per_mapping", "2", "microseconds",
        "what each mapping after the first adds to opening access, where calls cost",
        |s, t| put(&mut s.access_per_mapping, t.parse().ok().filter(|us| (0.0..1e6).contains(us)));
    "variation", "0", "0 or 1", "costs spread and stall as measured, by the seed",
        |s, t| put(&mut s.variation, switch(t));
    "real_delays", "0", "0 or 1", "costs are slept too, with the driver's lock held",
        |s, t| put(&mut s.real_delays, switch(t));
    "host_lock", "", "a file", "locked while a cost is slept: the lock that processes share",
        |s, t| put(&mut s.host_lock, Some(file(t)));
    "seed", "1", "a number", "the seed of all that is drawn",
        |s, t| put(&mut s.seed, number(t));
    "schedule", "late", "late, eager or stepped", "when queued work runs",
        |s, t| put(&mut s.schedule, schedule(t));
    "faults", "", "a script of faults, or @file", "calls that fail or stall",
        |s, t| Some(script(t).map(|more| s.faults.extend(more)));
    "unknown", "", "calls, comma separated", "calls that answer the code 9999",
        |s, t| Some(calls(t).map(|calls| s.unknown = calls));
    "journal", "", "a file", "one JSON line a call; %p is the process's number",
        |s, t| put(&mut s.journal, Some(file(t)));
    "report", "", "a file", "the report, written at exit; %p is the process's number",
        |s, t| put(&mut s.report, Some(file(t)));
    "leaks", "0", "0 or 1", "memory that is not given back at exit is misuse",
        |s, t| put(&mut s.leaks, switch(t));
    "mappings", "523404", "a number", "mappings that a context's driver allows",
        |s, t| put(&mut s.mappings, number(t));
    "address_space", "128TiB", "bytes, or a number with KiB, MiB, GiB or TiB",
        "address space for reservations; the host's own limit may come first",
        |s, t| put(&mut s.address_space, size(t));
    "version", "12080", "a number, such as 11020", "the driver's version; hides newer functions",
        |s, t| put(&mut s.version, t.parse().ok().filter(|v| (2000..100_000).contains(v)));
    "without", "", "functions, comma separated", "functions that this driver lacks",
        |s, t| Some(calls(t).map(|calls| s.without = calls));
    "poison", "0xA5", "a byte or none", "what fresh memory is filled with",
        |s, t| put(&mut s.poison, poison(t));
    "granularity", "2MiB", "a power of two from 4KiB on", "the mapping unit",
        |s, t| put(&mut s.granularity, size(t).filter(|n| n.is_power_of_two() && *n >= 4096));
    "peers", "8", "a number", "devices besides its own that a mapping may be open to",
        |s, t| put(&mut s.peers, t.parse().ok());
    "cpu_access", "1", "0 or 1", "the CPU may touch device memory that a device may access",
        |s, t| put(&mut s.cpu_access, switch(t));
    "lacks", "", "FEATURE, comma separated",
        "features that are not advertised, and 801 where they are used: see refuse",
        |s, t| put(&mut s.lacks, lacks(t));
    "refuse", "", "FEATURE=CODE, comma separated",
        "advertised, yet refused in use: init, vmm, rdma, fabric, fd, host_numa, peer, dma_buf",
        |s, t| put(&mut s.refuse, refusals(t));
    "context_events", "1", "0 or 1", "cuCtxRecordEvent and cuCtxWaitEvent are there",
        |s, t| put(&mut s.context_events, switch(t));
    "fabric", "0", "0 or 1", "devices sit on a fabric that handles can be exported to",
        |s, t| put(&mut s.fabric, switch(t));
    "address_range", "mapping", "mapping or not_found",
        "what cuMemGetAddressRange says of virtual memory",
        |s, t| put(&mut s.address_range, address_range(t));
    "unmap_waits", "0", "0 or 1", "unmapping waits for the device's queued work",
        |s, t| put(&mut s.unmap_waits, switch(t));
}

/// Features that `refuse` may name.
pub static FEATURES: &[&str] =
    &["init", "vmm", "rdma", "fabric", "fd", "host_numa", "peer", "dma_buf"];

impl Settings {
    /// Settings of a text: one `name = value` a line, `#` starts a comment.
    pub fn from_text(text: &str) -> Result<Settings, String> {
        let mut settings = Settings::default();
        for (i, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let told = |why: String| format!("line {}: {why}", i + 1);
            let Some((name, value)) = line.split_once('=') else {
                return Err(told(format!("{line:?}: accepted is NAME = VALUE")));
            };
            settings.set(name.trim(), value.trim()).map_err(told)?;
        }
        Ok(settings.finished())
    }

    /// Settings of variables `FOREBAY_SIM_*`.
    pub fn from_variables(
        variables: impl Iterator<Item = (String, String)>,
    ) -> Result<Settings, String> {
        let mut settings = Settings::default();
        for (name, value) in variables {
            if let Some(short) = name.strip_prefix("FOREBAY_SIM_") {
                let told = |why: String| format!("{name}: {why}");
                settings.set(&short.to_lowercase(), value.trim()).map_err(told)?;
            }
        }
        Ok(settings.finished())
    }

    /// What is lacking is refused as well.
    fn finished(mut self) -> Settings {
        for feature in &self.lacks {
            self.refuse.entry(feature.clone()).or_insert(801);
        }
        self
    }

    /// The same for a forked child, whose files are its own.
    pub fn of_child(&self, process: i32) -> Settings {
        let mut settings = self.clone();
        for path in [&mut settings.journal, &mut settings.report].into_iter().flatten() {
            if !path.contains("%p") {
                path.push_str(&format!(".{process}"));
            }
        }
        settings
    }

    /// Sets one by name.
    pub fn set(&mut self, name: &str, value: &str) -> Result<(), String> {
        let Some(setting) = TABLE.iter().find(|s| s.name == name) else {
            let names: Vec<&str> = TABLE.iter().map(|s| s.name).collect();
            return Err(format!("no setting {name:?}: accepted are {}", names.join(", ")));
        };
        match (setting.set)(self, value) {
            Some(done) => done,
            None => Err(format!("{name} = {value:?}: accepted is {}", setting.accepts)),
        }
    }
}

fn number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).ok(),
        None => text.parse().ok(),
    }
}

fn size(text: &str) -> Option<u64> {
    let units = [("KiB", 10), ("MiB", 20), ("GiB", 30), ("TiB", 40)];
    for (unit, shift) in units {
        if let Some(count) = text.strip_suffix(unit) {
            let count: u64 = count.trim().parse().ok()?;
            return count.checked_mul(1 << shift);
        }
    }
    text.parse().ok()
}

fn poison(text: &str) -> Option<Option<u8>> {
    match text {
        "none" => Some(None),
        byte => Some(Some(u8::try_from(number(byte)?).ok()?)),
    }
}

fn switch(text: &str) -> Option<bool> {
    match text {
        "0" => Some(false),
        "1" => Some(true),
        _ => None,
    }
}

fn pair(text: &str) -> Option<(u32, u32)> {
    let (major, minor) = text.split_once('.')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

fn file(text: &str) -> Option<String> {
    if text.is_empty() { None } else { Some(text.to_owned()) }
}

fn list(text: &str) -> Vec<String> {
    text.split(',').map(str::trim).filter(|w| !w.is_empty()).map(str::to_owned).collect()
}

/// Names of calls, each of which the driver has.
fn calls(text: &str) -> Result<Vec<String>, String> {
    let names = list(text);
    match names.iter().find(|n| !entry::calls().any(|c| c.name == **n || c.asked == **n)) {
        Some(unknown) => Err(format!("the driver has no call {unknown:?}")),
        None => Ok(names),
    }
}

/// Costs by the name without its version.
fn costs(text: &str) -> Result<BTreeMap<String, f64>, String> {
    let mut costs = BTreeMap::new();
    for item in list(text) {
        let accepted = || format!("{item:?}: accepted is CALL=MICROSECONDS");
        let (name, value) = item.split_once('=').ok_or_else(accepted)?;
        let value: f64 = value.trim().parse().map_err(|_| accepted())?;
        if !value.is_finite() || value < 0.0 {
            return Err(accepted());
        }
        let name = name.trim();
        let call = entry::calls().find(|c| c.name == name || c.asked == name);
        let call = call.ok_or_else(|| format!("the driver has no call {name:?}"))?;
        costs.insert(call.asked.to_owned(), value);
    }
    Ok(costs)
}

fn lacks(text: &str) -> Option<Vec<String>> {
    let names = list(text);
    let known = |name: &String| *name != "init" && FEATURES.contains(&name.as_str());
    names.iter().all(known).then_some(names)
}

fn refusals(text: &str) -> Option<BTreeMap<String, u32>> {
    list(text)
        .iter()
        .map(|item| {
            let (name, code) = item.split_once('=')?;
            let name = name.trim();
            let code = code.trim().parse().ok().filter(|code| *code != 0)?;
            FEATURES.contains(&name).then(|| (name.to_owned(), code))
        })
        .collect()
}

fn profile(text: &str) -> Option<Profile> {
    match text {
        "none" => Some(Profile::None),
        "a100" => Some(Profile::A100),
        "laptop" => Some(Profile::Laptop),
        "vattn" => Some(Profile::Vattn),
        _ => None,
    }
}

fn schedule(text: &str) -> Option<Schedule> {
    match text {
        "late" => Some(Schedule::Late),
        "eager" => Some(Schedule::Eager),
        "stepped" => Some(Schedule::Stepped),
        _ => None,
    }
}

fn address_range(text: &str) -> Option<AddressRange> {
    match text {
        "mapping" => Some(AddressRange::Mapping),
        "not_found" => Some(AddressRange::NotFound),
        _ => None,
    }
}

fn script(text: &str) -> Result<Script, String> {
    match text.strip_prefix('@') {
        Some(path) => {
            let read = std::fs::read_to_string(path).map_err(|e| format!("{path}: {e}"))?;
            Script::parse(&read).map_err(|why| format!("{path}: {why}"))
        }
        None => Script::parse(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_and_variables_say_the_same() {
        let text = "# a machine\ndevices = 3\nmemory = 2GiB\n\nprofile = a100\npoison = 0x5A\n\
            refuse = rdma=999, fabric=800\nversion = 11020\nwithout = cuMemCreate\n";
        let text = text.replace("cuMemCreate", "cuCtxGetId");
        let a = Settings::from_text(&text).expect("text");
        let pairs = [
            ("FOREBAY_SIM_DEVICES", "3"),
            ("FOREBAY_SIM_MEMORY", "2147483648"),
            ("FOREBAY_SIM_PROFILE", "a100"),
            ("FOREBAY_SIM_POISON", "90"),
            ("FOREBAY_SIM_REFUSE", "rdma=999,fabric=800"),
            ("FOREBAY_SIM_VERSION", "11020"),
            ("FOREBAY_SIM_WITHOUT", "cuCtxGetId"),
            ("HOME", "/"),
        ];
        let pairs = pairs.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned()));
        let b = Settings::from_variables(pairs).expect("variables");
        assert_eq!(format!("{a:?}"), format!("{b:?}"));
        assert_eq!((a.devices, a.memory, a.poison, a.version), (3, 2 << 30, Some(0x5A), 11020));
        assert_eq!(a.refuse["rdma"], 999);
    }

    #[test]
    fn the_table_tells_the_defaults() {
        let defaults = format!("{:?}", Settings::default());
        for setting in TABLE {
            let mut settings = Settings::default();
            if let Err(why) = settings.set(setting.name, setting.default) {
                panic!("{why}");
            }
            assert_eq!(format!("{settings:?}"), defaults, "{}", setting.name);
        }
    }

    #[test]
    fn what_cannot_be_read_names_the_line_and_what_is_accepted() {
        for (text, line, accepted) in [
            ("devices = 0", 1, "1 to 16"),
            ("devices = 17", 1, "1 to 16"),
            ("seed = 1\nmemory = 1XB", 2, "KiB, MiB, GiB or TiB"),
            ("memory = 0", 1, "bytes"),
            ("memory = 99999999999TiB", 1, "bytes"),
            ("profile = h100", 1, "none, a100, laptop or vattn"),
            ("poison = 256", 1, "a byte"),
            ("real_delays = yes", 1, "0 or 1"),
            ("version = 12", 1, "a number, such as 11020"),
            ("refuse = rdma", 1, "FEATURE=CODE"),
            ("refuse = rdma=0", 1, "FEATURE=CODE"),
            ("refuse = gravity=1", 1, "FEATURE=CODE"),
            ("lacks = init", 1, "FEATURE"),
            ("costs = cuInit", 1, "CALL=MICROSECONDS"),
            ("costs = cuInit=-1", 1, "CALL=MICROSECONDS"),
            ("costs = cuNothing=1", 1, "no call \"cuNothing\""),
            ("without = cuNothing", 1, "no call \"cuNothing\""),
            ("schedule = never", 1, "late, eager or stepped"),
            ("faults = fail", 1, "fail CALL"),
            ("faults = @/nowhere/at/all", 1, "/nowhere/at/all"),
            ("device = 1", 1, "devices"),
            ("devices", 1, "NAME = VALUE"),
        ] {
            let told = Settings::from_text(text).expect_err(text);
            assert!(told.starts_with(&format!("line {line}: ")), "{text}: {told}");
            assert!(told.contains(accepted), "{text}: {told}");
        }
        let bad = [("FOREBAY_SIM_SPEED".to_owned(), "9".to_owned())];
        let told = Settings::from_variables(bad.into_iter()).expect_err("no such setting");
        assert!(told.starts_with("FOREBAY_SIM_SPEED: no setting \"speed\""), "{told}");
    }

    #[test]
    fn the_page_about_it_has_the_table() {
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/simulated-cuda.md");
        let page = std::fs::read_to_string(page).expect("docs/simulated-cuda.md");
        for s in TABLE {
            let default =
                if s.default.is_empty() { String::new() } else { format!("`{}`", s.default) };
            let row = format!("| `{}` | {default} | {} | {} |", s.name, s.accepts, s.about);
            assert!(page.contains(&row), "docs/simulated-cuda.md lacks the row\n{row}");
        }
        let own = page.split("\n## ").find(|part| part.starts_with("Settings\n"));
        let rows = own.unwrap_or_default().lines().filter(|l| l.starts_with("| `")).count();
        assert_eq!(rows, TABLE.len(), "docs/simulated-cuda.md has rows for what is no setting");
    }
}
