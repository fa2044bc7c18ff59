//! The `forebay_sim_*` functions beside `cu*`: configure, step, report, script.
//!
//! C ABI, callable from any thread, never counted as calls of the driver and never in the
//! journal.

use crate::journal::quote;
use crate::settings::Settings;
use crate::{faults, misuse, world};
use std::ffi::{CStr, c_char};

/// A C string, or an error when there is none.
///
/// # Safety
///
/// `text` is null or a string that ends in a zero byte.
unsafe fn text_of<'a>(text: *const c_char) -> Result<&'a str, String> {
    if text.is_null() {
        return Err("the text is a null pointer".to_owned());
    }
    // SAFETY: not null, and the caller says that it ends in a zero byte.
    unsafe { CStr::from_ptr(text) }.to_str().map_err(|e| format!("the text is no UTF-8: {e}"))
}

/// Runs what may panic, away from C.
fn guarded(run: impl FnOnce() -> Result<u64, String>) -> Result<u64, String> {
    if world::is_forked() {
        return Err("a forked child has no driver".to_owned());
    }
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(run))
        .unwrap_or_else(|_| Err("the simulation panicked".to_owned()))
}

fn answer(done: Result<u64, String>) -> i32 {
    match done {
        Ok(_) => 0,
        Err(why) => {
            eprintln!("simulated CUDA: {why}");
            1
        }
    }
}

/// Ends the world and begins another one with these settings (`name = value` lines; null or
/// empty: all defaults). Answers 0, or 1 with the reason on standard error; `cuInit` then
/// answers 1 as well.
///
/// # Safety
///
/// `text` is null or a string that ends in a zero byte; no other thread is in a call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_sim_configure(text: *const c_char) -> i32 {
    answer(guarded(|| {
        // SAFETY: the caller's promise.
        let text = if text.is_null() { Ok("") } else { unsafe { text_of(text) } };
        world::configure(text.and_then(Settings::from_text)).map(|()| 0)
    }))
}

/// Runs up to `count` pieces of queued work; answers how many ran.
#[unsafe(no_mangle)]
pub extern "C" fn forebay_sim_step(count: u32) -> u32 {
    let ran = guarded(|| {
        if !world::is_open() {
            return Ok(0);
        }
        let engine = world::lock().engine.clone();
        Ok(u64::from(engine.step(count)))
    });
    ran.unwrap_or(0) as u32
}

/// Sets the script of faults from now on; null or empty ends all faults. Answers 0, or 1 with
/// the reason on standard error and the old script kept.
///
/// # Safety
///
/// `text` is null or a string that ends in a zero byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_sim_script(text: *const c_char) -> i32 {
    answer(guarded(|| {
        // SAFETY: the caller's promise.
        let text = if text.is_null() { "" } else { unsafe { text_of(text) }? };
        world::lock().settings.faults = faults::Script::parse(text)?;
        Ok(0)
    }))
}

/// Writes the report, JSON, into `buffer` of `length` bytes, cut short and ended with a zero
/// byte if need be. Answers the length it needs, the zero byte included.
///
/// # Safety
///
/// `buffer` is null, or `length` bytes there may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_sim_report(buffer: *mut c_char, length: usize) -> usize {
    let mut text = String::new();
    let made = guarded(|| {
        text = report();
        Ok(0)
    });
    if let Err(why) = made {
        text = format!("{{\"error\":{}}}", quote(&why));
    }
    if !buffer.is_null() && length > 0 {
        let fits = text.len().min(length - 1);
        // SAFETY: `fits + 1` bytes are within the caller's buffer, which the text is not.
        unsafe {
            std::ptr::copy_nonoverlapping(text.as_ptr().cast(), buffer, fits);
            *buffer.add(fits) = 0;
        }
    }
    text.len() + 1
}

/// Answers 1: this is the simulated driver. A real one has no such function.
#[unsafe(no_mangle)]
pub extern "C" fn forebay_sim_is_simulated() -> i32 {
    1
}

/// The report: calls, time, live counts, misuse.
pub fn report() -> String {
    let (calls, counts, contexts, time_ns, error) = {
        let world = world::lock();
        let mut counts = world.memory.counts();
        counts.extend(world.engine.counts());
        let contexts = world.contexts.len() as u64;
        let error = world.settings_error.clone();
        (world.counts.clone(), counts, contexts, world.clock.now_ns(), error)
    };
    let list = |items: Vec<String>| items.join(",");
    let calls = list(calls.iter().map(|(name, n)| format!("{}:{n}", quote(name))).collect());
    let mut live: Vec<String> =
        counts.iter().map(|(name, n)| format!("{}:{n}", quote(name))).collect();
    live.push(format!("\"contexts\":{contexts}"));
    let (misuse, more) = misuse::all();
    let misuse: Vec<String> = misuse
        .iter()
        .map(|m| format!("{{\"kind\":{},\"text\":{}}}", quote(&m.kind), quote(&m.text)))
        .collect();
    format!(
        "{{\"calls\":{{{calls}}},\"time_us\":{}.{:03},\"live\":{{{}}},\"misuse\":[{}],\
         \"misuse_not_kept\":{more},\"settings_error\":{}}}",
        time_ns / 1000,
        time_ns % 1000,
        list(live),
        list(misuse),
        error.map_or("null".to_owned(), |why| quote(&why)),
    )
}

/// The report's file, and misuse on standard error, as the process ends.
pub fn write_report_at_exit() {
    let _ = guarded(|| {
        let (path, leaks) = {
            let world = world::lock();
            let leaks = world.settings.leaks.then(|| world.memory.clone());
            (world.settings.report.clone(), leaks)
        };
        if let Some(memory) = leaks {
            memory.record_leaks();
        }
        if let Some(path) = path
            && let Err(e) = std::fs::write(&path, report() + "\n")
        {
            eprintln!("simulated CUDA: report: {path}: {e}");
        }
        let (misuse, more) = misuse::all();
        for m in &misuse {
            eprintln!("simulated CUDA: misuse: {}: {}", m.kind, m.text);
        }
        if more > 0 {
            eprintln!("simulated CUDA: misuse: {more} more");
        }
        Ok(0)
    });
}
