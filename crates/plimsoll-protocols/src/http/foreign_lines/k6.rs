//! Translates command lines of [k6](https://k6.io): `k6 run --vus 10 --duration 30s script.js`. The URLs are in the
//! script: the first is used if the script can be read, otherwise users must add one.

use std::time::Duration;

use plimsoll_model::formats::units::Period;

use super::{
    JSON_FILE_HINT, NO_FILE_HINT, NO_SCRIPT_HINT, REQUESTS_FILE_HINT, add_alpn, add_redirects,
    script_steps, scripts,
};
use crate::interface::foreign::command_lines::FlagMeaning::{
    Deferred, Dropped, Header, Ignored, Missing, OurFlag,
};
use crate::interface::foreign::command_lines::ValueForm::{Decimal, Number, Text, Time};
use crate::interface::foreign::command_lines::{FlagStyle, LineBuilder, LineTool, switch, value};

const SEVERAL_MACHINES_HINT: &str =
    "several machines share a load by --rendezvous, and processes by --processes";
const NO_BATCHES_HINT: &str = "each client has one call in flight";

/// Commands of k6 that put no load on a target, with what Plimsoll has in their place.
const OTHER_COMMANDS: [(&str, &str); 8] = [
    (
        "archive",
        "a plan is one file, which --save-plan FILE writes",
    ),
    (
        "inspect",
        "plimsoll run PLAN --dry-run shows what a plan does",
    ),
    (
        "login",
        "there is no account, and nothing leaves the machine",
    ),
    ("new", "any load writes its plan: --save-plan FILE"),
    ("pause", "a load is not paused; plimsoll watch follows it"),
    ("resume", "a load is not paused; plimsoll watch follows it"),
    (
        "scale",
        "the number of clients does not change during a load",
    ),
    (
        "stats",
        "plimsoll watch follows a load, and plimsoll report LATEST shows the newest run",
    ),
];

/// Takes the command `cloud` off the words: the load runs on this machine.
///
/// # Errors
/// Names what Plimsoll has in place of a command that puts no load on a target.
fn take_command(line: &mut LineBuilder) -> Result<(), String> {
    let first = line.words.first().map(String::as_str);
    let mut others = OTHER_COMMANDS.iter();
    if let Some((name, instead)) = others.find(|(name, _)| first == Some(*name)) {
        return Err(format!("`k6 {name}` has no counterpart: {instead}"));
    }
    if first == Some("cloud") {
        line.words.remove(0);
        if line.words.first().is_some_and(|word| word == "run") {
            line.words.remove(0);
        }
        line.add_dropped(
            "cloud",
            "nothing runs in a cloud: the load comes from this machine, and --rendezvous shares one among several",
        );
    }
    Ok(())
}

