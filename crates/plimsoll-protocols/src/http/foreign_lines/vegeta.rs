//! Translates command lines of [vegeta](https://github.com/tsenart/vegeta): `echo "GET http://HOST" | vegeta attack
//! -rate=50 -duration=10s`.

use std::collections::BTreeMap;
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use plimsoll_model::formats::input;
use serde::Deserialize;

use super::addresses::{override_addresses, override_with_unix_socket, take_target_from_file};
use super::{NO_FILE_HINT, OPEN_LOOP_CONNECTIONS, add_alpn, add_redirects};
use crate::interface::foreign::command_lines::FlagMeaning::{
    Deferred, Dropped, Ignored, Missing, OurFlag, Words,
};
use crate::interface::foreign::command_lines::ValueForm::{Number, Text, Time};
use crate::interface::foreign::command_lines::{FlagStyle, LineBuilder, LineTool, switch, value};

pub(super) static TOOL: LineTool = LineTool {
    names: &["vegeta attack", "attack", "vegeta"],
    style: FlagStyle::Go,
    flags: &[
        value(&["rate"], Text, Deferred),
        value(&["duration"], Time, Deferred),
        value(&["targets"], Text, Deferred),
        value(&["format"], Text, Deferred),
        value(&["body"], Text, Words(&["-d", "@{}"])),
        value(&["header"], Text, OurFlag("-H", "")),
        value(&["timeout"], Time, Deferred),
        value(&["connections"], Number, Deferred),
        value(&["max-connections"], Number, Deferred),
        value(&["workers"], Number, Ignored),
        value(&["max-workers"], Number, Deferred),
        switch(&["keepalive"], Deferred),
        switch(&["http2"], Deferred),
        switch(&["h2c"], Words(&["--http-version", "2"])),
        switch(&["insecure"], OurFlag("--insecure", "")),
        value(&["cert"], Text, OurFlag("--cert", "")),
        value(&["key"], Text, OurFlag("--key", "")),
        value(&["root-certs"], Text, Deferred),
        value(&["redirects"], Text, Deferred),
        value(&["name"], Text, OurFlag("--name", "")),
        value(&["output"], Text, Dropped(NO_FILE_HINT)),
        switch(&["lazy"], Ignored),
        switch(
            &["chunked"],
            Missing("bodies are sent with their length, not in chunks"),
        ),
        value(&["laddr"], Text, OurFlag("--source", "")),
        value(
            &["max-body"],
            Text,
            Dropped("bodies are read to their ends"),
        ),
        value(
            &["proxy-header"],
            Text,
            Missing("--proxy 'http://$NAME@HOST:PORT' takes USER:PASSWORD from a variable"),
        ),
        value(
            &["resolvers"],
            Text,
            Missing("--resolve NAME:PORT:ADDRESS gives a name its address"),
        ),
        value(&["dns-ttl"], Time, OurFlag("--resolve-interval", "")),
        switch(&["session-tickets"], OurFlag("--resume", "")),
        value(&["unix-socket"], Text, Deferred),
        value(&["connect-to"], Text, Deferred),
    ],
    reads_stdin: true,
    marker_flags: &[],
    finish,
};

fn finish(line: &mut LineBuilder) -> Result<(), String> {
    let connections = ["max-connections", "max-workers"].map(|name| line.number(name, 0));
    let connections = connections.into_iter().filter(|&n| n > 0).min();
    let rate = line.value("rate").unwrap_or("50/1s").to_owned();
    let rate = if rate == "0" || rate == "infinity" {
        // Without a rate, each worker sends its next request after its response: a closed loop.
        line.add("--clients", connections.unwrap_or(OPEN_LOOP_CONNECTIONS));
        None
    } else {
        line.add(
            "--connections",
            connections.unwrap_or(OPEN_LOOP_CONNECTIONS),
        );
        Some(convert_rate(&rate).ok_or_else(|| format!("-rate: `{rate}` is not a rate"))?)
    };
    if let Some(rate) = rate {
        line.add("--rate", rate);
    }
    match line.value("duration").map(str::to_owned) {
        Some(time) if time != "0" && time != "0s" => line.add("--duration", time),
        _ => line.add_unsupported("-duration=0", "a load must end: set --duration"),
    }
    if let Some(time) = line.value("timeout").map(str::to_owned) {
        line.add(
            "--deadline",
            if time == "0s" {
                "none".to_owned()
            } else {
                time
            },
        );
    }
    if line.value("keepalive") == Some("false") {
        line.add_switch("--cold");
    }
    for file in line
        .values("root-certs")
        .iter()
        .flat_map(|files| files.split(','))
    {
        line.add("--ca", file);
    }
    // By default, vegeta follows 10 redirects and asks for compressed responses.
    line.add_switch("--compressed");
    match line.value("redirects").unwrap_or("10") {
        "-1" => line.add("--expect", "2xx,3xx"),
        most => match most.parse() {
            Ok(most) => add_redirects(line, most),
            Err(_) => return Err(format!("-redirects: `{most}` is no number")),
        },
    }
    if let Some(file) = line.value("targets").map(str::to_owned) {
        let text = input::file_to_string(Path::new(&file));
        let text = text.map_err(|e| format!("can't read the targets of {file}: {e}"))?;
        let mut lines = text.lines().map(str::trim).filter(|text| !text.is_empty());
        if lines.all(|text| text.starts_with("GET ")) {
            take_target_from_file(line, &file)?;
            return add_connection_flags(line);
        }
        line.input = Some(text);
    }
    if line.value("format") == Some("json") {
        take_json_target(line)?;
    } else {
        take_target(line)?;
    }
    add_connection_flags(line)
}

