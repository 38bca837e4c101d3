//! Imports the output of `openssl s_time`, of OpenSSL 1.1.1 to 4.0, as runs.
//!
//! The output has a section for new connections, one for resumed ones, or both: a mark for each connection (`r`:
//! resumed; `*`, `t`, `3`: a full handshake), then two lines of figures. It contains only user CPU time and whole
//! seconds of real time, and counts every connection that ended as a success, whatever the response. An import contains
//! no further figures.

use std::path::{Path, PathBuf};
use std::time::Duration;

use plimsoll_model::Outcome;
use plimsoll_model::records::record::StageRecord;
use plimsoll_model::runs::run::header::{ConnectionSecurity, LoopKind};
use plimsoll_model::runs::run::{
    IntervalRecord, ResourceUsage, Run, RunError, RunHeader, RunWriter, Timestamp,
};

/// The heading of the second section.
const RESUMED_HEADING: &str = "Now timing with session id reuse.";
const USER_LINE_MARK: &str = " connections/user sec, bytes read ";
const REAL_LINE_MARK: &str = " real seconds";

/// Why the output could not be imported.
#[derive(Debug, thiserror::Error)]
pub enum STimeError {
    /// A run directory can't be written.
    #[error(transparent)]
    Run(#[from] RunError),
    /// The text of this file is not the output of s_time.
    #[error("{0}: {1}")]
    Text(PathBuf, TextError),
}

/// Why a text is not valid output of s_time.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TextError {
    /// A line that s_time does not write: its number, from 1, and the problem.
    #[error("line {0}: {1}")]
    Line(usize, String),
    /// No section has both lines of figures.
    #[error(
        "no figures of s_time: expected a line \"N connections in X real seconds\" (was it stopped before its end?)"
    )]
    NoFigures,
}

/// One section of the output, about connections of one kind.
#[derive(Clone, Debug, PartialEq)]
pub struct STimeSection {
    /// Whether this is the section with session reuse.
    pub resumed: bool,
    /// Number of connections that ended.
    pub connections: u64,
    /// Number of resumed connections according to the marks; `None` if the text has no marks.
    pub resumed_connections: Option<u64>,
    /// Bytes of the responses, headers and bodies.
    pub bytes: u64,
    /// User CPU time of the s_time process.
    pub user: Duration,
    /// Elapsed time, in whole seconds.
    pub real: Duration,
}

/// Returns whether `text` looks like the output of s_time, so that errors in it can be reported.
pub fn is_s_time_output(text: &str) -> bool {
    [
        USER_LINE_MARK,
        REAL_LINE_MARK,
        RESUMED_HEADING,
        "Collecting connection statistics for",
    ]
    .iter()
    .any(|mark| text.contains(mark))
}

/// The lines of an incomplete section.
#[derive(Default)]
struct PartialSection {
    marks: u64,
    resumed_marks: u64,
    /// Connections, user time and bytes from the first of the two lines.
    first: Option<(u64, Duration, u64)>,
}

/// Parses the sections of `text`, in order.
///
/// # Errors
/// Returns an error for the first line that s_time would not write, or that contradicts another line.
pub fn read(text: &str) -> Result<Vec<STimeSection>, TextError> {
    let mut sections = Vec::new();
    let mut resumed = false;
    let mut open = PartialSection::default();
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.trim();
        let wrong = |problem| TextError::Line(number, problem);
        if line == RESUMED_HEADING {
            resumed = true;
            open = PartialSection::default();
        } else if !line.is_empty() && line.bytes().all(|b| b"*rt32".contains(&b)) {
            open.marks += line.len() as u64;
            open.resumed_marks += line.bytes().filter(|b| *b == b'r').count() as u64;
        } else if line.contains(USER_LINE_MARK) {
            if open.first.is_some() {
                return Err(wrong(
                    "a second line of user time in one section".to_owned(),
                ));
            }
            open.first = Some(parse_user_line(line).map_err(wrong)?);
        } else if line.ends_with(REAL_LINE_MARK) || line.contains(" real seconds, ") {
            let section = std::mem::take(&mut open)
                .into_section(resumed, line)
                .map_err(wrong)?;
            sections.push(section);
        }
        // All other lines are messages of s_time: the cipher, `starting`, errors.
    }
    if sections.is_empty() {
        return Err(TextError::NoFigures);
    }
    Ok(sections)
}

