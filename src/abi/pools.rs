//! Pools: options, life, limits, trim, callbacks.

use super::{PoolT, null, put};
use crate::config::{Config, DebugChecks, FreeMode, Leaks, Move, Reuse};
use crate::error::{Error, Result, Status};
use crate::pool::slow::guarded;
use crate::pool::{OnOutOfMemory, OnUnmap, Pool, Settings, registry};
use crate::pool::{devices, world};
use std::ffi::{c_char, c_void};
use std::time::Duration;

/// What a pool is to be like. Fill it with forebay_pool_options_init(), then change fields.
/// In each field but device, flags, oom_wait_ms and keeper, 0 means: as the environment says.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct PoolOptions {
    /// sizeof of this structure, as set by forebay_pool_options_init().
    pub struct_size: usize,
    /// The device's number.
    pub device: i32,
    /// No flags yet: 0.
    pub flags: u32,
    /// Hard limit in bytes.
    pub limit: u64,
    /// Soft limit in bytes: above it idle memory is given back.
    pub soft_limit: u64,
    /// Bytes mapped at start.
    pub reserve: u64,
    /// Bytes left to other users of the device.
    pub headroom: u64,
    /// Idle bytes that automatic trimming leaves in place.
    pub release_threshold: u64,
    /// Idle memory goes back after so many ms.
    pub decay: u64,
    /// Budget of caches and quarantine in bytes.
    pub cache: u64,
    /// How long an allocation may wait for pending fences before it fails, in ms.
    pub oom_wait_ms: u32,
    /// 0: no keeper thread for this pool.
    pub keeper: u32,
    /// Driver time that the keeper may take, in ms a second.
    pub keeper_budget_ms: u32,
    /// What is printed of live blocks: 1 nothing, 2 a summary, 3 every block.
    pub leaks: u32,
    /// Whether call sites are kept: 1 no, 2 yes.
    pub backtrace: u32,
    /// Costly checks, added up: 1 none, 2 poison, 4 guard, 8 streams.
    pub debug: u32,
    /// Whether freed memory is zeroed: 1 no, 2 yes.
    pub scrub: u32,
    /// When pages may move: 1 always, 2 while the device is idle, 3 never.
    pub r#move: u32,
    /// What forebay_free() means: 1 deferred, 2 sync, 3 stream.
    pub free: u32,
    /// Reuse between streams, added up: 1 none, 2 follow_event_dependencies, 4 opportunistic,
    /// 8 internal_dependencies.
    pub reuse: u32,
    /// Most idle bytes that the keeper maps ahead of demand.
    pub ahead: u64,
}

/// Fills `options` with the defaults that the environment gives.
///
/// @return FOREBAY_ERROR_INVALID_ARGUMENT for NULL, FOREBAY_ERROR_CONFIG under FOREBAY_STRICT=1.
///
/// # Safety
/// `options` is NULL or valid for the write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_pool_options_init(options: *mut PoolOptions) -> Status {
    guarded(|| {
        let config = Config::from_env()?;
        let value = PoolOptions {
            struct_size: size_of::<PoolOptions>(),
            device: config.device,
            flags: 0,
            limit: 0,
            soft_limit: 0,
            reserve: 0,
            headroom: 0,
            release_threshold: 0,
            decay: 0,
            cache: 0,
            oom_wait_ms: config.oom_wait_ms,
            keeper: u32::from(config.keeper),
            keeper_budget_ms: 0,
            leaks: 0,
            backtrace: 0,
            debug: 0,
            scrub: 0,
            r#move: 0,
            free: 0,
            reuse: 0,
            ahead: 0,
        };
        // SAFETY: as the caller promised.
        unsafe { put(options, value, "the options") }
    })
}

/// Creates a pool: reserves address space and fills the reservoir.
///
/// @param pool receives the handle; NULL on failure.
/// @param options NULL: as the environment says.
/// @return FOREBAY_ERROR_INVALID_ARGUMENT names the field; FOREBAY_ERROR_OUT_OF_MEMORY,
/// FOREBAY_ERROR_NO_DRIVER, FOREBAY_ERROR_DRIVER.
///
/// Thread-safe. End it with forebay_pool_destroy().
///
/// # Safety
/// `pool` is NULL or valid for the write; `options` is NULL or valid for reads of its struct_size.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_pool_create(
    pool: *mut PoolT,
    options: *const PoolOptions,
) -> Status {
    guarded(|| {
        // SAFETY: as the caller promised.
        unsafe {
            put(pool, std::ptr::null_mut(), "the pool")?;
            let made = create(options.as_ref())?;
            pool.write(made.into_handle() as PoolT);
        }
        Ok(())
    })
}

fn create(options: Option<&PoolOptions>) -> Result<Pool> {
    world::check_world()?;
    let mut config = Config::from_env()?;
    if let Some(o) = options {
        check(o)?;
        config.device = o.device;
    }
    crate::logging::init(&config);
    let driver = devices::open_driver(&config)?;
    let total = driver.device().total_bytes as u64;
    let mut settings = Settings::resolve(&config, total, driver.backend() == "host");
    if let Some(o) = options {
        apply(o, total, &config, &mut settings)?;
    }
    Pool::from_number(devices::create_on(config.device, driver, settings)?)
}

