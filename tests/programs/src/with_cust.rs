//! A program on `cust`: its own buffers and Forebay's side by side, on one stream.
//!
//! Exits with 0 and prints `well` when every value is right.

use cust::memory::{AsyncCopyDestination, CopyDestination};
use cust::prelude::{DeviceBuffer as CustBuffer, Stream, StreamFlags};
use forebay::cust::DeviceBuffer;
use forebay::pool::Pool;

type Outcome = Result<(), Box<dyn std::error::Error>>;

fn main() -> Outcome {
    let _context = cust::quick_init()?;
    let stream = Stream::new(StreamFlags::DEFAULT, None)?;
    let pool = Pool::default_pool()?;
    values_go_both_ways(&pool, &stream)?;
    queued_work(&pool, &stream)?;
    many_buffers(&pool, &stream)?;
    stream.synchronize()?;
    assert_eq!(pool.stats()?.live_blocks, 0, "every buffer was freed");
    forebay::pool::registry::retire_stream(forebay::cust::stream_number(&stream))?;
    println!("well");
    Ok(())
}

/// Between host, cust's memory and ours.
fn values_go_both_ways(pool: &Pool, stream: &Stream) -> Outcome {
    let values: Vec<f32> = (0..100_000).map(|i| i as f32 * 0.5).collect();
    let theirs = CustBuffer::from_slice(&values)?;
    let mut ours = DeviceBuffer::from_slice(pool, &vec![0f32; values.len()], stream)?;
    assert_eq!(ours.as_host_vec()?, vec![0.0; values.len()]);
    ours.copy_from(&*theirs)?;
    assert_eq!(ours.as_host_vec()?, values);
    let mut back = CustBuffer::<f32>::zeroed(values.len())?;
    ours.copy_to(&mut *back)?;
    assert_eq!(back.as_host_vec()?, values);
    assert!(ours.as_device_ptr().as_raw().is_multiple_of(256));
    ours.set_zero()?;
    assert_eq!(ours.as_host_vec()?, vec![0.0; values.len()]);
    assert_eq!(theirs.as_host_vec()?, values, "cust's own buffer is untouched");
    Ok(())
}

/// Copies that are queued on the stream, then a free in the stream's order.
fn queued_work(pool: &Pool, stream: &Stream) -> Outcome {
    let values: Vec<u32> = (0..1 << 20).collect();
    let theirs = CustBuffer::from_slice(&values)?;
    let mut result = CustBuffer::<u32>::zeroed(values.len())?;
    for _ in 0..20 {
        // SAFETY: the buffers live until the stream is synchronised; ours is written first, and
        // its drop is ordered behind the copies.
        unsafe {
            let mut ours = DeviceBuffer::uninitialized(pool, values.len(), stream)?;
            ours.async_copy_from(&*theirs, stream)?;
            ours.async_copy_to(&mut *result, stream)?;
        }
    }
    stream.synchronize()?;
    assert_eq!(result.as_host_vec()?, values);
    Ok(())
}

/// Small ones of many sizes, checked while others come and go.
fn many_buffers(pool: &Pool, stream: &Stream) -> Outcome {
    let mut live = Vec::new();
    for i in 0..300usize {
        let values = vec![i as u16; 1 + i * 37];
        live.push((i, DeviceBuffer::from_slice(pool, &values, stream)?));
        if i % 3 == 2 {
            live.swap_remove(i % live.len());
        }
    }
    for (i, buffer) in &live {
        assert!(buffer.as_host_vec()?.iter().all(|&v| v == *i as u16), "buffer {i}");
    }
    Ok(())
}
