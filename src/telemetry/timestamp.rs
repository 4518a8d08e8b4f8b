//! Moments as people and machines read them in a log: RFC 3339, UTC, with microseconds.

use crate::clock::Micros;

const DAY_S: u64 = 86_400;

/// Appends `2026-11-30T22:21:38.123456Z`.
pub fn write(out: &mut Vec<u8>, wall_us: Micros) {
    let seconds = wall_us / 1_000_000;
    let (year, month, day) = civil(seconds / DAY_S);
    let second = seconds % DAY_S;
    decimal(out, year, 4);
    for (mark, value) in
        [(b'-', month), (b'-', day), (b'T', second / 3600), (b':', second / 60 % 60), (b':', second % 60)]
    {
        out.push(mark);
        decimal(out, value, 2);
    }
    out.push(b'.');
    decimal(out, wall_us % 1_000_000, 6);
    out.push(b'Z');
}

#[must_use]
pub fn text(wall_us: Micros) -> String {
    let mut out = Vec::with_capacity(27);
    write(&mut out, wall_us);
    String::from_utf8(out).unwrap_or_default()
}

/// Year, month and day of a day since 1970-01-01, by Howard Hinnant's `civil_from_days`: years begin in March, so that the
/// leap day is the last of one.
fn civil(days: u64) -> (u64, u64, u64) {
    let shifted = days + 719_468;
    let (era, of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    (year_of_era + era * 400 + u64::from(month <= 2), month, day)
}

/// Appends a number with leading zeros.
pub(super) fn decimal(out: &mut Vec<u8>, value: u64, width: usize) {
    let mut buffer = itoa::Buffer::new();
    let digits = buffer.format(value).as_bytes();
    out.extend(std::iter::repeat_n(b'0', width.saturating_sub(digits.len())));
    out.extend_from_slice(digits);
}

#[cfg(test)]
mod tests {
    use super::text;

    #[test]
    fn moments_read_as_the_calendar_has_them() {
        for (seconds, expected) in [
            (0, "1970-01-01T00:00:00"),
            (951_782_399, "2000-02-28T23:59:59"),
            (951_782_400, "2000-02-29T00:00:00"),
            (1_709_164_800, "2024-02-29T00:00:00"),
            (1_735_689_599, "2024-12-31T23:59:59"),
            (1_796_060_460, "2026-11-30T17:41:00"),
            (4_107_542_400, "2100-03-01T00:00:00"),
        ] {
            assert_eq!(text(seconds * 1_000_000 + 42), format!("{expected}.000042Z"));
        }
    }

    #[test]
    fn moments_agree_with_the_dates_of_http() {
        for day in 0..50_000 {
            let moment = std::time::UNIX_EPOCH + std::time::Duration::from_secs(day * 86_400);
            let http = httpdate::fmt_http_date(moment);
            let text = text(day * 86_400_000_000);
            assert_eq!((&http[5..7], &http[12..16]), (&text[8..10], &text[0..4]), "{http} {text}");
        }
    }
}
