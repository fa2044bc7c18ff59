//! `forebay doctor`: the device a pool would use here, its limits, and why.
//!
//! Owns the sentences; promises that each number in them is the one a pool would use and that
//! a device that cannot be used makes the command fail. Must not make a pool or allocate on
//! the device. Cost: that of opening a driver.

use forebay::config::{Backend, Config, FreeMode, Leaks, Move, Problem};
use forebay::driver::Driver;
use serde_json::{Map, Value, json};

use super::doctor_cuda::Cuda;
use super::{Failure, complain, say, table};
use crate::args::DoctorArgs;
use crate::device;

/// Runs the command; `Ok(false)` when no pool can be made here.
pub fn run(args: &DoctorArgs) -> Result<bool, Failure> {
    let (mut config, problems) = Config::from_vars(std::env::vars_os());
    let asked_by = match args.backend {
        Some(_) => "--backend",
        None if config.backend == Backend::Auto => "by default, which means cuda",
        None => "FOREBAY_BACKEND",
    };
    if let Some(backend) = args.backend {
        config.backend = backend.into();
    }
    let opened = if config.strict && !problems.is_empty() {
        Err("FOREBAY_STRICT is on and settings are wrong (see the problems)".to_string())
    } else {
        device::open(&config, None).map_err(|error| error.text).and_then(|driver| {
            let (free, _) = driver.memory_info().map_err(|error| error.to_string())?;
            Ok(Found { limits: Limits::of(&config, &*driver), free_bytes: free as u64, driver })
        })
    };
    let cuda = if config.backend == Backend::Host { None } else { Cuda::look(&config) };
    let backend = backend_name(config.backend);
    let well = opened.is_ok();
    if args.json {
        let mut object = as_json(&config, backend, &problems, &opened);
        if let Some(cuda) = &cuda {
            object.insert("cuda".into(), cuda.json());
        }
        say(Value::Object(object))?;
    } else {
        say(format!("Backend: {backend} (asked for {asked_by})"))?;
        if let Some(cuda) = &cuda {
            cuda.print()?;
        }
        as_text(&config, &problems, &opened)?;
    }
    Ok(well)
}

struct Found {
    driver: std::sync::Arc<dyn Driver>,
    free_bytes: u64,
    limits: Limits,
}

/// The limits in force, in bytes.
struct Limits {
    hard: u64,
    soft: Option<u64>,
    reserve: u64,
    headroom: u64,
    /// `None`: all idle pages stay.
    release_threshold: Option<u64>,
    cache: u64,
}

impl Limits {
    fn of(config: &Config, driver: &dyn Driver) -> Limits {
        let total = driver.device().total_bytes as u64;
        let host = config.backend == Backend::Host;
        let hard = config.limit_bytes(total, host);
        Limits {
            hard,
            soft: config.soft_limit_bytes(total),
            reserve: config.reserve_bytes(total),
            headroom: config.headroom_bytes(total, host),
            release_threshold: Some(config.release_threshold_bytes(total))
                .filter(|&bytes| bytes != u64::MAX),
            cache: config.cache_bytes(total, hard),
        }
    }
}

fn backend_name(backend: Backend) -> &'static str {
    match backend {
        Backend::Auto => "auto",
        Backend::Cuda => "cuda",
        Backend::Host => "host",
    }
}

fn as_json(
    config: &Config,
    backend: &str,
    problems: &[Problem],
    opened: &Result<Found, String>,
) -> Map<String, Value> {
    let problems: Vec<String> = problems.iter().map(Problem::to_string).collect();
    let mut object = Map::new();
    object.insert("backend".into(), json!(backend));
    object.insert("usable".into(), json!(opened.is_ok()));
    object.insert("problems".into(), json!(problems));
    match opened {
        Err(error) => {
            object.insert("error".into(), json!(error));
        }
        Ok(found) => {
            let info = found.driver.device();
            let limits = &found.limits;
            object.insert(
                "device".into(),
                json!({
                    "name": info.name,
                    "ordinal": config.device,
                    "total_bytes": info.total_bytes,
                    "free_bytes": found.free_bytes,
                    "granularity_bytes": info.granularity,
                    "host_accessible": info.host_accessible,
                    "context_events": info.context_events,
                }),
            );
            object.insert(
                "limits".into(),
                json!({
                    "hard_bytes": limits.hard,
                    "soft_bytes": limits.soft,
                    "reserve_bytes": limits.reserve,
                    "headroom_bytes": limits.headroom,
                    "release_threshold_bytes": limits.release_threshold,
                    "cache_bytes": limits.cache,
                    "oom_wait_ms": config.oom_wait_ms,
                }),
            );
            object.insert("what_happens".into(), json!(sentences(config, found)));
        }
    }
    object
}

