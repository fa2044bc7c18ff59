//! Devices: how many, what each says of itself, who reaches whom.

mod common;
use common::{Sim, row};
use forebay_simcuda::types::CUuuid;
use std::ffi::{CStr, c_char};
use std::ptr::null_mut;

const H: &str = "H: cuda.h";

fn attribute(device: i32, attribute: u32) -> Result<i32, u32> {
    let mut value = i32::MIN;
    match cu!(cuDeviceGetAttribute(&raw mut value, attribute, device)) {
        0 => Ok(value),
        code => Err(code),
    }
}

#[test]
fn devices_are_numbered_and_named() {
    let _sim = Sim::start("devices = 8\nmemory = 3GiB");
    let (mut count, mut device, mut bytes) = (0, -1, 0usize);
    assert_eq!(cu!(cuDeviceGetCount(&raw mut count)), 0);
    assert_eq!(count, 8);
    let mut uuids = Vec::new();
    for i in 0..8 {
        assert_eq!(cu!(cuDeviceGet(&raw mut device, i)), 0);
        assert_eq!(device, i);
        let mut uuid = CUuuid::default();
        assert_eq!(cu!(cuDeviceGetUuid_v2(&raw mut uuid, i)), 0);
        uuids.push(uuid.bytes);
        assert_eq!(cu!(cuDeviceTotalMem_v2(&raw mut bytes, i)), 0);
        assert_eq!(bytes, 3 << 30);
    }
    uuids.sort_unstable();
    uuids.dedup();
    assert_eq!(uuids.len(), 8);
    for bad in [-1, 8] {
        assert_eq!(cu!(cuDeviceGet(&raw mut device, bad)), 101);
        assert_eq!(cu!(cuDeviceTotalMem_v2(&raw mut bytes, bad)), 101);
        assert_eq!(attribute(bad, 75), Err(101));
    }
    assert_eq!(cu!(cuDeviceGet(null_mut(), 0)), 1);
    assert_eq!(cu!(cuDeviceGetCount(null_mut())), 1);
    row("no such device: 101", H);

    let mut text = [1 as c_char; 64];
    assert_eq!(cu!(cuDeviceGetName(text.as_mut_ptr(), 64, 1)), 0);
    // SAFETY: the call above ended the text with a zero byte.
    let name = unsafe { CStr::from_ptr(text.as_ptr()) };
    assert_eq!(name, c"Forebay simulated GPU 1");
    assert_eq!(cu!(cuDeviceGetName(text.as_mut_ptr(), 8, 1)), 0);
    // SAFETY: as above.
    assert_eq!(unsafe { CStr::from_ptr(text.as_ptr()) }, c"Forebay");
    assert_eq!(cu!(cuDeviceGetName(text.as_mut_ptr(), 0, 1)), 1);
    assert_eq!(cu!(cuDeviceGetName(null_mut(), 8, 1)), 1);
}

#[test]
fn a_bus_id_leads_back() {
    let _sim = Sim::start("devices = 2");
    let mut text = [0 as c_char; 16];
    assert_eq!(cu!(cuDeviceGetPCIBusId(text.as_mut_ptr(), 16, 1)), 0);
    // SAFETY: the call above ended the text with a zero byte.
    assert_eq!(unsafe { CStr::from_ptr(text.as_ptr()) }, c"0000:02:00.0");
    let mut device = -1;
    for form in [c"0000:02:00.0", c"0000:02:00", c"02:00.0"] {
        assert_eq!(cu!(cuDeviceGetByPCIBusId(&raw mut device, form.as_ptr())), 0);
        assert_eq!(device, 1);
    }
    assert_eq!(cu!(cuDeviceGetByPCIBusId(&raw mut device, c"0000:09:00.0".as_ptr())), 101);
    assert_eq!(cu!(cuDeviceGetByPCIBusId(&raw mut device, std::ptr::null())), 1);
    assert_eq!((attribute(1, 33), attribute(1, 34), attribute(1, 50)), (Ok(2), Ok(0), Ok(0)));
}

