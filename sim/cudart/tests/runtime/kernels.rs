//! Kernels: registered, launched, with bodies and without, in streams and in graphs.

use crate::common::*;
use std::ffi::c_void;

const ONE: Dim3 = Dim3(1, 1, 1);

/// `scale(u32 *at, u32 by, u64 count)`: multiplies, and adds the grid's width.
unsafe extern "C" fn scale(arguments: *mut *mut c_void, launch: *const c_void) {
    // SAFETY: three arguments of these types, and a launch that begins with its grid.
    unsafe {
        let at = **arguments.cast::<*mut *mut u32>();
        let by = **arguments.add(1).cast::<*mut u32>();
        let count = **arguments.add(2).cast::<*mut u64>();
        let width = *launch.cast::<u32>();
        for i in 0..count as usize {
            *at.add(i) = *at.add(i) * by + width;
        }
    }
}

const SCALE_SIZES: [usize; 3] = [8, 4, 8];

#[test]
fn a_body_runs_in_the_streams_order_on_copied_arguments() {
    let _turn = turn();
    static ADDRESS: u8 = 0;
    let name = c"test_scale_order";
    let (binary, function) = register(name, &ADDRESS);
    assert_eq!(forebay_simcudart_kernel(name.as_ptr(), Some(scale), SCALE_SIZES.as_ptr(), 3), 0);
    let (stream, out) = (stream(), pinned(2));
    let mut device = device_words(&[0, 0]);
    assert_eq!(cudaDeviceSynchronize(), 0);
    let (mut by, mut count) = (3u32, 2u64);
    let mut places =
        [(&raw mut device).cast::<c_void>(), (&raw mut by).cast(), (&raw mut count).cast()];
    let grid = Dim3(5, 1, 1);
    assert_eq!(cudaMemsetAsync(device, 1, 8, stream), 0);
    assert_eq!(cudaLaunchKernel(function, grid, ONE, places.as_mut_ptr(), 0, stream), 0);
    let second = places[1].cast::<u32>();
    let change = |value| {
        // SAFETY: the second argument's place.
        unsafe { *second = value }
    };
    change(10);
    assert_eq!(cudaLaunchKernel(function, ONE, ONE, places.as_mut_ptr(), 0, stream), 0);
    change(0);
    assert_eq!(cudaMemcpyAsync(out.as_mut_ptr() as u64, device, 8, 2, stream), 0);
    assert_eq!(cudaStreamSynchronize(stream), 0);
    let expected = (0x0101_0101u32 * 3 + 5).wrapping_mul(10).wrapping_add(1);
    assert_eq!(out, [expected; 2]);
    assert_eq!(forebay_simcudart_launches(name.as_ptr()), 2);
    __cudaUnregisterFatBinary(binary);
    assert_eq!(cudaLaunchKernel(function, ONE, ONE, places.as_mut_ptr(), 0, stream), 98);
    assert_eq!(cudaStreamDestroy(stream), 0);
    assert_eq!(cudaFree(device), 0);
    assert_eq!(cudaFreeHost(out.as_mut_ptr().cast()), 0);
}

#[test]
fn a_graph_keeps_a_bodys_arguments() {
    let _turn = turn();
    static ADDRESS: u8 = 0;
    let name = c"test_scale_graph";
    let (_, function) = register(name, &ADDRESS);
    assert_eq!(forebay_simcudart_kernel(name.as_ptr(), Some(scale), SCALE_SIZES.as_ptr(), 3), 0);
    let stream = stream();
    let mut device = device_words(&[1]);
    let kept = device;
    assert_eq!(cudaDeviceSynchronize(), 0);
    let (mut by, mut count) = (2u32, 1u64);
    let mut places =
        [(&raw mut device).cast::<c_void>(), (&raw mut by).cast(), (&raw mut count).cast()];
    assert_eq!(cudaStreamBeginCapture(stream, 0), 0);
    let config = LaunchConfig { grid: ONE, block: ONE, shared: 0, stream, attributes: 0, count: 0 };
    assert_eq!(cudaLaunchKernelExC(&config, function, places.as_mut_ptr()), 0);
    let (mut graph, mut exec) = (0, 0);
    assert_eq!(cudaStreamEndCapture(stream, &mut graph), 0);
    // SAFETY: the arguments' places.
    unsafe {
        *places[0].cast::<u64>() = 0;
        *places[2].cast::<u64>() = 0;
    }
    assert_eq!(cudaGraphInstantiate(&mut exec, graph, 0), 0);
    assert_eq!(cudaGraphDestroy(graph), 0);
    for _ in 0..3 {
        assert_eq!(cudaGraphLaunch(exec, stream), 0);
    }
    assert_eq!(cudaStreamSynchronize(stream), 0);
    assert_eq!(words_of(kept, 1), [15], "1, then three times twice and one more");
    assert_eq!(cudaGraphExecDestroy(exec), 0);
    assert_eq!(cudaStreamDestroy(stream), 0);
    assert_eq!(cudaFree(kept), 0);
}

