//! Translates command lines of [ghz](https://ghz.sh).

use std::collections::BTreeMap;

use super::{add_descriptions, set_target, method_with_slash};
use crate::foreign::command_lines::FlagMeaning::{Deferred, Missing, Ignored, OurFlag, Words};
use crate::foreign::command_lines::ValueForm::{Decimal, Number, Text, Time};
use crate::foreign::command_lines::{FlagStyle, LineBuilder, LineTool, switch, value};

const ONLY_IN_PLAN_REASON: &str =
    "rates that change are set in a plan: load.steps, or rate = { from, to, over }";
const FIXED_CLIENTS_REASON: &str = "the number of clients does not change during a load";

pub(super) static TOOL: LineTool = LineTool {
    names: &["ghz"],
    style: FlagStyle::Gnu,
    flags: &[
        value(
            &["config"],
            Text,
            Missing("write a plan in place of the configuration: plimsoll run PLAN"),
        ),
        value(&["proto"], Text, Deferred),
        value(&["protoset"], Text, Deferred),
        value(&["import-path", "i", "import-paths"], Text, Deferred),
        value(&["call"], Text, Deferred),
        value(&["cacert"], Text, OurFlag("--ca", "")),
        value(&["cert"], Text, OurFlag("--cert", "")),
        value(&["key"], Text, OurFlag("--key", "")),
        value(&["cname"], Text, OurFlag("--server-name", "")),
        switch(&["skipTLS"], OurFlag("--insecure", "")),
        switch(&["insecure"], Deferred),
        value(&["authority"], Text, OurFlag("--authority", "")),
        switch(&["async"], Ignored),
        value(&["r", "rps"], Decimal, Deferred),
        value(&["load-schedule"], Text, Deferred),
        value(&["load-start"], Number, Missing(ONLY_IN_PLAN_REASON)),
        value(&["load-step"], Text, Missing(ONLY_IN_PLAN_REASON)),
        value(&["load-end"], Number, Missing(ONLY_IN_PLAN_REASON)),
        value(&["load-step-duration"], Text, Missing(ONLY_IN_PLAN_REASON)),
        value(&["load-max-duration"], Text, Missing(ONLY_IN_PLAN_REASON)),
        value(&["c", "concurrency"], Number, Deferred),
        value(&["concurrency-schedule"], Text, Missing(FIXED_CLIENTS_REASON)),
        value(&["concurrency-start"], Number, Missing(FIXED_CLIENTS_REASON)),
        value(&["concurrency-end"], Number, Missing(FIXED_CLIENTS_REASON)),
        value(&["concurrency-step"], Number, Missing(FIXED_CLIENTS_REASON)),
        value(&["concurrency-step-duration"], Text, Missing(FIXED_CLIENTS_REASON)),
        value(&["concurrency-max-duration"], Text, Missing(FIXED_CLIENTS_REASON)),
        value(&["n", "total"], Number, Deferred),
        value(&["t", "timeout"], Time, Deferred),
        value(&["z", "duration"], Time, Deferred),
        value(&["x", "max-duration"], Time, OurFlag("--duration", "")),
        value(&["duration-stop"], Text, Ignored),
        value(&["d", "data"], Text, Deferred),
        value(&["D", "data-file"], Text, Words(&["-d", "@{}"])),
        switch(&["b", "binary"], Words(&["--data-binary", "@-"])),
        value(
            &["B", "binary-file"],
            Text,
            Words(&["--data-binary", "@{}"]),
        ),
        value(&["m", "metadata"], Text, Deferred),
        value(
            &["M", "metadata-file"],
            Text,
            Missing("--metadata 'name: value' sets each"),
        ),
        value(&["stream-interval"], Time, OurFlag("--pace", "")),
        value(
            &["stream-call-duration"],
            Time,
            OurFlag("--stream-duration", ""),
        ),
        value(&["stream-call-count"], Number, OurFlag("--messages", "")),
        switch(&["stream-dynamic-messages"], Ignored),
        value(
            &["reflect-metadata"],
            Text,
            Missing("reflection queries carry the fields of --metadata"),
        ),
        value(
            &["max-recv-message-size", "max-send-message-size"],
            Text,
            Missing("--max-message 16MiB accepts larger answers"),
        ),
        switch(
            &["enable-compression", "e"],
            Words(&["--compression", "gzip"]),
        ),
        value(
            &["lb-strategy"],
            Text,
            Missing("all addresses of a name are used in turn"),
        ),
        value(&["connections"], Number, OurFlag("--connections", "")),
        value(&["connect-timeout"], Time, OurFlag("--connect-timeout", "")),
        value(&["keepalive"], Time, Missing("no keepalive pings are sent")),
        value(&["cpus"], Number, Deferred),
        value(&["name"], Text, OurFlag("--name", "")),
        value(&["tags"], Text, Ignored),
        value(&["o", "output"], Text, Deferred),
        value(&["O", "format"], Text, Deferred),
        value(
            &["skipFirst"],
            Number,
            Missing("--warmup 5s excludes the beginning, by time"),
        ),
        switch(&["count-errors"], Ignored),
        value(&["debug"], Text, Ignored),
        switch(&["disable-template-functions"], Ignored),
        switch(&["disable-template-data"], Ignored),
    ],
    reads_stdin: false,
    marker_flags: &[&["call"]],
    finish,
};

