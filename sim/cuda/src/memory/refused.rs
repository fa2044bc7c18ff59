//! Refusals: the code that a call answers, and why, for the journal and the list of misuse.

use super::os::HostError;
use crate::types::*;

/// What kind of refusal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Why {
    /// An answer that the driver's rules foresee.
    Rule,
    /// A mistake that the real driver leaves undefined; the words name its kind.
    Misuse(&'static str),
    /// The simulating machine's own limit, by name; not an answer of the driver.
    Host(HostError),
}

/// A call that is refused. It has changed nothing unless its function says so.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Refused {
    /// The result code.
    pub code: CUresult,
    /// What kind.
    pub why: Why,
    /// The reason in a sentence.
    pub text: String,
}

impl Refused {
    /// An answer that the rules foresee.
    pub fn new(code: CUresult, text: impl Into<String>) -> Refused {
        Refused { code, why: Why::Rule, text: text.into() }
    }

    /// 1, the answer to most mistakes.
    pub fn invalid(text: impl Into<String>) -> Refused {
        Refused::new(CUDA_ERROR_INVALID_VALUE, text)
    }

    /// A mistake that is recorded besides being answered.
    pub fn misuse(code: CUresult, kind: &'static str, text: impl Into<String>) -> Refused {
        Refused { code, why: Why::Misuse(kind), text: text.into() }
    }
}

/// 304, "an OS call failed": the one code that no rule of memory answers, so that the host's
/// limits are never taken for the driver's.
impl From<HostError> for Refused {
    fn from(error: HostError) -> Refused {
        let text = match error {
            HostError::MappingLimit => {
                let (limit, count) = super::os::mappings_of_process();
                format!("vm.max_map_count of this machine: {count} mappings of {limit}")
            }
            HostError::FileLimit => "RLIMIT_NOFILE of this process is reached".to_owned(),
            HostError::Memory => "this machine has no memory or address range for it".to_owned(),
            HostError::Other(code) => {
                format!("this machine refused: {}", std::io::Error::from_raw_os_error(code))
            }
        };
        Refused { code: CUDA_ERROR_OPERATING_SYSTEM, why: Why::Host(error), text }
    }
}
