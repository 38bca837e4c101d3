//! Reads the metrics that a model's server publishes itself once a second, and writes them into the run directory.
//!
//! A thread with lower priority than the workers reads them over a connection of its own, so the load never waits for
//! them. A reading takes a bounded time and a bounded number of bytes; one that fails is counted, and the first failure
//! is printed. The run does not depend on them.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::mpsc;
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;

use plimsoll_engine::tls::TlsClient;
use plimsoll_engine::{Clock, Observation};
use plimsoll_model::Plan;
use plimsoll_model::plan::TlsPlan;
use plimsoll_model::runs::server_metrics::{
    MetricValues, MetricsCollector, ServerMetricsRecord, parse_known_metrics,
};
use plimsoll_serving::build_runtime;
use reqwest::header::ACCEPT;
use reqwest::redirect::Policy;
use reqwest::{Client, Url};
use rustix::process::setpriority_process;
use tokio::sync::watch;
use tokio::time::{Interval, MissedTickBehavior, interval};

use crate::failure::{Failure, message_with_causes};
use crate::reporter::Reporter;
use crate::screen::console;
use crate::settings::metrics_url::metrics_url;
use crate::system::threads;

/// Niceness of the thread (nice(2)).
const READER_NICENESS: i32 = 10;
/// Time between two readings.
const READ_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum time of a reading, and of the last one after the load.
const READ_TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum size of the metrics of a server. vLLM has about 100 kB.
const MAX_BODY_BYTES: usize = 8 << 20;
/// The format that is read.
const METRICS_TYPE: &str = "text/plain;version=0.0.4";

/// Sampler of a server's metrics during one run.
pub(crate) struct MetricsSampler {
    /// The load's start in nanoseconds of `CLOCK_MONOTONIC`; not set before it is known.
    load_start_ns: Arc<OnceLock<u64>>,
    /// Dropping it ends the thread after one more reading.
    end: watch::Sender<()>,
    thread: JoinHandle<Option<ServerMetricsRecord>>,
}

impl MetricsSampler {
    /// Starts reading the metrics that the plan names; `None` if it names none. Returns after the first reading, so that
    /// counters are known before the load.
    ///
    /// # Errors
    /// When the URL is not one of HTTP, or the thread can't be started.
    pub(crate) fn start(plan: &Plan) -> Result<Option<MetricsSampler>, Failure> {
        let Some(url) = metrics_url(plan)? else {
            return Ok(None);
        };
        let reader = MetricsReader::new(plan, url)?;
        let load_start_ns = Arc::new(OnceLock::new());
        let (end, ended) = watch::channel(());
        let log = ReadingLog {
            collector: MetricsCollector::new(reader.url.as_str(), plan.load.warmup().as_secs_f64()),
            load_start_ns: Arc::clone(&load_start_ns),
            last_before_start: None,
        };
        let (first_read, first_ended) = mpsc::channel();
        let work = move || run_reader(&reader, log, first_read, ended);
        let thread = threads::start("server metrics", work)?;
        // Wait until the thread drops its end after the first reading.
        let _ = first_ended.recv();
        Ok(Some(MetricsSampler {
            load_start_ns,
            end,
            thread,
        }))
    }

    /// Ends reading and writes the metrics into the run directory `dir`; writes nothing if the load never started.
    /// Problems are printed, and don't make the run fail.
    pub(crate) fn finish(self, dir: &Path) {
        drop(self.end);
        // Ignore a panic of the thread, which the panic hook has already reported.
        let Ok(Some(record)) = self.thread.join() else {
            return;
        };
        if let Err(e) = record.write(dir) {
            console::print_notice(format_args!(
                "the server's metrics can't be written: {}",
                message_with_causes(&e)
            ));
        }
    }
}

impl Reporter for MetricsSampler {
    fn observe(&mut self, event: &Observation<'_>) -> Option<String> {
        if let Observation::Started { lead, .. } = event {
            let lead_ns = u64::try_from(lead.as_nanos()).unwrap_or(u64::MAX);
            let start_ns = monotonic_ns().saturating_add(lead_ns);
            // Only the first start counts; there is one in each run.
            let _ = self.load_start_ns.set(start_ns);
        }
        None
    }
}

fn monotonic_ns() -> u64 {
    Clock::from_origin(0).now().0
}

/// The readings of a run, with times relative to the load's start.
struct ReadingLog {
    collector: MetricsCollector,
    load_start_ns: Arc<OnceLock<u64>>,
    /// The last reading before the start was known, with its time.
    last_before_start: Option<(u64, MetricValues)>,
}

impl ReadingLog {
    fn add(&mut self, at_ns: u64, values: MetricValues) {
        if self.load_start_ns.get().is_none() {
            self.last_before_start = Some((at_ns, values));
            return;
        }
        self.flush();
        let offset_s = self.offset_s(at_ns);
        self.collector.add(offset_s, values);
    }

    /// Adds the reading that took place before the start was known.
    fn flush(&mut self) {
        if let Some((at_ns, values)) = self.last_before_start.take() {
            let offset_s = self.offset_s(at_ns);
            self.collector.add(offset_s, values);
        }
    }

    fn offset_s(&self, at_ns: u64) -> f64 {
        let start_ns = self.load_start_ns.get().copied().unwrap_or(at_ns);
        (at_ns as f64 - start_ns as f64) / 1e9
    }

    fn add_failure(&mut self, problem: &str) {
        if self.collector.add_failure(problem) {
            console::print_notice(format_args!(
                "--server-metrics: {problem}; the load continues"
            ));
        }
    }

