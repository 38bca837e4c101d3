//! A file of rows: CSV with a header line, or one JSON object per line.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::{Arc, OnceLock};

use serde_json::Value;

use super::data_sets;
use crate::formats::json_line::json_entries;
use crate::formats::named_enum::named;
use crate::formats::suggest::suggest;
use crate::rows::recording::RecordedRows;

named! {
    /// The order in which calls use rows.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub enum RowOrder by name {
        /// Call k uses row k, starting again after the last row.
        #[default]
        RoundRobin "round-robin",
        /// Every call uses a random row.
        Random "random",
        /// Call k uses row k, and no row is used twice.
        Unique "unique",
        /// Client k uses row k in all its journeys, and no other client uses it.
        Client "client",
    }
}

/// The values of one column, as text.
#[derive(PartialEq, Eq)]
pub struct RowColumn {
    /// The name in the file; `row` for whole rows.
    pub name: String,
    values: ColumnValues,
}

/// The storage of a column's values.
enum ColumnValues {
    /// Values in memory.
    Memory(Box<[Box<str>]>),
    /// A column of a recording.
    Recorded(Arc<RecordedRows>, usize),
    /// All columns of a recording, as JSON.
    RecordedWhole(Arc<RecordedRows>),
}

impl PartialEq for ColumnValues {
    fn eq(&self, other: &ColumnValues) -> bool {
        match (self, other) {
            (ColumnValues::Memory(a), ColumnValues::Memory(b)) => a == b,
            (ColumnValues::Recorded(a, i), ColumnValues::Recorded(b, j)) => {
                Arc::ptr_eq(a, b) && i == j
            }
            (ColumnValues::RecordedWhole(a), ColumnValues::RecordedWhole(b)) => Arc::ptr_eq(a, b),
            _ => false,
        }
    }
}

impl Eq for ColumnValues {}

impl fmt::Debug for RowColumn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Column({:?}, {} values)", self.name, self.length())
    }
}

impl RowColumn {
    fn length(&self) -> usize {
        match &self.values {
            ColumnValues::Memory(values) => values.len(),
            ColumnValues::Recorded(rows, _) | ColumnValues::RecordedWhole(rows) => {
                usize::try_from(rows.count()).unwrap_or(usize::MAX)
            }
        }
    }

    /// Returns the value of a row, numbered from 0. Panics if there is no such row.
    #[inline]
    pub fn value(&self, row: usize) -> Cow<'_, str> {
        match &self.values {
            ColumnValues::Memory(values) => Cow::Borrowed(&values[row]),
            ColumnValues::Recorded(rows, column) => {
                Cow::Owned(rows.with_value(row as u64, *column, str::to_owned))
            }
            ColumnValues::RecordedWhole(rows) => Cow::Owned(row_as_json(rows, row)),
        }
    }

    /// Appends the value of a row.
    #[inline]
    pub(super) fn write(&self, row: usize, out: &mut Vec<u8>) {
        match &self.values {
            ColumnValues::Memory(values) => out.extend_from_slice(values[row].as_bytes()),
            ColumnValues::Recorded(rows, column) => rows.with_value(row as u64, *column, |value| {
                out.extend_from_slice(value.as_bytes());
            }),
            ColumnValues::RecordedWhole(rows) => {
                out.extend_from_slice(row_as_json(rows, row).as_bytes());
            }
        }
    }

    /// Returns the values in the order of the rows.
    pub fn values(&self) -> impl Iterator<Item = Cow<'_, str>> {
        (0..self.length()).map(|row| self.value(row))
    }

    /// Returns the minimum and the maximum length of a value, in bytes.
    pub fn value_length_bounds(&self) -> (usize, usize) {
        match &self.values {
            ColumnValues::Memory(values) => {
                let lengths = || values.iter().map(|value| value.len());
                (lengths().min().unwrap_or(0), lengths().max().unwrap_or(0))
            }
            ColumnValues::Recorded(rows, column) => rows.value_length_bounds(*column),
            ColumnValues::RecordedWhole(rows) => {
                // JSON escapes a byte with at most six bytes (RFC 8259 §7).
                let most = |(column, name): (usize, &String)| {
                    6 * (name.len() + rows.value_length_bounds(column).1) + 6
                };
                (
                    2,
                    2 + rows
                        .column_names()
                        .iter()
                        .enumerate()
                        .map(most)
                        .sum::<usize>(),
                )
            }
        }
    }
}

fn row_as_json(rows: &RecordedRows, row: usize) -> String {
    let entry = |(column, name): (usize, &String)| {
        let value = rows.with_value(row as u64, column, |value| Value::String(value.to_owned()));
        format!("{}:{value}", Value::from(name.as_str()))
    };
    let entries: Vec<String> = rows.column_names().iter().enumerate().map(entry).collect();
    format!("{{{}}}", entries.join(","))
}