fn invalid(message: String) -> Error {
    Error::new(Status::InvalidArgument, message)
}

fn check(o: &PoolOptions) -> Result<()> {
    if o.struct_size < size_of::<PoolOptions>() {
        return Err(invalid(format!(
            "struct_size is {}, less than {}: fill the options with forebay_pool_options_init()",
            o.struct_size,
            size_of::<PoolOptions>()
        )));
    }
    if o.flags != 0 {
        return Err(invalid(format!("flags {:#x} are unknown; use 0", o.flags)));
    }
    Ok(())
}

fn apply(o: &PoolOptions, total: u64, config: &Config, settings: &mut Settings) -> Result<()> {
    if o.limit > total || o.headroom > total {
        return Err(invalid(format!("limit or headroom is above the device's {total} bytes")));
    }
    if o.headroom > 0 && config.limit.is_none() {
        settings.limit = total - o.headroom;
    }
    if o.limit > 0 {
        settings.limit = o.limit;
    }
    if o.limit > 0 || o.headroom > 0 {
        settings.cache = config.cache_bytes(total, settings.limit);
        settings.soft_limit = settings.soft_limit.map(|soft| soft.min(settings.limit));
        settings.reserve = settings.reserve.min(settings.limit);
    }
    if o.soft_limit > settings.limit || o.reserve > settings.limit {
        return Err(invalid(format!(
            "soft_limit or reserve is above the limit of {} bytes",
            settings.limit
        )));
    }
    let or = |value: u64, old: u64| if value > 0 { value } else { old };
    settings.soft_limit = if o.soft_limit > 0 { Some(o.soft_limit) } else { settings.soft_limit };
    settings.reserve = or(o.reserve, settings.reserve);
    settings.cache = or(o.cache, settings.cache);
    if o.decay > 0 {
        settings.decay = Duration::from_millis(o.decay);
        if config.release_threshold.is_none() {
            settings.release_threshold = 0;
        }
    }
    settings.release_threshold = or(o.release_threshold, settings.release_threshold);
    settings.ahead = or(o.ahead, settings.ahead);
    settings.oom_wait = Duration::from_millis(u64::from(o.oom_wait_ms));
    settings.keeper = o.keeper != 0;
    if o.keeper_budget_ms > 0 {
        settings.keeper_budget_ms = o.keeper_budget_ms.min(1000);
    }
    apply_policy(o, settings)
}

fn apply_policy(o: &PoolOptions, settings: &mut Settings) -> Result<()> {
    let switch = |name: &str, value: u32, old: bool| match value {
        0 => Ok(old),
        1 => Ok(false),
        2 => Ok(true),
        _ => Err(invalid(format!("{name} is {value}; 0, 1 (no) or 2 (yes) are accepted"))),
    };
    settings.backtrace = switch("backtrace", o.backtrace, settings.backtrace)?;
    settings.scrub = switch("scrub", o.scrub, settings.scrub)?;
    settings.leaks =
        choice("leaks", o.leaks, settings.leaks, [Leaks::Off, Leaks::Summary, Leaks::Full])?;
    settings.moves =
        choice("move", o.r#move, settings.moves, [Move::Always, Move::Idle, Move::Never])?;
    let modes = [FreeMode::Deferred, FreeMode::Sync, FreeMode::Stream];
    settings.free = choice("free", o.free, settings.free, modes)?;
    if o.debug > 15 || o.reuse > 15 {
        return Err(invalid(format!("debug {} or reuse {} has unknown bits", o.debug, o.reuse)));
    }
    if o.debug > 0 {
        let bit = |bit: u32| o.debug & bit != 0;
        settings.debug = DebugChecks { poison: bit(2), guard: bit(4), streams: bit(8) };
    }
    if o.reuse > 0 {
        let bit = |bit: u32| o.reuse & bit != 0;
        settings.reuse = Reuse {
            follow_event_dependencies: bit(2),
            opportunistic: bit(4),
            internal_dependencies: bit(8),
        };
    }
    Ok(())
}

fn choice<T: Copy>(name: &str, value: u32, old: T, choices: [T; 3]) -> Result<T> {
    match value {
        0 => Ok(old),
        1..=3 => Ok(choices[value as usize - 1]),
        _ => Err(invalid(format!("{name} is {value}; 0 to 3 are accepted"))),
    }
}

/// Ends a pool. Its live blocks are reported as FOREBAY_LEAKS says, and their addresses are stale
/// from now on. The caller knows that nothing on the device uses its memory any more.
///
/// @return FOREBAY_ERROR_INVALID_POOL; FOREBAY_ERROR_DRIVER when memory could not be given back:
/// the pool
/// takes no other call then, and this one may be repeated; FOREBAY_ERROR_BUSY while a graph capture
/// is open on its device. The default pool cannot be destroyed.
///
/// Thread-safe; no other call on the pool may be under way.
#[unsafe(no_mangle)]
pub extern "C" fn forebay_pool_destroy(pool: PoolT) -> Status {
    guarded(|| registry::destroy(registry::pool_number(pool as u64)?))
}

/// The default pool of a device, made at first use as the environment says.
///
/// @param device the number that FOREBAY_DEVICE gives, or 0.
///
/// Thread-safe. Not to be destroyed.
///
/// # Safety
/// `pool` is NULL or valid for the write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_pool_default(device: i32, pool: *mut PoolT) -> Status {
    guarded(|| {
        // SAFETY: as the caller promised.
        unsafe { put(pool, std::ptr::null_mut(), "the pool")? };
        let ours = Config::from_env()?.device;
        if device != ours {
            return Err(invalid(format!(
                "the default pool is device {ours}'s (FOREBAY_DEVICE); create a pool for {device}"
            )));
        }
        let made = Pool::default_pool()?;
        // SAFETY: not null, as checked by `put`.
        unsafe { pool.write(made.handle() as PoolT) };
        Ok(())
    })
}

