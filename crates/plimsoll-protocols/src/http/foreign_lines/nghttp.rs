//! Translates command lines of [nghttp](https://nghttp2.org/documentation/nghttp.1.html), which makes requests over
//! HTTP/2.

use super::NO_FILE_HINT;
use crate::interface::foreign::command_lines::FlagMeaning::{
    Deferred, Dropped, Ignored, Missing, OurFlag, Words,
};
use crate::interface::foreign::command_lines::ValueForm::{Number, Seconds, Text};
use crate::interface::foreign::command_lines::{FlagStyle, LineBuilder, LineTool, switch, value};

pub(super) static TOOL: LineTool = LineTool {
    names: &["nghttp"],
    style: FlagStyle::Gnu,
    flags: &[
        switch(&["v", "verbose"], Ignored),
        switch(&["n", "null-out"], Ignored),
        switch(&["O", "remote-name"], Ignored),
        switch(&["s", "stat"], Ignored),
        switch(
            &["a", "get-assets"],
            Missing("one URL is measured; a journey has the others"),
        ),
        switch(
            &["u", "upgrade"],
            Dropped("HTTP/2 begins by prior knowledge"),
        ),
        switch(&["y", "no-verify-peer"], OurFlag("--insecure", "")),
        switch(&["no-dep"], Ignored),
        switch(&["no-push"], Ignored),
        switch(&["no-content-length"], Ignored),
        switch(&["expect-continue"], Missing("bodies are sent at once")),
        value(&["t", "timeout"], Seconds, OurFlag("--deadline", "s")),
        value(&["w", "window-bits"], Number, Ignored),
        value(&["W", "connection-window-bits"], Number, Ignored),
        value(&["H", "header"], Text, OurFlag("-H", "")),
        value(&["d", "data"], Text, Words(&["-d", "@{}"])),
        value(&["m", "multiply"], Number, Deferred),
        value(&["c", "header-table-size"], Text, Ignored),
        value(&["M", "peer-max-concurrent-streams"], Number, Ignored),
        value(&["b", "padding"], Number, Ignored),
        value(&["r", "har"], Text, Dropped(NO_FILE_HINT)),
        value(&["p", "weight"], Text, Ignored),
        value(&["cert"], Text, OurFlag("--cert", "")),
        value(&["key"], Text, OurFlag("--key", "")),
    ],
    reads_stdin: false,
    marker_flags: &[],
    finish,
};

/// Adds the flags that depend on several flags of nghttp, which sends all requests at once over one connection. It only
/// warns of certificates that it can't verify.
fn finish(line: &mut LineBuilder) -> Result<(), String> {
    if line.is_guessed {
        return Err("it is no line of nghttp".to_owned());
    }
    let requests = line.number("m", 1);
    line.add("--http-version", 2);
    line.add("--connections", 1);
    line.add("--clients", requests);
    line.add("--calls", requests);
    line.set_target_from_word("http")?;
    let target = line.target.as_deref();
    if target.is_some_and(|url| url.starts_with("https")) && !line.is_set("y") {
        line.add_switch("--insecure");
    }
    Ok(())
}
