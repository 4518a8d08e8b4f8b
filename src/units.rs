//! Values people type: durations, quotas, sizes, secrets. Parsing says what is wrong and what would be right;
//! where in the file it stood is the caller's to add.

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

/// A text that must not be shown: its `Debug` and `Display` are masked, so that no log line or error can leak it.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Secret(String);

impl Secret {
    #[must_use]
    pub fn new(text: String) -> Self {
        Self(text)
    }

    /// The text itself; call it only where it is used as a credential.
    #[must_use]
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("***")
    }
}

impl fmt::Display for Secret {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("***")
    }
}

/// The largest number that survives in a double, and so in Lua.
pub const NUMBER_MAX: u64 = 1 << 53;

/// The longest period of a quota: ten years of 365 days.
pub const PERIOD_MAX: Duration = Duration::from_hours(3650 * 24);

/// Names of a duration's units, with their length in milliseconds.
const DURATION_UNITS: [(&str, u64); 5] = [("ms", 1), ("s", 1_000), ("m", 60_000), ("h", 3_600_000), ("d", 86_400_000)];

const SIZE_UNITS: [(&str, u64); 7] = [
    ("B", 1),
    ("KB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
];

const CALENDAR_WORDS: [&str; 4] = ["day", "week", "month", "year"];

/// What is wrong with a value and what would be right: the rest of a sentence that starts with the value. It never
/// repeats the value itself, which may come from the environment.
pub type Wrong = Cow<'static, str>;

/// A quota as written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rate {
    Unlimited,
    /// `units` may be 0.
    Per {
        units: u64,
        period: Period,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Period {
    /// Microseconds, ≥ 1000.
    Fixed(u64),
    /// `day`, `week`, `month` or `year`.
    Calendar(&'static str),
}

/// A whole number and a unit: `500ms`, `10s`, `7d`. Zero is a duration; whether it makes sense is the caller's to say.
pub fn parse_duration(text: &str) -> Result<Duration, Wrong> {
    const RIGHT: &str = "is no duration; write a whole number and a unit (ms, s, m, h, d), such as `30s`";
    let (number, unit) = split_number(text);
    if number.is_empty() {
        return Err(RIGHT.into());
    }
    if unit.is_empty() {
        return Err("has no unit; write ms, s, m, h or d after the number, such as `30s`".into());
    }
    let Some((_, unit_ms)) = DURATION_UNITS.into_iter().find(|(name, _)| *name == unit) else {
        return Err(RIGHT.into());
    };
    let duration = number.parse::<u64>().ok().and_then(|number| number.checked_mul(unit_ms)).map(Duration::from_millis);
    duration.filter(|length| *length <= PERIOD_MAX).ok_or("is longer than ten years; write at most `3650d`".into())
}

/// `20%`: whole percents, 0 to 100.
pub fn parse_percent(text: &str) -> Result<u64, Wrong> {
    let wrong = "is no part of a whole; write whole percents such as `20%`, from `0%` to `100%`";
    let number = text.strip_suffix('%').filter(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()));
    number.and_then(|digits| digits.parse().ok()).filter(|percent| *percent <= 100).ok_or_else(|| wrong.into())
}

/// A whole number and a unit: `64KiB`, `10MB`.
pub fn parse_size(text: &str) -> Result<u64, Wrong> {
    let (number, unit) = split_number(text);
    let known = SIZE_UNITS.into_iter().find(|(name, _)| *name == unit);
    let (false, Some((_, unit_bytes))) = (number.is_empty(), known) else {
        return Err(
            "is no size; write a whole number and a unit (B, KB, KiB, MB, MiB, GB, GiB), such as `64KiB`".into()
        );
    };
    let bytes = number.parse::<u64>().ok().and_then(|number| number.checked_mul(unit_bytes));
    bytes.filter(|bytes| *bytes <= NUMBER_MAX).ok_or("is too large; write at most 2^53 bytes".into())
}

/// A quota as it is written in a file: `100/1m`.
#[must_use]
pub fn rate_text(units: u64, period_us: u64) -> String {
    const UNITS: [(u64, &str); 5] =
        [(86_400_000_000, "d"), (3_600_000_000, "h"), (60_000_000, "m"), (1_000_000, "s"), (1_000, "ms")];
    let whole = UNITS.into_iter().find(|(unit, _)| period_us >= *unit && period_us.is_multiple_of(*unit));
    let (unit, name) = whole.unwrap_or((1, "us"));
    format!("{units}/{}{name}", period_us / unit)
}

/// `N/PERIOD` or `unlimited`.
pub fn parse_rate(text: &str) -> Result<Rate, Wrong> {
    if text == "unlimited" {
        return Ok(Rate::Unlimited);
    }
    let Some((number, period)) = text.split_once('/') else {
        return Err("is no quota; write a number and a period, such as `100/1m`, or `unlimited`".into());
    };
    let units = parse_units(number)?;
    Ok(Rate::Per { units, period: parse_period(period)? })
}

fn parse_units(number: &str) -> Result<u64, Wrong> {
    if number.is_empty() || !number.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err("does not start with a whole number; write a quota such as `100/1m`".into());
    }
    let units = number.parse::<u64>().ok().filter(|units| *units <= NUMBER_MAX);
    units.ok_or("has a number above 2^53 (9007199254740992); write a smaller one".into())
}

/// A duration whose leading 1 may be left out, or a calendar word.
fn parse_period(text: &str) -> Result<Period, Wrong> {
    const RIGHT: &str =
        "has no valid period; write a duration after the slash, such as `100/1m`, `100/500ms` or `100/s`";
    if let Some(word) = CALENDAR_WORDS.into_iter().find(|word| *word == text) {
        return Ok(Period::Calendar(word));
    }
    let single = DURATION_UNITS.into_iter().any(|(name, _)| name == text);
    let length = if single { parse_duration(&format!("1{text}")) } else { parse_duration(text) };
    match length {
        Ok(length) if length.is_zero() => Err("has a period of nothing; write at least `1ms` after the slash".into()),
        Ok(length) => Ok(Period::Fixed(crate::clock::micros(length))),
        Err(wrong) if wrong.starts_with("is longer") => {
            Err("has a period longer than ten years; write at most `3650d`".into())
        }
        Err(_) => Err(RIGHT.into()),
    }
}

/// As it would be typed: in the largest unit that is exact.
#[must_use]
pub fn duration_text(duration: Duration) -> String {
    typed(crate::clock::micros(duration) / 1000, &DURATION_UNITS)
}

#[must_use]
pub fn size_text(bytes: u64) -> String {
    typed(bytes, &[SIZE_UNITS[0], SIZE_UNITS[4], SIZE_UNITS[5], SIZE_UNITS[6]])
}

/// `units` in rising order; the first one is always exact.
fn typed(number: u64, units: &[(&str, u64)]) -> String {
    let exact = units.iter().rev().find(|(_, unit)| number != 0 && number.is_multiple_of(*unit));
    let (name, unit) = exact.or(units.first()).copied().unwrap_or(("", 1));
    format!("{}{name}", number / unit)
}

/// The leading decimal digits, and what follows them.
fn split_number(text: &str) -> (&str, &str) {
    text.split_at(text.bytes().take_while(u8::is_ascii_digit).count())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_whole_numbers_with_a_unit() {
        let good =
            [("0ms", 0), ("500ms", 500), ("10s", 10_000), ("1m", 60_000), ("2h", 7_200_000), ("7d", 604_800_000)];
        for (text, ms) in good {
            assert_eq!(parse_duration(text), Ok(Duration::from_millis(ms)), "{text}");
        }
        assert_eq!(parse_duration("3650d"), Ok(PERIOD_MAX));
        for text in
            ["", "30", "s", "1.5s", "-1s", "+1s", "1 s", " 1s", "1S", "1us", "1h30m", "3651d", "99999999999999999999s"]
        {
            assert!(parse_duration(text).is_err(), "{text}");
        }
    }

    #[test]
    fn sizes_know_both_families_of_units() {
        assert_eq!(parse_size("64KiB"), Ok(65_536));
        assert_eq!(parse_size("10MiB"), Ok(10 << 20));
        assert_eq!(parse_size("1MB"), Ok(1_000_000));
        assert_eq!(parse_size("0B"), Ok(0));
        for text in ["", "big", "64", "64K", "1.5MiB", "-1B", "99999999999GiB"] {
            assert!(parse_size(text).is_err(), "{text}");
        }
    }

    #[test]
    fn what_is_told_can_be_typed() {
        for (text, typed) in [("0ms", "0ms"), ("90s", "90s"), ("120s", "2m"), ("24h", "1d"), ("1500ms", "1500ms")] {
            assert_eq!(duration_text(parse_duration(text).unwrap()), typed);
        }
        for (text, typed) in [("0B", "0B"), ("8192B", "8KiB"), ("1MiB", "1MiB"), ("1000B", "1000B")] {
            assert_eq!(size_text(parse_size(text).unwrap()), typed);
        }
    }

    #[test]
    fn a_quota_is_a_number_and_a_period() {
        let per = |units, period_ms: u64| Ok(Rate::Per { units, period: Period::Fixed(period_ms * 1000) });
        assert_eq!(parse_rate("100/1m"), per(100, 60_000));
        assert_eq!(parse_rate("100/s"), per(100, 1000));
        assert_eq!(parse_rate("5/600ms"), per(5, 600));
        assert_eq!(parse_rate("5/d"), per(5, 86_400_000));
        assert_eq!(parse_rate("0/1s"), per(0, 1000));
        assert_eq!(parse_rate("9007199254740992/365d"), per(NUMBER_MAX, 365 * 86_400_000));
        assert_eq!(parse_rate("unlimited"), Ok(Rate::Unlimited));
        assert_eq!(parse_rate("7/month"), Ok(Rate::Per { units: 7, period: Period::Calendar("month") }));
        let bad = [
            "5",
            "/1m",
            "5/",
            "-5/1m",
            "0.5/1m",
            "9007199254740993/1m",
            "5/0s",
            "5/1",
            "5/3651d",
            "5 / 1m",
            "5/1m/1m",
            "Unlimited",
        ];
        for text in bad {
            assert!(parse_rate(text).is_err(), "{text}");
        }
    }
}