/// Gives idle memory back to the device until the pool holds at most `keep_bytes`. All threads'
/// caches are emptied first. Does not wait: what was freed a moment ago may need another call once
/// the device has said that its fence has passed.
///
/// @param released_bytes receives what went back; may be NULL.
///
/// Thread-safe; stops other threads' fast paths for a moment.
///
/// # Safety
/// `released_bytes` is NULL or valid for the write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_pool_trim(
    pool: PoolT,
    keep_bytes: usize,
    released_bytes: *mut usize,
) -> Status {
    guarded(|| {
        let released = Pool::from_handle(pool as u64)?.trim(keep_bytes as u64)?;
        if !released_bytes.is_null() {
            // SAFETY: as the caller promised.
            unsafe { released_bytes.write(released as usize) };
        }
        Ok(())
    })
}

/// Changes a pool's limits in bytes; 0 leaves one as it is. A hard limit below what is held
/// trims what is idle at once and binds all that is asked from now on.
///
/// @return FOREBAY_ERROR_INVALID_ARGUMENT when a limit is above the device or soft above hard.
///
/// Thread-safe.
#[unsafe(no_mangle)]
pub extern "C" fn forebay_pool_set_limits(pool: PoolT, hard: u64, soft: u64) -> Status {
    guarded(|| {
        let some = |value: u64| (value > 0).then_some(value);
        Pool::from_handle(pool as u64)?.set_limits(some(hard), some(soft))
    })
}

/// Sets the function called before memory loses its place (its pages move or go back to the
/// device), with the address and length. It runs inside the pool: it must not call Forebay.
///
/// @param callback NULL: none.
///
/// # Safety
/// `callback` stays callable with `ctx` until replaced, from any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_set_on_unmap(
    pool: PoolT,
    callback: Option<unsafe extern "C" fn(ctx: *mut c_void, address: *mut c_void, bytes: usize)>,
    ctx: *mut c_void,
) -> Status {
    guarded(|| {
        let hook = callback.map(|call: OnUnmap| (call, ctx as usize));
        Pool::from_handle(pool as u64)?.set_on_unmap(hook)
    })
}

/// Sets the function called before an allocation of `bytes` fails. It holds no lock of a pool's
/// and may free; true means: try again. Inside a call that maps pages behind a KV cache, calls of
/// that memory which need its lock answer FOREBAY_ERROR_BUSY.
///
/// @param callback NULL: none.
///
/// # Safety
/// `callback` stays callable with `ctx` until replaced, from any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_set_oom_callback(
    pool: PoolT,
    callback: Option<unsafe extern "C" fn(ctx: *mut c_void, bytes: usize) -> bool>,
    ctx: *mut c_void,
) -> Status {
    guarded(|| {
        let hook = callback.map(|call: OnOutOfMemory| (call, ctx as usize));
        Pool::from_handle(pool as u64)?.set_on_out_of_memory(hook)
    })
}

/// Sets the function that receives log lines: level 1 (error) to 5 (trace) and the text. It may
/// run inside the pool: it must not call Forebay.
///
/// @param callback NULL: none.
/// @return FOREBAY_ERROR_BUSY when called from inside a callback.
///
/// # Safety
/// `callback` stays callable with `ctx` until replaced, from any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_set_log_callback(
    callback: Option<unsafe extern "C" fn(ctx: *mut c_void, level: i32, message: *const c_char)>,
    ctx: *mut c_void,
) -> Status {
    // SAFETY: as the caller promised.
    guarded(|| unsafe { crate::logging::set_callback(callback.map(|call| (call, ctx))) })
}

/// Ends all use of the library in this process: allocations answer FOREBAY_ERROR_SHUT_DOWN, frees
/// succeed silently. Calling it again is fine.
///
/// Thread-safe.
#[unsafe(no_mangle)]
pub extern "C" fn forebay_shutdown() -> Status {
    guarded(|| match world::shutdown() {
        Err(e) if e.status() == Status::ShutDown => Ok(()),
        other => other,
    })
}

/// The error for a handle that is NULL where none may be.
pub(super) fn no_handle() -> Error {
    null("the handle")
}
