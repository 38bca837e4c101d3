//! Arrivals that were recorded: the times of a log or trace, and what each of its lines says.
//!
//! A file is read once, before the load, line by line ([`reading`]). What is kept of it lies in spools ([`spool`]), from
//! which workers read parts: their times when they are due, and their values when a call has them. So a file may be
//! larger than the memory, and all problems with it are known before the first call. Its invariant: times never fall,
//! and the n-th time belongs to the n-th row.

mod access;
mod lines;
mod options;
mod reading;
mod spool;
mod stamps;

use std::cell::RefCell;
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

pub use options::{Filter, Window};
use spool::Spool;

use crate::named::named;

named! {
    /// How a file of arrivals is written.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum RecordingFormat by name {
        /// A time a line.
        Times "times",
        /// A line of names, and then values with commas between them; one column is a time.
        Csv "csv",
        /// A JSON object a line; one key is a time.
        JsonLines "jsonl",
        /// The access log of nginx or Apache (common or combined), HAProxy, Envoy or an AWS load balancer.
        Access "access",
    }
}

/// Times that are read at once.
const TIMES_PER_CHUNK: usize = 256;
/// Rows that are read at once.
const ROWS_PER_BLOCK: u64 = 64;

/// What is asked of a file of arrivals.
#[derive(Clone, Debug, PartialEq)]
pub struct RecordingRequest {
    /// The file.
    pub file: PathBuf,
    /// `None`: found by looking.
    pub format: Option<RecordingFormat>,
    /// The column that holds times; `None`: one with a usual name.
    pub time_column: Option<String>,
    /// So much faster than it was recorded.
    pub speed: f64,
    /// The part of it that is replayed; `None`: all.
    pub window: Option<Window>,
    /// What lines have to be.
    pub filters: Vec<Filter>,
    /// The share of clients, or of lines where no column names a client, that is replayed; `None`: all.
    pub sample: Option<f64>,
    /// What the sample is drawn by.
    pub seed: u64,
}

/// Recorded arrivals. Cheap to clone.
#[derive(Clone)]
pub struct Recording {
    inner: Arc<Inner>,
}

struct Inner {
    file: String,
    format: RecordingFormat,
    count: u64,
    /// Nanoseconds from the load's start to the end of the recorded time.
    end: u64,
    /// Nanoseconds since the load's start, 8 bytes each, little-endian.
    times: Spool,
    rows: Option<Arc<RecordedRows>>,
    /// CRC-32 of times and rows.
    checksum: u32,
    left_out: LeftOut,
    /// A spool could not be read any more.
    is_lost: AtomicBool,
}

/// Lines that are not replayed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LeftOut {
    /// Lines that could not be read.
    pub unreadable: u64,
    /// The first of them: number from 1, and why.
    pub first_unreadable: Vec<(u64, &'static str)>,
    /// Lines that the filters, the sample or the window leave out.
    pub not_wanted: u64,
    /// Lines that were written after a later one, and were sorted.
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
    /// The same times and rows.
    fn eq(&self, other: &Recording) -> bool {
        let known = |r: &Recording| (r.inner.count, r.inner.end, r.inner.checksum);
        known(self) == known(other)
    }
}

impl Recording {
    /// Its path, as it was named.
    pub fn file(&self) -> &str {
        &self.inner.file
    }

    /// How it is written.
    pub fn format(&self) -> RecordingFormat {
        self.inner.format
    }

    /// How many arrivals it has; at least one.
    pub fn count(&self) -> u64 {
        self.inner.count
    }

    /// Nanoseconds from the load's start to the end of the recorded time; more than the time of the last arrival.
    pub fn end(&self) -> u64 {
        self.inner.end
    }

    /// CRC-32 of its times and rows, in hexadecimal digits.
    pub fn checksum(&self) -> String {
        format!("{:08x}", self.inner.checksum)
    }

    /// What was read of its lines besides their times; `None`: nothing.
    pub fn rows(&self) -> Option<&Arc<RecordedRows>> {
        self.inner.rows.as_ref()
    }

    /// Lines that are not replayed.
    pub fn left_out(&self) -> &LeftOut {
        &self.inner.left_out
    }

    /// What a reader of the run has to know of the file, a sentence each.
    pub fn notes(&self) -> Vec<String> {
        let left_out = self.left_out();
        let mut notes = vec![format!(
            "the arrivals are those of {}: {} lines ({})",
            self.file(),
            crate::quantity::count(self.count()),
            self.format().name()
        )];
        if left_out.unreadable > 0 {
            let first = left_out.first_unreadable.iter();
            let first: Vec<String> = first
                .map(|(line, why)| format!("line {line}: {why}"))
                .collect();
            notes.push(format!(
                "{} lines of {} could not be read and are left out ({}{})",
                crate::quantity::count(left_out.unreadable),
                self.file(),
                first.join("; "),
                if left_out.unreadable > first.len() as u64 {
                    "; …"
                } else {
                    ""
                },
            ));
        }
        if left_out.not_wanted > 0 {
            notes.push(format!(
                "{} lines of {} are left out as the window, the filters and the sample demand",
                crate::quantity::count(left_out.not_wanted),
                self.file(),
            ));
        }
        if left_out.sorted > 0 {
            notes.push(format!(
                "{} lines of {} stood behind later ones and were sorted",
                crate::quantity::count(left_out.sorted),
                self.file(),
            ));
        }
        notes
    }

