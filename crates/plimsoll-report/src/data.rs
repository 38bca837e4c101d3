//! A run as tables for notebooks and spreadsheets: its intervals, its percentiles, and its calls where they were
//! kept. A file a table, with a column a figure; times are in µs and carry that in their names.

mod csv;
#[cfg(feature = "parquet")]
mod parquet;

use std::io;
use std::path::Path;
use std::rc::Rc;

use hdrhistogram::Histogram;
use plimsoll_model::measure::TimeMeasure;
use plimsoll_model::record::{RequestRecord, StageRecord, Times};
use plimsoll_model::run::{IntervalRecord, Run, RunError};
use plimsoll_model::statistics::quantile::quantile;

/// Why a table could not be written.
#[derive(Debug, thiserror::Error)]
pub enum DataError {
    #[error(transparent)]
    Run(#[from] RunError),
    #[error("writing {table} failed")]
    Write {
        table: String,
        #[source]
        source: io::Error,
    },
}

/// How tables are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    Csv,
    #[cfg(feature = "parquet")]
    Parquet,
}

/// What stands in a column; every column but a text may have empty places.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Int,
    Float,
    Bool,
    Text,
}

#[derive(Clone, Debug, PartialEq)]
enum Cell {
    Int(Option<u64>),
    Float(Option<f64>),
    Bool(Option<bool>),
    Text(String),
}

