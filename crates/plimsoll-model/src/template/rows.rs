//! A file of rows: CSV with a line of names, or a JSON object a line.

use std::collections::HashSet;
use std::fmt;
use std::sync::{Arc, OnceLock};

use serde_json::{Map, Value};

use crate::named::named;
use crate::suggest::suggest;

named! {
    /// Which row a call has.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub enum Order by name {
        /// Call k has row k; after the last comes the first again.
        #[default]
        RoundRobin "round-robin",
        /// Any row, again and again.
        Random "random",
        /// Call k has row k, and no row is used twice.
        Unique "unique",
    }
}

/// The values of one column, as text.
#[derive(PartialEq, Eq)]
pub struct Column {
    /// As the file has it; `row` of whole rows.
    pub name: String,
    values: Box<[Box<str>]>,
}

impl fmt::Debug for Column {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Column({:?}, {} values)", self.name, self.values.len())
    }
}

impl Column {
    /// Rows are numbered from 0; one that the file does not have panics.
    #[inline]
    pub fn value(&self, row: usize) -> &str {
        &self.values[row]
    }

    /// In the order of the rows.
    pub fn values(&self) -> impl Iterator<Item = &str> {
        self.values.iter().map(|value| &**value)
    }

    /// Bytes of a value, at least and at most.
    pub fn bounds(&self) -> (usize, usize) {
        let lengths = || self.values.iter().map(|value| value.len());
        (lengths().min().unwrap_or(0), lengths().max().unwrap_or(0))
    }
}

/// A file's rows, by column.
#[derive(Debug)]
pub struct Rows {
    file: String,
    columns: Vec<Arc<Column>>,
    /// By column: the first line that does not have it.
    gaps: Vec<Option<usize>>,
    /// Each row's JSON.
    whole: OnceLock<Arc<Column>>,
    length: usize,
}

impl Rows {
    /// Reads the text of `file`: JSON lines if it begins with a brace, else CSV (RFC 4180,
    /// with names in the first line).
    ///
    /// # Errors
    /// Where it is neither, with the line.
    pub fn parse(file: &str, text: &str) -> Result<Rows, String> {
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let rows = match text.trim_start().chars().next() {
            Some('{') => json_lines(file, text)?,
            Some('[') => {
                return Err(format!(
                    "{file}, line 1: a JSON list: write one object a line, without brackets and commas"
                ));
            }
            _ => csv(file, text)?,
        };
        if rows.length == 0 {
            return Err(format!(
                "{file}: no rows: write a line of names and then a line a row (CSV), or a JSON object a line"
            ));
        }
        Ok(rows)
    }

    /// Its path, as it was named.
    pub fn file(&self) -> &str {
        &self.file
    }

    /// How many there are; at least one.
    pub fn count(&self) -> usize {
        self.length
    }

    /// The column of this name.
    pub fn column(&self, name: &str) -> Option<&Arc<Column>> {
        self.columns.iter().find(|column| column.name == name)
    }

    /// The first line that has nothing for a column.
    pub(super) fn gap(&self, name: &str) -> Option<usize> {
        let place = self.columns.iter().position(|column| column.name == name)?;
        self.gaps[place]
    }

    /// Whole rows, as JSON objects; a CSV file's values are strings there.
    pub fn whole(&self) -> &Arc<Column> {
        self.whole.get_or_init(|| {
            let row = |row: usize| {
                let of = |c: &Arc<Column>| (c.name.clone(), Value::from(c.value(row)));
                let object: Map<String, Value> = self.columns.iter().map(of).collect();
                Value::Object(object).to_string().into()
            };
            Arc::new(Column {
                name: "row".to_owned(),
                values: (0..self.length).map(row).collect(),
            })
        })
    }

    /// What to write instead of a column that is not there.
    pub(super) fn help(&self, name: &str) -> String {
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
            gaps: vec![None; names.len()],
            whole: OnceLock::new(),
            columns: names
                .into_iter()
                .zip(values)
                .map(|(name, values)| {
                    Arc::new(Column {
                        name,
                        values: values.into(),
                    })
                })
                .collect(),
        }
    }
}

fn csv(file: &str, text: &str) -> Result<Rows, String> {
    let bad = |problem: String| format!("{file}: {problem}");
    let mut reader = csv::ReaderBuilder::new().from_reader(text.as_bytes());
    let names: Vec<String> = match reader.headers() {
        Ok(names) => names.iter().map(|name| name.trim().to_owned()).collect(),
        Err(e) => return Err(bad(e.to_string())),
    };
    check_names(&names).map_err(bad)?;
    let mut values = vec![Vec::new(); names.len()];
    for record in reader.records() {
        // The library's words begin with the line.
        let record = record.map_err(|e| bad(e.to_string()))?;
        for (column, value) in values.iter_mut().zip(&record) {
            column.push(value.into());
        }
    }
    Ok(Rows::new(file, names, values))
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

fn json_lines(file: &str, text: &str) -> Result<Rows, String> {
    let mut names: Vec<String> = Vec::new();
    let mut known = HashSet::new();
    let mut values: Vec<Vec<Box<str>>> = Vec::new();
    let mut gaps: Vec<Option<usize>> = Vec::new();
    let mut first_line = None;
    let mut whole: Vec<Box<str>> = Vec::new();
    for (i, line) in text.lines().enumerate() {
        if line.trim().is_empty() {
            continue;
        }
        let bad = |problem: String| format!("{file}, line {}: {problem}", i + 1);
        let row: Map<String, Value> =
            serde_json::from_str(line).map_err(|e| bad(format!("not a JSON object: {e}")))?;
        if row.is_empty() {
            return Err(bad("an object without a key".to_owned()));
        }
        for name in row.keys() {
            if !known.contains(name) {
                known.insert(name.clone());
                names.push(name.clone());
                values.push(vec!["".into(); whole.len()]);
                gaps.push(first_line);
            }
        }
        for ((name, column), gap) in names.iter().zip(&mut values).zip(&mut gaps) {
            match row.get(name) {
                Some(Value::String(text)) => column.push(text.as_str().into()),
                Some(value) => column.push(value.to_string().into()),
                None => {
                    column.push("".into());
                    gap.get_or_insert(i + 1);
                }
            }
        }
        whole.push(Value::Object(row).to_string().into());
        first_line.get_or_insert(i + 1);
    }
    let mut rows = Rows::new(file, names, values);
    rows.gaps = gaps;
    rows.whole = OnceLock::from(Arc::new(Column {
        name: "row".to_owned(),
        values: whole.into(),
    }));
    Ok(rows)
}