    /// Why arrivals or rows are missing, if the temporary file that holds them could not be read any more.
    pub fn lost(&self) -> Option<String> {
        let inner = &self.inner;
        let rows = inner.rows.as_ref();
        let is_lost = inner.is_lost.load(Ordering::Relaxed)
            || rows.is_some_and(|rows| rows.is_lost.load(Ordering::Relaxed));
        is_lost.then(|| {
            format!(
                "what was read of {} could not be read again from the temporary folder (TMPDIR)",
                inner.file
            )
        })
    }

    /// Reads arrivals from the first on.
    pub(crate) fn cursor(&self) -> Cursor {
        Cursor {
            recording: self.clone(),
            first: 0,
            times: Vec::new(),
        }
    }
}

/// A place among recorded times, with those that follow.
#[derive(Clone, Debug)]
pub(crate) struct Cursor {
    recording: Recording,
    /// The number of the first one in `times`.
    first: u64,
    times: Vec<u64>,
}

impl Cursor {
    /// When arrival `number` is due, in nanoseconds since the load's start; `None` behind the last.
    #[inline]
    pub(crate) fn time(&mut self, number: u64) -> Option<u64> {
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

/// What lines say, by columns.
pub struct RecordedRows {
    /// Sets them apart from those of other files.
    id: u64,
    file: String,
    names: Vec<String>,
    /// The first line that lacks each column.
    lacking: Vec<Option<u64>>,
    /// The least and the most bytes of a value, of each column.
    bounds: Vec<(usize, usize)>,
    count: u64,
    /// Values, each behind its length in four bytes, little-endian.
    values: Spool,
    /// Offsets at which blocks of rows begin, and the end of the last block.
    blocks: Vec<u64>,
    /// The spool could not be read any more.
    is_lost: AtomicBool,
}

impl fmt::Debug for RecordedRows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RecordedRows({:?}, {} rows)", self.file, self.count)
    }
}

/// The block of rows that a thread has read last.
#[derive(Default)]
struct Block {
    /// [`RecordedRows::id`], of which none is 0, and the number of the block.
    of: (u64, u64),
    bytes: Vec<u8>,
    /// Offsets at which values begin and end, row by row.
    places: Vec<(u32, u32)>,
}

thread_local! {
    static BLOCK: RefCell<Block> = RefCell::default();
}

impl RecordedRows {
    fn new_id() -> u64 {
        static LAST: AtomicU64 = AtomicU64::new(0);
        LAST.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// The file's path, as it was named.
    pub fn file(&self) -> &str {
        &self.file
    }

    /// The columns' names, in order.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// How many rows there are; at least one.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The first line that lacks a column, by the column's place.
    pub fn lacking(&self, column: usize) -> Option<u64> {
        self.lacking.get(column).copied().flatten()
    }

    /// Bytes of a value, at least and at most.
    pub fn bounds(&self, column: usize) -> (usize, usize) {
        self.bounds[column]
    }

    /// Does `work` with a row's value. Rows are numbered from 0. A value that can't be read any more is empty.
    pub fn with<T>(&self, row: u64, column: usize, work: impl FnOnce(&str) -> T) -> T {
        BLOCK.with_borrow_mut(|block| {
            let number = row / ROWS_PER_BLOCK;
            if block.of != (self.id, number) && self.read(number, block).is_err() {
                self.is_lost.store(true, Ordering::Relaxed);
                *block = Block::default();
            }
            let place = (row % ROWS_PER_BLOCK) as usize * self.names.len() + column;
            let value = block.places.get(place).and_then(|(start, end)| {
                let bytes = block.bytes.get(*start as usize..*end as usize)?;
                std::str::from_utf8(bytes).ok()
            });
            work(value.unwrap_or_default())
        })
    }

    #[cold]
    fn read(&self, number: u64, block: &mut Block) -> io::Result<()> {
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
        block.places.clear();
        let mut at = 0;
        while let Some(length) = block
            .bytes
            .get(at..at + 4)
            .and_then(|l| l.first_chunk::<4>())
        {
            let length = u32::from_le_bytes(*length) as usize;
            block
                .places
                .push(((at + 4) as u32, (at + 4 + length) as u32));
            at += 4 + length;
        }
        block.of = (self.id, number);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
