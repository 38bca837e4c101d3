//! Converts a file's lines to arrivals: sorts and filters them, and makes their times relative to the load's start.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use std::io::BufRead;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use flate2::Crc;

use super::hosts::{HostCounts, is_host_of};
use super::lines::RecordingLines;
use super::spool::SpoolWriter;
use super::timestamps::LineTimestamp;
use super::{
    ROWS_PER_BLOCK, RecordedRows, Recording, RecordingFormat, RecordingInner, RecordingOptions,
    SkippedLines,
};
use crate::rows::mixing::mix_text;

/// Maximum disorder in nanoseconds: a line that is more than this older than an earlier line is rejected.
const MAX_DISORDER_NS: i64 = 60_000_000_000;
/// Maximum number of lines that are buffered for sorting.
const MAX_SORTED_LINES: usize = 1 << 18;
/// Maximum number of unreadable lines that are listed.
const MAX_LISTED_UNREADABLE_LINES: usize = 5;
const SECOND_NS: i64 = 1_000_000_000;

/// A line in the sorting buffer.
struct PendingLine {
    stamp: LineTimestamp,
    line: u64,
    values: Vec<String>,
}

impl PendingLine {
    fn sort_key(&self) -> (i64, u64) {
        (self.stamp.ns, self.line)
    }
}

impl PartialEq for PendingLine {
    fn eq(&self, other: &PendingLine) -> bool {
        self.sort_key() == other.sort_key()
    }
}

impl Eq for PendingLine {}

impl PartialOrd for PendingLine {
    fn partial_cmp(&self, other: &PendingLine) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for PendingLine {
    fn cmp(&self, other: &PendingLine) -> Ordering {
        self.sort_key().cmp(&other.sort_key())
    }
}

impl Recording {
    /// Reads the arrivals that `request` describes from `from`, the open file.
    ///
    /// # Errors
    /// When the file can't be read, or does not have the given format.
    pub fn read(
        request: &RecordingOptions,
        from: Box<dyn BufRead + '_>,
    ) -> Result<Recording, String> {
        let file = request.file.display().to_string();
        let bad = |problem: String| format!("{file}: {problem}");
        let lines = RecordingLines::new(from, request.format, request.time_column.as_deref())
            .map_err(bad)?;
        let format = lines.format();
        let mut reading = RecordingReader::new(request, lines);
        reading.read_all().map_err(bad)?;
        reading.finish(file.clone(), format).map_err(bad)
    }
}

struct RecordingReader<'a> {
    request: &'a RecordingOptions,
    lines: RecordingLines<'a>,
    pending: BinaryHeap<Reverse<PendingLine>>,
    newest: i64,
    first: Option<LineTimestamp>,
    /// For each filter, the position of the column that it checks.
    filter_columns: Vec<usize>,
    client_column: Option<usize>,
    /// The column of hosts, if the file is a recording (HAR).
    host_column: Option<usize>,
    /// The hosts of the replayed requests.
    hosts: HostCounts,
    /// Start and end of the recorded time that is replayed, on the file's clock.
    bounds: (Option<i64>, Option<i64>),
    /// The time of the last line that was written to the spools.
    last: Option<i64>,
    /// The load's start, on the file's clock.
    start: Option<i64>,
    /// The current whole second and its arrivals, which are spread over it.
    second: Option<(i64, u64)>,
    out: RecordingWriter,
    left_out: SkippedLines,
}

/// A writer that stores the times and rows of the replayed lines in spools.
#[derive(Default)]
struct RecordingWriter {
    times: SpoolWriter,
    values: SpoolWriter,
    blocks: Vec<u64>,
    bounds: Vec<(usize, usize)>,
    count: u64,
    rows: u64,
    first_at: u64,
    last_at: u64,
    checksum: Crc,
}

