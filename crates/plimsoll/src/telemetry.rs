//! `--telemetry`: what a run does, reported to programs while it goes on.
//!
//! A thread of its own, of a lower priority than the workers, answers scrapes (OpenMetrics text) or posts metrics
//! (OTLP over HTTP, in JSON) after every interval. Nobody waits for it: what a receiver is too slow for is in
//! the next post, since all figures are sums since the beginning.

use std::collections::BTreeMap;
use std::net::TcpListener;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use jiff::Timestamp;
use plimsoll_model::Plan;
use plimsoll_model::run::IntervalRecord;
use plimsoll_protocols::serving::runtime;
use plimsoll_report::ongoing::{self, Ongoing};
use reqwest::Client;
use rustix::process::setpriority_process;
use tokio::sync::watch;

use crate::console;
use crate::failure::{Failure, chain};
use crate::listening::tcp_address;
use crate::reporter::Reporter;
use crate::threads;

/// Of the thread, on the scale of nice(2).
const PRIORITY: i32 = 10;
/// How long a post may take, and so how long the end of a command may wait for the last one.
const PATIENCE: Duration = Duration::from_secs(5);
/// Where OTLP over HTTP takes metrics, below the address of a collector.
const METRICS: &str = "/v1/metrics";
/// Runs whose figures are reported: of a long search or ladder, the latest.
const MAX_RUNS: usize = 64;

/// By their names, with the number of the run in its command.
type Runs = Arc<Mutex<BTreeMap<String, (u64, Ongoing)>>>;

/// What the runs of one command report while they go on.
#[derive(Debug)]
struct Telemetry {
    runs: Runs,
    /// Counts intervals; its end is the thread's.
    news: Option<watch::Sender<u64>>,
    thread: Option<JoinHandle<()>>,
}

/// That of this process, where it was asked for.
static TELEMETRY: Mutex<Option<Telemetry>> = Mutex::new(None);

fn current() -> MutexGuard<'static, Option<Telemetry>> {
    TELEMETRY.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Reports the runs of this process from here on. `wanted`: where to listen for scrapes, or the URL of a collector.
///
/// # Errors
/// When it is neither, or can't be listened on.
pub(crate) fn start(wanted: &str) -> Result<(), Failure> {
    let telemetry = Telemetry::start(wanted)?;
    *current() = Some(telemetry);
    Ok(())
}

/// What is reported of one run, where telemetry was asked for.
pub(crate) struct OneRun<'a>(&'a Plan);

impl OneRun<'_> {
    /// A run of `plan` begins.
    pub(crate) fn begin(plan: &Plan) -> OneRun<'_> {
        current().iter().for_each(|t| t.begin(plan));
        OneRun(plan)
    }
}

impl Reporter for OneRun<'_> {
    fn interval(&mut self, interval: &IntervalRecord) -> Option<String> {
        current().iter().for_each(|t| t.interval(self.0, interval));
        None
    }
}

/// Tells what is left to be told.
pub(crate) fn end() {
    let last = current().take();
    drop(last);
}

enum Wanted {
    Scrapes(TcpListener),
    Posts(reqwest::Url),
}

impl Telemetry {
    /// `wanted`: where to listen for scrapes, or the URL of a collector.
    ///
    /// # Errors
    /// When it is neither, or can't be listened on.
    fn start(wanted: &str) -> Result<Telemetry, Failure> {
        let wanted = Wanted::of(wanted)?;
        let runs = Runs::default();
        let (news, seen) = watch::channel(0);
        let told = Arc::clone(&runs);
        let thread = threads::start("telemetry", move || tell(wanted, &told, seen))?;
        Ok(Telemetry {
            runs,
            news: Some(news),
            thread: Some(thread),
        })
    }

    /// A run of `plan` begins.
    fn begin(&self, plan: &Plan) {
        let now = unix_ns();
        let mut runs = lock(&self.runs);
        let number = 1 + runs.values().map(|(number, _)| *number).max().unwrap_or(0);
        let run = Ongoing::new(&plan.name, &plan.target.url, now);
        runs.insert(plan.name.clone(), (number, run));
        while runs.len() > MAX_RUNS {
            let oldest = runs.iter().min_by_key(|(_, (number, _))| *number);
            let Some(name) = oldest.map(|(name, _)| name.clone()) else {
                break;
            };
            runs.remove(&name);
        }
    }