#[test]
fn every_attribute_of_the_header_is_answered() {
    let _sim = Sim::start("devices = 2\ncapability = 8.6");
    for number in 1..=143 {
        assert!(attribute(1, number).is_ok(), "attribute {number}");
    }
    assert_eq!((attribute(0, 0), attribute(0, 144), attribute(0, 9999)), (Err(1), Err(1), Err(1)));
    assert_eq!((attribute(0, 75), attribute(0, 76)), (Ok(8), Ok(6)));
    let wanted = [(10, 32), (41, 1), (83, 1), (102, 1), (103, 1), (110, 1), (115, 1), (119, 1)];
    for (number, value) in wanted {
        assert_eq!(attribute(0, number), Ok(value), "attribute {number}");
    }
    assert_eq!((attribute(0, 128), attribute(0, 141), attribute(0, 145)), (Ok(0), Ok(1), Err(1)));
    row("cuDeviceGetAttribute: a number that is none: 1", H);
    let (mut major, mut minor) = (0, 0);
    assert_eq!(cu!(cuDeviceComputeCapability(&raw mut major, &raw mut minor, 0)), 0);
    assert_eq!((major, minor), (8, 6));
}

/// What a runtime asks before it uses a feature.
fn advertised() -> [i32; 8] {
    [102, 103, 110, 116, 124, 128, 141, 145].map(|n| attribute(0, n).expect("known"))
}

#[test]
fn what_is_lacking_is_not_advertised() {
    let _sim = Sim::start("lacks = rdma, fd, host_numa\nversion = 13000\nfabric = 1");
    assert_eq!(advertised(), [1, 0, 0, 0, 0, 1, 0, 0]);
    drop(_sim);
    let _sim = Sim::start("lacks = vmm\nversion = 13000\nfabric = 1");
    assert_eq!(advertised(), [0, 0, 0, 1, 0, 0, 0, 0]);
}

#[test]
fn what_is_refused_is_advertised_all_the_same() {
    let refuse = "refuse = vmm=801, rdma=999, fd=800, fabric=800, host_numa=800, dma_buf=801";
    let _sim = Sim::start(&format!("{refuse}\nversion = 13000\nfabric = 1"));
    assert_eq!(advertised(), [1; 8]);
    row("RDMA with virtual memory is advertised and refused in use (WSL2)", "I: pytorch#192330");
    row("fabric and fds are advertised and refused in use (containers)", "I: mscclpp#467");
}

#[test]
fn a_driver_may_refuse_to_start() {
    let _sim = Sim::configured("refuse = init=100");
    assert_eq!(cu!(cuInit(0)), 100);
    assert_eq!(cu!(cuDeviceGetCount(null_mut())), 3);
}

#[test]
fn others_are_reached_and_oneself_is_not_asked_for() {
    let _sim = Sim::start("devices = 2");
    let (mut can, mut value) = (9, 9);
    assert_eq!(cu!(cuDeviceCanAccessPeer(&raw mut can, 0, 1)), 0);
    assert_eq!(can, 1);
    assert_eq!(cu!(cuDeviceCanAccessPeer(&raw mut can, 1, 1)), 0);
    assert_eq!(can, 0);
    assert_eq!(cu!(cuDeviceCanAccessPeer(&raw mut can, 0, 2)), 101);
    assert_eq!(cu!(cuDeviceGetP2PAttribute(&raw mut value, 2, 0, 1)), 0);
    assert_eq!(value, 1);
    assert_eq!(cu!(cuDeviceGetP2PAttribute(&raw mut value, 2, 0, 0)), 101);
    assert_eq!(cu!(cuDeviceGetP2PAttribute(&raw mut value, 9, 0, 1)), 1);
    assert_eq!(cu!(cuDeviceGetP2PAttribute(null_mut(), 2, 0, 1)), 1);
    row("cuDeviceGetP2PAttribute: the same device 101, a bad attribute or null 1", H);
}
