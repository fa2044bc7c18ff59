//! The readers of plans and instances: any bytes give what can be used, or an error that says why.

use forebay::plan::{Plan, csv, verify};

/// Reads `bytes` as a kept plan and as an instance.
pub fn read(bytes: &[u8]) {
    match Plan::from_bytes(bytes) {
        Ok(plan) => {
            let height = verify::verify(plan.buffers(), plan.offsets());
            assert_eq!(height, Ok(plan.height()), "a plan that was loaded is one");
            assert!(plan.bound() <= plan.height(), "a bound is below");
            assert_eq!(plan.to_bytes(), bytes, "the same plan, the same bytes");
        }
        Err(error) => assert!(!error.message().is_empty(), "an error says what is wrong"),
    }
    let text = String::from_utf8_lossy(bytes);
    match csv::read(&text) {
        Ok(instance) => {
            let names = instance.names.len();
            assert!(names == 0 || names == instance.buffers.len(), "a name each");
            assert!(instance.buffers.iter().all(|b| b.size > 0 && b.birth < b.death));
        }
        Err(error) => assert!(error.message().contains("line ") || !error.message().is_empty()),
    }
}
