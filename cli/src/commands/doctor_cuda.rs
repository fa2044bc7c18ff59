//! `forebay doctor` on CUDA: the driver that is found, its devices, what it refuses.
//!
//! Owns the lines and the JSON about the driver itself. Promises that a machine whose device
//! cannot be opened is still described as far as it can be looked at. Must not make a pool.

use forebay::config::Config;
use forebay::driver::cuda::open::{Surveyed, in_words};
use forebay::driver::cuda::{self, Survey};
use forebay::pool::devices;
use serde_json::{Value, json};

use super::{Failure, say, table};

/// What was found of CUDA.
pub struct Cuda {
    survey: Survey,
    /// What the opened device refused, in order; `None` when it could not be opened.
    fallbacks: Option<Vec<String>>,
    /// Whether calls run in the device's primary context.
    primary: Option<bool>,
}

impl Cuda {
    /// Looks at the driver, and at the device that `config` names, which is open by now if it
    /// can be. `None`: there is no driver, and the error of opening says why.
    pub fn look(config: &Config) -> Option<Cuda> {
        let survey = cuda::survey(config.cuda_library.as_deref()).ok()?;
        let opened = devices::open_cuda(config).ok();
        let device = opened.as_ref().map(|opened| opened.device());
        Some(Cuda {
            survey,
            fallbacks: device.map(|d| d.fallbacks().iter().map(ToString::to_string).collect()),
            primary: device.and_then(|d| d.uses_primary_context()),
        })
    }

    /// As a part of the command's JSON object.
    pub fn json(&self) -> Value {
        let devices: Vec<Value> = self
            .survey
            .devices
            .iter()
            .enumerate()
            .map(|(ordinal, device)| {
                json!({
                    "ordinal": ordinal,
                    "name": device.name,
                    "total_bytes": device.total_bytes,
                    "compute_capability": capability(device),
                    "virtual_memory": device.virtual_memory,
                    "posix_fd": device.posix_fd,
                    "gpu_direct_rdma": device.rdma,
                    "peers": device.peers,
                })
            })
            .collect();
        json!({
            "library": self.survey.library.display().to_string(),
            "simulated": self.survey.simulated,
            "driver_version": in_words(self.survey.version),
            "missing_entry_points": self.survey.missing,
            "devices": devices,
            "fallbacks": self.fallbacks,
            "primary_context": self.primary,
        })
    }

    /// As lines.
    pub fn print(&self) -> Result<(), Failure> {
        let survey = &self.survey;
        let version = in_words(survey.version);
        say(format!("Driver:  CUDA {version}, {}", survey.library.display()))?;
        if survey.simulated {
            say("         This is the simulated driver of Forebay's tests: there is no GPU.")?;
        }
        if !survey.missing.is_empty() {
            say(format!("         It lacks {}.", survey.missing.join(", ")))?;
        }
        for (ordinal, device) in survey.devices.iter().enumerate() {
            say(format!("GPU {ordinal}:   {}", one_line(device)))?;
        }
        match &self.fallbacks {
            Some(list) if list.is_empty() => {
                say("Refused: nothing; memory is mapped page by page.")?
            }
            Some(list) => list.iter().try_for_each(|line| say(format!("Refused: {line}")))?,
            None => {}
        }
        if self.primary == Some(false) {
            say("Context: the caller's own, not the primary one.")?;
        }
        Ok(())
    }
}

fn capability(device: &Surveyed) -> String {
    let (major, minor) = device.compute_capability;
    format!("{major}.{minor}")
}

fn one_line(device: &Surveyed) -> String {
    let mut parts = vec![
        device.name.clone(),
        table::mib(device.total_bytes as u64),
        format!("compute capability {}", capability(device)),
    ];
    let can = [
        (device.virtual_memory, "virtual memory", "no virtual memory"),
        (device.posix_fd, "exports memory", "no export of memory"),
        (device.rdma, "GPUDirect RDMA", "no GPUDirect RDMA"),
    ];
    parts.extend(can.map(|(yes, with, without)| if yes { with } else { without }.to_string()));
    if !device.peers.is_empty() {
        let peers: Vec<String> = device.peers.iter().map(ToString::to_string).collect();
        parts.push(format!("reached by {}", peers.join(", ")));
    }
    parts.join(", ")
}
