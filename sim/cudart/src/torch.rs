//! Kernels of PyTorch that do something here: fills and spins, by their mangled names.
//!
//! PyTorch's own tests of its allocator look at memory that `torch.full` wrote and at streams that
//! `torch.cuda._sleep` keeps busy; all its other kernels may do nothing. A fill becomes fills of
//! the driver's, with the driver's checks, so that a captured one is part of its graph. A spin is
//! a host function of the stream that sleeps: a cycle is a nanosecond. Strided fills and fills of
//! broadcast values are not known here. Names and arguments are those of PyTorch 2.13's
//! `aten/src/ATen/native/cuda` (`vectorized_elementwise_kernel(int, FillFunctor<T>, array)`) and
//! `aten/src/ATen/cuda/Sleep.cu` (`spin_kernel(int64_t)`).

use crate::control::Bodied;
use crate::driver::Driver;
use crate::launch::{FILL, Launch, of_driver};
use crate::types::*;
use std::ffi::c_void;
use std::time::Duration;

/// Longest sleep: what is beyond is a program's mistake.
const SPIN_MAX: Duration = Duration::from_secs(10);
/// Longest value: a complex number of two doubles.
const VALUE_MAX: usize = 16;

/// What a kernel of this name does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Known {
    /// Writes a value of so many bytes to each element.
    Fill(usize),
    /// Keeps the stream busy.
    Spin,
}

/// What is known of a kernel.
pub fn known(name: &str) -> Option<Known> {
    if name.contains("spin_kernel") {
        return Some(Known::Spin);
    }
    let value = name.split_once("vectorized_elementwise_kernel")?.1.split_once("FillFunctorI")?.1;
    width(value).map(Known::Fill)
}

/// The bytes of a type, by the beginning of its mangled name.
fn width(name: &str) -> Option<usize> {
    let of_c10 = [("N3c104HalfE", 2), ("N3c108BFloat16E", 2), ("N3c107complexIfE", 8)];
    let of_c10 = of_c10.iter().chain(&[("N3c107complexIdE", 16), ("N3c107complexINS", 4)]);
    if let Some((_, width)) = of_c10.into_iter().find(|(start, _)| name.starts_with(start)) {
        return Some(*width);
    }
    match name.bytes().next()? {
        b'b' | b'h' | b'a' => Some(1),
        b's' | b't' => Some(2),
        b'f' | b'i' | b'j' => Some(4),
        b'd' | b'l' | b'm' => Some(8),
        _ => None,
    }
}

unsafe extern "C" fn sleep(arguments: *mut *mut c_void, _launch: *const Launch) {
    // SAFETY: one argument of eight bytes, as `spin` says.
    let cycles = unsafe { **arguments.cast::<*mut i64>() };
    let long = Duration::from_nanos(u64::try_from(cycles).unwrap_or(0));
    std::thread::sleep(long.min(SPIN_MAX));
}

/// The body of a spin.
pub fn spin() -> Bodied {
    Bodied { body: sleep, sizes: vec![size_of::<i64>()] }
}

/// Queues a fill: bytes that are all the same, or words, in one piece, others a column of bytes at
/// a time, since the runtime asks the driver for fills of bytes alone.
///
/// # Safety
///
/// The arguments are those of the kernel: a count, a value of `width` bytes, an address.
pub unsafe fn fill(
    driver: &Driver,
    own: bool,
    launch: &Launch,
    width: usize,
    arguments: *mut *mut c_void,
) -> Answer {
    if arguments.is_null() {
        return Err(ERROR_INVALID_VALUE);
    }
    let mut value = [0u8; VALUE_MAX];
    // SAFETY: the caller's promise; no value is wider than the array.
    let (count, to) = unsafe {
        let from = (*arguments.add(1)).cast::<u8>();
        value.as_mut_ptr().copy_from_nonoverlapping(from, width);
        (**arguments.cast::<*mut i32>(), **arguments.add(2).cast::<*mut u64>())
    };
    let count = usize::try_from(count).map_err(|_| ERROR_INVALID_VALUE)?;
    let value = &value[..width];
    if value.iter().all(|byte| *byte == value[0]) {
        // SAFETY: the driver checks the range.
        return unsafe { driver.cuMemsetD8Async(own, to, value[0], count * width, launch.stream) };
    }
    let words = [value, value].concat();
    if let (2 | 4, Some(word)) = (width, words.first_chunk::<4>())
        && (count * width).is_multiple_of(4)
        && to.is_multiple_of(4)
    {
        let (mut to, mut word) = (to, u32::from_ne_bytes(*word));
        let mut count = (count * width / 4) as u64;
        let mut places = [(&raw mut to).cast(), (&raw mut word).cast(), (&raw mut count).cast()];
        // SAFETY: the arguments of this kernel of the driver's, which checks the range.
        return unsafe { of_driver(driver, own, FILL, launch, places.as_mut_ptr()) };
    }
    for (at, byte) in (to..).zip(value) {
        // SAFETY: the driver checks the range.
        unsafe { driver.cuMemsetD2D8Async(own, at, width, *byte, 1, count, launch.stream)? };
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_the_wheel_are_known() {
        let fill = |of: &str| {
            known(&format!(
                "_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_11FillFunctorI{of}EE\
                 St5arrayIPcLm1EEEEviT0_T1_"
            ))
        };
        assert_eq!(fill("f"), Some(Known::Fill(4)));
        assert_eq!(fill("b"), Some(Known::Fill(1)));
        assert_eq!(fill("l"), Some(Known::Fill(8)));
        assert_eq!(fill("N3c108BFloat16E"), Some(Known::Fill(2)));
        assert_eq!(fill("N3c107complexIdE"), Some(Known::Fill(16)));
        assert_eq!(known("_ZN2at4cuda12_GLOBAL__N_111spin_kernelEl"), Some(Known::Spin));
        let add = "_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_15CUDAFunctor_addIfEE";
        assert_eq!(known(add), None);
    }
}
