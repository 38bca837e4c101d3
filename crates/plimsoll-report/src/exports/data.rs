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

const fn int_column<R>(name: &'static str, of: fn(&R) -> Option<u64>) -> TableColumn<R> {
    TableColumn(name, ColumnValue::Int(of))
}

const fn float_column<R>(name: &'static str, of: fn(&R) -> Option<f64>) -> TableColumn<R> {
    TableColumn(name, ColumnValue::Float(of))
}

const fn boolean_column<R>(name: &'static str, of: fn(&R) -> Option<bool>) -> TableColumn<R> {
    TableColumn(name, ColumnValue::Bool(of))
}

const fn text_column<R>(name: &'static str, of: fn(&R) -> String) -> TableColumn<R> {
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
                .filter(|_| !GENERATOR_TIME_KEYS.contains(&kind))
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
type RowCallback<'a, R> = &'a mut dyn FnMut(&R) -> Result<(), ExportError>;

fn write_table<R>(
    format: TableFormat,
    folder: &Path,
    name: &str,
    columns: &[TableColumn<R>],
    fill: impl FnOnce(RowCallback<'_, R>) -> Result<(), ExportError>,
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
    fn stage_record(&self) -> &StageRecord {
        &self.interval.stages[self.position].1
    }
}

fn ns_to_us(ns: u64) -> Option<f64> {
    Some(ns as f64 / 1e3)
}

fn nonzero_seconds(time: Duration) -> Option<f64> {
    Some(time.as_secs_f64())
}

fn mean_us(times: &TimeHistogram) -> Option<f64> {
    Some(times.histogram()?.mean() / 1e3)
}

fn percentile_us(times: &TimeHistogram, p: f64) -> Option<f64> {
    ns_to_us(quantile(times.histogram()?, p)?)
}

fn max_us(times: &TimeHistogram) -> Option<f64> {
    ns_to_us(times.histogram()?.max())
}

const INTERVAL_COLUMNS: &[TableColumn<StageInterval>] = &[
    int_column("index", |s| Some(s.interval.index)),
    float_column("start_s", |s| nonzero_seconds(s.interval.start_offset)),
    float_column("length_s", |s| nonzero_seconds(s.interval.length)),
    text_column("stage", |s| s.stage.clone()),
    boolean_column("warmup", |s| Some(s.warmup)),
    int_column("due", |s| Some(s.stage_record().due)),
    int_column("ok", |s| Some(s.stage_record().ok_calls())),
    int_column("errors", |s| Some(s.stage_record().errors())),
    int_column("not_started", |s| Some(s.stage_record().not_started)),
    int_column("in_flight", |s| Some(s.interval.in_flight)),
    int_column("backlog", |s| Some(s.interval.backlog)),
    int_column("connections_open", |s| Some(s.interval.connections_open)),
    int_column("users_in_flight", |s| Some(s.interval.users?.in_flight)),
    int_column("users_waiting", |s| Some(s.interval.users?.waiting)),
    int_column("connections_full", |s| {
        Some(s.stage_record().connections_full)
    }),
    int_column("connections_resumed", |s| {
        Some(s.stage_record().connections_resumed)
    }),
    int_column("bytes_sent", |s| Some(s.stage_record().bytes_sent)),
    int_column("bytes_received", |s| Some(s.stage_record().bytes_received)),
    float_column("response_mean_us", |s| mean_us(&s.stage_record().response)),
    float_column("response_p50_us", |s| {
        percentile_us(&s.stage_record().response, 0.5)
    }),
    float_column("response_p90_us", |s| {
        percentile_us(&s.stage_record().response, 0.9)
    }),
    float_column("response_p99_us", |s| {
        percentile_us(&s.stage_record().response, 0.99)
    }),
    float_column("response_max_us", |s| max_us(&s.stage_record().response)),
    float_column("service_mean_us", |s| mean_us(&s.stage_record().service)),
    float_column("service_p50_us", |s| {
        percentile_us(&s.stage_record().service, 0.5)
    }),
    float_column("service_p99_us", |s| {
        percentile_us(&s.stage_record().service, 0.99)
    }),
    float_column("lag_p99_us", |s| percentile_us(&s.stage_record().lag, 0.99)),
    float_column("busiest_worker_ratio", |s| {
        Some(s.interval.busiest_worker_ratio)
    }),
    int_column("client_cpu_us", |s| s.interval.client?.cpu_us()),
    int_column("server_cpu_us", |s| s.interval.server?.cpu_us()),
];

/// One percentile: the name of the time, the percentile, its value in nanoseconds, and the number of values.
type PercentileRow = (String, f64, u64, u64);

const PERCENTILE_COLUMNS: &[TableColumn<PercentileRow>] = &[
    text_column("kind", |(kind, ..)| kind.clone()),
    float_column("percentile", |(_, percent, ..)| Some(*percent)),
    float_column("value_us", |(_, _, ns, _)| ns_to_us(*ns)),
    int_column("count", |(.., count)| Some(*count)),
];

/// Times that describe the generator's effects on calls, rather than the calls themselves.
const GENERATOR_TIME_KEYS: [&str; 2] = ["delayed", "cut_off"];

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
    int_column("number", |c| Some(c.sample.number)),
    text_column("stage", |c| c.stage.clone()),
    boolean_column("warmup", |c| Some(c.warmup)),
    text_column("code", |c| c.sample.outcome.code().to_owned()),
    float_column("arrival_us", |c| ns_to_us(c.sample.arrival.0)),
    float_column("sent_us", |c| ns_to_us(c.sample.sent.0)),
    float_column("first_byte_us", |c| ns_to_us(c.sample.first_byte.0)),
    float_column("done_us", |c| ns_to_us(c.sample.done.0)),
    float_column("response_us", |c| ns_to_us(c.sample.response_ns())),
    float_column("service_us", |c| ns_to_us(c.sample.service_ns())),
    float_column("lag_us", |c| ns_to_us(c.sample.lag_ns())),
    int_column("bytes_sent", |c| Some(c.sample.bytes_sent.into())),
    int_column("bytes_received", |c| Some(c.sample.bytes_received.into())),
    float_column("resolve_us", |c| ns_to_us(c.phases?.resolve_ns)),
    float_column("connect_us", |c| ns_to_us(c.phases?.connect_ns)),
    float_column("handshake_us", |c| ns_to_us(c.phases?.handshake_ns)),
    float_column("ready_us", |c| ns_to_us(c.phases?.ready_ns)),
    boolean_column("resumed", |c| Some(c.phases?.resumed)),
];
