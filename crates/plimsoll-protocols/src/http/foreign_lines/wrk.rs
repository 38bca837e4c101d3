//! Translates command lines of [wrk](https://github.com/wg/wrk), and of [wrk2](https://github.com/giltene/wrk2), which
//! has `-R`.

use super::{NO_SCRIPT, add_deadline, add_workers, decimal_value, take_unverified_target};
use crate::foreign::lines::FlagMeaning::{Deferred, Ignored, Missing, OurFlag};
use crate::foreign::lines::ValueForm::{Decimal, Number, Seconds, Text};
use crate::foreign::lines::{FlagStyle, LineBuilder, LineTool, switch, value, with_unit};

pub(super) static TOOL: LineTool = LineTool {
    names: &["wrk", "wrk2"],
    style: FlagStyle::Gnu,
    flags: &[
        value(&["c", "connections"], Number, Deferred),
        value(&["d", "duration"], Seconds, Deferred),
        value(&["t", "threads"], Number, Deferred),
        value(&["s", "script"], Text, Missing(NO_SCRIPT)),
        value(&["H", "header"], Text, OurFlag("-H", "")),
        switch(&["L", "latency"], Ignored),
        switch(&["U", "u_latency"], Ignored),
        switch(&["B", "batch_latency"], Ignored),
        value(&["timeout"], Seconds, Deferred),
        value(&["R", "rate"], Decimal, Deferred),
    ],
    reads_stdin: false,
    marker_flags: &[&["t", "c", "d"], &["t", "c"], &["c", "d"], &["R"]],
    finish,
};

/// Each connection is a client that waits for its answer, unless `-R` sets a rate.
fn finish(line: &mut LineBuilder) -> Result<(), String> {
    let connections = line.number("c", 10);
    let rate = decimal_value(line, "R");
    add_workers(line, connections, rate);
    let duration = with_unit(line.value("d").unwrap_or("10s"), "s");
    line.add("--duration", duration);
    if let Some(threads) = line.value("t").map(str::to_owned) {
        line.add("--workers", threads);
    }
    add_deadline(line, "timeout");
    take_unverified_target(line)
}
