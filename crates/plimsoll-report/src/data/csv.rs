//! Writes tables as CSV (RFC 4180): a header, and empty fields for missing values.

use std::fs::File;
use std::io::{self, BufWriter};
use std::path::Path;

use plimsoll_model::output;

use super::{Cell, Column, Sink};

pub(super) struct Csv(csv::Writer<BufWriter<File>>);

impl Csv {
    pub(super) fn create<R>(path: &Path, columns: &[Column<R>]) -> io::Result<Csv> {
        let mut writer = csv::Writer::from_writer(BufWriter::new(File::create(path)?));
        writer.write_record(columns.iter().map(|column| column.0))?;
        Ok(Csv(writer))
    }
}

impl Sink for Csv {
    fn row(&mut self, cells: Vec<Cell>) -> io::Result<()> {
        let shown = cells.into_iter().map(|cell| match cell {
            Cell::Int(value) => value.map_or_else(String::new, |v| v.to_string()),
            Cell::Float(value) => value.map_or_else(String::new, |v| v.to_string()),
            Cell::Bool(value) => value.map_or_else(String::new, |v| v.to_string()),
            Cell::Text(text) => text,
        });
        Ok(self.0.write_record(shown)?)
    }

    fn finish(mut self: Box<Self>) -> io::Result<()> {
        self.0.flush()?;
        output::settle(self.0.get_ref().get_ref())
    }
}
