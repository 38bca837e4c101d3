//! Translates command lines of [autocannon](https://github.com/mcollina/autocannon).

use super::{NO_FILE_HINT, add_content_type, decimal_value, take_target_without_verification};
use crate::interface::foreign::command_lines::FlagMeaning::{
    Deferred, Dropped, Ignored, Missing, OurFlag, Words,
};
use crate::interface::foreign::command_lines::ValueForm::{Decimal, Number, Seconds, Text};
use crate::interface::foreign::command_lines::{FlagStyle, LineBuilder, LineTool, switch, value};

const NO_PIPELINING_HINT: &str =
    "requests are not pipelined over HTTP/1.1; HTTP/2 carries several at once";

pub(super) static TOOL: LineTool = LineTool {
    names: &["autocannon"],
    style: FlagStyle::Gnu,
    flags: &[
        value(&["c", "connections"], Number, Deferred),
        value(&["p", "pipelining"], Number, Deferred),
        value(&["d", "duration"], Seconds, Deferred),
        value(&["a", "amount"], Number, Deferred),
        value(&["w", "workers"], Number, OurFlag("--workers", "")),
        value(&["t", "timeout"], Seconds, OurFlag("--deadline", "s")),
        value(&["T", "title"], Text, OurFlag("--name", "")),
        value(&["b", "body"], Text, OurFlag("-d", "")),
        value(&["i", "input"], Text, Words(&["-d", "@{}"])),
        value(
            &["F", "form"],
            Text,
            Missing("-F NAME=VALUE sends each part of a form"),
        ),
        value(&["H", "headers", "header"], Text, Deferred),
        value(&["m", "method"], Text, OurFlag("-X", "")),
        value(&["R", "overallRate"], Decimal, Deferred),
        value(&["r", "C", "connectionRate"], Decimal, Deferred),
        value(
            &["M", "maxConnectionRequests"],
            Number,
            Missing("--calls limits the requests of all connections together"),
        ),
        value(&["O", "maxOverallRequests"], Number, OurFlag("--calls", "")),
        value(
            &["D", "reconnectRate"],
            Number,
            OurFlag("--calls-per-connection", ""),
        ),
        value(&["E", "expectBody"], Text, OurFlag("--expect-body", "")),
        value(&["s", "servername"], Text, OurFlag("--server-name", "")),
        value(
            &["B", "bailout"],
            Number,
            Missing("--abort-after 5s ends a load that fails"),
        ),
        value(
            &["S", "socketPath"],
            Text,
            Missing("the URL names it: unix:/SOCKET:/PATH"),
        ),
        value(&["W", "warmup"], Text, Deferred),
        value(&["cert"], Text, OurFlag("--cert", "")),
        value(&["key"], Text, OurFlag("--key", "")),
        value(&["ca"], Text, OurFlag("--ca", "")),
        value(
            &["har"],
            Text,
            Missing("--replay FILE plays a recording back"),
        ),
        value(
            &["on-port"],
            Text,
            Missing("start the server before the load"),
        ),
        switch(&["j", "json"], OurFlag("--json", "")),
        switch(&["l", "latency"], Ignored),
        switch(&["n", "no-progress"], Words(&["--progress", "none"])),
        switch(&["renderStatusCodes"], Ignored),
        switch(&["x", "excludeErrorStats"], Ignored),
        switch(
            &["I", "idReplacement"],
            Dropped("write {{uuid}} in place of [<id>]"),
        ),
        switch(
            &["f", "forever"],
            Missing("a load must end: set --duration"),
        ),
        switch(&["debug", "v", "verbose"], Ignored),
        value(&["output"], Text, Dropped(NO_FILE_HINT)),
    ],
    reads_stdin: false,
    marker_flags: &[&["a", "c"], &["c", "p", "d"]],
    finish,
};

/// Adds the flags that depend on several flags of autocannon. Without `-d`, a run takes 10 s; `-a` overrides the
/// duration. autocannon sends bodies as plain text.
fn finish(line: &mut LineBuilder) -> Result<(), String> {
    let connections = line.number("c", 10);
    if line.number("p", 1) > 1 {
        line.add_unsupported("-p", NO_PIPELINING_HINT);
    }
    let each = decimal_value(line, "r").map(|rate| rate * connections as f64);
    match decimal_value(line, "R").or(each) {
        Some(rate) => {
            line.add("--connections", connections);
            line.add("--rate", format_args!("{rate}/s"));
        }
        None => line.add("--clients", connections),
    }
    match line.value("a").map(str::to_owned) {
        Some(calls) => line.add("--calls", calls),
        None => {
            let time = line.value("d").unwrap_or("10").to_owned();
            line.add(
                "--duration",
                crate::interface::foreign::command_lines::with_unit(&time, "s"),
            );
        }
    }
    if let Some(warmup) = line.value("W").map(str::to_owned) {
        add_warmup(line, &warmup);
    }
    for field in line.values("H") {
        match field.split_once(['=', ':']) {
            Some((name, value)) => line.add_field("-H", name.trim(), value.trim()),
            None => line.add_unsupported(format!("-H {field}"), "a field is NAME=VALUE"),
        }
    }
    add_content_type(line, &["b", "i"], "text/plain");
    if line.is_set("b") && !line.is_set("m") {
        line.add("-X", "GET");
    }
    take_target_without_verification(line)
}

/// Adds the time of a warm-up, which is written as a line of its own in brackets: `[ -c 1 -d 5 ]`.
fn add_warmup(line: &mut LineBuilder, warmup: &str) {
    let words: Vec<&str> = warmup.split_whitespace().collect();
    let at = words
        .iter()
        .position(|word| ["-d", "--duration"].contains(word));
    match at.and_then(|at| words.get(at + 1)) {
        Some(time) => {
            let time = crate::interface::foreign::command_lines::with_unit(time, "s");
            line.add("--warmup", time);
        }
        None => line.add_unsupported("-W", "--warmup 5s warms up by time"),
    }
}
