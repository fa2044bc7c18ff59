//! The machine, the card and the driver, as results name them.

use crate::lab::Lab;
use serde_json::{Value, json};
use std::ffi::{CStr, c_char};

/// What was asked.
pub struct Machine {
    /// Whether the driver is simulated.
    pub simulated: bool,
    /// The card's name.
    pub card: String,
    /// Its memory in bytes.
    pub bytes: usize,
    /// Compute capability.
    pub capability: (i32, i32),
    /// The driver's CUDA version, such as 12080.
    pub version: i32,
    /// The kernel module's own line about itself, if there is one.
    pub module: String,
    /// Whether only one process may use the device.
    pub exclusive: bool,
    granule: usize,
}

impl Machine {
    /// Asks; what cannot be learnt is left empty.
    pub fn of(lab: &Lab) -> Machine {
        let mut name = [0 as c_char; 128];
        let (mut version, mut bytes) = (0, 0);
        lab.cuda.cuDriverGetVersion(&raw mut version);
        lab.cuda.cuDeviceTotalMem(&raw mut bytes, lab.device);
        let named = lab.cuda.cuDeviceGetName(name.as_mut_ptr(), 127, lab.device) == 0;
        // SAFETY: 128 bytes of which the last was never written, so it ends in a zero byte.
        let text = unsafe { CStr::from_ptr(name.as_ptr()) };
        let module = std::fs::read_to_string("/proc/driver/nvidia/version").unwrap_or_default();
        Machine {
            simulated: lab.simulated,
            card: if named { text.to_string_lossy().into_owned() } else { String::new() },
            bytes,
            capability: (lab.attribute(75), lab.attribute(76)),
            version,
            module: module.lines().next().unwrap_or_default().trim().to_owned(),
            exclusive: lab.attribute(20) == 3,
            granule: lab.granule,
        }
    }

    /// One line.
    pub fn line(&self) -> String {
        let what = if self.simulated { "SIMULATED, no GPU: " } else { "" };
        let (major, minor) = self.capability;
        format!(
            "{what}{}, {} MiB, capability {major}.{minor}, driver for CUDA {}.{}",
            self.card,
            self.bytes >> 20,
            self.version / 1000,
            self.version % 1000 / 10,
        )
    }

    /// As JSON.
    pub fn json(&self) -> Value {
        json!({
            "simulated": self.simulated,
            "card": self.card,
            "memory_bytes": self.bytes,
            "compute_capability": format!("{}.{}", self.capability.0, self.capability.1),
            "cuda_version": self.version,
            "kernel_module": self.module,
            "granularity": self.granule,
        })
    }
}
