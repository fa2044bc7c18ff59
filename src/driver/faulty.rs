//! The fault-injecting driver.