#[test]
fn the_drivers_own_kernels_and_unknown_ones_are_queued() {
    let _turn = turn();
    static FILL: u8 = 0;
    static OTHER: u8 = 0;
    let (_, fill) = register(c"fill_u32", &FILL);
    let (_, other) = register(c"_Z5otherPfi", &OTHER);
    let stream = stream();
    let mut device = device_words(&[0, 0, 0]);
    assert_eq!(cudaDeviceSynchronize(), 0);
    let (mut value, mut count) = (0xABCDu32, 2u64);
    let mut places =
        [(&raw mut device).cast::<c_void>(), (&raw mut value).cast(), (&raw mut count).cast()];
    assert_eq!(cudaStreamBeginCapture(stream, 0), 0);
    assert_eq!(cudaLaunchKernel(fill, ONE, ONE, places.as_mut_ptr(), 0, stream), 0);
    assert_eq!(cudaLaunchKernel(other, ONE, ONE, std::ptr::null_mut(), 0, stream), 0);
    let (mut graph, mut exec, mut nodes) = (0, 0, 0);
    assert_eq!(cudaStreamEndCapture(stream, &mut graph), 0);
    assert_eq!((cudaGraphGetNodes(graph, std::ptr::null_mut(), &mut nodes), nodes), (0, 2));
    assert_eq!(cudaGraphInstantiate(&mut exec, graph, 0), 0);
    assert_eq!(cudaGraphLaunch(exec, stream), 0);
    assert_eq!(cudaStreamSynchronize(stream), 0);
    assert_eq!(words_of(device, 3), [0xABCD, 0xABCD, 0]);
    assert_eq!(cudaLaunchKernel(other, ONE, ONE, std::ptr::null_mut(), 0, stream), 0);
    assert_eq!(cudaStreamQuery(stream), 600, "it is an entry of the stream");
    assert_eq!(cudaStreamSynchronize(stream), 0);
    assert_eq!(forebay_simcudart_launches(c"_Z5otherPfi".as_ptr()), 2);
    assert_eq!(cudaGraphExecDestroy(exec), 0);
    assert_eq!(cudaGraphDestroy(graph), 0);
    assert_eq!(cudaStreamDestroy(stream), 0);
    assert_eq!(cudaFree(device), 0);
}

/// Launches PyTorch's fill of this type, and gives the words that it has written to.
fn filled(of: &'static str, value: &[u8], count: i32, words: usize) -> Vec<u32> {
    let name = format!("_Z29vectorized_elementwise_kernelILi4ENS0_11FillFunctorI{of}EE");
    let name = std::ffi::CString::new(name).expect("no zero");
    let function = of.as_ptr() as u64;
    let binary = __cudaRegisterFatBinary(std::ptr::null_mut());
    let none = std::ptr::null_mut();
    __cudaRegisterFunction(binary, function, none, name.as_ptr(), -1, none, none, none, none, none);
    let (mut device, mut count) = (device_words(&vec![0; words]), count);
    let mut value = value.to_vec();
    let mut places =
        [(&raw mut count).cast::<c_void>(), value.as_mut_ptr().cast(), (&raw mut device).cast()];
    assert_eq!(cudaLaunchKernel(function, ONE, ONE, places.as_mut_ptr(), 0, 0), 0);
    assert_eq!(cudaDeviceSynchronize(), 0);
    let found = words_of(device, words);
    __cudaUnregisterFatBinary(binary);
    assert_eq!(cudaFree(device), 0);
    found
}

