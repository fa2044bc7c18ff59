//! Devices: how many, what each is, which can reach which.

use crate::attributes;
use crate::call;
use crate::entry::{Call, enter};
use crate::types::*;
use std::ffi::{CStr, c_char};

/// This file's part of the table of calls.
pub(super) static CALLS: &[Call] = &[
    call!(cuDeviceGet, 2000).without_context(),
    call!(cuDeviceGetCount, 2000).without_context(),
    call!(cuDeviceGetName, 2000).without_context(),
    call!(cuDeviceGetUuid, 9020).without_context(),
    call!(cuDeviceGetUuid_v2, "cuDeviceGetUuid", 11040).without_context(),
    call!(cuDeviceTotalMem_v2, "cuDeviceTotalMem", 3020).without_context(),
    call!(cuDeviceGetAttribute, 2000).without_context(),
    call!(cuDeviceComputeCapability, 2000).without_context(),
    call!(cuDeviceGetPCIBusId, 4010).without_context(),
    call!(cuDeviceGetByPCIBusId, 4010).without_context(),
    call!(cuDeviceCanAccessPeer, 4000).without_context(),
    call!(cuDeviceGetP2PAttribute, 8000).without_context(),
];

/// Answers a null place with 1.
pub(crate) fn place<T>(pointer: *mut T) -> Result<*mut T, CUresult> {
    if pointer.is_null() { Err(CUDA_ERROR_INVALID_VALUE) } else { Ok(pointer) }
}

/// A device by number.
///
/// # Safety
///
/// `device` is null or a place for a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGet(device: *mut CUdevice, ordinal: i32) -> CUresult {
    enter(
        "cuDeviceGet",
        || format!("ordinal={ordinal}"),
        |world| {
            let device = place(device)?;
            let found = world.device(ordinal)?.ordinal;
            // SAFETY: not null; CUDA asks the caller for a writable place.
            unsafe { *device = found };
            Ok(())
        },
    )
}

/// How many devices there are.
///
/// # Safety
///
/// `count` is null or a place for a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetCount(count: *mut i32) -> CUresult {
    enter("cuDeviceGetCount", String::new, |world| {
        let count = place(count)?;
        // SAFETY: not null; CUDA asks the caller for a writable place.
        unsafe { *count = world.devices.len() as i32 };
        Ok(())
    })
}

/// Writes a text of at most `length` bytes, the zero byte included.
unsafe fn write_text(to: *mut c_char, length: i32, text: &str) -> Result<(), CUresult> {
    let to = place(to)?;
    let room = usize::try_from(length).ok().filter(|n| *n > 0).ok_or(CUDA_ERROR_INVALID_VALUE)?;
    let fits = text.len().min(room - 1);
    // SAFETY: `fits + 1` bytes are within the `length` bytes that the caller promises.
    unsafe {
        std::ptr::copy_nonoverlapping(text.as_ptr().cast(), to, fits);
        *to.add(fits) = 0;
    }
    Ok(())
}

/// A device's name.
///
/// # Safety
///
/// `name` is null or `length` bytes there may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetName(
    name: *mut c_char,
    length: i32,
    device: CUdevice,
) -> CUresult {
    enter(
        "cuDeviceGetName",
        || format!("device={device}, length={length}"),
        |world| {
            let ordinal = world.device(device)?.ordinal;
            // SAFETY: the caller's promise.
            unsafe { write_text(name, length, &format!("Forebay simulated GPU {ordinal}")) }
        },
    )
}

unsafe fn uuid(name: &'static str, to: *mut CUuuid, device: CUdevice) -> CUresult {
    enter(
        name,
        || format!("device={device}"),
        |world| {
            let to = place(to)?;
            let ordinal = world.device(device)?.ordinal;
            let mut bytes = *b"forebay-simcuda\0";
            bytes[15] = ordinal as u8;
            // SAFETY: not null; CUDA asks the caller for a writable place.
            unsafe { *to = CUuuid { bytes } };
            Ok(())
        },
    )
}

/// A device's identity.
///
/// # Safety
///
/// `to` is null or a place for it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetUuid(to: *mut CUuuid, device: CUdevice) -> CUresult {
    // SAFETY: the caller's promise.
    unsafe { uuid("cuDeviceGetUuid", to, device) }
}

/// A device's identity; alike, since there are no partitions here.
///
/// # Safety
///
/// `to` is null or a place for it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetUuid_v2(to: *mut CUuuid, device: CUdevice) -> CUresult {
    // SAFETY: the caller's promise.
    unsafe { uuid("cuDeviceGetUuid_v2", to, device) }
}

/// Bytes of memory of a device.
///
/// # Safety
///
/// `bytes` is null or a place for a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceTotalMem_v2(bytes: *mut usize, device: CUdevice) -> CUresult {
    enter(
        "cuDeviceTotalMem_v2",
        || format!("device={device}"),
        |world| {
            let bytes = place(bytes)?;
            world.device(device)?;
            // SAFETY: not null; CUDA asks the caller for a writable place.
            unsafe { *bytes = world.settings.memory as usize };
            Ok(())
        },
    )
}