impl<'a> RecordingReader<'a> {
    fn new(request: &'a RecordingOptions, lines: RecordingLines<'a>) -> RecordingReader<'a> {
        RecordingReader {
            request,
            lines,
            pending: BinaryHeap::new(),
            newest: i64::MIN,
            first: None,
            filter_columns: Vec::new(),
            client_column: None,
            host_column: None,
            hosts: HostCounts::default(),
            bounds: (None, None),
            last: None,
            start: None,
            second: None,
            out: RecordingWriter::default(),
            left_out: SkippedLines::default(),
        }
    }

    fn read_all(&mut self) -> Result<(), String> {
        while let Some((line, row)) = self.lines.next()? {
            let kind = self.first.map(|first| first.is_clock);
            let (stamp, values) = match row {
                Ok((stamp, _)) if kind.is_some_and(|kind| kind != stamp.is_clock) => {
                    self.count_unreadable(
                        line,
                        "its time has another format than the first line's",
                    );
                    continue;
                }
                Ok(row) => row,
                Err(why) => {
                    self.count_unreadable(line, why);
                    continue;
                }
            };
            if self.first.is_none() {
                self.handle_first_line(stamp)?;
            }
            self.left_out.sorted += u64::from(stamp.ns < self.newest);
            self.newest = self.newest.max(stamp.ns);
            self.pending.push(Reverse(PendingLine {
                stamp,
                line,
                values,
            }));
            while let Some(Reverse(oldest)) = self.pending.peek()
                && (self.newest - oldest.stamp.ns > MAX_DISORDER_NS
                    || self.pending.len() > MAX_SORTED_LINES)
            {
                self.process_oldest_line()?;
            }
        }
        while !self.pending.is_empty() {
            self.process_oldest_line()?;
        }
        self.flush_second()
    }

    fn count_unreadable(&mut self, line: u64, why: &'static str) {
        let left_out = &mut self.left_out;
        left_out.unreadable += 1;
        if left_out.first_unreadable.len() < MAX_LISTED_UNREADABLE_LINES {
            left_out.first_unreadable.push((line, why));
        }
    }

    /// Handles the first line, which determines the columns and the window.
    fn handle_first_line(&mut self, stamp: LineTimestamp) -> Result<(), String> {
        let names = self.lines.column_names();
        let place = |wanted: &str| names.iter().position(|name| name == wanted);
        for filter in &self.request.filters {
            let place = place(&filter.column).ok_or_else(|| {
                format!(
                    "a filter needs column `{}`, but it has {}",
                    filter.column,
                    list_columns(names)
                )
            })?;
            self.filter_columns.push(place);
        }
        self.client_column = ["client", "user"].into_iter().find_map(place);
        if self.lines.format() == RecordingFormat::Har {
            self.host_column = place("host");
        }
        if let Some(window) = &self.request.window {
            let ahead = stamp.is_clock.then_some(stamp.utc_offset_s);
            self.bounds = window.resolve_bounds(stamp.ns, ahead)?;
        }
        self.out.bounds = vec![(usize::MAX, 0); names.len()];
        self.first = Some(stamp);
        Ok(())
    }

    fn process_oldest_line(&mut self) -> Result<(), String> {
        let Some(Reverse(oldest)) = self.pending.pop() else {
            return Ok(());
        };
        let ns = oldest.stamp.ns;
        if let Some(last) = self.last
            && ns < last
        {
            return Err(format!(
                "{} {} is too far out of order to be sorted here (over 60 s, or {MAX_SORTED_LINES} lines): sort the file by its time",
                self.lines.format().unit_noun(),
                oldest.line
            ));
        }
        self.last = Some(ns);
        let (from, to) = self.bounds;
        if from.is_some_and(|from| ns < from)
            || to.is_some_and(|to| ns >= to)
            || !self.is_replayed(&oldest)
        {
            self.left_out.excluded += 1;
            return Ok(());
        }
        if let Some(place) = self.host_column {
            let host = oldest.values.get(place).map_or("", String::as_str);
            let own = self.request.own_host.as_ref();
            if own.is_some_and(|own| !is_host_of(host, own)) {
                self.left_out.other_hosts.add(host);
                return Ok(());
            }
            self.hosts.add(host);
        }
        if !oldest.stamp.is_whole_second {
            self.flush_second()?;
            self.write_time(ns)?;
        } else if let Some((second, count)) = &mut self.second
            && *second == ns
        {
            *count += 1;
        } else {
            self.flush_second()?;
            self.second = Some((ns, 1));
        }
        if !oldest.values.is_empty() {
            self.out.push_row(&oldest.values)?;
        }
        Ok(())
    }

    fn is_replayed(&self, line: &PendingLine) -> bool {
        let value = |place: usize| line.values.get(place).map_or("", String::as_str);
        let mut filters = self.request.filters.iter().zip(&self.filter_columns);
        if !filters.all(|(filter, place)| filter.accepts(value(*place))) {
            return false;
        }
        let Some(share) = self.request.sample else {
            return true;
        };
        let drawn = match self.client_column {
            Some(place) => mix_text(self.request.seed, value(place)),
            None => mix_text(self.request.seed, &line.line.to_string()),
        };
        // 53 random bits in [0, 1).
        ((drawn >> 11) as f64) * (1.0 / (1u64 << 53) as f64) < share
    }

    /// Spreads the arrivals of the current second evenly over it, since times in whole seconds don't say when in the
    /// second they occurred.
    fn flush_second(&mut self) -> Result<(), String> {
        let Some((second, count)) = self.second.take() else {
            return Ok(());
        };
        for n in 0..count {
            let part = i128::from(n) * i128::from(SECOND_NS) / i128::from(count);
            self.write_time(second + part as i64)?;
        }
        Ok(())
    }

    fn write_time(&mut self, ns: i64) -> Result<(), String> {
        let is_clock = self.first.is_some_and(|first| first.is_clock);
        // Without a window, the load starts with the first arrival if times are clock times; offsets are used
        // unchanged.
        let begin = self.bounds.0.unwrap_or(if is_clock { ns } else { 0 });
        let start = *self.start.get_or_insert(begin);
        let at = scale_time(ns.saturating_sub(start), self.request.speed);
        self.out.push_time(at)
    }

    fn finish(self, file: String, format: RecordingFormat) -> Result<Recording, String> {
        let out = self.out;
        let left_out = self.left_out;
        let unit = format.unit_noun();
        if out.count == 0 {
            let first = left_out.first_unreadable.first();
            return Err(match first {
                _ if left_out.excluded > 0 => {
                    format!(
                        "none of its {} matches the window, the filters and the sample",
                        format.format_count(left_out.excluded)
                    )
                }
                Some((line, why)) => format!(
                    "no {unit} can be read as {} ({unit} {line}: {why})",
                    format.name()
                ),
                None if format == RecordingFormat::Har => "it has no entries".to_owned(),
                None => "it has no lines".to_owned(),
            });
        }
        if left_out.unreadable > out.count + left_out.excluded + left_out.other_hosts.total() {
            let (line, why) = left_out
                .first_unreadable
                .first()
                .copied()
                .unwrap_or_default();
            return Err(format!(
                "{}, more than half, can't be read as {} ({unit} {line}: {why}): name another format (load.replay_format), or repair the file",
                format.format_count(left_out.unreadable),
                format.name()
            ));
        }
        let end = match (self.bounds.1, self.start) {
            (Some(to), Some(start)) => scale_time(to.saturating_sub(start), self.request.speed),
            _ => out.last_at.saturating_add(out.mean_gap_ns()),
        };
        let (names, lacking) = (
            self.lines.column_names().to_vec(),
            self.lines.first_lines_without_columns().to_vec(),
        );
        let spooled = |e: std::io::Error| spool_error(&e);
        let mut blocks = out.blocks;
        blocks.push(out.values.length());
        let rows = RecordedRows {
            id: RecordedRows::new_id(),
            file: file.clone(),
            lacking,
            bounds: out.bounds,
            count: out.rows,
            values: out.values.finish().map_err(spooled)?,
            blocks,
            is_lost: AtomicBool::new(false),
            names,
        };
        Ok(Recording {
            inner: Arc::new(RecordingInner {
                file,
                format,
                count: out.count,
                end: end.max(out.last_at.saturating_add(1)),
                times: out.times.finish().map_err(spooled)?,
                rows: (rows.count > 0).then(|| Arc::new(rows)),
                checksum: out.checksum.sum(),
                skipped: left_out,
                hosts: self.hosts,
                is_lost: AtomicBool::new(false),
            }),
        })
    }
}

