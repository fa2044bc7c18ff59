//! Faults, unknown codes, costs, the journal and the report, as a program meets them.

mod common;
use common::{Sim, child};
use std::ffi::CString;

fn device_count() -> u32 {
    let mut count = 0;
    cu!(cuDeviceGetCount(&raw mut count))
}

fn codes(n: usize) -> Vec<u32> {
    (0..n).map(|_| device_count()).collect()
}

#[test]
fn each_kind_of_fault_hits_its_call() {
    let sim = Sim::start("faults = fail cuDeviceGetCount #2 once with 2");
    assert_eq!(codes(4), [0, 2, 0, 0]);
    sim.script("fail cuDeviceGetCount always with CUDA_ERROR_UNKNOWN from #3");
    assert_eq!(codes(4), [0, 0, 999, 999]);
    sim.script("fail any #2 once with 700; fail cuDeviceGetCount #4 with 4");
    let mut version = 0;
    assert_eq!(cu!(cuDriverGetVersion(&raw mut version)), 0);
    assert_eq!(codes(4), [0, 700, 0, 4]);
    sim.script("");
    assert_eq!(codes(2), [0, 0]);
}

#[test]
fn a_failed_call_does_nothing_else() {
    let sim = Sim::start("faults = fail cuCtxCreate with 2\nfaults = fail cuCtxDestroy with 999");
    let mut context = 0;
    assert_eq!(cu!(cuCtxCreate_v2(&raw mut context, 0, 0)), 2);
    assert_eq!((context, sim.live("contexts")), (0, 0));
    assert_eq!(cu!(cuCtxCreate_v2(&raw mut context, 0, 0)), 0);
    assert_eq!(cu!(cuCtxDestroy_v2(context)), 999);
    assert_eq!(sim.live("contexts"), 1);
    assert_eq!(cu!(cuCtxDestroy_v2(context)), 0);
}

#[test]
fn a_malformed_script_is_refused_and_the_old_one_stays() {
    let sim = Sim::start("faults = fail cuDeviceGetCount #3 with 2");
    let bad = CString::new("fail cuDeviceGetCount").expect("no zero byte");
    assert_eq!(cu!(forebay_sim_script(bad.as_ptr())), 1);
    assert_eq!(codes(3), [0, 0, 2]);
    drop(sim);
    let bad = CString::new("devices = 1\nfaults = break all").expect("no zero byte");
    let _sim = Sim::configured("");
    assert_eq!(cu!(forebay_sim_configure(bad.as_ptr())), 1);
    let told = common::report()["settings_error"].as_str().expect("an error").to_owned();
    assert!(told.contains("line 2") && told.contains("accepted is: fail CALL"), "{told}");
    assert_eq!(cu!(cuInit(0)), 1);
    assert_eq!(device_count(), 3);
}

#[test]
fn a_call_may_answer_a_code_of_no_table() {
    let _sim = Sim::start("unknown = cuDeviceGetCount");
    assert_eq!(codes(2), [9999, 9999]);
}

#[test]
fn time_passes_only_by_calls() {
    let sim = Sim::start("costs = cuDeviceGetCount=2.5\nfaults = stall cuDeviceGetCount 2ms #3");
    assert_eq!(sim.time_us(), 0.0);
    assert_eq!(codes(2), [0, 0]);
    assert_eq!(sim.time_us(), 5.0);
    assert_eq!(codes(2), [0, 0]);
    assert_eq!(sim.time_us(), 2010.0);
    std::thread::sleep(std::time::Duration::from_millis(2));
    assert_eq!(sim.time_us(), 2010.0);
    assert_eq!(sim.calls("cuDeviceGetCount"), 4);
}

#[test]
fn real_delays_are_slept_under_a_shared_lock() {
    let lock = child::scratch("lock");
    let text =
        format!("costs = cuDeviceGetCount=20000\nreal_delays = 1\nhost_lock = {}", lock.display());
    let sim = Sim::start(&text);
    let start = std::time::Instant::now();
    assert_eq!(codes(2), [0, 0]);
    assert!(start.elapsed().as_millis() >= 40, "slept");
    assert_eq!(sim.time_us(), 40_000.0);
    assert!(lock.exists());
    std::fs::remove_file(lock).expect("the lock's file");
}

#[test]
fn the_journal_has_a_line_for_each_call() {
    let file = child::scratch("journal");
    let path = file.display();
    let sim = Sim::start(&format!(
        "journal = {path}\ncosts = cuDeviceGet=1.25\nfaults = fail cuDeviceGet #2 with 2"
    ));
    let mut device = 0;
    assert_eq!(cu!(cuDeviceGet(&raw mut device, 0)), 0);
    assert_eq!(cu!(cuDeviceGet(&raw mut device, 0)), 2);
    assert_eq!(cu!(cuDeviceGet(&raw mut device, 7)), 101);
    drop(sim);
    let text = std::fs::read_to_string(&file).expect("the journal");
    let lines: Vec<serde_json::Value> =
        text.lines().map(|l| serde_json::from_str(l).expect("JSON")).collect();
    let told: Vec<(u64, f64, &str, &str, u64)> = lines
        .iter()
        .map(|l| {
            let text = |name: &str| l[name].as_str().expect("a text");
            let n = l["n"].as_u64().expect("a number");
            let t = l["t_us"].as_f64().expect("a time");
            (n, t, text("call"), text("args"), l["result"].as_u64().expect("a code"))
        })
        .collect();
    assert_eq!(
        told,
        [
            (1, 0.0, "cuInit", "flags=0", 0),
            (2, 1.25, "cuDeviceGet", "ordinal=0", 0),
            (3, 2.5, "cuDeviceGet", "ordinal=0", 2),
            (4, 3.75, "cuDeviceGet", "ordinal=7", 101),
        ]
    );
    std::fs::remove_file(file).expect("the journal's file");
}

#[test]
fn a_journal_that_cannot_be_opened_is_an_error() {
    let _sim = Sim::configured("");
    let bad = CString::new("journal = /nowhere/at/all").expect("no zero byte");
    assert_eq!(cu!(forebay_sim_configure(bad.as_ptr())), 1);
    assert_eq!(cu!(cuInit(0)), 1);
}

#[test]
fn the_report_fits_the_buffer_it_is_given() {
    let _sim = Sim::start("");
    let needed = cu!(forebay_sim_report(std::ptr::null_mut(), 0));
    let mut buffer = vec![7u8; 10];
    assert_eq!(cu!(forebay_sim_report(buffer.as_mut_ptr().cast(), 10)), needed);
    assert_eq!(&buffer[..9], b"{\"calls\":");
    assert_eq!(buffer[9], 0);
}

#[test]
fn a_world_ends_with_all_that_was_in_it() {
    let sim = Sim::start("");
    let context = sim.primary(0);
    assert_eq!(sim.live("contexts"), 1);
    drop(sim);
    let sim = Sim::start("");
    assert_eq!((sim.live("contexts"), sim.calls("cuCtxSetCurrent")), (0, 0));
    let mut device = 0;
    assert_eq!(cu!(cuCtxGetDevice(&raw mut device)), 201);
    assert_eq!(cu!(cuCtxSetCurrent(context)), 201, "a handle of another world");
}
