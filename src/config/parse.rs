//! The grammar of values: sizes, durations, switches, words and lists.
//!
//! Owns [`Size`] and the parsers that the table of variables names. Promises that a parser
//! answers `None` for whatever it does not fully understand (overflow, empty text, trailing
//! words) and never guesses, panics or rounds up; blanks around a value and the case of its
//! letters do not matter. Must not know which variable it reads for. Cost: one pass over
//! the text.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use super::{DebugChecks, LogLevel, LogSetting, Reuse};
use crate::error::{Error, Status};

/// The accepted form of a size, as messages and the documentation say it.
pub const SIZE_FORM: &str = "a size such as 4096, 512M, 1.5GiB or 80%";

/// Thousandths of a percent in the whole.
const WHOLE: u32 = 100_000;
/// Digits accepted after the point of a size with a unit.
const FRACTION_DIGITS_MAX: usize = 9;
/// Units and their power of 1024, longest first in each pair.
const UNITS: [(&str, &str, u32); 4] =
    [("KiB", "K", 10), ("MiB", "M", 20), ("GiB", "G", 30), ("TiB", "T", 40)];

/// An amount of memory: fixed, or a share of the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Size {
    /// So many bytes.
    Bytes(u64),
    /// So many thousandths of a percent of the device, 0 to 100,000.
    Percent(u32),
}

impl Size {
    /// Reads [`SIZE_FORM`]. Units are powers of 1024; a fraction of a byte is dropped.
    pub fn parse(text: &str) -> Option<Size> {
        let text = text.trim();
        let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let (number, unit) = text.split_at(digits);
        let unit = unit.trim_start();
        if unit.is_empty() || unit.eq_ignore_ascii_case("B") {
            return integer(number).map(Size::Bytes);
        }
        if unit == "%" {
            let share = u32::try_from(scaled(number, 3, WHOLE.into(), 100)?).ok()?;
            return (share <= WHOLE).then_some(Size::Percent(share));
        }
        let is_unit = |name: &str| unit.eq_ignore_ascii_case(name);
        let (_, _, shift) =
            UNITS.into_iter().find(|(long, short, _)| is_unit(long) || is_unit(short))?;
        let bytes = scaled(number, FRACTION_DIGITS_MAX, 1 << shift, 1)?;
        u64::try_from(bytes).ok().map(Size::Bytes)
    }

    /// The amount in bytes on a device of `total` bytes, rounded down.
    pub fn resolve(self, total: u64) -> u64 {
        match self {
            Size::Bytes(bytes) => bytes,
            Size::Percent(share) => {
                let share = share.min(WHOLE);
                let bytes = u128::from(total) * u128::from(share) / u128::from(WHOLE);
                // At most `total`, since the share is at most the whole.
                bytes as u64
            }
        }
    }

    /// Whether this is more than `other` on a device of any size.
    pub(super) fn surely_exceeds(self, other: Size) -> bool {
        match (self, other) {
            (Size::Bytes(mine), Size::Bytes(other)) => mine > other,
            (Size::Percent(mine), Size::Percent(other)) => mine > other,
            _ => false,
        }
    }
}

impl fmt::Display for Size {
    /// In the largest unit that gives a whole number; [`Size::parse`] reads it back.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Size::Bytes(bytes) => {
                let whole = |shift: &u32| bytes != 0 && bytes.trailing_zeros() >= *shift;
                match UNITS.iter().rev().find(|(_, _, shift)| whole(shift)) {
                    Some((unit, _, shift)) => write!(f, "{}{unit}", bytes >> shift),
                    None => write!(f, "{bytes}"),
                }
            }
            Size::Percent(share) => {
                let fraction = format!("{:03}", share % 1000);
                let fraction = fraction.trim_end_matches('0');
                let point = if fraction.is_empty() { "" } else { "." };
                write!(f, "{}{point}{fraction}%", share / 1000)
            }
        }
    }
}

impl FromStr for Size {
    type Err = Error;

    /// [`Size::parse`] with an error that says the accepted form
    /// ([`Status::InvalidArgument`]).
    fn from_str(text: &str) -> Result<Size, Error> {
        Size::parse(text).ok_or_else(|| {
            let text: String = text.chars().take(64).collect();
            Error::new(Status::InvalidArgument, format!("{text:?} is not {SIZE_FORM}"))
        })
    }
}

