//! What is known of a pointer.

use crate::driver;
use crate::entry::{export, place};
use crate::state;
use std::ffi::c_void;

/// `CUpointer_attribute`: kind, address for devices, address for the host, managed, device.
const ASKED: [u32; 5] = [2, 3, 4, 8, 9];
/// `CU_MEMORYTYPE_HOST`.
const HOST: u32 = 1;
/// `cudaMemoryTypeManaged`.
const MANAGED: u32 = 3;
/// `cudaInvalidDeviceId`.
const NO_DEVICE: i32 = -2;

/// `cudaPointerAttributes`; that of CUDA 13 is followed by 64 bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct Attributes {
    kind: u32,
    device: i32,
    device_pointer: u64,
    host_pointer: u64,
}

const _: () = assert!(size_of::<Attributes>() == 24);
const RESERVED_13: usize = 64;

export! {
    /// Whose memory a pointer is, and by which addresses it is reached.
    fn cudaPointerGetAttributes(attributes: *mut c_void, at: u64) {
        let to = place(attributes)?;
        let driver = state::ready()?;
        let (mut kind, mut managed) = (0u32, 0u32);
        let (mut device_pointer, mut host_pointer) = (0u64, 0u64);
        let mut device = 0i32;
        let mut places: [*mut c_void; 5] = [
            (&raw mut kind).cast(),
            (&raw mut device_pointer).cast(),
            (&raw mut host_pointer).cast(),
            (&raw mut managed).cast(),
            (&raw mut device).cast(),
        ];
        let asked = ASKED.len() as u32;
        driver.cuPointerGetAttributes(asked, ASKED.as_ptr(), places.as_mut_ptr(), at)?;
        let known = Attributes {
            kind: if managed != 0 { MANAGED } else { kind },
            device: if kind == 0 { NO_DEVICE } else { device },
            device_pointer,
            host_pointer: if managed != 0 || kind == HOST { at } else { host_pointer },
        };
        to.cast::<Attributes>().write(known);
        if driver::is_13() {
            to.cast::<Attributes>().add(1).cast::<u8>().write_bytes(0, RESERVED_13);
        }
        Ok(())
    }
}
