//! PyTorch's hooks where the host backend cannot go: several devices, captures that the driver
//! knows of, calls that fail.

use super::cuda::Sim;
use super::{MIB, no_misuse, on_sim, on_sim_with};
use forebay::abi::torch::*;
use forebay::error::Status;
use forebay::torch;
use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::mpsc;
use std::time::Duration;

/// Runs the scenario if it is one of these.
pub fn run(name: &str) -> bool {
    match name {
        "a device is reset beside others" => reset_beside(),
        "a device first used in a capture" => first_used_in_a_capture(),
        "peers that cannot be mapped" => peers_refused(),
        "a graph dies while calls fail" => dies_while_calls_fail(),
        "freed in a capture" => freed_in_a_capture(),
        _ => return false,
    }
    true
}

/// A block, or why there is none.
fn alloc(bytes: usize, device: i32, stream: usize) -> Result<usize, Status> {
    let mut address = null_mut();
    // SAFETY: a local to fill.
    let told =
        unsafe { forebay_torch_allocate(&raw mut address, bytes, device, stream as *mut c_void) };
    if told == Status::Ok { Ok(address as usize) } else { Err(told) }
}

fn free(address: usize, bytes: usize, device: i32, stream: usize) {
    forebay_torch_free(address as *mut c_void, bytes, device, stream as *mut c_void);
}

/// Takes the stream of its word; with 0, none.
unsafe extern "C" fn takes(word: *mut c_void, stream: *mut c_void) -> bool {
    !word.is_null() && word == stream
}

const ID: TorchPoolId = TorchPoolId { first: 1, second: 0 };

/// Opens a private pool of device 0 for a stream.
fn begin(stream: usize) {
    // SAFETY: the filter stays callable, its word is only compared.
    let told =
        unsafe { forebay_torch_begin_allocate_to_pool(0, ID, Some(takes), stream as *mut c_void) };
    assert_eq!(told, Status::Ok);
}

fn end() {
    forebay_torch_end_allocate_to_pool(0, ID);
}

fn peers(device: i32) -> Vec<u32> {
    torch::pool(device).and_then(|pool| pool.peers()).expect("a pool")
}

/// A stream of device 0, whose context is this thread's from now on.
fn stream(sim: Sim) -> usize {
    sim.ok("cuInit", &[0]);
    let context = sim.get("cuDevicePrimaryCtxRetain", &[0]);
    sim.ok("cuCtxSetCurrent", &[context]);
    sim.get("cuStreamCreate", &[1])
}

/// Another device's pool has ended: it is passed over, and open again once it is used.
fn reset_beside() {
    let (done, wait) = mpsc::channel();
    std::thread::spawn(move || {
        for device in [0, 1] {
            alloc(1000, device, 0).expect("a device");
        }
        assert_eq!(forebay::abi::interpose::forebay_device_reset(1), Status::Ok);
        alloc(1000, 2, 0).expect("a device");
        assert_eq!((peers(0), peers(2)), (vec![1, 2], vec![0]));
        alloc(1000, 1, 0).expect("anew");
        done.send((peers(1), peers(2))).expect("somebody waits");
    });
    let seen = wait.recv_timeout(Duration::from_secs(60)).expect("it hangs, or has failed");
    assert_eq!(seen, (vec![0, 2], vec![0, 1]));
    no_misuse();
}

#[test]
fn a_device_that_was_reset_holds_no_other_up() {
    on_sim("a device is reset beside others", &[("DEVICES", "3")]);
}

/// No peer can be enabled then; it is when the capture has ended.
fn first_used_in_a_capture() {
    alloc(1000, 0, 0).expect("a device");
    begin(0);
    alloc(1000, 1, 0).expect("a device");
    assert_eq!((peers(0), peers(1)), (vec![], vec![]));
    end();
    assert_eq!((peers(0), peers(1)), (vec![1], vec![0]));
    // A capture that PyTorch did not tell of: at the next device's first use.
    let hold = forebay::pool::capture::hold().expect("a hold");
    alloc(1000, 2, 0).expect("a device");
    forebay::pool::capture::unhold(hold);
    assert_eq!((peers(0), peers(2)), (vec![1], vec![]));
    alloc(1000, 3, 0).expect("a device");
    assert_eq!((peers(0), peers(2)), (vec![1, 2, 3], vec![0, 1, 3]));
    no_misuse();
}

#[test]
fn devices_first_used_in_a_capture_reach_each_other_afterwards() {
    on_sim("a device first used in a capture", &[("DEVICES", "4")]);
}

/// The devices work, closed to each other.
fn peers_refused() {
    for device in [0, 1, 0, 1] {
        alloc(30 * MIB, device, 0).unwrap_or_else(|told| panic!("device {device}: {told:?}"));
    }
    assert_eq!((peers(0), peers(1)), (vec![], vec![]));
    alloc(1000, 2, 0).expect("a third");
    assert!(peers(2).is_empty());
    no_misuse();
}

#[test]
fn devices_whose_memory_cannot_be_opened_work_alone() {
    for (what, value) in [("REFUSE", "peer=800"), ("PEERS", "0")] {
        let told = on_sim("peers that cannot be mapped", &[("DEVICES", "3"), (what, value)]);
        let lines = told.lines().filter(|line| line.contains("is not open to the other device"));
        assert_eq!(lines.count(), 6, "{told}");
    }
}

/// What could not be released at once is released later.
fn dies_while_calls_fail() {
    let sim = Sim::open();
    let stream = stream(sim);
    begin(stream);
    let block = alloc(40 * MIB, 0, stream).expect("fits");
    free(block, 40 * MIB, 0, stream);
    end();
    sim.script("fail cuCtxRecordEvent always with 999; fail cuEventRecord always with 999");
    forebay_torch_release_pool(0, ID);
    sim.script("");
    for _ in 0..2 {
        forebay_torch_reset();
    }
    let held = torch::pool(0).and_then(|pool| pool.stats()).expect("a pool").mapped_bytes;
    assert!(held < 40 * MIB as u64, "{held} bytes are held for a graph that is gone");
    no_misuse();
}

#[test]
fn a_graph_that_dies_while_calls_fail_gives_its_memory_back() {
    on_sim("a graph dies while calls fail", &[]);
}

/// A free may be the first that the pool hears of a capture.
fn freed_in_a_capture() {
    let sim = Sim::open();
    let stream = stream(sim);
    let block = alloc(3 * MIB, 0, stream).expect("fits");
    begin(stream);
    sim.ok("cuStreamBeginCapture_v2", &[stream, 1]);
    free(block, 3 * MIB, 0, stream);
    let live = torch::pool(0).and_then(|pool| pool.stats()).expect("a pool").live_blocks;
    let counted = torch::read_counts(0).expect("a device").blocks[0].current;
    assert_eq!((live, counted), (0, 0));
    let mut graph = 0usize;
    sim.ok("cuStreamEndCapture", &[stream, &raw mut graph as usize]);
    end();
    forebay_torch_release_pool(0, ID);
    no_misuse();
}

#[test]
fn a_block_that_is_freed_first_of_all_in_a_capture_is_freed() {
    on_sim_with("freed in a capture", &[], &[("FOREBAY_DEBUG", "streams")]);
}
