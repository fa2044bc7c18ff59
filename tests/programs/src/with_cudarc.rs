//! A program on `cudarc`, unmodified and loaded at run time: its own slices and Forebay's memory
//! side by side, on streams of its own.
//!
//! Exits with 0 and prints `well` when every value is right.

use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaSlice, CudaStream};
use forebay::pool::{Buffer, Pool};

type Outcome = Result<(), Box<dyn std::error::Error>>;

fn main() -> Outcome {
    let context = CudaContext::new(0)?;
    let pool = Pool::default_pool()?;
    values_go_both_ways(&pool, &context.default_stream())?;
    let stream = context.new_stream()?;
    values_go_both_ways(&pool, &stream)?;
    streams_in_turn(&pool, &context)?;
    forebay::pool::registry::retire_stream(number(&stream))?;
    stream.synchronize()?;
    assert_eq!(pool.stats()?.live_blocks, 0, "every buffer was freed");
    println!("well");
    Ok(())
}

fn number(stream: &CudaStream) -> u64 {
    stream.cu_stream().expose_provenance() as u64
}

/// `len` values in a block of Forebay's, as cudarc sees it. cudarc would free it with CUDA: the
/// slice has to be leaked, and the buffer is what frees.
fn ours(
    pool: &Pool,
    stream: &Arc<CudaStream>,
    len: usize,
) -> Result<(Buffer, CudaSlice<u32>), Box<dyn std::error::Error>> {
    let buffer = pool.buffer(len * size_of::<u32>(), number(stream))?;
    // SAFETY: the block has room for the values, which are written before they are read.
    let slice = unsafe { stream.upgrade_device_ptr::<u32>(buffer.address() as u64, len) };
    Ok((buffer, slice))
}

/// Between host, cudarc's memory and ours.
fn values_go_both_ways(pool: &Pool, stream: &Arc<CudaStream>) -> Outcome {
    let values: Vec<u32> = (0..300_000).map(|i| i * 7).collect();
    let mut theirs = stream.clone_htod(&values)?;
    let (buffer, mut slice) = ours(pool, stream, values.len())?;
    stream.memset_zeros(&mut slice)?;
    assert_eq!(stream.clone_dtoh(&slice)?, vec![0; values.len()]);
    stream.memcpy_dtod(&theirs, &mut slice)?;
    stream.memset_zeros(&mut theirs)?;
    stream.synchronize()?;
    assert_eq!(stream.clone_dtoh(&slice)?, values);
    assert_eq!(stream.clone_dtoh(&theirs)?, vec![0; values.len()]);
    slice.leak();
    drop(buffer);
    Ok(())
}

/// Blocks on two streams, freed in their stream's order with work still queued.
fn streams_in_turn(pool: &Pool, context: &Arc<CudaContext>) -> Outcome {
    let streams = [context.new_stream()?, context.new_stream()?];
    for round in 0..100u32 {
        let stream = &streams[round as usize % 2];
        let values = vec![round; 1000 + 977 * round as usize];
        let theirs = stream.clone_htod(&values)?;
        let (buffer, mut slice) = ours(pool, stream, values.len())?;
        stream.memcpy_dtod(&theirs, &mut slice)?;
        assert_eq!(stream.clone_dtoh(&slice)?, values, "round {round}");
        slice.leak();
        drop(buffer);
    }
    for stream in &streams {
        stream.synchronize()?;
        forebay::pool::registry::retire_stream(number(stream))?;
    }
    Ok(())
}
