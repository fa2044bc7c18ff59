//! A program on `cust`, unmodified and linked with the driver; nothing of Forebay in it.
//!
//! Prints the bytes that the preloaded pool served, and `well` when every value is right.

mod pool;

use cust::memory::{AsyncCopyDestination, CopyDestination, DeviceBuffer, UnifiedBuffer};
use cust::prelude::{Stream, StreamFlags};

type Outcome = Result<(), Box<dyn std::error::Error>>;

fn main() -> Outcome {
    let _context = cust::quick_init()?;
    let stream = Stream::new(StreamFlags::NON_BLOCKING, None)?;
    let mut total = 0;
    buffers(&mut total)?;
    ordered(&stream, &mut total)?;
    managed()?;
    stream.synchronize()?;
    println!("served {total}\nwell");
    Ok(())
}

fn known(buffer: &DeviceBuffer<u32>, total: &mut usize) {
    *total += pool::served(buffer.as_device_ptr().as_raw(), buffer.len() * size_of::<u32>());
}

/// Sizes from a few bytes on, checked while others come and go.
fn buffers(total: &mut usize) -> Outcome {
    let mut live = Vec::new();
    for i in 0..200u32 {
        let values: Vec<u32> = (0..1 + i * i).map(|word| word ^ i).collect();
        let buffer = DeviceBuffer::from_slice(&values)?;
        known(&buffer, total);
        let mut copy = DeviceBuffer::from_slice(&vec![0; values.len()])?;
        known(&copy, total);
        copy.copy_from(&buffer)?;
        live.push((values, copy));
        if i % 3 == 2 {
            live.swap_remove(i as usize % live.len());
        }
    }
    for (values, buffer) in &live {
        assert_eq!(&buffer.as_host_vec()?, values);
    }
    Ok(())
}

/// Allocated, used and freed in a stream's order, with work queued on the late stream.
fn ordered(stream: &Stream, total: &mut usize) -> Outcome {
    let values: Vec<u32> = (0..1 << 18).collect();
    let mut results = Vec::new();
    let source = DeviceBuffer::from_slice(&values)?;
    known(&source, total);
    for _ in 0..20 {
        let mut back = vec![0u32; values.len()];
        // SAFETY: the buffers live until the stream is waited for; each is written before it is
        // read, and freed behind the copies.
        unsafe {
            let mut buffer = DeviceBuffer::<u32>::uninitialized_async(values.len(), stream)?;
            known(&buffer, total);
            buffer.async_copy_from(&source, stream)?;
            buffer.async_copy_to(&mut back, stream)?;
            buffer.drop_async(stream)?;
        }
        results.push(back);
    }
    stream.synchronize()?;
    assert!(results.iter().all(|back| *back == values));
    Ok(())
}

/// Managed memory is the driver's.
fn managed() -> Outcome {
    let values: Vec<u32> = (0..10_000).collect();
    let buffer = UnifiedBuffer::from_slice(&values)?;
    assert_eq!(pool::served(buffer.as_ptr().addr() as u64, 40_000), 0);
    assert_eq!(buffer.as_slice(), values);
    Ok(())
}
