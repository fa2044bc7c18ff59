//! A pool's beginning and end as the keeper's list sees them.

use super::{REST_MAX, STATE, WAKE, rest, tick};
use crate::config::Config;
use crate::driver::Driver;
use crate::driver::host::{HostDriver, HostOptions};
use crate::pool::{Settings, registry};
use std::process::Command;
use std::sync::{Arc, PoisonError, mpsc};
use std::time::{Duration, Instant};

/// Set in the process that runs a test alone.
const ALONE: &str = "FOREBAY_TEST_ALONE";

/// Runs a test of this program in a process of its own, where no other holds the process's locks.
/// False: this is that process.
fn elsewhere(name: &str) -> bool {
    if std::env::var_os(ALONE).is_some() {
        return false;
    }
    let program = std::env::current_exe().expect("this program");
    let mut command = Command::new(program);
    let output = command.args(["--exact", name, "--nocapture"]).env(ALONE, "1").output();
    let output = output.expect("it starts");
    let told = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && told.contains("1 passed"), "{name}:\n{told}{errors}");
    true
}

/// While the keeper's list is held, a pool that is being made cannot be watched: until then its
/// end must not be possible either, or the list would name it for ever.
#[test]
fn a_pool_is_watched_before_anybody_can_end_it() {
    if elsewhere("pool::keeper::tests::a_pool_is_watched_before_anybody_can_end_it") {
        return;
    }
    let options = HostOptions { total_bytes: 1 << 26, ..HostOptions::default() };
    let driver = Arc::new(HostDriver::new(options).expect("a host device"));
    let mut settings = Settings::resolve(&Config::default(), 1 << 26, true);
    settings.keeper = true;
    let state = STATE.lock().unwrap_or_else(PoisonError::into_inner);
    std::thread::scope(|scope| {
        let maker = scope.spawn(|| registry::create(driver as Arc<dyn Driver>, settings));
        let id = loop {
            match (1..100).find(|&id| registry::pool(id).is_ok()) {
                Some(id) => break id,
                None => std::thread::yield_now(),
            }
        };
        let (tell, told) = mpsc::channel();
        // An end takes this lock first.
        scope.spawn(move || tell.send(registry::live_pools()));
        let early = told.recv_timeout(Duration::from_secs(1));
        drop(state);
        let made = maker.join().expect("no panic").expect("a pool");
        assert_eq!(early, Err(mpsc::RecvTimeoutError::Timeout), "it could be ended unwatched");
        assert_eq!(made, id);
        assert_eq!(told.recv().expect("the lock is free"), [id]);
        let watched = || STATE.lock().unwrap_or_else(PoisonError::into_inner).pools.clone();
        assert_eq!(watched(), [id]);
        registry::destroy(id).expect("no fault");
        assert_eq!(watched(), [0u64; 0], "forgotten");
    });
}

fn quiet_pool() -> u64 {
    let options = HostOptions { total_bytes: 1 << 26, ..HostOptions::default() };
    let driver = Arc::new(HostDriver::new(options).expect("a host device"));
    let mut settings = Settings::resolve(&Config::default(), 1 << 26, true);
    settings.keeper = false;
    registry::create(driver as Arc<dyn Driver>, settings).expect("a pool")
}

/// The look begins when the lock is given back: all that counts as work comes after that.
#[test]
fn waiting_for_a_pools_lock_is_no_work() {
    let id = quiet_pool();
    let shared = registry::pool(id).expect("alive");
    let (begun, has_begun) = mpsc::channel();
    std::thread::scope(|scope| {
        let (looker, held_until) = shared
            .with_core(id, |_| {
                let looker = scope.spawn(move || {
                    begun.send(()).expect("somebody listens");
                    let look = tick(id).expect("alive");
                    (look.work, Instant::now())
                });
                has_begun.recv().expect("it begins");
                // Long enough for it to come to the lock.
                std::thread::sleep(Duration::from_millis(100));
                (looker, Instant::now())
            })
            .expect("alive");
        let (work, ended) = looker.join().expect("no panic");
        assert!(work <= ended - held_until, "{work:?} of work in {:?}", ended - held_until);
    });
    registry::destroy(id).expect("no fault");
}

/// A rest that nobody would outlive ends, since somebody asks.
#[test]
fn a_poke_ends_a_long_rest() {
    if elsewhere("pool::keeper::tests::a_poke_ends_a_long_rest") {
        return;
    }
    let resting = std::thread::spawn(|| rest(REST_MAX * 1_000_000));
    STATE.lock().unwrap_or_else(PoisonError::into_inner).poked = true;
    WAKE.notify_one();
    resting.join().expect("no panic");
    // One that begins with somebody asking ends too.
    rest(REST_MAX * 1_000_000);
}
