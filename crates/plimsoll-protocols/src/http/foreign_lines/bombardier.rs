//! Translates command lines of [bombardier](https://github.com/codesenberg/bombardier).

use super::{NO_FILE, add_deadline, add_workers, decimal_value, refuse_at_sign};
use crate::foreign::lines::FlagMeaning::{Deferred, Missing, Nothing, OurFlag, Words};
use crate::foreign::lines::ValueForm::{Decimal, Number, Text, Time};
use crate::foreign::lines::{FlagStyle, LineBuilder, LineTool, switch, value};

pub(super) static TOOL: LineTool = LineTool {
    names: &["bombardier"],
    style: FlagStyle::Gnu,
    flags: &[
        value(&["c", "connections"], Number, Deferred),
        value(&["n", "requests"], Number, Deferred),
        value(&["d", "duration"], Time, Deferred),
        value(&["r", "rate"], Decimal, Deferred),
        value(&["t", "timeout"], Time, Deferred),
        switch(&["l", "latencies"], Nothing),
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
        switch(&["fasthttp"], Nothing),
        switch(
            &["http1"],
            Words(&["--http-version", "1.1", "--compressed"]),
        ),
        switch(&["http2"], Words(&["--http-version", "2", "--compressed"])),
        value(&["p", "print"], Text, Nothing),
        switch(&["q", "no-print"], OurFlag("--quiet", "")),
        value(&["o", "format"], Text, Deferred),
    ],
    reads_stdin: false,
    marker_flags: &[&["c", "n", "l"], &["c", "d", "l"]],
    finish,
};

fn finish(line: &mut LineBuilder) -> Result<(), String> {
    refuse_at_sign(line, "b");
    let rate = decimal_value(line, "r");
    add_workers(line, line.number("c", 125), rate);
    if line.has("n") {
        line.add("--calls", line.number("n", 0));
    }
    if line.has("d") || !line.has("n") {
        let duration = line.value("d").unwrap_or("10s").to_owned();
        line.add("--duration", duration);
    }
    match line.value("o") {
        Some("json" | "j") => line.add_switch("--json"),
        Some("plain-text" | "pt") | None => {}
        Some(_) => line.add_missing("-o", NO_FILE),
    }
    add_deadline(line, "t");
    line.take_target("http")
}