    /// Returns the record; `None` if the load never started.
    fn finish(mut self) -> Option<ServerMetricsRecord> {
        self.load_start_ns.get()?;
        self.flush();
        Some(self.collector.finish())
    }
}

/// Runs the thread until the run has ended.
fn run_reader(
    reader: &MetricsReader,
    mut log: ReadingLog,
    first_read: mpsc::Sender<()>,
    ended: watch::Receiver<()>,
) -> Option<ServerMetricsRecord> {
    // On Linux this is the calling thread's own priority, not the process's (setpriority(2)).
    let _ = setpriority_process(None, READER_NICENESS);
    match build_runtime(Some(1)) {
        Ok(runtime) => runtime.block_on(read_until_end(reader, &mut log, first_read, ended)),
        Err(e) => log.add_failure(&message_with_causes(&e)),
    }
    log.finish()
}

/// Reads the metrics at once, and drops `first_read`; then once a second until the run has ended, and once more.
async fn read_until_end(
    reader: &MetricsReader,
    log: &mut ReadingLog,
    first_read: mpsc::Sender<()>,
    mut ended: watch::Receiver<()>,
) {
    let mut ticks = interval(READ_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut is_answering = read_at_tick(&mut ticks, reader, log).await;
    drop(first_read);
    loop {
        tokio::select! {
            biased;
            _ = ended.changed() => break,
            answered = read_at_tick(&mut ticks, reader, log) => is_answering = answered,
        }
    }
    // Waiting for a server that does not answer would only delay the end of the run.
    if is_answering {
        read_once(reader, log).await;
    }
}

/// Waits for the next tick and reads the metrics; returns whether the server answered.
async fn read_at_tick(ticks: &mut Interval, reader: &MetricsReader, log: &mut ReadingLog) -> bool {
    ticks.tick().await;
    read_once(reader, log).await
}

/// Reads the metrics; returns whether the server answered with them.
async fn read_once(reader: &MetricsReader, log: &mut ReadingLog) -> bool {
    let asked_ns = monotonic_ns();
    let read = reader.read().await;
    // The server took the values at some time between the request and the answer.
    let at_ns = asked_ns.midpoint(monotonic_ns());
    match read {
        Ok(values) => {
            log.add(at_ns, values);
            true
        }
        Err(problem) => {
            log.add_failure(&problem);
            false
        }
    }
}

/// An HTTP client for the metrics of one server.
struct MetricsReader {
    client: Client,
    url: Url,
}

impl MetricsReader {
    /// Creates a client. Metrics at the target's host are read with the plan's addresses and TLS settings.
    ///
    /// # Errors
    /// When the client can't be created, or a file of the TLS settings can't be read.
    fn new(plan: &Plan, url: Url) -> Result<MetricsReader, Failure> {
        let failed = |problem: &str| {
            Failure::error(format_args!(
                "watch.server_metrics (--server-metrics): {problem}"
            ))
        };
        let target = &plan.target;
        let mut client = Client::builder()
            .timeout(READ_TIMEOUT)
            .redirect(Policy::none())
            .http1_only()
            .no_proxy();
        let host = url.host_str().unwrap_or_default();
        let host = host.trim_start_matches('[').trim_end_matches(']');
        if host.eq_ignore_ascii_case(target.host_without_zone()) {
            if !target.addresses.is_empty() {
                // The library replaces port 0 by the port of the URL.
                let addresses = target.addresses.iter();
                let addresses = addresses.map(|address| SocketAddr::new(*address, 0));
                client = client.resolve_to_addrs(host, &addresses.collect::<Vec<SocketAddr>>());
            }
            if let Some(tls) = &plan.tls {
                let tls = TlsPlan {
                    resume: false,
                    early_data: false,
                    full_share: None,
                    key_log: None,
                    ..tls.clone()
                };
                let tls = TlsClient::new(&tls, target, &[b"http/1.1"])
                    .map_err(|e| failed(&message_with_causes(&e)))?;
                client = client.tls_backend_preconfigured((**tls.config()).clone());
            }
        }
        let client = client
            .build()
            .map_err(|e| failed(&message_with_causes(&e)))?;
        Ok(MetricsReader { client, url })
    }

    /// Reads the known metrics.
    ///
    /// # Errors
    /// When the server does not answer in time, answers with an error, or publishes no known metric.
    async fn read(&self) -> Result<MetricValues, String> {
        let url = &self.url;
        let lost = |e: reqwest::Error| {
            format!(
                "{url}: no answer: {}",
                message_with_causes(&e.without_url())
            )
        };
        let request = self.client.get(url.clone()).header(ACCEPT, METRICS_TYPE);
        let mut answer = request.send().await.map_err(lost)?;
        let status = answer.status();
        if !status.is_success() {
            return Err(format!("{url} answers {status}"));
        }
        let mut body = Vec::new();
        while let Some(part) = answer.chunk().await.map_err(lost)? {
            if body.len() + part.len() > MAX_BODY_BYTES {
                return Err(format!("{url} answers more than {MAX_BODY_BYTES} bytes"));
            }
            body.extend_from_slice(&part);
        }
        let values = parse_known_metrics(&String::from_utf8_lossy(&body));
        if values.is_empty() {
            return Err(format!(
                "{url} has none of the metrics that vLLM, SGLang, TGI and llama.cpp publish"
            ));
        }
        Ok(values)
    }
}