#[test]
fn fills_of_pytorchs_write_every_element_and_no_more() {
    let _turn = turn();
    assert_eq!(filled("f", &1.5f32.to_ne_bytes(), 2, 3), [0x3fc0_0000, 0x3fc0_0000, 0]);
    let long = 0x0102_0304_0506_0708u64.to_ne_bytes();
    let words = [0x0506_0708, 0x0102_0304];
    assert_eq!(filled("l", &long, 2, 5), [words[0], words[1], words[0], words[1], 0]);
    assert_eq!(filled("N3c108BFloat16E", &[0xc0, 0x3f], 3, 2), [0x3fc0_3fc0, 0x3fc0]);
    assert_eq!(filled("b", &[1], 5, 2), [0x0101_0101, 1]);
    assert_eq!(filled("d", &[0; 8], 1, 3), [0, 0, 0]);
}

#[test]
fn pytorchs_spin_keeps_its_stream_busy() {
    let _turn = turn();
    static ADDRESS: u8 = 0;
    let (binary, function) = register(c"_ZN2at4cuda11spin_kernelEl", &ADDRESS);
    let stream = stream();
    let mut cycles = 1_000_000i64;
    let mut places = [(&raw mut cycles).cast::<c_void>()];
    assert_eq!(cudaLaunchKernel(function, ONE, ONE, places.as_mut_ptr(), 0, stream), 0);
    assert_eq!(cudaStreamQuery(stream), 600);
    assert_eq!(cudaStreamSynchronize(stream), 0);
    assert_eq!(cudaStreamDestroy(stream), 0);
    __cudaUnregisterFatBinary(binary);
}

#[test]
fn shapes_are_checked_and_shared_memory_is_asked_for() {
    let mut turn = turn();
    turn.misuses();
    static ADDRESS: u8 = 0;
    let (_, function) = register(c"test_shapes", &ADDRESS);
    let none = std::ptr::null_mut();
    assert_eq!(cudaLaunchKernel(1, ONE, ONE, none, 0, 0), 98);
    assert_eq!(cudaLaunchKernel(function, Dim3(0, 1, 1), ONE, none, 0, 0), 9);
    assert_eq!(cudaLaunchKernel(function, ONE, Dim3(1025, 1, 1), none, 0, 0), 9);
    assert_eq!(cudaLaunchKernel(function, ONE, ONE, none, 64 << 10, 0), 1);
    assert_eq!(cudaFuncSetAttribute(function, 8, 64 << 10), 0);
    assert_eq!(cudaLaunchKernel(function, ONE, ONE, none, 64 << 10, 0), 0);
    assert_eq!(cudaFuncSetAttribute(function, 8, 1 << 30), 1);
    assert_eq!(cudaLaunchKernel(function, ONE, Dim3(1, 1, 65), none, 0, 0), 9);
    assert_eq!(cudaLaunchKernel(function, ONE, Dim3(16, 1, 64), none, 0, 0), 0);
    assert_eq!(cudaLaunchKernel(function, Dim3(1 << 31, 1, 1), ONE, none, 0, 0), 9);
    assert_eq!(cudaLaunchKernel(function, Dim3((1 << 31) - 1, 1, 1), ONE, none, 0, 0), 0);
    assert_eq!(cudaLaunchKernel(function, Dim3(1, 65_536, 1), ONE, none, 0, 0), 9);
    assert_eq!(cudaLaunchKernel(function, ONE, ONE, none, 0, 0x1234), 400);
    let launches = forebay_simcudart_launches(c"test_shapes".as_ptr());
    assert_eq!(launches, 3, "what was refused is none");
    assert_eq!(cudaDeviceSynchronize(), 0);
    let mut attributes = [-1; 36];
    assert_eq!(cudaFuncGetAttributes(&mut attributes, function), 0);
    assert_eq!((attributes[6], attributes[8], attributes[11]), (1024, 90, 64 << 10));
    let mut blocks = 0;
    assert_eq!(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&mut blocks, function, 256, 0), 0);
    assert_eq!(blocks, 8);
    assert_eq!(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&mut blocks, 1, 256, 0), 98);
}

#[test]
fn blocks_that_wait_for_each_other_must_all_fit() {
    let _turn = turn();
    static ADDRESS: u8 = 0;
    let (_, function) = register(c"test_together", &ADDRESS);
    let (mut each, mut processors) = (0, 0);
    assert_eq!(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&mut each, function, 256, 0), 0);
    assert_eq!(cudaDeviceGetAttribute(&mut processors, 16, 0), 0);
    let most = (each * processors) as u32;
    let launch = |blocks| {
        let block = Dim3(256, 1, 1);
        let none = std::ptr::null_mut();
        cudaLaunchCooperativeKernel(function, Dim3(blocks, 1, 1), block, none, 0, 0)
    };
    assert_eq!((launch(most), launch(most + 1), launch(0)), (0, 720, 9));
    assert_eq!(cudaDeviceSynchronize(), 0);
}