/// The rows of a file, stored by column.
#[derive(Debug)]
pub struct Rows {
    file: String,
    columns: Vec<Arc<RowColumn>>,
    /// For each column, the first line without exactly one value for the column.
    defects: Vec<Option<ColumnDefect>>,
    /// Each row as JSON.
    whole: OnceLock<Arc<RowColumn>>,
    length: usize,
}

impl Rows {
    /// Parses the text of `file`: JSON lines if it starts with a brace, otherwise CSV (RFC 4180, with a header line).
    /// CSV values are used unchanged; JSON strings are decoded.
    ///
    /// # Errors
    /// When the text is neither; the message contains the line.
    pub fn parse(file: &str, text: &str) -> Result<Rows, String> {
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        if let Some(lines) = data_sets::conversation_lines(file, text) {
            return parse_json_lines(file, &lines?);
        }
        let rows = match text.trim_start().chars().next() {
            Some('{') => parse_json_lines(file, text)?,
            Some('[') => {
                return Err(format!(
                    "{file}, line 1: a JSON list: write one object per line, without brackets and commas"
                ));
            }
            _ if data_sets::is_url_list(text) => {
                let names = ["url", "relative"].map(str::to_owned);
                let values = data_sets::url_columns(file, text)?;
                Rows::new(file, names.into(), values.into())
            }
            _ => parse_csv(file, text)?,
        };
        if rows.length == 0 {
            return Err(format!(
                "{file}: no rows: write a header line and one line per row (CSV), or one JSON object per line"
            ));
        }
        Ok(rows)
    }

    /// Wraps the rows of a recording.
    pub fn from_recording(rows: &Arc<RecordedRows>) -> Rows {
        let column = |(place, name): (usize, &String)| {
            Arc::new(RowColumn {
                name: name.clone(),
                values: ColumnValues::Recorded(Arc::clone(rows), place),
            })
        };
        let columns: Vec<Arc<RowColumn>> =
            rows.column_names().iter().enumerate().map(column).collect();
        let defect = |place| {
            let line =
                usize::try_from(rows.first_line_without_column(place)?).unwrap_or(usize::MAX);
            let problem = "is missing";
            Some(ColumnDefect { line, problem })
        };
        Rows {
            file: rows.file().to_owned(),
            defects: (0..columns.len()).map(defect).collect(),
            columns,
            whole: OnceLock::from(Arc::new(RowColumn {
                name: "row".to_owned(),
                values: ColumnValues::RecordedWhole(Arc::clone(rows)),
            })),
            length: usize::try_from(rows.count()).unwrap_or(usize::MAX),
        }
    }

    /// Returns the file's path as the user wrote it.
    pub fn file(&self) -> &str {
        &self.file
    }

    /// Returns the number of rows, at least one.
    pub fn count(&self) -> usize {
        self.length
    }

    /// Returns the column of this name.
    pub fn column(&self, name: &str) -> Option<&Arc<RowColumn>> {
        self.columns.iter().find(|column| column.name == name)
    }

    /// Returns why calls can't use the column of this name; `None`: they can.
    pub(super) fn column_defect(&self, name: &str) -> Option<String> {
        let place = self.columns.iter().position(|column| column.name == name)?;
        let ColumnDefect { line, problem } = self.defects[place]?;
        Some(format!("{}, line {line}: `{name}` {problem}", self.file))
    }

    /// Returns a column of whole rows as JSON objects. A JSON line is unchanged; a CSV row becomes an object of strings
    /// in the order of the columns.
    pub fn whole_rows(&self) -> &Arc<RowColumn> {
        self.whole.get_or_init(|| {
            let row = |row: usize| {
                let entry = |c: &Arc<RowColumn>| {
                    format!("{}:{}", Value::from(&*c.name), Value::from(&*c.value(row)))
                };
                let entries: Vec<String> = self.columns.iter().map(entry).collect();
                format!("{{{}}}", entries.join(",")).into()
            };
            Arc::new(RowColumn {
                name: "row".to_owned(),
                values: ColumnValues::Memory((0..self.length).map(row).collect()),
            })
        })
    }

    /// Returns advice for a column that does not exist.
    pub(super) fn missing_column_help(&self, name: &str) -> String {
        let names: Vec<&str> = self.columns.iter().map(|c| c.name.as_str()).collect();
        match suggest(name, &names) {
            Some(near) => format!("did you mean row.{near}?"),
            None => format!("it has {}", names.join(", ")),
        }
    }

    fn new(file: &str, names: Vec<String>, values: Vec<Vec<Box<str>>>) -> Rows {
        Rows {
            file: file.to_owned(),
            length: values.first().map_or(0, Vec::len),
            defects: vec![None; names.len()],
            whole: OnceLock::new(),
            columns: names
                .into_iter()
                .zip(values)
                .map(|(name, values)| {
                    Arc::new(RowColumn {
                        name,
                        values: ColumnValues::Memory(values.into()),
                    })
                })
                .collect(),
        }
    }
}

