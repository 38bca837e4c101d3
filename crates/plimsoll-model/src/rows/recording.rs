//! Recorded arrivals: the times of a log or trace, and the contents of its lines.
//!
//! A file is read once, before the load, line by line ([`reading`]). The data is kept in spools ([`spool`]), from which
//! workers read times when calls become due, and values when a call needs them. So a file may be larger than the
//! available memory, and all problems of the file are known before the first call. Invariant: times never decrease, and
//! the n-th time belongs to the n-th row.

mod access_log;
mod har;
mod hosts;
mod lines;
mod options;
mod reading;
mod spool;
mod timestamps;
mod w3c;

use std::cell::RefCell;
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

pub use hosts::HostCounts;
pub use options::{ColumnFilter, TimeWindow};
use spool::Spool;

use crate::formats::named_enum::named;
use crate::formats::quantity;

named! {
    /// The format of a file of arrivals.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum RecordingFormat by name {
        /// One time per line.
        Times "times",
        /// CSV with a header line; one column is a time.
        Csv "csv",
        /// One JSON object per line; one key is a time.
        JsonLines "jsonl",
        /// The access log of nginx or Apache (common or combined), HAProxy, Envoy or an AWS load balancer.
        Access "access",
        /// A log in the W3C extended format, with a line `#Fields:`, as written by AWS CloudFront or IIS.
        W3c "w3c",
        /// A recording of a browser or proxy (HAR 1.2).
        Har "har",
    }
}

impl RecordingFormat {
    /// Returns the word for one record in messages: a line, or an entry of an archive.
    pub fn unit_noun(self) -> &'static str {
        match self {
            RecordingFormat::Har => "entry",
            _ => "line",
        }
    }

    /// Formats `1 line`, `2 entries`.
    pub fn format_count(self, number: u64) -> String {
        match (self, number) {
            (RecordingFormat::Har, 1) => "1 entry".to_owned(),
            (RecordingFormat::Har, number) => format!("{} entries", quantity::count(number)),
            (_, number) => quantity::plural(number, "line"),
        }
    }
}

/// Number of timestamps that a cursor reads at once.
const TIMES_PER_CHUNK: usize = 256;
/// Number of rows in a block, which is read at once.
const ROWS_PER_BLOCK: u64 = 64;

/// The settings by which a file of arrivals is read.
#[derive(Clone, Debug, PartialEq)]
pub struct RecordingOptions {
    /// The path of the file.
    pub file: PathBuf,
    /// The format; `None`: it is detected.
    pub format: Option<RecordingFormat>,
    /// The column of times; `None`: it is found by its name.
    pub time_column: Option<String>,
    /// The factor by which the replay is faster than the recording.
    pub speed: f64,
    /// The part of the recorded time that is replayed; `None`: the whole recording.
    pub window: Option<TimeWindow>,
    /// Conditions that lines must meet.
    pub filters: Vec<ColumnFilter>,
    /// The share of clients, or of lines if no column names a client, that is replayed; `None`: all.
    pub sample: Option<f64>,
    /// The seed of the sample.
    pub seed: u64,
    /// The host of requests that are replayed, as `host:port`; `None`: those of all hosts.
    pub own_host: Option<String>,
}

/// Recorded arrivals. Cheap to clone.
#[derive(Clone)]
pub struct Recording {
    inner: Arc<RecordingInner>,
}

struct RecordingInner {
    file: String,
    format: RecordingFormat,
    count: u64,
    /// Nanoseconds from the load's start to the end of the recorded time.
    end: u64,
    /// The arrivals in nanoseconds since the load's start, 8 bytes each, little-endian.
    times: Spool,
    rows: Option<Arc<RecordedRows>>,
    /// CRC-32 of times and rows.
    checksum: u32,
    skipped: SkippedLines,
    /// The hosts of the replayed requests; empty unless the file is a recording (HAR).
    hosts: HostCounts,
    /// Whether a spool can no longer be read.
    is_lost: AtomicBool,
}

/// Counts of lines that were skipped or put in another order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SkippedLines {
    /// Lines that could not be parsed.
    pub unreadable: u64,
    /// The first unreadable lines: line number from 1, and the reason.
    pub first_unreadable: Vec<(u64, &'static str)>,
    /// Lines excluded by filters, sample or window.
    pub excluded: u64,
    /// Requests that went to other hosts than the target's.
    pub other_hosts: HostCounts,
    /// Lines that were older than an earlier line, so that lines had to be sorted.
    pub sorted: u64,
}

impl fmt::Debug for Recording {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Recording({:?}, {} arrivals)",
            self.inner.file, self.inner.count
        )
    }
}

impl PartialEq for Recording {
    /// Two recordings are equal if their times and rows are.
    fn eq(&self, other: &Recording) -> bool {
        let known = |r: &Recording| (r.inner.count, r.inner.end, r.inner.checksum);
        known(self) == known(other)
    }
}

impl Recording {
    /// Returns the file's path as the user wrote it.
    pub fn file(&self) -> &str {
        &self.inner.file
    }

    /// Returns the format.
    pub fn format(&self) -> RecordingFormat {
        self.inner.format
    }