impl PartialSection {
    /// Returns the section, which ends with the line of real time.
    fn into_section(self, resumed: bool, line: &str) -> Result<STimeSection, String> {
        let (connections, real, each) = parse_real_line(line)?;
        let (counted, user, bytes) = match self.first {
            Some(first) => first,
            None => {
                return Err(
                    "a line of real time without the line of user time before it (\"… connections/user sec …\")"
                        .to_owned(),
                );
            }
        };
        if counted != connections {
            return Err(format!(
                "{connections} connections, and {counted} in the line before: the lines are of different runs"
            ));
        }
        if let Some(each) = each
            && bytes.checked_div(connections) != Some(each)
        {
            return Err(format!(
                "{each} bytes a connection, but {bytes} bytes over {connections} connections"
            ));
        }
        if self.marks > 0 && self.marks != connections {
            return Err(format!(
                "{connections} connections, but {} marks before the figures",
                self.marks
            ));
        }
        Ok(STimeSection {
            resumed,
            connections,
            resumed_connections: (self.marks > 0).then_some(self.resumed_marks),
            bytes,
            user,
            real,
        })
    }
}

/// Parses `429 connections in 0.78s; 550.00 connections/user sec, bytes read 439296`.
fn parse_user_line(line: &str) -> Result<(u64, Duration, u64), String> {
    const EXPECTED_FORM: &str =
        "expected \"N connections in X.XXs; Y connections/user sec, bytes read B\"";
    let parts = || {
        let (connections, rest) = line.split_once(" connections in ")?;
        let (seconds, rest) = rest.split_once("s; ")?;
        // The rate is redundant; it is `inf` or `nan` if no time was counted.
        let (_, bytes) = rest.split_once(USER_LINE_MARK)?;
        Some((connections, seconds, bytes))
    };
    let (connections, seconds, bytes) = parts().ok_or(EXPECTED_FORM)?;
    let user = seconds
        .parse::<f64>()
        .ok()
        .filter(|_| seconds.bytes().all(|b| b.is_ascii_digit() || b == b'.'))
        .and_then(|s| Duration::try_from_secs_f64(s).ok())
        .ok_or_else(|| format!("{seconds:?} is not a number of seconds; {EXPECTED_FORM}"))?;
    Ok((
        parse_whole_number(connections)?,
        user,
        parse_whole_number(bytes)?,
    ))
}

/// Parses `429 connections in 31 real seconds, 1024 bytes read per connection`; the bytes are missing if there was no
/// connection.
fn parse_real_line(line: &str) -> Result<(u64, Duration, Option<u64>), String> {
    const EXPECTED_FORM: &str =
        "expected \"N connections in S real seconds, B bytes read per connection\"";
    let (connections, rest) = line.split_once(" connections in ").ok_or(EXPECTED_FORM)?;
    let (seconds, rest) = rest.split_once(REAL_LINE_MARK).ok_or(EXPECTED_FORM)?;
    let each = match rest {
        "" => None,
        rest => Some(parse_whole_number(
            rest.strip_prefix(", ")
                .and_then(|rest| rest.strip_suffix(" bytes read per connection"))
                .ok_or(EXPECTED_FORM)?,
        )?),
    };
    Ok((
        parse_whole_number(connections)?,
        Duration::from_secs(parse_whole_number(seconds)?),
        each,
    ))
}

fn parse_whole_number(text: &str) -> Result<u64, String> {
    text.parse()
        .ok()
        .filter(|n| *n <= u64::MAX >> 1)
        .ok_or_else(|| format!("{text:?} is not a count (a whole number, 0 or more)"))
}

/// Creates a run directory for each section of the s_time output in `path`: `dir` itself, or `dir/new` and
/// `dir/resumed` if there are two sections. `imported_at` is used as the start, which the output doesn't contain.
///
/// # Errors
/// Returns an error when the text is not the output of s_time, or a run can't be written.
pub fn import(
    path: &Path,
    text: &str,
    dir: &Path,
    tool_version: &str,
    imported_at: Timestamp,
) -> Result<Vec<Run>, STimeError> {
    let sections = read(text).map_err(|problem| STimeError::Text(path.to_owned(), problem))?;
    // A section without figures can't be imported, but a note in the run says that it was started.
    let unfinished = text.lines().any(|line| line.trim() == RESUMED_HEADING)
        && !sections.iter().any(|section| section.resumed);
    let file = path.file_name().unwrap_or(path.as_os_str());
    let alone = sections.len() == 1;
    let mut runs = Vec::new();
    for section in &sections {
        let kind = if section.resumed { "resumed" } else { "new" };
        let dir = if alone {
            dir.to_owned()
        } else {
            dir.join(kind)
        };
        let name = format!("{}, {kind}", file.to_string_lossy());
        let mut header = section_header(section, &name, tool_version, imported_at);
        if unfinished {
            header.notes.push(
                "s_time was stopped before its figures of resumed sessions: they are missing"
                    .to_owned(),
            );
        }
        let run = RunWriter::from_interval(&dir, header, &section_interval(section))?;
        runs.push(run);
    }
    Ok(runs)
}

