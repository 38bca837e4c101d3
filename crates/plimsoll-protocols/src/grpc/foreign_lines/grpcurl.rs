//! Translates command lines of [grpcurl](https://github.com/fullstorydev/grpcurl) to a load of one call. Plimsoll's
//! flags for a load may be mixed with grpcurl's flags, and grpcurl's arguments may be in any order.

use super::{add_descriptions, method_with_slash, set_target};
use crate::interface::foreign::command_lines::FlagMeaning::{Deferred, Ignored, Missing, OurFlag};
use crate::interface::foreign::command_lines::ValueForm::{Decimal, Number, Text};
use crate::interface::foreign::command_lines::{
    FlagStyle, LineBuilder, LineTool, METHOD_PLACEHOLDER, switch, value,
};

pub(super) static TOOL: LineTool = LineTool {
    names: &["grpcurl"],
    style: FlagStyle::Go,
    flags: &[
        switch(&["plaintext"], Deferred),
        switch(&["insecure"], OurFlag("--insecure", "")),
        value(&["cacert"], Text, OurFlag("--ca", "")),
        value(&["cert"], Text, OurFlag("--cert", "")),
        value(&["key"], Text, OurFlag("--key", "")),
        value(&["servername"], Text, OurFlag("--server-name", "")),
        value(&["authority"], Text, OurFlag("--authority", "")),
        value(&["d"], Text, Deferred),
        value(&["H"], Text, OurFlag("--metadata", "")),
        value(&["rpc-header"], Text, OurFlag("--metadata", "")),
        value(
            &["reflect-header"],
            Text,
            Missing("reflection queries carry the fields of --metadata"),
        ),
        switch(
            &["expand-headers"],
            Missing("--metadata 'name: $VARIABLE' takes a value from the environment"),
        ),
        value(&["proto"], Text, Deferred),
        value(&["import-path"], Text, Deferred),
        value(&["protoset"], Text, Deferred),
        switch(&["use-reflection"], OurFlag("--reflection", "")),
        value(&["user-agent"], Text, OurFlag("--user-agent", "")),
        value(
            &["connect-timeout"],
            Decimal,
            OurFlag("--connect-timeout", "s"),
        ),
        value(&["max-time"], Decimal, OurFlag("--deadline", "s")),
        value(
            &["keepalive-time"],
            Decimal,
            Missing("no keepalive pings are sent"),
        ),
        value(&["max-msg-sz"], Number, OurFlag("--max-message", "B")),
        switch(&["unix"], Deferred),
        value(&["format"], Text, Deferred),
        switch(&["format-error"], Ignored),
        switch(
            &["allow-unknown-fields"],
            Missing("fields that the message type lacks are always rejected"),
        ),
        switch(&["emit-defaults"], Ignored),
        switch(&["msg-template"], Ignored),
        switch(&["v"], Ignored),
        switch(&["vv"], Ignored),
        switch(&["alts"], Missing("connections are plaintext or TLS")),
        value(
            &["protoset-out"],
            Text,
            Missing("no descriptions are written"),
        ),
        value(
            &["proto-out-dir"],
            Text,
            Missing("no descriptions are written"),
        ),
        // Plimsoll's flags for the load.
        value(&["clients"], Number, OurFlag("--clients", "")),
        value(&["calls"], Number, OurFlag("--calls", "")),
        value(&["rate"], Text, OurFlag("--rate", "/s")),
        value(&["duration"], Text, OurFlag("--duration", "s")),
        value(&["connections"], Number, OurFlag("--connections", "")),
        value(&["objective"], Text, OurFlag("--objective", "")),
        value(&["out"], Text, OurFlag("--out", "")),
        switch(&["dry-run"], OurFlag("--dry-run", "")),
    ],
    reads_stdin: false,
    marker_flags: &[
        &["plaintext"],
        &["rpc-header"],
        &["protoset"],
        &["import-path"],
    ],
    finish,
};

fn finish(line: &mut LineBuilder) -> Result<(), String> {
    if line.value("format").is_some_and(|format| format != "json") {
        line.add_unsupported("-format", "messages are written as JSON");
    }
    add_descriptions(line);
    let words = line.words.clone();
    let question = |name: &str| words.iter().any(|word| word == name);
    let mut others = words
        .iter()
        .filter(|word| !["list", "describe"].contains(&word.as_str()));
    let address = others
        .clone()
        .find(|word| is_address(word, line.is_set("unix")));
    let symbols: Vec<&String> = others
        .by_ref()
        .filter(|word| Some(*word) != address)
        .collect();
    if symbols.len() > 1 {
        return Err(format!("unexpected argument `{}`", symbols[1]));
    }
    if let Some(address) = address {
        let socket = format!("unix:{address}");
        let address = if line.is_set("unix") {
            &socket
        } else {
            address
        };
        set_target(line, address, "plaintext");
    }
    let symbol = symbols.first().map(|symbol| (*symbol).clone());
    if question("list") || question("describe") {
        // To list a service means to show its methods, which is Plimsoll's `describe`.
        let name = if symbol.is_some() { "describe" } else { "list" };
        line.subcommand = Some([name.to_owned()].into_iter().chain(symbol).collect());
    } else {
        add_call(line, symbol.as_deref())?;
    }
    match address {
        Some(_) => Ok(()),
        None => Err("the server's HOST:PORT is missing".to_owned()),
    }
}

/// Returns true if a word is an address, not a method: it ends in a port, or is the path of a socket.
fn is_address(word: &str, is_socket: bool) -> bool {
    if is_socket {
        return word.starts_with(['/', '.']);
    }
    let port = word
        .rsplit_once(':')
        .map(|(_, port)| port.trim_end_matches('/'));
    word.starts_with("unix:") || port.is_some_and(|port| port.parse::<u16>().is_ok())
}

fn add_call(line: &mut LineBuilder, method: Option<&str>) -> Result<(), String> {
    let known = method.map(method_with_slash);
    line.add("-m", known.as_deref().unwrap_or(METHOD_PLACEHOLDER));
    if let Some(data) = line.value("d").map(str::to_owned) {
        line.add("-d", if data == "@" { "@-".to_owned() } else { data });
    }
    let is_load = ["clients", "calls", "rate", "duration"]
        .iter()
        .any(|name| line.is_set(name));
    if !is_load {
        line.our_flags
            .extend(["--clients", "1", "--calls", "1"].map(str::to_owned));
    }
    match method {
        Some(_) => Ok(()),
        None => Err("the method is missing: package.Service/Method".to_owned()),
    }
}
