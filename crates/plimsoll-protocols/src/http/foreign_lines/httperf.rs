//! Translates command lines of [httperf](https://github.com/httperf/httperf): `httperf --server HOST --rate 10
//! --num-conns 100`.

use super::NO_SCRIPT_HINT;
use crate::interface::foreign::command_lines::FlagMeaning::{Deferred, Ignored, Missing, OurFlag};
use crate::interface::foreign::command_lines::ValueForm::{Decimal, Number, Text};
use crate::interface::foreign::command_lines::{FlagStyle, LineBuilder, LineTool, switch, value};

const SESSIONS_HINT: &str = "users who make several requests are the [[steps]] of a plan";

pub(super) static TOOL: LineTool = LineTool {
    names: &["httperf"],
    style: FlagStyle::Gnu,
    flags: &[
        value(&["server"], Text, Deferred),
        value(&["port"], Number, Deferred),
        value(&["uri"], Text, Deferred),
        value(&["server-name"], Text, OurFlag("--host", "")),
        value(&["rate"], Decimal, Deferred),
        value(
            &["period"],
            Text,
            Missing("--arrivals poisson draws the gaps at random"),
        ),
        value(&["num-conns", "num-conn"], Number, Deferred),
        value(&["num-calls", "num-call"], Number, Deferred),
        value(
            &["burst-length"],
            Number,
            Missing("requests are not pipelined"),
        ),
        value(&["timeout"], Decimal, OurFlag("--deadline", "s")),
        value(&["think-timeout"], Decimal, Ignored),
        value(&["method"], Text, OurFlag("-X", "")),
        value(&["add-header"], Text, Deferred),
        value(&["http-version"], Text, Ignored),
        value(&["send-buffer"], Number, Ignored),
        value(&["recv-buffer"], Number, Ignored),
        value(&["client"], Text, Ignored),
        value(&["max-connections"], Number, OurFlag("--max-in-flight", "")),
        value(&["max-piped-calls"], Number, Ignored),
        value(&["wlog"], Text, Missing("--rows FILE has a path a row")),
        value(&["wsess"], Text, Missing(SESSIONS_HINT)),
        value(&["wsesslog"], Text, Missing(SESSIONS_HINT)),
        value(&["wset"], Text, Missing(NO_SCRIPT_HINT)),
        value(&["session-cookie"], Text, Missing(SESSIONS_HINT)),
        switch(&["hog"], Ignored),
        switch(&["ssl"], Deferred),
        switch(&["ssl-no-reuse"], Ignored),
        switch(&["no-host-hdr"], Ignored),
        switch(&["print-reply", "print-request"], Ignored),
        switch(&["close-with-reset"], Ignored),
        switch(&["v", "verbose"], Ignored),
    ],
    reads_stdin: false,
    marker_flags: &[&["server", "num-conns"], &["server", "uri"]],
    finish,
};

/// Adds the flags that depend on several flags of httperf. Its rate counts connections, each of which makes
/// `--num-calls` requests. Without a rate, connections are made one after another.
fn finish(line: &mut LineBuilder) -> Result<(), String> {
    let connections = line.number("num-conns", 1);
    let each = line.number("num-calls", 1).max(1);
    let rate = line.value("rate").and_then(|rate| rate.parse::<f64>().ok());
    match rate.filter(|rate| *rate > 0.0) {
        Some(rate) => line.add("--rate", format_args!("{}/s", rate * each as f64)),
        None => line.add("--clients", 1),
    }
    line.add("--calls", connections.saturating_mul(each));
    if each == 1 {
        line.add_switch("--cold");
    } else {
        line.add("--calls-per-connection", each);
        if line.is_set("rate") {
            line.add_dropped(
                "--rate",
                "connections are opened as calls need them; the rate of calls is the same",
            );
        }
    }
    let fields = line.values("add-header").join("");
    for field in fields.split("\\n").filter(|field| !field.is_empty()) {
        line.add("-H", field);
    }
    let scheme = if line.is_set("ssl") { "https" } else { "http" };
    let port = line.value("port").map(|port| format!(":{port}"));
    let uri = line.value("uri").unwrap_or("/");
    let server = line.value("server").unwrap_or("localhost");
    line.target = Some(format!(
        "{scheme}://{server}{}{uri}",
        port.unwrap_or_default()
    ));
    if line.is_set("ssl") {
        line.add_switch("--insecure");
    }
    match line.words.first() {
        None => Ok(()),
        Some(word) => Err(format!("unexpected argument `{word}`")),
    }
}
