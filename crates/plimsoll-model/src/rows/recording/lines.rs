//! Parses the lines of logs and traces.

use std::io::{self, BufRead, Read};

use super::RecordingFormat;
use super::access_log::{
    self, RowResult, UNSENDABLE_PATH_ERROR, parse_line, split_request_line, split_url,
};
use super::har::{HAR_COLUMNS, HarEntries};
use super::timestamps::parse_timestamp;
use super::w3c::FieldLayout;
use crate::formats::input::{LineEnd, read_line};
use crate::formats::json_line::json_entries;

/// Maximum length of a line, in bytes.
const MAX_LINE_BYTES: usize = 1 << 20;

const SECOND_NS: i64 = 1_000_000_000;

/// Usual names of the time column, in order of preference.
const TIME_COLUMNS: [&str; 10] = [
    "time",
    "timestamp",
    "@timestamp",
    "ts",
    "msec",
    "time_iso8601",
    "time_local",
    "start_time",
    "arrival",
    "arrival_time",
];

/// Columns of times at which the answer ended, as nginx logs them.
const END_TIME_COLUMNS: [&str; 4] = ["msec", "time_iso8601", "time_local", "time"];

/// Columns that are added to JSON lines, each with the keys that loggers use for it.
const COLUMN_SYNONYMS: [(&str, &[&str]); 6] = [
    (
        "client",
        &[
            "remote_addr",
            "client_ip",
            "remote_ip",
            "request.remote_ip",
            "downstream_remote_address",
        ],
    ),
    ("method", &["request_method", "request.method"]),
    ("path", &["request_uri", "request.uri", "uri", "url"]),
    (
        "host",
        &["http_host", "request.host", "authority", "server_name"],
    ),
    ("agent", &["http_user_agent", "user_agent"]),
    ("body", &["request_body", "request.body"]),
];

const METHOD_COLUMN: &str = "method";

/// Columns of requests that JSON lines may lack; they are then empty.
const OPTIONAL_COLUMNS: [&str; 2] = ["headers", "body"];

/// A reader of a file's lines.
pub(super) struct RecordingLines<'a> {
    source: LineSource<'a>,
    /// Names of the columns. For JSON lines, the columns of the first valid line.
    names: Vec<String>,
    time_column: Option<String>,
    /// For each column, the number (from 1) of the first JSON line that lacks it.
    lacking: Vec<Option<u64>>,
    line: u64,
    buffer: Vec<u8>,
    /// The names of the values in a line, if the log has a line that names its fields.
    layout: Option<FieldLayout>,
}

