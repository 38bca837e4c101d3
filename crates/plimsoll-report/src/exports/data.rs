//! Exports a run as tables for notebooks and spreadsheets: its intervals, its percentiles, and its calls if they were
//! recorded. Each table is a file with a column for each figure. Times are in µs, as the names of their columns say.

mod csv;
#[cfg(feature = "parquet")]
mod parquet;

use std::io;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use plimsoll_model::records::record::{StageRecord, TimeHistogram};
use plimsoll_model::runs::run::interval::histograms;
use plimsoll_model::runs::run::{IntervalRecord, Run};
use plimsoll_model::statistics::quantile::quantile;
use plimsoll_model::{CallSample, ConnectPhases};

use crate::ExportError;

/// The file format of tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TableFormat {
    /// CSV (RFC 4180).
    Csv,
    /// Apache Parquet, compressed with Snappy.
    #[cfg(feature = "parquet")]
    Parquet,
}

/// A function that returns the value of a column; every figure may be missing.
enum ColumnValue<R> {
    Int(fn(&R) -> Option<u64>),
    Float(fn(&R) -> Option<f64>),
    Bool(fn(&R) -> Option<bool>),
    Text(fn(&R) -> String),
}

#[derive(Clone, Debug, PartialEq)]
enum CellValue {
    Int(Option<u64>),
    Float(Option<f64>),
    Bool(Option<bool>),
    Text(String),
}

