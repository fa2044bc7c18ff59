//! Plans by number, for programs that hold them through the C API.
//!
//! Owns every such plan until it is let go; see [`Handles`] for what that promises. Cost: a short
//! lock a call.

use super::Plan;
use crate::base::handles::Handles;
use crate::error::Result;
use std::sync::Arc;

static PLANS: Handles<Plan> = Handles::new("plan");

/// Keeps a plan; its number, never 0.
///
/// # Errors
/// As [`Handles::keep`].
pub fn keep(plan: Plan) -> Result<u64> {
    PLANS.keep(Arc::new(plan))
}

/// The plan with this number.
///
/// # Errors
/// As [`Handles::get`].
pub fn get(number: u64) -> Result<Arc<Plan>> {
    PLANS.get(number)
}

/// Lets a plan go.
///
/// # Errors
/// As [`Handles::let_go`].
pub fn let_go(number: u64) -> Result<()> {
    PLANS.let_go(number).map(drop)
}
