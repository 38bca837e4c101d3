//! Writes tables as Parquet, without Arrow: columns are buffered and written in row groups.

use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::Arc;

use parquet::basic::{Compression, ConvertedType, Repetition, Type as Physical};
use parquet::data_type::{BoolType, ByteArray, ByteArrayType, DoubleType, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::types::Type;
use plimsoll_model::formats::output;

use super::{CellValue, ColumnValue, RowSink, TableColumn};

/// Rows in a row group.
const ROWS_PER_GROUP: usize = 1 << 16;

pub(super) struct ParquetSink {
    writer: SerializedFileWriter<File>,
    columns: Vec<ColumnBuffer>,
    rows: usize,
}

/// The known values of a column.
enum BufferedValues {
    Int(Vec<i64>),
    Float(Vec<f64>),
    Bool(Vec<bool>),
    Text(Vec<ByteArray>),
}

struct ColumnBuffer {
    values: BufferedValues,
    known: Vec<i16>,
}

impl ColumnBuffer {
    fn new<R>(column: &TableColumn<R>) -> ColumnBuffer {
        ColumnBuffer {
            values: match column.1 {
                ColumnValue::Int(_) => BufferedValues::Int(Vec::new()),
                ColumnValue::Float(_) => BufferedValues::Float(Vec::new()),
                ColumnValue::Bool(_) => BufferedValues::Bool(Vec::new()),
                ColumnValue::Text(_) => BufferedValues::Text(Vec::new()),
            },
            known: Vec::new(),
        }
    }

    fn add(&mut self, cell: CellValue) {
        fn put<T>(values: &mut Vec<T>, value: Option<T>) -> bool {
            let known = value.is_some();
            values.extend(value);
            known
        }
        let known = match (&mut self.values, cell) {
            // Counts of calls are far below 2⁶³, so the conversion does not fail.
            (BufferedValues::Int(v), CellValue::Int(n)) => {
                put(v, n.map(|n| i64::try_from(n).unwrap_or(i64::MAX)))
            }
            (BufferedValues::Float(v), CellValue::Float(f)) => put(v, f),
            (BufferedValues::Bool(v), CellValue::Bool(b)) => put(v, b),
            (BufferedValues::Text(v), CellValue::Text(text)) => {
                put(v, Some(ByteArray::from(text.into_bytes())))
            }
            _ => false,
        };
        self.known.push(i16::from(known));
    }
}

impl ParquetSink {
    pub(super) fn create<R>(
        path: &Path,
        name: &str,
        columns: &[TableColumn<R>],
    ) -> io::Result<ParquetSink> {
        let fields = columns.iter().map(|TableColumn(name, of)| {
            let physical = match of {
                ColumnValue::Int(_) => Physical::INT64,
                ColumnValue::Float(_) => Physical::DOUBLE,
                ColumnValue::Bool(_) => Physical::BOOLEAN,
                ColumnValue::Text(_) => Physical::BYTE_ARRAY,
            };
            let field =
                Type::primitive_type_builder(name, physical).with_repetition(Repetition::OPTIONAL);
            let field = match of {
                ColumnValue::Text(_) => field.with_converted_type(ConvertedType::UTF8),
                _ => field,
            };
            field.build().map(Arc::new)
        });
        let fields = fields.collect::<Result<Vec<_>, _>>().map_err(to_io_error)?;
        let schema = Type::group_type_builder(name)
            .with_fields(fields)
            .build()
            .map_err(to_io_error)?;
        let properties = WriterProperties::builder()
            .set_compression(Compression::SNAPPY)
            .set_created_by(format!("plimsoll {}", env!("CARGO_PKG_VERSION")))
            .build();
        let file = File::create(path)?;
        let writer = SerializedFileWriter::new(file, Arc::new(schema), Arc::new(properties))
            .map_err(to_io_error)?;
        Ok(ParquetSink {
            writer,
            columns: columns.iter().map(ColumnBuffer::new).collect(),
            rows: 0,
        })
    }

    fn write_group(&mut self) -> Result<(), ParquetError> {
        if self.rows == 0 {
            return Ok(());
        }
        self.rows = 0;
        let mut group = self.writer.next_row_group()?;
        for column in &mut self.columns {
            let Some(mut out) = group.next_column()? else {
                break;
            };
            let known = std::mem::take(&mut column.known);
            let levels = Some(&known[..]);
            match &mut column.values {
                BufferedValues::Int(v) => {
                    out.typed::<Int64Type>()
                        .write_batch(&std::mem::take(v), levels, None)?
                }
                BufferedValues::Float(v) => {
                    out.typed::<DoubleType>()
                        .write_batch(&std::mem::take(v), levels, None)?
                }
                BufferedValues::Bool(v) => {
                    out.typed::<BoolType>()
                        .write_batch(&std::mem::take(v), levels, None)?
                }
                BufferedValues::Text(v) => {
                    out.typed::<ByteArrayType>()
                        .write_batch(&std::mem::take(v), levels, None)?
                }
            };
            out.close()?;
        }
        group.close()?;
        Ok(())
    }
}

impl RowSink for ParquetSink {
    fn write_row(&mut self, cells: Vec<CellValue>) -> io::Result<()> {
        for (column, cell) in self.columns.iter_mut().zip(cells) {
            column.add(cell);
        }
        self.rows += 1;
        if self.rows == ROWS_PER_GROUP {
            self.write_group().map_err(to_io_error)?;
        }
        Ok(())
    }

    fn finish(mut self: Box<Self>) -> io::Result<()> {
        self.write_group().map_err(to_io_error)?;
        let file = self.writer.into_inner().map_err(to_io_error)?;
        output::sync(&file)
    }
}

fn to_io_error(error: ParquetError) -> io::Error {
    io::Error::other(error)
}