/// A column of the table whose rows are made of `R`: its name, and what stands in it.
struct Column<R: ?Sized>(&'static str, Kind, fn(&R) -> Cell);

const fn int<R: ?Sized>(name: &'static str, of: fn(&R) -> Cell) -> Column<R> {
    Column(name, Kind::Int, of)
}

const fn float<R: ?Sized>(name: &'static str, of: fn(&R) -> Cell) -> Column<R> {
    Column(name, Kind::Float, of)
}

const fn boolean<R: ?Sized>(name: &'static str, of: fn(&R) -> Cell) -> Column<R> {
    Column(name, Kind::Bool, of)
}

const fn text<R: ?Sized>(name: &'static str, of: fn(&R) -> Cell) -> Column<R> {
    Column(name, Kind::Text, of)
}

/// Where the rows of one table go.
trait Sink {
    fn row(&mut self, cells: Vec<Cell>) -> io::Result<()>;

    fn finish(self: Box<Self>) -> io::Result<()>;
}

/// Writes the tables of `run` into `folder`, which is there. The names of the files, with their rows.
///
/// # Errors
/// When the run can't be read, or a file not be written.
pub fn export(run: &Run, format: Format, folder: &Path) -> Result<Vec<(String, u64)>, DataError> {
    let intervals = table(format, folder, "intervals", INTERVALS, |add| {
        let mut failed = None;
        run.each_interval(|interval| {
            let interval = Rc::new(interval);
            for (at, (stage, _)) in interval.stages.iter().enumerate() {
                let row = Stretch {
                    interval: Rc::clone(&interval),
                    at,
                    stage: name_of(run, *stage),
                    warmup: run.header.is_warmup(*stage),
                };
                if failed.is_none() {
                    failed = add(&row).err();
                }
            }
        })?;
        failed.map_or(Ok(()), Err)
    })?;
    let percentiles = table(format, folder, "percentiles", PERCENTILES, |add| {
        let record = run.measured();
        for (kind, times) in kinds(&record) {
            let Some(h) = times.histogram() else { continue };
            let supported = percents().filter_map(|p| Some((p, quantile(h, p / 100.0)?)));
            for (percent, ns) in supported {
                let count = h.len();
                add(&Percentile {
                    kind,
                    percent,
                    ns,
                    count,
                })?;
            }
        }
        Ok(())
    })?;
    let mut written = vec![intervals, percentiles];
    if run.has_requests {
        written.push(table(format, folder, "requests", REQUESTS, |add| {
            run.try_each_request(|request| {
                add(&Call {
                    request: request.clone(),
                    stage: name_of(run, request.sample.stage),
                    warmup: run.header.is_warmup(request.sample.stage),
                })
            })
        })?);
    }
    Ok(written)
}

fn name_of(run: &Run, stage: u8) -> String {
    let planned = run.header.planned_stages.get(usize::from(stage));
    planned.map_or_else(String::new, |s| s.name.clone())
}

/// Adds a row.
type Add<'a, R> = &'a mut dyn FnMut(&R) -> Result<(), DataError>;

fn table<R>(
    format: Format,
    folder: &Path,
    name: &str,
    columns: &[Column<R>],
    fill: impl FnOnce(Add<'_, R>) -> Result<(), DataError>,
) -> Result<(String, u64), DataError> {
    let file = match format {
        Format::Csv => format!("{name}.csv"),
        #[cfg(feature = "parquet")]
        Format::Parquet => format!("{name}.parquet"),
    };
    let wrong = |source| DataError::Write {
        table: file.clone(),
        source,
    };
    let path = folder.join(&file);
    let head: Vec<(&'static str, Kind)> = columns.iter().map(|c| (c.0, c.1)).collect();
    let mut sink: Box<dyn Sink> = match format {
        Format::Csv => Box::new(csv::Csv::create(&path, &head).map_err(wrong)?),
        #[cfg(feature = "parquet")]
        Format::Parquet => Box::new(parquet::Parquet::create(&path, name, &head).map_err(wrong)?),
    };
    let mut rows = 0;
    fill(&mut |row: &R| {
        rows += 1;
        let cells = columns.iter().map(|column| (column.2)(row)).collect();
        sink.row(cells).map_err(wrong)
    })?;
    sink.finish().map_err(wrong)?;
    Ok((file.clone(), rows))
}

/// What one stage did in one interval.
struct Stretch {
    interval: Rc<IntervalRecord>,
    /// Which of the interval's stages.
    at: usize,
    stage: String,
    warmup: bool,
}

impl Stretch {
    fn record(&self) -> &StageRecord {
        &self.interval.stages[self.at].1
    }
}

fn us(ns: u64) -> f64 {
    ns as f64 / 1e3
}

fn mean(times: &Times) -> Cell {
    Cell::Float(times.histogram().map(|h| h.mean() / 1e3))
}

fn at(times: &Times, p: f64) -> Cell {
    Cell::Float(times.histogram().and_then(|h| quantile(h, p)).map(us))
}

fn longest(times: &Times) -> Cell {
    Cell::Float(times.histogram().map(Histogram::max).map(us))
}

fn n(count: u64) -> Cell {
    Cell::Int(Some(count))
}

const INTERVALS: &[Column<Stretch>] = &[
    int("index", |s| n(s.interval.index)),
    float("start_s", |s| {
        Cell::Float(Some(s.interval.start_offset.as_secs_f64()))
    }),
    float("length_s", |s| {
        Cell::Float(Some(s.interval.length.as_secs_f64()))
    }),
    text("stage", |s| Cell::Text(s.stage.clone())),
    boolean("warmup", |s| Cell::Bool(Some(s.warmup))),
    int("due", |s| n(s.record().due)),
    int("ok", |s| n(s.record().ok())),
    int("errors", |s| n(s.record().errors())),
    int("not_started", |s| n(s.record().not_started)),
    int("in_flight", |s| n(s.interval.in_flight)),
    int("backlog", |s| n(s.interval.backlog)),
    int("connections_open", |s| n(s.interval.connections_open)),
    int("connections_full", |s| n(s.record().connections_full)),
    int("connections_resumed", |s| n(s.record().connections_resumed)),
    int("bytes_sent", |s| n(s.record().bytes_sent)),
    int("bytes_received", |s| n(s.record().bytes_received)),
    float("response_mean_us", |s| mean(&s.record().response)),
    float("response_p50_us", |s| at(&s.record().response, 0.5)),
    float("response_p90_us", |s| at(&s.record().response, 0.9)),
    float("response_p99_us", |s| at(&s.record().response, 0.99)),
    float("response_max_us", |s| longest(&s.record().response)),
    float("service_mean_us", |s| mean(&s.record().service)),
    float("service_p50_us", |s| at(&s.record().service, 0.5)),
    float("service_p99_us", |s| at(&s.record().service, 0.99)),
    float("lag_p99_us", |s| at(&s.record().lag, 0.99)),
    float("busiest_worker_ratio", |s| {
        Cell::Float(Some(s.interval.busiest_worker_ratio))
    }),
    int("client_cpu_us", |s| {
        Cell::Int(s.interval.client.as_ref().and_then(|r| r.cpu_us()))
    }),
    int("server_cpu_us", |s| {
        Cell::Int(s.interval.server.as_ref().and_then(|r| r.cpu_us()))
    }),
];

/// One percentile of one kind of time.
struct Percentile {
    kind: &'static str,
    percent: f64,
    ns: u64,
    count: u64,
}

const PERCENTILES: &[Column<Percentile>] = &[
    text("kind", |p| Cell::Text(p.kind.to_owned())),
    float("percentile", |p| Cell::Float(Some(p.percent))),
    float("value_us", |p| Cell::Float(Some(us(p.ns)))),
    int("count", |p| n(p.count)),
];

fn percents() -> impl Iterator<Item = f64> {
    let tail = [99.5, 99.9, 99.95, 99.99, 99.999];
    (1..100).map(f64::from).chain(tail)
}

/// The times of calls that count, by their names in the run format.
fn kinds(record: &StageRecord) -> Vec<(&'static str, &Times)> {
    let mut kinds = vec![
        ("response", &record.response),
        ("service", &record.service),
        ("first_byte", &record.first_byte),
        ("failed", &record.failed),
        ("lag", &record.lag),
        ("pacing", &record.pacing),
    ];
    if let Some(phases) = record.phases.as_deref() {
        kinds.extend([
            ("resolve", &phases.resolve),
            ("connect", &phases.connect),
            ("handshake", &phases.handshake),
            ("ready", &phases.ready),
            ("connection", &phases.total),
            ("cold_total", &phases.cold_total),
        ]);
    }
    if let Some(messages) = record.messages.as_deref() {
        kinds.extend([
            ("first_message", &messages.first_message),
            ("inter_message", &messages.inter_message),
        ]);
    }
    if let Some(measures) = record.measures.as_deref() {
        kinds.extend(TimeMeasure::all().map(|m| (m.key(), measures.times(m))));
    }
    kinds
}

/// One call.
struct Call {
    request: RequestRecord,
    stage: String,
    warmup: bool,
}

fn phase(call: &Call, of: fn(&plimsoll_model::ConnectPhases) -> u64) -> Cell {
    Cell::Float(call.request.phases.as_ref().map(|p| us(of(p))))
}

const REQUESTS: &[Column<Call>] = &[
    int("number", |c| n(c.request.sample.number)),
    text("stage", |c| Cell::Text(c.stage.clone())),
    boolean("warmup", |c| Cell::Bool(Some(c.warmup))),
    text("code", |c| {
        Cell::Text(c.request.sample.outcome.code().to_owned())
    }),
    float("arrival_us", |c| {
        Cell::Float(Some(us(c.request.sample.arrival.0)))
    }),
    float("sent_us", |c| {
        Cell::Float(Some(us(c.request.sample.sent.0)))
    }),
    float("first_byte_us", |c| {
        Cell::Float(Some(us(c.request.sample.first_byte.0)))
    }),
    float("done_us", |c| {
        Cell::Float(Some(us(c.request.sample.done.0)))
    }),
    float("response_us", |c| {
        Cell::Float(Some(us(c.request.sample.response_ns())))
    }),
    float("service_us", |c| {
        Cell::Float(Some(us(c.request.sample.service_ns())))
    }),
    float("lag_us", |c| {
        Cell::Float(Some(us(c.request.sample.lag_ns())))
    }),
    int("bytes_sent", |c| n(c.request.sample.bytes_sent.into())),
    int("bytes_received", |c| {
        n(c.request.sample.bytes_received.into())
    }),
    float("resolve_us", |c| phase(c, |p| p.resolve_ns)),
    float("connect_us", |c| phase(c, |p| p.connect_ns)),
    float("handshake_us", |c| phase(c, |p| p.handshake_ns)),
    float("ready_us", |c| phase(c, |p| p.ready_ns)),
    boolean("resumed", |c| {
        Cell::Bool(c.request.phases.as_ref().map(|p| p.resumed))
    }),
];
