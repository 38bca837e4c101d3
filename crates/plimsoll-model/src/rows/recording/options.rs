//! Options of a replay: a window of the recorded time, and filters of lines.

use std::fmt;
use std::str::FromStr;

use jiff::civil::Time;

use super::timestamps::parse_rfc3339;
use crate::formats::units::Period;

const DAY_NS: i64 = 86_400_000_000_000;

/// A part of the recorded time: `14:00..14:10`, `10m..20m` from the start, or between two dates. One bound may be
/// omitted.
#[derive(Clone, Debug, PartialEq)]
pub struct TimeWindow {
    text: String,
    from: Option<WindowBound>,
    to: Option<WindowBound>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum WindowBound {
    /// A time of day in the file's time zone, in nanoseconds since midnight.
    TimeOfDay(i64),
    /// Nanoseconds since 1970.
    Absolute(i64),
    /// Nanoseconds since the start of the recording.
    SinceStart(i64),
}

impl FromStr for TimeWindow {
    type Err = String;

    fn from_str(text: &str) -> Result<TimeWindow, String> {
        let bad = || {
            format!(
                "`{text}` is not a window: write 14:00..14:10, 10m..20m (from the beginning) or two dates with .. between them"
            )
        };
        let (from, to) = text.split_once("..").ok_or_else(bad)?;
        let end = |text: &str| match text.trim() {
            "" => Ok(None),
            text => parse_bound(text).map(Some).ok_or_else(bad),
        };
        let (from, to) = (end(from)?, end(to)?);
        if from.is_none() && to.is_none() {
            return Err(bad());
        }
        Ok(TimeWindow {
            text: text.to_owned(),
            from,
            to,
        })
    }
}

fn parse_bound(text: &str) -> Option<WindowBound> {
    if let Ok(period) = text.parse::<Period>() {
        return i64::try_from(period.0.as_nanos())
            .ok()
            .map(WindowBound::SinceStart);
    }
    if let Some(stamp) = parse_rfc3339(text) {
        return Some(WindowBound::Absolute(stamp.ns));
    }
    // jiff requires two digits for the hour.
    let padded = match text.find(':') {
        Some(1) => format!("0{text}"),
        _ => text.to_owned(),
    };
    let time = padded.parse::<Time>().ok().filter(|_| text.contains(':'))?;
    let midnight = Time::midnight();
    let since = time.duration_since(midnight);
    i64::try_from(since.as_nanos())
        .ok()
        .map(WindowBound::TimeOfDay)
}

impl fmt::Display for TimeWindow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl TimeWindow {
    /// Returns the window's bounds in nanoseconds on the file's clock. `first`: the time of the file's first line.
    /// `ahead_s`: how far the file's clock is ahead of UTC, in seconds; `None`: the file's times are offsets.
    ///
    /// # Errors
    /// Returns why the window is not in the file.
    pub(super) fn resolve_bounds(
        &self,
        first: i64,
        ahead_s: Option<i32>,
    ) -> Result<(Option<i64>, Option<i64>), String> {
        let place = |end: WindowBound, earliest: i64| match (end, ahead_s) {
            (WindowBound::SinceStart(ns), _) => Ok(if ahead_s.is_some() {
                first.saturating_add(ns)
            } else {
                ns
            }),
            (_, None) => Err(format!(
                "`{self}`: the file's times are seconds from its beginning: write 10m..20m or the like"
            )),
            (WindowBound::Absolute(ns), _) => Ok(ns),
            (WindowBound::TimeOfDay(ns), Some(ahead_s)) => {
                let ahead = i64::from(ahead_s) * 1_000_000_000;
                let midnight = (earliest + ahead).div_euclid(DAY_NS) * DAY_NS - ahead;
                let at = midnight + ns;
                Ok(if at < earliest { at + DAY_NS } else { at })
            }
        };
        // Times of day refer to the day of the first line, even if the window starts before that line.
        let morning = match ahead_s {
            Some(ahead_s) => {
                let ahead = i64::from(ahead_s) * 1_000_000_000;
                (first + ahead).div_euclid(DAY_NS) * DAY_NS - ahead
            }
            None => first,
        };
        let from = self.from.map(|end| place(end, morning)).transpose()?;
        let to = self
            .to
            .map(|end| place(end, from.unwrap_or(first)))
            .transpose()?;
        match (from, to) {
            // In a log that starts in the evening, a window in the morning is on the next day.
            (Some(from), Some(to))
                if to <= first && matches!(self.from, Some(WindowBound::TimeOfDay(_))) =>
            {
                Ok((Some(from + DAY_NS), Some(to + DAY_NS)))
            }
            (Some(from), Some(to)) if to <= from => Err(format!("`{self}` ends before it begins")),
            both => Ok(both),
        }
    }
}

/// A condition on a column: `method=GET`, `path=/api/*`, `status!=5*`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ColumnFilter {
    pub(super) column: String,
    pattern: String,
    keeps_matches: bool,
}

