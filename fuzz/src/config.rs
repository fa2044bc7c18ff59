//! Configuration: any values give settings that can be used, and named problems.

use forebay::config::Config;
use forebay::config::table::VARIABLES;
use forebay::pool::Settings;

/// Sizes of devices that settings are resolved for.
const DEVICES: [u64; 3] = [2 << 20, 8 << 30, 1 << 40];

/// Reads `bytes` as lines, each the value of a variable that its first byte chooses, and
/// resolves the settings for several devices.
pub fn read(bytes: &[u8]) {
    let vars: Vec<(String, String)> = bytes
        .split(|&b| b == b'\n')
        .take(64)
        .filter_map(|line| {
            let (&first, value) = line.split_first()?;
            let name = match VARIABLES.get(usize::from(first) % (VARIABLES.len() + 1)) {
                Some(variable) => variable.name.to_owned(),
                None => format!("FOREBAY_{first}"),
            };
            Some((name, String::from_utf8_lossy(value).into_owned()))
        })
        .collect();
    let (config, problems) = Config::from_vars(vars.iter().cloned());
    assert!(problems.len() <= vars.len(), "one problem a variable");
    for problem in &problems {
        assert!(!problem.to_string().is_empty(), "a problem says what is wrong");
    }
    for total in DEVICES {
        for host in [false, true] {
            let settings = Settings::resolve(&config, total, host);
            assert!(settings.limit <= total, "a limit above the device: {settings:?}");
        }
    }
    // The same values again give the same settings.
    let (again, _) = Config::from_vars(vars);
    assert_eq!(format!("{config:?}"), format!("{again:?}"));
}
