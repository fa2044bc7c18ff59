//! The trace reader: any bytes give a trace that can be replayed, or an error that says where.

/// Reads `bytes` as a trace file and checks what comes out.
pub fn read(bytes: &[u8]) {
    match forebay_cli::trace::parse_bytes("input", bytes) {
        Ok(trace) => replayable(&trace),
        Err(error) => assert!(!error.to_string().is_empty(), "an error says what is wrong"),
    }
}

/// Every free names a live block, no block is allocated twice, dense numbers are in range.
fn replayable(trace: &forebay_cli::trace::Trace) {
    use forebay_cli::trace::Kind;
    let mut live = vec![false; trace.ids as usize];
    for event in &trace.events {
        let id = event.id() as usize;
        assert!(event.stream() < trace.streams, "stream in range");
        match event.kind() {
            Kind::Alloc(bytes) => {
                assert!(bytes > 0 && !live[id], "allocated twice");
                live[id] = true;
            }
            Kind::Free => {
                assert!(live[id], "freed without being live");
                live[id] = false;
            }
        }
    }
}
