//! Translates command lines of [bombardier](https://github.com/codesenberg/bombardier).

use super::{NO_FILE_HINT, add_deadline, add_workers, decimal_value, reject_leading_at_sign};
use crate::interface::foreign::command_lines::FlagMeaning::{
    Deferred, Ignored, Missing, OurFlag, Words,
};
use crate::interface::foreign::command_lines::ValueForm::{Decimal, Number, Text, Time};
use crate::interface::foreign::command_lines::{FlagStyle, LineBuilder, LineTool, switch, value};

pub(super) static TOOL: LineTool = LineTool {
    names: &["bombardier"],
    style: FlagStyle::Gnu,
    flags: &[
        value(&["c", "connections"], Number, Deferred),
        value(&["n", "requests"], Number, Deferred),
        value(&["d", "duration"], Time, Deferred),
        value(&["r", "rate"], Decimal, Deferred),
        value(&["t", "timeout"], Time, Deferred),
        switch(&["l", "latencies"], Ignored),
        value(&["m", "method"], Text, OurFlag("-X", "")),
        value(&["b", "body"], Text, OurFlag("-d", "")),
        value(&["f", "body-file"], Text, Words(&["-d", "@{}"])),
        switch(
            &["s", "stream"],
            Missing("bodies are sent with their length, not in chunks"),
        ),
        value(&["cert"], Text, OurFlag("--cert", "")),
        value(&["key"], Text, OurFlag("--key", "")),
        switch(&["k", "insecure"], OurFlag("--insecure", "")),
        switch(&["a", "disableKeepAlives"], OurFlag("--cold", "")),
        value(&["H", "header"], Text, OurFlag("-H", "")),
        switch(&["fasthttp"], Ignored),
        switch(
            &["http1"],
            Words(&["--http-version", "1.1", "--compressed"]),
        ),
        switch(&["http2"], Words(&["--http-version", "2", "--compressed"])),
        value(&["p", "print"], Text, Ignored),
        switch(&["q", "no-print"], OurFlag("--quiet", "")),
        value(&["o", "format"], Text, Deferred),
    ],
    reads_stdin: false,
    marker_flags: &[&["c", "n", "l"], &["c", "d", "l"]],
    finish,
};

fn finish(line: &mut LineBuilder) -> Result<(), String> {
    reject_leading_at_sign(line, "b");
    let rate = decimal_value(line, "r");
    add_workers(line, line.number("c", 125), rate);
    if line.is_set("n") {
        line.add("--calls", line.number("n", 0));
    }
    if line.is_set("d") || !line.is_set("n") {
        let duration = line.value("d").unwrap_or("10s").to_owned();
        line.add("--duration", duration);
    }
    match line.value("o") {
        Some("json" | "j") => line.add_switch("--json"),
        Some("plain-text" | "pt") | None => {}
        Some(_) => line.add_unsupported("-o", NO_FILE_HINT),
    }
    add_deadline(line, "t");
    line.set_target_from_word("http")
}
