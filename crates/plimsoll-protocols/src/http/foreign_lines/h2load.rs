//! Translates command lines of [h2load](https://nghttp2.org/documentation/h2load.1.html).

use super::addresses::{override_addresses, take_target_from_file};
use super::{NO_FILE_HINT, NO_HTTP3_HINT, NO_SCRIPT_HINT, add_suites, decimal_value};
use crate::interface::foreign::command_lines::FlagMeaning::{
    Deferred, Dropped, Ignored, Missing, OurFlag, Words,
};
use crate::interface::foreign::command_lines::ValueForm::{Decimal, Number, Seconds, Text};
use crate::interface::foreign::command_lines::{FlagStyle, LineBuilder, LineTool, switch, value};

const FLOW_CONTROL_WINDOWS_HINT: &str =
    "windows and tables cannot be set; they are large enough not to limit the load";

pub(super) static TOOL: LineTool = LineTool {
    names: &["h2load"],
    style: FlagStyle::Gnu,
    flags: &[
        value(&["n", "requests"], Number, Deferred),
        value(&["c", "clients"], Number, Deferred),
        value(&["t", "threads"], Number, OurFlag("--workers", "")),
        value(&["m", "max-concurrent-streams"], Number, Deferred),
        value(&["D", "duration"], Seconds, OurFlag("--duration", "s")),
        value(&["warm-up-time"], Seconds, OurFlag("--warmup", "s")),
        value(&["rps"], Decimal, Deferred),
        value(
            &["r", "rate"],
            Number,
            Missing(
                "connections are made before the load; `--cold --rate 10/s` makes one for each call",
            ),
        ),
        value(
            &["rate-period"],
            Text,
            Missing("a rate has its unit: 10/s, 60/m"),
        ),
        value(
            &["T", "connection-active-timeout"],
            Seconds,
            OurFlag("--connection-lifetime", "s"),
        ),
        value(
            &["N", "connection-inactivity-timeout"],
            Seconds,
            OurFlag("--deadline", "s"),
        ),
        value(&["d", "data"], Text, Words(&["-d", "@{}"])),
        value(&["H", "header"], Text, Deferred),
        value(&["i", "input-file"], Text, Deferred),
        value(&["timing-script-file"], Text, Missing(NO_SCRIPT_HINT)),
        switch(&["h1"], Deferred),
        value(&["p", "no-tls-proto"], Text, Deferred),
        value(&["npn-list", "alpn-list"], Text, Deferred),
        value(
            &["w", "window-bits"],
            Number,
            Missing(FLOW_CONTROL_WINDOWS_HINT),
        ),
        value(
            &["W", "connection-window-bits"],
            Number,
            Missing(FLOW_CONTROL_WINDOWS_HINT),
        ),
        value(
            &["f", "max-frame-size"],
            Text,
            Missing(FLOW_CONTROL_WINDOWS_HINT),
        ),
        value(
            &["header-table-size"],
            Text,
            Missing(FLOW_CONTROL_WINDOWS_HINT),
        ),
        value(
            &["encoder-header-table-size"],
            Text,
            Missing(FLOW_CONTROL_WINDOWS_HINT),
        ),
        value(&["ciphers"], Text, Deferred),
        value(&["tls13-ciphers"], Text, Deferred),
        value(&["groups"], Text, Deferred),
        value(&["sni"], Text, OurFlag("--server-name", "")),
        value(&["connect-to"], Text, Deferred),
        value(
            &["B", "base-uri"],
            Text,
            Missing("the URL names a socket: unix:/SOCKET:/PATH"),
        ),
        value(&["log-file"], Text, Dropped(NO_FILE_HINT)),
        value(&["qlog-file-base"], Text, Missing(NO_HTTP3_HINT)),
        value(&["max-udp-payload-size"], Text, Missing(NO_HTTP3_HINT)),
        switch(&["no-udp-gso"], Missing(NO_HTTP3_HINT)),
        switch(
            &["ktls"],
            Missing("--records library leaves TLS records to the library"),
        ),
        switch(&["v", "verbose"], Ignored),
    ],
    reads_stdin: false,
    marker_flags: &[&["n", "c", "m"], &["c", "m", "D"], &["c", "D"]],
    finish,
};

/// Adds the flags that depend on several flags of h2load. Each of its clients is a connection with up to `-m` streams;
/// `--rps` is the rate of each client.
fn finish(line: &mut LineBuilder) -> Result<(), String> {
    let connections = line.number("c", 1);
    let streams = match line.value("m") {
        None | Some("auto") => 1,
        Some(number) => number
            .parse()
            .map_err(|_| format!("-m: `{number}` is not a number"))?,
    };
    let is_old = line.is_set("h1")
        || line.value("p") == Some("http/1.1")
        || line.value("npn-list") == Some("http/1.1");
    if is_old && streams > 1 {
        line.add_unsupported("-m", "requests are not pipelined over HTTP/1.1");
    }
    report_http3(line);
    add_fields(line);
    match line.value("i").map(str::to_owned) {
        Some(file) if line.words.is_empty() => take_target_from_file(line, &file)?,
        Some(_) => return Err("-i: the URLs are in the file, or in the line".to_owned()),
        None => {
            if line.words.len() > 1 {
                let further = line.words.split_off(1).join(" ");
                line.add_unsupported(further, "--rows FILE takes a URL a line of one server");
            }
            line.set_target_from_word("http")?;
        }
    }
    let is_secured = line
        .target
        .as_deref()
        .is_some_and(|url| url.starts_with("https"));
    if !is_old {
        line.add("--http-version", if is_secured { "auto" } else { "2" });
    }
    line.add("--connections", connections);
    match decimal_value(line, "rps") {
        Some(each) => {
            line.add("--rate", format_args!("{}/s", each * connections as f64));
            if line.is_set("m") {
                line.add("--max-in-flight", connections * streams);
            }
        }
        None => line.add("--clients", connections * if is_old { 1 } else { streams }),
    }
    if line.is_set("n") || !line.is_set("D") {
        line.add("--calls", line.number("n", 1));
    }
    if is_secured {
        // h2load does not check certificates.
        line.add_switch("--insecure");
    }
    override_addresses(line, "connect-to");
    add_suites(line, &["ciphers", "tls13-ciphers"]);
    for value in line
        .values("groups")
        .iter()
        .flat_map(|list| list.split(':'))
    {
        line.add("--group", value);
    }
    Ok(())
}

/// Reports a list of protocols with HTTP/3. If it has others, they are offered.
fn report_http3(line: &mut LineBuilder) {
    let lists = line.values("npn-list");
    let names = lists.iter().flat_map(|list| list.split(','));
    let (newest, others): (Vec<&str>, Vec<&str>) = names.partition(|name| name.starts_with("h3"));
    if newest.is_empty() {
        return;
    }
    if others.is_empty() {
        line.add_unsupported("--alpn-list h3", NO_HTTP3_HINT);
    } else {
        line.add_dropped("h3", NO_HTTP3_HINT);
    }
}

/// Adds the header fields. Pseudo-header fields become the flags for method and host.
fn add_fields(line: &mut LineBuilder) {
    for field in line.values("H") {
        match field
            .strip_prefix(':')
            .and_then(|field| field.split_once(':'))
        {
            Some(("method", method)) => line.add("-X", method.trim()),
            Some(("authority", host)) => line.add("--host", host.trim()),
            Some(_) => line.add_unsupported(format!("-H {field}"), "set by the URL"),
            None => line.add("-H", field),
        }
    }
}
