//! Exports metrics during a run (`--telemetry`), and spans after it ([`spans`]).
//!
//! A thread with lower priority than the workers answers scrapes (OpenMetrics text) or posts metrics (OTLP over HTTP)
//! after every interval. The load never waits for that thread: figures are cumulative, so if a slow receiver misses
//! intervals, the next post includes them.

mod collector;
pub(crate) mod spans;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use jiff::Timestamp;
use plimsoll_model::Plan;
use plimsoll_model::runs::run::IntervalRecord;
use plimsoll_report::exports::live_runs::otlp::MetricsRequest;
use plimsoll_report::exports::live_runs::{self, RunningTotals};
use plimsoll_serving::pages::{self, Request, Response, StatusCode, header};
use plimsoll_serving::{BoundServer, build_runtime};
use rustix::process::setpriority_process;
use tokio::sync::watch;

use crate::failure::{Failure, message_with_causes};
use crate::reporter::Reporter;
use crate::screen::console;
use crate::settings::environment::Environment;
use crate::settings::listening::tcp_address;
use crate::system::threads;
use collector::{METRICS_SIGNAL, OtlpCollector};

/// Niceness of the export thread (nice(2)).
const EXPORT_NICENESS: i32 = 10;
/// Maximum time that the end of a command waits for the post in flight and the final post together.
const FINAL_POST_TIMEOUT: Duration = Duration::from_secs(3);
/// Maximum number of runs to export; of a command with more runs, such as a long search, only the latest are exported.
const MAX_EXPORTED_RUNS: usize = 64;

/// Metrics of runs, by the run's name, each with the run's number within the command.
type ReportedRuns = Arc<Mutex<BTreeMap<String, (u64, RunningTotals)>>>;

/// The telemetry of one command.
#[derive(Debug)]
struct Telemetry {
    runs: ReportedRuns,
    /// Number of intervals so far, which wakes the thread when it changes; dropping the sender ends the thread.
    interval_count: Option<watch::Sender<u64>>,
    thread: Option<JoinHandle<()>>,
}

/// The telemetry of this process; `None` if it was not requested.
static TELEMETRY: Mutex<Option<Telemetry>> = Mutex::new(None);

fn lock_telemetry() -> MutexGuard<'static, Option<Telemetry>> {
    TELEMETRY.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Starts the export of this process's runs. `wanted` is an address to listen on for scrapes, or the URL of a
/// collector; `headers` are added to every request to the collector.
///
/// # Errors
/// When `wanted` is neither, or the address is in use.
pub(crate) fn start(
    wanted: &str,
    headers: &[String],
    environment: &Environment,
) -> Result<(), Failure> {
    let telemetry = Telemetry::start(TelemetrySink::from_flag(wanted, headers, environment)?)?;
    *lock_telemetry() = Some(telemetry);
    Ok(())
}

/// Reporter that exports the metrics of one run if telemetry was requested.
pub(crate) struct RunTelemetry<'a>(&'a Plan);

impl RunTelemetry<'_> {
    /// Registers a run of `plan`.
    pub(crate) fn register(plan: &Plan) -> RunTelemetry<'_> {
        lock_telemetry().iter().for_each(|t| t.register_run(plan));
        RunTelemetry(plan)
    }
}

impl Reporter for RunTelemetry<'_> {
    fn on_interval(&mut self, interval: &IntervalRecord) -> Option<String> {
        lock_telemetry()
            .iter()
            .for_each(|t| t.add_interval(self.0, interval));
        None
    }
}

/// Exports the final figures and ends the export thread.
pub(crate) fn finish() {
    let last = lock_telemetry().take();
    drop(last);
}

/// How metrics are exported.
enum TelemetrySink {
    Scrapes(BoundServer),
    Posts(OtlpCollector),
}

impl Telemetry {
    /// Starts the export thread.
    ///
    /// # Errors
    /// When the thread can't be started.
    fn start(wanted: TelemetrySink) -> Result<Telemetry, Failure> {
        let runs = ReportedRuns::default();
        let (news, seen) = watch::channel(0);
        let told = Arc::clone(&runs);
        let thread = threads::start("telemetry", move || run_export(wanted, &told, seen))?;
        Ok(Telemetry {
            runs,
            interval_count: Some(news),
            thread: Some(thread),
        })
    }

    /// Registers a run of `plan`.
    fn register_run(&self, plan: &Plan) {
        let now = unix_now_ns();
        let mut runs = lock_runs(&self.runs);
        let number = 1 + runs.values().map(|(number, _)| *number).max().unwrap_or(0);
        let run = RunningTotals::new(&plan.name, &plan.target.url, now);
        runs.insert(plan.name.clone(), (number, run));
        while runs.len() > MAX_EXPORTED_RUNS {
            let oldest = runs.iter().min_by_key(|(_, (number, _))| *number);
            let Some(name) = oldest.map(|(name, _)| name.clone()) else {
                break;
            };
            runs.remove(&name);
        }
    }

    fn add_interval(&self, plan: &Plan, interval: &IntervalRecord) {
        if let Some((_, run)) = lock_runs(&self.runs).get_mut(&plan.name) {
            run.add(interval);
        }
        if let Some(news) = &self.interval_count {
            news.send_modify(|intervals| *intervals += 1);
        }
    }
}

