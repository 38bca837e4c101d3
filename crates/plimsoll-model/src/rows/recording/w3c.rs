//! Parses logs in the W3C extended format, as AWS CloudFront and IIS write them: a line `#Fields:` names the values of
//! the lines that follow it (<https://www.w3.org/TR/WD-logfile>).

use super::access_log::{ACCESS_LOG_COLUMNS, RowResult, UNSENDABLE_PATH_ERROR, is_valid_path};
use super::timestamps::{LineTimestamp, parse_rfc3339, parse_timestamp};

const SECOND_NS: i64 = 1_000_000_000;
const MILLISECOND_NS: i64 = 1_000_000;
/// The beginning of the line that names the fields.
const FIELDS_DIRECTIVE: &str = "#Fields:";

/// For each column, the fields that can supply its value, in lower case and in order of preference.
const COLUMN_FIELDS: [(&str, &[&str]); 6] = [
    ("client", &["c-ip"]),
    ("method", &["cs-method"]),
    ("host", &["x-host-header", "cs(host)", "cs-host"]),
    ("status", &["sc-status"]),
    ("referer", &["cs(referer)"]),
    ("agent", &["cs(user-agent)"]),
];

/// The names of a line's values, in order and in lower case.
#[derive(Debug)]
pub(super) struct FieldLayout(Vec<String>);

impl FieldLayout {
    /// Parses a line that names the fields; `None`: it is another kind of line.
    pub(super) fn parse(line: &str) -> Option<FieldLayout> {
        let names = line
            .trim_start()
            .strip_prefix(FIELDS_DIRECTIVE)?
            .split_whitespace();
        Some(FieldLayout(names.map(str::to_ascii_lowercase).collect()))
    }

    /// Returns whether a file with this beginning has the format.
    pub(super) fn looks_like_w3c(head: &str) -> bool {
        let mut comments = head.lines().take_while(|line| line.starts_with('#'));
        comments.any(|line| line.starts_with(FIELDS_DIRECTIVE))
    }

    /// Parses a line to the columns of access logs.
    pub(super) fn parse_row(&self, line: &str) -> RowResult {
        // CloudFront separates values by tabs, and IIS by spaces.
        let has_tabs = line.contains('\t');
        let separator = if has_tabs { '\t' } else { ' ' };
        let values: Vec<&str> = line.split(separator).collect();
        if values.len() != self.0.len() {
            return Err("it does not have as many values as `#Fields:` names");
        }
        let value_of = |wanted: &str| {
            let place = self.0.iter().position(|name| name == wanted)?;
            Some(values[place]).filter(|value| *value != "-")
        };
        let (stamp, time) = parse_time(value_of)?;
        let stem = value_of("cs-uri-stem").ok_or("it has no path (cs-uri-stem)")?;
        let path = match value_of("cs-uri-query") {
            Some(query) => format!("{stem}?{query}"),
            None => stem.to_owned(),
        };
        if !is_valid_path(&path) {
            return Err(UNSENDABLE_PATH_ERROR);
        }
        let of_column = |column: &str| {
            let known = COLUMN_FIELDS.iter().find(|(name, _)| *name == column);
            let mut fields = known.map_or(&[][..], |(_, fields)| fields).iter();
            let value = fields.find_map(|field| value_of(field)).unwrap_or_default();
            match column {
                "referer" | "agent" if has_tabs => percent_decode(value),
                // IIS writes blanks as `+`.
                "referer" | "agent" => value.replace('+', " "),
                _ => value.to_owned(),
            }
        };
        let columns = ACCESS_LOG_COLUMNS.map(|column| match column {
            "time" => time.clone(),
            "path" => path.clone(),
            column => of_column(column),
        });
        Ok((stamp, columns.to_vec()))
    }
}

