//! Writes tables as CSV (RFC 4180): a header, and empty fields for missing values.

use std::fs::File;
use std::io::{self, BufWriter};
use std::path::Path;

use plimsoll_model::formats::output;

use super::{CellValue, RowSink, TableColumn};

pub(super) struct CsvSink(csv::Writer<BufWriter<File>>);

impl CsvSink {
    pub(super) fn create<R>(path: &Path, columns: &[TableColumn<R>]) -> io::Result<CsvSink> {
        let mut writer = csv::Writer::from_writer(BufWriter::new(File::create(path)?));
        writer.write_record(columns.iter().map(|column| column.0))?;
        Ok(CsvSink(writer))
    }
}

impl RowSink for CsvSink {
    fn write_row(&mut self, cells: Vec<CellValue>) -> io::Result<()> {
        let shown = cells.into_iter().map(|cell| match cell {
            CellValue::Int(value) => value.map_or_else(String::new, |v| v.to_string()),
            CellValue::Float(value) => value.map_or_else(String::new, |v| v.to_string()),
            CellValue::Bool(value) => value.map_or_else(String::new, |v| v.to_string()),
            CellValue::Text(text) => text,
        });
        Ok(self.0.write_record(shown)?)
    }

    fn finish(mut self: Box<Self>) -> io::Result<()> {
        self.0.flush()?;
        output::sync(self.0.get_ref().get_ref())
    }
}
