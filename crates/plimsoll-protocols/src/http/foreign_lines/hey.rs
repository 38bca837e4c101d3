//! Translates command lines of [hey](https://github.com/rakyll/hey).

use super::{
    REQUESTS_FILE_HINT, add_basic_auth, add_content_type, add_deadline, add_get_with_body,
    add_proxy, add_redirects, add_workers, decimal_value, reject_leading_at_sign,
    take_target_without_verification,
};
use crate::interface::foreign::command_lines::FlagMeaning::{
    Deferred, Dropped, Header, OurFlag, Words,
};
use crate::interface::foreign::command_lines::ValueForm::{Decimal, Number, Text, Time};
use crate::interface::foreign::command_lines::{FlagStyle, LineBuilder, LineTool, switch, value};

pub(super) static TOOL: LineTool = LineTool {
    names: &["hey"],
    style: FlagStyle::Go,
    flags: &[
        value(&["n"], Number, Deferred),
        value(&["c"], Number, Deferred),
        value(&["q"], Decimal, Deferred),
        value(&["z"], Time, Deferred),
        value(&["o"], Text, Dropped(REQUESTS_FILE_HINT)),
        value(&["m"], Text, OurFlag("-X", "")),
        value(&["H"], Text, OurFlag("-H", "")),
        value(&["t"], Number, Deferred),
        value(&["A"], Text, Header("accept")),
        value(&["d"], Text, OurFlag("-d", "")),
        value(&["D"], Text, Words(&["-d", "@{}"])),
        value(&["T"], Text, Header("content-type")),
        value(&["U"], Text, Header("user-agent")),
        value(&["a"], Text, Deferred),
        value(&["x"], Text, Deferred),
        switch(&["h2"], Words(&["--http-version", "2"])),
        value(&["host"], Text, OurFlag("--host", "")),
        switch(&["disable-compression"], Deferred),
        switch(&["disable-keepalive"], OurFlag("--cold", "")),
        switch(&["disable-redirects"], Deferred),
        value(&["cpus"], Number, Deferred),
    ],
    reads_stdin: false,
    marker_flags: &[&["n", "c"], &["z", "c"], &["n", "q"]],
    finish,
};

/// Adds the flags that depend on several flags of hey. `-q` is the rate of each worker, and `-z` overrides `-n`. By
/// default, hey asks for compressed responses, follows redirects, and sends bodies as HTML.
fn finish(line: &mut LineBuilder) -> Result<(), String> {
    add_get_with_body(line, &["d", "D"], "m");
    reject_leading_at_sign(line, "d");
    let workers = line.number("c", 50);
    line.add_workers_from_flag("cpus", workers);
    let rate = decimal_value(line, "q").map(|each| each * workers as f64);
    add_workers(line, workers, rate);
    match line.value("z").map(str::to_owned) {
        Some(time) => line.add("--duration", time),
        None => line.add("--calls", line.number("n", 200)),
    }
    add_deadline(line, "t");
    add_content_type(line, &["d", "D"], "text/html");
    if !line.is_set("disable-compression") {
        line.add_switch("--compressed");
    }
    if line.is_set("disable-redirects") {
        line.add("--expect", "2xx,3xx");
    } else {
        add_redirects(line, 10);
    }
    add_basic_auth(line, "a");
    add_proxy(line, "x");
    take_target_without_verification(line)
}
