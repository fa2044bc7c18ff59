//! Memory nodes of graphs, and what a device holds for graphs.
//!
//! The driver's rules and the driver's structures: those of the runtime have the same layout, and
//! the numbers of attributes are the same.

use crate::entry::{export, place};
use crate::state;
use crate::types::*;
use std::ffi::c_void;

export! {
    /// Adds a node that allocates: its address stands in the parameters from now on.
    fn cudaGraphAddMemAllocNode(
        node: *mut Node, graph: Graph, after: *const Node, count: usize,
        parameters: *mut c_void,
    ) {
        let (node, parameters) = (place(node)?, place(parameters)?);
        state::ready()?.cuGraphAddMemAllocNode(node, graph, after, count, parameters)
    }

    /// An allocating node's parameters.
    fn cudaGraphMemAllocNodeGetParams(node: Node, parameters: *mut c_void) {
        state::driver()?.cuGraphMemAllocNodeGetParams(node, place(parameters)?)
    }

    /// Adds a node that frees.
    fn cudaGraphAddMemFreeNode(
        node: *mut Node, graph: Graph, after: *const Node, count: usize, at: u64,
    ) {
        state::ready()?.cuGraphAddMemFreeNode(place(node)?, graph, after, count, at)
    }

    /// The address that a node frees.
    fn cudaGraphMemFreeNodeGetParams(node: Node, at: *mut u64) {
        state::driver()?.cuGraphMemFreeNodeGetParams(node, place(at)?)
    }

    /// Gives back what a device holds for graphs that do not run.
    fn cudaDeviceGraphMemTrim(device: i32) {
        let driver = state::driver()?;
        state::checked(driver, device)?;
        driver.cuDeviceGraphMemTrim(device)
    }

    /// How much a device's graphs use and hold, 64 bits.
    fn cudaDeviceGetGraphMemAttribute(device: i32, attribute: u32, value: *mut c_void) {
        let to = place(value)?;
        let driver = state::driver()?;
        state::checked(driver, device)?;
        driver.cuDeviceGetGraphMemAttribute(device, attribute, to)
    }

    /// Sets a high-water mark back.
    fn cudaDeviceSetGraphMemAttribute(device: i32, attribute: u32, value: *mut c_void) {
        let from = place(value)?;
        let driver = state::driver()?;
        state::checked(driver, device)?;
        driver.cuDeviceSetGraphMemAttribute(device, attribute, from)
    }
}
