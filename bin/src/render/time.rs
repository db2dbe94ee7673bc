//! Instants for people: relative when near, absolute and local when far. Programs get UTC.

use jiff::tz::TimeZone;
use jiff::{Timestamp, ToSpan, ZonedDateTime};

use super::quantity::duration;

/// Past this an instant is shown by its calendar day instead of by its distance.
const NEAR_S: i64 = 6 * 3_600;

/// Returns an instant in UTC milliseconds as RFC 3339 with `Z`, milliseconds only where there are any.
///
/// An instant outside of what a calendar can hold (years -9999 to 9999) is returned as the bare number.
pub fn utc(at_ms: i64) -> String {
    Timestamp::from_millisecond(at_ms).map_or_else(|_| at_ms.to_string(), |instant| instant.to_string())
}

/// Returns the local minute, for sentences that need the full date: `2026-11-27 17:03`.
pub fn exact_local(at_ms: i64, zone: &TimeZone) -> String {
    match zoned(at_ms, zone) {
        Some(local) => local.strftime("%Y-%m-%d %H:%M").to_string(),
        None => at_ms.to_string(),
    }
}

/// Returns an instant as a person would say it at `now_ms`.
///
/// Near: `just now`, `2 min ago`, `in 2 h 11 min`. The day before or after: `yesterday 18:40`, `tomorrow 07:00`. Within a
/// week ahead: `Tue 1 Dec 07:00`. Else the day: `28 Nov`, with the year where it is another one.
pub fn near(at_ms: i64, now_ms: i64, zone: &TimeZone) -> String {
    let (Some(at), Some(now)) = (zoned(at_ms, zone), zoned(now_ms, zone)) else {
        return at_ms.to_string();
    };
    let distance_ms = at_ms.saturating_sub(now_ms);
    let distance_s = distance_ms.unsigned_abs() / 1000;
    if distance_s < 5 {
        return "just now".to_owned();
    }
    if distance_s.cast_signed() < NEAR_S {
        let words = duration_words(distance_s);
        return if distance_ms < 0 { format!("{words} ago") } else { format!("in {words}") };
    }
    let day = |days: i64| now.date().checked_add(days.days()).ok();
    let time = at.strftime("%H:%M");
    let date = Some(at.date());
    if date == day(0) {
        format!("today {time}")
    } else if date == day(-1) {
        format!("yesterday {time}")
    } else if date == day(1) {
        format!("tomorrow {time}")
    } else if distance_ms > 0 && day(7).is_some_and(|last| at.date() < last) {
        at.strftime("%a %-d %b %H:%M").to_string()
    } else if at.year() == now.year() {
        at.strftime("%-d %b").to_string()
    } else {
        at.strftime("%-d %b %Y").to_string()
    }
}

/// Returns a distance in whole seconds with one unit below two hours, where the second unit says little, else two.
pub fn duration_words(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds} s"),
        60..7_200 => format!("{} min", seconds / 60),
        _ => duration(std::time::Duration::from_secs(seconds)),
    }
}

/// Returns the instant in `zone`, or nothing when no calendar can hold it.
fn zoned(at_ms: i64, zone: &TimeZone) -> Option<ZonedDateTime> {
    Timestamp::from_millisecond(at_ms).ok().map(|instant| instant.to_zoned_datetime(zone.clone()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(text: &str) -> i64 {
        text.parse::<Timestamp>().unwrap().as_millisecond()
    }

    #[test]
    fn near_is_relative_and_far_is_a_local_day() {
        let zone = TimeZone::fixed(jiff::tz::offset(1));
        let now = ms("2026-11-30T20:00:00Z");
        for (at, text) in [
            ("2026-11-30T19:59:57Z", "just now"),
            ("2026-11-30T19:59:20Z", "40 s ago"),
            ("2026-11-30T19:57:30Z", "2 min ago"),
            ("2026-11-30T16:30:00Z", "3 h 30 min ago"),
            ("2026-11-30T22:11:00Z", "in 2 h 11 min"),
            ("2026-11-30T09:00:00Z", "today 10:00"),
            ("2026-11-29T17:40:00Z", "yesterday 18:40"),
            ("2026-12-01T06:00:00Z", "tomorrow 07:00"),
            ("2026-12-03T06:00:00Z", "Thu 3 Dec 07:00"),
            ("2026-11-28T08:00:00Z", "28 Nov"),
            ("2026-12-24T08:00:00Z", "24 Dec"),
            ("2025-12-24T08:00:00Z", "24 Dec 2025"),
        ] {
            assert_eq!(near(ms(at), now, &zone), text, "{at}");
        }
    }

    #[test]
    fn a_day_begins_at_local_midnight() {
        let zone = TimeZone::fixed(jiff::tz::offset(9));
        // 01:00 on 1 December in this zone; ten hours before it is 15:00 on the day before.
        assert_eq!(near(ms("2026-11-30T06:00:00Z"), ms("2026-11-30T16:00:00Z"), &zone), "yesterday 15:00");
    }

    #[test]
    fn programs_get_exact_utc() {
        assert_eq!(utc(ms("2026-03-08T07:00:00Z")), "2026-03-08T07:00:00Z");
        assert_eq!(utc(ms("2026-03-08T07:00:00.120Z")), "2026-03-08T07:00:00.12Z");
        assert_eq!(utc(i64::MAX), i64::MAX.to_string());
        assert_eq!(near(i64::MAX, 0, &TimeZone::UTC), i64::MAX.to_string());
        assert_eq!(exact_local(ms("2026-11-27T16:03:59Z"), &TimeZone::fixed(jiff::tz::offset(1))), "2026-11-27 17:03");
    }
}