pub(super) static TOOL: LineTool = LineTool {
    names: &["k6 run", "k6"],
    style: FlagStyle::Gnu,
    flags: &[
        value(&["u", "vus"], Number, Deferred),
        value(&["d", "duration"], Time, Deferred),
        value(&["i", "iterations"], Number, Deferred),
        value(&["s", "stage", "stages"], Text, Deferred),
        value(&["max", "m"], Number, Ignored),
        value(&["max-redirects"], Number, Deferred),
        value(&["rps"], Decimal, Deferred),
        switch(&["insecure-skip-tls-verify"], OurFlag("--insecure", "")),
        switch(&["no-connection-reuse"], OurFlag("--cold", "")),
        // The flag means one connection per iteration, and an iteration is translated to a call.
        switch(&["no-vu-connection-reuse"], OurFlag("--cold", "")),
        value(&["user-agent"], Text, Header("user-agent")),
        value(&["local-ips"], Text, OurFlag("--source", "")),
        value(&["o", "out"], Text, Dropped(REQUESTS_FILE_HINT)),
        value(&["summary-export"], Text, Dropped(JSON_FILE_HINT)),
        value(
            &["summary-mode"],
            Text,
            Dropped("each report has all figures"),
        ),
        switch(&["with-summary"], Ignored),
        switch(&["local-execution"], Ignored),
        switch(&["no-archive-upload"], Ignored),
        value(&["http-debug"], Text, Dropped("--trace shows what is done")),
        value(&["console-output"], Text, Dropped(NO_FILE_HINT)),
        value(&["log-output"], Text, Dropped(NO_FILE_HINT)),
        value(&["log-format"], Text, Dropped(NO_FILE_HINT)),
        value(&["traces-output"], Text, Dropped(NO_FILE_HINT)),
        value(
            &["dns"],
            Text,
            Dropped("--resolve-interval TIME looks a name up again"),
        ),
        switch(&["throw"], Ignored),
        value(&["batch"], Number, Dropped(NO_BATCHES_HINT)),
        value(&["batch-per-host"], Number, Dropped(NO_BATCHES_HINT)),
        value(&["execution-segment"], Text, Missing(SEVERAL_MACHINES_HINT)),
        value(
            &["execution-segment-sequence"],
            Text,
            Missing(SEVERAL_MACHINES_HINT),
        ),
        value(
            &["min-iteration-duration"],
            Time,
            Missing("--think TIME is a pause after each call"),
        ),
        value(&["summary-trend-stats"], Text, Ignored),
        value(&["summary-time-unit"], Text, Ignored),
        switch(&["no-summary"], Ignored),
        switch(&["no-thresholds"], Ignored),
        switch(&["no-setup"], Ignored),
        switch(&["no-teardown"], Ignored),
        switch(&["no-usage-report"], Ignored),
        switch(&["no-color"], Ignored),
        switch(&["discard-response-bodies"], Ignored),
        value(&["e", "env"], Text, Deferred),
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
/// numbers of users, so the largest number of users is that of the clients, for the time of all stages.
fn finish(line: &mut LineBuilder) -> Result<(), String> {
    take_command(line)?;
    let script = line.words.first().filter(|word| is_script(word)).cloned();
    let found = script.as_deref().and_then(scripts::read_script);
    if found.is_none() && line.is_set("e") {
        line.add_unsupported("-e", NO_SCRIPT_HINT);
    }
    let found = found.map(|text| script_steps::fill_k6_environment(&text, &line.values("e")));
    let options = found
        .as_deref()
        .map(ScriptOptions::find)
        .unwrap_or_default();
    let user = found.as_deref().map(script_steps::read_k6_script);
    let user = user.unwrap_or_default();
    let mut stages = line.values("s");
    if stages.is_empty() && !line.is_set("u") && !line.is_set("d") && !line.is_set("i") {
        stages = options.stages;
    }
    let mut clients = line.number("u", options.clients.unwrap_or(1));
    let mut duration = line.value("d").map(str::to_owned);
    if !line.is_set("i") {
        duration = duration.or(options.duration);
    }
    if let Some((whole, most)) = summarise_stages(&stages)? {
        (clients, duration) = (most, Some(whole));
        line.add_unsupported(
            "--stage",
            "the number of clients does not change; a rate does: --step 30s:0/s..100/s",
        );
    }
    let rate = line.value("rps").map(str::to_owned);
    let is_typed = ["u", "d", "i", "s"].iter().any(|name| line.is_set(name));
    let rate = rate.or(options.rate.filter(|_| !is_typed));
    let has_rate = rate.is_some();
    match rate {
        Some(rate) => {
            line.add("--connections", clients);
            line.add("--rate", format_args!("{rate}/s"));
        }
        None => line.add("--clients", clients),
    }
    if line.is_set("i") || duration.is_none() {
        line.add("--calls", line.number("i", options.calls.unwrap_or(1)));
    }
    if let Some(duration) = duration {
        line.add("--duration", duration);
    }
    if let Some((pause, _)) = user.think().filter(|_| !has_rate) {
        line.add("--think", Period(pause));
    }
    match line.number("max-redirects", 10) {
        // k6 then takes the redirect itself as the answer.
        0 => line.add("--expect", "2xx,3xx"),
        most => add_redirects(line, most),
    }
    for objective in options.objectives {
        line.add("--objective", objective);
    }
    match (script, user.first_url().or(options.url)) {
        (Some(script), Some(url)) => {
            line.target = Some(url);
            line.plan = user.to_plan(None, &line.our_flags);
            let more = user.describe(line);
            Err(format!(
                "{script} is a program, which is not run: the line above has its first URL and its options; requests with values from one to the next are the [[steps]] of a plan{more}"
            ))
        }
        (Some(script), None) => Err(format!("the URLs are in {script}: write one of them")),
        (None, _) => {
            line.set_target_from_word("http")?;
            add_alpn(line);
            Ok(())
        }
    }
}

/// Returns whether a word is the file name of a script.
fn is_script(word: &str) -> bool {
    word == "-" || [".js", ".ts", ".tar"].iter().any(|end| word.ends_with(end))
}

/// Options of the load that a script contains as literal values.
#[derive(Debug, Default)]
struct ScriptOptions {
    url: Option<String>,
    clients: Option<u64>,
    calls: Option<u64>,
    duration: Option<String>,
    /// The stages, each written as `30s:10`: a duration and the number of users at its end.
    stages: Vec<String>,
    /// The rate per second of a `constant-arrival-rate` executor.
    rate: Option<String>,
    objectives: Vec<String>,
}

impl ScriptOptions {
    fn find(script: &str) -> ScriptOptions {
        // Modules of a script are no targets.
        let is_import = |line: &&str| line.trim_start().starts_with("import ");
        let lines = script.lines().filter(|line| !is_import(line));
        let script = &lines.collect::<Vec<_>>().join("\n");
        let find = |pattern| scripts::find_first(script, pattern);
        let number = |pattern| find(pattern).and_then(|text| text.parse().ok());
        let durations =
            scripts::find_all(script, r#"\{\s*duration:\s*["'](\w+)["']\s*,\s*target:"#);
        let targets = scripts::find_all(script, r"\btarget:\s*(\d+)");
        let stages = durations.iter().zip(&targets);
        let percentiles = scripts::find_all(script, r"_req_duration:\s*\[([^\]]*)\]");
        let failed = find(r#"http_req_failed:\s*\[\s*["']rate\s*<\s*(0?\.\d+)"#);
        let failed = failed.and_then(|share| share.parse::<f64>().ok());
        let mut objectives: Vec<String> = percentiles
            .iter()
            .flat_map(|list| list.split(','))
            .filter_map(|text| {
                let at = scripts::find_first(text, r"p\((\d+(?:\.\d+)?)\)")?;
                let limit = scripts::find_first(text, r"<=?\s*(\d+)")?;
                Some(format!("p{at} < {limit}ms"))
            })
            .collect();
        objectives.extend(failed.map(|share| format!("errors < {}%", share * 100.0)));
        ScriptOptions {
            url: find(r#"["'`](https?://[^"'`$\s]+)"#),
            clients: number(r"\bvus:\s*(\d+)"),
            calls: number(r"\biterations:\s*(\d+)"),
            duration: find(r#"\bduration:\s*["'](\w+)["']"#).filter(|_| durations.is_empty()),
            stages: stages
                .map(|(time, users)| format!("{time}:{users}"))
                .collect(),
            rate: find(r"\brate:\s*(\d+)"),
            objectives,
        }
    }
}

/// Returns the duration of all stages and the greatest number of users, such as 90s and 20 for `30s:10,1m:20`.
fn summarise_stages(stages: &[String]) -> Result<Option<(String, u64)>, String> {
    let mut whole = Duration::ZERO;
    let mut largest: Option<u64> = None;
    for stage in stages.iter().flat_map(|stages| stages.split(',')) {
        let read = stage
            .split_once(':')
            .and_then(|(time, users)| Some((time.parse::<Period>().ok()?, users.parse().ok()?)));
        let (time, users): (Period, u64) =
            read.ok_or_else(|| format!("--stage: `{stage}` is not TIME:USERS"))?;
        whole += time.0;
        largest = largest.max(Some(users));
    }
    Ok(largest.map(|most| (Period(whole).to_string(), most)))
}