#[test]
fn a_body_in_the_legacy_stream_ends_a_capture_of_a_blocking_one() {
    let mut turn = turn();
    turn.misuses();
    static ADDRESS: u8 = 0;
    let name = c"test_implicit";
    let (_, function) = register(name, &ADDRESS);
    assert_eq!(forebay_simcudart_kernel(name.as_ptr(), Some(spend), [8, 4].as_ptr(), 2), 0);
    let (mut at, mut value, mut stream, mut graph) = (0u64, 0u32, 0, 9);
    let mut places = [(&raw mut at).cast::<c_void>(), (&raw mut value).cast()];
    assert_eq!(cudaStreamCreate(&mut stream), 0);
    assert_eq!(cudaStreamBeginCapture(stream, 0), 0);
    assert_eq!(cudaLaunchKernel(function, ONE, ONE, places.as_mut_ptr(), 0, 0), 906);
    assert_eq!((cudaStreamEndCapture(stream, &mut graph), graph), (901, 0));
    assert_eq!(forebay_simcudart_launches(name.as_ptr()), 0);
    assert_eq!(cudaStreamDestroy(stream), 0);
}

/// `spend(u32 *at, u32 value)`: writes the value and uses its own copy of it up.
unsafe extern "C" fn spend(arguments: *mut *mut c_void, _launch: *const c_void) {
    // SAFETY: two arguments of these types.
    unsafe {
        let value = *arguments.add(1).cast::<*mut u32>();
        let at = **arguments.cast::<*mut *mut u32>();
        *at += *value;
        *value = 0;
    }
}

#[test]
fn what_a_body_does_to_its_arguments_is_gone_with_the_launch() {
    let _turn = turn();
    static ADDRESS: u8 = 0;
    let (_, function) = register(c"test_spend", &ADDRESS);
    let sizes = [8, 4];
    let named = forebay_simcudart_kernel(c"test_spend".as_ptr(), Some(spend), sizes.as_ptr(), 2);
    assert_eq!(named, 0);
    let stream = stream();
    let mut device = device_words(&[0]);
    let mut value = 5u32;
    assert_eq!(cudaDeviceSynchronize(), 0);
    let mut places = [(&raw mut device).cast::<c_void>(), (&raw mut value).cast()];
    let (mut graph, mut exec) = (0, 0);
    assert_eq!(cudaStreamBeginCapture(stream, 0), 0);
    assert_eq!(cudaLaunchKernel(function, ONE, ONE, places.as_mut_ptr(), 0, stream), 0);
    assert_eq!(cudaStreamEndCapture(stream, &mut graph), 0);
    assert_eq!(cudaGraphInstantiate(&mut exec, graph, 0), 0);
    for _ in 0..3 {
        assert_eq!(cudaGraphLaunch(exec, stream), 0);
    }
    assert_eq!(cudaStreamSynchronize(stream), 0);
    assert_eq!(words_of(device, 1), [15]);
    assert_eq!(cudaGraphExecDestroy(exec), 0);
    assert_eq!(cudaGraphDestroy(graph), 0);
    assert_eq!(cudaStreamDestroy(stream), 0);
    assert_eq!(cudaFree(device), 0);
}

#[test]
fn a_launchs_shape_waits_on_its_thread() {
    let _turn = turn();
    let (mut grid, mut block, mut shared, mut stream) = (ONE, ONE, 0, 0);
    let mut pop = |expected| {
        let code = __cudaPopCallConfiguration(&mut grid, &mut block, &mut shared, &mut stream);
        assert_eq!(code, expected);
        (grid, block, shared, stream)
    };
    assert_eq!(__cudaPushCallConfiguration(Dim3(2, 3, 4), Dim3(5, 6, 7), 8, 9), 0);
    assert_eq!(__cudaPushCallConfiguration(ONE, ONE, 1, 1), 0);
    assert_eq!(pop(0), (ONE, ONE, 1, 1));
    assert_eq!(pop(0), (Dim3(2, 3, 4), Dim3(5, 6, 7), 8, 9));
    pop(52);
}