enum LineSource<'a> {
    Csv(csv::Reader<Box<dyn BufRead + 'a>>, csv::StringRecord, usize),
    Text(Box<dyn BufRead + 'a>, RecordingFormat),
    Archive(HarEntries<'a>),
}

impl<'a> RecordingLines<'a> {
    /// Creates a reader of the lines of `from`, and detects the format if none is given.
    ///
    /// # Errors
    /// When the file can't be read, or has no column of times.
    pub(super) fn new(
        mut from: Box<dyn BufRead + 'a>,
        format: Option<RecordingFormat>,
        time_column: Option<&str>,
    ) -> Result<RecordingLines<'a>, String> {
        let head = from.fill_buf().map_err(|e| e.to_string())?;
        if head.starts_with(b"\x1f\x8b") {
            let unpacked = flate2::bufread::MultiGzDecoder::new(from);
            // A decompressor may return less than a line per read.
            let unpacked = io::BufReader::with_capacity(1 << 18, FillingReader(unpacked));
            return RecordingLines::new(Box::new(unpacked), format, time_column);
        }
        let format = match format {
            Some(format) => format,
            None => detect_format(head)?,
        };
        let mut lines = RecordingLines {
            source: LineSource::Text(Box::new(io::empty()), format),
            names: Vec::new(),
            time_column: time_column.map(str::to_owned),
            lacking: Vec::new(),
            line: 0,
            buffer: Vec::new(),
            layout: None,
        };
        match format {
            RecordingFormat::Csv => {
                let mut reader = csv::ReaderBuilder::new().flexible(true).from_reader(from);
                let headers = reader.headers().map_err(|e| e.to_string())?;
                lines.names = headers.iter().map(|name| name.trim().to_owned()).collect();
                let place = lines.time_column_index()?;
                lines.source = LineSource::Csv(reader, csv::StringRecord::new(), place);
            }
            RecordingFormat::Access | RecordingFormat::W3c => {
                lines.names = access_log::ACCESS_LOG_COLUMNS.map(str::to_owned).to_vec();
                lines.source = LineSource::Text(from, format);
            }
            RecordingFormat::Har => {
                lines.names = HAR_COLUMNS.map(str::to_owned).to_vec();
                lines.source = LineSource::Archive(HarEntries::new(from)?);
            }
            RecordingFormat::JsonLines | RecordingFormat::Times => {
                lines.source = LineSource::Text(from, format);
            }
        }
        Ok(lines)
    }

    pub(super) fn format(&self) -> RecordingFormat {
        match &self.source {
            LineSource::Csv(..) => RecordingFormat::Csv,
            LineSource::Archive(_) => RecordingFormat::Har,
            LineSource::Text(_, format) => *format,
        }
    }

    /// Returns the names of the columns, once a line has been read.
    pub(super) fn column_names(&self) -> &[String] {
        &self.names
    }

    /// Returns, for each column, the number of the first line that lacks it.
    pub(super) fn first_lines_without_columns(&self) -> &[Option<u64>] {
        &self.lacking
    }

    /// Returns the next line that is neither empty nor a comment, with its number from 1.
    ///
    /// # Errors
    /// When the file can't be read any further.
    pub(super) fn next(&mut self) -> Result<Option<(u64, RowResult)>, String> {
        match &mut self.source {
            LineSource::Csv(reader, record, place) => {
                match reader.read_record(record) {
                    Ok(false) => return Ok(None),
                    Ok(true) => {}
                    Err(e) if matches!(e.kind(), csv::ErrorKind::Utf8 { .. }) => {
                        let line = e.position().map_or(0, csv::Position::line);
                        return Ok(Some((line, Err("it is not UTF-8"))));
                    }
                    Err(e) => return Err(e.to_string()),
                }
                let line = record.position().map_or(0, csv::Position::line);
                if record.len() != self.names.len() {
                    return Ok(Some((
                        line,
                        Err("it does not have as many values as the first line"),
                    )));
                }
                let time = record.get(*place).unwrap_or_default();
                let row = parse_timestamp(time, SECOND_NS).ok_or("its time is invalid");
                let values = || record.iter().map(str::to_owned).collect();
                Ok(Some((line, row.map(|stamp| (stamp, values())))))
            }
            LineSource::Text(from, format) => {
                let format = *format;
                loop {
                    let end = read_line(from, &mut self.buffer, MAX_LINE_BYTES)
                        .map_err(|e| format!("line {}: {e}", self.line + 1))?;
                    if end == LineEnd::EndOfInput && self.buffer.is_empty() {
                        return Ok(None);
                    }
                    self.line += 1;
                    let text = self.buffer.trim_ascii();
                    if text.starts_with(b"#") {
                        let layout = std::str::from_utf8(text).ok();
                        let layout = layout.and_then(FieldLayout::parse);
                        // When logs are concatenated, a new line with field names may follow, and applies from there
                        // on.
                        self.layout = layout.or(self.layout.take());
                    } else if !text.is_empty() {
                        break;
                    }
                }
                let buffer = std::mem::take(&mut self.buffer);
                let row = match std::str::from_utf8(&buffer) {
                    Ok(text) => self.parse_row(format, text.trim()),
                    Err(_) => Err("it is not UTF-8"),
                };
                self.buffer = buffer;
                Ok(Some((self.line, row)))
            }
            LineSource::Archive(entries) => entries.next(),
        }
    }

    fn parse_row(&mut self, format: RecordingFormat, text: &str) -> RowResult {
        match format {
            RecordingFormat::W3c => match &self.layout {
                Some(layout) => layout.parse_row(text),
                None => Err("no line `#Fields:` is before it"),
            },
            RecordingFormat::Times | RecordingFormat::Csv | RecordingFormat::Har => {
                let stamp = parse_timestamp(text, SECOND_NS).ok_or("it is not a time")?;
                Ok((stamp, Vec::new()))
            }
            RecordingFormat::Access => parse_line(text),
            RecordingFormat::JsonLines => self.parse_json(text),
        }
    }

    fn parse_json(&mut self, text: &str) -> RowResult {
        let mut entries = json_entries(text).map_err(|_| "it is not a JSON object")?;
        let nested = entries
            .iter()
            .find(|(name, value)| name == "request" && value.starts_with('{'));
        if let Some(inner) = nested.and_then(|(_, value)| json_entries(value).ok()) {
            entries.extend(
                inner
                    .into_iter()
                    .map(|(name, value)| (format!("request.{name}"), value)),
            );
        }
        add_request_parts(&mut entries);
        if self.names.is_empty() {
            self.names = entries.iter().map(|(name, _)| name.clone()).collect();
            let has = |wanted: &str| self.names.iter().any(|name| name == wanted);
            if has("path") {
                // Add these columns although the first line lacks them, because later lines may have them.
                let missing = OPTIONAL_COLUMNS.into_iter().filter(|name| !has(name));
                let missing: Vec<String> = missing.map(str::to_owned).collect();
                self.names.extend(missing);
            }
            self.lacking = vec![None; self.names.len()];
            if self.time_column_index().is_err() {
                self.names.clear();
                return Err("it has no time");
            }
        }
        let of_request = |wanted: &str| {
            let entry = entries.iter().find(|(name, _)| name == wanted);
            entry.map(|(_, value)| value)
        };
        if of_request("method").is_some()
            && of_request("path").is_some_and(|path| !access_log::is_valid_path(path))
        {
            return Err(UNSENDABLE_PATH_ERROR);
        }
        let has_method = |names: &[String]| names.iter().any(|name| name == METHOD_COLUMN);
        if of_request(METHOD_COLUMN).is_some() && !has_method(&self.names) {
            return Err("it has a method, and the first line has none");
        }
        let place = self.time_column_index().map_err(|_| "it has no time")?;
        let time_name = &self.names[place];
        let value_of = |name: &str| {
            entries
                .iter()
                .find(|(other, _)| other == name)
                .map(|(_, value)| value.as_str())
        };
        let time = value_of(time_name).ok_or("it has no time")?;
        // Mooncake traces have times in milliseconds.
        let is_mooncake = value_of("hash_ids").is_some() && value_of("input_length").is_some();
        let unit = if is_mooncake {
            SECOND_NS / 1_000
        } else {
            SECOND_NS
        };
        let mut stamp = parse_timestamp(time, unit).ok_or("its time is invalid")?;
        // Subtracting the answer's duration from times in whole seconds would be meaningless.
        if END_TIME_COLUMNS.contains(&time_name.as_str())
            && !stamp.is_whole_second
            && let Some(took) =
                value_of("request_time").and_then(|took| self::parse_timestamp(took, SECOND_NS))
        {
            stamp.ns = stamp.ns.checked_sub(took.ns).ok_or("its time is invalid")?;
        }
        let mut values = Vec::with_capacity(self.names.len());
        for (name, lacking) in self.names.iter().zip(&mut self.lacking) {
            let value = value_of(name);
            let is_method = name == METHOD_COLUMN;
            let is_optional = is_method || OPTIONAL_COLUMNS.contains(&name.as_str());
            if value.is_none() && !is_optional {
                lacking.get_or_insert(self.line);
            }
            let usual = if is_method { "GET" } else { "" };
            values.push(value.unwrap_or(usual).to_owned());
        }
        Ok((stamp, values))
    }

    /// Returns the position of the column of times.
    fn time_column_index(&self) -> Result<usize, String> {
        let place = |wanted: &str| {
            self.names
                .iter()
                .position(|name| name.eq_ignore_ascii_case(wanted))
        };
        match &self.time_column {
            Some(name) => place(name).ok_or_else(|| {
                format!("it has no column `{name}`, but {}", self.names.join(", "))
            }),
            None => TIME_COLUMNS.into_iter().find_map(place).ok_or_else(|| {
                format!(
                    "none of its columns ({}) has a usual name for times: name it (load.time_column)",
                    self.names.join(", ")
                )
            }),
        }
    }
}

/// A reader that fills its buffer at each read, so that format detection sees whole lines.
struct FillingReader<R>(R);

impl<R: Read> Read for FillingReader<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let mut filled = 0;
        while filled < out.len() {
            match self.0.read(&mut out[filled..])? {
                0 => break,
                n => filled += n,
            }
        }
        Ok(filled)
    }
}

