//! Exports the spans of finished runs (`--spans`), to a file or to an OTLP collector.
//!
//! Invariant: no collector, however slow or hostile, delays the end of a command by more than [`EXPORT_TIMEOUT`].

use std::path::Path;
use std::time::Duration;

use clap::Args;
use plimsoll_model::runs::run::Run;
use plimsoll_model::spec::{LaneTable, Spec};
use plimsoll_report::exports::spans::{SpansRequest, to_json_lines};
use plimsoll_report::quantity::plural;
use plimsoll_serving::build_runtime;

use super::collector::{OtlpCollector, SPANS_SIGNAL};
use crate::failure::{Failure, message_with_causes};
use crate::screen::console;
use crate::settings::environment::Environment;

/// Maximum time for all posts together.
const EXPORT_TIMEOUT: Duration = Duration::from_secs(4);

const NO_SPANS_NOTICE: &str = "--spans: there are none: no call of the run carried trace ids";

/// Name of the flag that exports spans, for messages.
pub(crate) const SPANS_FLAG: &str = SPANS_SIGNAL.flag;

/// The flag that exports spans.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct SpanFlags {
    /// Write spans of the slowest and the sampled calls as OTLP JSON lines ("-": stdout), or post them to an OTLP
    /// collector.
    #[arg(long, value_name = "FILE|URL", help_heading = "Output")]
    spans: Option<String>,
}

impl SpanFlags {
    /// Returns the URL of the collector; `None` if spans are not exported to a collector.
    pub(crate) fn collector_url(&self) -> Option<&str> {
        self.spans.as_deref().filter(|typed| typed.contains("://"))
    }

    /// Returns the file that spans are written to (`-` is stdout); `None` if they are not written to a file.
    pub(crate) fn file(&self) -> Option<&Path> {
        let file = self.spans.as_deref().map(Path::new);
        file.filter(|_| self.collector_url().is_none())
    }

    /// Checks the URL of the collector before a load.
    ///
    /// # Errors
    /// When the URL, or an environment variable for the collector, is invalid.
    pub(crate) fn check(&self, environment: &Environment) -> Result<(), Failure> {
        self.collector_url().map_or(Ok(()), |url| {
            OtlpCollector::new(&SPANS_SIGNAL, url, &[], environment).map(drop)
        })
    }

    /// Checks that calls of this plan will have spans, if spans are requested.
    ///
    /// # Errors
    /// When the plan's requests have no trace ids.
    pub(crate) fn check_plan(&self, spec: &Spec) -> Result<(), Failure> {
        let is_traced = |lane: &LaneTable| lane.traceparent == Some(toml::Value::Boolean(true));
        if self.spans.is_none()
            || spec.traceparent == Some(true)
            || spec.lanes.values().any(is_traced)
        {
            return Ok(());
        }
        Err(Failure::usage(
            format_args!("{SPANS_FLAG}: only calls that carry trace ids have spans"),
            "add --traceparent, or traceparent = true at the top of the plan",
        ))
    }

    /// Rejects spans for a search or a ladder before it starts.
    ///
    /// # Errors
    /// When spans are requested.
    pub(crate) fn reject_several_runs(&self) -> Result<(), Failure> {
        self.spans.as_ref().map_or(Ok(()), |_| {
            Err(Failure::usage(
                format_args!("{SPANS_FLAG}: a search or a ladder has several runs"),
                "leave it out, and give one of the run directories to plimsoll report",
            ))
        })
    }

    /// Posts the spans of `runs` to the collector, and prints how many it accepted. Does nothing without a collector.
    ///
    /// # Errors
    /// When the collector did not accept all spans; the number of accepted spans is printed even then.
    pub(crate) fn post(&self, runs: &[Run], environment: &Environment) -> Result<(), Failure> {
        self.collector_url()
            .map_or(Ok(()), |url| post(url, runs, environment))
    }
}

/// The numbers of spans that a collector has accepted and rejected.
#[derive(Debug, Default)]
struct SpanCounts {
    accepted: u64,
    rejected: u64,
}

/// Returns the spans of `runs` as OTLP JSON lines.
pub(crate) fn otlp_lines(runs: &[Run]) -> String {
    let lines = to_json_lines(runs);
    if lines.is_empty() {
        console::print_notice(NO_SPANS_NOTICE);
    }
    lines
}

fn post(url: &str, runs: &[Run], environment: &Environment) -> Result<(), Failure> {
    let collector = OtlpCollector::new(&SPANS_SIGNAL, url, &[], environment)?;
    let requests: Vec<SpansRequest> = runs.iter().flat_map(SpansRequest::from_run).collect();
    if requests.is_empty() {
        console::print_notice(NO_SPANS_NOTICE);
        return Ok(());
    }
    let mut counts = SpanCounts::default();
    let posted = build_runtime(Some(1))
        .map_err(|e| message_with_causes(&e))
        .and_then(|runtime| {
            let posted = runtime.block_on(async {
                let all = post_all(&collector, &requests, &mut counts);
                tokio::time::timeout(EXPORT_TIMEOUT, all).await
            });
            // Don't wait for a name lookup that is still in progress.
            runtime.shutdown_background();
            posted.unwrap_or_else(|_| {
                Err(format!(
                    "the collector did not accept all spans within {} s",
                    EXPORT_TIMEOUT.as_secs()
                ))
            })
        });
    let all: u64 = requests.iter().map(SpansRequest::span_count).sum();
    let SpanCounts { accepted, rejected } = counts;
    console::print_confirmation(format_args!(
        "{accepted} of {} accepted by the collector",
        plural(all, "span")
    ));
    let unanswered = all - accepted - rejected;
    posted.map_err(|why| {
        let lost = if unanswered > 0 {
            format!(" ({} not answered)", plural(unanswered, "span"))
        } else {
            String::new()
        };
        Failure::error(format_args!("{SPANS_FLAG}: {why}{lost}"))
    })
}

/// Posts the requests one after another. If any is rejected, returns the first rejection as an error after posting all
/// of them.
async fn post_all(
    collector: &OtlpCollector,
    requests: &[SpansRequest],
    counts: &mut SpanCounts,
) -> Result<(), String> {
    let client = collector.new_client()?;
    let mut refusal = None;
    for request in requests {
        let all = request.span_count();
        let partial = collector.post(&client, request).await?;
        let rejected = partial.as_ref().map_or(0, |partial| partial.rejected);
        let rejected = rejected.min(all);
        counts.rejected += rejected;
        counts.accepted += all - rejected;
        match partial {
            Some(partial) if rejected > 0 => drop(refusal.get_or_insert(partial)),
            // No spans were rejected, so the collector's message is only a warning.
            Some(partial) => {
                console::print_notice(format_args!("{SPANS_FLAG}: {}", partial.reason))
            }
            None => {}
        }
    }
    refusal.map_or(Ok(()), |partial| Err(partial.reason))
}
