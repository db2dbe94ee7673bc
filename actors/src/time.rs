//! How instants are written on the wire.

/// Returns an instant in UTC milliseconds as RFC 3339 with milliseconds, always in UTC (`2026-03-08T07:00:00.000Z`).
/// One that no calendar has is returned as its number.
pub fn rfc3339_utc(at_ms: i64) -> String {
    match jiff::Timestamp::from_millisecond(at_ms) {
        Ok(at) => at.strftime("%Y-%m-%dT%H:%M:%S%.3fZ").to_string(),
        Err(_) => at_ms.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instants_are_written_in_utc() {
        assert_eq!(rfc3339_utc(1_772_953_200_000), "2026-03-08T07:00:00.000Z");
        assert_eq!(rfc3339_utc(i64::MAX), i64::MAX.to_string());
    }
}
