//! The trace reader's fuzz body over mutated traces, where no nightly toolchain is.

#[path = "../../fuzz/src/trace.rs"]
mod trace;

const ALLOC: &str = "step,ev,id,bytes,stream,op\n1,a,7,4096,0,embed\n2,a,8,512,1,qkv\n\
                     3,f,7,4096,0,embed\n4,f,8,512,1,qkv\n";
const RMM: &str = "Thread,Time,Action,Pointer,Size,Stream\n1,0,allocate,0x7f00,1024,0\n\
                   1,1,free,0x7f00,1024,0\n";

fn next(state: &mut u64) -> usize {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*state >> 33) as usize
}

#[test]
fn mutated_traces_are_read_or_refused() {
    let mut state = 1;
    for round in 0..20_000 {
        let mut bytes = if round % 2 == 0 { ALLOC } else { RMM }.as_bytes().to_vec();
        for _ in 0..1 + next(&mut state) % 6 {
            let (at, other) = (next(&mut state) % bytes.len(), next(&mut state) % bytes.len());
            match next(&mut state) % 4 {
                0 => bytes[at] = next(&mut state) as u8,
                1 => bytes.swap(at, other),
                2 => bytes.truncate(at.max(1)),
                _ => bytes.extend_from_within(at.min(other)..at.max(other)),
            }
        }
        trace::read(&bytes);
    }
}

#[test]
fn the_traces_it_starts_from_are_sound() {
    for text in [ALLOC, RMM] {
        forebay_cli::trace::parse_bytes("input", text.as_bytes()).expect("a sound trace");
        trace::read(text.as_bytes());
    }
}
