//! Parses time stamps of logs and traces.

use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::Offset;

/// Numbers of at least this size are times since 1970; smaller ones are offsets from the start of the recording.
const MIN_UNIX_SECONDS: u64 = 100_000_000;

/// The time of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LineTimestamp {
    /// Nanoseconds since 1970, or since the start of the recording.
    pub(super) ns: i64,
    /// Whether the time is a point in time rather than an offset from the start.
    pub(super) is_clock: bool,
    /// Whether the time is a date without a fraction of a second.
    pub(super) is_whole_second: bool,
    /// The offset of the clock from UTC, in seconds.
    pub(super) utc_offset_s: i32,
}

/// Parses a number or a date. Plain numbers below 100,000,000 are offsets in units of `offset_unit_ns` nanoseconds;
/// larger ones are seconds, milliseconds, microseconds or nanoseconds since 1970, depending on their size.
pub(super) fn parse_timestamp(text: &str, offset_unit_ns: i64) -> Option<LineTimestamp> {
    let text = text.trim();
    parse_number(text, offset_unit_ns)
        .or_else(|| parse_rfc3339(text))
        .or_else(|| parse_common_log_time(text))
}

fn parse_number(text: &str, offset_unit_ns: i64) -> Option<LineTimestamp> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let digits = |text: &str| text.bytes().all(|b| b.is_ascii_digit());
    if whole.is_empty() || !digits(whole) || !digits(fraction) {
        return None;
    }
    let whole: u64 = whole.parse().ok()?;
    let is_clock = whole >= MIN_UNIX_SECONDS && offset_unit_ns == 1_000_000_000;
    let unit_ns: i64 = match whole {
        _ if !is_clock => offset_unit_ns,
        ..100_000_000_000 => 1_000_000_000,
        100_000_000_000..100_000_000_000_000 => 1_000_000,
        100_000_000_000_000..100_000_000_000_000_000 => 1_000,
        _ => 1,
    };
    let mut scale = unit_ns;
    let mut rest = 0;
    for digit in fraction.bytes() {
        scale /= 10;
        rest += i64::from(digit - b'0') * scale;
    }
    Some(LineTimestamp {
        ns: i64::try_from(whole)
            .ok()?
            .checked_mul(unit_ns)?
            .checked_add(rest)?,
        is_clock,
        is_whole_second: false,
        utc_offset_s: 0,
    })
}

/// Parses an RFC 3339 time. A time without a zone is in UTC.
pub(super) fn parse_rfc3339(text: &str) -> Option<LineTimestamp> {
    if !text.starts_with(|c: char| c.is_ascii_digit()) || text.as_bytes().get(4) != Some(&b'-') {
        return None;
    }
    let time = text.get(11..)?;
    let (ns, ahead_s) = match text.parse::<Timestamp>() {
        Ok(moment) => (moment.as_nanosecond(), parse_utc_offset(time).unwrap_or(0)),
        Err(_) => {
            let civil = text.parse::<DateTime>().ok()?;
            let moment = Offset::UTC.to_timestamp(civil).ok()?;
            (moment.as_nanosecond(), 0)
        }
    };
    Some(LineTimestamp {
        ns: i64::try_from(ns).ok()?,
        is_clock: true,
        is_whole_second: !time.contains('.') && !time.contains(','),
        utc_offset_s: ahead_s,
    })
}

/// Parses a zone `+02:00`, `+0200` or `-07` at the end of `text`; returns its offset in seconds.
fn parse_utc_offset(text: &str) -> Option<i32> {
    let at = text.rfind(['+', '-'])?;
    let digits: String = text[at + 1..].chars().filter(|c| *c != ':').collect();
    let part = |range: std::ops::Range<usize>| {
        digits.get(range).map_or(Some(0), |d| d.parse::<i32>().ok())
    };
    let seconds = part(0..2)? * 3_600 + part(2..4)? * 60;
    Some(if text[at..].starts_with('-') {
        -seconds
    } else {
        seconds
    })
}