/// A column of a table whose rows are made from `R`: its name and the function that returns its value.
struct TableColumn<R>(&'static str, ColumnValue<R>);

impl<R> TableColumn<R> {
    fn cell(&self, row: &R) -> CellValue {
        match self.1 {
            ColumnValue::Int(of) => CellValue::Int(of(row)),
            ColumnValue::Float(of) => CellValue::Float(of(row)),
            ColumnValue::Bool(of) => CellValue::Bool(of(row)),
            ColumnValue::Text(of) => CellValue::Text(of(row)),
        }
    }
}

const fn int<R>(name: &'static str, of: fn(&R) -> Option<u64>) -> TableColumn<R> {
    TableColumn(name, ColumnValue::Int(of))
}

const fn float<R>(name: &'static str, of: fn(&R) -> Option<f64>) -> TableColumn<R> {
    TableColumn(name, ColumnValue::Float(of))
}

const fn boolean<R>(name: &'static str, of: fn(&R) -> Option<bool>) -> TableColumn<R> {
    TableColumn(name, ColumnValue::Bool(of))
}

const fn text<R>(name: &'static str, of: fn(&R) -> String) -> TableColumn<R> {
    TableColumn(name, ColumnValue::Text(of))
}

/// A writer of the rows of one table.
trait RowSink {
    fn write_row(&mut self, cells: Vec<CellValue>) -> io::Result<()>;
    fn finish(self: Box<Self>) -> io::Result<()>;
}

/// Writes the tables of `run` to `folder`, which must exist. Returns the names of the files with their numbers of
/// rows.
///
/// # Errors
/// When the run can't be read, or a file can't be written.
pub fn export(
    run: &Run,
    format: TableFormat,
    folder: &Path,
) -> Result<Vec<(String, u64)>, ExportError> {
    let intervals = write_table(format, folder, "intervals", INTERVAL_COLUMNS, |add| {
        let mut failed = None;
        run.for_each_interval(|interval| {
            let interval = Rc::new(interval);
            for (at, (stage, _)) in interval.stages.iter().enumerate() {
                let row = StageInterval {
                    interval: Rc::clone(&interval),
                    position: at,
                    stage: stage_name(run, *stage),
                    warmup: run.header.is_warmup(*stage),
                };
                if failed.is_none() {
                    failed = add(&row).err();
                }
            }
        })?;
        failed.map_or(Ok(()), Err)
    })?;
    let percentiles = write_table(format, folder, "percentiles", PERCENTILE_COLUMNS, |add| {
        let record = run.measured_record();
        for (key, times) in histograms(&record) {
            let kind = key.trim_end_matches("_ns");
            let Some(h) = times
                .histogram()
                .filter(|_| !GENERATOR_TIMES.contains(&kind))
            else {
                continue;
            };
            for percent in exported_percentiles() {
                if let Some(ns) = quantile(h, percent / 100.0) {
                    add(&(kind.to_owned(), percent, ns, h.len()))?;
                }
            }
        }
        Ok(())
    })?;
    let mut written = vec![intervals, percentiles];
    if run.has_requests {
        written.push(write_table(
            format,
            folder,
            "requests",
            REQUEST_COLUMNS,
            |add| {
                run.try_for_each_request(|request| {
                    add(&CallRow {
                        sample: request.sample,
                        phases: request.phases,
                        stage: stage_name(run, request.sample.stage),
                        warmup: run.header.is_warmup(request.sample.stage),
                    })
                })
            },
        )?);
    }
    Ok(written)
}

fn stage_name(run: &Run, stage: u8) -> String {
    let planned = run.header.planned_stages.get(usize::from(stage));
    planned.map_or_else(String::new, |s| s.name.clone())
}

/// A function that adds a row to a table.
type AddRow<'a, R> = &'a mut dyn FnMut(&R) -> Result<(), ExportError>;

fn write_table<R>(
    format: TableFormat,
    folder: &Path,
    name: &str,
    columns: &[TableColumn<R>],
    fill: impl FnOnce(AddRow<'_, R>) -> Result<(), ExportError>,
) -> Result<(String, u64), ExportError> {
    let file = match format {
        TableFormat::Csv => format!("{name}.csv"),
        #[cfg(feature = "parquet")]
        TableFormat::Parquet => format!("{name}.parquet"),
    };
    let wrong = ExportError::write_error(&file);
    let path = folder.join(&file);
    let mut sink: Box<dyn RowSink> = match format {
        TableFormat::Csv => Box::new(csv::CsvSink::create(&path, columns).map_err(&wrong)?),
        #[cfg(feature = "parquet")]
        TableFormat::Parquet => {
            Box::new(parquet::ParquetSink::create(&path, name, columns).map_err(&wrong)?)
        }
    };
    let mut rows = 0;
    fill(&mut |row: &R| {
        rows += 1;
        let cells = columns.iter().map(|column| column.cell(row)).collect();
        sink.write_row(cells).map_err(&wrong)
    })?;
    sink.finish().map_err(&wrong)?;
    drop(wrong);
    Ok((file, rows))
}

/// The figures of one stage in one interval.
struct StageInterval {
    interval: Rc<IntervalRecord>,
    /// The index of the stage in the interval.
    position: usize,
    stage: String,
    warmup: bool,
}

impl StageInterval {
    fn record(&self) -> &StageRecord {
        &self.interval.stages[self.position].1
    }
}

fn us(ns: u64) -> Option<f64> {
    Some(ns as f64 / 1e3)
}

fn seconds(time: Duration) -> Option<f64> {
    Some(time.as_secs_f64())
}

fn mean_us(times: &TimeHistogram) -> Option<f64> {
    Some(times.histogram()?.mean() / 1e3)
}

fn percentile_us(times: &TimeHistogram, p: f64) -> Option<f64> {
    us(quantile(times.histogram()?, p)?)
}

fn max_us(times: &TimeHistogram) -> Option<f64> {
    us(times.histogram()?.max())
}

const INTERVAL_COLUMNS: &[TableColumn<StageInterval>] = &[
    int("index", |s| Some(s.interval.index)),
    float("start_s", |s| seconds(s.interval.start_offset)),
    float("length_s", |s| seconds(s.interval.length)),
    text("stage", |s| s.stage.clone()),
    boolean("warmup", |s| Some(s.warmup)),
    int("due", |s| Some(s.record().due)),
    int("ok", |s| Some(s.record().ok())),
    int("errors", |s| Some(s.record().errors())),
    int("not_started", |s| Some(s.record().not_started)),
    int("in_flight", |s| Some(s.interval.in_flight)),
    int("backlog", |s| Some(s.interval.backlog)),
    int("connections_open", |s| Some(s.interval.connections_open)),
    int("connections_full", |s| Some(s.record().connections_full)),
    int("connections_resumed", |s| {
        Some(s.record().connections_resumed)
    }),
    int("bytes_sent", |s| Some(s.record().bytes_sent)),
    int("bytes_received", |s| Some(s.record().bytes_received)),
    float("response_mean_us", |s| mean_us(&s.record().response)),
    float("response_p50_us", |s| {
        percentile_us(&s.record().response, 0.5)
    }),
    float("response_p90_us", |s| {
        percentile_us(&s.record().response, 0.9)
    }),
    float("response_p99_us", |s| {
        percentile_us(&s.record().response, 0.99)
    }),
    float("response_max_us", |s| max_us(&s.record().response)),
    float("service_mean_us", |s| mean_us(&s.record().service)),
    float("service_p50_us", |s| {
        percentile_us(&s.record().service, 0.5)
    }),
    float("service_p99_us", |s| {
        percentile_us(&s.record().service, 0.99)
    }),
    float("lag_p99_us", |s| percentile_us(&s.record().lag, 0.99)),
    float("busiest_worker_ratio", |s| {
        Some(s.interval.busiest_worker_ratio)
    }),
    int("client_cpu_us", |s| s.interval.client?.cpu_us()),
    int("server_cpu_us", |s| s.interval.server?.cpu_us()),
];

/// One percentile: the name of the time, the percentile, its value in nanoseconds, and the number of values.
type PercentileRow = (String, f64, u64, u64);

const PERCENTILE_COLUMNS: &[TableColumn<PercentileRow>] = &[
    text("kind", |(kind, ..)| kind.clone()),
    float("percentile", |(_, percent, ..)| Some(*percent)),
    float("value_us", |(_, _, ns, _)| us(*ns)),
    int("count", |(.., count)| Some(*count)),
];

/// Times that describe the generator's effects on calls, rather than the calls themselves.
const GENERATOR_TIMES: [&str; 2] = ["delayed", "cut_off"];

fn exported_percentiles() -> impl Iterator<Item = f64> {
    let tail = [99.5, 99.9, 99.95, 99.99, 99.999];
    (1..100).map(f64::from).chain(tail)
}

/// The row of one call.
struct CallRow {
    sample: CallSample,
    phases: Option<ConnectPhases>,
    stage: String,
    warmup: bool,
}

const REQUEST_COLUMNS: &[TableColumn<CallRow>] = &[
    int("number", |c| Some(c.sample.number)),
    text("stage", |c| c.stage.clone()),
    boolean("warmup", |c| Some(c.warmup)),
    text("code", |c| c.sample.outcome.code().to_owned()),
    float("arrival_us", |c| us(c.sample.arrival.0)),
    float("sent_us", |c| us(c.sample.sent.0)),
    float("first_byte_us", |c| us(c.sample.first_byte.0)),
    float("done_us", |c| us(c.sample.done.0)),
    float("response_us", |c| us(c.sample.response_ns())),
    float("service_us", |c| us(c.sample.service_ns())),
    float("lag_us", |c| us(c.sample.lag_ns())),
    int("bytes_sent", |c| Some(c.sample.bytes_sent.into())),
    int("bytes_received", |c| Some(c.sample.bytes_received.into())),
    float("resolve_us", |c| us(c.phases?.resolve_ns)),
    float("connect_us", |c| us(c.phases?.connect_ns)),
    float("handshake_us", |c| us(c.phases?.handshake_ns)),
    float("ready_us", |c| us(c.phases?.ready_ns)),
    boolean("resumed", |c| Some(c.phases?.resumed)),
];