#[test]
fn a_variables_first_copy_is_behind_its_zeros_whatever_its_stream() {
    let _turn = turn();
    static VARIABLE: u8 = 0;
    let (binary, symbol) = variable(&VARIABLE);
    let (stream, value) = (stream(), pinned(1));
    value[0] = 7;
    let from = value.as_ptr() as u64;
    assert_eq!(cudaMemcpyToSymbolAsync(symbol, from, 4, 0, 1, stream), 0);
    assert_eq!(cudaStreamSynchronize(stream), 0);
    assert_eq!(cudaDeviceSynchronize(), 0);
    let mut back = [9u32; 4];
    assert_eq!(cudaMemcpyFromSymbol(back.as_mut_ptr() as u64, symbol, 16, 0, 2), 0);
    assert_eq!(back, [7, 0, 0, 0]);
    __cudaUnregisterFatBinary(binary);
    assert_eq!(cudaStreamDestroy(stream), 0);
    assert_eq!(cudaFreeHost(value.as_mut_ptr().cast()), 0);
}

#[test]
fn a_variable_may_be_used_first_in_a_capture() {
    let _turn = turn();
    static VARIABLE: u8 = 0;
    let (binary, symbol) = variable(&VARIABLE);
    let (value, mut stream) = (pinned(1), 0);
    value[0] = 8;
    // A blocking stream: nothing may touch the legacy one meanwhile.
    assert_eq!(cudaStreamCreate(&mut stream), 0);
    let (mut graph, mut exec) = (0, 0);
    assert_eq!(cudaStreamBeginCapture(stream, 0), 0);
    let from = value.as_ptr() as u64;
    assert_eq!(cudaMemcpyToSymbolAsync(symbol, from, 4, 12, 1, stream), 0);
    assert_eq!(cudaStreamEndCapture(stream, &mut graph), 0);
    assert_eq!(cudaGraphInstantiate(&mut exec, graph, 0), 0);
    assert_eq!(cudaGraphLaunch(exec, stream), 0);
    assert_eq!(cudaStreamSynchronize(stream), 0);
    let mut back = [9u32; 4];
    assert_eq!(cudaMemcpyFromSymbol(back.as_mut_ptr() as u64, symbol, 16, 0, 2), 0);
    assert_eq!(back, [0, 0, 0, 8]);
    assert_eq!(cudaGraphExecDestroy(exec), 0);
    assert_eq!(cudaGraphDestroy(graph), 0);
    __cudaUnregisterFatBinary(binary);
    assert_eq!(cudaStreamDestroy(stream), 0);
    assert_eq!(cudaFreeHost(value.as_mut_ptr().cast()), 0);
}

#[test]
fn a_variable_has_memory_on_each_device() {
    let mut turn = turn();
    turn.misuses();
    static VARIABLE: u8 = 0;
    let (binary, symbol) = variable(&VARIABLE);
    let (mut bytes, mut here, mut there) = (0, 0, 0);
    assert_eq!((cudaGetSymbolSize(&mut bytes, symbol), bytes), (0, 16));
    assert_eq!(cudaGetSymbolSize(&mut bytes, 1), 13);
    let value = 0x55u32;
    let from = std::ptr::from_ref(&value) as u64;
    assert_eq!(cudaMemcpyToSymbol(symbol, from, 4, 8, 1), 0);
    assert_eq!(cudaMemcpyToSymbol(symbol, from, 4, 13, 1), 1);
    assert_eq!(cudaMemcpyToSymbol(symbol, from, 4, 8, 2), 21, "from a device to the host");
    assert_eq!(cudaMemcpyFromSymbol(from, symbol, 4, 8, 1), 21);
    assert_eq!(cudaMemcpyFromSymbol(from, symbol, 4, 8, 0), 21);
    let mut back = [9u32; 4];
    assert_eq!(cudaMemcpyFromSymbol(back.as_mut_ptr() as u64, symbol, 16, 0, 2), 0);
    assert_eq!(back, [0, 0, 0x55, 0]);
    assert_eq!(cudaGetSymbolAddress(&mut here, symbol), 0);
    assert_eq!(cudaSetDevice(1), 0);
    assert_eq!(cudaGetSymbolAddress(&mut there, symbol), 0);
    assert_ne!(here, there);
    assert_eq!(words_of(there, 4), [0; 4]);
    __cudaUnregisterFatBinary(binary);
    assert_eq!(cudaGetSymbolAddress(&mut there, symbol), 13);
    let mut device = 9;
    assert_eq!((cudaGetDevice(&mut device), device), (0, 1), "the current one stays");
    assert_eq!((cudaFree(there), cudaFree(here)), (1, 1), "gone with the binary");
    assert_eq!(cudaSetDevice(0), 0);
}
