//! Contexts and devices: who is current, what a destroyed one answers.

mod common;
use common::{Sim, row};

#[test]
fn init_comes_first() {
    let _sim = Sim::configured("");
    let mut count = 0;
    assert_eq!(cu!(cuDeviceGetCount(&mut count)), 3);
    assert_eq!(cu!(cuInit(1)), 1);
    assert_eq!(cu!(cuInit(0)), 0);
    assert_eq!(cu!(cuDeviceGetCount(&mut count)), 0);
    assert_eq!(count, 1);
    row("every call before cuInit: 3", "H: cuda.h, CUDA_ERROR_NOT_INITIALIZED");
}

#[test]
fn a_destroyed_current_context_answers_709() {
    let sim = Sim::start("devices = 2");
    let mut context = 0;
    let mut device = -1;
    assert_eq!(cu!(cuCtxGetDevice(&mut device)), 201);
    assert_eq!(cu!(cuCtxCreate_v2(&mut context, 0, 1)), 0);
    assert_eq!(cu!(cuCtxGetDevice(&mut device)), 0);
    assert_eq!(device, 1);
    assert_eq!(sim.live("contexts"), 1);
    assert_eq!(cu!(cuCtxPushCurrent_v2(context)), 0);
    assert_eq!(cu!(cuCtxDestroy_v2(context)), 0);
    assert_eq!(cu!(cuCtxGetDevice(&mut device)), 709);
    assert_eq!(cu!(cuCtxSetCurrent(context)), 201);
    assert_eq!(cu!(cuCtxDestroy_v2(context)), 201);
}