impl Drop for Telemetry {
    fn drop(&mut self) {
        self.interval_count = None;
        if let Some(thread) = self.thread.take() {
            // Ignore a panic of the thread, which the panic hook has already reported.
            let _ = thread.join();
        }
    }
}

fn lock_runs(runs: &ReportedRuns) -> MutexGuard<'_, BTreeMap<String, (u64, RunningTotals)>> {
    runs.lock().unwrap_or_else(PoisonError::into_inner)
}

fn unix_now_ns() -> u64 {
    u64::try_from(Timestamp::now().as_nanosecond()).unwrap_or(0)
}

impl TelemetrySink {
    fn from_flag(
        typed: &str,
        headers: &[String],
        environment: &Environment,
    ) -> Result<TelemetrySink, Failure> {
        if typed.contains("://") {
            return OtlpCollector::new(&METRICS_SIGNAL, typed, headers, environment)
                .map(TelemetrySink::Posts);
        }
        if !headers.is_empty() {
            return Err(Failure::usage(
                "--telemetry-header: scrapes don't send header fields",
                "leave it out, or give --telemetry the URL of an OTLP collector",
            ));
        }
        let help = "write HOST:PORT, such as 127.0.0.1:9464, or the URL of an OTLP collector";
        let address = tcp_address("--telemetry", typed, help)?;
        let bound = pages::bind(address).map_err(|e| {
            Failure::error_with_help(
                format_args!("--telemetry: can't listen on {address}: {e}"),
                "give another port; 0 takes any free one",
            )
        })?;
        console::print_notice(format_args!("metrics are at {}/metrics", bound.address()));
        Ok(TelemetrySink::Scrapes(bound))
    }
}

/// Runs the export thread until the command ends.
fn run_export(wanted: TelemetrySink, runs: &ReportedRuns, news: watch::Receiver<u64>) {
    // On Linux this is the calling thread's own priority, not the process's (setpriority(2)).
    let _ = setpriority_process(None, EXPORT_NICENESS);
    let told = build_runtime(Some(1))
        .map_err(|e| message_with_causes(&e))
        .and_then(|runtime| {
            runtime.block_on(async {
                match wanted {
                    TelemetrySink::Scrapes(listener) => serve_scrapes(listener, runs, news).await,
                    TelemetrySink::Posts(collector) => post_until_end(&collector, runs, news).await,
                }
            })
        });
    if let Err(why) = told {
        console::print_notice(format_args!("telemetry stopped: {why}; the load continues"));
    }
}

async fn serve_scrapes(
    bound: BoundServer,
    runs: &ReportedRuns,
    mut news: watch::Receiver<u64>,
) -> Result<(), String> {
    let runs = Arc::clone(runs);
    let answer =
        move |request: Request<()>| std::future::ready(metrics_page(&runs, request.uri().path()));
    let ended = async move { while news.changed().await.is_ok() {} };
    let served = pages::serve(bound, answer, ended).await;
    served.map(drop).map_err(|e| message_with_causes(&e))
}

fn metrics_page(runs: &ReportedRuns, path: &str) -> Response<String> {
    let (status, kind, text) = if path == "/metrics" {
        let text = live_runs::render_openmetrics(lock_runs(runs).values().map(|(_, run)| run));
        let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
        (StatusCode::OK, kind, text)
    } else {
        let text = "ask for /metrics\n".to_owned();
        (StatusCode::NOT_FOUND, "text/plain; charset=utf-8", text)
    };
    let mut response = Response::new(text);
    *response.status_mut() = status;
    let kind = header::HeaderValue::from_static(kind);
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}

/// Posts metrics after every interval until the command ends, and then once more within [`FINAL_POST_TIMEOUT`].
async fn post_until_end(
    collector: &OtlpCollector,
    runs: &ReportedRuns,
    news: watch::Receiver<u64>,
) -> Result<(), String> {
    let mut end = news.clone();
    let too_late = async move {
        while end.changed().await.is_ok() {}
        tokio::time::sleep(FINAL_POST_TIMEOUT).await;
    };
    tokio::select! {
        biased;
        posted = post_every_interval(collector, runs, news) => posted,
        () = too_late => Err(format!(
            "the collector did not accept the last metrics within {} s of the end",
            FINAL_POST_TIMEOUT.as_secs()
        )),
    }
}

async fn post_every_interval(
    collector: &OtlpCollector,
    runs: &ReportedRuns,
    mut news: watch::Receiver<u64>,
) -> Result<(), String> {
    let client = collector.new_client()?;
    let mut complained = false;
    loop {
        let more = news.changed().await.is_ok();
        let metrics = {
            let runs = lock_runs(runs);
            let all = runs.values().map(|(_, run)| run);
            MetricsRequest::new(all, unix_now_ns(), env!("CARGO_PKG_VERSION"))
        };
        // Print only the first failure of all posts.
        let posted = collector.post(&client, &metrics).await;
        let refusal = posted.map_or_else(Some, |partial| Some(partial?.reason));
        if let Some(why) = refusal
            && !std::mem::replace(&mut complained, true)
        {
            console::print_notice(format_args!("--telemetry: {why}; the load continues"));
        }
        if !more {
            return Ok(());
        }
    }
}
