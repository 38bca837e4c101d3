//! Translates command lines of [wrk](https://github.com/wg/wrk), and of [wrk2](https://github.com/giltene/wrk2), which
//! has `-R`.

use super::{NO_SCRIPT_HINT, add_deadline, add_workers, take_unverified_target};
use crate::foreign::command_lines::FlagMeaning::{Deferred, Missing, Ignored, OurFlag};
use crate::foreign::command_lines::ValueForm::{Metric, Seconds, Text};
use crate::foreign::command_lines::{FlagStyle, LineBuilder, LineTool, switch, value, with_unit};

pub(super) static TOOL: LineTool = LineTool {
    names: &["wrk", "wrk2"],
    style: FlagStyle::Gnu,
    flags: &[
        value(&["c", "connections"], Metric, Deferred),
        value(&["d", "duration"], Seconds, Deferred),
        value(&["t", "threads"], Metric, Deferred),
        value(&["s", "script"], Text, Missing(NO_SCRIPT_HINT)),
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
    let connections = line.metric("c", 10);
    let rate = line.is_set("R").then(|| line.metric("R", 0) as f64);
    add_workers(line, connections, rate);
    let duration = with_unit(line.value("d").unwrap_or("10s"), "s");
    line.add("--duration", duration);
    if line.is_set("t") {
        line.add("--workers", line.metric("t", 2));
    }
    add_deadline(line, "timeout");
    take_unverified_target(line)
}
