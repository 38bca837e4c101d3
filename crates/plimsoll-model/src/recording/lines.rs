//! Parses the lines of logs and traces.

use std::io::{self, BufRead, Read};

use super::RecordingFormat;
use super::access::{self, RowResult, UNSENDABLE_PATH, parse_line, request_line, split_url};
use super::stamps::stamp;
use crate::input::{LineEnd, read_line};
use crate::json_line::json_entries;

/// Maximum length of a line, in bytes.
const MAX_LINE: usize = 1 << 20;

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

/// Columns in which nginx logs the end of the answer.
const END_COLUMNS: [&str; 4] = ["msec", "time_iso8601", "time_local", "time"];

/// Columns that are added to JSON lines, with the names that loggers use for them.
const SYNONYMS: [(&str, &[&str]); 5] = [
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
];

/// A reader of a file's lines.
pub(super) struct RecordingLines<'a> {
    source: LineSource<'a>,
    /// Names of the columns; for JSON lines those of the first valid line.
    names: Vec<String>,
    time_column: Option<String>,
    /// The first JSON line that lacks each column, numbered from 1.
    lacking: Vec<Option<u64>>,
    line: u64,
    buffer: Vec<u8>,
}

enum LineSource<'a> {
    Csv(csv::Reader<Box<dyn BufRead + 'a>>, csv::StringRecord, usize),
    Text(Box<dyn BufRead + 'a>, RecordingFormat),
}

impl<'a> RecordingLines<'a> {
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
            // Decompressors return less than a line at a time.
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
        };
        match format {
            RecordingFormat::Csv => {
                let mut reader = csv::ReaderBuilder::new().flexible(true).from_reader(from);
                let headers = reader.headers().map_err(|e| e.to_string())?;
                lines.names = headers.iter().map(|name| name.trim().to_owned()).collect();
                let place = lines.time_column_index()?;
                lines.source = LineSource::Csv(reader, csv::StringRecord::new(), place);
            }
            RecordingFormat::Access => {
                lines.names = access::COLUMNS.map(str::to_owned).to_vec();
                lines.source = LineSource::Text(from, format);
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
            LineSource::Text(_, format) => *format,
        }
    }

    /// Returns the names of the columns, once a line has been read.
    pub(super) fn names(&self) -> &[String] {
        &self.names
    }

    /// Returns the first line that lacks each column, by the column's position.
    pub(super) fn lacking(&self) -> &[Option<u64>] {
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
                let row = stamp(time, SECOND_NS).ok_or("its time is invalid");
                let values = || record.iter().map(str::to_owned).collect();
                Ok(Some((line, row.map(|stamp| (stamp, values())))))
            }
            LineSource::Text(from, format) => {
                let format = *format;
                loop {
                    let end = read_line(from, &mut self.buffer, MAX_LINE)
                        .map_err(|e| format!("line {}: {e}", self.line + 1))?;
                    if end == LineEnd::EndOfInput && self.buffer.is_empty() {
                        return Ok(None);
                    }
                    self.line += 1;
                    let text = self.buffer.trim_ascii();
                    if !text.is_empty() && !text.starts_with(b"#") {
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
        }
    }

    fn parse_row(&mut self, format: RecordingFormat, text: &str) -> RowResult {
        match format {
            RecordingFormat::Times | RecordingFormat::Csv => {
                let stamp = stamp(text, SECOND_NS).ok_or("it is not a time")?;
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
            && of_request("path").is_some_and(|path| !access::is_path(path))
        {
            return Err(UNSENDABLE_PATH);
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
        // Mooncake's traces have milliseconds.
        let is_mooncake = value_of("hash_ids").is_some() && value_of("input_length").is_some();
        let unit = if is_mooncake {
            SECOND_NS / 1_000
        } else {
            SECOND_NS
        };
        let mut stamp = stamp(time, unit).ok_or("its time is invalid")?;
        // With times of whole seconds, subtracting the answer's duration would be meaningless.
        if END_COLUMNS.contains(&time_name.as_str())
            && !stamp.is_whole_second
            && let Some(took) =
                value_of("request_time").and_then(|took| self::stamp(took, SECOND_NS))
        {
            stamp.ns = stamp.ns.checked_sub(took.ns).ok_or("its time is invalid")?;
        }
        let mut values = Vec::with_capacity(self.names.len());
        for (name, lacking) in self.names.iter().zip(&mut self.lacking) {
            let value = value_of(name);
            if value.is_none() {
                lacking.get_or_insert(self.line);
            }
            values.push(value.unwrap_or_default().to_owned());
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

/// Fills the buffer at each read, so that format detection sees whole lines.
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
        if stamp(line, SECOND_NS).is_some() {
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

/// Adds the parts of a request line, and the names that replays use for loggers' own.
fn add_request_parts(entries: &mut Vec<(String, String)>) {
    let has =
        |entries: &[(String, String)], name: &str| entries.iter().any(|(other, _)| other == name);
    let found: Vec<(String, String)> = {
        let seen: &[(String, String)] = entries;
        let request = seen.iter().find(|(name, _)| name == "request");
        let (method, target) = request
            .and_then(|(_, value)| request_line(value))
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
    for (name, synonyms) in SYNONYMS {
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
mod tests {
    use super::*;

    fn read(text: &str) -> (Vec<String>, Vec<(u64, RowResult)>) {
        let mut lines = RecordingLines::new(Box::new(text.as_bytes()), None, None).unwrap();
        let mut rows = Vec::new();
        while let Some(row) = lines.next().unwrap() {
            rows.push(row);
        }
        (lines.names().to_vec(), rows)
    }

    /// Returns the line's columns by name, and its time in nanoseconds since 1970.
    fn only(text: &str) -> (i64, Vec<(String, String)>) {
        let (names, mut rows) = read(text);
        assert_eq!(rows.len(), 1, "{rows:?}");
        let (stamp, values) = rows.remove(0).1.unwrap();
        (
            stamp.ns,
            names
                .into_iter()
                .zip(values)
                .filter(|(_, value)| !value.is_empty())
                .collect(),
        )
    }

    fn value<'a>(columns: &'a [(String, String)], name: &str) -> &'a str {
        let found = columns.iter().find(|(other, _)| other == name);
        found.map_or("", |(_, value)| value)
    }

    #[test]
    fn access_logs_of_five_programs_are_read() {
        let nginx = r#"203.0.113.7 - frank [10/Oct/2000:13:55:36 -0700] "GET /a?b=c HTTP/1.1" 200 2326 "http://x/y" "Mozilla/4.08 [en] (\"W\"; I)""#;
        let (ns, columns) = only(nginx);
        assert_eq!(ns, 971_211_336_000_000_000);
        assert_eq!(value(&columns, "client"), "203.0.113.7");
        assert_eq!(value(&columns, "method"), "GET");
        assert_eq!(value(&columns, "path"), "/a?b=c");
        assert_eq!(value(&columns, "status"), "200");
        assert_eq!(value(&columns, "referer"), "http://x/y");
        let haproxy = r#"Feb  6 12:14:14 localhost haproxy[14389]: 10.0.1.2:33317 [06/Feb/2009:12:14:14.655] http-in static/srv1 10/0/30/69/109 200 2750 - - ---- 1/1/1/1/0 0/0 {1wt.eu} {} "GET /index.html HTTP/1.1""#;
        let (ns, columns) = only(haproxy);
        assert_eq!(ns, 1_233_922_454_655_000_000);
        assert_eq!(value(&columns, "client"), "10.0.1.2");
        assert_eq!(value(&columns, "path"), "/index.html");
        assert_eq!(value(&columns, "status"), "200");
        let envoy = r#"[2016-04-15T20:17:00.310Z] "POST /api/v1/locations HTTP/2" 204 - 154 0 226 100 "10.0.35.28" "nsq2http" "cc21d9b0" "locations" "tcp://10.0.2.1:80""#;
        let (ns, columns) = only(envoy);
        assert_eq!(ns, 1_460_751_420_310_000_000);
        assert_eq!(
            (value(&columns, "method"), value(&columns, "status")),
            ("POST", "204")
        );
        let alb = r#"https 2018-07-02T22:23:00.186641Z app/my-loadbalancer/50dc6c495c0c9188 192.168.131.39:2817 10.0.0.1:80 0.086 0.048 0.037 200 200 0 57 "GET https://www.example.com:443/x?y HTTP/1.1" "curl/7.46.0" ECDHE-RSA-AES128-GCM-SHA256 TLSv1.2 arn:aws:elasticloadbalancing:us-east-2:123456789012:targetgroup/my-targets/73e2d6bc24d8a067 "Root=1-58337281-1d84f3d73c47ec4e58577259" "www.example.com" "arn:aws:acm:us-east-2:123456789012:certificate/12345678" 1 2018-07-02T22:22:48.364000Z "authenticate,forward" "-" "-" "10.0.0.1:80" "200" "-" "-""#;
        let (ns, columns) = only(alb);
        assert_eq!(ns, 1_530_570_168_364_000_000);
        assert_eq!(value(&columns, "client"), "192.168.131.39");
        assert_eq!(
            (value(&columns, "host"), value(&columns, "path")),
            ("www.example.com:443", "/x?y")
        );
        let json = r#"{"msec":"1764352593.500","request_time":"0.250","remote_addr":"::1","request":"GET /z HTTP/2.0","status":200}"#;
        let (ns, columns) = only(json);
        // nginx logs a request when the answer has ended.
        assert_eq!(ns, 1_764_352_593_250_000_000);
        assert_eq!(
            (
                value(&columns, "method"),
                value(&columns, "path"),
                value(&columns, "client")
            ),
            ("GET", "/z", "::1")
        );
        let caddy = r#"{"level":"info","ts":1646861401.5241024,"request":{"remote_ip":"127.0.0.1","method":"GET","host":"localhost","uri":"/q"},"status":200}"#;
        let (ns, columns) = only(caddy);
        assert_eq!(ns, 1_646_861_401_524_102_400);
        assert_eq!(
            (value(&columns, "path"), value(&columns, "host")),
            ("/q", "localhost")
        );
    }

    #[test]
    fn traces_of_language_models_are_read() {
        let azure = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n";
        let (ns, columns) = only(azure);
        assert_eq!(ns, 1_700_158_546_680_590_000);
        assert_eq!(value(&columns, "GeneratedTokens"), "44");
        let burst = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n5,ChatGPT,472,18,490,Conversation log\n";
        let (ns, columns) = only(burst);
        assert_eq!(
            (ns, value(&columns, "Request tokens")),
            (5_000_000_000, "472")
        );
        let mooncake = r#"{"timestamp": 27482, "input_length": 6955, "output_length": 52, "hash_ids": [46, 47]}"#;
        let (ns, columns) = only(mooncake);
        assert_eq!(
            (ns, value(&columns, "output_length")),
            (27_482_000_000, "52")
        );
    }

    #[test]
    fn unreadable_lines_have_number_and_reason() {
        let (_, rows) = read("# comment\n0.5\n\nsoon\n1.5");
        let found: Vec<(u64, bool)> = rows
            .iter()
            .map(|(line, row)| (*line, row.is_ok()))
            .collect();
        assert_eq!(found, [(2, true), (4, false), (5, true)]);
        let (_, rows) = read("time,a\n1,x\n2\nthree,y\n");
        let found: Vec<(u64, bool)> = rows
            .iter()
            .map(|(line, row)| (*line, row.is_ok()))
            .collect();
        assert_eq!(found, [(2, true), (3, false), (4, false)]);
        assert!(RecordingLines::new(Box::new(&b"what is this\n"[..]), None, None).is_err());
    }

    #[test]
    fn compressed_files_are_decompressed() {
        let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        std::io::Write::write_all(&mut packed, b"0.5\n1.5\n").unwrap();
        let packed = packed.finish().unwrap();
        let mut lines = RecordingLines::new(Box::new(&packed[..]), None, None).unwrap();
        let (line, row) = lines.next().unwrap().unwrap();
        assert_eq!((line, row.unwrap().0.ns), (1, 500_000_000));
    }
}
