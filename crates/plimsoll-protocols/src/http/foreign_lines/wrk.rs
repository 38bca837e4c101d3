//! Translates command lines of [wrk](https://github.com/wg/wrk), and of [wrk2](https://github.com/giltene/wrk2), which
//! has `-R`.

use super::{NO_SCRIPT_HINT, add_deadline, add_workers, scripts, take_target_without_verification};
use crate::interface::foreign::command_lines::FlagMeaning::{Deferred, Ignored, OurFlag};
use crate::interface::foreign::command_lines::ValueForm::{Metric, Seconds, Text};
use crate::interface::foreign::command_lines::{
    FlagStyle, LineBuilder, LineTool, switch, value, with_unit,
};

pub(super) static TOOL: LineTool = LineTool {
    names: &["wrk", "wrk2"],
    style: FlagStyle::Gnu,
    flags: &[
        value(&["c", "connections"], Metric, Deferred),
        value(&["d", "duration"], Seconds, Deferred),
        value(&["t", "threads"], Metric, Deferred),
        value(&["s", "script"], Text, Deferred),
        value(&["H", "header"], Text, OurFlag("-H", "")),
        switch(&["L", "latency"], Ignored),
        switch(&["U", "u_latency"], Ignored),
        switch(&["B", "batch_latency"], Ignored),
        value(&["timeout"], Seconds, Deferred),
        value(&["R", "rate"], Metric, Deferred),
    ],
    reads_stdin: false,
    marker_flags: &[&["t", "c", "d"], &["t", "c"], &["c", "d"], &["R"]],
    finish,
};

/// Adds the flags that depend on several flags of wrk. Each connection is a closed-loop client; with `-R` of wrk2, the
/// load is an open loop with this rate.
fn finish(line: &mut LineBuilder) -> Result<(), String> {
    let connections = line.suffixed_number("c", 10);
    let rate = line
        .is_set("R")
        .then(|| line.suffixed_number("R", 0) as f64);
    add_workers(line, connections, rate);
    let duration = with_unit(line.value("d").unwrap_or("10s"), "s");
    line.add("--duration", duration);
    if line.is_set("t") {
        line.add("--workers", line.suffixed_number("t", 2));
    }
    add_deadline(line, "timeout");
    // Words after the URL are arguments to the script.
    line.words.truncate(1);
    take_target_without_verification(line)?;
    add_script(line);
    Ok(())
}

/// Adds the request that a script sets, if the script does nothing else.
fn add_script(line: &mut LineBuilder) {
    let Some(file) = line.value("s").map(str::to_owned) else {
        return;
    };
    let script = scripts::read_script(&file);
    let Some(settings) = script.and_then(|script| scripts::parse_wrk_script(&script)) else {
        line.add_unsupported(format!("-s {file}"), NO_SCRIPT_HINT);
        return;
    };
    if let Some(method) = settings.method {
        line.add("-X", method);
    } else if settings.body.is_some() {
        line.add("-X", "GET");
    }
    for (name, value) in &settings.fields {
        line.add_field("-H", name, value);
    }
    match settings.body {
        Some(body) if body.starts_with('@') || body == "-" => line.add_unsupported(
            format!("-s {file}"),
            "a body that begins with @ is the name of a file here: put the text into a file",
        ),
        Some(body) => line.add("-d", body),
        None => {}
    }
    if let (Some(path), Some(url)) = (settings.path, &line.target) {
        let begin = url.find("://").map_or(0, |at| at + "://".len());
        let end = url[begin..].find('/').map_or(url.len(), |at| begin + at);
        line.target = Some(format!("{}{path}", &url[..end]));
    }
}