    /// Returns the number of arrivals; at least one.
    pub fn count(&self) -> u64 {
        self.inner.count
    }

    /// Returns the nanoseconds from the load's start to the end of the recorded time, which is after the last arrival.
    pub fn end_ns(&self) -> u64 {
        self.inner.end
    }

    /// Returns an upper bound of the arrivals within any second. `repeats`: the recording starts again at its end, and
    /// seconds that contain its end and its start are included.
    pub fn max_arrivals_per_second(&self, repeats: bool) -> u64 {
        const SECOND_NS: u64 = 1_000_000_000;
        if repeats && self.end_ns() < SECOND_NS {
            let rounds = SECOND_NS / self.end_ns().max(1) + 2;
            return rounds.saturating_mul(self.count());
        }
        let at = |cursor: &mut RecordingCursor, number: u64| {
            let round = number / self.count();
            let time = cursor.arrival_time_ns(number % self.count())?;
            (round == 0 || repeats)
                .then(|| round.saturating_mul(self.end_ns()).saturating_add(time))
        };
        let (mut first, mut last) = (self.cursor(), self.cursor());
        let (mut end, mut most) = (0, 0);
        for begin in 0..self.count() {
            let Some(from) = at(&mut first, begin) else {
                break;
            };
            while at(&mut last, end).is_some_and(|time| time - from < SECOND_NS) {
                end += 1;
            }
            most = most.max(end - begin);
        }
        most
    }

    /// Returns the CRC-32 of times and rows, in hexadecimal digits.
    pub fn checksum(&self) -> String {
        format!("{:08x}", self.inner.checksum)
    }

    /// Returns the rows, which contain the other columns of the lines; `None`: there are no other columns.
    pub fn rows(&self) -> Option<&Arc<RecordedRows>> {
        self.inner.rows.as_ref()
    }

    /// Returns the hosts of the replayed requests; none unless the file is a recording (HAR).
    pub fn hosts(&self) -> &HostCounts {
        &self.inner.hosts
    }

    /// Returns the counts of lines that were skipped or put in another order.
    pub fn skipped_lines(&self) -> &SkippedLines {
        &self.inner.skipped
    }

    /// Returns notes about the file for the run's report, one sentence each.
    pub fn notes(&self) -> Vec<String> {
        let left_out = self.skipped_lines();
        let (file, format) = (self.file(), self.format());
        // The verb must agree with the number.
        let count = |number: u64, one: &str, several: &str| {
            let verb = if number == 1 { one } else { several };
            format!("{} of {file} {verb}", format.format_count(number))
        };
        let mut notes = vec![format!(
            "the arrivals are those of {file}: {} ({})",
            format.format_count(self.count()),
            format.name()
        )];
        if left_out.unreadable > 0 {
            let first = left_out.first_unreadable.iter();
            let first: Vec<String> = first
                .map(|(number, why)| format!("{} {number}: {why}", format.unit_noun()))
                .collect();
            let more = if left_out.unreadable > first.len() as u64 {
                "; …"
            } else {
                ""
            };
            let text = count(
                left_out.unreadable,
                "could not be read and was skipped",
                "could not be read and were skipped",
            );
            notes.push(format!("{text} ({}{more})", first.join("; ")));
        }
        if left_out.excluded > 0 {
            let text = count(left_out.excluded, "was excluded", "were excluded");
            notes.push(format!("{text} by the window, the filters and the sample"));
        }
        let others = &left_out.other_hosts;
        if others.total() > 0 {
            let text = count(others.total(), "was left out", "were left out");
            notes.push(format!(
                "{text}, which went to other hosts than the target: {}; the filter \"host=NAME\" replays those of another",
                others.list()
            ));
        } else if self.hosts().hosts() > 1 {
            notes.push(format!(
                "its requests went to several hosts, and all are sent to one target: {}; the filter \"host=NAME\" replays those of one host",
                self.hosts().list()
            ));
        }
        if left_out.sorted > 0 {
            let text = count(
                left_out.sorted,
                "was out of order and has been sorted",
                "were out of order and have been sorted",
            );
            notes.push(text);
        }
        notes
    }

    /// Returns why arrivals or rows are missing, if their temporary file can no longer be read.
    pub fn missing_data_reason(&self) -> Option<String> {
        let inner = &self.inner;
        let rows = inner.rows.as_ref();
        let is_lost = inner.is_lost.load(Ordering::Relaxed)
            || rows.is_some_and(|rows| rows.is_lost.load(Ordering::Relaxed));
        is_lost.then(|| {
            format!(
                "the arrivals of {} could not be read back from the temporary folder (TMPDIR)",
                inner.file
            )
        })
    }

    /// Returns a cursor at the first arrival.
    pub(crate) fn cursor(&self) -> RecordingCursor {
        RecordingCursor {
            recording: self.clone(),
            first: 0,
            times: Vec::new(),
        }
    }
}

/// A position among recorded times, with a buffer of the following ones.
#[derive(Clone, Debug)]
pub(crate) struct RecordingCursor {
    recording: Recording,
    /// The number of the arrival whose time is the first in `times`.
    first: u64,
    times: Vec<u64>,
}