/// Detects the format from the first lines.
fn detect_format(head: &[u8]) -> Result<RecordingFormat, String> {
    let head = String::from_utf8_lossy(head);
    if FieldLayout::looks_like_w3c(&head) {
        return Ok(RecordingFormat::W3c);
    }
    if HarEntries::looks_like_har(&head) {
        return Ok(RecordingFormat::Har);
    }
    let lines = head
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty() && !line.starts_with('#'));
    for line in lines.take(10) {
        if line.starts_with('{') {
            return Ok(RecordingFormat::JsonLines);
        }
        if parse_line(line).is_ok() {
            return Ok(RecordingFormat::Access);
        }
        if parse_timestamp(line, SECOND_NS).is_some() {
            return Ok(RecordingFormat::Times);
        }
        let mut names = line
            .split(',')
            .map(|name| name.trim().trim_matches('"').to_ascii_lowercase());
        if line.contains(',') && names.any(|name| TIME_COLUMNS.contains(&name.as_str())) {
            return Ok(RecordingFormat::Csv);
        }
    }
    Err(format!(
        "the format of its first lines is not recognised: set it (load.replay_format) to {}",
        RecordingFormat::ALL.map(RecordingFormat::name).join(", ")
    ))
}

/// Adds the parts of the request line as entries, and copies loggers' own keys to the column names that replays use.
fn add_request_parts(entries: &mut Vec<(String, String)>) {
    let has =
        |entries: &[(String, String)], name: &str| entries.iter().any(|(other, _)| other == name);
    let found: Vec<(String, String)> = {
        let seen: &[(String, String)] = entries;
        let request = seen.iter().find(|(name, _)| name == "request");
        let (method, target) = request
            .and_then(|(_, value)| split_request_line(value))
            .unwrap_or_default();
        let (host, path) = split_url(target);
        let found = [("method", method), ("path", path), ("host", host)];
        let new = found
            .into_iter()
            .filter(|(name, value)| !value.is_empty() && !has(seen, name));
        new.map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect()
    };
    entries.extend(found);
    for (name, synonyms) in COLUMN_SYNONYMS {
        if has(entries, name) {
            continue;
        }
        let value_of = |wanted: &&str| {
            entries
                .iter()
                .find(|(other, _)| other == wanted)
                .map(|(_, value)| value)
        };
        let found = synonyms.iter().find_map(value_of).map(|value| match name {
            "path" => split_url(value).1.to_owned(),
            _ => value.clone(),
        });
        entries.extend(found.map(|value| (name.to_owned(), value)));
    }
}

#[cfg(test)]
mod tests;