/// A size above zero.
pub fn positive_size(text: &str) -> Option<Size> {
    Size::parse(text).filter(|size| !matches!(size, Size::Bytes(0) | Size::Percent(0)))
}

/// A whole number: decimal digits and nothing else.
pub fn integer(text: &str) -> Option<u64> {
    let text = text.trim();
    // `u64::from_str` alone would take a plus sign.
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    text.parse().ok()
}

/// A duration: `500ms`, `10s`, or a plain number of milliseconds.
pub fn duration(text: &str) -> Option<Duration> {
    let text = text.trim().to_ascii_lowercase();
    if let Some(number) = text.strip_suffix("ms") {
        return integer(number).map(Duration::from_millis);
    }
    if let Some(number) = text.strip_suffix('s') {
        return integer(number).map(Duration::from_secs);
    }
    integer(&text).map(Duration::from_millis)
}

/// A duration in whole milliseconds, at most `max`.
pub fn millis(text: &str, max: u32) -> Option<u32> {
    let millis = u32::try_from(duration(text)?.as_millis()).ok()?;
    (millis <= max).then_some(millis)
}

/// A switch: 1 true on yes, or 0 false off no.
pub fn switch(text: &str) -> Option<bool> {
    word(
        text,
        &[
            ("1", true),
            ("true", true),
            ("on", true),
            ("yes", true),
            ("0", false),
            ("false", false),
            ("off", false),
            ("no", false),
        ],
    )
}

/// The meaning of one of a few words.
pub fn word<T: Copy>(text: &str, words: &[(&str, T)]) -> Option<T> {
    let text = text.trim();
    words.iter().find(|(name, _)| text.eq_ignore_ascii_case(name)).map(|(_, meaning)| *meaning)
}

/// Which of `names` are listed, separated by commas; `none` alone lists none. The answer
/// has a bit per name, in order.
fn list(text: &str, names: &[&str]) -> Option<u32> {
    if text.trim().eq_ignore_ascii_case("none") {
        return Some(0);
    }
    text.split(',').try_fold(0, |found, item| {
        let index = names.iter().position(|name| item.trim().eq_ignore_ascii_case(name))?;
        Some(found | 1 << index)
    })
}

/// `poison`, `guard`, `streams` in any combination, or `none`.
pub fn debug(text: &str) -> Option<DebugChecks> {
    let found = list(text, &["poison", "guard", "streams"])?;
    Some(DebugChecks { poison: found & 1 != 0, guard: found & 2 != 0, streams: found & 4 != 0 })
}

/// The three kinds of reuse in any combination, or `none`.
pub fn reuse(text: &str) -> Option<Reuse> {
    let names = ["follow_event_dependencies", "opportunistic", "internal_dependencies"];
    let found = list(text, &names)?;
    Some(Reuse {
        follow_event_dependencies: found & 1 != 0,
        opportunistic: found & 2 != 0,
        internal_dependencies: found & 4 != 0,
    })
}

/// `level` or `level,file`. The file's name may hold commas, not be empty.
pub fn log(text: &str) -> Option<LogSetting> {
    let (level, file) = match text.split_once(',') {
        Some((level, file)) => (level, Some(file.trim())),
        None => (text, None),
    };
    if file.is_some_and(str::is_empty) {
        return None;
    }
    let level = word(
        level,
        &[
            ("off", LogLevel::Off),
            ("error", LogLevel::Error),
            ("warn", LogLevel::Warn),
            ("info", LogLevel::Info),
            ("debug", LogLevel::Debug),
            ("trace", LogLevel::Trace),
        ],
    )?;
    Some(LogSetting { level, file: file.map(PathBuf::from) })
}

/// `number` (digits, with at most `places` more behind a point) times `numerator /
/// denominator`, rounded down. Exact: no floating point is involved.
fn scaled(number: &str, places: usize, numerator: u128, denominator: u128) -> Option<u128> {
    let (whole, fraction) = match number.split_once('.') {
        Some((whole, fraction)) => (whole, Some(fraction)),
        None => (number, None),
    };
    let fraction = fraction.unwrap_or("0");
    if fraction.len() > places {
        return None;
    }
    let ten = 10u128.pow(u32::try_from(fraction.len()).ok()?);
    let units = u128::from(integer(whole)?) * ten + u128::from(integer(fraction)?);
    Some(units.checked_mul(numerator)? / (ten * denominator))
}