/// Adds the flags for addresses and for the version of HTTP.
fn add_connection_flags(line: &mut LineBuilder) -> Result<(), String> {
    override_addresses(line, "connect-to");
    override_with_unix_socket(line, "unix-socket");
    if line.value("http2") != Some("false") && !line.is_set("h2c") {
        add_alpn(line);
    }
    Ok(())
}

/// Converts a rate such as `50`, `50/1s`, `3000/m` or `90/30s`.
fn convert_rate(text: &str) -> Option<String> {
    let (count, unit) = text.split_once('/').unwrap_or((text, "1s"));
    let count: f64 = count.parse().ok()?;
    let at = unit.find(|c: char| c.is_ascii_alphabetic())?;
    let (number, unit) = unit.split_at(at);
    let number = if number.is_empty() {
        1.0
    } else {
        number.parse().ok()?
    };
    ["s", "m", "h"]
        .contains(&unit)
        .then(|| format!("{}/{unit}", count / number))
}

/// A target in the format of `-format=json`.
#[derive(Deserialize)]
struct JsonTarget {
    method: String,
    url: String,
    /// The body, in Base64.
    #[serde(default)]
    body: String,
    #[serde(default)]
    header: BTreeMap<String, Vec<String>>,
}

const SEVERAL_TARGETS_HINT: &str =
    "one request is measured; lanes of a plan put several loads side by side";

/// Takes the target from stdin or from a file with one JSON object per line.
fn take_json_target(line: &mut LineBuilder) -> Result<(), String> {
    let input = line.input.take().unwrap_or_default();
    let mut lines = input.lines().filter(|text| !text.trim().is_empty());
    let first = lines.next().ok_or("the targets are missing on stdin")?;
    let target: JsonTarget = serde_json::from_str(first)
        .map_err(|e| format!("the first target is not one of -format=json: {e}"))?;
    if lines.next().is_some() {
        line.add_unsupported("-format=json", SEVERAL_TARGETS_HINT);
    }
    let body = STANDARD
        .decode(&target.body)
        .ok()
        .and_then(|body| String::from_utf8(body).ok());
    if target.method != "GET" || !target.body.is_empty() {
        line.add("-X", target.method);
    }
    for (name, values) in &target.header {
        for value in values {
            line.add_field("-H", name, value);
        }
    }
    match body {
        Some(body) if body.is_empty() => {}
        Some(body) if !body.starts_with('@') && body != "-" => line.add("-d", body),
        _ => line.add_unsupported(
            "body",
            "the target's body is no text: -d @FILE sends a file",
        ),
    }
    line.target = Some(target.url);
    Ok(())
}

/// Reads the target from stdin: `GET http://HOST/`, followed by lines with header fields and `@FILE`. If nothing comes
/// from stdin, the target is a word of the command line.
fn take_target(line: &mut LineBuilder) -> Result<(), String> {
    let input = line.input.take().unwrap_or_default();
    let mut lines = input
        .lines()
        .map(str::trim)
        .skip_while(|text| text.is_empty());
    let Some(first) = lines.next() else {
        return line.set_target_from_word("http").map_err(|_| {
            "the URL is missing: vegeta reads it from stdin (`echo \"GET http://HOST/\" | …`)"
                .to_owned()
        });
    };
    let (method, url) = first.split_once(' ').unwrap_or(("GET", first));
    // `plimsoll http` sends a request with a body as POST unless `-X` is given.
    if method != "GET" || line.is_set("body") || input.contains("\n@") {
        line.add("-X", method);
    }
    line.target = Some(url.trim().to_owned());
    let mut after = lines.clone().skip_while(|text| !text.is_empty());
    if after.any(|text| text.contains("://")) {
        line.add_unsupported("targets after the first", SEVERAL_TARGETS_HINT);
    }
    for text in lines.by_ref().take_while(|text| !text.is_empty()) {
        if text.starts_with('@') {
            line.add("-d", text);
        } else if text
            .split_once(' ')
            .is_some_and(|(_, url)| url.contains("://"))
        {
            line.add_unsupported(text, SEVERAL_TARGETS_HINT);
        } else {
            line.add("-H", text);
        }
    }
    Ok(())
}
