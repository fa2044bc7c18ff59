//! Scenarios of memory that others use: peers, other processes, graphs.

use super::scenarios::{GRANULE, LARGE_DEVICE, checkerboard, open_with_streams};
use super::stage::{Scenario, Stage};
use forebay::driver::Call;
use forebay::error::{Error, Status};
use forebay::pool::capture;
use forebay::pool::share::close_export;
use std::os::fd::AsFd;

pub const PEERS: Scenario = Scenario {
    name: "peers",
    device: LARGE_DEVICE,
    tune: |settings| settings.limit = (26 * GRANULE) as u64,
    prepare: |stage| {
        checkerboard(stage);
        // Rows of mapped memory with gaps between them.
        stage.pool().trim((18 * GRANULE) as u64).expect("no fault yet");
    },
    act: |stage| {
        for (device, enable) in [(1, true), (2, true), (1, false), (3, true)] {
            let before = stage.pool().peers().expect("alive");
            let changed = match enable {
                true => stage.pool().enable_peer(device),
                false => stage.pool().disable_peer(device),
            };
            let after = stage.pool().peers().expect("alive");
            match changed {
                Ok(()) => assert_eq!(after.contains(&device), enable),
                Err(_) => assert_eq!(after, before, "a failure changes nothing"),
            }
            stage.alloc(2 * GRANULE, 0);
        }
    },
    kinds: &[Call::SetAccess, Call::Unmap, Call::Map],
};

/// Frees what must be freed, whatever the driver says: without faults in the end.
fn surely(stage: &Stage, mut act: impl FnMut(&Stage) -> Result<(), Error>) {
    while act(stage).is_err_and(|error| error.status() != Status::ContextLost) {
        stage.driver.clear_faults();
    }
}

fn export_and_import(stage: &mut Stage) {
    let stream = stage.streams[0];
    for bytes in [2 * GRANULE, 3 * GRANULE] {
        if !stage.alloc(bytes, stream) {
            continue;
        }
        let block = *stage.live.last().expect("just made");
        let Ok(export) = stage.pool().export(block.address) else { continue };
        assert_eq!(export.fds.len(), bytes / GRANULE);
        let fds: Vec<_> = export.fds.iter().map(AsFd::as_fd).collect();
        for _ in 0..2 {
            let Ok(import) = stage.pool().import(&fds) else { continue };
            surely(stage, |stage| stage.pool().dealloc(import, stream));
        }
        drop(export.fds);
        if bytes == 2 * GRANULE {
            // Freed before its export is closed.
            stage.free(stage.live.len() - 1, stream);
        }
        surely(stage, |_| close_export(export.id));
    }
    stage.alloc(4 * GRANULE, stream);
}

pub const EXPORT: Scenario = Scenario {
    name: "export",
    device: LARGE_DEVICE,
    tune: |settings| settings.limit = (8 * GRANULE) as u64,
    prepare: open_with_streams,
    act: export_and_import,
    kinds: &[Call::Export, Call::Import, Call::Map, Call::SetAccess, Call::Unmap, Call::Release],
};

/// What must not happen while a capture is open.
fn forbidden(stage: &Stage) -> u64 {
    let calls =
        [Call::EventRecord, Call::EventSynchronize, Call::StreamSynchronize, Call::StreamWait];
    calls.iter().map(|&call| stage.driver.count(call)).sum()
}

fn capture_two_graphs(stage: &mut Stage) {
    let (a, b) = (stage.streams[0], stage.streams[1]);
    for _ in 0..2 {
        stage.alloc(GRANULE, a);
        stage.alloc(30_000, a);
        let Ok(number) = capture::begin(a) else { continue };
        stage.driver.begin_capture(a);
        let (before, failed) = (forbidden(stage), stage.driver.injected());
        let unmaps = stage.driver.count(Call::Unmap);
        for bytes in [2000, 40_000, 2 * GRANULE] {
            stage.alloc(bytes, a);
            stage.alloc(bytes, b);
        }
        stage.free_every_second();
        stage.alloc(20 * GRANULE, b);
        if stage.pool().trim(0).is_err() {
            assert!(stage.driver.injected() > failed, "nothing to do is no failure");
        }
        assert_eq!(forbidden(stage), before, "a capture is open");
        if stage.driver.injected() == failed {
            assert_eq!(stage.driver.count(Call::Unmap), unmaps, "a capture is open");
        }
        let graph = stage.driver.end_capture(a);
        surely(stage, |_| capture::end(number));
        if capture::follow_graph(number, graph).is_ok() {
            stage.driver.end_graph(graph);
            capture::release_gone();
            // What could not be released then is when somebody comes by.
            stage.alloc(20 * GRANULE, b);
        } else {
            stage.driver.drop_graph(graph);
            surely(stage, |_| capture::release(number));
        }
    }
    while capture::any_gone() {
        stage.driver.clear_faults();
        capture::release_gone();
    }
    stage.driver.run_all();
    stage.alloc(6 * GRANULE, b);
}

pub const CAPTURE: Scenario = Scenario {
    name: "capture",
    device: LARGE_DEVICE,
    tune: |settings| settings.limit = (14 * GRANULE) as u64,
    prepare: open_with_streams,
    act: capture_two_graphs,
    kinds: &[Call::OnGraphRelease, Call::StreamCheck, Call::EventRecord, Call::EventQuery],
};
