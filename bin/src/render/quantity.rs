//! Numbers as people read them. Scripts get exact numbers from `--json` and `--format tsv`.

use std::time::Duration;

/// Returns a size in bytes with a decimal unit (1 KB = 1 000 bytes): `812 B`, `4 KB`, `1.2 GB`.
///
/// One decimal below ten, none above: two significant digits are what an eye takes in.
pub fn size(size_bytes: u64) -> String {
    const UNITS: [&str; 6] = ["KB", "MB", "GB", "TB", "PB", "EB"];
    if size_bytes < 1000 {
        return format!("{size_bytes} B");
    }
    let (number, unit) = scale(size_bytes, &UNITS);
    format!("{number} {unit}")
}

/// Returns a count in short form: `19`, `18.2k`, `3.1M`. Exact below 1 000.
pub fn count_short(count: u64) -> String {
    const UNITS: [&str; 6] = ["k", "M", "G", "T", "P", "E"];
    if count < 1000 {
        return count.to_string();
    }
    let tenths = |divisor: u64| format!("{}.{}", count / divisor, count % divisor / (divisor / 10));
    let mut divisor = 1000;
    let mut unit = UNITS[0];
    for next in &UNITS[1..] {
        if count / divisor < 1000 {
            break;
        }
        divisor *= 1000;
        unit = next;
    }
    format!("{}{unit}", tenths(divisor))
}

/// Scales `value` (at least 1 000) down by thousands; rounds to two digits where it is below ten of a unit.
fn scale(value: u64, units: &[&'static str; 6]) -> (String, &'static str) {
    let mut divisor: u128 = 1000;
    let value = u128::from(value);
    let mut unit = units[0];
    for next in &units[1..] {
        // 999.5 of a unit would round to "1000", so it already counts as the next one.
        if value * 2 < divisor * 1999 {
            break;
        }
        divisor *= 1000;
        unit = next;
    }
    let tenths = (value * 10 + divisor / 2) / divisor;
    if tenths < 100 && !tenths.is_multiple_of(10) {
        (format!("{}.{}", tenths / 10, tenths % 10), unit)
    } else {
        (((value + divisor / 2) / divisor).to_string(), unit)
    }
}

/// Returns how long something took: `0.4 ms`, `38 ms`, `0.2 s`, `41 s`, `2 min 5 s`, `2 h 11 min`, `3 d 4 h`.
pub fn duration(span: Duration) -> String {
    let micros = span.as_micros();
    let millis = (micros + 500) / 1000;
    let seconds = (millis + 500) / 1000;
    match seconds {
        _ if micros < 9_950 => format!("{}.{} ms", (micros + 50) / 1000, (micros + 50) / 100 % 10),
        _ if millis < 100 => format!("{millis} ms"),
        _ if millis < 9_950 => format!("{}.{} s", (millis + 50) / 1000, (millis + 50) / 100 % 10),
        0..60 => format!("{seconds} s"),
        60..3_600 => two(seconds / 60, "min", seconds % 60, "s"),
        3_600..86_400 => two(seconds / 3_600, "h", seconds % 3_600 / 60, "min"),
        _ => two(seconds / 86_400, "d", seconds % 86_400 / 3_600, "h"),
    }
}

/// Joins two neighbouring units, the second only when it says something.
fn two(large: u128, large_unit: &str, small: u128, small_unit: &str) -> String {
    match small {
        0 => format!("{large} {large_unit}"),
        _ => format!("{large} {large_unit} {small} {small_unit}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_two_digits_that_matter() {
        for (size_bytes, text) in [
            (0, "0 B"),
            (999, "999 B"),
            (1000, "1 KB"),
            (4096, "4.1 KB"),
            (9_949, "9.9 KB"),
            (9_951, "10 KB"),
            (999_499, "999 KB"),
            (999_500, "1 MB"),
            (82_000_000, "82 MB"),
            (1_234_567_890, "1.2 GB"),
            (u64::MAX, "18 EB"),
        ] {
            assert_eq!(size(size_bytes), text, "{size_bytes}");
        }
    }

    #[test]
    fn counts_are_exact_while_short() {
        for (count, text) in [
            (0, "0"),
            (999, "999"),
            (1000, "1.0k"),
            (18_249, "18.2k"),
            (999_999, "999.9k"),
            (1_000_000, "1.0M"),
            (u64::MAX, "18.4E"),
        ] {
            assert_eq!(count_short(count), text, "{count}");
        }
    }

    #[test]
    fn durations_name_two_units_at_most() {
        for (micros, text) in [
            (0, "0.0 ms"),
            (400, "0.4 ms"),
            (9_949, "9.9 ms"),
            (9_951, "10 ms"),
            (38_000, "38 ms"),
            (99_499, "99 ms"),
            (200_000, "0.2 s"),
            (9_949_000, "9.9 s"),
            (9_950_000, "10 s"),
            (41_000_000, "41 s"),
            (59_700_000, "1 min"),
            (125_000_000, "2 min 5 s"),
            (7_860_000_000, "2 h 11 min"),
            (273_600_000_000, "3 d 4 h"),
            (86_400_000_000, "1 d"),
        ] {
            assert_eq!(duration(Duration::from_micros(micros)), text, "{micros}");
        }
    }
}