fn section_header(
    section: &STimeSection,
    name: &str,
    tool_version: &str,
    imported_at: Timestamp,
) -> RunHeader {
    let mut header = RunHeader::for_import(name, tool_version, imported_at);
    header.planned_stages[0].duration_us = u64::try_from(section.real.as_micros()).ok();
    RunHeader {
        security: Some(ConnectionSecurity::Tls),
        load_loop: Some(LoopKind::Closed),
        clients: Some(1),
        cold: true,
        resume: section.resumed,
        ..header
    }
}

fn section_interval(section: &STimeSection) -> IntervalRecord {
    let mut record = StageRecord {
        due: section.connections,
        bytes_received: section.bytes,
        ..StageRecord::default()
    };
    record.outcomes.add(Outcome::Ok, section.connections);
    if let Some(resumed) = section.resumed_connections {
        record.connections_resumed = resumed;
        record.connections_full = section.connections - resumed;
    }
    IntervalRecord {
        length: section.real,
        stages: vec![(0, record)],
        client: Some(ResourceUsage {
            cpu_user_us: u64::try_from(section.user.as_micros()).unwrap_or(u64::MAX),
            cpu_system_us: None,
            ..ResourceUsage::default()
        }),
        ..IntervalRecord::default()
    }
}

/// A text as s_time prints it.
#[cfg(test)]
const BOTH: &str = "No CIPHER specified
Collecting connection statistics for 2 seconds
***

3 connections in 0.01s; 300.00 connections/user sec, bytes read 3201
3 connections in 3 real seconds, 1067 bytes read per connection


Now timing with session id reuse.
starting
rr*r

4 connections in 0.00s; inf connections/user sec, bytes read 4268
4 connections in 3 real seconds, 1067 bytes read per connection
";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_sections_parse_with_marks() {
        let sections = read(BOTH).unwrap();
        let new = STimeSection {
            resumed: false,
            connections: 3,
            resumed_connections: Some(0),
            bytes: 3201,
            user: Duration::from_millis(10),
            real: Duration::from_secs(3),
        };
        let resumed = STimeSection {
            resumed: true,
            connections: 4,
            resumed_connections: Some(3),
            bytes: 4268,
            user: Duration::ZERO,
            real: Duration::from_secs(3),
        };
        assert_eq!(sections, [new, resumed]);
        assert!(is_s_time_output(BOTH) && !is_s_time_output("#TEST=01_steady"));
    }

    #[test]
    fn missing_marks_and_connections_are_accepted() {
        let figures: Vec<&str> = BOTH
            .lines()
            .filter(|l| l.contains("connections in"))
            .collect();
        let sections = read(&figures[..2].join("\n")).unwrap();
        assert_eq!(sections[0].resumed_connections, None);
        let none = "0 connections in 0.00s; -nan connections/user sec, bytes read 0\n0 connections in 31 real seconds\n";
        let section = &read(none).unwrap()[0];
        assert_eq!((section.connections, section.bytes), (0, 0));
    }

    #[test]
    fn contradictory_figures_name_line() {
        for (from, to, expected) in [
            ("***", "**", "line 6: 3 connections, but 2 marks"),
            (
                "3 connections in 3 real",
                "5 connections in 3 real",
                "line 6: 5 connections, and 3",
            ),
            (
                "bytes read 3201",
                "bytes read 9",
                "line 6: 1067 bytes a connection, but 9",
            ),
            (
                "bytes read 3201",
                "bytes read -9",
                "line 5: \"-9\" is not a count",
            ),
            (
                "in 0.01s;",
                "in 0,01s;",
                "line 5: \"0,01\" is not a number of seconds",
            ),
            (
                "3 connections in 3 real",
                "connections in 3 real",
                "line 6: expected \"N conn",
            ),
        ] {
            let error = read(&BOTH.replacen(from, to, 1)).unwrap_err().to_string();
            assert!(error.starts_with(expected), "{error}");
        }
        let cut = &BOTH[..BOTH.find("3 connections in 3").unwrap()];
        assert_eq!(read(cut), Err(TextError::NoFigures));
    }
}