/// Why a column can't be used.
#[derive(Clone, Copy, Debug)]
struct ColumnDefect {
    line: usize,
    problem: &'static str,
}

fn parse_csv(file: &str, text: &str) -> Result<Rows, String> {
    let bad = |problem: String| format!("{file}: {problem}");
    check_quotes(text).map_err(|(line, problem)| format!("{file}, line {line}: {problem}"))?;
    let mut reader = csv::ReaderBuilder::new().from_reader(text.as_bytes());
    let names: Vec<String> = match reader.headers() {
        Ok(names) => names.iter().map(|name| name.trim().to_owned()).collect(),
        Err(e) => return Err(bad(e.to_string())),
    };
    check_names(&names).map_err(bad)?;
    let mut values = vec![Vec::new(); names.len()];
    for record in reader.records() {
        // The CSV library's message already contains the line.
        let record = record.map_err(|e| bad(e.to_string()))?;
        for (column, value) in values.iter_mut().zip(&record) {
            column.push(value.into());
        }
    }
    Ok(Rows::new(file, names, values))
}

/// Checks that a quoted value ends with a quote and that nothing follows the quote (RFC 4180 §2). The CSV library
/// accepts other texts silently, so a superfluous quote could turn many lines into one value. An error contains the
/// line where the value starts.
fn check_quotes(text: &str) -> Result<(), (usize, &'static str)> {
    let mut bytes = text.bytes().peekable();
    let mut line = 1;
    let mut at_start = true;
    while let Some(byte) = bytes.next() {
        line += usize::from(byte == b'\n');
        if byte != b'"' || !at_start {
            at_start = matches!(byte, b',' | b'\n' | b'\r');
            continue;
        }
        let first_line = line;
        loop {
            match bytes.next() {
                None => return Err((first_line, "a quote that is never closed")),
                Some(b'\n') => line += 1,
                Some(b'"') if bytes.peek() == Some(&b'"') => {
                    bytes.next();
                }
                Some(b'"') => break,
                Some(_) => {}
            }
        }
        if !matches!(bytes.peek(), None | Some(b',' | b'\n' | b'\r')) {
            return Err((
                first_line,
                "a quoted value continues after its closing quote: write a quote within it twice, or close it on its line",
            ));
        }
        at_start = false;
    }
    Ok(())
}

fn check_names(names: &[String]) -> Result<(), String> {
    let mut known = HashSet::new();
    for (i, name) in names.iter().enumerate() {
        if name.is_empty() && names.len() > 1 {
            return Err(format!("column {} has no name in the first line", i + 1));
        }
        if !known.insert(name) {
            return Err(format!("two columns are named `{name}`"));
        }
    }
    Ok(())
}

fn parse_json_lines(file: &str, text: &str) -> Result<Rows, String> {
    let mut names: Vec<String> = Vec::new();
    let mut values: Vec<Vec<Box<str>>> = Vec::new();
    let mut defects: Vec<Option<ColumnDefect>> = Vec::new();
    let mut first_line = None;
    let mut whole: Vec<Box<str>> = Vec::new();
    // The indices of columns, by name.
    let mut places: HashMap<String, usize> = HashMap::new();
    for (i, line) in text.lines().enumerate() {
        if line.trim().is_empty() {
            continue;
        }
        let bad = |problem: String| format!("{file}, line {}: {problem}", i + 1);
        let row = json_entries(line).map_err(|e| bad(format!("not a JSON object: {e}")))?;
        if row.is_empty() {
            return Err(bad("an object without a key".to_owned()));
        }
        for (name, value) in row {
            let place = *places.entry(name).or_insert_with_key(|name| {
                names.push(name.clone());
                values.push(vec!["".into(); whole.len()]);
                defects.push(first_line.map(|line| ColumnDefect {
                    line,
                    problem: "is missing",
                }));
                names.len() - 1
            });
            if values[place].len() > whole.len() {
                defects[place].get_or_insert(ColumnDefect {
                    line: i + 1,
                    problem: "occurs twice: a column has one value per line",
                });
                continue;
            }
            values[place].push(value.into());
        }
        for (column, defect) in values.iter_mut().zip(&mut defects) {
            if column.len() == whole.len() {
                column.push("".into());
                defect.get_or_insert(ColumnDefect {
                    line: i + 1,
                    problem: "is missing",
                });
            }
        }
        whole.push(line.trim().into());
        first_line.get_or_insert(i + 1);
    }
    let mut rows = Rows::new(file, names, values);
    rows.defects = defects;
    rows.whole = OnceLock::from(Arc::new(RowColumn {
        name: "row".to_owned(),
        values: ColumnValues::Memory(whole.into()),
    }));
    Ok(rows)
}
