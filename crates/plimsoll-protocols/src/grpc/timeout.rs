//! `grpc-timeout` (gRPC over HTTP/2, "Requests"): written by the driver, read by relays.

use std::time::Duration;

/// Formats a timeout as at most eight digits and a unit. Uses the largest unit that represents it exactly, or else
/// rounds up to the smallest unit that fits in eight digits.
pub(super) fn format_timeout(deadline: Duration) -> String {
    const TIMEOUT_UNITS: [(u128, char); 6] = [
        (3_600_000_000_000, 'H'),
        (60_000_000_000, 'M'),
        (1_000_000_000, 'S'),
        (1_000_000, 'm'),
        (1_000, 'u'),
        (1, 'n'),
    ];
    const MAX_TIMEOUT_VALUE: u128 = 99_999_999;
    let nanos = deadline.as_nanos();
    let exact = TIMEOUT_UNITS.iter().find(|(unit, _)| {
        nanos.is_multiple_of(*unit) && nanos / unit <= MAX_TIMEOUT_VALUE && nanos > 0
    });
    let rounded = || {
        TIMEOUT_UNITS
            .iter()
            .rev()
            .find(|(unit, _)| nanos.div_ceil(*unit) <= MAX_TIMEOUT_VALUE)
    };
    match exact.or_else(rounded) {
        Some((unit, letter)) => format!("{}{letter}", nanos.div_ceil(*unit)),
        None => format!("{MAX_TIMEOUT_VALUE}H"),
    }
}

/// Parses a timeout; `None`: the value is malformed.
pub(super) fn parse_timeout(value: &[u8]) -> Option<Duration> {
    let (unit, digits) = value.split_last()?;
    if !(1..=8).contains(&digits.len()) || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let number: u64 = std::str::from_utf8(digits).ok()?.parse().ok()?;
    Some(match unit {
        b'H' => Duration::from_secs(number * 3600),
        b'M' => Duration::from_secs(number * 60),
        b'S' => Duration::from_secs(number),
        b'm' => Duration::from_millis(number),
        b'u' => Duration::from_micros(number),
        b'n' => Duration::from_nanos(number),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeout_uses_largest_exact_unit() {
        for (nanos, text) in [
            (1_000_000_000, "1S"),
            (1_500_000_000, "1500m"),
            (60_000_000_000, "1M"),
            (7_200_000_000_000, "2H"),
            (250_000, "250u"),
            (0, "0n"),
            (1_234_567_891, "1234568u"),
            (99_999_999_000_000_001, "1666667M"),
        ] {
            assert_eq!(format_timeout(Duration::from_nanos(nanos)), text, "{nanos}");
        }
        assert_eq!(format_timeout(Duration::MAX), "99999999H");
    }

    #[test]
    fn written_timeouts_parse_back() {
        for nanos in [1, 1_500, 250_000_000, 7_200_000_000_000] {
            let time = Duration::from_nanos(nanos);
            let value = format_timeout(time);
            assert_eq!(parse_timeout(value.as_bytes()), Some(time), "{value}");
        }
        for value in ["", "S", "1", "1s", "123456789S", "-1S", "1 S", "+1S"] {
            assert_eq!(parse_timeout(value.as_bytes()), None, "{value}");
        }
    }
}
