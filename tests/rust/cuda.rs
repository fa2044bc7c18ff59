//! The CUDA backend on the simulated driver: opening, refusals, contexts, failures, memory.
//!
//! Each scenario is a process of its own (`FOREBAY_TEST_CHILD`), since a process has one driver;
//! `FOREBAY_SIM_*` says what machine it meets. Every scenario ends with a look at the driver's
//! list of misuse. Cost: a few seconds.

#[path = "cuda/captures.rs"]
mod captures;
#[path = "common/mod.rs"]
mod common;
#[path = "cuda/contexts.rs"]
mod contexts;
#[path = "common/cuda.rs"]
mod cuda;
#[path = "cuda/failures.rs"]
mod failures;
#[path = "cuda/guards.rs"]
mod guards;
#[path = "cuda/load.rs"]
mod load;
#[path = "cuda/machine.rs"]
mod machine;
#[path = "cuda/memory.rs"]
mod memory;
#[path = "cuda/opening.rs"]
mod opening;
#[path = "cuda/paged.rs"]
mod paged;
#[path = "cuda/peers.rs"]
mod peers;
#[path = "cuda/resets.rs"]
mod resets;
#[path = "cuda/retired.rs"]
mod retired;
#[path = "cuda/streams.rs"]
mod streams;
#[path = "cuda/suspend.rs"]
mod suspend;
#[path = "cuda/torch.rs"]
mod torch;

use cuda::Sim;
use forebay::error::Status;
use forebay::pool::Pool;

const MIB: usize = 1 << 20;

/// Runs a scenario on the simulated driver with these settings of it, which must end well.
fn on_sim(name: &str, machine: &[(&str, &str)]) -> String {
    on_sim_with(name, machine, &[])
}

/// [`on_sim`] with variables of Forebay's; answers standard error.
fn on_sim_with(name: &str, machine: &[(&str, &str)], own: &[(&str, &str)]) -> String {
    let library = cuda::library().to_str().expect("UTF-8");
    let machine: Vec<(String, &str)> =
        machine.iter().map(|(k, v)| (format!("FOREBAY_SIM_{k}"), *v)).collect();
    let mut vars = vec![
        ("FOREBAY_BACKEND", "cuda"),
        ("FOREBAY_CUDA_LIBRARY", library),
        (cuda::LIBRARY, library),
        ("FOREBAY_SIM_MEMORY", "256MiB"),
        ("FOREBAY_HEADROOM", "0"),
        ("FOREBAY_LOG", "warn"),
    ];
    vars.extend(machine.iter().map(|(k, v)| (k.as_str(), *v)));
    vars.extend(own);
    let output = common::child("child_process", name, &vars);
    let told = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    let well = output.status.success() && told.contains("scenario done");
    assert!(well, "{name} {vars:?}: {:?}\n{told}\n{errors}", output.status);
    errors
}

/// The bodies of child processes; does nothing in any other.
#[test]
fn child_process() {
    let Some(name) = common::scenario() else { return };
    let sections = [
        captures::run,
        contexts::run,
        failures::run,
        guards::run,
        memory::run,
        opening::run,
        paged::run,
        peers::run,
        resets::run,
        retired::run,
        streams::run,
        suspend::run,
        torch::run,
    ];
    assert!(sections.iter().any(|run| run(&name)), "no scenario {name}");
    println!("scenario done");
}

/// The default pool's error.
fn refused() -> (Status, String) {
    let error = Pool::default_pool().expect_err("no pool can be made here");
    (error.status(), error.message().to_owned())
}

/// The driver's list of misuse is empty.
fn no_misuse() {
    Sim::open().assert_no_misuse();
}

/// Fills a block on a stream and reads a byte of it back, both through the driver.
fn fill(pool: &Pool, address: usize, bytes: usize, value: u8, stream: u64) {
    let driver = pool.driver().expect("alive");
    let stream = forebay::driver::StreamHandle(stream);
    driver.fill(address, value, bytes, stream).expect("queued");
}

/// Whether every byte of a block is `value` once the stream's work is done.
fn holds(pool: &Pool, address: usize, bytes: usize, value: u8, stream: u64) -> bool {
    let driver = pool.driver().expect("alive");
    let stream = forebay::driver::StreamHandle(stream);
    let mut copy = vec![!value; bytes];
    let to = copy.as_mut_ptr().expose_provenance();
    driver.copy(to, address, bytes, stream).expect("queued");
    driver.stream_synchronize(stream).expect("alive");
    copy.iter().all(|&b| b == value)
}
