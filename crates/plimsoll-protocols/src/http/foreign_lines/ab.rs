//! Translates command lines of [ab](https://httpd.apache.org/docs/2.4/programs/ab.html), the Apache benchmark.

use super::{
    NO_FILE_HINT, REQUESTS_FILE_HINT, add_basic_auth, add_content_type, add_proxy,
    take_target_without_verification,
};
use crate::interface::foreign::command_lines::FlagMeaning::{
    Deferred, Dropped, Header, Ignored, Missing, OurFlag, Words,
};
use crate::interface::foreign::command_lines::ValueForm::{Number, Text};
use crate::interface::foreign::command_lines::{FlagStyle, LineBuilder, LineTool, switch, value};

const SOCKET_BUFFERS_HINT: &str = "the system sizes the buffers of sockets";
/// The limit of requests that `-t` implies.
const MAX_TIMED_REQUESTS: u64 = 50_000;

pub(super) static TOOL: LineTool = LineTool {
    names: &["ab"],
    style: FlagStyle::Gnu,
    flags: &[
        value(&["n"], Number, Deferred),
        value(&["c"], Number, Deferred),
        value(&["t"], Number, Deferred),
        value(&["s"], Number, OurFlag("--deadline", "s")),
        switch(&["k"], Deferred),
        value(&["p"], Text, Words(&["-d", "@{}"])),
        value(&["u"], Text, Words(&["-X", "PUT", "-d", "@{}"])),
        value(&["T"], Text, Header("content-type")),
        value(&["m"], Text, OurFlag("-X", "")),
        switch(&["i"], Words(&["-X", "HEAD"])),
        value(&["H"], Text, OurFlag("-H", "")),
        value(&["C"], Text, Header("cookie")),
        value(&["A"], Text, Deferred),
        value(
            &["P"],
            Text,
            Missing("--proxy 'http://$NAME@HOST:PORT' takes USER:PASSWORD from a variable"),
        ),
        value(&["X"], Text, Deferred),
        value(&["B"], Text, OurFlag("--source", "")),
        value(&["b"], Number, Dropped(SOCKET_BUFFERS_HINT)),
        value(&["v"], Number, Ignored),
        value(&["E"], Text, Words(&["--cert", "{}", "--key", "{}"])),
        value(&["f"], Text, Deferred),
        value(
            &["Z"],
            Text,
            Missing("--suite names a suite of TLS 1.3 or 1.2"),
        ),
        value(&["g"], Text, Dropped(REQUESTS_FILE_HINT)),
        value(&["e"], Text, Dropped(NO_FILE_HINT)),
        switch(&["w"], Missing("--html FILE writes a page")),
        value(&["x"], Text, Ignored),
        value(&["y"], Text, Ignored),
        value(&["z"], Text, Ignored),
        switch(&["l"], Ignored),
        switch(&["r"], Ignored),
        switch(&["q"], Ignored),
        switch(&["S"], Ignored),
        switch(&["d"], Ignored),
        switch(
            &["I"],
            Dropped("the server's name is sent with the TLS handshake"),
        ),
    ],
    reads_stdin: false,
    marker_flags: &[&["n", "c", "k"], &["n", "k"]],
    finish,
};

/// Adds the flags that depend on several flags of ab. Without `-k`, ab opens a connection for each request. `-t` limits
/// the run to a number of seconds, and to 50,000 requests unless `-n` follows it. ab sends bodies as plain text.
fn finish(line: &mut LineBuilder) -> Result<(), String> {
    line.add("--clients", line.number("c", 1));
    if let Some(seconds) = line.value("t").map(str::to_owned) {
        line.add("--duration", format_args!("{seconds}s"));
    }
    let calls = if line.is_after("t", "n") {
        MAX_TIMED_REQUESTS
    } else {
        line.number("n", 1)
    };
    line.add("--calls", calls);
    add_content_type(line, &["p", "u"], "text/plain");
    if !line.is_set("k") {
        line.add_switch("--cold");
    }
    match line.value("f") {
        Some("TLS1.2") => line.add("--tls-version", "1.2"),
        Some("TLS1.3") => line.add("--tls-version", "1.3"),
        Some("ALL") | None => {}
        Some(_) => line.add_unsupported("-f", "only TLS 1.2 and 1.3 are supported"),
    }
    add_basic_auth(line, "A");
    add_proxy(line, "X");
    take_target_without_verification(line)
}