impl RecordingCursor {
    /// Returns when arrival `number` is due, in nanoseconds since the load's start; `None` after the last.
    #[inline]
    pub(crate) fn arrival_time_ns(&mut self, number: u64) -> Option<u64> {
        let place = number.wrapping_sub(self.first);
        match self.times.get(usize::try_from(place).unwrap_or(usize::MAX)) {
            Some(time) => Some(*time),
            None => self.read(number),
        }
    }

    #[cold]
    fn read(&mut self, number: u64) -> Option<u64> {
        let inner = &self.recording.inner;
        let left = inner.count.checked_sub(number).filter(|left| *left > 0)?;
        let length = usize::try_from(left)
            .unwrap_or(usize::MAX)
            .min(TIMES_PER_CHUNK);
        let mut bytes = [0; TIMES_PER_CHUNK * 8];
        let bytes = &mut bytes[..length * 8];
        if inner.times.read(number * 8, bytes).is_err() {
            inner.is_lost.store(true, Ordering::Relaxed);
            return None;
        }
        self.first = number;
        self.times.clear();
        let times = bytes.chunks_exact(8).filter_map(|time| time.first_chunk());
        self.times
            .extend(times.map(|time| u64::from_le_bytes(*time)));
        self.times.first().copied()
    }
}

/// The values of lines, by column.
pub struct RecordedRows {
    /// Unique in the process; the key of cached blocks.
    id: u64,
    file: String,
    names: Vec<String>,
    /// For each column, the number of the first line that lacks it.
    lacking: Vec<Option<u64>>,
    /// For each column, the minimum and the maximum length of its values, in bytes.
    bounds: Vec<(usize, usize)>,
    count: u64,
    /// The values, each preceded by its length in four bytes (little-endian).
    values: Spool,
    /// Offsets at which blocks of rows start, and the end of the last block.
    blocks: Vec<u64>,
    /// Whether the spool can no longer be read.
    is_lost: AtomicBool,
}

impl fmt::Debug for RecordedRows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RecordedRows({:?}, {} rows)", self.file, self.count)
    }
}

/// The block of rows that a thread read last.
#[derive(Default)]
struct CachedBlock {
    /// The [`RecordedRows::id`] (never 0) and the number of the block.
    key: (u64, u64),
    bytes: Vec<u8>,
    /// Start and end offsets of the values, row by row.
    value_ranges: Vec<(u32, u32)>,
}

thread_local! {
    static CACHED_BLOCK: RefCell<CachedBlock> = RefCell::default();
}

impl RecordedRows {
    fn new_id() -> u64 {
        static LAST_ID: AtomicU64 = AtomicU64::new(0);
        LAST_ID.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Returns the file's path as the user wrote it.
    pub fn file(&self) -> &str {
        &self.file
    }

    /// Returns the names of the columns, in order.
    pub fn column_names(&self) -> &[String] {
        &self.names
    }

    /// Returns the number of rows; at least one.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Returns the number of the first line that lacks the column at position `column`.
    pub fn first_line_without_column(&self, column: usize) -> Option<u64> {
        self.lacking.get(column).copied().flatten()
    }

    /// Returns the minimum and maximum length of a value, in bytes.
    pub fn value_length_bounds(&self, column: usize) -> (usize, usize) {
        self.bounds[column]
    }

    /// Calls `work` with the value in a row (numbered from 0) and column. A value that can no longer be read is empty.
    pub fn with_value<T>(&self, row: u64, column: usize, work: impl FnOnce(&str) -> T) -> T {
        CACHED_BLOCK.with_borrow_mut(|block| {
            let number = row / ROWS_PER_BLOCK;
            if block.key != (self.id, number) && self.read(number, block).is_err() {
                self.is_lost.store(true, Ordering::Relaxed);
                *block = CachedBlock::default();
            }
            let place = (row % ROWS_PER_BLOCK) as usize * self.names.len() + column;
            let value = block.value_ranges.get(place).and_then(|(start, end)| {
                let bytes = block.bytes.get(*start as usize..*end as usize)?;
                std::str::from_utf8(bytes).ok()
            });
            work(value.unwrap_or_default())
        })
    }

    #[cold]
    fn read(&self, number: u64, block: &mut CachedBlock) -> io::Result<()> {
        let number_at = usize::try_from(number).unwrap_or(usize::MAX);
        let (Some(start), Some(end)) = (
            self.blocks.get(number_at),
            self.blocks.get(number_at.saturating_add(1)),
        ) else {
            return Err(io::ErrorKind::UnexpectedEof.into());
        };
        block.bytes.clear();
        block.bytes.resize((end - start) as usize, 0);
        self.values.read(*start, &mut block.bytes)?;
        block.value_ranges.clear();
        let mut at = 0;
        while let Some(length) = block
            .bytes
            .get(at..at + 4)
            .and_then(|l| l.first_chunk::<4>())
        {
            let length = u32::from_le_bytes(*length) as usize;
            block
                .value_ranges
                .push(((at + 4) as u32, (at + 4 + length) as u32));
            at += 4 + length;
        }
        block.key = (self.id, number);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