fn as_text(
    config: &Config,
    problems: &[Problem],
    opened: &Result<Found, String>,
) -> Result<(), Failure> {
    if let Ok(found) = opened {
        let info = found.driver.device();
        let (total, free) = (table::mib(info.total_bytes as u64), table::mib(found.free_bytes));
        say(format!("Device:  {} {}, {total}, {free} free", config.device, info.name))?;
        say(format!("Pages:   {} each", table::mib(info.granularity as u64)))?;
        say("")?;
        say("What a pool made now would do:")?;
        for sentence in sentences(config, found) {
            say(format!("- {sentence}"))?;
        }
    }
    say("")?;
    if problems.is_empty() {
        say("Configuration: no problems.")?;
    } else {
        say("Problems of the configuration:")?;
        for problem in problems {
            say(format!("- {problem}"))?;
        }
    }
    if let Err(error) = opened {
        complain(format!("no pool can be made here: {error}"));
    }
    Ok(())
}

/// What a pool would do here, and because of which setting.
fn sentences(config: &Config, found: &Found) -> Vec<String> {
    let limits = &found.limits;
    let mut list = Vec::new();
    if let Some(segment) = found.driver.backed_reservations() {
        list.push(format!(
            "Its memory is plain allocations of {}, which go back when it ends and cannot move.",
            table::mib(segment as u64)
        ));
    }
    if config.backend == Backend::Host {
        list.push("Its memory is this machine's, taken page by page; no GPU is used.".into());
    }
    list.push(hard_limit(config, limits));
    list.push(match limits.soft {
        Some(soft) => format!("Above {} it starts to trim (FOREBAY_SOFT_LIMIT).", table::mib(soft)),
        None => "It trims under pressure only: FOREBAY_SOFT_LIMIT is not set.".into(),
    });
    list.push(match limits.reserve {
        0 => "No page is taken before the first request: FOREBAY_RESERVE is not set.".into(),
        bytes => format!("It takes {} at start (FOREBAY_RESERVE).", table::mib(bytes)),
    });
    list.push(idle_pages(config, limits));
    list.push(format!(
        "Caches and frees that wait for their fence hold at most {} together (FOREBAY_CACHE).",
        table::mib(limits.cache)
    ));
    list.push(
        match config.r#move {
            _ if found.driver.backed_reservations().is_some() => {
                "No memory moves, so fragmentation can fail a request."
            }
            Move::Always => "Idle pages move where they are needed.",
            Move::Idle => "Idle pages move only while the device runs nothing of ours.",
            Move::Never => "No page is ever moved (FOREBAY_MOVE=0), so fragmentation can fail.",
        }
        .into(),
    );
    list.push(
        match config.free {
            FreeMode::Deferred => "forebay_free returns at once; reuse waits for a fence.",
            FreeMode::Sync => "forebay_free waits for the device (FOREBAY_FREE=sync).",
            FreeMode::Stream => "forebay_free follows the default stream (FOREBAY_FREE=stream).",
        }
        .into(),
    );
    if !config.keeper {
        list.push(
            "No keeper thread settles fences and trims in the background (FOREBAY_KEEPER).".into(),
        );
    }
    if config.leaks != Leaks::Off {
        list.push("What is still live at the end is reported (FOREBAY_LEAKS).".into());
    }
    list
}

fn hard_limit(config: &Config, limits: &Limits) -> String {
    let why = match (config.limit, limits.headroom) {
        (Some(limit), _) => format!("FOREBAY_LIMIT={limit}"),
        (None, 0) => "the whole device".to_string(),
        (None, headroom) => format!("the device less {} of headroom", table::mib(headroom)),
    };
    format!(
        "It holds at most {} ({why}); what does not fit is refused with \
         FOREBAY_ERROR_OUT_OF_MEMORY and the reason.",
        table::mib(limits.hard)
    )
}

fn idle_pages(config: &Config, limits: &Limits) -> String {
    if config.decay.is_zero() {
        return "Pages that fall idle are kept for reuse: FOREBAY_DECAY is not set.".into();
    }
    let seconds = config.decay.as_secs_f64();
    match limits.release_threshold {
        Some(bytes) => format!(
            "Pages idle for {seconds} s go back to the device, down to {} (FOREBAY_DECAY).",
            table::mib(bytes)
        ),
        None => "Pages that fall idle are kept (FOREBAY_RELEASE_THRESHOLD).".into(),
    }
}
