//! The engine's own thread for the program's functions: host functions and destructors.
//!
//! Owns that thread and the mark that tells it from others. Promises that functions run one at a
//! time in the order they were handed over, on a thread where [`in_callback`] is true, so that
//! the entry wrapper can refuse driver calls made there. It must not hold a lock while one runs.
//! Cost: one channel message a function.

use std::cell::Cell;
use std::ffi::c_void;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use super::{Code, Engine, Uid};

thread_local! {
    static IN_CALLBACK: Cell<bool> = const { Cell::new(false) };
}

/// Whether the calling thread is inside a host function, stream callback or destructor of a
/// user object, where no driver call is allowed.
pub fn in_callback() -> bool {
    IN_CALLBACK.try_with(Cell::get).unwrap_or(false)
}

/// The signature of a host function and of a user object's destructor.
pub type HostFn = unsafe extern "C" fn(*mut c_void);
/// The signature of a stream callback: stream, status, the program's data.
pub type StreamCallback = unsafe extern "C" fn(*mut c_void, Code, *mut c_void);

/// A function of the program, with its data.
#[derive(Clone, Copy)]
pub struct HostCall {
    /// What to call.
    pub target: HostTarget,
    /// The program's pointer, given back to it.
    pub data: usize,
}

/// The two kinds of functions a stream can call.
#[derive(Clone, Copy)]
pub enum HostTarget {
    /// `cuLaunchHostFunc`: not called once the context has failed.
    Function(HostFn),
    /// `cuStreamAddCallback`: always called, with the context's status.
    Callback {
        /// The function.
        function: StreamCallback,
        /// The stream's handle, as the program gave it.
        stream: u64,
    },
}

enum Job {
    /// Runs a stream's function, then reports the entry as done.
    Entry { call: HostCall, status: Code, engine: Weak<Engine>, uid: Uid },
    /// Runs the destructor of a user object.
    Destructor { function: HostFn, data: usize },
}

/// The thread, started by the first job.
pub struct HostThread {
    sender: Mutex<Option<Sender<Job>>>,
}

impl HostThread {
    pub(super) fn new() -> Arc<HostThread> {
        Arc::new(HostThread { sender: Mutex::new(None) })
    }

    /// Hands over a stream's function. `status` is the context's.
    pub(super) fn entry(&self, engine: Weak<Engine>, uid: Uid, call: HostCall, status: Code) {
        self.send(Job::Entry { call, status, engine, uid });
    }

    /// Hands over a destructor.
    pub(super) fn destructor(&self, function: HostFn, data: usize) {
        self.send(Job::Destructor { function, data });
    }

    fn send(&self, job: Job) {
        let mut sender = self.sender.lock().unwrap_or_else(PoisonError::into_inner);
        let channel = sender.get_or_insert_with(start);
        if let Err(refused) = channel.send(job) {
            // The thread has ended; only a panic of the program's own function does that.
            let fresh = start();
            let _ = fresh.send(refused.0);
            *sender = Some(fresh);
        }
    }
}

fn start() -> Sender<Job> {
    let (sender, jobs) = channel::<Job>();
    let run = move || {
        IN_CALLBACK.with(|mark| mark.set(true));
        for job in jobs {
            run_job(job);
        }
    };
    // Without a thread the jobs are lost with the channel's other end, and waiters would hang:
    // there is nothing sensible to fall back to on a machine that refuses one thread.
    let _ = std::thread::Builder::new().name("simcuda-host".into()).spawn(run);
    sender
}

fn run_job(job: Job) {
    match job {
        Job::Entry { call, status, engine, uid } => {
            let data = call.data as *mut c_void;
            match call.target {
                HostTarget::Function(function) if status == 0 => {
                    // SAFETY: the program promised, by handing it to the driver, that the
                    // function may be called with this data until it has been.
                    unsafe { function(data) }
                }
                HostTarget::Function(_) => {}
                HostTarget::Callback { function, stream } => {
                    // SAFETY: as above.
                    unsafe { function(stream as *mut c_void, status, data) }
                }
            }
            if let Some(engine) = engine.upgrade() {
                engine.host_done(uid);
            }
        }
        Job::Destructor { function, data } => {
            // SAFETY: the program gave the destructor with this data at the object's creation, to
            // be called once, after the last reference has gone.
            unsafe { function(data as *mut c_void) }
        }
    }
}