/// Parses `10/Oct/2000:13:55:36 -0700` of the Common Log Format, or `06/Feb/2009:12:14:14.655` of HAProxy.
pub(super) fn parse_common_log_time(text: &str) -> Option<LineTimestamp> {
    const MONTHS: &str = "JanFebMarAprMayJunJulAugSepOctNovDec";
    let (moment, zone) = match text.split_once(' ') {
        Some((moment, zone)) => (moment, Some(zone)),
        None => (text, None),
    };
    let mut date = moment.splitn(3, '/');
    let (day, month, rest) = (date.next()?, date.next()?, date.next()?);
    let month = MONTHS
        .find(month)
        .filter(|at| at % 3 == 0 && month.len() == 3)?
        / 3
        + 1;
    let mut time = rest.splitn(4, ':');
    let (year, hour, minute) = (time.next()?, time.next()?, time.next()?);
    let (second, fraction) = match time.next()?.split_once('.') {
        Some((second, fraction)) => (second, Some(fraction)),
        None => (rest.rsplit(':').next()?, None),
    };
    let nanoseconds = match fraction {
        None => 0,
        Some(digits) => format!("{digits:0<9}").get(..9)?.parse().ok()?,
    };
    let civil = DateTime::new(
        year.parse().ok()?,
        i8::try_from(month).ok()?,
        day.parse().ok()?,
        hour.parse().ok()?,
        minute.parse().ok()?,
        second.parse().ok()?,
        nanoseconds,
    );
    let ahead_s = match zone {
        Some(zone) => parse_utc_offset(zone)?,
        None => 0,
    };
    let offset = Offset::from_seconds(ahead_s).ok()?;
    let moment = offset.to_timestamp(civil.ok()?).ok()?;
    Some(LineTimestamp {
        ns: i64::try_from(moment.as_nanosecond()).ok()?,
        is_clock: true,
        is_whole_second: fraction.is_none(),
        utc_offset_s: ahead_s,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: i64 = 1_000_000_000;

    #[test]
    fn stamps_of_all_kinds_are_exact() {
        let ns = |text| {
            parse_timestamp(text, SECOND)
                .map(|s| (s.ns, s.is_clock, s.is_whole_second, s.utc_offset_s))
        };
        assert_eq!(ns("0.25"), Some((250_000_000, false, false, 0)));
        assert_eq!(ns("12"), Some((12 * SECOND, false, false, 0)));
        for (text, rest) in [
            ("1764352593.123456789", 123_456_789),
            ("1764352593123", 123_000_000),
            ("1764352593123456", 123_456_000),
            ("1764352593123456789", 123_456_789),
        ] {
            assert_eq!(
                ns(text),
                Some((1_764_352_593 * SECOND + rest, true, false, 0)),
                "{text}"
            );
        }
        let moment = 971_211_336 * SECOND;
        assert_eq!(
            ns("10/Oct/2000:13:55:36 -0700"),
            Some((moment, true, true, -25_200))
        );
        assert_eq!(
            ns("10/Oct/2000:20:55:36.655"),
            Some((moment + 655_000_000, true, false, 0))
        );
        assert_eq!(ns("2000-10-10T20:55:36Z"), Some((moment, true, true, 0)));
        assert_eq!(
            ns("2000-10-10T13:55:36-07:00"),
            Some((moment, true, true, -25_200))
        );
        // Azure's traces of language models.
        assert_eq!(
            ns("2000-10-10 20:55:36.6805900"),
            Some((moment + 680_590_000, true, false, 0))
        );
        assert_eq!(
            ns("2000-10-10 20:55:36.009930+00:00"),
            Some((moment + 9_930_000, true, false, 0))
        );
        assert_eq!(
            parse_timestamp("27482", 1_000_000).map(|s| s.ns),
            Some(27_482_000_000)
        );
    }

    #[test]
    fn invalid_time_is_rejected() {
        for text in [
            "",
            "-",
            ".",
            "-1",
            "1e3",
            "1.2.3",
            "yesterday",
            "10/Okt/2000:13:55:36 -0700",
            "10/Oct/2000",
            "32/Oct/2000:13:55:36 -0700",
            "10/Oct/2000:13:55 -0700",
            "10/Oct/2000:13:55:36 +99",
            "2000-13-10T20:55:36Z",
            "2000-10-10",
            "99999999999999999999999",
            "10/ctN/2000:13:55:36 -0700",
            "é/Oct/2000:1:1:1",
        ] {
            assert_eq!(parse_timestamp(text, SECOND), None, "{text}");
        }
    }
}
