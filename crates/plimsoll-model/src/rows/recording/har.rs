//! Reads the requests of HTTP archives (HAR 1.2), one entry at a time, because an archive contains the bodies of all
//! answers and may not fit in memory.

use std::io::BufRead;

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::access_log::{RowResult, UNSENDABLE_PATH_ERROR, is_valid_path, split_url};
use super::timestamps::parse_rfc3339;

/// The columns of the rows that entries are converted to.
pub(super) const HAR_COLUMNS: [&str; 7] = [
    "time", "method", "path", "host", "status", "headers", "body",
];

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct HarEntry {
    started_date_time: String,
    request: HarEntryRequest,
    #[serde(default)]
    response: HarEntryResponse,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct HarEntryRequest {
    method: String,
    url: String,
    #[serde(default)]
    headers: Vec<HarEntryField>,
    #[serde(default)]
    post_data: Option<HarEntryBody>,
}

#[derive(Deserialize)]
struct HarEntryField {
    name: String,
    #[serde(default)]
    value: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct HarEntryBody {
    #[serde(default)]
    mime_type: String,
    #[serde(default)]
    text: Option<String>,
    #[serde(default)]
    params: Option<Vec<IgnoredAny>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct HarEntryResponse {
    status: i64,
}

/// The entries of an archive.
pub(super) struct HarEntries<'a> {
    from: Box<dyn BufRead + 'a>,
    /// The number of entries read so far.
    entry: u64,
}

impl<'a> HarEntries<'a> {
    /// Returns whether a file with this beginning is an archive.
    pub(super) fn looks_like_har(head: &str) -> bool {
        let inside = head.trim_start().strip_prefix('{').map(str::trim_start);
        inside.is_some_and(|inside| inside.starts_with("\"log\""))
    }

    /// Opens an archive and reads up to its first entry.
    ///
    /// # Errors
    /// When there is no list of entries.
    pub(super) fn new(from: Box<dyn BufRead + 'a>) -> Result<HarEntries<'a>, String> {
        let mut entries = HarEntries { from, entry: 0 };
        for (wanted, opening) in [("log", b'{'), ("entries", b'[')] {
            entries
                .read_to_member(wanted, opening)
                .map_err(|problem| format!("not HAR 1.2: {problem}"))?;
        }
        Ok(entries)
    }

    /// Returns the next entry, with its number from 1.
    ///
    /// # Errors
    /// When the file can't be read any further.
    pub(super) fn next(&mut self) -> Result<Option<(u64, RowResult)>, String> {
        let number = self.entry + 1;
        let bad = |problem: String| format!("entry {number}: {problem}: save the file again");
        let mut next = self.peek_after_whitespace().map_err(bad)?;
        if next == Some(b',') && self.entry > 0 {
            self.from.consume(1);
            next = self.peek_after_whitespace().map_err(bad)?;
        }
        match next {
            Some(b']') => return Ok(None),
            Some(b'{') => {}
            Some(_) => return Err(bad("not an object".to_owned())),
            None => return Err(bad("the file is cut off".to_owned())),
        }
        self.entry = number;
        let mut json = serde_json::Deserializer::from_reader(&mut self.from);
        let text = Box::<RawValue>::deserialize(&mut json).map_err(|e| {
            let problem = if e.is_eof() {
                "the file is cut off".to_owned()
            } else {
                e.to_string()
            };
            bad(problem)
        })?;
        Ok(Some((number, parse_entry(text.get()))))
    }

    /// Reads the object at the current position up to the value of its member `wanted`, and consumes the value's
    /// opening bracket.
    fn read_to_member(&mut self, wanted: &str, opening: u8) -> Result<(), String> {
        if wanted == "log" {
            self.expect_byte(b'{')?;
        }
        loop {
            match self.peek_after_whitespace()? {
                Some(b'"') => {}
                Some(b'}') | None => return Err(format!("it has no `{wanted}`")),
                Some(_) => return Err(format!("a key is missing before `{wanted}`")),
            }
            let mut json = serde_json::Deserializer::from_reader(&mut self.from);
            let name = String::deserialize(&mut json).map_err(|e| e.to_string())?;
            self.expect_byte(b':')?;
            if name == wanted {
                return self.expect_byte(opening);
            }
            self.skip_value()?;
            if self.peek_after_whitespace()? == Some(b',') {
                self.from.consume(1);
            }
        }
    }

    fn skip_value(&mut self) -> Result<(), String> {
        let is_number = |byte: u8| byte.is_ascii_digit() || b"+-.eE".contains(&byte);
        if self.peek_after_whitespace()?.is_some_and(is_number) {
            // Numbers are skipped here, because the parser would also consume the byte after the number.
            while self.peek_byte()?.is_some_and(is_number) {
                self.from.consume(1);
            }
            return Ok(());
        }
        let mut json = serde_json::Deserializer::from_reader(&mut self.from);
        IgnoredAny::deserialize(&mut json).map_err(|e| e.to_string())?;
        Ok(())
    }

    fn expect_byte(&mut self, wanted: u8) -> Result<(), String> {
        match self.peek_after_whitespace()? {
            Some(byte) if byte == wanted => {
                self.from.consume(1);
                Ok(())
            }
            _ => Err(format!("`{}` is missing", char::from(wanted))),
        }
    }

    /// Skips white space, and returns the byte after it.
    fn peek_after_whitespace(&mut self) -> Result<Option<u8>, String> {
        while self.peek_byte()?.is_some_and(|b| b.is_ascii_whitespace()) {
            self.from.consume(1);
        }
        self.peek_byte()
    }

    fn peek_byte(&mut self) -> Result<Option<u8>, String> {
        let buffer = self.from.fill_buf().map_err(|e| e.to_string())?;
        Ok(buffer.first().copied())
    }
}

/// Converts an entry to its row.
fn parse_entry(text: &str) -> RowResult {
    let entry: HarEntry =
        serde_json::from_str(text).map_err(|_| "it lacks a time, or a request's method or URL")?;
    let stamp =
        parse_rfc3339(&entry.started_date_time).ok_or("its time (startedDateTime) is invalid")?;
    let request = entry.request;
    // WebSockets, data URLs and internal pages of browsers have other schemes.
    let scheme = request.url.split("://").next().unwrap_or_default();
    let is_web = scheme.starts_with("ht") && scheme.trim_end_matches('s').ends_with('p');
    if !is_web {
        return Err("it is no request of HTTP");
    }
    let url = request.url.split('#').next().unwrap_or_default();
    let (host, path) = split_url(url);
    // A query may follow the host directly.
    let (host, path) = match host.split_once('?') {
        Some((host, query)) => (host, format!("/?{query}")),
        None => (host, path.to_owned()),
    };
    if !is_valid_path(&path) {
        return Err(UNSENDABLE_PATH_ERROR);
    }
    let mut headers = Map::new();
    for field in request.headers {
        let name = field.name.trim().to_ascii_lowercase();
        if !name.starts_with(':') {
            add_field(&mut headers, name, field.value);
        }
    }
    let body = match request.post_data {
        None => String::new(),
        Some(HarEntryBody {
            text: None,
            params: Some(params),
            ..
        }) if !params.is_empty() => return Err("its form is not recorded as text"),
        Some(data) => {
            if !data.mime_type.is_empty() && !headers.contains_key("content-type") {
                add_field(&mut headers, "content-type".to_owned(), data.mime_type);
            }
            data.text.unwrap_or_default()
        }
    };
    let status = match entry.response.status {
        ..=0 => String::new(),
        status => status.to_string(),
    };
    let values = [
        entry.started_date_time,
        request.method.to_ascii_uppercase(),
        path,
        host.to_owned(),
        status,
        Value::Object(headers).to_string(),
        body,
    ];
    Ok((stamp, values.to_vec()))
}

/// Adds a header field; several fields of the same name become a list.
fn add_field(headers: &mut Map<String, Value>, name: String, value: String) {
    let value = Value::String(value);
    match headers.get_mut(&name) {
        None => drop(headers.insert(name, value)),
        Some(Value::Array(values)) => values.push(value),
        Some(known) => *known = Value::Array(vec![known.take(), value]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ARCHIVE: &str = r#" {"log": {"version": "1.2", "_n": -1.5e3 , "pages": [{"a": [1, "]"]}], "entries": [
        {"startedDateTime": "2026-11-29T10:00:00.500Z", "request": {"method": "get", "url": "https://shop.example?q=1#x",
         "headers": [{"name": ":authority", "value": "x"}, {"name": "Accept", "value": "a"}, {"name": "accept", "value": "b"}]},
         "response": {"status": 200, "content": {"text": "{\"entries\": []}"}}},
        {"startedDateTime": "2026-11-29T10:00:01.000Z", "request": {"url": "https://a/"}},
        {"startedDateTime": "2026-11-29T10:00:02.000Z", "request": {"method": "POST", "url": "http://a:8080/b",
         "postData": {"mimeType": "text/plain", "text": "x\ny"}}},
        {"startedDateTime": "2026-11-29T10:00:03.000Z", "request": {"method": "GET", "url": "wss://a/"}}
        ], "comment": ""}}"#;

    fn entries(text: &str) -> Result<Vec<(u64, RowResult)>, String> {
        // A buffer of one byte shows whether anything is read ahead.
        let from = std::io::BufReader::with_capacity(1, text.as_bytes());
        let mut entries = HarEntries::new(Box::new(from))?;
        let mut all = Vec::new();
        while let Some(entry) = entries.next()? {
            all.push(entry);
        }
        Ok(all)
    }

    #[test]
    fn entries_are_read_one_by_one() {
        let all = entries(ARCHIVE).expect("an archive");
        let (number, first) = &all[0];
        let (stamp, values) = first.as_ref().expect("a row");
        assert_eq!((*number, stamp.ns % 1_000_000_000), (1, 500_000_000));
        assert_eq!(
            values[1..],
            [
                "GET",
                "/?q=1",
                "shop.example",
                "200",
                r#"{"accept":["a","b"]}"#,
                ""
            ]
        );
        assert_eq!(
            all[1].1,
            Err("it lacks a time, or a request's method or URL")
        );
        let third = all[2].1.as_ref().expect("a row");
        assert_eq!(
            third.1[1..],
            [
                "POST",
                "/b",
                "a:8080",
                "",
                r#"{"content-type":"text/plain"}"#,
                "x\ny"
            ]
        );
        assert_eq!(all[3], (4, Err("it is no request of HTTP")));
    }

    #[test]
    fn archives_that_are_cut_off_are_rejected() {
        for end in 1..ARCHIVE.rfind(']').expect("the end") {
            assert!(entries(&ARCHIVE[..end]).is_err(), "{end}");
        }
        for text in [
            "{\"log\": 7}",
            "{\"log\": {\"entries\": {}}}",
            "{\"log\": {\"entries\": [7]}}",
        ] {
            assert!(entries(text).is_err(), "{text}");
        }
    }
}
