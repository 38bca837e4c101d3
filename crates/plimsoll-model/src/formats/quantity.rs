//! Formats numbers with units for all reports.

use std::time::Duration;

/// Formats `1234567` as `1,234,567`.
pub fn count(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// Formats microseconds in a suitable unit with three or four digits.
pub fn time(us: f64) -> String {
    match us.abs() {
        a if a < 9.995 => format!("{us:.1} µs"),
        a if a < 999.5 => format!("{us:.0} µs"),
        a if a < 99_995.0 => format!("{:.2} ms", us / 1e3),
        a if a < 999_950.0 => format!("{:.1} ms", us / 1e3),
        a if a < 100e6 => format!("{:.2} s", us / 1e6),
        _ => format!("{:.1} s", us / 1e6),
    }
}

/// Formats a planned time like [`time`], without trailing zeros: `20 s`, `123.2 ms`.
pub fn planned_time(length: Duration) -> String {
    let text = if length.is_zero() {
        "0 s".to_owned()
    } else {
        time(length.as_secs_f64() * 1e6)
    };
    match text.split_once(' ') {
        Some((number, unit)) => format!("{} {unit}", trim_zeros(number.to_owned())),
        None => text,
    }
}

/// Formats a difference of times with its sign.
pub fn signed_time(us: f64) -> String {
    signed_value(us, time)
}

/// Formats a value with its sign; zero has no sign.
pub fn signed_value(value: f64, show: impl Fn(f64) -> String) -> String {
    match value.partial_cmp(&0.0) {
        Some(std::cmp::Ordering::Greater) => format!("+{}", show(value)),
        Some(std::cmp::Ordering::Less) => format!("−{}", show(-value)),
        _ => show(0.0),
    }
}

/// Formats a rate in calls per second.
pub fn rate(per_s: f64) -> String {
    if per_s >= 99.95 {
        format!("{}/s", count(per_s.round().max(0.0) as u64))
    } else {
        format!("{}/s", trim_zeros(format!("{per_s:.2}")))
    }
}

/// Formats a planned rate with all digits, so that the rates of two trials can be distinguished.
pub fn exact_rate(per_s: f64) -> String {
    let text = trim_zeros(format!("{per_s:.4}"));
    let (whole, part) = text
        .split_once('.')
        .map_or((&*text, None), |(w, p)| (w, Some(p)));
    let whole = whole.parse().map_or_else(|_| whole.to_owned(), count);
    match part {
        Some(part) => format!("{whole}.{part}/s"),
        None => format!("{whole}/s"),
    }
}

/// Formats the ends of an interval of rates with four digits, rounded outward.
pub fn rate_interval(low_per_s: f64, high_per_s: f64) -> (String, String) {
    let outward = |per_s: f64, round: fn(f64) -> f64| {
        let step = 10_f64.powf(per_s.max(0.1).log10().floor() - 3.0);
        // Dividing by the inverse avoids results like 12.300000000000001.
        exact_rate(if step < 1.0 {
            round(per_s / step) / (1.0 / step).round()
        } else {
            round(per_s / step) * step
        })
    };
    (
        outward(low_per_s, f64::floor),
        outward(high_per_s, f64::ceil),
    )
}

/// Formats a share in per cent. It is `100 %` or `0 %` only if `part` is exactly the whole or nothing.
pub fn share(part: u64, whole: u64) -> String {
    if whole == 0 {
        return "–".to_owned();
    }
    if part == whole {
        return "100 %".to_owned();
    }
    let percent = part as f64 * 100.0 / whole as f64;
    let text = format!("{percent:.2}");
    match text.as_str() {
        "100.00" => "> 99.99 %".to_owned(),
        "0.00" if part > 0 => "< 0.01 %".to_owned(),
        _ => format!("{} %", trim_zeros(text)),
    }
}

/// Formats bytes in decimal units.
pub fn bytes(n: u64) -> String {
    match n {
        0..10_000 => format!("{} B", count(n)),
        10_000..1_000_000 => format!("{:.1} kB", n as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} MB", n as f64 / 1e6),
        _ => format!("{:.2} GB", n as f64 / 1e9),
    }
}

/// Formats a value of a process. A 0 means that the system did not report the value, and becomes a dash.
pub fn nonzero_or_dash(n: u64, show: fn(u64) -> String) -> String {
    match n {
        0 => "–".to_owned(),
        n => show(n),
    }
}

/// Formats a value, or a dash if it is missing.
pub fn or_dash<T>(value: Option<T>, show: impl FnOnce(T) -> String) -> String {
    value.map_or_else(|| "–".to_owned(), show)
}

fn trim_zeros(text: String) -> String {
    if text.contains('.') {
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    } else {
        text
    }
}

/// Formats a number with its noun, in the plural unless it is 1: `1 call`, `2 calls`.
pub fn plural(n: u64, one: &str) -> String {
    let s = if n == 1 { "" } else { "s" };
    format!("{} {one}{s}", count(n))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_format_with_readable_units() {
        assert_eq!(
            [0, 999, 1_000, 1_234_567].map(count),
            ["0", "999", "1,000", "1,234,567"]
        );
        assert_eq!(
            [0.25, 42.4, 999.7, 5_213.0, 305_000.0, 1_500_000.0].map(time),
            [
                "0.2 µs", "42 µs", "1.00 ms", "5.21 ms", "305.0 ms", "1.50 s"
            ]
        );
        let planned_us = |us| planned_time(Duration::from_micros(us));
        assert_eq!(
            [0, 50, 123_200, 250_000, 1_355_200, 20_000_000, 300_000_000].map(planned_us),
            [
                "0 s", "50 µs", "123.2 ms", "250 ms", "1.36 s", "20 s", "300 s"
            ]
        );
        assert_eq!(
            [0.5, 99.9, 1_000.0, 50_000.4].map(rate),
            ["0.5/s", "99.9/s", "1,000/s", "50,000/s"]
        );
        assert_eq!(
            [0.5, 3.7001, 199.6, 200.4, 1_987.0, 12_345.5].map(exact_rate),
            [
                "0.5/s",
                "3.7001/s",
                "199.6/s",
                "200.4/s",
                "1,987/s",
                "12,345.5/s"
            ]
        );
        for (low, high, shown) in [
            (199.66, 200.41, ("199.6/s", "200.5/s")),
            (1_987.0, 1_987.2, ("1,987/s", "1,988/s")),
            (12_345.0, 12_355.0, ("12,340/s", "12,360/s")),
        ] {
            let (from, to) = rate_interval(low, high);
            assert_eq!((&*from, &*to), shown);
        }
        assert_eq!(share(1, 1_000_000), "< 0.01 %");
        assert_eq!(share(999_999, 1_000_000), "> 99.99 %");
        assert_eq!(share(1_995, 2_000), "99.75 %");
        assert_eq!(share(2, 2), "100 %");
        assert_eq!(share(0, 2), "0 %");
        assert_eq!(signed_time(-42.0), "−42 µs");
        assert_eq!(plural(1, "call"), "1 call");
    }
}