impl ColumnFilter {
    /// Returns the name of the column that the filter looks at.
    pub fn column(&self) -> &str {
        &self.column
    }
}

impl FromStr for ColumnFilter {
    type Err = String;

    fn from_str(text: &str) -> Result<ColumnFilter, String> {
        let parts = match text.split_once("!=") {
            Some((column, pattern)) => Some((column, pattern, false)),
            None => text
                .split_once('=')
                .map(|(column, pattern)| (column, pattern, true)),
        };
        match parts {
            Some((column, pattern, is_wanted)) if !column.trim().is_empty() => Ok(ColumnFilter {
                column: column.trim().to_owned(),
                pattern: pattern.trim().to_owned(),
                keeps_matches: is_wanted,
            }),
            _ => Err(format!(
                "`{text}` is not a filter: write COLUMN=VALUE or COLUMN!=VALUE, such as method=GET or path=/api/*"
            )),
        }
    }
}

impl ColumnFilter {
    /// Returns whether a line with this value is replayed.
    pub(super) fn accepts(&self, value: &str) -> bool {
        matches_pattern(&self.pattern, value) == self.keeps_matches
    }
}

/// Returns whether `text` matches `pattern`, in which `*` matches any text.
fn matches_pattern(pattern: &str, text: &str) -> bool {
    let mut parts = pattern.split('*');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = text.strip_prefix(first) else {
        return false;
    };
    let Some(last) = parts.next_back() else {
        return rest.is_empty();
    };
    for part in parts {
        match rest.find(part) {
            Some(at) => rest = &rest[at + part.len()..],
            None => return false,
        }
    }
    rest.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filter_patterns_match_whole_values() {
        for (pattern, text, expected) in [
            ("GET", "GET", true),
            ("GET", "GETS", false),
            ("/api/*", "/api/v1", true),
            ("/api/*", "/ap", false),
            ("*.js", "/x.js", true),
            ("*.js", "/x.jsx", false),
            ("/a*b*c", "/a-b-b-c", true),
            ("/a*b*c", "/a-c", false),
            ("a*a", "a", false),
            ("*", "", true),
        ] {
            assert_eq!(matches_pattern(pattern, text), expected, "{pattern} {text}");
        }
        let unless: ColumnFilter = "status!=5*".parse().unwrap();
        assert!(unless.accepts("200") && !unless.accepts("503"));
        assert!("=x".parse::<ColumnFilter>().is_err() && "x".parse::<ColumnFilter>().is_err());
    }

    #[test]
    fn window_is_placed_on_day_of_file() {
        // 2000-10-10T13:55:36-07:00
        let first = 971_211_336_000_000_000;
        let bounds = |text: &str| {
            text.parse::<TimeWindow>()
                .unwrap()
                .resolve_bounds(first, Some(-25_200))
        };
        let minutes = |n: i64| n * 60_000_000_000;
        let two = first + minutes(4) + 24_000_000_000;
        assert_eq!(
            bounds("14:00..14:10"),
            Ok((Some(two), Some(two + minutes(10))))
        );
        assert_eq!(bounds("14:00.."), Ok((Some(two), None)));
        assert_eq!(
            bounds("23:00..1:00"),
            Ok((Some(two + minutes(540)), Some(two + minutes(660))))
        );
        assert_eq!(
            bounds("10m..20m"),
            Ok((Some(first + minutes(10)), Some(first + minutes(20))))
        );
        assert_eq!(bounds("..2000-10-10T21:00:00Z"), Ok((None, Some(two))));
        let tomorrow = two + minutes(24 * 60 - 120);
        assert_eq!(
            bounds("12:00..13:00"),
            Ok((Some(tomorrow), Some(tomorrow + minutes(60))))
        );
        assert!(bounds("20m..10m").is_err());
        for wrong in ["", "..", "14:00", "a..b", "14..15", "25:00..26:00"] {
            assert!(wrong.parse::<TimeWindow>().is_err(), "{wrong}");
        }
        let offsets: TimeWindow = "14:00..14:10".parse().unwrap();
        assert!(offsets.resolve_bounds(0, None).is_err());
    }
}