/// Divides a time by the speed.
fn scale_time(ns: i64, speed: f64) -> u64 {
    let ns = u64::try_from(ns).unwrap_or(0);
    if speed == 1.0 {
        ns
    } else {
        (ns as f64 / speed).round() as u64
    }
}

fn list_columns(names: &[String]) -> String {
    if names.is_empty() {
        "no columns".to_owned()
    } else {
        names.join(", ")
    }
}

fn spool_error(error: &std::io::Error) -> String {
    format!("its arrivals can't be stored in the temporary folder (TMPDIR): {error}")
}

impl RecordingWriter {
    fn push_time(&mut self, at: u64) -> Result<(), String> {
        if self.count == 0 {
            self.first_at = at;
        }
        self.last_at = at;
        self.count += 1;
        let bytes = at.to_le_bytes();
        self.checksum.update(&bytes);
        self.times.write(&bytes).map_err(|e| spool_error(&e))
    }

    fn push_row(&mut self, values: &[String]) -> Result<(), String> {
        if self.rows.is_multiple_of(ROWS_PER_BLOCK) {
            self.blocks.push(self.values.length());
        }
        self.rows += 1;
        for (value, (least, most)) in values.iter().zip(&mut self.bounds) {
            (*least, *most) = ((*least).min(value.len()), (*most).max(value.len()));
            // The length fits, because a line has at most 1 MiB.
            let length = u32::try_from(value.len()).unwrap_or(u32::MAX).to_le_bytes();
            for bytes in [&length[..], value.as_bytes()] {
                self.checksum.update(bytes);
                self.values.write(bytes).map_err(|e| spool_error(&e))?;
            }
        }
        Ok(())
    }

    /// Returns the mean gap between arrivals in nanoseconds; a second if there is only one arrival.
    fn mean_gap_ns(&self) -> u64 {
        let span = self.last_at - self.first_at;
        if span == 0 {
            SECOND_NS as u64
        } else {
            (span / (self.count - 1)).max(1)
        }
    }
}