fn finish(line: &mut LineBuilder) -> Result<(), String> {
    let method = line.value("call").map(method_with_slash);
    line.add("-m", method.as_deref().unwrap_or("SERVICE/METHOD"));
    add_data(line)?;
    add_descriptions(line);
    line.add_workers_of("cpus", line.number("connections", 1));
    let clients = line.number("c", 50);
    match line.value("r").map(str::to_owned) {
        Some(rate) if rate != "0" => {
            line.add("--rate", format_args!("{rate}/s"));
            // Without --async, each of ghz's workers waits for the response before its next call.
            if !line.is_set("async") {
                line.add("--max-in-flight", clients);
            }
        }
        _ => line.add("--clients", clients),
    }
    match line.value("z").map(str::to_owned) {
        Some(time) => line.add("--duration", time),
        None => line.add("--calls", line.number("n", 200)),
    }
    if line
        .value("load-schedule")
        .is_some_and(|schedule| schedule != "const")
    {
        line.add_missing("--load-schedule", ONLY_IN_PLAN_REASON);
    }
    if let Some(time) = line.value("t").map(str::to_owned) {
        line.add(
            "--deadline",
            if time == "0" || time == "0s" {
                "none".to_owned()
            } else {
                time
            },
        );
    }
    add_output(line);
    match line.words.clone().as_slice() {
        [address] => set_target(line, address, "insecure"),
        [] => return Err("the server's HOST:PORT is missing".to_owned()),
        [_, more, ..] => return Err(format!("unexpected argument `{more}`")),
    }
    if method.is_none() {
        return Err("the method is missing: --call package.Service/Method".to_owned());
    }
    Ok(())
}

/// Fields of ghz's templates, each with our equivalent.
const TEMPLATE_FIELDS: [(&str, &str); 4] = [
    ("{{.RequestNumber}}", "{{seq}}"),
    ("{{ .RequestNumber }}", "{{seq}}"),
    ("{{newUUID}}", "{{uuid}}"),
    ("{{.UUID}}", "{{uuid}}"),
];

fn add_data(line: &mut LineBuilder) -> Result<(), String> {
    if let Some(data) = line.value("d").map(str::to_owned) {
        let data = TEMPLATE_FIELDS
            .iter()
            .fold(data, |data, (theirs, ours)| data.replace(theirs, ours));
        if data.contains("{{.") || data.contains("{{ .") {
            line.add_missing(
                "-d",
                "only the template fields {{seq}} and {{uuid}} are supported",
            );
        }
        line.add("-d", if data == "@" { "@-".to_owned() } else { data });
    }
    if let Some(metadata) = line.value("m").map(str::to_owned) {
        let read = serde_json::from_str::<BTreeMap<String, String>>(&metadata);
        let read = read.map_err(|_| format!("-m: `{metadata}` is not a JSON object of strings"))?;
        for (name, value) in read {
            line.add_field("--metadata", &name, &value);
        }
    }
    Ok(())
}

fn add_output(line: &mut LineBuilder) {
    let format = line.value("O").unwrap_or_default().to_owned();
    match (format.as_str(), line.value("o").map(str::to_owned)) {
        ("html", file) => line.add("--html", file.unwrap_or_else(|| "-".to_owned())),
        ("json" | "pretty", None) => line.add_switch("--json"),
        ("summary" | "", None) => {}
        _ => line.add_missing(
            "-O",
            "--json, --html FILE and `plimsoll report --export` write results",
        ),
    }
}