    fn interval(&self, plan: &Plan, interval: &IntervalRecord) {
        if let Some((_, run)) = lock(&self.runs).get_mut(&plan.name) {
            run.add(interval);
        }
        if let Some(news) = &self.news {
            news.send_modify(|intervals| *intervals += 1);
        }
    }
}

impl Drop for Telemetry {
    fn drop(&mut self) {
        self.news = None;
        if let Some(thread) = self.thread.take() {
            // Where it panicked, the panic was reported when it happened.
            let _ = thread.join();
        }
    }
}

fn lock(runs: &Runs) -> MutexGuard<'_, BTreeMap<String, (u64, Ongoing)>> {
    runs.lock().unwrap_or_else(PoisonError::into_inner)
}

fn unix_ns() -> u64 {
    u64::try_from(Timestamp::now().as_nanosecond()).unwrap_or(0)
}

impl Wanted {
    fn of(typed: &str) -> Result<Wanted, Failure> {
        if typed.contains("://") {
            let url = reqwest::Url::parse(typed).map_err(|e| {
                Failure::usage(
                    format_args!("--telemetry: `{typed}`: {e}"),
                    "write the URL of an OTLP collector; its port is mostly 4318",
                )
            })?;
            let mut url = url;
            if url.path() == "/" {
                url.set_path(METRICS);
            }
            return Ok(Wanted::Posts(url));
        }
        let help = "write HOST:PORT, such as 127.0.0.1:9464, or the URL of an OTLP collector";
        let address = tcp_address("--telemetry", typed, help)?;
        let listener = TcpListener::bind(address).and_then(|listener| {
            listener.set_nonblocking(true)?;
            console::notice(format_args!(
                "metrics are at {}/metrics",
                listener.local_addr()?
            ));
            Ok(listener)
        });
        listener.map(Wanted::Scrapes).map_err(|e| {
            Failure::error_with_help(
                format_args!("--telemetry: can't listen on {address}: {e}"),
                "give another port; 0 takes any free one",
            )
        })
    }
}

/// The thread.
fn tell(wanted: Wanted, runs: &Runs, news: watch::Receiver<u64>) {
    // On Linux this is the calling thread's own priority, not the process's (setpriority(2)).
    let _ = setpriority_process(None, PRIORITY);
    let told = runtime(Some(1)).map_err(|e| chain(&e)).and_then(|runtime| {
        runtime.block_on(async {
            match wanted {
                Wanted::Scrapes(listener) => answer(listener, runs, news).await,
                Wanted::Posts(url) => post(&url, runs, news).await,
            }
        })
    });
    if let Err(why) = told {
        console::notice(format_args!("no more telemetry: {why}; the load goes on"));
    }
}

async fn answer(
    listener: TcpListener,
    runs: &Runs,
    mut news: watch::Receiver<u64>,
) -> Result<(), String> {
    let listener = tokio::net::TcpListener::from_std(listener).map_err(|e| e.to_string())?;
    let router = Router::new()
        .route("/metrics", get(scrape))
        .with_state(Arc::clone(runs));
    axum::serve(listener, router)
        .with_graceful_shutdown(async move { while news.changed().await.is_ok() {} })
        .await
        .map_err(|e| e.to_string())
}

async fn scrape(State(runs): State<Runs>) -> Response {
    let text = ongoing::openmetrics(lock(&runs).values().map(|(_, run)| run));
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    ([("content-type", kind)], text).into_response()
}

/// Posts what is new until nothing can be any more, and then once more.
async fn post(
    url: &reqwest::Url,
    runs: &Runs,
    mut news: watch::Receiver<u64>,
) -> Result<(), String> {
    let client = Client::builder().timeout(PATIENCE).build();
    let client = client.map_err(|e| chain(&e))?;
    let mut complained = false;
    loop {
        let more = news.changed().await.is_ok();
        let body = {
            let runs = lock(runs);
            let all = runs.values().map(|(_, run)| run);
            ongoing::otlp(all, unix_ns(), env!("CARGO_PKG_VERSION")).to_string()
        };
        let sent = client
            .post(url.clone())
            .header("content-type", "application/json")
            .body(body)
            .send()
            .await
            .and_then(reqwest::Response::error_for_status);
        // One complaint says it.
        if let Err(e) = sent
            && !std::mem::replace(&mut complained, true)
        {
            console::notice(format_args!("--telemetry: {}; the load goes on", chain(&e)));
        }
        if !more {
            return Ok(());
        }
    }
}
