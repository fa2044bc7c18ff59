//! A program on `cudarc`, unmodified, which loads the driver at run time; nothing of Forebay in it.
//!
//! Prints the bytes that the preloaded pool served, and `well` when every value is right.

mod pool;

use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaSlice, CudaStream, DevicePtr};

type Outcome = Result<(), Box<dyn std::error::Error>>;

fn main() -> Outcome {
    let context = CudaContext::new(0)?;
    let mut total = 0;
    values_go_both_ways(&context.default_stream(), &mut total)?;
    let streams = [context.new_stream()?, context.new_stream()?];
    for round in 0..60 {
        in_turn(&streams[round as usize % 2], round, &mut total)?;
    }
    on_threads(&context)?;
    for stream in &streams {
        stream.synchronize()?;
    }
    println!("served {total}\nwell");
    Ok(())
}

fn known(slice: &CudaSlice<u32>, stream: &CudaStream, total: &mut usize) {
    let (address, _used) = slice.device_ptr(stream);
    *total += pool::served(address, slice.len() * size_of::<u32>());
}

fn values_go_both_ways(stream: &Arc<CudaStream>, total: &mut usize) -> Outcome {
    let values: Vec<u32> = (0..300_000).map(|i| i * 7).collect();
    let mut slice = stream.clone_htod(&values)?;
    known(&slice, stream, total);
    let copy = slice.try_clone()?;
    known(&copy, stream, total);
    stream.memset_zeros(&mut slice)?;
    assert_eq!(stream.clone_dtoh(&copy)?, values);
    assert_eq!(stream.clone_dtoh(&slice)?, vec![0; values.len()]);
    Ok(())
}

/// A slice that is freed with its stream's work still queued, another in its place at once.
fn in_turn(stream: &Arc<CudaStream>, round: u32, total: &mut usize) -> Outcome {
    let values = vec![round; 1000 + 977 * round as usize];
    let first = stream.clone_htod(&values)?;
    known(&first, stream, total);
    let mut second = stream.alloc_zeros::<u32>(values.len())?;
    known(&second, stream, total);
    stream.memcpy_dtod(&first, &mut second)?;
    drop(first);
    let other = stream.clone_htod(&vec![!round; values.len()])?;
    known(&other, stream, total);
    assert_eq!(stream.clone_dtoh(&second)?, values, "round {round}");
    Ok(())
}

/// Threads with streams of their own; the memory of one is freed by another.
fn on_threads(context: &Arc<CudaContext>) -> Outcome {
    let made: Vec<_> = (0..3u32)
        .map(|number| {
            let context = context.clone();
            std::thread::spawn(move || {
                let stream = context.new_stream().expect("a stream");
                let slice = stream.clone_htod(&vec![number; 50_000]).expect("memory");
                stream.synchronize().expect("its work ends");
                (stream, slice)
            })
        })
        .collect();
    for (number, thread) in made.into_iter().enumerate() {
        let (stream, slice) = thread.join().map_err(|_| "a thread panicked")?;
        assert_eq!(stream.clone_dtoh(&slice)?, vec![number as u32; 50_000]);
    }
    Ok(())
}