/// Returns the time at which the request arrived, and the text of the time in the log.
fn parse_time<'a>(
    value_of: impl Fn(&str) -> Option<&'a str>,
) -> Result<(LineTimestamp, String), &'static str> {
    const INVALID_TIME_ERROR: &str = "its time is invalid";
    let number = value_of("timestamp(ms)").or_else(|| value_of("timestamp"));
    let written = match number {
        Some(number) => number.to_owned(),
        None => match (value_of("date"), value_of("time")) {
            (Some(day), Some(time)) => format!("{day} {time}"),
            _ => return Err("it has no time (date and time)"),
        },
    };
    let parsed = match number {
        Some(number) => parse_timestamp(number, SECOND_NS),
        None => parse_rfc3339(&written),
    };
    let mut parsed = parsed
        .filter(|parsed| parsed.is_clock)
        .ok_or(INVALID_TIME_ERROR)?;
    // The logged time is the end of the answer, so its duration is subtracted. With whole seconds, that would be
    // meaningless.
    if !parsed.is_whole_second
        && let Some(took) = value_of("time-taken")
    {
        // CloudFront writes seconds with a fraction, and IIS writes milliseconds.
        let unit = if took.contains('.') {
            SECOND_NS
        } else {
            MILLISECOND_NS
        };
        let took = parse_timestamp(took, unit).ok_or(INVALID_TIME_ERROR)?;
        parsed.ns = parsed.ns.checked_sub(took.ns).ok_or(INVALID_TIME_ERROR)?;
    }
    Ok((parsed, written))
}

/// Decodes a value in which CloudFront has percent-encoded blanks and other characters.
fn percent_decode(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        let digits = after.get(..2).and_then(|two| std::str::from_utf8(two).ok());
        let digits = digits.filter(|two| two.bytes().all(|b| b.is_ascii_hexdigit()));
        let decoded = digits.and_then(|two| u8::from_str_radix(two, 16).ok());
        let (next, length) = match decoded.filter(|_| byte == b'%') {
            Some(decoded) => (decoded, 2),
            None => (byte, 0),
        };
        bytes.push(next);
        rest = &after[length..];
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_cloudfront_and_iis_are_read() {
        let cloudfront = FieldLayout::parse(
            "#Fields: date time x-edge-location sc-bytes c-ip cs-method cs(Host) cs-uri-stem sc-status cs(Referer) cs(User-Agent) cs-uri-query x-host-header time-taken",
        )
        .expect("fields");
        let line = "2019-12-04\t21:02:31\tLAX1\t392\t192.0.2.100\tGET\td111.cloudfront.net\t/index.html\t200\t-\tMozilla/5.0%20(Windows)\ta=b%20c\tshop.example\t0.014";
        let (stamp, values) = cloudfront.parse_row(line).expect("a row");
        assert_eq!(stamp.ns, 1_575_493_351 * SECOND_NS);
        assert!(stamp.is_whole_second);
        assert_eq!(
            values,
            [
                "192.0.2.100",
                "2019-12-04 21:02:31",
                "GET",
                "/index.html?a=b%20c",
                "shop.example",
                "200",
                "",
                "Mozilla/5.0 (Windows)"
            ]
        );
        let iis = FieldLayout::parse(
            "#Fields: date time s-ip cs-method cs-uri-stem cs-uri-query s-port c-ip cs(User-Agent) sc-status time-taken",
        )
        .expect("fields");
        let line = "2026-11-29 10:00:00 ::1 POST /a - 80 192.0.2.7 curl/8+(x) 204 15";
        let (_, values) = iis.parse_row(line).expect("a row");
        assert_eq!(values[2..4], ["POST", "/a"]);
        assert_eq!(values[7], "curl/8 (x)");
        let exact =
            FieldLayout::parse("#Fields: timestamp(ms) time-taken cs-uri-stem").expect("fields");
        let (stamp, _) = exact.parse_row("1575493351500\t0.250\t/").expect("a row");
        assert_eq!(stamp.ns, 1_575_493_351_250_000_000);
    }

    #[test]
    fn unreadable_rows_have_reasons() {
        let layout = FieldLayout::parse("#Fields: date time cs-uri-stem").expect("fields");
        for (line, expected) in [
            ("2026-11-29\t10:00:00", "as many values"),
            ("2026-11-29\t-\t/", "it has no time"),
            ("2026-11-29\tnoon\t/", "its time is invalid"),
            ("2026-11-29\t10:00:00\t-", "it has no path"),
            ("2026-11-29\t10:00:00\ta", "its path can't be sent"),
        ] {
            let problem = layout.parse_row(line).expect_err(line);
            assert!(problem.contains(expected), "{problem}");
        }
        assert!(FieldLayout::parse("# Fields").is_none());
    }
}
