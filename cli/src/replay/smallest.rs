//! The smallest device on which a trace finishes, by bisection over whole pages.
//!
//! Searches between the pages that peak live bytes need at least and the pages that an
//! uncapped run had mapped at its peak, down to one page or 0.06 % of the peak, whichever
//! is larger. Whether a trace finishes is not quite monotone in the device's size (another
//! cap places blocks elsewhere), so the answer is a size that was seen to finish, with a
//! smaller one within the step that was seen to fail; sizes further down are not ruled out.
//! Must not guess: every size it answers was played to the end. Cost: about log2(range /
//! step) replays, each on a fresh target.

use super::{Options, ReplayError, run};
use crate::progress::Progress;
use crate::target::{Target, TargetError};
use crate::trace::Trace;

/// How the search is done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Search {
    /// The device's page in bytes.
    pub page_bytes: u64,
    /// The peak of mapped bytes on a device of ample size.
    pub peak_mapped_bytes: u64,
    /// How each run is played.
    pub options: Options,
}

/// The smallest device in bytes. `open` makes a fresh target on a device of so many bytes.
///
/// Fails with the run's own error when something else than memory stops it, or when not
/// even twice the uncapped peak suffices.
pub fn smallest_device<T: Target>(
    trace: &Trace,
    search: Search,
    mut open: impl FnMut(u64) -> Result<T, TargetError>,
    progress: &mut Progress,
) -> Result<u64, ReplayError> {
    let page = search.page_bytes.max(1);
    let mut finishes = |pages: u64| -> Result<Option<ReplayError>, ReplayError> {
        let mut tried = open(pages * page).map_err(|cause| not_opened(trace, cause));
        let tried = match &mut tried {
            Ok(target) => run(trace, target, search.options, progress).err(),
            Err(error) => Some(error.clone()),
        };
        match tried {
            None => Ok(None),
            Some(error) if error.cause.oom => Ok(Some(error)),
            Some(error) => Err(error),
        }
    };
    let least = trace.peak_live_bytes.div_ceil(page).max(1);
    let step = ((trace.peak_live_bytes as f64 * 0.0006) as u64 / page).max(1);
    let mut high = search.peak_mapped_bytes.div_ceil(page).max(least);
    let most = high * 2;
    // What an uncapped run had mapped is enough, but for what a cap makes a pool do otherwise.
    while let Some(error) = finishes(high)? {
        if high >= most {
            return Err(error);
        }
        high = (high + high.div_ceil(50)).min(most);
    }
    let mut low = least - 1;
    while high - low > step {
        let middle = low + (high - low) / 2;
        match finishes(middle)? {
            None => high = middle,
            Some(_) => low = middle,
        }
    }
    Ok(high * page)
}

fn not_opened(trace: &Trace, cause: TargetError) -> ReplayError {
    let action = "make the pool".to_string();
    ReplayError { trace: trace.name.clone(), event: 0, action, cause }
}
