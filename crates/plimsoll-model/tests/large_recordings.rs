//! A log of a million lines is replayed from the temporary folder: memory holds neither the file nor its arrivals.
//!
//! The only test of its process, whose memory it measures.

use std::fs;
use std::io::{self, BufRead, Read};
use std::path::PathBuf;

use plimsoll_model::rows::recording::{Recording, RecordingOptions};

const LINES: u64 = 1_000_000;
/// The most memory by which reading may raise the process's peak: lines of a minute wait to be sorted. Bytes.
const MAX_GROWTH_BYTES: u64 = 48 << 20;

/// An access log that is made while it is read: 500 lines a second, every 1,000th of which is no request.
struct GeneratedLog {
    next: u64,
    line: Vec<u8>,
    at: usize,
    /// How many bytes have been read.
    length: u64,
}

impl Read for GeneratedLog {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let n = self.fill_buf()?.read(out)?;
        self.consume(n);
        Ok(n)
    }
}

impl BufRead for GeneratedLog {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        if self.at == self.line.len() && self.next < LINES {
            let n = self.next;
            self.next += 1;
            self.at = 0;
            let text = if n % 1_000 == 999 {
                "a line that is no request\n".to_owned()
            } else {
                let second = n / 500;
                let (minute, second) = (second / 60, second % 60);
                format!(
                    "192.0.2.{} - - [28/Nov/2026:14:{minute:02}:{second:02} +0000] \"GET /items/{n}?page=7&size=100&sort=name HTTP/1.1\" 200 1024 \"https://shop.example/list\" \"Mozilla/5.0 (X11; Linux x86_64)\"\n",
                    n % 251
                )
            };
            self.length += text.len() as u64;
            self.line = text.into_bytes();
        }
        Ok(&self.line[self.at..])
    }

    fn consume(&mut self, amount: usize) {
        self.at += amount;
    }
}

/// Returns the peak of the process's resident memory. Bytes.
fn peak_bytes() -> u64 {
    let status = fs::read_to_string("/proc/self/status").expect("the process's status");
    let line = status.lines().find(|line| line.starts_with("VmHWM:"));
    let kib = line.and_then(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok());
    kib.expect("a peak") * 1_024
}

#[test]
fn million_lines_are_streamed() {
    let request = RecordingOptions {
        file: PathBuf::from("access.log"),
        format: None,
        time_column: None,
        speed: 1.0,
        window: None,
        filters: Vec::new(),
        sample: None,
        seed: 1,
        own_host: None,
    };
    let mut log = GeneratedLog {
        next: 0,
        line: Vec::new(),
        at: 0,
        length: 0,
    };
    let before = peak_bytes();
    let recording = Recording::read(&request, Box::new(&mut log)).expect("a recording");
    assert_eq!(recording.count(), LINES - LINES / 1_000);
    let left_out = recording.skipped_lines();
    assert_eq!(left_out.unreadable, LINES / 1_000);
    let first: Vec<u64> = left_out
        .first_unreadable
        .iter()
        .map(|(line, _)| *line)
        .collect();
    assert_eq!(first, [1_000, 2_000, 3_000, 4_000, 5_000]);
    let rows = recording.rows().expect("rows");
    let paths = rows
        .column_names()
        .iter()
        .position(|name| name == "path")
        .expect("paths");
    let last = rows.with_value(rows.count() - 1, paths, str::to_owned);
    assert_eq!(
        last,
        format!("/items/{}?page=7&size=100&sort=name", LINES - 2)
    );
    assert!(
        recording
            .notes()
            .concat()
            .contains("line 5000: it has no time; …")
    );
    drop(recording);
    let growth = peak_bytes() - before;
    assert!(log.length > 3 * MAX_GROWTH_BYTES, "{}", log.length);
    assert!(growth < MAX_GROWTH_BYTES, "{growth} bytes more");
}
