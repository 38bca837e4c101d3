//! Translates command lines of [k6](https://k6.io): `k6 run --vus 10 --duration 30s script.js`. The script contains the
//! URLs, so users must add one.

use super::{NO_FILE_HINT, NO_SCRIPT_HINT, add_alpn, add_redirects};
use crate::foreign::command_lines::FlagMeaning::{Deferred, Dropped, Header, Missing, Ignored, OurFlag};
use crate::foreign::command_lines::ValueForm::{Decimal, Number, Text, Time};
use crate::foreign::command_lines::{FlagStyle, LineBuilder, LineTool, switch, value};

pub(super) static TOOL: LineTool = LineTool {
    names: &["k6 run", "k6"],
    style: FlagStyle::Gnu,
    flags: &[
        value(&["u", "vus"], Number, Deferred),
        value(&["d", "duration"], Time, Deferred),
        value(&["i", "iterations"], Number, Deferred),
        value(&["s", "stage"], Text, Deferred),
        value(&["max", "m"], Number, Ignored),
        value(&["max-redirects"], Number, Deferred),
        value(&["rps"], Decimal, Deferred),
        switch(&["insecure-skip-tls-verify"], OurFlag("--insecure", "")),
        switch(&["no-connection-reuse"], OurFlag("--cold", "")),
        // k6's iterations are translated to calls.
        switch(&["no-vu-connection-reuse"], OurFlag("--cold", "")),
        value(&["user-agent"], Text, Header("user-agent")),
        value(&["local-ips"], Text, OurFlag("--source", "")),
        value(&["o", "out"], Text, Dropped(NO_FILE_HINT)),
        value(&["summary-export"], Text, Dropped(NO_FILE_HINT)),
        value(&["summary-trend-stats"], Text, Ignored),
        value(&["summary-time-unit"], Text, Ignored),
        switch(&["no-summary"], Ignored),
        switch(&["no-thresholds"], Ignored),
        switch(&["no-setup"], Ignored),
        switch(&["no-teardown"], Ignored),
        switch(&["no-usage-report"], Ignored),
        switch(&["no-color"], Ignored),
        switch(&["discard-response-bodies"], Ignored),
        value(&["e", "env"], Text, Missing(NO_SCRIPT_HINT)),
        value(&["tag"], Text, Ignored),
        value(
            &["c", "config"],
            Text,
            Missing("write a plan in place of the configuration: plimsoll run PLAN"),
        ),
        switch(&["paused"], Ignored),
        switch(&["q", "quiet"], OurFlag("--quiet", "")),
        switch(&["v", "verbose"], Ignored),
    ],
    reads_stdin: false,
    marker_flags: &[&["u"], &["i"], &["s"]],
    finish,
};

/// Adds the flags that depend on several flags of k6. Virtual users become clients. Plimsoll has no stages with varying
/// numbers of users, so the largest stage determines the number of clients and the duration.
fn finish(line: &mut LineBuilder) -> Result<(), String> {
    let stages = line.values("s");
    let mut clients = line.number("u", 1);
    let mut duration = line.value("d").map(str::to_owned);
    if let Some((last, most)) = largest_stage(&stages)? {
        (clients, duration) = (most, Some(last));
        line.add_missing(
            "--stage",
            "the number of clients does not change; a rate does: --step 30s:0/s..100/s",
        );
    }
    match line.value("rps").map(str::to_owned) {
        Some(rate) => {
            line.add("--connections", clients);
            line.add("--rate", format_args!("{rate}/s"));
        }
        None => line.add("--clients", clients),
    }
    if line.is_set("i") || duration.is_none() {
        line.add("--calls", line.number("i", 1));
    }
    if let Some(duration) = duration {
        line.add("--duration", duration);
    }
    add_redirects(line, line.number("max-redirects", 10));
    let is_script = |word: &String| [".js", ".ts", ".tar"].iter().any(|end| word.ends_with(end));
    match line.words.first() {
        Some(script) if is_script(script) || script == "-" => {
            Err(format!("the URLs are in {script}: write one of them"))
        }
        _ => {
            line.take_target("http")?;
            add_alpn(line);
            Ok(())
        }
    }
}

/// Returns the duration and the number of users of the stage with the most users, such as 1m and 20 for
/// `30s:10,1m:20`.
fn largest_stage(stages: &[String]) -> Result<Option<(String, u64)>, String> {
    let mut largest: Option<(String, u64)> = None;
    for stage in stages.iter().flat_map(|stages| stages.split(',')) {
        let read = stage
            .split_once(':')
            .and_then(|(time, users)| Some((time, users.parse().ok()?)));
        let (time, users) = read.ok_or_else(|| format!("--stage: `{stage}` is not TIME:USERS"))?;
        if largest.as_ref().is_none_or(|(_, most)| users > *most) {
            largest = Some((time.to_owned(), users));
        }
    }
    Ok(largest)
}
