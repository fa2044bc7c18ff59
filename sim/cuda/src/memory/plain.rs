//! Plain allocations: device, host, managed.
