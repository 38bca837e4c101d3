//! Translates command lines of [fortio](https://github.com/fortio/fortio).

use super::{JSON_FILE_HINT, NO_FILE_HINT, add_basic_auth, take_target_without_verification};
use crate::interface::foreign::command_lines::FlagMeaning::{
    Deferred, Dropped, Header, Ignored, OurFlag, Words,
};
use crate::interface::foreign::command_lines::LineFlag;
use crate::interface::foreign::command_lines::ValueForm::{Decimal, Number, Text, Time};
use crate::interface::foreign::command_lines::{FlagStyle, LineBuilder, LineTool, switch, value};

/// The rate of all connections together if `-qps` is not set, in calls per second.
const DEFAULT_RATE: f64 = 8.0;

pub(super) static TOOL: LineTool = LineTool {
    names: &["fortio load"],
    style: FlagStyle::Go,
    flags: &FORTIO_FLAGS,
    reads_stdin: false,
    marker_flags: &[&["qps"]],
    finish,
};

/// `fortio curl`, which makes one call.
pub(super) static CURL_TOOL: LineTool = LineTool {
    names: &["fortio curl"],
    style: FlagStyle::Go,
    flags: &FORTIO_FLAGS,
    reads_stdin: false,
    marker_flags: &[],
    finish: |line| {
        if line.is_guessed {
            return Err("it is no line of fortio curl".to_owned());
        }
        line.add("--clients", 1);
        line.add("--calls", 1);
        add_target(line)
    },
};

static FORTIO_FLAGS: [LineFlag; 41] = [
    value(&["qps"], Decimal, Deferred),
    value(&["c"], Number, Deferred),
    value(&["n"], Number, Deferred),
    value(&["t"], Time, Deferred),
    value(&["timeout"], Time, OurFlag("--deadline", "")),
    value(&["H"], Text, OurFlag("-H", "")),
    value(&["X"], Text, OurFlag("-X", "")),
    value(&["payload"], Text, OurFlag("-d", "")),
    value(&["payload-file"], Text, Words(&["-d", "@{}"])),
    value(&["content-type"], Text, Header("content-type")),
    value(&["user"], Text, Deferred),
    switch(&["k"], Deferred),
    value(&["cacert"], Text, OurFlag("--ca", "")),
    value(&["cert"], Text, OurFlag("--cert", "")),
    value(&["key"], Text, OurFlag("--key", "")),
    switch(&["h2"], Words(&["--http-version", "2"])),
    switch(&["L"], OurFlag("-L", "")),
    switch(&["follow-redirects"], OurFlag("-L", "")),
    switch(&["compression"], OurFlag("--compressed", "")),
    switch(&["keepalive"], Deferred),
    switch(&["jitter"], Ignored),
    switch(&["uniform"], Ignored),
    switch(&["nocatchup"], Ignored),
    switch(&["stdclient"], Ignored),
    switch(&["allow-initial-errors"], Ignored),
    switch(&["sequential-warmup"], Ignored),
    switch(&["quiet"], OurFlag("-q", "")),
    value(&["loglevel"], Text, Ignored),
    value(&["p"], Text, Ignored),
    value(&["r"], Decimal, Ignored),
    value(&["labels"], Text, Ignored),
    value(&["json"], Text, Dropped(JSON_FILE_HINT)),
    switch(&["a"], Dropped(NO_FILE_HINT)),
    value(&["data-dir"], Text, Dropped(NO_FILE_HINT)),
    switch(&["grpc"], Deferred),
    switch(&["ping"], Deferred),
    value(&["s"], Number, Deferred),
    value(&["grpc-method"], Text, Deferred),
    value(&["healthservice"], Text, Deferred),
    value(&["grpc-max-streams"], Number, Ignored),
    value(&["connection-reuse"], Text, Ignored),
];

/// Adds the flags that depend on several flags of fortio. A rate of 0 or less means as fast as the connections allow;
/// `-n` overrides `-t`.
fn finish(line: &mut LineBuilder) -> Result<(), String> {
    let connections = line.number("c", 4);
    let rate = line.value("qps").and_then(|rate| rate.parse().ok());
    match rate.unwrap_or(DEFAULT_RATE) {
        rate if rate > 0.0 => {
            line.add("--connections", connections);
            line.add("--rate", format_args!("{rate}/s"));
        }
        _ => line.add("--clients", connections),
    }
    match (line.value("n").map(str::to_owned), line.value("t")) {
        (Some(calls), _) if calls != "0" => line.add("--calls", calls),
        (_, time) => {
            let time = time.unwrap_or("5s").to_owned();
            line.add("--duration", time);
        }
    }
    if line.value("keepalive") == Some("false") {
        line.add_switch("--cold");
    }
    if line.is_set("grpc") {
        return take_grpc_target(line, connections);
    }
    add_target(line)
}

/// Completes a gRPC line. Without a method, fortio checks the server's health, and with `-ping` it calls its own
/// service.
fn take_grpc_target(line: &mut LineBuilder, connections: u64) -> Result<(), String> {
    line.command = Some("grpc");
    let streams = line.number("s", 1);
    if streams > 1
        && let Some(at) = flag_position(line, "--clients")
    {
        line.our_flags[at + 1] = (connections * streams).to_string();
        line.add("--connections", connections);
    }
    for word in line.our_flags.iter_mut().filter(|word| *word == "-H") {
        "--metadata".clone_into(word);
    }
    match line.value("grpc-method").map(str::to_owned) {
        Some(method) => line.add("-m", method),
        None if line.is_set("ping") => {
            line.add("-m", "fgrpc.PingServer/Ping");
            let payload = line.value("payload").map(serde_json::Value::from);
            if let (Some(payload), Some(at)) = (payload, flag_position(line, "-d")) {
                line.our_flags[at + 1] = format!("{{\"payload\": {payload}}}");
            }
        }
        None => {
            line.add("-m", "grpc.health.v1.Health/Check");
            if let Some(service) = line.value("healthservice") {
                let message = format!("{{\"service\": \"{service}\"}}");
                line.add("-d", message);
            }
        }
    }
    let is_secured = line.our_flags.iter().any(|word| word == "--ca") || line.is_set("k");
    if line.is_set("k") {
        line.add_switch("--insecure");
    }
    let scheme = if is_secured { "grpcs" } else { "grpc" };
    for word in &mut line.words {
        if let Some(rest) = word.strip_prefix("https://") {
            *word = format!("grpcs://{rest}");
        } else if let Some(rest) = word.strip_prefix("http://") {
            *word = format!("grpc://{rest}");
        }
    }
    line.set_target_from_word(scheme)
}

/// Returns the position of one of Plimsoll's flags among the translated arguments.
fn flag_position(line: &LineBuilder, flag: &str) -> Option<usize> {
    line.our_flags.iter().position(|word| word == flag)
}

fn add_target(line: &mut LineBuilder) -> Result<(), String> {
    add_basic_auth(line, "user");
    if line.is_set("k") {
        take_target_without_verification(line)
    } else {
        line.set_target_from_word("http")
    }
}
