//! Translates command lines of [fortio](https://github.com/fortio/fortio).

use super::{NO_FILE_HINT, add_basic, take_unverified_target};
use crate::foreign::command_lines::FlagMeaning::{Deferred, Dropped, Header, Ignored, OurFlag, Words};
use crate::foreign::command_lines::ValueForm::{Decimal, Number, Text, Time};
use crate::foreign::command_lines::{FlagStyle, LineBuilder, LineTool, switch, value};

/// The rate of all connections together without `-qps`, in calls per second.
const DEFAULT_RATE: f64 = 8.0;

pub(super) static TOOL: LineTool = LineTool {
    names: &["fortio load"],
    style: FlagStyle::Go,
    flags: &[
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
        value(&["json"], Text, Dropped(NO_FILE_HINT)),
        switch(&["a"], Dropped(NO_FILE_HINT)),
        value(&["data-dir"], Text, Dropped(NO_FILE_HINT)),
    ],
    reads_stdin: false,
    marker_flags: &[&["qps"]],
    finish,
};

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
    add_basic(line, "user");
    if line.is_set("k") {
        take_unverified_target(line)
    } else {
        line.take_target("http")
    }
}