/// An attribute of a device: 1 for a number that is none, 101 for no device.
///
/// # Safety
///
/// `value` is null or a place for a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetAttribute(
    value: *mut i32,
    attribute: u32,
    device: CUdevice,
) -> CUresult {
    let args = || format!("attribute={attribute}, device={device}");
    enter("cuDeviceGetAttribute", args, |world| {
        let value = place(value)?;
        let ordinal = world.device(device)?.ordinal;
        let found = attributes::value(&world.settings, ordinal, attribute);
        // SAFETY: not null; CUDA asks the caller for a writable place.
        unsafe { *value = found.ok_or(CUDA_ERROR_INVALID_VALUE)? };
        Ok(())
    })
}

/// The compute capability.
///
/// # Safety
///
/// `major` and `minor` are null or places for numbers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceComputeCapability(
    major: *mut i32,
    minor: *mut i32,
    device: CUdevice,
) -> CUresult {
    enter(
        "cuDeviceComputeCapability",
        || format!("device={device}"),
        |world| {
            let (major, minor) = (place(major)?, place(minor)?);
            world.device(device)?;
            // SAFETY: not null; CUDA asks the caller for writable places.
            unsafe {
                *major = world.settings.capability.0 as i32;
                *minor = world.settings.capability.1 as i32;
            }
            Ok(())
        },
    )
}

/// A device's place on the PCI bus, `domain:bus:device.function`.
///
/// # Safety
///
/// `text` is null or `length` bytes there may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetPCIBusId(
    text: *mut c_char,
    length: i32,
    device: CUdevice,
) -> CUresult {
    enter(
        "cuDeviceGetPCIBusId",
        || format!("device={device}, length={length}"),
        |world| {
            let ordinal = world.device(device)?.ordinal;
            // SAFETY: the caller's promise.
            unsafe { write_text(text, length, &bus_id(ordinal)) }
        },
    )
}

fn bus_id(ordinal: i32) -> String {
    format!("0000:{:02X}:00.0", attributes::bus(ordinal))
}

/// A device by its place on the PCI bus; with or without domain and function.
///
/// # Safety
///
/// `device` is null or a place for a number, `text` null or ended by a zero byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetByPCIBusId(
    device: *mut CUdevice,
    text: *const c_char,
) -> CUresult {
    let text = if text.is_null() {
        None
    } else {
        // SAFETY: not null; CUDA asks the caller for a string that ends in a zero byte.
        unsafe { CStr::from_ptr(text) }.to_str().ok()
    };
    enter(
        "cuDeviceGetByPCIBusId",
        || format!("text={text:?}"),
        |world| {
            let device = place(device)?;
            let text = text.ok_or(CUDA_ERROR_INVALID_VALUE)?.to_uppercase();
            let full = match text.matches(':').count() {
                1 => format!("0000:{text}"),
                _ => text,
            };
            let full = if full.contains('.') { full } else { full + ".0" };
            let found = world.devices.iter().find(|d| bus_id(d.ordinal) == full);
            // SAFETY: not null; CUDA asks the caller for a writable place.
            unsafe { *device = found.ok_or(CUDA_ERROR_INVALID_DEVICE)?.ordinal };
            Ok(())
        },
    )
}

/// Whether a device can reach another's memory: any other can, unless peers are lacking.
///
/// # Safety
///
/// `can` is null or a place for a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceCanAccessPeer(
    can: *mut i32,
    device: CUdevice,
    peer: CUdevice,
) -> CUresult {
    enter(
        "cuDeviceCanAccessPeer",
        || format!("device={device}, peer={peer}"),
        |world| {
            let can = place(can)?;
            world.device(device)?;
            world.device(peer)?;
            let yes = device != peer && world.has("peer");
            // SAFETY: not null; CUDA asks the caller for a writable place.
            unsafe { *can = i32::from(yes) };
            Ok(())
        },
    )
}

/// How well two devices reach each other: 101 for a device and itself.
///
/// # Safety
///
/// `value` is null or a place for a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetP2PAttribute(
    value: *mut i32,
    attribute: u32,
    from: CUdevice,
    to: CUdevice,
) -> CUresult {
    let args = || format!("attribute={attribute}, from={from}, to={to}");
    enter("cuDeviceGetP2PAttribute", args, |world| {
        let value = place(value)?;
        world.device(from)?;
        world.device(to)?;
        if from == to {
            return Err(CUDA_ERROR_INVALID_DEVICE);
        }
        let reach = i32::from(world.has("peer"));
        let found = match attribute {
            1 => 0,
            2 | 4 => reach,
            3 => 0,
            _ => return Err(CUDA_ERROR_INVALID_VALUE),
        };
        // SAFETY: not null; CUDA asks the caller for a writable place.
        unsafe { *value = found };
        Ok(())
    })
}
